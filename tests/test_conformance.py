"""Published laws: the rules derive those that hold, and the checker refutes those that do not."""

from __future__ import annotations

import pytest

from tests.conformance import taso
from tests.conformance.meeting import meet, refute
from tests.conformance.notation import Law, table

TASO = {law.number: law for law in table(taso.TEXT)}
SOUND = [law for law in TASO.values() if law.number not in taso.REFUTED]
WRONG = [TASO[number] for number in sorted(taso.REFUTED)]


def test_the_table_is_whole() -> None:
    assert sorted(TASO) == list(range(133))


@pytest.mark.parametrize("law", WRONG, ids=lambda law: str(law.number))
def test_wrong_laws_are_refuted_and_do_not_meet(law: Law) -> None:
    found = refute(law)
    assert found is not None
    assert "f32" in str(found) or "float32" in str(found)


@pytest.mark.parametrize("law", SOUND[::10], ids=lambda law: str(law.number))
def test_laws_that_hold_are_not_refuted(law: Law) -> None:
    assert refute(law, trials=20) is None


def test_terms_that_differ_do_not_meet() -> None:
    for text in ("a @ b = b @ a", "a + b * c = a * (b + c)", "cat0(a, b) + c = c + cat0(b, a)"):
        (law,) = table(f"0 2d {text}")
        assert refute(law) is not None
        assert not meet(law).met

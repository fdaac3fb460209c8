"""Published laws: the rules derive those that hold, and the checker refutes those that do not."""

from __future__ import annotations

import pytest

from eqsat.rules import select
from tests.conformance import axioms, taso, xla
from tests.conformance.meeting import meet, refute
from tests.conformance.notation import Law, table

TASO = {law.number: law for law in table(taso.TEXT)}
AXIOMS = table(axioms.TEXT)
XLA = table(xla.TEXT)
SOUND = [law for law in TASO.values() if law.number not in taso.REFUTED]


def test_the_tables_are_whole() -> None:
    assert sorted(TASO) == list(range(133))
    assert sorted([*axioms.OUTSIDE, *(law.number for law in AXIOMS)]) == list(range(1, 45))


@pytest.mark.parametrize("law", [TASO[n] for n in (98, 99, 125)], ids=lambda law: str(law.number))
def test_wrong_laws_are_refuted_and_do_not_meet(law: Law) -> None:
    found = refute(law)
    assert found is not None
    assert "f32" in str(found) or "float32" in str(found)


@pytest.mark.parametrize("law", SOUND[::20], ids=lambda law: str(law.number))
def test_laws_that_hold_are_not_refuted(law: Law) -> None:
    assert refute(law, trials=10) is None


def test_sound_laws_meet() -> None:
    apart = [
        law.equations.text
        for law in [*SOUND[::4], *AXIOMS, *XLA]
        if law.number not in xla.REFUTED and not meet(law).met
    ]
    assert not apart


@pytest.mark.parametrize("law", [law for law in XLA if law.number in xla.REFUTED], ids=lambda law: str(law.number))
def test_laws_that_lose_a_nan_are_refuted(law: Law) -> None:
    assert refute(law) is not None
    assert not meet(law).met


@pytest.mark.slow
@pytest.mark.parametrize("law", [*AXIOMS, *XLA], ids=lambda law: str(law.number))
def test_the_other_laws_are_not_refuted(law: Law) -> None:
    assert law.number in xla.REFUTED or refute(law, trials=60) is None


@pytest.mark.slow
@pytest.mark.parametrize("law", TASO.values(), ids=lambda law: str(law.number))
def test_every_law_meets_or_is_refuted(law: Law) -> None:
    assert meet(law).met == (law.number not in taso.REFUTED)
    assert (refute(law, trials=100) is None) == (law.number not in taso.REFUTED)


@pytest.mark.parametrize("rule", ["product.reorder", "factor_one", "pair_of_concat", "blocks_transposed"])
def test_without_a_law_what_needs_it_stays_apart(rule: str) -> None:
    needs = {"product.reorder": 49, "factor_one": 45, "pair_of_concat": 72, "blocks_transposed": 84}
    law = TASO[needs[rule]]
    assert rule in meet(law).used or rule == "product.reorder"
    assert not meet(law, rules=select(disable=[rule])).met


def test_terms_that_differ_do_not_meet() -> None:
    for text in ("a @ b = b @ a", "a + b * c = a * (b + c)", "cat0(a, b) + c = c + cat0(b, a)"):
        (law,) = table(f"0 2d {text}")
        assert refute(law) is not None
        assert not meet(law).met

"""The key of a remembered plan knows which rules were added."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from eqsat import rules
from eqsat.rules.fingerprint import rules_fingerprint


def sourceless(right: str) -> rules.Rule:
    """A rule from text that is in no file, as in an interactive session; all have one id, file and line."""
    names = {"rules": rules}
    exec(f"a = rules.tensors('a')\nmade = rules.rewrite(rules.op('exp', a), {right}, id='typed_in')", names)
    made = names["made"]
    assert isinstance(made, rules.Rule)
    return made


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    if any(rule.id == "typed_in" for rule in rules.list()):
        rules.remove("typed_in")


def test_a_rule_that_takes_the_place_of_another_is_told_apart() -> None:
    seen = {rules_fingerprint()}
    for n in range(50):
        rules.add(sourceless("lambda m: None"))
        assert rules_fingerprint() == rules_fingerprint()
        seen.add(rules_fingerprint())
        rules.remove("typed_in")
        gc.collect()  # the next rule may get the memory of this one, and so its id()
        assert len(seen) == n + 2


def test_without_added_rules_it_is_as_before() -> None:
    before = rules_fingerprint()
    rules.add(sourceless("2 * a"))
    assert rules_fingerprint() != before
    rules.remove("typed_in")
    assert rules_fingerprint() == before

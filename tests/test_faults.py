"""Every fault that is put into eqsat under random programs is caught, or harms nothing (``python -m tests.faults``)."""

from __future__ import annotations

import os

import pytest

from tests import faults

COMPILED_ANEW = [name for name in faults.FAULTS if "cache entries" in name]
REFUSED = ["a wrong rule", "a wrong kernel", "a wrong tile operation"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_computes_something_else_is_refused(name: str) -> None:
    caught = 0
    for seed in range(1, 9):  # until it has come to a program in which it matters
        outcome = faults.run(name, 3, seed)
        assert not outcome.failed, outcome.said
        caught += outcome.caught
        if caught:
            break
    assert caught


@pytest.mark.parametrize("name", COMPILED_ANEW)
def test_entries_that_are_not_the_programs_are_not_used(name: str) -> None:
    outcome = faults.run(name, 2, 0)
    assert (outcome.anew, outcome.right, outcome.caught, outcome.failed) == (2, 0, 0, 0), outcome


def test_entries_that_are_the_programs_are_used() -> None:
    """The control: nothing is damaged."""
    faults.FAULTS["none"] = faults._with_damage(lambda folder: None)
    try:
        assert faults.run("none", 2, 0).right == 2
    finally:
        del faults.FAULTS["none"]


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_compilers_take_nothing_with_them() -> None:
    """Killed workers of the fuzzer: ``test_the_command_survives_a_crash_of_the_interpreter``."""
    outcome = faults.run("killed compilers", 1, 0)
    assert (outcome.anew, outcome.failed) == (1, 0), outcome.said

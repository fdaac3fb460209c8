"""The checks are checked: every deliberate fault is found by the checker of rules or by verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.egraph.check import check_rule
from tests.mutants.fault import Fault
from tests.mutants.kernels import KERNEL_FAULTS
from tests.mutants.plans import PLAN_FAULTS
from tests.mutants.programs import MISCOMPILED, Miscompiled
from tests.mutants.rules import UNSOUND, Unsound

FAULTS = KERNEL_FAULTS + PLAN_FAULTS

OPEN = {
    # of rules: NaN is not tried where a tensor is an integer or a bool
    "m.never_nan",
    # of programs: the caller's own values are not compared
    *("log as sqrt", "wrong below -10", "wrong above 1000", "wrong at zero", "loses a NaN", "a NaN that is none"),
    *("an infinity that is finite", "fmax for maximum"),
    # integers are compared as doubles
    "integers through doubles",
    # of the compiler: the function itself is not compared, only its trace
    *("a reversal goes forwards", "a transposition goes back", "a row is broadcast as a column"),
    *("a mean divides by n - 1", "the reference backend's sort is reversed"),
}
"""Mutants that nothing catches yet."""


def cases(mutants: Iterable[Any], name: Callable[[Any], str]) -> list[Any]:
    """Parameters of a test, those that nothing catches yet marked as such."""
    mark = pytest.mark.xfail(reason="nothing catches it yet", strict=False)
    return [pytest.param(m, id=name(m), marks=[mark] if name(m) in OPEN else []) for m in mutants]


@pytest.mark.parametrize("unsound", cases(UNSOUND, lambda u: u.rule.id))
def test_an_unsound_rule_is_refuted(unsound: Unsound) -> None:
    result = check_rule(unsound.rule)
    assert result.fired > 0
    assert result.counterexample is not None, unsound.fault


@pytest.mark.parametrize("mutant", cases(MISCOMPILED, lambda m: m.name))
def test_a_miscompiled_program_is_refused(mutant: Miscompiled) -> None:
    refused(mutant)


@pytest.mark.parametrize("mutant", cases(FAULTS, lambda m: m.name))
def test_a_fault_of_the_compiler_is_caught(mutant: Fault) -> None:
    refused(mutant)


def refused(mutant: Miscompiled | Fault) -> None:
    """Verification refuses the program with the fault, and passes it without."""
    options = dict(mutant.options)
    with np.errstate(all="ignore"):
        with mutant.applied(), pytest.raises(eqsat.VerificationError):
            eqsat.optimize(mutant.program, cache=False, **options)(*mutant.arguments)
        eqsat.optimize(mutant.program, cache=False, **options)(*mutant.arguments)


def test_there_are_enough_mutants_and_no_two_alike() -> None:
    names = [u.rule.id for u in UNSOUND] + [m.name for m in MISCOMPILED] + [f"compiler: {m.name}" for m in FAULTS]
    assert len(set(names)) == len(names) >= 130

"""The checks are checked: every deliberate fault is found by the checker of rules or by verification."""

from __future__ import annotations

import os

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


@pytest.mark.parametrize("unsound", UNSOUND, ids=lambda u: u.rule.id)
def test_an_unsound_rule_is_refuted(unsound: Unsound) -> None:
    result = check_rule(unsound.rule)
    assert result.fired > 0
    assert result.counterexample is not None, unsound.fault


@pytest.mark.parametrize("mutant", MISCOMPILED, ids=lambda m: m.name)
def test_a_miscompiled_program_is_refused(mutant: Miscompiled) -> None:
    refused(mutant)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("mutant", FAULTS, ids=lambda m: m.name)
def test_a_fault_of_the_compiler_is_caught(mutant: Fault) -> None:
    """In a child: a kernel with a fault may write where it should not, and this process has other tests to run."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "the child did not get to an end"
        try:
            refused(mutant)
            said = ""
        except BaseException as error:
            said = repr(error) or "an error"
        finally:
            os.write(write, said.encode()[:4000])
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    assert not status, f"the child ended with status {status}"
    assert not said, said


def refused(mutant: Miscompiled | Fault) -> None:
    """Verification refuses the program with the fault, and passes it without."""
    options = dict(mutant.options)
    with np.errstate(all="ignore"):
        with mutant.applied(), pytest.raises(eqsat.VerificationError):
            eqsat.optimize(mutant.program, cache=False, strict=True, **options)(*mutant.arguments)
        eqsat.optimize(mutant.program, cache=False, strict=True, **options)(*mutant.arguments)


def test_there_are_enough_mutants_and_no_two_alike() -> None:
    names = [u.rule.id for u in UNSOUND] + [m.name for m in MISCOMPILED] + [f"compiler: {m.name}" for m in FAULTS]
    assert len(set(names)) == len(names) >= 130

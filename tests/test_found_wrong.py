"""A program that verification finds wrong is never used: NumPy runs the function, or who may mend it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import rules
from eqsat.errors import EqsatWarning, VerificationError
from tests.mutants.programs import MISCOMPILED

FAULT = MISCOMPILED[0]
a = rules.tensors("a")


@contextmanager
def added(rule: rules.Rule) -> Iterator[None]:
    rules.add(rule, check=False)
    try:
        yield
    finally:
        rules.remove(rule.id)


@pytest.mark.parametrize("n", [1, 2])
def test_integers_of_a_few_lanes_are_divided_by_themselves(n: int) -> None:
    """LLVM aborted on such a vector: what is summed up is one number in all its lanes."""

    def ranks(x: Any) -> Any:
        counts = np.digitize(x, np.arange(-2.0, 3.0))
        return counts // counts, counts % counts

    x = np.linspace(-1, 2, n, dtype=np.float32)
    for got, expected in zip(eqsat.optimize(ranks, strict=True)(x), ranks(x), strict=True):
        np.testing.assert_array_equal(got, expected)


def wrong() -> Any:
    return eqsat.optimize(FAULT.program, cache=False, **dict(FAULT.options))


def test_numpy_runs_what_is_compiled_wrong_with_one_warning() -> None:
    with FAULT.applied(), pytest.warns(EqsatWarning) as caught, np.errstate(all="ignore"):
        f = wrong()
        got = [f(*FAULT.arguments) for _ in range(2)]
    for one in got:
        np.testing.assert_array_equal(one, FAULT.program(*FAULT.arguments))
    (warning,) = caught
    text = str(warning.message)
    assert "differs from the reference on" in text and "NumPy runs the function" in text and "strict=True" in text
    assert "import" not in text  # the program to paste comes with the error
    assert warning.filename == __file__


def test_strict_raises_the_error() -> None:
    with FAULT.applied(), pytest.raises(VerificationError) as caught, np.errstate(all="ignore"):
        eqsat.optimize(FAULT.program, cache=False, strict=True, **dict(FAULT.options))(*FAULT.arguments)
    assert caught.value.program


def test_it_is_an_error_where_a_rule_of_ones_own_may_be_to_blame() -> None:
    own = rules.rewrite(np.tanh(a), a, id="own.tanh")
    x = np.linspace(-1, 1, 12, dtype=np.float32)

    def tanh(x: Any) -> Any:
        return np.tanh(x) + 1

    with added(own):
        with pytest.raises(VerificationError):
            eqsat.optimize(tanh, cache=False)(x)
        with FAULT.applied(), pytest.raises(VerificationError), np.errstate(all="ignore"):
            wrong()(*FAULT.arguments)
        with FAULT.applied(), pytest.warns(EqsatWarning, match="differs from the reference"):
            options = {**dict(FAULT.options), "disable": own.id}
            eqsat.optimize(FAULT.program, cache=False, **options)(*FAULT.arguments)

"""Warnings where a function is compiled again and again for little: once, at the user's line, with what to do."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.frontends.pytree import ArgSpec
from eqsat.growth import PROGRAMS, Growth


@dataclasses.dataclass
class State:
    k: Any
    step: float = 0.0


def f(x: Any, n: Any, more: Any = None) -> None: ...


def advice(calls: list[tuple[Any, ...]]) -> list[str]:
    """The warnings of a function that is compiled for these calls."""
    spec = ArgSpec(f)
    growth = Growth("f", [p.name for p in spec.parameters])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen: dict[Any, int] = {}
        for call in calls:
            _, key = spec.flatten(call, {})
            seen[key] = seen.get(key, 0) + 1
            growth.compiled(key, seen[key])
    assert all(w.category is eqsat.RecompilationWarning for w in caught)
    return [str(w.message) for w in caught]


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


MANY = range(3 * PROGRAMS)
WARNED: dict[str, tuple[Callable[[int], tuple[Any, ...]], list[str]]] = {
    "number": (lambda n: (zeros(3), 0.1 * n), ["'n'", "np.float32"]),
    "numbers": (lambda n: (zeros(3), n, [1, 2.5 * n]), ["'more[1]', 'n'"]),
    "field": (lambda n: (zeros(3), 1, State(zeros(2), 0.1 * n)), ["'more.step'"]),
    "length": (lambda n: (zeros(1, 64), 1, State(zeros(100 + n, 64))), ["axis 0 of 'more.k'", "Pad"]),
    "two lengths": (lambda n: (zeros(n, 64), 1, {"v": zeros(2, n)}), ["axis 0 of 'x'", "axis 1 of \"more['v']\""]),
    "constants": (lambda n: (zeros(3), 1), ["const=", "values"]),
}


@pytest.mark.parametrize("name", WARNED)
def test_many_programs_for_little_are_warned_of_once(name: str) -> None:
    call, words = WARNED[name]
    assert advice([call(n) for n in MANY[:PROGRAMS]]) == []
    (text,) = advice([call(n) for n in MANY])
    assert all(word in text for word in ["f was compiled", str(PROGRAMS), *words]), text


QUIET: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "other ranks": lambda n: (zeros(*[1] * (n % 20)), None),
    "other structures": lambda n: (zeros(3), [1] * n),
    "strings": lambda n: (zeros(3), "x" * n),
    "several lengths": lambda n: (zeros(n % 7 + 1, n // 7 + 20), 1),
    "lengths and numbers": lambda n: (zeros(n % 7 + 1), n // 7),
}


@pytest.mark.parametrize("name", QUIET)
def test_programs_that_differ_in_more_are_not(name: str) -> None:
    distinct = {ArgSpec(f).flatten(QUIET[name](n), {})[1]: QUIET[name](n) for n in MANY}
    assert advice(list(distinct.values())) == []


def test_the_warning_points_at_the_call() -> None:
    g = eqsat.optimize(lambda x, n: x * n, backend="numpy", verify=False)
    with pytest.warns(eqsat.RecompilationWarning, match="'n'") as caught:
        for n in range(PROGRAMS + 4):
            g(np.ones(2), n / 3)
    assert [w.filename for w in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(PROGRAMS + 4):
            g(np.ones(2), np.array(n / 3))

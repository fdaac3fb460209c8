"""Steps that libraries run, among writes to arrays, known arrays and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.errors import EqsatWarning, UnsupportedOpError
from eqsat.frontends.trace import trace
from eqsat.ir.loop import of_loop
from eqsat.ir.opaque import calls_of

BACKENDS = ("numpy", "numba_cpu")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_written_and_written_to(backend: str) -> None:
    def fn(x: Any, out: Any) -> Any:
        made = np.zeros((4, 4))
        made[1:] = np.linalg.inv(x @ x.T + 4 * np.eye(4))[1:]
        low = np.linalg.cholesky(x @ x.T + np.eye(4))
        low[0, 1:] = 7
        low[:, 0] += made[:, 1]
        np.arctan2(low, x, out=out)
        out *= np.median(made, axis=0)
        return low, made.sum()

    x, got, want = normal(4, 4), np.empty((4, 4)), np.empty((4, 4))
    f = eqsat.optimize(fn, backend=backend, strict=True)
    for a, b in zip((*f(x, got), got), (*fn(x, want), want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_known_arrays_are_numpys() -> None:
    """NumPy itself computes with what does not depend on the arguments, its own functions and views among it."""

    def fn(x: Any) -> Any:
        table = np.zeros((3, 3))
        np.fill_diagonal(table, 2.0)
        np.place(table, table == 0, [1.0, 3.0])
        return np.linalg.inv(table) @ x

    x = normal(3)
    graph = trace(fn, (x,)).graph
    assert not calls_of(graph.outputs)
    np.testing.assert_allclose(eqsat.optimize(fn, backend="numpy", strict=True)(x), fn(x))


def test_a_result_that_may_be_a_view_is_not_read_after_a_write() -> None:
    first = eqsat.opaque(lambda a: a[:1])

    def fn(x: Any, write: bool) -> Any:
        y = x * 2
        part = first(y)
        if write:
            y[0] = 5
        return part + y[0]

    with pytest.raises(UnsupportedOpError, match="share memory"):
        trace(fn, (normal(3), True))
    np.testing.assert_allclose(eqsat.optimize(fn, backend="numpy", strict=True)(np.ones(3), False), [4.0])
    with pytest.warns(EqsatWarning, match="share memory"):
        np.testing.assert_allclose(eqsat.optimize(fn, backend="numpy")(np.ones(3), True), [10.0])


def test_what_writes_to_its_argument_is_no_step() -> None:
    def shuffled(a: np.ndarray) -> np.ndarray:
        a[0] = a[1]
        return a + 1

    step = eqsat.opaque(shuffled)
    fn = lambda x: step(x) * 2  # noqa: E731
    with pytest.raises(UnsupportedOpError, match="writes to its argument"):
        trace(fn, (normal(3),))
    x, y = np.arange(3.0), np.arange(3.0)
    with pytest.warns(EqsatWarning, match="writes to its argument"):
        np.testing.assert_array_equal(eqsat.optimize(fn)(x), fn(y))
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(x, [1.0, 1.0, 2.0])
    with pytest.raises(UnsupportedOpError, match="places that depend on values"):
        trace(lambda x: np.place(x, x > 0, [1.0]), (normal(3),))


def test_functions_among_arguments_see_what_they_see_outside() -> None:
    weights = np.arange(1.0, 4)

    def fn(x: Any) -> Any:
        return np.apply_along_axis(lambda row: np.zeros(3) + row * weights, 1, x) + weights

    x = normal(4, 3)
    f = eqsat.optimize(fn, strict=True, backend="numpy")
    np.testing.assert_allclose(f(x), fn(x))
    np.testing.assert_allclose(f(x + 1), fn(x + 1))


def steps(a: Any, b: Any) -> Any:
    """Every trip calls a library; what it returns is carried, stacked and read by kernels."""
    x = np.zeros_like(b)
    history = np.zeros((24, len(b)))
    for t in range(24):
        x = np.linalg.solve(a[t], b + 0.25 * np.tanh(x) - 0.5 * x)
        history[t] = x
        x = np.sqrt(np.abs(x) + 1) - np.exp(-x * x) * 0.5 + np.cos(x)
        x = x / (1 + np.abs(x)) + b * 0.125
    return x, history


@pytest.mark.parametrize("n", [5, 8])  # rows of whole lines are written where they stay, others are copied there
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_in_loops(backend: str, n: int) -> None:
    a, b = normal(24, n, n) + 6 * np.eye(n), normal(n, seed=1)
    graph = trace(steps, (a, b)).graph
    loops = {of_loop(node) for node in graph.nodes()} - {None}
    assert len(loops) == 1 and len(calls_of(graph.outputs)) == 1
    f = eqsat.optimize(steps, backend=backend, strict=True)
    for got, want in zip(f(a, b), steps(a, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)
    assert len(f.explain(a, b).steps) < 24
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        f(np.zeros_like(a), b)
    for got, want in zip(f(-a, b), steps(-a, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)

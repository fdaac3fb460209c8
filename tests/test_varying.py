"""Python numbers that change from call to call become inputs of one program, and compute as Python's do."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.growth import VALUES

QUICK: dict[str, Any] = {"backend": "numpy", "cache": False}
X = np.linspace(-1, 2, 6, dtype=np.float32)


def quietly(f: Any, *args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f(*args, **kwargs)


def check(fn: Callable[..., Any], calls: list[tuple[Any, ...]], programs: int, **options: Any) -> Any:
    """Results are NumPy's, and so many programs are compiled."""
    f = eqsat.optimize(fn, **QUICK, **options)
    for call in calls:
        got, want = quietly(f, *call), fn(*call)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        assert np.asarray(got).dtype == np.asarray(want).dtype and isinstance(got, type(want))
    assert f.cache_info().misses == programs
    return f


def test_a_number_becomes_an_input_after_some_values() -> None:
    def fn(x: Any, scale: float) -> Any:
        return x * scale + (1 - scale) ** 2 / 3

    f = check(fn, [(X, 0.1 * n) for n in range(20)], VALUES + 1)
    assert "scale" in str(f.explain(X, 7.5)) and f.explain(X, 7.5).plain is None
    assert f.source(X, 8.5) == f.source(X, 9.5)
    f(X, 2.5)
    assert "scale" in str(f.explain())
    np.testing.assert_allclose(quietly(f.compile, X, 4.5)(X, 4.5), fn(X, 4.5), rtol=1e-5)  # for this number
    f.cache_clear()
    assert f.cache_info().currsize == 0


def test_it_is_said_once_at_the_line_of_the_call() -> None:
    f = eqsat.optimize(lambda x, n: x * n, **QUICK)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(10):
            f(X, n / 7)
            f(X[:3], n / 7)
    (warning,) = caught
    assert warning.category is eqsat.RecompilationWarning and warning.filename == __file__
    assert "'n'" in str(warning.message) and "np.float32" in str(warning.message)


@dataclasses.dataclass
class State:
    x: Any
    step: float
    count: int


def adam(state: State, grad: Any, more: dict[str, Any]) -> Any:
    rate = more["rate"] * (1 - more["beta"] ** state.count) ** 0.5 / (1 - 0.9**state.count)
    return state.x - rate * grad * state.step, state.count + 1


def test_numbers_within_arguments() -> None:
    f = eqsat.optimize(adam, **QUICK)
    for n in range(1, 12):
        args = State(X, 0.5, n), X * 2, {"rate": 0.1 / n, "beta": 0.99}
        got, want = quietly(f, *args), adam(*args)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
        assert got[0].dtype == np.float32 and got[1] == n + 1 and type(got[1]) is int
    assert f.cache_info().misses == VALUES + 1


def test_numbers_that_python_needs_stay_parts_of_the_program() -> None:
    check(lambda x, n: x[:n] * 2, [(X, n % 6) for n in range(12)], 6)
    check(lambda x, n: x * float(n), [(X, 0.5 * n) for n in range(6)], 6)
    check(lambda x, n: x * [1, 2, 3, 4, 5][n], [(X, n) for n in range(5)], 5)
    check(lambda x, n: x + np.full(6, n, np.int8), [(X, n) for n in range(5)], 5)
    check(lambda x, n: x.astype(np.int8) + n, [(X, n) for n in range(5)], 5)


def test_one_of_two_numbers() -> None:
    calls = [(X, n % 3 + 1, 0.3 * n) for n in range(VALUES + 9)]
    f = eqsat.optimize(lambda x, n, scale: x[:n] * scale, **QUICK)
    for call in calls:
        np.testing.assert_allclose(quietly(f, *call), f.fn(*call), rtol=1e-5)
    assert f.cache_info().misses < len(calls)


def test_branches_on_numbers() -> None:
    def fn(x: Any, t: float) -> Any:
        return x * t if t > 0.5 else x - t

    check(fn, [(X, t) for t in (0.1, 0.2, 0.3, 0.4, 0.9, 0.45, 0.8, 0.7)], VALUES + 2)


def test_pythons_errors_are_pythons() -> None:
    def fn(x: Any, a: float, b: float) -> Any:
        return x * (a / b) + a**0.5 + b**3

    f = eqsat.optimize(fn, **QUICK)
    for n in range(1, 8):
        np.testing.assert_allclose(quietly(f, X, 1.0 * n, 0.7 * n), fn(X, 1.0 * n, 0.7 * n), rtol=1e-5)
    made = f.cache_info().misses
    with pytest.raises(ZeroDivisionError):
        quietly(f, X, 1.5, 0.0)
    with pytest.raises(OverflowError):
        quietly(f, X, 1.5, 1e200)
    assert np.iscomplexobj(quietly(f, X, -1.5, 1.0))
    np.testing.assert_allclose(f(X, 1.25, 1.5), fn(X, 1.25, 1.5), rtol=1e-5)
    assert made == VALUES + 1


@pytest.mark.parametrize("values", [[0, 1, 2, 3, 4, 5], [5, -7, 2**31 - 5, 100, -(2**31), -1], [2**31, 9, 8, 7, 6, 0]])
def test_integers_are_pythons(values: list[int]) -> None:
    def fn(x: Any, n: int) -> Any:
        return x + n, n * n - 3, (n + 7) // 5, n % 11, x * (n / 9), n > 4

    f = eqsat.optimize(fn, **QUICK)
    x = np.arange(3)
    for n in (*values, 2**40):
        got, want = quietly(f, x, n), fn(x, n)
        assert [type(v) for v in got] == [type(v) for v in want]
        for a, b in zip(got, want, strict=True):
            if np.asarray(b).dtype.kind == "f":
                np.testing.assert_allclose(a, b, rtol=1e-14)
            else:
                np.testing.assert_array_equal(a, b)


def test_arguments_are_changed_and_kept() -> None:
    def fn(x: Any, scale: float, w: Any) -> Any:
        x[1:] *= scale
        return x + w

    f = eqsat.optimize(fn, const="w", **QUICK)
    w = np.ones(6, np.float32)
    for n in range(8):
        got, want = X.copy(), X.copy()
        np.testing.assert_allclose(quietly(f, got, 0.3 * n, w), fn(want, 0.3 * n, w), rtol=1e-6)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert f.cache_info().misses == VALUES + 1
    np.testing.assert_allclose(f(X.copy(), 9.5, w * 2), fn(X.copy(), 9.5, w * 2), rtol=1e-6)


def test_strict_functions() -> None:
    f = eqsat.optimize(lambda x, a: x * (a * 2 + 1), strict=True, **QUICK)
    for n in range(8):
        np.testing.assert_allclose(quietly(f, X, 0.5 * n), f.fn(X, 0.5 * n), rtol=1e-6)
    assert f.cache_info().misses == VALUES + 1


def test_kernels_take_numbers() -> None:
    f = eqsat.optimize(lambda x, a: np.exp(x * a) + a, cache=False)
    for n in range(6):
        np.testing.assert_allclose(quietly(f, X, 0.5 * n), f.fn(X, 0.5 * n), rtol=1e-5)
    assert f.cache_info().misses == VALUES + 1

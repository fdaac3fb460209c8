"""Branches on values, together with arrays that are written to, loops, and what cannot be compiled."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import ConcretizationError, EqsatWarning
from eqsat.ir.loop import of_loop
from eqsat.paths import MOST_PATHS
from tests.sweeps import a_part

QUICK: dict[str, Any] = {"backend": "numpy", "cache": False}


def quietly(f: Any, *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f(*args)


def flip(x: Any) -> Any:
    """Writes to its argument in two of three ways, and to another part of it in each."""
    x[0] += 1
    if x.sum() > 10:
        x[1:] *= 2
        return x[0]
    if x.sum() < -10:
        return x.sum()
    x[-1] = 0
    return x


@given(values=st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=1, max_size=6))
@settings(max_examples=a_part(15), deadline=None)
def test_arguments_are_changed_once_and_by_the_way_taken(values: list[list[int]]) -> None:
    f = eqsat.optimize(flip, **QUICK)
    for value in values:
        want, got = np.array(value, float), np.array(value, float)
        np.testing.assert_array_equal(quietly(f, got), flip(want))
        np.testing.assert_array_equal(got, want)


def test_arguments_that_share_memory_are_left_to_numpy() -> None:
    def copy_if(x: Any, y: Any) -> Any:
        y[:] = 0
        if x.sum() > 0:
            y[:-1] = x[1:]
        return x * 2

    f = eqsat.optimize(copy_if, **QUICK)
    quietly(f, np.ones(4), np.ones(4))
    want, got = np.arange(8.0), np.arange(8.0)
    np.testing.assert_array_equal(f(got[1:5], got[2:6]), copy_if(want[1:5], want[2:6]))
    np.testing.assert_array_equal(got, want)
    locked = np.ones(4)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        f(np.ones(4), locked)


def test_branches_in_loops() -> None:
    def steps(x: Any, n: int) -> Any:
        y = np.zeros_like(x)
        for i in range(n):
            if x[i] > 0:
                y[i] = x[i] * 2
            else:
                y[i] = -1
        return y

    f = eqsat.optimize(steps, **QUICK)
    for signs in ([1, 1, 1], [1, -1, 1], [1, 1, 1], [-1, -1, -1]):
        x = np.array(signs, float)
        np.testing.assert_array_equal(quietly(f, x, 3), steps(x, 3))
    assert f.cache_info().misses == 3
    long = np.ones(40)
    with pytest.warns(EqsatWarning, match="NumPy runs the function"):
        np.testing.assert_array_equal(f(long, 40), steps(long, 40))


def test_a_branch_beside_a_rolled_loop() -> None:
    def smooth(x: Any) -> Any:
        if not (x >= 0).all():
            x = np.abs(x)
        for _ in range(30):
            x[1:-1] = (x[:-2] + x[2:]) / 2
        return x

    f = eqsat.optimize(smooth, cache=False)
    rng = np.random.default_rng(0)
    for shift in (1.0, -0.5, 1.0):
        x = rng.random(16) + shift
        y = x.copy()
        np.testing.assert_allclose(quietly(f, x), smooth(y), rtol=1e-12)
        np.testing.assert_allclose(x, y, rtol=1e-12)
    assert any(of_loop(node) for node in quietly(f.compile, np.ones(16)).traced.graph.nodes())


def test_bodies_of_loops_are_told_nothing_that_changes_from_trip_to_trip() -> None:
    def f(x: Any, flag: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            if flag > 0:  # from outside
                return total + row, None
            return (total - row if row > 0 else total), None

        return eqsat.scan(body, 0.0, x)[0]

    x, made = np.array([1.0, -2, 3]), eqsat.optimize(f, **QUICK)
    assert quietly(made, x, np.int64(1)) == 2.0
    assert made.explain(x, np.int64(1)).plain is None
    assert quietly(made, x, np.int64(-1)) == -4.0  # the body asks for a row's value: NumPy
    with pytest.raises(ConcretizationError, match="truth value"):
        eqsat.optimize(f, strict=True, **QUICK)(x, np.int64(1))


def test_integers_of_floats() -> None:
    def head(x: Any) -> Any:
        return x[: int(np.ceil(x[0]))] * 2

    f = eqsat.optimize(head, **QUICK)
    for first in (2.5, 1.0, 2.2):
        x = np.array([first, 1, 2, 3])
        np.testing.assert_array_equal(quietly(f, x), head(x))
    assert f.cache_info().misses == 2
    with pytest.raises(ValueError, match="NaN"):
        f(np.array([math.nan, 1, 2, 3]))
    with pytest.raises(OverflowError):
        f(np.array([math.inf, 1, 2, 3]))


def test_a_way_that_cannot_be_compiled_is_tried_once() -> None:
    runs = []

    def f(x: Any) -> Any:
        runs.append(type(x) is np.ndarray)
        if x[0] > 0:
            return x + 1
        return math.floor(float(x[1])) * x

    made = eqsat.optimize(f, **QUICK)
    x, y = np.array([1.0, 2.5]), np.array([-1.0, 2.5])
    np.testing.assert_array_equal(quietly(made, x), x + 1)
    with pytest.warns(EqsatWarning, match="float"):
        np.testing.assert_array_equal(made(y), 2 * y)
    runs.clear()
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(made(y), 2 * y)
            np.testing.assert_array_equal(made(x), x + 1)
    assert runs == [True] * 3, "NumPy runs the one, a program the other"
    assert "float" in (made.explain(y).plain or "") and made.explain(x).plain is None


def test_what_compile_returns_is_right_on_another_way() -> None:
    f = eqsat.optimize(lambda x: x * 2 if x.sum() > 0 else x * 3, **QUICK)
    x = np.ones(3)
    program = quietly(f.compile, x)
    np.testing.assert_array_equal(program(x), x * 2)
    np.testing.assert_array_equal(program(-x), -x * 3)


def test_ways_are_few() -> None:
    f = eqsat.optimize(lambda x: x * int(x[0]), **QUICK)
    told = []
    for n in range(MOST_PATHS + 3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            np.testing.assert_array_equal(f(np.full(2, n)), np.full(2, n * n))
        told.append(len(caught))
    assert told == [1, *[0] * (MOST_PATHS - 1), 1, 0, 0]
    assert f.cache_info().misses == MOST_PATHS


def test_no_results_are_asked_for() -> None:
    """All outputs of the program are guards."""
    f = eqsat.optimize(lambda x: "positive" if x.sum() > 0 else None, **QUICK)
    assert quietly(f, np.ones(3)) == "positive"
    assert quietly(f, -np.ones(3)) is None


def test_the_short_way_in_is_for_its_own_branch() -> None:
    """Calls of one branch go by the compiled driver alone; those of another are noticed there."""
    f = eqsat.optimize(lambda x: x * 2 if x.sum() > 0 else {"negative": -x}, cache=False)
    x = np.arange(1.0, 4)
    for _ in range(3):
        np.testing.assert_array_equal(quietly(f, x), x * 2)
    last = f._last
    assert last is not None and last.direct is not None and last.direct((-x,)) is None
    np.testing.assert_array_equal(quietly(f, -x)["negative"], x)
    for _ in range(3):
        np.testing.assert_array_equal(f(-x)["negative"], x)
        np.testing.assert_array_equal(f(x), x * 2)
    f.cache_clear()
    np.testing.assert_array_equal(quietly(f, x), x * 2)


def test_programs_with_steps_of_libraries_take_the_short_way() -> None:
    f = eqsat.optimize(lambda a, b: np.linalg.inv(a) @ b, const="b", cache=False)
    a, b = np.eye(3) + 0.5, np.arange(9.0).reshape(3, 3)
    np.testing.assert_allclose(f(a, b), np.linalg.inv(a) @ b)
    direct = f.compile(a, b).direct
    assert direct is not None and direct((a, b)) is not None
    for other in (a.T, a.astype(np.float32), a[:2], np.eye(4)[::2, 1:], a.view(np.matrix), a.astype(">f8")):
        assert direct((other, b)) is None
    assert direct((a, b.copy())) is None and direct((a,)) is None
    np.testing.assert_allclose(f(a.T * 2, b), np.linalg.inv(a.T * 2) @ b)
    with pytest.raises(np.linalg.LinAlgError):
        f(np.zeros((3, 3)), b)


# max and min of Python

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -2.5, math.nan, math.inf, -math.inf])


def same(a: Any, b: Any) -> bool:
    """Equal in type, value and sign."""
    return type(a) is type(b) and np.asarray(a).tobytes() == np.asarray(b).tobytes()


@given(values=st.lists(NUMBERS, min_size=3, max_size=3), dtype=st.sampled_from(["float64", "float32", "float16"]))
@settings(max_examples=a_part(40), deadline=None)
def test_extremes_of_scalars_are_pythons(values: list[float], dtype: str) -> None:
    def f(x: Any, one: Any) -> Any:
        return max(x[0], x[1], x[2]), min(x), max([x[1], x[0] * 2]), min(v + one for v in x), max(np.abs(x).sum(), one)

    x = np.array(values, dtype)
    with np.errstate(all="ignore"):
        want = f(x, x.dtype.type(1))
        got = eqsat.optimize(f, strict=True, **QUICK)(x, x.dtype.type(1))
    assert all(map(same, got, want)), (got, want)


def test_extremes_with_numbers() -> None:
    def f(x: Any) -> Any:
        low = max(0.0, x.min())
        return (x - low) / max(1e-9, x.max() - low) * min(x.shape[0], 3)

    x = np.array([0.5, 2.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = eqsat.optimize(f, strict=True, **QUICK)
        for shift in (0.0, -3.0):
            np.testing.assert_allclose(made(x + shift), f(x + shift))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: max(0.1, x[0]),  # no float32: the chosen one's type would depend on values
        lambda x: max(x[0], x.astype(np.float64)[1]),
        lambda x: max(x, key=lambda v: -v),
        lambda x: max(x[:0], default=x[0]),
        lambda x: max(x[0].reshape(()), x[1].reshape(())),
        lambda x: max([x[:1], x[1:]], key=len),
    ],
)
def test_other_extremes_are_branches(fn: Any) -> None:
    f = eqsat.optimize(fn, **QUICK)
    for values in ([0.5, 1.5, 0.25], [2.5, -1.5, 7], [0.0, 0.0, 0.0]):
        x = np.array(values, np.float32)
        got, want = quietly(f, x), fn(x)
        np.testing.assert_array_equal(got, want)
        assert np.asarray(got).dtype == np.asarray(want).dtype


def test_extremes_keep_pythons_errors_and_the_users_own() -> None:
    with pytest.raises(TypeError, match="at least 1 argument"):
        eqsat.optimize(lambda x: max() + x, **QUICK)(np.ones(2))  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="empty"):
        eqsat.optimize(lambda x: max([]) + x, **QUICK)(np.ones(2))
    space: dict[str, Any] = {}
    exec("def max(a, b):\n    return a + b\ndef f(x):\n    return max(x[0], x[1])\n", space)
    assert eqsat.optimize(space["f"], strict=True, **QUICK)(np.array([2.0, 3.0])) == 5
    assert eqsat.optimize(lambda x: (x, max), **QUICK)(np.ones(2))[1] is max
    f = eqsat.optimize(lambda x: x * max(2, 3), **QUICK)
    np.testing.assert_array_equal(f(np.ones(2)), 3 * np.ones(2))

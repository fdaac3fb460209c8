"""Functions whose shapes depend on values: a program for each of the shapes that calls have, and NumPy for the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import EqsatWarning, UnsupportedOpError
from eqsat.frontends.value_shapes import Fitted, shapes_code
from eqsat.paths import MOST_PATHS
from tests.reports import one_line
from tests.sweeps import a_part

QUICK: dict[str, Any] = {"backend": "numpy", "cache": False, "check_speed": False}


def held(f: Any, fn: Callable[..., Any], *args: np.ndarray) -> None:
    """The results of ``f`` and what it does to its arguments are those of ``fn``, with their types."""
    want_args, got_args = [a.copy() for a in args], [a.copy() for a in args]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want, got = fn(*want_args), f(*got_args)
    assert type(got) is type(want)
    pairs = list(zip(want, got, strict=True)) if isinstance(want, (tuple, list)) else [(want, got)]
    for a, b in [*pairs, *zip(want_args, got_args, strict=True)]:
        assert type(a) is type(b) and np.asarray(a).dtype == np.asarray(b).dtype and np.shape(a) == np.shape(b)
        np.testing.assert_allclose(b, a, rtol=1e-12)


def chosen(x: Any, i: Any) -> Any:
    return x[x > 0]


def changed(x: Any, i: Any) -> Any:
    y = x[x > 0]
    z = y.copy()
    y[:1] = 7
    return y, z, y.sum(), y.size, x[x > 0].sum()


def weighted(x: Any, i: Any) -> Any:
    some = x > 0
    kept = x[some] * i[some]
    return kept / kept.sum(), len(kept), kept @ kept


def sorted_in_place(x: Any, i: Any) -> Any:
    some = x > 0
    x[some] = np.sort(x[some])
    return x


def means_of_groups(x: Any, i: Any) -> Any:
    labels, place, count = np.unique(i, return_inverse=True, return_counts=True)
    total = np.zeros(len(labels))
    np.add.at(total, place, x)
    return labels, total / count


def counted(x: Any, i: Any) -> Any:
    return np.bincount(i, weights=x) / np.maximum(np.bincount(i), 1)


def at_places(x: Any, i: Any) -> Any:
    square = np.outer(x, x)
    rows, columns = np.where(square > 0.5)
    return square[rows, columns], rows - columns, np.argwhere(square > 0.5).T, np.flatnonzero(x).mean()


def loop(x: Any, i: Any) -> Any:
    total = 0.0
    for value in x[i > 1]:
        total = total + value * 2
    return total


def beside_indices(x: Any, i: Any) -> Any:
    square = np.outer(x, x)
    square[x > 0, 0] = x[x > 0] * 2
    return square[x > 0, 1], square.T[:, x > 0], square[x > 0][:, i > 1]


def from_lists(x: Any, i: Any) -> Any:
    y = np.asarray(x[x > 0])
    return np.concatenate([y, x]), np.repeat(x, i), np.split(x, np.sort(i[:2]))[0], np.stack([y, y]), y.dtype.itemsize


PROGRAMS = (
    chosen, changed, weighted, sorted_in_place, means_of_groups, counted, at_places, loop, beside_indices, from_lists,
)  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@given(data=st.data())
@settings(max_examples=a_part(8), deadline=None)
def test_calls_of_any_shape_are_numpys(fn: Callable[..., Any], data: st.DataObject) -> None:
    f = eqsat.optimize(fn, **QUICK)
    for _ in range(data.draw(st.integers(1, 6))):
        values = data.draw(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=5, max_size=5))
        x, i = np.array([v for v, _ in values]) / 2, np.array([n for _, n in values])
        if fn in (changed, weighted, loop, beside_indices) and not ((x > 0) & (i > 1)).any():
            x[0], i[0] = 1, 2
        held(f, fn, x, i)


def test_compiled_programs_are_kept_by_shape() -> None:
    def fn(x: Any) -> Any:
        i = np.nonzero(x > 0)[0]
        return np.exp(x[i]) * 2, i.shape[0]

    f = eqsat.optimize(fn, cache=False, check_speed=False)
    two, three = np.array([1.0, -1, 2, -2]), np.array([1.0, 3, -2, 2])
    with pytest.warns(EqsatWarning, match="shapes depend on values.*each of the shapes that calls have"):
        f(two)
    for x in (three, two, two[::-1].copy(), three):
        held(f, fn, x)
    assert f.cache_info().misses == 2
    assert f.explain(three).plain is None
    assert "np.nonzero of the shape (3,)" in one_line(f.explain(three))
    with pytest.raises(UnsupportedOpError, match="depends on values"):
        eqsat.optimize(fn, strict=True, **QUICK)(two)


def test_shapes_that_differ_again_and_again_are_left_to_numpy() -> None:
    f = eqsat.optimize(chosen, **QUICK)
    i = np.zeros(9, int)
    for n in range(MOST_PATHS):
        held(f, chosen, np.array([1.0] * n + [-1.0] * (9 - n)), i)
    with pytest.warns(EqsatWarning, match=r"other ways again and again.*np.where\(mask, a, b\)"):
        f(np.ones(9), i)
    held(f, chosen, np.ones(9), i)


def test_sums_of_chosen_elements_need_no_other_program() -> None:
    def fn(x: Any) -> Any:
        return x[x > 0].sum() / np.count_nonzero(x > 0)

    f = eqsat.optimize(fn, strict=True, **QUICK)
    for n in range(1, 6):
        held(f, fn, np.arange(-2.0, n))
    assert f.cache_info().misses == 5  # one for each length of the argument


def test_a_step_of_another_shape_has_room_for_the_traced_one_and_says_so() -> None:
    fitted = Fitted(np.flatnonzero, [(3,)])
    for values, shown in (([0, 1, 1, 1], [1, 2, 3]), ([0, 0, 1, 0], [2, 0, 0]), ([1, 1, 1, 1], [0, 1, 2])):
        found, code = fitted(np.array(values))
        np.testing.assert_array_equal(found, shown)
        assert code == shapes_code([(sum(values),)])
    assert shapes_code([(1, 23)]) != shapes_code([(12, 3)]) != shapes_code([(12,), (3,)])
    assert 0 <= shapes_code([]) < 2**63


def test_numbers_of_libraries_keep_their_types() -> None:
    def fn(x: Any) -> Any:
        return np.median(x), np.linalg.cond(np.outer(x, x) + np.eye(len(x)))

    held(eqsat.optimize(fn, **QUICK), fn, np.arange(4.0))

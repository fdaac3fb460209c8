"""Where NumPy makes a view and where a copy, by the order of elements in memory, and what walks that order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.errors import EqsatError, SharedMemoryError


def by_steps(shape: tuple[int, ...], step: int) -> Any:
    """An array of every second element of a larger one, or backwards through one."""
    base = np.zeros([abs(step) * n for n in shape])
    view = base[(slice(None, None, step),) * len(shape)]
    view[...] = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    return view


LAYOUTS: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "rows": lambda shape: np.array(by_steps(shape, 2), order="C"),
    "columns": lambda shape: np.array(by_steps(shape, 2), order="F"),
    "second": lambda shape: by_steps(shape, 2),
    "backwards": lambda shape: by_steps(shape, -1),
}


def in_all_layouts(f: Callable[..., Any], shape: tuple[int, ...], *more: Any, refuses: bool = False) -> None:
    """Results and arguments are NumPy's in calls with each layout in turn; with ``strict`` some ``refuses`` all."""
    for first, strict in ((first, strict) for first in LAYOUTS for strict in (False, True)):
        optimized = eqsat.optimize(f, strict=strict)
        for name in (first, *LAYOUTS):
            x, y = LAYOUTS[name](shape), LAYOUTS[name](shape)
            want = f(x, *more)
            try:
                got = optimized(y, *more)
            except EqsatError as error:
                assert strict and refuses, name
                assert isinstance(error, SharedMemoryError) and "order in memory" in str(error)
                continue
            assert not (strict and refuses and name == "rows" == first), "this test's list is out of date"
            for one, other in zip((got, y), (want, x), strict=True):
                for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (one, other)), strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=f"{name}, strict={strict}")


def wrote(made: Callable[..., Any], *, whole: bool = False) -> Callable[..., Any]:
    """A function that writes to what is made of its arguments, and returns that and their sum."""

    def f(x: Any, *more: Any) -> Any:
        r = made(x, *more)
        r[... if whole else 0] = 50
        return r, x.sum()

    return f


FLAT = {
    "ravel": lambda x: x.ravel(),
    "part": lambda x: x[1:].ravel(),
    "any": lambda x: x.ravel("K"),
    "wider": lambda x: x[None].ravel(),
    "column": lambda x: x[:, None].ravel(),
    "contiguous": np.ascontiguousarray,
    "ordered": lambda x: np.asarray(x, order="C"),
}


@pytest.mark.parametrize("name", FLAT)
def test_one_axis_is_copied_where_it_has_gaps(name: str) -> None:
    in_all_layouts(wrote(FLAT[name]), (6,))


MADE = {
    "contiguous": lambda x: np.ascontiguousarray(x.T),
    "contiguous itself": np.ascontiguousarray,
    "by columns": np.asfortranarray,
    "columns of columns": lambda x: np.asfortranarray(x.T),
    "array by rows": lambda x: np.asarray(x.T, order="C"),
    "copied by columns": lambda x: x.copy("F").reshape(-1),
    "copied by rows": lambda x: np.copy(x.T, order="C").reshape(-1),
    "flat by columns": lambda x: x.T.ravel("F"),
    "reshaped by columns": lambda x: x.T.reshape(-1, order="F"),
    "columns to columns": lambda x: x.reshape((2, 6), order="F"),
    "either": lambda x: x.T.reshape((2, 6), order="A"),
    "contiguous in memory": lambda x: np.ascontiguousarray(x.T).ravel("K"),
    "columns in memory": lambda x: x.copy("F").ravel("K"),
}


@pytest.mark.parametrize("name", MADE)
def test_named_orders(name: str) -> None:
    in_all_layouts(wrote(MADE[name]), (3, 4))


def test_a_row_is_reshaped_by_columns() -> None:
    in_all_layouts(wrote(lambda x: x.reshape((2, 3), order="F")), (6,))


UNKNOWN = {
    "sum": lambda x: (x.T + 1).ravel("K"),
    "function": lambda x: np.exp(x.T).flatten("A"),
    "sorted": lambda x: np.sort(x.T, axis=0).ravel("A"),
    "copied": lambda x: np.array(x.T).ravel("K"),
    "backwards": lambda x: (x[::-1].T + 1).ravel("K"),
    "turned": lambda x: x[::-1, ::-1].T.ravel("K"),
    "reshaped": lambda x: (x.T + 1).reshape((2, 6), order="A"),
    "picked": lambda x: (x[:, [0, 1]] * 2).ravel("K"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_order_that_no_value_tells_is_refused(name: str) -> None:
    """And not left to a step of NumPy's, which would be given rows."""
    in_all_layouts(UNKNOWN[name], (3, 4), refuses=True)


PLACED = {
    "flat": lambda x, i: x[:, i].ravel(),
    "row": lambda x, i: x[i].ravel(),
    "reshaped": lambda x, i: x[:, i].reshape(-1),
    "deeper": lambda x, i: x[:, i].reshape(-1, 1, 2),
    "in memory": lambda x, i: x[i, ::2].ravel("K"),
    "last": lambda x, i: x[..., i].ravel("K"),
    "column": lambda x, i: x[i].T.ravel("K"),
}


@pytest.mark.parametrize("name", PLACED)
def test_what_an_index_shows_lies_as_with_a_number(name: str) -> None:
    in_all_layouts(wrote(PLACED[name], whole=True), (3, 3, 2), np.int64(1))


@pytest.mark.parametrize("order", "CAKF")
def test_the_elements_that_a_mask_keeps_have_one_order(order: Any) -> None:
    in_all_layouts(lambda x: (x[x > 2].ravel(order) * 2).sum() + x[x > 5].flatten(order).sum(), (3, 4))


def test_orders_have_names() -> None:
    for call in (lambda x: x.ravel("X"), lambda x: x.reshape(-1, order="K")):
        with pytest.raises(ValueError, match="order must be one of"):
            eqsat.optimize(call, strict=True)(np.zeros((2, 3)))


@pytest.mark.parametrize("order", "CAK")
@pytest.mark.parametrize(
    "view",
    [
        np.diagonal,
        np.transpose,
        lambda x: x[::2],
        lambda x: x[:, :1],
        lambda x: x[:1],
        lambda x: (x + 1).T,
        lambda x: x,
    ],
    ids=["diagonal", "transpose", "rows", "column", "row", "computed", "itself"],
)
def test_ravel_is_a_view_of_what_is_contiguous_alone(view: Callable[[Any], Any], order: Any) -> None:
    """Others are copied, which NumPy lets be written to: also where an argument's order decides."""

    def f(x: Any) -> Any:
        flat = np.ravel(view(x), order)
        known = flat.copy()
        if flat.flags.writeable:
            flat[:2] += 7
        return x * 1, flat, known

    given_ = np.arange(12.0).reshape(3, 4)
    optimized = eqsat.optimize(f)
    for x in (given_, np.asfortranarray(given_), np.arange(48.0).reshape(6, 8)[::2, ::2], given_[:1]):
        for got, want in zip(optimized(x.copy(order="K")), f(x.copy(order="K")), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "index",
    [
        np.s_[:, [0, 1]],
        np.s_[:, :, [[0, 1, 2], [1, 2, 3]]],
        np.s_[:, [0, 1], [1, 0]],
        np.s_[[0, 1], :, [1, 0]],
        np.s_[:, 1, [0, 1]],
        np.s_[:, None, [0, 1]],
        np.s_[1:3, [0, 1]],
        np.s_[[0, 1]],
        (slice(None), np.array([True, False, True, True, False])),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", "CK")
def test_what_index_arrays_pick_lies_as_in_numpy(index: Any, order: Any) -> None:
    """With the axes of the indices first: what flattens it copies where slices come before them."""

    def f(x: Any) -> Any:
        picked = x[index]
        flat, row = picked.ravel(order), picked.reshape(-1)
        flat[:2] += 5
        row[1:3] *= 2
        later = (picked + 1).ravel()
        return picked * 1, flat, row, later

    x = np.arange(120.0).reshape(4, 5, 6)
    for got, want in zip(eqsat.optimize(f, strict=True)(x), f(x), strict=True):
        np.testing.assert_array_equal(got, want)

"""Medians and rank filters by sorting networks: NumPy's numbers, NaN included, and SciPy's without."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage, signal

import eqsat
from eqsat.errors import EqsatError
from eqsat.frontends.ranks import MOST, comparisons
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.ir.node import topological
from tests.sweeps import a_part


def network(rows: np.ndarray) -> np.ndarray:
    rows = rows.copy()
    for i, j in comparisons(len(rows)):
        assert 0 <= i < j < len(rows)
        rows[i], rows[j] = np.minimum(rows[i], rows[j]), np.maximum(rows[i], rows[j])
    return rows


@pytest.mark.parametrize("count", range(1, 13))
def test_the_network_sorts_all_zeros_and_ones(count: int) -> None:
    """So it sorts everything (Knuth's 0-1 principle)."""
    rows = np.array(list(itertools.product([0, 1], repeat=count)), np.int8).T
    np.testing.assert_array_equal(network(rows), np.sort(rows, axis=0))


@pytest.mark.parametrize("count", range(13, MOST + 1))
def test_greater_networks_sort(count: int) -> None:
    rows = np.random.default_rng(count).integers(0, 2, (count, 20_000)) * (np.arange(20_000) % 7 != 0)
    np.testing.assert_array_equal(network(rows), np.sort(rows, axis=0))


def traced(function: Any, x: np.ndarray) -> tuple[Any, set[str]]:
    """The result by the reference interpreter, and the operators it has."""
    return run_by_reference(function, (x,), {}), {n.op for n in topological(trace(function, (x,)).graph.outputs)}


@settings(max_examples=a_part(60), deadline=None)
@given(st.data())
def test_medians(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["float32", "float64", "int8", "uint8", "int64", "bool"]))
    shape = data.draw(st.sampled_from([(9, 40), (40, 9), (2, 5, 17), (3, 3, 20), (16, 16), (25, 5), (4, 4, 4, 4)]))
    axis = data.draw(
        st.sampled_from(
            [a for a in (0, 1, -1, (0, 1), [0, 1]) if np.prod([shape[i] for i in np.atleast_1d(a)]) <= MOST]
        )
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    x = rng.integers(-3, 100, shape).astype(dtype)
    if x.dtype.kind == "f":
        x[rng.random(shape) < data.draw(st.sampled_from([0, 0.02]))] = np.nan
        x[rng.random(shape) < 0.05] = data.draw(st.sampled_from([np.inf, -np.inf, 0.5]))
    keep = data.draw(st.booleans())
    result, _ = traced(lambda v: np.median(v, axis=axis, keepdims=keep), x)
    with np.errstate(all="ignore"):
        expected = np.median(x, axis=axis, keepdims=keep)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(result, expected)


def test_few_elements_are_compared_and_many_selected() -> None:
    assert "minimum" in traced(lambda v: np.median(v, axis=0), np.ones((9, 100)))[1]
    assert "opaque" in traced(lambda v: np.median(v, axis=0), np.ones((MOST + 1, 100)))[1]
    assert "opaque" in traced(np.median, np.ones(9))[1]
    assert "opaque" in traced(lambda v: np.median(v, axis=0), np.ones((3, 100), np.complex64))[1]


FILTERS = {
    "median": lambda x: ndimage.median_filter(x, 3),
    "median of even": lambda x: ndimage.median_filter(x, (2, 4), mode="nearest", origin=(0, 1)),
    "median of zeros": lambda x: ndimage.median_filter(x, size=(1, 5), mode="constant", cval=2),
    "rank": lambda x: ndimage.rank_filter(x, 2, 3, mode="wrap"),
    "rank from the end": lambda x: ndimage.rank_filter(x, -2, (3, 2), mode="mirror"),
    "percentile": lambda x: ndimage.percentile_filter(x, 30, 5),
    "percentile from the end": lambda x: ndimage.percentile_filter(x, -20, (3, 1)),
    "last percentile": lambda x: ndimage.percentile_filter(x, 100, (2, 3)),
    "medfilt": lambda x: signal.medfilt(x),
    "medfilt of sizes": lambda x: signal.medfilt(x, [3, 5]),
    "medfilt2d": lambda x: signal.medfilt2d(x, 5),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8"])
def test_filters(name: str, dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 50, (12, 17)).astype(dtype)
    result, ops = traced(FILTERS[name], x)
    assert "opaque" not in ops and "minimum" in ops
    expected = FILTERS[name](x)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("cval", [-1, 300, math.nan])
def test_outside_numbers_of_another_type_are_scipys_own(cval: float) -> None:
    """Its filters of extremes compare them as they are, others cast them."""
    x = np.random.default_rng(0).integers(0, 256, (12, 17)).astype(np.uint8)
    for run in (
        lambda v: ndimage.minimum_filter(v, 3, mode="constant", cval=cval),
        lambda v: ndimage.rank_filter(v, 0, 3, mode="constant", cval=cval),
    ):
        assert "opaque" in {n.op for n in topological(trace(run, (x,)).graph.outputs)}


def test_sizes_that_scipy_takes_in_its_own_way() -> None:
    """More sizes than axes, or images of three axes for a filter of two, where it does not ask."""
    image, volume = np.ones((8, 9), np.uint8), np.ones((6, 7, 8), np.int16)
    assert "opaque" in traced(lambda v: signal.medfilt2d(v, (3, 3, 3)), image)[1]
    assert "opaque" in traced(lambda v: signal.medfilt2d(v, 3), volume)[1]


def test_scipy_says_what_is_wrong() -> None:
    x = np.ones((8, 8))
    for wrong in (
        lambda v: signal.medfilt(v, 4),
        lambda v: ndimage.rank_filter(v, 9, 3),
        lambda v: ndimage.percentile_filter(v, 101, 3),
        lambda v: ndimage.median_filter(v, (3, 3, 3)),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            wrong(x)
        with pytest.raises((ValueError, RuntimeError, EqsatError)):
            trace(wrong, (x,))


def test_a_median_filter_is_compiled() -> None:
    x = np.random.default_rng(0).integers(0, 256, (30, 41)).astype(np.uint8)
    x[3:5, 7] = 255
    function = eqsat.optimize(lambda v: ndimage.median_filter(v, 3), strict=True, check_speed=False)
    np.testing.assert_array_equal(function(x), ndimage.median_filter(x, 3))


def test_a_border_looked_up_is_not_looked_up_for_every_place_of_a_window() -> None:
    image = np.random.default_rng(0).integers(0, 256, (300, 300)).astype(np.uint8)

    def smoothed(x: Any) -> Any:
        padded = np.pad(x, 1, mode="edge")
        return np.median(np.stack([padded[i : i + 300, j : j + 300] for i in range(3) for j in range(3)]), axis=0)

    function = eqsat.optimize(smoothed, strict=True, check_speed=False, threads=1)
    np.testing.assert_array_equal(function(image), smoothed(image))
    steps = [line for line in str(function.explain()).splitlines() if "minimum" in line]
    assert steps and not any("take" in line for line in steps)

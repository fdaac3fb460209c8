"""Running extremes: in steps that double where rows are short, else NumPy's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.frontends.scans import LONGEST, MOST
from eqsat.frontends.trace import run_by_reference, trace

TYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "uint64", "bool")
KINDS = (np.maximum, np.minimum)


def values(seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """NaN and infinities among the floats, the ends of their ranges among the integers."""
    rng = np.random.default_rng(seed)
    if dtype[:5] == "float":
        special = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1.0], shape)
        return np.where(rng.random(shape) < 0.05, special, rng.normal(0, 9, shape)).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.3
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def operators(fn: Any, *args: Any) -> set[str]:
    return {node.op for node in trace(fn, args, {}).graph.nodes()}


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
    st.sampled_from(TYPES),
    st.sampled_from(KINDS),
    st.data(),
)
def test_they_are_numpys(seed: int, shape: tuple[int, ...], dtype: str, ufunc: np.ufunc, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = values(seed, shape, dtype)
    got = run_by_reference(lambda x: ufunc.accumulate(x, axis=axis), (x,), {})
    np.testing.assert_array_equal(got, ufunc.accumulate(x, axis=axis), strict=True)


@pytest.mark.parametrize("ufunc", KINDS)
@pytest.mark.parametrize(
    ("shape", "axis", "steps"),
    [
        ((LONGEST,), 0, True),
        ((LONGEST + 1,), 0, False),
        ((MOST // 64, 64), 1, True),
        ((MOST // 64 + 1, 64), 1, False),
        ((64, MOST // 64 + 1), 0, False),
    ],
)
def test_long_rows_are_numpys_own(ufunc: np.ufunc, shape: tuple[int, ...], axis: int, steps: bool) -> None:
    def fn(x: Any) -> Any:
        return ufunc.accumulate(x, axis=axis)

    x = values(1, shape, "float32")
    assert ("opaque" in operators(fn, x)) == (not steps)
    np.testing.assert_array_equal(run_by_reference(fn, (x,), {}), fn(x), strict=True)


def test_other_accumulations_and_arguments_are_numpys_own() -> None:
    x = np.arange(12.0).reshape(3, 4)
    for fn in (
        lambda x: np.hypot.accumulate(x),
        lambda x: np.maximum.accumulate(x, dtype="float32"),
        lambda x: np.maximum.accumulate(x + 1j * x, axis=1),
    ):
        assert "opaque" in operators(fn, x)
        np.testing.assert_allclose(run_by_reference(fn, (x,), {}), fn(x))
    with pytest.raises(ValueError, match="axis"):
        run_by_reference(lambda x: np.maximum.accumulate(x, axis=2), (x,), {})
    with pytest.raises(TypeError):
        run_by_reference(lambda x: np.maximum.accumulate(x), (np.float64(1),), {})


def test_into_an_array() -> None:
    def fn(x: Any) -> Any:
        out = np.empty_like(x)
        np.minimum.accumulate(x[::2, ::-1], axis=1, out=out[:2])
        return out[:2]

    x = values(2, (3, 7), "float64")
    np.testing.assert_array_equal(run_by_reference(fn, (x,), {}), fn(x))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_compiled(dtype: str) -> None:
    def fn(x: Any) -> Any:
        return np.maximum.accumulate(x, axis=1)[:, ::2], np.minimum.accumulate(x - x[:, :1])

    x = values(3, (5, 45), dtype)
    got = eqsat.optimize(fn, cache=False, strict=True)(x)
    for mine, theirs in zip(got, fn(x), strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)

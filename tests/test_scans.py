"""Running sums, products and extremes: NumPy's, element by element and bit by bit."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.ir import build
from eqsat.ir.table import make
from eqsat.ir.types import TensorType, dtype_of
from eqsat_backends.numba_cpu.compiling.jit import compile_module
from eqsat_backends.numba_cpu.printing import running
from eqsat_backends.numba_cpu.target import host
from tests.sweeps import a_part

TYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "uint64", "bool")
KINDS = (np.maximum, np.minimum, np.add, np.multiply, np.logical_and, np.logical_or)
OPERATORS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


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


@settings(max_examples=a_part(100), deadline=None)
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


@settings(max_examples=a_part(25), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
    st.sampled_from([dtype for dtype in TYPES if dtype != "float16"]),
    st.sampled_from(sorted(OPERATORS)),
    st.integers(1, 3),
    st.data(),
)
def test_kernels(seed: int, shape: tuple[int, ...], dtype: str, op: str, threads: int, data: st.DataObject) -> None:
    """All threads together store every element, and nothing beside it."""
    dtype = "int64" if dtype == "bool" and op in ("cumsum", "cumprod") else dtype
    axis, x = data.draw(st.integers(0, len(shape) - 1)), values(seed, shape, dtype)
    node = make(op, (build.input_node(0, TensorType(shape, dtype_of(dtype))),), axis)
    printed = running.emit((node,), host())
    assert printed is not None
    code = compile_module(printed.source, printed.phases)
    whole = np.full(x.size + 64, 1, dtype)
    out = whole[32:-32].reshape(shape)
    table = np.array([out.ctypes.data, x.ctypes.data, 0, 0, 0], np.int64)
    phase = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(code[printed.phases[0]])
    for thread in range(threads):
        phase(table.ctypes.data, thread, threads)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, OPERATORS[op].accumulate(x, axis=axis, dtype=dtype))
    assert whole[:32].all() and whole[-32:].all()


def test_what_has_no_kernel() -> None:
    """Half floats are rounded at every step, by NumPy; nor is there a kernel of nothing, or of what does not run."""
    for shape, dtype, op in (((3,), "float16", "cumsum"), ((0, 3), "float32", "cummax"), ((3,), "float32", "sort")):
        node = make(op, (build.input_node(0, TensorType(shape, dtype_of(dtype))),), 0)
        assert running.emit((node,), host()) is None
    x = np.linspace(0, 1, 9, dtype=np.float16)
    np.testing.assert_array_equal(eqsat.optimize(np.cumsum, cache=False)(x), np.cumsum(x), strict=True)


def test_other_accumulations_and_arguments_are_numpys_own() -> None:
    x = np.arange(12.0).reshape(3, 4)
    for fn in (
        lambda x: np.hypot.accumulate(x),
        lambda x: np.maximum.accumulate(x, dtype="float32"),
        lambda x: np.maximum.accumulate(x + 1j * x, axis=1),
    ):
        assert "opaque" in {node.op for node in trace(fn, (x,), {}).graph.nodes()}
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
        running = np.maximum.accumulate(x, axis=1)[:, ::2], np.minimum.accumulate(x - x[:, :1])
        return *running, np.cumsum(x[1]), np.cumprod(x[:, ::2] > 0, axis=0)

    x = np.nan_to_num(values(3, (5, 45), dtype))
    made = eqsat.optimize(fn, cache=False, strict=True)
    for mine, theirs in zip(made(x), fn(x), strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
    assert {step.kind for step in made.explain(x).steps} == {"kernel"}

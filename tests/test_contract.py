"""Printed contractions and groups with contractions against NumPy in float64."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from eqsat_backends.numba_cpu import blocks, contract
from eqsat_backends.numba_cpu.emitted import Emitted, PackSpec
from eqsat_backends.numba_cpu.factors import contraction_of
from eqsat_backends.numba_cpu.jit import compile_module
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eqsat.ir.kernel import Acc, Call, Expr, FromStage, Index, Kernel, KernelGroup, Literal, Load, Operand, Stage
from eqsat.ir.nest import Loop, Nest, Pack, TileOp
from eqsat.ir.types import DType, bool_, float32, float64, int32, int64, row_major

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def aligned(array: np.ndarray) -> np.ndarray:
    """A flat copy on a cache line, with a guard of one line behind it."""
    size = array.size * array.itemsize
    raw = np.zeros(size + 192, np.uint8)
    start = -raw.ctypes.data % 64
    flat = raw[start : start + size].view(array.dtype)
    flat[:] = array.reshape(-1)
    return flat


def run(emitted: Emitted, arrays: Sequence[np.ndarray], threads: int = 1) -> list[np.ndarray]:
    """Run a printed group on buffers; returns them, outputs written."""
    packs = {pack.operand: pack for pack in emitted.packs}
    buffers = [aligned(packs[i].apply(a.reshape(-1)) if i in packs else a) for i, a in enumerate(arrays)]
    shared, scratch = aligned(np.full(emitted.shared_bytes + 64, 255, np.uint8)), None
    scratch = aligned(np.full(max(64, emitted.thread_bytes * threads), 255, np.uint8))
    status = np.zeros(8, np.int64)
    table = np.array([x.ctypes.data for x in (*buffers, shared, scratch, status)], np.int64)
    addresses = compile_module(emitted.source, emitted.phases)
    for phase in emitted.phases:
        call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(addresses[phase])
        for thread in reversed(range(threads)):
            call(table.ctypes.data, thread, threads)
    assert not status[0]
    return buffers


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "exp": np.exp,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ge": np.greater_equal,
    "where": np.where,
}


def evaluate(kernel: Kernel, buffers: Sequence[np.ndarray], out: np.ndarray, exact: bool) -> None:
    """A kernel by its meaning, over its whole iteration space at once; in extended precision if ``exact``."""
    grid = np.indices(kernel.extents, sparse=True)

    def at(offset: int, strides: tuple[int, ...]) -> np.ndarray:
        zero = np.zeros(kernel.extents, np.int64)
        return zero + offset + sum((s * g for s, g in zip(strides, grid, strict=False)), np.int64(0))

    def value(expr: Expr, acc: np.ndarray | None) -> np.ndarray:
        match expr:
            case Load(operand, offset, strides, dtype, gathers):
                place = at(offset, strides)
                for index, stride in gathers:
                    place = place + stride * value(index, acc).astype(np.int64)
                found = buffers[operand][place]
                return found.astype(np.longdouble) if exact and dtype.is_float else found
            case Literal(number, dtype):
                return np.asarray(number, np.longdouble if exact and dtype.is_float else dtype.numpy)
            case Index(offset, strides, dtype):
                return at(offset, strides).astype(dtype.numpy)
            case Call("cast", args, dtype):
                found = value(args[0], acc)
                return found if exact and dtype.is_float else found.astype(dtype.numpy)
            case Call(fn, args):
                with np.errstate(all="ignore"):
                    return FUNCTIONS[fn](*(value(arg, acc) for arg in args))
            case _:
                assert acc is not None
                return acc

    reduced = tuple(range(kernel.parallel, len(kernel.extents)))
    body = np.broadcast_to(value(kernel.body, None), kernel.extents)
    if kernel.combine is None:
        result = body
    else:
        combine = {"sum": np.sum, "max": np.max}[kernel.combine]
        total = combine(body, axis=reduced, keepdims=True) if reduced else body
        if kernel.combine == "sum":
            total = total.astype(body.dtype)
        result = np.broadcast_to(value(kernel.epilogue, np.broadcast_to(total, kernel.extents)), kernel.extents)
        result = result[(..., *(slice(0, 1) for _ in reduced))] if kernel.points else total * 0
        if not kernel.points and kernel.results:
            slim = replace(kernel, extents=(*kernel.extents[: kernel.parallel], *(1 for _ in reduced)))
            evaluate(replace(slim, body=Literal(0.0, kernel.body.dtype)), buffers, out, exact)
            return
        result = result.reshape(kernel.extents[: kernel.parallel])
    place = np.zeros(kernel.extents[: kernel.parallel], np.int64) + kernel.store_offset
    for axis, stride in enumerate(kernel.store_strides):
        place = place + stride * np.arange(kernel.extents[axis]).reshape(
            [-1 if a == axis else 1 for a in range(kernel.parallel)]
        )
    out[place] = result


def magnitude_of(group: KernelGroup, arrays: Sequence[np.ndarray]) -> float:
    """The largest sum of absolute values of a group's one reduction; 0 for groups of several stages."""
    stage, *others = group.stages
    kernel = stage.kernel
    if others or kernel.combine != "sum" or not kernel.body.dtype.is_float:
        return 0.0
    product = Call("maximum", (kernel.body, Call("sub", (Literal(0.0, kernel.body.dtype), kernel.body), kernel.body.dtype)), kernel.body.dtype)
    out = np.zeros(kernel.out.size)
    evaluate(replace(kernel, body=product, epilogue=Acc(kernel.body.dtype)), [a.reshape(-1) for a in arrays], out, False)
    return float(out.max(initial=0))


def reference(group: KernelGroup, arrays: Sequence[np.ndarray], exact: bool) -> list[np.ndarray]:
    """All operands after the group has run."""
    buffers = [a.reshape(-1).astype(np.longdouble) if exact and a.dtype.kind == "f" else a.reshape(-1).copy() for a in arrays]
    stages: list[np.ndarray] = []
    for stage in group.stages:
        sources = [stages[s.stage] if isinstance(s, FromStage) else buffers[s] for s in stage.sources]
        dtype = np.longdouble if exact and stage.kernel.out.dtype.is_float else stage.kernel.out.dtype.numpy
        out = np.zeros(stage.kernel.out.size, dtype) if stage.result is None else buffers[stage.result]
        evaluate(stage.kernel, sources, out, exact)
        stages.append(out)
    return buffers


def check(got: np.ndarray, exact: np.ndarray, numpy: np.ndarray, magnitude: float = 0.0) -> None:
    """No more than 4 times NumPy's own error and a few ulp; NaN and inf in the same places.

    ``magnitude``: the largest sum of absolute products, of which sums that cancel lose as many ulp.
    """
    special = ~np.isfinite(exact)
    assert np.array_equal(got[special], exact[special], equal_nan=True)
    ulp = np.finfo(got.dtype).eps
    got, exact, numpy = got[~special], exact[~special], numpy[~special]
    allowed = 4 * np.abs(numpy - exact).max(initial=0) + 8 * ulp * max(magnitude, np.abs(exact).max(initial=0))
    assert np.abs(got - exact).max(initial=0) <= allowed


def verify(
    group: KernelGroup,
    arrays: Sequence[np.ndarray],
    emit: Callable[..., Emitted] = contract.emit,
    nest: Nest | None = None,
    lanes: int | None = None,
    threads: int = 1,
) -> Emitted:
    """Print, run and compare every output of a group; what is not an output must be left alone."""
    emitted = emit(group, nest, lanes=lanes)
    got = run(emitted, arrays, threads)
    exact, numpy = reference(group, arrays, True), reference(group, arrays, False)
    for output in group.outputs:
        if got[output].dtype.kind == "f":
            check(got[output], exact[output], numpy[output], magnitude_of(group, arrays))
        else:
            assert np.array_equal(got[output], numpy[output])
    return emitted


def operand_strides(
    axes: Sequence[int], extents: Sequence[int], order: Sequence[int], gap: int
) -> tuple[tuple[int, ...], int]:
    """Strides, one per kernel axis, of a buffer with ``axes`` laid out in ``order``, ``gap`` apart; its size."""
    strides, step = [0] * len(extents), gap
    for axis in reversed(order):
        strides[axis] = step
        step *= extents[axis]
    return tuple(strides), max(1, step)


@st.composite
def contractions(draw: st.DrawFn) -> tuple[KernelGroup, list[np.ndarray]]:
    """A contraction of any axes in any layout, with an epilogue, and its buffers."""
    dtype = draw(st.sampled_from([float32, float32, float64]))
    counts = [draw(st.integers(0, 1)), draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 2))]
    groups: list[list[int]] = []
    extents: list[int] = []
    for count in counts:
        groups.append(list(range(len(extents), len(extents) + count)))
        extents += [draw(st.sampled_from([0, 1, 2, 3, 5, 8, 16, 17, 32, 35, 64])) for _ in range(count)]
    while math.prod(extents) > 200_000:
        extents[extents.index(max(extents))] = 3
    b, m, n, k = groups
    parallel = len(b) + len(m) + len(n)
    order = draw(st.permutations(range(parallel)))  # the order of the kernel's parallel axes
    place = {axis: spot for spot, axis in enumerate([*order, *k])}
    sizes = tuple(extents[axis] for axis in [*order, *k])

    def strides(axes: list[int]) -> tuple[tuple[int, ...], int]:
        spots = [place[axis] for axis in axes]
        return operand_strides(spots, sizes, draw(st.permutations(spots)), draw(st.sampled_from([1, 1, 1, 2])))

    operands, arrays = [], []
    rng = np.random.default_rng(draw(st.integers(0, 99)))

    def operand(axes: list[int], const: bool) -> Load:
        found, size = strides(axes)
        offset = draw(st.sampled_from([0, 0, 3]))
        operands.append(Operand(dtype, size + offset, const))
        arrays.append(rng.standard_normal(size + offset).astype(dtype.numpy))
        return Load(len(operands) - 1, offset, found, dtype)

    def computed(factor: Load, axes: list[int]) -> Expr:
        return Call("maximum", (factor, operand(axes, False)), dtype) if draw(st.integers(0, 3)) == 0 else factor

    a_axes, b_axes = [*b, *m, *k], [*b, *n, *k]
    a: Expr = computed(operand(a_axes, draw(st.booleans())), a_axes)
    c: Expr = computed(operand(b_axes, draw(st.booleans())), b_axes)
    epilogue: Expr = Acc(dtype)
    kind = draw(st.sampled_from(["none", "bias", "residual", "mask"]))
    if kind == "bias":
        epilogue = Call("maximum", (Call("add", (epilogue, operand(n, True)), dtype), Literal(0.0, dtype)), dtype)
    elif kind == "residual":
        epilogue = Call("add", (Call("mul", (epilogue, Literal(0.5, dtype)), dtype), operand([*b, *m, *n], False)), dtype)
    elif kind == "mask" and parallel:
        rows = Index(0, tuple(int(spot == 0) for spot in range(len(sizes))), int64)
        epilogue = Call("where", (Call("ge", (rows, Literal(2, int64)), bool_), epilogue, Literal(-math.inf, dtype)), dtype)
    store, size = operand_strides([*range(parallel)], sizes, draw(st.permutations(range(parallel))), 1)
    out = Operand(dtype, size + 2)
    body = Call("mul", (a, c) if draw(st.booleans()) else (c, a), dtype)
    kernel = Kernel(sizes, parallel, "sum", body, epilogue, tuple(operands), out, 2, store[:parallel])
    arrays.append(np.full(out.size, 7, dtype.numpy))
    stage = Stage(kernel, tuple(range(len(operands))), len(operands))
    return KernelGroup((stage,), 0, (*operands, out), (len(operands),), "random"), arrays


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(contractions(), st.sampled_from([None, None, 4, 8, 16]), st.integers(1, 3))
def test_any_contraction(case: tuple[KernelGroup, list[np.ndarray]], lanes: int | None, threads: int) -> None:
    group, arrays = case
    verify(group, arrays, lanes=lanes, threads=threads)

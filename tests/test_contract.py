"""Printed contractions and groups with contractions against NumPy in float64."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.ir.contraction import product_of
from eqsat.ir.copied import piece_along_rows
from eqsat.ir.kernel import (
    Acc,
    Call,
    Expr,
    FromStage,
    Guarded,
    Index,
    Kernel,
    KernelGroup,
    Literal,
    Load,
    Operand,
    Stage,
)
from eqsat.ir.nest import Loop, Nest, Pack, TileOp, show
from eqsat.ir.types import DType, bool_, float32, float64, int32, int64
from eqsat.schedule import schedule
from eqsat.schedule.price import Block, Pricer
from eqsat.schedule.problem import problem_of
from eqsat_backends.numba_cpu.compiling.jit import compile_module
from eqsat_backends.numba_cpu.printing import blocks, contract
from eqsat_backends.numba_cpu.printing.emit import emit_group
from eqsat_backends.numba_cpu.printing.emitted import Emitted, PackSpec
from eqsat_backends.numba_cpu.target import host, target_of
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import machine
from tests.sweeps import a_part, crossed

WIDE = target_of(machine())
"""What nests that are given are printed for, whatever this machine has: LLVM cuts vectors into those that there are."""


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
    shared = aligned(np.full(emitted.shared_bytes + 64, 255, np.uint8))
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


COMBINES: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max}


def values(
    expr: Expr, extents: tuple[int, ...], buffers: Sequence[np.ndarray], exact: bool, acc: np.ndarray | None
) -> np.ndarray:
    """An expression over a whole iteration space at once; in extended precision if ``exact``."""

    def at(offset: int, strides: tuple[int, ...]) -> np.ndarray:
        grid = np.indices(extents, sparse=True)
        return np.zeros(extents, np.int64) + offset + sum((s * g for s, g in zip(strides, grid, strict=True)), 0)

    def wide(dtype: DType) -> Any:
        return np.longdouble if exact and dtype.is_float else dtype.numpy

    match expr:
        case Load(operand, offset, strides, dtype, gathers):
            place = at(offset, strides)
            for index, stride in gathers:
                place = place + stride * values(index, extents, buffers, exact, acc).astype(np.int64)
            return np.asarray(buffers[operand][place], wide(dtype))
        case Literal(number, dtype):
            return np.asarray(number, wide(dtype))
        case Index(offset, strides, dtype):
            return at(offset, strides).astype(dtype.numpy)
        case Guarded(index, low, high, inside, outside):
            where = at(index.offset, index.strides)
            both = [values(branch, extents, buffers, exact, acc) for branch in (inside, outside)]
            return np.where((low <= where) & (where < high), *both)
        case Call(fn, args):
            with np.errstate(all="ignore"):
                found = FUNCTIONS[fn](*(values(arg, extents, buffers, exact, acc) for arg in args))
            return np.asarray(found)
        case Acc():
            assert acc is not None
            return acc


def evaluate(kernel: Kernel, buffers: Sequence[np.ndarray], out: np.ndarray, exact: bool) -> None:
    """A kernel by its meaning."""
    kept = kernel.extents[: kernel.parallel]
    result = np.broadcast_to(values(kernel.body, kernel.extents, buffers, exact, None), kernel.extents)
    if kernel.combine is not None:
        reduced = tuple(range(kernel.parallel, len(kernel.extents)))
        total = COMBINES[kernel.combine](result, axis=reduced, keepdims=True).astype(result.dtype)
        single = (*kept, *(1 for _ in reduced))
        result = np.broadcast_to(values(kernel.epilogue, single, buffers, exact, total), single).reshape(kept)
    place = np.full(kept, kernel.store_offset)
    for stride, index in zip(kernel.store_strides, np.indices(kept, sparse=True), strict=True):
        place = place + stride * index
    out[place] = result


def magnitude_of(group: KernelGroup, arrays: Sequence[np.ndarray]) -> float:
    """The largest sum of absolute values of a group's one reduction; 0 for groups of several stages."""
    stage, *others = group.stages
    kernel = stage.kernel
    if others or kernel.combine != "sum" or not kernel.body.dtype.is_float:
        return 0.0
    f = kernel.body.dtype
    absolute = Call("maximum", (kernel.body, Call("sub", (Literal(0.0, f), kernel.body), f)), f)
    out = np.zeros(kernel.out.size)
    evaluate(replace(kernel, body=absolute, epilogue=Acc(f)), [a.reshape(-1) for a in arrays], out, False)
    return float(out[np.isfinite(out)].max(initial=0))


def reference(group: KernelGroup, arrays: Sequence[np.ndarray], exact: bool) -> list[np.ndarray]:
    """All operands after the group has run."""
    buffers = [a.reshape(-1).astype(np.longdouble if exact and a.dtype.kind == "f" else a.dtype) for a in arrays]
    stages: list[np.ndarray] = []
    for stage in group.stages:
        sources = [stages[s.stage] if isinstance(s, FromStage) else buffers[s] for s in stage.sources]
        dtype = np.longdouble if exact and stage.kernel.out.dtype.is_float else stage.kernel.out.dtype.numpy
        out = np.zeros(stage.kernel.out.size, dtype) if stage.result is None else buffers[stage.result]
        evaluate(stage.kernel, sources, out, exact)
        stages.append(out)
    return buffers


Wanted = tuple[list[np.ndarray], list[np.ndarray], float]
_wanted: dict[object, Wanted] = {}


def wanted(group: KernelGroup, arrays: Sequence[np.ndarray]) -> Wanted:
    """Exactly, as NumPy rounds, and the magnitude: once for all nests and threads that run a group on the same data."""
    key = (group, *(hashlib.blake2b(a.tobytes()).digest() for a in arrays))
    if key not in _wanted:
        _wanted.clear()
        _wanted[key] = reference(group, arrays, True), reference(group, arrays, False), magnitude_of(group, arrays)
    return _wanted[key]


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


def printed(group: KernelGroup, nest: Nest | None = None, lanes: int | None = None, threads: int = 1) -> Emitted:
    """A group printed by ``nest``, by default the one that is chosen for vectors of ``lanes`` (or this machine's)."""
    lanes = lanes or (WIDE if nest else host()).lanes()
    made_up = machine(width=4 * lanes, registers=32 if lanes == 16 else 16)
    return emit_group(group, nest or schedule(group, cpu_target(made_up, threads)).nest, made_up)


def verify(
    group: KernelGroup,
    arrays: Sequence[np.ndarray],
    nest: Nest | None = None,
    lanes: int | None = None,
    threads: int = 1,
) -> Emitted:
    """Print, run and compare every output of a group; what is not an output must be left alone."""
    emitted = printed(group, nest, lanes, threads)
    got = run(emitted, arrays, threads)
    exact, numpy, magnitude = wanted(group, arrays)
    for output in group.outputs:
        if got[output].dtype.kind == "f":
            check(got[output], exact[output], numpy[output], magnitude)
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
        epilogue = Call(
            "add", (Call("mul", (epilogue, Literal(0.5, dtype)), dtype), operand([*b, *m, *n], False)), dtype
        )
    elif kind == "mask" and parallel:
        rows = Index(0, tuple(int(spot == 0) for spot in range(len(sizes))), int64)
        epilogue = Call(
            "where", (Call("ge", (rows, Literal(2, int64)), bool_), epilogue, Literal(-math.inf, dtype)), dtype
        )
    store, size = operand_strides([*range(parallel)], sizes, draw(st.permutations(range(parallel))), 1)
    out = Operand(dtype, size + 2)
    body = Call("mul", (a, c) if draw(st.booleans()) else (c, a), dtype)
    kernel = Kernel(sizes, parallel, "sum", body, epilogue, tuple(operands), out, 2, store[:parallel])
    arrays.append(np.full(out.size, 7, dtype.numpy))
    stage = Stage(kernel, tuple(range(len(operands))), len(operands))
    return KernelGroup((stage,), 0, (*operands, out), (len(operands),), "random"), arrays


@settings(max_examples=a_part(40), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(contractions(), st.sampled_from([None, None, 4, 8, 16]), st.integers(1, 3))
def test_any_contraction(case: tuple[KernelGroup, list[np.ndarray]], lanes: int | None, threads: int) -> None:
    group, arrays = case
    verify(group, arrays, lanes=lanes, threads=threads)


def product(
    m: int, k: int, n: int, dtype: DType = float32, const: bool = False, transposed: bool = False, batch: int = 0
) -> tuple[KernelGroup, list[np.ndarray]]:
    """``a @ b`` (or ``a @ b.T``), with a batch axis if ``batch``."""
    head = (batch,) if batch else ()
    a = Load(0, 0, (m * k, k, 0, 1)[1 - len(head) :], dtype)
    b = Load(1, 0, ((n * k, 0, k, 1) if transposed else (k * n, 0, 1, n))[1 - len(head) :], dtype)
    count = batch or 1
    operands = (Operand(dtype, count * m * k), Operand(dtype, count * k * n, const))
    out = Operand(dtype, count * m * n)
    kernel = Kernel(
        (*head, m, n, k), 2 + len(head), "sum", Call("mul", (a, b), dtype), Acc(dtype), operands, out, 0,
        (m * n, n, 1)[1 - len(head) :],
    )  # fmt: skip
    rng = np.random.default_rng(m * 7 + k * 3 + n)
    shapes = [count * m * k, count * k * n]
    arrays = [(rng.standard_normal(size) * 8).astype(dtype.numpy) for size in shapes]
    group = KernelGroup((Stage(kernel, (0, 1), 2),), 0, (*operands, out), (2,), "product")
    return group, [*arrays, np.full(out.size, 7, dtype.numpy)]


SHAPES = [
    (1, 300, 130),
    (3, 0, 5),
    (0, 4, 5),
    (4, 5, 0),
    (1, 1, 1),
    (14, 512, 32),
    (15, 700, 33),
    (100, 1300, 70),
    (64, 64, 64),
]


@crossed(shape=SHAPES, const=[False, True])
def test_sizes_at_every_edge(shape: tuple[int, int, int], const: bool) -> None:
    for threads in (1, 2):
        verify(*product(*shape, const=const), threads=threads)


@pytest.mark.parametrize("dtype", [int32, int64], ids=str)
def test_integers_wrap_like_numpy(dtype: DType) -> None:
    group, arrays = product(9, 20, 11, dtype)
    arrays[0][0] = np.iinfo(dtype.numpy).max
    verify(group, arrays, threads=2)


def test_nan_and_inf_go_where_numpy_sends_them() -> None:
    group, arrays = product(20, 33, 40)
    arrays[0][5], arrays[0][100], arrays[1][7] = np.nan, np.inf, -np.inf
    verify(group, arrays)


def test_few_rows_stream_a_large_second_factor() -> None:
    for rows in (2, 3):
        emitted = verify(*product(rows, 521, 770), threads=2)
        assert "rank_update" in emitted.source


FMA = TileOp("fma", (("m", 14), ("n", 32), ("k", 64)))
DEEP = TileOp("fma", (("m", 14), ("n", 32), ("k", 200)))
NESTS: list[Nest] = [
    Loop("n", 70, 32, Loop("m", 60, 14, DEEP)),
    Loop("m", 60, 28, Loop("k", 200, 64, Pack("b", Loop("n", 70, 32, Pack("a", Loop("m", 28, 14, FMA))))), True),
    Loop("k", 200, 64, Pack("a", Loop("n", 70, 64, Pack("b", Loop("n", 64, 32, Loop("m", 60, 14, FMA)))))),
    Pack("a", Pack("b", Loop("n", 70, 32, Loop("m", 60, 14, Loop("k", 200, 64, FMA)), True))),
    Loop("n", 70, 64, Loop("k", 200, 128, Loop("n", 64, 32, Loop("m", 60, 14, Loop("k", 128, 64, FMA)))), True),
    Pack("b", Loop("m", 60, 14, Loop("n", 70, 32, DEEP))),
    Pack("a", Pack("b", Loop("m", 60, 14, Loop("n", 70, 32, replace(DEEP, ahead=7, claim=True)), True), piece=64)),
    Pack("b", Loop("m", 60, 28, Loop("n", 70, 32, Loop("m", 28, 14, DEEP)), True), piece=7),
    Loop("n", 70, 64, Pack("b", Loop("m", 60, 28, Loop("n", 64, 32, Loop("m", 28, 14, DEEP))), fused=True), True),
    Loop("k", 200, 64, Pack("b", Loop("m", 60, 14, Loop("n", 70, 32, FMA)), fused=True, prefetch=16)),
    Loop("k", 200, 64, Loop("m", 60, 14, Loop("n", 70, 32, replace(FMA, claim=True)))),
    Loop("m", 60, 14, Loop("n", 70, 32, Loop("k", 200, 64, replace(FMA, claim=True)))),
    Loop("n", 70, 64, Loop("k", 200, 8, TileOp("update", (("m", 60), ("n", 32), ("k", 8)))), True),
]


@pytest.mark.parametrize("nest", NESTS, ids=lambda nest: show(nest))
def test_every_nest_means_the_same(nest: Nest) -> None:
    group, arrays = product(60, 200, 70)
    for threads in (1, 3):
        verify(group, arrays, nest=nest, threads=threads)


def test_a_packing_above_a_batch_loop_covers_every_batch() -> None:
    group, arrays = product(20, 30, 40, batch=3)
    inner = Loop("n", 40, 32, Loop("m", 20, 14, FMA))
    for nest in (
        Pack("a", Pack("b", Loop("b", 3, 1, inner))),
        Loop("n", 40, 32, Pack("b", Loop("b", 3, 1, Loop("m", 20, 14, FMA)))),
    ):
        verify(group, arrays, nest=nest)


def test_a_nest_that_reads_an_unpacked_factor_it_cannot_read_is_refused() -> None:
    group, _ = product(60, 200, 70, transposed=True)
    with pytest.raises(ValueError, match="cannot be read in place"):
        contract.emit(group, NESTS[0], WIDE)


def windows(rows: int, wide: int, channels: int, columns: int) -> tuple[KernelGroup, list[np.ndarray]]:
    """``out[p, q, n] = Σ x[p + r, q + s, c] w[r, s, c, n]`` of 3×3 windows."""
    f, line = float32, (wide + 2) * channels
    x, w, out = (Operand(f, n) for n in ((rows + 2) * line, 9 * channels * columns, rows * wide * columns))
    a = Load(0, 0, (line, channels, 0, line, channels, 1), f)
    b = Load(1, 0, (0, 0, 1, 3 * channels * columns, channels * columns, columns), f)
    extents, store = (rows, wide, columns, 3, 3, channels), (wide * columns, columns, 1)
    kernel = Kernel(extents, 3, "sum", Call("mul", (a, b), f), Acc(f), (x, w), out, 0, store)
    group = KernelGroup((Stage(kernel, (0, 1), 2),), 0, (x, w, out), (2,), "windows")
    return group, random_buffers(group)


@pytest.mark.parametrize("tap", [1, -1])
@pytest.mark.parametrize(("rows", "wide"), [(5, 13), (3, 29), (10, 2)])
def test_images_are_copied_column_by_column(rows: int, wide: int, tap: int) -> None:
    """``out[p, q, n] = Σ x[c, p, q ± s] w[c, s, n]``: along q lies more in one piece than along s."""
    channels, taps, columns, f = 20, 3, 40, float32
    line = wide + taps - 1
    x, w, out = (Operand(f, n) for n in (channels * rows * line, channels * taps * columns, rows * wide * columns))
    a = Load(0, 0 if tap > 0 else taps - 1, (line, 1, 0, rows * line, tap), f)
    b = Load(1, 0, (0, 0, 1, taps * columns, columns), f)
    kernel = Kernel(
        (rows, wide, columns, channels, taps), 3, "sum", Call("mul", (a, b), f), Acc(f), (x, w), out, 0,
        (wide * columns, columns, 1),
    )  # fmt: skip
    group = KernelGroup((Stage(kernel, (0, 1), 2),), 0, (x, w, out), (2,), "image")
    m, k = rows * wide, channels * taps
    tile = TileOp("fma", (("m", 6), ("n", 32), ("k", 24)))
    inside = Loop("m", 18, 6, Loop("n", columns, 32, Loop("k", 24, 24, tile)))
    nest = Pack("b", Loop("m", m, 18, Loop("k", k, 24, Pack("a", inside)), True))
    piece = piece_along_rows(a, kernel.extents, (0, 1), (3, 4))
    assert piece == (wide if wide > taps else 0)
    for each, threads in ((nest, 1), (nest, 2), (schedule(group, cpu_target(machine())).nest, 1)):
        emitted = verify(group, random_buffers(group), each, threads=threads)
        rows_first = re.findall(r'fma_tile\("float32", \d+, \d+, \d+, (\d+), ', emitted.source)
        assert each is not nest or {step == "4" for step in rows_first} == {piece > 0}


def computed(layouts: str, m: int = 37) -> KernelGroup:
    """``out[p, n] = Σ max(x[p, c] + y[p, c] + bias[c], 0) w[c, n]``, terms contiguous along p (m) or c (k)."""
    n, k, f = 40, 50, float32
    lie = {"m": (1, 0, m), "k": (k, 0, 1), "b": (0, 0, 1)}
    loads: list[Expr] = [Load(number, 0, lie[letter], f) for number, letter in enumerate(layouts)]
    total = loads[0]
    for load in loads[1:]:
        total = Call("add", (total, load), f)
    body = Call("mul", (Call("maximum", (total, Literal(0.0, f)), f), Load(len(layouts), 0, (0, 1, n), f)), f)
    sizes = [k if letter == "b" else m * k for letter in layouts]
    operands = *(Operand(f, size) for size in sizes), Operand(f, k * n, m == 1)
    kernel = Kernel((m, n, k), 2, "sum", body, Acc(f), operands, Operand(f, m * n), 0, (n, 1))
    count = len(operands)
    return KernelGroup((Stage(kernel, tuple(range(count)), count),), 0, (*operands, kernel.out), (count,))


@pytest.mark.parametrize(
    ("layouts", "columns", "apart"),
    [("m", True, 0), ("mm", True, 0), ("mmb", True, 0), ("mmk", True, 1), ("mk", False, 1), ("kk", False, 0)],
)
def test_what_is_computed_is_copied_the_way_that_most_of_it_lies(layouts: str, columns: bool, apart: int) -> None:
    """Row by row vectors of what lies along m were put together lane by lane: a sum of two images and a product with
    1024 channels took 2.11 ms for 1.84."""
    group = computed(layouts)
    tile = TileOp("fma", (("m", 6), ("n", 32), ("k", 20)))
    inside = Loop("m", 18, 6, Loop("n", 40, 32, tile))
    nest = Pack("b", Loop("m", 37, 18, Loop("k", 50, 20, Pack("a", inside)), True))
    for threads in (1, 2):
        emitted = verify(group, random_buffers(group), nest, threads=threads)
    rows_first = re.findall(r'fma_tile\("float32", \d+, \d+, \d+, (\d+), ', emitted.source)
    assert {step == "4" for step in rows_first} == {columns}
    first = problem_of(group, cpu_target(machine())).stages[0].factors[0]
    assert (first.piece > 0, first.apart) == (columns, apart)


@pytest.mark.parametrize("layouts", ["m", "mk", "kk"])
def test_one_row_that_is_computed_is_copied(layouts: str) -> None:
    """It has no axis to go along."""
    group = computed(layouts, 1)
    nest = schedule(group, cpu_target(machine())).nest
    assert "pack a" in show(nest)
    verify(group, random_buffers(group), nest)


def test_lanes_that_a_copy_takes_apart_are_paid() -> None:
    block = Block(frozenset({0}), (("k0", 50), ("m0", 37), ("n0", 40)), frozenset())
    host = cpu_target(machine())
    straight, mixed, most = (
        Pricer(problem_of(computed(layouts), host), host).pack(0, "a", block)[0] for layouts in ("kk", "mk", "mkk")
    )
    lane = host.ports.lane * host.slot(float32)
    assert mixed - straight >= 37 * 50 * lane
    assert mixed <= most < mixed + 37 * 50 * lane, "a third one, which lies like most, takes arithmetic alone"


def test_nothing_is_read_behind_a_last_vector() -> None:
    """``Σ_k table[index[m, k]] w[k, n]``, copied by rows of 17: what lies behind the last index is out of bounds."""
    m, n, k, rows, f = 5, 3, 17, 4, float32
    index = Call("wrap_index", (Load(0, 0, (k, 0, 1), int64),), int64, rows)
    body = Call("mul", (Load(1, 0, (0, 0, 0), f, ((index, 1),)), Load(2, 0, (0, 1, n), f)), f)
    operands = Operand(int64, m * k), Operand(f, rows), Operand(f, k * n)
    kernel = Kernel((m, n, k), 2, "sum", body, Acc(f), operands, Operand(f, m * n), 0, (n, 1))
    group = KernelGroup((Stage(kernel, (0, 1, 2), 3),), 0, (*operands, kernel.out), (3,))
    tile = TileOp("fma", (("m", 3), ("n", n), ("k", k)))
    nest = Pack("b", Loop("m", m, 3, Pack("a", tile), True))
    rng = np.random.default_rng(0)
    positions, table, w = rng.integers(0, rows, m * k), random_of(rows), random_of(k * n)
    given = [np.append(positions, np.full(32, 1000)), table, w, np.zeros(m * n, np.float32)]
    found = run(contract.emit(group, nest, WIDE), given)[3].reshape(m, n)  # no status: no index was out of bounds
    np.testing.assert_allclose(found, table[positions].reshape(m, k) @ w.reshape(k, n), rtol=1e-5)


def random_of(size: int) -> np.ndarray:
    return np.random.default_rng(size).uniform(0.5, 1.5, size).astype(np.float32)


def in_runs(m: int, k: int, rows: int, depth: int) -> Nest:
    tile = TileOp("fma", (("m", rows), ("n", 32), ("k", depth)))
    return Pack("b", Loop("m", m, rows, Loop("n", 40, 32, Loop("k", k, depth, tile)), True))


@pytest.mark.parametrize(("rows", "depth"), [(12, 96), (4, 48), (6, 32)])
def test_windows_are_read_in_the_runs_that_they_lie_in(rows: int, depth: int) -> None:
    group, arrays = windows(5, 12, 32, 40)
    for threads in (1, 3):
        emitted = verify(group, arrays, in_runs(60, 288, rows, depth), threads=threads)
        assert "# pack a" not in emitted.source


@pytest.mark.parametrize(("rows", "depth"), [(5, 96), (12, 144), (12, 288)])
def test_tiles_that_leave_a_run_are_refused(rows: int, depth: int) -> None:
    group, _ = windows(5, 12, 32, 40)
    with pytest.raises(ValueError, match="factor a of stage 0 cannot be read in place"):
        contract.emit(group, in_runs(60, 288, rows, depth), WIDE)
    nest = in_runs(60, 288, 12, 96)
    assert isinstance(nest, Pack) and isinstance(nest.body, Loop)
    cut = Loop("m", 60, 30, Loop("m", 30, 12, nest.body.body))  # tiles of 12, 12 and 6 rows, some across two lines
    with pytest.raises(ValueError, match="factor a of stage 0 cannot be read in place"):
        contract.emit(group, Pack("b", cut), WIDE)


def padded_windows(flag: int, inf: bool = False) -> tuple[KernelGroup, list[np.ndarray]]:
    """Windows with the domain of points that do not read the border, where zeros are; ``flag``: nothing is left out."""
    rows, wide, channels = 5, 12, 32
    group, arrays = windows(rows, wide, channels, 40)
    image = arrays[0].reshape(rows + 2, wide + 2, channels)
    image[[0, -1]], image[:, [0, -1]] = 0, 0
    if inf:
        arrays[1][7] = np.inf
    ends = ((-1, 1), (rows, -1)), ((-1, 1), (wide, -1))
    domain = [
        Index(offset, tuple(s if axis in (space, space + 3) else 0 for axis in range(6)), int64)
        for space, sides in enumerate(ends)
        for offset, s in sides
    ]
    (stage,) = group.stages
    stage = replace(stage, kernel=replace(stage.kernel, domain=tuple(domain)))
    group = replace(group, stages=(stage,), operands=(*group.operands, Operand(int64, 1, True)), unless=(3,))
    return group, [*arrays, np.array([flag])]


TAP = TileOp("fma", (("m", 12), ("n", 32), ("k", 32)))
TAPS: list[Nest] = [
    in_runs(60, 288, 12, 32),
    in_runs(60, 288, 4, 32),
    in_runs(60, 288, 6, 96),  # whole rows of taps: only what lies above and below is left out
    in_runs(60, 288, 6, 16),
    Pack("b", Loop("k", 288, 96, Loop("n", 40, 32, Loop("m", 60, 12, Loop("k", 96, 32, TAP))))),
]


@pytest.mark.parametrize("nest", TAPS, ids=show)
def test_taps_that_read_only_padding_are_left_out(nest: Nest) -> None:
    for flag in (0, 1):
        verify(*padded_windows(flag), nest, threads=1 + flag)
    verify(*padded_windows(1, inf=True), nest)  # 0 times infinity is NaN
    group, arrays = padded_windows(0)
    exact, *_ = wanted(group, arrays)
    image = arrays[0].reshape(7, 14, 32)
    image[[0, -1]] = np.nan  # not read where nothing is left of a row
    got = run(printed(group, nest, None, 1), arrays)[2]
    np.testing.assert_allclose(got, exact[2].ravel(), rtol=1e-4, atol=1e-4)


def transform(spots: int, run: int, const: bool = False) -> KernelGroup:
    """``out[t, p, c] = Σ_d a[t, d] x[p, d, c]``, the matrix known."""
    f, n = float32, 6
    a, x, out = Operand(f, n * n, True), Operand(f, spots * n * run, const), Operand(f, n * spots * run)
    body = Call("mul", (Load(0, 0, (n, 0, 0, 1), f), Load(1, 0, (0, n * run, 1, run), f)), f)
    kernel = Kernel((n, spots, run, n), 3, "sum", body, Acc(f), (a, x), out, 0, (spots * run, run, 1))
    return KernelGroup((Stage(kernel, (0, 1), 2),), 0, (a, x, out), (2,), "transform")


def test_few_rows_multiply_runs_where_they_lie() -> None:
    group = transform(10, 48)
    found = product_of(group.stages[0].kernel)
    assert found is not None and (found.b, found.n) == ((1,), (2,))
    emitted = verify(group, random_buffers(group), threads=2)
    assert "# pack b" not in emitted.source
    assert [pack.batch for pack in emitted.packs if pack.operand == 0] == [()]  # the matrix is there once
    for group in (transform(10, 50), transform(10, 48, const=True)):
        found = product_of(group.stages[0].kernel)
        assert found is not None and (found.b, found.n) == ((), (1, 2))


def of_each(places: int, m: int, n: int, k: int, const: bool = False, turned: bool = False) -> KernelGroup:
    """``out[m, n, p] = Σ_k a[p, m, k] b[p, n, k]``; ``turned``: a lies as (p, k, m)."""
    f = float32
    a, b, out = Operand(f, places * m * k), Operand(f, places * n * k, const), Operand(f, m * n * places)
    first = (m * k, 1, 0, m) if turned else (m * k, k, 0, 1)
    body = Call("mul", (Load(0, 0, first, f), Load(1, 0, (n * k, 0, k, 1), f)), f)
    kernel = Kernel((places, m, n, k), 3, "sum", body, Acc(f), (a, b), out, 0, (1, n * places, places))
    return KernelGroup((Stage(kernel, (0, 1), 2),), 0, (a, b, out), (2,), "each")


@pytest.mark.parametrize(
    ("group", "first"),
    [
        (of_each(7, 9, 30, 20), 1),  # of two that lie along k the larger one is read row by row
        (of_each(7, 30, 9, 20), 0),
        (of_each(7, 30, 9, 20, turned=True), 1),  # the one that lies along k
        (of_each(7, 9, 30, 20, const=True), 0),  # known: transposed when compiled
        (of_each(1, 9, 30, 20), 0),  # transposed once
        (of_each(7, 5, 30, 20), 0),  # vectors would be a third full
    ],
)
def test_what_lies_along_k_is_read_row_by_row(group: KernelGroup, first: int) -> None:
    found = product_of(group.stages[0].kernel)
    assert found is not None and found.swapped == bool(first)
    for threads in (1, 2):
        verify(group, random_buffers(group), threads=threads)


def test_impossible_nests_are_refused() -> None:
    group, _ = product(60, 200, 70)
    with pytest.raises(ValueError, match="its tile has 14"):
        contract.emit(group, Loop("n", 70, 32, FMA), WIDE)
    with pytest.raises(ValueError, match="summed"):
        contract.emit(group, Loop("k", 200, 64, NESTS[0], True), WIDE)


def test_several_stages_are_refused() -> None:
    group, _ = product(4, 4, 4)
    with pytest.raises(ValueError, match="several"):
        contract.emit(replace(group, stages=group.stages * 2), FMA, WIDE)


def test_the_checker_sees_a_wrong_kernel() -> None:
    group, arrays = product(20, 30, 40)
    wrong = replace(group.stages[0].kernel, epilogue=Call("mul", (Acc(float32), Literal(1.00001, float32)), float32))
    emitted = printed(replace(group, stages=(replace(group.stages[0], kernel=wrong),)))
    got = run(emitted, arrays)[2]
    with pytest.raises(AssertionError):
        check(got, reference(group, arrays, True)[2], reference(group, arrays, False)[2], magnitude_of(group, arrays))


@given(
    st.lists(st.integers(0, 4), max_size=2), st.lists(st.integers(0, 9), max_size=2),
    st.lists(st.integers(0, 4), max_size=2), st.integers(1, 6), st.randoms(use_true_random=False),
)  # fmt: skip
def test_pack_spec(batch: list[int], n: list[int], k: list[int], tile: int, random: Random) -> None:
    extents = [*batch, *n, *k]
    order = random.sample(range(len(extents)), len(extents))
    strides, size = operand_strides(range(len(extents)), extents, order, 1)
    axes = list(zip(extents, strides, strict=True))
    cut = len(batch), len(batch) + len(n)
    spec = PackSpec(0, 2, tuple(axes[: cut[0]]), tuple(axes[cut[0] : cut[1]]), tuple(axes[cut[1] :]), tile)
    assert PackSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    flat = np.arange(1, size + 3, dtype=np.float32)
    packed = spec.apply(flat)
    shape = math.prod(batch), math.prod(n), math.prod(k)
    panels = -(-shape[1] // tile)
    assert packed.size == spec.size == shape[0] * panels * shape[2] * tile
    whole = np.zeros((shape[0], panels * tile, shape[2]), np.float32)
    index = 2 + sum((s * g for s, g in zip(strides, np.indices(extents), strict=True)), np.zeros(extents, np.int64))
    whole[:, : shape[1]] = flat[index].reshape(shape) if index.size else 0
    expected = whole.reshape(shape[0], panels, tile, shape[2]).swapaxes(2, 3)
    assert np.array_equal(packed, expected.reshape(-1))


# groups of several stages


def attention(heads: int, rows: int, keys: int, width: int, dtype: DType, causal: bool) -> KernelGroup:
    """Softmax attention with split heads; shared axes are head and row."""
    f, line = dtype, heads * width
    scores: Expr = Call("mul", (Acc(f), Literal(width**-0.5, f)), f)
    if causal:
        row, key = Index(0, (0, 1, 0, 0), int64), Index(0, (0, 0, 1, 0), int64)
        scores = Call("where", (Call("ge", (row, key), bool_), scores, Literal(-math.inf, f)), f)
    square, vector = Operand(f, heads * rows * keys), Operand(f, heads * rows)
    q, kv, out = Operand(f, rows * line), Operand(f, keys * line), Operand(f, rows * line)
    cell = (rows * keys, keys, 1)
    dot = Call("mul", (Load(0, 0, (width, line, 0, 1), f), Load(1, 0, (width, 0, line, 1), f)), f)
    k0 = Kernel((heads, rows, keys, width), 3, "sum", dot, scores, (q, kv), square, 0, cell)
    k1 = Kernel((heads, rows, keys), 2, "max", Load(0, 0, cell, f), Acc(f), (square,), vector, 0, (rows, 1))
    shifted = Call("sub", (Load(0, 0, cell, f), Load(1, 0, (rows, 1, 0), f)), f)
    k2 = Kernel((heads, rows, keys), 3, None, Call("exp", (shifted,), f), Acc(f), (square, vector), square, 0, cell)
    k3 = Kernel((heads, rows, keys), 2, "sum", Load(0, 0, cell, f), Acc(f), (square,), vector, 0, (rows, 1))
    mix = Call("mul", (Load(0, 0, (rows * keys, keys, 0, 1), f), Load(1, 0, (width, 0, 1, line), f)), f)
    share = Call("div", (Acc(f), Load(2, 0, (rows, 1, 0, 0), f)), f)
    k4 = Kernel((heads, rows, width, keys), 3, "sum", mix, share, (square, kv, vector), out, 0, (width, line, 1))
    stages = (
        Stage(k0, (0, 1), None),
        Stage(k1, (FromStage(0),), None),
        Stage(k2, (FromStage(0), FromStage(1)), None),
        Stage(k3, (FromStage(2),), None),
        Stage(k4, (FromStage(2), 2, FromStage(3)), 3),
    )
    return KernelGroup(stages, 2, (q, kv, kv, out), (3,), "attention")


def random_buffers(group: KernelGroup, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(operand.size).astype(operand.dtype.numpy) for operand in group.operands]
    for output in group.outputs:
        arrays[output][:] = 7
    return arrays


@pytest.mark.parametrize(
    ("sizes", "dtype", "causal", "lanes", "threads"),
    [
        ((3, 37, 53, 10), float32, False, None, 2),
        ((2, 30, 64, 16), float32, True, 8, 3),
        ((1, 20, 600, 8), float64, False, None, 1),
        ((2, 1, 9, 5), float32, False, None, 2),
        ((2, 5, 1, 3), float32, False, None, 1),
        ((1, 1, 4, 4), float32, False, None, 1),
        ((2, 0, 4, 4), float32, False, None, 1),
    ],
    ids=str,
)
def test_attention(
    sizes: tuple[int, int, int, int], dtype: DType, causal: bool, lanes: int | None, threads: int
) -> None:
    group = attention(*sizes, dtype, causal)
    verify(group, random_buffers(group), lanes=lanes, threads=threads)


def perceptron(rows: int, width: int, hidden: int, const: bool, keep: bool) -> KernelGroup:
    """``relu(x @ u + c) @ v + x``, then each row divided by its largest value plus 3."""
    f = float32
    x, u, v = Operand(f, rows * width), Operand(f, width * hidden, const), Operand(f, hidden * width, const)
    c, h, y = Operand(f, hidden, const), Operand(f, rows * hidden), Operand(f, rows * width)
    top = Operand(f, rows)
    first = Call("mul", (Load(0, 0, (width, 0, 1), f), Load(1, 0, (0, 1, hidden), f)), f)
    relu = Call("maximum", (Call("add", (Acc(f), Load(2, 0, (0, 1, 0), f)), f), Literal(0.0, f)), f)
    k0 = Kernel((rows, hidden, width), 2, "sum", first, relu, (x, u, c), h, 0, (hidden, 1))
    second = Call("mul", (Load(0, 0, (hidden, 0, 1), f), Load(1, 0, (0, 1, width), f)), f)
    residual = Call("add", (Acc(f), Load(2, 0, (width, 1, 0), f)), f)
    k1 = Kernel((rows, width, hidden), 2, "sum", second, residual, (h, v, x), y, 0, (width, 1))
    k2 = Kernel((rows, width), 1, "max", Load(0, 0, (width, 1), f), Acc(f), (y,), top, 0, (1,))
    shifted = Call("add", (Load(1, 0, (1, 0), f), Literal(3.0, f)), f)
    k3 = Kernel(
        (rows, width), 2, None, Call("div", (Load(0, 0, (width, 1), f), shifted), f), Acc(f), (y, top), y, 0, (width, 1)
    )
    stages = (
        Stage(k0, (0, 1, 3), None),
        Stage(k1, (FromStage(0), 2, 0), 5 if keep else None),
        Stage(k2, (FromStage(1),), None),
        Stage(k3, (FromStage(1), FromStage(2)), 4),
    )
    operands = (x, u, v, c, y, y) if keep else (x, u, v, c, y)
    return KernelGroup(stages, 1, operands, (4, 5) if keep else (4,), "perceptron")


@pytest.mark.parametrize("const", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_perceptron(const: bool, keep: bool) -> None:
    for rows, width, hidden in ((45, 24, 40), (3, 33, 70)):
        group = perceptron(rows, width, hidden, const, keep)
        emitted = verify(group, random_buffers(group), threads=2)
        assert len(emitted.packs) == (2 if const else 0)


def test_a_contraction_over_rows_of_both_factors_goes_row_by_row() -> None:
    """``y[r] = softmax-like: (x[r] · w[r]) summed per row, then scaled``: no factor is free of the rows."""
    f, rows, n, k = float32, 9, 20, 30
    x, w, s, y = Operand(f, rows * k), Operand(f, rows * n * k), Operand(f, rows * n), Operand(f, rows * n)
    dot = Call("mul", (Load(0, 0, (k, 0, 1), f), Load(1, 0, (n * k, k, 1), f)), f)
    k0 = Kernel((rows, n, k), 2, "sum", dot, Acc(f), (x, w), s, 0, (n, 1))
    k1 = Kernel((rows, n), 2, None, Call("exp", (Load(0, 0, (n, 1), f),), f), Acc(f), (s,), y, 0, (n, 1))
    group = KernelGroup((Stage(k0, (0, 1), None), Stage(k1, (FromStage(0),), 2)), 1, (x, w, y), (2,), "rows")
    arrays = [array / 8 for array in random_buffers(group)]
    verify(group, arrays, threads=2)


def test_blocks_need_a_shared_axis() -> None:
    group = replace(perceptron(4, 4, 4, False, False), shared=0)
    nest = schedule(perceptron(4, 4, 4, False, False), cpu_target(machine())).nest
    with pytest.raises(ValueError, match="shares no axis"):
        blocks.emit(group, nest, WIDE)


@pytest.mark.parametrize("inner", [2, 7, 17, 30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_end_where_one_of_several_axes_does(inner: int, dtype: type) -> None:
    """Columns of a product are windows of rows too short or uneven for whole vectors: they are packed by parts."""

    def f(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        columns = np.stack([x[:, :, j : j + inner] for j in range(3)], axis=1)
        return (w @ columns.reshape(-1, x.shape[1] * inner)).reshape(-1, x.shape[1], inner)

    random = np.random.default_rng(inner)
    w, x = random.standard_normal((4, 12)).astype(dtype), random.standard_normal((4, 63, inner + 2)).astype(dtype)
    g = eqsat.optimize(f, cache=False, check_speed=False)
    np.testing.assert_allclose(g(w, x), f(w.astype(float), x.astype(float)), rtol=1e-4, atol=1e-4)
    source = g.source(w, x)
    assert "while j" in source and "loadn_" in source and "# pack b" in source

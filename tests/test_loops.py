"""Printed kernels without contractions: compiled, run by one and by several threads, compared with NumPy."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eqsat.ir.kernel import Acc, Call, Expr, FromStage, Index, Kernel, KernelGroup, Load, Operand, Stage
from eqsat.ir.kernel import Literal as Number
from eqsat.ir.nest import Loop, Nest, Seq, TileOp, show
from eqsat.ir.types import DType, bool_, float32, float64, int32, int64, row_major
from eqsat.schedule import schedule
from eqsat_backends.numba_cpu.compiling.jit import compile_module
from eqsat_backends.numba_cpu.printing.emit import emit_group
from eqsat_backends.numba_cpu.printing.emitted import Emitted
from eqsat_backends.numba_cpu.printing.loops import emit
from eqsat_backends.numba_cpu.printing.printer import Access, Printer, View
from eqsat_backends.numba_cpu.target import host
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests import random_groups
from tests.kernel_groups import machine, softmax
from tests.sweeps import a_part, crossed

Strides = tuple[int, ...]

# an interpreter of kernels


def evaluate(expr: Expr, extents: Strides, buffers: Sequence[np.ndarray], acc: np.ndarray | None = None) -> np.ndarray:
    """``expr`` at every point; floating point in float64."""
    grid = np.indices(extents) if extents else np.zeros((0,), np.int64)

    def affine(offset: int, strides: Strides) -> np.ndarray:
        return offset + sum((s * g for s, g in zip(strides, grid, strict=True)), np.zeros(extents, np.int64))

    def wide(dtype: DType) -> np.dtype:
        return np.dtype(np.float64) if dtype.is_float else dtype.numpy

    functions = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "exp": np.exp, "tanh": np.tanh,
        "maximum": np.maximum, "square": np.square, "where": np.where, "lt": np.less, "neg": np.negative,
        "rsqrt": lambda x: 1 / np.sqrt(x), "ge": np.greater_equal, "log": np.log,
    }  # fmt: skip

    def visit(e: Expr) -> np.ndarray:
        match e:
            case Number():
                return np.full(extents, e.value, wide(e.dtype))
            case Acc():
                assert acc is not None
                return acc
            case Index():
                return affine(e.offset, e.strides).astype(e.dtype.numpy)
            case Load():
                at = affine(e.offset, e.strides)
                for index, stride in e.gathers:
                    at = at + visit(index).astype(np.int64) * stride
                return buffers[e.operand][at].astype(wide(e.dtype))
        values = [visit(arg) for arg in e.args]
        if e.fn == "wrap_index":
            return np.where(values[0] < 0, values[0] + e.attrs, values[0])
        if e.fn == "cast":
            return values[0].astype(wide(e.dtype))
        with np.errstate(all="ignore"):
            return functions[e.fn](*values).astype(wide(e.dtype))

    return visit(expr)


def interpret(kernel: Kernel, buffers: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Run one kernel."""
    points = evaluate(kernel.body, kernel.extents, buffers)
    kept = kernel.extents[: kernel.parallel]
    if kernel.combine is not None:
        axes = tuple(range(kernel.parallel, len(kernel.extents)))
        reduce = getattr(np, kernel.combine)
        with np.errstate(all="ignore"):
            made = reduce(points, axis=axes[0] if kernel.combine.startswith("arg") else axes)
        made = np.asarray(made).astype(np.float64 if kernel.acc_dtype.is_float else kernel.acc_dtype.numpy)
        ones = kept + (1,) * len(axes)
        points = evaluate(kernel.epilogue, ones, buffers, made.reshape(ones)).reshape(kept)
    grid = np.indices(kept) if kept else np.zeros((0,), np.int64)
    terms = (s * g for s, g in zip(kernel.store_strides, grid, strict=True))
    out[kernel.store_offset + sum(terms, np.zeros(kept, np.int64))] = points


def expected(group: KernelGroup, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All operands after the group has run, floating point in float64."""
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a.copy() for a in arrays]
    made: dict[int, np.ndarray] = {}
    for s, stage in enumerate(group.stages):
        out = stage.kernel.out
        made[s] = np.zeros(out.size, np.float64 if out.dtype.is_float else out.dtype.numpy)
        if stage.result is not None:
            made[s] = wide[stage.result]
        interpret(stage.kernel, [wide[i] if isinstance(i, int) else made[i.stage] for i in stage.sources], made[s])
    return wide


# running printed kernels


def aligned(size: int, dtype: np.dtype | type) -> np.ndarray:
    """A buffer at a multiple of 64 bytes, filled with a pattern that no result has by chance."""
    raw = np.full(size * np.dtype(dtype).itemsize + 128, 0x5A, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size * np.dtype(dtype).itemsize].view(dtype)


def run(emitted: Emitted, arrays: Sequence[np.ndarray], threads: int) -> tuple[list[np.ndarray], int]:
    """Operands after every phase has been run by every thread in turn, and the status word."""
    addresses = compile_module(emitted.source, emitted.phases)
    buffers = []
    for array in arrays:
        buffers.append(aligned(array.size, array.dtype))
        buffers[-1][:] = array
    shared = aligned(emitted.shared_bytes, np.uint8)
    private = aligned(-(-emitted.thread_bytes // 64) * 64 * threads, np.uint8)
    status = np.zeros(1, np.int64)
    table = np.array([b.ctypes.data for b in (*buffers, shared, private, status)], np.int64)
    for phase in emitted.phases:
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * 3)(addresses[phase])
        for thread in range(threads):
            function(table.ctypes.data, thread, threads)
    return buffers, int(status[0])


def operands(group: KernelGroup, seed: int = 0, hard: bool = False) -> list[np.ndarray]:
    """Random contents for every operand; ``hard`` ones with NaN, infinities and many equal numbers."""
    rng = np.random.default_rng(seed)
    arrays = []
    for operand in group.operands:
        if operand.dtype.is_float:
            array = rng.standard_normal(operand.size)
            if hard:
                array = rng.choice([1.0, 2.0, -1.0, 0.0, np.inf, -np.inf, np.nan], operand.size)
        elif operand.dtype.kind == "bool":
            array = rng.random(operand.size) < 0.5
        else:
            array = rng.integers(-9, 10, operand.size)
        arrays.append(array.astype(operand.dtype.numpy))
    return arrays


def check(
    group: KernelGroup,
    threads: Sequence[int] = (1, 3),
    lanes: int | None = None,
    hard: bool = False,
    seed: int = 0,
    nest: Nest | None = None,
) -> Emitted:
    """Run the group, compiled by ``nest`` or that of a search; every operand must be as the interpreter leaves it."""
    host_ = machine(width=4 * (lanes or host().lanes()))
    emitted = emit(group, nest or schedule(group, cpu_target(host_, 2)).nest)
    arrays = operands(group, seed, hard)
    want = expected(group, arrays)
    for count in threads:
        got, status = run(emitted, arrays, count)
        assert status == 0
        for number, (array, reference) in enumerate(zip(got, want, strict=True)):
            message = f"operand {number}, {count} threads\n{emitted.source}"
            if reference.dtype.kind != "f" or number not in group.outputs:
                np.testing.assert_array_equal(array, reference, err_msg=message)
                continue
            finite = reference[np.isfinite(reference)]
            scale = np.abs(finite).max(initial=1.0)
            bound = 3e-6 if array.dtype == np.float32 else 1e-14
            np.testing.assert_allclose(array, reference, rtol=4 * bound, atol=4 * bound * scale, err_msg=message)
    return emitted


def single(
    extents: Strides, parallel: int, combine: str | None, body: Expr, inputs: Sequence[tuple[DType, int]],
    epilogue: Expr | None = None, store: Strides | None = None, out: DType | None = None,
) -> KernelGroup:  # fmt: skip
    """A group of one kernel; its result is C-contiguous unless ``store`` strides are given."""
    kept = extents[:parallel]
    acc = int64 if combine in ("argmax", "argmin") else body.dtype
    epilogue = epilogue or Acc(acc)
    made = Operand(out or epilogue.dtype, math.prod(kept))
    given_ = tuple(Operand(dtype, size) for dtype, size in inputs)
    kernel = Kernel(extents, parallel, combine, body, epilogue, given_, made, 0, store or row_major(kept))  # type: ignore[arg-type]
    stage = Stage(kernel, tuple(range(len(given_))), len(given_))
    return KernelGroup((stage,), 0, (*given_, made), (len(given_),), "kernel")


def call(fn: str, *args: Expr, dtype: DType | None = None) -> Call:
    return Call(fn, args, dtype or args[-1].dtype)


# maps


@crossed(
    dtype=[float32, float64, int32, int64, bool_],
    shape=[(), (1,), (5,), (16,), (1000,), (3, 4, 50), (2, 4096), (0,), (4, 0)],
)
def test_contiguous_maps(shape: Strides, dtype: DType) -> None:
    strides, size = row_major(shape), math.prod(shape)
    x, y = Load(0, 0, strides, dtype), Load(1, 0, strides, dtype)
    check(single(shape, len(shape), None, call("add", call("mul", x, y), x), [(dtype, size)] * 2))


def test_short_vectors_and_mixed_widths() -> None:
    x, n = Load(0, 0, (1,), float32), Load(1, 0, (1,), int64)
    body = call("where", call("lt", x, Number(0.0, float32), dtype=bool_), call("cast", n, dtype=float32), x)
    for lanes in (1, 2, 4, 8, 32):
        check(single((77,), 1, None, body, [(float32, 77), (int64, 77)]), lanes=lanes)


@st.composite
def map_kernels(draw: st.DrawFn) -> KernelGroup:
    """Maps of up to four axes: operands permuted, reversed, broadcast, cut out of greater arrays."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 7, 16, 17, 33]), max_size=4)))
    shape = shape if math.prod(shape) < 20000 else shape[:2]
    dtype = draw(st.sampled_from([float32, float64, int32, int64]))
    inputs: list[tuple[DType, int]] = []
    terms: list[Expr] = []
    for number in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(range(len(shape))))
        strides, step, offset = [0] * len(shape), 1, 0
        for axis in order:
            kind = draw(st.sampled_from(["plain", "plain", "plain", "reversed", "broadcast", "padded"]))
            if kind == "broadcast":
                continue
            strides[axis] = -step if kind == "reversed" else step
            if kind == "reversed":
                offset += step * (shape[axis] - 1)
            step *= shape[axis] + 3 * (kind == "padded")
        offset += draw(st.integers(0, 3))
        inputs.append((dtype, step + offset))
        terms.append(Load(number, offset, tuple(strides), dtype))
    body = terms[0]
    for term in terms[1:]:
        body = call(draw(st.sampled_from(["add", "sub", "maximum"])), body, term)
    if draw(st.booleans()):
        index = Index(2, tuple(draw(st.integers(-2, 3)) for _ in shape), int64)
        body = call("add", body, call("cast", index, dtype=dtype))
    order = draw(st.permutations(range(len(shape))))
    store, step = [0] * len(shape), 1
    for axis in order:
        store[axis] = step
        step *= shape[axis]
    return single(shape, len(shape), None, body, inputs, store=tuple(store))


relaxed = settings(max_examples=a_part(25), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@relaxed
@given(map_kernels(), st.sampled_from([None, 4]), st.integers(0, 3))
def test_maps_of_any_strides(group: KernelGroup, lanes: int | None, seed: int) -> None:
    check(group, lanes=lanes, seed=seed)


@crossed(dtype=[float32, int64, bool_], shape=[(16, 16), (40, 50), (33, 17), (3, 40, 50)])
def test_transposes(shape: Strides, dtype: DType) -> None:
    *_, rows, columns = shape
    turned = (*row_major(shape)[:-2], 1, rows)
    other = (*(0 for _ in shape[:-1]), 1)
    body = call("add", Load(0, 0, turned, dtype), Load(1, 0, other, dtype))
    group = single(shape, len(shape), None, body, [(dtype, math.prod(shape)), (dtype, columns)])
    emitted = check(group)
    lanes = host().lanes() * 4 // max(4, dtype.itemsize)
    assert "transpose_" in emitted.source or lanes < 8  # of four lanes each may be loaded by itself
    assert "transpose" in show(schedule(group, cpu_target(machine(width=64), 2)).nest)


@crossed(dtype=[float32, float64, int64, bool_], shape=[(16, 16), (32, 19), (45, 50), (33, 17)], stream=[False, True])
def test_results_are_turned_over_where_all_loads_lie_along_the_other_axis(
    shape: Strides, dtype: DType, stream: bool
) -> None:
    """Copies, and sums with what repeats along either axis; also past the caches, which is row by row."""
    rows, columns = shape
    lanes = host().lanes() * 4 // max(4, dtype.itemsize)
    turned, along, number = Load(0, 0, (1, rows), dtype), Load(1, 0, (1, 0), dtype), Load(2, 3, (0, 0), dtype)
    given_ = [(dtype, rows * columns), (dtype, rows), (dtype, 4)]
    tile = TileOp("transpose", (("p0", lanes), ("p1", lanes)), lanes=lanes, stream=stream)
    nest = Loop("p0", rows, lanes, Loop("p1", columns, lanes, tile))
    for body in (turned, call("maximum", call("add", turned, along), number)):
        source = check(single(shape, 2, None, body, given_), nest=nest).source
        assert "transpose" in source and "strided" not in source and "scatter" not in source


def test_embedding_and_gather_by_lane() -> None:
    index = Call("wrap_index", (Load(1, 0, (1, 0), int64),), int64, 10)
    table = Load(0, 0, (0, 1), float32, ((index, 37),))
    check(single((20, 37), 2, None, table, [(float32, 370), (int64, 20)]))
    lane = Call("wrap_index", (Load(1, 0, (0, 1), int32),), int32, 10)
    check(single((6, 37), 2, None, Load(0, 2, (12, 0), float32, ((lane, 1),)), [(float32, 100), (int32, 37)]))


def test_index_out_of_range_sets_the_status() -> None:
    index = Call("wrap_index", (Load(1, 0, (1,), int64),), int64, 5)
    group = single((21,), 1, None, Load(0, 0, (0,), float32, ((index, 1),)), [(float32, 5), (int64, 21)])
    arrays = operands(group)
    arrays[1][:] = np.arange(21) % 10 - 5
    emitted = emit(group)
    got, status = run(emitted, arrays, 1)
    assert status == 0
    np.testing.assert_array_equal(got[2], arrays[0][arrays[1]])
    arrays[1][20] = 5
    got, status = run(emitted, arrays, 1)
    assert status != 0
    assert got[2][20] == arrays[0][0]


# reductions

COMBINES = ("sum", "prod", "max", "min", "argmax", "argmin")


@crossed(shape=[(3, 100), (5, 7), (40, 1)], combine=COMBINES, dtype=[float32, float64, int32, int64, bool_])
def test_reductions_of_rows_and_columns(shape: Strides, combine: str, dtype: DType) -> None:
    rows, columns = shape
    if dtype == bool_ and combine in ("sum", "prod"):
        pytest.skip("booleans are cast before they are summed")
    for strides in ((columns, 1), (1, rows)):
        group = single(shape, 1, combine, Load(0, 0, strides, dtype), [(dtype, rows * columns)])
        check(group)
        if dtype.is_float and not combine.startswith("arg"):
            check(group, hard=True)


@pytest.mark.parametrize("combine", ["argmax", "argmin", "max", "min"])
@pytest.mark.parametrize("size", [3, 40, 50_000])
def test_first_extreme_and_nan(combine: str, size: int) -> None:
    rng = np.random.default_rng(size)
    group = single((size,), 0, combine, Load(0, 0, (1,), float32), [(float32, size)])
    emitted = emit(group)
    for case in range(6):
        x = rng.choice(np.array([1, 2, -1], np.float32), size)
        if case == 1:
            x[size // 2 :] = np.nan
        if case == 2:
            x[:] = -np.inf if combine.endswith("max") else np.inf
        if case == 3:
            x[:] = np.nan
        if case == 4:
            x[size - 1] = np.nan
        if case == 5:
            x[[0, size - 1]] = np.inf if combine.endswith("max") else -np.inf
        got, _ = run(emitted, [x, np.zeros(1, group.operands[1].dtype.numpy)], 2)
        np.testing.assert_array_equal(got[1][0], getattr(np, combine)(x))


@pytest.mark.parametrize("combine", COMBINES)
def test_long_reductions_run_in_two_phases(combine: str) -> None:
    size = 100_003
    if combine == "prod":
        body: Expr = call("cast", call("lt", Load(0, 0, (1,), float32), Number(9.0, float32), dtype=bool_), dtype=int32)
    else:
        body = Load(0, 0, (1,), float32)
    emitted = check(single((size,), 0, combine, body, [(float32, size)]), threads=(1, 2, 5))
    assert len(emitted.phases) == 2 and emitted.shared_bytes > 0
    # columns, few of them
    emitted = check(single((5, 20_011), 1, combine, Load(0, 0, (1, 5), float32), [(float32, 5 * 20_011)]))
    if combine == "sum":
        assert len(emitted.phases) == 2


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    for shape, parallel, strides in (((300_000,), 0, (1,)), ((64, 3000), 1, (1, 64)), ((700, 500), 1, (500, 1))):
        size = math.prod(shape)
        group = single(shape, parallel, "sum", Load(0, 0, strides, float32), [(float32, size)])
        emitted, arrays = emit(group), operands(group)
        results = [run(emitted, arrays, threads)[0][1].tobytes() for threads in (1, 2, 7)]
        assert len(set(results)) == 1


@pytest.mark.parametrize("shape", [(1_000_000,), (4, 250_000), (200_000, 4)])
def test_long_sums_are_as_exact_as_pairwise_ones(shape: Strides) -> None:
    """The bound is NumPy's own float32 error, twice, on numbers of one sign (the hard case)."""
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    axis = int(np.argmax(shape))
    strides = row_major(shape)
    order = (*(a for a in range(len(shape)) if a != axis), axis)
    group = single(
        tuple(shape[a] for a in order), len(shape) - 1, "sum",
        Load(0, 0, tuple(strides[a] for a in order), float32), [(float32, x.size)],
    )  # fmt: skip
    got, _ = run(emit(group), [x.reshape(-1), np.zeros(group.operands[1].size, np.float32)], 2)
    exact = x.sum(axis=axis, dtype=np.float64).reshape(-1)
    pairwise = np.ascontiguousarray(np.moveaxis(x, axis, -1)).sum(axis=-1)
    bound = 2 * np.abs(pairwise.reshape(-1) - exact).max() + 4 * np.finfo(np.float32).eps * exact.max()
    assert np.abs(got[1] - exact).max() <= bound


def test_long_rows_of_equal_values_are_summed_as_exactly_as_others() -> None:
    """All blocks of such a row round alike: in one running sum of all rows' blocks that would add up."""
    x = np.abs(np.random.default_rng(0).standard_normal(500)).astype(np.float32)
    group = single((500, 60_000), 0, "sum", call("tanh", Load(0, 0, (1, 0), float32)), [(float32, 500)])
    got, _ = run(emit(group), [x, np.zeros(1, np.float32)], 2)
    np.testing.assert_allclose(got[1], 60_000 * np.tanh(x, dtype=np.float64).sum(), rtol=2 * np.finfo(np.float32).eps)


@st.composite
def reductions(draw: st.DrawFn) -> KernelGroup:
    """Reductions over any axes of up to four, with an epilogue."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 5, 16, 17, 40]), min_size=1, max_size=4)))
    shape = shape if math.prod(shape) < 30000 else shape[:2]
    dtype = draw(st.sampled_from([float32, float64, int64]))
    parallel = draw(st.integers(0, len(shape) - 1))
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step *= shape[axis]
    combine = draw(st.sampled_from(["sum", "max", "min", "argmax"]))
    if combine == "argmax":
        parallel = len(shape) - 1
    body: Expr = Load(0, 0, tuple(strides), dtype)
    if draw(st.booleans()):
        body = call("sub", call("mul", body, body), Load(1, 0, tuple(int(a == 0) for a in range(len(shape))), dtype))
    acc = int64 if combine == "argmax" else dtype
    epilogue: Expr = Acc(acc)
    if acc == dtype and draw(st.booleans()):
        kept = tuple(int(a == parallel - 1) for a in range(len(shape)))
        epilogue = call("add", call("neg", epilogue), Load(1, 0, kept, dtype))
    return single(shape, parallel, combine, body, [(dtype, step), (dtype, max(shape))], epilogue)


@relaxed
@given(reductions(), st.sampled_from([None, 4]), st.integers(0, 3))
def test_reductions_over_any_axes(group: KernelGroup, lanes: int | None, seed: int) -> None:
    check(group, lanes=lanes, seed=seed)


@pytest.mark.parametrize("combine", ["sum", "prod"])
def test_empty_reductions(combine: str) -> None:
    for extents, parallel in (((0,), 0), ((5, 0), 1), ((20, 0, 3), 1), ((0, 4), 1), ((20, 4, 0), 1)):
        body = Load(0, 0, row_major(extents), float32)
        check(single(extents, parallel, combine, body, [(float32, 0)]))


def test_far_columns_are_summed_through_scratch() -> None:
    rows, columns = 37, 2051
    body = Load(0, 0, (1, columns), float32)
    epilogue = call("mul", Acc(float32), Load(1, 0, (1, 0), float32))
    group = single((columns, rows), 1, "sum", body, [(float32, rows * columns), (float32, columns)], epilogue)
    tile = TileOp("reduce", (("r0", 8), ("p0", 16)), lanes=16)
    scratch = Loop("p0", columns, 512, Loop("r0", rows, 8, Loop("p0", 512, 16, tile)))
    assert check(group, nest=scratch).thread_bytes > 0
    nested = single(
        (columns, 5, 7), 1, "max", Load(0, 0, (1, columns, 5 * columns), float32), [(float32, 35 * columns)]
    )
    check(nested)
    tile = TileOp("reduce", (("p0", 32),), lanes=16)
    check(nested, nest=Loop("r0", 35, 1, Loop("p0", columns, 32, tile)))


def test_phases_of_other_widths_keep_within_their_scratch() -> None:
    """Vectors of one module are all as long: of a tile that was meant for shorter ones there are fewer sums."""
    rows, n = 6, 33
    x, k, wide, out = (
        Operand(t, size) for t, size in ((float64, rows * n), (int32, rows * n), (float64, rows * n), (float64, rows))
    )
    scaled = call("mul", Load(0, 0, (n, 1), float64), call("cast", Load(1, 0, (n, 1), int32), dtype=float64))
    first = Kernel((rows, n), 2, None, scaled, Acc(float64), (x, k), wide, 0, (n, 1))
    total = Kernel((rows, n), 1, "sum", Load(0, 0, (n, 1), float64), Acc(float64), (wide,), out, 0, (1,))
    group = KernelGroup((Stage(first, (0, 1), None), Stage(total, (FromStage(0),), 2)), 1, (x, k, out), (2,), "widths")
    nests = (
        Loop("p0", rows * n, 16, TileOp("map", (("p0", 16),), lanes=16)),
        Loop("r0", n, 32, Loop("p0", rows, 1, TileOp("reduce", (("r0", 32),), 1, 8))),
    )
    emitted = emit(group, Seq(nests))
    arrays = operands(group, 0, False)
    got = random_groups.run(emitted, arrays, 1)
    np.testing.assert_allclose(got[2], expected(group, arrays)[2], rtol=1e-14)


@pytest.mark.parametrize(("columns", "cache", "packed"), [(2048, 1, False), (2048, 1 << 40, True), (512, 1, True)])
def test_known_matrices_from_memory_are_read_by_long_rows(columns: int, cache: int, packed: bool) -> None:
    """Those that caches hold, or whose rows are short, are packed."""
    sized = machine(l1=min(cache, 32 << 10), l2=min(cache, 1 << 20), l3=cache)
    body = call("mul", Load(0, 0, (0, 1), float32), Load(1, 0, (1, columns), float32))
    group = single((columns, 40), 1, "sum", body, [(float32, 40), (float32, 40 * columns)])
    matrix = replace(group.operands[1], const=True)
    kernel = replace(group.stages[0].kernel, operands=(group.operands[0], matrix))
    known = replace(
        group,
        stages=(replace(group.stages[0], kernel=kernel),),
        operands=(group.operands[0], matrix, group.operands[2]),
    )
    assert bool(emit_group(known, schedule(known, cpu_target(sized)).nest, sized).packs) == packed
    check(group)


@crossed(shape=[(64, 64), (200, 331), (331, 200), (512, 300), (17, 40), (16, 16)], combine=["sum", "max"])
def test_operands_along_different_axes_are_turned_in_blocks(shape: Strides, combine: str) -> None:
    """Σ x[i, j]·y[j, i], whole, by rows of a batch, and over a third axis."""
    m, n = shape
    size = m * n
    pair = call("mul", Load(0, 0, (n, 1), float32), Load(1, 0, (1, m), float32))
    whole = check(single((m, n), 0, combine, pair, [(float32, size)] * 2))
    assert "transpose_" in whole.source and whole.thread_bytes > 0
    batch = call("mul", Load(0, 0, (size, n, 1), float32), Load(1, 0, (size, 1, m), float32))
    given_ = [(float32, 3 * size)] * 2
    epilogue = call("neg", Acc(float32))
    assert "transpose_" in check(single((3, m, n), 1, combine, batch, given_, epilogue)).source
    check(single((3, m, n), 0, combine, batch, given_))


def test_short_axes_and_operands_along_one_axis_are_not_turned() -> None:
    short = call("mul", Load(0, 0, (3, 1), float32), Load(1, 0, (1, 500), float32))  # than any machine's vector
    assert "transpose_" not in check(single((500, 3), 0, "sum", short, [(float32, 1500)] * 2)).source
    along = call("mul", Load(0, 0, (64, 1), float32), Load(1, 0, (64, 1), float32))
    assert "transpose_" not in check(single((64, 64), 0, "sum", along, [(float32, 4096)] * 2)).source


# groups of stages


@pytest.mark.parametrize("shape", [(9, 100), (1, 1), (40, 16), (3, 7), (2, 30_000), (1, 70_000)])
def test_softmax(shape: Strides) -> None:
    group = softmax(*shape)
    check(group)
    x = operands(group)[0]
    x[0] = 1e30  # no overflow
    got, _ = run(emit(group), [x, np.zeros_like(x)], 2)
    assert got[1][0] == 1 and np.isfinite(got[1]).all()


def test_softmax_passes_values_in_registers() -> None:
    source = emit(softmax(64, 256)).source
    assert source.count("exp(") == 1  # not counting the import, which has no parenthesis
    assert source.count("load_f32x16(scratch") <= 1


def test_layer_norm_with_results_kept() -> None:
    """Mean and deviation are outputs too; two shared axes; float64."""
    b, s, n = 3, 5, 50
    full, row, vector = Operand(float64, b * s * n), Operand(float64, b * s), Operand(float64, n)
    x, stat = Load(0, 0, (s * n, n, 1), float64), (s, 1, 0)
    centred = call("sub", x, Load(1, 0, stat, float64))
    mean = call("mul", Acc(float64), Number(1 / n, float64))
    scale = call("rsqrt", call("add", call("mul", Acc(float64), Number(1 / n, float64)), Number(1e-5, float64)))
    out = call("mul", call("mul", centred, Load(2, 0, stat, float64)), Load(3, 0, (0, 0, 1), float64))
    extents, squared = (b, s, n), call("square", centred)
    stages = (
        Stage(Kernel(extents, 2, "sum", x, mean, (full,), row, 0, (s, 1)), (0,), 2),
        Stage(Kernel(extents, 2, "sum", squared, scale, (full, row), row, 0, (s, 1)), (0, FromStage(0)), 3),
        Stage(
            Kernel(extents, 3, None, out, Acc(float64), (full, row, row, vector), full, 0, (s * n, n, 1)),
            (0, FromStage(0), FromStage(1), 1), 4,
        ),
    )  # fmt: skip
    check(KernelGroup(stages, 2, (full, vector, row, row, full), (2, 3, 4), "layer norm"))


def test_stages_that_keep_axes_of_their_own() -> None:
    """Shared batch axis; a column reduction per batch, read transposed and broadcast by a later stage."""
    b, m, n = 4, 20, 33
    full, cols = Operand(float32, b * m * n), Operand(float32, b * n)
    x = Load(0, 0, (m * n, n, 1), float32)
    column_sum = Kernel((b, n, m), 2, "sum", Load(0, 0, (m * n, 1, n), float32), Acc(float32), (full,), cols, 0, (n, 1))
    doubled = Kernel((b, m, n), 3, None, call("add", x, x), Acc(float32), (full,), full, 0, (m * n, n, 1))
    last = Kernel(
        (b, m, n), 3, None, call("sub", Load(0, m * n - n, (m * n, -n, 1), float32), Load(1, 0, (n, 0, 1), float32)),
        Acc(float32), (full, cols), full, 0, (m * n, n, 1),
    )  # fmt: skip
    stages = (Stage(column_sum, (0,), None), Stage(doubled, (0,), None), Stage(last, (FromStage(1), FromStage(0)), 1))
    check(KernelGroup(stages, 1, (full, full), (1,), "columns"))


def test_stores_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored past the caches, where alignment allows, is what would be stored through them."""
    monkeypatch.setattr("eqsat_backends.numba_cpu.printing.nests.ALIGNED_BYTES", 0)
    tile = TileOp("map", (("p0", 32),), lanes=16, stream=True)
    group = single((1003,), 1, None, call("exp", Load(0, 0, (1,), float32)), [(float32, 1003)])
    assert "stream(" in check(group, nest=Loop("p0", 1003, 32, tile, True)).source
    for columns in (128, 100):
        nests = [replace(TileOp("reduce", (("r0", 16),), lanes=16), stage=s) for s in range(4)]
        nests[1] = replace(tile, stage=1, stream=False)
        nests[3] = replace(tile, stage=3)
        each = [Loop(t.sizes[0][0], columns, t.sizes[0][1], t) for t in nests]
        source = check(softmax(9, columns), nest=Loop("rows", 9, 1, Seq(tuple(each)))).source
        assert ("stream(" in source) == (columns == 128)  # other rows are not aligned
    turned = single((48, 64), 2, None, Load(0, 0, (1, 48), int32), [(int32, 48 * 64)])
    tile = TileOp("transpose", (("p0", 16), ("p1", 16)), lanes=16, stream=True)
    assert "stream(" in check(turned, nest=Loop("p1", 64, 16, Loop("p0", 48, 16, tile))).source


@pytest.mark.parametrize(("dtype", "columns"), [(float32, 100), (float32, 31), (float64, 64)])
def test_the_next_row_is_asked_for_where_the_nest_says(dtype: DType, columns: int) -> None:
    """Once a line, one row further, and nothing else changes."""
    lanes = 512 // dtype.bits
    tiles = [TileOp("map" if s % 2 else "reduce", (("p0" if s % 2 else "r0", 2 * lanes),), s, lanes) for s in range(4)]
    for asking in (False, True):
        tiles[1] = replace(tiles[1], prefetch=int(asking))
        each = [Loop(t.sizes[0][0], columns, 2 * lanes, t) if columns > 2 * lanes else t for t in tiles]
        source = check(softmax(9, columns, dtype), nest=Loop("rows", 9, 1, Seq(tuple(each)))).source
        asked = re.findall(r"prefetch\((.*) \+ (\d+)\)", source)
        assert bool(asked) == asking
        assert all(base.startswith("x0 +") and int(far) >= columns * dtype.itemsize for base, far in asked)
        whole = columns // (2 * lanes) * 2
        assert not asking or len(asked) == 2 * (whole > 0) + -(-(columns - whole * lanes) // lanes)


def test_a_sweep_without_rows_around_it_cannot_ask_for_the_next() -> None:
    group = single((100,), 1, None, call("exp", Load(0, 0, (1,), float32)), [(float32, 100)])
    with pytest.raises(ValueError, match="next row"):
        emit(group, Loop("p0", 100, 16, TileOp("map", (("p0", 16),), lanes=16, prefetch=1)))


def test_nest_gives_the_lanes() -> None:
    body = Load(0, 0, (1,), float32)
    nest = Loop("p0", 100, 8, TileOp("map", (("p0", 8),), lanes=8), parallel=True)
    assert "load_f32x8" in emit(single((100,), 1, None, body, [(float32, 100)]), nest).source


def test_the_comparison_is_not_blind() -> None:
    """Negative control: a kernel that does something else fails the check."""
    group = single((100,), 1, None, call("exp", Load(0, 0, (1,), float32)), [(float32, 100)])
    emitted = emit(group)
    wrong = Emitted(emitted.source.replace("exp(", "expm1(").replace("    exp,", "    expm1,"), emitted.phases)
    arrays = operands(group)
    got, _ = run(wrong, arrays, 1)
    assert not np.allclose(got[1], expected(group, arrays)[1], rtol=1e-4)


def test_values_of_a_branch_that_belong_outside_go_before_the_choice() -> None:
    """What only the last branch needs, and does not depend on it, must not come between `if` and `else`."""

    def no_loads(load: Load) -> Access:
        raise AssertionError(load)

    p = Printer(16)
    with p.scope("def kernel(unit):"):
        with p.scope("if unit < 3:"):
            p.line("pass")
        with p.scope("else:"):
            value = p.value(Number(2.0, float32), View((), None, no_loads))
            p.line(f"use({value.name})")
    text = p.text()
    assert text.index("splat") < text.index("if unit") < text.index("else:")
    compile(text, "<kernel>", "exec")

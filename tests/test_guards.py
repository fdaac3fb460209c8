"""Guards: paddings, parts of concatenations and shifted reads inside kernels, in every layer down to machine code."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.cost.movement import accesses, dependences, work
from eqsat.ir.axes import simplify
from eqsat.ir.interpret import evaluate_expr, run_group, run_kernel
from eqsat.ir.kernel import (
    Acc,
    Call,
    Expr,
    Guarded,
    Index,
    Kernel,
    KernelGroup,
    Literal,
    Load,
    Operand,
    Stage,
    map_expr,
    part_of,
    parts,
    settle,
    unconditional,
    walk,
    with_parts,
)
from eqsat.ir.nest import TileOp
from eqsat.ir.types import float32, int64, row_major
from eqsat.plan.fallback import interpret
from eqsat.plan.plan import KernelStep
from eqsat.plan.stages import alternatives, merge_axes, permute
from eqsat.schedule.phases import in_phases, phases, unguarded
from eqsat.schedule.vector_cost import turned_loads
from eqsat_backends.numba_cpu.compiling.jit import compile_module
from eqsat_backends.numba_cpu.printing.emit import emit_group
from tests.fenced import Fenced
from tests.kernel_groups import machine, single
from tests.sweeps import a_part, crossed

EXTENTS = (3, 4, 5)


def index(strides: Sequence[int], offset: int = 0) -> Index:
    return Index(offset, tuple(strides), int64)


@st.composite
def guarded(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Guards in guards over three axes, of values that differ from point to point."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        if draw(st.booleans()):
            return Literal(draw(st.integers(-9, 9)), int64)
        return index(draw(st.tuples(*[st.integers(-30, 30)] * 3)), draw(st.integers(-5, 5)))
    if draw(st.integers(0, 3)) == 0:
        return Call("add", (draw(guarded(depth - 1)), draw(guarded(depth - 1))), int64)
    strides = draw(st.sampled_from([(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, -1), (0, 2, 0), (1, 1, 0), (0, 0, 0)]))
    low = draw(st.integers(-3, 6))
    high = low + draw(st.integers(0, 5))
    at = index(strides, draw(st.integers(-2, 2)))
    return Guarded(at, low, high, draw(guarded(depth - 1)), draw(guarded(depth - 1)))


def values(expr: Expr, extents: Sequence[int] = EXTENTS) -> np.ndarray:
    return evaluate_expr(expr, extents, [], None)


def plain(expr: Expr) -> np.ndarray:
    """The same as selections: what a guard means where both branches may be evaluated."""
    axes = np.indices(EXTENTS)

    def visit(e: Expr) -> np.ndarray:
        match e:
            case Literal(value, _):
                return np.full(EXTENTS, value)
            case Index(offset, strides, _):
                return offset + sum(s * a for s, a in zip(strides, axes, strict=True))
            case Call(_, (a, b), _, _):
                return visit(a) + visit(b)
            case Guarded(at, low, high, inside, outside):
                where = visit(at)
                return np.where((low <= where) & (where < high), visit(inside), visit(outside))
        raise AssertionError(e)

    return visit(expr)


@given(guarded())
def test_a_guard_selects_one_of_two_branches(expr: Expr) -> None:
    np.testing.assert_array_equal(values(expr), plain(expr))


@given(guarded())
def test_settled_guards_are_gone_and_change_no_value(expr: Expr) -> None:
    bounds = tuple((0, n) for n in EXTENTS)
    settled = settle(expr, bounds)
    np.testing.assert_array_equal(values(settled), values(expr))
    # what is left at the top holds at some points, and fails at others
    for e in unconditional(settled):
        if isinstance(e, Guarded):
            at = values(e.index)
            holds = (e.low <= at) & (at < e.high)
            assert e.branch(bounds) is None
            if e.held is not None:
                assert holds.any() and not holds.all()


@given(guarded(), st.tuples(*[st.integers(0, 3)] * 3), st.tuples(*[st.integers(1, 4)] * 3))
def test_settled_within_bounds(expr: Expr, start: tuple[int, ...], size: tuple[int, ...]) -> None:
    bounds = tuple((min(s, n - 1), min(s + m, n)) for s, m, n in zip(start, size, EXTENTS, strict=True))
    part = tuple(slice(*b) for b in bounds)
    np.testing.assert_array_equal(values(settle(expr, bounds))[part], values(expr)[part])


@given(st.integers(-3, 3).filter(bool), st.integers(-9, 9), st.integers(-12, 12), st.integers(0, 9))
def test_where_the_test_of_one_axis_holds(stride: int, offset: int, low: int, width: int) -> None:
    guard = Guarded(index((0, stride), offset), low, low + width, Literal(1, int64), Literal(0, int64))
    assert guard.held is not None
    axis, first, stop = guard.held
    held = [n for n in range(-40, 40) if low <= offset + stride * n < low + width]
    assert axis == 1 and held == list(range(first, stop))


def test_parts_are_what_is_rewritten() -> None:
    guard = Guarded(index((1, 0)), 1, 3, Load(0, -1, (1, 0), int64), Load(1, 2, (0, 1), int64))
    assert [type(e) for e in walk(guard)] == [Index, Load, Load, Guarded]
    assert with_parts(guard, parts(guard)) is guard
    assert list(unconditional(guard)) == [guard, guard.index]

    def turned(e: Expr) -> Expr:
        return replace(e, strides=e.strides[::-1]) if isinstance(e, Load | Index) else e

    made = map_expr(guard, turned)
    assert isinstance(made, Guarded) and made.index == index((0, 1)) and made.outside == Load(1, 2, (1, 0), int64)


# kernels


def shifted(n: int, by: int, fill: Expr, width: int = 3) -> Kernel:
    """``out[i, j] = x[i - by, j] + 1``, and ``fill`` where that row is not one of x."""
    inside = Call("add", (Load(0, -by * width, (width, 1), float32), Literal(1.0, float32)), float32)
    body = Guarded(index((1, 0)), by, by + n, inside, fill)
    out = Operand(float32, (n + 2 * by) * width)
    return Kernel((n + 2 * by, width), 2, None, body, Acc(float32), (Operand(float32, n * width),), out, 0, (width, 1))


def test_branches_are_evaluated_only_where_they_are_the_value() -> None:
    kernel = shifted(4, 2, Literal(-0.0, float32))
    x, out = np.arange(12, dtype=np.float32), np.zeros(24, np.float32)
    run_kernel(kernel, [x], out)
    want = np.pad(x.reshape(4, 3) + 1, ((2, 2), (0, 0)), constant_values=-0.0).reshape(-1)
    assert out.tobytes() == want.tobytes()
    # control: one row more, and the read is out of range
    assert isinstance(kernel.body, Guarded)
    with pytest.raises(IndexError):
        run_kernel(replace(kernel, body=replace(kernel.body, high=7)), [x], out)


@pytest.mark.parametrize("points", [1, 7, 1 << 20])
def test_the_fallback_cuts_kernels_with_their_guards(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eqsat.plan.fallback.POINTS", points)
    group = single(shifted(4, 2, Literal(5.0, float32)))
    x, out, whole = np.arange(12, dtype=np.float32), np.zeros(24, np.float32), np.zeros(24, np.float32)
    interpret(group, [x, out])
    run_group(group, [x, whole])
    np.testing.assert_array_equal(out, whole)


def test_axes_merge_only_where_the_guard_walks_them_as_one() -> None:
    kernel = shifted(4, 2, Literal(5.0, float32))
    framed_one = framed(4, 3, 1, 1, Literal(5.0, float32))
    assert merge_axes(framed_one, 0) == framed_one
    assert simplify(single(kernel)).stages[0].kernel.extents == (8, 3)
    assert isinstance(kernel.body, Guarded)
    flat = replace(kernel, body=replace(kernel.body, index=index((3, 1)), low=6, high=18))
    merged = merge_axes(flat, 0)
    assert merged.extents == (24,)
    assert simplify(single(flat)).stages[0].kernel.extents == (24,)
    results = []
    for k in (kernel, merged, permute(kernel, (1, 0))):
        out = np.zeros(24, np.float32)
        run_kernel(k, [np.arange(12, dtype=np.float32)], out)
        results.append(out)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_tests_widen_to_the_next_axis_only_to_merge() -> None:
    """A matrix of rows of 3 in a frame of whole rows is one long row; read along the other axis it stays as it is."""
    for sign in (1, -1):
        load = Load(0, -6 if sign > 0 else 15, (3 * sign, sign), float32)
        guard = Guarded(index((sign, 0), 0 if sign > 0 else 7), 2, 6, load, Literal(5.0, float32))
        kernel = Kernel((8, 3), 2, None, guard, Acc(float32), (Operand(float32, 12),), Operand(float32, 24), 0, (3, 1))
        turned = replace(
            kernel, operands=(Operand(float32, 24),), body=replace(guard, inside=replace(load, strides=(1, 8)))
        )
        merged = merge_axes(kernel, 0)
        assert merged.extents == (24,) and merge_axes(turned, 0) == turned
        made, want = np.zeros(24, np.float32), np.zeros(24, np.float32)
        x = np.arange(12, dtype=np.float32)
        run_kernel(merged, [x], made)
        run_kernel(kernel, [x], want)
        np.testing.assert_array_equal(made, want)


@given(st.data())
def test_parts_of_a_kernel_make_the_whole(data: st.DataObject) -> None:
    extents = data.draw(st.tuples(*[st.integers(1, 6)] * 3))
    body = data.draw(guarded())
    size = int(np.prod(extents))
    kernel = Kernel(extents, 3, None, body, Acc(int64), (), Operand(int64, size), 0, row_major(extents))
    cuts = [sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=2))}) for n in extents]
    made, want = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for bounds in itertools.product(*map(itertools.pairwise, cuts)):
        run_kernel(part_of(kernel, bounds), [], made)
    run_kernel(kernel, [], want)
    np.testing.assert_array_equal(made, want)


def test_a_transposed_map_is_cut_where_blocks_may_be_turned_over() -> None:
    kernel = framed(40, 50, 3, 2, Literal(2.0, float32))
    assert isinstance(kernel.body, Guarded)

    def transposed(e: Expr) -> Expr:
        return replace(e, strides=(1, 40), offset=-3 * 41) if isinstance(e, Load) else e

    turned = replace(kernel, body=map_expr(kernel.body, transposed))
    assert unguarded(kernel, 16) == [kernel]
    parts = unguarded(turned, 16)
    assert len(parts) == 9 and not any(isinstance(e, Guarded) for part in parts for e in walk(part.body))
    assert not turned_loads(turned, 1, 0) and turned_loads(parts[4], 1, 0)
    group = KernelGroup((Stage(turned, (0,), 1),), 0, (*turned.operands, turned.out), (1,))
    wide = TileOp("map", (("p0", 64),), lanes=64)  # parts without guards may have smaller elements than the whole
    assert len(phases(group, in_phases([wide] * 9, group))) == 9


def test_costs_know_what_is_in_a_guard() -> None:
    kernel = shifted(4, 2, Load(0, 0, (0, 1), float32))
    assert dependences(kernel.body, 2) == {0, 1}
    assert dependences(replace(kernel.body, inside=Literal(0.0, float32), outside=Literal(1.0, float32)), 2) == {0}
    assert [a.strides for a in accesses(kernel)] == [(3, 1), (0, 1), (3, 1)]
    bare = replace(kernel, body=kernel.body.inside)  # type: ignore[union-attr]
    assert work(kernel).other > work(bare).other


def test_costly_parts_in_a_guard_are_not_computed_elsewhere() -> None:
    """Two stages with one costly part: it becomes a stage, but not where only a guard keeps its loads in range."""

    def stages(guard: bool) -> list[Stage]:
        load = Load(0, -3 if guard else 0, (3, 1), float32)
        costly = Call("exp", (Call("tanh", (load,), float32),), float32)
        made = []
        for n in range(2):
            body: Expr = Call("mul", (costly, Literal(float(n + 2), float32)), float32)
            if guard:
                body = Guarded(index((1, 0)), 1, 5, body, Literal(0.0, float32))
            out = Operand(float32, 12)
            kernel = Kernel((4, 3), 2, None, body, Acc(float32), (Operand(float32, 12),), out, 0, (3, 1))
            made.append(Stage(kernel, (0,), n + 1))
        return made

    assert max(map(len, alternatives(stages(False), 1))) == 3
    assert max(map(len, alternatives(stages(True), 1))) == 2


# machine code that must not read outside


def run(group: KernelGroup, buffers: Sequence[np.ndarray]) -> None:
    """Run the printed kernels of a group with the schedule of their own."""
    emitted = emit_group(group, None, machine())
    addresses = compile_module(emitted.source, emitted.phases)
    shared, private = np.zeros(emitted.shared_bytes + 64, np.uint8), np.zeros(emitted.thread_bytes + 64, np.uint8)
    places = [b.ctypes.data for b in buffers]
    places += [-(-a.ctypes.data // 64) * 64 for a in (shared, private)]
    table = np.array([*places, 0], np.int64)
    for phase in emitted.phases:
        ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * 3)(addresses[phase])(table.ctypes.data, 0, 1)


def framed(rows: int, columns: int, low: int, high: int, other: Expr) -> Kernel:
    """A matrix in a frame: ``low`` rows and columns before it, ``high`` behind, ``other`` there."""
    wide, tall = columns + low + high, rows + low + high
    load = Load(0, -low * (columns + 1), (columns, 1), float32)
    inside = Guarded(index((0, 1)), low, low + columns, load, other)
    body = Guarded(index((1, 0)), low, low + rows, inside, other)
    out = Operand(float32, wide * tall)
    return Kernel(
        (tall, wide), 2, None, body, Acc(float32), (Operand(float32, rows * columns),), out, 0, row_major((tall, wide))
    )


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("rows", "columns", "low", "high"), [(16, 16, 1, 1), (32, 48, 3, 2), (1, 64, 40, 20)])
def test_nothing_is_read_outside_of_a_guard(rows: int, columns: int, low: int, high: int, last: bool) -> None:
    kernel = framed(rows, columns, low, high, Literal(-0.0, float32))
    fenced = Fenced(rows * columns)
    x = fenced.at(last)
    x[:] = np.arange(x.size)
    out = np.zeros(kernel.out.size + 16, np.float32)
    out = out[-out.ctypes.data % 64 // 4 :][: kernel.out.size]
    run(single(kernel), [x, out])
    want = np.pad(x.reshape(rows, columns), (low, high), constant_values=-0.0)
    assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("combine", ["sum", "max"])
@pytest.mark.parametrize("parallel", [0, 1])
def test_reductions_read_nothing_outside_of_a_guard(combine: str, parallel: int, last: bool) -> None:
    kernel = framed(32, 48, 3, 2, Literal(2.0, float32))
    out = Operand(float32, kernel.extents[0] if parallel else 1)
    kernel = replace(kernel, parallel=parallel, combine=combine, out=out, store_strides=(1,) * parallel)
    fenced = Fenced(32 * 48)
    x = fenced.at(last)
    x[:] = np.arange(x.size) % 7
    got, want = np.zeros(out.size, np.float32), np.zeros(out.size, np.float32)
    run(single(kernel), [x, got])
    run_kernel(kernel, [x], want)
    np.testing.assert_array_equal(got, want)


# programs

DTYPES = (np.float32, np.float64, np.int32, np.int64, np.bool_)
shapes = st.lists(st.integers(1, 9) | st.sampled_from([16, 17, 33, 40]), min_size=1, max_size=3).map(tuple) | st.tuples(
    *[st.integers(1, 5)] * 4
)


def array(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype is np.bool_:
        return rng.random(shape) < 0.5
    if np.issubdtype(dtype, np.integer):
        return rng.integers(-9, 9, shape, dtype)
    special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], shape)
    return np.where(rng.random(shape) < 0.2, special, rng.standard_normal(shape)).astype(dtype)


Moves = tuple[tuple[str, Any], ...]


@st.composite
def movements(draw: st.DrawFn, ndim: int) -> Moves:
    """Rolls, paddings, concatenations with what was there before, slices and transposes, one after another."""
    found: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        axis, by = draw(st.integers(0, ndim - 1)), draw(st.integers(-20, 20))
        widths = tuple(draw(st.tuples(*[st.sampled_from([0, 0, 1, 2, 20])] * 2)) for _ in range(ndim))
        fill = draw(st.sampled_from([0, 1, -1, -0.0, np.inf, np.nan]))
        step = draw(st.sampled_from([1, 2, -1]))
        found.append(
            draw(
                st.sampled_from(
                    [
                        ("roll", (by, axis)),
                        ("pad", (widths, fill)),
                        ("join", axis),
                        ("slice", (axis, step)),
                        ("turn", 0),
                    ]
                )
            )
        )
    return tuple(found)


def move(x: Any, moves: Moves, dtype: Any) -> Any:
    for name, how in moves:
        if name == "roll":
            x = np.roll(x, how[0], how[1])
        elif name == "pad":
            fill = how[1] if np.issubdtype(dtype, np.floating) else bool(how[1]) if dtype is np.bool_ else 3
            x = np.pad(x, how[0], constant_values=fill)
        elif name == "join":
            x = np.concatenate([x, np.flip(x, how)], how)
        elif name == "slice":
            x = x[(slice(None),) * how[0] + (slice(None, None, how[1]),)]
        else:
            x = x.transpose(tuple(range(x.ndim))[::-1])
    return x


def check_moved(data: st.DataObject) -> None:
    """A program that only moves agrees with NumPy bit for bit."""
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(shapes)
    moves = data.draw(movements(len(shape)))
    x = array(shape, dtype, data.draw(st.integers(0, 99)))

    def f(x: Any) -> Any:
        return move(x, moves, dtype)

    want, got = f(x), eqsat.optimize(f)(x)
    assert got.dtype == want.dtype and got.shape == want.shape
    assert np.array_equal(got, want, equal_nan=want.dtype.kind == "f")
    if want.dtype.kind == "f":
        assert np.array_equal(np.signbit(got), np.signbit(want) | (np.isnan(want) & np.signbit(got)))


@settings(max_examples=a_part(15), deadline=None)
@given(st.data())
def test_programs_that_only_move_agree_with_numpy_bit_for_bit(data: st.DataObject) -> None:
    check_moved(data)


@pytest.mark.slow
@settings(max_examples=a_part(200), deadline=None)
@given(st.data())
def test_many_programs_that_only_move_agree_with_numpy_bit_for_bit(data: st.DataObject) -> None:
    check_moved(data)


def kernels(function: Callable[..., Any], *arguments: np.ndarray) -> list[KernelStep]:
    plan = eqsat.optimize(function).compile(*arguments).search()
    return [step for step in plan.steps if isinstance(step, KernelStep)]


def check_moved_and_reduced(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.int64]))
    shape = data.draw(shapes)
    moves = data.draw(movements(len(shape)))
    x = array(shape, np.int32, data.draw(st.integers(0, 99))).astype(dtype)
    axis = data.draw(st.sampled_from([None, 0, len(shape) - 1]))
    reduce = data.draw(st.sampled_from(["sum", "max", "argmin", "none"]))
    row = np.arange(move(x, moves, dtype).shape[-1]).astype(dtype)

    def f(x: Any, row: Any) -> Any:
        y = np.nan_to_num(move(x * 2, moves, dtype)) if dtype is np.float32 else move(x + x, moves, np.int64)
        y = np.maximum(y, -50) + row
        return y if reduce == "none" else getattr(np, reduce)(np.minimum(y, 100), axis=axis)

    want, got = f(x, row), eqsat.optimize(f)(x, row)
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_allclose(got, want, rtol=1e-5)


@settings(max_examples=a_part(8), deadline=None)
@given(st.data())
def test_maps_and_reductions_of_what_is_moved(data: st.DataObject) -> None:
    check_moved_and_reduced(data)


@pytest.mark.slow
@settings(max_examples=a_part(200), deadline=None)
@given(st.data())
def test_many_maps_and_reductions_of_what_is_moved(data: st.DataObject) -> None:
    check_moved_and_reduced(data)


def five_points(x: Any) -> Any:
    return np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, -1, 1) - 4 * x


def test_a_stencil_by_rolls_is_one_kernel() -> None:
    x = np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32)
    assert len(kernels(five_points, x)) == 1
    np.testing.assert_allclose(eqsat.optimize(five_points)(x), five_points(x), rtol=1e-4, atol=1e-5)


def neighbours(x: Any) -> Any:
    """The sum of all eight, around the edges: rolls of rolls."""
    return sum(np.roll(np.roll(x, i, 0), j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)


def test_rolls_of_rolls_are_guards_in_guards() -> None:
    x = np.random.default_rng(0).integers(0, 2, (60, 70))
    assert len(kernels(neighbours, x)) == 1
    np.testing.assert_array_equal(eqsat.optimize(neighbours)(x), neighbours(x))


def test_paddings_are_part_of_what_makes_and_reads_them() -> None:
    x = np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32)

    def blurred(x: Any) -> Any:
        y = np.pad(x * 2, 1)
        return (y[:-2, 1:-1] + y[2:, 1:-1] + y[1:-1, :-2] + y[1:-1, 2:]) / 4

    assert len(kernels(blurred, x)) == 1
    assert len(kernels(lambda x: np.pad(np.abs(x), 2), x)) == 1
    assert len(kernels(lambda x: np.pad(np.abs(x), 2).max(1), x)) == 1


def gaussian(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


AMONG: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "rows of a softmax": (lambda x: softmax(np.pad(x, ((0, 0), (3, 5)), constant_values=-np.inf)), (gaussian(40, 50),)),
    "after a softmax": (lambda x: np.pad(softmax(x), ((1, 0), (0, 2))) * 2, (gaussian(40, 50),)),
    "between stages": (lambda x: np.roll(softmax(x), 1, 1) - np.roll(x, 1, 0), (gaussian(40, 50),)),
    "epilogue": (
        lambda a, b, c: a @ b + np.pad(c, ((2, 0), (0, 3))),
        (gaussian(40, 30), gaussian(30, 50), gaussian(38, 47)),
    ),
    "epilogue of rows": (
        lambda a, b, c: softmax(a @ b + np.roll(c, 2, 1)),
        (gaussian(40, 30), gaussian(30, 50), gaussian(40, 50)),
    ),
    "factor": (lambda a, b: np.pad(a, 3) @ np.exp(np.roll(b, 1, 0)), (gaussian(40, 30), gaussian(36, 50))),
    "vector": (lambda a, b: np.pad(a, 3) @ np.roll(b, 1), (gaussian(40, 30), gaussian(36))),
    "columns": (lambda x: np.pad(x, ((700, 3), (5, 0))).max(0) + np.roll(x, 3, 0).sum(0).mean(), (gaussian(50, 600),)),
    "broadcast": (
        lambda x, y: np.pad(x[:, None] * y, ((1, 1), (2, 2))) + np.roll(y, 1)[0],
        (gaussian(40), gaussian(50)),
    ),
    "indices": (lambda x: np.pad(np.take(x, [3, -1, 0], axis=1), 2).sum(1), (gaussian(40, 50),)),
    "transposed": (
        lambda x, y: np.roll(x.T, 1, 0) + np.pad(y, ((0, 10), (1, 0))),
        (gaussian(40, 50), gaussian(40, 39)),
    ),
    "transposed frame": (lambda x: np.pad(x.T, ((1, 2), (30, 0)), constant_values=3), (gaussian(40, 50),)),
    "turned and added": (lambda x, y: np.abs(np.roll(x.T, 1, 0) + y).sum(0), (gaussian(40, 50), gaussian(50, 40))),
    "channels last": (lambda x: np.pad(x, ((0, 0), (1, 2), (2, 1), (0, 0))) * 2, (gaussian(2, 9, 7, 3),)),
    "long rows": (lambda x: np.pad(np.roll(x, 5), (9, 1)).sum() + np.pad(x, 1).argmax(), (gaussian(100_000),)),
}


@crossed(name=list(AMONG), threads=[1, 2])
def test_guards_among_stages_tiles_and_threads(name: str, threads: int) -> None:
    function, arguments = AMONG[name]
    got = eqsat.optimize(function, threads=threads)(*arguments)
    np.testing.assert_allclose(got, function(*arguments), rtol=2e-4, atol=1e-4)


def test_matrix_products_read_what_is_stored() -> None:
    a, b = gaussian(60, 60), gaussian(64, 64)
    steps = kernels(lambda a, b: np.pad(np.exp(a), 2) @ b, a, b)
    products = [stage.kernel for step in steps for stage in step.group.stages if stage.kernel.is_contraction]
    assert products and all(isinstance(e, Call | Load) for kernel in products for e in walk(kernel.body))
    (step,) = kernels(lambda a, b: np.pad(np.exp(a), 2) @ b, a, gaussian(64))
    assert any(isinstance(e, Guarded) for stage in step.group.stages for e in walk(stage.kernel.body))


def test_interpreted_and_compiled_kernels_agree() -> None:
    x = np.random.default_rng(0).standard_normal((20, 33)).astype(np.float32)

    def f(x: Any) -> Any:
        return np.pad(np.roll(x, 3, 1), ((2, 1), (0, 4)), constant_values=np.inf)

    (step,) = kernels(f, x)
    made, want = (np.zeros(23 * 37 + 16, np.float32) for _ in range(2))
    made = made[-made.ctypes.data % 64 // 4 :][: 23 * 37]
    given_x = np.zeros(x.size + 16, np.float32)
    given_x = given_x[-given_x.ctypes.data % 64 // 4 :][: x.size]
    given_x[:] = x.reshape(-1)
    run(step.group, [given_x, made])
    run_group(step.group, [x.reshape(-1), want])
    assert made.tobytes() == want[: made.size].tobytes() == f(x).tobytes()


def test_interiors_have_no_test() -> None:
    """The loop over the inside of a row neither selects nor masks; its ends do."""
    x = np.zeros((50, 400), np.float32)
    source = eqsat.optimize(five_points).source(x)
    loops = source.split("for ")[1:]
    inner = [text for text in loops if ", 16):" in text.splitlines()[0] or ", 8):" in text.splitlines()[0]]
    assert any("within" in text for text in loops)
    assert any("loadm" not in text and "where" not in text and "load_" in text for text in inner)

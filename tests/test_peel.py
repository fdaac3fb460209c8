"""Peeling: which loops may be, that the printed ones are, what it is worth, and that it changes no result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.ir.axes import normalized
from eqsat.ir.kernel import (
    Acc,
    Bounds,
    Call,
    Combine,
    Expr,
    Guarded,
    Index,
    Kernel,
    KernelGroup,
    Literal,
    Load,
    Operand,
)
from eqsat.ir.nest import Loop, Nest, Seq, TileOp, show
from eqsat.ir.types import float32, int64, row_major
from eqsat.schedule import check_offered, schedule
from eqsat.schedule.maps import axes_of, check_nest, tile_of
from eqsat.schedule.peel import AGAIN, ROOM, Peeling, held, may_peel, runs
from eqsat.schedule.plain import plain_nest
from eqsat.schedule.sample import sample
from eqsat.schedule.scheduler import search_graph
from eqsat_backends.numba_cpu.printing.loops import emit
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import DESK, gemm, padded, reduction, single
from tests.sweeps import a_part
from tests.test_obeyed import legal
from tests.test_obeyed_maps import check_runs


def loops(nest: Nest) -> Iterator[Loop]:
    """The loops of a nest, of a split reduction those of its parts."""
    at = nest.bodies[0] if isinstance(nest, Seq) else nest
    while isinstance(at, Loop):
        yield at
        at = at.body


def copies(source: str) -> Counter[str]:
    """How many loops over an axis the first phase has: once, or one for each run of it and of those outside."""
    body = source[source.index("def ") :].split("\ndef ")[0]
    return Counter(re.findall(r"for ([pr]\d+)_\d+ in range", body))


@settings(max_examples=a_part(60), deadline=None)
@given(st.integers(1, 200), st.integers(1, 40), st.lists(st.integers(-3, 210), max_size=4))
def test_runs_are_all_of_an_axis_in_whole_steps(extent: int, step: int, marks: list[int]) -> None:
    found = runs(extent, step, marks)
    assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])] and found[-1][1] == extent
    assert all(start < stop and start % step == 0 for start, stop in found)
    for mark in marks:
        for start, stop in found:
            assert not start < mark < stop or stop - start <= step


def peeling_of(kernel: Kernel, nest: Nest) -> Peeling:
    axes, tile = axes_of(kernel), tile_of(nest)
    sizes = {axes[name]: size for name, size in tile.sizes}
    vectors = prod(-(-size // tile.lanes) if name == tile.sizes[-1][0] else size for name, size in tile.sizes)
    return Peeling((kernel,), axes, sizes, vectors)


def wanted(every: Sequence[Loop], peeling: Peeling) -> Counter[str]:
    """The loops that these are printed as, each within those before it: once for a run between two of its guards."""
    (kernel,), found = peeling.kernels, Counter[str]()
    whole: Bounds = tuple((0, extent) for extent in kernel.extents)

    def within(at: int, bounds: Bounds, room: int) -> None:
        if at == len(every):
            return
        loop = every[at]
        a, parts = peeling.axes[loop.axis], peeling.parts(loop, bounds, room)
        assert len(parts) == 1 or loop.peel
        found[loop.axis] += len(parts)
        end = parts[-1][0][1]
        left = [((end, kernel.extents[a]), room - sum(share for _, share in parts))] * (end < kernel.extents[a])
        for run, share in parts + left:
            within(at + 1, (*bounds[:a], run, *bounds[a + 1 :]), share)

    within(0, whole, peeling.room(every[0], whole))
    return found


@pytest.mark.parametrize(("combine", "threads"), [(None, 1), ("sum", 2), ("max", 1), ("argmin", 2)])
def test_loops_are_peeled_where_the_nest_says_so(combine: Combine | None, threads: int) -> None:
    """Of nests at random: each runs right, and a loop of which it says so is printed once for a run, no other is."""
    group = padded(9, 130, combine)
    kernel, kinds, compared = normalized(group.stages[0].kernel), set(), 0
    for nest, _ in sample(group, cpu_target(DESK, threads), 8, seed=7):
        check_offered(nest, group, cpu_target(DESK, threads))
        check_runs(group, nest, 3, threads)
        kinds |= {loop.peel for loop in loops(nest)}
        printed = copies(emit(group, nest).source)
        every = [loop for loop in loops(nest) if loop.block > loop.step]
        scratch = any(a.axis[0] == "r" and b.axis[0] == "p" for n, a in enumerate(every) for b in every[n:])
        if any(loop.split for loop in every) or scratch:
            continue  # of which there are more loops, that fill, add and finish
        if not any(loop.peel and loop.axis in [o.axis for o in every[n + 1 :]] for n, loop in enumerate(every)):
            want = wanted(every, peeling_of(kernel, nest))  # else what is left over is in the last run alone
            assert printed == want, show(nest)
            compared += 1
    assert kinds == {False, True} and compared > 2


@pytest.mark.parametrize("n", [700, 70_001])
def test_long_sums_are_peeled_by_blocks(n: int) -> None:
    """Blocks whose partial sums are flushed are in runs, too; of a split sum those of threads."""
    group = padded(2, n, "sum", 3, 5)
    for nest, _ in sample(group, cpu_target(DESK, 2), 3, seed=n):
        check_runs(group, nest, 1, 2)
    nest = Loop("p0", 10, 1, Loop("r0", n + 8, 16, TileOp("reduce", (("r0", 16),), lanes=16), peel=True))
    check_runs(group, nest, 1, 1)
    source = emit(group, nest).source
    assert source.count("for r0_sum_") == (3 if n > 1000 else 0)
    assert len(re.findall(r"for r0_\d", source)) == 3


def test_only_guards_of_a_kernel_make_terms() -> None:
    """Where there is no guard the rule costs nothing, and where it is switched off nothing is peeled."""
    for group in (reduction((400, 300), 2, (1, 0)), reduction((50, 4000), 1, (0, 1)), gemm(40, 50, 60)):
        each = [search_graph(group, cpu_target(DESK, 2), disable)[1].size for disable in ((), ("loop.peel",))]
        assert each[0] == each[1]
    group, target = padded(200, 1000), cpu_target(DESK, 2)
    best, other = schedule(group, target), schedule(group, target, disable=("loop.peel",))
    assert [loop.peel for loop in loops(best.nest)] == [True, True]
    assert not any(loop.peel for loop in loops(other.nest))
    assert best.predicted_seconds <= other.predicted_seconds
    assert sum(one.busy for one in best.candidates[:1]) < sum(one.busy for one in other.candidates[:1])
    assert not any(loop.peel for nest, _ in sample(group, target, 30, disable=("loop.peel",)) for loop in loops(nest))


def test_where_guards_change_decides() -> None:
    """Kernels that differ in nothing but that are scheduled apart."""
    target = cpu_target(DESK, 1)
    frame, beside = (schedule(padded(200, 1000, None, first, 5), target).nest for first in (3, -5))
    assert all(loop.peel for loop in loops(frame))
    assert frame != beside


TILE = TileOp("map", (("p1", 16),), lanes=16)
FEW = Loop("p0", 48, 1, Loop("p1", 308, 16, TILE))
ILLEGAL: dict[str, tuple[KernelGroup, Nest]] = {
    "axis 'p0' is not peeled": (reduction((48, 308), 2, (1, 0)), replace(FEW, peel=True)),
    "axis 'p1' is not peeled": (
        padded(40, 300),
        Loop("p0", 48, 1, Loop("p1", 308, 32, Loop("p1", 32, 16, TILE, peel=True))),
    ),
    "axis 'r0' is not peeled": (
        padded(40, 300, "sum"),
        Loop("r0", 308, 64, Loop("p0", 48, 1, TileOp("reduce", (("r0", 64),), lanes=16)), True, True, peel=True),
    ),
}


@pytest.mark.parametrize("message", ILLEGAL)
def test_other_loops_are_not_peeled(message: str) -> None:
    group, nest = ILLEGAL[message]
    kernel = normalized(group.stages[0].kernel)
    for refuse in (lambda: check_nest(nest, kernel), lambda: emit(group, nest)):
        with pytest.raises(ValueError, match=message):
            refuse()


def test_loops_of_a_contraction_are_not_peeled() -> None:
    tile = TileOp("fma", (("m", 14), ("n", 32), ("k", 60)))
    legal(Loop("n", 50, 32, Loop("m", 40, 14, tile)), gemm(40, 50, 60))
    with pytest.raises(ValueError, match="the loop over m of stage 0 is peeled"):
        legal(Loop("n", 50, 32, Loop("m", 40, 14, tile, peel=True)), gemm(40, 50, 60))


def test_many_changes_are_not_peeled() -> None:
    """Each run is a copy of the loop's body."""
    kernels = [padded(40, 300, None, first, 20 - first).stages[0].kernel for first in (3, 6, 9)]
    assert [may_peel(kernels[:n], 0, 1) for n in (1, 2, 3)] == [True, True, True]
    kernels.append(padded(40, 300, None, 12, 8).stages[0].kernel)
    assert not may_peel(kernels, 0, 1) and not may_peel(kernels[:1], 0, 60)


@pytest.mark.parametrize("extents", [(6, 8, 7, 60), (40, 40, 40, 40), (4, 5, 194, 194)])
def test_loops_of_a_nest_share_what_is_printed(extents: tuple[int, ...]) -> None:
    """Three runs along each of four axes would be 81 loops inside; of borders that are one value nothing is peeled."""
    inner = [n - 2 for n in extents]
    inside: Expr = Load(0, -sum(row_major(inner)), row_major(inner), float32)
    for a, n in enumerate(inner):
        inside = Guarded(Index(0, tuple(int(a == b) for b in range(4)), int64), 1, 1 + n, inside, Literal(1.0, float32))
    store, operands = row_major(extents), (Operand(float32, prod(inner)),)
    out = Operand(float32, prod(extents))
    group = single(Kernel(extents, 4, None, inside, Acc(float32), operands, out, 0, store))
    nest = plain_nest(group.stages[0].kernel, 16)
    assert all(loop.peel for loop in loops(nest))
    source = emit(group, nest).source
    assert source.count("\n") < ROOM and copies(source)["p3"] <= 30
    assert len(re.findall(r"= load_f32x16", source)) == 1, "the interior of all is not tested"
    if prod(extents) < 30_000:
        check_runs(group, nest, 0, 1)


def test_a_large_body_has_room_for_its_borders() -> None:
    """Unpeeled it would take more than the room by itself: of its two axes both are peeled, but not everywhere."""
    (stage,) = padded(40, 300).stages
    body = stage.kernel.body
    for n in range(1, ROOM // 2):
        body = Call("add", (body, Literal(float(n), float32)), float32)
    kernel = replace(stage.kernel, body=body)
    peeling = peeling_of(kernel, nest := plain_nest(kernel, 16))
    bounds = tuple((0, n) for n in kernel.extents)
    assert peeling.room(nest, bounds) > AGAIN * ROOM // 2
    assert wanted(list(loops(nest)), peeling) == {"p0": 3, "p1": 5}


def test_nests_without_a_search_are_peeled() -> None:
    for group in (padded(40, 300), padded(40, 300, "max")):
        kernel = normalized(group.stages[0].kernel)
        nest = plain_nest(kernel, 16)
        assert all(loop.peel for loop in loops(nest))
        check_runs(group, nest, 0, 1)


@pytest.mark.parametrize(
    ("strides", "found"),
    [
        ((2, 0, 1), (0, 2, 9)),
        ((2, 0, -1), (0, 3, 10)),
        ((0, 1, 0), (1, 3, 20)),
        ((0, 0, 1), (2, 3, 20)),
        ((1, 1, 1), None),
        ((1, 0, 9), None),
    ],
)
def test_a_guard_of_a_window_holds_where_it_does_for_all_of_it(
    strides: tuple[int, ...], found: tuple[int, int, int] | None
) -> None:
    guard = Guarded(Index(0, strides, int64), 3, 20, Load(0, 0, (1, 1, 1), float32), Literal(0.0, float32))
    operand = Operand(float32, 64)
    kernel = Kernel((30, 30, 3), 2, "sum", guard, Acc(float32), (operand,), Operand(float32, 900), 0, (30, 1))
    assert held(guard, kernel) == found

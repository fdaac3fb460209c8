"""Footprints, work and bytes moved, read off index notation."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.cost.movement import accesses, crowding, footprint, work
from eqsat.ir.kernel import (
    Acc,
    Call,
    Expr,
    Index,
    Kernel,
    Literal,
    Load,
    Operand,
)
from eqsat.ir.types import float32, int64
from eqsat.schedule import (
    lane_axis,
)
from tests.kernel_groups import (
    gemm,
    reduction,
)
from tests.sweeps import a_part


@settings(max_examples=a_part(200), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(-12, 12)), max_size=4), st.sampled_from([1, 4, 8]))
def test_footprints_are_never_below_the_distinct_elements(axes: list[tuple[int, int]], size: int) -> None:
    extents, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    points = {sum(i * s for i, s in zip(p, strides, strict=True)) for p in itertools.product(*map(range, extents))}
    count, moved = footprint(strides, extents, size)
    assert count >= len(points) and moved % 64 == 0


@settings(max_examples=a_part(200), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4), st.data())
def test_footprints_of_blocks_of_arrays_are_exact(axes: list[tuple[int, int]], data: st.DataObject) -> None:
    strides, step = [], 1
    for whole, block in reversed(axes):
        strides.append(step * data.draw(st.sampled_from([0, 1])))
        step *= max(whole, block)
    strides.reverse()
    extents = tuple(block for _, block in axes)
    order = data.draw(st.permutations(range(len(axes))))
    shuffled = tuple(strides[i] for i in order), tuple(extents[i] for i in order)
    points = {sum(i * s for i, s in zip(p, strides, strict=True)) for p in itertools.product(*map(range, extents))}
    assert footprint(*shuffled, 4)[0] == len(points)


def test_overlapping_windows_move_their_elements_once() -> None:
    assert footprint((1, 1), (100, 3), 4) == (102, 448)
    assert footprint((56, 1, 56, 1), (54, 54, 3, 3), 4)[0] == 56 * 56
    assert footprint((0, 0), (7, 9), 4) == (1, 64)
    assert footprint((5, 1), (0, 9), 4) == (0, 0)
    assert footprint((1024,), (10,), 4) == (10, 640)  # a line each


def test_work_counts_sub_expressions_where_they_vary() -> None:
    f = float32
    shared = Call("exp", (Load(1, 0, (0, 1), f),), f)
    body: Expr = Call("add", (Load(0, 0, (8, 1), f), Call("mul", (shared, shared), f)), f)
    kernel = Kernel((4, 8), 2, None, body, Acc(f), (Operand(f, 32), Operand(f, 8)), Operand(f, 32), 0, (8, 1))
    done = work(kernel, (("exp", 10.0),))
    assert done.other == 32 + 8 + 80 and done.contraction == 0
    assert work(gemm(3, 4, 5).stages[0].kernel).contraction == 3 * 4 * 5
    index = Kernel((4,), 1, None, Index(0, (1,), int64), Acc(int64), (), Operand(int64, 4), 0, (1,))
    assert [a.write for a in accesses(index)] == [True] and work(index).other == 0
    scaled = Call("mul", (Acc(f), Literal(2.0, f)), f)
    total = Kernel((4, 8), 1, "sum", Load(0, 0, (8, 1), f), scaled, (Operand(f, 32),), Operand(f, 4), 0, (1,))
    assert work(total).other == 32 + 4


def test_lanes_run_along_the_contiguous_axis() -> None:
    assert lane_axis(reduction((50, 300), 1, (0, 1)).stages[0].kernel) == 1
    assert lane_axis(reduction((300, 50), 1, (1, 0)).stages[0].kernel) == 0
    assert lane_axis(reduction((1, 1), 1, (0, 1)).stages[0].kernel) is None


@settings(max_examples=a_part(200), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 4, 15, 16, 64, 100, 256, 272, 1024, 15360]), st.integers(1, 5)), max_size=4),
    st.integers(1, 64),
)
def test_no_more_sets_are_taken_to_be_left_out_than_are(steps: list[tuple[int, int]], run: int) -> None:
    """Against the sets that the lines of a block lie in, one by one."""
    sets, line, size = 64, 64, 4
    strides, extents = tuple([s for s, _ in steps] + [1]), tuple([n for _, n in steps] + [run])
    places = (sum(s * i for s, i in zip(strides, at, strict=True)) for at in np.ndindex(*extents))
    taken = {place * size // line % sets for place in places}
    assert 1 <= crowding(strides, extents, size, sets * line, line) <= max(1, sets // len(taken))


def test_part_of_an_image_s_channels_crowds_where_they_are_a_power_of_two() -> None:
    """Windows of 7×7, 16 of the channels: their lines lie in 4 of 64 sets."""
    for channels, times in ((256, 16), (128, 8), (64, 4), (16, 1), (272, 1), (250, 1), (1024, 64), (4096, 64)):
        assert crowding((56 * channels, channels, 1), (7, 7, 16), 4, 4096) == times
    assert crowding((56 * 256, 256, 1), (7, 7, 256), 4, 4096) == 1, "all of them lie in all sets"
    assert crowding((56 * 256, 256, 1), (1, 1, 16), 4, 4096) == 1, "and one line in one"

"""Requests ahead: the shares of all rows together cover what the next outer position reads, and little else."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eqsat.cost.calibration import AHEAD_LINES, LINE
from eqsat.ir.kernel import Load
from eqsat.ir.types import float32, float64
from eqsat.schedule.ahead import Share, pieces_of


def share_of(load: Load, extents: tuple[int, ...], outer: int, rows: int) -> Share | None:
    lies = pieces_of(load, extents, outer, rows)
    return Share(0, load, *lies) if lies else None


@st.composite
def accesses(draw: st.DrawFn) -> tuple[Load, tuple[int, ...], int]:
    """A load over (outer, rows, two more axes) of an array stored in any order, perhaps one part of its rows."""
    extents = tuple(draw(st.lists(st.integers(1, 9), min_size=4, max_size=4)))
    order = draw(st.permutations(range(1, 4)))
    strides, below = [0] * 4, 1
    for axis in order:
        strides[axis] = draw(st.sampled_from([0, below, below, below]))
        below *= extents[axis] if strides[axis] else 1
    strides[0] = draw(st.sampled_from([0, below, below + 5]))
    gap = draw(st.integers(1, 3))  # rows of which only the beginning is read
    strides = [stride * gap if axis == order[-1] or axis == 0 else stride for axis, stride in enumerate(strides)]
    return Load(0, 0, tuple(strides), draw(st.sampled_from([float32, float64]))), extents, extents[1]


@given(accesses())
def test_shares_cover_what_the_next_position_reads(access: tuple[Load, tuple[int, ...], int]) -> None:
    load, extents, rows = access
    share = share_of(load, extents, 1, rows)
    if share is None:
        return
    assert share.piece <= AHEAD_LINES * LINE
    size = load.dtype.itemsize
    read = {size * int(np.dot(load.strides[1:], position)) for position in itertools.product(*map(range, extents[1:]))}
    asked = {share.step * row + line for row in range(rows) for line in share.lines()}
    covered = {byte for start in asked for byte in range(start, start + LINE)}
    assert read <= covered
    assert len(asked) <= len(read) + 2 * rows


def test_what_is_the_same_at_every_position_is_not_asked_for() -> None:
    assert share_of(Load(0, 0, (0, 32, 1), float32), (8, 16, 32), 1, 16) is None
    share = share_of(Load(0, 0, (512, 32, 1), float32), (8, 16, 32), 1, 16)
    assert share is not None
    assert (share.piece, share.step) == (128, 128)
    strided = share_of(Load(0, 0, (512, 384, 1), float32), (8, 16, 32), 1, 16)
    assert strided is not None
    assert (strided.piece, strided.step) == (128, 1536)
    assert share_of(Load(0, 0, (512, 384, 2), float32), (8, 16, 32), 1, 16) is None

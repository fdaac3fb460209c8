"""Triangular loop bounds: which positions of an axis a block of rows needs, by the domains of a group's kernels.

A kernel's domain is a polyhedron over its axes (see ``eqsat.ir.kernel``). Of a group whose blocks are rows, each
constraint bounds one further axis, the columns, by an affine function of the row: below or above. Of a contraction by
itself register tiles leave out the rows to which a step of k adds nothing: those at which a constraint fails for all
of the step (taps of a convolution that read only padding).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from eqsat.ir.kernel import Index, Kernel, KernelGroup
from eqsat.ir.nest import Loop, Nest, Pack, TileOp

MOST = 1 << 24
"""Rows up to which their columns are counted, and points up to which products are looked at; of more, all are taken to
be needed."""

GRAIN = 64
"""Columns that loops mostly take at once."""


@dataclass(frozen=True)
class Bound:
    """``position < Σ strides·row + offset`` where ``upper``, else ``position >= Σ strides·row + offset``.

    ``strides``: one for each shared axis.
    """

    upper: bool
    offset: int
    strides: tuple[int, ...]


def column_of(kernel: Kernel, shared: int) -> int | None:
    """The one axis past the shared ones that is bounded; None where there is none, or not one."""
    moving = {a for index in kernel.domain for a, s in enumerate(index.strides) if s and a >= shared}
    steps = {abs(index.strides[a]) for index in kernel.domain for a in moving}
    return moving.pop() if len(moving) == 1 and steps == {1} else None


def bounds_of(kernel: Kernel, shared: int) -> tuple[Bound, ...]:
    """The bounds of the column axis; none where a kernel has no such axis."""
    column = column_of(kernel, shared)
    return () if column is None else tuple(_bound(index, column, shared) for index in kernel.domain)


def _bound(index: Index, column: int, shared: int) -> Bound:
    if index.strides[column] < 0:
        return Bound(True, index.offset + 1, index.strides[:shared])
    return Bound(False, -index.offset, tuple(-s for s in index.strides[:shared]))


@lru_cache(maxsize=1024)
def parts_needed(
    bounds: tuple[Bound, ...], rows: tuple[int, ...], columns: int, grain: int, block: int = 1
) -> tuple[float, ...]:
    """The part of all columns that each block of rows needs on average, in whole runs of ``grain``; at least one run.

    ``rows``: extents of the shared axes. ``block``: of the last of them, which positions take the same columns. One
    figure for all blocks if that axis moves no bound.
    """
    moving = [a for a in range(len(rows)) if any(bound.strides[a] for bound in bounds)]
    if not bounds or columns == 0 or math.prod(rows[a] for a in moving) > MOST:
        return (1.0,)
    grid = np.ogrid[tuple(slice(rows[a]) for a in moving)] if moving else []
    shape = tuple(rows[a] for a in moving)
    low, high = np.zeros(shape, np.int64), np.full(shape, columns, np.int64)
    for bound in bounds:
        at = sum((bound.strides[a] * place for a, place in zip(moving, grid, strict=True)), np.int64(bound.offset))
        low, high = (low, np.minimum(high, at)) if bound.upper else (np.maximum(low, at), high)
    if len(rows) - 1 in moving:
        starts = np.arange(0, rows[-1], block)
        low, high = np.minimum.reduceat(low, starts, axis=-1), np.maximum.reduceat(high, starts, axis=-1)
    low = np.minimum(low, columns - 1) // grain * grain
    high = np.minimum(np.maximum(-(-high // grain) * grain, low + grain), columns)
    taken = (high - low) / columns
    if len(rows) - 1 not in moving:
        return (float(taken.mean()),)
    return tuple(taken.reshape(-1, taken.shape[-1]).mean(axis=0).tolist())


@lru_cache(maxsize=1024)
def needed(bounds: tuple[Bound, ...], rows: tuple[int, ...], columns: int, grain: int, block: int = 1) -> float:
    """The average of :func:`parts_needed` over all rows."""
    parts = parts_needed(bounds, rows, columns, grain, block)
    if len(parts) == 1:
        return parts[0]
    return math.fsum(part * size for part, size in zip(parts, _sizes(rows[-1], block), strict=True)) / rows[-1]


def _sizes(rows: int, block: int) -> list[int]:
    """Rows of each block."""
    return [min(block, rows - start) for start in range(0, rows, block)]


@dataclass(frozen=True)
class Columns:
    """The columns of a group: how many, their bounds, extents of the shared axes, the part of its points."""

    count: int
    bounds: tuple[Bound, ...]
    rows: tuple[int, ...]
    part: float

    def needed(self, block: int) -> float:
        """The part of all points of the group that blocks of so many rows take."""
        return 1 - self.part * (1 - needed(self.bounds, self.rows, self.count, GRAIN, block))

    def busiest(self, block: int, threads: int, cyclic: bool) -> float:
        """The same of the thread whose blocks take most, of all points in as many rows as the longest share has.

        Threads take contiguous runs of blocks, or blocks in turns.
        """
        parts = parts_needed(self.bounds, self.rows, self.count, GRAIN, block)
        if len(parts) == 1:
            return self.needed(block)
        points = [n * (1 - self.part * (1 - p)) for n, p in zip(_sizes(self.rows[-1], block), parts, strict=True)]
        blocks, each = len(points), -(-len(points) // threads)
        runs = [slice(blocks * t // threads, blocks * (t + 1) // threads) for t in range(threads)]
        shares = (points[t::threads] if cyclic else points[runs[t]] for t in range(threads))
        return max(map(math.fsum, shares)) / min(self.rows[-1], each * block)


def columns_of(group: KernelGroup) -> Columns | None:
    """The columns of which rows of a group may leave some out."""
    found = {n: column_of(stage.kernel, group.shared) for n, stage in enumerate(group.stages)}
    kernels = [(group.stages[n].kernel, column) for n, column in found.items() if column is not None]
    bounds = {bounds_of(kernel, group.shared) for kernel, _ in kernels}
    extents = {kernel.extents[column] for kernel, column in kernels}
    if not group.unless or not group.shared or len(bounds) != 1 or len(extents) != 1:
        return None
    points = sum(stage.kernel.points for stage in group.stages)
    part = sum(kernel.points for kernel, _ in kernels) / max(1, points)
    return Columns(extents.pop(), bounds.pop(), group.stages[0].kernel.extents[: group.shared], part)


def grain_of(nest: Nest, axis: str, extent: int) -> int:
    """What bounds of an axis must be multiples of for a nest of one stage: the step of its outermost loop over it."""
    while isinstance(nest, Loop | Pack):
        if isinstance(nest, Loop) and nest.axis == axis:
            return nest.step
        nest = nest.body
    return extent


def common_grain(grains: Iterable[int], extent: int) -> int:
    """The least run of positions that suits all; ``extent`` where that is no less."""
    return min(math.lcm(*grains), extent)


# rows of register tiles


def box_of(extents: Sequence[int], axes: Sequence[int], size: int) -> tuple[int, ...] | None:
    """Positions along each of ``axes`` in every run of ``size`` of them, flattened; None where runs are no boxes."""
    found = list[int]()
    for axis in reversed(axes):
        n = min(extents[axis], size)
        if extents[axis] % n or size % n:
            return None
        found, size = [n, *found], size // n
    return tuple(found) if size == 1 else None


def greatest(index: Index, axes: Sequence[int], box: Sequence[int]) -> int:
    """What a box of ``axes``, from its first position on, adds at most to the index."""
    return sum(max(0, index.strides[axis] * (n - 1)) for axis, n in zip(axes, box, strict=True))


@lru_cache(maxsize=1024)
def rows_inside(
    kernel: Kernel, m: tuple[int, ...], k: tuple[int, ...], rows: int, depth: int
) -> tuple[float, frozenset[int]] | None:
    """The part of all rows to which steps of ``depth`` positions of ``k`` add something, and how many tiles of ``rows``
    positions of ``m`` have of them; None where they have all of them, tiles are no boxes of these axes, or too many of
    both are to be looked at."""
    extents, box = kernel.extents, box_of(kernel.extents, k, depth)
    if box is None or not m or extents[m[-1]] % rows:
        return None
    steps = [*((a, 1) for a in m), *zip(k, box, strict=True)]
    size = [extents[a] // n if a == m[-1] or any(index.strides[a] for index in kernel.domain) else 1 for a, n in steps]
    if math.prod(size) > MOST:
        return None
    inside = np.ones(size, bool)
    for index in kernel.domain:
        along = [
            index.strides[a] * n * np.arange(count if index.strides[a] else 1)
            for (a, n), count in zip(steps, size, strict=True)
        ]
        inside &= sum(np.ix_(*along)) + index.offset + greatest(index, k, box) >= 0
    each = np.add.reduceat(inside, range(0, extents[m[-1]], rows), axis=len(m) - 1, dtype=np.int64)
    return None if inside.all() else (float(inside.mean()), frozenset(each.ravel().tolist()))


def step_inside(kernel: Kernel, k: Sequence[int]) -> int:
    """Positions along the axes of k inside of those that a domain bounds: the longest step that lies in one tap."""
    bounded = [n for n, axis in enumerate(k) if any(index.strides[axis] for index in kernel.domain)]
    return math.prod(kernel.extents[axis] for axis in k[max(bounded, default=-1) + 1 :])


def rows_of(nest: Nest, kernel: Kernel, m: tuple[int, ...], k: tuple[int, ...]) -> tuple[float, frozenset[int]] | None:
    """The same for a nest of a contraction; None, too, where tiles do not lie evenly along m and k, or take all of k
    at once: no sums are cleared before them, to which a row may add nothing."""
    steps = dict[str, list[int]](m=[], k=[])
    while not isinstance(nest, TileOp):
        if isinstance(nest, Loop) and nest.axis in steps:
            steps[nest.axis].append(nest.step)
        if not isinstance(nest, Loop | Pack) or (isinstance(nest, Pack) and nest.fused):
            return None
        nest = nest.body
    rows, depth = nest.size("m"), nest.size("k")
    even = all(step % unit == 0 for axis, unit in (("m", rows), ("k", depth)) for step in steps[axis])
    cleared = any(step < math.prod(kernel.extents[axis] for axis in k) for step in steps["k"])
    return rows_inside(kernel, m, k, rows, depth) if nest.name == "fma" and even and cleared else None

"""Tensorize: where a tile operation computes what is inside a nest, found by index notation.

A tile operation's semantics are a kernel; it applies to another kernel where its body unifies with that one's, and
its axes can be assigned to some of that one's such that every access of the kernel is the tile's access (AMOS: Zheng
et al., "AMOS: enabling automatic mapping for tensor computations on spatial accelerators", 2022). Axes that are
assigned to none are loops around the tile, reduced ones included. No operator is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from eqsat.cost.target import Ports, Target, TileOpRow
from eqsat.ir.kernel import Call, Kernel, Load, walk
from eqsat.ir.notation import unify
from eqsat.schedule.tiles import COMBINE, balanced, ceil_div

__all__ = ["ADDITIONS", "Match", "matches", "tile_cost", "tile_sizes"]

ADDITIONS = 256
"""Longest run of floating-point additions into one accumulator that a tile is given."""

MATCHES = 4
"""Assignments of one tile operation that are tried for one kernel."""


@dataclass(frozen=True, slots=True)
class Match:
    """``axes``: (axis of the tile, axis of the kernel), None where the tile takes one position of an axis of its own.
    ``loads``: (load of the semantics, load of the kernel)."""

    axes: tuple[tuple[str, int | None], ...]
    loads: tuple[tuple[Load, Load], ...]

    @property
    def assigned(self) -> dict[str, int]:
        """The kernel's axis for each axis of the tile that has one."""
        return {name: axis for name, axis in self.axes if axis is not None}


@lru_cache(maxsize=1024)
def matches(row: TileOpRow, kernel: Kernel, shared: int = 0) -> tuple[Match, ...]:
    """The ways in which a tile operation computes blocks of a normalized kernel.

    Axes of the tile stay without one only where the kernel has fewer. Its first ``shared`` axes are assigned to none.
    """
    tile = row.semantics
    if tile is None or tile.combine is None or tile.combine != kernel.combine:
        return ()
    found: dict[Match, None] = {}
    for bound in unify(tile.body, kernel.body):
        loads = []
        for mine, other in bound.items():
            if not isinstance(other, Load) or other.gathers:
                break
            loads.append((mine, other))
        else:
            for axes in _assignments(row, tile, kernel, shared, loads):
                found[Match(axes, tuple(loads))] = None
    best = [match for match in found if row.lanes in match.assigned]
    best.sort(key=lambda match: [(-kernel.extents[a], a) for a in match.assigned.values()])
    return tuple(best[:MATCHES])


def _assignments(
    row: TileOpRow, tile: Kernel, kernel: Kernel, shared: int, loads: list[tuple[Load, Load]]
) -> Iterator[tuple[tuple[str, int | None], ...]]:
    def extend(done: tuple[tuple[str, int | None], ...]) -> Iterator[tuple[tuple[str, int | None], ...]]:
        number = len(done)
        if number == len(row.axes):
            yield done
            return
        name, side = row.axes[number], sides[number >= tile.parallel]
        taken = {axis for _, axis in done}
        for axis in side:
            if axis not in taken and all(_walks(row, mine, other, number, axis) for mine, other in loads):
                yield from extend((*done, (name, axis)))
        yield from extend((*done, (name, None)))

    sides = range(shared, kernel.parallel), range(kernel.parallel, len(kernel.extents))
    for axes in extend(()):
        for side, mine in zip(sides, (axes[: tile.parallel], axes[tile.parallel :]), strict=True):
            found = sum(axis is not None for _, axis in mine)
            if found < min(len(mine), len(side)):
                break  # an axis of the tile that none of the kernel's is
        else:
            yield axes


def _walks(row: TileOpRow, mine: Load, other: Load, number: int, axis: int) -> bool:
    """Whether a load of the kernel moves along one of its axes as the tile's load does along its own."""
    step = other.strides[axis]
    if not mine.strides[number]:
        return step == 0
    return step == 1 if (mine.operand, row.axes[number]) in row.layouts else True


def tile_sizes(row: TileOpRow, match: Match, kernel: Kernel, lanes: int) -> tuple[tuple[str, int], ...]:
    """Elements that the tile takes of each assigned axis at a time, in the row's order of axes."""
    sizes = {}
    for name, axis in match.assigned.items():
        extent, most = max(1, kernel.extents[axis]), row.size(name)
        if name == row.lanes:
            sizes[name] = min(extent, balanced(ceil_div(extent, lanes), most) * lanes)
        else:
            sizes[name] = balanced(extent, most)
    if kernel.combine == "sum" and kernel.body.dtype.is_float:
        depth = 1
        for name, axis in match.assigned.items():
            if axis >= kernel.parallel:
                sizes[name] = max(1, min(sizes[name], ADDITIONS // depth))
                depth *= sizes[name]
    return tuple(sizes.items())


def tile_cost(row: TileOpRow, sizes: dict[str, int], target: Target, lanes: int) -> float:
    """Issue slots of one tile; from its semantics where the row does not say.

    The busiest of arithmetic, the latency of an accumulator's chain, and loads, for every step of the reduced axes.
    """
    tile = row.semantics
    assert tile is not None
    own = {name: sizes.get(name, 1) for name in row.axes}
    own[row.lanes] = ceil_div(own[row.lanes], lanes)
    if row.cost is not None:
        return row.cost(target.ports, own)
    return derived_cost(row, tile, target.ports, own)


def derived_cost(row: TileOpRow, tile: Kernel, ports: Ports, own: dict[str, int]) -> float:
    """Slots by semantics; ``own``: positions along each axis, vectors along the lanes'."""
    kept = row.axes[: tile.parallel]
    results = math.prod(own[name] for name in kept)
    steps = math.prod(own[name] for name in row.axes[tile.parallel :])
    calls = sum(isinstance(part, Call) for part in walk(tile.body))
    fused = tile.combine == "sum" and isinstance(tile.body, Call) and tile.body.fn == "mul"  # one multiply-add
    arithmetic = (calls if fused else calls + COMBINE[str(tile.combine)]) * results
    loads = 0.0
    for load in {part for part in walk(tile.body) if isinstance(part, Load)}:
        walked = [name for name, step in zip(row.axes, load.strides, strict=True) if step]
        count = math.prod(own[name] for name in kept if name in walked)
        loads += count / (ports.loads if row.lanes in walked else ports.broadcasts)
    chains = row.chains if results < row.chains else 1
    return steps * max(arithmetic, ports.latency / chains, loads) + 2 * results + row.enter

"""Register tiles as data, and what one costs.

A tile of m rows and v vectors keeps m·v accumulators in registers, and needs v registers for a row of the
second factor and one for a broadcast. Its time is that of the busiest of: the multiply-adds, the latency of
one accumulator's chain, the loads.
"""

from __future__ import annotations

from dataclasses import dataclass

from eqsat.cost.target import Target
from eqsat.ir.types import DType


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Up to ``rows`` × ``vectors`` accumulators; ``registers``: what the whole takes."""

    rows: int
    vectors: int

    @property
    def registers(self) -> int:
        return self.rows * self.vectors + self.vectors + 1


TILES: dict[int, tuple[RegisterTile, ...]] = {
    32: tuple(RegisterTile(*shape) for shape in ((14, 2), (9, 3), (6, 4), (4, 6), (2, 8), (1, 12), (24, 1))),
    16: tuple(RegisterTile(*shape) for shape in ((6, 2), (4, 3), (2, 4), (1, 6), (12, 1))),
}
"""The tiles worth trying, by number of vector registers, best first for large problems."""

LATENCY = 4
"""Issue slots from a multiply-add to the next one that needs its result."""

UPDATE = 8
"""Depth of a rank update: rows of the second factor added to all sums in one sweep."""

UPDATE_VECTORS = 4
"""Vectors of sums that a rank update holds at a time."""

CALL = 16.0
"""Slots to enter and leave a tile or a vector loop: addresses, branches, the first loads."""


EVEN_STEPS = 4
"""Blocks up to which they are made even."""

CLOSE = 1.03
"""Tiles that waste this much more than the best one are not worth a place in the search."""


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The least multiple of ``b`` that is no less than ``a``."""
    return -(-a // b) * b


def step_slots(rows: int, vectors: int) -> float:
    """Issue slots of one step of k: multiply-adds, or the chain's latency, or the loads (two broadcasts a slot)."""
    chains = 4 if rows * vectors < 4 else 1  # few accumulators: the tile splits each into several sums
    return max(rows * vectors, LATENCY / chains, vectors + rows / 2)


def tile_seconds(target: Target, dtype: DType, m: int, n: int, k: int, partial: bool) -> float:
    """Seconds of one m × n tile over k; ``partial``: it adds to stored sums."""
    vectors = -(-n // target.lanes(dtype))
    stores = m * vectors * (2 if partial else 1)
    return (k * step_slots(m, vectors) + stores + CALL) * target.slot(dtype)


def update_seconds(target: Target, dtype: DType, m: int, n: int, k: int) -> float:
    """Seconds of a rank-k update of m × n sums, which are loaded and stored once."""
    vectors = -(-n // target.lanes(dtype))
    slots = max(m * k, k + m + m * k / 2 / UPDATE_VECTORS) + m
    return (vectors * slots + CALL) * target.slot(dtype)


def balanced(extent: int, most: int) -> int:
    """The least step that still walks ``extent`` in as few steps as ``most`` would."""
    steps = -(-extent // most)
    return -(-extent // steps)


def evened(extent: int, block: int) -> int:
    """``block``, or where ``extent`` takes only a few of them, the block that leaves no short last one.

    A short block of rows reads all constant factors for few rows.
    """
    return balanced(extent, block) if ceil_div(extent, block) <= EVEN_STEPS else block


def best_tiles(target: Target, dtype: DType, m: int, n: int, count: int) -> tuple[tuple[int, int], ...]:
    """The ``count`` (rows, columns) of least waste for an m × n result, remainders included."""
    lanes = target.lanes(dtype)
    table = TILES[32 if target.registers >= 32 else 16]
    ranked: dict[tuple[int, int], tuple[float, int]] = {}
    for order, tile in enumerate(table):
        rows = balanced(m, tile.rows)
        vectors = balanced(-(-n // lanes), tile.vectors)
        columns = min(vectors * lanes, n)
        slots = 0.0
        for r, how_many in ((rows, m // rows), (m % rows, 1)):
            for c, times in ((columns, n // columns), (n % columns, 1)):
                if r and c:
                    slots += how_many * times * (step_slots(r, -(-c // lanes)) + CALL / 64)
        best = ranked.get((rows, columns))
        if best is None or (slots, order) < best:
            ranked[rows, columns] = (slots, order)
    shapes = sorted(ranked, key=lambda shape: (*ranked[shape], shape))
    near = [shape for shape in shapes if ranked[shape][0] <= CLOSE * ranked[shapes[0]][0]]
    return tuple(near[:count])

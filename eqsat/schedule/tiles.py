"""What tile operations cost, and which shapes of them suit a problem.

A register tile of m rows and v vectors keeps m·v accumulators in registers, and needs v registers for a row of the
second factor and one for a broadcast (or registers of two axes, see :func:`matrix_registers`). Its time is that of the
busiest of: the multiply-adds, the latency of one accumulator's chain, the loads. Which tiles there
are is the target's (``eqsat.cost.target.TileOpRow``).
"""

from __future__ import annotations

from eqsat.cost.target import Target, TileOpRow
from eqsat.ir.types import DType

EVEN_STEPS = 4
"""Blocks up to which they are made even."""

DEPTH = 64
"""Steps of k that a tile is taken to run for while its shape is chosen."""

TIE = 1.001
"""Tiles that differ by less than this are as good: the target's order decides between them."""

MATRIX_ROWS, MATRIX_REGISTERS = 16, 8
"""Of registers of two axes, which multiply matrices: rows of one, and how many there are."""

COMBINE = {"sum": 1.0, "prod": 1.0, "max": 2.0, "min": 2.0, "argmax": 4.0, "argmin": 4.0}
"""Slots of combining one vector into another."""

CLOSE = 1.03
"""Tiles that waste this much more than the best one are not worth a place in the search."""


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The least multiple of ``b`` that is no less than ``a``."""
    return -(-a // b) * b


def step_slots(target: Target, row: TileOpRow, rows: int, vectors: int) -> float:
    """Issue slots of one position of k: the multiply-adds, or the chain's latency, or the loads."""
    ports = target.ports
    sums = rows * vectors
    chains = row.chains if sums < row.chains else 1  # few accumulators: the tile splits each into several sums
    first = rows / ports.broadcasts if row.steps == 1 else rows / row.steps / ports.loads
    return max(row.slots * sums, ports.latency / chains, vectors / ports.loads + first)


def matrix_registers(rows: int, vectors: int) -> int:
    """Registers of two axes that a tile takes, and smaller ones: its sums, a row of the second factor, and one of each
    height of the first, for rows that fill registers and for those left over. A vector's lanes are a row of one."""
    full, part = divmod(rows, MATRIX_ROWS)
    return (full + bool(part)) * vectors + vectors + (2 if rows > MATRIX_ROWS else 1)


def tile_seconds(target: Target, dtype: DType, m: int, n: int, k: int, partial: bool) -> float:
    """Seconds of one m × n tile over k; ``partial``: it adds to stored sums."""
    row = target.rows("fma", dtype)[0]
    vectors = -(-n // target.lanes(dtype))
    stores = m * vectors * (2 if partial else 1)
    return (round_up(k, row.steps) * step_slots(target, row, m, vectors) + stores + row.enter) * target.slot(dtype)


def update_seconds(target: Target, dtype: DType, m: int, n: int, k: int) -> float:
    """Seconds of a rank-k update of m × n sums, which are loaded and stored once."""
    row, ports = target.rows("update", dtype)[0], target.ports
    vectors = -(-n // target.lanes(dtype))
    loads = (k + m) / ports.loads + m * k / ports.broadcasts / row.size("n")
    return (vectors * (max(m * k, loads) + m) + row.enter) * target.slot(dtype)


def balanced(extent: int, most: int) -> int:
    """The least step that still walks ``extent`` in as few steps as ``most`` would."""
    steps = -(-extent // most)
    return -(-extent // steps)


def evened(extent: int, block: int) -> int:
    """``block``, or where ``extent`` takes only a few of them, the block that leaves no short last one.

    A short block of rows reads all constant factors for few rows.
    """
    return balanced(extent, block) if ceil_div(extent, block) <= EVEN_STEPS else block


def run_tile(target: Target, dtype: DType, run: int, n: int, best: tuple[int, int]) -> tuple[int, int] | None:
    """The (rows, columns) of least waste whose rows divide ``run``; None where all waste clearly more than ``best``."""
    lanes, found = target.lanes(dtype), list[tuple[float, int, tuple[int, int]]]()
    for order, tile in enumerate(target.rows("fma", dtype)):
        rows = max((r for r in range(1, min(run, tile.size("m")) + 1) if run % r == 0), default=0)
        vectors = balanced(-(-n // lanes), tile.size("n"))
        if rows:
            slots = (step_slots(target, tile, rows, vectors) + tile.enter / DEPTH) / (rows * vectors)
            found.append((slots, order, (rows, min(vectors * lanes, n))))
    if not found:
        return None
    least, _, shape = min(found)
    vectors = -(-best[1] // lanes)
    row = target.rows("fma", dtype)[0]
    usual = (step_slots(target, row, best[0], vectors) + row.enter / DEPTH) / (best[0] * vectors)
    return shape if least <= CLOSE * usual else None


def best_tiles(target: Target, dtype: DType, m: int, n: int, count: int) -> tuple[tuple[int, int], ...]:
    """The ``count`` (rows, columns) of least waste for an m × n result, remainders included."""
    lanes = target.lanes(dtype)
    ranked: dict[tuple[int, int], tuple[float, int]] = {}
    for order, tile in enumerate(target.rows("fma", dtype)):
        rows = balanced(m, tile.size("m"))
        vectors = balanced(-(-n // lanes), tile.size("n"))
        columns = min(vectors * lanes, n)
        slots = 0.0
        for r, how_many in ((rows, m // rows), (m % rows, 1)):
            for c, times in ((columns, n // columns), (n % columns, 1)):
                if r and c:
                    slots += how_many * times * (step_slots(target, tile, r, -(-c // lanes)) + tile.enter / DEPTH)
        best = ranked.get((rows, columns))
        if best is None or (slots, order) < best:
            ranked[rows, columns] = (slots, order)
    least = min(slots for slots, _ in ranked.values())

    def rank(shape: tuple[int, int]) -> tuple[float, int]:
        slots, order = ranked[shape]
        return (max(slots, TIE * least), order)

    shapes = sorted(ranked, key=lambda shape: (*rank(shape), shape))
    near = [shape for shape in shapes if ranked[shape][0] <= CLOSE * least]
    return tuple(near[:count])

"""The tile operations that this backend emits, as rows of the target that it brings."""

from __future__ import annotations

from dataclasses import replace

from eqsat.cost.machine import Machine
from eqsat.cost.target import Target, TileOpRow, target_of
from eqsat_backends.numba_cpu.lanes import cpu_features

FLOATS = ("float32", "float64")

REGISTER_TILES: dict[int, tuple[tuple[int, int], ...]] = {
    32: ((14, 2), (9, 3), (6, 4), (4, 6), (2, 8), (1, 12), (24, 1)),
    16: ((6, 2), (4, 3), (2, 4), (1, 6), (12, 1)),
}
"""Rows × vectors of sums that an outer-product tile keeps, by number of registers, best first for large problems.

They need a register for each vector of sums, for each vector of a row of the second factor, and for a broadcast.
"""

CHAINS = 4
"""Into how many sums a tile splits an accumulator where it has fewer accumulators than that."""


def tile_ops(registers: int) -> tuple[TileOpRow, ...]:
    """All rows, for a processor with so many vector registers."""
    shapes = REGISTER_TILES[32 if registers >= 32 else 16]
    return (
        *(
            TileOpRow(
                "fma", (("m", rows), ("n", vectors)), "n", rows * vectors + vectors + 1, chains=CHAINS, dtypes=FLOATS
            )
            for rows, vectors in shapes
        ),
        TileOpRow("update", (("n", 4), ("k", 8)), "n", 4 + 2, dtypes=FLOATS),
        TileOpRow("vector", (), "lanes"),
    )


def cpu_target(machine: Machine, threads: int = 1) -> Target:
    """What ``threads`` threads of a measured machine are to this backend."""
    registers = max(16, machine.registers)  # no processor that it makes code for has fewer
    rows = tuple(row for row in tile_ops(registers) if not row.needs or row.needs in cpu_features())
    return target_of(replace(machine, registers=registers), threads, rows)

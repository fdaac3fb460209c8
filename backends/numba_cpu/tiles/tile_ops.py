"""The tile operations that this backend emits, as rows of the target that it brings."""

from __future__ import annotations

from dataclasses import replace

from eqsat.cost.machine import Machine
from eqsat.cost.target import Target, TileOpRow, target_of
from eqsat.ir.contraction import DOTS, Dot, dots
from eqsat.schedule.tiles import MATRIX_ROWS
from eqsat_backends.numba_cpu.tiles.dots import EXTENSIONS, NEEDS, STEPS, WIDTH
from eqsat_backends.numba_cpu.vectors.lanes import cpu_features

REGISTER_TILES: dict[int, tuple[tuple[int, int], ...]] = {
    32: ((14, 2), (9, 3), (6, 4), (4, 6), (2, 8), (1, 12), (24, 1)),
    16: ((6, 2), (4, 3), (2, 4), (1, 6), (12, 1)),
}
"""Rows × vectors of sums that an outer-product tile keeps, by number of registers, best first for large problems.

They need a register for each vector of sums, for each vector of a row of the second factor, and for a broadcast.
"""

UPDATES = {32: {"n": 4, "k": 8}, 16: {"n": 2, "k": 16}}
"""Vectors of a rank update for which a number is read once, and its depth."""

MATRIX_TILES = ((32, 2), (16, 3), (80, 1))
"""Rows × vectors of sums that fill registers of two axes, best first."""

DOT_STEPS = {"uint8·int8": ((4.0, ""),), "int16·int16": ((2.0, ""),), "bfloat16·bfloat16": ((2.5, ""),)}
"""Slots of a step of tiles of small types for one vector of sums, where no instruction does it in one."""

ASK_STEPS = 2
"""Steps of k of a register tile that prefetches the next panel, from one request to the next."""

CLAIM_EVERY = (16, 8, 4)
"""The same of a tile that asks for nothing but the lines that it stores to: the first that leaves two steps a row."""

CHAINS = 4
"""Into how many sums a tile splits an accumulator where it has fewer accumulators than that."""


def tile_ops(registers: int) -> tuple[TileOpRow, ...]:
    """All rows, for a processor with so many vector registers."""
    many = 32 if registers >= 32 else 16
    shapes, update = REGISTER_TILES[many], UPDATES[many]
    return (
        *(
            _product("fma", dot, {"m": rows, "n": vectors}, rows * vectors + vectors + 1, CHAINS, *how)
            for dot in dots(())
            for how in ((1.0, NEEDS.get(dot.element.name, "")), *DOT_STEPS.get(dot.element.name, ()))
            for rows, vectors in shapes
        ),
        *(_product("update", dot, update, 4 + 2) for dot in DOTS if dot.depth == 1),
        TileOpRow("vector", (), "lanes"),
    )


def matrix_ops(machine: Machine) -> tuple[TileOpRow, ...]:
    """Those by registers of two axes: of element types that a model has figures of, if this processor has registers."""
    slot = 2e3 * machine.lanes(4) / machine.peak_gflops("float32")  # picoseconds
    return tuple(
        replace(
            _product("fma", dot, {"m": rows, "n": vectors}, 0, slots=1e3 * ns / slot / (MATRIX_ROWS * STEPS)),
            needs=EXTENSIONS[dot.element.name],
            steps=STEPS,
        )
        for dot in DOTS
        for name, ns in machine.matrix_ns
        if name == dot.element.name and EXTENSIONS.get(name) in cpu_features() and machine.vector_bytes == WIDTH
        for rows, vectors in MATRIX_TILES
    )


def _product(
    name: str, dot: Dot, sizes: dict[str, int], registers: int, chains: int = 1, slots: float = 1.0, needs: str = ""
) -> TileOpRow:
    deep = dot.depth > 1
    return TileOpRow(
        name,
        tuple(sizes.items()),
        "n",
        registers,
        chains=chains,
        slots=slots,
        dtypes=(dot.element.name,),
        needs=needs,
        axes=("m", "n", "k", "d") if deep else ("m", "n", "k"),
        semantics=dot.semantics,
        layouts=((0, "d"), (1, "d")) if deep else ((1, "n"),),
    )


REGISTERED: dict[str, TileOpRow] = {}
"""Tile operations from outside of this package, by name, which ``registry`` fills."""

ON_TRIAL: dict[str, TileOpRow] = {}
"""Those that are being checked: they can be printed, and are not offered."""


def registered(trial: bool = True) -> tuple[TileOpRow, ...]:
    """The tile operations from outside of this package, with or without those on trial."""
    rows = {**ON_TRIAL, **REGISTERED} if trial else REGISTERED
    return tuple(row for _, row in sorted(rows.items()))


def cpu_target(machine: Machine, threads: int = 1) -> Target:
    """What ``threads`` threads of a measured machine are to this backend."""
    registers = max(16, machine.registers)  # no processor that it makes code for has fewer
    fit = (row for row in registered(trial=False) if row.registers <= registers)
    matrix = matrix_ops(machine)
    instead = {dtype for row in matrix for dtype in row.dtypes}  # one way to print a tile of an element type
    table = (*matrix, *(row for row in (*tile_ops(registers), *fit) if instead.isdisjoint(row.dtypes)))
    rows = tuple(row for row in table if not row.needs or row.needs in cpu_features())
    return target_of(replace(machine, registers=registers), threads, rows)

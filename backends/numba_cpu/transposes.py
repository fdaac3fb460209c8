"""Maps and reductions that walk two axes, of which operands lie along different ones: square blocks turned over
in registers.

A vector of a transposed operand would be put together from as many cache lines as it has lanes. Here a block of
lanes × lanes is loaded row by row, transposed by shuffles into a tile in scratch, and read from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from eqsat.ir.kernel import Kernel, Load, part_of, unconditional
from eqsat_backends.numba_cpu.accumulators import Accumulator
from eqsat_backends.numba_cpu.axes import loads
from eqsat_backends.numba_cpu.chunks import Part, seams_of
from eqsat_backends.numba_cpu.printer import Access, LoadRule, Printer, Value, View, affine, names_in

if TYPE_CHECKING:
    from eqsat_backends.numba_cpu.nests import Rows

__all__ = ["Tiles", "TransposedMap", "reduce_turned", "transposed_axis", "turned_axis", "unguarded"]

PARTS = 9
"""Kernels at most that a map is cut into: a matrix with a border on all sides."""
_COPIES = 4
"""Accumulators, so that one addition does not wait for another."""


def _turned(kernel: Kernel, vector: int, axis: int) -> list[Load]:
    """Loads that walk ``axis`` contiguously and ``vector`` in strides; none in a guard, for blocks are loaded whole."""
    found: dict[tuple[int, int, tuple[int, ...]], Load] = {}
    for load in (e for e in unconditional(kernel.body) if isinstance(e, Load)):
        if load.strides[axis] == 1 and load.strides[vector] not in (0, 1) and not load.gathers:
            found.setdefault((load.operand, load.offset, load.strides), load)
    return list(found.values())


def transposed_axis(kernel: Kernel, vector: int, lanes: int) -> int | None:
    """The parallel axis that most loads walk contiguously instead of ``vector``, if blocks fit both axes."""
    if kernel.extents[vector] < lanes:
        return None
    fitting = [a for a in range(kernel.parallel) if a != vector and kernel.extents[a] >= lanes]
    best = max(fitting, key=lambda a: len(_turned(kernel, vector, a)), default=None)
    return best if best is not None and _turned(kernel, vector, best) else None


def turned_axis(kernel: Kernel, vector: int, lanes: int) -> int | None:
    """The other reduced axis that most loads walk contiguously instead of ``vector``, if blocks fit both axes."""
    if kernel.combine in (None, "argmax", "argmin") or kernel.extents[vector] < lanes:
        return None
    reduced = range(kernel.parallel, len(kernel.extents))
    fitting = [a for a in reduced if a != vector and kernel.extents[a] >= lanes]
    best = max(fitting, key=lambda a: len(_turned(kernel, vector, a)), default=None)
    return best if best is not None and _turned(kernel, vector, best) else None


def unguarded(kernel: Kernel, lanes: int) -> list[Kernel]:
    """A map cut along the seams of its guards, if some of them keep blocks from being turned over; the parts' maps."""
    whole = {id(e) for e in unconditional(kernel.body)}
    inner = [a for a in range(kernel.parallel) if kernel.store_strides[a] == 1 and kernel.extents[a] >= lanes]
    across = [a for a in range(kernel.parallel) if a not in inner and kernel.extents[a] >= lanes]
    turned = any(
        load.strides[a] == 1 and load.strides[b] not in (0, 1)
        for load in loads(kernel.body)
        if id(load) not in whole
        for a in across
        for b in inner
    )
    axes = range(kernel.parallel if turned else 0)
    marks = [[0, *(s for s in seams_of([kernel], a) if 0 < s < kernel.extents[a]), kernel.extents[a]] for a in axes]
    parts = list(itertools.product(*map(itertools.pairwise, marks)))
    return [part_of(kernel, bounds) for bounds in parts] if 1 < len(parts) <= PARTS else [kernel]


class Tiles:
    """Blocks of a stage's operands, turned: ``fill`` loads them, ``rule`` reads them."""

    def __init__(self, rows: Rows, kernel: Kernel, vector: int, axis: int, scratch: str) -> None:
        self.p, self.rows, self.vector = rows.p, rows, vector
        self.turned = _turned(kernel, vector, axis)
        self.places: dict[tuple[int, int, tuple[int, ...]], str] = {}
        offset = 0
        for load in self.turned:
            self.places[self._key(load)] = f"{scratch} + {offset}" if offset else scratch
            offset += rows.p.lanes**2 * load.dtype.itemsize
        self.nbytes = offset

    @staticmethod
    def _key(load: Load) -> tuple[int, int, tuple[int, ...]]:
        return load.operand, load.offset, load.strides

    def fill(self, positions: Sequence[str]) -> None:
        """Print the loads of the block whose first element is at ``positions``."""
        for load in self.turned:
            access = self.rows.rule(0)(load)
            assert isinstance(access, Access)
            size = load.dtype.itemsize
            source = affine(access.base, access.offset, access.strides, positions, size)
            step = load.strides[self.vector] * size
            self.p.line(f"transpose_{self.p.type(load.dtype)}({self.places[self._key(load)]}, {source}, {step})")
        self.p.mark("tiles")

    def rule(self, i: str) -> LoadRule:
        """Turned loads come from row ``i`` of their tiles."""
        usual = self.rows.rule(0)
        lanes = self.p.lanes

        def rule(load: Load) -> Access | Value:
            tile = self.places.get(self._key(load))
            if tile is None or load.gathers:
                return usual(load)
            address = f"{tile} + {lanes * load.dtype.itemsize} * {i}"
            return self.p.load(address, load.dtype, 1, names_in(address) | {"tiles"})

        return rule


def reduce_turned(
    rows: Rows, axes: Sequence[str], vector: int, axis: int, part: Part | None, scratch: str
) -> Accumulator:
    """Print the first stage's reduction over all axes from ``len(axes)`` on; its one vector of totals.

    Blocks of lanes × lanes of the axes ``axis`` and ``vector``, then what is left of both. ``part``: a share of the
    outermost axis, which is not ``vector``.
    """
    p, lanes = rows.p, rows.p.lanes
    kernel, base = rows.stages[0].kernel, len(axes)
    tiles = Tiles(rows, kernel, vector, axis, scratch)
    total = rows.accumulator(0, 1)
    total.start()
    copies = min(_COPIES, lanes)
    extent, width = kernel.extents[axis], kernel.extents[vector]
    whole, across = extent // lanes * lanes, width // lanes * lanes
    with ExitStack() as stack:
        positions = [*axes, *("" for _ in kernel.extents[base:])]
        for a in range(base, len(kernel.extents)):
            if a not in (axis, vector):
                bounds = (part.low, part.high) if part is not None and a == base else ("0", None)
                positions[a] = rows.loop(stack, kernel.extents[a], *bounds)
        mine = part if axis == base else None
        low, high = (mine.low, mine.high) if mine is not None else ("0", str(whole))

        def chunk(accumulator: Accumulator, copy: int, rule: LoadRule, count: str | None = None) -> None:
            view = View(tuple(positions), vector, rule, count)
            accumulator.step(copy, p.value(kernel.body, view), count)

        first, i, j = p.fresh("first"), p.fresh("i"), p.fresh("j")
        with p.scope(f"for {first} in range({low}, {high}, {lanes}):", first):
            inner = rows.accumulator(0, copies)
            inner.start()
            with p.scope(f"for {j} in range(0, {across}, {lanes}):", j):
                positions[axis], positions[vector] = first, j
                tiles.fill(positions)
                with p.scope(f"for {i} in range(0, {lanes}, {copies}):", i):
                    for copy in range(copies):
                        row = p.fresh("row")
                        p.bind(row, f"{i} + {copy}")
                        positions[axis] = f"{first} + {row}"
                        chunk(inner, copy, tiles.rule(row))
            if across < width:
                with p.scope(f"for {i} in range({first}, {first} + {lanes}):", i):
                    positions[axis], positions[vector] = i, str(across)
                    chunk(inner, 0, rows.rule(0), str(width - across))
            inner.fold_into(total)
        if whole < extent:
            with ExitStack() as last:
                if mine is not None:
                    last.enter_context(p.scope(f"if {mine.last}:"))
                positions[axis] = rows.loop(last, extent, str(whole), str(extent))
                inner = rows.accumulator(0, 1)
                inner.start()
                with p.scope(f"for {j} in range(0, {across}, {lanes}):", j):
                    positions[vector] = j
                    chunk(inner, 0, rows.rule(0))
                if across < width:
                    positions[vector] = str(across)
                    chunk(inner, 0, rows.rule(0), str(width - across))
                inner.fold_into(total)
    return total


class TransposedMap:
    """Prints a map for one position of the shared axes of ``rows``; its last two axes are turned, vectorized."""

    def __init__(self, printer: Printer, rows: Rows, scratch: str) -> None:
        self.p, self.rows = printer, rows
        kernel = rows.stages[0].kernel
        self.kernel = kernel
        self.axis, self.vector = kernel.parallel - 2, kernel.parallel - 1
        self.tiles = Tiles(rows, kernel, self.vector, self.axis, scratch)
        self.scratch_bytes = self.tiles.nbytes
        self.blocks = kernel.extents[self.axis] // printer.lanes

    def units(self) -> int:
        """Units of work at one position of the shared axes: blocks of the turned axis, and what is left of it."""
        return self.blocks + (self.kernel.extents[self.axis] % self.p.lanes > 0)

    def emit(self, shared: tuple[str, ...], unit: str) -> None:
        """Print one unit; ``unit`` is its number."""
        lanes, p = self.p.lanes, self.p
        extent = self.kernel.extents[self.axis]
        left = extent - self.blocks * lanes
        if not left:
            self._block(shared, unit)
            return
        with p.scope(f"if {unit} < {self.blocks}:"):
            self._block(shared, unit)
        with p.scope("else:"):
            i = p.fresh("i")
            with p.scope(f"for {i} in range({self.blocks * lanes}, {extent}):", i):
                self.rows.line([0], (*shared, i))

    def _block(self, shared: tuple[str, ...], unit: str) -> None:
        p, lanes = self.p, self.p.lanes
        extent = self.kernel.extents[self.vector]
        whole = extent // lanes * lanes
        first = p.fresh("first")
        p.bind(first, f"{unit} * {lanes}")
        j, i = p.fresh("j"), p.fresh("i")
        with p.scope(f"for {j} in range(0, {whole}, {lanes}):", j):
            self.tiles.fill((*shared, first, j))
            with p.scope(f"for {i} in range({lanes}):", i):
                self._point((*shared, f"{first} + {i}", j), self.tiles.rule(i), None)
        if whole < extent:
            with ExitStack() as stack:
                stack.enter_context(p.scope(f"for {i} in range({first}, {first} + {lanes}):", i))
                self._point((*shared, i, str(whole)), self.rows.rule(0), str(extent - whole))

    def _point(self, positions: tuple[str, ...], rule: LoadRule, count: str | None) -> None:
        view = View(positions, self.vector, rule, count)
        value = self.p.value(self.kernel.body, view)
        self.rows.store(0, value, positions, self.vector, count)

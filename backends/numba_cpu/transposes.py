"""Maps that read one axis contiguously and store another: square blocks turned over in registers.

A vector of a transposed operand would be put together from as many cache lines as it has lanes. Here a block of
lanes × lanes is loaded row by row, transposed by shuffles into a tile in scratch, and read from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from eqsat.ir.kernel import Kernel, Load
from eqsat_backends.numba_cpu.axes import loads
from eqsat_backends.numba_cpu.nests import Rows
from eqsat_backends.numba_cpu.printer import Access, LoadRule, Printer, Value, View, affine, names_in

__all__ = ["TransposedMap", "transposed_axis"]


def _turned(kernel: Kernel, vector: int, axis: int) -> list[Load]:
    """Loads that walk ``axis`` contiguously and ``vector`` in strides."""
    found: dict[tuple[int, int, tuple[int, ...]], Load] = {}
    for load in loads(kernel.body):
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


class TransposedMap:
    """Prints a map for one position of the shared axes of ``rows``; its last two axes are turned, vectorized."""

    def __init__(self, printer: Printer, rows: Rows, scratch: str) -> None:
        self.p, self.rows = printer, rows
        kernel = rows.stages[0].kernel
        self.kernel = kernel
        self.axis, self.vector = kernel.parallel - 2, kernel.parallel - 1
        self.turned = _turned(kernel, self.vector, self.axis)
        self.tiles: dict[tuple[int, int, tuple[int, ...]], str] = {}
        offset = 0
        for load in self.turned:
            self.tiles[self._key(load)] = f"{scratch} + {offset}" if offset else scratch
            offset += printer.lanes**2 * load.dtype.itemsize
        self.scratch_bytes = offset
        self.blocks = kernel.extents[self.axis] // printer.lanes

    @staticmethod
    def _key(load: Load) -> tuple[int, int, tuple[int, ...]]:
        return load.operand, load.offset, load.strides

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
            for load in self.turned:
                size = load.dtype.itemsize
                source = self._source(load, (*shared, first, j))
                step = load.strides[self.vector] * size
                p.line(f"transpose_{p.type(load.dtype)}({self.tiles[self._key(load)]}, {source}, {step})")
            with p.scope(f"for {i} in range({lanes}):", i):
                self._point((*shared, f"{first} + {i}", j), self._rule(i), None)
        if whole < extent:
            with ExitStack() as stack:
                stack.enter_context(p.scope(f"for {i} in range({first}, {first} + {lanes}):", i))
                self._point((*shared, i, str(whole)), self.rows.rule(0), str(extent - whole))

    def _source(self, load: Load, positions: Sequence[str]) -> str:
        access = self.rows.rule(0)(load)
        assert isinstance(access, Access)
        return affine(access.base, access.offset, access.strides, positions, load.dtype.itemsize)

    def _rule(self, i: str) -> LoadRule:
        """Turned loads come from their tiles, row ``i``."""
        usual = self.rows.rule(0)
        lanes = self.p.lanes

        def rule(load: Load) -> Access | Value:
            tile = self.tiles.get(self._key(load))
            if tile is None or load.gathers:
                return usual(load)
            address = f"{tile} + {lanes * load.dtype.itemsize} * {i}"
            return self.p.load(address, load.dtype, 1, names_in(address))

        return rule

    def _point(self, positions: tuple[str, ...], rule: LoadRule, count: str | None) -> None:
        view = View(positions, self.vector, rule, count)
        value = self.p.value(self.kernel.body, view)
        self.rows.store(0, value, positions, self.vector, count)

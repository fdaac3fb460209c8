"""Printed sweeps over what is left of a kernel's axes at one position of its shared axes ("row").

:class:`Rows` prints sweeps of one row, each of one stage or of several as its nest says: what one makes the next
reads from a register. A result that is one number a row stays in a register for the rest of the row. Code generators
print the loops around, and say with :class:`Place` where operands and results lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from eqsat.buffers import ALIGNED_BYTES
from eqsat.ir.kernel import Expr, FromStage, KernelGroup, Load
from eqsat.ir.nest import MAPS, Nest, around, tiles
from eqsat.ir.types import int64
from eqsat.schedule.domain import column_of, grain_of
from eqsat.schedule.maps import axes_of
from eqsat.schedule.sweeps import aligned
from eqsat_backends.numba_cpu.printing.accumulators import Accumulator
from eqsat_backends.numba_cpu.printing.places import Place, Window, place_of
from eqsat_backends.numba_cpu.printing.printer import Access, LoadRule, Printer, View, affine
from eqsat_backends.numba_cpu.printing.scopes import Value
from eqsat_backends.numba_cpu.printing.walk import Walk
from eqsat_backends.numba_cpu.tiles.ops import OpWalk

__all__ = ["Place", "Rows", "place_of"]


class Rows:
    """Prints the stages of ``group`` (see ``axes.simplify``) for one position of the shared axes.

    ``bases``: address of each group operand. ``places``: where results of stages lie that have no
    buffer, or that are wanted elsewhere. ``take``: address of so many new bytes of the thread's scratch. Whoever
    prints a function in which a tile streams ends it with ``fence()``. ``axes`` of :meth:`emit`: expressions for the
    shared axes. ``window``: what stages take of the axis that their domain bounds.
    """

    def __init__(
        self,
        printer: Printer,
        group: KernelGroup,
        bases: Sequence[str],
        places: Mapping[int, Place],
        take: Callable[[int], str],
        window: Window | None = None,
    ) -> None:
        self.p, self.group, self.bases, self.places = printer, group, bases, dict(places)
        self.take, self.window = take, window
        self.stages, self.shared = group.stages, group.shared
        self.live: dict[int, Value] = {}
        self.positions: dict[int, Expr] = {}
        """Positions that an argmax accumulates, where they are not those along its axis."""
        self.extremes: dict[int, str] = {}
        """Addresses for the extremes of an argmax, laid out as its result."""

    # what a block leaves out

    def _column(self, s: int) -> int | None:
        """The axis of which a block leaves out positions."""
        return column_of(self.stages[s].kernel, self.shared) if self.group.unless else None

    def grains(self, sweeps: Sequence[Nest]) -> list[int]:
        """What sweeps ask a window to be cut by."""
        found = []
        for sweep in sweeps:
            tile = tiles(sweep)[0]
            column, kernel = self._column(tile.stage), self.stages[tile.stage].kernel
            if column is not None:
                name = {a: name for name, a in axes_of(kernel, self.shared).items()}[column]
                extent = kernel.extents[column]
                found.append(grain_of(around(sweep, tile), name, extent) if tile.name in MAPS else extent)
        return found

    # where things are

    def rule(self, s: int) -> LoadRule:
        """Where the loads of stage ``s`` find their operands."""
        sources = self.stages[s].sources

        def rule(load: Load) -> Access | Value:
            source = sources[load.operand]
            if not isinstance(source, FromStage):
                return Access(self.bases[source], load.offset, load.strides)
            producer = source.stage
            value = self.live.get(producer)
            if value is not None and (value.uniform or aligned(load, self.stages[producer].kernel)):
                return value
            after = frozenset((f"stage {producer}",))
            if producer in self.places:
                return replace(self.places[producer].access(load), after=after)
            result = self.stages[producer].result
            assert result is not None, f"stage {producer} has no place"
            return Access(self.bases[result], load.offset, load.strides, after=after)

        return rule

    def store(
        self, s: int, value: Value, axes: tuple[str, ...], vector: int | None, count: str | None, stream: bool = False
    ) -> None:
        """Print stores of stage s's value at these positions of its parallel axes, wherever its result is wanted."""
        for base, offset, strides in self.targets(s):
            address = affine(base, offset, strides, axes, value.dtype.itemsize)
            step = 0 if vector is None else strides[vector]
            if stream and count is None and self._aligned(s, base, offset, strides, vector):
                self.p.line(f"stream({address}, {value.name})")
            else:
                self.p.store(address, step, value, count)

    def targets(self, s: int) -> list[tuple[str, int, tuple[int, ...]]]:
        """Where stage s's result is wanted: base address, offset, and strides along its parallel axes, in elements."""
        kernel, result = self.stages[s].kernel, self.stages[s].result
        found: list[tuple[str, int, tuple[int, ...]]] = []
        if s in self.places:
            place = self.places[s]
            here = place.shared + tuple(place.move(t) for t in kernel.store_strides[self.shared :])
            found.append((place.base, 0, here))
        if result is not None:
            found.append((self.bases[result], kernel.store_offset, kernel.store_strides))
        return found

    def _aligned(self, s: int, base: str, offset: int, strides: Sequence[int], vector: int | None) -> bool:
        """Whether whole vectors are stored to multiples of their size, in memory that is sure to be aligned."""
        if self.stages[s].kernel.out.nbytes < ALIGNED_BYTES:
            return False
        if vector is None or strides[vector] != 1 or base not in self.bases:
            return False
        return all(step % self.p.lanes == 0 for a, step in enumerate((*strides, offset)) if a != vector)

    # printing

    def emit(self, axes: tuple[str, ...], sweeps: Sequence[Nest]) -> None:
        """Print sweeps, one after the other, at the shared axes' positions ``axes``."""
        self.live = {}
        for sweep in sweeps:
            found = tiles(sweep)
            if self.stages[found[0].stage].kernel.results == 0:
                continue
            walk = Walk if found[0].name in MAPS else OpWalk
            walk(self, found, around(sweep, found[0]), self.take).print(axes)
            for tile in found:
                self.p.mark(f"stage {tile.stage}")  # no load of it is hoisted above its stores

    def finish(self, s: int, accumulator: Accumulator, axes: tuple[str, ...]) -> Value:
        """The epilogue of a whole reduction."""
        kernel = self.stages[s].kernel
        everywhere = axes + ("0",) * (len(kernel.extents) - len(axes))
        view = View(everywhere, None, self.rule(s), acc=accumulator.across())
        return self.p.value(kernel.epilogue, view)

    def position(self, s: int, view: View) -> Value | None:
        """In an argmax: the position along the reduced axis."""
        kernel = self.stages[s].kernel
        if kernel.combine not in ("argmax", "argmin"):
            return None
        if s in self.positions:
            return self.p.value(self.positions[s], view)
        strides = (0,) * kernel.parallel + (1,)
        return self.p.index(0, strides, int64, view)

    def accumulator(self, s: int, copies: int) -> Accumulator:
        kernel = self.stages[s].kernel
        assert kernel.combine is not None
        return Accumulator(self.p, kernel.combine, kernel.body.dtype, copies)

    def store_extreme(self, s: int, value: Value, axes: tuple[str, ...], vector: int | None, count: str | None) -> None:
        """The extreme beside an argmax's position, where it is wanted."""
        if s not in self.extremes:
            return
        kernel = self.stages[s].kernel
        address = affine(self.extremes[s], kernel.store_offset, kernel.store_strides, axes, value.dtype.itemsize)
        self.p.store(address, 0 if vector is None else kernel.store_strides[vector], value, count)

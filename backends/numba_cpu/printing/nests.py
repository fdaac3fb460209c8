"""Printed loops over what is left of a kernel's axes at one position of its shared axes ("row").

:class:`Rows` prints the stages of a simplified group for one row: neighbouring stages that walk the same axes
run in one pass, where what one makes the next reads from a register; a result that is one number a row stays
in a register for the rest of the row. Other code generators use it to run the stages between two contractions
on a block of rows: they print the loop over rows, and say with :class:`Place` where operands and results lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from eqsat.buffers import ALIGNED_BYTES
from eqsat.ir.axes import loads
from eqsat.ir.kernel import Expr, FromStage, KernelGroup, Load
from eqsat.ir.nest import MAPS, Nest
from eqsat.ir.types import int64
from eqsat.schedule.domain import column_of, grain_of
from eqsat.schedule.maps import axes_of, tile_of
from eqsat.schedule.plain import joint_nest, plain_nest
from eqsat_backends.numba_cpu.printing.accumulators import Accumulator
from eqsat_backends.numba_cpu.printing.places import Place, Window, place_of
from eqsat_backends.numba_cpu.printing.printer import Access, LoadRule, Printer, Value, View, affine
from eqsat_backends.numba_cpu.printing.walk import Walk
from eqsat_backends.numba_cpu.tiles.ops import OpWalk

__all__ = ["Place", "Rows", "place_of"]


class Rows:
    """Prints the stages of ``group`` (see ``axes.simplify``) for one position of the shared axes.

    ``bases``: address of each group operand. ``places``: where results of stages lie that have no
    buffer, or that are wanted elsewhere. ``take``: address of so many new bytes of the thread's scratch. ``nests``:
    those of the stages; a stage without one runs by a plain nest. Whoever prints a function in which a tile streams
    ends it with ``fence()``. ``axes`` of :meth:`emit`: expressions for the shared axes. ``window``: what stages take of
    the axis that their domain bounds.
    """

    def __init__(
        self,
        printer: Printer,
        group: KernelGroup,
        bases: Sequence[str],
        places: Mapping[int, Place],
        take: Callable[[int], str],
        nests: Mapping[int, Nest] | None = None,
        window: Window | None = None,
    ) -> None:
        self.p, self.group, self.bases, self.places = printer, group, bases, dict(places)
        self.take, self.nests, self.window = take, dict(nests or {}), window
        self.stages, self.shared = group.stages, group.shared
        self.live: dict[int, Value] = {}
        self.positions: dict[int, Expr] = {}
        """Positions that an argmax accumulates, where they are not those along its axis."""
        self.extremes: dict[int, str] = {}
        """Addresses for the extremes of an argmax, laid out as its result."""
        self.distance = 1
        """From a row to the one that software prefetch asks for."""

    # which stages run together

    def passes(self, members: Sequence[int]) -> list[list[int]]:
        """Stages in order, neighbours that walk the same axes joined."""
        found: list[list[int]] = []
        for s in members:
            if found and self._joins(s, found[-1]):
                found[-1].append(s)
            else:
                found.append([s])
        return found

    def _line(self, s: int) -> tuple[int, ...] | None:
        """Extents of the axes that a stage walks once from end to end; None if it keeps several results at once."""
        kernel = self.stages[s].kernel
        if kernel.combine is None:
            return kernel.extents[self.shared :]
        return kernel.extents[self.shared :] if kernel.parallel == self.shared else None

    def _column(self, s: int) -> int | None:
        """The axis of which a block leaves out positions."""
        return column_of(self.stages[s].kernel, self.shared) if self.group.unless else None

    def grains(self, members: Sequence[int]) -> list[int]:
        """What the nests of stages ask a window to be cut by."""
        found = []
        for group in self.passes(members):
            column, kernel, nest = self._column(group[0]), self.stages[group[0]].kernel, self._nest(group)
            if column is not None:
                name = {a: name for name, a in axes_of(kernel, self.shared).items()}[column]
                walked = tile_of(nest).name in MAPS
                extent = kernel.extents[column]
                found.append(grain_of(nest, name, extent) if walked else extent)
        return found

    def _joins(self, s: int, others: list[int]) -> bool:
        line = self._line(s)
        if not line or line != self._line(others[-1]) or self._column(s) != self._column(others[-1]):
            return False
        kernel, sources = self.stages[s].kernel, self.stages[s].sources
        in_body = {id(load) for load in loads(kernel.body)}
        for load in loads(kernel.body, kernel.epilogue):
            source = sources[load.operand]
            if isinstance(source, FromStage) and source.stage in others:
                reduced = self.stages[source.stage].kernel.combine is not None
                if id(load) not in in_body and reduced:
                    continue
                if reduced or not self.aligned(load, source.stage):
                    return False
        return True

    def aligned(self, load: Load, producer: int) -> bool:
        """Whether a load walks a map stage's result just as the stage itself stores it."""
        kernel = self.stages[producer].kernel
        return not load.gathers and (load.offset, load.strides) == (kernel.store_offset, kernel.store_strides)

    def needs_place(self) -> list[int]:
        """Stages whose result has no buffer, and is read by a pass that does not have it in a register."""
        home = {s: n for n, members in enumerate(self.passes(range(len(self.stages)))) for s in members}
        wanted: set[int] = set()
        for s, stage in enumerate(self.stages):
            for load in loads(stage.kernel.body, stage.kernel.epilogue):
                source = stage.sources[load.operand]
                if not isinstance(source, FromStage) or self.stages[source.stage].result is not None:
                    continue
                producer = source.stage
                together = home[s] == home[producer] and self.aligned(load, producer)
                if not together and self.stages[producer].kernel.parallel > self.shared:
                    wanted.add(producer)
        return sorted(wanted)

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
            if value is not None and (value.uniform or self.aligned(load, producer)):
                return value
            after = frozenset((f"stage {producer}",))
            if producer in self.places:
                return replace(self.places[producer].access(load), after=after)
            result = self.stages[producer].result
            assert result is not None, f"stage {producer} has no place"
            return Access(self.bases[result], load.offset, load.strides, after=after)

        return rule

    def prefetches(self, s: int) -> bool:
        """Whether the tile of a stage asks for what its loads read at the next row."""
        return s in self.nests and tile_of(self.nests[s]).prefetch

    def store(
        self,
        s: int,
        value: Value,
        axes: tuple[str, ...],
        vector: int | None,
        count: str | None,
        stream: bool = False,
    ) -> None:
        """Print stores of stage s's value at these positions of its parallel axes, wherever its result is wanted."""
        kernel, size = self.stages[s].kernel, value.dtype.itemsize
        targets: list[tuple[str, int, tuple[int, ...]]] = []
        if s in self.places:
            place = self.places[s]
            here = place.shared + tuple(place.move(t) for t in kernel.store_strides[self.shared :])
            targets.append((place.base, 0, here))
        result = self.stages[s].result
        if result is not None:
            targets.append((self.bases[result], kernel.store_offset, kernel.store_strides))
        for base, offset, strides in targets:
            address = affine(base, offset, strides, axes, size)
            step = 0 if vector is None else strides[vector]
            if stream and count is None and self._aligned(s, base, offset, strides, vector):
                self.p.line(f"stream({address}, {value.name})")
            else:
                self.p.store(address, step, value, count)

    def _aligned(self, s: int, base: str, offset: int, strides: Sequence[int], vector: int | None) -> bool:
        """Whether whole vectors are stored to multiples of their size, in memory that is sure to be aligned."""
        if self.stages[s].kernel.out.nbytes < ALIGNED_BYTES:
            return False
        if vector is None or strides[vector] != 1 or base not in self.bases:
            return False
        return all(step % self.p.lanes == 0 for a, step in enumerate((*strides, offset)) if a != vector)

    # printing

    def emit(self, axes: tuple[str, ...], members: Sequence[int] | None = None) -> None:
        """Print all stages, or those in ``members``, at the shared axes' positions ``axes``."""
        self.live = {}
        for group in self.passes(range(len(self.stages)) if members is None else members):
            if self.stages[group[0]].kernel.results == 0:
                continue
            nest = self._nest(group)
            walk = Walk if tile_of(nest).name in MAPS else OpWalk
            walk(self, group, nest, self.take).print(axes)
            for s in group:
                self.p.mark(f"stage {s}")  # no load of it is hoisted above its stores

    def _nest(self, members: Sequence[int]) -> Nest:
        """The nest of stages that run together."""
        nests = [self.nests.get(s) for s in members]
        own = [nest for nest in nests if nest is not None and tile_of(nest).lanes == self.p.lanes]
        if len(own) == len(nests):
            found = own[0] if len(own) == 1 else joint_nest(own, self.stages[members[0]].kernel, self.shared)
            if found is not None:
                return found
        kernel = self.stages[members[0]].kernel
        plain = [plain_nest(self.stages[s].kernel, self.p.lanes, self.shared) for s in members]
        return plain[0] if len(plain) == 1 else joint_nest(plain, kernel, self.shared) or plain[0]

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

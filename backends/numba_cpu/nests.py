"""Printed loops over what is left of a kernel's axes at one position of its shared axes ("row").

:class:`Rows` prints the stages of a simplified group for one row: neighbouring stages that walk the same axes
run in one pass, where what one makes the next reads from a register; a result that is one number a row stays
in a register for the rest of the row. Other code generators use it to run the stages between two contractions
on a block of rows: they print the loop over rows, and say with :class:`Place` where operands and results lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from eqsat.ir.kernel import Expr, FromStage, Kernel, KernelGroup, Load
from eqsat.ir.types import int64
from eqsat_backends.numba_cpu.accumulators import Accumulator
from eqsat_backends.numba_cpu.axes import loads
from eqsat_backends.numba_cpu.chunks import Chunk, Part, blocks, seams_of
from eqsat_backends.numba_cpu.columns import Columns
from eqsat_backends.numba_cpu.emitted import ALIGNED_BYTES
from eqsat_backends.numba_cpu.places import BLOCK, CHAIN, WIDE, Place, lane_cost, place_of, weight
from eqsat_backends.numba_cpu.printer import Access, LoadRule, Printer, Value, View, affine
from eqsat_backends.numba_cpu.transposes import reduce_turned, turned_axis

__all__ = ["WIDE", "Part", "Place", "Rows", "lane_cost", "place_of"]


class Rows:
    """Prints the stages of ``group`` (see ``axes.simplify``) for one position of the shared axes.

    ``bases``: address variable of each group operand. ``places``: where results of stages lie that have no
    buffer, or that are wanted elsewhere. ``scratch``: address of
    ``WIDE`` free elements. ``stream``: results go past the caches where alignment allows; whoever prints the
    function ends it with ``fence()``. ``axes`` of :meth:`emit`: expressions for the shared axes.
    """

    def __init__(
        self,
        printer: Printer,
        group: KernelGroup,
        bases: Sequence[str],
        places: Mapping[int, Place],
        scratch: str | None = None,
        stream: bool = False,
    ) -> None:
        self.p, self.group, self.bases, self.places = printer, group, bases, dict(places)
        self.scratch = scratch
        self.stages, self.shared = group.stages, group.shared
        read = {i.stage for stage in self.stages for i in stage.sources if isinstance(i, FromStage)}
        # Small results stay in cache, and memory is only sure to be aligned from ALIGNED_BYTES on.
        large = {n for n, stage in enumerate(self.stages) if stage.kernel.out.nbytes >= ALIGNED_BYTES}
        self.streamed = large - read if stream else set()
        self.columns = Columns(self)
        self.live: dict[int, Value] = {}
        self.positions: dict[int, Expr] = {}
        """Positions that an argmax accumulates, where they are not those along its axis."""
        self.extremes: dict[int, str] = {}
        """Address variables for the extremes of an argmax, laid out as its result."""
        self.tiles: str | None = None
        """Address of scratch for turned blocks of a single stage's operands (see :meth:`turned`)."""

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

    def _joins(self, s: int, others: list[int]) -> bool:
        line = self._line(s)
        if not line or line != self._line(others[-1]):
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

    def store(self, s: int, value: Value, axes: tuple[str, ...], vector: int | None, count: str | None) -> None:
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
            if s in self.streamed and count is None and self._aligned(base, offset, strides, vector):
                self.p.line(f"stream({address}, {value.name})")
            else:
                self.p.store(address, step, value, count)

    def _aligned(self, base: str, offset: int, strides: Sequence[int], vector: int | None) -> bool:
        """Whether whole vectors are stored to multiples of their size in a buffer of the group."""
        if vector is None or strides[vector] != 1 or base not in self.bases:
            return False
        return all(step % self.p.lanes == 0 for a, step in enumerate((*strides, offset)) if a != vector)

    # printing

    def emit(self, axes: tuple[str, ...], members: Sequence[int] | None = None) -> None:
        """Print all stages, or those in ``members``, at the shared axes' positions ``axes``."""
        self.live = {}
        for group in self.passes(range(len(self.stages)) if members is None else members):
            first = self.stages[group[0]].kernel
            if first.results == 0:
                continue
            if self._line(group[0]) is None:
                self.nest(group[0], axes)
            elif first.extents[self.shared :]:
                self.line(group, axes)
            else:
                self._single(group[0], axes)
            for s in group:
                self.p.mark(f"stage {s}")  # no load of it is hoisted above its stores

    def _single(self, s: int, axes: tuple[str, ...]) -> None:
        """A map with no axes left: one number a row."""
        value = self.p.value(self.stages[s].kernel.body, View(axes, None, self.rule(s)))
        self.live[s] = value
        self.store(s, value, axes, None, None)

    def vector_axis(self, s: int, candidates: Sequence[int]) -> int:
        """The cheapest of these axes to vectorize; the last of equals."""
        kernel = self.stages[s].kernel
        return min(candidates, key=lambda a: (lane_cost(kernel, a, self.p.lanes), -a))

    def nest(self, s: int, axes: tuple[str, ...], split: Part | None = None, part: Part | None = None) -> None:
        """A reduction that keeps axes besides the shared ones.

        ``split``: a share of the vectorized axis, which is then one that is kept. ``part``: a share of the
        outermost reduced axis.
        """
        kernel = self.stages[s].kernel
        kept = range(self.shared, kernel.parallel)
        vector = self.vector_axis(s, range(self.shared, len(kernel.extents)))
        if split is not None:
            vector = self.vector_axis(s, kept)
        with ExitStack() as stack:
            positions = list(axes)
            for a in kept:
                positions.append("" if a == vector else self.loop(stack, kernel.extents[a]))
            if vector >= kernel.parallel:
                self.line([s], tuple(positions), part)
            else:
                self.columns.print(s, positions, vector, split, part)

    def turned(self, s: int) -> int | None:
        """The axis that a reduction walks in square blocks with the vectorized one, where operands lie along it."""
        kernel = self.stages[s].kernel
        if kernel.combine is None or kernel.parallel == len(kernel.extents) or 0 in kernel.extents:
            return None
        vector = self.vector_axis(s, range(self.shared, len(kernel.extents)))
        return turned_axis(kernel, vector, self.p.lanes) if vector >= kernel.parallel else None

    def loop(self, stack: ExitStack, extent: int, low: str = "0", high: str | None = None) -> str:
        variable = self.p.fresh("i")
        bounds = str(extent) if high is None else f"{low}, {high}"
        stack.enter_context(self.p.scope(f"for {variable} in range({bounds}):", variable))
        return variable

    def line(self, members: list[int], axes: tuple[str, ...], part: Part | None = None) -> None:
        """Walk the axes from ``len(axes)`` on, which all ``members`` have alike, once."""
        kernels = [self.stages[s].kernel for s in members]
        first, base = kernels[0], len(axes)
        candidates = range(base, len(first.extents))
        vector = min(candidates, key=lambda a: (sum(lane_cost(k, a, self.p.lanes) for k in kernels), -a))
        turned = self.turned(members[0]) if self.tiles and len(self.stages) == 1 else None
        if self.tiles and turned is not None and (part is None or vector != base):
            self._close(members[0], reduce_turned(self, axes, vector, turned, part, self.tiles), axes)
            return
        reducing = [s for s in members if self.stages[s].kernel.combine is not None]
        extent, lanes = first.extents[vector], self.p.lanes
        unroll = self._unroll(kernels, extent) if reducing else 1
        if any(k.combine in ("argmax", "argmin") for k in kernels):
            unroll = 1
        totals = {s: self.accumulator(s, 1 if self._blocked(s, vector, unroll, base) else unroll) for s in reducing}
        for accumulator in totals.values():
            accumulator.start()
        inner = dict(totals)
        blocked = [s for s in reducing if self._blocked(s, vector, unroll, base)]
        # Rows of several blocks have a sum of their own: equal values in many of them round alike, and that adds up.
        long_rows = len(candidates) > 1 and extent // (lanes * unroll) > BLOCK
        sums = {s: self.accumulator(s, 1) if long_rows else totals[s] for s in blocked}

        def body(chunks: list[Chunk], positions: list[str]) -> None:
            for copy, (position, count) in enumerate(chunks):
                positions[vector] = position
                self._point(members, tuple(positions), vector, count, copy, inner)

        def opened() -> None:
            for s in blocked:
                inner[s] = self.accumulator(s, unroll)
                inner[s].start()

        def closed() -> None:
            for s in blocked:
                inner[s].fold_into(sums[s])
                inner[s] = sums[s]

        with ExitStack() as stack:
            positions = list(axes)
            outer = part
            for a in candidates:
                if a == vector:
                    positions.append("")
                elif outer is not None and vector != base:
                    positions.append(self.loop(stack, first.extents[a], outer.low, outer.high))
                    outer = None
                else:
                    positions.append(self.loop(stack, first.extents[a]))
            share = part if vector == base else None
            if 0 not in first.extents[base:]:
                hooks = (opened, closed) if blocked else None
                for s in blocked if long_rows else ():
                    sums[s].start()
                seams = seams_of(kernels, vector)
                blocks(self.p, extent, lanes * unroll, lambda chunks: body(chunks, positions), share, hooks, seams)
                for s in blocked if long_rows else ():
                    sums[s].fold_into(totals[s])
        for s in members:
            self.live.pop(s, None)
        for s in reducing:
            self._close(s, totals[s], axes)

    def _close(self, s: int, total: Accumulator, axes: tuple[str, ...]) -> None:
        """Finish and store a whole reduction."""
        value = self.finish(s, total, axes)
        self.store(s, value, axes, None, None)
        if s in self.extremes:
            self.store_extreme(s, total.extreme(), axes, None, None)
        if self.stages[s].kernel.parallel == self.shared:
            self.live[s] = value

    def finish(self, s: int, accumulator: Accumulator, axes: tuple[str, ...]) -> Value:
        """The epilogue of a whole reduction."""
        kernel = self.stages[s].kernel
        everywhere = axes + ("0",) * (len(kernel.extents) - len(axes))
        view = View(everywhere, None, self.rule(s), acc=accumulator.across())
        return self.p.value(kernel.epilogue, view)

    def _point(
        self,
        members: list[int],
        positions: tuple[str, ...],
        vector: int,
        count: str | None,
        copy: int,
        accumulators: Mapping[int, Accumulator],
    ) -> None:
        """All members' bodies at one chunk of lanes."""
        for s in members:
            kernel = self.stages[s].kernel
            view = View(positions, vector, self.rule(s), count)
            value = self.p.value(kernel.body, view)
            if kernel.combine is None:
                self.live[s] = value
                self.store(s, value, positions[: kernel.parallel], vector, count)
            else:
                accumulators[s].step(copy, value, count, self.position(s, view))

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

    def _unroll(self, kernels: Sequence[Kernel], extent: int) -> int:
        """Accumulators that hide the latency of combining: fewer where the body itself takes long."""
        work = sum(weight(k) for k in kernels)
        wanted = 4 if work <= 6 else 2 if work <= 12 else 1
        while wanted > 1 and wanted > extent // self.p.lanes:
            wanted //= 2
        return wanted

    def _blocked(self, s: int, vector: int, unroll: int, base: int) -> bool:
        """Whether a sum is long enough to be summed in blocks, for its rounding error."""
        kernel = self.stages[s].kernel
        steps = math.prod(kernel.extents[base:]) // (self.p.lanes * unroll)
        return kernel.combine == "sum" and kernel.body.dtype.is_float and steps > CHAIN

    def line_step(self, s: int) -> int:
        """Elements that one step takes of the vectorized axis, when that is reduced."""
        kernel = self.stages[s].kernel
        if kernel.combine in ("argmax", "argmin"):
            return self.p.lanes
        vector = self.vector_axis(s, range(kernel.parallel, len(kernel.extents)))
        return self.p.lanes * self._unroll([kernel], kernel.extents[vector])

    def store_extreme(self, s: int, value: Value, axes: tuple[str, ...], vector: int | None, count: str | None) -> None:
        """The extreme beside an argmax's position, where it is wanted."""
        if s not in self.extremes:
            return
        kernel = self.stages[s].kernel
        address = affine(self.extremes[s], kernel.store_offset, kernel.store_strides, axes, value.dtype.itemsize)
        self.p.store(address, 0 if vector is None else kernel.store_strides[vector], value, count)

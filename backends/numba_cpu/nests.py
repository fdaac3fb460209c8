"""Printed loops over what is left of a kernel's axes at one position of its shared axes ("row").

:class:`Rows` prints the stages of a simplified group for one row: neighbouring stages that walk the same axes
run in one pass, where what one makes the next reads from a register; a result that is one number a row stays
in a register for the rest of the row. Other code generators use it to run the stages between two contractions
on a block of rows: they print the loop over rows, and say with :class:`Place` where operands and results lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from eqsat_backends.numba_cpu.accumulators import Accumulator
from eqsat_backends.numba_cpu.axes import loads, maps_of, unique
from eqsat_backends.numba_cpu.printer import Access, LoadRule, Printer, Value, View, affine

from eqsat.ir.kernel import Call, Expr, FromStage, Kernel, KernelGroup, Load
from eqsat.ir.types import int64, row_major

__all__ = ["Part", "Place", "Rows", "lane_cost", "place_of"]

_CHAIN = 256
"""Longest run of additions into one accumulator; longer sums are summed in blocks."""
_BLOCK = 64
WIDE = 4096
"""Elements of a row that a reduction of columns takes at a time when it accumulates in scratch."""
_HEAVY = {"exp": 14, "expm1": 18, "log": 20, "log1p": 26, "tanh": 22, "erf": 24, "sigmoid": 22, "sin": 40, "cos": 40}
_HEAVY |= {"pow": 200, "remainder": 100, "floor_divide": 100, "div": 6, "sqrt": 8, "rsqrt": 12, "reciprocal": 6}


@dataclass(frozen=True)
class Place:
    """Where a stage's result lies when it is not in its own C-contiguous buffer.

    ``base``: address expression, which may contain variables. ``offset``: the result's store offset in its
    buffer. ``shared``: strides here along shared axes. ``rest``: for each other axis, far strides first, its
    stride in the buffer and here. All in elements.
    """

    base: str
    offset: int
    shared: tuple[int, ...]
    rest: tuple[tuple[int, int], ...]

    def move(self, distance: int) -> int:
        """A distance in the buffer, along axes that are not shared, as a distance here."""
        left, here = abs(distance), 0
        for there, stride in self.rest:
            steps, left = divmod(left, there)
            here += steps * stride
        if left:
            raise ValueError(f"a stage reads a result at a distance of {distance} elements, which no axis of it makes")
        return here if distance >= 0 else -here

    def access(self, load: Load) -> Access:
        """Where ``load``, written for the buffer, finds its element here."""
        shared = len(self.shared)
        strides = self.shared + tuple(self.move(s) for s in load.strides[shared:])
        gathers = tuple(self.move(s) for _, s in load.gathers)
        return Access(self.base, self.move(load.offset - self.offset), strides, gathers)


def place_of(kernel: Kernel, shared: int, base: str, pitches: tuple[int, ...] | None = None) -> tuple[Place, int]:
    """A packed place for one row of a kernel's result, and its size in elements.

    ``pitches``: strides along the shared axes; by default 0, every row in the same place.
    """
    extents = kernel.extents[shared : kernel.parallel]
    packed = row_major(extents)
    rest = sorted(zip(kernel.store_strides[shared:], packed, strict=True), key=lambda pair: -abs(pair[0]))
    rest = [(abs(there), here if there > 0 else -here) for there, here in rest]
    pitches = (0,) * shared if pitches is None else pitches
    return Place(base, kernel.store_offset, pitches, tuple(rest)), math.prod(extents)


@dataclass(frozen=True, slots=True)
class Part:
    """A share of a loop: expressions for its bounds, and for whether it is the last share.

    Bounds of a vectorized loop are multiples of the lanes that one step takes; what is left over after the
    last whole step belongs to the last share.
    """

    low: str
    high: str
    last: str


def weight(kernel: Kernel) -> int:
    """Rough instructions per vector of a kernel's body."""
    return sum(_HEAVY.get(e.fn, 1) if isinstance(e, Call) else isinstance(e, Load) for e in unique(kernel.body))


def lane_cost(kernel: Kernel, axis: int, lanes: int) -> float:
    """Rough instructions per element when ``axis`` is vectorized: strided accesses go lane by lane."""
    cost = 0.0
    for strides in maps_of(kernel):
        step = strides[axis]
        cost += 1.0 if step == 1 else 0.25 if step == 0 else 1.25 * lanes
    if axis >= kernel.parallel:
        cost += 16.0 / max(1, math.ceil(kernel.extents[axis] / lanes))  # combining lanes, once a row
    for call in unique(kernel.body):
        if isinstance(call, Call):
            cost += _HEAVY.get(call.fn, 1)
    extent = max(1, kernel.extents[axis])
    return cost * math.ceil(extent / lanes) / extent


Chunk = tuple[str, str | None]
"""Position of the first lane, and how many lanes are in use (None: all)."""


class Rows:
    """Prints the stages of ``group`` (see ``axes.simplify``) for one position of the shared axes.

    ``bases``: address variable of each group operand. ``places``: where results of stages lie that have no
    buffer, or that are wanted elsewhere. ``scratch``: address of
    ``WIDE`` free elements. ``axes`` of :meth:`emit`: expressions for the shared axes.
    """

    def __init__(
        self,
        printer: Printer,
        group: KernelGroup,
        bases: Sequence[str],
        places: Mapping[int, Place],
        scratch: str | None = None,
    ) -> None:
        self.p, self.group, self.bases, self.places = printer, group, bases, dict(places)
        self.scratch = scratch
        self.stages, self.shared = group.stages, group.shared
        self.live: dict[int, Value] = {}
        self.positions: dict[int, Expr] = {}
        """Positions that an argmax accumulates, where they are not those along its axis."""
        self.extremes: dict[int, str] = {}
        """Address variables for the extremes of an argmax, laid out as its result."""

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
            self.p.store(address, 0 if vector is None else strides[vector], value, count)

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
                positions.append("" if a == vector else self._loop(stack, kernel.extents[a]))
            if vector >= kernel.parallel:
                self.line([s], tuple(positions), part)
            else:
                self._columns(s, positions, vector, split, part)

    def _loop(self, stack: ExitStack, extent: int, low: str = "0", high: str | None = None) -> str:
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
        reducing = [s for s in members if self.stages[s].kernel.combine is not None]
        extent, lanes = first.extents[vector], self.p.lanes
        unroll = self._unroll(kernels, extent) if reducing else 1
        if any(k.combine in ("argmax", "argmin") for k in kernels):
            unroll = 1
        totals = {s: self._accumulator(s, 1 if self._blocked(s, vector, unroll, base) else unroll) for s in reducing}
        for accumulator in totals.values():
            accumulator.start()
        inner = dict(totals)
        blocked = [s for s in reducing if self._blocked(s, vector, unroll, base)]

        def body(chunks: list[Chunk], positions: list[str]) -> None:
            for copy, (position, count) in enumerate(chunks):
                positions[vector] = position
                self._point(members, tuple(positions), vector, count, copy, inner)

        def opened() -> None:
            for s in blocked:
                inner[s] = self._accumulator(s, unroll)
                inner[s].start()

        def closed() -> None:
            for s in blocked:
                inner[s].fold_into(totals[s])
                inner[s] = totals[s]

        with ExitStack() as stack:
            positions = list(axes)
            outer = part
            for a in candidates:
                if a == vector:
                    positions.append("")
                elif outer is not None and vector != base:
                    positions.append(self._loop(stack, first.extents[a], outer.low, outer.high))
                    outer = None
                else:
                    positions.append(self._loop(stack, first.extents[a]))
            share = part if vector == base else None
            if 0 not in first.extents[base:]:
                hooks = (opened, closed) if blocked else None
                blocks(self.p, extent, lanes * unroll, lambda chunks: body(chunks, positions), share, hooks)
        for s in members:
            self.live.pop(s, None)
        for s in reducing:
            kernel = self.stages[s].kernel
            value = self.finish(s, totals[s], axes)
            self.store(s, value, axes, None, None)
            if s in self.extremes:
                self._store_extreme(s, totals[s].extreme(), axes, None, None)
            if kernel.parallel == self.shared:
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
                accumulators[s].step(copy, value, count, self._position(s, view))

    def _position(self, s: int, view: View) -> Value | None:
        """In an argmax: the position along the reduced axis."""
        kernel = self.stages[s].kernel
        if kernel.combine not in ("argmax", "argmin"):
            return None
        if s in self.positions:
            return self.p.value(self.positions[s], view)
        strides = (0,) * kernel.parallel + (1,)
        return self.p.index(0, strides, int64, view)

    def _accumulator(self, s: int, copies: int) -> Accumulator:
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
        return kernel.combine == "sum" and kernel.body.dtype.is_float and steps > _CHAIN

    def _columns(self, s: int, positions: list[str], vector: int, split: Part | None, part: Part | None) -> None:
        """Several results at once, one a lane: accumulators for a block of columns, then all reduced axes."""
        kernel = self.stages[s].kernel
        reduced = range(kernel.parallel, len(kernel.extents))
        copies = self.column_copies(s)

        def body(chunks: list[Chunk]) -> None:
            totals = self._accumulator(s, len(chunks))
            totals.start()
            if kernel.extents[kernel.parallel]:
                self._reduce_columns(s, chunks, positions, vector, part, totals)
            for copy, (position, count) in enumerate(chunks):
                here = [*positions, *("0" for _ in reduced)]
                here[vector] = position
                view = View(tuple(here), vector, self.rule(s), count, totals.vector(copy))
                value = self.p.value(kernel.epilogue, view)
                self.store(s, value, tuple(here[: kernel.parallel]), vector, count)
                self._store_extreme(s, totals.best(copy), tuple(here[: kernel.parallel]), vector, count)

        if not self.wide(s):
            blocks(self.p, kernel.extents[vector], self.p.lanes * copies, body, split, None)
            return
        self._wide_columns(s, positions, vector, split)
        whole = kernel.extents[vector] // self.p.lanes * self.p.lanes
        if whole < kernel.extents[vector]:
            with ExitStack() as stack:
                if split is not None:
                    stack.enter_context(self.p.scope(f"if {split.last}:"))
                body([(str(whole), str(kernel.extents[vector] - whole))])

    def column_copies(self, s: int) -> int:
        """Vectors of columns that a reduction of columns keeps at once."""
        kernel = self.stages[s].kernel
        extent = max((kernel.extents[a] for a in range(self.shared, kernel.parallel)), default=0)
        copies = 4 if weight(kernel) <= 12 else 2
        while copies > 1 and copies > extent // self.p.lanes:
            copies //= 2
        return copies

    def line_step(self, s: int) -> int:
        """Elements that one step takes of the vectorized axis, when that is reduced."""
        kernel = self.stages[s].kernel
        if kernel.combine in ("argmax", "argmin"):
            return self.p.lanes
        vector = self.vector_axis(s, range(kernel.parallel, len(kernel.extents)))
        return self.p.lanes * self._unroll([kernel], kernel.extents[vector])

    def wide(self, s: int) -> bool:
        """Whether a reduction of columns accumulates in scratch, so that it can read long pieces of each row.

        It pays when rows lie far apart in memory and are many; short pieces of them defeat prefetching.
        """
        kernel = self.stages[s].kernel
        if not self.scratch or kernel.combine in ("argmax", "argmin", None) or kernel.parallel != self.shared + 1:
            return False
        vector, reduced = kernel.parallel - 1, kernel.extents[kernel.parallel :]
        walked = max((strides[kernel.parallel] for strides in maps_of(kernel)), default=0)
        size = kernel.body.dtype.itemsize
        rows_far = walked * size >= 8192 and math.prod(reduced) >= 16 and weight(kernel) <= 12
        return rows_far and kernel.extents[vector] >= 32 * self.p.lanes

    def _wide_columns(self, s: int, positions: list[str], vector: int, split: Part | None) -> None:
        """Sums (or products, extremes) of a long piece of every row, several rows at a time, kept in scratch."""
        kernel, p = self.stages[s].kernel, self.p
        lanes, size = p.lanes, kernel.body.dtype.itemsize
        whole = kernel.extents[vector] // lanes * lanes
        low, high = (split.low, split.high) if split else ("0", str(whole))
        outermost, *others = kernel.extents[kernel.parallel :]
        at_once = next(rows for rows in (8, 4, 2, 1) if outermost >= rows)
        start, stop = p.fresh("b"), p.fresh("b")

        def sweep(body: Callable[[str, str], None]) -> None:
            """A loop over the piece; ``body`` gets the position and the accumulator's address."""
            j = p.fresh("j")
            with p.scope(f"for {j} in range({start}, {stop}, {lanes}):", j):
                body(j, f"{self.scratch} + {size} * ({j} - {start})")

        def begin(j: str, address: str) -> None:
            accumulator = self._accumulator(s, 1)
            accumulator.start()
            p.line(f"store({address}, {accumulator.names[0]})")

        def combine(first: str, rows: int, walked: list[str]) -> Callable[[str, str], None]:
            def body(j: str, address: str) -> None:
                values = []
                for row in range(rows):
                    here = [*positions, f"{first} + {row}" if row else first, *walked]
                    here[vector] = j
                    values.append(p.value(kernel.body, View(tuple(here), vector, self.rule(s))))
                accumulator = self._accumulator(s, rows)
                for name, value in zip(accumulator.names, values, strict=True):
                    p.bind(name, value.name)
                accumulator.fold()
                before = self._accumulator(s, 1)
                p.bind(before.names[0], f"load_{p.type(kernel.body.dtype)}({address})")
                before.merge(0, accumulator)
                p.line(f"store({address}, {before.names[0]})")

            return body

        def finish(j: str, address: str) -> None:
            total = self._accumulator(s, 1)
            p.bind(total.names[0], f"load_{p.type(kernel.body.dtype)}({address})")
            here = [*positions, *("0" for _ in range(1 + len(others)))]
            here[vector] = j
            view = View(tuple(here), vector, self.rule(s), acc=total.vector(0))
            self.store(s, p.value(kernel.epilogue, view), tuple(here[: kernel.parallel]), vector, None)

        with p.scope(f"for {start} in range({low}, {high}, {WIDE}):", start):
            p.bind(stop, f"min({start} + {WIDE}, {high})")
            sweep(begin)
            whole_rows = outermost // at_once * at_once
            for first, last, rows in ((0, whole_rows, at_once), (whole_rows, outermost, 1)):
                if first == last:
                    continue
                i = p.fresh("i")
                with ExitStack() as stack:
                    stack.enter_context(p.scope(f"for {i} in range({first}, {last}, {rows}):", i))
                    walked = [self._loop(stack, extent) for extent in others]
                    sweep(combine(i, rows, walked))
            sweep(finish)

    def _reduce_columns(
        self,
        s: int,
        chunks: list[Chunk],
        positions: list[str],
        vector: int,
        part: Part | None,
        totals: Accumulator,
    ) -> None:
        """Loops over all reduced axes, combining each chunk into its own accumulator."""
        kernel = self.stages[s].kernel
        outermost, *others = kernel.extents[kernel.parallel :]
        low, high = (part.low, part.high) if part else ("0", str(outermost))
        long = kernel.combine == "sum" and kernel.body.dtype.is_float and outermost > _CHAIN
        with ExitStack() as stack:
            inner = totals
            if long:
                start = self.p.fresh("b")
                stack.enter_context(self.p.scope(f"for {start} in range({low}, {high}, {_BLOCK}):", start))
                inner = self._accumulator(s, len(chunks))
                inner.start()
                low, high = start, f"min({start} + {_BLOCK}, {high})"
            with ExitStack() as loops_:
                walked = [self._loop(loops_, outermost, low, high)]
                walked += [self._loop(loops_, extent) for extent in others]
                for copy, (position, count) in enumerate(chunks):
                    here = [*positions, *walked]
                    here[vector] = position
                    view = View(tuple(here), vector, self.rule(s), count)
                    inner.step(copy, self.p.value(kernel.body, view), None, self._position(s, view))
            if long:
                for copy in range(len(chunks)):
                    totals.merge(copy, inner)

    def _store_extreme(
        self, s: int, value: Value, axes: tuple[str, ...], vector: int | None, count: str | None
    ) -> None:
        """The extreme beside an argmax's position, where it is wanted."""
        if s not in self.extremes:
            return
        kernel = self.stages[s].kernel
        address = affine(self.extremes[s], kernel.store_offset, kernel.store_strides, axes, value.dtype.itemsize)
        self.p.store(address, 0 if vector is None else kernel.store_strides[vector], value, count)


def blocks(
    p: Printer,
    extent: int,
    step: int,
    body: Callable[[list[Chunk]], None],
    part: Part | None,
    hooks: tuple[Callable[[], None], Callable[[], None]] | None,
) -> None:
    """Loop over ``extent`` elements, ``step`` at a time, then the whole and partial chunks that are left.

    ``body`` prints one step for a list of chunks. ``part``: bounds instead of the whole. ``hooks``: printed
    before and after each block of steps.
    """
    lanes = p.lanes
    main = extent // step * step
    chunks = range(0, step, lanes)
    if main == step and part is None and hooks is None:
        body([(str(c), None) for c in chunks])
    elif main:
        low, high = (part.low, part.high) if part else ("0", str(main))
        with ExitStack() as stack:
            if hooks:
                start = p.fresh("b")
                size = _BLOCK * step
                stack.enter_context(p.scope(f"for {start} in range({low}, {high}, {size}):", start))
                low, high = start, f"min({start} + {size}, {high})"
                hooks[0]()
            j = p.fresh("j")
            with p.scope(f"for {j} in range({low}, {high}, {step}):", j):
                body([(f"{j} + {c}" if c else j, None) for c in chunks])
            if hooks:
                hooks[1]()
    whole = extent // lanes * lanes
    left: list[Chunk] = [(str(at), None) for at in range(main, whole, lanes)]
    if whole < extent:
        left.append((str(whole), str(extent - whole)))
    if not left:
        return
    with ExitStack() as stack:
        if part is not None:
            stack.enter_context(p.scope(f"if {part.last}:"))
        # no more at once than a step takes
        for at in range(0, len(left), len(chunks)):
            body(left[at : at + len(chunks)])

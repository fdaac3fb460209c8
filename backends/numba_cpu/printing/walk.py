"""Maps and reductions as their nests say: one function a term.

A :class:`Walk` prints the loops of a nest in their order, with their blocks and steps, and vectors along the axis that
the tile names. What a nest leaves open is what keeps results exact, not what makes them fast: long sums of floating
point are summed in blocks of bounded length, which adds loops named ``…_sum`` around parts of those of the nest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from eqsat.cost.calibration import LINE
from eqsat.ir.axes import unique
from eqsat.ir.kernel import Guarded, Kernel
from eqsat.ir.nest import Loop, Nest, TileOp
from eqsat.schedule.domain import column_of
from eqsat.schedule.maps import axes_of, check_nest, tile_of
from eqsat.schedule.vectors import ahead_loads
from eqsat_backends.numba_cpu.printing.accumulators import Accumulator
from eqsat_backends.numba_cpu.printing.printer import Access, LoadRule, Value, View, affine
from eqsat_backends.numba_cpu.printing.transposed import COPIES, Transposed
from eqsat_backends.numba_cpu.tiles.tile_ops import registered

if TYPE_CHECKING:
    from eqsat_backends.numba_cpu.printing.nests import Rows

__all__ = ["Walk"]

CHAIN = 256
"""Longest run of additions into one accumulator; longer sums are summed in blocks."""
BLOCK = 64
"""Additions into an accumulator of such a block."""
RUNS = 7
"""Loops at most that a loop is peeled into where guards change: each one is a copy of its body."""

Body = Callable[[], None]
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Cells:
    """Partial results in scratch: the tile's accumulators at every position of the parallel axes within a block.

    ``base``: address expression. ``pitches``: bytes from one position to the next by axis; ``starts``: where the block
    begins along each.
    """

    base: str
    pitches: dict[int, int]
    starts: dict[int, str]


Totals = list[dict[int, Accumulator]]
"""Accumulators in registers: for every position that the tile takes of a parallel axis, those of each reduction."""


class Walk:
    """Prints stages that walk the same axes by one nest (see ``eqsat.ir.nest``), of which the first stage's axes are.

    ``rows``: where operands and results lie. ``tiles``: of the stages, the first one's is that of ``nest``.
    ``take``: address of so many new bytes of the thread's scratch.
    Raises ``ValueError`` for a nest that is not legal for the first stage.
    """

    def __init__(self, rows: Rows, tiles: Sequence[TileOp], nest: Nest, take: Callable[[int], str]) -> None:
        self.rows, self.p, self.take = rows, rows.p, take
        self.streams = {tile.stage: tile.stream for tile in tiles}
        self.prefetches = {tile.stage: tile.prefetch for tile in tiles}
        self.members = list(self.streams)
        kernels = {s: rows.stages[s].kernel for s in self.members}
        self.kernel = kernels[self.members[0]]
        check_nest(nest, self.kernel, rows.shared, registered())
        self.nest, self.tile = nest, tile_of(nest)
        self.names = axes_of(self.kernel, rows.shared)
        self.extents = self.kernel.extents
        self.reductions = [s for s in self.members if kernels[s].combine is not None]
        self.kept = min((kernels[s].parallel for s in self.reductions), default=len(self.extents))
        self.sizes = {self.names[name]: size for name, size in self.tile.sizes}
        order = [self.names[name] for name, _ in self.tile.sizes]
        self.vector = order[-1] if order else None
        self.other = order[0] if len(order) > 1 else None
        self.bounded = any(kernels[s].combine == "sum" and kernels[s].body.dtype.is_float for s in self.reductions)
        self.at: list[str] = []
        self.end: list[str] = []
        self.unit: list[int] = []
        """Along each axis, what the length of the block at hand is a multiple of."""
        self.count = dict(self.sizes)
        self.empty = 0 in self.extents
        self.tiles: Transposed | None = None
        self.column = column_of(self.kernel, rows.shared) if rows.window else None

    def print(self, shared: tuple[str, ...]) -> None:
        """Print the nest at these positions of the shared axes."""
        self.at = [*shared, *("0" for _ in self.extents[len(shared) :])]
        self.end, self.unit = [str(extent) for extent in self.extents], list(self.extents)
        if self.column is not None and self.rows.window is not None:
            window = self.rows.window
            self.at[self.column], self.end[self.column] = window.start, window.stop
            self.unit[self.column] = math.gcd(window.grain, self.extents[self.column])
        self.count = {a: min(size, self.extents[a]) for a, size in self.sizes.items()}
        if self.tile.name == "transpose":
            assert self.vector is not None and self.other is not None
            self.tiles = Transposed(self, self.kernel, self.vector, self.other)
        self._walk(self.nest)
        for s in self.members:
            if self.rows.stages[s].kernel.parallel > self.rows.shared:
                self.rows.live.pop(s, None)

    # loops

    def _walk(self, nest: Nest) -> None:
        """Outside of every reduction."""
        match nest:
            case Loop() if nest.split:
                self._over(nest, lambda: self._part(nest))
            case Loop() if not self._reduced(nest):
                self._over(nest, lambda: self._walk(nest.body))
            case _ if self.reductions:
                self._reduction(nest)
            case _:
                self._points(None)

    def _part(self, loop: Loop) -> None:
        """One part of a split reduction, whose number is ``part``."""
        self.p.bind("part", f"{self.at[self.names[loop.axis]]} // {loop.step}")
        self._walk(loop.body)

    def _reduced(self, loop: Loop) -> bool:
        return self.names[loop.axis] >= self.kept

    def _over(self, loop: Loop, body: Body, suffix: str = "") -> None:
        """A loop: whole steps, and behind the innermost one of a tile's axis what is left over, which is fewer."""
        p, a = self.p, self.names[loop.axis]
        extent, tile = self.extents[a], self.sizes.get(a, 1)
        low, high = self.at[a], self.end[a]
        innermost = not _has(loop.body, loop.axis)
        whole = extent // tile * tile if innermost else extent
        part = loop.parallel or loop.block < extent or a == self.column
        if loop.cyclic:
            low, high = f"{loop.step} * tid", str(extent)
        elif loop.parallel:
            steps = -(-extent // loop.step)
            low, high = p.fresh("low"), p.fresh("high")
            p.bind(low, f"{steps} * tid // nt * {loop.step}")
            p.bind(high, f"min({steps} * (tid + 1) // nt * {loop.step}, {extent})")
        elif part and not high.isidentifier():
            high = p.fresh("high")
            p.bind(high, self.end[a])
        until = high if whole == extent else f"min({high}, {whole})" if part else str(whole)
        before = self.at[a], self.end[a], self.unit[a]
        even = self.unit[a] % loop.step == 0
        runs = [(0, whole)] if whole else []
        if innermost and whole and not suffix and not (loop.block < extent and not loop.parallel):
            runs = _peeled(whole, loop.step, self._seams(a))
        for start, stop in runs:
            i = p.fresh(f"{loop.axis}{suffix}_")
            step = f", {loop.step} * nt" if loop.cyclic else f", {loop.step}" if loop.step != 1 else ""
            first = low if start == 0 else f"max({low}, {start})" if part else str(start)
            if loop.cyclic and start:
                first = f"{start} + {loop.step} * ((tid + {start // loop.step} * (nt - 1)) % nt)"
            last = until if stop == whole else f"min({until}, {stop})" if part else str(stop)
            with p.scope(f"for {i} in range({first}, {last}{step}):", i):
                p.reach(i, start, stop - loop.step + 1 if stop % loop.step == 0 else stop)
                self.at[a], self.unit[a] = i, math.gcd(before[2], loop.step)
                self.end[a] = f"{i} + {loop.step}" if even else f"min({i} + {loop.step}, {high})"
                body()
        if whole < extent:
            self.at[a], self.count[a] = str(whole), extent - whole
            with ExitStack() as stack:
                if part:
                    mine = f"tid == {whole // loop.step} % nt" if loop.cyclic else f"{high} > {whole}"
                    stack.enter_context(p.scope(f"if {mine}:"))
                body()
            self.count[a] = tile
        self.at[a], self.end[a], self.unit[a] = before

    def _seams(self, axis: int) -> list[int]:
        """Positions of an axis at which a guard that moves along it alone begins or ceases to hold."""
        kernels = (self.rows.stages[s].kernel for s in self.members)
        guards = (e for k in kernels for e in unique(k.body, k.epilogue) if isinstance(e, Guarded))
        held = (guard.held for guard in guards)
        return sorted({at for bounds in held if bounds is not None and bounds[0] == axis for at in bounds[1:]})

    def _chunks(self) -> list[tuple[str, str | None]]:
        """Position of the first lane, and how many lanes are in use (None: all), of each vector of the tile."""
        if self.vector is None:
            return [("0", None)]
        lanes, left, first = self.p.lanes, self.count[self.vector], self.at[self.vector]
        found: list[tuple[str, str | None]] = []
        for offset in range(0, left, lanes):
            position = str(int(first) + offset) if first.isdigit() else f"{first} + {offset}" if offset else first
            found.append((position, str(left - offset) if left - offset < lanes else None))
        return found

    def _beside(self) -> list[str]:
        """Positions of the axis of which the tile takes several."""
        if self.other is None:
            return ["0"]
        first = self.at[self.other]
        return [
            str(int(first) + n) if first.isdigit() else f"{first} + {n}" if n else first
            for n in range(self.count[self.other])
        ]

    def here(self, beside: str, position: str) -> tuple[str, ...]:
        here = list(self.at)
        if self.other is not None:
            here[self.other] = beside
        if self.vector is not None:
            here[self.vector] = position
        return tuple(here)

    # tiles

    def _points(self, totals: Totals | None) -> None:
        """The tile: bodies at its vectors; maps are stored, reductions combined into ``totals``."""
        if self.tiles is not None:
            self.tiles.print(totals)
            return
        jammed = totals is not None and self.other is not None and self.other >= self.kept
        chunks = self._chunks()
        if jammed:
            assert totals is not None
            for s, (copy, (position, count)) in itertools.product(self.reductions, enumerate(chunks)):
                values = [self._value(s, self.here(b, position), count) for b in self._beside()]
                rows = self.rows.accumulator(s, len(values))
                for name, value in zip(rows.names, values, strict=True):
                    if count is None:
                        self.p.bind(name, value.name)
                if count is not None:
                    rows.start()
                    for n, value in enumerate(values):
                        rows.step(n, value, count)
                rows.fold()
                totals[0][s].merge_value(copy, rows.names[0])
            return
        for row, b in enumerate(self._beside()):
            for copy, (position, count) in enumerate(chunks):
                self.point(self.here(b, position), count, copy, totals[row] if totals else {})

    def point(
        self,
        here: tuple[str, ...],
        count: str | None,
        copy: int,
        sums: dict[int, Accumulator],
        rule: LoadRule | None = None,
    ) -> None:
        """All members' bodies at one vector."""
        for s in self.members:
            if self.prefetches[s] and copy * self.p.lanes * self.kernel.body.dtype.itemsize % LINE == 0:
                self._next_row(s, here)
            value = self._value(s, here, count, rule)
            if s in sums:
                view = View(here, self.vector, self.rows.rule(s), count)
                sums[s].step(copy, value, count, self.rows.position(s, view))
            else:
                self.rows.live[s] = value
                kernel = self.rows.stages[s].kernel
                vector = self.vector if self.vector is not None and self.vector < kernel.parallel else None
                self.rows.store(s, value, here[: kernel.parallel], vector, count, self.streams[s])

    def _value(self, s: int, here: tuple[str, ...], count: str | None, rule: LoadRule | None = None) -> Value:
        kernel = self.rows.stages[s].kernel
        return self.p.value(kernel.body, View(here, self.vector, rule or self.rows.rule(s), count))

    def _next_row(self, s: int, here: tuple[str, ...]) -> None:
        """Ask for what a stage reads at this vector of the row that the nest says."""
        rows, last = self.rows, self.rows.shared - 1
        assert self.vector is not None
        if here[last].isdigit():
            return  # there is one row
        following = (*here[:last], f"{here[last]} + {self.prefetches[s]}", *here[last + 1 :])
        for load in ahead_loads(rows.stages[s].kernel, self.vector, range(rows.shared)):
            access = rows.rule(s)(load)
            if not isinstance(rows.stages[s].sources[load.operand], int) or not isinstance(access, Access):
                continue
            size = load.dtype.itemsize
            first = affine(access.base, access.offset, access.strides, following, size)
            for line in range(0, self.p.lanes * size, LINE):
                self.p.line(f"prefetch({first}{f' + {line}' if line else ''})")

    # reductions

    def _totals(self) -> Totals:
        """Accumulators of what the tile takes at once."""
        beside = len(self._beside()) if self.other is not None and self.other < self.kept else 1
        if self.vector is not None and self.vector < self.kept:
            copies = len(self._chunks())
        elif self.tile.name == "transpose":
            copies = min(COPIES, self.p.lanes)
        else:
            copies = max(1, self.tile.size(self.tile.sizes[-1][0]) // self.tile.lanes) if self.tile.sizes else 1
        return [{s: self.rows.accumulator(s, copies) for s in self.reductions} for _ in range(beside)]

    def _reduction(self, nest: Nest) -> None:
        """All of a reduction at this position of the parallel axes outside of it."""
        cells = self._cells(nest)
        if cells is None:
            totals = self._totals()
            if not self._begin(nest, totals):
                _start(totals)
            if not self.empty:
                self._reduce(nest, totals)
            self._finish(totals)
            return
        self._fill(nest, cells)
        if not self.empty:
            self._gather(nest, cells)
        self._sweep(nest, lambda: self._finish(self._load(cells)))

    def _reduce(self, nest: Nest, totals: Totals) -> None:
        """Loops over reduced axes, into registers."""
        if not isinstance(nest, Loop):
            self._points(totals)
            return
        inner = self._chain(nest.body, False)
        self._chained(nest, lambda into: self._reduce(nest.body, into), inner, totals, self._apart)

    def _begin(self, nest: Nest, totals: Totals) -> bool:
        """Whether the first values of a whole reduction by one tile begin its totals: nothing is added to zeros."""
        every = [total for row in totals for total in row.values()]
        if isinstance(nest, Loop) or self.empty or self.tile.name != "reduce" or any(t.positional for t in every):
            return False
        if self.vector is None or any(len(t.names) > len(self._chunks()) for t in every):
            return False
        for total in every:
            total.unset.update(range(len(total.names)))
        return True

    def _gather(self, nest: Nest, cells: _Cells) -> None:
        """Loops over reduced and parallel axes, into scratch."""
        if not _parallel_in(nest, self):
            totals = self._load(cells) if isinstance(nest, TileOp) else self._totals()
            if isinstance(nest, TileOp):
                self._points(totals)
                self._store(cells, totals)
                return
            _start(totals)
            self._reduce(nest, totals)
            before = self._load(cells)
            _merge(before, totals)
            self._store(cells, before)
            return
        assert isinstance(nest, Loop)
        if not self._reduced(nest):
            self._over(nest, lambda: self._gather(nest.body, cells))
            return

        def apart(body: Callable[[_Cells], None], into: _Cells) -> None:
            own = self._cells(nest)
            assert own is not None
            self._fill(nest, own)
            body(own)

            def add() -> None:
                total, part = self._load(into), self._load(own)
                _merge(total, part)
                self._store(into, total)

            self._sweep(nest, add)

        inner = self._chain(nest.body, True)
        self._chained(nest, lambda into: self._gather(nest.body, into), inner, cells, apart)

    def _chained(
        self,
        loop: Loop,
        body: Callable[[_T], None],
        inner: int,
        totals: _T,
        apart: Callable[[Callable[[_T], None], _T], None],
        suffix: str = "",
    ) -> None:
        """A loop over a reduced axis whose body adds ``inner`` times to each total: in blocks where that gets long."""
        trips = self._trips(loop)
        if not self.bounded or trips * inner <= CHAIN:
            self._over(loop, lambda: body(totals), suffix)
        elif inner >= BLOCK // 2:
            self._chained(loop, lambda into: apart(body, into), 1, totals, apart, suffix)
        else:
            block = loop.step * (BLOCK // inner)
            part = replace(loop, block=block, parallel=False, split=False)
            outer = replace(loop, step=block, body=part)
            within = lambda into: apart(lambda own: self._over(part, lambda: body(own), suffix), into)  # noqa: E731
            self._chained(outer, within, 1, totals, apart, "_sum")

    def _trips(self, loop: Loop) -> int:
        return -(-min(loop.block, max(1, self.extents[self.names[loop.axis]])) // loop.step)

    def _chain(self, nest: Nest, cells: bool) -> int:
        """How often a nest adds to each total that it is given; ``cells``: in scratch, once for a tile's registers."""
        if cells and not _parallel_in(nest, self):
            return 1
        if not isinstance(nest, Loop):
            return (
                self.p.lanes // min(COPIES, self.p.lanes) if nest == self.tile and self.tile.name == "transpose" else 1
            )
        inner = self._chain(nest.body, cells)
        if cells and not self._reduced(nest):
            return inner
        trips = self._trips(nest)
        while self.bounded and trips * inner > CHAIN:
            trips, inner = (trips, 1) if inner >= BLOCK // 2 else (-(-trips // (BLOCK // inner)), 1)
        return trips * inner

    def _apart(self, body: Callable[[Totals], None], totals: Totals) -> None:
        """Into accumulators of its own, then those into the totals."""
        own = [{s: self.rows.accumulator(s, len(total.names)) for s, total in row.items()} for row in totals]
        _start(own)
        body(own)
        _merge(totals, own)

    def _finish(self, totals: Totals) -> None:
        """Epilogues of whole reductions, and their stores."""
        rows = self.rows
        for row, beside in enumerate(self._beside() if len(totals) > 1 or self._jams() else ["0"]):
            for s, total in totals[row].items():
                kernel = rows.stages[s].kernel
                if self.vector is not None and self.vector < self.kept:
                    for copy, (position, count) in enumerate(self._chunks()):
                        here = self._results(kernel, beside, position)
                        view = View(here, self.vector, rows.rule(s), count, total.vector(copy))
                        value = self.p.value(kernel.epilogue, view)
                        kept = here[: kernel.parallel]
                        rows.store(s, value, kept, self.vector, count, self.streams[s])
                        if s in rows.extremes:
                            rows.store_extreme(s, total.best(copy), kept, self.vector, count)
                    continue
                here = self._results(kernel, beside, "0")
                value = rows.finish(s, total, here[: kernel.parallel])
                rows.store(s, value, here[: kernel.parallel], None, None)
                if s in rows.extremes:
                    rows.store_extreme(s, total.extreme(), here[: kernel.parallel], None, None)
                if kernel.parallel == rows.shared:
                    rows.live[s] = value

    def _jams(self) -> bool:
        return self.other is not None and self.other < self.kept

    def _results(self, kernel: Kernel, beside: str, position: str) -> tuple[str, ...]:
        """Positions of results: 0 along reduced axes."""
        here = self.here(beside, position)
        return (*here[: kernel.parallel], *("0" for _ in here[kernel.parallel :]))

    # partial results in scratch

    def _cells(self, nest: Nest) -> _Cells | None:
        """Scratch for a reduction within which loops over parallel axes stand; None if there are none."""
        loops: dict[int, Loop] = {}
        at = nest
        while isinstance(at, Loop):
            if not self._reduced(at):
                loops.setdefault(self.names[at.axis], at)
            at = at.body
        if not loops:
            return None
        sizes = (self.rows.stages[s].kernel.body.dtype.itemsize for s in self.reductions)
        totals = self.p.lanes * sum(sizes)  # bytes of the tile's accumulators
        for a in self.sizes:
            if a == self.vector:
                totals *= max(1, self.sizes[a] // self.p.lanes) if self.tile.name != "transpose" else COPIES
            elif a < self.kept:
                totals *= self.sizes[a]
        pitches: dict[int, int] = {}
        for a in sorted(loops, reverse=True):
            unit = self.sizes.get(a, 1)
            pitches[a] = totals // unit
            totals *= -(-min(loops[a].block, self.extents[a]) // unit)
        return _Cells(self.take(totals), pitches, {a: self.at[a] for a in loops})

    def _cell(self, cells: _Cells) -> str:
        terms = [cells.base]
        for a, pitch in cells.pitches.items():
            start, here = cells.starts[a], self.at[a]
            if here == start:
                continue
            distance = here if start == "0" else f"({here} - {start})"
            terms.append(f"{pitch} * {distance}")
        return " + ".join(terms)

    def _each(self, cells: _Cells, totals: Totals) -> list[tuple[str, Accumulator, int]]:
        """Address, accumulator and copy of all that is kept for the tile."""
        base = self._cell(cells)
        found, offset = [], 0
        for row in totals:
            for total in row.values():
                for copy in range(len(total.names)):
                    found.append((f"{base} + {offset}" if offset else base, total, copy))
                    offset += self.p.lanes * total.dtype.itemsize
        return found

    def _load(self, cells: _Cells) -> Totals:
        totals = self._totals()
        for address, total, copy in self._each(cells, totals):
            self.p.bind(total.names[copy], f"load_{self.p.type(total.dtype)}({address})")
        return totals

    def _store(self, cells: _Cells, totals: Totals) -> None:
        for address, total, copy in self._each(cells, totals):
            self.p.line(f"store({address}, {total.names[copy]})")

    def _fill(self, nest: Nest, cells: _Cells) -> None:
        def start() -> None:
            totals = self._totals()
            _start(totals)
            self._store(cells, totals)

        self._sweep(nest, start)

    def _sweep(self, nest: Nest, body: Body) -> None:
        """The nest's loops over parallel axes alone."""
        if not isinstance(nest, Loop):
            body()
        elif self._reduced(nest):
            self._sweep(nest.body, body)
        else:
            self._over(nest, lambda: self._sweep(nest.body, body))


def _peeled(extent: int, step: int, seams: Sequence[int]) -> list[tuple[int, int]]:
    """``extent`` elements in runs of whole steps, such that steps across a seam are not in one run with others.

    One run where there would be too many.
    """
    marks = {0, extent}
    for seam in seams:
        if 0 < seam < extent:
            marks |= {seam // step * step, -(-seam // step) * step}
    runs = list(itertools.pairwise(sorted(marks)))
    return runs if len(runs) <= RUNS else [(0, extent)]


def _start(totals: Totals) -> None:
    for row in totals:
        for total in row.values():
            total.start()


def _merge(totals: Totals, parts: Totals) -> None:
    for row, part in zip(totals, parts, strict=True):
        for s, total in row.items():
            for copy in range(len(total.names)):
                total.merge(copy, part[s])


def _has(nest: Nest, axis: str) -> bool:
    while isinstance(nest, Loop):
        if nest.axis == axis:
            return True
        nest = nest.body
    return False


def _parallel_in(nest: Nest, walk: Walk) -> bool:
    """Whether a loop over a parallel axis stands in a nest."""
    while isinstance(nest, Loop):
        if walk.names[nest.axis] < walk.kept:
            return True
        nest = nest.body
    return False

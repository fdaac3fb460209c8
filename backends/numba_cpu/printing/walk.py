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
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from eqsat.cost.calibration import LINE
from eqsat.ir.axes import merged
from eqsat.ir.kernel import Kernel
from eqsat.ir.nest import Loop, Nest, TileOp
from eqsat.schedule.domain import column_of
from eqsat.schedule.maps import adjoining, axes_of, check_nest, tile_of
from eqsat.schedule.peel import Peeling
from eqsat.schedule.read_again import ahead_loads
from eqsat_backends.numba_cpu.printing.accumulators import Accumulator, across_rows
from eqsat_backends.numba_cpu.printing.cells import Cells, Totals, keeps_scratch, merge_totals, start_totals
from eqsat_backends.numba_cpu.printing.printer import Access, LoadRule, View, affine
from eqsat_backends.numba_cpu.printing.scopes import Value
from eqsat_backends.numba_cpu.printing.shared_rows import combine_rows, rows_of
from eqsat_backends.numba_cpu.printing.transposed import COPIES, Transposed
from eqsat_backends.numba_cpu.tiles.tile_ops import registered
from eqsat_backends.numba_cpu.vectors.lanes import EACH

if TYPE_CHECKING:
    from eqsat_backends.numba_cpu.printing.nests import Rows

__all__ = ["Walk"]

CHAIN = 256
"""Longest run of additions into one accumulator; longer sums are summed in blocks."""
BLOCK = 64
"""Additions into an accumulator of such a block."""
_T = TypeVar("_T")


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
        self.kernels = [kernels[s] for s in self.members]
        check_nest(nest, self.kernel, rows.shared, registered(), self.kernels)
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
        self.run: list[tuple[int, int]] = []
        """Along each axis, the run of a peeled loop that the block at hand is in: first position, and the one after."""
        vectors = math.prod(-(-n // rows.p.lanes) if a == self.vector else n for a, n in self.sizes.items())
        alike = [replace(kernel, body=merged(kernel.body)) for kernel in self.kernels]
        self.peeling = Peeling(alike, self.names, self.sizes, vectors)
        self.room = 0
        """Values that may be printed of the block at hand."""
        self.count = dict(self.sizes)
        self.empty = 0 in self.extents
        self.tiles: Transposed | None = None
        self.column = column_of(self.kernel, rows.shared) if rows.window else None

    def print(self, shared: tuple[str, ...]) -> None:
        """Print the nest at these positions of the shared axes."""
        self.at = [*shared, *("0" for _ in self.extents[len(shared) :])]
        self.end = [str(extent) for extent in self.extents]
        self.unit = [1 if extent in self.p.varying else extent for extent in self.extents]
        self.run = [(0, extent) for extent in self.extents]
        self.room = self.peeling.room(self.nest, tuple(self.run))
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
                self.over(nest, lambda: self._part(nest))
            case Loop() if not self.reduced(nest):
                self.over(nest, lambda: self._walk(nest.body))
            case _ if self.reductions:
                self._reduction(nest)
            case _:
                self.points(None)

    def _part(self, loop: Loop) -> None:
        """One part of a split reduction, whose number is ``part``."""
        self.p.bind("part", f"{self.at[self.names[loop.axis]]} // {loop.step}")
        self._walk(loop.body)

    def reduced(self, loop: Loop) -> bool:
        return self.names[loop.axis] >= self.kept

    def over(self, loop: Loop, body: Callable[[], None], suffix: str = "") -> None:
        """A loop: whole steps, and behind the innermost one of a tile's axis what is left over, which is fewer."""
        p, a = self.p, self.names[loop.axis]
        extent, tile = self.extents[a], self.sizes.get(a, 1)
        low, high = self.at[a], self.end[a]
        innermost = not _has(loop.body, loop.axis)
        whole = self.peeling.whole(loop)
        part = loop.parallel or loop.block < extent or a == self.column
        generic = innermost and extent in p.varying and self.tiles is None and not loop.cyclic
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
        until = high if whole == extent and not generic else f"min({high}, {whole})" if part else str(whole)
        before, around = (self.at[a], self.end[a], self.unit[a]), self.run[a]
        even = self.unit[a] % loop.step == 0
        rest, room = whole < around[1] or (generic and around[1] == extent), self.room
        if self.peeling.unrolls(loop, tuple(self.run), self.kept, self.vector):
            for n in range(0, extent, loop.step):
                self.run[a] = n, min(n + loop.step, extent)
                self._at(a, str(n), min(tile, extent - n), body)
            self.count[a], self.at[a], self.run[a] = tile, before[0], around
            return
        parts = self.peeling.parts(loop, tuple(self.run), room) if whole else [((0, 0), room)] * generic
        for (start, stop), self.room in parts:
            i = p.fresh(f"{loop.axis}{suffix}_")
            step = f", {loop.step} * nt" if loop.cyclic else f", {loop.step}" if loop.step != 1 else ""
            first = low if start == 0 else f"max({low}, {start})" if part else str(start)
            if loop.cyclic and start:
                first = f"{start} + {loop.step} * ((tid + {start // loop.step} * (nt - 1)) % nt)"
            last = until if stop == whole else f"min({until}, {stop})" if part else str(stop)
            with p.scope(f"for {i} in range({first}, {last}{step}):", i):
                self.run[a] = start, stop = max(start, around[0]), min(stop, around[1])
                p.reach(i, start, stop - loop.step + 1 if stop % loop.step == 0 else stop)
                self.at[a], self.unit[a] = i, math.gcd(before[2], loop.step)
                self.end[a] = f"{i} + {loop.step}" if even else f"min({i} + {loop.step}, {high})"
                body()
        self.run[a] = (whole, around[1]) if whole < around[1] else around
        self.room = room - sum(share for _, share in parts)
        if rest:
            with ExitStack() as stack:
                if part:
                    mine = f"tid == {whole // loop.step} % nt" if loop.cyclic else f"{high} > {whole}"
                    stack.enter_context(p.scope(f"if {mine}:"))
                self._left(a, whole, tile, body) if generic else self._at(a, str(whole), extent - whole, body)
            self.count[a] = tile
        self.at[a], self.end[a], self.unit[a] = before
        self.run[a], self.room = around, room

    def _at(self, axis: int, position: str, count: int, body: Callable[[], None]) -> None:
        self.at[axis], self.count[axis] = position, count
        body()

    def _left(self, axis: int, whole: int, tile: int, body: Callable[[], None]) -> None:
        """What whole tiles leave over, however much: a loop over vectors, and a part of one, which may be empty."""
        extent, unit = self.extents[axis], self.p.lanes if axis == self.vector else 1
        end = extent // unit * unit
        if unit < tile:
            i = self.p.fresh("left_")
            with self.p.scope(f"for {i} in range({whole}, {end}, {unit}):", i):
                self.p.reach(i, whole, max(end, whole + 1))
                self._at(axis, i, unit, body)
        if unit > 1:
            self._at(axis, str(end), extent - end, body)

    def chunks(self) -> list[tuple[str, str | None]]:
        """Position of the first lane, and how many lanes are in use (None: all), of each vector of the tile."""
        if self.vector is None:
            return [("0", None)]
        lanes, left, first = self.p.lanes, self.count[self.vector], self.at[self.vector]
        found: list[tuple[str, str | None]] = []
        for offset in range(0, max(left, 1), lanes):  # of none, no lane
            found.append((_behind(first, offset), str(left - offset) if left - offset < lanes else None))
        return found

    def beside(self) -> list[str]:
        """Positions of the axis of which the tile takes several."""
        if self.other is None:
            return ["0"]
        return [_behind(self.at[self.other], n) for n in range(self.count[self.other])]

    def here(self, beside: str, position: str) -> tuple[str, ...]:
        here = list(self.at)
        if self.other is not None:
            here[self.other] = beside
        if self.vector is not None:
            here[self.vector] = position
        return tuple(here)

    # tiles

    def points(self, totals: Totals | None) -> None:
        """The tile: bodies at its vectors; maps are stored, reductions combined into ``totals``."""
        if self.tiles is not None:
            self.tiles.print(totals)
            return
        jammed = totals is not None and self.other is not None and self.other >= self.kept
        chunks = self.chunks()
        if jammed:
            assert totals is not None
            for s, (copy, (position, count)) in itertools.product(self.reductions, enumerate(chunks)):
                values = [self.value(s, self.here(b, position), count) for b in self.beside()]
                rows = self.rows.accumulator(s, len(values))
                for name, value in zip(rows.names, values, strict=True):
                    self.p.bind(name, rows.first(value, count).name)
                rows.fold()
                totals[0][s].merge_value(copy, rows.names[0])
            return
        for row, b in enumerate(self.beside()):
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
            value = self.value(s, here, count, rule)
            if s in sums:
                view = View(here, self.vector, self.rows.rule(s), count)
                lanes = count if self.vector is None or self.vector >= self.kept else None  # others are not stored
                sums[s].step(copy, value, lanes, self.rows.position(s, view))
            else:
                self.rows.live[s] = value
                kernel = self.rows.stages[s].kernel
                vector = self.vector if self.vector is not None and self.vector < kernel.parallel else None
                self.rows.store(s, value, here[: kernel.parallel], vector, count, self.streams[s])

    def value(self, s: int, here: tuple[str, ...], count: str | None, rule: LoadRule | None = None) -> Value:
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

    def totals(self) -> Totals:
        """Accumulators of what the tile takes at once."""
        beside = len(self.beside()) if self.other is not None and self.other < self.kept else 1
        if self.vector is not None and self.vector < self.kept:
            copies = len(self.chunks())
        elif self.tile.name == "transpose":
            copies = min(COPIES, self.p.lanes)
        else:
            copies = max(1, self.tile.size(self.tile.sizes[-1][0]) // self.p.lanes) if self.tile.sizes else 1
        return [{s: self.rows.accumulator(s, copies) for s in self.reductions} for _ in range(beside)]

    def _reduction(self, nest: Nest) -> None:
        """All of a reduction at this position of the parallel axes outside of it."""
        if keeps_scratch(self, nest):
            cells = Cells(self, nest)
            cells.start()
            if not self.empty:
                cells.gather(nest)
            cells.each(lambda: self._finish(cells.load()))
            return
        totals = self.totals()
        if found := rows_of(self, nest):
            combine_rows(self, found, totals)
            self._finish(totals)
            return
        if not self._begin(nest, totals):
            start_totals(totals)
        if not self.empty:
            self.reduce(nest, totals)
        self._finish(totals)

    def reduce(self, nest: Nest, totals: Totals) -> None:
        """Loops over reduced axes, into registers."""
        if not isinstance(nest, Loop):
            self.points(totals)
            return
        inner = self.chain(nest.body, False)
        self.chained(nest, lambda into: self.reduce(nest.body, into), inner, totals, self._apart)

    def _begin(self, nest: Nest, totals: Totals) -> bool:
        """Whether the first values of a whole reduction by one tile begin its totals: nothing is added to zeros."""
        every = [total for row in totals for total in row.values()]
        if isinstance(nest, Loop) or self.empty or self.tile.name != "reduce" or any(t.positional for t in every):
            return False
        if self.vector is None or any(len(t.names) > len(self.chunks()) for t in every):
            return False
        for total in every:
            total.unset.update(range(len(total.names)))
        return True

    def chained(
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
            self.over(loop, lambda: body(totals), suffix)
        elif inner >= BLOCK // 2:
            self.chained(loop, lambda into: apart(body, into), 1, totals, apart, suffix)
        else:
            block = loop.step * (BLOCK // inner)
            part = replace(loop, block=block, parallel=False, split=False, peel=False)
            outer = replace(loop, step=block, body=part)
            within = lambda into: apart(lambda own: self.over(part, lambda: body(own), suffix), into)  # noqa: E731
            self.chained(outer, within, 1, totals, apart, "_sum")

    def _trips(self, loop: Loop) -> int:
        return -(-min(loop.block, max(1, self.extents[self.names[loop.axis]])) // loop.step)

    def chain(self, nest: Nest, cells: bool) -> int:
        """How often a nest adds to each total that it is given; ``cells``: in scratch, once for a tile's registers."""
        if cells and not keeps_scratch(self, nest):
            return 1
        if not isinstance(nest, Loop):
            return (
                self.p.lanes // min(COPIES, self.p.lanes) if nest == self.tile and self.tile.name == "transpose" else 1
            )
        inner = self.chain(nest.body, cells)
        if cells and not self.reduced(nest):
            return inner
        trips = self._trips(nest)
        while self.bounded and trips * inner > CHAIN:
            trips, inner = (trips, 1) if inner >= BLOCK // 2 else (-(-trips // (BLOCK // inner)), 1)
        return trips * inner

    def _apart(self, body: Callable[[Totals], None], totals: Totals) -> None:
        """Into accumulators of its own, then those into the totals."""
        own = [{s: self.rows.accumulator(s, len(total.names)) for s, total in row.items()} for row in totals]
        start_totals(own)
        body(own)
        merge_totals(totals, own)

    def _finish(self, totals: Totals) -> None:
        """Epilogues of whole reductions, and their stores."""
        positions = self.beside() if len(totals) > 1 or self._jams() else ["0"]
        for s in totals[0]:
            each = [row[s] for row in totals]
            if len(positions) > 1 and self._in_one_vector(s):
                self._finish_together(s, each, positions)
                continue
            for total, beside in zip(each, positions, strict=True):
                if self.vector is not None and self.vector < self.kept:
                    self._finish_vectors(s, total, beside)
                else:
                    self._finish_lanes(s, total, beside)

    def _finish_vectors(self, s: int, total: Accumulator, beside: str) -> None:
        """Vectors of results."""
        rows, kernel = self.rows, self.rows.stages[s].kernel
        for copy, (position, count) in enumerate(self.chunks()):
            here = self._results(kernel, beside, position)
            view = View(here, self.vector, rows.rule(s), count, total.vector(copy))
            value = self.p.value(kernel.epilogue, view)
            kept = here[: kernel.parallel]
            rows.store(s, value, kept, self.vector, count, self.streams[s])
            if s in rows.extremes:
                rows.store_extreme(s, total.best(copy), kept, self.vector, count)

    def _finish_lanes(self, s: int, total: Accumulator, beside: str) -> None:
        """One result, of all lanes."""
        rows, kernel = self.rows, self.rows.stages[s].kernel
        here = self._results(kernel, beside, "0")[: kernel.parallel]
        value = rows.finish(s, total, here)
        rows.store(s, value, here, None, None)
        if s in rows.extremes:
            rows.store_extreme(s, total.extreme(), here, None, None)
        if kernel.parallel == rows.shared:
            rows.live[s] = value

    def _finish_together(self, s: int, totals: Sequence[Accumulator], positions: Sequence[str]) -> None:
        """Results of neighbours, of all lanes of each, a vector at a time. Parts of vectors are not streamed."""
        rows, kernel, most = self.rows, self.rows.stages[s].kernel, min(self.p.lanes, EACH[-1])
        for first in range(0, len(totals), most):
            some = totals[first : first + most]
            here = self._results(kernel, positions[first], "0")
            count = str(len(some)) if len(some) < self.p.lanes else None
            view = View(here, self.other, rows.rule(s), count, across_rows(some))
            value = self.p.value(kernel.epilogue, view)
            rows.store(s, value, here[: kernel.parallel], self.other, count)

    def _in_one_vector(self, s: int) -> bool:
        """Whether results of neighbours, of all lanes of each, are finished together."""
        if self.other is None or self.p.lanes < EACH[0] or (self.vector is not None and self.vector < self.kept):
            return False
        return adjoining(self.rows.stages[s].kernel, self.other)

    def _jams(self) -> bool:
        return self.other is not None and self.other < self.kept

    def _results(self, kernel: Kernel, beside: str, position: str) -> tuple[str, ...]:
        """Positions of results: 0 along reduced axes."""
        here = self.here(beside, position)
        return (*here[: kernel.parallel], *("0" for _ in here[kernel.parallel :]))


def _behind(position: str, n: int) -> str:
    return str(int(position) + n) if position.isdigit() else f"{position} + {n}" if n else position


def _has(nest: Nest, axis: str) -> bool:
    while isinstance(nest, Loop):
        if nest.axis == axis:
            return True
        nest = nest.body
    return False

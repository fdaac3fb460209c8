"""Partial results of reductions within which loops over parallel axes stand: kept in scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from eqsat.ir.nest import Loop, Nest, TileOp
from eqsat_backends.numba_cpu.printing.accumulators import Accumulator
from eqsat_backends.numba_cpu.printing.transposed import COPIES

if TYPE_CHECKING:
    from eqsat_backends.numba_cpu.printing.walk import Walk

__all__ = ["Cells", "Totals", "keeps_scratch", "merge_totals", "start_totals"]

Totals = list[dict[int, Accumulator]]
"""Accumulators in registers: for every position that the tile takes of a parallel axis, those of each reduction."""


def start_totals(totals: Totals) -> None:
    for row in totals:
        for total in row.values():
            total.start()


def merge_totals(totals: Totals, parts: Totals) -> None:
    for row, part in zip(totals, parts, strict=True):
        for s, total in row.items():
            for copy in range(len(total.names)):
                total.merge(copy, part[s])


def keeps_scratch(walk: Walk, nest: Nest) -> bool:
    """Whether a loop over a parallel axis stands in a nest."""
    while isinstance(nest, Loop):
        if not walk.reduced(nest):
            return True
        nest = nest.body
    return False


class Cells:
    """The tile's accumulators at every position of the parallel axes within a block, which ``nest`` walks."""

    def __init__(self, walk: Walk, nest: Nest) -> None:
        self.walk, self.nest, self.p = walk, nest, walk.p
        loops: dict[int, Loop] = {}
        while isinstance(nest, Loop):
            if not walk.reduced(nest):
                loops.setdefault(walk.names[nest.axis], nest)
            nest = nest.body
        sizes = (walk.rows.stages[s].kernel.body.dtype.itemsize for s in walk.reductions)
        totals = self.p.lanes * sum(sizes)  # bytes of the tile's accumulators
        for a in walk.sizes:
            if a == walk.vector:
                totals *= max(1, walk.sizes[a] // self.p.lanes) if walk.tile.name != "transpose" else COPIES
            elif a < walk.kept:
                totals *= walk.sizes[a]
        self.pitches: dict[int, int] = {}
        """Bytes from one position to the next by axis."""
        for a in sorted(loops, reverse=True):
            unit = walk.sizes.get(a, 1)
            self.pitches[a] = totals // unit
            totals *= -(-min(loops[a].block, walk.extents[a]) // unit)
        self.base = walk.take(totals)
        self.starts = {a: walk.at[a] for a in loops}
        """Where the block begins along each axis."""

    def _places(self, totals: Totals) -> list[tuple[str, Accumulator, int]]:
        """Address, accumulator and copy of all that is kept for the tile."""
        terms = [self.base]
        for a, pitch in self.pitches.items():
            first, here = self.starts[a], self.walk.at[a]
            if here != first:
                terms.append(f"{pitch} * {here if first == '0' else f'({here} - {first})'}")
        base = " + ".join(terms)
        found, offset = [], 0
        for row in totals:
            for total in row.values():
                for copy in range(len(total.names)):
                    found.append((f"{base} + {offset}" if offset else base, total, copy))
                    offset += self.p.lanes * total.dtype.itemsize
        return found

    def load(self) -> Totals:
        totals = self.walk.totals()
        for address, total, copy in self._places(totals):
            self.p.bind(total.names[copy], f"load_{self.p.type(total.dtype)}({address})")
        return totals

    def store(self, totals: Totals) -> None:
        for address, total, copy in self._places(totals):
            self.p.line(f"store({address}, {total.names[copy]})")

    def start(self) -> None:
        """Fill all with what leaves values as they are."""

        def fill() -> None:
            totals = self.walk.totals()
            start_totals(totals)
            self.store(totals)

        self.each(fill)

    def add(self, parts: Cells) -> None:
        """Combine others of the same tile's into these; of several, where their nest walks them."""
        totals, own = self.load(), parts.load()
        merge_totals(totals, own)
        self.store(totals)

    def each(self, body: Callable[[], None]) -> None:
        """The nest's loops over parallel axes alone, around ``body``."""
        self._sweep(self.nest, body)

    def _sweep(self, nest: Nest, body: Callable[[], None]) -> None:
        if not isinstance(nest, Loop):
            body()
        elif self.walk.reduced(nest):
            self._sweep(nest.body, body)
        else:
            self.walk.over(nest, lambda: self._sweep(nest.body, body))

    def gather(self, nest: Nest) -> None:
        """Loops over reduced and parallel axes, into these."""
        walk = self.walk
        if isinstance(nest, TileOp):
            totals = self.load()
            walk.points(totals)
            self.store(totals)
            return
        if not keeps_scratch(walk, nest):
            totals = walk.totals()
            start_totals(totals)
            walk.reduce(nest, totals)
            before = self.load()
            merge_totals(before, totals)
            self.store(before)
            return
        assert isinstance(nest, Loop)
        if not walk.reduced(nest):
            walk.over(nest, lambda: self.gather(nest.body))
            return

        def apart(body: Callable[[Cells], None], into: Cells) -> None:
            own = Cells(walk, nest)
            own.start()
            body(own)
            own.each(lambda: into.add(own))

        inner = walk.chain(nest.body, True)
        walk.chained(nest, lambda into: into.gather(nest.body), inner, self, apart)

"""Reductions that keep several results at once, one a lane: sums of columns, extremes over leading axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from eqsat_backends.numba_cpu.accumulators import Accumulator
from eqsat_backends.numba_cpu.axes import loads, maps_of
from eqsat_backends.numba_cpu.chunks import Chunk, Part, blocks, seams_of
from eqsat_backends.numba_cpu.places import BLOCK, CHAIN, FAR, WIDE, weight
from eqsat_backends.numba_cpu.printer import Access, View, affine

if TYPE_CHECKING:
    from eqsat_backends.numba_cpu.nests import Rows

__all__ = ["Columns"]


class Columns:
    """Prints the column reductions among the stages of ``rows``."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.p = rows, rows.p

    def print(self, s: int, positions: list[str], vector: int, split: Part | None, part: Part | None) -> None:
        """Several results at once, one a lane: accumulators for a block of columns, then all reduced axes."""
        kernel = self.rows.stages[s].kernel
        reduced = range(kernel.parallel, len(kernel.extents))
        copies = self.copies(s)

        def body(chunks: list[Chunk]) -> None:
            totals = self.rows.accumulator(s, len(chunks))
            totals.start()
            if kernel.extents[kernel.parallel]:
                self._reduce(s, chunks, positions, vector, part, totals)
            for copy, (position, count) in enumerate(chunks):
                here = [*positions, *("0" for _ in reduced)]
                here[vector] = position
                view = View(tuple(here), vector, self.rows.rule(s), count, totals.vector(copy))
                value = self.p.value(kernel.epilogue, view)
                self.rows.store(s, value, tuple(here[: kernel.parallel]), vector, count)
                self.rows.store_extreme(s, totals.best(copy), tuple(here[: kernel.parallel]), vector, count)

        if not self.wide(s):
            seams = seams_of([kernel], vector)
            blocks(self.p, kernel.extents[vector], self.p.lanes * copies, body, split, None, seams)
            return
        self._wide(s, positions, vector, split)
        whole = kernel.extents[vector] // self.p.lanes * self.p.lanes
        if whole < kernel.extents[vector]:
            with ExitStack() as stack:
                if split is not None:
                    stack.enter_context(self.p.scope(f"if {split.last}:"))
                body([(str(whole), str(kernel.extents[vector] - whole))])

    def copies(self, s: int) -> int:
        """Vectors of columns that a reduction of columns keeps at once."""
        kernel = self.rows.stages[s].kernel
        extent = max((kernel.extents[a] for a in range(self.rows.shared, kernel.parallel)), default=0)
        copies = 4 if weight(kernel) <= 12 else 2
        while copies > 1 and copies > extent // self.p.lanes:
            copies //= 2
        return copies

    def wide(self, s: int) -> bool:
        """Whether a reduction of columns accumulates in scratch, so that it can read long pieces of each row.

        It pays when rows lie far apart in memory and are many; short pieces of them defeat prefetching.
        """
        kernel = self.rows.stages[s].kernel
        if (
            not self.rows.scratch
            or kernel.combine in ("argmax", "argmin", None)
            or kernel.parallel != self.rows.shared + 1
        ):
            return False
        vector, reduced = kernel.parallel - 1, kernel.extents[kernel.parallel :]
        walked = max((strides[kernel.parallel] for strides in maps_of(kernel)), default=0)
        size = kernel.body.dtype.itemsize
        rows_far = walked * size >= FAR and math.prod(reduced) >= 16 and weight(kernel) <= 12
        return rows_far and kernel.extents[vector] >= 32 * self.p.lanes

    def _wide(self, s: int, positions: list[str], vector: int, split: Part | None) -> None:
        """Sums (or products, extremes) of a long piece of every row, several rows at a time, kept in scratch."""
        kernel, p = self.rows.stages[s].kernel, self.p
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
                body(j, f"{self.rows.scratch} + {size} * ({j} - {start})")

        def begin(j: str, address: str) -> None:
            accumulator = self.rows.accumulator(s, 1)
            accumulator.start()
            p.line(f"store({address}, {accumulator.names[0]})")

        def combine(first: str, rows: int, walked: list[str]) -> Callable[[str, str], None]:
            def body(j: str, address: str) -> None:
                values = []
                for row in range(rows):
                    here = [*positions, f"{first} + {row}" if row else first, *walked]
                    here[vector] = j
                    values.append(p.value(kernel.body, View(tuple(here), vector, self.rows.rule(s))))
                for row in range(rows, 2 * rows):
                    here = [*positions, f"{first} + {row}", *walked]
                    here[vector] = j
                    self._prefetch(s, here, vector)
                accumulator = self.rows.accumulator(s, rows)
                for name, value in zip(accumulator.names, values, strict=True):
                    p.bind(name, value.name)
                accumulator.fold()
                before = self.rows.accumulator(s, 1)
                p.bind(before.names[0], f"load_{p.type(kernel.body.dtype)}({address})")
                before.merge(0, accumulator)
                p.line(f"store({address}, {before.names[0]})")

            return body

        def finish(j: str, address: str) -> None:
            total = self.rows.accumulator(s, 1)
            p.bind(total.names[0], f"load_{p.type(kernel.body.dtype)}({address})")
            here = [*positions, *("0" for _ in range(1 + len(others)))]
            here[vector] = j
            view = View(tuple(here), vector, self.rows.rule(s), acc=total.vector(0))
            self.rows.store(s, p.value(kernel.epilogue, view), tuple(here[: kernel.parallel]), vector, None)

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
                    walked = [self.rows.loop(stack, extent) for extent in others]
                    sweep(combine(i, rows, walked))
            sweep(finish)

    def _prefetch(self, s: int, positions: list[str], vector: int) -> None:
        """Ask for what the next rows read here: hardware prefetching starts afresh at every page of each row."""
        kernel = self.rows.stages[s].kernel
        for load in dict.fromkeys(loads(kernel.body)):
            if load.strides[vector] != 1 or not load.strides[kernel.parallel] or load.gathers:
                continue
            access = self.rows.rule(s)(load)
            if isinstance(access, Access):
                address = affine(access.base, access.offset, access.strides, positions, load.dtype.itemsize)
                self.p.line(f"prefetch({address})")

    def _reduce(
        self,
        s: int,
        chunks: list[Chunk],
        positions: list[str],
        vector: int,
        part: Part | None,
        totals: Accumulator,
    ) -> None:
        """Loops over all reduced axes, combining each chunk into its own accumulator."""
        kernel = self.rows.stages[s].kernel
        outermost, *others = kernel.extents[kernel.parallel :]
        low, high = (part.low, part.high) if part else ("0", str(outermost))
        long = kernel.combine == "sum" and kernel.body.dtype.is_float and outermost > CHAIN
        with ExitStack() as stack:
            inner = totals
            if long:
                start = self.p.fresh("b")
                stack.enter_context(self.p.scope(f"for {start} in range({low}, {high}, {BLOCK}):", start))
                inner = self.rows.accumulator(s, len(chunks))
                inner.start()
                low, high = start, f"min({start} + {BLOCK}, {high})"
            with ExitStack() as loops_:
                walked = [self.rows.loop(loops_, outermost, low, high)]
                walked += [self.rows.loop(loops_, extent) for extent in others]
                for copy, (position, count) in enumerate(chunks):
                    here = [*positions, *walked]
                    here[vector] = position
                    view = View(tuple(here), vector, self.rows.rule(s), count)
                    inner.step(copy, self.p.value(kernel.body, view), None, self.rows.position(s, view))
            if long:
                for copy in range(len(chunks)):
                    totals.merge(copy, inner)

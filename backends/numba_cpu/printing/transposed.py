"""Blocks that are loaded along one axis and computed along another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eqsat.ir.kernel import Kernel, Load
from eqsat.ir.types import DType
from eqsat.schedule.vector_cost import turned_loads, turns_results
from eqsat_backends.numba_cpu.printing.accumulators import Accumulator
from eqsat_backends.numba_cpu.printing.printer import Access, LoadRule, View, affine
from eqsat_backends.numba_cpu.printing.scopes import Value, names_in

if TYPE_CHECKING:
    from eqsat_backends.numba_cpu.printing.walk import Walk

__all__ = ["COPIES", "Transposed"]

COPIES = 4
"""Accumulators of a transposed block, so that one addition does not wait for another."""


class Transposed:
    """Blocks of lanes × lanes, turned over by shuffles: loads lie along one axis, results along another.

    A vector along the other axis would be put together from as many cache lines as it has lanes. Where all loads lie
    along the one, results are computed along it, and turned over on the way to where they are stored; else loads are
    turned over into scratch. At the rim blocks have fewer rows, or shorter ones.
    """

    def __init__(self, walk: Walk, kernel: Kernel, vector: int, axis: int) -> None:
        self.walk, self.p, self.kernel, self.vector, self.axis = walk, walk.p, kernel, vector, axis
        (self.s,) = walk.members
        lanes = self.p.lanes
        self.row = lanes * kernel.body.dtype.itemsize
        """Bytes from row to row of a block of results in scratch."""
        self.targets: list[tuple[str, int, tuple[int, ...]]] = []
        """Where results are turned over to; nothing where loads are turned over."""
        self.places: dict[tuple[int, int, tuple[int, ...]], str] = {}
        if turns_results(kernel, vector, axis):
            self.targets = walk.rows.targets(self.s)
            through = any(strides[vector] != 1 for _, _, strides in self.targets) or walk.streams[self.s]
            self.through = walk.take(lanes * self.row) if through else None
            self.block = None if isinstance(kernel.body, Load) else self.through or walk.take(lanes * self.row)
            return
        for load in turned_loads(kernel, vector, axis):
            size = lanes**2 * load.dtype.itemsize
            self.places[load.operand, load.offset, load.strides] = walk.take(size)

    def print(self, totals: list[dict[int, Accumulator]] | None) -> None:
        """One block."""
        first, j = self.walk.at[self.axis], self.walk.at[self.vector]
        tall, wide = self.walk.count[self.axis], self.walk.count[self.vector]
        if self.targets:
            self._results(first, j, tall, wide)
        else:
            self._loads(first, j, tall, wide, totals)

    def _turn(self, dtype: DType, to: str, row: int, source: str, step: int, tall: int, wide: int) -> None:
        """``wide`` rows of ``tall`` elements, copied as ``tall`` rows of ``wide``."""
        kind, size = ("", "") if tall == wide == self.p.lanes else ("n", f", {tall}, {wide}")
        self.p.line(f"transpose{kind}_{self.p.type(dtype)}({to}, {row}, {source}, {step}{size})")
        self.p.mark("tiles")

    def _results(self, first: str, j: str, tall: int, wide: int) -> None:
        """Rows along the axis of loads, and what they make turned over."""
        walk, p, dtype = self.walk, self.p, self.kernel.body.dtype
        size = dtype.itemsize
        if isinstance(self.kernel.body, Load):
            access = walk.rows.rule(self.s)(self.kernel.body)
            assert isinstance(access, Access)
            source = affine(access.base, access.offset, access.strides, tuple(walk.at), size)
            step = access.strides[self.vector] * size
        else:
            assert self.block is not None
            source, step = self.block, self.row
            row = p.fresh("row")
            with p.scope(f"for {row} in range({wide}):", row):
                count = str(tall) if tall < p.lanes else None
                view = View(walk.here(first, f"{j} + {row}"), self.axis, walk.rows.rule(self.s), count)
                p.store(f"{source} + {self.row} * {row}", 1, p.value(self.kernel.body, view))
            p.mark("tiles")
        if self.through is None:
            for base, offset, strides in self.targets:
                to = affine(base, offset, strides, walk.here(first, j)[: self.kernel.parallel], size)
                self._turn(dtype, to, strides[self.axis] * size, source, step, tall, wide)
            return
        self._turn(dtype, self.through, self.row, source, step, tall, wide)
        i = p.fresh("i")
        with p.scope(f"for {i} in range({tall}):", i):
            address = f"{self.through} + {self.row} * {i}"
            value = p.load(address, dtype, 1, names_in(address) | {"tiles"})
            here = walk.here(f"{first} + {i}", j)[: self.kernel.parallel]
            count = str(wide) if wide < p.lanes else None
            walk.rows.store(self.s, value, here, self.vector, count, walk.streams[self.s])

    def _loads(self, first: str, j: str, tall: int, wide: int, totals: list[dict[int, Accumulator]] | None) -> None:
        """Loads turned over, and rows along the axis of results."""
        walk, p, lanes = self.walk, self.p, self.p.lanes
        self._fill(tuple(walk.at), tall, wide)
        copies = min(COPIES, lanes) if totals and tall == lanes else 1
        sums = totals[0] if totals else {}
        i, count = p.fresh("i"), str(wide) if wide < lanes else None
        with p.scope(f"for {i} in range(0, {tall}, {copies}):", i):
            for copy in range(copies):
                row = p.fresh("row")
                p.bind(row, f"{i} + {copy}")
                walk.point(walk.here(f"{first} + {row}", j), count, copy, sums, self._rule(row, count))

    def _fill(self, positions: Sequence[str], tall: int, wide: int) -> None:
        for load in turned_loads(self.kernel, self.vector, self.axis):
            access = self.walk.rows.rule(self.s)(load)
            assert isinstance(access, Access)
            size = load.dtype.itemsize
            source = affine(access.base, access.offset, access.strides, positions, size)
            place = self.places[load.operand, load.offset, load.strides]
            self._turn(load.dtype, place, self.p.lanes * size, source, access.strides[self.vector] * size, tall, wide)

    def _rule(self, row: str, count: str | None) -> LoadRule:
        """Transposed loads come from row ``row`` of their blocks."""
        usual, lanes = self.walk.rows.rule(self.s), self.p.lanes

        def rule(load: Load) -> Access | Value:
            place = self.places.get((load.operand, load.offset, load.strides))
            if place is None or load.gathers:
                return usual(load)
            address = f"{place} + {lanes * load.dtype.itemsize} * {row}"
            return self.p.load(address, load.dtype, 1, names_in(address) | {"tiles"}, count)

        return rule

"""Blocks that are loaded along one axis and computed along another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eqsat.ir.kernel import Kernel, Load
from eqsat.schedule.vector_cost import turned_loads
from eqsat_backends.numba_cpu.printing.accumulators import Accumulator
from eqsat_backends.numba_cpu.printing.printer import Access, LoadRule, affine
from eqsat_backends.numba_cpu.printing.scopes import Value, names_in

if TYPE_CHECKING:
    from eqsat_backends.numba_cpu.printing.walk import Walk

__all__ = ["COPIES", "Transposed"]

COPIES = 4
"""Accumulators of a transposed block, so that one addition does not wait for another."""


class Transposed:
    """Blocks of lanes × lanes: operands that lie along one axis are transposed by shuffles into scratch.

    A vector along the other axis would be put together from as many cache lines as it has lanes.
    """

    def __init__(self, walk: Walk, kernel: Kernel, vector: int, axis: int) -> None:
        self.walk, self.p, self.vector, self.axis = walk, walk.p, vector, axis
        (self.s,) = walk.members
        self.loads = turned_loads(kernel, vector, axis)
        lanes = self.p.lanes
        self.places = {
            (load.operand, load.offset, load.strides): walk.take(lanes**2 * load.dtype.itemsize) for load in self.loads
        }

    def print(self, totals: list[dict[int, Accumulator]] | None) -> None:
        """One block; at the rim, rows as they lie."""
        walk, p, lanes = self.walk, self.p, self.p.lanes
        first, j = walk.at[self.axis], walk.at[self.vector]
        tall, wide = walk.count[self.axis], walk.count[self.vector]
        copies = min(COPIES, lanes) if totals else 1
        sums = totals[0] if totals else {}
        i = p.fresh("i")
        if tall < lanes or wide < lanes:
            with p.scope(f"for {i} in range({first}, {first} + {tall}):", i):
                walk.at[self.axis] = i
                count = str(wide) if wide < lanes else None
                walk.point(walk.here(i, j), count, 0, sums)
        else:
            self._fill(tuple(walk.at))
            with p.scope(f"for {i} in range(0, {lanes}, {copies}):", i):
                for copy in range(copies):
                    row = p.fresh("row")
                    p.bind(row, f"{i} + {copy}")
                    walk.point(walk.here(f"{first} + {row}", j), None, copy, sums, self._rule(row))
        walk.at[self.axis] = first

    def _fill(self, positions: Sequence[str]) -> None:
        for load in self.loads:
            access = self.walk.rows.rule(self.s)(load)
            assert isinstance(access, Access)
            size = load.dtype.itemsize
            source = affine(access.base, access.offset, access.strides, positions, size)
            place = self.places[load.operand, load.offset, load.strides]
            step = load.strides[self.vector] * size
            self.p.line(f"transpose_{self.p.type(load.dtype)}({place}, {source}, {step})")
        self.p.mark("tiles")

    def _rule(self, row: str) -> LoadRule:
        """Transposed loads come from row ``row`` of their blocks."""
        usual, lanes = self.walk.rows.rule(self.s), self.p.lanes

        def rule(load: Load) -> Access | Value:
            place = self.places.get((load.operand, load.offset, load.strides))
            if place is None or load.gathers:
                return usual(load)
            address = f"{place} + {lanes * load.dtype.itemsize} * {row}"
            return self.p.load(address, load.dtype, 1, names_in(address) | {"tiles"})

        return rule

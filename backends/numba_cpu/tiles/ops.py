"""Reductions by tile operations of the table: loops around one, its accumulators in scratch, and the epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eqsat.ir.nest import Loop, Nest, TileOp
from eqsat.schedule.maps import match_of
from eqsat_backends.numba_cpu.printing.accumulators import FUNCTION, identity_of
from eqsat_backends.numba_cpu.printing.printer import Access, View, affine
from eqsat_backends.numba_cpu.printing.scopes import Value
from eqsat_backends.numba_cpu.printing.walk import Walk
from eqsat_backends.numba_cpu.tiles.tile_ops import registered

if TYPE_CHECKING:
    from eqsat_backends.numba_cpu.printing.nests import Rows

__all__ = ["OpWalk", "TileCall"]


@dataclass(frozen=True)
class TileCall:
    """One tile, as its emitter is told of it: ``emit(printer, call)`` prints statements into the scope that is open.

    ``addresses``: expression of the address of each operand's first element; ``strides``: bytes from one element to the
    next along each axis of the tile, by operand. ``sizes``: elements that the tile takes of each axis, all of them
    known; the lanes' need be no whole vectors, and nothing may be read behind them. ``accumulators``: address of the
    results, which the tile combines what it computes into; ``pitches``: bytes from one to the next along each parallel
    axis: along the lanes' they are consecutive, and what fills up the last vector may be overwritten. ``type``: suffix
    of the SIMD functions for vectors of results (``f32x16``), of ``lanes`` elements of ``itemsize`` bytes.
    """

    addresses: tuple[str, ...]
    strides: tuple[Mapping[str, int], ...]
    sizes: Mapping[str, int]
    accumulators: str
    pitches: Mapping[str, int]
    type: str
    lanes: int
    itemsize: int


class OpWalk(Walk):
    """Prints one reduction by loops around a tile operation (see ``Walk``)."""

    def __init__(self, rows: Rows, tiles: Sequence[TileOp], nest: Nest, take: Callable[[int], str]) -> None:
        super().__init__(rows, tiles, nest, take)
        (self.s,) = self.members
        self.row, self.match, _ = match_of(self.tile, self.kernel, rows.shared, registered())
        assert self.row.semantics is not None
        assigned = self.match.assigned
        self.vector, self.other = assigned[self.row.lanes], None
        dtype = self.kernel.body.dtype
        self.type, self.width = self.p.type(dtype), self.p.lanes * dtype.itemsize
        self.across = [name for name in self.row.axes[: self.row.semantics.parallel] if name != self.row.lanes]
        self.pitches, reach = {self.row.lanes: dtype.itemsize}, -(-self._size(self.row.lanes) // self.p.lanes)
        self.nbytes = reach * self.width
        for name in reversed(self.across):
            self.pitches[name] = self.nbytes
            self.nbytes *= self._size(name)

    def _size(self, name: str) -> int:
        axis = self.match.assigned.get(name)
        return 1 if axis is None else min(self.sizes[axis], max(1, self.extents[axis]))

    def chain(self, nest: Nest, cells: bool) -> int:
        if isinstance(nest, TileOp):
            return math.prod(size for a, size in self.sizes.items() if a >= self.kept)
        return super().chain(nest, cells)

    def _reduction(self, nest: Nest) -> None:
        sums = self._filled()
        if not self.empty:
            self._blocks(nest, sums)
        self._results_of(sums)

    def _filled(self) -> str:
        """Accumulators of a tile in scratch, where they start."""
        base, dtype = self.take(self.nbytes), self.kernel.body.dtype
        assert self.kernel.combine is not None
        start = self.p.literal(identity_of(self.kernel.combine, dtype), dtype)
        at = self.p.fresh("at")
        with self.p.scope(f"for {at} in range(0, {self.nbytes}, {self.width}):", at):
            self.p.line(f"store({base} + {at}, {start.name})")
        return base

    def _blocks(self, nest: Nest, sums: str) -> None:
        """Loops over reduced axes around the tile."""
        if not isinstance(nest, Loop):
            self._call(sums)
            return
        inner = self.chain(nest.body, False)
        self.chained(nest, lambda into: self._blocks(nest.body, into), inner, sums, self._aside)

    def _aside(self, body: Callable[[str], None], sums: str) -> None:
        """Into accumulators of its own, then those into the others."""
        own, at = self._filled(), self.p.fresh("at")
        body(own)
        assert self.kernel.combine is not None
        combine = FUNCTION[self.kernel.combine]
        with self.p.scope(f"for {at} in range(0, {self.nbytes}, {self.width}):", at):
            one, two = (f"load_{self.type}({base} + {at})" for base in (own, sums))
            self.p.line(f"store({sums} + {at}, {combine}({one}, {two}))")

    def _call(self, sums: str) -> None:
        addresses, strides = {}, {}
        rule = self.rows.rule(self.s)
        for mine, other in self.match.loads:
            access = rule(other)
            assert isinstance(access, Access), "an operand of a tile operation lies in memory"
            size = other.dtype.itemsize
            addresses[mine.operand] = affine(access.base, access.offset, access.strides, self.at, size)
            moves = {name: access.strides[axis] * size for name, axis in self.match.assigned.items()}
            strides[mine.operand] = {name: moves.get(name, 0) for name in self.row.axes}
        sizes = {name: 1 if axis is None else self.count[axis] for name, axis in self.match.axes}
        order = sorted(addresses)
        self.p.line(f"# {self.row.name} {' '.join(f'{name}={size}' for name, size in sizes.items())}")
        assert self.row.emit is not None
        call = TileCall(
            tuple(addresses[n] for n in order),
            tuple(strides[n] for n in order),
            sizes,
            sums,
            self.pitches,
            self.type,
            self.p.lanes,
            self.kernel.body.dtype.itemsize,
        )
        self.row.emit(self.p, call)

    def _results_of(self, sums: str) -> None:
        """Epilogues of the tile's results, and their stores."""
        p, kernel, dtype = self.p, self.kernel, self.kernel.body.dtype
        assert self.vector is not None
        here = [*self.at[: kernel.parallel], *("0" for _ in kernel.extents[kernel.parallel :])]
        first, columns = here[self.vector], self.count[self.vector]
        with ExitStack() as stack:
            base = sums
            for name in self.across:
                axis = self.match.assigned.get(name)
                if axis is not None and self.count[axis] > 1:
                    i = p.fresh(name)
                    stack.enter_context(p.scope(f"for {i} in range(0, {self.count[axis]}):", i))
                    base, here[axis] = f"{base} + {self.pitches[name]} * {i}", _sum(here[axis], i)
            for offset in range(0, columns, p.lanes):
                total = p.fresh("total")
                p.bind(total, f"load_{self.type}({base} + {offset * dtype.itemsize})")
                count = str(columns - offset) if columns - offset < p.lanes else None
                here[self.vector] = _sum(first, str(offset))
                acc = Value(total, dtype, frozenset((total,)), False)
                value = p.value(kernel.epilogue, View(tuple(here), self.vector, self.rows.rule(self.s), count, acc))
                self.rows.store(self.s, value, tuple(here[: kernel.parallel]), self.vector, count)


def _sum(first: str, second: str) -> str:
    if first.isdigit() and second.isdigit():
        return str(int(first) + int(second))
    return second if first == "0" else first if second == "0" else f"{first} + {second}"

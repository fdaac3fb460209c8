"""Windows that overlap: what neighbours taken at once share of them is computed and combined once, row by row.

Of the maxima of 3 × 3 elements at four positions above one another twelve rows are looked at, of which six differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from eqsat.ir.kernel import Call, Guarded, Index, Kernel, Load, unique
from eqsat.schedule.jams import slots_in
from eqsat.schedule.peel import unrolled

MOST = 256
"""Slots of what is printed of a tile at most, for straight code is long: with tanh of windows of 5 × 5, 440 slots for
four neighbours, a kernel took 3.9 s to compile, and 1.0 in loops."""


@dataclass(frozen=True)
class SharedRows:
    """Windows have ``rows`` rows of ``row`` elements along the ``reduced`` axis, those of the next neighbour ``step``
    rows further on."""

    reduced: int
    step: int
    rows: int
    row: int

    def distinct(self, count: int) -> int:
        """Rows that ``count`` neighbours read."""
        return (count - 1) * self.step + self.rows

    def read(self, count: int) -> float:
        """These, to the rows that they would read each by itself."""
        return self.distinct(count) / (count * self.rows)

    def combined(self, count: int) -> float:
        """Likewise how often two values are combined."""
        return (self.read(count) * (self.row - 1) + 1) / self.row


@lru_cache(maxsize=4096)
def shared_rows(kernel: Kernel, beside: int, count: int, vectors: int) -> SharedRows | None:
    """What ``count`` neighbours along the parallel axis ``beside``, so many vectors in all, share of their windows.

    None where they share nothing: whatever is read or tested has to move along that axis as along a reduced one, which
    weights do not; or where that is too much for straight code.
    """
    if kernel.combine in (None, "argmax", "argmin") or beside >= kernel.parallel or count < 2:
        return None
    if not unrolled(kernel, vectors):
        return None
    exprs = tuple(unique(kernel.body))
    walked = {e.strides for e in exprs if isinstance(e, Load | Index)}
    size = math.prod(kernel.extents[kernel.parallel :])
    for reduced in range(kernel.parallel, len(kernel.extents)):
        moving = {(strides[beside], strides[reduced]) for strides in walked if strides[beside] or strides[reduced]}
        steps = {far // near if near and far % near == 0 else 0 for far, near in moving}
        rows, step = kernel.extents[reduced], steps.pop() if len(steps) == 1 else 0
        if 0 < step < rows:
            found = SharedRows(reduced, step, rows, size // rows)
            slots = slots_in(e for e in exprs if isinstance(e, Call | Load | Guarded))
            work = found.distinct(count) * found.row * vectors / count * slots
            return found if work <= MOST else None
    return None

"""Windows that overlap: what neighbours take at once of a row of them is combined once for all.

Of the maxima of 3 × 3 elements at four positions above one another twelve rows are looked at, of which six differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from eqsat.ir.kernel import Index, Kernel, Load, unique
from eqsat.schedule.peel import unrolled


@dataclass(frozen=True)
class Overlap:
    """Neighbours read rows of windows ``step`` positions of the reduced ``axis`` apart, of ``rows`` in each window.

    ``row``: elements of one.
    """

    axis: int
    step: int
    rows: int
    row: int

    def read(self, count: int) -> float:
        """Rows that ``count`` neighbours read, to those that they would each by itself."""
        return ((count - 1) * self.step + self.rows) / (count * self.rows)

    def combined(self, count: int) -> float:
        """Likewise how often two values are combined."""
        return (self.read(count) * (self.row - 1) + 1) / self.row


@lru_cache(maxsize=4096)
def overlap(kernel: Kernel, axis: int, vectors: int) -> Overlap | None:
    """How windows of neighbours along a parallel axis overlap, if a tile of so many vectors is straight code.

    Everything that is read then moves with the axis as with one of the reduced ones: what else does, as weights, makes
    other values of what is read.
    """
    if kernel.combine in (None, "argmax", "argmin") or axis >= kernel.parallel or not unrolled(kernel, vectors):
        return None
    walked = {e.strides for e in unique(kernel.body) if isinstance(e, Load | Index)}
    size = math.prod(kernel.extents[kernel.parallel :])
    for reduced in range(kernel.parallel, len(kernel.extents)):
        moving = {(strides[axis], strides[reduced]) for strides in walked if strides[axis] or strides[reduced]}
        steps = {far // near if near and far % near == 0 else 0 for far, near in moving}
        rows, step = kernel.extents[reduced], steps.pop() if len(steps) == 1 else 0
        if 0 < step < rows:
            return Overlap(reduced, step, rows, size // rows)
    return None

"""Reductions of windows that overlap, as straight code: rows that neighbours share are combined once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eqsat.ir.nest import Loop, Nest
from eqsat.schedule.shared_rows import SharedRows, shared_rows
from eqsat_backends.numba_cpu.printing.accumulators import FUNCTION, identity_of
from eqsat_backends.numba_cpu.printing.scopes import Value

if TYPE_CHECKING:
    from eqsat_backends.numba_cpu.printing.cells import Totals
    from eqsat_backends.numba_cpu.printing.walk import Walk

__all__ = ["combine_rows", "rows_of"]


def rows_of(walk: Walk, nest: Nest) -> dict[int, SharedRows]:
    """What the neighbours of a tile share in each of the reductions that ``nest`` combines.

    None unless all do, by loops over nothing but all of the reduced axes. Prices take that to be so
    (``vector_cost.rows_in``): they do not see the loops.
    """
    vector, other, tile = walk.vector, walk.other, walk.tile
    if vector is None or other is None or max(vector, other) >= walk.kept or walk.empty or tile.name != "reduce":
        return {}
    walked = []
    while isinstance(nest, Loop):
        if nest.step != 1 or nest.block != walk.extents[walk.names[nest.axis]] or nest.split:
            return {}
        walked.append(walk.names[nest.axis])
        nest = nest.body
    if sorted(walked) != list(range(walk.kept, len(walk.extents))) or any(walk.prefetches.values()):
        return {}
    count = walk.count[other]
    vectors = count * math.ceil(tile.size(tile.sizes[-1][0]) / walk.p.lanes) * len(walk.reductions)
    found: dict[int, SharedRows] = {}
    for s in walk.reductions:
        rows = shared_rows(walk.rows.stages[s].kernel, other, count, vectors)
        if rows is None:
            return {}
        found[s] = rows
    return found


def combine_rows(walk: Walk, found: dict[int, SharedRows], totals: Totals) -> None:
    """The totals of all neighbours; equal expressions are printed once, so a row that two of them have is."""
    before = list(walk.at)
    for s, windows in found.items():
        others = [a for a in range(walk.kept, len(walk.extents)) if a != windows.reduced]
        for row, beside in enumerate(walk.beside()):
            for copy, (position, count) in enumerate(walk.chunks()):
                rows = []
                for at in range(windows.rows):
                    taken = []
                    for positions in itertools.product(*(range(walk.extents[a]) for a in others)):
                        for a, n in zip((windows.reduced, *others), (at, *positions), strict=True):
                            walk.at[a] = str(n)
                        taken.append(walk.value(s, walk.here(beside, position), count))
                    rows.append(_combined(walk, s, taken))
                walk.p.bind(totals[row][s].names[copy], _combined(walk, s, rows).name)
    walk.at[:] = before


def _combined(walk: Walk, s: int, values: Sequence[Value]) -> Value:
    """All of them, in their order. What leaves extremes and products as they are is left out; zeros are added."""
    kernel = walk.rows.stages[s].kernel
    assert kernel.combine is not None
    if kernel.combine != "sum":
        identity = walk.p.literal(identity_of(kernel.combine, kernel.body.dtype), kernel.body.dtype)
        values = [value for value in values if value.name != identity.name] or [identity]
    total, *rest = values
    for value in rest:
        text = f"{FUNCTION[kernel.combine]}({value.name}, {total.name})"
        total = walk.p.emit(text, value.dtype, value.depends | total.depends, value.uniform and total.uniform)
    return total

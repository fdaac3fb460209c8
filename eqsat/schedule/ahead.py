"""Software prefetch in a group of several stages: what its contractions read at the next position of the outer axes.

A head of attention reads a few tens of KiB that lie together, and starts with nothing of it in a private cache: its
first tiles would wait for the shared one at every line. A part that runs row by row may ask for that while the head
before is worked on. The requests are spread over its rows, a few lines each: all at once they gained a fifth as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from eqsat.cost.calibration import AHEAD_LINES, LINE
from eqsat.ir.contraction import contraction_of, plain, product_of
from eqsat.ir.kernel import FromStage, KernelGroup, Load

__all__ = ["Share", "pieces_of", "shares_of"]


@dataclass(frozen=True)
class Share:
    """What is asked for with each row of operand ``source``: ``piece`` bytes, ``step`` bytes after the row before.

    ``load``: where that lies, over the outer axes first.
    """

    source: int
    load: Load
    piece: int
    step: int

    def lines(self) -> range:
        """Offsets of the cache lines of a piece."""
        return range(0, self.piece, LINE)


def shares_of(group: KernelGroup, stages: Iterable[int]) -> tuple[Share, ...]:
    """How the rows of a simplified group share out what ``stages``, which are contractions, read at an outer position.

    Operands that lie in equal pieces for the rows, of :data:`AHEAD_LINES` cache lines at most, and not in the same
    place at every position.
    """
    fixed = max(0, group.shared - 1)
    if not group.shared or math.prod(group.stages[0].kernel.extents[:fixed]) <= 1:
        return ()
    found: dict[tuple[int, Load], Share] = {}
    for number in stages:
        stage = group.stages[number]
        late = [operand for operand, source in enumerate(stage.sources) if isinstance(source, FromStage)]
        product = product_of(stage.kernel, fixed, group.shared - fixed, late)
        if product is None:
            continue
        c = contraction_of(stage.kernel, product, fixed)
        for load in (plain(c.a), plain(c.b)):
            source = stage.sources[load.operand] if load else None
            rows = stage.kernel.extents[fixed]
            lies = pieces_of(load, c.kernel.extents, fixed, rows) if load and isinstance(source, int) else None
            if load and isinstance(source, int) and lies:
                here = replace(load, operand=0)
                found[source, here] = Share(source, here, *lies)
    return tuple(found.values())


def pieces_of(load: Load, extents: tuple[int, ...], outer: int, rows: int) -> tuple[int, int] | None:
    """Bytes of a row's piece, and from one to the next, of what ``load`` reads at a position of the outer axes."""
    size = load.dtype.itemsize
    if load.gathers or not any(s for s, n in zip(load.strides[:outer], extents, strict=False) if n > 1):
        return None
    walked = sorted((s, n) for s, n in zip(load.strides[outer:], extents[outer:], strict=True) if s and n > 1)
    run = 1
    while walked and walked[0][0] == run:
        run *= walked.pop(0)[1]
    if not walked:
        piece = step = -(-run * size // rows // LINE) * LINE
    elif len(walked) == 1 and walked[0][0] > run and walked[0][1] == rows:
        piece, step = run * size, walked[0][0] * size
    else:
        return None
    return (piece, step) if piece <= AHEAD_LINES * LINE else None

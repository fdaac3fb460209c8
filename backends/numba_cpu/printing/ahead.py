"""Asking for data ahead: what the next position of the outer axes reads, while this one is worked on.

A unit of attention reads a few tens of KiB that lie together, and starts with nothing of it in a private cache.
Its first tiles would wait for the shared cache at every line. The requests are spread over the rows of the
unit before, a few lines each: all at once they gained a fifth as much.
"""

from __future__ import annotations

from dataclasses import dataclass

from eqsat.ir.kernel import Load

LINE = 64
"""Bytes of a cache line."""

ROW_LINES = 8
"""Most lines of one operand to ask for with each row."""

UNIT_BYTES = 256 * 1024
"""Most bytes to ask for in all: a quarter of a usual second-level cache."""


@dataclass(frozen=True)
class Share:
    """What is asked for with each row: ``piece`` bytes, ``step`` bytes after those of the row before."""

    piece: int
    step: int

    def lines(self) -> range:
        """Offsets of the cache lines of a piece."""
        return range(0, self.piece, LINE)


def share_of(load: Load, extents: tuple[int, ...], outer: int, rows: int) -> Share | None:
    """How ``rows`` rows share out what ``load`` reads at one position of the first ``outer`` axes of ``extents``.

    None where that is the same at every position, where it does not lie in equal pieces, or where a row's share
    is too large.
    """
    size = load.dtype.itemsize
    if load.gathers or not any(s for s, n in zip(load.strides[:outer], extents, strict=False) if n > 1):
        return None
    walked = sorted((s, n) for s, n in zip(load.strides[outer:], extents[outer:], strict=True) if s and n > 1)
    run = 1
    while walked and walked[0][0] == run:
        run *= walked.pop(0)[1]
    if not walked:
        piece = -(-run * size // rows // LINE) * LINE
        share = Share(piece, piece)
    elif len(walked) == 1 and walked[0][0] > run and walked[0][1] == rows:
        share = Share(run * size, walked[0][0] * size)
    else:
        return None
    return share if share.piece <= ROW_LINES * LINE and share.piece * rows <= UNIT_BYTES else None

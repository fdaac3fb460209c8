"""What the values of a mask hide, and the affine bounds of what rows see."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eqsat.ir.kernel import Index
from eqsat.ir.types import int64
from eqsat.plan.bounds import HEADROOM

SLOPES = (0, 1, -1)
"""Columns by which bounds may move from one row to the next."""
FAR = 4096.0
"""An element of a finite mask hides if it is so far below the largest one of its row."""
VANISHES = -750.0
"""The exponential of this and of less is 0 in float64, and so in float32."""
ROUNDING = 2.0**-20
"""More of a sum of some large numbers than its rounding in float32."""


def alike(heads: np.ndarray) -> bool:
    """Whether all heads (the first axis) are the same."""
    return bool((heads == heads[:1]).all())


def hidden_by(mask: np.ndarray) -> tuple[np.ndarray, float]:
    """What a mask that is added hides, and how large scores may be in magnitude for that to be so.

    ``mask``: heads × rows × columns. Infinity where it hides by -inf: then it does as long as scores are finite. 0
    where it hides nothing.
    """
    if mask.dtype.kind != "f" or not mask.size:
        return np.zeros(mask.shape, bool), 0.0
    if (hidden := mask == -math.inf).any():
        return hidden, math.inf
    top = mask.max(axis=-1, keepdims=True).astype(np.float64)  # a score of a row is as large as this less the bound
    with np.errstate(invalid="ignore"):
        hidden = mask <= top - FAR
    if not hidden.any() or not np.isfinite(mask).all():
        return hidden, 0.0
    largest = float(mask[hidden].max())
    with np.errstate(over="ignore"):
        gap = float(np.where(hidden, top - mask, math.inf).min()) - ROUNDING * float(np.abs(mask).max())
    rest = float(np.finfo(mask.dtype).max) / HEADROOM - max(0.0, largest)
    return hidden, min(rest, (1 - 1 / HEADROOM) * (gap + VANISHES) / 2)


@dataclass(frozen=True)
class Limit:
    """``slope·row + offset``: the first column that a row may see, or, if ``upper``, the one after the last."""

    upper: bool
    slope: int
    offset: int

    def at(self, rows: int) -> np.ndarray:
        return self.slope * np.arange(rows) + self.offset

    def index(self, rank: int, row: int, column: int) -> Index:
        """At least 0 at the points of a kernel that the limit lets through."""
        strides = [0] * rank
        strides[row], strides[column] = (self.slope, -1) if self.upper else (-self.slope, 1)
        return Index(self.offset - 1 if self.upper else -self.offset, tuple(strides), int64)


def limits_of(keep: np.ndarray) -> tuple[list[Limit], bool]:
    """Limits of what rows see, and whether a mask says no more. Rows that see nothing have none."""
    rows, columns = keep.shape
    seeing = np.flatnonzero(keep.any(axis=1))
    found: list[Limit] = []
    if not seeing.size:
        return found, False
    first, last = keep[seeing].argmax(axis=1), columns - keep[seeing][:, ::-1].argmax(axis=1)
    low, high = np.zeros(rows, np.int64), np.full(rows, columns)
    for slope in SLOPES:
        below = Limit(False, slope, int((first - slope * seeing).min()))
        above = Limit(True, slope, int((last - slope * seeing).max()))
        raised, lowered = np.maximum(low, below.at(rows)), np.minimum(high, above.at(rows))
        if (np.minimum(raised, columns) > np.minimum(low, columns)).any():
            found.append(below)
            low = raised
        if (np.maximum(lowered, 0) < np.maximum(high, 0)).any():
            found.append(above)
            high = lowered
    place = np.arange(columns)
    return found, np.array_equal(keep, (low[:, None] <= place) & (place < high[:, None]))

"""How a contraction's factors are copied that no tile reads where they lie: by rows, by columns, window by window."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eqsat.ir.contraction import evenly
from eqsat.ir.kernel import Expr, Load, unique

WINDOW_ROWS = 8
"""Rows of a window that are copied by code of their own."""


def piece_along_rows(factor: Expr, extents: Sequence[int], m: Sequence[int], k: Sequence[int]) -> int:
    """Positions of m that lie one behind the other in a first factor, where these are more than are along k.

    Then a copy goes column by column, as many elements at once; 0: row by row. A factor that is computed follows
    the larger part of what it reads.
    """

    def run(load: Load, axes: Sequence[int]) -> int:
        return evenly(load.strides, extents, axes) if axes and abs(load.strides[axes[-1]]) == 1 else 1

    read = [load for load in unique(factor) if isinstance(load, Load) and not load.gathers] if m else []
    found = [(run(load, m), run(load, k), load.strides[m[-1]] == 1) for load in read]
    along_m = [rows for rows, deep, ahead in found if rows > deep and ahead]
    return min(along_m) if len(along_m) > sum(deep > rows for rows, deep, _ in found) else 0


def window_of(extents: Sequence[int], k: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the windows behind the outermost axis of k, of a convolution its taps; 0 of a single axis."""
    axes = [axis for axis in k if extents[axis] != 1]
    if len(axes) < 2:
        return 0, 0
    return math.prod(extents[axis] for axis in axes[1:-1]), extents[axes[-1]]


def goes_by_windows(window: tuple[int, int], depth: int, lanes: int) -> bool:
    """Whether a copy row by row that takes ``depth`` positions of k at a time has code of its own for each window's."""
    rows, columns = window
    return 0 < columns <= lanes and rows <= WINDOW_ROWS and depth % (rows * columns) == 0


def lanes_apart(factor: Expr, axis: int) -> int:
    """Loads of a factor whose neighbours along an axis lie apart, so that a vector of them is loaded lane by lane."""
    return sum(isinstance(load, Load) and load.strides[axis] not in (-1, 0, 1) for load in unique(factor))

"""Views that move over a value which is not there before a loop: rows of it, taken at a position that counts trips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.ir.table import make
from eqsat.ir.types import row_major
from eqsat.ir.views import ViewMap, view_map

__all__ = ["Atom", "Moving", "by_axes", "moving"]


@dataclass(frozen=True)
class Moving:
    """A view of ``width`` positions on ``axis``, from ``first`` on in the first trip and ``by`` further on each.

    ``map``: the view of those positions alone.
    """

    axis: int
    first: int
    by: int
    width: int
    map: ViewMap

    def of(self, whole: Node, position: Node) -> Node:
        """The view, where ``position`` (of shape ``(1,)``) is where it begins on the axis."""
        index = position
        if self.width > 1:
            index = build.call("add", build.iota(self.width), build.broadcast_to(position, (self.width,)))
        return build.view(make("gather", (whole, index), self.axis, label="take"), self.map)


def axis_of(stride: int, shape: Sequence[int]) -> int | None:
    """The axis of a tensor of ``shape`` along which a stride of its row-major memory steps; None where it is none's."""
    strides = row_major(tuple(shape))
    axes = [a for a, n in enumerate(shape) if n > 1 and strides[a] <= abs(stride)]
    found = min(axes, default=None)
    return found if found is not None and stride % strides[found] == 0 else None


Atom = tuple[int, int | None, int]
"""Of a view: size, the axis of the tensor that it moves on, if any, and by how much."""


def by_axes(map: ViewMap, shape: Sequence[int]) -> tuple[list[int], list[list[Atom]], list[int], list[int]] | None:
    """A view of a tensor of ``shape`` in terms of the tensor's axes: where it begins on each, the atoms of the view's
    axes, and the lowest and highest positions on each. None where an atom stays in no axis."""
    strides = row_major(tuple(shape))
    start = [map.offset // s % n for s, n in zip(strides, shape, strict=True)]
    low, high = list(start), list(start)
    places: list[list[Atom]] = []
    for atoms in map.axes:
        places.append([])
        for n, stride in atoms:
            axis = axis_of(stride, shape) if stride else None
            if stride and axis is None:
                return None
            by = stride // strides[axis] if axis is not None else 0
            places[-1].append((n, axis, by))
            if axis is not None:
                low[axis] += min(0, by * (n - 1))
                high[axis] += max(0, by * (n - 1))
    return start, places, low, high


def moving(map: ViewMap, shape: Sequence[int], step: int, trips: int) -> Moving | None:
    """A view of a tensor of ``shape`` whose offset grows by ``step`` on each trip; None where no axis is moved along.

    Every factor of the view has to stay within one axis of the tensor, and so has what moves.
    """
    strides = row_major(tuple(shape))
    found = by_axes(map, shape)
    if found is None:
        return None
    start, places, low, high = found
    along = axis_of(step, shape)
    if along is None:
        return None
    by = step // strides[along]
    reach = by * (trips - 1)
    ends = [
        (lo + min(0, reach), hi + max(0, reach)) if a == along else (lo, hi)
        for a, (lo, hi) in enumerate(zip(low, high, strict=True))
    ]
    if any(lo < 0 or hi >= n for (lo, hi), n in zip(ends, shape, strict=True)):
        return None
    width = high[along] - low[along] + 1
    inner = row_major(tuple(width if a == along else n for a, n in enumerate(shape)))
    offset = sum(inner[a] * (at - (low[a] if a == along else 0)) for a, at in enumerate(start))
    axes = [[(n, q * inner[a] if a is not None else 0) for n, a, q in atoms] for atoms in places]
    return Moving(along, low[along], by, width, view_map(axes, offset))

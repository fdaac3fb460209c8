"""Where results of stages lie, and windows of loops: what printed loop nests are planned with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eqsat.ir.kernel import Kernel, Load
from eqsat.ir.types import row_major
from eqsat_backends.numba_cpu.printing.printer import Access

__all__ = ["Place", "Window", "place_of"]


@dataclass(frozen=True)
class Window:
    """What a block of rows takes of a bounded axis: variables, and what they are multiples of (or the axis ends)."""

    start: str
    stop: str
    grain: int


@dataclass(frozen=True)
class Place:
    """Where a stage's result lies when it is not in its own C-contiguous buffer.

    ``base``: address expression, which may contain variables. ``offset``: the result's store offset in its
    buffer. ``shared``: strides here along shared axes. ``rest``: for each other axis, far strides first, its
    stride in the buffer and here. All in elements.
    """

    base: str
    offset: int
    shared: tuple[int, ...]
    rest: tuple[tuple[int, int], ...]

    def move(self, distance: int) -> int:
        """A distance in the buffer, along axes that are not shared, as a distance here."""
        left, here = abs(distance), 0
        for there, stride in self.rest:
            steps, left = divmod(left, there)
            here += steps * stride
        if left:
            raise ValueError(f"a stage reads a result at a distance of {distance} elements, which no axis of it makes")
        return here if distance >= 0 else -here

    def access(self, load: Load) -> Access:
        """Where ``load``, written for the buffer, finds its element here."""
        shared = len(self.shared)
        strides = self.shared + tuple(self.move(s) for s in load.strides[shared:])
        gathers = tuple(self.move(s) for _, s in load.gathers)
        return Access(self.base, self.move(load.offset - self.offset), strides, gathers)


def place_of(kernel: Kernel, shared: int, base: str, pitches: tuple[int, ...] | None = None) -> tuple[Place, int]:
    """A packed place for one row of a kernel's result, and its size in elements.

    ``pitches``: strides along the shared axes; by default 0, every row in the same place.
    """
    extents = kernel.extents[shared : kernel.parallel]
    packed = row_major(extents)
    rest = sorted(zip(kernel.store_strides[shared:], packed, strict=True), key=lambda pair: -abs(pair[0]))
    rest = [(abs(there), here if there > 0 else -here) for there, here in rest]
    pitches = (0,) * shared if pitches is None else pitches
    return Place(base, kernel.store_offset, pitches, tuple(rest)), math.prod(extents)

"""Peeling: a loop printed as several where guards that move along its axis alone change.

In most of the runs such a guard is settled, so that they neither test nor mask. Each run is a copy of the loop's body,
and loops in it multiply: what may be printed of a nest in all is shared out among the runs, by the steps they take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from eqsat.cost.calibration import UNROLLED
from eqsat.ir.kernel import Bounds, Call, Expr, Guarded, Kernel, Load, parts
from eqsat.ir.nest import Loop, Nest

__all__ = ["Held", "Peeling", "held", "may_peel", "peeled", "runs", "seams", "settled", "unrolled"]

RUNS = 7
"""Loops at most that one is peeled into: each is a copy of its body."""
ROOM = 320
"""Values printed of a nest at most so that its loops are peeled: a line each, for which Numba takes 5 to 10 ms."""
AGAIN = 6
"""But so often its values untested in any case: two borders, between them two ends and an interior, and one more."""
TESTED = 4
"""Values of a guard that is tested: positions compared, lanes left by it and by those around it, a selection."""

STEPPED = 3
"""Values of a loop: its variable, its test, what is hoisted before it."""

Held = tuple[int, int, int]
"""The axis of a test that moves along one alone, the first position at which it holds, and the one after the last."""


@lru_cache(maxsize=4096)
def _held(kernel: Kernel) -> frozenset[Held]:
    guards = (e for e in kernel.expressions if isinstance(e, Guarded))
    return frozenset(found for guard in guards if (found := held(guard, kernel)) is not None)


def held(guard: Guarded, kernel: Kernel) -> Held | None:
    """How one axis holds a guard: of one that moves along reduced axes too, where it holds at all their positions.

    None where it moves along several others, or along none, or holds nowhere.
    """
    strides, parallel = guard.index.strides, kernel.parallel
    inner = [step * (extent - 1) for step, extent in zip(strides[parallel:], kernel.extents[parallel:], strict=True)]
    if not any(inner) or not any(strides[:parallel]):
        return guard.held
    low, high = guard.low - sum(min(0, n) for n in inner), guard.high - sum(max(0, n) for n in inner)
    index = replace(guard.index, strides=(*strides[:parallel], *(0 for _ in inner)))
    found = replace(guard, index=index, low=low, high=high).held
    return None if found is None or found[1] >= found[2] else found


def seams(kernels: Sequence[Kernel], axis: int) -> tuple[int, ...]:
    """Positions of a kernel axis at which a guard that moves along it alone begins or ceases to hold."""
    held = frozenset().union(*map(_held, kernels))
    return tuple(sorted({at for bounds in held if bounds[0] == axis for at in bounds[1:]}))


def runs(extent: int, step: int, marks: Sequence[int]) -> list[tuple[int, int]]:
    """``extent`` elements in runs of whole steps; a step across one of ``marks`` shares its run with no other."""
    ends = {0, extent}
    for mark in marks:
        if 0 < mark < extent:
            ends |= {mark // step * step, min(-(-mark // step) * step, extent)}
    return list(itertools.pairwise(sorted(ends)))


def may_peel(kernels: Sequence[Kernel], axis: int, step: int) -> bool:
    """Whether a loop over all of a kernel axis is several loops when peeled, and no more than ``RUNS``.

    ``kernels``: all that it runs. What is left over behind the last whole step may be printed apart from it or not.
    """
    extent, marks = kernels[0].extents[axis], seams(kernels, axis)
    return all(1 < len(runs(most, step, marks)) <= RUNS for most in (extent // step * step, extent)) if marks else False


def peeled(nest: Nest, kernels: Sequence[Kernel], axes: Mapping[str, int], wanted: Collection[int]) -> Nest:
    """The nest of one or more kernels with those loops peeled that may be, over the kernel axes ``wanted``.

    ``axes``: kernel axis by name.
    """
    if not isinstance(nest, Loop):
        return nest
    body = peeled(nest.body, kernels, axes, [a for a in wanted if a != axes[nest.axis]])
    peel = axes[nest.axis] in wanted and not nest.split and may_peel(kernels, axes[nest.axis], nest.step)
    return replace(nest, body=body, peel=peel)


def unrolled(kernel: Kernel, vectors: int) -> bool:
    """Whether a tile of so many vectors may be printed for each position of the reduced axes, which are short."""
    reduced = kernel.extents[kernel.parallel :]
    return max(reduced, default=1) <= UNROLLED and 2 * vectors * math.prod(reduced) <= ROOM


def settled(by: Held, start: int, stop: int) -> bool:
    """Whether a test of one axis is the same at all positions in ``[start, stop)``.

    Of one that moves along reduced axes too (``held``), outside of where it always holds this is a guess: it holds in
    some steps of these, and code that prints them one by one knows in which.
    """
    _, first, end = by
    return first >= end or stop <= first or end <= start or (first <= start and stop <= end)


Part = tuple[tuple[int, int], int]
"""One of the loops that a loop is printed as: its run, and how many values may be printed of its body."""


@dataclass(frozen=True)
class Peeling:
    """Where the loops of a nest around one tile are peeled, which says of what they may be.

    ``kernels``: all that it runs; ``axes``: kernel axis by name; ``sizes``: elements that the tile takes by kernel
    axis, which are so many ``vectors``.
    """

    kernels: Sequence[Kernel]
    axes: Mapping[str, int]
    sizes: Mapping[int, int]
    vectors: int

    def room(self, nest: Nest, bounds: Bounds) -> int:
        """Values that may be printed of a nest."""
        return max(ROOM, AGAIN * self._needed(nest, bounds, tested=1))

    def whole(self, loop: Loop) -> int:
        """Elements that a loop walks in whole steps, if what the tile leaves over comes behind it."""
        extent, size = self.kernels[0].extents[self.axes[loop.axis]], self.sizes.get(self.axes[loop.axis], 1)
        return extent if any(inner.axis == loop.axis for inner in _loops(loop.body)) else extent // size * size

    def parts(self, loop: Loop, bounds: Bounds, room: int) -> list[Part]:
        """The loops that one is printed as within ``bounds``: several where guards change along it, if there is room.

        What bodies do not need goes to the runs as the steps do, and to what whole steps leave over what these leave.
        If the longest run had too little for a loop inside to be peeled then, this one is not: what is tested there is
        tested more often.
        """
        found = self._parted(loop, bounds, room)
        if len(found) > 1:
            run, most = max(found, key=lambda part: part[1])
            there = _within(bounds, self.axes[loop.axis], run)
            for inner in _loops(loop.body):
                if len(self._parted(inner, there, most)) < len(self._parted(inner, there, room)):
                    return self._parted(replace(loop, peel=False), bounds, room)
        return found

    def unrolls(self, loop: Loop, bounds: Bounds, kept: int, lanes: int | None) -> bool:
        """Whether a short loop over a reduced axis, one from ``kept`` on, is printed step by step.

        So a test that moves along it is settled in each step, as of the rows of a window, and a mask is known where the
        tile has all of the axis of its lanes.
        """
        a, extent = self.axes[loop.axis], loop.block
        if a < kept or loop.split or extent != self.kernels[0].extents[a] or loop.step != self.sizes.get(a, 1):
            return False
        if not all(unrolled(kernel, self.vectors) for kernel in self.kernels):
            return False
        known = lanes is None or self.sizes[lanes] >= self.kernels[0].extents[lanes]
        tested = (e.index.strides for e in _left(self.kernels, bounds) if isinstance(e, Guarded))
        return any(steps[a] and (known or not steps[lanes or 0]) for steps in tested)

    def _parted(self, loop: Loop, bounds: Bounds, room: int) -> list[Part]:
        a, whole = self.axes[loop.axis], self.whole(loop)
        extent = self.kernels[0].extents[a]
        tested = [held(e, self.kernels[0]) for e in _left(self.kernels, bounds) if isinstance(e, Guarded) and loop.peel]
        marks = {at for one in tested if one is not None and one[0] == a for at in one[1:]}
        left = [(whole, extent)] * (whole < extent)
        for at in (sorted(marks), ()):
            each = runs(whole, loop.step, at) if whole else []
            needs = [self._needed(loop.body, _within(bounds, a, run)) for run in each + left]
            if sum(needs) <= room:
                break
        spare = max(0, room - sum(needs))
        return [(run, n + spare * (run[1] - run[0]) // extent) for run, n in zip(each, needs, strict=False)]

    def _needed(self, nest: Nest, bounds: Bounds, tested: int = TESTED) -> int:
        """Values that are printed of a nest within ``bounds`` if no loop is peeled, roughly."""
        bodies, around = self.vectors, 0
        for loop in _loops(nest):
            around += STEPPED
            bodies <<= self.whole(loop) < self.kernels[0].extents[self.axes[loop.axis]]
        each = (tested if isinstance(e, Guarded) else isinstance(e, Call | Load) for e in _left(self.kernels, bounds))
        return around + bodies * (2 + sum(each))


def _loops(nest: Nest) -> Iterator[Loop]:
    while isinstance(nest, Loop):
        yield nest
        nest = nest.body


def _within(bounds: Bounds, axis: int, run: tuple[int, int]) -> Bounds:
    return (*bounds[:axis], run, *bounds[axis + 1 :])


def _left(kernels: Sequence[Kernel], bounds: Bounds) -> list[Expr]:
    """What is still to be computed where all axes are within ``bounds``, once each, and guards that are not settled."""
    found: dict[int, Expr] = {}
    stack: list[Expr] = [e for kernel in kernels for e in (kernel.body, kernel.epilogue)]
    while stack:
        at = stack.pop()
        taken = at.branch(bounds) if isinstance(at, Guarded) else None
        if taken is not None:
            stack.append(taken)
        elif id(at) not in found:
            found[id(at)] = at
            stack.extend(parts(at))
    return list(found.values())

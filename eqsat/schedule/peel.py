"""Peeling: a loop printed as several where guards that move along its axis alone change.

In most of the runs such a guard is settled, so that they neither test nor mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from eqsat.ir.axes import unique
from eqsat.ir.kernel import Guarded, Kernel
from eqsat.ir.nest import Loop, Nest

__all__ = ["Held", "may_peel", "peeled", "runs", "seams", "settled"]

RUNS = 7
"""Loops at most that one is peeled into: each is a copy of its body."""

Held = tuple[int, int, int]
"""The axis of a test that moves along one alone, the first position at which it holds, and the one after the last."""


@lru_cache(maxsize=4096)
def _held(kernel: Kernel) -> frozenset[Held]:
    guards = (e for e in unique(kernel.body, kernel.epilogue) if isinstance(e, Guarded))
    return frozenset(held for guard in guards if (held := guard.held) is not None)


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


def settled(held: Held, start: int, stop: int) -> bool:
    """Whether a test of one axis is the same at all positions in ``[start, stop)``."""
    _, first, end = held
    return first >= end or stop <= first or end <= start or (first <= start and stop <= end)

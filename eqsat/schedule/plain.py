"""Nests without a search: what runs where nobody asked for a schedule, and the parts of one that somebody else has."""

from __future__ import annotations

import math

from eqsat.ir.kernel import Kernel
from eqsat.ir.nest import Loop, Nest, TileOp
from eqsat.schedule.maps import axes_of
from eqsat.schedule.peel import peeled
from eqsat.schedule.tiles import ceil_div, round_up
from eqsat.schedule.vector_cost import turned_loads
from eqsat.schedule.vectors import LARGE, PARTS, lane_axis

__all__ = ["plain_nest"]

_FEW = 16
"""Fewer independent steps than this, and a long reduction is split."""


def plain_nest(kernel: Kernel, lanes: int, shared: int = 0, *, parallel: bool = False, stage: int = 0) -> Nest:
    """Loops in the order of the axes of a normalized kernel, and vectors along the one that most accesses like.

    Loops are peeled where guards change.

    ``parallel``: threads share the longest loop over a parallel axis, or parts of a long reduction with few results.
    """
    names = {a: name for name, a in axes_of(kernel, shared).items()}
    extents = {a: max(1, kernel.extents[a]) for a in names}
    vector = lane_axis(kernel, shared)
    if vector is None:
        vector = max(names, default=None)
    reduced = [a for a in names if a >= kernel.parallel]
    many = 4 if reduced and kernel.combine not in ("argmax", "argmin") else 1
    step = {}
    if vector is not None:
        step = {vector: lanes * max(1, min(many, extents[vector] // lanes))}
    kept = [a for a in names if a < kernel.parallel]
    for axis in kept if parallel and not reduced and lanes > 1 else ():
        if vector is None or extents[vector] < lanes:
            break
        if axis != vector and extents[axis] >= lanes and turned_loads(kernel, vector, axis):
            step = {axis: lanes, vector: lanes}
            break
    name = "transpose" if len(step) > 1 else "reduce" if reduced else "map"
    sizes = tuple((names[a], size) for a, size in step.items())
    nest: Nest = TileOp(name, sizes, stage, lanes)
    order = kept + reduced
    steps = {a: ceil_div(extents[a], step.get(a, 1)) for a in order}
    first = max(kept, key=lambda a: (steps[a], -a), default=None)
    split = None
    if parallel and math.prod(steps[a] for a in kept) < _FEW and kernel.points >= LARGE and reduced:
        split = max(reduced, key=lambda a: (steps[a], -a))
        if steps[split] < 2:
            split = None
    for a in reversed(order):
        if split is None and parallel and a == first:
            continue
        block = extents[a]
        if a == split:
            block = round_up(ceil_div(block, PARTS), step.get(a, 1))
        if block > step.get(a, 1) or (a not in step and block > 1):
            nest = Loop(names[a], block, step.get(a, 1), nest)
    if split is not None:
        part = round_up(ceil_div(extents[split], PARTS), step.get(split, 1))
        return Loop(names[split], extents[split], part, nest, True, True)
    if parallel and first is not None and extents[first] > step.get(first, 1):
        nest = Loop(names[first], extents[first], step.get(first, 1), nest, True)
    return peeled(nest, (kernel,), axes_of(kernel, shared), names)

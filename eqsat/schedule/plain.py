"""Nests without a search: what runs where nobody asked for a schedule, and the parts of one that somebody else has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from eqsat.ir.axes import loads, unique
from eqsat.ir.kernel import Guarded, Kernel, part_of, unconditional
from eqsat.ir.nest import MAPS, PRODUCTS, Loop, Nest, Pack, Seq, TileOp
from eqsat.schedule.maps import axes_of, tile_of
from eqsat.schedule.problem import lane_axis
from eqsat.schedule.tiles import ceil_div, round_up
from eqsat.schedule.vectors import LARGE, PARTS, turned_loads

__all__ = ["joint_nest", "plain_nest", "stage_nests", "unguarded"]

_MOST = 9
"""Parts at most that a map is cut into."""
_FEW = 16
"""Fewer independent steps than this, and a long reduction is split."""


def plain_nest(kernel: Kernel, lanes: int, shared: int = 0, *, parallel: bool = False, stage: int = 0) -> Nest:
    """Loops in the order of the axes of a normalized kernel, and vectors along the one that most accesses like.

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
    return nest


def unguarded(kernel: Kernel, lanes: int) -> list[Kernel]:
    """A map cut along the seams of its guards, if some of them keep blocks from being transposed; the parts' maps."""
    whole = {id(e) for e in unconditional(kernel.body)}
    inner = [a for a in range(kernel.parallel) if kernel.store_strides[a] == 1 and kernel.extents[a] >= lanes]
    across = [a for a in range(kernel.parallel) if a not in inner and kernel.extents[a] >= lanes]
    turned = any(
        load.strides[a] == 1 and load.strides[b] not in (0, 1)
        for load in loads(kernel.body)
        if id(load) not in whole
        for a in across
        for b in inner
    )
    held = [e.held for e in unique(kernel.body) if isinstance(e, Guarded)]
    marks = []
    for a in range(kernel.parallel if turned and kernel.combine is None else 0):
        seams = {at for bounds in held if bounds is not None and bounds[0] == a for at in bounds[1:]}
        marks.append(sorted({0, kernel.extents[a], *(at for at in seams if 0 < at < kernel.extents[a])}))
    parts = list(itertools.product(*map(itertools.pairwise, marks)))
    return [part_of(kernel, bounds) for bounds in parts] if 1 < len(parts) <= _MOST else [kernel]


def stage_nests(nest: Nest | None) -> dict[int, Nest]:
    """The nests of the maps and reductions in the nest of a group, by stage, without the loops over shared rows."""
    match nest:
        case Loop("rows" | "outer", body=body) | Pack(body=body):
            return stage_nests(body)
        case Seq(bodies):
            return {stage: own for body in bodies for stage, own in stage_nests(body).items()}
        case Loop() | TileOp():
            inner: Nest = nest
            while isinstance(inner, Loop | Pack):
                inner = inner.body
            if isinstance(inner, TileOp) and inner.name not in PRODUCTS:
                return {inner.stage: nest}
    return {}


def joint_nest(nests: Sequence[Nest], kernel: Kernel, shared: int = 0) -> Nest | None:
    """One nest for stages that walk the same axes: the first one's loops, and a tile that suits them all.

    ``kernel``: of the first. None where that takes more than vectors along one axis.
    """
    tiles = [tile_of(nest) for nest in nests]
    first = tiles[0]
    if first.name == "transpose" or len(first.sizes) > 1 or any(tile.name not in MAPS for tile in tiles):
        return None
    vectors = min((size // tile.lanes for tile in tiles for _, size in tile.sizes[-1:]), default=1)
    extents = {name: kernel.extents[a] for name, a in axes_of(kernel, shared).items()}
    return _narrowed(nests[0], max(1, vectors) * first.lanes, extents)


def _narrowed(nest: Nest, size: int, extents: Mapping[str, int]) -> Nest:
    """The nest with a tile of at most ``size`` elements."""
    tile = tile_of(nest)
    if not tile.sizes or tile.sizes[0][1] <= size:
        return nest
    name, old = tile.sizes[0]
    covered = min(old, extents[name])  # a tile takes whole vectors

    def change(at: Nest) -> tuple[Nest, bool]:
        if not isinstance(at, Loop):
            return replace(tile, sizes=((name, size),)), False
        body, done = change(at.body)
        if at.axis == name and not done:
            return replace(at, step=size, body=body), True
        return replace(at, body=body), done

    made, looped = change(nest)
    if looped:
        return made

    def insert(at: Nest) -> Nest:
        if isinstance(at, Loop):
            return replace(at, body=insert(at.body))
        return Loop(name, covered, size, at) if covered > size else at

    return insert(made)

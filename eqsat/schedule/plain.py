"""Nests without a search: what runs where nobody asked for a schedule, and the parts of one that somebody else has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from eqsat.ir.kernel import Kernel
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp
from eqsat.schedule.maps import axes_of, tile_of
from eqsat.schedule.problem import lane_axis
from eqsat.schedule.tiles import ceil_div, round_up
from eqsat.schedule.vectors import LARGE, PARTS

__all__ = ["joint_nest", "plain_nest", "stage_nests"]

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
    sizes = tuple((names[a], size) for a, size in step.items())
    nest: Nest = TileOp("reduce" if reduced else "map", sizes, stage, lanes)
    kept = [a for a in names if a < kernel.parallel]
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
            if isinstance(inner, TileOp) and inner.name in ("map", "reduce", "transpose"):
                return {inner.stage: nest}
    return {}


def joint_nest(nests: Sequence[Nest]) -> Nest | None:
    """One nest for stages that walk the same axes: the first one's loops, and a tile that suits them all.

    None where the first takes more than vectors along one axis.
    """
    tiles = [tile_of(nest) for nest in nests]
    first = tiles[0]
    if first.name == "transpose" or len(first.sizes) > 1:
        return None
    vectors = min((size // tile.lanes for tile in tiles for _, size in tile.sizes[-1:]), default=1)
    return _narrowed(nests[0], max(1, vectors) * first.lanes)


def _narrowed(nest: Nest, size: int) -> Nest:
    """The nest with a tile of at most ``size`` elements."""
    tile = tile_of(nest)
    if not tile.sizes or tile.sizes[0][1] <= size:
        return nest
    name, old = tile.sizes[0]

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
        return Loop(name, old, size, at)

    return insert(made)

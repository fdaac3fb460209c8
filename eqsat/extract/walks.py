"""How index maps walk memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from eqsat.ir import views
from eqsat.ir.views import ViewMap

VECTOR = 8
"""Elements of a run from which it is read by vectors, whatever their width."""


broadcast = lru_cache(maxsize=8192)(views.broadcast)


@lru_cache(maxsize=1 << 16)
def one(map: ViewMap) -> ViewMap:
    """Of equal maps the same object: they are compared a million times in the search of a few steps of a stencil."""
    return map


def unique(maps: Iterable[ViewMap | None]) -> tuple[ViewMap | None, ...]:
    return tuple(dict.fromkeys(maps))


def through(maps: Sequence[ViewMap | None], outer: ViewMap) -> tuple[ViewMap | None, ...] | None:
    """Every map seen through ``outer``; None where one does not compose."""
    out: list[ViewMap | None] = []
    for inner in maps:
        both = outer if inner is None else views.compose(inner, outer)
        if both is None:
            return None
        out.append(one(both))
    return unique(out)


@lru_cache(maxsize=8192)
def turned(map: ViewMap) -> bool:
    """Whether memory is walked contiguously along an axis that is not the last one."""
    last, *others = [[abs(step) for _, step in atoms] for atoms in reversed(map.axes) if atoms] or [[0]]
    return last[-1] > 1 and any(1 in steps for steps in others)


@lru_cache(maxsize=8192)
def everywhere(map: ViewMap) -> bool:
    """Whether memory is walked along every axis."""
    return all(n == 1 or any(step for _, step in atoms) for n, atoms in zip(map.shape, map.axes, strict=True))


def mixed(maps: Iterable[ViewMap | None]) -> int:
    """How many of the tensors that are walked along every axis lie another way than most of them.

    A copy of what is computed from all of them goes the way that most lie, and takes lanes of the others apart.
    """
    found = [map is not None and turned(map) for map in maps if map is None or everywhere(map)]
    return min(found.count(True), found.count(False))


@lru_cache(maxsize=8192)
def in_blocks(map: ViewMap) -> bool:
    """Whether memory that is walked along another axis than the last one can be turned over by blocks of vectors."""
    return any(step == 1 and n >= VECTOR for axis in map.axes[:-1] for n, step in axis)


def every_second(map: ViewMap, reduced: Sequence[int]) -> bool:
    """Whether a reduction reads every second element along an axis that it keeps, and no run of a vector's length."""
    ends = [(axis in reduced, atoms[-1][0], abs(atoms[-1][1])) for axis, atoms in enumerate(map.axes) if atoms]
    runs = any(step == 1 and (n >= VECTOR or not gone) for gone, n, step in ends)
    return not runs and any(step == 2 and not gone for gone, _, step in ends)


def run_of(axes: Sequence[Sequence[views.Atom]], ordered: bool) -> int:
    """Elements that follow one another in memory in pieces of a view: in any order of its axes, or in their own.

    Of every second element half as many: they are loaded with the others.
    """
    run, atoms = 1, [atom for axis in reversed(axes) for atom in reversed(axis)]
    apart = 2 if not ordered and all(step != 1 for _, step in atoms) else 1
    while longer := [n for n, step in (atoms[:1] if ordered else atoms) if step == apart * run and n > 1]:
        run *= max(longer)
        atoms = atoms[1:] if ordered else atoms
    return max(1, run // apart)


@lru_cache(maxsize=8192)
def broadcast_points(shape: tuple[int, ...], target: tuple[int, ...]) -> int:
    """How often an operand of ``shape`` is evaluated in a loop over ``target``: once per innermost run it is
    constant over, since that much is hoisted."""
    lead = len(target) - len(shape)
    last = max((lead + axis for axis, n in enumerate(shape) if n != 1), default=-1)
    return math.prod(target[: last + 1])


@lru_cache(maxsize=8192)
def view_points(map: ViewMap) -> int:
    """The same for an operand seen through a view."""
    last = max((axis for axis, atoms in enumerate(map.axes) if any(step for _, step in atoms)), default=-1)
    return math.prod(map.shape[: last + 1])

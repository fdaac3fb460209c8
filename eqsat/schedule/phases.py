"""Phases of a nest: what all threads have run before any of them goes on.

A sequence that is outermost in a nest is one of phases: the stages of a group, each over all of its own axes (for few
rows, which threads could not share); the parts of a map that is cut where its guards change; or the parts of a split
reduction, and the pass that combines them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from eqsat.cost.target import TileOpRow
from eqsat.ir.axes import loads, map_strides, normalized
from eqsat.ir.kernel import (
    FromStage,
    Guarded,
    Kernel,
    KernelGroup,
    Load,
    Operand,
    Stage,
    part_of,
    unconditional,
    unique,
)
from eqsat.ir.nest import PRODUCTS, Loop, Nest, Seq, TileOp, around, show, tiles
from eqsat.ir.siblings import are_siblings
from eqsat.ir.types import row_major
from eqsat.schedule.maps import axes_of, check_nest

__all__ = [
    "apart",
    "beside",
    "check_beside",
    "combining",
    "combining_nest",
    "in_phases",
    "is_split",
    "parts_of",
    "phases",
    "with_combining",
]

_MOST = 9
"""Parts at most that a map is cut into."""


def apart(group: KernelGroup, lanes: int) -> tuple[KernelGroup, ...]:
    """The groups of one kernel each that a group may run as, one phase after the other; the group if it is one.

    What passes between stages lies in operands behind those of the group. ``lanes``: of a vector.
    """
    if len(group.stages) == 1:
        stage = group.stages[0]
        cut = unguarded(normalized(stage.kernel), lanes)
        return tuple(replace(group, shared=0, stages=(replace(stage, kernel=part),)) for part in cut)
    operands, place = list(group.operands), []
    for stage in group.stages:
        place.append(len(operands) if stage.result is None else stage.result)
        if stage.result is None:
            operands.append(stage.kernel.out)
    found = []
    for number, stage in enumerate(group.stages):
        sources = tuple(place[s.stage] if isinstance(s, FromStage) else s for s in stage.sources)
        alone = Stage(stage.kernel, sources, place[number])
        found.append(KernelGroup((alone,), 0, tuple(operands), (place[number],), group.name))
    return tuple(found)


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


def is_split(nest: Nest) -> bool:
    """Whether a nest is a split reduction with the pass that combines its parts."""
    return isinstance(nest, Seq) and isinstance(nest.bodies[0], Loop) and nest.bodies[0].split


def phases(group: KernelGroup, nest: Nest) -> list[tuple[KernelGroup, Nest]]:
    """The kernels that a group runs as by a nest without shared rows, each with its nest.

    Raises ``ValueError`` where the nest's sequence is not one of them.
    """
    found = tiles(nest)
    if (len(group.stages) == 1 or are_siblings(group)) and (not isinstance(nest, Seq) or is_split(nest)):
        return [(group, nest)]
    bodies = nest.bodies if isinstance(nest, Seq) else ()
    groups = apart(group, 1) if found else ()  # where they were cut for blocks of any number of lanes
    if len(bodies) < 2 or len(bodies) != len(groups):
        raise ValueError(f"{len(bodies)} phases, the group may run in {len(groups)}, in {show(nest)}")
    if any(tile.name in PRODUCTS for tile in found):
        raise ValueError(f"register tiles of a contraction run in no phase of a group, in {show(nest)}")
    for number, body in enumerate(bodies):
        stage = number if len(group.stages) > 1 else 0
        if any(tile.stage != stage for tile in tiles(body)):
            raise ValueError(f"phase {number} is stage {stage}'s, not {show(body)}")
    return [pair for one, body in zip(groups, bodies, strict=True) for pair in phases(one, staged(body, 0))]


def in_phases(nests: Sequence[Nest], group: KernelGroup) -> Nest:
    """The nest of a group that runs as the kernels of :func:`apart`, each by its own nest."""
    several = len(group.stages) > 1
    return Seq(tuple(staged(nest, number if several else 0) for number, nest in enumerate(nests)))


def staged(nest: Nest, stage: int) -> Nest:
    """The nest with its tiles those of another stage."""
    match nest:
        case TileOp():
            return replace(nest, stage=stage)
        case Seq(bodies):
            return Seq(tuple(staged(body, stage) for body in bodies))
    return replace(nest, body=staged(nest.body, stage))


# reductions side by side


def beside(nest: Nest, count: int) -> Nest:
    """The nest of a reduction for so many side by side: its tile once for each."""
    if isinstance(nest, Seq):
        return Seq(tuple(beside(body, count) for body in nest.bodies))
    if isinstance(nest, TileOp):
        return Seq(tuple(replace(nest, stage=stage) for stage in range(count)))
    return replace(nest, body=beside(nest.body, count))


def check_beside(nest: Nest, kernels: Sequence[Kernel], ops: Sequence[TileOpRow] = ()) -> None:
    """Raise ``ValueError`` where a nest is none of one or more normalized kernels side by side, split or not.

    ``ops``: the tile operations on offer to a single one.
    """
    if is_split(nest):
        first, *others = nest.bodies if isinstance(nest, Seq) else ()
        assert isinstance(first, Loop)
        if len(others) != 1:
            raise ValueError(f"parts of a reduction and one pass that combines them, not {show(nest)}")
        check_beside(first, kernels, ops)
        check_beside(others[0], [combining(kernel, parts_of(first)) for kernel in kernels])
        return
    found, at = tiles(nest), nest
    while isinstance(at, Loop):
        at = at.body
    if [tile.stage for tile in found] != list(range(len(kernels))) or (len(kernels) > 1 and at != Seq(found)):
        raise ValueError(f"the nest does not run {len(kernels)} reductions side by side, in order: {show(nest)}")
    for tile, kernel in zip(found, kernels, strict=True):
        if len(found) > 1 and (tile.name != "reduce" or replace(tile, stage=0) != found[0]):
            raise ValueError(f"reductions side by side have one tile, not {show(nest)}")
        check_nest(around(nest, tile), kernel, 0, ops, kernels)


# split reductions


def parts_of(nest: Loop) -> int:
    """Parts that a split loop has."""
    return -(-nest.block // nest.step)


def combining(kernel: Kernel, parts: int) -> Kernel:
    """The second phase of a split reduction: what the parts' results combine to, and the epilogue.

    It reads them from an operand behind those of the kernel: one position after the other, those of each part together.
    """
    extents, results = kernel.extents[: kernel.parallel], kernel.results
    return replace(
        kernel,
        extents=(*extents, parts),
        body=Load(len(kernel.operands), 0, (*row_major(extents), results), kernel.body.dtype),
        epilogue=map_strides(kernel.epilogue, lambda s: (*s[: kernel.parallel], 0)),
        operands=(*kernel.operands, Operand(kernel.body.dtype, parts * results)),
    )


def combining_nest(kernel: Kernel, parts: int, lanes: int, stage: int = 0) -> Nest:
    """The nest of :func:`combining`: by vectors of results, which threads share, or of parts if there is one result."""
    nest: Nest
    extents = kernel.extents[: kernel.parallel]
    if not extents:
        nest = TileOp("reduce", (("r0", lanes),), stage, lanes)
        return Loop("r0", parts, lanes, nest) if parts > lanes else nest
    inner = f"p{kernel.parallel - 1}"
    nest = Loop("r0", parts, 1, TileOp("reduce", ((inner, lanes),), stage, lanes))
    for a in reversed(range(kernel.parallel)):
        step = lanes if a == kernel.parallel - 1 else 1
        if extents[a] > step:
            nest = Loop(f"p{a}", extents[a], step, nest)
    return replace(nest, parallel=True) if isinstance(nest, Loop) and nest.axis != "r0" else nest


def with_combining(nest: Nest, kernel: Kernel) -> Nest:
    """The nest of a normalized kernel with the second phase that a split loop needs."""
    if not isinstance(nest, Loop) or not nest.split:
        return nest
    (tile,) = tiles(nest)
    assert nest.axis in axes_of(kernel), "the nest of this kernel"
    return Seq((nest, combining_nest(kernel, parts_of(nest), tile.lanes, tile.stage)))

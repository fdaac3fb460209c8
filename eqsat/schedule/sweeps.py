"""Stages of a group between its contractions: which run row by row, and which share one sweep of a row.

A nest says both (see ``eqsat.ir.nest``): a part of its sequence is a contraction, or a loop over the rows of a block
around sweeps of one row; a sweep is loops around the tile of one stage, or around those of several that walk the same
axes, where what one makes the next reads from a register. What is legal, and what is chosen, is said here alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from eqsat.ir.axes import loads
from eqsat.ir.kernel import FromStage, Kernel, KernelGroup, Load
from eqsat.ir.nest import MAPS, PRODUCTS, Loop, Nest, Pack, Seq, TileOp, around, show, tiles
from eqsat.schedule.domain import column_of
from eqsat.schedule.maps import axes_of, check_nest, check_turns, tile_of
from eqsat.schedule.peel import peeled
from eqsat.schedule.plain import plain_nest
from eqsat.schedule.problem import Problem

__all__ = ["aligned", "arranged", "check_part", "drawn", "joins", "members", "stage_nests", "sweeps"]

Cuts = Callable[[Sequence[Nest], int], Collection[int]]


def members(nest: Nest) -> list[int]:
    """The stages that a nest runs, in order."""
    return [tile.stage for tile in tiles(nest)]


def sweeps(part: Nest) -> tuple[Nest, ...]:
    """The sweeps of one row in a part of a group's sequence that is no contraction."""
    body = part.body if isinstance(part, Loop) and part.axis == "rows" else part
    return body.bodies if isinstance(body, Seq) else (body,)


def stage_nests(nest: Nest, group: KernelGroup) -> dict[int, Nest]:
    """The nests of a simplified group's maps and reductions over one row each, by stage."""
    match nest:
        case Loop("rows" | "outer", body=body) | Pack(body=body):
            return stage_nests(body, group)
        case Seq(bodies):
            return {stage: own for body in bodies for stage, own in stage_nests(body, group).items()}
    found = tiles(nest)
    if any(tile.name in PRODUCTS for tile in found):
        return {}
    return {tile.stage: _alone(nest, group, found[0], tile) for tile in found}


def _alone(sweep: Nest, group: KernelGroup, first: TileOp, tile: TileOp) -> Nest:
    """A sweep as one of its stages sees it: the loops go by the names of its own axes."""
    if not isinstance(sweep, Loop):
        return tile
    names = {}
    if first.stage != tile.stage:
        ours, theirs = (axes_of(group.stages[t.stage].kernel, group.shared) for t in (tile, first))
        positions = {a: name for name, a in ours.items()}
        names = {name: positions.get(a, name) for name, a in theirs.items()}
    return replace(sweep, axis=names.get(sweep.axis, sweep.axis), body=_alone(sweep.body, group, first, tile))


# what is legal


def aligned(load: Load, maker: Kernel) -> bool:
    """Whether a load walks the result of a map just as the map itself stores it."""
    return not load.gathers and (load.offset, load.strides) == (maker.store_offset, maker.store_strides)


def _line(kernel: Kernel, shared: int) -> tuple[int, ...]:
    """Extents of the axes that a stage walks once from end to end; none if it keeps several results at once."""
    if kernel.combine is None or kernel.parallel == shared:
        return kernel.extents[shared:]
    return ()


def joins(group: KernelGroup, stage: int, others: Sequence[int]) -> bool:
    """Whether a stage of a simplified group may share a sweep with those right before it.

    It walks the same axes, and what it reads of them is at hand when it does: elements where they are made, results
    of reductions not before the end.
    """
    kernel, sources = group.stages[stage].kernel, group.stages[stage].sources
    line = _line(kernel, group.shared)
    if not line or any(line != _line(group.stages[other].kernel, group.shared) for other in others):
        return False
    if group.unless:  # blocks leave out columns
        columns = {column_of(group.stages[s].kernel, group.shared) for s in (stage, *others)}
        if len(columns) > 1:
            return False
    in_body = {id(load) for load in loads(kernel.body)}
    for load in loads(kernel.body, kernel.epilogue):
        source = sources[load.operand]
        if isinstance(source, FromStage) and source.stage in others:
            maker = group.stages[source.stage].kernel
            if maker.combine is not None and id(load) not in in_body:
                continue
            if maker.combine is not None or not aligned(load, maker):
                return False
    return True


def check_part(part: Nest, group: KernelGroup, rows: int, asks: bool = False) -> None:
    """Raise ``ValueError`` where a part of the sequence over ``rows`` rows, no contraction, is no legal one.

    It names the stage that cannot share a sweep with those before it, or the axis. ``group``: a simplified one.
    ``asks``: its rows may ask for what contractions read at the next outer position.
    """
    where = f"in {show(part)}"
    over = part if isinstance(part, Loop) and part.axis == "rows" else None
    if over:
        check_turns(over, part=True)
        if over.prefetch and not asks:
            raise ValueError(f"rows have no shares of what contractions read at the next outer position, {where}")
    if (over or rows > 1) and (over is None or replace(over, prefetch=False) != Loop("rows", rows, 1, over.body)):
        raise ValueError(f"no loop over the {rows} rows of a block, one by one, {where}")
    for sweep in sweeps(part):
        found, at = tiles(sweep), sweep
        while isinstance(at, Loop):
            if at.parallel or at.split or at.cyclic:
                raise ValueError(f"threads share rows, not also the loop over axis {at.axis!r} of a stage, {where}")
            at = at.body
        inner = at.bodies if isinstance(at, Seq) else (at,)
        if not inner or not all(isinstance(tile, TileOp) and tile.name in MAPS for tile in inner):
            raise ValueError(f"a sweep of a row is loops around tiles of maps and reductions, {where}")
        stages = [tile.stage for tile in found]
        kernels = [group.stages[stage].kernel for stage in stages]
        for n, tile in enumerate(found):
            if tile.prefetch > rows:
                raise ValueError(f"stage {tile.stage} asks {tile.prefetch} rows ahead, a block has {rows}, {where}")
            if n and not joins(group, tile.stage, stages[:n]):
                raise ValueError(f"stage {tile.stage} cannot share a sweep with what it reads of {stages[:n]}, {where}")
            if len(found) > 1 and (tile.name == "transpose" or len(tile.sizes) > 1 or tile.lanes != found[0].lanes):
                raise ValueError(f"a shared sweep is by vectors along one axis, not {show(tile)}, {where}")
            own = _alone(sweep, group, found[0], tile)
            check_nest(own, group.stages[tile.stage].kernel, group.shared, others=kernels)


# what is chosen


def arranged(nest: Nest, problem: Problem, cuts: Cuts = lambda own, rows: ()) -> Nest:
    """A group's nest with its stages in runs of rows and in sweeps, from one with a nest of its own for each stage.

    ``cuts``: of the stages between two contractions, as nests of one row each, and the rows of a block: those that
    wait until the ones before them are done for all of these rows. The others run row by row.
    """
    return _arranged(nest, problem, cuts, None)


def drawn(nest: Nest, problem: Problem, draws: random.Random) -> Nest:
    """The same, at random among what is legal."""

    def cuts(own: Sequence[Nest], rows: int) -> list[int]:
        return [tile_of(one).stage for one in own[1:] if draws.random() < 0.3]

    return _arranged(nest, problem, cuts, draws)


def _arranged(nest: Nest, problem: Problem, cuts: Cuts, draws: random.Random | None) -> Nest:
    if not problem.rows:
        return nest
    if not isinstance(nest, Seq):
        assert not isinstance(nest, TileOp), "the nest of several stages"
        return replace(nest, body=_arranged(nest.body, problem, cuts, draws))
    parts: list[Nest] = []
    for product, bodies in itertools.groupby(nest.bodies, lambda own: any(t.name in PRODUCTS for t in tiles(own))):
        between = list(bodies)
        if product:
            parts += between
            continue
        first = between[0]
        rows = first.block if isinstance(first, Loop) and first.axis == "rows" else 1
        own = [one.body if isinstance(one, Loop) and one.axis == "rows" else one for one in between]
        begins = {tile_of(own[0]).stage, *cuts(own, rows)}
        starts = [n for n, one in enumerate(own) if tile_of(one).stage in begins]
        for start, stop in itertools.pairwise((*starts, len(own))):
            made = _swept(own[start:stop], problem.simple, draws)
            body = _reaching(made[0] if len(made) == 1 else Seq(tuple(made)), problem.simple, rows, draws)
            asks = any(isinstance(one, Loop) and one.prefetch for one in between[start:stop])
            parts.append(Loop("rows", rows, 1, body, prefetch=asks) if rows > 1 else body)
    return Seq(tuple(parts))


def _reaching(body: Nest, group: KernelGroup, rows: int, draws: random.Random | None) -> Nest:
    """The sweeps of a part over ``rows`` rows with prefetches for the next row that nothing has read yet."""
    stages = members(body)
    read = {source for stage in stages for source in group.stages[stage].sources}
    before = any(read.intersection(stage.sources) for stage in group.stages[: stages[0]])  # all rows of the block

    def reach(at: Nest) -> Nest:
        if isinstance(at, Seq):
            return Seq(tuple(map(reach, at.bodies)))
        if not isinstance(at, TileOp):
            return replace(at, body=reach(at.body))
        far = rows if before else 1
        if at.prefetch and draws is not None:
            far = draws.choice((1, rows))
        return replace(at, prefetch=far if at.prefetch else 0)

    return reach(body)


def _swept(run: Sequence[Nest], group: KernelGroup, draws: random.Random | None) -> list[Nest]:
    """The nests of stages that run row by row, neighbours in one sweep where that is legal: it saves loads."""
    found: list[list[Nest]] = []
    for own in run:
        (tile,) = tiles(own)
        shares = bool(found) and joins(group, tile.stage, [s for one in found[-1] for s in members(one)])
        if shares and (draws is None or draws.random() < 0.7):
            found[-1].append(own)
        else:
            found.append([own])
    return [_joined(nests, group) if len(nests) > 1 else nests[0] for nests in found]


def _joined(nests: Sequence[Nest], group: KernelGroup) -> Nest:
    """One sweep for stages that walk the same axes: the loops of the first, of blocks that suit them all."""
    own = [tile for nest in nests for tile in tiles(nest)]
    first = group.stages[own[0].stage].kernel
    made = _joint(nests, first, group.shared)
    if made is None:
        plain = [plain_nest(group.stages[tile.stage].kernel, own[0].lanes, group.shared) for tile in own]
        made = _joint(plain, first, group.shared)
        assert made is not None, "plain nests of groups are vectors along one axis"
    (shared,) = tiles(made)
    at = axes_of(first, group.shared)
    wanted = {axis for nest, tile in zip(nests, own, strict=True) for axis in _peeled(nest, group, tile)}
    made = peeled(made, [group.stages[tile.stage].kernel for tile in own], at, wanted)
    same = []
    for tile in own:
        names = {a: name for name, a in axes_of(group.stages[tile.stage].kernel, group.shared).items()}
        sizes = tuple((names[at[axis]], size) for axis, size in shared.sizes)
        kind = "map" if group.stages[tile.stage].kernel.combine is None else "reduce"
        same.append(replace(tile, name=kind, sizes=sizes, stream=tile.stream and tile.name == "map"))
    return around(made, Seq(tuple(same)))


def _peeled(nest: Nest, group: KernelGroup, tile: TileOp) -> Iterator[int]:
    """The kernel axes along which the nest of a stage is peeled."""
    axes = axes_of(group.stages[tile.stage].kernel, group.shared)
    while isinstance(nest, Loop):
        if nest.peel:
            yield axes[nest.axis]
        nest = nest.body


def _joint(nests: Sequence[Nest], kernel: Kernel, shared: int = 0) -> Nest | None:
    """One nest for stages that walk the same axes: the first one's loops, and a tile that suits them all.

    ``kernel``: of the first. None where that takes more than vectors along one axis.
    """
    own = [tile_of(nest) for nest in nests]
    first = own[0]
    if first.name == "transpose" or len(first.sizes) > 1 or any(tile.name not in MAPS for tile in own):
        return None
    vectors = min((size // tile.lanes for tile in own for _, size in tile.sizes[-1:]), default=1)
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

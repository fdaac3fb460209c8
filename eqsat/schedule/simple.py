"""A legal nest without a search: the starting nest of a group, in blocks of one tile."""

from __future__ import annotations

from eqsat.cost.calibration import CHAIN
from eqsat.cost.target import Target
from eqsat.ir.axes import normalized
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp
from eqsat.schedule.copies import with_copies
from eqsat.schedule.decode import prepacked
from eqsat.schedule.forms import StageForm
from eqsat.schedule.phases import apart, beside, in_phases, with_combining
from eqsat.schedule.plain import plain_nest
from eqsat.schedule.price import Pricer
from eqsat.schedule.problem import Problem, problem_of
from eqsat.schedule.runs import Runs
from eqsat.schedule.sweeps import arranged
from eqsat.schedule.tiles import best_tiles, ceil_div, round_up
from eqsat.schedule.vector_cost import lanes_of

TILES = 4
"""Rows of tiles in a block of shared rows."""


def simple_nest(group: KernelGroup, target: Target) -> Nest:
    """A nest for where there is no e-graph to search: register tiles in the order of the axes, packed where they have
    to be, blocks of a few tiles of shared rows. Threads share the outermost loop.

    Raises ``ScheduleError`` where the group breaks what ``KernelGroup`` promises.
    """
    problem = problem_of(group, target)
    if not any(form.contraction for form in problem.stages):
        return plain_group_nest(group, lanes_of(problem.stages[0], target))
    if not problem.rows:
        whole = prepacked(_shared(problem, _stage(problem.stages[0], None, target)), problem)
        return with_copies(whole, problem, target)
    step = max([_tile_rows(form, problem, target) for form in problem.stages if form.contraction], default=1) * TILES
    step = min(step, problem.rows)
    nest: Nest = Seq(tuple(_stage(form, step, target) for form in problem.stages))
    nest = arranged(nest, problem, Runs(Pricer(problem, target)).cuts)
    alone = problem.outer <= 1
    nest = Loop("rows", problem.rows, step, nest, alone, cyclic=alone and problem.columns is not None)
    for form in reversed(problem.stages):
        for factor in form.factors:
            if factor.name == "b" and factor.external and not (factor.free or factor.direct):
                nest = Pack(f"b@{form.index}", nest)
    nest = prepacked(Loop("outer", max(1, problem.outer), 1, nest, not alone), problem)
    return with_copies(nest, problem, target)


def plain_group_nest(group: KernelGroup, lanes: int) -> Nest:
    """The same of a group without contractions, by vectors of ``lanes`` elements: row by row, or in phases if it is one
    kernel."""
    if len(group.stages) == 1:
        kernels = [normalized(one.stages[0].kernel) for one in apart(group, lanes)]
        nests = [with_combining(plain_nest(kernel, lanes, parallel=True), kernel) for kernel in kernels]
        return nests[0] if len(nests) == 1 else in_phases(nests, group)
    problem = problem_of(group)
    first = problem.stages[0]
    if first.siblings:
        nest = with_combining(plain_nest(first.kernel, lanes, parallel=True), first.kernel)
        return beside(nest, len(first.results))
    simple = problem.simple
    own = [plain_nest(stage.kernel, lanes, simple.shared, stage=s) for s, stage in enumerate(simple.stages)]
    alone = problem.outer <= 1
    nest = Loop("rows", problem.rows, 1, arranged(Seq(tuple(own)), problem), alone)
    return Loop("outer", max(1, problem.outer), 1, nest, not alone)


def _tile_rows(form: StageForm, problem: Problem, target: Target) -> int:
    rows, _ = best_tiles(target, form.dtype, form.extent("m", problem.rows), form.extent("n", 1), 1)[0]
    return ceil_div(rows, max(1, form.extent("m", 1)))


def _stage(form: StageForm, block: int | None, target: Target) -> Nest:
    """The nest of one stage over ``block`` shared rows (None: all of it)."""
    if not form.contraction:
        shared = len(form.outer) + len(form.rows)
        own = plain_nest(form.kernel, lanes_of(form, target), shared, stage=form.index)
        rows = form.extent("rows", block)
        return Loop("rows", rows, 1, own) if rows > 1 else own
    nest: Nest
    extents = {axis: form.extent(axis, block) for axis in "bmnk"}
    rows, columns = best_tiles(target, form.dtype, extents["m"], extents["n"], 1)[0]
    depth = round_up(ceil_div(extents["k"], ceil_div(extents["k"], CHAIN)), 8) if extents["k"] > CHAIN else extents["k"]
    nest = TileOp("fma", (("m", rows), ("n", columns), ("k", max(1, depth))), form.index)
    for axis, step in (("k", depth), ("n", columns), ("m", rows)):
        if extents[axis] > step:
            nest = Loop(axis, extents[axis], step, nest)
    for factor in form.factors:
        outside = block is not None and factor.name == "b" and factor.external  # packed once for all blocks of rows
        if not (factor.free or factor.direct or outside):
            nest = Pack(factor.name, nest)
    return Loop("b", extents["b"], 1, nest) if extents["b"] > 1 else nest


def _shared(problem: Problem, nest: Nest) -> Nest:
    """The nest of a single stage with its outermost loop shared by threads."""
    match nest:
        case Loop(axis, block, step, body) if axis != "k":
            return Loop(axis, block, step, body, parallel=True)
        case Pack(operand, body):
            return Pack(operand, _shared(problem, body))
    return nest

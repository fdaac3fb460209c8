"""Software prefetch by rows: which sweep of a group asks for the next row of what an earlier one waits for."""

from __future__ import annotations

import math
from collections.abc import Collection

from eqsat.cost.calibration import AHEAD
from eqsat.cost.movement import all_dependences, slots_of
from eqsat.cost.target import Target
from eqsat.ir.kernel import Call, Kernel, Load, unconditional, unique
from eqsat.schedule.forms import Source, StageForm
from eqsat.schedule.problem import Problem


def read_again(problem: Problem, target: Target) -> dict[int, dict[str, tuple[Load, ...]]]:
    """Loads, by stage and the axis that they walk, of what an earlier stage of the group read at the same row.

    The earlier stage waits for it, and if this one computes meanwhile, the next row may be on its way. Of several that
    read the same the one with most arithmetic, and none where two rows of the group do not fit a private cache.
    """
    if not problem.rows:
        return _next_of_siblings(problem.stages[0], problem, target)
    row = {"outer": 1, "rows": 1}
    touched: dict[Source, int] = {}
    for form in problem.stages:
        touched |= problem.touched(form.index, form.extents(row), frozenset())
    if 2 * sum(touched.values()) > target.middle[0].capacity:
        return {}
    first: dict[Source, int] = {}
    found: dict[Source, tuple[float, int]] = {}
    for form in problem.stages:
        slots = math.inf if form.contraction else -_arithmetic(form)
        for source in dict.fromkeys(form.sources):
            if source[0] == "operand" and first.setdefault(source, form.index) != form.index:
                found[source] = min(found.get(source, (math.inf, 0)), (slots, form.index))
    chosen: dict[int, dict[str, tuple[Load, ...]]] = {}
    for form in problem.stages:
        for axis in form.own if not form.contraction else ():
            (a,) = form.named[axis]
            loads = tuple(
                load
                for load in ahead_loads(form.kernel, a, form.rows)
                if found.get(form.sources[load.operand], (0.0, -1))[1] == form.index
            )
            if loads:
                chosen.setdefault(form.index, {})[axis] = loads
    return chosen


def _next_of_siblings(form: StageForm, problem: Problem, target: Target) -> dict[int, dict[str, tuple[Load, ...]]]:
    """What reductions side by side read of the next row, which as stages over shared rows they might ask for ahead."""
    kernel = form.kernel
    if not form.siblings or not kernel.parallel:
        return {}
    row = (*(1 for _ in range(kernel.parallel)), *kernel.extents[kernel.parallel :])
    if 2 * sum(problem.touched(form.index, row, frozenset()).values()) > target.middle[0].capacity:
        return {}
    reduced = (axis for axis in form.own if form.reduced(axis))
    found = {axis: ahead_loads(kernel, form.named[axis][0], (kernel.parallel - 1,)) for axis in reduced}
    return {form.index: {axis: loads for axis, loads in found.items() if loads}}


def asking_stage(problem: Problem, target: Target) -> int | None:
    """The stage whose rows may ask for what contractions read at the next outer position: that with most arithmetic.

    None where there is no such stage, nothing to ask for, or more than may stay in a private cache meanwhile.
    """
    rowwise = [form for form in problem.stages if not form.contraction]
    nbytes = sum(share.piece for share in problem.shares) * problem.rows
    if not rowwise or not nbytes or nbytes > AHEAD * target.middle[0].capacity:
        return None
    return max(rowwise, key=lambda form: (_arithmetic(form), -form.index)).index


def _arithmetic(form: StageForm) -> float:
    """Slots of what a stage computes at every point: of what moves along its own axes."""
    slots, shared = slots_of(form.functions), len(form.outer) + len(form.rows)
    calls = (e for e in unique(form.kernel.body) if isinstance(e, Call))
    depends = all_dependences(len(form.kernel.extents), form.kernel.body)
    moving = (e for e in calls if any(a >= shared for a in depends[id(e)]))
    return sum(slots.get(e.fn, 1.0) for e in moving) * form.kernel.points


def ahead_loads(kernel: Kernel, axis: int, rows: Collection[int]) -> tuple[Load, ...]:
    """Loads that walk an axis contiguously and move with the rows, so that their next row can be asked for."""
    found: dict[tuple[int, int, tuple[int, ...]], Load] = {}
    for load in unconditional(kernel.body):
        if not isinstance(load, Load) or load.gathers or load.strides[axis] != 1:
            continue
        if any(load.strides[a] for a in rows):
            found.setdefault((load.operand, load.offset, load.strides), load)
    return tuple(found.values())

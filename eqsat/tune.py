"""Schedules timed on the machine: the model ranks, the clock decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from eqsat.cost.machine import Machine
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Nest, show
from eqsat.ir.types import TensorType
from eqsat.options import Options
from eqsat.plan.backend import backend
from eqsat.plan.plan import KernelStep, Plan, SearchReport
from eqsat.schedule import Candidate, schedule
from eqsat.search import SearchOptions

log = logging.getLogger("eqsat")
REPEAT = 7
SHARE = 0.7
"""Part of the time left that tuning may take; kernels tuned are compiled already."""


def tune(
    plan: Plan,
    options: Options,
    machine: Machine,
    search: SearchOptions,
    progress: Callable[[str], None],
    deadline: Deadline = NEVER,
) -> Plan:
    """The plan with each kernel's nest the fastest of the ``options.tune`` best by the model, timed one at a time.

    Bounded by kernels × nests (the model offers ``schedule.CANDIDATES`` of each), and by ``SHARE`` of the time that is
    left: kernels that come too late keep the model's nest, and the plan's report counts them as ``untuned``.
    """
    chosen: dict[KernelGroup, Candidate] = {}
    threads = plan.report.team
    target = search.target if threads > 1 else search.target.alone
    groups = dict.fromkeys(s.group for s in plan.steps if isinstance(s, KernelStep))
    end = Deadline(SHARE * deadline.left, deadline)
    for number, group in enumerate(groups):
        progress(f"tune: kernel {number + 1} of {len(groups)}")
        try:
            found = schedule(group, target, disable=search.no_loops, deadline=end)
            candidates = found.candidates[: options.tune]
            timed = [(time_of(group, c.nest, options, machine, threads, end), n, c) for n, c in enumerate(candidates)]
        except OutOfTime:
            plan.report.untuned = len(groups) - number
            log.info("no time to tune the last %d of %d kernels", plan.report.untuned, len(groups))
            break
        if timed:
            best = min(timed, key=lambda t: t[:2])
            chosen[group] = best[2]
            log.info("tuned: %s in %.3g ms", show(best[2].nest), best[0] * 1e3)
    steps = tuple(
        replace(s, chosen=chosen.get(s.group, s.chosen)) if isinstance(s, KernelStep) else s for s in plan.steps
    )
    return replace(plan, steps=steps)


def time_of(
    group: KernelGroup, nest: Nest, options: Options, machine: Machine, threads: int, deadline: Deadline = NEVER
) -> float:
    """Median seconds of one kernel group under one nest, on random operands. ``OutOfTime`` past ``deadline``."""
    plan, const, arrays = alone(group, [nest])
    made = backend(options.backend)
    run = made.load(made.emit(plan, machine, deadline), const, threads, deadline)
    deadline.check("tuning")
    (once,) = run.profile(arrays, 1)
    return once if once * REPEAT > deadline.left else run.profile(arrays, REPEAT)[0]


def alone(group: KernelGroup, nests: Sequence[Nest]) -> tuple[Plan, dict[int, np.ndarray], list[np.ndarray]]:
    """A program of one kernel group under each of ``nests``, its constants, and its other operands.

    They are random, integers zero. All of its steps compute the same.
    """
    from eqsat.ir import build

    rng = np.random.default_rng(0)
    types = {n: TensorType((o.size,), o.dtype) for n, o in enumerate(group.operands)}
    values = {
        n: (rng.standard_normal(t.shape) if t.dtype.is_float else np.zeros(t.shape)).astype(t.dtype.numpy)
        for n, t in types.items()
        if n not in group.outputs
    }
    const = {n: a for n, a in values.items() if group.operands[n].const}
    inputs = tuple(n for n in values if n not in const)
    nodes = {n: build.const(a) for n, a in const.items()}
    steps = tuple(KernelStep(group, tuple(types), Candidate(nest, 0.0, (), ""), "") for nest in nests)
    plan = Plan(types, inputs, group.outputs, nodes, steps, SearchReport())
    return plan, const, [values[n] for n in inputs]

"""Schedules timed on the machine: the model ranks, the clock decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from eqsat.cost.machine import Machine
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Nest, show
from eqsat.ir.node import Node
from eqsat.ir.types import TensorType
from eqsat.options import Options
from eqsat.plan.backend import backend
from eqsat.plan.plan import KernelStep, Plan, SearchReport
from eqsat.schedule import schedule
from eqsat.search import SearchOptions

log = logging.getLogger("eqsat")
REPEAT = 7


def tune(
    plan: Plan,
    options: Options,
    machine: Machine,
    constants: Mapping[Node, np.ndarray],
    search: SearchOptions,
    progress: Callable[[str], None],
) -> Plan:
    """The plan with each kernel's nest the fastest of the ``options.tune`` best by the model, timed one at a time."""
    chosen: dict[KernelGroup, Nest | None] = {}
    groups = [s.group for s in plan.steps if isinstance(s, KernelStep)]
    for number, group in enumerate(dict.fromkeys(groups)):
        progress(f"tune: kernel {number + 1} of {len(set(groups))}")
        found = schedule(group, machine, threads=search.threads, disable=search.no_loops)
        candidates = found.candidates[: options.tune]
        timed = [(time_of(group, nest, options, machine, search.threads), n, nest) for n, nest in enumerate(candidates)]
        if timed:
            best = min(timed, key=lambda t: t[:2])
            chosen[group] = best[2]
            log.info("tuned: %s in %.3g ms", show(best[2]), best[0] * 1e3)
    steps = tuple(replace(s, nest=chosen.get(s.group, s.nest)) if isinstance(s, KernelStep) else s for s in plan.steps)
    return replace(plan, steps=steps)


def time_of(group: KernelGroup, nest: Nest, options: Options, machine: Machine, threads: int) -> float:
    """Median seconds of one kernel group under one nest, on random operands."""
    from eqsat.ir import build

    rng = np.random.default_rng(0)
    types = {n: TensorType((o.size,), o.dtype) for n, o in enumerate(group.operands)}
    values = {
        n: (rng.standard_normal(t.shape) if t.dtype.is_float else np.zeros(t.shape)).astype(t.dtype.numpy)
        for n, t in types.items()
        if n not in group.outputs
    }
    const = {n: a for n, a in values.items() if group.operands[n].const}
    step = KernelStep(group, tuple(types), nest, 0.0, "")
    inputs = tuple(n for n in values if n not in const)
    nodes = {n: build.const(a) for n, a in const.items()}
    alone = Plan(types, inputs, group.outputs, nodes, (step,), SearchReport())
    made = backend(options.backend)
    run = made.load(made.emit(alone, machine), const, threads)
    return run.profile([values[n] for n in inputs], REPEAT)[0]

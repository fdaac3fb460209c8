"""Kernels of loops' bodies: what one trip writes is read in it or in the next, from the caches that hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.cost.calibration import WARM
from eqsat.frontends.trace import trace
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import show
from eqsat.plan.plan import KernelStep
from eqsat.progress import tell
from eqsat.rules import select
from eqsat.schedule import schedule
from eqsat.schedule.price import Pricer
from eqsat.schedule.problem import problem_of
from eqsat.search import SearchOptions, search
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import machine, reduction, single
from tests.nest_price import evaluate

SMALL = machine(l3=8 << 20)
TARGET = cpu_target(SMALL)
HALF = np.float32(0.5)


def again(group: KernelGroup) -> KernelGroup:
    """A group of one kernel as it is in a loop's body."""
    kernel = group.stages[0].kernel
    return single(replace(kernel, out=replace(kernel.out, again=True)))


def test_what_a_trip_writes_stays_in_the_caches() -> None:
    """As results of a program of their own they go past them, in the same order."""
    x = np.zeros((1200, 1200), np.float32)
    options = SearchOptions(select(), TARGET, 5.0)

    def nest(fn: Callable[..., Any], trips: int) -> tuple[str, float]:
        plan = search(trace(fn, (x,)).graph, frozenset(), SMALL, options, tell)
        assert [repeat.trips for repeat in plan.repeats] == [trips] * (trips > 1)
        (step,) = plan.steps
        assert isinstance(step, KernelStep) and step.chosen is not None
        return show(step.chosen.nest), step.chosen.seconds

    alone, once = nest(lambda x: x * HALF + 1, 1)
    looped, trip = nest(lambda x: eqsat.fori_loop(0, 50, lambda i, v: v * HALF + 1, x), 50)
    assert ",stream" in alone and ",stream" not in looped and trip < once


@pytest.mark.parametrize("size", [1 << 10, 1 << 18, 400_000, 3 << 19, 3 << 20, 1 << 26])
def test_the_last_cache_keeps_its_part_from_trip_to_trip(size: int) -> None:
    """A copy: of its traffic, what that cache does not hold comes from memory and goes there."""
    group, last = reduction((size,), 1, (0,)), TARGET.caches[-1]
    found = schedule(again(group), TARGET)
    problem = problem_of(again(group), TARGET)
    price = evaluate(found.nest, problem, Pricer(problem, TARGET))
    assert price is not None
    far = dict(zip([space.name for space in TARGET.origins], price.moved, strict=True))["memory"]
    part = max(0.0, 1 - TARGET.holds(last) / (8 * size))
    assert far == pytest.approx(part * 12 * size, rel=1e-3, abs=1)
    before = schedule(group, TARGET, disable=("loop.bypass",)).predicted_seconds
    passed = 8 * size > WARM * TARGET.holds(last)  # what streams pass is not relied on elsewhere
    assert found.predicted_seconds < before if passed else found.predicted_seconds == before

"""Programs as long as loops make them: no recursion over their depth, and work in proportion to their length."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest

import eqsat
from eqsat.ir import Graph, build
from eqsat.ir.node import Node
from eqsat.ir.types import TensorType, float32
from eqsat.plan.plan import KernelStep
from eqsat.plan.regions import LONGEST, cut
from eqsat.schedule import scheduler
from tests.plans import plan_of

rng = np.random.default_rng(0)


def summed(x: np.ndarray, n: int) -> np.ndarray:
    total: np.ndarray = reduce(np.add, [x[i] for i in range(n)])
    return total


def scaled(x: np.ndarray, n: int) -> np.ndarray:
    for _ in range(n):
        x = x * 0.999 + 0.001
    return x


def nested(x: np.ndarray, n: int) -> np.ndarray:
    for _ in range(n):
        x = np.sin(x)
    return x


def stacked(x: np.ndarray, n: int) -> np.ndarray:
    return np.stack([x[i] * i for i in range(n)])


def recurrence(x: np.ndarray, n: int) -> np.ndarray:
    h, out = x[0], []
    for i in range(n):
        h = np.tanh(h * 0.5 + x[i])
        out.append(h)
    return np.stack(out)


PROGRAMS = (summed, scaled, nested, stacked, recurrence)


def compare(program: Callable[[np.ndarray, int], np.ndarray], n: int, backend: str = "numpy") -> None:
    x = rng.standard_normal(n) if program in (summed, scaled, nested) else rng.standard_normal((n, 3))
    optimized = eqsat.optimize(lambda x: program(x, n), backend=backend, cache=False)
    np.testing.assert_allclose(optimized(x), program(x, n), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", [1, 10, 220])
def test_long_programs_compute_what_short_ones_do(program: Callable[[np.ndarray, int], np.ndarray], n: int) -> None:
    compare(program, n)


@pytest.mark.parametrize("program", [summed, scaled, nested], ids=lambda f: f.__name__)
def test_chains_deeper_than_the_interpreter_recurses(program: Callable[[np.ndarray, int], np.ndarray]) -> None:
    compare(program, 1200)


@pytest.mark.slow
@pytest.mark.parametrize("program", [summed, scaled, nested], ids=lambda f: f.__name__)
def test_chains_of_thousands(program: Callable[[np.ndarray, int], np.ndarray]) -> None:
    compare(program, 5000)


def test_compiled_kernels_hold_the_longest_terms_there_are() -> None:
    """Chains are cut into kernels before one is too deep for what prints and compiles it."""
    compare(nested, 220, "numba_cpu")
    compare(stacked, 4, "numba_cpu")


def chain(length: int) -> tuple[Node, Node]:
    x = y = build.input_node(0, TensorType((8,), float32))
    for n in range(length):
        y = build.call(("sin", "exp", "tanh")[n % 3], y)
    return x, y


def test_no_region_is_longer_than_the_limit_and_equal_ones_are_searched_once() -> None:
    x, y = chain(6 * LONGEST)
    regions = cut(Graph((x,), (y,)), frozenset())
    assert all(len(r.graph.nodes()) <= LONGEST + 1 for r in regions) and len({r.key() for r in regions}) < len(regions)


def test_regions_are_cut_where_little_is_alive() -> None:
    """Every third tensor is a sum: one number to store instead of a thousand."""
    x = y = build.input_node(0, TensorType((1000,), float32))
    for _ in range(LONGEST // 2):
        total = build.reduce("reduce_sum", build.call("sin", y), (0,))
        y = build.broadcast_to(total, (1000,))
    regions = cut(Graph((x,), (y,)), frozenset())
    assert len(regions) > 1 and all(o.type.size == 1 for r in regions[:-1] for o in r.outputs)


def test_kernels_that_differ_in_where_they_start_are_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, x = 12, build.input_node(0, TensorType((12, 40), float32))
    rows = [build.take_range(x, 0, n, n + 1) for n in range(parts)]
    rows = [build.call("exp", build.call("mul", row, build.scalar(1.5 + n, row))) for n, row in enumerate(rows)]
    asked = 0
    made = scheduler._schedule

    def counted(*args: object) -> scheduler.Scheduled:
        nonlocal asked
        asked += 1
        return made(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(scheduler, "_schedule", counted)
    monkeypatch.setattr(scheduler, "_memory", {})
    plan = plan_of(Graph((x,), (build.concat(rows, 0),)))
    steps = [step for step in plan.steps if isinstance(step, KernelStep)]
    assert len(steps) == parts and asked == 1
    assert len({step.nest for step in steps}) == 1

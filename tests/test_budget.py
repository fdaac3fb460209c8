"""Budgets of selection: counted work decides, whatever the speed of the machine; the clock is a safety net."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eqsat import deadline as deadline_module
from eqsat.deadline import Deadline, OutOfTime
from eqsat.egraph import saturate as saturate_module
from eqsat.egraph.saturate import saturate
from eqsat.egraph.saturated import FULL, SaturatedEGraph, SaturationReport
from eqsat.explain.cuts import cut_off
from eqsat.extract import budget as budget_module
from eqsat.extract.budget import Budget
from eqsat.extract.hypergraph import Choice, Problem, greedy, reduced
from eqsat.extract.ilp import solve
from eqsat.extract.optimum import optimum
from eqsat.extract.select import extract
from eqsat.ir import Graph, build
from eqsat.ir.build import call
from eqsat.ir.types import TensorType, float32
from eqsat.plan.plan import Plan, SearchReport
from eqsat.progress import tell
from eqsat.remembered import search_of
from eqsat.rules import select
from eqsat.rules.examples import Maker
from eqsat.search import SearchOptions, search
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.conftest import MACHINE


class Clock:
    """Time that passes by so many seconds whenever somebody looks."""

    def __init__(self, step: float) -> None:
        self.now, self.step, self.looks = 0.0, step, 0

    def monotonic(self) -> float:
        self.now += self.step
        self.looks += 1
        return self.now

    perf_counter = monotonic


@pytest.fixture(scope="module")
def recurrence() -> SaturatedEGraph:
    """Steps of a gated recurrence: many ways to merge and share, none obviously the best."""
    mk = Maker(0)
    x, h = [mk.tensor(8, 32) for _ in range(2)], mk.tensor(8, 64)
    weights = [(mk.known(32, 64), mk.known(64, 64)) for _ in range(2)]
    for step in x:
        gate, new = (call("add", build.matmul(step, w), build.matmul(h, u)) for w, u in weights)
        h = call("add", call("mul", call("sigmoid", gate), h), call("tanh", new))
    return saturate([h], rules=select(), const=frozenset(mk.known_inputs), seconds=60)


def test_a_slow_machine_selects_the_same(recurrence: SaturatedEGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for step in (0.0, 1e-3):
        monkeypatch.setattr(budget_module, "time", Clock(step))
        found.append(extract(recurrence, MACHINE, seconds=1e6))
    assert found[0] == found[1]
    assert not any(selection.late for selection in found[0])


def plan_at(step: float, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, Clock]:
    """What a search of little work finds where each look at the clock is ``step`` seconds after the one before."""
    a, b, c = (build.input_node(n, TensorType((5, 7), float32)) for n in range(3))
    total = build.reduce("reduce_sum", call("mul", call("add", a, b), call("sub", a, c)), (1,))
    graph = Graph((a, b, c), (call("sub", call("exp", total), call("mul", total, total)),))
    clock = Clock(step)
    for user in (budget_module, deadline_module, saturate_module):
        monkeypatch.setattr(user, "time", clock)
    options = SearchOptions(select(), cpu_target(MACHINE), seconds=SECONDS)
    return search(graph, frozenset(), MACHINE, options, tell), clock


SECONDS = 0.01


def test_a_slow_machine_finds_the_same_program(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, clock = plan_at(0.0, monkeypatch)
    assert plan.report.stops == ["work"]
    slow, _ = plan_at(2 * SECONDS / clock.looks, monkeypatch)
    assert (slow.steps, slow.constants, slow.report.stops) == (plan.steps, plan.constants, ["work"])


def test_the_clock_stops_a_search_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = plan_at(SECONDS, monkeypatch)
    assert plan.report.stops == ["seconds"] and plan.steps


def cut_by(report: SaturationReport, **more: Any) -> list[str]:
    return cut_off(search_of(SearchReport(distinct_regions=1, saturations=[report], **more)))


def test_what_a_budget_cut_off_is_told() -> None:
    """A limit each, and nothing where there was none."""
    mk = Maker(0)
    a, b, c, d = (mk.tensor(6, 7), mk.known(7, 8), mk.known(8, 9), mk.known(9, 5))
    product = build.matmul(build.matmul(build.matmul(a, b), c), d)
    known = frozenset(mk.known_inputs)
    chosen = select()

    def cut(**limits: Any) -> list[str]:
        return cut_by(saturate([product], rules=chosen, const=known, **limits).report)

    assert cut() == []
    (stopped,) = cut(iterations=1)
    assert stopped == "saturation was stopped by their limit of rounds in 1 of 1 different regions"
    stopped, left = cut(work=saturate_module.ROUND + 2.0)  # a round of matching, of which few are tried
    assert "their share of the work in 1 of 1" in stopped and "matches were not tried" in left
    assert any("e-nodes" in told for told in cut(nodes=8))
    held = [told for told in cut(room=0) if told.startswith("tried in part only")]
    assert held, "laws that gain nothing are held back where there is no room for them"
    assert cut_by(SaturationReport(), extractions_cut=1, extraction_gap=0.25) == [
        "the choice among programs ended at its limit in 1 regions, at most 25.0% from the best there"
    ]


def test_full_classes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturate_module, "CLASS_CAP", 1)
    mk = Maker(0)
    root = build.matmul(build.matmul(mk.tensor(6, 7), mk.tensor(7, 8)), mk.tensor(8, 9))
    (told,) = cut_by(saturate([root], rules=select()).report)
    assert FULL in told


def test_the_clock_stops_a_selection_that_says_so(recurrence: SaturatedEGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "time", Clock(1.0))
    best = extract(recurrence, MACHINE, seconds=5.0)[0]
    assert best.late and best.method == "time limit" and best.kernels


def test_nothing_is_selected_past_the_deadline(recurrence: SaturatedEGraph) -> None:
    with pytest.raises(OutOfTime):
        extract(recurrence, MACHINE, seconds=1e6, deadline=Deadline(0))


def test_local_search_and_bounds_see_the_deadline() -> None:
    problem = _random(0, 100, 4)
    start = greedy(problem)
    assert start is not None
    with pytest.raises(OutOfTime):
        optimum(problem, Budget(deadline=Deadline(0)), start=start)
    with pytest.raises(OutOfTime):
        greedy(problem, Deadline(0))
    with pytest.raises(OutOfTime):
        solve(problem, start, Budget(deadline=Deadline(0)))


def _random(seed: int, targets: int, ways: int) -> Problem:
    """Targets in layers, each made in several ways from earlier ones."""
    rng = np.random.default_rng(seed)
    choices = []
    for target in range(targets):
        for _ in range(ways):
            needs = sorted({int(n) for n in rng.integers(0, target, 3)}) if target > 8 else []
            choices.append(Choice(target, tuple(needs), float(rng.uniform(1, 9)), len(choices)))
    return reduced(Problem(tuple(choices), (targets - 1, targets - 2, targets - 3)))


@pytest.mark.parametrize("work", [0, 2_000, 20_000, 200_000])
def test_equal_work_gives_equal_results(work: int) -> None:
    problem = _random(0, 100, 4)
    one, other = (optimum(problem, Budget(work=work, nodes=3), ilp=False) for _ in range(2))
    assert one is not None and one == other
    assert one.bound <= one.solution.cost
    if work == 0:
        assert one.method == "work limit"


def test_programs_beyond_the_size_limit_are_left_alone() -> None:
    problem = _random(1, 30, 3)
    start = greedy(problem)
    assert start is not None
    assert solve(problem, start, Budget(choices=len(problem.choices) - 1)).rounds == 0
    assert solve(problem, start, Budget(choices=len(problem.choices))).proven


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("gap", [1e-6, 0.02, 0.3])
def test_bounds_hold_where_only_better_solutions_are_asked_for(seed: int, gap: float) -> None:
    problem = _random(seed, 25, 3)
    start = greedy(problem)
    assert start is not None
    best = solve(problem, start, Budget()).solution.cost
    outcome = solve(problem, start, Budget(), gap=gap)
    assert outcome.proven and outcome.bound <= best * (1 + 1e-6)
    assert best * (1 - 1e-6) <= outcome.solution.cost <= best * (1 + gap) / (1 - gap)

"""Which of a region's programs runs: the selected one, unless another takes clearly less once scheduled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eqsat import rules
from eqsat.cost.machine import load
from eqsat.egraph.saturate import saturate
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.extract.provenance import rule_provenance
from eqsat.extract.select import extract
from eqsat.extract.terms import Selection, Term
from eqsat.ir import build
from eqsat.ir.node import Graph
from eqsat.ir.types import TensorType, float32
from eqsat.plan import decide as module
from eqsat.plan.backend import backend
from eqsat.plan.decide import CLEAR, PLAIN, as_written, decide
from eqsat.plan.lower import Lowered, lower
from eqsat.plan.place import Found
from eqsat.plan.policy import ScheduledPrice
from eqsat.plan.regions import Region
from eqsat.search import LEAN
from tests.test_extract import RATES

RULES = rules.select("reassociates", ())


def region() -> Region:
    """relu(relu(x @ w)): rules take one of the functions out."""
    x, w = (build.input_node(n, TensorType((64, 64), float32)) for n in range(2))
    y = build.call("relu", build.call("relu", build.matmul(x, w)))
    return Region(Graph((x, w), (y,)), (x, w), (y,), (False, True))


def selected(egraph: SaturatedEGraph, *, quick: bool = False, lean: bool = False) -> list[Selection]:
    rates = RATES.leaner(LEAN) if lean else RATES
    return extract(egraph, rates, seconds=10.0, lowers=lambda term: lower(term) is not None, quick=quick)


@pytest.mark.parametrize(
    ("expected", "apart", "together", "wins"),
    [
        (0.5, 0.1, 0.1, False),  # a gain that large is believed
        (1 - PLAIN / 2, 1 - CLEAR / 2, 0.1, False),  # kernels by themselves are no better: not looked at further
        (1 - PLAIN / 2, 0.9, 1 - CLEAR / 2, False),  # better, but not clearly
        (1 - PLAIN / 2, 0.9, 1 - 2 * CLEAR, True),
        (1.1, 0.9, 1 - 2 * CLEAR, True),  # selection took a program that it thinks to be worse
    ],
)
def test_as_written_runs_where_schedules_say_clearly_so(
    expected: float, apart: float, together: float, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``expected``: of the selected program, as a part of the one as written; ``apart``, ``together``: of the one as
    written, as a part of the selected one."""
    part = region()
    egraph = saturate(part.graph.outputs, rules=RULES, const=frozenset(part.inputs[1:]))

    quickly: list[bool] = []

    def select(graph: SaturatedEGraph, *, quick: bool = False, lean: bool = False) -> list[Selection]:
        quickly.append(quick)
        return [replace(selected(graph, quick=quick)[0], seconds=expected if graph is egraph else 1.0)]

    monkeypatch.setattr(module._Scheduled, "apart", lambda _, f: 1.0 if f.egraph is egraph else apart)
    monkeypatch.setattr(module._Scheduled, "below", lambda _, f, limit: (1.0 if f.egraph is egraph else apart) < limit)
    monkeypatch.setattr(module._Scheduled, "together", lambda _, f: 1.0 if f.egraph is egraph else together)
    price = ScheduledPrice(backend("numba_cpu").target(load(), 1))
    assert rule_provenance(egraph, selected(egraph)[0])
    found = decide(part, egraph, RULES, select, price, {})
    assert (found.egraph is not egraph) == wins
    assert bool(rule_provenance(found.egraph, found.selection)) != wins
    assert quickly == [False, True, False][: 3 if wins else 2]  # the one that runs is selected well


def windows() -> Region:
    """A blur of a blur, of rows that caches do not hold: maps alone."""
    x = build.input_node(0, TensorType((64, 4096), float32))
    y = build.call("exp", x)
    for _ in range(2):
        shifted = [build.slices(y, (0, start), (1, 1), (64, y.shape[1] - 2)) for start in range(3)]
        y = build.call("maximum", build.call("maximum", *shifted[:2]), shifted[2])
    return Region(Graph((x,), (y,)), (x,), (y,), (False,))


@pytest.mark.parametrize("together", [1 - CLEAR / 2, 1 - 2 * CLEAR])
def test_of_a_few_maps_one_that_stores_less_is_tried(together: float, monkeypatch: pytest.MonkeyPatch) -> None:
    part = windows()
    egraph = saturate(part.graph.outputs, rules=RULES)
    stores, computes = selected(egraph)[0], selected(egraph, lean=True)[0]
    assert len(stores.kernels) > len(computes.kernels) == 1
    asked: list[tuple[bool, bool]] = []

    def select(graph: SaturatedEGraph, *, quick: bool = False, lean: bool = False) -> list[Selection]:
        asked.append((quick, lean))
        return [computes if lean else stores]

    def seconds(_: object, found: Found) -> float:
        return together if found.selection is computes else 1.0

    monkeypatch.setattr(module._Scheduled, "apart", seconds)
    monkeypatch.setattr(module._Scheduled, "below", lambda *_: True)
    monkeypatch.setattr(module._Scheduled, "together", seconds)
    price = ScheduledPrice(backend("numba_cpu").target(load(), 1))
    found = decide(part, egraph, RULES, select, price, {})
    assert (found.selection is computes) == (together < 1 - CLEAR)
    assert (True, True) in asked


@pytest.mark.parametrize("better", [False, True])
def test_what_is_selected_well_runs_if_schedules_do_not_say_otherwise(
    better: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = region()
    egraph = saturate(part.graph.outputs, rules=RULES, const=frozenset(part.inputs[1:]))

    def select(graph: SaturatedEGraph, *, quick: bool = False, lean: bool = False) -> list[Selection]:
        return [replace(selected(graph)[0], seconds=1.0, method="quick" if quick else "well")]

    seconds = {"quick": 0.5, "well": 0.4 if better else 0.6}
    monkeypatch.setattr(module._Scheduled, "apart", lambda *_: 1.0)
    monkeypatch.setattr(module._Scheduled, "below", lambda *_: True)
    monkeypatch.setattr(
        module._Scheduled, "together", lambda _, f: 1.0 if f.egraph is egraph else seconds[f.selection.method]
    )
    price = ScheduledPrice(backend("numba_cpu").target(load(), 1))
    assert decide(part, egraph, RULES, select, price, {}).selection.method == ("well" if better else "quick")


@pytest.mark.parametrize("kernels", [0, module.FEW + 1])
def test_what_rules_have_no_part_in_is_not_scheduled_alone(kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor if it is many kernels. ``kernels``: of the best one, 0 where it is the only one."""
    part = region()
    own = saturate(part.graph.outputs, rules=[], const=frozenset(part.inputs[1:]))
    best, *others = selected(own)
    offered = [best] if not kernels else [replace(best, kernels=(*best.kernels, *[best.kernels[0]] * kernels)), *others]

    def never(*_: object) -> float:
        raise AssertionError("nothing is to be decided")

    monkeypatch.setattr(module._Scheduled, "apart", never)
    price = ScheduledPrice(backend("numba_cpu").target(load(), 1))
    assert others
    assert decide(part, own, RULES, lambda *_, **__: offered, price, {}).selection is offered[0]


@pytest.mark.parametrize("together", [1 - CLEAR / 2, 1 - 2 * CLEAR])
def test_what_rules_have_no_part_in_is_compared_with_rivals(together: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of signed bytes took 11 % longer than that of their bits and a correction, which selection thinks to
    be 2 % slower."""
    part = region()
    own = saturate(part.graph.outputs, rules=[], const=frozenset(part.inputs[1:]))
    best, rival, *_ = (replace(one, seconds=1.0) for one in selected(own))
    monkeypatch.setattr(module._Scheduled, "apart", lambda *_: 1.0)
    monkeypatch.setattr(module._Scheduled, "below", lambda *_: True)
    monkeypatch.setattr(module._Scheduled, "together", lambda _, f: 1.0 if f.selection is best else together)
    price = ScheduledPrice(backend("numba_cpu").target(load(), 1))
    found = decide(part, own, RULES, lambda *_, **__: [best, rival], price, {})
    assert found.selection is (rival if together < 1 - CLEAR else best)


def test_programs_are_priced_with_their_kernels_apart_and_together() -> None:
    part = region()
    lowered: dict[Term, Lowered | None] = {}
    price = ScheduledPrice(backend("numba_cpu").target(load(), 1))
    egraph = saturate(part.graph.outputs, rules=RULES, const=frozenset(part.inputs[1:]))
    scheduled = module._Scheduled(part, price, lowered, module.NEVER)
    written = as_written(part, RULES, selected)
    assert not rule_provenance(written.egraph, written.selection)
    for found in (Found(egraph, selected(egraph)[0]), written):
        assert 0 < scheduled.together(found) <= scheduled.apart(found) < 1


def test_a_rival_is_scheduled_only_as_far_as_bounds_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    part = region()
    price = ScheduledPrice(backend("numba_cpu").target(load(), 1))
    scheduled = module._Scheduled(part, price, {}, module.NEVER)
    written = as_written(part, RULES, selected)
    apart = scheduled.apart(written)
    monkeypatch.setattr(ScheduledPrice, "known", lambda *_: None)
    assert [scheduled.below(written, factor * apart) for factor in (0.5, 0.999, 1.001, 2.0)] == [
        False,
        False,
        True,
        True,
    ]

    def never(*_: object) -> float:
        raise AssertionError("its bound is above the limit")

    monkeypatch.setattr(ScheduledPrice, "seconds", never)
    assert not scheduled.below(written, 1e-3 * apart)


def test_what_the_process_has_scheduled_before_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bounds are too high, too."""
    part, target = region(), backend("numba_cpu").target(load(), 1)
    written = as_written(part, RULES, selected)
    before, price = ScheduledPrice(target), ScheduledPrice(target)
    apart = module._Scheduled(part, before, {}, module.NEVER).apart(written)
    monkeypatch.setattr(ScheduledPrice, "least", lambda *_: 2 * apart)
    scheduled = module._Scheduled(part, price, {}, module.NEVER)
    assert not scheduled.below(written, 1.5 * apart)
    assert scheduled.apart(written) == apart
    assert scheduled.below(written, 1.5 * apart)  # what it has asked for itself it knows

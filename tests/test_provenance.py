"""Rule provenance: the rules that made a program's terms, and those that only equated terms there already."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eqsat.egraph.saturate import saturate
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.extract.provenance import proof, rule_provenance
from eqsat.extract.select import extract
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.composite import composite
from eqsat.ir.node import Node
from eqsat.rules import get, select
from eqsat.rules.examples import Maker
from tests.conftest import MACHINE


def rules_in(graph: SaturatedEGraph) -> dict[str, int]:
    return rule_provenance(graph, extract(graph, MACHINE, seconds=60)[0])


def _merged_result(mk: Maker) -> Node:
    return call("neg", call("neg", call("exp", mk.tensor(3))))


def _merged_operand(mk: Maker) -> Node:
    x = mk.tensor(3)
    return call("exp", call("mul", x, build.scalar(1, x)))


def _merged_input(mk: Maker) -> Node:
    return call("neg", call("neg", mk.tensor(3)))


@pytest.mark.parametrize(
    ("program", "rule"),
    [(_merged_result, "neg_neg"), (_merged_operand, "mul_one"), (_merged_input, "neg_neg")],
)
def test_rules_that_make_no_term_are_found(program: Callable[[Maker], Node], rule: str) -> None:
    graph = saturate([program(Maker(0))], rules=[get(rule)])
    assert not any(node.rule for nodes in graph.classes.values() for node in nodes)
    assert rules_in(graph) == {rule: 1}


def test_rules_that_fired_but_are_not_in_the_program_are_not_found() -> None:
    mk = Maker(0)
    x, w, v = mk.tensor(64, 64), mk.tensor(64, 64), mk.tensor(64)
    # Both orders are in the e-graph; the given one is the cheaper one.
    graph = saturate([build.matmul(x, build.matmul(w, v))], rules=[get("contract_associates")])
    assert graph.report.rules["contract_associates"].fired
    assert rules_in(graph) == {}
    other = saturate([build.matmul(build.matmul(x, w), v)], rules=[get("contract_associates")])
    assert rules_in(other)["contract_associates"] >= 1


def test_composites_are_their_expansion_by_no_rule() -> None:
    graph = saturate([composite("softmax", [Maker(0).tensor(4, 8)], 1)], rules=[])
    assert rules_in(graph) == {}


def test_every_two_terms_of_a_class_have_a_proof() -> None:
    mk = Maker(0)
    x, y = mk.tensor(4, 4), mk.tensor(4, 4)
    out = call(
        "add", call("mul", call("neg", x), y), build.matmul(call("neg", call("neg", x)), build.transpose(y, (1, 0)))
    )
    graph = saturate([out], rules=select(), seconds=60)
    for nodes in graph.classes.values():
        for node in nodes:
            used = proof(graph, nodes[0].handle, node.handle)
            assert used or node.handle == nodes[0].handle or node.rule is None
            assert len(set(used)) == len(used)

"""A match that was refused is tried again when what its guard asked about has become known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from eqsat.egraph.asked import Asked
from eqsat.egraph.saturate import saturate
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.rules import Match, gather, op, rewrite, tensors
from eqsat.rules.examples import Maker

a, b, x = tensors("a b x")

# What makes it known afterwards, in two steps, so that the guard was asked before.
LATER = [
    rewrite(np.log(x), np.tanh(x), id="log_is_tanh"),
    rewrite(np.tanh(x), lambda m: build.const(np.arange(3.0) + m.x.attrs), id="tanh_is_known"),  # another for each x
    rewrite(np.exp(x), np.cos(x), id="exp_is_cos"),
    rewrite(np.cos(x), lambda m: build.const(np.full(3, 0.5)), id="cos_is_number"),
    rewrite(np.sin(x), op("sigmoid", x), id="sin_is_sigmoid"),
    rewrite(op("sigmoid", x), lambda m: call("mul", m.x, m.x), id="sigmoid_is_product"),
]

ASKS: dict[str, Callable[[Match], object]] = {
    "known": lambda m: m.known(m.b),
    "value": lambda m: m.value(m.b) == 0.5,
    "array": lambda m: m.array(m.b) is not None,
    "forms": lambda m: m.forms(m.a, "mul"),
    "fewer": lambda m: not m.fewer(m.a, "mul", 1),
    "forms of forms": lambda m: any(m.known(f) for _, fs in m.forms(m.a, "sin") for f in fs),
    "two": lambda m: m.known(m.b) and m.forms(m.a, "mul"),
}


def _program() -> Node:
    """The greater of sin(log y) and exp z."""
    mk = Maker(0)
    return call("maximum", call("sin", call("log", mk.tensor(3))), call("exp", mk.tensor(3)))


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("place", ["guard", "right side"])
def test_a_refused_match_is_tried_again(ask: str, place: str) -> None:
    def right(m: Match) -> Node | None:
        return None if place == "right side" and not ASKS[ask](m) else call("maximum", m.b, call("neg", m.a))

    def wanted(m: Match) -> bool:
        """what is asked for is there"""
        return place == "right side" or bool(ASKS[ask](m))

    patient = rewrite(op("maximum", a, b), right, where=wanted, id="patient")
    alone = saturate([_program()], rules=[patient], iterations=8)
    assert not alone.report.rules["patient"].fired
    graph = saturate([_program()], rules=[patient, *LATER], iterations=8)
    assert graph.report.rules["patient"].fired


def test_fewer_counts_forms() -> None:
    found: list[int] = []

    def counted(m: Match) -> bool:
        """never"""
        for name in ("sin", "sigmoid", "mul", "exp"):
            forms = len(m.forms(m.a, name))
            assert [m.fewer(m.a, name, count) for count in range(3)] == [forms < count for count in range(3)]
            found.append(forms)
        return False

    asking = rewrite(op("maximum", a, b), op("maximum", b, a), where=counted, id="asking")
    saturate([_program()], rules=[asking, *LATER], iterations=8)
    assert set(found) == {0, 1}


def test_a_group_that_declined_is_asked_again() -> None:
    mk = Maker(0)
    y, z, w = mk.tensor(3), mk.tensor(3), mk.tensor(3)

    def together(matches: Sequence[Match]) -> list[Node] | None:
        if not all(m.known(m.b) for m in matches):
            return None
        return [call("mul", m.b, call("neg", call("neg", m.a))) for m in matches]

    grouped = gather(a * op("abs", b), ("a",), together, id="grouped")
    outputs = [call("mul", y, call("abs", call("log", t))) for t in (z, w)]
    assert saturate(outputs, rules=[grouped, *LATER], iterations=8).report.rules["grouped"].fired


def test_a_match_is_counted_once_with_its_last_reason() -> None:
    def known(m: Match) -> bool:
        """it is known"""
        return m.known(m.b)

    def has_exp(m: Match) -> bool:
        """it is an exp"""
        return bool(m.forms(m.a, "exp"))

    rule = rewrite(a / b, a, where=[known, has_exp], id="twice")
    mk = Maker(0)
    program = call("div", call("sin", mk.tensor(3)), call("log", mk.tensor(3)))
    stats = saturate([program], rules=[rule, *LATER], iterations=8).report.rules["twice"]
    assert (stats.matches, stats.fired, stats.refused) == (1, 0, {"it is an exp": 1})


def test_questions_wait_for_what_was_lacking_only() -> None:
    asked = Asked()
    asked.listen()
    assert not asked.lacks(1, "known") and not asked.lacks(2, "value")
    asked.wait("first")
    asked.lacks(1, "known")  # nobody listens
    asked.listen()
    asked.lacks(3, "known")
    asked.answered()
    asked.tell(1, "value")
    asked.tell(3, "known")
    assert asked.again() == []
    asked.tell(2, "value")
    asked.tell(1, "known")
    assert asked.again() == ["first"] and asked.again() == []
    asked.listen()
    asked.lacks(4, "mul")
    asked.wait("second")
    asked.tell_all(4)
    assert asked.again() == ["second"]

"""A pattern means what the same expression means in a program: it matches what tracing makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import eqsat
from eqsat.egraph.saturate import saturate
from eqsat.frontends.trace import trace
from eqsat.rules import RuleError, rewrite, tensors

x, y = tensors("x y")

BOTH: dict[str, Callable[..., Any]] = {
    "square": lambda x, y: np.sin(x) ** 2,
    "square of a float": lambda x, y: x**2.0,
    "root": lambda x, y: x**0.5,
    "reciprocal": lambda x, y: x**-1,
    "first power": lambda x, y: np.exp(x**1),
    "third power": lambda x, y: x**3,
    "-0.5": lambda x, y: x**-0.5,
    "power of arrays": lambda x, y: x**y,
    "power of a number": lambda x, y: 2**x,
    "np.power 2": lambda x, y: np.power(x, 2),
    "np.power 0.5": lambda x, y: np.power(x, 0.5),
    "np.float_power": lambda x, y: np.float_power(x, 3),
    "np.square": lambda x, y: np.square(x),
    "fabs": lambda x, y: np.fabs(x),
    "positive": lambda x, y: np.exp(+x),
    "np.positive": lambda x, y: np.exp(np.positive(x)),
    "conjugate": lambda x, y: np.exp(np.conjugate(x)),
    "floor division": lambda x, y: x // y,
    "remainder": lambda x, y: x % 3,
    "remainder of a number": lambda x, y: 3 % x,
    "number floor-divided": lambda x, y: 3 // x,
    "erf": lambda x, y: special.erf(x),
    "expit": lambda x, y: special.expit(x),
    "sum": lambda x, y: x - y,
    "negative sum": lambda x, y: -x - y,
    "minus one": lambda x, y: 1 - x * y,
    "where": lambda x, y: np.where(x > y, x, y),
    "mean": lambda x, y: x.mean(axis=1),
    "mean, kept": lambda x, y: x - np.mean(x, axis=-1, keepdims=True),
    "maximum": lambda x, y: np.max(x, axis=0),
    "product": lambda x, y: x @ y,
    "cast": lambda x, y: x.astype(np.float64) + 1,
    "comparison": lambda x, y: (x < y) & ~(x >= 0),
}


@pytest.mark.parametrize("name", BOTH)
def test_a_pattern_matches_the_program_of_the_same_text(name: str) -> None:
    expression = BOTH[name]
    rule = rewrite(expression(x, y), lambda m: None, id="same")
    traced = trace(expression, (np.ones((3, 3), np.float32), np.ones((3, 3), np.float32)))
    # A kept axis is put behind the division by the size: a rule of the library moves it.
    others = eqsat.rules.select() if name == "mean, kept" else ()
    assert saturate(traced.graph.outputs, rules=[rule, *others]).report.rules["same"].matches, str(rule)


@pytest.mark.parametrize("name", [n for n in BOTH if n not in ("sum", "negative sum")])
def test_a_pattern_does_not_match_another_program(name: str) -> None:
    rule = rewrite(BOTH[name](x, y), lambda m: None, id="same")
    traced = trace(lambda x, y: np.cos(x) * np.tanh(y), (np.ones((3, 3)), np.ones((3, 3))))
    assert not saturate(traced.graph.outputs, rules=[rule]).report.rules["same"].matches


@pytest.mark.parametrize("left", [x, x**1, +x, 3])
def test_a_left_side_that_every_tensor_matches_is_refused(left: object) -> None:
    with pytest.raises(RuleError, match=r"'all' \(.*test_patterns\.py:\d+\): the left side"):
        rewrite(left, np.exp(x), id="all")


def test_a_reverse_that_every_tensor_matches_is_refused() -> None:
    with pytest.raises(RuleError, match=r"'ones'.*every tensor"):
        rewrite(x * 1, x, id="ones", both_ways=True)


def test_a_rule_with_a_power_is_used() -> None:
    eqsat.rules.add(rewrite(np.sin(x) ** 2 * np.cos(x) ** 2, np.sin(2 * x) ** 2 / 4, id="test.squares"))
    try:
        fn = eqsat.optimize(lambda x: np.sin(x) ** 2 * np.cos(x) ** 2, cache=False)
        assert "it is in the program" in fn.explain(np.linspace(0, 1, 64)).why("test.squares")
    finally:
        eqsat.rules.remove("test.squares")

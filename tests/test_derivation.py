"""The chain of rules from a program to the one that runs: each step is an equation that holds, and code that runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import eqsat
from eqsat import rules
from eqsat.egraph.proofs import CANONICAL, DEFINITION
from eqsat.egraph.saturate import saturate
from eqsat.explain.derived import Derivation, Equation
from eqsat.ir.node import Node
from eqsat.rules import op, rewrite, tensors

RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def of(function: Callable[..., Any], *arguments: np.ndarray, **options: Any) -> Derivation:
    optimized = eqsat.optimize(function, check_speed=False, **options)
    optimized(*arguments)
    return optimized.explain().derivation()


def by_rules(found: Derivation) -> list[Equation]:
    return [step for step in found if step.rules != (CANONICAL,)]


def apart(one: Node, other: Node) -> set[tuple[Node, Node]]:
    """Where two programs differ, as far inside as their operators and operands allow."""
    if one is other:
        return set()
    if one.op == other.op and one.attrs == other.attrs and len(one.inputs) == len(other.inputs):
        return set().union(*(apart(a, b) for a, b in zip(one.inputs, other.inputs, strict=True)))
    return {(one, other)}


def replayed(step: Equation) -> bool:
    """Whether the rule alone finds that both terms of a step are equal, in one round of matching."""
    (rule,) = step.rules
    ends = [step.before, step.after]
    chosen = [r for r in rules.select("approximates") if r.id == rule or r.id in ("sum.flatten", "fold.constants")]
    if rule == DEFINITION:
        chosen = []
    graph = saturate(ends, rules=chosen, iterations=2)
    return graph.outputs[0] == graph.outputs[1]


def normalized(x: Any, w: Any, b: Any) -> Any:
    return np.maximum((x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) @ w + b, 0)


def gelu_of_sum(x: Any, y: Any) -> Any:
    z = x * 1 + y
    return 0.5 * z * (1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3))) + z * 0


def shared_weights(x: Any, a: Any, b: Any) -> Any:
    return np.tanh(x @ a + x @ b) * 2


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = np.exp(q @ k.T - 1)
    return (scores / scores.sum(axis=-1, keepdims=True)) @ v


def test_products_of_one_factor_are_joined_by_one_rule() -> None:
    x, a, b = draw(64, 96), draw(96, 32), draw(96, 32)
    (step,) = by_rules(of(shared_weights, x, a, b))
    assert step.place == "operand 0 of tanh in operand 0 of mul"
    assert step.rules == ("contract_factor",) and step.error is not None and step.error < 1e-14
    before, after = step.code(["x", "a", "b"])
    assert before.count("einsum") == 2 and after.count("einsum") == 1


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (attention, [(64, 32), (64, 32), (64, 32)]),
        (normalized, [(32, 48), (48, 16), (16,)]),
        (gelu_of_sum, [(40,), (40,)]),
        (lambda x, y: (np.exp(x) * np.exp(y) + 0, (x @ y.T) @ x, np.square(x * 1) / 2), [(8, 8), (8, 8)]),
        (lambda a, b, c: (a @ (b @ c), np.concatenate([a @ b, a @ c])), [(4, 64), (64, 64), (64, 64)]),
    ],
)
def test_the_chain_of_programs_has_no_gaps(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    """Each differs from that before by one application of a rule at one place, which the rule alone finds again.

    Both sides' code runs, and gives the same.
    """
    arguments = [draw(*shape) for shape in shapes]
    named = dict(zip(inspect.signature(function).parameters, arguments, strict=True))
    found = of(function, *arguments)
    last: dict[int | None, Node] = {}
    for step in found:
        before, after = step.programs
        assert last.setdefault(step.output, before) is before
        last[step.output] = after
        assert before is not after and step.place and len(step.rules) == 1
        differing = apart(before, after)
        assert differing and differing <= apart(step.before, step.after)
        assert step.error is not None and step.error < 1e-12
        assert step.rules == (CANONICAL,) or replayed(step), step
        results = []
        for text in step.code():
            *lines, end = text.split("\n")
            scope: dict[str, Any] = {"np": np, "eqsat": eqsat, "scipy": scipy, **named}
            exec("\n".join(lines), scope)
            results.append(np.asarray(eval(end, scope)))
        np.testing.assert_allclose(results[0], results[1], rtol=1e-9, atol=1e-12)
    for output, program in last.items():
        assert found.programs(output)[-1] is program
    assert by_rules(found)
    assert str(found).count(" differ by ") == len(found)


def test_a_wrong_rule_is_seen_in_its_step() -> None:
    """Taken unchecked, in a program that is not verified either."""
    a = tensors("a")
    rules.add(rewrite(op("tanh", a), a * 1.01, id="wrong.tanh"), check=False)
    try:
        found = of(lambda x: np.tanh(x) + 1, draw(400), verify=False, cache=False)
    finally:
        rules.remove("wrong.tanh")
    wrong = [step for step in found if "wrong.tanh" in step.rules]
    assert wrong and all(step.error is not None and step.error > 1e-3 for step in wrong)


def test_there_is_none_where_nothing_changed() -> None:
    assert str(of(lambda x: np.tanh(x), draw(40))) == "no rule changed the program"
    plain = eqsat.optimize(lambda x: np.array([float(v) for v in x if v > 0]))
    with pytest.warns(eqsat.EqsatWarning):
        plain(draw(5))
    assert len(plain.explain().derivation()) == 0


def test_large_terms_are_not_computed() -> None:
    x, a, b = (np.zeros((1200, 1200), np.float32) for _ in range(3))
    (step,) = by_rules(found := of(shared_weights, x, a, b))
    assert step.error is None and "long" in step.unchecked and "not checked" in str(found)


def test_inputs_have_the_names_of_the_program() -> None:
    """Whatever their order of use, and names of parts are none of the inputs'."""

    def f(t0: Any, a: Any, w: Any) -> Any:
        return np.tanh(a @ w + 1) + (a @ w + 1) * 2 + t0 * t0 * 3 - (t0 * 2) @ a @ w

    arguments = {"t0": draw(40, 40), "a": draw(40, 40), "w": draw(40, 40)}
    found = of(f, *arguments.values())
    assert len(found)
    for step in found:
        results = []
        for text in step.code():
            *lines, last = text.split("\n")
            scope: dict[str, Any] = {"np": np, "eqsat": eqsat, **arguments}
            assert not any(line.startswith("t0 = ") for line in lines)
            exec("\n".join(lines), scope)
            results.append(np.asarray(eval(last, scope)))
        np.testing.assert_allclose(results[0], results[1], rtol=1e-8, atol=1e-10)


def test_terms_that_are_gone_may_be_inside_of_what_is_near() -> None:
    """They led in a circle."""
    found = of(
        lambda a, b, c: (a * 1 + a.T, (np.square(a * 1) + 0).T, np.square(a.T * (a * 1) * (c * 1))),
        draw(8, 8), draw(8, 8), draw(8, 8), cache=False,
    )  # fmt: skip
    assert all(step.error is None or step.error < 1e-12 for step in found)


def test_a_side_that_is_not_finite_alone_is_told() -> None:
    """A law that loses an infinity."""
    a = tensors("a")
    rules.add(rewrite(op("log", a * 0), a * 0, id="wrong.log"), check=False)
    try:
        lost = of(lambda x: np.log(x * 0), draw(40), verify=False, cache=False)
    finally:
        rules.remove("wrong.log")
    assert [step.error for step in lost if "wrong.log" in step.rules] == [np.inf]

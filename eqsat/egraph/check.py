"""Checking a rule on random typed programs: every e-node must compute its class's value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.egraph.evaluate import disagreements
from eqsat.egraph.saturate import saturate
from eqsat.ir.node import ConstArray, Node, topological
from eqsat.rules.examples import Maker
from eqsat.rules.rule import Rule


@dataclass
class Counterexample:
    """A program on which two terms that a rule equates differ."""

    rule: str
    expected: np.ndarray
    found: np.ndarray
    term: str
    program: str

    def __str__(self) -> str:
        return (
            f"rule {self.rule!r}: {self.term} computes\n{self.found}\nwhere the class holds\n{self.expected}\n"
            f"{self.program}"
        )


@dataclass
class CheckResult:
    """How a check went: trials on which the rule fired, and the first counterexample, if any."""

    fired: int = 0
    trials: int = 0
    counterexample: Counterexample | None = None


def check_rule(
    rule: Rule,
    *,
    examples: Sequence[Callable[[Maker], Node | Sequence[Node]]] = (),
    trials: int = 400,
    enough: int = 24,
    seed: int = 0,
    beside: Sequence[Rule] = (),
) -> CheckResult:
    """Try a rule on random programs until it has fired ``enough`` times (and twice for each of its left sides) or
    ``trials`` are over.

    Programs come from the rule's patterns with random shapes, element types and attributes, from its ``example``
    and from ``examples``; ``beside`` are rules applied too. On each program where the rule fired, every e-node is
    computed in float64 (integers in their own type) and compared with its class: to rounding on ordinary values;
    where NaN are, NaN must be for rules of class ``reassociates``; for ``exact`` ones bit by bit on infinities, NaN
    and signed zeros too.
    """
    result = CheckResult()
    given = [*examples, *([rule.example] if rule.example else [])]
    for trial in range(trials):
        if result.fired >= max(enough, 2 * len(rule.ways)):
            break
        maker = Maker(seed * 100_003 + trial)
        try:
            if given and (trial % 2 == 0 or not rule.ways):
                made = given[trial // 2 % len(given)](maker)
                outputs = [made] if isinstance(made, Node) else list(made)
            elif rule.ways:
                outputs = maker.from_patterns(rule.ways[trial % len(rule.ways)].left)
            else:
                break
        except (ValueError, ZeroDivisionError, IndexError):
            continue
        result.trials += 1
        _try(rule, maker, outputs, result, beside)
        if result.counterexample is not None:
            break
    return result


def _try(rule: Rule, maker: Maker, outputs: Sequence[Node], result: CheckResult, beside: Sequence[Rule]) -> None:
    graph = saturate(outputs, rules=[rule, *beside], const=frozenset(maker.known_inputs), iterations=3, nodes=400)
    if not graph.report.rules[rule.id].fired:
        return
    result.fired += 1
    float_only = all(n.dtype.is_float for n in topological(outputs))
    modes = [{"hard": False, "nan": False}]
    if rule.numerics != "approximates" and float_only:
        modes.append({"hard": False, "nan": True})
    if rule.numerics == "exact":
        modes.append({"hard": True, "nan": False})
    for mode in modes:
        values = maker.values(**mode)
        exact = rule.numerics == "exact"
        for term, expected, found in disagreements(
            graph, values, rule=rule.id, exact=exact, lossy=rule.numerics == "approximates"
        ):
            program = paste(outputs, values, rule.id)
            result.counterexample = Counterexample(rule.id, expected, found, term, program)
            return


def paste(outputs: Sequence[Node], values: dict[Node, np.ndarray], rule: str) -> str:
    """A Python program that rebuilds a graph and its inputs, and applies one rule."""
    lines = [
        "import numpy as np",
        "from numpy import array, inf, nan",
        "import eqsat.rules",
        "from eqsat.egraph.evaluate import disagreements",
        "from eqsat.egraph.saturate import saturate",
        "from eqsat.ir import build",
        "from eqsat.ir.spec import Spec",
        "from eqsat.ir.structure import InputAttrs, IotaAttrs, PadAttrs",
        "from eqsat.ir.table import make",
        "from eqsat.ir.types import DType, TensorType",
        "from eqsat.ir.views import ViewMap",
    ]
    numbers: dict[Node, str] = {}
    for node in topological(outputs):
        name = numbers[node] = f"t{len(numbers)}"
        if isinstance(node.attrs, ConstArray):
            lines.append(f"{name} = build.const(np.array({node.attrs.array.tolist()!r}, {str(node.dtype)!r}))")
            continue
        args = ", ".join(numbers[i] for i in node.inputs)
        lines.append(f"{name} = make({node.op!r}, [{args}], {node.attrs!r})")
    bound = ", ".join(
        f"{numbers[n]}: np.array({v.tolist()!r}, {str(v.dtype)!r}).reshape({v.shape})"
        for n, v in values.items()
        if n in numbers
    )
    lines.append(f"values = {{{bound}}}")
    outs = ", ".join(numbers[o] for o in outputs)
    lines.append(f"graph = saturate([{outs}], rules=[eqsat.rules.get({rule!r})], iterations=3)")
    lines.append("for found in disagreements(graph, values): print(*found)")
    return "\n".join(lines)

"""Checking a rule on random typed programs: every e-node must compute its class's value."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.egraph.evaluate import Disagreement, disagreements
from eqsat.egraph.rule_calls import UNFIT, Example, Unfit, named, program_of
from eqsat.egraph.saturate import saturate
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.errors import RuleError
from eqsat.ir.defined import Applied
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import ConstArray, Node, topological
from eqsat.rules.examples import DTYPES, SHAPES, Maker
from eqsat.rules.rule import NUMERICS, Numerics, Rule, Way
from eqsat.rules.values import Regime

REGIMES: dict[Numerics, tuple[Regime, ...]] = {
    "exact": ("ordinary", "hard", "grid", "wide"),
    "reassociates": ("ordinary", "grid", "lone", "wide", "positive", "nan", "infinite"),
    "approximates": ("ordinary", "grid", "wide", "positive"),
}
"""Values on which a rule of a class is tried."""
UNPROMISED: tuple[Regime, ...] = ("wide", "infinite")
"""Values on which NaN and infinities may come and go: what overflows on the way may come out finite."""
EACH = 3
"""How many of the regimes a program is tried with, in turn."""
MANY_UNFIT = 20
"""Times that dice did not fit from which an example is taken to fail always."""
SECONDS = 0.5
"""Wall time that ``add`` gives the check of a rule."""


@dataclass(frozen=True)
class Counterexample:
    """A program on which two terms that a rule equates differ.

    ``given``: its inputs, named as in the rule where it is made from its pattern. ``looser``: the strictest class of
    numerics that this example does not speak against, if there is one.
    """

    rule: Rule
    disagreement: Disagreement
    given: tuple[tuple[str, np.ndarray], ...]
    program: str
    looser: Numerics | None

    @property
    def expected(self) -> np.ndarray:
        return self.disagreement.expected

    @property
    def found(self) -> np.ndarray:
        return self.disagreement.found

    def __str__(self) -> str:
        rule = self.rule
        lines = [f"rule {str(rule)!r} of class {rule.numerics!r} ({rule.file}:{rule.line}) does not hold for"]
        lines += [f"    {name} = {_shown(value)}" for name, value in self.given]
        lines.append(f"one side is {_shown(self.expected)}")
        if self.disagreement.raised:
            return "\n".join([*lines, f"the other raises {self.disagreement.raised}"])
        lines.append(f"the other   {_shown(self.found)}")
        if self.expected.shape == self.found.shape and self.expected.size > 1:
            at = tuple(int(i) for i in np.argwhere(self.disagreement.where)[0])
            lines.append(f"at [{', '.join(map(str, at))}]: {self.expected[at]} and {self.found[at]}")
        if self.looser is not None:
            lost = (
                "it changes the rounding"
                if self.looser == "reassociates"
                else "it loses or spreads a NaN or an infinity"
            )
            lines.append(f"{lost}: declare it with numerics={self.looser!r} if that is meant")
        return "\n".join(lines)


def _shown(value: np.ndarray) -> str:
    """An array in short: its type and shape, and its elements where they are few."""
    kind = "float64" if value.dtype == np.longdouble else str(value.dtype)
    plain = value.astype(np.float64) if value.dtype == np.longdouble else value
    shape = ",".join(map(str, value.shape))
    return f"{kind}[{shape}] {np.array2string(plain, threshold=16, edgeitems=2, separator=', ', prefix=' ' * 8)}"


@dataclass
class CheckResult:
    """How a check went: trials on which the rule fired, and the first counterexample, if any.

    ``matched``: how often its left side was found, and ``refused`` how often each guard said no. ``usable``: whether
    there was an e-graph engine to try it with (there is none in some forked processes). ``idle``: of a rule of several
    ways, those that fired on no program made for them. ``unmade``: why the last one that could not be made was not.
    """

    fired: int = 0
    trials: int = 0
    counterexample: Counterexample | None = None
    matched: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    usable: bool = True
    idle: tuple[Way, ...] = ()
    unmade: str = ""


@dataclass
class _Turns:
    """Which way of a rule is tried next: the one that fired and was tried least."""

    fired: list[int]
    tried: list[int]

    def next(self) -> int:
        return min(range(len(self.fired)), key=lambda w: (4 * self.fired[w] + self.tried[w], w))


@np.errstate(over="ignore")  # numbers of a pattern may be too large for an element type
def check_rule(
    rule: Rule,
    *,
    examples: Sequence[Example] = (),
    trials: int = 400,
    enough: int = 24,
    seed: int = 0,
    beside: Sequence[Rule] = (),
    seconds: float = math.inf,
) -> CheckResult:
    """Try a rule on random programs until it has fired ``enough`` times (and twice for each of its left sides),
    ``trials`` are over, or ``seconds`` of wall time are.

    Programs come from the rule's patterns with random shapes, element types and attributes, from its ``example``
    and from ``examples``; ``beside`` are rules applied too. On each program where the rule fired, every e-node is
    computed on values of several kinds (:data:`REGIMES`) and compared with its class by what the rule's class
    promises: see :func:`~eqsat.egraph.evaluate.disagreements`.

    Raises ``RuleError`` naming the rule where one of its functions raises, does not return in time, or makes a tensor
    of another type.
    """
    result = CheckResult()
    end = time.monotonic() + seconds
    given = [*examples, *([rule.example] if rule.example else [])]
    turns = _Turns([0] * len(rule.ways), [0] * len(rule.ways))
    unfit, fitted = list[Unfit](), False
    for trial in range(trials):
        if result.fired >= max(enough, 2 * len(rule.ways)) or time.monotonic() >= end:
            break
        way = None
        maker = Maker(seed * 100_003 + trial)
        try:
            if given and (trial % 2 == 0 or not rule.ways):
                outputs = program_of(rule, given[trial // 2 % len(given)], maker)
                fitted = True
            elif rule.ways:
                way = turns.next()
                at = turns.tried[way]
                turns.tried[way] += 1
                maker = Maker(maker.random.getrandbits(32), dtype=DTYPES[at % len(DTYPES)], base=_shape(at))
                outputs = of_patterns(rule, way, maker)
            else:
                break
        except Unfit as error:
            if way is None:
                unfit.append(error)
            else:
                result.unmade = str(error)
            continue
        result.trials += 1
        if _try(rule, maker, outputs, result, beside, end) and way is not None:
            turns.fired[way] += 1
        if result.counterexample is not None or not result.usable:
            break
    if len(unfit) >= MANY_UNFIT and not fitted:
        raise RuleError(f"{named(rule)}: its example made no program in {len(unfit)} tries: {unfit[-1].__cause__!r}")
    if len(rule.ways) > 1:
        result.idle = tuple([way for way, fired in zip(rule.ways, turns.fired, strict=True) if not fired])
    return result


def _shape(at: int) -> tuple[int, ...]:
    """Shapes in turn, past all of them and out of step with the element types."""
    assert math.gcd(len(SHAPES), 5 * len(DTYPES)) == 1
    return SHAPES[5 * at % len(SHAPES)]


def of_patterns(rule: Rule, way: int, maker: Maker) -> list[Node]:
    """Random programs made from one of a rule's left sides; ``Unfit`` where the dice do not fit."""
    left = rule.ways[way].left
    try:
        if rule.together is not None:
            return maker.matches(left[0], rule.key)
        # Where only exact rules are used, sums stay as they were written: in a longer one the order of terms is free.
        return maker.from_patterns(left, longer=rule.numerics != "exact")
    except RuleError:
        raise
    except UNFIT as error:
        raise Unfit(str(error)) from error


def applied(
    rule: Rule, maker: Maker, outputs: Sequence[Node], seconds: float = 1.0, beside: Sequence[Rule] = ()
) -> SaturatedEGraph:
    """A program after a few rounds of a rule, and of those ``beside`` it; with room for laws of small e-graphs."""
    known = frozenset(maker.known_inputs)
    return saturate(outputs, rules=[rule, *beside], const=known, iterations=3, nodes=400, room=400, seconds=seconds)


def _try(
    rule: Rule, maker: Maker, outputs: Sequence[Node], result: CheckResult, beside: Sequence[Rule], end: float
) -> bool:
    """Whether the rule fired on a program."""
    left = min(1.0, max(0.05, end - time.monotonic()))
    graph = applied(rule, maker, outputs, left, beside)
    stats = graph.report.rules[rule.id]
    result.usable = graph.report.stop != "fork"
    result.matched += stats.matches
    for reason, count in stats.refused.items():
        result.refused[reason] = result.refused.get(reason, 0) + count
    if not stats.fired:
        return False
    _examine(rule, maker, graph, outputs, result)
    return True


def check_equation(
    claim: Rule, sides: Callable[[Maker], Sequence[tuple[Node, Node]]], *, trials: int = 400, seed: int = 0
) -> CheckResult:
    """Try whether two sides are equal, as the class of ``claim`` promises, on so many typed instances.

    ``sides``: the pairs of tensors said to be equal, over a Maker's inputs; it may raise ``ValueError`` for dice that
    do not fit. ``claim`` says what is claimed and in which class; it has no pattern (see ``builtin``).
    """
    result = CheckResult()
    for trial in range(trials):
        maker = Maker(seed * 100_003 + trial)
        try:
            pairs = sides(maker)
        except UNFIT:
            continue
        result.trials += 1
        outputs = [node for pair in pairs for node in pair]
        _examine(claim, maker, _joined(saturate(outputs, rules=[])), outputs, result)
        if result.counterexample is not None:
            break
    return result


def _joined(graph: SaturatedEGraph) -> SaturatedEGraph:
    """An e-graph in which each second output is in the class of the one before."""
    same = dict(zip(graph.outputs[1::2], graph.outputs[::2], strict=True))
    classes = dict(graph.classes)
    for gone, kept in same.items():
        if gone != kept:
            classes[kept] = (*classes[kept], *graph.classes[gone])
    return replace(graph, classes=classes)


def _examine(rule: Rule, maker: Maker, graph: SaturatedEGraph, outputs: Sequence[Node], result: CheckResult) -> None:
    """Compute the classes of an e-graph on values of a few kinds; the first disagreement goes into the result."""
    result.fired += 1
    regimes = REGIMES[rule.numerics]
    for number in range(EACH):
        regime = regimes[((result.fired - 1) * EACH + number) % len(regimes)]
        values = maker.values(regime)
        kinds = regime not in UNPROMISED and not maker.rare
        simple = regime == "grid" and not maker.rare
        result.counterexample = counterexample(rule, maker, graph, outputs, values, kinds, simple)
        if result.counterexample is not None:
            break


def counterexample(
    rule: Rule,
    maker: Maker,
    graph: SaturatedEGraph,
    outputs: Sequence[Node],
    values: dict[Node, np.ndarray],
    kinds: bool = True,
    simple: bool = False,
) -> Counterexample | None:
    """Where an e-graph in which a rule was applied disagrees on these values of a Maker's inputs, if it does."""
    try:
        wrong = _first(graph, values, rule, rule.numerics, kinds, simple)
    except (ValueError, IndexError) as error:
        wrong = _raises(error, outputs, values)
    if wrong is None:
        return None
    looser = () if wrong.raised else NUMERICS[NUMERICS.index(rule.numerics) + 1 :]
    fitting = next((n for n in looser if _first(graph, values, rule, n, kinds, simple) is None), None)
    program = paste(outputs, values, maker.known_inputs, rule, kinds, simple)
    return Counterexample(rule, wrong, _named(maker, outputs, values), program, fitting)


def _first(
    graph: SaturatedEGraph, values: dict[Node, np.ndarray], rule: Rule, numerics: Numerics, kinds: bool, simple: bool
) -> Disagreement | None:
    found = [*disagreements(graph, values, rule=rule.id, numerics=numerics, kinds=kinds, simple=simple)]
    return min(found, key=lambda d: d.expected.size, default=None)


def _raises(error: Exception, outputs: Sequence[Node], values: dict[Node, np.ndarray]) -> Disagreement | None:
    """A term that raises; None where the program itself does for these values, such as for a negative exponent."""
    try:
        expected = evaluate_nodes(outputs, values)[0]
    except (ValueError, IndexError):
        return None
    nothing = np.zeros(0)
    return Disagreement("a term of the rule", expected, nothing, nothing, f"{type(error).__name__}: {error}")


def _named(maker: Maker, outputs: Sequence[Node], values: dict[Node, np.ndarray]) -> tuple[tuple[str, np.ndarray], ...]:
    names = {node: name for name, node in maker.names.items() if isinstance(node, Node)}
    found = []
    for node in topological(outputs):
        if node in values:
            known = " (known at compile time)" if node in maker.known_inputs else ""
            found.append((names.get(node, node.label) + known, values[node]))
        elif node in names and isinstance(node.attrs, ConstArray):
            found.append((names[node], node.attrs.array))
    return tuple(found)


def require(rule: Rule, seconds: float = SECONDS) -> None:
    """Refuse a rule that :func:`check_rule` finds wrong, with the counterexample, as ``RuleError``.

    One that never fired is taken with a warning that says what may help.
    """
    if not rule.ways:
        return
    result = check_rule(rule, seconds=seconds, trials=100_000, enough=100)
    if result.counterexample is not None:
        raise RuleError(f"{result.counterexample}\n(add(…, check=False) takes a rule unchecked)")
    if result.fired:
        return
    if not result.usable:
        why = "there is no e-graph engine in this process, which was forked from one that had used it"
    elif result.refused and sum(result.refused.values()) >= result.matched:
        most = max(result.refused, key=lambda reason: result.refused[reason])
        why = f"of {result.matched} matches none was taken: {most!r} was said of {result.refused[most]}"
    elif result.matched:
        why = f"{result.matched} matches changed nothing: are its sides the same? (sums have no order)"
    elif result.trials:
        why = f"its left side was in none of {result.trials} random programs made from it"
    else:
        why = f"no program could be made from its left side{result.unmade and ': '}{result.unmade}"
    warnings.warn(
        f"rule {rule.id!r} ({rule.file}:{rule.line}) is not checked: {why}; give it an example=, a function of a "
        "Maker that returns a program on which it fires (docs/rules.md)",
        stacklevel=4,
    )


def paste(
    outputs: Sequence[Node],
    values: dict[Node, np.ndarray],
    known: Sequence[Node],
    rule: Rule,
    kinds: bool = True,
    simple: bool = False,
) -> str:
    """A Python program that rebuilds a graph and its inputs, and applies one rule, which must be installed."""
    lines = [
        "import numpy as np",
        "from numpy import array, inf, nan",
        "import eqsat.rules",
        "from eqsat.egraph.evaluate import disagreements",
        "from eqsat.egraph.saturate import saturate",
        "from eqsat.ir import build",
        "from eqsat.ir.spec import Spec",
        "from eqsat.ir.joins import PadAttrs",
        "from eqsat.ir.sources import InputAttrs, IotaAttrs",
        "from eqsat.ir.defined import Applied",
        "from eqsat.ir.table import OPS, make",
        "from eqsat.ir.types import DType, TensorType",
        "from eqsat.ir.views import ViewMap",
    ]
    numbers: dict[Node, str] = {}
    for node in topological(outputs):
        name = numbers[node] = f"t{len(numbers)}"
        if isinstance(node.attrs, ConstArray):
            lines.append(
                f"{name} = build.const(np.array({node.attrs.array.tolist()!r}, {str(node.dtype)!r})"
                f".reshape({node.shape}))"
            )
            continue
        args = ", ".join(numbers[i] for i in node.inputs)
        text = repr(node.attrs)
        if isinstance(node.attrs, Applied):
            text = f"Applied(OPS[{node.op!r}].attrs.definition, {node.attrs.settings!r})"
        lines.append(f"{name} = make({node.op!r}, [{args}], {text})")
    bound = ", ".join(
        f"{numbers[n]}: np.array({v.tolist()!r}, {str(v.dtype)!r}).reshape({v.shape})"
        for n, v in values.items()
        if n in numbers
    )
    lines.append(f"values = {{{bound}}}")
    outs = ", ".join(numbers[o] for o in outputs)
    const = ", ".join(numbers[n] for n in known if n in numbers)
    lines.append(
        f"graph = saturate([{outs}], rules=[eqsat.rules.get({rule.id!r})], const=frozenset([{const}]), iterations=3)"
    )
    lines.append(
        f"for found in disagreements(graph, values, rule={rule.id!r}, numerics={rule.numerics!r}, kinds={kinds}, "
        f"simple={simple}): print(*found)"
    )
    return "\n".join(lines)

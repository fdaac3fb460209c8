"""Laws of sums and products, proved or refuted: both sides of a rule as rational functions, over a prime field.

Two different polynomials of degree d are equal at a random point of a field of p elements with probability d / p at
most (Schwartz, "Fast Probabilistic Algorithms for Verification of Polynomial Identities", 1980; Zippel, 1979). With
p = 2^61 - 1 one point decides: no rounding, no tolerance. Other elementwise functions are uninterpreted: any function
would do, so what is equal then is equal for them too, and what is not may still be a law of theirs.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

import numpy as np

from eqsat.egraph.evaluate import MOVES, class_values, disagreements
from eqsat.egraph.saturated import ENode, SaturatedEGraph
from eqsat.ir.node import Node
from eqsat.ir.table import OPS
from eqsat.ir.types import TensorType
from eqsat.rules.examples import Maker

PRIME = 2**61 - 1
RATIONAL = frozenset(
    ("neg", "add", "sub", "mul", "div", "add_n", "square", "reciprocal", "where", "cast", "contract", "reduce_sum",
     "reduce_prod", "cumsum", "cumprod")
)  # fmt: skip
"""Operators that make rational functions of rational functions, as do those of the kinds ``MOVES``."""
SMALL = 9
"""Counterexamples are looked for among whole numbers up to this one."""
ROUNDED = "numbers that were rounded"
RAISES = "values that a term raises for"


class Beyond(Exception):
    """The operator is neither rational nor elementwise."""


class Undefined(Exception):
    """A number is none of the field's, or the program divides by zero: nothing is to be held there."""


@dataclass(frozen=True, slots=True)
class Element:
    """Of the field of integers modulo :data:`PRIME`; operators are as those of numbers, which are taken too."""

    value: int

    def __add__(self, other: object) -> Element:
        return NotImplemented if isinstance(other, np.ndarray) else Element((self.value + element(other).value) % PRIME)

    def __mul__(self, other: object) -> Element:
        return NotImplemented if isinstance(other, np.ndarray) else Element(self.value * element(other).value % PRIME)

    def __sub__(self, other: object) -> Element:
        return NotImplemented if isinstance(other, np.ndarray) else self + -element(other)

    def __rsub__(self, other: object) -> Element:
        return element(other) - self

    def __truediv__(self, other: object) -> Element:
        return NotImplemented if isinstance(other, np.ndarray) else self * element(other).inverse()

    def __rtruediv__(self, other: object) -> Element:
        return element(other) / self

    def inverse(self) -> Element:
        if not self.value:
            raise Undefined("a division by zero")
        return Element(pow(self.value, -1, PRIME))

    def __neg__(self) -> Element:
        return Element(-self.value % PRIME)

    def __pow__(self, power: int) -> Element:
        return Element(pow(self.value, power, PRIME)) if power >= 0 else self.inverse() ** -power

    __radd__, __rmul__ = __add__, __mul__

    def __str__(self) -> str:
        """A fraction of small numbers, where it is one; extended Euclid finds it (Wang, 1981)."""
        (low, of_low), (high, of_high) = (PRIME, 0), (self.value, 1)
        while high * high * 2 > PRIME:
            times = low // high
            (low, of_low), (high, of_high) = (high, of_high), (low - times * high, of_low - times * of_high)
        return str(Fraction(high, of_high)) if of_high * of_high * 2 < PRIME else f"{self.value} mod 2^61 - 1"

    __repr__ = __str__


def element(value: object) -> Element:
    """A number's element of the field, without rounding. ``Undefined`` for NaN and infinities."""
    if isinstance(value, Element):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    try:
        fraction = Fraction(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError) as error:
        raise Undefined(f"the number {value}") from error
    return Element(fraction.numerator * pow(fraction.denominator, -1, PRIME) % PRIME)


def elements(array: np.ndarray) -> np.ndarray:
    """The same of each number of an array."""
    found = np.empty(array.size, object)
    found[:] = [element(number) for number in array.ravel().tolist()]
    return found.reshape(array.shape)


POWERS = 64
"""Whole exponents up to this one, of either sign, are powers."""


@dataclass
class Arithmetic:
    """Computes e-nodes over the field; ``uninterpreted`` are the functions that were taken for any."""

    uninterpreted: set[str] = field(default_factory=set)

    def __call__(self, node: ENode, type: TensorType, args: Sequence[np.ndarray]) -> np.ndarray:
        row = OPS[node.op]
        of_elements = any(a.dtype == object for a in args)
        if not type.dtype.is_float and not of_elements:
            return np.asarray(row.reference(args, node.attrs)).astype(type.dtype.numpy, copy=False)
        if node.op == "const" or (node.op == "cast" and not of_elements):
            return elements(np.asarray(row.reference(args, node.attrs)))
        if type.dtype.is_float and node.op == "cast":
            return args[0]
        if type.dtype.is_float and (row.kind in MOVES or node.op in RATIONAL):
            return elements(np.asarray(row.reference(args, node.attrs), object).reshape(type.shape))
        if row.kind != "map":
            raise Beyond(node.op)
        operands = [np.broadcast_to(a, type.shape) for a in args]
        found = np.empty(type.shape, object if type.dtype.is_float else type.dtype.numpy)
        for at in np.ndindex(type.shape):
            made = self._function(node.op, node.attrs, [element(a[at]) for a in operands])
            found[at] = made if type.dtype.is_float else made.value % 2
        return found

    def _function(self, op: str, attrs: object, args: Sequence[Element]) -> Element:
        """Of one element: by what it is defined by, or any."""
        by = OPS[op].by
        if by is not None:
            return element(by(lambda name, x: self._function(name, None, [x]), args[0]))
        if op == "reciprocal":
            return args[0].inverse()
        if op == "pow" and min(args[1].value, PRIME - args[1].value) <= POWERS:
            power = args[1].value if args[1].value <= POWERS else args[1].value - PRIME
            return args[0] ** power
        self.uninterpreted.add(op)
        seed = zlib.crc32(f"{op} {attrs}".encode())
        return Element(hash((seed, *(x.value for x in args))) % PRIME)


@dataclass(frozen=True)
class Refuted:
    """Two terms of a rule that differ as rational functions, and numbers for which they do."""

    given: tuple[tuple[str, np.ndarray], ...]
    expected: np.ndarray
    found: np.ndarray

    def __str__(self) -> str:
        lines = ["over the rational numbers, without rounding, the sides differ for"]
        lines += [f"    {name} = {_shown(value)}" for name, value in self.given]
        return "\n".join([*lines, f"one side is {_shown(self.expected)}", f"the other   {_shown(self.found)}"])


def _shown(array: np.ndarray) -> str:
    return np.array2string(array, threshold=16, edgeitems=2, separator=", ", prefix=" " * 8)


@dataclass
class Identity:
    """On how many ``programs``, of how many ``shapes``, all terms were equal; what left others open; a refutation.

    ``beyond``: operators (or the functions taken for any) because of which nothing is known of so many programs.
    """

    programs: int = 0
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    beyond: Counter[str] = field(default_factory=Counter)
    refuted: Refuted | None = None

    @property
    def proved(self) -> bool:
        return self.programs > 0 and self.refuted is None and not self.beyond

    def __str__(self) -> str:
        if self.refuted is not None:
            return str(self.refuted)
        held = f"equal over a prime field in {self.programs} programs of {len(self.shapes)} shapes"
        if not self.beyond:
            return held if self.programs else "it fired on no program of floats"
        of = ", ".join(f"{name} ({count})" for name, count in sorted(self.beyond.items()))
        return f"{held}; left open by {of}" if self.programs else f"left open by {of}"


def identity(graphs: Iterable[tuple[SaturatedEGraph, Maker]], *, seed: int = 0) -> Identity:
    """Hold the terms of e-graphs against one another, and so the sides of the rule that was applied in them."""
    result, numbers = Identity(), random.Random(seed)
    for graph, maker in graphs:
        _hold(graph, maker, result, numbers)
        if result.refuted is not None:
            break
    return result


def _hold(graph: SaturatedEGraph, maker: Maker, result: Identity, numbers: random.Random) -> None:
    """Add what one e-graph tells."""
    arithmetic = Arithmetic()
    try:
        found = _difference(graph, maker, _values(maker, lambda: numbers.randrange(PRIME)), arithmetic)
        if found is None:
            result.programs += 1
            result.shapes.add(maker.base)
        elif arithmetic.uninterpreted:
            result.beyond.update(arithmetic.uninterpreted)
        elif _rounded(graph, maker):
            result.beyond[ROUNDED] += 1
        else:
            result.refuted = _small(graph, maker, numbers) or found
    except Undefined:
        return
    except Beyond as error:
        result.beyond[str(error)] += 1
    except (IndexError, ValueError):
        result.beyond[RAISES] += 1


def _rounded(graph: SaturatedEGraph, maker: Maker) -> bool:
    """Whether what differs are numbers that are known, or integers, and were rounded when they met floats: in floats,
    nothing does."""
    nodes = [node for nodes in graph.classes.values() for node in nodes]
    known = any(node.op == "const" or any(graph.types[c].dtype.kind == "int" for c in node.children) for node in nodes)
    return known and next(disagreements(graph, maker.values()), None) is None


def _values(maker: Maker, draw: Callable[[], int]) -> dict[Node, np.ndarray]:
    """Inputs of floats as elements of the field, the others as they come."""
    found = maker.values()
    for node, value in found.items():
        if node.dtype.is_float:
            found[node] = elements(np.array([draw() for _ in range(value.size)], object).reshape(value.shape))
    return found


def _small(graph: SaturatedEGraph, maker: Maker, numbers: random.Random) -> Refuted | None:
    """A refutation that one can read, if one of a few draws of small numbers is one."""
    for most in (1, 3, SMALL, SMALL, SMALL):
        try:
            values = _values(maker, partial(numbers.randint, -most, most))
            found = _difference(graph, maker, values, Arithmetic())
        except (Beyond, Undefined):
            continue
        if found is not None:
            return found
    return None


def _difference(
    graph: SaturatedEGraph, maker: Maker, inputs: Mapping[Node, np.ndarray], arithmetic: Arithmetic
) -> Refuted | None:
    """The smallest e-node that is not what its class is."""
    try:
        values = class_values(graph, inputs, arithmetic)
    except IndexError as error:  # the program itself does not take these values
        raise Undefined from error
    names = {node: name for name, node in maker.names.items() if isinstance(node, Node)}
    given = tuple((names.get(node, node.label or node.op), value) for node, value in inputs.items())
    differ: list[Refuted] = []
    for handle, nodes in graph.classes.items():
        for node in nodes:
            if OPS[node.op].kind == "composite" or node.op == "input":
                continue
            found = arithmetic(node, graph.types[handle], [values[c] for c in node.children])
            expected = values[handle]
            if expected.shape != found.shape or (expected != found).any():
                differ.append(Refuted(given, expected, found))
    return min(differ, key=lambda d: d.expected.size, default=None)

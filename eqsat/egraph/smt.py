"""Elementwise laws proved or refuted for all numbers by z3: over the reals, and over machine integers as bit vectors.

A rule is applied to a program of 0-d tensors: what holds for one element holds for all. Each e-node becomes a formula
over the inputs, and z3 is asked for inputs for which it is not what its class is, where the terms of both sides are
defined (no division by zero, no root of a negative number). ``exp`` and its like are any functions with the ranges and
the monotonicity that the op table states. A model that NumPy does not confirm refutes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from math import isfinite, prod
from typing import Any

import numpy as np

from eqsat.egraph.check import Counterexample, applied, counterexample, of_patterns
from eqsat.egraph.rule_calls import Unfit
from eqsat.egraph.saturated import ENode, SaturatedEGraph
from eqsat.errors import RuleError
from eqsat.forks import IMPORTING
from eqsat.ir.node import Node, topological
from eqsat.ir.sources import InputAttrs
from eqsat.ir.table import OPS
from eqsat.ir.types import DType, TensorType, float64, int32, uint8
from eqsat.rules.examples import Maker
from eqsat.rules.pattern import NumberVar, Terms, Var
from eqsat.rules.rule import Rule
from eqsat.rules.walk import walk

DTYPES = {"the reals": float64, "int32": int32, "uint8": uint8}
"""Over what laws are proved, and in which type their rules are tried for that."""
TRIES = 60
"""Random programs in which one of 0-d tensors is looked for on which a way of the rule fires."""
TIMEOUT = 1.0
"""Seconds for one question: what z3 decides at all of a rule's size, it mostly decides in a tenth of that."""
MOST_POWER = 8
"""Whole exponents up to this one are products."""
Expr = Any
"""A formula of z3, whose types are its own."""


class Beyond(Exception):
    """An operator that is no function of elements, or none over these numbers."""


@cache
def available() -> bool:
    """Whether z3 is installed (``pip install 'eqsat[smt]'``)."""
    return find_spec("z3") is not None


def _z3() -> Any:
    with IMPORTING:
        import z3
    return z3


@dataclass
class Solved:
    """What z3 says of a rule: over what it is ``held``, what was left ``open`` and why, and a refutation.

    ``tried``: whether that is for the programs that were tried: the rule is about known numbers, sums of any length, or
    its right side is a function.
    """

    held: list[str] = field(default_factory=list)
    open: dict[str, str] = field(default_factory=dict)
    refuted: Counterexample | None = None
    tried: bool = False

    @property
    def proved(self) -> bool:
        return bool(self.held) and not (self.open or self.refuted or self.tried)

    def __str__(self) -> str:
        if self.refuted is not None:
            return f"refuted: {self.refuted}"
        parts = [f"proved over {', '.join(self.held)}" + " for the programs tried" * self.tried] if self.held else []
        parts += [f"unknown over {name} ({why})" for name, why in self.open.items()]
        return "; ".join(parts) or "it fires on no elementwise program"


def solve(rule: Rule, *, seed: int = 0, timeout: float = TIMEOUT) -> Solved:
    """Ask z3 of each way of a rule, over the reals and integers of two types. Raises ``ImportError`` without z3."""
    parts = [part for way in rule.ways for left in way.left for part in walk(left)]
    written = all(isinstance(way.right, tuple) for way in rule.ways)
    result = Solved(tried=not written or any(isinstance(part, (NumberVar, Terms)) for part in parts))
    z3 = _z3()
    for name, dtype in DTYPES.items():
        found = [_instance(rule, way, dtype, seed) for way in range(len(rule.ways))]
        instances = [each for each in found if each is not None]
        try:
            for instance in instances:
                _hold(z3, rule, *instance, result, timeout)
        except Beyond as beyond:
            result.open[name] = str(beyond)
            continue
        if result.refuted is not None:
            return result
        if instances:
            result.held.append(name)
    return result


def _hold(
    z3: Any, rule: Rule, maker: Maker, graph: SaturatedEGraph, outputs: Sequence[Node], result: Solved, timeout: float
) -> None:
    """Look for a refutation. ``Beyond`` where there is no telling."""
    model = _Formulas(z3, graph, timeout).differ()
    if model is not None:
        values = {node: _numpy(model.get(_index(node)), node) for node in maker.inputs}
        result.refuted = result.refuted or counterexample(rule, maker, graph, outputs, values)
        if result.refuted is None:
            raise Beyond("z3 has a model that NumPy does not confirm")


def _instance(rule: Rule, way: int, dtype: DType, seed: int) -> tuple[Maker, SaturatedEGraph, list[Node]] | None:
    """A program of inputs without axes on which a way of the rule fires."""
    for number in range(TRIES):
        maker = Maker(seed * 100_003 + number, dtype=dtype, base=())
        try:
            outputs = of_patterns(rule, way, maker)
        except Unfit:
            continue
        if any(
            node.shape != () or OPS[node.op].kind not in ("map", "source", "composite") for node in topological(outputs)
        ):
            continue
        bound = [node for node in maker.names.values() if isinstance(node, Node)]
        if maker.rare or sum(node.op == "input" for node in bound) < len(_tensors(rule, way)):
            continue  # a literal array in a variable's place
        try:
            graph = applied(rule, maker, outputs)
        except RuleError:
            continue
        if graph.report.rules[rule.id].fired:
            return maker, graph, outputs
    return None


def _tensors(rule: Rule, way: int) -> set[str]:
    return {part.name for left in rule.ways[way].left for part in walk(left) if isinstance(part, Var)}


def _index(node: Node) -> int:
    assert isinstance(node.attrs, InputAttrs)
    return node.attrs.index


def _numpy(value: Any, node: Node) -> np.ndarray:
    """A model's number as the program's input; 0 where it may be any."""
    if value is None:
        return np.zeros((), node.dtype.numpy)
    if hasattr(value, "approx"):  # a root of a polynomial
        value = value.approx(20)
    if hasattr(value, "as_fraction"):
        return np.asarray(float(value.as_fraction()), node.dtype.numpy)
    if hasattr(value, "as_signed_long"):
        number = value.as_signed_long() if node.dtype.is_signed else value.as_long()
        return np.asarray(number, node.dtype.numpy)
    return np.asarray(str(value) == "True", node.dtype.numpy)


class _Formulas:
    """The classes of an e-graph of 0-d tensors as formulas."""

    def __init__(self, z3: Any, graph: SaturatedEGraph, timeout: float) -> None:
        self.z3, self.graph, self.timeout = z3, graph, timeout
        self.inputs: dict[int, Expr] = {}
        self.facts: list[Expr] = []
        """What is assumed: that terms are defined, and what is known of functions."""
        self.applied: dict[str, list[tuple[Expr, Expr]]] = {}

    def differ(self) -> Mapping[int, Any] | None:
        """Inputs, by index, for which an e-node is not what its class is; None where there are none.

        Raises ``Beyond`` where there is no telling.
        """
        classes = self._classes()
        found = [
            (classes[handle], self._node(node, self.graph.types[handle], [classes[c] for c in node.children]))
            for handle, nodes in self.graph.classes.items()
            for node in nodes
            if OPS[node.op].kind != "composite" and node.op != "input"
        ]
        pairs = [(one, other) for one, other in found if not one.eq(other)]
        if self._ask(self.z3.BoolVal(True)) is None:
            raise Beyond("it is defined nowhere")
        for one, other in pairs:
            model = self._ask(one != other)
            if model is not None:
                return {index: model.eval(variable) for index, variable in self.inputs.items()}
        return None

    def _ask(self, question: Expr) -> Any:
        solver = self.z3.Solver()
        solver.set("timeout", int(1000 * self.timeout))
        solver.add(*self.facts, question)
        answer = solver.check()  # which takes Ctrl-C for itself
        if answer == self.z3.unknown and "interrupted from keyboard" in solver.reason_unknown():
            raise KeyboardInterrupt
        if answer == self.z3.unknown:
            raise Beyond(f"z3 found no answer in {self.timeout:g} s")
        return solver.model() if answer == self.z3.sat else None

    def _classes(self) -> dict[int, Expr]:
        """Each class by its first e-node over classes that are known already."""
        values: dict[int, Expr] = {}
        plain = {h: [n for n in nodes if OPS[n.op].kind != "composite"] for h, nodes in self.graph.classes.items()}
        while len(values) < len(plain):
            before = len(values)
            for handle, nodes in plain.items():
                ready = next((n for n in nodes if all(c in values for c in n.children)), None)
                if handle not in values and ready is not None:
                    args = [values[c] for c in ready.children]
                    values[handle] = self._node(ready, self.graph.types[handle], args)
            if len(values) == before:
                raise Beyond("a term that contains only itself")
        return values

    def _node(self, node: ENode, type: TensorType, args: Sequence[Expr]) -> Expr:
        z3 = self.z3
        if type.shape != ():
            raise Beyond(f"{node.op} has axes")
        if isinstance(node.attrs, InputAttrs):
            return self.inputs.setdefault(node.attrs.index, self._variable(f"x{node.attrs.index}", type.dtype))
        if node.op == "const":
            return self._number(np.asarray(OPS["const"].reference([], node.attrs)).item(), type.dtype)
        operand = self.graph.types[node.children[0]].dtype if node.children else type.dtype
        if node.op == "where":
            return z3.If(*args)
        if node.op in COMPARED:
            return COMPARED[node.op](z3, *args, operand)
        if operand.kind == "bool":
            if node.op in LOGICAL:
                return LOGICAL[node.op](z3, *args)
            raise Beyond(f"{node.op} of bools")
        if node.op == "cast":
            if type.dtype.is_float and operand.is_float:
                return args[0]
            raise Beyond("cast")
        if node.op == "add_n":
            assert isinstance(node.attrs, tuple)
            terms = [arg if sign > 0 else -arg for sign, arg in zip(node.attrs, args, strict=True)]
            return sum(terms[1:], start=terms[0])
        return self._real(node.op, args) if operand.is_float else self._whole(node.op, args, operand)

    def _variable(self, name: str, dtype: DType) -> Expr:
        if dtype.kind == "bool":
            return self.z3.Bool(name)
        return self.z3.Real(name) if dtype.is_float else self.z3.BitVec(name, dtype.bits)

    def _number(self, value: float, dtype: DType) -> Expr:
        if dtype.kind == "bool":
            return self.z3.BoolVal(bool(value))
        if not dtype.is_float:
            return self.z3.BitVecVal(int(value), dtype.bits)
        if not np.isfinite(value):
            raise Beyond(f"the number {value}")
        return self.z3.RealVal(str(Fraction(value)))

    def _real(self, op: str, args: Sequence[Expr]) -> Expr:
        z3, x = self.z3, args[0]
        if op in COMMON:
            return COMMON[op](z3, *args, lambda a, b: a < b)
        if op in ("div", "floor_divide", "remainder"):
            quotient = self._over(x, args[1])
            whole = z3.ToReal(z3.ToInt(quotient))
            return {"div": quotient, "floor_divide": whole, "remainder": x - args[1] * whole}[op]
        if op in ("floor", "ceil"):
            return z3.ToReal(z3.ToInt(x)) if op == "floor" else -z3.ToReal(z3.ToInt(-x))
        if op == "round":
            half = x + self._number(0.5, float64)
            up = z3.ToInt(half)
            return z3.ToReal(z3.If(z3.And(z3.ToReal(up) == half, up % 2 == 1), up - 1, up))
        if op in ("isnan", "isfinite"):
            return z3.BoolVal(op == "isfinite")
        if op == "reciprocal":
            return self._over(z3.RealVal(1), x)
        if op == "sqrt":
            return self._root(x)
        if op == "pow":
            return self._power(x, args[1])
        return self._function(op, x) if len(args) == 1 else self._any(op, args)

    def _over(self, x: Expr, y: Expr) -> Expr:
        self.facts.append(y != 0)
        return x / y

    def _root(self, x: Expr) -> Expr:
        found = next((root for of, root in self.applied.get("sqrt", ()) if of.eq(x)), None)
        if found is None:
            found = self.z3.FreshReal("root")
            self.applied.setdefault("sqrt", []).append((x, found))
            self.facts += [x >= 0, found >= 0, found * found == x]
        return found

    def _power(self, x: Expr, exponent: Expr) -> Expr:
        if not self.z3.is_rational_value(exponent):
            return self._any("pow", [x, exponent])
        power = exponent.as_fraction()
        if power.denominator == 2 and abs(power.numerator) <= MOST_POWER:
            return self._repeated(self._root(x), power.numerator)
        if power.denominator == 1 and abs(power) <= MOST_POWER:
            return self._repeated(x, power.numerator)
        return self._any("pow", [x, exponent])

    def _repeated(self, x: Expr, times: int) -> Expr:
        product = self.z3.RealVal(1)
        for _ in range(abs(times)):
            product = product * x
        return product if times >= 0 else self._over(self.z3.RealVal(1), product)

    def _function(self, op: str, x: Expr) -> Expr:
        """One of the functions that are any, with what is known of it."""
        row = OPS[op]
        if row.by is not None:
            return row.by(lambda name, y: self._real(name, [y]), x)
        value = self._any(op, [x])
        (low, high), least = row.range, row.domain[0]
        if isfinite(low):
            self.facts.append(value > low if row.grows else value >= low)
        if isfinite(high):
            self.facts.append(value < high if row.grows else value <= high)
        if isfinite(least):
            self.facts.append(x > least)
        sign = -1 if "odd" in row.traits else 1 if "even" in row.traits else 0
        for other, its in self.applied.setdefault(op, []):
            if row.grows:
                self.facts.append((x < other) == (value < its))
            if sign:
                self.facts.append(self.z3.Implies(x == -other, value == sign * its))
        self.applied[op].append((x, value))
        return value

    def _any(self, op: str, args: Sequence[Expr]) -> Expr:
        real = self.z3.RealSort()
        return self.z3.Function(op, *(real for _ in range(len(args) + 1)))(*args)

    def _whole(self, op: str, args: Sequence[Expr], dtype: DType) -> Expr:
        z3, signed = self.z3, dtype.is_signed
        if op in COMMON:
            return COMMON[op](z3, *args, (lambda a, b: a < b) if signed else z3.ULT)
        if op in BITS:
            return BITS[op](*args)
        if op == "right_shift":
            return args[0] >> args[1] if signed else z3.LShR(*args)
        if op in ("floor_divide", "remainder"):
            return self._divided(op, args[0], args[1], signed)
        if op == "pow" and z3.is_bv_value(args[1]) and args[1].as_long() <= MOST_POWER:
            return prod([args[0]] * args[1].as_long(), start=z3.BitVecVal(1, args[0].size()))
        raise Beyond(op)

    def _divided(self, op: str, x: Expr, y: Expr, signed: bool) -> Expr:
        """As NumPy does: downwards, and 0 by 0."""
        z3 = self.z3
        zero = z3.BitVecVal(0, x.size())
        if not signed:
            return z3.If(y == 0, zero, z3.UDiv(x, y) if op == "floor_divide" else z3.URem(x, y))
        rest = z3.SRem(x, y)
        apart = z3.And(rest != 0, (rest < 0) != (y < 0))
        if op == "remainder":
            return z3.If(y == 0, zero, z3.If(apart, rest + y, rest))
        return z3.If(y == 0, zero, z3.If(apart, x / y - 1, x / y))


COMMON: dict[str, Callable[..., Expr]] = {
    "neg": lambda z3, x, less: -x,
    "add": lambda z3, x, y, less: x + y,
    "sub": lambda z3, x, y, less: x - y,
    "mul": lambda z3, x, y, less: x * y,
    "square": lambda z3, x, less: x * x,
    "abs": lambda z3, x, less: z3.If(less(x, 0 * x), -x, x),
    "sign": lambda z3, x, less: z3.If(less(x, 0 * x), 0 * x - 1, z3.If(x == 0, 0 * x, 0 * x + 1)),
    "relu": lambda z3, x, less: z3.If(less(x, 0 * x), 0 * x, x),
    "maximum": lambda z3, x, y, less: z3.If(less(x, y), y, x),
    "minimum": lambda z3, x, y, less: z3.If(less(y, x), y, x),
}
"""Over the reals and over integers; the last operand compares."""
BITS: dict[str, Callable[..., Expr]] = {
    "invert": lambda x: ~x,
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "left_shift": lambda x, y: x << y,
}
LOGICAL: dict[str, Callable[..., Expr]] = {
    "logical_not": lambda z3, x: z3.Not(x),
    "logical_and": lambda z3, x, y: z3.And(x, y),
    "logical_or": lambda z3, x, y: z3.Or(x, y),
    "logical_xor": lambda z3, x, y: z3.Xor(x, y),
    "maximum": lambda z3, x, y: z3.Or(x, y),
    "minimum": lambda z3, x, y: z3.And(x, y),
    "abs": lambda z3, x: x,
}


def _less(z3: Any, x: Expr, y: Expr, dtype: DType) -> Expr:
    if dtype.kind == "bool":
        return z3.And(z3.Not(x), y)
    return z3.ULT(x, y) if dtype.kind == "int" and not dtype.is_signed else x < y


COMPARED: dict[str, Callable[..., Expr]] = {
    "eq": lambda z3, x, y, dtype: x == y,
    "ne": lambda z3, x, y, dtype: x != y,
    "lt": _less,
    "gt": lambda z3, x, y, dtype: _less(z3, y, x, dtype),
    "le": lambda z3, x, y, dtype: z3.Not(_less(z3, y, x, dtype)),
    "ge": lambda z3, x, y, dtype: z3.Not(_less(z3, x, y, dtype)),
}

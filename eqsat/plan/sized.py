"""Plans as functions of a length: what several searches for different lengths have in common, and how they differ.

A program is searched for a few lengths. Where the plans are the same but for numbers, each number is a polynomial of
the length, which the plans at these lengths determine and confirm; then there is a plan for every other length, too.
Loop nests are those of the first plan, with its blocks as long as the axes. Whether a nest is legal for a kernel of
another length is for whoever prints it to say, and whether the numbers are right for verification.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from eqsat.ir.identity import identity
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp
from eqsat.ir.serialize import nodes_to_json
from eqsat.plan.plan import KernelStep, Plan, Step

At = Callable[[int], Any]
"""A value at a length."""

MOST_AXES = 8
POWERS = (1.0, -1.0, 0.5, -0.5)
"""Of the length, that floating-point constants of a program may be multiples of."""


class Misfit(ValueError):
    """Values at several lengths that differ in more than numbers, or in numbers that are no function of the length."""


def fitted(values: Mapping[int, Any]) -> At:
    """What equals ``values`` at their lengths, of trees of dataclasses, sequences, mappings and numbers.

    Raises:
        Misfit: they differ in more than numbers; or in numbers that are neither polynomials with whole coefficients of
            at most the second degree, nor multiples of a power of the length.
    """
    if len(values) < 3:
        raise ValueError("a polynomial of the second degree takes three values")
    try:
        made = _fit(tuple(values), tuple(values.values()), {})
    except RecursionError:
        raise Misfit("a tree that is too deep") from None
    return made if callable(made) else lambda length: made


@dataclass(frozen=True)
class _Same:
    """A value that does not depend on the length."""

    value: Any

    def __call__(self, length: int) -> Any:
        return self.value


def _fit(lengths: tuple[int, ...], values: tuple[Any, ...], known: dict[tuple[int, ...], At]) -> At:
    key = tuple(map(id, values))
    if key not in known:
        known[key] = _fit_anew(lengths, values, known)
    return known[key]


def _fit_anew(lengths: tuple[int, ...], values: tuple[Any, ...], known: dict[tuple[int, ...], At]) -> At:
    first, kind = values[0], type(values[0])
    if any(type(value) is not kind for value in values):
        raise Misfit(f"values of types {', '.join(sorted({type(v).__name__ for v in values}))}")
    if kind in (int, float):
        if len(set(map(identity, values))) == 1:
            return _Same(first)
        return _polynomial(lengths, values) if kind is int else _multiple(lengths, values)
    if kind in (tuple, list):
        if len({len(value) for value in values}) > 1:
            raise Misfit("sequences of different lengths")
        parts = [_fit(lengths, part, known) for part in zip(*values, strict=True)]
        if all(isinstance(part, _Same) for part in parts):
            return _Same(first)
        return lambda length: kind([part(length) for part in parts])
    if kind is dict:
        if any(list(value) != list(first) for value in values):
            raise Misfit("mappings with different keys")
        named = {name: _fit(lengths, tuple(value[name] for value in values), known) for name in first}
        if all(isinstance(part, _Same) for part in named.values()):
            return _Same(first)
        return lambda length: {name: part(length) for name, part in named.items()}
    if dataclasses.is_dataclass(kind):
        names = [f.name for f in dataclasses.fields(kind) if f.init]
        fields = {name: _fit(lengths, tuple(getattr(v, name) for v in values), known) for name in names}
        if all(isinstance(part, _Same) for part in fields.values()):
            return _Same(first)
        return lambda length: kind(**{name: part(length) for name, part in fields.items()})
    if kind is str and any(value != first for value in values):
        number = _multiple(lengths, tuple(map(_as_float, values)))
        return lambda length: repr(number(length))
    if any(value != first for value in values):
        raise Misfit(f"{kind.__name__}s that differ")
    return _Same(first)


def _as_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Misfit(f"texts that differ: {text[:40]!r}") from None


def _polynomial(lengths: Sequence[int], values: Sequence[int]) -> At:
    """Whole at all lengths, by divided differences: whole coefficients, or halves, confirm what three values determine.

    A line needs two values, so that three confirm it.
    """
    (x0, x1, x2), (y0, y1, y2) = lengths[:3], values[:3]
    slope = Fraction(y1 - y0, x1 - x0)
    bend = (Fraction(y2 - y0, x2 - x0) - slope) / (x2 - x1)
    exact = (bend, slope - bend * (x0 + x1), y0 - slope * x0 + bend * x0 * x1)
    if any((2 * part).denominator != 1 for part in exact):
        raise Misfit(f"no polynomial has the values {', '.join(map(str, values))}")
    a, b, c = (int(2 * part) for part in exact)

    def made(length: int) -> int:
        value, odd = divmod((a * length + b) * length + c, 2)
        if odd:
            raise Misfit(f"a number that is not whole at length {length}")
        return value

    if any(made(x) != y for x, y in zip(lengths, values, strict=True)):
        raise Misfit(f"no polynomial has the values {', '.join(map(str, values))}")
    return made


def _multiple(lengths: Sequence[int], values: Sequence[float]) -> At:
    """A constant times a power of the length, or of one more or less, rounded to some type; exactly so at all lengths.

    Whole numbers may be as integers are.
    """
    if not all(map(math.isfinite, values)):
        raise Misfit("constants that are not finite at some lengths alone")
    for power, shift, kind in itertools.product(POWERS, (0, -1, 1), (np.float64, np.float32, np.float16)):
        factor = float(f"{values[0] / float(lengths[0] + shift) ** power:.5g}")

        def made(length: int, factor: float = factor, p: float = power, s: int = shift, kind: Any = kind) -> float:
            return float(kind(factor * float(length + s) ** p))

        if all(made(x) == y for x, y in zip(lengths, values, strict=True)):
            return made
    if all(value.is_integer() for value in values):
        whole = _polynomial(lengths, [int(value) for value in values])
        return lambda length: float(whole(length))
    raise Misfit(f"no multiple of a power of the length is {', '.join(map(str, values))}")


@dataclass(frozen=True)
class Alike:
    """A plan at one length, among those at others.

    ``others``: some of these. ``varying``: for each step, how long blocks of axes are that are not as long there.
    ``known``: what a backend wants to remember of the steps' kernels, at any length.
    """

    others: Callable[[], Sequence[Plan]]
    varying: Sequence[frozenset[int]]
    known: dict[Any, Any]


class SizedPlan:
    """The plan of a program at any length, of plans at three or more.

    ``constants``: at a length, those that are folded, in order, as JSON data that names the arrays ``named`` by digest.
    Raises:
        Misfit: they differ otherwise than lengths do, or do more than run kernels over arrays.
    """

    def __init__(self, plans: Mapping[int, Plan], named: Container[str] = ()) -> None:
        self.own, *_ = plans
        self.plan = plans[self.own]
        for plan in plans.values():
            if plan.repeats or not all(isinstance(step, KernelStep) and step.nest is not None for step in plan.steps):
                raise Misfit("a program with loops, or with steps that are not kernels")
            if _wiring(plan) != _wiring(self.plan):
                raise Misfit("steps that depend on the length")
        self.constants = fitted({length: _constants(plan, named) for length, plan in plans.items()})
        self._parts = fitted(
            {length: (plan.types, [_group(step) for step in plan.steps]) for length, plan in plans.items()}
        )

    def at(self, length: int) -> Plan:
        """Raises ``Misfit`` where the nests say nothing about this length."""
        types, groups = self._parts(length)
        steps = []
        for step, group in zip(self.plan.steps, groups, strict=True):
            assert isinstance(step, KernelStep) and step.chosen is not None
            nest = _scaled(step.chosen.nest, _lengths_of(step.group, group))
            label = re.sub(r"\d+", lambda m: str(_renamed(int(m[0]), self.own, length)), step.label)
            steps.append(replace(step, group=group, chosen=replace(step.chosen, nest=nest), label=label))
        return replace(self.plan, types=types, steps=tuple(steps), origins={})

    def varying(self, plan: Plan) -> list[frozenset[int]]:
        """For each step of the plan at a length, how long blocks are that depend on it."""
        pairs = zip(map(_group, self.plan.steps), map(_group, plan.steps), strict=True)
        return [frozenset(_lengths_of(group, other).values()) for group, other in pairs]


def _renamed(number: int, own: int, length: int) -> int:
    return length if number == own else number


def _wiring(plan: Plan) -> Any:
    return plan.inputs, plan.outputs, sorted(plan.constants), [step.tensors for step in plan.steps]


def _constants(plan: Plan, named: Container[str]) -> dict[str, Any]:
    return nodes_to_json([plan.constants[n] for n in sorted(plan.constants)], named)


def _group(step: Step) -> KernelGroup:
    assert isinstance(step, KernelStep)
    return step.group


def _lengths_of(group: KernelGroup, other: KernelGroup) -> dict[int, int]:
    """How long blocks of axes, and of several that are walked as one, are in another group of the same form."""
    found: dict[int, int] = {}
    for stage, its in zip(group.stages, other.stages, strict=True):
        pairs = list(zip(stage.kernel.extents, its.kernel.extents, strict=True))
        if len(pairs) > MOST_AXES:
            raise Misfit("a kernel of many axes")
        for count in range(1, len(pairs) + 1):
            for some in itertools.combinations(pairs, count):
                before, after = math.prod(a for a, _ in some), math.prod(b for _, b in some)
                if any(a != b for a, b in some) and found.setdefault(before, after) != after:
                    raise Misfit("lengths that cannot be told apart")
    return found


def _scaled(nest: Nest, lengths: Mapping[int, int]) -> Nest:
    match nest:
        case Loop(block=block, step=step, body=body):
            block, step = lengths.get(block, block), lengths.get(step, step)
            return replace(nest, block=block, step=step, body=_scaled(body, lengths))
        case Pack(body=body):
            return replace(nest, body=_scaled(body, lengths))
        case Seq(bodies):
            return Seq(tuple(_scaled(body, lengths) for body in bodies))
        case TileOp(sizes=sizes):
            return replace(nest, sizes=tuple((axis, lengths.get(size, size)) for axis, size in sizes))

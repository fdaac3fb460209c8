"""Rules as data: a left side, a right side, guards, and what they do to rounding."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeGuard, cast

import numpy as np

from eqsat.contents import OWN
from eqsat.errors import RuleError
from eqsat.ir.node import ConstArray, Node
from eqsat.ir.table import TRAITS, having
from eqsat.rules.pattern import Literal as Number
from eqsat.rules.pattern import NumberVar, Pattern, Sum, Var, _lift
from eqsat.rules.place import place
from eqsat.rules.walk import bound_names, match_names

Numerics = Literal["exact", "reassociates", "approximates"]
NUMERICS: tuple[Numerics, ...] = ("exact", "reassociates", "approximates")
"""Same rounding; same reals with another rounding; other reals, or a NaN or infinity lost or spread."""


class Facts(Protocol):
    """What is known about matched tensors beyond their types."""

    def known(self, node: Node) -> bool:
        """Whether the tensor's value is known when the program is compiled."""

    def value(self, node: Node) -> float | int | bool | None:
        """The number that all elements equal where it is a compile-time constant."""

    def array(self, node: Node) -> ConstArray | None:
        """The tensor's literal value, if it has one."""

    def original(self, node: Node) -> bool:
        """Whether the tensor is one of the program as given."""

    def small(self) -> bool:
        """Whether there are still few enough terms for laws that gain nothing by themselves."""

    def forms(self, node: Node, op: str) -> list[tuple[object, tuple[Node, ...]]]:
        """(attributes, operands) of every term of this operator that the tensor is known to equal."""

    def fewer(self, node: Node, op: str, count: int) -> bool:
        """Whether those are fewer than ``count``."""


class Match:
    """One match: its variables as attributes. Tensors are typed nodes, whose inputs are not to be looked at.

    ``root`` is the matched tensor; attribute variables hold attributes; ``Terms`` variables hold (sign, tensor)
    pairs, ``Parts`` variables tuples of tensors.
    """

    __slots__ = ("__dict__", "_facts")
    _facts: Facts

    def __init__(self, names: Mapping[str, object], facts: Facts) -> None:
        self.__dict__.update(names)  # found without a call: rules look at variables more often than at anything else
        if not _METHODS.isdisjoint(names):
            for name in _METHODS.intersection(names):
                del self.__dict__[name]
        object.__setattr__(self, "_facts", facts)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a match is only to be read: {name!r} cannot be set")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the left side has no variable {name!r}; it has {', '.join(self.__dict__)}")

    def known(self, node: Node) -> bool:
        """Whether a tensor is known when the program is compiled."""
        return self._facts.known(node)

    def value(self, node: Node) -> float | int | bool | None:
        """The number that all elements of a tensor equal where it is a compile-time constant."""
        return self._facts.value(node)

    def array(self, node: Node) -> ConstArray | None:
        """The literal value of a tensor, if it has one."""
        return self._facts.array(node)

    def original(self, node: Node) -> bool:
        """Whether a tensor is one of the program as given, rather than made by a rule."""
        return self._facts.original(node)

    def small(self) -> bool:
        """Whether there are still few enough terms for laws that gain nothing by themselves."""
        return self._facts.small()

    def forms(self, node: Node, op: str) -> list[tuple[object, tuple[Node, ...]]]:
        """(attributes, operands) of every term of this operator that a tensor is known to equal by now."""
        return self._facts.forms(node, op)

    def fewer(self, node: Node, op: str, count: int) -> bool:
        """Whether those are fewer than ``count``."""
        return self._facts.fewer(node, op, count)


_METHODS = frozenset(name for name in vars(Match) if not name.startswith("_"))
"""What variables of these names do not hide."""


@dataclass(frozen=True)
class Guard:
    """A condition on a match; ``name`` says what must hold, in words a report can show."""

    name: str
    test: Callable[[Match], bool]

    def holds(self, match: Match) -> bool:
        found = self.test(match)
        if not isinstance(found, (bool, np.bool_)):
            raise TypeError(f"a guard returns True or False, not {found!r}")
        return bool(found)


RightSide = Callable[[Match], "Node | Sequence[Node] | None"]
Gather = Callable[[Sequence[Match]], "Sequence[Node] | None"]
Schema = Callable[[str], "Sequence[tuple[object, object]]"]


@dataclass(frozen=True)
class Way:
    """One direction of a rule: patterns to find, and what each equals."""

    left: tuple[Pattern, ...]
    right: tuple[Pattern, ...] | RightSide


@dataclass(frozen=True)
class Rule:
    """A rewrite rule. Made by ``rewrite``, ``rewrite_together``, ``gather`` or ``builtin``.

    ``key`` and ``together`` are set on gathering rules: matches that agree on the variables ``key`` are given to
    ``together`` at once, original tensors first. ``builtin`` names work that a later stage does. ``each``: a trait of
    operators, and the sides that the rule has for each that has it. ``algorithm``: the name of the algorithm of
    a rule that errs in proportion to more than the terms of what it computes: a program that verification refuses is
    compiled again without it, and ``explain`` names by it what a convolution's sums, if it made them, are part of.
    """

    id: str
    ways: tuple[Way, ...]
    where: tuple[Guard, ...]
    numerics: Numerics
    doc: str
    file: str
    line: int
    key: tuple[str, ...] = ()
    together: Gather | None = None
    builtin: str = ""
    example: Callable[[Any], Any] | None = None
    each: tuple[str, Schema] | None = None
    algorithm: str = ""

    def __str__(self) -> str:
        if not self.ways:
            return f"{self.id}: {self.doc}"
        first = self.ways[0]
        left = ", ".join(map(repr, first.left))
        right = ", ".join(map(repr, first.right)) if isinstance(first.right, tuple) else "…"
        arrow = "=" if len(self.ways) > 1 else "->"
        guards = f" where {', '.join(g.name for g in self.where)}" if self.where else ""
        return f"{self.id}: {left} {arrow} {right}{guards}"


def mistakes(
    ways: Sequence[Way],
    guards: Sequence[Guard],
    together: Gather | None = None,
    example: Callable[[Any], Any] | None = None,
) -> Iterator[str]:
    """What is wrong with a rule's functions and types, as far as that can be told without an e-graph."""
    from eqsat.rules import definition

    own = {name for name in vars(Match) if not name.startswith("_")}
    lefts = [way.left for way in ways]
    functions: list[tuple[Callable[..., Any], str, list[tuple[Pattern, ...]]]]
    functions = [(guard.test, f"its guard {guard.name!r}", lefts) for guard in guards]
    if together is None:
        functions += [(way.right, "its right side", [way.left]) for way in ways if not isinstance(way.right, tuple)]
    else:
        yield from filter(None, [definition.wrong_signature(together, "its right side", "the matches")])
    if example is not None:
        yield from filter(None, [definition.wrong_signature(example, "its example", "a Maker")])
    for function, what, of in functions:
        yield from filter(None, [definition.wrong_signature(function, what)])
        yield from filter(None, [definition.unknown_variable(function, what, of, own)])
    for way in ways:
        if isinstance(way.right, tuple):
            yield from filter(None, [definition.other_type(way.left, way.right)])


def _caller(depth: int = 2) -> tuple[str, int, str, bool]:
    """File, line and the assigned name of the statement that called into here, and whether it is eqsat's own."""
    frame = sys._getframe(depth)
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line, frame.f_globals)
    found = re.match(r"\s*(\w+)\s*(?::[^=]*)?=[^=]", text)
    ours = str(frame.f_globals.get("__name__", "")).partition(".")[0] in OWN
    return file, line, found.group(1) if found else "", ours


def _guards(where: object, at: str) -> tuple[Guard, ...]:
    given = () if where is None else where if isinstance(where, (tuple, list)) else (where,)
    found = []
    for guard in given:
        if isinstance(guard, Guard):
            found.append(guard)
        elif callable(guard):
            doc = (guard.__doc__ or "").strip().splitlines()
            name = getattr(guard, "__name__", type(guard).__name__).strip("<>")
            found.append(Guard(doc[0].rstrip(".") if doc else name, guard))
        else:
            raise RuleError(f"{at}: a guard is a function of the match, not {guard!r}")
    return tuple(found)


def _define(
    id: str | None,
    ways: Sequence[Way],
    where: object,
    numerics: Numerics,
    doc: str,
    example: Callable[[Any], Any] | None,
    **more: Any,
) -> Rule:
    file, line, assigned, ours = _caller(3)
    name = id or assigned
    at = f"rule {name!r} ({file}:{line})"
    if not name:
        raise RuleError(f"{file}:{line}: a rule needs an id: assign it to a name or pass id=…")
    if not isinstance(name, str) or not name.isprintable() or name != name.strip():
        raise RuleError(f"{at}: an id is a text of one line, without spaces around it")
    for what, text in (("doc", doc), ("algorithm", more.get("algorithm", ""))):
        if not isinstance(text, str):
            raise RuleError(f"{at}: {what} is a text, not {text!r}")
    for what, function in (("example", example), ("together", more.get("together"))):
        if function is not None and not callable(function):
            raise RuleError(f"{at}: {what} is a function, not {function!r}")
    if numerics not in NUMERICS:
        raise RuleError(f"{at}: numerics is one of {', '.join(NUMERICS)}, not {numerics!r}")
    for way in ways:
        _check_way(way, at)
    guards = _guards(where, at)
    if more.get("key"):
        names = match_names([way.left for way in ways])
        for key in more["key"]:
            if key not in names:
                raise RuleError(f"{at}: key {key!r} is no variable of the left side, which has {', '.join(names)}")
    if not ours:
        for problem in mistakes(ways, guards, more.get("together"), example):
            raise RuleError(f"{at}: {problem}")
    return Rule(name, tuple(ways), guards, numerics, doc, file, line, example=example, **more)


def _check_way(way: Way, at: str) -> None:
    bound: dict[str, str] = {}
    for left in way.left:
        if not isinstance(left, Pattern):
            raise RuleError(f"{at}: the left side is a pattern, not {type(left).__name__}")
        if isinstance(left, (Var, NumberVar, Number)):
            raise RuleError(f"{at}: the left side {left!r} is no operator: every tensor, or number, would match it")
        for name, kind in bound_names(left):
            if bound.setdefault(name, kind) != kind:
                raise RuleError(f"{at}: variable {name!r} is both a {bound[name]} and a {kind}")
    if len(way.left) == 1 and isinstance(way.left[0], Sum) and len(way.left[0].terms) < 2:
        raise RuleError(f"{at}: a sum on the left side has at least two terms")
    if not isinstance(way.right, tuple):
        return
    if len(way.right) != len(way.left):
        raise RuleError(f"{at}: {len(way.left)} left sides and {len(way.right)} right sides")
    for right in way.right:
        if not isinstance(right, Pattern):
            raise RuleError(f"{at}: the right side is a pattern or a function of the match, not {type(right).__name__}")
        for name, kind in bound_names(right):
            if name not in bound:
                known = ", ".join(n for n in bound if not n.startswith("_")) or "none"
                raise RuleError(f"{at}: the right side uses variable {name!r}, unbound on the left (bound: {known})")
            if bound[name] != kind:
                raise RuleError(f"{at}: variable {name!r} is a {bound[name]} on the left and a {kind} on the right")
            if kind in _MANY:
                raise RuleError(
                    f"{at}: {name!r} stands for any number of tensors: with it the right side is a function of the "
                    f"match, in which m.{name} are {_MANY[kind]}"
                )


_MANY = {"terms": "pairs of a sign and a tensor", "parts": "tensors"}


def _side(right: object) -> tuple[Pattern, ...] | RightSide:
    if isinstance(right, (tuple, list)):
        return tuple(_lift(r) for r in right)
    if isinstance(right, Pattern) or not callable(right):
        return (_lift(right),)
    return right


def rewrite(
    lhs: object,
    rhs: object,
    *,
    id: str | None = None,
    where: object = None,
    numerics: Numerics = "reassociates",
    both_ways: bool = False,
    doc: str = "",
    example: Callable[[Any], Any] | None = None,
    algorithm: str = "",
) -> Rule:
    """A rule that lets ``rhs`` stand for the pattern ``lhs``.

    ``rhs``: a pattern, a number, or a function of the :class:`Match` that returns a node of the matched
    tensor's type, or None to decline. ``where``: a guard or several, functions of the match; a guard's docstring
    is the reason shown when it fails. ``id`` defaults to the name assigned to. ``both_ways`` adds the reverse,
    under the same id. ``example``: a function of a :class:`~eqsat.rules.examples.Maker` that returns a program on
    which the rule fires, for rules whose left side random attributes hardly ever fit. ``algorithm``: the name
    of its algorithm, where that errs in proportion to more than the terms of what it computes: a program that
    verification refuses is compiled again without it. ``explain`` names convolutions by it.

    Raises ``RuleError`` (a ``ValueError``) naming the rule, its file and line for unbound or misused variables.
    """
    left, right = (cast(Pattern, lhs),), _side(rhs)
    ways = [Way(left, right)]
    if both_ways:
        if not isinstance(right, tuple):
            raise RuleError(f"{place()}: both_ways needs a pattern on the right side, not a function")
        ways.append(Way(right, left))
    return _define(id, ways, where, numerics, doc, example, algorithm=algorithm)


def family(
    ways: Sequence[tuple[object, object]],
    *,
    id: str | None = None,
    where: object = None,
    numerics: Numerics = "reassociates",
    doc: str = "",
    example: Callable[[Any], Any] | None = None,
) -> Rule:
    """One rule of several left sides, each with its right side: the same law for several operators."""
    made = _pairs(ways, "a family")
    if not made:
        raise RuleError(f"{place()}: a family has at least one left side")
    return _define(id, made, where, numerics, doc, example)


def for_each(
    trait: str,
    sides: Schema,
    *,
    id: str | None = None,
    where: object = None,
    numerics: Numerics = "reassociates",
    doc: str = "",
) -> Rule:
    """One law for every operator with a trait of ``eqsat.ir.table.TRAITS``, those that users define later among them.

    ``sides``: of an operator's name, the left and right sides that it gives.
    """
    if trait not in TRAITS:
        raise RuleError(f"{place()}: a trait is one of {', '.join(TRAITS)}, not {trait!r}")
    if not callable(sides):
        raise RuleError(f"{place()}: the sides are a function of an operator's name, not {sides!r}")
    return _define(id, _ways(sides, having(trait)), where, numerics, doc, None, each=(trait, sides))


def _ways(sides: Schema, names: Sequence[str]) -> list[Way]:
    return [way for name in names for way in _pairs(sides(name), f"what is given for {name!r}")]


def _is_list(given: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(given, (tuple, list))


def _pairs(given: object, what: str) -> list[Way]:
    """Ways of (left side, right side) pairs; ``RuleError`` for anything else."""
    pairs = [pair for pair in given if _is_list(pair) and len(pair) == 2] if _is_list(given) else []
    if not _is_list(given) or len(pairs) < len(given):
        raise RuleError(f"{place()}: {what} is a sequence of (left side, right side) pairs, not {given!r}")
    return [Way((cast(Pattern, lhs),), _side(rhs)) for lhs, rhs in pairs]


def spread(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules, with ways for all operators that there are by now."""
    found = []
    for rule in rules:
        if rule.each is not None:
            trait, sides = rule.each
            rule = replace(rule, ways=tuple(_ways(sides, having(trait))))
        found.append(rule)
    return tuple(found)


def rewrite_together(
    lhs: Sequence[object],
    rhs: object,
    *,
    id: str | None = None,
    where: object = None,
    numerics: Numerics = "reassociates",
    doc: str = "",
    example: Callable[[Any], Any] | None = None,
) -> Rule:
    """A rule with several left sides that are found together, sharing variables, each with its right side.

    ``rhs``: as many patterns, or a function of the match that returns as many nodes; the matched tensors are
    ``root``, ``root1``, ``root2``….
    """
    if not _is_list(lhs) or not lhs:
        raise RuleError(f"{place()}: what is found together is a sequence of patterns, not {lhs!r}")
    return _define(id, [Way(cast(tuple[Pattern, ...], tuple(lhs)), _side(rhs))], where, numerics, doc, example)


def gather(
    lhs: object,
    key: Sequence[str],
    together: Gather,
    *,
    id: str | None = None,
    where: object = None,
    numerics: Numerics = "reassociates",
    doc: str = "",
    example: Callable[[Any], Any] | None = None,
) -> Rule:
    """A rule over all matches of ``lhs`` at once that agree on the variables ``key``.

    ``together`` gets two or more matches, in a fixed order, and returns a node for each (or None to decline).
    """
    if isinstance(key, str) or not isinstance(key, Sequence):
        raise RuleError(f"{place()}: the key is a sequence of variables' names, not {key!r}")

    def single(match: Match) -> None:
        return None

    return _define(
        id, [Way((cast(Pattern, lhs),), single)], where, numerics, doc, example, key=tuple(key), together=together
    )


def builtin(id: str, doc: str, numerics: Numerics = "exact") -> Rule:
    """A rule whose work another stage does when the rule is enabled: it can be listed and switched off."""
    return _define(id, [], None, numerics, doc, None, builtin=id)

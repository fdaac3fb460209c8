"""Operators that users define: rows of the op table whose meaning is what their function traces to.

A node of one carries its definition as its attribute, so that a function defined anew under the same name is another
operator to every cache, and what was compiled before keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from eqsat.errors import OptionError
from eqsat.ir.composite import by_expansion
from eqsat.ir.node import Node, Source, substitute
from eqsat.ir.table import OPS, Op
from eqsat.ir.types import TensorType

Settings = tuple[tuple[str, object], ...]
Lowered = tuple[tuple[Node, ...], Node]
"""Inputs, and the result made of them by operators of the table."""


@dataclass(eq=False)
class Definition:
    """What the user said of an operator, and where.

    ``lower`` traces the function for types and settings; ``ValueError`` where they do not fit. ``digest`` stands for
    its content. ``domain``: of an elementwise operator, the numbers that it is defined on. ``call``: the operator
    itself, and ``attribute`` its name in its module.
    """

    name: str
    arity: int
    lower: Callable[[Sequence[TensorType], Settings], Lowered]
    digest: str
    where: Source | None
    module: str
    elementwise: bool = False
    domain: tuple[float, float] = (-np.inf, np.inf)
    attribute: str = ""
    call: Callable[..., object] | None = None
    known: dict[tuple[object, ...], Lowered] = field(default_factory=dict)

    def meaning(self, types: Sequence[TensorType], settings: Settings) -> Lowered:
        key = (tuple(types), repr(settings))
        if key not in self.known:
            self.known[key] = self.lower(types, settings)
        return self.known[key]


class Applied:
    """The attribute of a node: a definition, and settings that are no arrays. Equal by content."""

    __slots__ = ("definition", "key", "settings")

    def __init__(self, definition: Definition, settings: Settings = ()) -> None:
        self.definition = definition
        self.settings = settings
        self.key = f"{definition.name}#{definition.digest}{settings}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Applied) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return self.key

    def call(self, args: Sequence[str]) -> str:
        """As Python text."""
        return f"{self.definition.name}({', '.join([*args, *(f'{k}={v!r}' for k, v in self.settings)])})"


def _type(types: Sequence[TensorType], attrs: object) -> TensorType:
    if not isinstance(attrs, Applied):
        raise ValueError("an operator of yours is made by calling it, also on nodes and patterns")
    name, arity = attrs.definition.name, attrs.definition.arity
    if len(types) != arity:
        raise ValueError(f"{name} takes {arity} arrays, not {len(types)}")
    return attrs.definition.meaning(types, attrs.settings)[1].type


def _expand(inputs: Sequence[Node], attrs: object) -> Node:
    assert isinstance(attrs, Applied)
    given, result = attrs.definition.meaning([n.type for n in inputs], attrs.settings)
    return substitute([result], dict(zip(given, inputs, strict=True)))[0]


def define(definition: Definition, traits: frozenset[str] = frozenset(), doc: str = "") -> Op:
    """Put an operator in the table, in place of one that the same module defined under its name before.

    ``OptionError`` for a name that is another's.
    """
    there = OPS.get(definition.name)
    if there is not None:
        before = there.attrs.definition if isinstance(there.attrs, Applied) else None
        if before is None:
            raise OptionError(f"{definition.name!r} is an operator of eqsat's own: give it name=…", definition.where)
        if before.module != definition.module:
            raise OptionError(f"operator {definition.name!r} is defined already, at {before.where}", definition.where)
    OPS[definition.name] = row = Op(
        definition.name,
        "composite",
        _type,
        by_expansion(_expand),
        expansion=_expand,
        arity=definition.arity,
        traits=traits,
        attrs=Applied(definition),
        doc=doc,
    )
    return row


def defined() -> list[tuple[Op, Definition]]:
    """The rows that users defined, in order of definition."""
    return [(row, row.attrs.definition) for row in OPS.values() if isinstance(row.attrs, Applied)]

"""Small typed terms over given operators: how they are made, written down, and what shapes they need."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.ir.table import OPS
from eqsat.ir.types import DType, TensorType, bool_, float64, int64
from eqsat.rules.instantiate import swapped
from eqsat.rules.pattern import REDUCTIONS, UFUNCS

JOIN, SWAP, PRODUCT = "concatenate", "matrix_transpose", "matmul"
"""Operators that are views, joins and contractions of the op table, by the names that NumPy gives them."""
NAMES = {"transpose": SWAP, "concat": JOIN, "subtract": "sub", **UFUNCS, **REDUCTIONS}
"""Other names of operators than those of the table: NumPy's."""
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""Operators that patterns write between their operands."""
MOST_ARITY = 3
MOST_ELEMENTS = 256
"""Of a term: what is larger (concatenations of concatenations) says nothing new."""

Extent = Counter[str]
"""A sum of unknown extents."""


@dataclass(frozen=True, eq=False)
class Term:
    """An operator applied to terms, a variable, or a number; ``node`` is what it computes on typed inputs.

    ``axis``: of reductions and concatenations, counted from the end.
    """

    op: str
    args: tuple[Term, ...]
    node: Node
    axis: int | None = None
    name: str = ""
    number: float | None = None
    size: int = 0
    variables: tuple[str, ...] = field(default=(), compare=False)

    def walk(self) -> Iterator[Term]:
        yield self
        for arg in self.args:
            yield from arg.walk()

    def key(self, names: Mapping[str, str]) -> str:
        """As text, with the variables renamed."""
        if self.name:
            return names[self.name]
        if self.number is not None:
            return repr(self.number)
        inside = [arg.key(names) for arg in self.args]
        row = OPS.get(self.op)
        if row is not None and row.commutes:
            inside.sort()
        return f"{self.op}({', '.join(inside)}{'' if self.axis is None else f'; {self.axis}'})"

    def __str__(self) -> str:
        return self.key({name: name for name in self.variables})


@dataclass(frozen=True)
class Operator:
    """How terms of an operator are made. ``axes``: whether there is one for each axis of its operand."""

    name: str
    arity: int
    make: Callable[[Sequence[Node], int], Node]
    axes: bool = False
    commutes: bool = False

    def terms(self, args: Sequence[Term]) -> Iterator[Term]:
        """Those over these operands: none where types do not fit."""
        rank = args[0].node.type.ndim
        for axis in range(-rank, 0) if self.axes else (0,):
            node = self.node([arg.node for arg in args], axis)
            if node is not None:
                yield made(self.name, args, node, axis if self.axes else None)

    def node(self, args: Sequence[Node], axis: int) -> Node | None:
        try:
            node = self.make(args, axis)
        except (ValueError, IndexError, TypeError):
            return None
        return node if 0 < node.type.size <= MOST_ELEMENTS else None


def made(op: str, args: Sequence[Term], node: Node, axis: int | None = None) -> Term:
    names = dict.fromkeys(name for arg in args for name in arg.variables)
    return Term(op, tuple(args), node, axis, size=1 + sum(arg.size for arg in args), variables=tuple(names))


def variable(name: str, node: Node) -> Term:
    return Term("", (), node, name=name, variables=(name,))


def number(value: float, dtype: DType, shape: tuple[int, ...] = ()) -> Term:
    return Term("", (), build.broadcast_to(build.scalar(value, dtype), shape), number=value)


def operators(names: Iterable[str], leaves: Sequence[Term]) -> tuple[Operator, ...]:
    """The operators of these names, the table's or NumPy's.

    Raises ``ValueError`` for a name that is none of both, that takes attributes other than an axis, or whose operands
    none of the ``leaves`` can be.
    """
    return tuple(dict.fromkeys(_operator(name, leaves) for name in names))


def _operator(given: str, leaves: Sequence[Term]) -> Operator:
    name = canonical(given)
    found = _moved(name)
    if found is None and OPS[name].kind == "reduce":
        reduced = lambda args, axis: build.reduce(name, args[0], (args[0].type.ndim + axis,))  # noqa: E731
        found = Operator(name, 1, reduced, axes=True)
    if found is not None:
        return found
    for arity in range(1, MOST_ARITY + 1):
        made = Operator(name, arity, lambda args, _: _elementwise(name, args), commutes=OPS[name].commutes)
        tuples = itertools.product([leaf.node for leaf in leaves], repeat=arity)
        if any(made.node(args, 0) is not None for args in tuples):
            return made
    types = ", ".join(f"{leaf.name}: {leaf.node.type}" for leaf in leaves if leaf.name)
    raise ValueError(
        f"none of the variables ({types}) are operands of {given!r} with a result of 1 to {MOST_ELEMENTS} elements; "
        "give others"
    )


def canonical(given: str) -> str:
    """The operator's name here. ``ValueError`` with near ones where there is none."""
    known = {JOIN, SWAP, PRODUCT, *(row.name for row in OPS.values() if row.kind in ("map", "reduce"))} - UNNAMED
    if not isinstance(given, str):
        raise ValueError(f"an operator is given by its name, not {given!r}")
    name = given if given in known else NAMES.get(given, given)
    if name not in known:
        near = difflib.get_close_matches(given, sorted(known | NAMES.keys()), 5)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"
        raise ValueError(f"unknown operator {given!r}: {hint}")
    return name


UNNAMED = {"cast", "flushing_cast", "wrap_index", "add_n"}
"""Elementwise functions whose attributes are no axis."""


def _moved(name: str) -> Operator | None:
    if name == PRODUCT:
        return Operator(name, 2, lambda args, _: build.matmul(*args))
    if name == SWAP:
        return Operator(name, 1, lambda args, _: swapped(args[0]))
    if name == JOIN:
        return Operator(name, 2, lambda args, axis: build.concat(args, args[0].type.ndim + axis), axes=True)
    return None


def _elementwise(name: str, args: Sequence[Node]) -> Node:
    """Of operands of one shape, but for numbers: what broadcasts is left to the check of the law."""
    shapes = {arg.shape for arg in args if arg.op != "const"}
    if len(shapes) > 1:
        raise ValueError("operands of several shapes")
    return build.call(name, *args)


def inputs_for(names: Iterable[str]) -> dict[str, TensorType]:
    """Variables for operators: tensors of one shape, for products also matrices that follow one another, truth values
    for conditions, and whole numbers where floats are no operands."""
    wanted = {canonical(name) for name in names}
    truths = {name for name in wanted if name == "where" or name.startswith("logical")}
    whole = {name for name in wanted if name.startswith("bitwise") or name.endswith("shift") or name == "invert"}
    dtype = int64 if whole else float64
    rows, inner, columns, last = 2, 3, 4, 5
    found: dict[str, TensorType] = {}
    if wanted - truths - {"where"} or "where" in wanted:
        found |= {name: TensorType((rows, inner), dtype) for name in "abc"[: 2 if PRODUCT in wanted else 3]}
    if PRODUCT in wanted:
        found |= {name: TensorType((inner, columns), dtype) for name in "uv"}
        found["w"] = TensorType((columns, last), dtype)
    if truths:
        found |= {name: TensorType((rows, inner), bool_) for name in "pq"}
    return found


# Shapes


class Shapes:
    """The most general shapes of the variables of terms, by unification; ``ValueError`` where ranks differ."""

    def __init__(self, sides: Sequence[Term]) -> None:
        self._bound: dict[str, Extent] = {}
        self._shapes: dict[str, tuple[Extent, ...]] = {}
        first, *rest = (self._infer(side) for side in sides)
        for other in rest:
            self._same(first, other)

    def of(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Each extent of a variable, as the unknowns that it is the sum of."""
        return tuple(tuple(sorted(self._resolved(extent).elements())) for extent in self._shapes[name])

    def alike(self) -> list[list[str]]:
        """Variables that have one shape, those with others of that shape."""
        groups: dict[object, list[str]] = {}
        for name in self._shapes:
            groups.setdefault(self.of(name), []).append(name)
        return [names for shape, names in groups.items() if shape and len(names) > 1]

    def _resolved(self, extent: Extent) -> Extent:
        found: Extent = Counter()
        for unknown, count in extent.items():
            bound = self._bound.get(unknown)
            for part, times in (Counter((unknown,)) if bound is None else self._resolved(bound)).items():
                found[part] += count * times
        return found

    def _equal(self, one: Extent, other: Extent) -> None:
        one, other = self._resolved(one), self._resolved(other)
        if one == other:
            return
        for single, whole in ((one, other), (other, one)):
            (unknown, *more) = single.elements()
            if not more and unknown not in whole:
                self._bound[unknown] = whole
                return

    def _same(self, one: tuple[Extent, ...], other: tuple[Extent, ...]) -> None:
        if one and other:
            for a, b in zip(one, other, strict=True):
                self._equal(a, b)

    def _product(self, one: tuple[Extent, ...], other: tuple[Extent, ...]) -> tuple[Extent, ...]:
        """Of a product as NumPy's, in which a vector is a row on the left and a column on the right."""
        self._equal(one[-1], other[-2:][0])
        outside, inside = one[:-2], other[:-2]
        self._same(outside[-len(inside) :] if inside else (), inside[-len(outside) :] if outside else ())
        return *max(outside, inside, key=len), *one[-2:-1], *(other[-1:] if len(other) > 1 else ())

    def _infer(self, term: Term) -> tuple[Extent, ...]:
        if term.name:
            rank = term.node.type.ndim
            return self._shapes.setdefault(term.name, tuple(Counter((f"{term.name}{k}",)) for k in range(rank)))
        if term.number is not None:
            return ()
        shapes = [self._infer(arg) for arg in term.args]
        first, last = shapes[0], shapes[-1]
        if term.op == PRODUCT:
            return self._product(first, last)
        if term.op == SWAP:
            return *first[:-2], first[-1], first[-2]
        if term.axis is None:
            for one, other in itertools.combinations(shapes, 2):
                self._same(one, other)
            return max(shapes, key=len)
        at = len(first) + term.axis
        if term.op != JOIN:
            return first[:at] + first[at + 1 :]
        for k in range(len(first)):
            if k != at:
                self._equal(first[k], last[k])
        return *first[:at], first[at] + last[at], *first[at + 1 :]

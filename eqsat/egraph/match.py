"""Left sides as egglog queries, and the rows they find as typed matches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal as Choice

import numpy as np

from eqsat.egraph.encode import Terms as Store
from eqsat.egraph.interning import Interner, number_key
from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.ir.table import OPS
from eqsat.ir.types import finfo
from eqsat.rules.instantiate import swapped
from eqsat.rules.pattern import (
    Apply,
    Attribute,
    Expanded,
    Joined,
    Literal,
    Mean,
    NumberVar,
    Parts,
    Pattern,
    Sum,
    Swapped,
    Terms,
    Var,
)
from eqsat.rules.rule import Rule, Way

Kind = Choice["tensor", "attrs", "sum", "parts", "place", "sign"]
Names = dict[str, object]
Check = Callable[[Names, Store], bool]

ANY_SIGN = 0
"""The sign of a pattern's term that matches either; the match has ``signs``."""


@dataclass
class Query:
    """A way's left side: egglog facts, and what each column of the rows they yield means."""

    facts: list[str] = field(default_factory=list)
    columns: list[tuple[Kind, str]] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    cells: dict[str, int] = field(default_factory=dict)
    """The column of every variable of the facts."""
    tensors: tuple[int, ...] = ()
    """The columns of classes."""
    classes: tuple[tuple[str, int], ...] = ()
    """Of classes (variable, column)."""
    others: tuple[tuple[Kind, str, int], ...] = ()
    """Of what else a match binds (kind, variable, column)."""
    needs: set[tuple[str, int]] = field(default_factory=set)
    checks: list[Check] = field(default_factory=list)
    terms: list[tuple[str, str, tuple[str, ...], str]] = field(default_factory=list)
    """(operator, attribute, operands, class) of each term of the left side, by the names used in the facts."""
    cells_of_terms: tuple[tuple[str, int | None, int, tuple[int, ...], int], ...] = ()
    """Of those (operator, attribute or None, then its column, columns of operands, column of the class)."""
    members: list[tuple[str, str, str, str]] = field(default_factory=list)
    """(sum's number, place, sign, operand) of each term of its sums, likewise."""
    wholes: list[tuple[str, str]] = field(default_factory=list)
    """(class, number) of its sums and concatenations, likewise."""
    among: Sum | None = None
    """The left side itself, where it matches among the terms of a longer sum."""
    among_at: tuple[int, tuple[int, ...]] = (0, ())
    """The columns of that sum, and of the places of its terms."""

    @property
    def sought(self) -> object:
        """Equal where rows of one are rows of the other: left sides that differ in the names of tensors, or in what is
        checked of a match."""
        kinds = tuple(kind for kind, _ in self.columns)
        return (
            tuple(self.facts),
            tuple(self.variables),
            kinds,
            tuple(self.terms),
            tuple(self.members),
            tuple(self.wholes),
        )


MOST_SETS = 8
"""Sets of rules whose queries are remembered: programs may be compiled with some rules disabled."""


@dataclass(frozen=True, eq=False)
class Queries:
    """The left sides of rules, each direction by itself, and the attributes and numbers that they mention.

    ``distinct``: those that look for different things; ``places``: for each one its place among them.
    """

    each: tuple[Query, ...]
    distinct: tuple[Query, ...]
    places: tuple[int, ...]
    attrs: Interner
    numbers: Interner


_compiled: dict[tuple[int, ...], tuple[tuple[Rule, ...], Queries]] = {}
"""By the identities of rules, which are held."""


def queries_of(rules: Sequence[Rule]) -> Queries:
    """What the rules look for, in their order; the same object for the same rules."""
    key = tuple(map(id, rules))
    found = _compiled.get(key)
    if found is None:
        compiler = Compiler()
        each = tuple(compiler.query(way) for rule in rules for way in rule.ways)
        distinct: dict[object, tuple[int, Query]] = {}
        places = tuple([distinct.setdefault(query.sought, (len(distinct), query))[0] for query in each])
        looked_for = tuple(query for _, query in distinct.values())
        if len(_compiled) >= MOST_SETS:
            _compiled.clear()
        _compiled[key] = found = tuple(rules), Queries(each, looked_for, places, compiler.attrs, compiler.numbers)
    return found[1]


class Compiler:
    """Compiles left sides against interned attributes and numbers: those that a store begins with."""

    def __init__(self) -> None:
        self.attrs, self.numbers = Interner(), Interner()

    def query(self, way: Way) -> Query:
        self._query = Query()
        self._late: list[str] = []
        self._classes: dict[str, str] = {}
        for number, left in enumerate(way.left):
            name = "root" if number == 0 else f"root{number}"
            among = len(way.left) == 1 and not getattr(left, "whole", False)
            variable = self._visit(left, top=among)
            self._column("tensor", name, variable)
        for name, variable in self._classes.items():
            self._column("tensor", name, variable)
        self._query.cells = {variable: at for at, variable in enumerate(self._query.variables)}
        self._query.tensors = tuple(at for at, (kind, _) in enumerate(self._query.columns) if kind == "tensor")
        self._query.classes = tuple((self._query.columns[at][1], at) for at in self._query.tensors)
        self._query.others = tuple(
            (kind, name, at) for at, (kind, name) in enumerate(self._query.columns) if kind not in ("tensor", "place")
        )
        cells = self._query.cells
        self._query.cells_of_terms = tuple(
            (op, int(a) if a.isdecimal() else None, cells.get(a, -1), tuple([cells[c] for c in children]), cells[of])
            for op, a, children, of in self._query.terms
        )
        self._query.facts = list(dict.fromkeys([*self._query.facts, *self._late]))
        if self._query.among is not None:
            columns, name = self._query.columns, self._query.among.name
            places = [columns.index(("place", f"{name}.{place}")) for place in range(len(self._query.among.terms))]
            self._query.among_at = columns.index(("sum", name)), tuple(places)
        return self._query

    def _column(self, kind: Kind, name: str, variable: str) -> None:
        if (kind, name) not in self._query.columns:
            self._query.columns.append((kind, name))
            self._query.variables.append(variable)

    def _class(self, name: str) -> str:
        return self._classes.setdefault(name, f"c{len(self._classes)}")

    def _visit(self, pattern: Pattern, *, top: bool = False) -> str:
        if isinstance(pattern, Var):
            return self._class(pattern.name)
        if isinstance(pattern, NumberVar):
            variable = self._class(pattern.name)
            self._late.append(f"(= v{variable} (value {variable}))")
            return variable
        if isinstance(pattern, Literal):
            return self._literal(pattern)
        if isinstance(pattern, Apply):
            return self._apply(pattern)
        if isinstance(pattern, Sum):
            return self._sum(pattern, top)
        if isinstance(pattern, Terms):
            variable = self._class(f"_class_{pattern.name}")
            self._query.needs.add(("add_n", 0))
            self._query.facts.append(f"(add_n_0 {variable} n{variable} k{variable})")
            self._query.wholes.append((variable, f"n{variable}"))
            self._column("sum", pattern.name, f"n{variable}")
            return variable
        if isinstance(pattern, Parts):
            variable = self._class(f"_class_{pattern.name}")
            self._query.needs.add(("concat", 0))
            self._query.facts.append(f"(concat_0 {variable} n{variable} a{variable})")
            self._query.wholes.append((variable, f"n{variable}"))
            self._column("parts", pattern.name, f"n{variable}")
            self._column("attrs", f"{pattern.name}_axis", f"a{variable}")
            return variable
        if isinstance(pattern, Expanded):
            return self._expanded(pattern)
        if isinstance(pattern, Swapped):
            return self._swapped(pattern)
        if isinstance(pattern, Joined):
            return self._joined(pattern)
        assert isinstance(pattern, Mean)
        return self._mean(pattern)

    def _literal(self, pattern: Literal) -> str:
        name = f"_number{len(self._classes)}"
        variable = self._class(name)
        value = float(pattern.value)
        if not math.isfinite(value) or float(np.float32(value)) == value:
            self._late.append(f"(= (value {variable}) {self.numbers(number_key(pattern.value))})")
            return variable
        self._late.append(f"(= v{variable} (value {variable}))")

        def close(names: Names, store: Store) -> bool:
            node = names[name]
            assert isinstance(node, Node)
            found = store.value(node)
            if found is None or not node.dtype.is_float:
                return False
            # A number written out by hand is as close as its element type can tell.
            return abs(found - value) <= 4 * float(finfo(node.dtype).eps) * abs(value)

        self._query.checks.append(close)
        return variable

    def _stretch_nothing(self, whole: str, parts: Sequence[Pattern]) -> None:
        """Check that numbers among the operands widen no result: in a right side they are of no shape."""
        others = tuple([_name(part) for part in parts if not isinstance(part, Literal)])
        if not 0 < len(others) < len(parts):
            return

        def fits(names: Names, store: Store) -> bool:
            result, *operands = [names[name].shape for name in (whole, *others)]  # type: ignore[attr-defined]
            return result in operands or result == np.broadcast_shapes(*operands)

        self._query.checks.append(fits)

    def _apply(self, pattern: Apply) -> str:
        variable = self._class(pattern.name)
        at = len(self._query.facts)
        children = [self._visit(a) for a in pattern.args]
        op, attrs = pattern.op, pattern.attrs
        if op in OPS and OPS[op].kind == "map":
            self._stretch_nothing(pattern.name, pattern.args)
        if op == "matmul":
            op, attrs = "contract", Attribute(f"{pattern.name}_spec")
            self._query.checks.append(_matmul_check(pattern, attrs.name))
        if isinstance(attrs, tuple) and any(isinstance(a, int) and a < 0 for a in attrs):
            axes, attrs = attrs, Attribute(f"{pattern.name}_axes")
            self._query.checks.append(_axes_check(pattern.args[0], attrs.name, axes))
        if isinstance(attrs, Attribute):
            text = f"a_{attrs.name}"
            self._column("attrs", attrs.name, text)
        else:
            text = str(self.attrs(attrs))
        self._query.needs.add((op, len(children)))
        # Outermost first: egglog's plans follow the order of facts, and a pattern's root is its rarest part.
        self._query.facts.insert(at, f"(= {variable} ({op}_{len(children)} {text} {' '.join(children)}))")
        self._query.terms.append((op, text, tuple(children), variable))
        return variable

    def _sum(self, pattern: Sum, top: bool) -> str:
        variable = self._class(pattern.name)
        count = len(pattern.terms)
        self._query.needs.add(("add_n", 0))
        size = f"k{variable}" if top else str(count)
        facts = [f"(add_n_0 {variable} n{variable} {size})"]
        self._column("sum", pattern.name, f"n{variable}")
        self._query.facts += facts
        self._query.wholes.append((variable, f"n{variable}"))
        if not top:  # of a longer one the other terms may be as wide
            self._stretch_nothing(pattern.name, [term for _, term in pattern.terms])
        for place, (_, term) in enumerate(pattern.terms):
            at = len(self._query.facts)
            child = self._visit(term)
            member = f"(add_n_1 n{variable} {variable}p{place} {variable}s{place} {child})"
            self._query.facts.insert(at, member)
            self._query.members.append((f"n{variable}", f"{variable}p{place}", f"{variable}s{place}", child))
            self._column("place", f"{pattern.name}.{place}", f"{variable}p{place}")
            self._column("sign", f"{pattern.name}.{place}", f"{variable}s{place}")
        apart = [f"(!= {variable}p{i} {variable}p{j})" for j in range(count) for i in range(j)]
        self._late += apart
        if top:
            self._query.among = pattern
        signs = [sign for sign, _ in pattern.terms]

        def fits(names: Names, store: Store) -> bool:
            found = [names[f"{pattern.name}.{place}"] for place in range(count)]
            flip = {s * f for s, f in zip(signs, found, strict=True) if s != ANY_SIGN and isinstance(f, int)}
            return not flip or flip == {1} or (top and flip == {-1})

        self._query.checks.append(fits)
        return variable

    def _expanded(self, pattern: Expanded) -> str:
        variable = self._class(pattern.name)
        at = len(self._query.facts)
        inner = self._visit(pattern.reduced)
        kept = f"{pattern.name}_view"
        self._column("attrs", kept, f"a_{kept}")
        self._query.needs.add(("view", 1))
        self._query.facts.insert(at, f"(= {variable} (view_1 a_{kept} {inner}))")
        self._query.terms.append(("view", f"a_{kept}", (inner,), variable))
        axes = pattern.reduced.attrs
        name = axes.name if isinstance(axes, Attribute) else f"{pattern.reduced.name}_axes"

        def keeps(names: Names, store: Store) -> bool:
            given = names.get(name, axes)
            reduced, whole = names[pattern.reduced.name], names[pattern.name]
            assert isinstance(given, tuple) and isinstance(reduced, Node) and isinstance(whole, Node)
            expanded = build.expand_dims(reduced, given)
            return expanded.shape == whole.shape and expanded.attrs == names[kept]

        self._query.checks.append(keeps)
        return variable

    def _swapped(self, pattern: Swapped) -> str:
        """A view by which operator it is by its index map, which is known with the operand's shape."""
        kept = f"{pattern.name}_view"
        variable = self._visit(Apply("view", (pattern.x,), Attribute(kept), pattern.name))

        def swaps(names: Names, store: Store) -> bool:
            x = names[_name(pattern.x)]
            assert isinstance(x, Node)
            return x.type.ndim > 1 and swapped(x).attrs == names[kept]

        self._query.checks.append(swaps)
        return variable

    def _joined(self, pattern: Joined) -> str:
        variable, number = self._class(pattern.name), f"n{pattern.name}"
        self._query.needs |= {("concat", 0), ("concat", 1)}
        self._query.facts.append(f"(concat_0 {variable} {number} a{number})")
        self._query.wholes.append((variable, number))
        whole, along = f"{pattern.name}_parts", f"{pattern.name}_axis"
        self._column("parts", whole, number)
        given = pattern.axis
        self._column("attrs", given.name if isinstance(given, Attribute) else along, f"a{number}")
        for place, part in enumerate(pattern.parts):
            at = len(self._query.facts)
            self._query.facts.insert(at, f"(concat_1 {number} {place} {self._visit(part)})")

        def fits(names: Names, store: Store) -> bool:
            parts = names[whole]
            assert isinstance(parts, tuple)
            if [*parts] != [names[_name(part)] for part in pattern.parts]:
                return False
            if isinstance(given, Attribute):
                return True
            assert isinstance(given, int)
            return names[along] == (given if given >= 0 else given + parts[0].type.ndim)

        self._query.checks.append(fits)
        return variable

    def _mean(self, pattern: Mean) -> str:
        reduced = Apply("reduce_sum", (pattern.x,), pattern.axes)
        count = NumberVar(f"{pattern.name}_count")
        total: Pattern = Expanded(reduced) if pattern.keepdims else reduced
        variable = self._visit(Apply("div", (total, count), None, pattern.name))

        def counts(names: Names, store: Store) -> bool:
            whole, number = names[reduced.name], names[count.name]
            axes = names.get(pattern.axes.name) if isinstance(pattern.axes, Attribute) else None
            x = names[_name(pattern.x)]
            assert isinstance(whole, Node) and isinstance(number, Node) and isinstance(x, Node)
            found = axes if isinstance(axes, tuple) else names.get(f"{reduced.name}_axes", pattern.axes)
            assert isinstance(found, tuple)
            return store.value(number) == math.prod(x.shape[a] for a in found)

        self._query.checks.append(counts)
        return variable


def _name(pattern: Pattern) -> str:
    """What names a pattern's tensor in a match."""
    name = getattr(pattern, "name", None)
    assert isinstance(name, str), "the operand is a variable or an operator"
    return f"_class_{name}" if isinstance(pattern, (Terms, Parts)) else name


def _matmul_check(pattern: Apply, spec: str) -> Check:
    def check(names: Names, store: Store) -> bool:
        a, b = names[_name(pattern.args[0])], names[_name(pattern.args[1])]
        assert isinstance(a, Node) and isinstance(b, Node)
        try:
            product = build.matmul(a, b)
        except ValueError:
            return False
        return product.attrs == names[spec] and product.inputs == (a, b)

    return check


def _axes_check(operand: Pattern, name: str, axes: tuple[int, ...]) -> Check:
    def check(names: Names, store: Store) -> bool:
        x = names[_name(operand)]
        assert isinstance(x, Node)
        rank = x.type.ndim
        return min(axes) >= -rank and names[name] == tuple(sorted(a % rank for a in axes))

    return check


def holds(query: Query, row: Sequence[int], store: Store) -> bool:
    """Whether the store has the terms that a row claims.

    egglog 13.2 joins rows that do not belong together in some queries with cycles (docs/egglog-matches.md): its rows
    are candidates, and a match is what the term store confirms.
    """
    for op, attribute, at, children, of in query.cells_of_terms:
        found = store.lookup(op, row[at] if attribute is None else attribute, tuple([row[c] for c in children]))
        if found is None or found != store.find(row[of]):
            return False
    cells = query.cells
    for variable, number in query.wholes:
        if store.find(store.terms[row[cells[number]]].handle) != store.find(row[cells[variable]]):
            return False
    for number, place, sign, child in query.members:
        terms = store.signed_terms(row[cells[number]])
        at = row[cells[place]]
        if at >= len(terms) or terms[at] != (row[cells[sign]], store.find(row[cells[child]])):
            return False
    return True


def decode(query: Query, row: Sequence[int], store: Store) -> Names | None:
    """The names a row binds; None if a check on its types or numbers fails."""
    names: Names = {}
    leaf = store.leaf
    for kind, name, at in query.others:
        cell = row[at]
        if kind == "attrs":
            names[name] = store.attrs.values[cell]
        elif kind == "sum":
            names[name] = tuple([(s, leaf(h)) for s, h in store.signed_terms(cell)])
        elif kind == "parts":
            names[name] = tuple([leaf(h) for h in store.terms[cell].children])
        else:
            names[name] = cell
    for name, at in query.classes:  # last: of a sum that is an operand the name is the tensor's
        names[name] = leaf(row[at])
    for check in query.checks:
        if not check(names, store):
            return None
    if query.among is not None:
        _among(query, query.among, row, names, store)
    return names


def _among(query: Query, pattern: Sum, row: Sequence[int], names: Names, store: Store) -> None:
    """Bind ``signs`` of the matched terms, ``flip`` (their common sign) and ``rest`` (the terms beside them)."""
    number, places = query.among_at
    taken = {row[at] for at in places}
    signs = [names[f"{pattern.name}.{place}"] for place in range(len(pattern.terms))]
    names["signs"] = tuple(signs)
    fixed = [s * f for (s, _), f in zip(pattern.terms, signs, strict=True) if s != ANY_SIGN and isinstance(f, int)]
    names["flip"] = fixed[0] if fixed else 1
    terms = store.signed_terms(row[number])
    names["rest"] = tuple([(s, store.leaf(h)) for place, (s, h) in enumerate(terms) if place not in taken])

"""Joins by nested loops over indexes: what a matcher should find, for queries in egglog's syntax."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from eqsat.egraph.encode import Terms
from eqsat.egraph.interning import number_key
from eqsat.egraph.match import Query
from eqsat.ir.table import OPS

Row = tuple[int, ...]
Atom = tuple[str, tuple[str, ...]]
Tables = Mapping[str, Iterable[Row]]


def parsed(fact: str) -> Atom:
    """A fact's relation, or function, and its arguments, the function's value last."""
    relation = re.fullmatch(r"\((\S+) ([^()]*)\)", fact)
    if relation:
        return relation[1], tuple(relation[2].split())
    function = re.fullmatch(r"\(= (\S+) \((\S+) ([^()]*)\)\)", fact)
    if function:
        return function[2], (*function[3].split(), function[1])
    valued = re.fullmatch(r"\(= \((\S+) ([^()]*)\) (\S+)\)", fact)
    assert valued, fact
    return valued[1], (*valued[2].split(), valued[3])


class Join:
    """Rows of tables that agree on variables; integers stand for themselves, and ``!=`` for what must differ."""

    def __init__(self, tables: Tables) -> None:
        self.tables = {name: sorted(set(rows)) for name, rows in tables.items()}
        self.indexes: dict[tuple[str, tuple[int, ...]], dict[Row, list[Row]]] = {}

    def _rows(self, name: str, known: tuple[int, ...], values: Row) -> Sequence[Row]:
        index = self.indexes.get((name, known))
        if index is None:
            index = self.indexes[name, known] = {}
            for row in self.tables.get(name, ()):
                index.setdefault(tuple(row[at] for at in known), []).append(row)
        return index.get(values, ())

    def matches(self, atoms: Sequence[Atom]) -> Iterator[dict[str, int]]:
        apart = [args for name, args in atoms if name == "!="]
        yield from self._extend([a for a in atoms if a[0] != "!="], apart, {})

    def _extend(
        self, atoms: list[Atom], apart: list[tuple[str, ...]], bound: dict[str, int]
    ) -> Iterator[dict[str, int]]:
        if any(a in bound and b in bound and bound[a] == bound[b] for a, b in apart):
            return
        if not atoms:
            yield bound
            return
        tried: list[tuple[int, int]] = []
        candidates: list[Sequence[Row]] = []
        for at, (name, args) in enumerate(atoms):
            known = tuple(n for n, a in enumerate(args) if a in bound or a.lstrip("-").isdecimal())
            values = tuple(bound[args[n]] if args[n] in bound else int(args[n]) for n in known)
            candidates.append(self._rows(name, known, values))
            tried.append((len(candidates[at]), at))
            if not candidates[at]:
                return
        _, at = min(tried)
        rest = atoms[:at] + atoms[at + 1 :]
        for row in candidates[at]:
            more = dict(bound)
            if all(
                a.lstrip("-").isdecimal() or more.setdefault(a, cell) == cell
                for a, cell in zip(atoms[at][1], row, strict=True)
            ):
                yield from self._extend(rest, apart, more)


def tables_of(store: Terms) -> dict[str, set[Row]]:
    """What a term store means in egglog's tables, by the classes' names of now."""
    tables: dict[str, set[Row]] = {}
    find = store.find
    for number, term in enumerate(store.terms):
        root, children = find(term.handle), tuple(map(find, term.children))
        if term.op == "add_n":
            tables.setdefault("add_n_0", set()).add((root, number, len(children)))
            for place, (sign, child) in enumerate(store.signed_terms(number)):
                tables.setdefault("add_n_1", set()).add((number, place, sign, child))
            continue
        if term.op == "concat":
            tables.setdefault("concat_0", set()).add((root, number, term.attrs))
            for place, child in enumerate(children):
                tables.setdefault("concat_1", set()).add((number, place, child))
            continue
        rows = tables.setdefault(f"{term.op}_{len(children)}", set())
        rows.add((term.attrs, *children, root))
        if len(children) == 2 and OPS[term.op].commutes:
            rows.add((term.attrs, *children[::-1], root))
        elif term.op == "contract":
            rows.add((store._forms.swapped(term.attrs), *children[::-1], root))
    classes = {find(term.handle) for term in store.terms}
    tables["handle"] = {(c, c) for c in classes}
    values = {c: value for c in classes if (value := store.value_of(c)) is not None}
    tables["value"] = {(c, store.numbers(number_key(value))) for c, value in values.items()}
    return tables


def rows_of(query: Query, join: Join) -> set[Row]:
    """The rows that a query should yield."""
    atoms = [parsed(fact) for fact in query.facts]
    return {tuple(found[name] for name in query.variables) for found in join.matches(atoms)}

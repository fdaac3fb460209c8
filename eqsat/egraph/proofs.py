"""Why terms are equal, step by step: each merge with the match that it came from, or the operands by whose equality it
follows, after Nieuwenhuis and Oliveras, "Proof-producing congruence closure" (2005).

Terms are taken as they were made. The forest of merges has one way between two of a class; an edge of it that a rule
made leads to the term that matched, to what the rule built, and on; one by congruence leads to each operand in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eqsat.egraph.canonical import SUMS, signed_operands
from eqsat.egraph.encode import Terms
from eqsat.egraph.match import Query
from eqsat.ir.node import Node, topological
from eqsat.ir.table import OPS, make

CANONICAL = "canonical form"
"""Names a step that rewrites a term as the e-graph holds it: sums flat, operands of what commutes in one order."""
DEFINITION = "definition"
"""Names a step from an operator to its meaning, or back."""
BUILT_IN = ("fold.constants", "product.reorder")
"""Rules whose steps have no match: what the term store does by itself, and how products are compared."""
LONGEST = 4000
"""Steps of a proof. Congruence multiplies them with each level of operands that are shared."""


@dataclass(frozen=True)
class Step:
    """``before`` becomes ``after`` at ``path``, the places of operands from the root of a term; ``back``: the rule
    leads from ``after`` to ``before``."""

    path: tuple[int, ...]
    before: Node
    after: Node
    name: str
    back: bool = False

    def reversed(self) -> Step:
        return replace(self, before=self.after, after=self.before, back=not self.back)

    def at(self, *path: int) -> Step:
        return replace(self, path=(*path, *self.path))


class TooLong(Exception):
    """A proof has more steps than are told."""


class Recorded(Terms):
    """A term store that remembers matches. A handle is the number of its term."""

    def __init__(self, constants: frozenset[Node], **options: Any) -> None:
        super().__init__(constants, **options)
        self.found: dict[Node, int] = {}
        self.because: dict[tuple[int, int], tuple[str, Node, Node] | None] = {}

    def justify(self, one: int, other: int, rule: str, left: Node, right: Node) -> None:
        if self.find(one) != self.find(other):
            self.because.setdefault((one, other), (rule, left, right))

    def left_side(self, query: Query, row: Sequence[int], name: str) -> Node:
        """The terms that a row matched, over the classes of its variables."""
        cells, wholes = query.cells, dict(query.wholes)
        terms: dict[str, tuple[str, int, tuple[str, ...]]] = {}
        for op, attrs, children, variable in query.terms:
            terms.setdefault(variable, (op, int(attrs) if attrs.isdecimal() else row[cells[attrs]], children))
        places = {(number, row[cells[place]]): child for number, place, _, child in query.members}

        def build(variable: str) -> Node:
            if variable in terms:
                op, attrs, children = terms[variable]
                inputs = [build(child) for child in children]
                number = self._table[self._canonical(op, attrs, tuple(row[cells[c]] for c in children))]
                node = make(op, inputs, self.attrs.values[attrs])
            elif variable in wholes:
                number = row[cells[wholes[variable]]]
                term = self.terms[number]
                parts = [places.get((wholes[variable], place)) for place in range(len(term.children))]
                inputs = [self.leaf(c) if v is None else build(v) for c, v in zip(term.children, parts, strict=True)]
                node = make(term.op, inputs, self.attrs.values[term.attrs])
            else:
                return self.leaf(row[cells[variable]])
            self.found.setdefault(node, number)
            return node

        return build(query.variables[query.columns.index(("tensor", name))])

    def insert(self, node: Node, rule: str | None) -> int:
        made = super().insert(node, rule)
        for each in topological([node]):
            if each not in self.found and self.has(each):
                signed = signed_operands(each, self._flatten) if each.op in SUMS else []
                children = tuple(self.handle(n) for _, n in signed) or tuple(map(self.handle, each.inputs))
                attrs = tuple(s for s, _ in signed) if signed else each.attrs
                key = self._canonical("add_n" if signed else each.op, self.attrs(attrs), children)
                if key in self._table:
                    self.found[each] = self._table[key]
        return made

    def _rekey(self, number: int, rule: str | None) -> None:
        waiting = len(self._equal)
        super()._rekey(number, rule)
        if len(self._equal) > waiting:
            one, other, _ = self._equal[-1]
            self.because.setdefault((one, other), None)


@dataclass
class Proofs:
    """Steps between the terms of a store."""

    store: Recorded
    _ground: dict[int, Node] = field(default_factory=dict)
    _proved: dict[tuple[int, int], list[Step]] = field(default_factory=dict)

    def ground(self, handle: int) -> Node:
        """A term as it was made, over terms as they were made."""
        stack = [handle]
        while stack:
            term = self.store.terms[stack[-1]]
            missing = [c for c in term.children if c not in self._ground]
            if missing:
                stack += missing
                continue
            inputs = [self._ground[c] for c in term.children]
            self._ground[stack.pop()] = make(term.op, inputs, self.store.attrs.values[term.attrs])
        return self._ground[handle]

    def prove(self, one: int, other: int) -> list[Step]:
        """The steps from a term to another one of its class. ``TooLong`` where there are more than are told."""
        if one == other:
            return []
        found = self._proved.get((one, other))
        if found is None:
            found = []
            at = one
            for near, rule in self._way(one, other):
                found += self._edge(at, near, rule)
                at = near
                if len(found) > LONGEST:
                    raise TooLong
            found = self._proved[one, other] = without_detours(self.ground(one), found)
        return found

    def _way(self, one: int, other: int) -> list[tuple[int, str | None]]:
        came: dict[int, tuple[int, str | None]] = {one: (one, None)}
        stack = [one]
        while stack and other not in came:
            at = stack.pop()
            for near, rule in self.store.merges.get(at, ()):
                if near not in came:
                    came[near] = (at, rule)
                    stack.append(near)
        way = []
        while other != one:
            before, rule = came[other]
            way.append((other, rule))
            other = before
        return way[::-1]

    def _edge(self, one: int, other: int, rule: str | None) -> list[Step]:
        if (one, other) not in self.store.because and (other, one) in self.store.because:
            return [step.reversed() for step in reversed(self._edge(other, one, rule))]
        if (one, other) not in self.store.because:
            if rule is None or rule not in BUILT_IN:
                meant = any(OPS[self.store.terms[handle].op].expansion for handle in (one, other))
                rule = DEFINITION if meant else CANONICAL
            return [Step((), self.ground(one), self.ground(other), rule)]
        sides = self.store.because[one, other]
        if sides is None:
            term = self.store.terms[one]
            signs = self._signs(one)
            operands = [((n,), s, c) for n, (s, c) in enumerate(zip(signs, term.children, strict=True))]
            return self._joined(self.ground(one), operands, other)
        name, left, right = sides
        matched, before = self._expand(left)
        built, after = self._expand(right)
        return [
            *self.prove(one, matched),
            *(step.reversed() for step in reversed(before)),
            Step((), self._tree(left), self._tree(right), name),
            *after,
            *self.prove(built, other),
        ]

    def _signs(self, handle: int) -> Sequence[int]:
        term = self.store.terms[handle]
        signs = self.store.attrs.values[term.attrs] if term.op == "add_n" else None
        return signs if isinstance(signs, tuple) else [1] * len(term.children)

    def _joined(self, tree: Node, operands: Sequence[tuple[tuple[int, ...], int, int]], handle: int) -> list[Step]:
        """From a term with operands at places, each with its sign, to a term of equal ones, in whatever order."""
        find = self.store.find
        left = list(zip(self._signs(handle), self.store.terms[handle].children, strict=True))
        steps: list[Step] = []
        for path, sign, operand in operands:
            same = [n for n, (s, c) in enumerate(left) if s == sign and find(c) == find(operand)]
            if not same:
                raise TooLong
            steps += (step.at(*path) for step in self.prove(operand, left.pop(same[0])[1]))
        return [*steps, *self._settled(tree, steps, handle)]

    def _settled(self, tree: Node, steps: Sequence[Step], handle: int) -> Iterator[Step]:
        for step in steps:
            tree = replaced(tree, step.path, step.after)
        if tree is not self.ground(handle):
            yield Step((), tree, self.ground(handle), CANONICAL)

    def _expand(self, node: Node) -> tuple[int, list[Step]]:
        """A term that a node over classes was found as, and the steps from the node to that term."""
        if node.op == "eclass":
            assert isinstance(node.attrs, int)
            return node.attrs, []
        number = self.store.found.get(node)
        if number is None:
            raise TooLong
        steps: list[Step] = []
        operands = []
        for path, sign, operand in self._operands(node):
            handle, inner = self._expand(operand)
            steps += (step.at(*path) for step in inner)
            operands.append((path, sign, handle))
        tree = self._tree(node)
        for step in steps:
            tree = replaced(tree, step.path, step.after)
        return number, steps + self._joined(tree, operands, number)

    def _operands(self, node: Node) -> list[tuple[tuple[int, ...], int, Node]]:
        """The operands of the term that a node is in the e-graph, with their places in the node and signs."""
        if node.op not in SUMS:
            return [((n,), 1, operand) for n, operand in enumerate(node.inputs)]
        wanted = signed_operands(node, self.store._flatten)

        def opened(
            at: Node, sign: int, path: tuple[int, ...], flat: bool
        ) -> Iterator[tuple[tuple[int, ...], int, Node]]:
            while at.op == "neg":
                at, sign, path = at.inputs[0], -sign, (*path, 0)
            if at is not node and not (flat and at.op in SUMS and at.shape == node.shape):
                yield path, sign, at
                return
            signs = {"add": (1, 1), "sub": (1, -1)}.get(at.op, at.attrs)
            assert isinstance(signs, tuple)
            for n, (s, operand) in enumerate(zip(signs, at.inputs, strict=True)):
                yield from opened(operand, sign * s, (*path, n), flat)

        for flat in (True, False):
            found = list(opened(node, 1, (), flat))
            if [(s, n) for _, s, n in found] == wanted:
                return found
        raise TooLong

    def _tree(self, node: Node) -> Node:
        """A node over classes with the terms by which these are named in their places."""
        made: dict[Node, Node] = {}
        for each in topological([node]):
            if each.op == "eclass":
                assert isinstance(each.attrs, int)
                made[each] = self.ground(each.attrs)
            else:
                made[each] = make(each.op, [made[n] for n in each.inputs], each.attrs)
        return made[node]


def replaced(tree: Node, path: Sequence[int], by: Node) -> Node:
    """A term with another one at a place."""
    if not path:
        return by
    inputs = list(tree.inputs)
    inputs[path[0]] = replaced(inputs[path[0]], path[1:], by)
    return make(tree.op, inputs, tree.attrs)


def without_detours(tree: Node, steps: Sequence[Step]) -> list[Step]:
    """Steps without those that lead back to where the term was already."""
    kept: list[Step] = []
    states = [tree]
    place = {tree: 0}
    for step in steps:
        after = replaced(states[-1], step.path, step.after)
        if after in place:
            for gone in states[place[after] + 1 :]:
                del place[gone]
            del states[place[after] + 1 :], kept[place[after] :]
            continue
        place[after] = len(states)
        states.append(after)
        kept.append(step)
    return kept

"""egglog's matches against a naive matcher's, on random e-graphs that grow and merge: none is missed.

Rows that are no matches are refused, see ``tests/test_egraph.py``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from eqsat.egraph.encode import Terms
from eqsat.egraph.engine import Engine
from eqsat.egraph.match import holds
from eqsat.egraph.saturate import _Search
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.rules import op, rewrite
from eqsat.rules.examples import Maker
from eqsat.rules.pattern import Apply, Pattern, Var

UNARY = ("sin", "exp")
BINARY = ("div", "mul")
COMMUTES = ("mul",)
Found = set[tuple[int, ...]]
"""Matches: the root's class, then those of the variables in order of their names."""


def random_pattern(dice: random.Random, operators: int) -> Pattern:
    """A pattern of so many operators, in which variables may come again."""
    if not operators:
        return Var(dice.choice("abc"))
    if operators == 1 or dice.random() < 0.3:
        return op(dice.choice(UNARY), random_pattern(dice, operators - 1))
    left = dice.randint(0, operators - 1)
    return op(dice.choice(BINARY), random_pattern(dice, left), random_pattern(dice, operators - 1 - left))


def variables(pattern: Pattern) -> set[str]:
    if isinstance(pattern, Var):
        return {pattern.name}
    assert isinstance(pattern, Apply)
    return set().union(*map(variables, pattern.args))


class Naive:
    """Matches by walking over the terms of classes."""

    def __init__(self, store: Terms) -> None:
        self.members: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        for term in store.terms:
            children = tuple(map(store.find, term.children))
            orders = {children, children[::-1]} if term.op in COMMUTES else {children}
            for each in orders:
                entry = (term.op, each)
                among = self.members.setdefault(store.find(term.handle), [])
                if entry not in among:
                    among.append(entry)

    def matches(self, pattern: Pattern) -> Found:
        names = sorted(variables(pattern))
        return {
            (root, *(bound[name] for name in names)) for root in self.members for bound in self.bound(pattern, root, {})
        }

    def bound(self, pattern: Pattern, root: int, before: dict[str, int]) -> Iterator[dict[str, int]]:
        if isinstance(pattern, Var):
            if before.get(pattern.name, root) == root:
                yield {**before, pattern.name: root}
            return
        assert isinstance(pattern, Apply)
        for name, children in self.members[root]:
            if name == pattern.op:
                yield from self.all(list(zip(pattern.args, children, strict=True)), before)

    def all(self, parts: list[tuple[Pattern, int]], before: dict[str, int]) -> Iterator[dict[str, int]]:
        if not parts:
            yield before
            return
        (pattern, child), *rest = parts
        for bound in self.bound(pattern, child, before):
            yield from self.all(rest, bound)


def compare(seed: int, patterns: int, rounds: int, largest: int = 7) -> tuple[int, int, int]:
    """How many matches there are in a random e-graph, how many egglog did not find, and rows that were none."""
    dice = random.Random(seed)
    sides = [random_pattern(dice, dice.randint(1, largest)) for _ in range(patterns)]
    rules = [rewrite(side, lambda m: None, id=f"r{n}") for n, side in enumerate(sides)]
    search = _Search(rules, frozenset(), 10**6, math.inf, 60, None)
    store = search.store
    maker = Maker(0)
    nodes: list[Node] = [maker.tensor(3) for _ in range(3)]
    none = 0
    seen: list[set[tuple[int, ...]]] = [set() for _ in rules]
    engine = Engine(search.queries)
    try:
        for _ in range(rounds):
            for _ in range(dice.randint(3, 8)):
                name = dice.choice(UNARY + BINARY)
                nodes.append(call(name, *(dice.choice(nodes) for _ in range(2 if name in BINARY else 1))))
                store.insert(nodes[-1], None)
            for _ in range(dice.randint(0, 3)):  # what is equal is so by chance: these e-graphs have cycles
                a, b = (store.handle(dice.choice(nodes[3:])) for _ in range(2))
                store.merge(a, b, "random")
            rows, store.rows = store.rows, {}
            engine.load(rows)
            for number, row in engine.find():
                if holds(search.queries[number], row, store):
                    seen[number].add(row)
                else:
                    none += 1
    finally:
        engine.close()
    naive, there, missed = Naive(store), 0, 0
    for side, query, rows_of in zip(sides, search.queries, seen, strict=True):
        wanted = naive.matches(side)
        places = [[name for _, name in query.columns].index(name) for name in ("root", *sorted(variables(side)))]
        found = {tuple(store.find(row[place]) for place in places) for row in rows_of}
        there += len(wanted)
        missed += len(wanted - found)
        assert found <= wanted
    return there, missed, none


def test_no_match_is_missed() -> None:
    """Queries see what is new in steps, as in a search."""
    found = [compare(seed, patterns=15, rounds=5, largest=(5, 9, 14)[seed % 3]) for seed in range(60)]
    assert sum(missed for _, missed, _ in found) == 0
    assert sum(there for there, _, _ in found) > 500


@pytest.mark.slow
def test_no_match_is_missed_in_many() -> None:
    assert not any(compare(seed, patterns=20, rounds=6)[1] for seed in range(100, 400))


def test_the_naive_matcher_sees_what_is_missing() -> None:
    """The control."""
    maker = Maker(0)
    x = maker.tensor(3)
    rules = [rewrite(op("sin", op("exp", Var("a"))), lambda m: None, id="r")]
    search = _Search(rules, frozenset(), 100, math.inf, 60, None)
    search.store.insert(call("sin", call("exp", x)), None)
    assert len(Naive(search.store).matches(op("sin", op("exp", Var("a"))))) == 1
    assert not Naive(search.store).matches(op("exp", op("sin", Var("a"))))

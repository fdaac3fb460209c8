"""egglog's matches against a naive matcher's, on random e-graphs that grow and merge: none is missed.

Rows that are no matches are refused; why there are any is in docs/egglog-matches.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from eqsat import rules as library
from eqsat.egraph import saturate as saturation
from eqsat.egraph.encode import Terms
from eqsat.egraph.engine import Engine
from eqsat.egraph.match import holds, queries_of
from eqsat.egraph.saturate import ROOM, _Search
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.rules import op, rewrite
from eqsat.rules.examples import Maker
from eqsat.rules.pattern import Apply, Pattern, Var, concat
from eqsat.rules.rule import Match, Rule
from tests.naive import Join, rows_of, tables_of
from tests.test_egraph import random_program

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
    none, queries = 0, queries_of(rules)
    assert search.queries is queries.distinct
    seen: list[set[tuple[int, ...]]] = [set() for _ in queries.distinct]
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
    for side, query, place in zip(sides, queries.each, queries.places, strict=True):
        wanted, rows = naive.matches(side), seen[place]
        places = [[name for _, name in query.columns].index(name) for name in ("root", *sorted(variables(side)))]
        found = {tuple(store.find(row[place]) for place in places) for row in rows}
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


ALL = library.select()


def searched(seed: int, size: int, room: int = ROOM, rounds: int | None = None) -> tuple[_Search, str]:
    """A random program under all rules, and why the search stopped."""
    outputs, maker = random_program(seed, size)
    search = _Search(ALL, frozenset(maker.known_inputs), 1500, math.inf, 60, None, room)
    search.store.mark_original(outputs)
    return search, search.run(rounds)


def untried(search: _Search) -> tuple[list[str], int]:
    """Rules with matches that a search has not taken, and how many there are in all; none is taken that is no match."""
    join, without, count = Join(tables_of(search.store)), [], 0
    for active in search.active:
        rows = rows_of(active.query, join)
        taken = {search.canonical(active, row) for row in active.seen.difference(active.queue)}
        assert taken <= rows, active.rule.id
        count += len(rows)
        if rows - taken:
            without.append(active.rule.id)
    return without, count


def changing(search: _Search) -> list[str]:
    """Rules of which a match that is there still changes the e-graph: one that should have been tried again."""
    store, found = search.store, []
    for active in search.active:
        for row in sorted({search.canonical(active, row) for row in active.seen}):
            before = (store.live, store.classes, len(store.terms))
            search.apply(active, row)
            if before != (store.live, store.classes, len(store.terms)):
                found.append(active.rule.id)
    return found


@pytest.mark.parametrize(("cap", "room"), [(2000, ROOM), (1, ROOM), (3, 4)])
def test_no_match_of_a_search_is_missed_nor_left(cap: int, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all rules and their functions, however few matches a round takes of each, and whatever room there is."""
    monkeypatch.setattr(saturation, "RULE_CAP", cap)
    total = 0
    for seed in range(25):
        search, stop = searched(1000 * cap + seed, 3 + seed % 9, room)
        assert stop == "saturated"
        without, count = untried(search)
        assert not without
        assert not changing(search)
        total += count
    assert total > 250


def test_a_search_that_is_cut_short_lacks_matches() -> None:
    """The control."""
    assert any(untried(searched(seed, 8, rounds=1)[0])[0] for seed in range(5))


def test_a_row_that_is_no_match_may_become_one() -> None:
    """egglog finds it again, when its terms are there."""
    maker, fired = Maker(0), []
    x, y = maker.tensor(3), maker.tensor(3)

    def right(m: Match) -> None:
        fired.append(m.root.attrs)

    search = _Search([rewrite(op("exp", op("sin", Var("a"))), right, id="r")], frozenset(), 100, math.inf, 60, None)
    store = search.store
    whole, inner = call("exp", call("cos", y)), call("sin", x)
    store.mark_original([whole, inner])
    (active,) = search.active
    cells = {"root": store.handle(whole), "a": store.handle(x)}
    row = tuple(cells.get(name, store.handle(inner)) for _, name in active.query.columns)
    search.enqueue(active, row)
    search.apply(active, active.queue.pop())
    assert not fired
    store.merge(store.handle(whole.inputs[0]), store.handle(inner), "it happens")
    assert search.run(None) == "saturated"
    assert len(fired) == 1


def test_what_was_refused_for_want_of_room_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class that was full, and of an e-graph that was large, once terms prove to be copies of others."""
    maker, tried = Maker(0), []
    x = maker.tensor(3)
    others = [maker.tensor(3) for _ in range(5)]
    forms = [call("sin", each) for each in others]

    def right(m: Match) -> Node:
        tried.append("right")
        return call("neg", m.a)

    for cap, room in ((5, 1000), (48, 10)):
        monkeypatch.setattr(saturation, "CLASS_CAP", cap)
        rule = rewrite(op("exp", Var("a")), right, id="r", where=lambda m: m.small())
        search = _Search([rule], frozenset(), 1000, math.inf, 60, None, room)
        store = search.store
        root = call("exp", x)
        store.mark_original([root, *forms])
        for form in forms:
            store.merge(store.handle(root), store.handle(form), "it happens")
        tried.clear()
        assert search.run(None) == "saturated"
        assert not tried and not untried(search)[0]
        for each in others[1:]:
            store.merge(store.handle(others[0]), store.handle(each), "it happens")
        search.ask_again()
        assert search.run(None) == "saturated"
        assert tried == ["right"]


def test_what_several_rules_look_for_is_looked_for_once() -> None:
    """Whatever they call it; and each has the matches that its own guard lets through."""
    a, b, c = Var("a"), Var("b"), Var("c")
    rules = [
        rewrite(op("div", op("sin", a), b), lambda m: None, id="first"),
        rewrite(op("div", op("sin", c), a), lambda m: None, where=lambda m: m.c is not m.a, id="renamed"),
        rewrite(op("div", op("sin", a), a), lambda m: None, id="one variable"),
        rewrite(op("div", op("exp", a), b), lambda m: None, id="another operator"),
    ]
    queries = queries_of(rules)
    assert queries.places == (0, 0, 1, 2) and len(queries.distinct) == 3
    maker = Maker(0)
    x, y = maker.tensor(3), maker.tensor(3)
    program = [call("div", call("sin", x), x), call("div", call("sin", x), y)]
    found = saturation.saturate(program, rules=rules).report.rules
    counted = {id: (stats.matches, sum(stats.refused.values())) for id, stats in found.items()}
    assert counted == {"first": (2, 2), "renamed": (2, 2), "one variable": (1, 1), "another operator": (0, 0)}
    assert found["renamed"].refused == {found_guard(rules[1]): 1, "right side declines": 1}


def found_guard(rule: Rule) -> str:
    (guard,) = rule.where
    return guard.name


def test_a_variable_does_not_hide_what_a_match_can_be_asked() -> None:
    maker = Maker(0)
    x, y = maker.tensor(3), maker.tensor(3)
    match = Match({"value": x, "a": y}, Terms(frozenset(), flatten=False, fold=False))
    assert match.a is y and callable(match.value) and callable(match.known)
    with pytest.raises(AttributeError, match="no variable 'b'; it has a"):
        match.b  # noqa: B018
    with pytest.raises(AttributeError, match="only to be read"):
        match.a = x


def test_a_sum_may_be_an_operand() -> None:
    """Of whatever else; its name is then the tensor's, and not that of its terms."""
    a, b, c, parts = Var("a"), Var("b"), Var("c"), Var("d")
    total = a + b
    sides = [total @ c, total.mT, total.sum(axis=-1), total.mean(axis=1), concat([total, parts], axis=0)]
    maker = Maker(0)
    x, y, z = (maker.tensor(3, 3) for _ in range(3))
    whole = call("add", x, y)
    program = [
        build.matmul(whole, z),
        build.transpose(whole, (1, 0)),
        build.reduce("reduce_sum", whole, (1,)),
        call("div", build.reduce("reduce_sum", whole, (1,)), build.scalar(3.0, x.dtype)),
        build.concat([whole, z], 0),
    ]
    for side, root in zip(sides, program, strict=True):
        found = saturation.saturate([root], rules=[rewrite(side, lambda m: None, id="found")]).report.rules["found"]
        assert found.matches, side

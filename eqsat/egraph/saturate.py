"""Equality saturation within a budget."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from eqsat.egraph.asked import EVERYWHERE
from eqsat.egraph.culprits import bearable
from eqsat.egraph.encode import Terms
from eqsat.egraph.engine import Engine, engine_for, usable
from eqsat.egraph.match import Names, Query, decode, holds, queries_of
from eqsat.egraph.products import Products
from eqsat.egraph.proofs import Recorded
from eqsat.egraph.readout import read_out
from eqsat.egraph.rule_calls import named, run
from eqsat.egraph.saturated import FULL, RuleStats, SaturatedEGraph, SaturationReport
from eqsat.egraph.watchdog import Watchdog
from eqsat.errors import RuleError
from eqsat.ir.node import Node
from eqsat.rules.instantiate import fit, instantiate, signed_sum
from eqsat.rules.rule import Guard, Match, Rule, Way

log = logging.getLogger("eqsat")

A = TypeVar("A")
R = TypeVar("R")

CLASS_CAP = 48
"""Classes of this many terms get no more of them: nested patterns over a full class match its size to a power."""
RULE_CAP = 2000
"""Matches of one rule taken in one round; the rest wait, so that no rule starves the others."""
ROOM = 48
"""E-nodes up to which laws are tried that gain nothing by themselves: with 96, chains of convolutions take twice the
time to search (docs/decisions.md)."""
FOUND, REFUSED, ROUND = 0.1, 0.2, 50
"""Work of a match that the matcher finds, of one that is tried, but refused, and of a round of matching, where that of
one whose right side is built is 1 (MobileNetV2 on a Zen 4: 20 to 30 µs a refusal, 130 to 170 a right side)."""
TRIED = 8_000
"""Such work of a second, by which limits that users give in seconds become ones of work (35 operators with 2,000
e-nodes on a Xeon; small e-graphs take longer for each and settle soon)."""

FLATTEN, FOLD, REORDER = "sum.flatten", "fold.constants", "product.reorder"
"""Ids of the rules that the term store carries out when they are enabled."""


@dataclass
class _Active:
    """A direction of a rule in a search: what it looks for and what it has found.

    ``confirmed``: rows that are known to be matches, of all rules that look for the same.
    """

    rule: Rule
    way: Way
    query: Query
    stats: RuleStats
    order: int
    confirmed: set[tuple[int, ...]]
    seen: set[tuple[int, ...]] = field(default_factory=set)
    queue: list[tuple[int, ...]] = field(default_factory=list)
    groups: dict[tuple[object, ...], dict[int, Names]] = field(default_factory=dict)
    group_sizes: dict[tuple[object, ...], int] = field(default_factory=dict)
    regroup: bool = False


@dataclass(slots=True, eq=False)
class _Seekers:
    """The directions of rules that look for the same."""

    active: list[_Active] = field(default_factory=list)
    confirmed: set[tuple[int, ...]] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Refused:
    """A match to be tried again when what its guard asked has changed: a row, or the key of a group of matches."""

    active: _Active
    row: tuple[int, ...] | None
    group: tuple[object, ...]
    reason: str


class _Stop(Exception):
    """A budget is spent; the argument says which."""


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    return pages * os.sysconf("SC_PAGE_SIZE")


class _Search:
    def __init__(
        self,
        rules: Sequence[Rule],
        const: frozenset[Node],
        nodes: int,
        work: float,
        seconds: float,
        memory: int | None,
        room: int = ROOM,
        proofs: bool = False,
    ) -> None:
        ids = {rule.id for rule in rules}
        queries = queries_of(rules)
        attrs, numbers = queries.attrs.copy(), queries.numbers.copy()
        kind = Recorded if proofs else Terms
        self.store = kind(const, flatten=FLATTEN in ids, fold=FOLD in ids, room=room, attrs=attrs, numbers=numbers)
        self.recorded = self.store if isinstance(self.store, Recorded) else None
        self.lefts: dict[tuple[int, int], Node] = {}
        self.products = Products(self.store, REORDER) if REORDER in ids else None
        self.report = SaturationReport(rules={rule.id: RuleStats() for rule in rules})
        self.nodes = nodes
        self.work = work
        self.start = time.perf_counter()
        self.deadline = self.start + seconds
        self.memory = None if memory is None else memory + _resident_bytes()
        self.queries = queries.distinct
        ways = [(rule, way) for rule in rules for way in rule.ways]
        self.seekers = [_Seekers() for _ in queries.distinct]
        self.active: list[_Active] = []
        for (rule, way), query, place in zip(ways, queries.each, queries.places, strict=True):
            seekers = self.seekers[place]
            active = _Active(rule, way, query, self.report.rules[rule.id], len(self.active), seekers.confirmed)
            self.active.append(active)
            seekers.active.append(active)
        self.full: set[int] = set()
        self.guard: Guard | None = None
        """The guard that is asked, None in a right side."""
        self.watchdog = Watchdog(min(self.deadline, self.start + work / TRIED))

    def check_budget(self) -> None:
        if self.store.live >= self.nodes:
            raise _Stop("nodes")
        if self.report.work >= self.work:
            raise _Stop("work")
        if time.perf_counter() >= self.deadline:
            raise _Stop("seconds")

    def run(self, iterations: int | None) -> str:
        if not self.active and self.products is None:
            return "saturated"
        if not usable():
            return "fork"
        with engine_for(self.queries) as engine:
            try:
                while iterations is None or self.report.iterations < iterations:
                    if not self.round(engine):
                        return "saturated"
                return "iterations"
            except _Stop as stop:
                return str(stop)
            finally:
                self.watchdog.close()

    def run_rule(self, rule: Rule, function: Callable[[A], R], argument: A) -> R:
        """What a rule's functions make of an argument; ``guard`` says which of them is called.

        ``RuleError`` where one raises or does not return.
        """
        self.guard = None
        return run(self.watchdog, rule, lambda: _what(self.guard), function, argument)

    def round(self, engine: Engine) -> bool:
        """Load what is new, match, apply. False when there is nothing left to do."""
        rows, self.store.rows = self.store.rows, {}
        engine.load(rows)
        if self.memory is not None and _resident_bytes() >= self.memory:
            raise _Stop("memory")
        self.check_budget()
        self.report.iterations += 1
        found = engine.find()
        self.report.work += ROUND
        for number, row in found:
            seekers = self.seekers[number].active
            self.report.work += FOUND * len(seekers)
            row = self.canonical(seekers[0], row)
            for active in seekers:
                self.enqueue(active, row)
        # Cheapest first: rules with few matches are applied before the budget is spent on the others.
        waiting = sorted((a for a in self.active if a.queue or a.regroup), key=lambda a: (len(a.queue), a.order))
        for active in waiting:
            taken, active.queue = active.queue[:RULE_CAP], active.queue[RULE_CAP:]
            for at, row in enumerate(taken):
                try:
                    self.check_budget()
                except _Stop:
                    active.queue = taken[at:] + active.queue
                    raise
                self.apply(active, row)
            if active.rule.together is not None:
                self.apply_groups(active)
        if self.products is not None:
            self.products.merge()
        self.ask_again()
        return bool(self.store.rows) or any(a.queue or a.regroup for a in self.active)

    def enqueue(self, active: _Active, row: tuple[int, ...]) -> None:
        """Queue a row over the names of classes."""
        if row not in active.seen:
            active.seen.add(row)
            active.queue.append(row)

    def canonical(self, active: _Active, row: tuple[int, ...]) -> tuple[int, ...]:
        """The row over the names that its classes have by now."""
        find = self.store.find
        for at in active.query.tensors:
            handle = find(row[at])
            if handle != row[at]:
                row = (*row[:at], handle, *row[at + 1 :])
        return row

    def ask_again(self) -> None:
        """Queue the refused matches whose guards may decide otherwise by now."""
        for handle in sorted(self.full):  # copies of terms that congruence finds leave room
            if not self.store.has_terms(handle, CLASS_CAP):
                self.full.remove(handle)
                self.store.asked.tell(handle, "room")
        if self.store.live < self.store.room:
            self.store.asked.tell(EVERYWHERE, "small")
        for refused in self.store.asked.again():
            assert isinstance(refused, _Refused)
            active, row = refused.active, refused.row
            if row is None:
                active.group_sizes.pop(refused.group, None)
                active.regroup = True
                continue
            active.stats.matches -= 1  # it is counted when it is tried, with the reason given last
            active.stats.refused[refused.reason] -= 1
            if not active.stats.refused[refused.reason]:
                del active.stats.refused[refused.reason]
            now = self.canonical(active, row)
            if now == row:
                active.queue.append(row)
            else:
                self.enqueue(active, now)

    def apply(self, active: _Active, row: tuple[int, ...]) -> None:
        self.report.work += REFUSED
        if row not in active.confirmed:
            if not holds(active.query, row, self.store):
                log.debug("rule %s: the matcher offered a row that is no match", active.rule.id)
                active.seen.discard(row)  # it may become one
                return
            active.confirmed.add(row)  # for good: terms stay, and so does what equals them
        names = decode(active.query, row, self.store)
        if names is None:
            return
        active.stats.matches += 1
        root = names["root"]
        assert isinstance(root, Node) and isinstance(root.attrs, int)
        if self.store.empty and any(row[at] in self.store.empty for at in active.query.tensors):
            self.refuse(active, "a tensor without elements")  # no gain, and a sum over nothing is 0 whatever it scales
            return
        asked, self.store.outgrown = self.store.asked, False
        if self.store.has_terms(root.attrs, CLASS_CAP):
            self.full.add(root.attrs)
            asked.listen()
            asked.lacks(root.attrs, "room")
            self.refuse(active, FULL, row)
            return
        if self.store.value_of(root.attrs) is not None:
            self.refuse(active, "the tensor is a known number")  # nothing to gain, and endless ways to write it
            return
        held, built = self.run_rule(active.rule, self.tried, (active, names))
        if not held or (built is None and active.rule.together is None):
            self.refuse(active, "right side declines" if self.guard is None else self.guard.name, row)
            return
        asked.answered()
        if active.rule.together is not None:
            key = tuple(names[k] for k in active.rule.key)
            active.groups.setdefault(key, {}).setdefault(root.attrs, names)
            if self.recorded is not None:
                self.lefts[active.order, root.attrs] = self.recorded.left_side(active.query, row, "root")
            return
        assert built is not None
        roots = [names["root" if i == 0 else f"root{i}"] for i in range(len(active.way.left))]
        self.report.work += 1 - REFUSED
        lefts: list[Node | None] = [None] * len(roots)
        if self.recorded is not None:
            lefts = [self.recorded.left_side(active.query, row, f"root{i or ''}") for i in range(len(roots))]
        self.unite(active, roots, built, lefts)

    def tried(self, given: tuple[_Active, Names]) -> tuple[bool, list[Node] | None]:
        """Whether all guards hold (else ``guard`` is the one that does not), and the right sides, None if these decline
        or are of many matches together.

        What a refusal depends on is what its reason asked for, and nothing that was asked before.
        """
        active, names = given
        asked, match = self.store.asked, Match(names, self.store)
        for guard in active.rule.where:
            self.guard = guard
            asked.listen()
            if not guard.holds(match):
                return False, None
        self.guard = None
        if active.rule.together is not None:
            return True, None
        asked.listen()
        return True, self.build(active, match, names)

    def refuse(self, active: _Active, reason: str, row: tuple[int, ...] | None = None) -> None:
        """Count a refusal; of a ``row``, until what the rule's functions asked for is there."""
        active.stats.refused[reason] = active.stats.refused.get(reason, 0) + 1
        if row is not None:
            active.stats.held |= self.store.outgrown
            self.store.asked.wait(_Refused(active, row, (), reason))

    def build(self, active: _Active, match: Match, names: Names) -> list[Node] | None:
        right = active.way.right
        root = names["root"]
        assert isinstance(root, Node)
        if isinstance(right, tuple):
            built = [instantiate(r, names, root.dtype) for r in right]
        else:
            made = _nodes(right(match))
            if made is None:
                return None
            built = made
        if active.query.among is not None:
            rest, flip = names["rest"], names["flip"]
            assert isinstance(rest, tuple) and isinstance(flip, int)
            built = [signed_sum([*rest, (flip, built[0])])]
        if isinstance(right, tuple) or active.query.among is not None:
            for at in range(len(built)):
                whole = names["root" if at == 0 else f"root{at}"]
                assert isinstance(whole, Node)
                built[at] = fit(built[at], whole.shape)
        return built

    def unite(
        self, active: _Active, roots: Sequence[object], built: Sequence[Node], lefts: Sequence[Node | None]
    ) -> None:
        rule = active.rule
        if len(roots) != len(built):
            raise RuleError(f"{named(rule)} builds {len(built)} of {len(roots)} right sides")
        before = self.store.live
        fired = False
        for root, node, left in zip(roots, built, lefts, strict=True):
            assert isinstance(root, Node) and isinstance(root.attrs, int)
            if node.type != root.type:
                raise RuleError(
                    f"{named(rule)} turns a tensor of type {root.type} into one of type {node.type}: {node!r}"
                )
            try:
                made = self.store.insert(node, rule.id)
            except (IndexError, KeyError) as error:
                raise RuleError(f"{named(rule)} builds on tensors that are none of its match: {node!r}") from error
            if self.recorded is not None and left is not None:
                self.recorded.justify(root.attrs, made, rule.id, left, node)
            fired |= self.store.merge(root.attrs, made, rule.id)
        if fired or self.store.live != before:
            active.stats.fired += 1

    def apply_groups(self, active: _Active) -> None:
        """Hand every group that has grown to a gathering rule."""
        rule = active.rule
        together = rule.together
        assert together is not None
        active.regroup = False
        for key, members in active.groups.items():
            unique = {self.store.find(handle): names for handle, names in members.items()}
            first = {self.store.find(handle): handle for handle in members}
            size = len(unique)
            if size < 2 or active.group_sizes.get(key) == size:
                continue
            active.group_sizes[key] = size
            self.check_budget()
            self.report.work += 1
            matches = [Match(names, self.store) for _, names in sorted(unique.items())]
            self.store.asked.listen()
            built = self.run_rule(rule, lambda ms: _nodes(together(ms)), matches)
            if built is None:
                self.store.asked.wait(_Refused(active, None, key, ""))
                continue
            self.store.asked.answered()
            roots = [m.root for m in matches]
            self.unite(
                active, roots, built, [self.lefts.get((active.order, handle)) for _, handle in sorted(first.items())]
            )


def _what(guard: Guard | None) -> str:
    return "its right side" if guard is None else f"its guard {guard.name!r}"


def _nodes(made: Node | Iterable[Node] | None) -> list[Node] | None:
    """The nodes that a right side returned. ``TypeError`` for anything else."""
    if made is None:
        return None
    if not isinstance(made, Node) and not isinstance(made, Iterable):
        raise TypeError(f"it is no node but {made!r}")
    built = [made] if isinstance(made, Node) else list(made)
    if not all(isinstance(node, Node) for node in built):
        raise TypeError(f"it is no node but {made!r}")
    return built


def saturate(
    outputs: Sequence[Node],
    *,
    rules: Sequence[Rule],
    const: frozenset[Node] = frozenset(),
    nodes: int = 20_000,
    room: int = ROOM,
    work: float = 2 * TRIED,
    seconds: float = 30.0,
    memory: int | None = None,
    iterations: int | None = None,
    proofs: bool = False,
) -> SaturatedEGraph:
    """Every program equal to ``outputs`` that the rules reach within the budget.

    ``const``: the input nodes whose values are known when the program is compiled. ``nodes``: most e-nodes; ``room``:
    how many there may be for laws that gain nothing by themselves to be tried everywhere, not on the program alone;
    ``work``: about the matches tried (see ``TRIED``); ``seconds``: wall time; ``memory``: bytes the process may grow
    by; ``iterations``: most rounds of matching. All are checked between insertions, so they may be passed by what one
    match builds (and ``seconds`` by one round of matching). Running out gives the e-graph so far; its report names the
    limit. ``proofs``: keep what each merge follows from.

    The result is the same for equal arguments in every process, unless a wall-clock or memory limit is met.
    Raises ``RuleError`` naming the rule whose right side is ill-typed or of another type than its left side.
    """

    def started(rules: Sequence[Rule]) -> tuple[_Search, str]:
        search = _Search(rules, const, nodes, work, seconds, memory, room, proofs)
        search.store.mark_original(outputs)
        return search, search.run(iterations)

    search, stop = bearable(rules, started)
    report = search.report
    report.stop = stop
    report.seconds = time.perf_counter() - search.start
    report.rules.update((rule.id, RuleStats()) for rule in rules if rule.id not in report.rules)
    for active in search.active:
        active.stats.pending += len(active.queue)
    graph = read_out(search.store, outputs, report)
    log.debug("saturation: %d e-nodes, %d rounds, %.3f s, %s", report.enodes, report.iterations, report.seconds, stop)
    return graph

"""Legal loop nests at random: what tests hold code generators to, and the cost model is measured on."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from eqsat.cost.target import Target
from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.nests import ENode, NestGraph
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Loop, Nest, Pack, Seq, show
from eqsat.schedule.copies import with_copies
from eqsat.schedule.decode import decode
from eqsat.schedule.phases import in_phases
from eqsat.schedule.price import Pricer
from eqsat.schedule.runs import Runs
from eqsat.schedule.scheduler import phased, search_graph
from eqsat.schedule.search import WIDTH, Entry, Search
from eqsat.schedule.sweeps import drawn

TURNS = 0.2
"""How often threads take turns at steps that are alike, which takes as long, so that the search does not offer it."""


class _Sampling(Search):
    """A search that keeps entries of a class at random instead of the undominated ones."""

    def __init__(
        self, graph: NestGraph, pricer: Pricer, parallel: bool, deadline: Deadline, draws: random.Random
    ) -> None:
        self.random = draws
        super().__init__(graph, pricer, parallel, deadline)

    def _pareto(self, found: list[Entry]) -> tuple[Entry, ...]:
        return tuple(self.random.sample(found, min(WIDTH, len(found))))

    def _root(self, node: ENode) -> list[Entry]:
        entries = list(self._price(self.graph.root, node, False, self.parallel))
        return self.random.sample(entries, min(WIDTH, len(entries)))


def in_turns(nest: Nest) -> Nest:
    """The nest with the steps that threads share going to them in turns."""
    match nest:
        case Loop(parallel=parallel):
            return replace(nest, cyclic=parallel, body=in_turns(nest.body))
        case Pack():
            return replace(nest, body=in_turns(nest.body))
        case Seq(bodies):
            return Seq(tuple(map(in_turns, bodies)))
    return nest


def sample(
    group: KernelGroup,
    target: Target,
    count: int,
    *,
    seed: int = 0,
    disable: tuple[str, ...] = (),
    deadline: Deadline = NEVER,
) -> list[tuple[Nest, float]]:
    """Up to ``count`` different nests that the loop rules allow for ``group``, each with its predicted seconds.

    Drawn from the saturated e-graph, not the best ones; fewer where there are no more, or few draws in a row bring
    anything new. Sorted by their text. Raises what ``eqsat.schedule.scheduler.schedule`` does.
    """
    problem, graph = search_graph(group, target, disable, deadline)
    found: dict[Nest, float] = {}
    stale, draws = 0, random.Random(seed)
    while len(found) < count and stale < 20:
        deadline.check("drawing schedules")
        before = len(found)
        search = _Sampling(graph, Pricer(problem, target), target.threads > 1, deadline, draws)
        runs = Runs(search.pricer)
        for entry in search.roots(1 << 20):
            if len(found) < count:
                nest = with_copies(decode(entry, problem, target), problem, target, draws)
                nest = drawn(nest, problem, draws)
                if problem.columns is None and draws.random() < TURNS:
                    nest = in_turns(nest)
                found.setdefault(nest, search.seconds(entry) + target.step + (runs.of(nest) if problem.rows else 0.0))
        stale = stale + 1 if len(found) == before else 0
    parts = [sample(one, target, count, seed=seed, disable=disable) for one in phased(group, problem, target)]
    for phase in itertools.islice(zip(*parts, strict=False), count // 2):  # of the phases that it may run in, too
        nest = in_phases([own for own, _ in phase], group)
        found[nest] = sum(seconds for _, seconds in phase) + (len(phase) - 1) * target.barrier
        if len(found) > count:
            found.pop(next(iter(found)))
    return sorted(found.items(), key=lambda item: show(item[0]))

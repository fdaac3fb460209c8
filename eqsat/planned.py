"""The search as options want it: rules, target and threads chosen, and measured schedules where they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from eqsat.batches import by_parts
from eqsat.cost.machine import Machine
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.distribution import computed_ahead
from eqsat.forks import IMPORTING
from eqsat.ir.batched import batched
from eqsat.ir.jumps import fits, jumped, several
from eqsat.ir.loop import Loop
from eqsat.ir.node import Formed, Graph, Node
from eqsat.options import Options
from eqsat.plan.backend import backend
from eqsat.plan.plan import Plan
from eqsat.progress import Tell, tell
from eqsat.rereads import read_once

if TYPE_CHECKING:
    from eqsat.search import SearchOptions

JUMPS = (2, 4)
"""Trips of a loop that may be one, as many after the other as pay."""
JUMP_GAIN = 0.05
"""Part of a trip's time that has to be saved: prices are no more exact than that."""
JUMP_SHARE = 0.1
"""Part of the time that is left which the search for several trips in one may take; past it they stay single."""


def form(graph: Graph, const: frozenset[Node], options: Options, machine: Machine) -> Graph:
    """The form of a graph that is searched: what its loops only add up is a reduction, what they need not compute is
    before them, its batch may run part by part, a matrix is read once for two passes, and several trips may be one."""
    return _formed(graph, const, options, machine, _wanted(options, machine), tell, NEVER)[0]


def _wanted(options: Options, machine: Machine) -> SearchOptions:
    with IMPORTING:
        from eqsat.rules import select
        from eqsat.schedule import installed_loop_rules
        from eqsat.search import SearchOptions

    rules = select(options.numerics, options.disable)
    fuse = any(rule.id == "fuse.read_store" for rule in rules)
    loops = {rule.id for rule in installed_loop_rules()}
    no_loops = tuple(sorted(loops & set(options.disable)))
    threads = options.threads or machine.cores
    target = backend(options.backend).target(machine, threads)
    return SearchOptions(rules, target, options.search_seconds, fuse=fuse, threads=threads, no_loops=no_loops)


def _formed(
    graph: Graph,
    const: frozenset[Node],
    options: Options,
    machine: Machine,
    wanted: SearchOptions,
    progress: Tell,
    deadline: Deadline,
) -> tuple[Graph, Mapping[Node, Node]]:
    """The form that is searched, and what its nodes stand for in the graph."""
    target, origins = wanted.target, dict[Node, Node]()
    exact = options.numerics == "exact"
    forms: tuple[Callable[[Graph], Formed | None], ...] = (
        lambda graph: None if exact else batched(graph, rounding=True),
        lambda graph: computed_ahead(graph, target, exact=exact),
        lambda graph: by_parts(graph, const, target, wanted.threads),
        lambda graph: None if exact else read_once(graph, const, target),
        lambda graph: jumped(graph, lambda loop: _jump(loop, machine, wanted, progress, deadline)),
    )
    for made in forms:
        found = made(graph)
        if found is not None:
            graph = found.graph
            origins |= {new: origins.get(old, old) for new, old in found.origins.items()}
    return graph, origins


def _jump(loop: Loop, machine: Machine, wanted: SearchOptions, progress: Tell, deadline: Deadline) -> int:
    """How many trips of a loop are one: where no cache holds what it reads and writes, as many as are predicted to take
    less for it."""
    with IMPORTING:
        from eqsat.search import search

    carried = sum(node.type.nbytes for node in loop.body.inputs[: loop.carries])
    if 2 * carried < wanted.target.caches[-1].capacity or not wanted.fuse:
        return 1
    until = Deadline(JUMP_SHARE * deadline.left, deadline)

    def seconds(body: Graph) -> float:
        return search(body, frozenset(), machine, wanted, progress, until).report.predicted

    copies = 1
    with suppress(OutOfTime):
        least = seconds(loop.body)
        for more in (more for more in JUMPS if fits(loop, more)):
            found = seconds(several(loop, more, {}).body) / more
            if found > (1 - JUMP_GAIN) * least:
                break
            copies, least = more, found
    return copies


def planned(
    graph: Graph,
    const: frozenset[Node],
    options: Options,
    machine: Machine,
    progress: Tell = tell,
    deadline: Deadline = NEVER,
) -> Plan:
    """The plan of a graph, searched anew; ``const``: inputs whose values are known."""
    deadline.check("loading the rules")
    wanted = _wanted(options, machine)
    formed, origins = _formed(graph, const, options, machine, wanted, progress, deadline)
    with IMPORTING:
        from eqsat.search import search
        from eqsat.tune import tune
    plan = search(formed, const, machine, wanted, progress, deadline)
    if origins:
        own = {t: tuple(origins.get(n, n) for n in nodes) for t, nodes in plan.origins.items()}
        plan = replace(plan, origins=own)
    plan = replace(plan, fuses=options.numerics != "exact")
    return tune(plan, options, machine, wanted, progress, deadline)

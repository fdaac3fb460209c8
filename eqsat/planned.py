"""The search as options want it: rules, target and threads chosen, and measured schedules where they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from eqsat.batches import by_parts
from eqsat.cost.machine import Machine
from eqsat.cost.target import Target
from eqsat.deadline import NEVER, Deadline
from eqsat.distribution import computed_ahead
from eqsat.forks import IMPORTING
from eqsat.ir.node import Graph, Node
from eqsat.options import Options
from eqsat.plan.backend import backend
from eqsat.plan.plan import Plan
from eqsat.progress import Tell, tell


def form(graph: Graph, const: frozenset[Node], options: Options, machine: Machine) -> Graph:
    """The form of a graph that is searched: what its loops need not compute is before them, and its batch may run part
    by part."""
    threads = options.threads or machine.cores
    return _formed(graph, const, options, backend(options.backend).target(machine, threads), threads)[0]


def _formed(
    graph: Graph, const: frozenset[Node], options: Options, target: Target, threads: int
) -> tuple[Graph, Mapping[Node, Node]]:
    """The form that is searched, and what its nodes stand for in the graph."""
    origins: Mapping[Node, Node] = {}
    ahead = computed_ahead(graph, target, exact=options.numerics == "exact")
    if ahead is not None:
        graph, origins = ahead.graph, ahead.origins
    parted = by_parts(graph, const, target, threads)
    if parted is not None:
        graph = parted.graph
        origins = {**origins, **{new: origins.get(old, old) for new, old in parted.origins.items()}}
    return graph, origins


def planned(
    graph: Graph,
    const: frozenset[Node],
    options: Options,
    machine: Machine,
    progress: Tell = tell,
    deadline: Deadline = NEVER,
) -> Plan:
    """The plan of a graph, searched anew; ``const``: inputs whose values are known."""
    with IMPORTING:
        from eqsat.rules import select
        from eqsat.schedule import installed_loop_rules
        from eqsat.search import SearchOptions, search

    deadline.check("loading the rules")
    rules = select(options.numerics, options.disable)
    fuse = any(rule.id == "fuse.read_store" for rule in rules)
    loops = {rule.id for rule in installed_loop_rules()}
    no_loops = tuple(sorted(loops & set(options.disable)))
    threads = options.threads or machine.cores
    target = backend(options.backend).target(machine, threads)
    wanted = SearchOptions(rules, target, options.search_seconds, fuse=fuse, threads=threads, no_loops=no_loops)
    formed, origins = _formed(graph, const, options, target, threads)
    plan = search(formed, const, machine, wanted, progress, deadline)
    if origins:
        own = {t: tuple(origins.get(n, n) for n in nodes) for t, nodes in plan.origins.items()}
        plan = replace(plan, origins=own)
    plan = replace(plan, fuses=options.numerics != "exact")
    with IMPORTING:
        from eqsat.tune import tune
    return tune(plan, options, machine, wanted, progress, deadline)

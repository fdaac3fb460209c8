"""The search as options want it: rules, target and threads chosen, and measured schedules where they are asked for."""

from __future__ import annotations

from dataclasses import replace

from eqsat.batches import by_parts
from eqsat.cost.machine import Machine
from eqsat.deadline import NEVER, Deadline
from eqsat.forks import IMPORTING
from eqsat.ir.node import Graph, Node
from eqsat.options import Options
from eqsat.plan.backend import backend
from eqsat.plan.plan import Plan
from eqsat.progress import Tell, tell


def form(graph: Graph, const: frozenset[Node], options: Options, machine: Machine) -> Graph:
    """The form of a graph that is searched: its batch may run part by part."""
    threads = options.threads or machine.cores
    made = by_parts(graph, const, backend(options.backend).target(machine, threads), threads)
    return graph if made is None else made.graph


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
    parted = by_parts(graph, const, target, threads)
    plan = search(graph if parted is None else parted.graph, const, machine, wanted, progress, deadline)
    if parted is not None:
        own = {t: tuple(parted.origins.get(n, n) for n in nodes) for t, nodes in plan.origins.items()}
        plan = replace(plan, origins=own)
    plan = replace(plan, fuses=options.numerics != "exact")
    with IMPORTING:
        from eqsat.tune import tune
    return tune(plan, options, machine, wanted, progress, deadline)

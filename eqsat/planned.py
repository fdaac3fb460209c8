"""The search as options want it: rules, target and threads chosen, and measured schedules where they are asked for."""

from __future__ import annotations

from dataclasses import replace

from eqsat.cost.machine import Machine
from eqsat.deadline import NEVER, Deadline
from eqsat.forks import IMPORTING
from eqsat.ir.node import Graph, Node
from eqsat.options import Options
from eqsat.plan.backend import backend
from eqsat.plan.plan import Plan
from eqsat.progress import Tell, tell


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
    plan = replace(search(graph, const, machine, wanted, progress, deadline), fuses=options.numerics != "exact")
    with IMPORTING:
        from eqsat.tune import tune
    return tune(plan, options, machine, wanted, progress, deadline)

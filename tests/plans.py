"""Plans for tests: searched for a fixed machine, and interpreted point by point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eqsat.cost import machine
from eqsat.ir.node import Graph
from eqsat.plan.plan import Plan
from eqsat.progress import tell
from eqsat.rules import select
from eqsat.search import SearchOptions, search
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from eqsat_backends.reference import NumpyBackend


def plan_of(graph: Graph, seconds: float = 5.0) -> Plan:
    """The plan that the standard rules find."""
    options = SearchOptions(select(), cpu_target(machine.load()), seconds)
    return search(graph, frozenset(), machine.load(), options, tell)


def interpret(plan: Plan, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The plan's results by its kernels' index notation."""
    from eqsat.ir.evaluate import evaluate_nodes

    backend = NumpyBackend()
    constants = {n: evaluate_nodes([node], {})[0] for n, node in plan.constants.items()}
    return backend.load(backend.emit(plan, machine.load()), constants, 1)(arrays)

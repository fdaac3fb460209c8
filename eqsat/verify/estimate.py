"""How long evaluations by NumPy take, as estimated before any is made: what verification may spend rests on it."""

from __future__ import annotations

from eqsat.explain.work import node_flops
from eqsat.ir.loop import Loop, of_loop
from eqsat.ir.node import Graph, Node
from eqsat.ir.opaque import Result
from eqsat.ir.table import OPS

EVALUATED, CALLED = 2e-5, 2e-6
"""Seconds of an operator beside what it computes: where a graph is evaluated, and where NumPy is called."""


def reference_seconds(graph: Graph) -> float:
    """Estimated time of one evaluation by NumPy: calls, products by BLAS, and elements that anything else reads."""
    return _seconds(graph, EVALUATED, apart=True)


def plain_seconds(graph: Graph) -> float:
    """Estimated time of the function itself: as ``reference_seconds``, but of what it calls, and of a loop once."""
    return _seconds(graph, CALLED, apart=False)


def _seconds(graph: Graph, call: float, *, apart: bool) -> float:
    """``call``: of an operator beside what it computes; ``apart``: each result of a loop is evaluated by itself."""
    total = 0.0
    seen: set[tuple[Loop, tuple[Node, ...]]] = set()
    for node in graph.nodes():
        loop = of_loop(node)
        if loop is not None:
            if apart or (loop, node.inputs) not in seen:
                seen.add((loop, node.inputs))
                total += loop.runs * _seconds(loop.body, call, apart=apart)
        elif isinstance(node.attrs, Result):
            total += node.attrs.call.seconds / len(node.attrs.call.types)
        elif OPS[node.op].kind == "contract":
            total += node_flops(node) / 5e10
        elif OPS[node.op].kind == "composite":
            total += 1e-8 * node.type.size
        elif OPS[node.op].kind not in ("source", "view"):
            read = node.inputs[OPS[node.op].kind == "gather" :]  # of the table only what is taken
            total += 1e-9 * max(n.type.size for n in (node, *read))
        total += call
    return total

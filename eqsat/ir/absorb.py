"""Trips beside a loop: what a graph computes before a loop or after it as the loop's body does, is a trip of the loop.

The nodes are interned, so that the body on the loop's results is what follows it if that is the same node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eqsat.ir.identity import identity
from eqsat.ir.loop import Loop, of_loop
from eqsat.ir.loop import loop as results_of
from eqsat.ir.node import Graph, Node, substitute, topological

__all__ = ["absorbed"]

MOST_TRIPS = 64
"""That are looked for in a graph."""


def absorbed(graph: Graph) -> Graph:
    """The graph with such trips in their loops, wherever no other value of them is wanted.

    Loops all of whose operands stay where they are, and of which nothing is stacked.
    """
    done: set[Node] = set()
    for _ in range(MOST_TRIPS):
        found = next((n for n in graph.nodes() if n not in done and _takes_more(of_loop(n))), None)
        if found is None:
            break
        made = _after(graph, found) or _before(graph, found)
        if made is None:
            done.add(found)
        else:
            graph = made
    return graph


def _takes_more(loop: Loop | None) -> bool:
    return loop is not None and not (loop.stacks or loop.conditional or loop.tried or any(loop.steps))


def _longer(graph: Graph, node: Node, before: Sequence[Node], stands_for: Sequence[Node]) -> Graph | None:
    """The graph where a loop of one trip more, of other first values, stands for some nodes."""
    loop = of_loop(node)
    assert loop is not None
    longer = replace(loop, trips=loop.trips + 1)
    made = results_of(longer, [*before, *node.inputs[loop.carries :]])
    outputs = substitute(graph.outputs, dict(zip(stands_for, made, strict=True)))
    if any(n.inputs == node.inputs and of_loop(n) == loop for n in topological(outputs)):
        return None
    return Graph(graph.inputs, tuple(outputs), graph.names)


def _after(graph: Graph, node: Node) -> Graph | None:
    loop = of_loop(node)
    assert loop is not None
    last = results_of(loop, node.inputs)
    body = dict(zip(loop.body.inputs, [*last, *node.inputs[loop.carries :]], strict=True))
    following = substitute(loop.body.outputs, body)
    nodes = set(graph.nodes())
    if not any(n in nodes and n not in last for n in following):
        return None
    return _longer(graph, node, node.inputs[: loop.carries], following)


def _before(graph: Graph, node: Node) -> Graph | None:
    loop = of_loop(node)
    assert loop is not None
    inputs = loop.body.inputs
    if all(n in inputs for n in loop.body.outputs):
        return None
    found: dict[Node, Node] = dict(zip(inputs[loop.carries :], node.inputs[loop.carries :], strict=True))
    if not all(_unified(o, n, found) for o, n in zip(loop.body.outputs, node.inputs, strict=False)):
        return None
    if any(i not in found for i in inputs[: loop.carries]):
        return None
    results = results_of(loop, node.inputs)
    return _longer(graph, node, [found[i] for i in inputs[: loop.carries]], results)


def _unified(pattern: Node, node: Node, found: dict[Node, Node]) -> bool:
    """Whether a node is the pattern with other nodes for its inputs; notes these."""
    pending = [(pattern, node)]
    while pending:
        one, other = pending.pop()
        if one in found:
            if found[one] is not other:
                return False
            continue
        if one.type != other.type:
            return False
        if one.op != "input":
            if one.op != other.op or len(one.inputs) != len(other.inputs):
                return False
            if identity(one.attrs) != identity(other.attrs):
                return False
            pending.extend(zip(one.inputs, other.inputs, strict=True))
        found[one] = other
    return True

"""What of a program is known when it is compiled, and so computed then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from eqsat.ir.loop import Loop, LoopResult
from eqsat.ir.node import Graph, Node, intern
from eqsat.ir.repeats import worth_storing

__all__ = ["constant_nodes", "constant_operands", "trial"]


def constant_nodes(graph: Graph, const: frozenset[Node]) -> set[Node]:
    """Nodes known at compile time: constants, inputs declared so, and what is computed from them alone."""
    known: set[Node] = set()
    for node in graph.nodes():
        leaf = node.op in ("const", "iota") or node in const
        if leaf or (node.op != "input" and node.inputs and all(i in known for i in node.inputs)):
            if node.inputs and not worth_storing(node.type.nbytes, sum(i.type.nbytes for i in node.inputs)):
                continue
            known.add(node)
    return known


def constant_operands(loop: Loop, operands: Sequence[Node], known: Iterable[Node]) -> dict[Node, Node]:
    """Inputs of a loop's body that are the same on every trip and known at compile time, and what they are."""
    held = set(known)
    pairs = zip(loop.body.inputs[loop.carries :], operands[loop.carries :], loop.steps, strict=True)
    return {inside: outside for inside, outside, step in pairs if not step and outside in held}


def trial(graph: Graph, const: frozenset[Node] = frozenset()) -> Graph:
    """The graph with its loops, and those inside of them, :attr:`Loop.tried`.

    Loops of what is known with the inputs ``const`` run all their trips: they have run when the program is compiled.
    """
    known = constant_nodes(graph, const)
    made: dict[Node, Node] = {}
    for node in graph.nodes():
        inputs, attrs = tuple(made[i] for i in node.inputs), node.attrs
        if isinstance(attrs, LoopResult) and node not in known:
            fixed = frozenset(constant_operands(attrs.loop, node.inputs, known))
            attrs = LoopResult(replace(attrs.loop, body=trial(attrs.loop.body, fixed), tried=True), attrs.index)
        same = attrs is node.attrs and inputs == node.inputs
        made[node] = node if same else intern(node.op, inputs, attrs, node.type, node.label)
    return Graph(graph.inputs, tuple(made[o] for o in graph.outputs), graph.names)

"""What of a program is known when it is compiled, and so computed then."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from eqsat.ir import build
from eqsat.ir.loop import Loop, LoopResult
from eqsat.ir.node import Graph, Node, intern, substitute
from eqsat.ir.repeats import worth_storing
from eqsat.ir.table import OPS

__all__ = ["constant_nodes", "constant_operands", "known_nodes", "trial", "without_empty"]


def without_empty(graph: Graph) -> Graph:
    """The graph with tensors that have no elements, and what is computed from such alone (a sum over nothing), as
    constants: nothing needs computing for them."""
    known: dict[Node, Node] = {}
    for node in graph.nodes():
        if node.op in ("input", "const"):
            continue
        if node.type.size == 0:
            known[node] = build.const(np.empty(node.shape, node.dtype.numpy), node.dtype)
        elif node.inputs and all(x.type.size == 0 for x in node.inputs):
            operands = [np.empty(x.shape, x.dtype.numpy) for x in node.inputs]
            value = np.asarray(OPS[node.op].reference(operands, node.attrs)).astype(node.dtype.numpy, copy=False)
            first = value.reshape(-1)[0]
            same = bool((value == first).all())
            number = build.const(first if same else value, node.dtype)
            known[node] = build.broadcast_to(number, node.shape)
    return Graph(graph.inputs, tuple(substitute(graph.outputs, known)), graph.names) if known else graph


def known_nodes(graph: Graph, const: Collection[Node]) -> set[Node]:
    """The nodes that depend on no input but ``const``."""
    known: set[Node] = set()
    for node in graph.nodes():
        if node in const or (node.op != "input" and all(i in known for i in node.inputs)):
            known.add(node)
    return known


def constant_nodes(graph: Graph, const: frozenset[Node]) -> set[Node]:
    """Nodes whose values are stored at compile time: those known that are worth it."""
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
    graph = without_empty(graph)  # as it is planned
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

"""Branches of which one is chosen when the program runs: both are computed, and what is not chosen must not fail."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from eqsat.ir import build
from eqsat.ir.loop import Loop, LoopResult
from eqsat.ir.node import ConstArray, Graph, Node, remade, topological
from eqsat.ir.table import make
from eqsat.ir.types import TensorType, bool_


def where_taken(outputs: Sequence[Node], taken: Node, outside: Collection[Node]) -> list[Node]:
    """A branch's outputs, without what only fails, or goes on for ever, because the branch is not ``taken`` (a bool).

    Then its indices and integer exponents are 0, and loops that ask for values make no trip. ``outside``: what was
    computed before the branch, which stays.
    """
    done = {node: node for node in outside}
    loops: dict[Loop, Loop] = {}
    for node in topological(outputs, done):
        inputs, attrs = [done[i] for i in node.inputs], node.attrs
        if isinstance(attrs, LoopResult) and attrs.loop.conditional:
            inputs[0] = build.call("logical_and", taken, inputs[0])
        elif isinstance(attrs, LoopResult) and _may_fail(attrs.loop.body):
            if attrs.loop not in loops:
                loops[attrs.loop] = _loop_taken(attrs.loop)
            done[node] = make("loop", [*inputs, taken], replace(attrs, loop=loops[attrs.loop]))
            continue
        elif (place := _fails_by(node)) is not None:
            inputs[place] = _or_zero(inputs[place], taken)
        done[node] = remade(node, tuple(inputs))
    return [done[node] for node in outputs]


def _fails_by(node: Node) -> int | None:
    """The operand for whose values an operator fails: an index out of range, an integer's negative power."""
    if node.op == "wrap_index":
        return 0
    return 1 if node.op == "pow" and not node.dtype.is_float else None


def _or_zero(node: Node, taken: Node) -> Node:
    if isinstance(node.attrs, ConstArray):  # which was looked at when it was traced
        return node
    zero = build.broadcast_to(build.scalar(0, node), node.shape)
    return build.call("where", build.broadcast_to(taken, node.shape), node, zero)


def _may_fail(body: Graph) -> bool:
    """Whether something in a body fails for some values, or may go on for ever."""
    for node in body.nodes():
        if isinstance(node.attrs, LoopResult) and (node.attrs.loop.conditional or _may_fail(node.attrs.loop.body)):
            return True
        if _fails_by(node) is not None:
            return True
    return False


def _loop_taken(loop: Loop) -> Loop:
    """A loop with one operand more, whether its branch is taken."""
    taken = build.input_node(len(loop.body.inputs), TensorType((), bool_))
    outputs = where_taken(loop.body.outputs, taken, ())
    return replace(loop, body=Graph((*loop.body.inputs, taken), tuple(outputs)), steps=(*loop.steps, 0))

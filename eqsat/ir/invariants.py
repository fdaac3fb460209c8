"""What a loop reads on every trip, read in one way: views of an operand that stays are taken within the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eqsat.ir import build
from eqsat.ir.loop import Loop
from eqsat.ir.node import Graph, Node, remade, topological
from eqsat.ir.views import ViewMap

__all__ = ["with_views"]


def with_views(whole: Loop, operands: Sequence[Node], origins: dict[Node, Node]) -> tuple[Loop, list[Node]] | None:
    """The loop without operands that are views of others, which its body takes itself, and the operands that it has;
    None where there are none. ``origins``: what the new nodes of the body stand for is added."""
    inputs, carries = whole.body.inputs, whole.carries
    stays = {o: i for o, i, step in zip(operands[carries:], inputs[carries:], whole.steps, strict=True) if not step}
    views = {i: o for o, i in stays.items() if isinstance(o.attrs, ViewMap) and o.inputs[0] in stays}
    if not views:
        return None
    kept = [number for number, node in enumerate(inputs) if node not in views]
    done = {
        inputs[number]: build.input_node(n, inputs[number].type, inputs[number].label) for n, number in enumerate(kept)
    }

    def inside(operand: Node) -> Node:
        """What the body sees of an operand, or takes of it."""
        node = stays[operand]
        if node not in done:
            done[node] = build.view(inside(operand.inputs[0]), operand.attrs, operand.label)  # type: ignore[arg-type]
        return done[node]

    for view in views.values():
        inside(view)
    for node in topological(whole.body.outputs, done):
        done[node] = remade(node, tuple(done[i] for i in node.inputs))
    origins.update((new, origins.get(old, old)) for old, new in done.items() if new is not old)
    names = tuple(whole.body.names[k] for k in kept) if whole.body.names else ()
    body = Graph(tuple(done[inputs[k]] for k in kept), tuple(done[o] for o in whole.body.outputs), names)
    steps = tuple(whole.steps[k - carries] for k in kept if k >= carries)
    return replace(whole, body=body, steps=steps), [operands[k] for k in kept]

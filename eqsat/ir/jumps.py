"""Loops with several trips in one: a body that follows itself, so that what passes between trips need not be stored.

A grid larger than the caches goes to memory and back on every time step. A trip that takes two steps reads and writes
it once for both; the first is computed again wherever the second reads it (overlapped tiling, a tile being what a
kernel holds in registers). See Frigo and Strumpen, "Cache oblivious stencil computations", ICS 2005.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from eqsat.ir.loop import TRIAL, Loop, LoopResult, loop, with_loops
from eqsat.ir.node import Formed, Graph, Node, remade, topological
from eqsat.ir.table import OPS

__all__ = ["jumped"]

KINDS = ("map", "view", "concat", "pad", "source")
"""What a body is made of that may follow itself: its points depend on points nearby, or on the same ones."""

OPERATORS = 64
"""Operators of all copies of a body at most, which bounds what there is to compile."""

LEAST = 4
"""Trips of a loop at least."""

AXES = 2
"""Axes of what is carried at most, without short ones. What is computed again grows with each axis that neighbours lie
along: a seven-point stencil on 100³ took 1.3 times as long two steps at a time as one by one (Zen 5)."""

SHORT = 4
"""Positions of a short axis at most."""


def jumped(graph: Graph, copies_of: Callable[[Loop], int]) -> Formed | None:
    """The graph with ``copies_of`` trips of its loops in one, asked for those that may; None where all stay.

    Trips that are left over follow the loop. Loops inside of loops stay.
    """
    origins: dict[Node, Node] = {}
    wanted: dict[Loop, int] = {}

    def results(node: Node, inputs: tuple[Node, ...]) -> list[Node]:
        assert isinstance(node.attrs, LoopResult)
        whole = node.attrs.loop
        if whole not in wanted:
            wanted[whole] = copies_of(whole) if _may(whole) else 1
        copies = wanted[whole]
        return _several(whole, inputs, copies, origins) if copies > 1 else loop(whole, inputs)

    return with_loops(graph, results, origins)


def _may(whole: Loop) -> bool:
    """Whether a loop does nothing but carry values, enough trips of them, from point to point."""
    if whole.stacks or whole.conditional or whole.tried or whole.copies > 1 or any(whole.steps):
        return False
    long = (sum(n > SHORT for n in node.shape) for node in whole.body.inputs[: whole.carries])
    return (
        whole.trips >= LEAST
        and not 2 * TRIAL < whole.trips < 3 * TRIAL  # as many trips are tried as of the loop that is meant
        and max(long, default=0) <= AXES
        and fits(whole, 2)
        and all(OPS[node.op].kind in KINDS for node in whole.body.nodes())
    )


def fits(whole: Loop, copies: int) -> bool:
    """Whether so many trips may be one."""
    operators = sum(node.op not in ("input", "const") for node in whole.body.nodes())
    return 2 * copies <= whole.trips and copies * operators <= OPERATORS


def following(body: Graph, operands: Sequence[Node], origins: dict[Node, Node]) -> list[Node]:
    """The body's outputs where its inputs are these."""
    done = dict(zip(body.inputs, operands, strict=True))
    for node in topological(body.outputs, done):
        done[node] = remade(node, tuple(done[i] for i in node.inputs))
        if done[node] is not node:
            origins.setdefault(done[node], origins.get(node, node))
    return [done[output] for output in body.outputs]


def several(whole: Loop, copies: int, origins: dict[Node, Node]) -> Loop:
    """The loop with so many trips in one, without those that are left over."""
    body = whole.body
    fixed, state = body.inputs[whole.carries :], list(body.outputs)
    for _ in range(copies - 1):
        state = following(body, (*state, *fixed), origins)
    return replace(whole, trips=whole.trips // copies, body=Graph(body.inputs, tuple(state), body.names), copies=copies)


def _several(whole: Loop, inputs: Sequence[Node], copies: int, origins: dict[Node, Node]) -> list[Node]:
    state = loop(several(whole, copies, origins), inputs)
    for _ in range(whole.trips % copies):
        state = following(whole.body, (*state, *inputs[whole.carries :]), origins)
    return state

"""A deep program cut into regions at tensors that are stored anyway; equal regions are searched once.

A cut is a tensor that several operators use while at most one other value is alive: residual streams
are such places. Long programs without one are cut where little is alive, so that no search is of thousands of
operators at once. Inside a region every tensor constant but scalars is a named input, so that two layers
with different weights are the same region.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eqsat.ir import build
from eqsat.ir.known import constant_nodes
from eqsat.ir.loop import Loop, of_loop
from eqsat.ir.node import Graph, Node, substitute
from eqsat.ir.table import OPS

SMALL = 256
"""Programs up to this many operators are one region."""
LEAST = 8
"""Operators a region has at least."""
LONGEST = 1024
"""Operators a region has at most: where nothing ends one before, it is cut where the fewest bytes are alive."""


@dataclass(frozen=True)
class Region:
    """A part of a program: ``graph`` in canonical form, and the program's nodes its inputs and outputs stand for.

    ``const[i]``: input ``i`` of the graph is known when the program is compiled. ``looped``: a part of a loop's body.
    """

    graph: Graph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    const: tuple[bool, ...]
    looped: bool = False

    def key(self) -> str:
        return f"{self.graph.key()}:{''.join('c' if c else 'v' for c in self.const)}"


@dataclass(frozen=True)
class LoopRegion:
    """The results of one loop that a program needs."""

    loop: Loop
    outputs: tuple[Node, ...]


def cut(graph: Graph, const: frozenset[Node], *, looped: bool = False) -> list[Region | LoopRegion]:
    """The program's regions in order; their outputs are the cut tensors and the program's outputs.

    Loops are regions of their own. ``looped``: the program is a loop's body.
    """
    known = constant_nodes(graph, const)
    order = [n for n in graph.nodes() if n.op != "input" and n not in known]
    if not order:
        return []
    order = _loops_together(order)
    outputs = set(graph.outputs)
    last: dict[Node, int] = {}
    users: dict[Node, list[Node]] = {}
    position = {node: p for p, node in enumerate(order)}
    for node in order:
        for operand in dict.fromkeys(node.inputs):
            if operand in position:
                users.setdefault(operand, []).append(node)
                last[operand] = max(last.get(operand, -1), position[node])
    for node in outputs:
        if node in position:
            last[node] = len(order)
    regions: list[Region | LoopRegion] = []
    start = 0
    for first, behind in _stretches(order):
        loop = of_loop(order[first])
        if loop is not None:
            regions.append(LoopRegion(loop, tuple(order[first:behind])))
            start = behind
            continue
        ends = [behind - 1]
        if behind - first > SMALL:
            ends = _cut_positions(order, first, behind, users, last)
        for end in ends:
            regions.append(replace(_region(order[start : end + 1], graph, known, last, end), looped=looped))
            start = end + 1
    return regions


def _loops_together(order: Sequence[Node]) -> list[Node]:
    """The order with the results of each loop side by side, where the first of them is: all read the same."""
    results: dict[tuple[Loop, tuple[Node, ...]], list[Node]] = {}
    for node in order:
        found = of_loop(node)
        if found is not None:
            results.setdefault((found, node.inputs), []).append(node)
    placed: list[Node] = []
    for node in order:
        found = of_loop(node)
        if found is None:
            placed.append(node)
        elif results[found, node.inputs][0] is node:
            placed.extend(results[found, node.inputs])
    return placed


def _stretches(order: Sequence[Node]) -> list[tuple[int, int]]:
    """Where stretches begin and end that are a loop's results, or have none."""
    marks = [0]
    for p in range(1, len(order)):
        before, after = of_loop(order[p - 1]), of_loop(order[p])
        if (before is not None or after is not None) and (before != after or order[p - 1].inputs != order[p].inputs):
            marks.append(p)
    return list(itertools.pairwise([*marks, len(order)]))


def _cut_positions(
    order: Sequence[Node], first: int, behind: int, users: dict[Node, list[Node]], last: dict[Node, int]
) -> list[int]:
    ends: list[int] = []
    start = first
    alive: set[Node] = set()
    dying: dict[int, list[Node]] = {}
    nbytes = 0
    kept: list[int] = []
    """Bytes alive after each position from the first."""
    for p in range(first, behind):
        node = order[p]
        if last.get(node, -1) > p:
            alive.add(node)
            nbytes += node.type.nbytes
            dying.setdefault(last[node], []).append(node)
        for gone in dying.get(p, ()):
            alive.discard(gone)
            nbytes -= gone.type.nbytes
        kept.append(nbytes)
        if len(alive) <= 2 and node in alive and p - start + 1 >= LEAST and _is_stream(node, users):
            ends.append(p)
            start = p + 1
        elif p - start + 1 == LONGEST:
            ends.append(min(range(start + LONGEST // 2, p + 1), key=lambda q: kept[q - first]))
            start = ends[-1] + 1
    if behind - start < LEAST and ends:
        ends.pop()
    return [*ends, behind - 1]


def _is_stream(node: Node, users: dict[Node, list[Node]]) -> bool:
    """Whether a tensor is stored whatever its users do: three read it, or two of which one is a contraction."""
    found = _real_users(node, users)
    return len(found) >= 3 or (len(found) == 2 and any(u.op == "contract" for u in found))


def _real_users(node: Node, users: dict[Node, list[Node]]) -> list[Node]:
    """What uses a tensor, also through views."""
    out: list[Node] = []
    stack = [node]
    while stack:
        for user in users.get(stack.pop(), ()):
            (stack if OPS[user.op].kind == "view" else out).append(user)
    return out


def _region(
    nodes: Sequence[Node],
    graph: Graph,
    known: set[Node],
    last: dict[Node, int],
    end: int,
) -> Region:
    inside, wanted = set(nodes), set(graph.outputs)
    outputs = [n for n in nodes if n in wanted or last.get(n, -1) > end]
    inputs: list[Node] = []
    replaced: dict[Node, Node] = {}
    for node in _boundary(outputs, inside, known):
        replaced[node] = build.input_node(len(inputs), node.type)
        inputs.append(node)
    const = tuple(n in known for n in inputs)
    roots = substitute(outputs, replaced)
    canonical = Graph(tuple(replaced[n] for n in inputs), tuple(roots))
    return Region(canonical, tuple(inputs), tuple(outputs), const)


def _boundary(outputs: Sequence[Node], inside: set[Node], known: set[Node]) -> list[Node]:
    """Nodes a region reads from outside, in order of first use: what others compute, inputs, tensor constants.

    Constant expressions belong to every region that uses them; only their leaves are read.
    """
    found: dict[Node, None] = {}
    seen: set[Node] = set()

    def visit(node: Node) -> None:
        stack = [node]
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            computed = at in known and at.op not in ("const", "input")
            if at in inside or computed:
                stack.extend(reversed(at.inputs))
            elif not (at.op == "const" and at.type.size == 1):
                found[at] = None

    for output in outputs:
        visit(output)
    return list(found)

"""The body of a loop that was found again: one trip as a graph, and where its operators read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.moving import moving
from eqsat.ir.node import ConstArray, Graph, Node, intern, remade
from eqsat.ir.spec import Spec
from eqsat.ir.types import TensorType, int64
from eqsat.ir.views import ViewMap, view_map

__all__ = ["Body", "Read", "merged", "of_their_base", "stacking_wholes", "whole_of"]

LEAST_VIEWS = 8
"""Views of one tensor in a body, from so many on told as views of it: a loop inside has as many trips at least."""


@dataclass(frozen=True)
class Read:
    """An operand of an operator of the body.

    ``inner``: made in the same trip, at ``source``; ``carried``: so many trips before (``nodes``: before the first);
    ``fixed``: one tensor; ``view``: a view that moves by ``step``; ``table``: a constant for each trip. ``parts``:
    views of one another, from what is carried to what is read.
    """

    kind: str
    nodes: list[Node]
    source: int = 0
    distance: int = 0
    step: int = 0
    parts: tuple[ViewMap, ...] = ()


def _part(node: Node, parts: Sequence[ViewMap]) -> Node:
    for part in parts:
        node = build.view(node, part)
    return node


def whole_of(node: Node, part: ViewMap | None, like: Node, known: Node | None) -> Node | None:
    """What ``node`` is this part of (all of it: None), of a type with ``like``: ``known``, if that is it."""
    if part is None:
        return node
    if known is not None and (
        build.view(known, part) is node or any(n is node and m == part for n, m in _joined(known))
    ):
        return known
    return node.inputs[0] if node.attrs == part and node.inputs[0].type == like.type else None


def _joined(node: Node) -> Iterator[tuple[Node, ViewMap]]:
    """What a concatenation, maybe of concatenations, consists of."""
    if node.op != "concat":
        return
    assert isinstance(node.attrs, int)
    starts = [0] * node.type.ndim
    for operand in node.inputs:
        here = views.slices(node.shape, starts, [1] * len(starts), operand.shape)
        yield operand, here
        for below, part in _joined(operand):
            both = views.compose(here, part)
            if both is not None:
                yield below, both
        starts[node.attrs] += operand.shape[node.attrs]


def of_their_base(reads: list[list[Read]], moves: Mapping[int, int]) -> list[list[Read]]:
    """What is the same on every trip, as views of one tensor where many are: a loop inside may move there."""
    fixed = {r.nodes[0] for place, slots in enumerate(reads) for r in slots if r.kind == "fixed" and place not in moves}
    views_of: dict[Node, set[Node]] = defaultdict(set)
    for node in fixed:
        if isinstance(node.attrs, ViewMap) and node.type.size:
            views_of[node.inputs[0]].add(node)
    inside = set[Node]().union(*(found for found in views_of.values() if len(found) >= LEAST_VIEWS))

    def seen(read: Read) -> Read:
        return replace(read, kind="view") if read.kind == "fixed" and read.nodes[0] in inside else read

    return [slots if place in moves else list(map(seen, slots)) for place, slots in enumerate(reads)]


def stacking_wholes(body: Graph, carries: int) -> tuple[Graph, list[tuple[int, ViewMap | None]]]:
    """The body, stacking values once instead of views that show about all of one together, as those of the rows of a
    loop inside; and what each stacked output is: which of those that are stacked now, and the view of it."""
    shown: dict[Node, int] = defaultdict(int)
    for node in body.outputs[carries:]:
        if isinstance(node.attrs, ViewMap) and node.inputs[0].op != "input":
            shown[node.inputs[0]] += node.type.nbytes
    wholes = {node for node, nbytes in shown.items() if nbytes >= node.type.nbytes}
    stacked: dict[Node, int] = {}
    found: list[tuple[int, ViewMap | None]] = []
    for node in body.outputs[carries:]:
        part = node.attrs if isinstance(node.attrs, ViewMap) and node.inputs[0] in wholes else None
        kept = node if part is None else node.inputs[0]
        found.append((stacked.setdefault(kept, len(stacked)), part))
    return Graph(body.inputs, (*body.outputs[:carries], *stacked), body.names), found


def _walks(node: Node, slot: int) -> bool:
    """Whether an operator walks a view as well as a copy that is made once for all trips: a product with a vector does,
    which reads each element once and has no use for another order."""
    operand = node.inputs[slot]
    if not isinstance(node.attrs, Spec) or not isinstance(operand.attrs, ViewMap):
        return False
    own, other = (node.attrs.a, node.attrs.b) if slot == 0 else (node.attrs.b, node.attrs.a)
    return set(other) < set(own) and operand.inputs[0].type.size <= operand.type.size


class Body:
    """The graph of one trip of so many, the operators of the ``first`` among them."""

    def __init__(
        self,
        first: Sequence[Node],
        trips: int,
        reads: list[list[Read]],
        moves: Mapping[int, int],
        carries: Sequence[tuple[int, int]],
        stacked: Sequence[int],
    ) -> None:
        self.first, self.trips, self.reads, self.moves = first, trips, reads, moves
        self.carries, self.stacked = list(carries), list(stacked)
        self.inputs: list[Node] = []
        self.others: list[Node] = []
        self.steps: list[int] = []
        self.known: dict[tuple[Node, int], Node] = {}

    def run(self) -> tuple[Graph, list[Node]]:
        """The body, and its operators; afterwards ``others`` are the operands behind what is carried, and ``steps`` the
        elements that each one's window moves."""
        for place, _ in self.carries:
            self._input(self.first[place].type)
        number = {key: n for n, key in enumerate(self.carries)}
        made: list[Node] = []

        def inside(read: Read) -> Node:
            if read.kind == "inner":
                return made[read.source]
            return _part(self.inputs[number[read.source, read.distance]], read.parts)

        for place, node in enumerate(self.first):
            if place in self.moves:
                (read,) = self.reads[place]
                if read.kind == "fixed":
                    made.append(self._view(read.nodes[0], node, self.moves[place]))
                else:
                    made.append(self._moving(inside(read), node, self.moves[place]))
                continue
            operands = []
            for slot, read in enumerate(self.reads[place]):
                if read.kind in ("inner", "carried"):
                    operands.append(inside(read))
                elif read.kind == "view":
                    operands.append(self._view(read.nodes[0].inputs[0], read.nodes[0], read.step))
                elif read.kind == "table":
                    operands.append(self._row(read.nodes))
                elif _walks(node, slot):
                    operands.append(self._view(read.nodes[0].inputs[0], read.nodes[0], 0))
                else:
                    operands.append(self._fixed(read.nodes[0]))
            made.append(remade(node, tuple(operands)))
        after = [made[place] if d == 1 else self.inputs[number[place, d - 1]] for place, d in self.carries]
        graph = Graph(tuple(self.inputs), (*after, *(made[place] for place in self.stacked)))
        return graph, made

    def _input(self, type: TensorType) -> Node:
        node = build.input_node(len(self.inputs), type)
        self.inputs.append(node)
        return node

    def _operand(self, node: Node, step: int) -> Node:
        """The body's input that is a window of a tensor outside."""
        if (node, step) not in self.known:
            size = node.type.size - (self.trips - 1) * abs(step)
            type = TensorType((size,), node.dtype) if step else node.type
            self.others.append(node)
            self.steps.append(step)
            self.known[node, step] = self._input(type)
        return self.known[node, step]

    def _fixed(self, node: Node) -> Node:
        if isinstance(node.attrs, ConstArray) and node.type.size <= 1:
            return node  # a number, part of the body
        return self._operand(node, 0)

    def _view(self, base: Node, node: Node, step: int) -> Node:
        """A view that moves, of the window."""
        assert isinstance(node.attrs, ViewMap)
        map = node.attrs
        if step < 0:  # the window begins where the last trip reads
            map = replace(map, offset=map.offset + (self.trips - 1) * step)
        source = self._operand(base, step) if step else self._fixed(base)
        return intern("view", (source,), map, node.type, node.label)

    def _moving(self, whole: Node, node: Node, step: int) -> Node:
        """A view that moves, of a value that the loop makes itself."""
        assert isinstance(node.attrs, ViewMap)
        found = moving(node.attrs, whole.shape, step, self.trips)
        assert found is not None
        positions = build.const(found.first + found.by * np.arange(self.trips), int64)
        return build.view(found.of(whole, self._operand(positions, 1)), views.identity(node.shape), node.label)

    def _row(self, nodes: Sequence[Node]) -> Node:
        """A row of a table of constants; what they are shown as is so of the row."""
        if isinstance(nodes[0].attrs, ViewMap):
            return build.view(self._row([node.inputs[0] for node in nodes]), nodes[0].attrs)
        type = nodes[0].type
        table = build.const(np.stack([n.attrs.array for n in nodes]), type.dtype)  # type: ignore[attr-defined]
        flat = self._operand(table, max(1, type.size))
        return build.reshape(flat, type.shape)


def merged(parts: Sequence[Node], axis: int) -> list[Node]:
    """Neighbours that are views at even distances of one tensor, as one view each."""
    found: list[tuple[Node, int, int]] = []  # the first part, how many, and how far apart
    for part in parts:
        if found and isinstance(part.attrs, ViewMap):
            first, count, step = found[-1]
            if isinstance(first.attrs, ViewMap) and part.inputs == first.inputs and part.attrs.axes == first.attrs.axes:
                apart = part.attrs.offset - first.attrs.offset
                if count == 1 or apart == count * step:
                    found[-1] = (first, count + 1, apart if count == 1 else step)
                    continue
        found.append((part, 1, 0))
    whole = []
    for first, count, step in found:
        if count == 1 or not isinstance(first.attrs, ViewMap):
            whole.append(first)
            continue
        axes = list(first.attrs.axes)
        axes[axis] = ((count, step), *axes[axis])
        whole.append(build.view(first.inputs[0], view_map(axes, first.attrs.offset)))
    return whole

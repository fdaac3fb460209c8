"""Programs that compute the parts of a batch one after the other: the same operators of a few images at a time.

What an operator makes of one image often fits a cache where what it makes of all of them does not. A program whose
leading axis only passes through is the same as a loop over that axis, whose trips run operator after operator of
a part, as Halide computes a stage at a loop of its consumer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from eqsat.ir import build
from eqsat.ir.joins import PadAttrs
from eqsat.ir.loop import Loop, loop
from eqsat.ir.node import Formed, Graph, Node, remade, topological
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS, make
from eqsat.ir.types import TensorType, row_major
from eqsat.ir.views import ViewMap, identity, view_map


def axes_of(graph: Graph, const: Collection[Node], extent: int, trips: int) -> dict[Node, int]:
    """The nodes of which part ``t`` of ``trips`` along an axis needs part ``t`` of the inputs alone, and that axis.

    The inputs are those but ``const`` whose leading axis has ``extent``; beside their parts, a node may need whole
    tensors that do not depend on them.
    """
    found: dict[Node, int] = {}
    for node in graph.nodes():
        if node.op == "input":
            if node not in const and node.shape[:1] == (extent,) and node.type.size:
                found[node] = 0
        elif node.type.size and any(i in found for i in node.inputs):
            axis = axis_of(node, found, trips)
            if axis is not None and node.shape[axis] % trips == 0:
                found[node] = axis
    return found


def axis_of(node: Node, found: Mapping[Node, int], trips: int) -> int | None:
    """The axis of a node along which its parts are of its operands' parts, None where there is none.

    ``found``: the axes of operands, of at least one.
    """
    kind, attrs = OPS[node.op].kind, node.attrs
    given = [(n, i, found[i]) for n, i in enumerate(node.inputs) if i in found]
    if kind == "map":
        axes = {axis + node.type.ndim - i.type.ndim for _, i, axis in given}
        if len(axes) > 1:
            return None
        (axis,) = axes
        return axis if all(i in found or alike(i, axis - node.type.ndim) for i in node.inputs) else None
    if isinstance(attrs, Spec):
        labels = {(attrs.a, attrs.b)[n][axis] for n, _, axis in given}
        (label, *others) = labels
        split = all((i in found) == (label in part) for i, part in zip(node.inputs, (attrs.a, attrs.b), strict=True))
        return attrs.out.index(label) if not others and split and label in attrs.out else None
    ((_, x, axis), *beside) = given
    if isinstance(attrs, ViewMap):
        return _moved(x, axis, attrs, trips)
    if kind == "reduce":
        assert isinstance(attrs, tuple)
        return None if axis in attrs else axis - sum(a < axis for a in attrs)
    if kind == "concat":
        same = {a for _, _, a in given} == {axis} and attrs != axis
        return axis if same and all(i in found or alike(i, axis - i.type.ndim) for i in node.inputs) else None
    if kind == "composite":  # of the first operand's rows, and vectors along them
        own = attrs if isinstance(attrs, int) else x.type.ndim - 1 if isinstance(attrs, float) else None
        return axis if axis != own and not beside else None
    if isinstance(attrs, PadAttrs):
        return axis if attrs.widths[axis] == (0, 0) else None
    return None


def alike(node: Node, axis: int) -> bool:
    """Whether all parts of a node along an axis, counted from the end, are the same: it broadcasts along it."""
    if node.type.ndim < -axis or node.shape[axis] == 1:
        return True
    if isinstance(node.attrs, ViewMap):
        return all(stride == 0 for _, stride in node.attrs.axes[axis])
    return OPS[node.op].kind == "map" and all(alike(i, axis) for i in node.inputs)


def _moved(x: Node, axis: int, map: ViewMap, trips: int) -> int | None:
    """The axis of a view's result whose parts are views of the operand's parts along ``axis``."""
    stride = row_major(x.shape)[axis]
    row, part = stride * x.shape[axis], stride * (x.shape[axis] // trips)
    for number, atoms in enumerate(map.axes):
        if not atoms:
            continue
        (n, step), *inner = atoms
        if n % trips or step * (n // trips) != part:
            continue
        rest = [(n // trips, step), *inner, *(a for k, other in enumerate(map.axes) if k != number for a in other)]
        within = [(n, step) for n, step in rest if step % row]
        low = map.offset % row + sum((n - 1) * step for n, step in within if step < 0)
        high = map.offset % row + sum((n - 1) * step for n, step in within if step > 0)
        if low >= 0 and high < part:
            return number
    return None


@dataclass
class Body:
    """The body of a loop over parts, as it is made: a trip takes ``rows`` of every ``extent`` positions of an axis."""

    axes: Mapping[Node, int]
    known: Collection[Node]
    extent: int
    rows: int
    inputs: list[Node] = field(default_factory=list)
    operands: list[Node] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    wholes: dict[Node, Node] = field(default_factory=dict)
    parts: dict[Node, Node] = field(default_factory=dict)

    def of(self, positions: int) -> int:
        """How many of these positions, or of elements that so many are apart, are a part's."""
        return positions * self.rows // self.extent

    def add(self, operand: Node, step: int) -> Node:
        """What the body sees of an operand of the loop."""
        trips = self.extent // self.rows
        type = TensorType((operand.type.size - (trips - 1) * step,), operand.dtype) if step else operand.type
        self.inputs.append(build.input_node(len(self.inputs), type, operand.label))
        self.operands.append(operand)
        self.steps.append(step)
        return self.inputs[-1]

    def window(self, node: Node) -> Node:
        """The part of a trip of what is there before the loop, along its leading axis."""
        shape = (self.of(node.shape[0]), *node.shape[1:])
        return build.view(self.add(node, self.of(node.type.size)), identity(shape))

    def whole(self, node: Node) -> Node:
        """A node that is the same on every trip; what is known of it is computed inside, where it may fold."""
        for each in topological([node] if node in self.known else [], self.wholes):
            self.wholes[each] = (
                self.add(each, 0) if each.op == "input" else remade(each, tuple(self.wholes[i] for i in each.inputs))
            )
        return self.wholes[node] if node in self.wholes else self.wholes.setdefault(node, self.add(node, 0))

    def alike(self, node: Node, axis: int) -> Node:
        """One part of a node along an axis, counted from the end, whose parts are the same."""
        if node.type.ndim < -axis or node.shape[axis] == 1:
            return self.whole(node)
        if isinstance(node.attrs, ViewMap):
            axes = list(node.attrs.axes)
            axes[axis] = ((self.of(node.shape[axis]), 0),)
            return build.view(self.whole(node.inputs[0]), view_map(axes, node.attrs.offset), node.label)
        return make(node.op, [self.alike(i, axis) for i in node.inputs], node.attrs, label=node.label)

    def part(self, node: Node) -> Node:
        """A node's part of a trip. Its operands' were made before."""
        if isinstance(node.attrs, ViewMap):
            (x,) = node.inputs
            return build.view(self.parts[x], self._map(node.attrs, self.axes[node], x), node.label)
        return make(node.op, self.operands_of(node), node.attrs, label=node.label)

    def operands_of(self, node: Node) -> list[Node]:
        """What a node's part is made of."""
        back = self.axes[node] - node.type.ndim
        wholes = self.whole if isinstance(node.attrs, Spec) else lambda operand: self.alike(operand, back)
        return [self.parts[i] if i in self.parts else wholes(i) for i in node.inputs]

    def _map(self, map: ViewMap, axis: int, x: Node) -> ViewMap:
        """The map of a view of a part: the axis is shorter, and what lies outside of the operand's is nearer."""
        at = self.axes[x]
        row = row_major(x.shape)[at] * x.shape[at]
        axes = [list(atoms) for atoms in map.axes]
        n, step = axes[axis][0]
        axes[axis][0] = self.of(n), step
        near = [[(n, step if step % row else self.of(step)) for n, step in atoms] for atoms in axes]
        return view_map(near, map.offset % row + map.offset // row * self.of(row))


def in_parts(
    graph: Graph, axes: Mapping[Node, int], nodes: Sequence[Node], known: Collection[Node], trips: int
) -> Formed:
    """The graph with ``nodes`` computed by a loop over parts.

    ``axes``: of the nodes and of what they need of the inputs' parts, as :func:`axes_of` finds them. ``nodes`` are in
    topological order, with all that they need of parts but the inputs. ``known``: nodes whose values are known.
    """
    body = Body(axes, known, trips, 1)
    for node in topological(nodes):
        if node in axes:
            body.parts[node] = body.window(node) if node.op == "input" else body.part(node)
    inside = set(nodes)
    users = {i for node in graph.nodes() if node not in inside for i in node.inputs} | set(graph.outputs)
    ends = [node for node in nodes if node in users]
    within = Graph(tuple(body.inputs), tuple(body.parts[end] for end in ends))
    results = loop(Loop(trips, within, 0, tuple(body.steps)), body.operands)
    done = {end: along(stacked, axes[end]) for end, stacked in zip(ends, results, strict=True)}
    return instead(graph, done, {part: node for node, part in body.parts.items()})


def along(stacked: Node, axis: int) -> Node:
    """What a loop stacked, as one along an axis of its parts."""
    moved = build.transpose(stacked, [*range(1, axis + 1), 0, *range(axis + 1, stacked.type.ndim)])
    trips, rows = moved.shape[axis : axis + 2]
    return build.reshape(moved, (*moved.shape[:axis], trips * rows, *moved.shape[axis + 2 :]))


def instead(graph: Graph, results: Mapping[Node, Node], origins: Mapping[Node, Node]) -> Formed:
    """The graph with other nodes for some; ``origins``: what nodes that are new with these stand for."""
    done = dict(results)
    for node in topological(graph.outputs, done):
        done[node] = remade(node, tuple(done[i] for i in node.inputs))
    made = Graph(graph.inputs, tuple(done[o] for o in graph.outputs), graph.names)
    return Formed(made, {**{new: old for old, new in done.items() if old not in results}, **origins})

"""Loops none of whose trips needs another's, as operators over all trips at once: with a batch axis before their own.

``for i in range(n): out[i] = f(a[i])`` is a loop of small operators to a tracer, each a call of a small kernel. With a
batch axis it is ``f`` of rows: kernels as long as the loop, vectors and threads along it, and rules that see all of it.
What trips only add to (``total += f(a[i])``), or take the largest or smallest of, is a reduction over that axis.
The batching of operators is that of JAX's ``vmap``; windows of the loop are views of what they move over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eqsat.ir import build
from eqsat.ir.joins import PadAttrs
from eqsat.ir.loop import Loop, LoopResult, loop
from eqsat.ir.node import LINES, Graph, Node, remade, topological
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.table import OPS, make
from eqsat.ir.types import row_major
from eqsat.ir.views import ViewMap, view_map

__all__ = ["batched"]

TRIP_BYTES = 1 << 18
"""Of what a trip computes at most: longer trips are no faster together, and what they pass on stays in a cache."""
FOLD_BYTES = 1 << 12
"""Of what a trip computes at most that adds to what it carries, unless that is a product: a sum stays in registers or
near them from trip to trip, while two reductions, of a trip and over all, pass on what is between them."""
BATCH_BYTES = 1 << 26
"""Of a value of all trips at most: a loop over rows may have been written for what all of them would take."""
ALONG = (
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "sort",
    "sort_stable",
    "sort_heapsort",
    "argsort",
    "argsort_stable",
    "argsort_heapsort",
)
"""Operators along one axis, which is what their attributes are."""


FOLDS = {"add": "reduce_sum", "mul": "reduce_prod", "maximum": "reduce_max", "minimum": "reduce_min"}
"""What trips may do to a value that they carry, and the reduction of what they do it with."""


class _No(Exception):
    """An operator has no form with a batch axis."""


def batched(graph: Graph, *, exact: bool = False) -> Graph:
    """The graph with such loops as operators, also those inside of others; ``exact``: without another order of sums
    and products of floats."""
    done: dict[Node, Node] = {}
    loops: dict[tuple[Loop, tuple[Node, ...]], list[Node]] = {}
    for node in graph.nodes():
        inputs = tuple(done[i] for i in node.inputs)
        if not isinstance(node.attrs, LoopResult):
            done[node] = remade(node, inputs)
            continue
        whole = node.attrs.loop
        if (whole, inputs) not in loops:
            body = batched(whole.body, exact=exact)
            whole = whole if body is whole.body else replace(whole, body=body)
            loops[node.attrs.loop, inputs] = _of_all(whole, inputs, exact) or loop(whole, inputs)
        done[node] = loops[node.attrs.loop, inputs][node.attrs.index]
    outputs = tuple(done[o] for o in graph.outputs)
    return graph if outputs == graph.outputs else Graph(graph.inputs, outputs, graph.names)


def _of_all(whole: Loop, operands: Sequence[Node], exact: bool) -> list[Node] | None:
    """The results of a loop by operators of all trips; None where there is a loop."""
    if whole.conditional or whole.tried or whole.trips < 2:
        return None
    nbytes = sum(node.type.nbytes for node in whole.body.nodes() if OPS[node.op].kind not in ("view", "source"))
    if nbytes > TRIP_BYTES:
        return None
    if any(whole.trips * node.type.nbytes > BATCH_BYTES for node in whole.body.nodes() if node.op != "input"):
        return None
    try:
        carried = _carried(whole, exact)
        if nbytes > FOLD_BYTES and any(op and not isinstance(node.attrs, Spec) for op, node in carried):
            return None
        return _Batch(whole, operands).run(carried)
    except _No:
        return None


def _carried(whole: Loop, exact: bool) -> list[tuple[str, Node]]:
    """How each value that is carried is changed, and by what: a fold of what no trip before has a part in, or, as "",
    passed on from the trip before. Raises ``_No``."""
    carries, found = whole.body.inputs[: whole.carries], []
    folded = set[Node]()
    for carried, after in zip(carries, whole.body.outputs, strict=False):
        if not any(c in topological([after]) for c in carries):
            found.append(("", after))
            continue
        by = [i for i in after.inputs if i is not carried]
        rounds = after.dtype.is_float and after.op in ("add", "mul")
        if after.op not in FOLDS or len(by) != 1 or after.dtype.is_half or (exact and rounds):
            raise _No
        folded.add(carried)
        found.append((after.op, by[0]))
    needed = topological([*(node for _, node in found), *whole.body.outputs[whole.carries :]])
    if any(carried in needed for carried in folded):
        raise _No
    return found


class _Batch:
    """The operators of a body, over all trips."""

    def __init__(self, whole: Loop, operands: Sequence[Node]) -> None:
        self.trips, self.start = whole.trips, operands[: whole.carries]
        self.carried = whole.body.inputs[: whole.carries]
        self.stacked = whole.body.outputs[whole.carries :]
        given = list(zip(whole.body.inputs[whole.carries :], operands[whole.carries :], whole.steps, strict=True))
        self.windows = {inner: (operand, step) for inner, operand, step in given if step}
        self.same = {inner: operand for inner, operand, step in given if not step}
        """Nodes whose values are those of every trip."""
        self.all: dict[Node, Node] = {}
        """Nodes with their values of all trips, one behind the other along a first axis."""

    def run(self, carried: Sequence[tuple[str, Node]]) -> list[Node]:
        """The loop's results. Raises ``_No``."""
        for inner, start, (op, node) in zip(self.carried, self.start, carried, strict=True):
            if not op:
                self._make([node])
                before = build.take_range(self._given(node), 0, 0, self.trips - 1)
                self.all[inner] = build.concat([build.expand_dims(start, (0,)), before], 0)
        self._make([*(node for _, node in carried), *self.stacked])
        ends = [
            build.call(op, start, build.reduce(FOLDS[op], self._given(node), (0,)))
            if op
            else build.row(self._given(node), self.trips - 1)
            for start, (op, node) in zip(self.start, carried, strict=True)
        ]
        return [*ends, *(self._given(output) for output in self.stacked)]

    def _make(self, nodes: Sequence[Node]) -> None:
        """What these need, of all trips."""
        lines = LINES.get()
        for node in topological(nodes):
            if node in self.same or node in self.windows or node in self.all:
                continue
            if not any(i in self.all or i in self.windows for i in node.inputs):
                made = self.same[node] = remade(node, tuple(self.same[i] for i in node.inputs))
            else:
                made = self.all[node] = self._batched(node)
            if lines is not None and node in lines:
                lines.setdefault(made, lines[node])

    def _given(self, node: Node) -> Node:
        """A node's values of all trips."""
        if node in self.same:
            return build.broadcast_to(self.same[node], (self.trips, *node.shape))
        if node in self.windows and node not in self.all:
            shape = node.shape
            self.all[node] = self._moving(node, [((n, s),) for n, s in zip(shape, row_major(shape), strict=True)], 0)
        return self.all[node]

    def _moving(self, window: Node, axes: Sequence[Sequence[tuple[int, int]]], offset: int, label: str = "") -> Node:
        """A view of a window, of all trips."""
        operand, step = self.windows[window]
        begin = 0 if step > 0 else (1 - self.trips) * step
        return build.view(operand, view_map([((self.trips, step),), *axes], begin + offset), label)

    def _batched(self, node: Node) -> Node:
        kind, attrs, op = OPS[node.op].kind, node.attrs, node.op
        if isinstance(attrs, ViewMap):
            (x,) = node.inputs
            if x in self.windows:
                return self._moving(x, attrs.axes, attrs.offset, node.label)
            return build.view(
                self._given(x), view_map([((self.trips, x.type.size),), *attrs.axes], attrs.offset), node.label
            )
        if kind == "map":
            return make(op, [self._aligned(i, node.type.ndim) for i in node.inputs], attrs, label=node.label)
        if isinstance(attrs, Spec):
            return self._product(node, attrs)
        if kind == "concat":
            assert isinstance(attrs, int)
            return make(op, [self._given(i) for i in node.inputs], attrs + 1, label=node.label)
        x, *others = node.inputs
        if kind == "gather":
            assert isinstance(attrs, int)
            return self._taken(node, x, others[0], attrs)
        if x in self.same or any(i not in self.same for i in others):
            raise _No
        given = [self._given(x), *(self.same[i] for i in others)]
        if kind == "reduce":
            assert isinstance(attrs, tuple)
            return make(op, given, tuple(axis + 1 for axis in attrs), label=node.label)
        if isinstance(attrs, PadAttrs):
            return make(op, given, replace(attrs, widths=((0, 0), *attrs.widths)), label=node.label)
        if kind == "composite" or op in ALONG:
            return make(op, given, attrs + 1 if type(attrs) is int else attrs, label=node.label)
        raise _No

    def _aligned(self, node: Node, ndim: int) -> Node:
        """An operand of an elementwise function of so many axes, with its trips before them."""
        if node in self.same:
            return self.same[node]
        x = self._given(node)
        return build.reshape(x, (self.trips, *(1,) * (ndim - node.type.ndim), *node.shape))

    def _product(self, node: Node, spec: Spec) -> Node:
        a, b = (self.same[i] if i in self.same else self._given(i) for i in node.inputs)
        ours, theirs = (
            own if i in self.same else ("trip", *own) for i, own in zip(node.inputs, (spec.a, spec.b), strict=True)
        )
        return build.contract(make_spec(ours, theirs, ("trip", *spec.out)), a, b, node.label)

    def _taken(self, node: Node, x: Node, index: Node, axis: int) -> Node:
        if index in self.same:
            return make(node.op, [self._given(x), self.same[index]], axis + 1, label=node.label)
        if x not in self.same:
            raise _No
        taken = make(node.op, [self.same[x], self._given(index)], axis, label=node.label)
        return build.transpose(taken, [axis, *range(axis), *range(axis + 1, taken.type.ndim)])

"""Loops none of whose trips needs another's, as operators over all trips at once: with a batch axis before their own.

``for i in range(n): out[i] = f(a[i])`` is a loop of small operators to a tracer, each a call of a small kernel. With a
batch axis it is ``f`` of rows: kernels as long as the loop, vectors and threads along it, and rules that see all of it.
What trips only add to (``total += f(a[i])``), or take the largest or smallest of, is a reduction over that axis.
Sums of floats are then rounded otherwise, and may overflow on the way where they did not: such loops are batched when
the program is planned, and not in the trace, which compiled programs are held against.
The batching of operators is that of JAX's ``vmap``; windows of the loop are views of what they move over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eqsat.ir import build
from eqsat.ir.joins import PadAttrs
from eqsat.ir.loop import Loop, LoopResult, loop, with_loops
from eqsat.ir.node import Formed, Graph, Node, remade, topological
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.table import OPS, make
from eqsat.ir.types import row_major
from eqsat.ir.views import ViewMap, view_map

__all__ = ["FOLDS", "batched"]

TRIP_BYTES = 1 << 18
"""Of what a trip computes at most: longer trips are no faster together, and what they pass on stays in a cache."""
FOLD_BYTES = 1 << 12
"""Of what a trip computes at most that folds it, unless that is a product: a sum stays in registers or near them from
trip to trip, while two reductions, of a trip and over all, pass on what is between them."""
BATCH_BYTES = 1 << 26
"""Of a value of all trips at most, and of those together that are no maps, which kernels store: a loop over rows may
have been written for what all of them would take."""
FOLDS = {"add": "reduce_sum", "mul": "reduce_prod", "maximum": "reduce_max", "minimum": "reduce_min"}
"""What trips may do to a value that they carry, and the reduction of what they do it with."""
ALONG = (
    "cumsum", "cumprod", "cummax", "cummin",
    "sort", "sort_stable", "sort_heapsort", "argsort", "argsort_stable", "argsort_heapsort",
)  # fmt: skip
"""Operators along one axis, which is what their attributes are."""


class _No(Exception):
    """An operator has no form with a batch axis."""


@dataclass(frozen=True)
class _Carried:
    """What a trip makes of a value that it carries: ``value`` folded into it (see ``FOLDS``), or, without a ``fold``,
    ``value`` in its place. What was folded before has no part in that, nor in anything else of a trip."""

    fold: str
    value: Node

    @property
    def rounds(self) -> bool:
        """Whether another order gives another result."""
        return self.fold in ("add", "mul") and self.value.dtype.is_float


def batched(graph: Graph, *, rounding: bool = False) -> Formed | None:
    """The graph with such loops as operators, also those inside of others; None where all stay.

    ``rounding``: also those whose sums and products of floats are then taken in another order.
    """
    origins: dict[Node, Node] = {}

    def results(node: Node, inputs: tuple[Node, ...]) -> list[Node]:
        assert isinstance(node.attrs, LoopResult)
        return _results(node.attrs.loop, inputs, rounding, origins)

    return with_loops(graph, results, origins)


def _results(whole: Loop, operands: Sequence[Node], rounding: bool, origins: dict[Node, Node]) -> list[Node]:
    """The results of a loop, by operators of all trips or by the loop."""
    inside = batched(whole.body, rounding=rounding)
    own: dict[Node, Node] = {}
    if inside is not None:
        whole, own = replace(whole, body=inside.graph), dict(inside.origins)
    batch = _Batch(whole, operands)
    results = batch.run(rounding)
    origins.update(own if results is None else {new: own.get(old, old) for new, old in batch.origins.items()})
    return loop(whole, operands) if results is None else results


def _is_small(whole: Loop) -> bool:
    """Whether a loop is one that may be operators, and neither a trip nor all of them compute too much for that."""
    if whole.conditional or whole.tried or whole.trips < 2:
        return False
    nodes = [node for node in whole.body.nodes() if OPS[node.op].kind not in ("view", "source")]
    stored = sum(node.type.nbytes for node in nodes if OPS[node.op].kind != "map")
    largest = max((node.type.nbytes for node in nodes), default=0)
    least = sum(node.type.nbytes for node in nodes)
    return least <= TRIP_BYTES and whole.trips * max(stored, largest) <= BATCH_BYTES


def _carried(whole: Loop) -> list[_Carried]:
    """How each value that is carried is changed. Raises ``_No``."""
    carries, found = frozenset(whole.body.inputs[: whole.carries]), list[_Carried]()
    folded = set[Node]()
    for carried, after in zip(whole.body.inputs, whole.body.outputs[: whole.carries], strict=False):
        if carries.isdisjoint(topological([after])):
            found.append(_Carried("", after))
            continue
        by = [i for i in after.inputs if i is not carried]
        if after.op not in FOLDS or len(by) != 1 or after.dtype.is_half:
            raise _No
        folded.add(carried)
        found.append(_Carried(after.op, by[0]))
    if not folded.isdisjoint(topological([*(c.value for c in found), *whole.body.outputs[whole.carries :]])):
        raise _No
    computed = sum(node.type.nbytes for node in whole.body.nodes() if OPS[node.op].kind not in ("view", "source"))
    if computed > FOLD_BYTES and any(each.fold and not isinstance(each.value.attrs, Spec) for each in found):
        raise _No
    return found


class _Batch:
    """The operators of a body, over all trips."""

    def __init__(self, whole: Loop, operands: Sequence[Node]) -> None:
        self.whole = whole
        self.trips, self.start = whole.trips, operands[: whole.carries]
        self.carried = whole.body.inputs[: whole.carries]
        self.stacked = whole.body.outputs[whole.carries :]
        given = list(zip(whole.body.inputs[whole.carries :], operands[whole.carries :], whole.steps, strict=True))
        self.windows = {inner: (operand, step) for inner, operand, step in given if step}
        self.same = {inner: operand for inner, operand, step in given if not step}
        """Nodes whose values are those of every trip."""
        self.all: dict[Node, Node] = {}
        """Nodes with their values of all trips, one behind the other along a first axis."""
        self.origins: dict[Node, Node] = {}

    def run(self, rounding: bool) -> list[Node] | None:
        """The loop's results; None where it stays one."""
        if not _is_small(self.whole):
            return None
        try:
            carried = _carried(self.whole)
            return None if any(each.rounds for each in carried) and not rounding else self._all(carried)
        except _No:
            return None

    def _all(self, carried: Sequence[_Carried]) -> list[Node]:
        for inner, start, each in zip(self.carried, self.start, carried, strict=True):
            if not each.fold:
                self._make([each.value])
                before = build.take_range(self._given(each.value), 0, 0, self.trips - 1)
                self.all[inner] = build.concat([build.expand_dims(start, (0,)), before], 0)
        self._make([*(each.value for each in carried), *self.stacked])
        ends = [self._end(*each) for each in zip(self.start, carried, self.whole.body.outputs, strict=False)]
        return [*ends, *(self._given(output) for output in self.stacked)]

    def _end(self, start: Node, carried: _Carried, after: Node) -> Node:
        """What is carried out of the last trip."""
        values = self._given(carried.value)
        if not carried.fold:
            return build.row(values, self.trips - 1)
        folded = build.reduce(FOLDS[carried.fold], values, (0,))
        end = build.call(carried.fold, start, folded)
        self.origins |= {folded: after, end: after}
        return end

    def _make(self, nodes: Sequence[Node]) -> None:
        """What these need, of all trips."""
        for node in topological(nodes):
            if node in self.same or node in self.windows or node in self.all:
                continue
            if not any(i in self.all or i in self.windows for i in node.inputs):
                made = self.same[node] = remade(node, tuple(self.same[i] for i in node.inputs))
            else:
                made = self.all[node] = self._batched(node)
            self.origins.setdefault(made, node)

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

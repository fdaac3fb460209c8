"""Loops distributed: contractions that need nothing a loop carries are computed for all of its trips before it.

What reads windows alone is the same operator of one more axis, the trips. A trip that multiplies its row by a matrix
reads all of that matrix for it, where a product of all rows reads it once: the input side of a recurrent layer, the
covariance of one column with all others. This is loop distribution with expansion (Kennedy and Allen, "Optimizing
Compilers for Modern Architectures", 2001), of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby

from eqsat.ir import build
from eqsat.ir.loop import Loop, LoopResult, loop
from eqsat.ir.node import Formed, Graph, Node, remade, topological
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.table import OPS, make
from eqsat.ir.types import TensorType
from eqsat.ir.views import ViewMap, view_map

Pays = Callable[["Ahead"], bool]


@dataclass(frozen=True)
class Ahead:
    """A contraction of a loop's body that may be computed before it. ``alike``: of its operands those that are the same
    on every trip. ``instead``: it is a part of this contraction of a concatenation; of all of it None. ``held``: bytes
    of all that the body reads as it is, or carries. ``made``: bytes of what it needs computed for all trips."""

    product: Node
    alike: tuple[Node, ...]
    instead: Node | None
    trips: int
    held: int
    made: int


class _Trips:
    """The nodes of a loop's body that need nothing it carries, for all trips at once."""

    def __init__(self, loop: Loop, operands: Sequence[Node]) -> None:
        self.loop = loop
        windows = zip(operands[loop.carries :], loop.steps, strict=True)
        self.of_input = dict(zip(loop.body.inputs[loop.carries :], windows, strict=True))
        self.wholes: dict[Node, Node] = {}
        self.made: dict[Node, Node] = {}
        self.known: set[Node] = set()
        self.before = dict(zip(loop.body.inputs, operands, strict=False))
        self.after = dict(zip(loop.body.inputs[: loop.carries], loop.body.outputs, strict=False))
        self.state: set[Node] = set()
        self.moving: set[Node] = set()
        self._learn()

    def _learn(self) -> None:
        """Which nodes need what a trip makes of the one before it, and which of the others differ between trips.

        A value that is carried, but made of windows alone, is a window of the trip before: only what depends on itself,
        over any number of trips, is state. Found as in Kahn's topological order, of which cycles are what is left.
        """
        nodes = dict.fromkeys([*self.loop.body.nodes(), *self.after])
        users: dict[Node, list[Node]] = {node: [] for node in nodes}
        missing = {node: len(set(self._needs(node))) for node in nodes}
        for node in nodes:
            for need in set(self._needs(node)):
                users[need].append(node)
        ready = [node for node in nodes if not missing[node]]
        for node in ready:  # it grows
            window = node in self.of_input and self.of_input[node][1] != 0
            if window or node in self.after or any(i in self.moving for i in node.inputs):
                self.moving.add(node)
            for user in users[node]:
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
        self.state = nodes.keys() - set(ready)

    def made_for(self, product: Node) -> int:
        """Bytes of what a product of all trips needs that moves and is no view, for all of them."""
        seen = {product}
        stack = [product]
        total = 0
        while stack:
            for node in self._needs(stack.pop()):
                if node in self.moving and node not in seen:
                    seen.add(node)
                    stack.append(node)
                    stored = node in self.after or OPS[node.op].kind not in ("source", "view")
                    total += self.loop.trips * node.type.nbytes * stored
        return total

    def learn(self, node: Node) -> None:
        """Whether a node depends on what is carried, or moves; its operands are known."""
        if any(i in self.state for i in node.inputs):
            self.state.add(node)
        elif any(i in self.moving for i in node.inputs):
            self.moving.add(node)

    def whole(self, node: Node) -> Node:
        """A node that is the same on every trip, outside of the loop."""
        for each in topological([node], self.wholes):
            found = self.of_input.get(each)
            self.wholes[each] = found[0] if found else remade(each, tuple(self.wholes[i] for i in each.inputs))
        return self.wholes[node]

    def of_all(self, node: Node) -> Node | None:
        """A node that moves, with a leading axis of trips; None where there is no such operator."""
        stack = [node]
        while stack:
            each = stack[-1]
            needed = [i for i in self._needs(each) if i in self.moving]
            missing = [] if each in self.known else [i for i in needed if i not in self.known]
            if missing:
                stack += missing
                continue
            stack.pop()
            if each not in self.known:
                made = self._of_all(each) if all(i in self.made for i in needed) else None
                self.known.add(each)
                if made is not None:
                    self.made[each] = made
        return self.made.get(node)

    def _needs(self, node: Node) -> tuple[Node, ...]:
        return (self.after[node],) if node in self.after else node.inputs

    def _of_all(self, node: Node) -> Node | None:
        trips, kind, attrs = self.loop.trips, OPS[node.op].kind, node.attrs
        if node in self.after:
            first = build.expand_dims(self.before[node], [0])
            rest = self._repeated(self.after[node])
            return build.concat([first, build.take_range(rest, 0, 0, trips - 1)], 0)
        if node.op == "input":
            operand, step = self.of_input[node]
            start = (trips - 1) * -step if step < 0 else 0
            return build.view(operand, view_map([[(trips, step)], [(node.type.size, 1)]], start), node.label)
        if isinstance(attrs, ViewMap):
            (x,) = node.inputs
            axes = [[(trips, x.type.size)], *attrs.axes]
            return build.view(self.made[x], view_map(axes, attrs.offset), node.label)
        if isinstance(attrs, Spec):
            a, b = (self.made[i] if i in self.moving else self.whole(i) for i in node.inputs)
            of_a, of_b = (
                ("t", *part) if i in self.moving else part
                for i, part in zip(node.inputs, (attrs.a, attrs.b), strict=True)
            )
            return build.contract(make_spec(of_a, of_b, ("t", *attrs.out)), a, b, node.label)
        if kind == "map":
            return make(node.op, [self._aligned(i, node.type.ndim) for i in node.inputs], attrs, label=node.label)
        if kind == "concat" and isinstance(attrs, int):
            return build.concat([self._repeated(i) for i in node.inputs], attrs + 1)
        if kind == "reduce" and isinstance(attrs, tuple):
            return make(node.op, [self.made[i] for i in node.inputs], tuple(a + 1 for a in attrs), label=node.label)
        return None

    def _repeated(self, node: Node) -> Node:
        if node in self.moving:
            return self.made[node]
        return build.broadcast_to(self.whole(node), (self.loop.trips, *node.shape))

    def _aligned(self, node: Node, ndim: int) -> Node:
        if node not in self.moving:
            return self.whole(node)
        ones = (1,) * (ndim - node.type.ndim)
        return build.reshape(self.made[node], (self.loop.trips, *ones, *node.shape))


def distributed(graph: Graph, pays: Pays) -> Formed | None:
    """The graph with contractions computed before the loops in whose bodies they are, where that ``pays``; None where
    none does."""
    done: dict[Node, Node] = {}
    origins: dict[Node, Node] = {}
    loops: dict[tuple[Loop, tuple[Node, ...]], list[Node]] = {}
    for node in graph.nodes():
        inputs = tuple(done[i] for i in node.inputs)
        if isinstance(node.attrs, LoopResult):
            whole = (node.attrs.loop, inputs)
            if whole not in loops:
                loops[whole] = _Distribution(node.attrs.loop, inputs, pays, origins).run()
            done[node] = loops[whole][node.attrs.index]
        else:
            done[node] = remade(node, inputs)
    made = Graph(graph.inputs, tuple(done[o] for o in graph.outputs), graph.names)
    changed = any(new is not old for old, new in done.items())
    return Formed(made, {**origins, **{new: old for old, new in done.items()}}) if changed else None


@dataclass
class _Distribution:
    """One loop without the products that pay before it."""

    loop: Loop
    operands: Sequence[Node]
    pays: Pays
    origins: dict[Node, Node]
    extra: list[tuple[Node, Node]] = field(default_factory=list)
    """Inputs of the body that are new, and the operands whose rows they are."""

    def run(self) -> list[Node]:
        """The results of the loop."""
        same = loop(self.loop, self.operands)
        if self.loop.conditional or self.loop.tried or self.loop.trips < 2:
            return same
        inside = distributed(self.loop.body, self.pays)
        if inside is not None:
            self.loop = replace(self.loop, body=inside.graph)
            self.origins |= inside.origins
            same = loop(self.loop, self.operands)
        trips = _Trips(self.loop, self.operands)
        done: dict[Node, Node] = {}
        for node in self.loop.body.nodes():
            done[node] = self._computed(node, trips, done)
            if done[node] is not node:
                self.origins.setdefault(done[node], node)
        if not self.extra:
            return same
        for old, new in trips.made.items():
            self.origins.setdefault(new, old)
        outputs = tuple(done[o] for o in self.loop.body.outputs)
        used = set(topological(outputs))
        given = zip(
            self.loop.body.inputs[self.loop.carries :], self.operands[self.loop.carries :], self.loop.steps, strict=True
        )
        kept = [(node, operand, step) for node, operand, step in given if node in used]
        kept += [(node, operand, node.type.size) for node, operand in self.extra]
        carries = self.loop.body.inputs[: self.loop.carries]
        renamed = {
            node: build.input_node(n, node.type, node.label) for n, node in enumerate([*carries, *(k[0] for k in kept)])
        }
        for node in topological(outputs, renamed):
            renamed[node] = remade(node, tuple(renamed[i] for i in node.inputs))
            self.origins.setdefault(renamed[node], self.origins.get(node, node))
        body = Graph(tuple(renamed[n] for n in (*carries, *(k[0] for k in kept))), tuple(renamed[o] for o in outputs))
        made = Loop(self.loop.trips, body, self.loop.carries, tuple(step for _, _, step in kept))
        return loop(made, [*self.operands[: self.loop.carries], *(operand for _, operand, _ in kept)])

    def _computed(self, node: Node, trips: _Trips, done: Mapping[Node, Node]) -> Node:
        """A node of the body, read where it was computed before."""
        if isinstance(node.attrs, Spec) and node in trips.moving and self._pays(node, trips, None):
            return self._row(node, trips)
        parts = self._of_parts(node, trips) if isinstance(node.attrs, Spec) and node in trips.state else None
        if parts is None:
            return remade(node, tuple(done[i] for i in node.inputs)) if node.inputs else node
        made = [self._row(part, trips) if part in trips.moving else self._inside(part, trips, done) for part in parts]
        return reduce(lambda total, part: build.call("add", total, part), made)

    def _inside(self, part: Node, trips: _Trips, done: Mapping[Node, Node]) -> Node:
        """A part of a product that stays in the loop, of the body's new nodes."""
        fresh = dict(done)
        for each in topological([part], fresh):
            fresh[each] = remade(each, tuple(fresh[i] for i in each.inputs)) if each.inputs else each
        return fresh[part]

    def _row(self, product: Node, trips: _Trips) -> Node:
        """What a trip reads of the product of all trips."""
        whole = trips.of_all(product)
        assert whole is not None
        self.origins.setdefault(whole, product)
        known = next((node for node, operand in self.extra if operand is whole), None)
        if known is None:
            # A number that no input of the body has; all are numbered anew in the end.
            number = len(self.loop.body.inputs) + len(self.extra)
            known = build.input_node(number, TensorType((product.type.size,), product.dtype), product.label)
            self.extra.append((known, whole))
        return build.reshape(known, product.shape)

    def _pays(self, product: Node, trips: _Trips, instead: Node | None) -> bool:
        alike = tuple(i for i in product.inputs if i not in trips.moving)
        body, carries = self.loop.body, self.loop.carries
        still = [n for n, step in zip(body.inputs[carries:], self.loop.steps, strict=True) if not step]
        held = sum(node.type.nbytes for node in (*body.inputs[:carries], *still))
        found = Ahead(product, alike, instead, self.loop.trips, held, trips.made_for(product))
        return product.type.size > 0 and self.pays(found) and trips.of_all(product) is not None

    def _of_parts(self, node: Node, trips: _Trips) -> list[Node] | None:
        """A product with a concatenation, of parts that depend on what is carried and parts that do not, as a product
        of each; None where it is none, or where computing the latter before does not pay."""
        spec = node.attrs
        assert isinstance(spec, Spec)
        for slot, whole in enumerate(node.inputs):
            other, labels = node.inputs[1 - slot], (spec.a, spec.b)
            if whole.op != "concat" or other in trips.state:
                continue
            assert isinstance(whole.attrs, int)
            axis, label = whole.attrs, labels[slot][whole.attrs]
            if label not in spec.summed:
                continue
            parts: list[Node] = []
            start = 0
            for _, run in groupby(whole.inputs, key=lambda i: i in trips.state):
                members = list(run)
                size = sum(i.shape[axis] for i in members)
                at = labels[1 - slot].index(label)
                factor = build.take_range(other, at, start, start + size)
                own = build.concat(members, axis) if len(members) > 1 else members[0]
                a, b = (own, factor) if slot == 0 else (factor, own)
                part = build.contract(spec, a, b, node.label)
                for each in topological([part]):
                    trips.learn(each)
                parts.append(part)
                start += size
            ahead = [part for part in parts if part in trips.moving]
            if ahead and all(self._pays(part, trips, node) for part in ahead):
                return parts
        return None

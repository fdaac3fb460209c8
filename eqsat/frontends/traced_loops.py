"""Loops in a traced function: a body is traced once, on inputs of its own, and closed to a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eqsat.errors import ConcretizationError
from eqsat.frontends.carries import carry_and_result, check_same, is_leaf, type_of
from eqsat.frontends.convert import is_weak, known_dtype, lift
from eqsat.frontends.memory import LEVEL
from eqsat.frontends.pytree import Tree, rebuild, tree_of
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT
from eqsat.ir import build, complexes
from eqsat.ir.loop import Loop, loop
from eqsat.ir.node import LINE, ConstArray, Graph, Node, substitute, topological
from eqsat.ir.sources import InputAttrs
from eqsat.ir.types import TensorType, row_major
from eqsat.ir.views import strided

BOUND = 1 << 40
"""Inputs of bodies are numbered from here while they are traced, each once in a trace."""


def check_closed(outputs: Sequence[Node]) -> None:
    """``ConcretizationError`` where a program reads what only the body of a loop has."""
    for node in topological(outputs):
        if isinstance(node.attrs, InputAttrs) and node.attrs.index >= BOUND:
            raise ConcretizationError(
                "a value from the body of a loop is used outside of it: return it from the body, as part of the carry "
                "or of what is stacked"
            )


@contextmanager
def inside() -> Iterator[None]:
    """Arrays from outside are not written to."""
    before = LEVEL.set(LEVEL.get() + 1)
    try:
        yield
    finally:
        LEVEL.reset(before)


@contextmanager
def on_users_line() -> Iterator[None]:
    """Operators are the user's running line's."""
    before = LINE.set(user_line())
    try:
        yield
    finally:
        LINE.reset(before)


@dataclass
class TracedBody:
    """A body that was traced: its inputs, and what it returned."""

    carries: list[Node]
    rows: list[Node]
    tree: Tree
    outputs: list[Any]
    made: Tree
    stacked: list[Any]


def fresh_input(type: TensorType) -> Node:
    """An input of a body."""
    return fresh_value(type)[0]


def fresh_value(type: TensorType) -> tuple[Node, Node]:
    """An input of a body, and its value: of complex numbers their parts lie side by side in it."""
    trace = CURRENT.get()
    assert trace is not None
    trace.bound += 1
    return complexes.input_of(BOUND + trace.bound, type, "")


def valued(node: Node, type: TensorType) -> TracedArray:
    """The array of a loop's result, which a complex one is in parts."""
    return in_rows(complexes.of_parts(node) if type.dtype.kind == "complex" else node)


def in_rows(node: Node) -> TracedArray:
    """An array of its own memory in row-major order, as loops carry it and branches return it."""
    made = TracedArray(node)
    made.memory.orderly = True
    return made


def scan_traced(
    name: str,
    f: Callable[[Any, Any], Any],
    init: Any,
    rows: tuple[Tree, list[Any]],
    trips: int,
    reverse: bool,
    first: int | None = None,
) -> tuple[Any, Any]:
    """What ``eqsat.scan`` returns, by one :class:`Loop`. ``first``: the only rows are numbers that count from there."""
    given: list[Any] = []
    tree = tree_of(init, given, is_leaf)
    operands = [lift(leaf) for leaf in rows[1]]
    types, body = settled_body(name, f, tree, given, rows[0], operands)
    with on_users_line():
        results = [begun(v, t) for v, t in zip(given, types, strict=True)]
        outputs = [complexes.joined(lift(leaf)) for leaf in (*body.outputs, *body.stacked)]
        if trips:
            closing = Closing(body, trips, reverse, list(map(complexes.joined, operands)), first)
            graph = closing.graph(outputs)
            made = Loop(trips, graph, len(given), tuple(closing.steps))
            results = loop(made, [*results, *closing.others])
        else:
            results += [build.const(np.zeros((0, *n.shape), n.dtype.numpy), n.dtype) for n in outputs[len(given) :]]
        if reverse and trips:
            results[len(given) :] = [
                build.slices(n, [trips - 1, *[0] * (len(n.shape) - 1)], [-1, *[1] * (len(n.shape) - 1)], n.shape)
                for n in results[len(given) :]
            ]
    types = [*types, *map(type_of, body.stacked)]
    arrays = [valued(node, type) for node, type in zip(results, types, strict=True)]
    return rebuild(tree, arrays[: len(given)]), rebuild(body.made, arrays[len(given) :])


def begun(value: Any, type: TensorType) -> Node:
    """What a part of the carry begins as; of complex numbers their parts side by side."""
    if is_weak(value):
        return complexes.joined(lift(np.asarray(value, type.dtype.numpy)))
    return complexes.joined(lift(value))


def settled_body(
    name: str, f: Callable[[Any, Any], Any], tree: Tree, given: Sequence[Any], rows: Tree, operands: Sequence[Node]
) -> tuple[list[TensorType], TracedBody]:
    """The types that are carried, and the body of these: a number is of the type that the first trip makes of it."""
    types = [None if is_weak(leaf) else type_of(leaf) for leaf in given]
    body = _traced(name, f, tree, given, types, rows, operands)
    if None in types and body.tree == tree:
        types = [t or TensorType((), type_of(leaf).dtype) for t, leaf in zip(types, body.outputs, strict=True)]
        body = _traced(name, f, tree, given, types, rows, operands)
    settled = [t or type_of(v) for t, v in zip(types, given, strict=True)]
    check_same(name, [tree, body.tree], [settled, [type_of(leaf) for leaf in body.outputs]])
    return settled, body


def _traced(
    name: str,
    f: Callable[[Any, Any], Any],
    tree: Tree,
    given: Sequence[Any],
    types: Sequence[TensorType | None],
    rows: Tree,
    operands: Sequence[Node],
) -> TracedBody:
    """The body on inputs of its own; numbers of no type yet are passed as they are."""
    carries = [fresh_value(type or TensorType((), known_dtype(float))) for type in types]
    inputs = [fresh_value(TensorType(node.shape[1:], node.dtype)) for node in operands]
    with inside():
        seen = [TracedArray(value) for _, value in inputs]
        for row in seen:
            row.memory.protected = "a row of what a loop runs over must not be written to: write to a copy"
        pairs = zip(carries, types, given, strict=True)
        carry = rebuild(tree, [in_rows(found) if type else value for (_, found), type, value in pairs])
        after, y = carry_and_result(f(carry, rebuild(rows, seen)), name)
        outputs: list[Any] = []
        stacked: list[Any] = []
        after_tree = tree_of(after, outputs, is_leaf)
        made = tree_of(y, stacked, is_leaf)
        # What they are now: later writes to them are not the body's.
        outputs, stacked = ([TracedArray(lift(v)) for v in values] for values in (outputs, stacked))
    nodes, row_nodes = ([node for node, _ in found] for found in (carries, inputs))
    return TracedBody(nodes, row_nodes, after_tree, outputs, made, stacked)


def _small(node: Node) -> bool:
    """Whether a node is no input and no array, which are operands of a loop."""
    if isinstance(node.attrs, ConstArray):
        return node.type.size <= 1
    return not isinstance(node.attrs, InputAttrs)


@dataclass
class Closing:
    """A body as a graph of its own: what it reads from outside becomes operands of the loop."""

    body: TracedBody
    trips: int
    reverse: bool
    rows: Sequence[Node]
    first: int | None
    others: list[Node] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    known: dict[tuple[Node, int], Node] = field(default_factory=dict)

    def graph(self, outputs: Sequence[Node]) -> Graph:
        bound = {*self.body.carries, *self.body.rows}
        nodes = topological(outputs)
        inner = set(bound)
        """Those that depend on the body's inputs."""
        own: set[Node] = set()
        """Those made of nothing from outside."""
        for node in nodes:
            if any(i in inner for i in node.inputs):
                inner.add(node)
            elif node not in bound and _small(node) and all(i in own for i in node.inputs):
                own.add(node)
        self.inputs = [build.input_node(n, node.type) for n, node in enumerate(self.body.carries)]
        replaced = dict(zip(self.body.carries, self.inputs, strict=True))
        moved = {node: made for node in nodes if (made := self._moving(node, inner)) is not None}
        read = dict.fromkeys(
            i for node in (*topological(outputs, moved), *moved) if node in inner and node not in moved
            for i in node.inputs
        ) | dict.fromkeys(outputs)  # fmt: skip
        for node in read:
            if node in self.body.rows:
                replaced[node] = self._row(self.rows[self.body.rows.index(node)])
            elif node not in inner and node not in own:
                replaced[node] = self._operand(node, 0)
        for node, (table, offset, axis) in moved.items():
            steps = row_major(table.shape)
            window = self._operand(table, steps[axis])
            rest = [a for a in range(table.type.ndim) if a != axis]
            shape = [table.shape[a] for a in rest]
            part = build.view(window, strided(shape, [steps[a] for a in rest], offset * steps[axis]))
            replaced[node] = build.reshape(part, node.shape)
        return Graph(tuple(self.inputs), tuple(substitute(outputs, replaced)))

    def _operand(self, node: Node, step: int) -> Node:
        if (node, step) not in self.known:
            size = node.type.size - (self.trips - 1) * abs(step)
            made = build.input_node(len(self.inputs), TensorType((size,), node.dtype) if step else node.type)
            self.others.append(node)
            self.steps.append(step)
            self.inputs.append(made)
            self.known[node, step] = made
        return self.known[node, step]

    def _row(self, node: Node) -> Node:
        """A trip's row of an operand."""
        shape = node.shape[1:]
        size = TensorType(shape, node.dtype).size
        if not size:
            return build.const(np.zeros(shape, node.dtype.numpy), node.dtype)
        return build.reshape(self._operand(node, -size if self.reverse else size), shape)

    def _moving(self, node: Node, inner: set[Node]) -> tuple[Node, int, int] | None:
        """Of elements taken at the loop's own number: the table, where the first trip begins, and the axis."""
        if node.op != "gather" or self.first is None or node.inputs[0] in inner or not node.type.size:
            return None
        table, index = node.inputs
        axis = node.attrs
        assert isinstance(axis, int)
        offset = self._counted(index)
        if offset is None or index.type.size != 1 or not 0 <= offset <= table.shape[axis] - self.trips:
            return None
        return table, offset, axis

    def _counted(self, node: Node) -> int | None:
        """The value on the first trip of an index that grows by one on each."""
        if node is self.body.rows[0]:
            return self.first
        if node.op in ("view", "wrap_index", "cast"):
            found = self._counted(node.inputs[0])
            return found if node.op != "wrap_index" or found is None or found >= 0 else None
        if node.op in ("add", "sub"):
            one, other = node.inputs
            found, by = self._counted(one), build.scalar_value(other)
            if node.op == "add" and found is None:
                found, by = self._counted(other), build.scalar_value(one)
            if found is not None and isinstance(by, int):
                return found + (by if node.op == "add" else -by)
        return None

"""Loops and branches that are said rather than found: JAX's ``scan``, ``fori_loop`` and ``cond``, for NumPy.

While a function is traced, a body is traced once, on inputs of its own, and becomes a :class:`~eqsat.ir.loop.Loop`:
ten thousand trips compile like ten. Outside of tracing they are Python's loops over NumPy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eqsat.errors import CarryError, ConcretizationError, ShapeError
from eqsat.frontends.convert import is_weak, known_dtype, lift, literal
from eqsat.frontends.memory import LEVEL
from eqsat.frontends.pytree import Leaf, Static, Tree, leaf_names, rebuild, tree_of
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import CURRENT, TracedArray
from eqsat.ir import build
from eqsat.ir.loop import EXPECTED, Loop, loop
from eqsat.ir.node import LINE, ConstArray, Graph, Node, substitute, topological
from eqsat.ir.sources import InputAttrs
from eqsat.ir.types import TensorType, row_major
from eqsat.ir.views import strided

__all__ = ["check_closed", "cond", "fori_loop", "scan", "while_loop"]

BOUND = 1 << 40
"""Inputs of bodies are numbered from here while they are traced, each once in a trace."""

Pytree = Any


def scan(
    f: Callable[[Pytree, Pytree], tuple[Pytree, Pytree]],
    init: Pytree,
    xs: Pytree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Pytree, Pytree]:
    """``carry, y = f(carry, x)`` for every row ``x`` of ``xs``, as ``jax.lax.scan``: the last carry, and all ``y``.

    ``init``, ``xs`` and what ``f`` returns are arrays, numbers, or nested tuples, lists, dicts and dataclasses of them.

    Args:
        f: called once while a function is traced. What it carries keeps structure, shapes and element types; a Python
            number in ``init`` takes the type that ``f`` makes of it. It must not write to arrays from outside.
        init: the first carry.
        xs: arrays with a first axis of one length, the trips; None for ``length`` trips without rows.
        length: how many trips; needed without ``xs``.
        reverse: begin with the last row; ``y`` of a row stays in its place.
        unroll: taken and not used: the compiler decides.

    Returns:
        The last carry, and the ``y`` of all trips stacked along a first axis.

    Raises:
        CarryError: a carry changes its structure, shape or element type.
        ShapeError: rows of ``xs`` are not ``length``, or of different numbers.
    """
    leaves: list[Any] = []
    tree = tree_of(xs, leaves, _is_leaf)
    trips = _trips(leaves, length)
    if CURRENT.get() is None:
        return _scan_plain("eqsat.scan", f, init, (tree, [np.asarray(leaf) for leaf in leaves]), trips, reverse)
    return _scan_traced("eqsat.scan", f, init, (tree, leaves), trips, reverse)


def fori_loop(
    lower: int, upper: int, body_fun: Callable[[Any, Pytree], Pytree], init_val: Pytree, *, unroll: int | None = None
) -> Pytree:
    """``for i in range(lower, upper): val = body_fun(i, val)``, as ``jax.lax.fori_loop``: the last ``val``.

    Args:
        lower: the first ``i``, an int. Where it or ``upper`` depends on a traced function's arguments, this is a
            :func:`while_loop`.
        upper: the int that ends it.
        body_fun: called once while a function is traced, with ``i`` as a NumPy int64 and a value like ``init_val``.
        init_val: as ``init`` of :func:`scan`.
        unroll: taken and not used.

    Raises:
        CarryError: the value changes its structure, shape or element type.
        TypeError: a bound is no int.
    """
    if any(isinstance(bound, TracedArray) and bound.known is None for bound in (lower, upper)):

        def turn(carry: tuple[Any, Any, Pytree]) -> tuple[Any, Any, Pytree]:
            i, end, value = carry
            return i + np.int64(1), end, body_fun(i, value)

        begin = [_index(bound) for bound in (lower, upper)]
        return while_loop(lambda carry: carry[0] < carry[1], turn, (*begin, init_val))[2]
    first, end = (_int(bound) for bound in (lower, upper))
    index = np.arange(first, max(first, end), dtype=np.int64)

    def step(value: Pytree, i: Any) -> tuple[Pytree, None]:
        return body_fun(i, value), None

    rows: tuple[Tree, list[Any]] = (Leaf(0), [index])
    if CURRENT.get() is None:
        return _scan_plain("eqsat.fori_loop", step, init_val, rows, index.size, False)[0]
    return _scan_traced("eqsat.fori_loop", step, init_val, rows, index.size, False, first)[0]


def while_loop(cond_fun: Callable[[Pytree], Any], body_fun: Callable[[Pytree], Pytree], init_val: Pytree) -> Pytree:
    """``while cond_fun(val): val = body_fun(val)``, as ``jax.lax.while_loop``: the last ``val``.

    Between trips the condition is looked at by Python, which costs some microseconds; the trip itself is compiled.

    Args:
        cond_fun: of the value, a bool or a number that is one.
        body_fun: called once while a function is traced, with a value like ``init_val``.
        init_val: as ``init`` of :func:`scan`.

    Raises:
        CarryError: the value changes its structure, shape or element type.
        ShapeError: the condition is an array.
    """
    name = "eqsat.while_loop"
    given: list[Any] = []
    tree = tree_of(init_val, given, _is_leaf)

    def step(value: Pytree, _: None) -> tuple[Pytree, Any]:
        after = body_fun(value)
        return after, _truth(cond_fun(after))

    if CURRENT.get() is None:
        body = _Plain(name, step, tree, given, Static(None))
        if any(map(is_weak, given)):
            body.try_out([])
        value = body.first()
        holds = _truth(cond_fun(value))
        while holds:
            value = body.trip(value, [])
            (holds,) = body.parts
        return value
    types, traced = _settled(name, step, tree, given, Static(None), [])
    with _line():
        start = [_begun(v, t) for v, t in zip(given, types, strict=True)]
    with _inside():
        first = lift(_truth(cond_fun(rebuild(tree, list(map(TracedArray, start))))))
    with _line():
        traced.carries.insert(0, _fresh(TensorType((), known_dtype(bool))))
        closing = _Closing(traced, 1, False, [], None)
        graph = closing.graph([lift(leaf) for leaf in (*traced.stacked, *traced.outputs)])
        made = Loop(EXPECTED, graph, 1 + len(start), tuple(closing.steps), conditional=True)
        results = loop(made, [first, *start, *closing.others])[1:]
    return rebuild(tree, list(map(TracedArray, results)))


def cond(pred: Any, true_fun: Callable[..., Pytree], false_fun: Callable[..., Pytree], *operands: Pytree) -> Pytree:
    """``true_fun(*operands) if pred else false_fun(*operands)``, as ``jax.lax.cond``.

    While a function is traced, and ``pred`` depends on its arguments, both are computed and one is chosen, as
    ``np.where`` does: a branch that is not taken costs its time, and may divide by zero, but changes no value.

    Args:
        pred: a bool, or a number that is one.
        true_fun: what is returned if ``pred`` holds.
        false_fun: what is returned otherwise: of the same structure, shapes and element types.
        operands: of both.

    Raises:
        CarryError: the branches return something different.
    """
    known = pred.known if isinstance(pred, TracedArray) else np.asarray(pred)
    if np.shape(pred) != ():
        raise ShapeError(f"eqsat.cond: the condition has shape {np.shape(pred)}: pass one value", user_line())
    if known is not None:
        return (true_fun if bool(known) else false_fun)(*operands)
    with _inside():
        found: list[list[Any]] = [[], []]
        trees = [tree_of(fn(*operands), f, _is_leaf) for fn, f in zip((true_fun, false_fun), found, strict=True)]
        nodes = [[lift(leaf) for leaf in leaves] for leaves in found]
    types = [[n.type for n in row] for row in nodes]
    _same("eqsat.cond", trees, types, "one branch returns {}, the other one {}", "result")
    with _line():
        chosen = build.cast(lift(pred), known_dtype(bool))
        results = [
            TracedArray(build.call("where", build.broadcast_to(chosen, a.shape), a, b))
            for a, b in zip(*nodes, strict=True)
        ]
    return rebuild(trees[0], results)


def check_closed(outputs: Sequence[Node]) -> None:
    """``ConcretizationError`` where a program reads what only the body of a loop has."""
    for node in topological(outputs):
        if isinstance(node.attrs, InputAttrs) and node.attrs.index >= BOUND:
            raise ConcretizationError(
                "a value from the body of a loop is used outside of it: return it from the body, as part of the carry "
                "or of what is stacked"
            )


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (TracedArray, np.ndarray, np.generic, int, float))


def _int(bound: Any) -> int:
    return operator.index(bound.known.item() if isinstance(bound, TracedArray) else bound)  # type: ignore[union-attr]


def _index(bound: Any) -> Any:
    """A bound as a NumPy int64."""
    if not isinstance(bound, TracedArray):
        return np.int64(operator.index(bound))
    if bound.shape != () or bound.dtype.kind not in "iu":
        raise ShapeError(f"eqsat.fori_loop: a bound is {_type(bound)}: pass one integer", user_line())
    return bound.astype(np.int64)


def _trips(leaves: Sequence[Any], length: int | None) -> int:
    shapes = [np.shape(leaf) for leaf in leaves]
    if () in shapes:
        raise ShapeError("eqsat.scan: a part of xs has no axes, and so no rows", user_line())
    lengths = sorted({shape[0] for shape in shapes} | ({operator.index(length)} if length is not None else set()))
    if len(lengths) != 1:
        said = f"rows of different numbers: {', '.join(map(str, lengths))}" if lengths else "neither xs nor length"
        raise ShapeError(f"eqsat.scan: {said}", user_line())
    if lengths[0] < 0:
        raise ShapeError(f"eqsat.scan: {lengths[0]} trips", user_line())
    return lengths[0]


@contextmanager
def _inside() -> Iterator[None]:
    """Arrays from outside are not written to."""
    before = LEVEL.set(LEVEL.get() + 1)
    try:
        yield
    finally:
        LEVEL.reset(before)


@contextmanager
def _line() -> Iterator[None]:
    """Operators are the user's running line's."""
    before = LINE.set(user_line())
    try:
        yield
    finally:
        LINE.reset(before)


def _truth(value: Any) -> Any:
    """A condition as a bool."""
    if np.shape(value) != ():
        raise ShapeError(f"eqsat.while_loop: the condition has shape {np.shape(value)}: make it one value", user_line())
    return value.astype(bool) if isinstance(value, TracedArray) else np.bool_(value)


def _pair(found: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(found, tuple) or len(found) != 2:
        raise CarryError(
            f"{name}: the function returns a {type(found).__name__}, not a carry and a result", user_line()
        )
    return found


def _same(
    name: str,
    trees: Sequence[Tree],
    types: Sequence[Sequence[TensorType]],
    what: str = "the carry is {} before a trip, and {} after it",
    root: str = "carry",
) -> None:
    """``CarryError`` for trees that differ, or leaves of different types."""
    if trees[0] != trees[1]:
        told = [_described(tree) for tree in trees]
        raise CarryError(f"{name}: {what.format(*told)}", user_line())
    for path, one, other in zip(leaf_names(trees[0], root), *types, strict=True):
        if one != other:
            where = "" if path == root else f" ({path})"
            raise CarryError(f"{name}: {what.format(one, other)}{where}", user_line())


def _described(tree: Tree) -> str:
    """The structure in Python's notation."""
    if isinstance(tree, Leaf):
        return "*"
    if isinstance(tree, Static):
        return repr(tree.value)
    inner = [_described(child) for child in tree.children]
    if tree.keys is not None:
        inner = [f"{key!r}: {child}" for key, child in zip(tree.keys, inner, strict=True)]
    return f"{tree.type.__name__}({', '.join(inner)})"


def _type(value: Any) -> TensorType:
    if isinstance(value, TracedArray):
        return TensorType(value.shape, known_dtype(value.dtype))
    array = np.asarray(value)
    return TensorType(array.shape, known_dtype(array.dtype))


# Plain


def _scan_plain(
    name: str, f: Callable[[Any, Any], Any], init: Any, rows: tuple[Tree, list[np.ndarray]], trips: int, reverse: bool
) -> tuple[Any, Any]:
    given: list[Any] = []
    tree = tree_of(init, given, _is_leaf)
    body = _Plain(name, f, tree, given, rows[0])
    if not trips or any(map(is_weak, given)):
        body.try_out([_locked(a[0]) if trips else np.zeros(a.shape[1:], a.dtype) for a in rows[1]])
    carry, kept = body.first(), []
    for number in reversed(range(trips)) if reverse else range(trips):
        carry = body.trip(carry, [_locked(a[number]) for a in rows[1]])
        kept.append([np.array(part) for part in body.parts])
    if reverse:
        kept.reverse()
    if not trips:
        return carry, rebuild(body.made, [np.zeros((0, *np.shape(v)), np.asarray(v).dtype) for v in body.parts])
    return carry, rebuild(body.made, [np.stack(column) for column in zip(*kept, strict=True)])


@dataclass
class _Plain:
    """A body that NumPy runs, whose carry begins as ``given``; ``parts`` are what the last trip returned beside it."""

    name: str
    f: Callable[[Any, Any], Any]
    tree: Tree
    given: list[Any]
    rows: Tree
    parts: list[Any] = field(default_factory=list)
    made: Tree = Static(None)  # noqa: RUF009
    checked: bool = False

    def first(self) -> Any:
        """The first carry: the body may write to it, and not to the caller's arrays."""
        return rebuild(self.tree, [np.array(v) if isinstance(v, np.ndarray) else v for v in self.given])

    def trip(self, carry: Any, row: list[Any]) -> Any:
        carry, y = _pair(self.f(carry, rebuild(self.rows, row)), self.name)
        self.parts = []
        self.made = tree_of(y, self.parts, _is_leaf)
        if not self.checked:
            self.check(carry)
            self.checked = True
        return carry

    def check(self, carry: Any) -> None:
        leaves: list[Any] = []
        after = tree_of(carry, leaves, _is_leaf)
        if after == self.tree:  # a number is of the type that the body makes of it
            pairs = zip(self.given, leaves, strict=True)
            self.given = [np.asarray(g, _type(v).dtype.numpy)[()] if is_weak(g) else g for g, v in pairs]
        _same(self.name, [self.tree, after], [list(map(_type, self.given)), list(map(_type, leaves))])

    def try_out(self, row: list[Any]) -> None:
        """Learn the types of what is given as numbers."""
        self.trip(self.first(), row)
        self.checked = False


def _locked(row: Any) -> Any:
    if isinstance(row, np.ndarray):
        row = row.view()
        row.flags.writeable = False
    return row


# Traced


@dataclass
class _Body:
    """A body that was traced: its inputs, and what it returned."""

    carries: list[Node]
    rows: list[Node]
    tree: Tree
    outputs: list[Any]
    made: Tree
    stacked: list[Any]


def _fresh(type: TensorType) -> Node:
    trace = CURRENT.get()
    assert trace is not None
    trace.bound += 1
    return build.input_node(BOUND + trace.bound, type)


def _scan_traced(
    name: str,
    f: Callable[[Any, Any], Any],
    init: Any,
    rows: tuple[Tree, list[Any]],
    trips: int,
    reverse: bool,
    first: int | None = None,
) -> tuple[Any, Any]:
    """``first``: the only rows are numbers that count from there."""
    given: list[Any] = []
    tree = tree_of(init, given, _is_leaf)
    operands = [lift(leaf) for leaf in rows[1]]
    types, body = _settled(name, f, tree, given, rows[0], operands)
    with _line():
        results = [_begun(v, t) for v, t in zip(given, types, strict=True)]
        outputs = [lift(leaf) for leaf in (*body.outputs, *body.stacked)]
        if trips:
            closing = _Closing(body, trips, reverse, operands, first)
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
    arrays = [TracedArray(node) for node in results]
    return rebuild(tree, arrays[: len(given)]), rebuild(body.made, arrays[len(given) :])


def _begun(value: Any, type: TensorType) -> Node:
    return literal(value, type.dtype) if is_weak(value) else lift(value)


def _settled(
    name: str, f: Callable[[Any, Any], Any], tree: Tree, given: Sequence[Any], rows: Tree, operands: Sequence[Node]
) -> tuple[list[TensorType], _Body]:
    """The types that are carried, and the body of these: a number is of the type that the first trip makes of it."""
    types = [None if is_weak(leaf) else _type(leaf) for leaf in given]
    body = _traced(name, f, tree, given, types, rows, operands)
    if None in types and body.tree == tree:
        types = [t or TensorType((), _type(leaf).dtype) for t, leaf in zip(types, body.outputs, strict=True)]
        body = _traced(name, f, tree, given, types, rows, operands)
    settled = [t or _type(v) for t, v in zip(types, given, strict=True)]
    _same(name, [tree, body.tree], [settled, [_type(leaf) for leaf in body.outputs]])
    return settled, body


def _traced(
    name: str,
    f: Callable[[Any, Any], Any],
    tree: Tree,
    given: Sequence[Any],
    types: Sequence[TensorType | None],
    rows: Tree,
    operands: Sequence[Node],
) -> _Body:
    """The body on inputs of its own; numbers of no type yet are passed as they are."""
    carries = [_fresh(type or TensorType((), known_dtype(float))) for type in types]
    inputs = [_fresh(TensorType(node.shape[1:], node.dtype)) for node in operands]
    with _inside():
        seen = [TracedArray(node) for node in inputs]
        for row in seen:
            row.memory.protected = "a row of what a loop runs over must not be written to: write to a copy"
        pairs = zip(carries, types, given, strict=True)
        carry = rebuild(tree, [TracedArray(node) if type else value for node, type, value in pairs])
        after, y = _pair(f(carry, rebuild(rows, seen)), name)
        outputs: list[Any] = []
        stacked: list[Any] = []
        after_tree = tree_of(after, outputs, _is_leaf)
        made = tree_of(y, stacked, _is_leaf)
        # What they are now: later writes to them are not the body's.
        outputs, stacked = ([TracedArray(lift(v)) for v in values] for values in (outputs, stacked))
    return _Body(carries, inputs, after_tree, outputs, made, stacked)


def _small(node: Node) -> bool:
    """Whether a node is no input and no array, which are operands of a loop."""
    if isinstance(node.attrs, ConstArray):
        return node.type.size <= 1
    return not isinstance(node.attrs, InputAttrs)


@dataclass
class _Closing:
    """A body as a graph of its own: what it reads from outside becomes operands of the loop."""

    body: _Body
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

"""Interned nodes and graphs: the typed form of a traced program."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir.identity import identity
from eqsat.ir.types import DType, TensorType, dtype_of
from eqsat.scoped import Scoped


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.text}" if self.text else "")


LINE: Scoped[Source | None] = Scoped(None)
"""The user's line being traced, for errors."""

LINES: Scoped[dict[Node, Source] | None] = Scoped(None)
"""Of nodes made while a function is traced, the lines that made them first."""


class ConstArray:
    """An array of known value, equal by type and content; read-only, C-contiguous, native byte order."""

    __slots__ = ("__weakref__", "array", "digest", "dtype")

    def __init__(self, value: object, dtype: DType | None = None) -> None:
        given = np.asarray(value)
        self.dtype = dtype or dtype_of(given.dtype)
        array = np.array(given, dtype=self.dtype.numpy, order="C", copy=True)
        array.flags.writeable = False
        self.array = array
        head = f"{self.dtype}{array.shape}".encode()
        self.digest = hashlib.blake2b(head + array.tobytes(), digest_size=16).hexdigest()

    @property
    def type(self) -> TensorType:
        return TensorType(self.array.shape, self.dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstArray) and self.digest == other.digest

    def __hash__(self) -> int:
        return int(self.digest[:15], 16)

    def __repr__(self) -> str:
        if self.array.size == 1:
            return f"{self.array.reshape(())[()]}"
        return f"const {self.type}"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Node:
    """An operator applied to nodes. Made by ``make``, which interns: equal nodes are the same object.

    ``label`` is the name the user knows (``transpose`` for a ``view``); it is not part of a node's identity.
    """

    op: str
    inputs: tuple[Node, ...]
    attrs: object
    type: TensorType
    label: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __repr__(self) -> str:
        args = ", ".join(n.label or n.op for n in self.inputs)
        attrs = "" if self.attrs is None else f"{{{self.attrs}}}"
        return f"{self.op}{attrs}({args}): {self.type}"


_interned: weakref.WeakValueDictionary[tuple[object, ...], Node] = weakref.WeakValueDictionary()


def intern(op: str, inputs: tuple[Node, ...], attrs: object, type: TensorType, label: str) -> Node:
    """The node of this operator, inputs and attributes; the first label given stays."""
    key = (op, inputs, identity(attrs), type)
    node = _interned.get(key)
    if node is None:
        node = Node(op, inputs, attrs, type, label or op)
        node = _interned.setdefault(key, node)
    if LINES.values:
        lines, line = LINES.get(), LINE.get()
        if lines is not None and line is not None:
            lines.setdefault(node, line)
    return node


def remade(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same operator of other nodes, from the same line of the user's."""
    if inputs == node.inputs:
        return node
    made = intern(node.op, inputs, node.attrs, node.type, node.label)
    lines = LINES.get()
    if lines is not None and node in lines:
        lines.setdefault(made, lines[node])
    return made


def topological(outputs: Iterable[Node], given: Iterable[Node] = ()) -> list[Node]:
    """Every node that the outputs need, operands before users, in an order fixed by the graph alone.

    Of ``given`` nodes, and of what only they need, there are none.
    """
    order: list[Node] = []
    seen: set[Node] = set(given)
    stack: list[tuple[Node, int]] = [(node, 0) for node in reversed(list(outputs))]
    while stack:
        node, child = stack.pop()
        if node in seen:
            continue
        if child == len(node.inputs):
            seen.add(node)
            order.append(node)
            continue
        stack.append((node, child + 1))
        if node.inputs[child] not in seen:
            stack.append((node.inputs[child], 0))
    return order


@dataclass(frozen=True)
class Graph:
    """A program: its inputs in order (``input`` nodes, also unused ones) and its outputs."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    names: tuple[str, ...] = ()
    """The inputs' names in the user's function, such as ``x`` or ``layers[0].w``."""

    def nodes(self) -> list[Node]:
        return topological(self.outputs)

    def key(self) -> str:
        """A content hash: equal for equal programs, whatever their labels."""
        numbers: dict[Node, int] = {}
        digest = hashlib.blake2b(digest_size=16)
        for node in [*self.inputs, *self.nodes()]:
            if node in numbers:
                continue
            numbers[node] = len(numbers)
            attrs = node.attrs.digest if isinstance(node.attrs, ConstArray) else repr(node.attrs)
            digest.update(f"{node.op}|{[numbers[i] for i in node.inputs]}|{attrs}|{node.type}\n".encode())
        digest.update(repr([numbers[o] for o in self.outputs]).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Formed:
    """A graph in another form. ``origins``: what its nodes, and those of its loops, stand for in the one before."""

    graph: Graph
    origins: Mapping[Node, Node]


def substitute(outputs: Sequence[Node], replace: dict[Node, Node]) -> list[Node]:
    """The outputs with nodes replaced, rebuilt bottom-up."""
    done = dict(replace)
    for node in topological(outputs, replace):
        done[node] = remade(node, tuple(done[i] for i in node.inputs))
    return [done[o] for o in outputs]

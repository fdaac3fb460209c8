"""What arrays that share memory have in common while a function is traced: the value of all of it.

Values are functional: a write makes a new value. Memory that nothing traced was written to yet is *known*: a NumPy
array that NumPy itself computes with and writes to. The first traced value that is written makes it a graph node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.errors import SharedMemoryError
from eqsat.frontends.boxes import Write, Writes, assembled, frame_for, place, positions
from eqsat.frontends.source import user_line
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node, Source
from eqsat.ir.table import make
from eqsat.ir.types import TensorType
from eqsat.ir.views import ViewMap
from eqsat.scoped import Scoped

if TYPE_CHECKING:
    from eqsat.frontends.tracer import TracedArray

LEVEL: Scoped[int] = Scoped(0)
"""How many bodies of loops and branches, each inside of another, are being traced."""


class Memory:
    """The elements behind an array and its views, row-major in ``shape``.

    ``known``: the NumPy array that it is, None once a traced value was written. ``uniform``: the value of all of its
    elements where they have not been touched since. ``protected``: why it is not written to; empty if it may be.
    ``orderly``: whether NumPy would have its elements in this order, given arguments in row-major order. ``reshaped``:
    whether a view relies on that. ``version``: how often it was written, ``line`` last where. ``level``:
    the ``LEVEL`` that it was made in.
    """

    __slots__ = (
        "_node", "_writes", "array", "doubtful", "known", "level", "line", "orderly", "protected", "reshaped", "shape",
        "stale", "uniform", "version",
    )  # fmt: skip

    def __init__(self, node: Node | None, array: np.ndarray | None = None) -> None:
        self._node = node
        self._writes = Writes()
        self.known = self.array = array
        self.shape: tuple[int, ...] = node.shape if node is not None else array.shape  # type: ignore[union-attr]
        self.uniform: Any = None
        self.protected = ""
        self.orderly = True
        self.reshaped = False
        self.version = 0
        self.level = LEVEL.get()
        self.line: Source | None = None
        self.doubtful: tuple[Memory, ...] = ()
        self.stale: Source | None = None

    @property
    def example(self) -> TracedArray | None:
        """A view of its shape that lies as it does, if it does not lie row by row; else None."""
        return None

    @property
    def size(self) -> int:
        return self._node.type.size if self._node is not None else self.array.size  # type: ignore[union-attr]

    @property
    def type(self) -> TensorType | None:
        """Of the value, which this does not put together; None of a known one."""
        return None if self._node is None else self._node.type

    @property
    def node(self) -> Node:
        """The value of all elements."""
        if self.stale is not None:
            raise SharedMemoryError(
                f"this array may or may not share memory with one that was modified in place at {self.stale}: whether "
                "NumPy copies here depends on the order of its elements in memory; copy it before (x.copy())",
                user_line(),
            )
        if self.known is not None:
            from eqsat.frontends.convert import constant

            if self.uniform is not None:
                return constant(np.broadcast_to(self.uniform, self.shape))
            return constant(self.known)
        assert self._node is not None
        if self._writes:
            self._node, self._writes = assembled(self._node, list(self._writes)), Writes()
        return self._node

    @property
    def computed(self) -> bool:
        """Whether it is no argument; says nothing of writes that are still to be put together."""
        return self._node is None or self._node.op != "input"

    @property
    def ready(self) -> bool:
        """Whether reading all of it takes nothing."""
        return not self._writes and self.known is None

    def read(self, map: ViewMap | None) -> Node:
        """What a view shows; the whole where there is no map."""
        if map is None or 0 in map.shape or not self._writes or self.stale is not None:
            return self.node if map is None else build.view(self.node, map)
        placed = place(map, self.shape)
        if placed is not None:
            write = self._writes.last(placed.box)
            inner = None if write is None else placed.box.within(write.box)
            if write is None:
                assert self._node is not None
                return build.view(self._node, map)
            if inner is not None:
                return placed.as_view(inner.of(write.value))
        return build.view(self.node, map)

    def write(self, map: ViewMap | None, value: Node) -> None:
        """Give what a view shows another value, of the view's shape and the memory's element type."""
        self.forget_known()
        assert self._node is not None
        if map is None:
            self._node, self._writes = value, Writes()
        elif value.type.size:
            self._write(map, value)
        self.touch()

    def become(self, node: Node) -> None:
        """Have another value without a write of the user's: what a loop leaves there."""
        self._node, self._writes = node, Writes()
        self.version += 1

    def touch(self) -> None:
        """Note a write: who shares the memory reads it anew, and who may share it must not."""
        line = user_line()
        self.version += 1
        self.line = line
        self.uniform = None
        for other in self.doubtful:
            other.stale, other.version = line, other.version + 1

    def doubt(self, other: Memory) -> None:
        """Whether the two are one is not known: what is written to one must not be read from the other."""
        self.doubtful = (*self.doubtful, other)
        other.doubtful = (*other.doubtful, self)

    def forget_known(self) -> None:
        """A known array becomes a node, which traced values can be written to."""
        if self.known is not None:
            self._node = self.node
            self.known = None

    def _write(self, map: ViewMap, value: Node) -> None:
        placed = place(map, self.shape)
        if placed is not None and not placed.repeats:
            self._writes.add(Write(placed.box, placed.as_box(value)))
            if self._writes.crowded:
                self._node = self.node
            return
        shape = self.shape if self.size else None
        frame = frame_for(map, self.size)
        whole = self.node
        if frame is not None and shape is not None:
            size = int(np.prod(frame))
            flat = build.pad(build.reshape(whole, (self.size,)), [(0, size - self.size)])
            there = place(map, frame)
            if there is not None and not there.repeats:
                made = assembled(build.reshape(flat, frame), [Write(there.box, there.as_box(value))])
                cut = build.take_range(build.reshape(made, (size,)), 0, 0, self.size)
                self._node = build.reshape(cut, self.shape)
                return
        self._node = scattered(whole, positions(map), value)


def scattered(whole: Node, where: np.ndarray, value: Node) -> Node:
    """``whole`` with elements of ``value`` at known flat positions; of those at the same position the last."""
    source = np.full(whole.type.size, -1, np.int64)
    source[where.reshape(-1)] = np.arange(where.size)
    written = build.const((source >= 0).reshape(whole.shape))
    value = build.reshape(build.broadcast_to(value, where.shape), (where.size,))
    if build.scalar_value(value) is not None or where.size == 1:
        moved = build.broadcast_to(build.take_range(value, 0, 0, 1), whole.shape)
        return call("where", written, moved, whole)
    picks = build.const(np.maximum(source, 0).reshape(whole.shape))
    return call("where", written, make("gather", (value, picks), 0, label="put"), whole)

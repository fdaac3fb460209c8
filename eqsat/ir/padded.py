"""A loop of steps whose lengths change, such as those of an elimination: its body runs on whole axes.

The steps are the same operators on operands of other lengths and offsets. An axis whose length changes keeps one
*size* in the body, and what counts of it on a trip begins at its *start*: where the step reads ``a[k + 1:]``, the body
reads ``a``, and what was written is chosen by a mask. Around what counts, elements are any, and none of them gets
into it: sums take zeros for them, writes leave them out. Starts, masks and positions are rows of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.ir import build
from eqsat.ir.moving import Atom, by_axes
from eqsat.ir.node import ConstArray, Node, topological
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS, make
from eqsat.ir.types import DType, TensorType, int64, row_major
from eqsat.ir.views import ViewMap, view_map

__all__ = ["Body", "Unfit", "Value"]

TABLE_BYTES = 1 << 22
"""Of a table of positions or masks at most."""


class Unfit(Exception):
    """The steps are none of a loop of this kind."""


@dataclass(frozen=True)
class Axis:
    """An axis in the body: of ``lengths`` on each trip, which begin at ``start`` of ``size``.

    Where lengths are all the same, it is as it is in the steps. ``free``: all elements of it are equal, and the body
    has one of them.
    """

    lengths: np.ndarray
    size: int
    start: np.ndarray
    free: bool = False

    @property
    def ragged(self) -> bool:
        return bool((self.lengths != self.lengths[0]).any())

    @property
    def key(self) -> tuple[int, bytes]:
        return self.size, self.start.tobytes()


@dataclass(frozen=True)
class Value:
    """What stands for a node of the steps; ``fixed``: it is this tensor on every trip, and not in the body yet."""

    node: Node | None
    axes: tuple[Axis, ...]
    fixed: Node | None = None

    @property
    def ragged(self) -> bool:
        return any(axis.ragged for axis in self.axes)


@dataclass(frozen=True)
class _Reads:
    """Views in terms of the operand's axes: where each trip begins on each, and by result's axis the atoms
    ``(size, axis, step)``: of all trips where they are the same, else those of the first trip that has one."""

    starts: np.ndarray
    atoms: list[list[Atom]]
    ragged: list[bool]


@dataclass
class Body:
    """The body of a loop of so many trips, while it is made; ``others``: operands behind what is carried, with the
    elements that their windows move in ``moved``. ``windows``: whether tensors from outside are read through such."""

    trips: int
    windows: bool = True
    inputs: list[Node] = field(default_factory=list)
    others: list[Node] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    known: dict[tuple[Node, int], Node] = field(default_factory=dict)

    def carried(self, type: TensorType) -> Value:
        """A value that trips hand on; all of them come before any operand."""
        self.inputs.append(build.input_node(len(self.inputs), type))
        return self.whole(self.inputs[-1], type)

    def run(self, steps: Sequence[Sequence[Node]], given: Mapping[Node, Value]) -> list[Value]:
        """What stands for the outputs of the ``steps``, one of each trip. Raises ``Unfit`` where a length is left."""
        orders = [topological(outputs) for outputs in steps]
        number = {node: place for place, node in enumerate(orders[0])}
        made: list[Value] = []
        for place, first in enumerate(orders[0]):
            args = [made[number[i]] for i in first.inputs]
            made.append(given[first] if first in given else self._made([order[place] for order in orders], args))
        outputs = [made[number[node]] for node in steps[0]]
        if any(value.ragged for value in outputs):
            raise Unfit
        return outputs

    # operands

    def operand(self, node: Node, step: int) -> Node:
        """The body's input that is a tensor from outside, or a window of it."""
        if (node, step) not in self.known:
            size = node.type.size - (self.trips - 1) * abs(step)
            made = build.input_node(len(self.inputs), TensorType((size,), node.dtype) if step else node.type)
            self.others.append(node)
            self.moved.append(step)
            self.inputs.append(made)
            self.known[node, step] = made
        return self.known[node, step]

    def row(self, table: np.ndarray, dtype: DType | None = None) -> Node:
        """A trip's row of a table."""
        if table.nbytes > TABLE_BYTES or not table.size:
            raise Unfit
        if (table == table[0]).all():
            same = build.const(table[0], dtype)
            return same if same.type.size == 1 else self.operand(same, 0)
        made = self.operand(build.const(table, dtype), table[0].size)
        return build.reshape(made, table.shape[1:])

    def whole(self, node: Node | None, type: TensorType, fixed: Node | None = None) -> Value:
        """A value of one type on all trips."""
        return Value(node, tuple(self._all_of(n) for n in type.shape), fixed)

    def _all_of(self, size: int) -> Axis:
        return Axis(np.full(self.trips, size), size, np.zeros(self.trips, np.int64))

    def node(self, value: Value) -> Node:
        """It in the body."""
        if value.node is not None:
            return value.node
        assert value.fixed is not None
        small = isinstance(value.fixed.attrs, ConstArray) and value.fixed.type.size <= 1
        return value.fixed if small else self.operand(value.fixed, 0)

    def _taken(self, node: Node, axis: int, positions: np.ndarray) -> Node:
        """Positions on an axis, a row of them for each trip, as an axis in its place."""
        size = node.shape[axis]
        positions = positions.clip(0, size - 1)
        first = positions[0]
        if (positions == first).all() and (np.diff(first) == 1).all():
            return build.take_range(node, axis, int(first[0]), int(first[0]) + first.size)
        return make("gather", (node, self.row(positions, int64)), axis, label="take")

    # axes

    def _on(self, value: Value, at: int, axis: Axis, *, spread: bool = False) -> Value:
        """The value with an axis that lies as another does; ``spread``: not of one element that stands for all."""
        own = value.axes[at]
        if own.key == axis.key and not own.free:
            return value
        node = self.node(value)
        if own.free:
            if not spread:
                return value
            shape = [axis.size if a == at else n for a, n in enumerate(node.shape)]
            node = build.broadcast_to(node, shape)
        else:
            node = self._taken(node, at, np.arange(axis.size) + (own.start - axis.start)[:, None])
        axes = [replace(axis, lengths=own.lengths, free=False) if a == at else x for a, x in enumerate(value.axes)]
        return Value(node, tuple(axes))

    def _between(self, low: np.ndarray, high: np.ndarray, size: int, at: int, rank: int) -> Node:
        """A mask over an axis: positions from ``low`` on and before ``high`` of each trip."""
        positions = np.arange(size)
        row = self.row((positions >= low[:, None]) & (positions < high[:, None]))
        return build.reshape(row, [size if a == at else 1 for a in range(rank)])

    def _counted(self, value: Value, at: int, neutral: float | int | bool) -> Value:
        """The value with a neutral element around what counts on an axis."""
        axis, node = value.axes[at], self.node(value)
        mask = self._between(axis.start, axis.start + axis.lengths, axis.size, at, node.type.ndim)
        return replace(value, node=build.call("where", mask, node, build.scalar(neutral, node)), fixed=None)

    def _common(self, axes: Sequence[Axis]) -> Axis:
        """Where an axis lies that is that of several operands: where most of them have it."""
        placed = [axis for axis in axes if not axis.free]
        if not placed:
            longest = int(axes[0].lengths.max())
            return Axis(axes[0].lengths, longest, np.zeros(self.trips, np.int64), free=True)
        counts = Counter(axis.key for axis in placed)
        return max(placed, key=lambda axis: counts[axis.key])

    # operators

    def _made(self, nodes: Sequence[Node], args: Sequence[Value]) -> Value:
        first = nodes[0]
        kind = OPS[first.op].kind
        if isinstance(first.attrs, ConstArray):
            return self._constant(nodes)
        if first.op == "iota":
            longest = max(nodes, key=lambda node: node.type.size)
            (axis,) = (self._all_of(longest.type.size),)
            return Value(longest, (replace(axis, lengths=np.array([node.type.size for node in nodes])),))
        if kind == "view":
            return self._view(nodes, args[0])
        if not any(arg.ragged for arg in args) and all(n.type == first.type and n.attrs == first.attrs for n in nodes):
            inputs = tuple(map(self.node, args))
            return self.whole(make(first.op, inputs, first.attrs, label=first.label), first.type)
        if kind == "map" and first.op != "wrap_index":
            return self._map(nodes, args)
        if kind == "contract":
            return self._contract(nodes, args)
        if kind == "reduce":
            return self._reduce(nodes, args[0])
        if kind == "concat":
            return self._concat(nodes, args)
        raise Unfit

    def _constant(self, nodes: Sequence[Node]) -> Value:
        first = nodes[0]
        if all(node is first for node in nodes):
            return self.whole(None, first.type, first)
        arrays = [node.attrs.array for node in nodes if isinstance(node.attrs, ConstArray)]
        if any(array.shape != arrays[0].shape for array in arrays):
            raise Unfit
        table = np.stack([array.reshape(-1) for array in arrays])
        return self.whole(build.reshape(self.row(table, first.dtype), first.shape), first.type)

    def _map(self, nodes: Sequence[Node], args: Sequence[Value]) -> Value:
        first = nodes[0]
        lengths = np.array([node.shape for node in nodes])
        axes: list[Axis] = []
        aligned = list(args)
        for at in range(lengths.shape[1]):
            own = [(n, at - lengths.shape[1] + len(arg.axes)) for n, arg in enumerate(aligned)]
            own = [(n, a) for n, a in own if a >= 0 and (aligned[n].axes[a].lengths != 1).any()]
            if any((aligned[n].axes[a].lengths != lengths[:, at]).any() for n, a in own):
                raise Unfit
            if (lengths[:, at] == lengths[0, at]).all():
                axes.append(self._all_of(int(lengths[0, at])))
                continue
            axis = self._common([aligned[n].axes[a] for n, a in own])
            for n, a in own:
                aligned[n] = self._on(aligned[n], a, axis)
            axes.append(axis)
        return Value(make(first.op, tuple(map(self.node, aligned)), first.attrs, label=first.label), tuple(axes))

    def _contract(self, nodes: Sequence[Node], args: Sequence[Value]) -> Value:
        first = nodes[0]
        spec = first.attrs
        assert isinstance(spec, Spec)
        factors = [(args[0], spec.a), (args[1], spec.b)]
        placed: dict[int, Axis] = {}
        for label in dict.fromkeys((*spec.a, *spec.b)):
            # that of the larger factor, which costs more to move
            own = sorted(
                (value.axes[labels.index(label)] for value, labels in factors if label in labels),
                key=lambda axis: axis.free,
            )
            placed[label] = replace(self._common(own), free=False)
        inputs = []
        for value, labels in factors:
            for at, label in enumerate(labels):
                if not value.axes[at].ragged:
                    continue
                value = self._on(value, at, placed[label], spread=True)
                if label not in spec.out:
                    value = self._counted(value, at, 0)
            inputs.append(self.node(value))
        return Value(make("contract", tuple(inputs), spec, label=first.label), tuple(placed[x] for x in spec.out))

    def _reduce(self, nodes: Sequence[Node], x: Value) -> Value:
        first, over = nodes[0], nodes[0].attrs
        assert isinstance(over, tuple)
        for at in over:
            axis = x.axes[at]
            if axis.ragged:
                if first.op not in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min"):
                    raise Unfit
                x = self._on(x, at, replace(self._common([axis]), free=False), spread=True)
                x = self._counted(x, at, _neutral(first.op, first.dtype))
        axes = tuple(axis for at, axis in enumerate(x.axes) if at not in over)
        return Value(make(first.op, (self.node(x),), over, label=first.label), axes)

    def _concat(self, nodes: Sequence[Node], args: Sequence[Value]) -> Value:
        along = nodes[0].attrs
        assert isinstance(along, int)
        lengths = np.array([node.shape for node in nodes])
        parts = list(args)
        axes: list[Axis] = []
        for at in range(lengths.shape[1]):
            if at == along:
                axes.append(self._all_of(0))
                continue
            axis = self._common([part.axes[at] for part in parts])
            if axis.ragged:
                parts = [self._on(part, at, axis) for part in parts]
            axes.append(axis)
        ends = np.cumsum([part.axes[along].lengths for part in parts], axis=0)
        begins = ends - np.array([part.axes[along].lengths for part in parts])
        axes[along] = axis = self._joined(parts, along, begins, ends[-1])
        chosen: list[tuple[Value, Node]] = []
        for part, begin in zip(parts, begins, strict=True):
            own = part.axes[along]
            if own.size == 1 and (own.lengths == 1).all():
                part = Value(self.node(part), (*part.axes[:along], replace(own, free=True), *part.axes[along + 1 :]))
            part = self._on(part, along, replace(axis, start=axis.start + begin))
            chosen.append((part, self.node(part)))
        base = max(chosen, key=lambda one: sum(node is one[1] for _, node in chosen))[1]
        for (_, node), begin, end in zip(chosen, begins, ends, strict=True):
            if node is not base:
                mask = self._between(axis.start + begin, axis.start + end, axis.size, along, node.type.ndim)
                base = build.call("where", mask, node, base)
        shape = [1 if axis.free else axis.size for axis in axes]
        return Value(build.broadcast_to(base, shape), tuple(axes))

    def _joined(self, parts: Sequence[Value], along: int, begins: np.ndarray, lengths: np.ndarray) -> Axis:
        """Where the axis of a concatenation lies: so that most of its parts need not be moved."""
        if (lengths == lengths[0]).all():
            return self._all_of(int(lengths[0]))
        found = []
        for part, begin in zip(parts, begins, strict=True):
            own = part.axes[along]
            start = own.start - begin
            if not own.free and (start >= 0).all() and (start + lengths <= own.size).all():
                found.append(Axis(lengths, own.size, start))
        return self._common(found) if found else Axis(lengths, int(lengths.max()), np.zeros(self.trips, np.int64))

    # views

    def _view(self, nodes: Sequence[Node], x: Value) -> Value:
        reads = self._reads(nodes, x)
        starts = reads.starts + np.array([axis.start for axis in x.axes], np.int64).reshape(-1, self.trips).T
        offset = [0] * len(x.axes)
        shape = [1 if axis.free else axis.size for axis in x.axes]
        moving: dict[int, tuple[np.ndarray, int]] = {}
        axes: list[Axis | None] = [None] * len(reads.atoms)
        low, width = [0] * len(shape), [1] * len(shape)
        kept: set[int] = set()
        positions: dict[int, np.ndarray] = {}
        for j, atoms in enumerate(reads.atoms):
            lengths = np.array([node.shape[j] for node in nodes])
            if not reads.ragged[j]:
                axes[j] = self._all_of(int(lengths[0]))
                for n, a, by in atoms:
                    if a is not None:
                        low[a] += min(0, by * (n - 1))
                        width[a] += abs(by) * (n - 1)
                continue
            longest = int(lengths.max())
            _, a, by = atoms[0]
            if a is None or x.axes[a].free:
                axes[j] = Axis(lengths, longest, np.zeros(self.trips, np.int64), free=True)
            elif a in kept or a in positions:
                raise Unfit
            elif by == 1:
                kept.add(a)
                axes[j] = Axis(lengths, x.axes[a].size, starts[:, a].copy())
            else:
                positions[a] = starts[:, a, None] + by * np.arange(longest)
                axes[j] = Axis(lengths, longest, np.zeros(self.trips, np.int64))
        for a in range(len(shape)):
            if a in kept or a in positions or x.axes[a].free:
                if width[a] > 1 and not x.axes[a].free:
                    raise Unfit
                continue
            first = starts[:, a] + low[a]
            if (first == first[0]).all():
                offset[a] = int(starts[0, a])
            else:
                moving[a] = (first, width[a])
                offset[a] = -low[a]
        node, shape, extra = self._moved(x, shape, moving, positions)
        strides = row_major(tuple(shape))
        found: list[list[tuple[int, int]]] = []
        for j, atoms in enumerate(reads.atoms):
            axis = axes[j]
            assert axis is not None
            if not reads.ragged[j]:
                found.append([(n, 0 if a is None or x.axes[a].free else by * strides[a]) for n, a, by in atoms])
            else:
                a = atoms[0][1]
                found.append([] if axis.free or a is None else [(axis.size, strides[a])])
        at = extra + sum(o * s for o, s in zip(offset, strides, strict=True))
        made = build.view(node, view_map(found, at), nodes[0].label)
        return Value(made, tuple(axis for axis in axes if axis is not None))

    def _moved(
        self,
        x: Value,
        shape: list[int],
        moving: dict[int, tuple[np.ndarray, int]],
        positions: dict[int, np.ndarray],
    ) -> tuple[Node, list[int], int]:
        """The operand where each trip reads it, its shape, and the offset of that: a window, or rows taken of it."""
        strides = row_major(tuple(shape))
        if self.windows and x.fixed is not None and moving and not positions:
            paths = {a: np.diff(first) for a, (first, _) in moving.items()}
            step = sum(int(path[0]) * strides[a] for a, path in paths.items())
            if step and all((path == path[0]).all() for path in paths.values()):
                at = sum(int(first[0]) * strides[a] for a, (first, _) in moving.items())
                return self.operand(x.fixed, step), shape, at + min(0, (self.trips - 1) * step)
        node = self.node(x)
        if len(moving) > 1 and len(moving) == len(shape) and all(width == 1 for _, width in moving.values()):
            flat = sum((first * strides[a] for a, (first, _) in moving.items()), np.zeros(self.trips, np.int64))
            whole = build.reshape(node, (node.type.size,))
            return self._taken(whole, 0, flat[:, None]), [1] * len(shape), 0
        for a, (first, width) in moving.items():
            node = self._taken(node, a, first[:, None] + np.arange(width))
        for a, where in positions.items():
            node = self._taken(node, a, where)
        return node, list(node.shape), 0

    def _reads(self, nodes: Sequence[Node], x: Value) -> _Reads:
        shapes = np.array([axis.lengths for axis in x.axes], np.int64).reshape(-1, self.trips).T
        starts = np.empty_like(shapes)
        every: list[list[list[Atom]]] = []
        for trip, node in enumerate(nodes):
            assert isinstance(node.attrs, ViewMap)
            shape = shapes[trip].tolist()
            within = by_axes(node.attrs, shape)
            if (
                within is None
                or min(within[2], default=0) < 0
                or any(h >= n for h, n in zip(within[3], shape, strict=True))
            ):
                raise Unfit
            starts[trip], atoms = within[:2]
            every.append(atoms)
        atoms, ragged = [], []
        for j in range(len(every[0])):
            of_trips = [found[j] for found in every]
            differ = any(found != of_trips[0] for found in of_trips)
            if differ:
                if any(len(found) > 1 for found in of_trips):
                    raise Unfit
                steps = {found[0][1:] for found in of_trips if found}
                if len(steps) != 1:
                    raise Unfit
                of_trips = [found for found in of_trips if found]
            atoms.append(of_trips[0])
            ragged.append(differ)
        return _Reads(starts, atoms, ragged)


def _neutral(op: str, dtype: DType) -> float | int | bool:
    if op in ("reduce_sum", "reduce_prod"):
        return int(op == "reduce_prod")
    most = op == "reduce_min"
    if dtype.kind == "float":
        return np.inf if most else -np.inf
    if dtype.kind == "bool":
        return most
    low, high = dtype.limits
    return high if most else low

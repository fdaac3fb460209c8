"""Indexing: basic (ints, slices, None, Ellipsis) as views, integer arrays as gathers, take."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.errors import BoundsError, ShapeError, UnsupportedDTypeError, UnsupportedOpError
from eqsat.frontends.boxes import Writes
from eqsat.frontends.convert import constant, holds_traced, lift, normalize_axis, traced, view_of, with_axis
from eqsat.frontends.known import Unknown, plain, wrapped
from eqsat.frontends.memory import Memory
from eqsat.frontends.registry import implements
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import Unsized
from eqsat.ir import build, views
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.table import make
from eqsat.ir.types import bool_, int64, row_major
from eqsat.ir.views import ViewMap

Indices = Node | int


def _mask_refused() -> UnsupportedOpError:
    return UnsupportedOpError(
        "indexing by a traced boolean mask: the shape of the result depends on values; keep the shape and choose "
        "with np.where(mask, x, other), or reduce np.where(mask, x, 0)",
        LINE.get(),
    )


def _index_items(item: Any) -> list[Any]:
    """One entry of an index as basic objects, ints and index nodes (a known mask becomes several)."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return [item]
    if isinstance(item, TracedArray):
        if item.node.dtype == bool_:
            raise _mask_refused()
        if item.node.dtype.kind != "int":
            raise UnsupportedDTypeError(f"arrays used as indices must be of integer type, not {item.dtype}", LINE.get())
        return [item.node]
    if isinstance(item, (bool, np.bool_)):
        raise UnsupportedOpError("indexing by True or False is not supported: use x[None] or np.where", LINE.get())
    if isinstance(item, (int, np.integer)):
        return [int(item)]
    array = np.asarray(item)
    if array.size == 0 and isinstance(item, (list, tuple)):
        array = array.astype(np.intp)
    if array.dtype == np.bool_:
        return list(array.nonzero()) if array.ndim else [array]
    if array.dtype.kind not in "iu":
        raise BoundsError(
            "only integers, slices (`:`), ellipsis (`...`), None and integer arrays are valid indices, not "
            f"{type(item).__name__}",
            LINE.get(),
        )
    return [int(array)] if array.ndim == 0 else [array.astype(np.int64)]


def _entries(index: Any, shape: tuple[int, ...]) -> list[Any]:
    """The index with its Ellipsis written out: one entry per axis, Nones, and an Ellipsis that stands for none."""
    given = index if isinstance(index, tuple) else (index,)
    _check_masks(given, shape)
    items = [part for item in given for part in _index_items(item)]
    used = sum(1 for item in items if item is not None and item is not Ellipsis)
    dots = sum(1 for item in items if item is Ellipsis)
    if dots > 1:
        raise BoundsError("an index can only have a single ellipsis ('...')", LINE.get())
    if used > len(shape):
        raise BoundsError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {used} were indexed", LINE.get()
        )
    if not dots:
        items.append(Ellipsis)
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    # An Ellipsis that stands for no axis keeps its place: it parts the index arrays on its sides.
    between: list[Any] = [slice(None)] * (len(shape) - used)
    return [*items[:at], *(between or [Ellipsis]), *items[at + 1 :]]


def _check_masks(given: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """A known mask must fit the axes it stands for, which an Ellipsis before it moves to the end."""
    used = [_axes_used(item) for item in given]
    for position, item in enumerate(given):
        mask = _known_mask(item)
        if mask is None:
            continue
        after_dots = any(x is Ellipsis for x in given[:position])
        first = len(shape) - sum(used[position:]) if after_dots else sum(used[:position])
        axes = shape[max(first, 0) : max(first, 0) + mask.ndim]
        if axes != mask.shape and sum(used) <= len(shape):
            raise BoundsError(f"boolean index of shape {mask.shape} does not fit axes of shape {axes}", LINE.get())


def _known_mask(item: Any) -> np.ndarray | None:
    if not isinstance(item, (list, np.ndarray)) or holds_traced(item):
        return None
    array = np.asarray(item)
    return array if array.dtype == np.bool_ else None


def _axes_used(item: Any) -> int:
    """How many axes an entry of an index stands for."""
    if item is None or item is Ellipsis:
        return 0
    mask = _known_mask(item)
    return 1 if mask is None else mask.ndim


def getitem(x: TracedArray, index: Any) -> Any:
    """``x[index]`` with NumPy's meaning; views where NumPy has views."""
    given = listed_index(index)
    for item in given:
        access = getattr(item, "__eqsat_access__", None)
        if access is not None:
            element: TracedArray = access(x, given)
            return element
    index = settled(index)
    if x.known is not None:
        try:
            return wrapped(x.known[plain(index)], (x,))
        except Unknown:
            pass
    if any(isinstance(item, TracedArray) and item.dtype == np.bool_ for item in listed_index(index)):
        from eqsat.frontends.selections import selected

        return selected(x, index)
    found = picked(x, index)
    if found.indexed:
        elements, order = _gather(found.view.node, found.indexed, found.adjacent)
        taken = TracedArray(elements)
        items = listed_index(index)
        if taken.ndim and all(_is_place(item) for item in items):
            return TracedArray.of_memory(Window(x, index, taken.node), taken.node.type, None, x.is_readonly)
        if order != sorted(order):
            taken = view_of(taken, views.transpose(elements.shape, order), "transpose")
        taken.is_element = not taken.ndim and not any(item is Ellipsis for item in items)
        return taken
    if found.element or any(isinstance(item, np.ndarray) for item in listed_index(index)):
        copied = TracedArray(found.view.node)  # an array without axes names a place as an int does, and NumPy copies
        copied.is_element = found.element
        return copied
    if x.is_scalar and not found.view.shape:
        shown = TracedArray(found.view.node)  # an array without axes, and its own: a scalar has no memory to share
        shown.is_scalar = False
        return shown
    return found.view


def listed_index(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def settled(index: Any) -> Any:
    """An index with NumPy arrays for the known traced ones, and arrays for lists of unknown ones."""
    return tuple(map(_settled_item, index)) if type(index) is tuple else _settled_item(index)


def _settled_item(item: Any) -> Any:
    if isinstance(item, Unsized):
        item = item.array()
    if isinstance(item, TracedArray):
        return item if item.known is None else item.known
    if type(item) in (tuple, list):
        items = type(item)(map(_settled_item, item))
        return traced(items) if holds_traced(items) else items
    return item


class Window(Memory):
    """What a traced scalar index shows of an array: a view, as with an int, whose place is known when it is run."""

    __slots__ = ("_base", "_index", "_of")

    def __init__(self, base: TracedArray, index: Any, node: Node) -> None:
        self._base, self._index, self._of = base, index, base.memory.version
        super().__init__(node)

    def shows(self, base: TracedArray, index: Any) -> bool:
        """Whether it is what an index shows of an array."""
        mine, others = listed_index(self._index), listed_index(index)
        same = all(
            a is b or (type(a) is type(b) is not TracedArray and a == b) for a, b in zip(mine, others, strict=False)
        )
        return base.is_same_view(self._base) and len(mine) == len(others) and same

    @property
    def example(self) -> TracedArray | None:
        """What the index shows at 0."""
        if self._base.size == 0:
            return None
        shown: TracedArray = self._base[
            tuple(0 if isinstance(item, TracedArray) else item for item in listed_index(self._index))
        ]
        return shown

    @property
    def version(self) -> int:
        """That of the array it is a part of."""
        return self._base.memory.version

    @version.setter
    def version(self, value: int) -> None:
        """Its base tells it."""

    @property
    def ready(self) -> bool:
        return False

    @property
    def node(self) -> Node:
        if self._of != self.version:
            found = picked(self._base, self._index)
            elements, order = _gather(found.view.node, found.indexed, found.adjacent)
            self._node, self._writes = build.transpose(elements, order), Writes()
            self._of = self.version
        return super().node

    def read(self, map: ViewMap | None) -> Node:
        whole = self.node
        return whole if map is None else build.view(whole, map)

    def write(self, map: ViewMap | None, value: Node) -> None:
        whole = Memory(self.node)
        whole.write(map, value)
        self._base[self._index] = TracedArray(whole.node)


@dataclass(frozen=True)
class Picked:
    """An index taken apart: ``view`` shows what slices, ints and Nones leave, with the axes under index arrays whole.

    ``indexed``: those axes of the view, each with its indices, or 0 for an int beside arrays. ``adjacent``: whether
    they stand side by side. ``element``: NumPy returns a scalar, not a view.
    """

    view: TracedArray
    indexed: list[tuple[int, Indices]]
    adjacent: bool
    element: bool


def picked(x: TracedArray, index: Any) -> Picked:
    entries = _entries(index, x.shape)
    advanced = any(isinstance(e, (Node, np.ndarray)) for e in entries)
    strides = row_major(x.shape)
    offset, steps = 0, []
    shape: list[int] = []  # after slices and None; axes under an index kept
    indexed: list[tuple[int, Indices]] = []
    where: list[int] = []  # positions of indices among the entries
    axis = 0
    for position, entry in enumerate(entries):
        if entry is None or entry is Ellipsis:
            if entry is None:
                shape.append(1)
                steps.append(0)
            continue
        n = x.shape[axis]
        if isinstance(entry, slice):
            start, stop, step = _slice(entry).indices(n)
            size = len(range(start, stop, step))
            offset += start * strides[axis] if size else 0
            steps.append(step * strides[axis])
            shape.append(size)
        elif isinstance(entry, int):
            if not -n <= entry < n:
                raise BoundsError(f"index {entry} is out of bounds for axis {axis} with size {n}", LINE.get())
            offset += entry % n * strides[axis]
            if advanced:
                # Beside index arrays an int is one too, and decides where the result's axes go.
                indexed.append((len(shape), 0))
                where.append(position)
                shape.append(1)
                steps.append(0)
        else:
            if isinstance(entry, np.ndarray):
                bad = entry[(entry < -n) | (entry >= n)]
                if bad.size:
                    raise BoundsError(f"index {bad.flat[0]} is out of bounds for axis {axis} with size {n}", LINE.get())
                entry = constant(entry)
            indexed.append((len(shape), entry))
            where.append(position)
            shape.append(n)
            steps.append(strides[axis])
        axis += 1
    view = view_of(x, views.strided(shape, steps, offset if 0 not in shape else 0), "slice")
    element = not shape and not any(item is Ellipsis for item in listed_index(index))
    return Picked(view, indexed, bool(where) and where[-1] - where[0] == len(where) - 1, element)


def _is_place(item: Any) -> bool:
    """Whether an entry of an index names one position or a range, so that NumPy shows a view."""
    if isinstance(item, TracedArray):
        return item.is_scalar
    return item is None or item is Ellipsis or isinstance(item, (slice, int, np.integer))


def _slice(entry: slice) -> slice:
    parts = [None if part is None else operator.index(part) for part in (entry.start, entry.stop, entry.step)]
    if parts[2] == 0:
        raise ValueError("slice step cannot be zero")
    return slice(*parts)


def _gather(x: Node, indexed: list[tuple[int, Indices]], adjacent: bool) -> tuple[Node, list[int]]:
    """``x`` with axes replaced by index arrays that broadcast together: as NumPy lays that out in memory, with the axes
    of the indices first, and the order of these axes that it then shows."""
    axes = [axis for axis, _ in indexed]
    arrays = [(axis, index) for axis, index in indexed if isinstance(index, Node)]
    try:
        spread = np.broadcast_shapes(*(index.shape for _, index in arrays))
    except ValueError:
        listed = " ".join(str(index.shape) for _, index in arrays)
        raise ShapeError(f"index arrays of shapes {listed} do not broadcast together", LINE.get()) from None
    # The axes of ints have extent 1 by now: drop them, keeping count of where the indices stood.
    ints = [axis for axis, index in indexed if not isinstance(index, Node)]
    x = build.reshape(x, [n for axis, n in enumerate(x.shape) if axis not in ints])
    picked = [(axis - sum(1 for i in ints if i < axis), index) for axis, index in arrays]
    place = axes[0] - sum(1 for i in ints if i < axes[0]) if adjacent else 0
    if len(picked) == 1:
        axis, index = picked[0]
        index = build.broadcast_to(index, spread)
        result = build.gather(x, index, axis)
        first = axis
    else:
        front = [axis for axis, _ in picked]
        rest = [axis for axis in range(x.type.ndim) if axis not in front]
        extents = [x.shape[axis] for axis in front]
        x = build.transpose(x, [*front, *rest])
        x = build.reshape(x, (math.prod(extents), *x.shape[len(front) :]))
        flat = flat_index([index for _, index in picked], extents, spread)
        result = gather_flat(x, flat)
        first = 0
    width = len(spread)
    block = list(range(first, first + width))
    others = [axis for axis in range(result.type.ndim) if axis not in block]
    order = [*range(width, width + place), *range(width), *range(width + place, result.type.ndim)]
    return build.transpose(result, [*block, *others]), order


def flat_index(indices: list[Node], extents: list[int], shape: tuple[int, ...]) -> Node:
    """Row-major position of index tuples; each index may be negative, and is checked when the program runs."""
    total: Node | None = None
    for index, extent, stride in zip(indices, extents, row_major(tuple(extents)), strict=True):
        safe = make("wrap_index", (build.cast(index, int64),), extent)
        term = call("mul", safe, scalar(stride, safe)) if stride != 1 else safe
        total = term if total is None else call("add", total, term)
    assert total is not None
    return build.broadcast_to(total, shape)


def gather_flat(x: Node, index: Node) -> Node:
    """Gather on axis 0 by positions that are in range already."""
    return make("gather", (x, index), 0, label="take")


@implements(np.take)
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> TracedArray:
    x = lift(a)
    if axis is None:
        x, axis = build.reshape(x, (x.type.size,)), 0
    x = with_axis(x)
    axis = normalize_axis(axis, x.type.ndim)
    index = lift(_known_index(indices, x.shape[axis], axis, mode))
    if index.dtype.kind != "int":
        raise UnsupportedDTypeError(f"np.take: indices must be integers, not {index.dtype}", LINE.get())
    if x.shape[axis] > np.iinfo(index.dtype.numpy).max:
        index = build.cast(index, int64)
    match mode:
        case "raise":
            return TracedArray(build.gather(x, index, axis))
        case "wrap":
            index = call("remainder", index, scalar(x.shape[axis], index))
        case "clip":
            top = scalar(max(x.shape[axis] - 1, 0), index)
            index = call("minimum", call("maximum", index, scalar(0, index)), top)
        case _:
            raise ValueError(f"np.take: mode must be 'raise', 'wrap' or 'clip', not {mode!r}")
    return TracedArray(make("gather", (x, index), axis, label="take"))


def _known_index(indices: Any, extent: int, axis: int, mode: str) -> Any:
    """Indices known now, checked now."""
    if isinstance(indices, TracedArray):
        return indices
    array = np.asarray(indices)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    if mode == "raise" and array.dtype.kind == "i":
        bad = array[(array < -extent) | (array >= extent)]
        if bad.size:
            raise BoundsError(f"index {bad.flat[0]} is out of bounds for axis {axis} with size {extent}", LINE.get())
    return array


@implements(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> TracedArray:
    x, index = lift(arr), lift(indices)
    if axis is None:
        x, axis = build.reshape(x, (x.type.size,)), 0
    axis = normalize_axis(axis, x.type.ndim)
    if index.type.ndim != x.type.ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    if index.dtype.kind != "int":
        raise UnsupportedDTypeError(f"`indices` must be integers, not {index.dtype}", LINE.get())
    shape = [n if i != axis else index.shape[i] for i, n in enumerate(x.shape)]
    for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if i != axis and n != m and 1 not in (n, m):
            raise ValueError(f"take_along_axis: shapes {x.shape} and {index.shape} do not broadcast off axis {axis}")
        if i != axis:
            shape[i] = m if n == 1 else n
    parts: list[Node] = []
    for i, n in enumerate(x.shape):
        if i == axis:
            parts.append(index)
        else:
            steps = [n if j == i else 1 for j in range(x.type.ndim)]
            parts.append(build.reshape(build.iota(n), steps))
    if 0 in shape:
        return TracedArray(build.const(np.zeros(shape, x.dtype.numpy)))
    flat = flat_index(parts, list(x.shape), tuple(shape))
    return TracedArray(gather_flat(build.reshape(x, (x.type.size,)), flat))

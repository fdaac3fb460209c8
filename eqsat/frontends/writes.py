"""Writing to arrays: assignment to indexed elements, and the functions that change their argument."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from eqsat.errors import ShapeError, UnsupportedDTypeError, UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.boxes import evenly
from eqsat.frontends.convert import holds_traced, is_weak, known_dtype, lift, reshaped, traced, view_of
from eqsat.frontends.indexing import Picked, Window, flat_index, getitem, listed_index, picked, settled
from eqsat.frontends.known import wrapped
from eqsat.frontends.memory import scattered
from eqsat.frontends.registry import implements
from eqsat.frontends.selections import Selection, masked_view, write_masked
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.ufuncs import apply
from eqsat.ir import build, views
from eqsat.ir.build import call
from eqsat.ir.node import LINE, Node
from eqsat.ir.table import make
from eqsat.ir.types import bool_


def setitem(x: TracedArray, index: Any, value: Any) -> None:
    """``x[index] = value``."""
    x.check_writable()
    index = settled(index)
    unknown = any(holds_traced(item) for item in listed_index(index))
    if x.known is not None and not unknown:
        plain = settled(value)
        if not holds_traced(plain):
            x.known[index] = plain
            x.memory.touch()
            return
    if any(isinstance(item, TracedArray) and item.dtype == np.bool_ for item in listed_index(index)):
        write_masked(x, index, value)
        return
    if isinstance(value, Selection):
        value = value.array()
    if any(getattr(item, "__eqsat_access__", None) is not None for item in listed_index(index)):
        raise UnsupportedOpError("an operator's element cannot be assigned to: return it", LINE.get())
    if not unknown and any(isinstance(item, (list, np.ndarray)) and np.ndim(item) for item in listed_index(index)):
        _write_at(x, np.arange(x.size).reshape(x.shape)[index], value)
        return
    if isinstance(value, TracedArray) and isinstance(value.memory, Window) and value.memory.shows(x, index):
        return  # x[i] += …, which wrote to the view already
    found = picked(x, index)
    if found.view.memory is not x.memory:
        _write_at(x, np.arange(x.size).reshape(x.shape)[index], value)
    elif found.indexed:
        _scatter(found, value, "set")
    else:
        assign(found.view, value)


def assign(target: TracedArray, value: Any) -> None:
    """Write a value to all of ``target``, cast and broadcast as an assignment does."""
    if not target.is_same_view(value):
        target.assign(fitted(value, target.shape, target.dtype))


def fitted(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> Node:
    """A value as the elements of a target; axes of extent 1 in front may be more than the target has."""
    kind = known_dtype(dtype)
    node = lift(value, kind) if is_weak(value) else build.cast(lift(value), kind)
    given = node.shape
    extra = node.type.ndim - len(shape)
    if extra > 0 and math.prod(given[:extra]) == 1:
        node = build.reshape(node, given[extra:])
    try:
        return build.broadcast_to(node, shape)
    except ValueError:
        raise ShapeError(f"could not broadcast input array from shape {given} into shape {shape}", LINE.get()) from None


def _write_at(x: TracedArray, where: np.ndarray, value: Any) -> None:
    """Write to elements at known positions among those of ``x``; of several at one position the last."""
    node = fitted(value, where.shape, x.dtype)
    if not where.size:
        return
    even = evenly(where)
    view = None if even is None else x.seen_through(even, "put")
    if view is not None:
        view.assign(node)
    else:
        x.assign(scattered(x.node, where, node))


def _scatter(found: Picked, value: Any, combine: str) -> None:
    """Write to elements at positions of which some are values."""
    view, arrays = found.view, [(a, index) for a, index in found.indexed if isinstance(index, Node)]
    spread = np.broadcast_shapes(*(index.shape for _, index in arrays))
    ints = [axis for axis, index in found.indexed if not isinstance(index, Node)]
    place = found.indexed[0][0] - sum(1 for i in ints if i < found.indexed[0][0]) if found.adjacent else 0
    view = reshaped(view, [n for axis, n in enumerate(view.shape) if axis not in ints])
    front = [axis - sum(1 for i in ints if i < axis) for axis, _ in arrays]
    rest = [axis for axis in range(view.ndim) if axis not in front]
    target = view_of(view, views.transpose(view.shape, [*front, *rest]), "transpose")
    extents, others = target.shape[: len(front)], target.shape[len(front) :]
    whole = build.reshape(target.node, (math.prod(extents), *others))
    flat = flat_index([index for _, index in arrays], list(extents), spread)
    flat = build.reshape(flat, (flat.type.size,))
    # The value has the axes of the indices where NumPy puts them; the table has them in front.
    node = fitted(value, (*others[:place], *spread, *others[place:]), target.dtype)
    width = len(spread)
    lead = [*range(place, place + width), *range(place), *range(place + width, node.type.ndim)]
    node = build.reshape(build.transpose(node, lead), (flat.type.size, *others))
    if flat.type.size and whole.type.size:
        target.assign(build.reshape(scatter(whole, flat, node, combine), target.shape))


def scatter(table: Node, index: Node, value: Node, combine: str) -> Node:
    """Rows of ``table`` at positions in range, combined with rows of ``value`` one after the other."""
    if index.shape != (1,):
        return make("scatter", (table, index, value), combine)
    row = build.broadcast_to(value, table.shape)
    new = row if combine == "set" else apply(getattr(np, combine), (TracedArray(table), TracedArray(row))).node
    here = call("eq", build.iota(table.shape[0]), build.broadcast_to(index, (table.shape[0],)))
    here = build.reshape(here, (table.shape[0], *[1] * (table.type.ndim - 1)))
    return call("where", here, build.cast(new, table.dtype), table)


def ufunc_at(ufunc: np.ufunc, x: Any, index: Any, *values: Any) -> None:
    """``ufunc.at``: unbuffered, so that an element that comes several times is changed as often."""
    if not isinstance(x, TracedArray):
        raise UnsupportedOpError(
            f"np.{ufunc.__name__}.at on a NumPy array from outside: pass it as an argument", LINE.get()
        )
    x.check_writable()
    index = settled(index)
    items = listed_index(index)
    if ufunc.nin != 1 + len(values):
        raise ValueError(f"second operand needed for ufunc.at of {ufunc.nin} operands")
    values = tuple(_as_at_takes(value, x.dtype) for value in values)
    if any(isinstance(item, TracedArray) and item.dtype == np.bool_ for item in items):
        view, mask, first = masked_view(x, index)
        old = Selection(view.node, mask, first)
        write_masked(x, index, ufunc(old, *values))
        return
    found = picked(x, index)
    if not found.indexed:
        _check_kind(ufunc, found.view, *values)
        assign(found.view, apply(ufunc, (found.view, *values)))
        return
    picks = getitem(x, index)
    _check_kind(ufunc, picks, *values)
    if ufunc.nin == 1:
        where = None if holds_traced(items) else np.arange(x.size).reshape(x.shape)[index]
        if where is None or np.unique(where).size != where.size:
            raise UnsupportedOpError(f"np.{ufunc.__name__}.at where an element comes twice, or may do so", LINE.get())
        setitem(x, index, apply(ufunc, (picks,)))
        return
    (value,) = values
    loop = apply(ufunc, (picks, value)).dtype
    if loop != x.dtype and ufunc.__name__ in _ARITHMETIC:  # NumPy casts each result, of the same kind, to it
        value, loop = traced(value).astype(x.dtype), x.dtype
    if loop != x.dtype or ufunc.__name__ not in _AT:
        raise UnsupportedOpError(f"np.{ufunc.__name__}.at of {x.dtype} and {np.result_type(loop)}", LINE.get())
    _scatter(found, value, ufunc.__name__)


def _as_at_takes(value: Any, dtype: Any) -> Any:
    """A Python integer as the array that ``ufunc.at`` makes of it, where that is not the same as one of the integers'
    type that are its target: it does not fit, or the two meet in float64, as ``uint64`` and ``int64`` do."""
    kind = np.dtype(dtype)
    if not is_weak(value) or not isinstance(value, int) or kind.kind not in "iu":
        return value
    array, info = np.asarray(value), np.iinfo(kind)
    fits = info.min <= value <= info.max and np.result_type(kind, array).kind in "iu"
    return value if fits else array


_ARITHMETIC = {"add", "subtract", "multiply"}
_AT = {"add", "subtract", "multiply", "maximum", "minimum", "logical_and", "logical_or", "fmax", "fmin", "divide"}


def _check_kind(ufunc: np.ufunc, *operands: Any) -> None:
    result, target = apply(ufunc, operands).dtype, operands[0].dtype
    if not np.can_cast(result, target, "same_kind"):
        raise UnsupportedDTypeError(
            f"Cannot cast ufunc '{ufunc.__name__}' output from {result!r} to {target!r} with casting rule 'same_kind'",
            LINE.get(),
        )


def _target(name: str, x: Any) -> TracedArray:
    if not isinstance(x, TracedArray):
        raise UnsupportedOpError(
            f"{name}: traced values cannot be written to a NumPy array from outside: pass it as an argument, or make "
            "it in the function",
            LINE.get(),
        )
    x.check_writable()
    return x


@implements(np.copyto)
def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    target = _target("np.copyto", dst)
    given = src if is_weak(src) else traced(src)
    kind = np.min_scalar_type(src) if is_weak(src) else given.dtype
    if not np.can_cast(kind, target.dtype, casting) and not (is_weak(src) and isinstance(src, int)):
        raise UnsupportedDTypeError(
            f"Cannot cast array data from {kind!r} to {target.dtype!r} by {casting!r}", LINE.get()
        )
    write_where(target, given, where)


def write_where(target: TracedArray, value: Any, where: Any) -> None:
    """Write a value where a mask of a shape that broadcasts to the target's holds."""
    if where is True:
        assign(target, value)
        return
    node = fitted(value, target.shape, target.dtype)
    test = traced(where)
    if test.dtype != np.bool_:
        raise UnsupportedDTypeError(f"where= must be a mask of bool, not {test.dtype}", LINE.get())
    target.assign(call("where", fitted(test, target.shape, np.dtype(bool)), node, target.node))


@implements(np.putmask)
def putmask(a: Any, mask: Any, values: Any) -> None:
    target = _target("np.putmask", a)
    test = lift(mask)
    if test.type.size != target.size:
        raise ValueError("putmask: mask and data must be the same size")
    test = build.cast(build.reshape(test, target.shape), bool_)
    node = lift(values, known_dtype(target.dtype))
    if node.type.size == 0:
        return
    if node.type.size != 1:
        node = _repeated(node, target.size)
    target.assign(call("where", test, build.broadcast_to(_shaped(node, target.shape), target.shape), target.node))


def _shaped(node: Node, shape: tuple[int, ...]) -> Node:
    return build.reshape(node, ()) if node.type.size == 1 else build.reshape(node, shape)


def _repeated(node: Node, size: int) -> Node:
    """The elements of a node, again and again."""
    flat = build.reshape(node, (node.type.size,))
    if flat.type.size >= size:
        return build.take_range(flat, 0, 0, size)
    times = -(-size // flat.type.size)
    wide = build.reshape(build.broadcast_to(flat, (times, flat.type.size)), (times * flat.type.size,))
    return build.take_range(wide, 0, 0, size)


@implements(np.put)
def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    target = _target("np.put", a)
    index, node = lift(settled(ind)), lift(v, known_dtype(target.dtype))
    count = index.type.size
    if not count or not node.type.size:
        return
    node = _repeated(node, count)
    where = settled(ind)
    if not holds_traced(where):
        known = np.asarray(where).reshape(-1)
        if mode == "raise" and ((known < -target.size) | (known >= target.size)).any():
            raise IndexError(f"an index is out of bounds for an array of {target.size} elements")
        known = known.clip(0, target.size - 1) if mode == "clip" else known % target.size
        _write_at(target, known, TracedArray(node))
        return
    if mode != "raise":
        raise UnsupportedOpError(f"np.put(mode={mode!r}) at traced positions: clip or wrap them before", LINE.get())
    at = flat_index([build.reshape(index, (count,))], [target.size], (count,))
    made = scatter(build.reshape(target.node, (target.size,)), at, node, "set")
    target.assign(build.reshape(made, target.shape))


@implements(np.put_along_axis)
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any = -1) -> None:
    target = _target("np.put_along_axis", arr)
    index = settled(indices)
    if axis is None:
        target, axis = reshaped(target, (target.size,)), 0
        if not target.memory.orderly:
            raise UnsupportedOpError("np.put_along_axis(axis=None) on a transposed array", LINE.get())
    axis = normalize_axis_index(axis, target.ndim)
    ndim = index.ndim if isinstance(index, (np.ndarray, TracedArray)) else np.ndim(index)
    if ndim != target.ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    where: list[Any] = []
    for i, n in enumerate(target.shape):
        steps = [n if j == i else 1 for j in range(target.ndim)]
        where.append(index if i == axis else np.arange(n).reshape(steps))
    setitem(target, tuple(where), values)


@implements(np.fill_diagonal)
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    target = _target("np.fill_diagonal", a)
    if target.ndim < 2:
        raise ValueError("array must be at least 2-d")
    rows, cols = target.shape[0], target.shape[1]
    if target.ndim > 2 and len(set(target.shape)) > 1:
        raise ValueError("All dimensions of input must be of equal length")
    step = 1 + sum(math.prod(target.shape[i:]) for i in range(1, target.ndim))
    end = target.size if wrap or target.ndim > 2 or rows <= cols else cols * cols
    where = np.arange(0, end, step)
    node = lift(val, known_dtype(target.dtype))
    if not node.type.size or not where.size:
        return
    once = target.ndim == 2 and where.size == min(rows, cols)
    if once and node.type.size == 1 and target.memory.computed:
        # What is computed is chosen where it is computed; an argument has only its diagonal written.
        down = build.reshape(build.iota(rows), (rows, 1))
        on = build.call("eq", build.iota(cols), down)
        target.assign(build.call("where", on, build.reshape(node, ()), target.node))
        return
    _write_at(target, where, TracedArray(_repeated(node, where.size)))


class Flat:
    """``x.flat``: the elements in row-major order, which assignments write to."""

    __slots__ = ("base",)

    def __init__(self, base: TracedArray) -> None:
        self.base = base

    def _flat(self) -> TracedArray:
        return TracedArray(build.reshape(self.base.node, (self.base.size,)))

    def __getitem__(self, index: Any) -> Any:
        index = settled(index)
        if self.base.known is not None and not holds_traced(index):
            return wrapped(self.base.known.flat[index])
        found = self._flat()[index]
        return found.copy() if isinstance(found, TracedArray) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        registry.located("assignment", self._write, index, value)

    def _write(self, index: Any, value: Any) -> None:
        base, index = self.base, settled(index)
        base.check_writable()
        where = np.arange(base.size)
        if holds_traced(index):
            flat = self._flat()
            setitem(flat, index, value)
            base.assign(build.reshape(flat.node, base.shape))
            return
        chosen = where[index]
        given = lift(value, known_dtype(base.dtype))
        if chosen.size and given.type.size:
            _write_at(base, np.asarray(chosen), TracedArray(_shaped(_repeated(given, chosen.size), chosen.shape)))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._flat())

    def __len__(self) -> int:
        return self.base.size

    def __array__(self, dtype: Any = None, copy: object = None) -> np.ndarray:
        return np.asarray(self._flat(), dtype)

    def copy(self) -> TracedArray:
        """The elements as an array of one axis."""
        return self._flat()

"""Functions that move elements without arithmetic inside one array: reshape, transpose, flip, roll, tile…"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from eqsat.errors import SharedMemoryError, UnsupportedOpError
from eqsat.frontends.convert import (
    copied,
    is_dense,
    is_weak,
    known_dtype,
    lift,
    listed,
    literal,
    lying,
    normalize_axes,
    normalize_axis,
    reduced_axes,
    reshaped,
    traced,
    view_of,
    with_axis,
)
from eqsat.frontends.registry import implements
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build, views
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import DType, row_major
from eqsat.ir.views import ViewMap


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape from an int or a sequence of ints; ConcretizationError if one is traced."""
    if isinstance(shape, (int, np.integer)):
        return (int(shape),)
    if isinstance(shape, TracedArray):
        return (operator.index(shape),)
    return tuple(operator.index(n) for n in shape)


def _columns_first(name: str, x: TracedArray, order: str) -> bool:
    """Whether ``order`` walks columns first: ``F`` does, ``A`` where the array is contiguous so and not by rows."""
    if order not in ("C", "F", "A", "K") or (order == "K" and name == "reshape"):
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    if order != "A" or x.ndim < 2 or x.size == 0:
        return order == "F"
    _steps(name, x, order)
    return not is_dense(x) and is_dense(transpose(x))


def _steps(name: str, x: TracedArray, order: str) -> Sequence[int]:
    """How far each axis steps in memory. ``SharedMemoryError`` where that is not known: no value tells."""
    x.keep_order()
    shown = lying(x)
    steps = row_major(x.shape) if shown.map is None else shown.map.strides
    known = x.memory.orderly and shown.memory.orderly and not (x.memory.doubtful or shown.memory.doubtful)
    if not known or steps is None or any(step <= 0 for n, step in zip(x.shape, steps, strict=True) if n > 1):
        raise SharedMemoryError(
            f"{name}(order={order!r}) asks for the order in memory, which is not known here: name the order "
            "(order='C'), or copy before (x.copy())",
            LINE.get(),
        )
    return steps


@implements(np.reshape)
def reshape(a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: Any = None) -> TracedArray:
    x = traced(a)
    target = list(shape_of(shape if shape is not None else newshape))
    if target.count(-1) > 1:
        raise ValueError("can only specify one unknown dimension")
    if -1 in target:
        known = math.prod(n for n in target if n != -1)
        if known == 0 or x.size % known:
            raise ValueError(f"cannot reshape array of shape {x.shape} and size {x.size} into shape {tuple(target)}")
        target[target.index(-1)] = x.size // known
    if math.prod(target) != x.size or any(n < 0 for n in target):
        raise ValueError(f"cannot reshape array of shape {x.shape} and size {x.size} into shape {tuple(target)}")
    if _columns_first("reshape", x, order):
        made = transpose(reshaped(transpose(x), target[::-1]))
    else:
        made = reshaped(x, target)
    if copy is False and made.memory is not x.memory:
        raise ValueError("Unable to avoid creating a copy while reshaping.")
    return TracedArray(made.node) if copy else made


@implements(np.ravel)
def ravel(a: Any, order: str = "C") -> TracedArray:
    """A view of what is contiguous, else a copy; ``K`` walks far steps first."""
    x = traced(a)
    if order == "K" and x.ndim > 1 and x.size:
        steps = _steps("ravel", x, order)
        x = transpose(x, sorted(range(x.ndim), key=lambda a: (x.shape[a] > 1, -steps[a] if x.shape[a] > 1 else 0)))
    elif _columns_first("ravel", x, order):
        x = transpose(x)
    made = reshaped(x, (x.size,))
    if not is_dense(x):
        made = TracedArray(made.node)
    x.memory.reshaped = made.memory.reshaped = True  # in memory of another order it would be a copy, or none
    return made


@implements(np.transpose, np.permute_dims)
def transpose(a: Any, axes: Any = None) -> TracedArray:
    x = traced(a)
    if axes is None:
        order = tuple(reversed(range(x.ndim)))
    else:
        order = tuple(normalize_axis(i, x.ndim) for i in shape_of(axes))
        if sorted(order) != list(range(x.ndim)):
            raise ValueError(f"axes {tuple(axes)} don't match array of shape {x.shape}")
    return view_of(x, views.transpose(x.shape, order), "transpose")


@implements(np.swapaxes)
def swapaxes(a: Any, axis1: Any, axis2: Any) -> TracedArray:
    x = traced(a)
    order = list(range(x.ndim))
    i, j = normalize_axis(axis1, x.ndim), normalize_axis(axis2, x.ndim)
    order[i], order[j] = order[j], order[i]
    return view_of(x, views.transpose(x.shape, order), "transpose")


@implements(np.matrix_transpose, np.linalg.matrix_transpose)
def matrix_transpose(x: Any, /) -> TracedArray:
    if traced(x).ndim < 2:
        raise ValueError(f"matrix transpose of shape {traced(x).shape}: at least two axes are needed")
    return swapaxes(x, -1, -2)


@implements(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> TracedArray:
    x = traced(a)
    origin = [normalize_axis(i, x.ndim) for i in shape_of(source)]
    target = [normalize_axis(i, x.ndim) for i in shape_of(destination)]
    if len(origin) != len(target) or len(set(origin)) != len(origin) or len(set(target)) != len(target):
        raise ValueError(f"moveaxis: source {source} and destination {destination} must be as many distinct axes")
    order = [i for i in range(x.ndim) if i not in origin]
    for to, source_axis in sorted(zip(target, origin, strict=True)):
        order.insert(to, source_axis)
    return view_of(x, views.transpose(x.shape, order), "transpose")


@implements(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> TracedArray:
    x = traced(a)
    axis = normalize_axis(axis, x.ndim)
    start = normalize_axis(start, x.ndim + 1) if start >= 0 else start + x.ndim
    return moveaxis(x, axis, start - 1 if axis < start else start)


@implements(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> TracedArray:
    x = traced(a)
    new = tuple(shape_of(axis))
    axes = normalize_axes(new, x.ndim + len(new))
    return reshaped(x, build.expand_dims(x.node, axes).shape)


@implements(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> TracedArray:
    x = traced(a)
    axes = [i for i, n in enumerate(x.shape) if n == 1] if axis is None else reduced_axes(axis, x.node)
    if any(x.shape[i] != 1 for i in axes):
        raise ValueError(f"cannot squeeze axis {axis} of shape {x.shape}: its size is not 1")
    return reshaped(x, [n for i, n in enumerate(x.shape) if i not in axes])


def _at_least(ndim: int, before: dict[int, tuple[int, int]]) -> Any:
    def run(*arrays: Any) -> Any:
        results = []
        for a in arrays:
            x = traced(a)
            low, high = before.get(x.ndim, (0, 0))
            results.append(reshaped(x, (*[1] * low, *x.shape, *[1] * high)))
        return results[0] if len(results) == 1 else tuple(results)

    return run


implements(np.atleast_1d)(_at_least(1, {0: (1, 0)}))
implements(np.atleast_2d)(_at_least(2, {0: (2, 0), 1: (1, 0)}))
implements(np.atleast_3d)(_at_least(3, {0: (3, 0), 1: (1, 1), 2: (0, 1)}))


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> TracedArray:
    x, target = traced(array), shape_of(shape)
    lead = len(target) - x.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(x.shape, target[lead:], strict=True)):
        raise ValueError(f"shape {x.shape} does not broadcast to {target}")
    return view_of(x, views.broadcast(x.shape, target), "broadcast_to", readonly=True)


@implements(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[TracedArray, ...]:
    arrays = [traced(a) for a in args]
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return tuple(broadcast_to(x, shape) for x in arrays)


def flip_map(shape: Sequence[int], axes: tuple[int, ...]) -> ViewMap:
    starts = [n - 1 if i in axes and n else 0 for i, n in enumerate(shape)]
    return views.slices(shape, starts, [-1 if i in axes else 1 for i in range(len(shape))], shape)


def flip_node(node: Node, axes: tuple[int, ...]) -> Node:
    return build.view(node, flip_map(node.shape, axes), "slice")


@implements(np.flip)
def flip(m: Any, axis: Any = None) -> TracedArray:
    x = traced(m)
    return view_of(x, flip_map(x.shape, normalize_axes(listed(axis), x.ndim)), "slice")


@implements(np.flipud)
def flipud(m: Any) -> TracedArray:
    return flip(m, 0)


@implements(np.fliplr)
def fliplr(m: Any) -> TracedArray:
    return flip(m, 1)


@implements(np.rot90)
def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> TracedArray:
    first, second = (normalize_axis(i, traced(m).ndim) for i in axes)
    if first == second:
        raise ValueError("rot90: axes must be different")
    match k % 4:
        case 0:
            return flip(m, ())
        case 1:
            return swapaxes(flip(m, second), first, second)
        case 2:
            return flip(m, (first, second))
        case _:
            return flip(swapaxes(m, first, second), second)


@implements(np.diagonal)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> TracedArray:
    x = traced(a)
    map = diagonal_map(x.shape, offset, normalize_axis(axis1, x.ndim), normalize_axis(axis2, x.ndim))
    return view_of(x, map, "diagonal", readonly=True)


@implements(np.linalg.diagonal)
def linalg_diagonal(x: Any, /, *, offset: int = 0) -> TracedArray:
    return diagonal(x, offset, -2, -1)


def diagonal_node(x: Node, offset: int, first: int, second: int) -> Node:
    """The diagonal over two axes, as the last axis."""
    return build.view(x, diagonal_map(x.shape, offset, first, second), "diagonal")


def diagonal_map(extents: Sequence[int], offset: int, first: int, second: int) -> ViewMap:
    if first == second:
        raise ValueError("axis1 and axis2 cannot be the same")
    strides = row_major(tuple(extents))
    row, col = max(-offset, 0), max(offset, 0)
    length = max(min(extents[first] - row, extents[second] - col), 0)
    rest = [i for i in range(len(extents)) if i not in (first, second)]
    start = row * strides[first] + col * strides[second] if length else 0
    shape = [*(extents[i] for i in rest), length]
    steps = [*(strides[i] for i in rest), strides[first] + strides[second]]
    return views.strided(shape, steps, start)


@implements(np.diag)
def diag(v: Any, k: int = 0) -> TracedArray:
    x = traced(v)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ValueError(f"diag takes one or two axes, not shape {x.shape}")
    n, side = x.shape[0], x.shape[0] + abs(k)
    if n == 0:
        return TracedArray(build.const(np.zeros((side, side), x.dtype)))
    # Rows of side + 1 put the elements in one column; the flat array, cut short, has rows of side.
    column = build.pad(build.reshape(x.node, (n, 1)), [(0, 0), (0, side)], 0)
    flat = build.take_range(build.reshape(column, (n * (side + 1),)), 0, 0, n * (side + 1) - side)
    before = k if k > 0 else -k * side
    padded = build.pad(flat, [(before, side * side - before - flat.shape[0])], 0)
    return TracedArray(build.reshape(padded, (side, side)))


@implements(np.diagflat)
def diagflat(v: Any, k: int = 0) -> TracedArray:
    x = traced(v)
    return diag(TracedArray(build.reshape(x.node, (x.size,))), k)


@implements(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> TracedArray:
    x = traced(a)
    if axis is None:
        flat = _roll(build.reshape(x.node, (x.size,)), operator.index(shift), 0)
        return TracedArray(build.reshape(flat, x.shape))
    shifts, axes = np.broadcast_arrays(shape_of(shift), [normalize_axis(i, x.ndim) for i in shape_of(axis)])
    node = x.node
    for by, at in zip(shifts.tolist(), axes.tolist(), strict=True):
        node = _roll(node, by, at)
    return TracedArray(node)


def _roll(node: Node, by: int, axis: int) -> Node:
    n = node.shape[axis]
    by = by % n if n else 0
    if by == 0:
        return node
    return build.concat([build.take_range(node, axis, n - by, n), build.take_range(node, axis, 0, n - by)], axis)


@implements(np.tile)
def tile(A: Any, reps: Any) -> TracedArray:
    x, times = traced(A), shape_of(reps)
    ndim = max(x.ndim, len(times))
    shape = (1,) * (ndim - x.ndim) + x.shape
    times = (1,) * (ndim - len(times)) + times
    split = build.reshape(x.node, [m for n in shape for m in (1, n)])
    wide = build.broadcast_to(split, [m for n, t in zip(shape, times, strict=True) for m in (t, n)])
    return TracedArray(build.reshape(wide, [n * t for n, t in zip(shape, times, strict=True)]))


@implements(np.repeat)
def repeat(a: Any, repeats: Any, axis: Any = None) -> TracedArray:
    x = traced(a)
    node = x.node
    if axis is None:
        node, axis = build.reshape(node, (x.size,)), 0
    node = with_axis(node)
    axis = normalize_axis(axis, node.type.ndim)
    if isinstance(repeats, TracedArray):
        raise UnsupportedOpError("np.repeat by traced counts: the shape of its result depends on values", LINE.get())
    counts = np.asarray(repeats)
    n = node.shape[axis]
    if counts.size == 1:
        times = int(counts.reshape(())[()])
        wide = build.broadcast_to(
            build.expand_dims(node, (axis + 1,)), (*node.shape[: axis + 1], times, *node.shape[axis + 1 :])
        )
        return TracedArray(build.reshape(wide, (*node.shape[:axis], n * times, *node.shape[axis + 1 :])))
    picks = np.repeat(np.arange(n), counts)
    return TracedArray(build.gather(node, build.const(picks), axis))


def _triangle(node: Node, k: int, below: bool) -> Node:
    if node.type.ndim == 0:
        raise ValueError("a triangle needs at least one axis, not a 0-d array")
    if node.type.ndim < 2:
        node = build.broadcast_to(node, (node.type.size, node.type.size))
    rows, cols = node.shape[-2:]
    down = build.reshape(build.iota(rows), (rows, 1))
    gap = build.call("sub", build.iota(cols), down)
    inside = build.call("le" if below else "ge", gap, build.scalar(k, gap))
    return build.call("where", inside, node, build.scalar(0, node))


@implements(np.tril)
def tril(m: Any, k: int = 0) -> TracedArray:
    return TracedArray(_triangle(lift(m), operator.index(k), True))


@implements(np.triu)
def triu(m: Any, k: int = 0) -> TracedArray:
    return TracedArray(_triangle(lift(m), operator.index(k), False))


@implements(np.astype)
def astype(x: Any, dtype: DTypeLike, /, *, copy: bool = True, device: Any = None) -> TracedArray:
    kind = known_dtype(dtype)
    if not copy and traced(x).node.dtype == kind:
        return traced(x)
    made = TracedArray(build.cast(lift(x), kind))
    made.is_scalar = traced(x).is_scalar  # of an array without axes another such array
    return made


@implements(np.copy)
def copy(a: Any, order: str = "K", subok: bool = False) -> TracedArray:
    made = copied(lift(a), order)
    made.is_scalar = False
    return made


def filled(a: Any, value: Any, dtype: DTypeLike | None, shape: Any) -> TracedArray:
    """A uniform array like ``a``; ``value`` may be traced."""
    x = traced(a)
    kind: DType = known_dtype(dtype) if dtype is not None else x.node.dtype
    target = x.shape if shape is None else shape_of(shape)
    node = literal(value, kind) if is_weak(value) else build.cast(lift(value), kind)
    made = TracedArray(build.broadcast_to(node, target))
    made.memory.orderly, made.is_scalar = x.ordered(), False
    return made


@implements(np.zeros_like, np.empty_like)
def zeros_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None
) -> TracedArray:
    return filled(a, 0, dtype, shape)


@implements(np.ones_like)
def ones_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None
) -> TracedArray:
    return filled(a, 1, dtype, shape)


@implements(np.full_like)
def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *,
    device: Any = None,
) -> TracedArray:  # fmt: skip
    return filled(a, fill_value, dtype, shape)

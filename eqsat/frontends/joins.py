"""Functions of several arrays: concatenate, stack, split, meshgrid, where, clip, select, isclose."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat.errors import ConcretizationError, ShapeError, UnsupportedOpError
from eqsat.frontends.convert import (
    check_casts,
    holds_traced,
    is_weak,
    known_dtype,
    lift,
    listed,
    normalize_axes,
    normalize_axis,
    promote,
    range_map,
    reshaped,
    together,
    traced,
    truth,
    view_of,
)
from eqsat.frontends.registry import implements
from eqsat.frontends.shapes import broadcast_to, swapaxes
from eqsat.frontends.tracer import TracedArray, TracedNumber
from eqsat.frontends.ufuncs import apply
from eqsat.ir import build, complexes
from eqsat.ir.build import call, scalar
from eqsat.ir.elementwise import broadcast_shapes
from eqsat.ir.node import LINE
from eqsat.ir.types import bfloat16, bool_, finfo, float16, float32, float64


def _parts(name: str, arrays: Any) -> list[Any]:
    if isinstance(arrays, TracedArray):
        if arrays.ndim == 0:
            raise ShapeError(f"{name} needs a sequence of arrays, not a 0-d array", LINE.get())
        arrays = list(arrays)
    parts = [a if isinstance(a, TracedArray) else traced(a) if holds_traced(a) else np.asarray(a) for a in arrays]
    if not parts:
        raise ShapeError(f"{name}: need at least one array", LINE.get())
    return parts


def _joined(name: str, parts: Sequence[Any], axis: int, dtype: Any = None, casting: Any = "same_kind") -> TracedArray:
    """Parts of equal rank along an axis; the error lists all the shapes."""
    kind = known_dtype(dtype) if dtype is not None else promote(*parts)
    check_casts(name, parts, kind, casting)
    nodes = [lift(p, kind) for p in parts]
    shapes = [n.shape for n in nodes]
    if len({(*s[:axis], *s[axis + 1 :]) if len(s) > axis else s for s in shapes}) > 1 or len(set(map(len, shapes))) > 1:
        raise ShapeError(f"{name}: shapes {', '.join(map(str, shapes))} differ off axis {axis}", LINE.get())
    return TracedArray(build.concat(nodes, axis))


@implements(np.concatenate, np.concat)
def concatenate(
    arrays: Any, /, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind"
) -> Any:
    given = list(arrays)
    parts = _parts("concatenate", arrays)
    if axis is None:  # the only case in which Python numbers may stand among the arrays
        dtype = dtype if dtype is not None else promote(*given).numpy
        parts = [TracedArray(build.reshape(lift(p), (traced(p).size,))) for p in parts]
        axis = 0
    if traced(parts[0]).ndim == 0:
        raise ShapeError("zero-dimensional arrays cannot be concatenated; use np.stack", LINE.get())
    return _joined("concatenate", parts, normalize_axis(axis, traced(parts[0]).ndim), dtype, casting)


@implements(np.stack)
def stack(arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    parts = _parts("stack", arrays)
    shapes = [traced(p).shape for p in parts]
    if len(set(shapes)) > 1:
        raise ShapeError(f"stack: all arrays must have the same shape, not {', '.join(map(str, shapes))}", LINE.get())
    at = normalize_axis(axis, len(shapes[0]) + 1)
    return _joined("stack", [TracedArray(build.expand_dims(lift(p), (at,))) for p in parts], at, dtype, casting)


def _shaped(
    name: str,
    arrays: Any,
    shape: Callable[[tuple[int, ...]], tuple[int, ...]],
    axis: int | None,
    dtype: Any = None,
    casting: Any = "same_kind",
) -> Any:
    parts = _parts(name, arrays)
    nodes = [TracedArray(build.reshape(lift(p), shape(traced(p).shape))) for p in parts]
    along = axis if axis is not None else (0 if nodes[0].ndim == 1 else 1)
    return _joined(name, nodes, along, dtype, casting)


@implements(np.vstack)
def vstack(tup: Any, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    return _shaped("vstack", tup, lambda s: (1, *(s or (1,))) if len(s) < 2 else s, 0, dtype, casting)


@implements(np.hstack)
def hstack(tup: Any, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    return _shaped("hstack", tup, lambda s: s or (1,), None, dtype, casting)


@implements(np.column_stack)
def column_stack(tup: Any) -> Any:
    return _shaped("column_stack", tup, lambda s: (*(s or (1,)), 1) if len(s) < 2 else s, 1)


@implements(np.dstack)
def dstack(tup: Any) -> Any:
    return _shaped("dstack", tup, lambda s: {0: (1, 1, 1), 1: (1, *s, 1), 2: (*s, 1)}.get(len(s), s), 2)


@implements(np.append)
def append(arr: Any, values: Any, axis: Any = None) -> Any:
    return concatenate((traced(arr), traced(values)), axis=axis)


@implements(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> list[TracedArray]:
    x = traced(ary)
    at = normalize_axis(axis, x.ndim)
    n = x.shape[at]
    if isinstance(indices_or_sections, TracedArray):
        raise ConcretizationError(
            "np.split at traced positions: the shapes of its results depend on values", LINE.get()
        )
    if np.ndim(indices_or_sections) == 0:
        sections = operator.index(indices_or_sections)
        if sections <= 0:
            raise ValueError("number sections must be larger than 0.")
        small, extra = divmod(n, sections)
        cuts = [small * i + min(i, extra) for i in range(sections + 1)]
        ranges = list(itertools.pairwise(cuts))
    else:
        marks = [0, *(operator.index(i) for i in indices_or_sections), n]
        ranges = [slice(a, b).indices(n)[:2] for a, b in itertools.pairwise(marks)]
    return [view_of(x, range_map(x.shape, at, a, max(a, b)), "slice") for a, b in ranges]


@implements(np.split)
def split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> list[TracedArray]:
    x = traced(ary)
    if np.ndim(indices_or_sections) == 0:
        n, sections = x.shape[normalize_axis(axis, x.ndim)], operator.index(indices_or_sections)
        if sections <= 0 or n % sections:
            raise ShapeError(
                f"split: axis {axis} of shape {x.shape} does not divide equally into {sections}; see np.array_split",
                LINE.get(),
            )
    return array_split(x, indices_or_sections, axis)


@implements(np.hsplit)
def hsplit(ary: Any, indices_or_sections: Any) -> list[TracedArray]:
    return split(ary, indices_or_sections, 1 if traced(ary).ndim > 1 else 0)


@implements(np.vsplit)
def vsplit(ary: Any, indices_or_sections: Any) -> list[TracedArray]:
    if traced(ary).ndim < 2:
        raise ValueError(f"vsplit: an array of two or more axes is needed, not shape {traced(ary).shape}")
    return split(ary, indices_or_sections, 0)


@implements(np.unstack)
def unstack(x: Any, /, *, axis: Any = 0) -> tuple[TracedArray, ...]:
    a = traced(x)
    if axis is None:
        raise TypeError("unstack: the axis must be an integer, not None")
    (at,) = normalize_axes(listed(axis), a.ndim)
    rest = (*a.shape[:at], *a.shape[at + 1 :])
    parts = (view_of(a, range_map(a.shape, at, i, i + 1), "slice") for i in range(a.shape[at]))
    return tuple(reshaped(part, rest) for part in parts)


@implements(np.meshgrid)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[TracedArray, ...]:
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', not {indexing!r}")
    axes = [traced(x) for x in xi]
    n = len(axes)
    shape = [x.size for x in axes]
    swap = indexing == "xy" and n > 1
    grids = []
    for i, x in enumerate(axes):
        grid = reshaped(x, [x.size if j == i else 1 for j in range(n)])
        grid = grid if sparse else broadcast_to(grid, shape)
        grid = swapaxes(grid, 0, 1) if swap else grid
        grids.append(TracedArray(grid.node) if copy else grid)
    return tuple(grids)


@implements(np.where)
def where(condition: Any, x: Any = None, y: Any = None, /) -> TracedArray:
    if x is None or y is None:
        raise UnsupportedOpError(
            "np.where(condition) alone has a shape that depends on values: use np.where(condition, a, b)", LINE.get()
        )
    dtype = promote(x, y)
    a, b = (lift(np.asarray(v).astype(dtype.numpy) if type(v) is int else v, dtype) for v in (x, y))  # ints wrap around
    test = truth(lift(condition))
    broadcast_shapes("where", [test.type, a.type, b.type])
    return TracedArray(call("where", test, a, b))


@implements(np.select)
def select(condlist: Any, choicelist: Any, default: Any = 0) -> TracedArray:
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueError("select needs as many conditions as choices, and at least one")
    *choices, last = together(*choicelist, default)
    for condition, choice in reversed(list(zip(condlist, choices, strict=True))):
        last = call("where", truth(lift(condition)), choice, last)
    return TracedArray(last)


def _clippable(value: Any) -> Any:
    """An operand in a type that NumPy has a loop of ``clip`` for: of bfloat16 there is none."""
    if value is None or is_weak(value):
        return value
    node = lift(value)
    return TracedArray(build.cast(node, float32)) if node.dtype == bfloat16 else traced(value)


@implements(np.clip)
def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None) -> Any:
    x: Any = traced(a)
    low = a_min if a_min is not None else min
    high = a_max if a_max is not None else max
    if x.dtype.kind in "iu":  # Python ints that no element can pass bound nothing, also beyond the type
        limits = np.iinfo(x.dtype)
        low = None if type(low) is int and low <= limits.min else low
        high = None if type(high) is int and high >= limits.max else high
    if (low is None) != (high is None):
        return apply(*((np.maximum, (x, low)) if high is None else (np.minimum, (x, high))))
    x, low, high = (_clippable(value) for value in (x, low, high))
    dtype = promote(x, *(b for b in (low, high) if b is not None))  # of all three at once
    result = lift(x, dtype)
    for ufunc, bound in ((np.maximum, low), (np.minimum, high)):
        if bound is not None:
            result = apply(ufunc, (TracedArray(result), TracedArray(lift(bound, dtype)))).node
    return TracedArray(result)


@implements(np.round, np.around)
def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    node = lift(a)
    places = operator.index(decimals)
    if node.dtype == bool_:
        node = build.cast(node, float16)
    if node.dtype.kind == "complex":
        return TracedArray(complexes.pair(*(round_(TracedArray(part), decimals).node for part in node.inputs)))
    if not node.dtype.is_float:
        if places >= 0:
            return TracedArray(node)
        ten = scalar(10.0**-places, float64)
        return TracedArray(
            build.cast(call("mul", call("round", call("div", build.cast(node, float64), ten)), ten), node.dtype)
        )
    if places == 0:
        return TracedArray(call("round", node))
    factor = scalar(10.0 ** abs(places), node)
    there, back = ("mul", "div") if places > 0 else ("div", "mul")
    return TracedArray(call(back, call("round", call(there, node, factor)), factor))


@implements(np.nan_to_num)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> TracedArray:
    node = lift(x)
    if not node.dtype.is_float:
        return TracedArray(node) if copy else traced(x)
    limits = finfo(node.dtype)
    result = call("where", call("isnan", node), lift(nan, node.dtype), node)
    for bound, value, other in ((math.inf, posinf, limits.max), (-math.inf, neginf, limits.min)):
        replacement = scalar(float(other), node) if value is None else lift(value, node.dtype)
        result = call("where", call("eq", node, scalar(bound, node)), replacement, result)
    array = traced(x)
    if copy or array.is_scalar:
        return TracedArray(result)
    array[...] = TracedArray(result)
    written: TracedArray = array[()]
    return written


@implements(np.isclose)
def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> TracedArray:
    x, y = traced(a), traced(float(b) if isinstance(b, int) else b)
    # As NumPy does, in a type of fractions, for the least integer has no magnitude.
    y = apply(np.multiply, (y, 1.0)) if y.weak else TracedArray(build.cast(y.node, promote(y, 1.0)))
    bound = apply(np.add, (apply(np.multiply, (apply(np.abs, (y,)), rtol)), atol))
    near = apply(np.less_equal, (apply(np.abs, (apply(np.subtract, (x, y)),)), bound))
    near = apply(np.logical_and, (near, apply(np.isfinite, (y,))))
    result = apply(np.logical_or, (near, apply(np.equal, (x, y))))
    if equal_nan:
        result = apply(np.logical_or, (result, apply(np.logical_and, (apply(np.isnan, (x,)), apply(np.isnan, (y,))))))
    assert isinstance(result, TracedArray)
    return result


@implements(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    x, y = traced(a1), traced(a2)
    if x.shape != y.shape:
        return False
    equal = apply(np.equal, (x, y))
    if equal_nan:
        equal = apply(np.logical_or, (equal, apply(np.logical_and, (apply(np.isnan, (x,)), apply(np.isnan, (y,))))))
    return TracedNumber(equal.all().node)


@implements(np.array_equiv)
def array_equiv(a1: Any, a2: Any) -> Any:
    x, y = traced(a1), traced(a2)
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return False
    return TracedNumber(apply(np.equal, (x, y)).all().node)


@implements(np.allclose)
def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    return TracedNumber(isclose(a, b, rtol, atol, equal_nan).all().node)

"""Values to nodes: traced arrays, NumPy arrays, Python scalars; and NumPy 2 promotion between them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import UnsupportedDTypeError
from eqsat.frontends import registry
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT, Unsized
from eqsat.ir import build, complexes, views
from eqsat.ir.node import LINE, Node
from eqsat.ir.repeats import cut, still_axes
from eqsat.ir.types import DType, bool_, dtype_of, int32, int64, row_major
from eqsat.ir.views import ViewMap

Weak = int | float | complex
"""A Python number: it takes the element type of the arrays it meets (NEP 50)."""


def is_weak(value: object) -> bool:
    return isinstance(value, (int, float, complex)) and not isinstance(value, (bool, np.generic, TracedArray))


def known_dtype(spec: Any) -> DType:
    """The element type, or :class:`UnsupportedDTypeError` where the user's line is named."""
    try:
        return dtype_of(spec)
    except TypeError as error:
        raise UnsupportedDTypeError(str(error), LINE.get() or user_line()) from None


def constant(value: np.ndarray) -> Node:
    """A node of an array's value. Uniform arrays and ranges from 0 are made anew rather than kept."""
    dtype = known_dtype(value.dtype)
    if dtype.kind == "complex":
        return complexes.pair(constant(value.real), constant(value.imag))
    axes = still_axes(value) if value.size else ()
    if axes:
        return build.broadcast_to(constant(cut(value, axes)), value.shape)
    if value.size > 1:
        first = value[(0,) * value.ndim]
        if bool((value == first).all() and (np.signbit(value) == np.signbit(first)).all()):
            return build.broadcast_to(build.const(first, dtype), value.shape)
        if value.ndim == 1 and dtype in (int32, int64) and bool((value == np.arange(value.size)).all()):
            return build.iota(value.size, dtype)
    return build.const(value, dtype)


def as_array(value: object) -> np.ndarray:
    """NumPy's array of something untraced, refused where it has no numeric type."""
    if isinstance(value, np.ndarray) and not isinstance(value, TracedArray):
        if type(value) is not np.ndarray and (problem := foreign_meaning(value)):
            raise UnsupportedDTypeError(f"a captured array {problem}", LINE.get() or user_line())
        return value
    return np.asarray(value)


def foreign_meaning(value: np.ndarray) -> str:
    """What keeps an array of a subclass from being taken for a plain one; empty if nothing does."""
    if "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray):  # else there is none
        return "is a masked array, whose mask would be lost: pass .filled(…) and choose with np.where"
    kind = type(value)
    if isinstance(value, np.matrix) or kind.__array_ufunc__ is not np.ndarray.__array_ufunc__:
        return f"is a {kind.__name__}, whose operators are not an array's: pass np.asarray(…)"
    return ""


def holds_traced(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(holds_traced(item) for item in value)
    return isinstance(value, (TracedArray, Unsized))


def lift(value: object, dtype: DType | None = None) -> Node:
    """The node of a traced array, or of anything NumPy makes an array of; cast to ``dtype`` if given."""
    if isinstance(value, TracedArray):
        return build.cast(value.node, dtype) if dtype else value.node
    if isinstance(value, Unsized):
        return lift(value.array(), dtype)
    if isinstance(value, (list, tuple)) and holds_traced(value):
        return lift(registry.call(np.stack, [TracedArray(lift(item)) for item in value]), dtype)
    if dtype is not None and is_weak(value):
        return literal(value, dtype)  # type: ignore[arg-type]
    node = constant(as_array(value))
    return build.cast(node, dtype) if dtype else node


def literal(value: Weak | bool, dtype: DType) -> Node:
    """A Python number in an element type; ``OverflowError`` for an int that does not fit, as NumPy."""
    with np.errstate(all="ignore"):
        return build.const(np.asarray(value, dtype.numpy), dtype)


def traced(value: object) -> TracedArray:
    """A traced array of it."""
    return value if isinstance(value, TracedArray) else TracedArray(lift(value))


def asarray(value: Any) -> Any:
    """While a function is traced, a traced array of constant value; outside, the NumPy array.

    Traced integers index a traced array, not a NumPy array from outside: ``eqsat.asarray(table)[ids]``.
    """
    if isinstance(value, TracedArray) or CURRENT.get() is None:
        return value if isinstance(value, TracedArray) else np.asarray(value)
    return traced(value)


def promote(*values: object) -> DType:
    """The element type NumPy gives these together; Python numbers are weak."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, TracedArray):
            parts.append(value.weak(0) if value.weak else value.dtype)
        elif isinstance(value, (int, float, complex)) and not isinstance(value, np.generic):
            parts.append(value)
        else:
            parts.append(traced(value).dtype if holds_traced(value) else as_array(value).dtype)
    try:
        return known_dtype(np.result_type(*parts))
    except UnsupportedDTypeError:
        raise
    except TypeError as error:
        raise UnsupportedDTypeError(str(error), LINE.get()) from None


def together(*values: object) -> list[Node]:
    """The nodes of these in their common element type."""
    dtype = promote(*values)
    return [lift(value, dtype) for value in values]


def check_casts(name: str, values: Sequence[object], dtype: DType, casting: Any) -> None:
    """Refuse what NumPy does not cast by the rule ``casting``, such as floats to integers by ``same_kind``."""
    for value in values:
        given = value.dtype if isinstance(value, TracedArray) else np.asarray(value).dtype
        if not np.can_cast(given, dtype.numpy, casting):
            raise UnsupportedDTypeError(f"{name}: cannot cast {given} to {dtype} by the rule {casting!r}", LINE.get())


def normalize_axis(axis: Any, ndim: int) -> int:
    """``axis`` in [0, ndim); NumPy's AxisError outside, ConcretizationError if it is traced."""
    import operator

    index = operator.index(axis)
    if not -ndim <= index < ndim:
        raise np.exceptions.AxisError(index, ndim)
    return index % ndim


def normalize_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Sorted axes of None (all), an int, or a tuple of ints; ValueError where one repeats, TypeError for a list."""
    if axis is None:
        return tuple(range(ndim))
    axes = [normalize_axis(a, ndim) for a in (axis if isinstance(axis, tuple) else (axis,))]
    if len(set(axes)) != len(axes):
        raise ValueError("duplicate value in 'axis'")
    return tuple(sorted(axes))


def listed(axis: Any) -> Any:
    """``axis`` for the few functions that take a list for a tuple."""
    return tuple(axis) if isinstance(axis, list) else axis


def reduced_axes(axis: Any, node: Node) -> tuple[int, ...]:
    """As :func:`normalize_axes`; NumPy lets a 0-d array have an axis 0 in reductions, with nothing to reduce over."""
    if node.type.ndim == 0 and not isinstance(axis, tuple) and axis is not None:
        normalize_axis(axis, 1)
        return ()
    return normalize_axes(axis, node.type.ndim)


def with_axis(node: Node) -> Node:
    """A 0-d node with one axis of length 1, which NumPy lets many functions' axis 0 or -1 mean; others as they are."""
    return build.reshape(node, (1,)) if node.type.ndim == 0 else node


def view_of(base: TracedArray, map: ViewMap, label: str = "", *, readonly: bool = False) -> TracedArray:
    """What ``map`` shows of an array, sharing its memory as in NumPy, whose scalars have none to share."""
    if base.is_scalar:
        return TracedArray(build.view(base.node, map, label))
    made = base.seen_through(map, label, readonly=readonly)
    if made is None:
        made = TracedArray(build.view(base.node, map, label))
        base.memory.doubt(made.memory)
    return made


def range_map(shape: Sequence[int], axis: int, start: int, stop: int) -> ViewMap:
    """The map of ``x[start:stop]`` along one axis."""
    starts, sizes = [0] * len(shape), list(shape)
    starts[axis], sizes[axis] = start, stop - start
    return views.slices(shape, starts, [1] * len(shape), sizes)


def lying(x: TracedArray) -> TracedArray:
    """The array, or one that lies in memory as it does where that is a view whose place is known when it is run."""
    example = x.memory.example
    if example is None or x.map is None:
        return x if example is None else example
    return view_of(example, x.map)


def is_dense(x: TracedArray) -> bool:
    """Whether elements lie in row-major order without gaps, given arguments that do; how far an axis of one position
    steps says nothing."""
    x = lying(x)
    if x.map is None or x.size == 0:
        return True
    steps = x.map.strides
    return steps is not None and all(
        n == 1 or own == step for n, own, step in zip(x.shape, steps, row_major(x.shape), strict=True)
    )


def copied(node: Node, order: str) -> TracedArray:
    """A copy: by rows (``C``), by columns (``F``), or as NumPy has results (others)."""
    if order == "F" and node.type.ndim > 1:
        turned = range(node.type.ndim)[::-1]
        columns = TracedArray(build.transpose(node, turned))
        columns.memory.orderly = True
        return view_of(columns, views.transpose(columns.shape, turned), "transpose")
    made = TracedArray(node)
    made.memory.orderly |= order == "C"
    return made


def reshaped(base: TracedArray, shape: Sequence[int], label: str = "reshape") -> TracedArray:
    """A reshaped array: a view where NumPy makes one, else a copy."""
    map = views.reshape(base.shape, shape)
    memory = base.memory
    if [n for n in shape if n != 1] == [n for n in base.shape if n != 1]:
        return view_of(base, map, label)
    if not memory.orderly:
        made = TracedArray(build.view(base.node, map, label))
        memory.doubt(made.memory)
        return made
    memory.reshaped = True
    shown = lying(base)
    if shown is not base and reshaped(shown, shape).memory is not shown.memory:
        return TracedArray(build.view(base.node, map, label))
    found = base.seen_through(map, label)
    if found is not None and found.map is not None and found.map.strides is None:
        found = None
    if found is None:
        found = TracedArray(build.view(base.node, map, label))
        found.memory.reshaped = True  # of memory in another order it would be a view
    return found


def truth(node: Node) -> Node:
    """As bool: whether an element differs from zero."""
    return build.cast(node, bool_)


def zeros(shape: Sequence[int], dtype: DType, value: Weak | bool = 0) -> Node:
    return build.broadcast_to(build.scalar(value, dtype), tuple(shape))

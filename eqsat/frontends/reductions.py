"""Reductions and scans: sum, prod, max, min, mean, var, std, any, all, argmax, argmin, cumsum, sort…"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from eqsat.errors import UnsupportedDTypeError, UnsupportedOpError
from eqsat.frontends.convert import (
    is_weak,
    known_dtype,
    lift,
    listed,
    normalize_axes,
    normalize_axis,
    promote,
    reduced_axes,
    traced,
    truth,
    with_axis,
    zeros,
)
from eqsat.frontends.masked import counts, is_mask, under_mask
from eqsat.frontends.registry import call as np_call
from eqsat.frontends.registry import implements
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.ufuncs import apply
from eqsat.ir import build
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.table import make
from eqsat.ir.types import DType, bool_, float16, float32, float64, widest

_NONE: Any = np._NoValue


def _accumulator(node: Node, dtype: DTypeLike | None) -> DType:
    """The type NumPy sums and multiplies in: 64 bits for bool and all integers unless told."""
    return known_dtype(dtype) if dtype is not None else widest(node.dtype)


def _fold(kind: str, node: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    return build.reduce(kind, node, axes, keepdims=bool(keepdims))


def keep(keepdims: Any) -> bool:
    return keepdims is not _NONE and bool(keepdims)


def _absorbs(initial: Any) -> bool:
    """Whether a product that begins with this number keeps it, but for the sign, whatever finite factors follow."""
    if not isinstance(initial, (int, float, np.number, np.bool_, np.ndarray)) or np.iscomplexobj(initial):
        return False
    try:
        value = float(initial)
    except (OverflowError, TypeError):  # an int that no float holds, an array that is not 0-d
        return False
    return value == 0 or not math.isfinite(value)


def _total(
    kind: str, op: str, a: Any, axis: Any, dtype: DTypeLike | None, keepdims: Any, initial: Any, where: Any
) -> TracedArray:
    node = under_mask(lift(a), where, 0 if op == "add" else 1)
    node = build.cast(node, _accumulator(node, dtype))
    if node.dtype == bool_:  # asked for with dtype=bool: or, and
        empty = op == "mul"
        result = _quantify("reduce_min" if empty else "reduce_max", node, axis, keepdims, empty, True).node
        op = "logical_and" if empty else "logical_or"
    else:
        axes = reduced_axes(axis, node)
        if op == "mul" and all(node.shape[a] for a in axes) and _absorbs(initial):
            # NumPy begins with it: what overflows behind a factor of 0 is still 0.
            node, initial = call(op, node, lift(abs(initial), node.dtype)), np.copysign(1.0, initial)
        result = _fold(kind, node, axes, keep(keepdims))
    if initial is not _NONE and initial is not None:
        result = call(op, result, lift(initial, result.dtype))
    return TracedArray(result)


@implements(np.sum)
def sum_(
    a: Any,
    axis: Any = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: Any = _NONE,
    initial: Any = _NONE,
    where: Any = _NONE,
) -> TracedArray:
    return _total("reduce_sum", "add", a, axis, dtype, keepdims, initial, where)


@implements(np.prod)
def prod(
    a: Any,
    axis: Any = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: Any = _NONE,
    initial: Any = _NONE,
    where: Any = _NONE,
) -> TracedArray:
    return _total("reduce_prod", "mul", a, axis, dtype, keepdims, initial, where)


def _extreme(name: str, kind: str, op: str) -> Callable[..., TracedArray]:
    def run(
        a: Any, axis: Any = None, out: Any = None, keepdims: Any = _NONE, initial: Any = _NONE, where: Any = _NONE
    ) -> TracedArray:
        node = lift(a)
        axes = reduced_axes(axis, node)
        start = lift(initial, node.dtype) if initial is not _NONE and initial is not None else None
        if is_mask(where) and start is None:
            raise ValueError(f"reduction operation '{op}' has no identity: with where= it needs initial=")
        node = under_mask(node, where, start)
        if start is not None and any(node.shape[i] == 0 for i in axes):
            shape = [1 if i in axes else n for i, n in enumerate(node.shape)]
            kept = build.broadcast_to(start, tuple(shape))
            rest = [n for i, n in enumerate(node.shape) if i not in axes]
            return TracedArray(kept if keep(keepdims) else build.reshape(kept, rest))
        result = _fold(kind, node, axes, keep(keepdims))
        return TracedArray(call(op, result, start) if start is not None else result)

    return run


implements(np.max, np.amax)(_extreme("max", "reduce_max", "maximum"))
implements(np.min, np.amin)(_extreme("min", "reduce_min", "minimum"))


def _quantify(kind: str, a: Any, axis: Any, keepdims: Any, empty: bool, where: Any) -> TracedArray:
    """Any and all: the extreme of bools, with the value of the empty case."""
    node = under_mask(truth(a if isinstance(a, Node) else lift(a)), where, empty)
    axes = reduced_axes(axis, node)
    if any(node.shape[i] == 0 for i in axes):
        shape = [1 if i in axes else n for i, n in enumerate(node.shape) if i not in axes or keep(keepdims)]
        return TracedArray(zeros(shape, bool_, empty))
    return TracedArray(_fold(kind, node, axes, keep(keepdims)))


@implements(np.any)
def any_(a: Any, axis: Any = None, out: Any = None, keepdims: Any = _NONE, *, where: Any = _NONE) -> TracedArray:
    return _quantify("reduce_max", a, axis, keepdims, False, where)


@implements(np.all)
def all_(a: Any, axis: Any = None, out: Any = None, keepdims: Any = _NONE, *, where: Any = _NONE) -> TracedArray:
    return _quantify("reduce_min", a, axis, keepdims, True, where)


def _position(name: str) -> Callable[..., TracedArray]:
    def run(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = _NONE) -> TracedArray:
        node = lift(a)
        ndim = node.type.ndim
        if axis is None:
            found = build.reduce(name, build.reshape(node, (node.type.size,)), (0,))
            return TracedArray(build.reshape(found, (1,) * ndim) if keep(keepdims) else found)
        at = normalize_axis(axis, max(ndim, 1))
        if ndim == 0:
            node = build.reshape(node, (1,))
        found = build.reduce(name, node, (at,), keepdims=keep(keepdims) and ndim > 0)
        return TracedArray(found)

    return run


implements(np.argmax)(_position("argmax"))
implements(np.argmin)(_position("argmin"))


def mean_of(node: Node, axes: tuple[int, ...], keepdims: bool, less: float = 0, where: Any = _NONE) -> Node:
    """The mean over some axes of what ``where=`` leaves, divided by ``less`` less than there are (``ddof``)."""
    total = _fold("reduce_sum", under_mask(node, where, 0), axes, False)
    if is_mask(where):
        free = call("sub", build.cast(counts(node, where, axes), float64), scalar(less, float64))
        divisor = build.cast(call("maximum", free, scalar(0, free)), total.dtype)
    else:
        divisor = scalar(max(math.prod(node.shape[axis] for axis in axes) - less, 0), total)
    mean = call("div", total, divisor)
    # Kept axes come last, so that a mean is the same node with and without them.
    return build.reshape(mean, [1 if a in axes else e for a, e in enumerate(node.shape)]) if keepdims else mean


def floating(name: str, a: Any, dtype: DTypeLike | None) -> Node:
    node = lift(a)
    if dtype is not None:
        wanted = known_dtype(dtype)
        if wanted.kind not in ("float", "complex"):
            raise UnsupportedDTypeError(f"np.{name}(dtype={wanted}) is not supported; use a float type", LINE.get())
        return build.cast(node, wanted)
    return node if node.dtype.kind in ("float", "complex") else build.cast(node, known_dtype(np.float64))


@implements(np.mean)
def mean(
    a: Any, axis: Any = None, dtype: DTypeLike | None = None, out: Any = None, keepdims: Any = _NONE, *,
    where: Any = _NONE,
) -> TracedArray:  # fmt: skip
    given = floating("mean", a, dtype)
    node = build.cast(given, float32) if dtype is None and given.dtype == float16 else given
    axes = normalize_axes(axis, node.type.ndim)
    return TracedArray(build.cast(mean_of(node, axes, keep(keepdims), where=where), given.dtype))


def variance(
    name: str, a: Any, axis: Any, dtype: Any, ddof: Any, keepdims: Any, where: Any, mean: Any, correction: Any
) -> tuple[Node, float]:
    """The variance, and by how much less than the count of elements it is divided."""
    node = floating(name, a, dtype)
    axes = normalize_axes(axis, node.type.ndim)
    if correction is not _NONE and ddof != 0:
        raise ValueError("ddof and correction can't be provided simultaneously.")
    less = ddof if correction is _NONE else correction
    if not is_weak(less):
        raise UnsupportedOpError(f"np.{name}: ddof must be a Python number", LINE.get())
    center = lift(mean, node.dtype) if mean is not _NONE else mean_of(node, axes, True, where=where)
    off = call("sub", node, center)
    parts = off.inputs if off.dtype.kind == "complex" else (off,)
    squares = functools.reduce(lambda x, y: call("add", x, y), (call("square", part) for part in parts))
    return mean_of(squares, axes, keep(keepdims), less, where), less


@implements(np.var)
def var(
    a: Any,
    axis: Any = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = _NONE,
    *,
    where: Any = _NONE,
    mean: Any = _NONE,
    correction: Any = _NONE,
) -> TracedArray:
    return TracedArray(variance("var", a, axis, dtype, ddof, keepdims, where, mean, correction)[0])


@implements(np.std)
def std(
    a: Any,
    axis: Any = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = _NONE,
    *,
    where: Any = _NONE,
    mean: Any = _NONE,
    correction: Any = _NONE,
) -> TracedArray:
    return TracedArray(call("sqrt", variance("std", a, axis, dtype, ddof, keepdims, where, mean, correction)[0]))


@implements(np.average)
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = _NONE) -> Any:
    axis = listed(axis)
    if weights is None:
        plain = mean(a, axis, keepdims=keepdims)
        count = traced(a).size // max(plain.size, 1)
        return (plain, TracedArray(zeros(plain.shape, plain.node.dtype, count))) if returned else plain
    x, w = traced(a), traced(weights)
    if x.shape != w.shape:
        if axis is None:
            raise ValueError("axis must be specified when shapes of a and weights differ")
        axes = axis if isinstance(axis, tuple) else (axis,)
        at = [normalize_axis(i, x.ndim) for i in axes]
        if w.shape != tuple(x.shape[i] for i in at):
            raise ValueError(f"shape of weights {w.shape} must be consistent with shape of a {x.shape} along axis")
        turned = build.transpose(w.node, sorted(range(len(at)), key=at.__getitem__))
        w = TracedArray(build.reshape(turned, [n if i in at else 1 for i, n in enumerate(x.shape)]))
    # As NumPy does, in the type of both, and of double precision where the values are whole.
    kind = promote(x, w, np.float64(0)) if x.dtype.kind in "iub" else promote(x, w)
    x, w = (TracedArray(build.cast(v.node, kind)) for v in (x, w))
    weighted = sum_(apply(np.multiply, (x, w)), axis, keepdims=keepdims)
    full = TracedArray(build.broadcast_to(w.node, x.shape))
    scale = sum_(full, axis, keepdims=keepdims)
    result = apply(np.divide, (weighted, scale))
    return (result, TracedArray(build.cast(scale.node, result.node.dtype))) if returned else result


@implements(np.ptp)
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = _NONE) -> Any:
    high, low = (np_call(f, a, axis=axis, keepdims=keepdims) for f in (np.max, np.min))
    return apply(np.subtract, (high, low))


@implements(np.count_nonzero)
def count_nonzero(a: Any, axis: Any = None, *, keepdims: Any = False) -> TracedArray:
    return sum_(TracedArray(truth(lift(a))), axis, keepdims=keepdims)


def _scan_dtype(node: Node, dtype: DTypeLike | None) -> Node:
    return build.cast(node, _accumulator(node, dtype))


def _scan(name: str, op: str) -> Callable[..., TracedArray]:
    def run(a: Any, axis: Any = None, dtype: DTypeLike | None = None, out: Any = None) -> TracedArray:
        node = _scan_dtype(lift(a), dtype)
        if node.dtype == bool_:
            raise UnsupportedDTypeError(f"np.{name}(dtype=bool) is not supported; use int64", LINE.get())
        if axis is None:
            node, axis = build.reshape(node, (node.type.size,)), 0
        node = with_axis(node)
        return TracedArray(make(op, (node,), normalize_axis(axis, node.type.ndim)))

    return run


implements(np.cumsum)(_scan("cumsum", "cumsum"))
implements(np.cumprod)(_scan("cumprod", "cumprod"))


def _ordered(name: str) -> Callable[..., TracedArray]:
    def run(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> TracedArray:
        if order is not None:
            raise UnsupportedOpError(f"np.{name}(order=…) is for structured types", LINE.get())
        if kind is not None and stable is not None:
            raise ValueError("`kind` and `stable` parameters can't be provided at the same time")
        kind = "stable" if stable else kind or "quicksort"
        suffix = _SORTS.get(kind[:1].lower() if isinstance(kind, str) else "")
        if suffix is None:
            raise ValueError(f"np.{name}: kind must be 'quicksort', 'mergesort', 'heapsort' or 'stable', not {kind!r}")
        node = lift(a)
        if axis is None:
            node, axis = build.reshape(node, (node.type.size,)), 0
        if name == "argsort":
            node = with_axis(node)
        return TracedArray(make(name + suffix, (node,), normalize_axis(axis, node.type.ndim), label=name))

    return run


_SORTS = {"q": "", "m": "_stable", "s": "_stable", "h": "_heapsort"}
"""How operators of NumPy's kinds end, by the letter that a kind begins with."""

implements(np.sort)(_ordered("sort"))
implements(np.argsort)(_ordered("argsort"))

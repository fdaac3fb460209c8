"""Reductions and scans that leave NaN out: ``np.nansum``, ``np.nanstd``, ``np.nanargmax`` and their kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.errors import UnsupportedDTypeError
from eqsat.frontends.convert import known_dtype, lift, reduced_axes
from eqsat.frontends.masked import is_mask
from eqsat.frontends.reductions import floating, keep, mean_of, variance
from eqsat.frontends.registry import call as np_call
from eqsat.frontends.registry import implements
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.ufuncs import apply
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node

_NONE: Any = np._NoValue


def _without(node: Node, value: float) -> TracedArray:
    """The array with ``value`` for its NaNs."""
    if node.dtype.kind in ("int", "bool"):
        return TracedArray(node)
    return TracedArray(call("where", call("isnan", node), scalar(value, node), node))


def _present(node: Node, where: Any) -> TracedArray:
    """Where there is a number, and ``where=`` holds."""
    there = TracedArray(call("logical_not", call("isnan", node)))
    return apply(np.logical_and, (there, where)) if is_mask(where) else there


def _total(function: Any, neutral: float) -> Callable[..., Any]:
    def run(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = _NONE, initial: Any = _NONE,
        where: Any = _NONE,
    ) -> Any:  # fmt: skip
        return np_call(
            function, _without(lift(a), neutral), axis=axis, dtype=dtype, keepdims=keepdims, initial=initial,
            where=where,
        )  # fmt: skip

    return run


implements(np.nansum)(_total(np.sum, 0))
implements(np.nanprod)(_total(np.prod, 1))


def _scan(function: Any, neutral: float) -> Callable[..., Any]:
    def run(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return np_call(function, _without(lift(a), neutral), axis=axis, dtype=dtype)

    return run


implements(np.nancumsum)(_scan(np.cumsum, 0))
implements(np.nancumprod)(_scan(np.cumprod, 1))


def _extreme(function: Any, neutral: float) -> Callable[..., Any]:
    """The extreme number; NaN where there is none, as NumPy's ``fmax`` makes it."""

    def run(
        a: Any, axis: Any = None, out: Any = None, keepdims: Any = _NONE, initial: Any = _NONE, where: Any = _NONE
    ) -> Any:
        node = lift(a)
        options = {"axis": axis, "keepdims": keepdims}
        best = np_call(function, _without(node, neutral), initial=initial, where=where, **options)
        if not node.dtype.is_float or (initial is not _NONE and initial is not None):
            return best
        none = np_call(np.all, TracedArray(call("isnan", node)), where=where, **options)
        return TracedArray(call("where", none.node, scalar(math.nan, best.node), best.node))

    return run


implements(np.nanmax)(_extreme(np.max, -math.inf))
implements(np.nanmin)(_extreme(np.min, math.inf))


@implements(np.nanmean)
def nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = _NONE, *, where: Any = _NONE
) -> Any:
    if not _may_hold_nan("nanmean", a, dtype):
        return np_call(np.mean, a, axis=axis, dtype=dtype, keepdims=keepdims, where=where)
    node = floating("nanmean", a, dtype)
    axes = reduced_axes(axis, node)
    return TracedArray(mean_of(node, axes, keep(keepdims), where=_present(node, where)))


def _may_hold_nan(name: str, a: Any, dtype: Any) -> bool:
    inexact = lift(a).dtype.kind in ("float", "complex")
    if inexact and dtype is not None and known_dtype(dtype).kind not in ("float", "complex"):
        raise UnsupportedDTypeError(f"If a is inexact, then dtype must be inexact: np.{name}", LINE.get())
    return inexact


def _spread(root: bool) -> Callable[..., Any]:
    name, plain = ("nanstd", np.std) if root else ("nanvar", np.var)

    def run(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = _NONE, *,
        where: Any = _NONE, mean: Any = _NONE, correction: Any = _NONE,
    ) -> Any:  # fmt: skip
        if not _may_hold_nan(name, a, dtype):
            return np_call(
                plain, a, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims, where=where, mean=mean,
                correction=correction,
            )  # fmt: skip
        node = lift(a)
        axis = reduced_axes(axis, node) if node.type.ndim == 0 else axis
        there = _present(node, where)
        found, less = variance(name, a, axis, dtype, ddof, keepdims, there, mean, correction)
        # As NumPy: without enough numbers there is no variance, not one by division by 0.
        enough = apply(np.greater, (np_call(np.sum, there, axis=axis, keepdims=keep(keepdims)), less)).node
        found = call("where", enough, found, scalar(math.nan, found))
        return TracedArray(call("sqrt", found) if root else found)

    return run


implements(np.nanvar)(_spread(False))
implements(np.nanstd)(_spread(True))

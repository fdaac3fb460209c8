"""What NumPy's functions make of elements that a traced mask chooses: reductions, and functions of each element."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.errors import ShapeError, UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.convert import listed, normalize_axes, truth
from eqsat.frontends.guards import told
from eqsat.frontends.selections import Selection, refuse_selection
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT
from eqsat.ir import build
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE
from eqsat.ir.types import float64, int64

Reduction = Callable[[Any, Selection, tuple[int, ...], dict[str, Any]], TracedArray]
"""A NumPy function, the selection, axes of its whole array, and the function's other arguments."""


def call_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a NumPy function with selections among its arguments."""
    given = {k: v for k, v in kwargs.items() if v is not np._NoValue}
    if function in _ELEMENTWISE:
        return _elementwise(function, args, given)
    if function is np.dot and len(args) == 2 and not given:
        return product(*args)
    if function is np.average:
        return _average(*args, **given)
    if function not in _REDUCTIONS or not args or not isinstance(args[0], Selection):
        refuse_selection()
    names = list(inspect.signature(function).parameters)
    options = {**dict(zip(names[1:], args[1:], strict=False)), **given}
    options = {k: v for k, v in options.items() if v is not np._NoValue and not (k == "out" and v is None)}
    if "out" in options or options.get("mean") is not None:
        refuse_selection()
    return _reduced(function, args[0], options)


def _reduced(function: Any, chosen: Selection, options: dict[str, Any]) -> Any:
    axis = listed(options.pop("axis", None))
    axes = tuple(range(chosen.ndim)) if axis is None else normalize_axes(axis, chosen.ndim)
    keepdims = bool(options.pop("keepdims", False))
    whole = chosen.axes_of(axes)
    if "where" in options:
        options["where"] = _mask(chosen.aligned(options["where"]))
    if chosen.first not in axes:
        result = registry.call(function, TracedArray(chosen.full), axis=whole, keepdims=keepdims, **options)
        before = 0 if keepdims else sum(axis < chosen.first for axis in axes)
        return Selection(result.node, chosen.mask, chosen.first - before)
    result = _REDUCTIONS[function](function, chosen, whole, options)
    if not keepdims:
        return result
    shape = [1 if axis in whole else n for axis, n in enumerate(chosen.full.shape)]
    shape[chosen.first : chosen.first + chosen.mask.type.ndim] = [1]
    return TracedArray(build.reshape(result.node, shape))


def _mask(where: Any) -> TracedArray:
    return where if isinstance(where, TracedArray) else TracedArray(build.const(np.asarray(where)))


def _under(chosen: Selection, options: dict[str, Any]) -> TracedArray:
    """The mask of what is reduced, in the shape of the whole array."""
    where = chosen.where
    if "where" in options:
        where = call("logical_and", where, options.pop("where").node)
    return TracedArray(build.broadcast_to(where, chosen.full.shape))


def _masked(function: Any, chosen: Selection, axes: tuple[int, ...], options: dict[str, Any]) -> TracedArray:
    """Functions that take ``where=``."""
    where = _under(chosen, options)
    return registry.call(function, TracedArray(chosen.full), axis=axes, where=where, **options)  # type: ignore[no-any-return]


def _some(chosen: Selection, function: Any) -> None:
    """``ValueError`` where the call that is traced chooses nothing; the trace is for calls that choose something."""
    width = chosen.mask.type.ndim
    anything = build.reduce("reduce_max", chosen.mask, tuple(range(width))) if chosen.mask.type.size else None
    holds = False if anything is None else told(CURRENT.get(), anything, bool)
    if holds is None:
        name = registry.short_name(function)
        raise UnsupportedOpError(
            f"{name} of the elements that a traced mask chooses is an error where it chooses none, which depends on "
            "values; say what it is then with initial=",
            LINE.get(),
        )
    if not holds:
        said = {np.max: "maximum", np.min: "minimum", np.nanmax: "fmax", np.nanmin: "fmin"}[function]
        raise ShapeError(f"zero-size array to reduction operation {said} which has no identity", LINE.get())


def _lowest(dtype: np.dtype, least: bool) -> Any:
    """What every other number is at least (at most)."""
    if dtype.kind == "f":
        return -math.inf if least else math.inf
    if dtype.kind == "b":
        return not least
    if dtype.kind not in "iu":
        refuse_selection()
    limits = np.iinfo(dtype)
    return int(limits.min if least else limits.max)


def _extreme(least: bool) -> Reduction:
    def run(function: Any, chosen: Selection, axes: tuple[int, ...], options: dict[str, Any]) -> TracedArray:
        if options.get("initial") is not None or "where" in options:
            return _masked(function, chosen, axes, options)
        options.pop("initial", None)
        _some(chosen, function)
        return registry.call(function, chosen.filled(_lowest(chosen.dtype, least)), axis=axes)  # type: ignore[no-any-return]

    return run


def _extreme_number(plain: Any, least: bool) -> Reduction:
    """``np.nanmax`` and ``np.nanmin``: what is not chosen is left out as NaN is."""

    def run(function: Any, chosen: Selection, axes: tuple[int, ...], options: dict[str, Any]) -> TracedArray:
        if options or chosen.dtype.kind != "f":
            return _extreme(least)(plain, chosen, axes, options)
        _some(chosen, function)
        return registry.call(function, chosen.filled(math.nan), axis=axes)  # type: ignore[no-any-return]

    return run


def _range(function: Any, chosen: Selection, axes: tuple[int, ...], options: dict[str, Any]) -> TracedArray:
    high, low = (_REDUCTIONS[f](f, chosen, axes, {}) for f in (np.max, np.min))
    return high - low  # type: ignore[no-any-return]


def _count(function: Any, chosen: Selection, axes: tuple[int, ...], options: dict[str, Any]) -> TracedArray:
    true = Selection(build.cast(truth(chosen.full), int64), chosen.mask, chosen.first)
    return _masked(np.sum, true, axes, options)


def _median(function: Any, chosen: Selection, axes: tuple[int, ...], options: dict[str, Any]) -> TracedArray:
    """What is not chosen is left out as NaN is; a NaN among the chosen is the median."""
    if options or chosen.dtype.kind not in "fiu":
        refuse_selection()
    if chosen.dtype.kind != "f":
        chosen = Selection(build.cast(chosen.full, float64), chosen.mask, chosen.first)
    lost = _masked(np.any, Selection(call("isnan", chosen.full), chosen.mask, chosen.first), axes, {})
    found = registry.call(np.nanmedian, chosen.filled(math.nan), axis=axes)
    return TracedArray(call("where", lost.node, scalar(math.nan, found.node), found.node))


def _norm(function: Any, chosen: Selection, axes: tuple[int, ...], options: dict[str, Any]) -> TracedArray:
    """The Euclidean norm."""
    if options.pop("ord", None) is not None or options or (len(axes) != 1 and len(axes) != chosen.full.type.ndim):
        refuse_selection()
    axis = axes[0] if len(axes) < chosen.full.type.ndim else None
    return registry.call(function, chosen.filled(0), axis=axis)  # type: ignore[no-any-return]


_REDUCTIONS: dict[Any, Reduction] = {
    **dict.fromkeys((np.sum, np.prod, np.mean, np.var, np.std, np.any, np.all), _masked),
    **dict.fromkeys((np.nansum, np.nanprod, np.nanmean, np.nanvar, np.nanstd), _masked),
    np.max: _extreme(True),
    np.min: _extreme(False),
    np.nanmax: _extreme_number(np.max, True),
    np.nanmin: _extreme_number(np.min, False),
    np.ptp: _range,
    np.count_nonzero: _count,
    np.median: _median,
    np.linalg.norm: _norm,
}


def _average(a: Any, axis: Any = None, weights: Any = None) -> Any:
    if weights is None:
        return np.mean(a, axis=axis)
    if not isinstance(a, Selection) or not isinstance(weights, Selection) or a.full.shape != weights.full.shape:
        refuse_selection()
    kind = np.result_type(a.dtype, weights.dtype, *[np.float64] * (a.dtype.kind in "iub"))
    weights = weights.astype(kind)
    return np.sum(a.astype(kind) * weights, axis=axis) / np.sum(weights, axis=axis)


def product(a: Any, b: Any) -> Any:
    """A product of vectors and matrices one of which at least has chosen rows, or columns."""
    one = next(v for v in (a, b) if isinstance(v, Selection))
    ranks = [v.ndim if isinstance(v, Selection) else np.ndim(v) for v in (a, b)]
    if one.mask.type.ndim != 1 or not all(1 <= rank <= 2 for rank in ranks):
        refuse_selection()
    whole = [v.full if isinstance(v, Selection) else None for v in (a, b)]
    summed = [isinstance(v, Selection) and v.first == at for v, at in ((a, ranks[0] - 1), (b, 0))]
    if all(summed):
        if a.mask is not b.mask:
            refuse_selection()
        return registry.call(np.matmul, a.filled(0), b.filled(0))
    if any(summed) or None not in whole:
        refuse_selection()
    result = registry.call(np.matmul, *(v if w is None else TracedArray(w) for v, w in zip((a, b), whole, strict=True)))
    return Selection(result.node, one.mask, 0 if one is a else result.ndim - 1)


def _elementwise(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    places = _ELEMENTWISE[function]
    chosen = [v for i, v in enumerate(args) if i in places and isinstance(v, Selection)]
    others = (*(v for i, v in enumerate(args) if i not in places), *kwargs.values())
    if not chosen or any(isinstance(v, Selection) for v in others):
        refuse_selection()
    most = max(chosen, key=lambda s: s.full.type.ndim)
    whole = [most.aligned(v) if i in places and v is not None else v for i, v in enumerate(args)]
    return most.like(registry.call(function, *whole, **kwargs))


_ELEMENTWISE: dict[Any, tuple[int, ...]] = {
    np.where: (0, 1, 2),
    np.clip: (0, 1, 2),
    np.isclose: (0, 1),
    np.interp: (0,),
    np.searchsorted: (1,),
    np.polyval: (1,),
    **dict.fromkeys(
        (np.round, np.around, np.real, np.imag, np.angle, np.nan_to_num, np.sinc, np.copy, np.astype), (0,)
    ),
    **dict.fromkeys((np.digitize, np.isin, np.zeros_like, np.ones_like, np.full_like, np.empty_like), (0,)),
}
"""Functions of each element by itself, and which arguments hold the elements."""

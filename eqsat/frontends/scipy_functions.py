"""Functions of SciPy in operators: softmax and its kin, distances, the normal distribution."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.errors import ShapeError, UnsupportedDTypeError, UnsupportedOpError
from eqsat.frontends.convert import is_weak, lift, normalize_axes, promote, reduced_axes, traced
from eqsat.frontends.libraries import writes
from eqsat.frontends.registry import call as np_call
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.ufuncs import apply
from eqsat.ir import build
from eqsat.ir.build import call, reduce, scalar
from eqsat.ir.composite import composite
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import float64


def floating(x: Any) -> Node:
    """An array's node, of integers and bools in float64."""
    node = lift(x)
    if node.dtype.kind == "complex":
        raise UnsupportedDTypeError("this function of complex numbers is not written in operators", LINE.get())
    return node if node.dtype.is_float else build.cast(node, float64)


def softmax_of(node: Node, axis: Any) -> Node:
    axes = normalize_axes(axis, node.type.ndim)
    if len(axes) == 1:
        return composite("softmax", [node], axes[0])
    e = call("exp", call("sub", node, reduce("reduce_max", node, axes, keepdims=True)))
    return call("div", e, reduce("reduce_sum", e, axes, keepdims=True))


def log_softmax_of(node: Node, axis: Any) -> Node:
    axes = normalize_axes(axis, node.type.ndim)
    if len(axes) == 1:
        return composite("log_softmax", [node], axes[0])
    shifted = call("sub", node, reduce("reduce_max", node, axes, keepdims=True))
    total = reduce("reduce_sum", call("exp", shifted), axes, keepdims=True)
    return call("sub", shifted, call("log", total))


@writes("scipy.special.softmax")
def softmax(x: Any, axis: Any = None) -> TracedArray:
    node = floating(x)
    return TracedArray(softmax_of(node, reduced_axes(axis, node)))


def _finite_top(node: Node, axes: tuple[int, ...]) -> Node:
    """The greatest number along some axes; 0 where that is infinite or NaN."""
    top = reduce("reduce_max", node, axes, keepdims=True)
    return call("where", call("isfinite", top), top, scalar(0, top))


@writes("scipy.special.log_softmax")
def log_softmax(x: Any, axis: Any = None) -> TracedArray:
    node = floating(x)
    axes = reduced_axes(axis, node)
    shifted = call("sub", node, _finite_top(node, axes))
    return TracedArray(
        call("sub", shifted, call("log", reduce("reduce_sum", call("exp", shifted), axes, keepdims=True)))
    )


@writes("scipy.special.logsumexp")
def logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    if return_sign:
        raise UnsupportedOpError("scipy.special.logsumexp(return_sign=True) is not written in operators", LINE.get())
    node = floating(a)
    weights = None
    if b is not None:
        other = floating(b)
        dtype = promote(TracedArray(node), TracedArray(other))
        shape = np.broadcast_shapes(node.shape, other.shape)
        node, weights = (build.broadcast_to(build.cast(v, dtype), shape) for v in (node, other))
        # As SciPy: what has no weight adds nothing, whatever it is.
        node = call("where", call("eq", weights, scalar(0, weights)), scalar(-math.inf, node), node)
    if node.type.ndim == 0:
        node = build.reshape(node, (1,))
    axes = normalize_axes(axis, node.type.ndim)
    if any(node.shape[i] == 0 for i in axes):
        raise UnsupportedOpError("scipy.special.logsumexp of nothing", LINE.get())
    top = _finite_top(node, axes)
    terms = call("exp", call("sub", node, top))
    if weights is not None:
        terms = call("mul", weights, terms)
    total = call("add", call("log", reduce("reduce_sum", terms, axes, keepdims=True)), top)
    return TracedArray(
        total if keepdims else build.reshape(total, [n for i, n in enumerate(node.shape) if i not in axes])
    )


# Distances


def _sum(node: Node) -> Node:
    return reduce("reduce_sum", node, (node.type.ndim - 1,))


def _size(node: Node) -> Node:
    return call("sqrt", _sum(call("square", node)))


def _cosine(x: Node, y: Node) -> Node:
    product = _sum(call("mul", x, y))
    ratio = call("div", product, call("mul", _size(x), _size(y)))
    return call("sub", scalar(1, x), call("maximum", call("minimum", ratio, scalar(1, x)), scalar(-1, x)))


def _canberra(x: Node, y: Node) -> Node:
    below = call("add", call("abs", x), call("abs", y))
    part = call("div", call("abs", call("sub", x, y)), below)
    return _sum(call("where", call("eq", below, scalar(0, x)), scalar(0, x), part))


def _relative(x: Node, y: Node) -> Node:
    return call("div", _sum(call("abs", call("sub", x, y))), _sum(call("abs", call("add", x, y))))


def _minkowski(x: Node, y: Node, p: Any = 2) -> Node:
    if not is_weak(p) or p <= 0:
        raise ValueError("p must be greater than 0")
    gap = call("abs", call("sub", x, y))
    if p == math.inf:
        return reduce("reduce_max", gap, (gap.type.ndim - 1,))
    return call("pow", _sum(call("pow", gap, scalar(p, gap))), scalar(1 / p, gap))


METRICS: dict[str, Callable[..., Node]] = {
    "euclidean": lambda x, y: _size(call("sub", x, y)),
    "sqeuclidean": lambda x, y: _sum(call("square", call("sub", x, y))),
    "cityblock": lambda x, y: _sum(call("abs", call("sub", x, y))),
    "chebyshev": lambda x, y: _minkowski(x, y, math.inf),
    "cosine": _cosine,
    "canberra": _canberra,
    "braycurtis": _relative,
    "minkowski": _minkowski,
}


@writes("scipy.spatial.distance.cdist")
def cdist(XA: Any, XB: Any, metric: Any = "euclidean", *, out: Any = None, **options: Any) -> TracedArray:
    """Distances of all rows of two matrices, in float64."""
    found = METRICS.get(metric.lower()) if isinstance(metric, str) else None
    if found is None or options.keys() - ({"p"} if found is _minkowski else set()):
        raise UnsupportedOpError(f"scipy.spatial.distance.cdist(metric={metric!r})", LINE.get())
    x, y = (build.cast(lift(v), float64) for v in (XA, XB))
    if x.type.ndim != 2 or y.type.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ShapeError(f"cdist: matrices with as many columns are needed, not {x.shape} and {y.shape}", LINE.get())
    if x.shape[1] == 0:
        raise UnsupportedOpError("scipy.spatial.distance.cdist of no columns", LINE.get())
    return TracedArray(found(build.expand_dims(x, (1,)), build.expand_dims(y, (0,)), **options))


# The normal distribution


def _special(name: str, x: TracedArray) -> TracedArray:
    return apply(getattr(sys.modules["scipy.special"], name), (x,))  # type: ignore[no-any-return]


def _normal(name: str, value: Callable[[TracedArray], TracedArray], *, density: bool | None = None) -> None:
    """A method at ``(x - loc) / scale``; of a density divided by the scale, of its logarithm less the scale's."""

    def run(x: Any, loc: Any = 0, scale: Any = 1) -> TracedArray:
        at, middle, width = (TracedArray(build.cast(lift(v), float64)) for v in (x, loc, scale))
        found: Any = value((at - middle) / width)
        if density is not None:
            found = found / width if density else found - np.log(width)
        return np.where(width > 0, found, math.nan)  # type: ignore[return-value]

    writes(f"scipy.stats.norm.{name}")(run)


_ROOT = math.sqrt(2 * math.pi)
_normal("pdf", lambda z: np.exp(z * z / -2.0) / _ROOT, density=True)
_normal("logpdf", lambda z: z * z / -2.0 - math.log(_ROOT), density=False)
_normal("cdf", lambda z: _special("ndtr", z))
_normal("sf", lambda z: _special("ndtr", -z))
_normal("logcdf", lambda z: _special("log_ndtr", z))
_normal("logsf", lambda z: _special("log_ndtr", -z))


# What NumPy has too


@writes("scipy.linalg.norm")
def norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True) -> Any:
    if check_finite:
        raise UnsupportedOpError("scipy.linalg.norm(check_finite=True) looks at values", LINE.get())
    return np_call(np.linalg.norm, traced(a), ord, axis, keepdims)


@writes("scipy.integrate.trapezoid")
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    return np_call(np.trapezoid, traced(y), x, dx, axis)

"""Filters of images and signals (``scipy.ndimage``, ``scipy.signal``): sums and extremes over windows.

SciPy computes filters of images in float64 and casts the result to the image's type. Here floats are filtered in their
own type, and sums over integers, of which the cast cuts the fraction off, are SciPy's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import UnsupportedDTypeError, UnsupportedOpError
from eqsat.frontends.convert import is_weak, lift, normalize_axes, normalize_axis, together, traced
from eqsat.frontends.libraries import writes
from eqsat.frontends.registry import call as np_call
from eqsat.frontends.shapes import flip_node
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.windows import correlated
from eqsat.ir import build, views
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import row_major

LARGEST = 1024
"""Numbers in a window at most: with more SciPy may take fewer steps, by Fourier transforms."""

_MODES = {
    "reflect": "symmetric", "grid-mirror": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap",
    "grid-wrap": "wrap", "constant": "constant", "grid-constant": "constant",
}  # fmt: skip
"""How SciPy continues images over their ends, and what NumPy calls it."""


def widened(x: TracedArray, widths: Sequence[tuple[int, int]], mode: Any, cval: Any) -> Node:
    """An image continued over its ends."""
    if mode not in _MODES:
        raise UnsupportedOpError(f"mode={mode!r} of a filter is not written in operators", LINE.get())
    if not is_weak(cval):
        raise UnsupportedOpError("cval= must be a Python number", LINE.get())
    if _MODES[mode] == "constant" and x.dtype.kind in "iu":  # SciPy compares and casts others as each function does
        limits = np.iinfo(x.dtype)
        if not (math.isfinite(cval) and limits.min <= int(cval) <= limits.max):
            raise UnsupportedOpError(f"cval={cval!r} is no number of the type {x.dtype}", LINE.get())
    if not any(n for pair in widths for n in pair):
        return x.node
    if x.size == 0:
        raise UnsupportedOpError("a filter of an empty image is not written in operators", LINE.get())
    options = {"constant_values": cval} if _MODES[mode] == "constant" else {}
    return lift(np_call(np.pad, x, list(widths), mode=_MODES[mode], **options))


def image(input: Any, output: Any, floats: bool = True) -> TracedArray:
    if output is not None:
        raise UnsupportedOpError("output= of a filter is not written in operators", LINE.get())
    x = traced(input)
    if (floats and x.dtype.kind != "f") or x.dtype.kind not in "fiu" or x.dtype == np.float16:
        raise UnsupportedDTypeError(f"a filter of {x.dtype} is not written in operators", LINE.get())
    return x


def reach(size: int, origin: Any) -> tuple[int, int]:
    """How far a window of some size reaches before and after its place."""
    before = size // 2 + operator.index(origin)
    if not 0 <= before < size:
        raise ValueError("invalid origin")
    return before, size - 1 - before


def _weighed(input: Any, weights: Any, output: Any, mode: Any, cval: Any, origin: Any, turned: bool) -> TracedArray:
    x, w = image(input, output), lift(weights)
    if w.type.ndim != x.ndim:
        raise UnsupportedOpError("filter weights array has incorrect shape.", LINE.get())
    if not 0 < w.type.size <= LARGEST or w.dtype.kind == "complex" or isinstance(mode, (list, tuple)):
        raise UnsupportedOpError("such a filter is not written in operators", LINE.get())
    origins = [operator.index(o) for o in (origin if isinstance(origin, (list, tuple)) else [origin] * x.ndim)]
    if turned:
        w = flip_node(w, tuple(range(x.ndim)))
        origins = [-o - (n % 2 == 0) for o, n in zip(origins, w.shape, strict=True)]
    widths = [reach(n, o) for n, o in zip(w.shape, origins, strict=True)]
    return TracedArray(correlated(widened(x, widths, mode, cval), build.cast(w, x.node.dtype)))


@writes("scipy.ndimage.correlate")
def correlate(
    input: Any, weights: Any, output: Any = None, mode: Any = "reflect", cval: Any = 0.0, origin: Any = 0
) -> TracedArray:
    return _weighed(input, weights, output, mode, cval, origin, False)


@writes("scipy.ndimage.convolve")
def convolve(
    input: Any, weights: Any, output: Any = None, mode: Any = "reflect", cval: Any = 0.0, origin: Any = 0
) -> TracedArray:
    return _weighed(input, weights, output, mode, cval, origin, True)


def _along(
    input: Any, weights: Any, axis: Any, output: Any, mode: Any, cval: Any, origin: Any, turned: bool
) -> TracedArray:
    x, row = traced(input), lift(weights)
    if row.type.ndim != 1:
        raise UnsupportedOpError("No filter weights given", LINE.get())
    at = normalize_axis(axis, x.ndim)
    origins = [operator.index(origin) if i == at else 0 for i in range(x.ndim)]
    shaped = build.reshape(row, [row.type.size if i == at else 1 for i in range(x.ndim)])
    return _weighed(x, TracedArray(shaped), output, mode, cval, origins, turned)


@writes("scipy.ndimage.correlate1d")
def correlate1d(
    input: Any, weights: Any, axis: Any = -1, output: Any = None, mode: Any = "reflect", cval: Any = 0.0,
    origin: Any = 0,
) -> TracedArray:  # fmt: skip
    return _along(input, weights, axis, output, mode, cval, origin, False)


@writes("scipy.ndimage.convolve1d")
def convolve1d(
    input: Any, weights: Any, axis: Any = -1, output: Any = None, mode: Any = "reflect", cval: Any = 0.0,
    origin: Any = 0,
) -> TracedArray:  # fmt: skip
    return _along(input, weights, axis, output, mode, cval, origin, True)


@writes("scipy.ndimage.uniform_filter1d")
def uniform_filter1d(
    input: Any, size: Any, axis: Any = -1, output: Any = None, mode: Any = "reflect", cval: Any = 0.0, origin: Any = 0
) -> TracedArray:
    n = operator.index(size)
    if n < 1:
        raise RuntimeError("incorrect filter size")
    return _along(input, np.full(n, 1 / n), axis, output, mode, cval, origin, False)


def gaussian_weights(sigma: float, truncate: float, radius: Any) -> np.ndarray:
    """The bell curve's values around 0, which sum to 1."""
    reach = int(truncate * sigma + 0.5) if radius is None else operator.index(radius)
    weights = np.exp(-0.5 / (sigma * sigma) * np.arange(-reach, reach + 1) ** 2)
    return np.asarray(weights / weights.sum())


@writes("scipy.ndimage.gaussian_filter1d")
def gaussian_filter1d(
    input: Any, sigma: Any, axis: Any = -1, order: Any = 0, output: Any = None, mode: Any = "reflect", cval: Any = 0.0,
    truncate: Any = 4.0, *, radius: Any = None,
) -> TracedArray:  # fmt: skip
    if order != 0 or not is_weak(sigma) or not is_weak(truncate) or sigma <= 0:
        raise UnsupportedOpError("such a filter is not written in operators", LINE.get())
    return _along(input, gaussian_weights(float(sigma), truncate, radius), axis, output, mode, cval, 0, False)


def _each_axis(x: TracedArray, axes: Any, options: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Axes that are filtered in turn, each with its own of the options that are lists."""
    at = normalize_axes(axes, x.ndim)
    for value in options.values():
        if isinstance(value, (list, tuple)) and len(value) != len(at):
            raise RuntimeError("sequence argument must have length equal to input rank")
    return [
        (axis, {k: v[i] if isinstance(v, (list, tuple)) else v for k, v in options.items()})
        for i, axis in enumerate(at)
    ]


@writes("scipy.ndimage.uniform_filter")
def uniform_filter(
    input: Any, size: Any = 3, output: Any = None, mode: Any = "reflect", cval: Any = 0.0, origin: Any = 0, *,
    axes: Any = None,
) -> TracedArray:  # fmt: skip
    x = image(input, output)
    for axis, given in _each_axis(x, axes, {"size": size, "mode": mode, "origin": origin}):
        if given["size"] > 1:
            x = uniform_filter1d(x, axis=axis, cval=cval, **given)
    return x.copy() if x is input else x


@writes("scipy.ndimage.gaussian_filter")
def gaussian_filter(
    input: Any, sigma: Any, order: Any = 0, output: Any = None, mode: Any = "reflect", cval: Any = 0.0,
    truncate: Any = 4.0, *, radius: Any = None, axes: Any = None,
) -> TracedArray:  # fmt: skip
    x = image(input, output)
    for axis, given in _each_axis(x, axes, {"sigma": sigma, "order": order, "mode": mode, "radius": radius}):
        if given["sigma"] > 1e-15:
            x = gaussian_filter1d(x, axis=axis, cval=cval, truncate=truncate, **given)
    return x.copy() if x is input else x


@writes("scipy.ndimage.laplace")
def laplace(input: Any, output: Any = None, mode: Any = "reflect", cval: Any = 0.0, *, axes: Any = None) -> TracedArray:
    x = image(input, output)
    parts: list[Any] = [
        correlate1d(x, [1, -2, 1], axis, None, given["mode"], cval)
        for axis, given in _each_axis(x, axes, {"mode": mode})
    ]
    if not parts:
        raise UnsupportedOpError("such a filter is not written in operators", LINE.get())
    return sum(parts[1:], parts[0])  # type: ignore[no-any-return]


def _edges(name: str, across: list[float]) -> None:
    """A difference along one axis, smoothed along the others."""

    def run(input: Any, axis: Any = -1, output: Any = None, mode: Any = "reflect", cval: Any = 0.0) -> TracedArray:
        x = image(input, output)
        along = normalize_axis(axis, x.ndim)
        modes = {axis: given["mode"] for axis, given in _each_axis(x, None, {"mode": mode})}
        found = correlate1d(x, [-1, 0, 1], along, None, modes[along], cval)
        for other in range(x.ndim):
            if other != along:
                found = correlate1d(found, across, other, None, modes[other], cval)
        return found

    writes(f"scipy.ndimage.{name}")(run)


_edges("sobel", [1, 2, 1])
_edges("prewitt", [1, 1, 1])


def _extreme(name: str, op: str) -> None:
    def along(
        input: Any, size: Any, axis: Any = -1, output: Any = None, mode: Any = "reflect", cval: Any = 0.0,
        origin: Any = 0,
    ) -> TracedArray:  # fmt: skip
        x, n = image(input, output, floats=False), operator.index(size)
        if n < 1:
            raise RuntimeError("incorrect filter size")
        at = normalize_axis(axis, x.ndim)
        whole = widened(x, [reach(n, origin) if i == at else (0, 0) for i in range(x.ndim)], mode, cval)
        steps = row_major(whole.shape)
        windows = build.view(whole, views.strided([*x.shape, n], [*steps, steps[at]], 0), "windows")
        return TracedArray(build.reduce(f"reduce_{op}", windows, (x.ndim,)))

    def run(
        input: Any, size: Any = None, footprint: Any = None, output: Any = None, mode: Any = "reflect",
        cval: Any = 0.0, origin: Any = 0, *, axes: Any = None,
    ) -> TracedArray:  # fmt: skip
        if footprint is not None or size is None:
            raise UnsupportedOpError("such a filter is not written in operators", LINE.get())
        x = image(input, output, floats=False)
        for axis, given in _each_axis(x, axes, {"size": size, "mode": mode, "origin": origin}):
            if given["size"] > 1:
                x = along(x, axis=axis, cval=cval, **given)
        return x.copy() if x is input else x

    writes(f"scipy.ndimage.{name}1d")(along)
    writes(f"scipy.ndimage.{name}")(run)


_extreme("maximum_filter", "max")
_extreme("minimum_filter", "min")


# scipy.signal

_BOUNDARIES = {"fill": "constant", "wrap": "grid-wrap", "symm": "reflect"}


def _swapped(x: Node, w: Node, mode: str) -> bool:
    """Whether ``mode='valid'`` takes the second for the longer one; ValueError where neither is."""
    if mode != "valid":
        return False
    longer = [n >= m for n, m in zip(x.shape, w.shape, strict=True)]
    if not all(longer) and not all(m >= n for n, m in zip(x.shape, w.shape, strict=True)):
        raise ValueError("For 'valid' mode, one must be at least as large as the other in every dimension")
    return not all(longer)


def _summed(
    in1: Any, in2: Any, mode: Any, turned: bool, boundary: str = "fill", value: Any = 0, early: bool = False
) -> TracedArray:
    """``Σ in1[i + k]·conj(in2[k])``; of ``in2`` turned around ``Σ in1[i - k]·in2[k]``.

    ``early``: of the two middles of an even ``in2``, "same" lays the first on an element, not the second.
    """
    x, w = together(in1, in2)
    if x.type.ndim != w.type.ndim:
        raise ValueError("in1 and in2 should have the same dimensionality")
    if mode not in ("full", "same", "valid"):
        raise ValueError("acceptable mode flags are 'valid', 'same', or 'full'")
    if boundary not in _BOUNDARIES or x.type.ndim == 0 or 0 in (*x.shape, *w.shape) or x.dtype.kind == "bool":
        raise UnsupportedOpError("such a sum is not written in operators", LINE.get())
    every = tuple(range(x.type.ndim))
    back = _swapped(x, w, mode)
    if back:
        x, w = w, x
    if min(x.type.size, w.type.size) > LARGEST:
        raise UnsupportedOpError("such a sum is not written in operators", LINE.get())
    if turned:
        w = flip_node(w, every)
    elif w.dtype.kind == "complex":
        raise UnsupportedDTypeError("a correlation of complex numbers is not written in operators", LINE.get())
    ends = {
        "full": [(m - 1, m - 1) for m in w.shape],
        "same": [((m - 1) // 2, m // 2) if early else (m // 2, (m - 1) // 2) for m in w.shape],
        "valid": [(0, 0)] * len(every),
    }[mode]
    found = correlated(widened(TracedArray(x), ends, _BOUNDARIES[boundary], value), w)
    return TracedArray(flip_node(found, every) if back and not turned else found)


def _method(method: Any) -> None:
    if method not in ("auto", "direct"):
        raise UnsupportedOpError(f"method={method!r} is SciPy's own", LINE.get())


@writes("scipy.signal.convolve")
def signal_convolve(in1: Any, in2: Any, mode: Any = "full", method: Any = "auto") -> TracedArray:
    _method(method)
    return _summed(in1, in2, mode, True)


@writes("scipy.signal.correlate")
def signal_correlate(in1: Any, in2: Any, mode: Any = "full", method: Any = "auto") -> TracedArray:
    _method(method)
    return _summed(in1, in2, mode, False)


@writes("scipy.signal.convolve2d")
def convolve2d(in1: Any, in2: Any, mode: Any = "full", boundary: Any = "fill", fillvalue: Any = 0) -> TracedArray:
    return _summed(in1, in2, mode, True, boundary, fillvalue)


@writes("scipy.signal.correlate2d")
def correlate2d(in1: Any, in2: Any, mode: Any = "full", boundary: Any = "fill", fillvalue: Any = 0) -> TracedArray:
    return _summed(in1, in2, mode, False, boundary, fillvalue, early=True)

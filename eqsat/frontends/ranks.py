"""Medians and other ranks of few elements by sorting networks: minima and maxima, which vectors take of many at once.

The network is Batcher's merge exchange, for any number of elements (Knuth, The Art of Computer Programming, volume 3,
5.2.2, algorithm M). Comparisons that no asked rank depends on are never part of the program. A NaN spreads to both
results of every comparison that it comes to, and so to each rank that depends on its place, as NumPy's medians do.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from eqsat.errors import UnsupportedOpError
from eqsat.frontends.convert import is_weak, normalize_axes, traced
from eqsat.frontends.filters import image, reach, widened
from eqsat.frontends.libraries import writes
from eqsat.frontends.registry import implements
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import float64

MOST = 25
"""Elements that are ordered by a network: one kernel, or up to three of a filter of 5×5, which
takes 6 to 9 s of processor time to compile."""
FEWEST_RESULTS = 4
"""Results for which a network is worth its kernel."""


def comparisons(count: int) -> Iterable[tuple[int, int]]:
    """Pairs of places (first < second): exchanging each pair that is out of order sorts ``count`` elements."""
    stride = top = 1 << (count - 1).bit_length() - 1 if count > 1 else 0
    while stride:
        distance, wanted, half = stride, 0, top
        while True:
            yield from ((i, i + distance) for i in range(count - distance) if i & stride == wanted)
            if half == stride:
                break
            distance, wanted, half = half - stride, stride, half // 2
        stride //= 2


def in_order(elements: Sequence[Node]) -> list[Node]:
    """As many values as given, of which the first has the least of each place, and so on."""
    found = list(elements)
    for i, j in comparisons(len(found)):
        found[i], found[j] = call("minimum", found[i], found[j]), call("maximum", found[i], found[j])
    return found


def _refuse() -> UnsupportedOpError:
    return UnsupportedOpError("ranks among these elements are not written in operators", LINE.get())


@implements(np.median)
def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: Any = False, keepdims: Any = False) -> Any:
    x = traced(a)
    axes = normalize_axes(tuple(axis) if isinstance(axis, list) else axis, x.ndim)
    count = math.prod(x.shape[i] for i in axes)
    if overwrite_input or x.dtype.kind not in "fiub" or x.dtype == np.float16:
        raise _refuse()
    if not 2 <= count <= MOST or x.size < FEWEST_RESULTS * count:
        raise _refuse()
    elements = []
    for place in itertools.product(*(range(x.shape[i]) for i in axes)):
        at = dict(zip(axes, place, strict=True))
        elements.append(x[tuple(at.get(i, slice(None)) for i in range(x.ndim))].node)
    ordered = in_order(elements)
    middle = [ordered[(count - 1) // 2], ordered[count // 2]]
    if not x.node.dtype.is_float:
        middle = [build.cast(m, float64) for m in middle]
    found = middle[0]
    if count % 2 == 0:
        found = call("div", call("add", *middle), build.scalar(2, found))
    if keepdims:
        found = build.reshape(found, [1 if i in axes else n for i, n in enumerate(x.shape)])
    return TracedArray(found)


def _windows(x: TracedArray, sizes: Sequence[int], origins: Sequence[Any], mode: Any, cval: Any) -> list[Node]:
    """The elements of each window, one array a place in it."""
    whole = widened(x, [reach(n, o) for n, o in zip(sizes, origins, strict=True)], mode, cval)
    places = itertools.product(*(range(n) for n in sizes))
    found = []
    for place in places:
        part = whole
        for axis, (start, n) in enumerate(zip(place, x.shape, strict=True)):
            part = build.take_range(part, axis, start, start + n)
        found.append(part)
    return found


def _ranked(
    input: Any, rank: Any, size: Any, footprint: Any, output: Any, mode: Any, cval: Any, origin: Any, axes: Any
) -> TracedArray:
    """``rank``: the rank among so many."""
    x = image(input, output, floats=False)
    if footprint is not None or size is None or axes is not None or not isinstance(mode, str):
        raise _refuse()
    sizes, origins = (
        [operator.index(v) for v in (value if isinstance(value, (list, tuple)) else [value] * x.ndim)]
        for value in (size, origin)
    )
    if len(sizes) != x.ndim or len(origins) != x.ndim:
        raise RuntimeError("sequence argument must have length equal to input rank")
    count = math.prod(sizes)
    if min(sizes, default=0) < 1 or not 2 <= count <= MOST or x.size < FEWEST_RESULTS:
        raise _refuse()
    number = rank(count)
    if not 0 <= number < count:
        raise RuntimeError("rank not within filter footprint size")
    return TracedArray(in_order(_windows(x, sizes, origins, mode, cval))[number])


@writes("scipy.ndimage.median_filter")
def median_filter(
    input: Any, size: Any = None, footprint: Any = None, output: Any = None, mode: Any = "reflect", cval: Any = 0.0,
    origin: Any = 0, *, axes: Any = None,
) -> TracedArray:  # fmt: skip
    return _ranked(input, lambda count: count // 2, size, footprint, output, mode, cval, origin, axes)


@writes("scipy.ndimage.rank_filter")
def rank_filter(
    input: Any, rank: Any, size: Any = None, footprint: Any = None, output: Any = None, mode: Any = "reflect",
    cval: Any = 0.0, origin: Any = 0, *, axes: Any = None,
) -> TracedArray:  # fmt: skip
    number = operator.index(rank)

    def among(count: int) -> int:
        return number + count if number < 0 else number

    return _ranked(input, among, size, footprint, output, mode, cval, origin, axes)


@writes("scipy.ndimage.percentile_filter")
def percentile_filter(
    input: Any, percentile: Any, size: Any = None, footprint: Any = None, output: Any = None, mode: Any = "reflect",
    cval: Any = 0.0, origin: Any = 0, *, axes: Any = None,
) -> TracedArray:  # fmt: skip
    if not is_weak(percentile):
        raise _refuse()
    share = percentile + 100.0 if percentile < 0.0 else percentile
    if not 0 <= share <= 100:
        raise RuntimeError("invalid percentile")

    def among(count: int) -> int:
        return count - 1 if share == 100.0 else int(float(count) * share / 100.0)

    return _ranked(input, among, size, footprint, output, mode, cval, origin, axes)


@writes("scipy.signal.medfilt")
def medfilt(volume: Any, kernel_size: Any = None) -> TracedArray:
    x = traced(volume)
    sizes = [3] * x.ndim if kernel_size is None else kernel_size
    sizes = [sizes] * x.ndim if np.ndim(sizes) == 0 else list(sizes)
    if len(sizes) != x.ndim or not all(isinstance(n, int | np.integer) for n in sizes):
        raise _refuse()
    if any(n % 2 == 0 for n in sizes):
        raise ValueError("Each element of kernel_size should be odd.")
    return median_filter(x, tuple(int(n) for n in sizes), mode="constant")


@writes("scipy.signal.medfilt2d")
def medfilt2d(input: Any, kernel_size: Any = 3) -> TracedArray:
    x = traced(input)
    if x.ndim != 2:
        raise _refuse()
    return medfilt(x, kernel_size)

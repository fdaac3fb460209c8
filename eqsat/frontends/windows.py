"""Windows of an array, and convolutions and correlations: sums over windows, which become contractions."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.errors import ShapeError, UnsupportedOpError
from eqsat.frontends.contractions import einsum_nodes
from eqsat.frontends.convert import normalize_axis, together, traced, view_of
from eqsat.frontends.registry import implements
from eqsat.frontends.shapes import flip_node, shape_of
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build, views
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import row_major


@implements(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> TracedArray:
    array, sizes = traced(x), shape_of(window_shape)
    if writeable:
        raise UnsupportedOpError("sliding_window_view(writeable=True): windows share elements", LINE.get())
    axes = range(array.ndim) if axis is None else [normalize_axis(a, array.ndim) for a in shape_of(axis)]
    if any(size < 0 for size in sizes):
        raise ValueError("`window_shape` cannot contain negative values")
    if len(sizes) != len(axes):
        raise ValueError(f"window_shape {sizes} must have an entry for each of axes {tuple(axes)}")
    counts, steps = list(array.shape), row_major(array.shape)
    for at, size in zip(axes, sizes, strict=True):
        if size > counts[at]:  # what windows along the same axis before this one leave
            raise ValueError("window shape cannot be larger than input array shape")
        counts[at] -= size - 1
    map = views.strided([*counts, *sizes], [*steps, *(steps[at] for at in axes)])
    return view_of(array, map, "windows", readonly=True)


def correlated(x: Node, weights: Node) -> Node:
    """``out[i…] = Σ x[i + k…]·weights[k…]`` over the windows that lie inside ``x``; both have the same rank."""
    extents = [max(n - m + 1, 0) for n, m in zip(x.shape, weights.shape, strict=True)]
    steps = row_major(x.shape)
    if 0 in extents:
        return build.broadcast_to(build.scalar(0, x), extents)
    windows = build.view(x, views.strided([*extents, *weights.shape], [*steps, *steps], 0), "windows")
    rank = len(extents)
    outer, inner = list(range(rank)), list(range(rank, 2 * rank))
    return einsum_nodes([windows, weights], [[*outer, *inner], inner], outer)


def padding(width: int, mode: str) -> tuple[int, int]:
    """How much is put before and after the longer of two rows in NumPy's modes."""
    if mode == "valid":
        return 0, 0
    if mode == "same":
        return width // 2, width - 1 - width // 2
    if mode == "full":
        return width - 1, width - 1
    raise ValueError(f"mode must be one of 'valid', 'same', or 'full' (got {mode!r})")


def _mode(mode: Any) -> str:
    return ("valid", "same", "full")[mode] if isinstance(mode, int) and 0 <= mode < 3 else mode


def _rows(name: str, a: Any, v: Any) -> list[TracedArray]:
    rows = [traced(a), traced(v)]
    if any(row.ndim > 1 for row in rows):
        raise ShapeError(
            f"{name}: rows are needed, not arrays of shapes {rows[0].shape} and {rows[1].shape}", LINE.get()
        )
    for row, what in zip(rows, ("a", "v"), strict=True):
        if row.size == 0:
            raise ValueError(f"{what} cannot be empty")
    return [TracedArray(build.reshape(row.node, (row.size,))) for row in rows]


def _along(x: Node, weights: Node, mode: str) -> Node:
    return correlated(build.pad(x, [padding(weights.shape[0], mode)], x.dtype.numpy.type(0).item()), weights)


@implements(np.convolve)
def convolve(a: Any, v: Any, mode: Any = "full") -> TracedArray:
    x, weights = together(*_rows("convolve", a, v))
    if weights.shape > x.shape:
        x, weights = weights, x
    return TracedArray(_along(x, flip_node(weights, (0,)), _mode(mode)))


@implements(np.correlate)
def correlate(a: Any, v: Any, mode: Any = "valid") -> TracedArray:
    row, other = _rows("correlate", a, v)
    x, weights = together(row, other.conj())
    if weights.shape > x.shape:
        return TracedArray(flip_node(_along(weights, x, _mode(mode)), (0,)))
    return TracedArray(_along(x, weights, _mode(mode)))

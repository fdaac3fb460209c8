"""Images of another size: interpolated, or shuffled from channels into space and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.frontends.convert import constant, lift
from eqsat.frontends.trace import traceable
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.nn.images import Images, Ints, floats, images, misfit, misuse, narrowed, per_axis

__all__ = ["interpolate", "pixel_shuffle", "pixel_unshuffle"]

_LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3}


def taken(node: Node, axis: int, picks: np.ndarray) -> Node:
    """``np.take(node, picks, axis)``; a view where the positions are evenly spaced, or all repeat as often."""
    n, m = node.shape[axis], len(picks)
    steps = np.diff(picks)
    if m and (steps == (step := int(steps[0]) if m > 1 else 1)).all() and step:
        ndim = node.type.ndim
        starts, strides, sizes = [0] * ndim, [1] * ndim, list(node.shape)
        starts[axis], strides[axis], sizes[axis] = int(picks[0]), step, m
        return build.slices(node, starts, strides, sizes)
    if m % n == 0 and (picks == np.arange(m) // (m // n)).all():
        column = build.expand_dims(node, (axis + 1,))
        wide = build.broadcast_to(column, (*node.shape[: axis + 1], m // n, *node.shape[axis + 1 :]))
        return build.reshape(wide, (*node.shape[:axis], m, *node.shape[axis + 1 :]))
    return build.gather(node, build.const(picks), axis)


def _sizes(x: Images, size: Any, scale_factor: Any, recompute: bool | None) -> tuple[list[int], list[float | None]]:
    """The extents of the result, and the scales that coordinates are computed by (None: those of the extents)."""
    rank = len(x.spatial)
    if (size is None) == (scale_factor is None):
        misuse("interpolate: give either size or scale_factor")
    if size is not None:
        if recompute:
            misuse("interpolate: recompute_scale_factor is of a scale_factor, not of a size")
        return list(per_axis("interpolate", "size", size, rank, 1)), [None] * rank
    given = list(scale_factor) if isinstance(scale_factor, (tuple, list)) else [scale_factor] * rank
    try:
        factors = [float(f) for f in given]
    except TypeError:
        misuse(f"interpolate: scale_factor must be a number, or one for each of {rank} axes, not {scale_factor!r}")
    if len(factors) != rank or not all(0 < f < math.inf for f in factors):
        misuse(f"interpolate: scale_factor must be a positive number, or {rank} of them, not {scale_factor!r}")
    sizes = [math.floor(n * f) for n, f in zip(x.extents, factors, strict=True)]
    if any(n < 1 for n in sizes):
        misfit(f"interpolate: input {x.node.shape} scaled by {scale_factor!r} has no elements: {tuple(sizes)}")
    return sizes, [None] * rank if recompute else list(factors)


def _nearest(n: int, m: int, factor: float | None, exact: bool) -> np.ndarray:
    # PyTorch's coordinates are of float32, which decides between neighbours.
    scale = np.float32(n) / np.float32(m) if factor is None else np.float32(1 / factor)
    places = np.arange(m, dtype=np.float32) + np.float32(0.5 if exact else 0)
    return np.minimum((places * scale).astype(np.int64), n - 1)


def _lerped(node: Node, axis: int, m: int, factor: float | None, corners: bool) -> Node:
    """Linear interpolation along an axis."""
    n = node.shape[axis]
    if corners:
        places = np.arange(m) * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        places = np.maximum((np.arange(m) + 0.5) * (n / m if factor is None else 1 / factor) - 0.5, 0)
    below = np.minimum(np.floor(places).astype(np.int64), n - 1)
    above = np.minimum(below + 1, n - 1)
    part = np.minimum(places - below, 1.0).reshape([-1 if a == axis else 1 for a in range(node.type.ndim)])
    near, far = (build.cast(constant(weight), node.dtype) for weight in (1 - part, part))
    return call("add", call("mul", taken(node, axis, below), near), call("mul", taken(node, axis, above), far))


@traceable
def interpolate(
    input: Any, size: Ints | None = None, scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, *, layout: str | None = None,
) -> Any:  # fmt: skip
    """Images (N, C, …) with one to three axes of space, or of a ``layout``, in another size.

    ``size``: the new extents; or ``scale_factor``: they are the products, rounded down. ``mode``: 'nearest' (element
    at ``floor(i·n/m)``), 'nearest-exact' (at ``floor((i + 1/2)·n/m)``), or 'linear', 'bilinear', 'trilinear' for one,
    two, three axes: elements are areas, unless ``align_corners`` takes them for points, of which the outermost stay. By
    a ``scale_factor`` coordinates are scaled, unless ``recompute_scale_factor`` scales them by the extents; in linear
    modes an axis whose extent stays is left alone, as PyTorch does.

    Raises ``ShapeError`` for images of another rank or without elements, ``OptionError`` for options that mean nothing.
    """
    if mode not in ("nearest", "nearest-exact", *_LINEAR):
        misuse(f"interpolate: mode must be 'nearest', 'nearest-exact', {', '.join(map(repr, _LINEAR))}, not {mode!r}")
    linear = mode in _LINEAR
    x = images("interpolate", floats("interpolate", input) if linear else lift(input), layout)
    rank = len(x.spatial)
    if _LINEAR.get(mode, rank) != rank or not 1 <= rank <= 3:
        axes = _LINEAR.get(mode, "1 to 3")
        misfit(f"interpolate: mode={mode!r} is for {axes} axes of space, not for input {x.node.shape}")
    if align_corners is not None and not linear:
        misuse(f"interpolate: align_corners is of linear modes, not of mode={mode!r}")
    if 0 in x.extents:
        misfit(f"interpolate: input {x.node.shape} has an axis of space without elements")
    sizes, factors = _sizes(x, size, scale_factor, recompute_scale_factor)
    node = x.node
    for axis, n, m, factor in zip(x.spatial, x.extents, sizes, factors, strict=True):
        if linear and n != m:
            node = _lerped(node, axis, m, factor, bool(align_corners))
        elif not linear:
            node = taken(node, axis, _nearest(n, m, factor, mode == "nearest-exact"))
    return narrowed(node, input) if linear else TracedArray(node)


# Channels to space and back


def _shuffled(name: str, input: Any, factor: Any, layout: str | None, up: bool) -> TracedArray:
    node = lift(input)
    if layout not in (None, "NCHW", "NHWC"):
        misuse(f"{name}: layout must be 'NCHW' or 'NHWC', not {layout!r}")
    if node.type.ndim < 3:
        misfit(f"{name}: images have the axes C, H, W at least, not the shape {node.shape}")
    (r,) = per_axis(name, "upscale_factor" if up else "downscale_factor", factor, 1, 1)
    last = layout == "NHWC"
    lead = node.shape[:-3]
    height, width, channels = node.shape[-3:] if last else (*node.shape[-2:], node.shape[-3])
    at = len(lead)
    if up:
        if channels % (r * r):
            misfit(f"{name}: {channels} channels of input {node.shape} do not make squares of {r} × {r}")
        depth = channels // (r * r)
        # h, w, c, i, j → h, i, w, j, c; and c, i, j, h, w → c, h, i, w, j
        cut = (height, width, depth, r, r) if last else (depth, r, r, height, width)
        order = (0, 3, 1, 4, 2)
        shape = (height * r, width * r, depth) if last else (depth, height * r, width * r)
    else:
        if height % r or width % r:
            misfit(f"{name}: downscale_factor={r} does not divide the extents {height} × {width} of input {node.shape}")
        cut = (height // r, r, width // r, r, channels) if last else (channels, height // r, r, width // r, r)
        order = (0, 2, 4, 1, 3)  # h, i, w, j, c → h, w, c, i, j; and c, h, i, w, j → c, i, j, h, w
        small = (height // r, width // r)
        shape = (*small, channels * r * r) if last else (channels * r * r, *small)
    split = build.reshape(node, (*lead, *cut))
    turned = build.transpose(split, [*range(at), *(at + axis for axis in order)])
    return TracedArray(build.reshape(turned, (*lead, *shape)))


@traceable
def pixel_shuffle(input: Any, upscale_factor: int, *, layout: str | None = None) -> Any:
    """Images (…, C·r², H, W) as (…, C, H·r, W·r): depth to space. Shi et al., 2016."""
    return _shuffled("pixel_shuffle", input, upscale_factor, layout, True)


@traceable
def pixel_unshuffle(input: Any, downscale_factor: int, *, layout: str | None = None) -> Any:
    """Images (…, C, H·r, W·r) as (…, C·r², H, W): space to depth."""
    return _shuffled("pixel_unshuffle", input, downscale_factor, layout, False)

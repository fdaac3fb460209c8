"""Normalization of images: by statistics that are given, or by those of each image."""

from __future__ import annotations

import math
from typing import Any

from eqsat.frontends.convert import lift, promote
from eqsat.frontends.trace import traceable
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.build import call, scalar
from eqsat.ir.node import Node
from eqsat.ir.types import DType, float32, float64
from eqsat.nn.images import Images, images, misfit, misuse, numbers, per_axis

__all__ = ["batch_norm", "group_norm", "instance_norm"]


def _parts(name: str, input: Any, layout: str | None, *rows: Any) -> tuple[Images, list[Node | None], DType]:
    """Images, rows with an element for each channel (None stays None), and the element type of the result."""
    numbers(name, input)
    dtype = promote(input, *(row for row in rows if row is not None))
    dtype = dtype if dtype.is_float else float64
    computed = float32 if dtype.is_half else dtype
    x = images(name, lift(input, computed), layout)
    nodes = [None if row is None else lift(row, computed) for row in rows]
    for node in nodes:
        if node is not None and node.shape != (x.channels,):
            misfit(
                f"{name}: statistics, weight and bias must have shape ({x.channels},) for input {x.node.shape}, not "
                f"{node.shape}"
            )
    return x, nodes, dtype


def _scaled(x: Images, weight: Node | None, bias: Node | None) -> Node:
    node = x.node if weight is None else call("mul", x.node, x.along_channels(weight))
    return node if bias is None else call("add", node, x.along_channels(bias))


@traceable
def batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5,
    layout: str | None = None,
) -> Any:  # fmt: skip
    """``(input - mean) / sqrt(var + eps) · weight + bias`` with given statistics of each channel, as in inference.

    Input (N, C, …), or of a ``layout``. Computed as ``input · scale + shift``, one of each for each channel.
    Ioffe and Szegedy, Batch Normalization, 2015.
    """
    x, (mean, var, w, b), dtype = _parts("batch_norm", input, layout, running_mean, running_var, weight, bias)
    if mean is None or var is None:
        misuse("batch_norm: running_mean and running_var must be arrays, not None")
    root = call("sqrt", call("add", var, lift(eps, var.dtype)))
    scale = call("div", scalar(1, root) if w is None else w, root)
    offset = call("mul", mean, scale)
    shift = call("neg", offset) if b is None else call("sub", b, offset)
    return TracedArray(build.cast(_scaled(x, scale, shift), dtype))


def _normalized(
    name: str, input: Any, groups: Any, weight: Any, bias: Any, eps: float, layout: str | None
) -> TracedArray:
    """Images less the mean, over the deviation, of each group of channels of each image."""
    x, (w, b), dtype = _parts(name, input, layout, weight, bias)
    (parts,) = (x.channels,) if groups is None else per_axis(name, "num_groups", groups, 1, 1)
    if x.channels % max(parts, 1):
        misfit(f"{name}: num_groups={parts} does not divide the {x.channels} channels of input {x.node.shape}")
    depth = x.channels // max(parts, 1)
    if not x.node.type.size:
        return TracedArray(build.cast(x.node, dtype))
    count = depth * math.prod(x.extents)
    shape, at = x.node.shape, x.channel
    cut = build.reshape(x.node, (*shape[:at], parts, depth, *shape[at + 1 :]))
    axes = [at + 1, *(axis + (axis > at) for axis in x.spatial)]

    def mean(node: Node) -> Node:
        return call("div", build.reduce("reduce_sum", node, axes, keepdims=True), scalar(count, node))

    centered = call("sub", cut, mean(cut))
    variance = mean(call("square", centered))
    normed = call("div", centered, call("sqrt", call("add", variance, lift(eps, cut.dtype))))
    return TracedArray(build.cast(_scaled(x.of(build.reshape(normed, shape)), w, b), dtype))


@traceable
def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *, layout: str | None = None
) -> Any:
    """``(input - mean) / sqrt(var + eps) · weight + bias`` over each of ``num_groups`` groups of channels of an image.

    Input (N, C, …), or of a ``layout``; weight and bias (C,). The variance is divided by the number of elements.
    Wu and He, Group Normalization, 2018.
    """
    return _normalized("group_norm", input, num_groups, weight, bias, eps, layout)


@traceable
def instance_norm(
    input: Any, *, weight: Any = None, bias: Any = None, eps: float = 1e-5, layout: str | None = None
) -> Any:
    """:func:`group_norm` with a group for each channel.

    Ulyanov, Vedaldi and Lempitsky, Instance Normalization, 2016.
    """
    return _normalized("instance_norm", input, None, weight, bias, eps, layout)

"""Pooling: reductions over windows, as wide and as far apart everywhere, or as many as are asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.frontends.convert import constant
from eqsat.frontends.trace import traceable
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.nn.images import Images, Ints, floats, images, misfit, misuse, narrowed, numbers, per_axis
from eqsat.nn.windows import extended, windows

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "global_avg_pool",
    "global_max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]

Sizes = int | Sequence[int | None] | None
"""Extents of a result; None is the input's."""


def _positions(n: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    """How many windows there are; a last one that is not whole is one if it begins before the padding at the end."""
    rest = n + 2 * padding - dilation * (kernel - 1) - 1
    found = -(-rest // stride) + 1 if ceil else rest // stride + 1
    return found - 1 if ceil and (found - 1) * stride >= n + padding else found


class _Pooled:
    """The windows of a pooling: of which images, how many, how far apart."""

    def __init__(self, name: str, x: Images, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> None:
        rank = len(x.spatial)
        self.images = x
        self.kernel = per_axis(name, "kernel_size", kernel, rank, 1)
        self.stride = self.kernel if stride is None else per_axis(name, "stride", stride, rank, 1)
        self.padding = per_axis(name, "padding", padding, rank, 0)
        self.dilation = per_axis(name, "dilation", dilation, rank, 1)
        self.spans = [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        if any(p > k // 2 for p, k in zip(self.padding, self.kernel, strict=True)):
            misfit(f"{name}: padding {self.padding} is more than half of the kernel {self.kernel}")
        options = zip(x.extents, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        self.counts = [_positions(*given, bool(ceil)) for given in options]
        if any(n < 1 for n in self.counts) or 0 in x.extents:
            misfit(
                f"{name}: no window of {self.kernel}, dilation {self.dilation}, fits the input {x.node.shape} with "
                f"padding {self.padding}"
            )

    def reduced(self, op: str, fill: float | int) -> Node:
        """What the operator makes of each window; around the images is ``fill``."""
        ends = [
            (m - 1) * s + span - n - p
            for n, m, s, span, p in zip(
                self.images.extents, self.counts, self.stride, self.spans, self.padding, strict=True
            )
        ]
        whole = extended(self.images, list(zip(self.padding, ends, strict=True)), fill)
        seen = windows(whole, self.counts, self.kernel, self.stride, self.dilation)
        return build.reduce(op, seen, range(self.images.node.type.ndim, seen.type.ndim))

    def elements(self, padded: bool) -> list[np.ndarray]:
        """For each axis how many elements each window has, those of the padding with or without."""
        found = []
        for n, m, k, s, p in zip(self.images.extents, self.counts, self.kernel, self.stride, self.padding, strict=True):
            starts = np.arange(m) * s - p
            ends = np.minimum(starts + k, n + p)
            found.append(ends - starts if padded else np.minimum(ends, n) - np.maximum(starts, 0))
        return found


def _over(x: Images, total: Node, counts: Sequence[np.ndarray]) -> Node:
    """Sums over as many elements as the product of what is given for each axis of space."""
    elements = np.ones((1,) * total.type.ndim, np.int64)
    for axis, row in zip(x.spatial, counts, strict=True):
        elements = elements * row.reshape([-1 if a == axis else 1 for a in range(total.type.ndim)])
    if (elements == elements.flat[0]).all():
        return call("div", total, build.scalar(int(elements.flat[0]), total))
    return call("div", total, build.cast(constant(elements), total.dtype))


def _max(name: str, rank: int, input: Any, layout: str | None, *options: Any) -> TracedArray:
    node = numbers(name, input)
    least = -math.inf if node.dtype.is_float else node.dtype.limits[0]
    return TracedArray(_Pooled(name, images(name, node, layout, rank), *options).reduced("reduce_max", least))


def _avg(
    name: str, rank: int, input: Any, layout: str | None, kernel: Any, stride: Any, padding: Any, ceil: bool,
    padded: bool, divisor: int | None = None,
) -> TracedArray:  # fmt: skip
    x = images(name, floats(name, input), layout, rank)
    pooled = _Pooled(name, x, kernel, stride, padding, 1, ceil)
    if divisor == 0:
        misuse(f"{name}: divisor_override must not be 0")
    total = pooled.reduced("reduce_sum", 0)
    ones = [np.ones(1, np.int64)] * (rank - 1)
    counts = pooled.elements(bool(padded)) if divisor is None else [*ones, np.array([divisor])]
    return narrowed(_over(x, total, counts), input)


@traceable
def max_pool1d(
    input: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, *, layout: str | None = None,
) -> Any:  # fmt: skip
    """:func:`max_pool2d` along one axis, of images (N, C, L) or (C, L)."""
    return _max("max_pool1d", 1, input, layout, kernel_size, stride, padding, dilation, ceil_mode)


@traceable
def max_pool2d(
    input: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, *, layout: str | None = None,
) -> Any:  # fmt: skip
    """The maxima of windows of ``kernel_size`` elements ``dilation`` apart, one every ``stride`` (None: their size).

    Images (N, C, H, W) or (C, H, W), or of ``layout="NHWC"``. ``padding``, at most half of the kernel, is no maximum.
    With ``ceil_mode`` a last window that is not whole counts if it begins before the padding at the end.
    A NaN is the maximum of its windows. Raises ``ShapeError`` where no window fits or padding is too wide.
    """
    return _max("max_pool2d", 2, input, layout, kernel_size, stride, padding, dilation, ceil_mode)


@traceable
def max_pool3d(
    input: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, *, layout: str | None = None,
) -> Any:  # fmt: skip
    """:func:`max_pool2d` along three axes, of images (N, C, D, H, W) or (C, D, H, W)."""
    return _max("max_pool3d", 3, input, layout, kernel_size, stride, padding, dilation, ceil_mode)


@traceable
def avg_pool1d(
    input: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, *, layout: str | None = None,
) -> Any:  # fmt: skip
    """:func:`avg_pool2d` along one axis, of images (N, C, L) or (C, L)."""
    return _avg("avg_pool1d", 1, input, layout, kernel_size, stride, padding, ceil_mode, count_include_pad)


@traceable
def avg_pool2d(
    input: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, *, layout: str | None = None,
) -> Any:  # fmt: skip
    """The means of windows, as :func:`max_pool2d` takes them.

    A sum is divided by the number of elements, those of the padding included unless ``count_include_pad`` is false (but
    none beyond it, as ``ceil_mode`` has them), or by ``divisor_override``.
    """
    return _avg(
        "avg_pool2d", 2, input, layout, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@traceable
def avg_pool3d(
    input: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, *, layout: str | None = None,
) -> Any:  # fmt: skip
    """:func:`avg_pool2d` along three axes, of images (N, C, D, H, W) or (C, D, H, W)."""
    return _avg(
        "avg_pool3d", 3, input, layout, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


# Adaptive and global pooling


def _adaptive(name: str, x: Images, output_size: Any, op: str) -> tuple[Node, list[np.ndarray]]:
    """What the operator makes of the windows of adaptive pooling, and how many elements these have along each axis.

    Window i of m is elements ``floor(i·n/m)`` to ``ceil((i + 1)·n/m)``. Where m divides n that is a reshape; elsewhere
    windows are filled up to the longest one, with their last element, which a sum leaves out. Of such axes the outer
    ones are done first: what is left is rows.
    """
    rank = len(x.spatial)
    wanted = output_size if isinstance(output_size, (tuple, list)) else [output_size] * rank
    if len(wanted) != rank:
        misuse(f"{name}: output_size={output_size!r} has {len(wanted)} numbers for {rank} axes of space")
    if 0 in x.extents:
        misfit(f"{name}: input {x.node.shape} has an axis of space without elements")
    given = [n if m is None else m for n, m in zip(x.extents, wanted, strict=True)]
    sizes = per_axis(name, "output_size", given, rank, 1)
    node, counts = x.node, list[np.ndarray]()
    for axis, m in zip(x.spatial, sizes, strict=True):
        n = x.node.shape[axis]
        starts, ends = np.arange(m) * n // m, -(-(np.arange(m) + 1) * n // m)
        counts.append(ends - starts)
        if n % m:
            node = _filled_up(node, axis, starts, ends, op)
    whole = [(axis, m) for axis, m in zip(x.spatial, sizes, strict=True) if x.node.shape[axis] % m == 0]
    for axis, m in reversed(whole):
        node = build.reshape(node, (*node.shape[:axis], m, node.shape[axis] // m, *node.shape[axis + 1 :]))
    return (build.reduce(op, node, [axis + n + 1 for n, (axis, _) in enumerate(whole)]) if whole else node), counts


def _filled_up(node: Node, axis: int, starts: np.ndarray, ends: np.ndarray, op: str) -> Node:
    """Windows from ``starts`` to ``ends`` of one axis, filled up to the longest one, as one number each."""
    places = starts[:, None] + np.arange(int((ends - starts).max()))
    node = build.gather(node, build.const(np.minimum(places, ends[:, None] - 1)), axis)
    if op == "reduce_sum":
        kept = constant(places < ends[:, None])
        rest = [1] * (node.type.ndim - axis - 2)
        node = call("where", build.reshape(kept, (*places.shape, *rest)), node, build.scalar(0, node))
    return build.reduce(op, node, [axis + 1])


def _adaptive_avg(name: str, rank: int, input: Any, output_size: Any, layout: str | None) -> TracedArray:
    x = images(name, floats(name, input), layout, rank)
    total, counts = _adaptive(name, x, output_size, "reduce_sum")
    return narrowed(_over(x, total, counts), input)


def _adaptive_max(name: str, rank: int, input: Any, output_size: Any, layout: str | None) -> TracedArray:
    return TracedArray(_adaptive(name, images(name, numbers(name, input), layout, rank), output_size, "reduce_max")[0])


@traceable
def adaptive_avg_pool1d(input: Any, output_size: Sizes, *, layout: str | None = None) -> Any:
    """:func:`adaptive_avg_pool2d` along one axis, of images (N, C, L) or (C, L)."""
    return _adaptive_avg("adaptive_avg_pool1d", 1, input, output_size, layout)


@traceable
def adaptive_avg_pool2d(input: Any, output_size: Sizes, *, layout: str | None = None) -> Any:
    """The means of as many windows as ``output_size`` says (None: as elements), which cover images evenly.

    Of ``n`` elements window i of ``m`` has those from ``floor(i·n/m)`` to ``ceil((i + 1)·n/m)``.
    """
    return _adaptive_avg("adaptive_avg_pool2d", 2, input, output_size, layout)


@traceable
def adaptive_avg_pool3d(input: Any, output_size: Sizes, *, layout: str | None = None) -> Any:
    """:func:`adaptive_avg_pool2d` along three axes, of images (N, C, D, H, W) or (C, D, H, W)."""
    return _adaptive_avg("adaptive_avg_pool3d", 3, input, output_size, layout)


@traceable
def adaptive_max_pool1d(input: Any, output_size: Sizes, *, layout: str | None = None) -> Any:
    """:func:`adaptive_max_pool2d` along one axis, of images (N, C, L) or (C, L)."""
    return _adaptive_max("adaptive_max_pool1d", 1, input, output_size, layout)


@traceable
def adaptive_max_pool2d(input: Any, output_size: Sizes, *, layout: str | None = None) -> Any:
    """The maxima of the windows of :func:`adaptive_avg_pool2d`."""
    return _adaptive_max("adaptive_max_pool2d", 2, input, output_size, layout)


@traceable
def adaptive_max_pool3d(input: Any, output_size: Sizes, *, layout: str | None = None) -> Any:
    """:func:`adaptive_max_pool2d` along three axes, of images (N, C, D, H, W) or (C, D, H, W)."""
    return _adaptive_max("adaptive_max_pool3d", 3, input, output_size, layout)


def _whole(name: str, node: Node, layout: str | None, op: str) -> tuple[Images, Node]:
    x = images(name, node, layout)
    if 0 in x.extents:
        misfit(f"{name}: input {node.shape} has an axis of space without elements")
    return x, build.reduce(op, node, x.spatial, keepdims=True)


@traceable
def global_avg_pool(input: Any, *, layout: str | None = None) -> Any:
    """The mean of each channel of images (N, C, …), or of a ``layout``; axes of space stay, with extent 1 (ONNX)."""
    x, total = _whole("global_avg_pool", floats("global_avg_pool", input), layout, "reduce_sum")
    return narrowed(_over(x, total, [np.array([n]) for n in x.extents]), input)


@traceable
def global_max_pool(input: Any, *, layout: str | None = None) -> Any:
    """The maximum of each channel of images (N, C, …), or of a ``layout``; axes of space stay (ONNX)."""
    return TracedArray(_whole("global_max_pool", numbers("global_max_pool", input), layout, "reduce_max")[1])

"""Windows over the axes of space: position ``stride·p + dilation·r`` of padded images, as one view.

Padding is a ``pad`` of the images, which kernels store or read behind guards, and windows are a ``view`` of it in which
axes of space are walked by ``p`` with the stride, and by ``r`` with the dilation: both are strides of one index map.
"""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.types import row_major
from eqsat.nn.images import Images

Widths = Sequence[tuple[int, int]]
"""How much is put before and after each axis of space; less than nothing is cut off."""


def extended(x: Images, widths: Widths, value: float | int = 0) -> Images:
    """Images with ``value`` around them, or without their rims."""
    node = x.node
    starts, kept, around = [], [], []
    for n, (low, high) in zip(node.shape, x.over_space(widths), strict=True):
        start = min(max(-low, 0), n)
        inside = max(min(n, n + high) - start, 0)
        starts.append(start)
        kept.append(inside)
        before = min(max(low, 0), n + low + high)  # all may be cut off, and some of what is put before
        around.append((before, n + low + high - before - inside))
    return x.of(build.pad(build.slices(node, starts, [1] * len(starts), kept), around, value))


def count(extent: int, kernel: int, stride: int, dilation: int) -> int:
    """How many windows lie within so many elements, of which each spans ``dilation·(kernel - 1) + 1``."""
    return max((extent - dilation * (kernel - 1) - 1) // stride + 1, 0)


def windows(
    x: Images, counts: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Node:
    """The images with their axes of space walked by the windows' positions, and new last axes for places in a window.

    Axes of space in which windows have extent 1 have no such axis.
    """
    shape, steps = list(x.node.shape), list(row_major(x.node.shape))
    long = [i for i, n in enumerate(kernel) if n != 1]
    inner = [steps[x.spatial[i]] * dilation[i] for i in long]
    for axis, extent, step in zip(x.spatial, counts, stride, strict=True):
        shape[axis] = extent
        steps[axis] *= step
    return build.view(x.node, views.strided([*shape, *(kernel[i] for i in long)], [*steps, *inner]), "windows")

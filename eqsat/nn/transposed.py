"""Transposed convolutions: what takes the result of a convolution back to the shape of its input.

    out[n, m, stride·i - padding + dilation·r] += x[n, c, i] · w[c, m, r]

Position ``stride·j + f`` of the result has terms of ``r = stride·t + f`` only, so the kernel is cut into phases ``f``
of ``t``, and all phases are one convolution of the input with stride 1, whose results lie side by side (Shi et al.,
Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural Network, 2016). No
zeros are multiplied but those that fill up the kernel's last rows, or lie between its elements where it is dilated too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eqsat.frontends.shapes import flip_node
from eqsat.frontends.trace import traceable
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.nn.convolution import biased, check_weight, contracted, operands
from eqsat.nn.images import Images, Ints, images, misfit, misuse, per_axis
from eqsat.nn.windows import extended

__all__ = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


def _spread(node: Node, axis: int, step: int) -> Node:
    """With ``step - 1`` zeros between neighbours along an axis."""
    n = node.shape[axis]
    column = build.expand_dims(node, (axis + 1,))
    padded = build.pad(column, [(0, step - 1 if a == axis + 1 else 0) for a in range(column.type.ndim)])
    joined = build.reshape(padded, (*node.shape[:axis], n * step, *node.shape[axis + 1 :]))
    return build.take_range(joined, axis, 0, n * step - step + 1)


def _phases(weight: Node, steps: Sequence[int]) -> Node:
    """Weights (m, c, kernel…) as (m, c, t…, f…), t in descending order; no axis f where the step is 1."""
    rank = len(steps)
    rows = [-(-weight.shape[a + 2] // s) for a, s in enumerate(steps)]
    filled = build.pad(
        weight, [(0, 0)] * 2 + [(0, n * s - k) for n, s, k in zip(rows, steps, weight.shape[2:], strict=True)]
    )
    cut = build.reshape(filled, (*weight.shape[:2], *(n for pair in zip(rows, steps, strict=True) for n in pair)))
    order = [0, 1, *range(2, 2 * rank + 2, 2), *(2 * a + 3 for a in range(rank) if steps[a] != 1)]
    unit = [2 * a + 3 for a in range(rank) if steps[a] == 1]
    kept = [axis for axis in range(2 * rank + 2) if axis not in unit]
    dropped = build.reshape(cut, [cut.shape[axis] for axis in kept])
    return flip_node(build.transpose(dropped, [kept.index(axis) for axis in order]), tuple(range(2, rank + 2)))


def _interleaved(x: Images, counts: Sequence[int], steps: Sequence[int], node: Node) -> Images:
    """Results (…, j, …, f…) as images in which position ``step·j + f`` follows ``step·j + f - 1``."""
    ndim = x.node.type.ndim
    long = [i for i, s in enumerate(steps) if s != 1]
    order: list[int] = []
    for axis in range(ndim):
        order.append(axis)
        if axis in x.spatial and x.spatial.index(axis) in long:
            order.append(ndim + long.index(x.spatial.index(axis)))
    extents = [n * s for n, s in zip(counts, steps, strict=True)]
    return x.of(build.reshape(build.transpose(node, order), Images(node, x.channel, x.spatial).resized(extents)[:ndim]))


def _transposed(
    name: str, rank: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any,
    groups: Any, dilation: Any, layout: str | None,
) -> TracedArray:  # fmt: skip
    node, w, b = operands(name, input, weight, bias)
    x = images(name, node, layout, rank)
    check_weight(name, w, rank, "in_channels, out_channels / groups")
    (parts,) = per_axis(name, "groups", groups, 1, 1)
    steps, apart = per_axis(name, "stride", stride, rank, 1), per_axis(name, "dilation", dilation, rank, 1)
    cut, more = per_axis(name, "padding", padding, rank, 0), per_axis(name, "output_padding", output_padding, rank, 0)
    if x.channels != w.shape[0]:
        misfit(f"{name}: input {node.shape} has {x.channels} channels, weight {w.shape} takes {w.shape[0]}")
    if x.channels % parts:
        misfit(f"{name}: groups={parts} does not divide the {x.channels} channels of input {node.shape}")
    if any(extra >= max(s, d) for extra, s, d in zip(more, steps, apart, strict=True)):
        misuse(f"{name}: output_padding {more} must be less than stride {steps} or dilation {apart}")
    if 0 in x.extents:
        misfit(f"{name}: input {node.shape} has an axis of space without elements")
    spans = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], apart, strict=True)]
    sizes = [
        (n - 1) * s + span - 2 * p + extra
        for n, s, span, p, extra in zip(x.extents, steps, spans, cut, more, strict=True)
    ]
    if any(n < 1 for n in sizes):
        misfit(
            f"{name}: input {node.shape} and kernel {w.shape[2:]} with stride {steps}, dilation {apart} and padding "
            f"{cut} leave a result of {tuple(sizes)}"
        )
    # (groups · m, c, kernel…), which a convolution takes.
    grouped = build.reshape(w, (parts, w.shape[0] // parts, *w.shape[1:]))
    turned = build.transpose(grouped, [0, 2, 1, *range(3, rank + 3)])
    factor = build.reshape(turned, (parts * w.shape[1], w.shape[0] // parts, *w.shape[2:]))
    inner = list(apart)  # how far apart the input's elements are that meet in one element of the result
    for i, (s, d) in enumerate(zip(steps, apart, strict=True)):
        if s != 1 and d != 1:
            factor, inner[i] = _spread(factor, i + 2, d), 1
    phases = _phases(factor, steps)
    # Rows `first` to `last` of phases hold what is asked for; row j reads elements j - inner·t.
    first = [p // s for p, s in zip(cut, steps, strict=True)]
    last = [(p + n - 1) // s for p, n, s in zip(cut, sizes, steps, strict=True)]
    reach = [d * (t - 1) for t, d in zip(phases.shape[2 : rank + 2], inner, strict=True)]
    seen = extended(x, [(r - f, e - n + 1) for r, f, e, n in zip(reach, first, last, x.extents, strict=True)])
    counts = [e - f + 1 for f, e in zip(first, last, strict=True)]
    rows = contracted(name, seen, phases, parts, counts, [1] * rank, inner)
    whole = _interleaved(seen, counts, steps, rows)
    starts = [p - f * s for p, f, s in zip(cut, first, steps, strict=True)]
    ends = [start + n - m for start, n, m in zip(starts, sizes, whole.extents, strict=True)]
    return biased(name, extended(whole, [(-start, end) for start, end in zip(starts, ends, strict=True)]), b)


@traceable
def conv_transpose1d(
    input: Any, weight: Any, bias: Any = None, stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1, *, layout: str = "NCL",
) -> Any:  # fmt: skip
    """:func:`conv_transpose2d` along one axis: input (N, C, L) or (C, L), weight (C, out / groups, kernel)."""
    return _transposed(
        "conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation, layout
    )


@traceable
def conv_transpose2d(
    input: Any, weight: Any, bias: Any = None, stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1, *, layout: str = "NCHW",
) -> Any:  # fmt: skip
    """The gradient of :func:`conv2d` with respect to its input: every element is spread over a window of the result.

    Input (N, C, H, W) or (C, H, W), weight (C, out / groups, kernel, kernel). The result has
    ``(extent - 1)·stride - 2·padding + dilation·(kernel - 1) + output_padding + 1`` elements along each axis:
    ``padding`` is cut off, ``output_padding``, which is less than the stride or the dilation, is added at the end.
    Raises ``ShapeError`` where shapes or groups do not fit or nothing is left, ``OptionError`` for other numbers.
    """
    return _transposed(
        "conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation, layout
    )


@traceable
def conv_transpose3d(
    input: Any, weight: Any, bias: Any = None, stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1, *, layout: str = "NCDHW",
) -> Any:  # fmt: skip
    """:func:`conv_transpose2d` along three axes: input (N, C, D, H, W), weight (C, out / groups, kernel…)."""
    return _transposed(
        "conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups, dilation, layout
    )

"""Transposed convolutions: what takes the result of a convolution back to the shape of its input.

    out[n, m, stride·i - padding + dilation·r] += x[n, c, i] · w[c, m, r]

Position ``stride·j + f`` of the result has terms of ``r = stride·t + f`` only, so the kernel is cut into phases ``f``
of ``t``, and phases of as many ``t`` are one convolution of the input with stride 1, whose results lie side by side
(Shi et al., Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural
Network, 2016); where these are two or three, each phase is one of its own, which stores whole rows. No zeros are
multiplied: they would be NaN where they meet an infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eqsat.frontends.trace import traceable
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.types import row_major
from eqsat.nn.convolution import biased, check_weight, contracted, operands
from eqsat.nn.images import Images, Ints, images, misfit, misuse, per_axis
from eqsat.nn.windows import extended

__all__ = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


LONG_RUN = 4
"""Phases from which they are computed together: results lie side by side in runs of so many."""
WASTE = 1.1
"""Times the rows that are needed, from where phases are counted from the first result on: this makes more parts."""


@dataclass(frozen=True)
class _Phases:
    """Neighbouring phases of one axis, of as many terms each.

    Term ``t`` of phase ``first + f`` is the kernel's element ``element + step·t + f`` times, in row ``j``, the input's
    element ``j - delay - apart·t``.
    """

    first: int
    count: int
    terms: int
    element: int = 0
    step: int = 1
    delay: int = 0
    apart: int = 1

    @property
    def reach(self) -> int:
        return self.apart * (self.terms - 1)


def _phases(kernel: int, stride: int, dilation: int) -> list[_Phases]:
    """All phases of an axis, in order."""
    if stride == 1:
        return [_Phases(0, 1, kernel, apart=dilation)]
    if dilation == 1:
        least, more = divmod(kernel, stride)
        found = [_Phases(0, more, least + 1, 0, stride), _Phases(more, stride - more, least, more, stride)]
        return [phases for phases in found if phases.count]
    common = math.gcd(stride, dilation)
    step = stride // common
    single = {}
    for element in range(step):
        delay, first = divmod(dilation * element, stride)
        terms = len(range(element, kernel, step))
        single[first] = _Phases(first, 1, terms, element, step, delay, dilation // common)
    return [single.get(first, _Phases(first, 1, 0)) for first in range(stride)]


def _from(phases: Sequence[_Phases], stride: int, padding: int) -> list[_Phases]:
    """The same phases, counted from position ``padding`` on: those before it are of the row before."""
    rows, cut = divmod(padding, stride)
    found = []
    for p in phases:
        before = min(max(cut - p.first, 0), p.count)
        if before:
            found.append(replace(p, first=p.first + stride - cut, count=before, delay=p.delay - rows - 1))
        if before < p.count:
            first, element = p.first + before - cut, p.element + before
            found.append(replace(p, first=first, count=p.count - before, element=element, delay=p.delay - rows))
    return sorted(found, key=lambda p: p.first)


def _apart(phases: Sequence[_Phases]) -> list[_Phases]:
    """The same phases, each one alone."""
    return [replace(p, first=p.first + i, count=1, element=p.element + i) for p in phases for i in range(p.count)]


def _kernel(weight: Node, phases: Sequence[_Phases], steps: Sequence[int]) -> Node:
    """Weights (m, c, kernel…) as (m, c, t…, f…), t in descending order; no axis f where the step is 1."""
    strides = row_major(weight.shape)
    offset = sum((p.element + p.step * (p.terms - 1)) * s for p, s in zip(phases, strides[2:], strict=True))
    shape = [*weight.shape[:2], *(p.terms for p in phases)]
    walk = [*strides[:2], *(-p.step * s for p, s in zip(phases, strides[2:], strict=True))]
    for p, stride, step in zip(phases, strides[2:], steps, strict=True):
        if step != 1:
            shape.append(p.count)
            walk.append(stride)
    return build.view(weight, views.strided(shape, walk, offset))


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
    along = [_phases(*given) for given in zip(w.shape[2:], steps, apart, strict=True)]
    long = [i for i, step in enumerate(steps) if step != 1]
    for axis, (step, p, n) in enumerate(zip(steps, cut, sizes, strict=True)):
        if 1 < step < LONG_RUN:
            along[axis] = _apart(along[axis])
        if step < LONG_RUN or (p + n - 1) // step - p // step + 1 > WASTE * -(-n // step):
            along[axis], cut = _from(along[axis], step, p), (*cut[:axis], 0, *cut[axis + 1 :])
    # Rows `first` to `last` of phases hold what is asked for.
    first = [p // s for p, s in zip(cut, steps, strict=True)]
    last = [(p + n - 1) // s for p, n, s in zip(cut, sizes, steps, strict=True)]
    counts = [e - f + 1 for f, e in zip(first, last, strict=True)]

    def rows(chosen: tuple[_Phases, ...]) -> Node:
        """The phases chosen along the first axes, and all of the others."""
        if len(chosen) < rank:
            found = [rows((*chosen, phases)) for phases in along[len(chosen)]]
            return found[0] if len(found) == 1 else build.concat(found, x.node.type.ndim + long.index(len(chosen)))
        if not all(phases.terms for phases in chosen):
            shape = x.resized(counts)
            shape[x.channel] = factor.shape[0]
            return build.broadcast_to(build.scalar(0, node), [*shape, *(chosen[i].count for i in long)])
        widths = [
            (p.delay + p.reach - f, e - p.delay - n + 1)
            for p, f, e, n in zip(chosen, first, last, x.extents, strict=True)
        ]
        kernel, inner = _kernel(factor, chosen, steps), [p.apart for p in chosen]
        return contracted(name, extended(x, widths), kernel, parts, counts, [1] * rank, inner)

    whole = _interleaved(x, counts, steps, rows(()))
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

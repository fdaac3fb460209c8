"""Convolutions: each is one contraction of windows with weights.

    out[n, g, m, p…] = Σ_{c, r…} x[n, g, c, stride·p + dilation·r…] · w[g, m, c, r…]

``x`` are the padded images with their channels cut into groups; axes of the result lie as the layout says. There is no
axis g without groups, and no r where the kernel has extent 1. So there is one form for rules to match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eqsat.errors import UnsupportedDTypeError
from eqsat.frontends.convert import lift, promote
from eqsat.frontends.source import user_line
from eqsat.frontends.trace import traceable
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import LINE, Node
from eqsat.ir.spec import make_spec
from eqsat.ir.types import bool_
from eqsat.nn.images import Images, Ints, images, misfit, misuse, per_axis
from eqsat.nn.windows import count, extended, windows

__all__ = ["Padding", "conv1d", "conv2d", "conv3d"]

Padding = Ints | Sequence[tuple[int, int]] | str
"""Zeros around images: a number, one for each axis of space, a pair before and after for each, 'same' or 'valid'."""


def operands(name: str, input: Any, weight: Any, bias: Any) -> tuple[Node, Node, Node | None]:
    """Arrays in their common type; a bias of None stays it."""
    if input is None or weight is None:
        misuse(f"{name}: input and weight must be arrays, not None")
    dtype = promote(*(value for value in (input, weight, bias) if value is not None))
    if dtype == bool_:
        raise UnsupportedDTypeError(f"{name} of bool: cast before with x.astype(…)", LINE.get() or user_line())
    return lift(input, dtype), lift(weight, dtype), None if bias is None else lift(bias, dtype)


def contracted(
    name: str, x: Images, weight: Node, groups: int, counts: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int],
) -> Node:  # fmt: skip
    """Windows of ``x`` contracted with weights of axes (channels of the result, channels of a group, kernel…, own…).

    Axes that are the weights' own come out last.
    """
    rank = len(x.spatial)
    width, depth, kernel, own = weight.shape[0], weight.shape[1], weight.shape[2 : rank + 2], weight.shape[rank + 2 :]
    at = x.channel
    split = [groups] if groups != 1 else []
    cut = build.reshape(x.node, (*x.node.shape[:at], *split, depth, *x.node.shape[at + 1 :]))
    places = tuple(axis + len(split) * (axis > at) for axis in x.spatial)
    seen = windows(Images(cut, at + len(split), places), counts, kernel, stride, dilation)
    long = [i for i in range(rank) if kernel[i] != 1]
    factor = build.reshape(weight, (*split, width // groups, depth, *(kernel[i] for i in long), *own))
    axes: list[object] = list(range(x.node.type.ndim))
    group: list[object] = ["g"] if split else []
    inner: list[object] = [f"r{i}" for i in long]
    last: list[object] = [f"f{i}" for i in range(len(own))]
    spec = make_spec(
        [*axes[:at], *group, "c", *axes[at + 1 :], *inner],
        [*group, "m", "c", *inner, *last],
        [*axes[:at], *group, "m", *axes[at + 1 :], *last],
    )
    shape = x.of(x.node).resized(counts)
    shape[at] = width
    return build.reshape(build.contract(spec, seen, factor, name), (*shape, *own))


def biased(name: str, x: Images, bias: Node | None) -> TracedArray:
    """Images with an element of ``bias`` added to each channel."""
    if bias is None:
        return TracedArray(x.node)
    if bias.shape != (x.channels,):
        misfit(f"{name}: bias must have shape ({x.channels},) for {x.channels} channels, not {bias.shape}")
    return TracedArray(call("add", x.node, x.along_channels(bias)))


def check_weight(name: str, weight: Node, rank: int, axes: str) -> None:
    """Refuse weights of another rank, and kernels of no extent."""
    if weight.type.ndim != rank + 2:
        misfit(f"{name}: weight must have axes ({axes}, kernel…), {rank + 2} in all, not the shape {weight.shape}")
    if 0 in weight.shape:
        misfit(f"{name}: weight of shape {weight.shape} is empty: every extent must be at least 1")


def _widths(
    name: str, padding: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """How much is put before and after each axis of space."""
    rank = len(kernel)
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            misuse(f"{name}: padding must be 'same', 'valid' or numbers, not {padding!r}")
        if padding == "valid":
            return [(0, 0)] * rank
        if any(s != 1 for s in stride):
            misuse(f"{name}: padding='same' is for stride 1, not {tuple(stride)}: give widths, as ((before, after), …)")
        spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(span // 2, span - span // 2) for span in spans]
    if isinstance(padding, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in padding):
        if len(padding) != rank or not all(isinstance(p, (tuple, list)) and len(p) == 2 for p in padding):
            misuse(f"{name}: padding must have a pair (before, after) for each of {rank} axes, not {padding!r}")
        befores, afters = (per_axis(name, "padding", [p[i] for p in padding], rank, 0) for i in (0, 1))
        return list(zip(befores, afters, strict=True))
    return [(p, p) for p in per_axis(name, "padding", padding, rank, 0)]


def convolution(
    name: str, rank: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any,
    layout: str | None,
) -> TracedArray:  # fmt: skip
    """What the functions below are, along ``rank`` axes of space; ``name``: of the function, for errors."""
    node, w, b = operands(name, input, weight, bias)
    x = images(name, node, layout, rank)
    check_weight(name, w, rank, "out_channels, in_channels / groups")
    (parts,) = per_axis(name, "groups", groups, 1, 1)
    width, depth, kernel = w.shape[0], w.shape[1], w.shape[2:]
    if width % parts:
        misfit(f"{name}: groups={parts} does not divide the {width} channels of the result (weight {w.shape})")
    if x.channels != depth * parts:
        misfit(
            f"{name}: input {node.shape} has {x.channels} channels, weight {w.shape} with groups={parts} takes "
            f"{depth} · {parts} = {depth * parts}"
        )
    steps, apart = per_axis(name, "stride", stride, rank, 1), per_axis(name, "dilation", dilation, rank, 1)
    around = _widths(name, padding, kernel, steps, apart)
    whole = extended(x, around)
    fits = [d * (k - 1) + 1 for k, d in zip(kernel, apart, strict=True)]
    if any(n < m for n, m in zip(whole.extents, fits, strict=True)):
        misfit(
            f"{name}: the kernel {kernel} with dilation {apart} spans {tuple(fits)}, more than the padded input "
            f"{whole.extents} (input {node.shape}, padding {tuple(around)})"
        )
    counts = [count(n, k, s, d) for n, k, s, d in zip(whole.extents, kernel, steps, apart, strict=True)]
    return biased(name, x.of(contracted(name, whole, w, parts, counts, steps, apart)), b)


@traceable
def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Ints = 1, padding: Padding = 0, dilation: Ints = 1,
    groups: int = 1, *, layout: str = "NCL",
) -> Any:  # fmt: skip
    """:func:`conv2d` along one axis: input (N, C, L) or (C, L), weight (out, C / groups, kernel)."""
    return convolution("conv1d", 1, input, weight, bias, stride, padding, dilation, groups, layout)


@traceable
def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Ints = 1, padding: Padding = 0, dilation: Ints = 1,
    groups: int = 1, *, layout: str = "NCHW",
) -> Any:  # fmt: skip
    """``out[n, m, p, q] = bias[m] + Σ input[n, c, stride·p + dilation·r, stride·q + dilation·s] · weight[m, c, r, s]``.

    The input (N, C, H, W) or (C, H, W) is padded with zeros first. Weights are (out, C / groups, kernel, kernel) in
    every layout: channels of the result come in ``groups`` equal parts, each of which sees its part of the input's;
    with ``groups`` C it is a depthwise convolution. With ``layout="NHWC"`` channels are the last axis of input and
    result. The result has ``(extent + padding - dilation·(kernel - 1) - 1) // stride + 1`` elements along each axis.

    ``padding``: as PyTorch's (a number, one for each axis, 'same' or 'valid'), or a pair, before and after, for each
    axis. Integers stay integers. Raises ``ShapeError`` where shapes or groups do not fit or the padded input is smaller
    than the kernel, ``OptionError`` for numbers that mean nothing.
    """
    return convolution("conv2d", 2, input, weight, bias, stride, padding, dilation, groups, layout)


@traceable
def conv3d(
    input: Any, weight: Any, bias: Any = None, stride: Ints = 1, padding: Padding = 0, dilation: Ints = 1,
    groups: int = 1, *, layout: str = "NCDHW",
) -> Any:  # fmt: skip
    """:func:`conv2d` along three axes: input (N, C, D, H, W), weight (out, C / groups, kernel, kernel, kernel)."""
    return convolution("conv3d", 3, input, weight, bias, stride, padding, dilation, groups, layout)

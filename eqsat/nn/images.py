"""Images: arrays with an axis of channels and one to three of space, and what is said for each axis of space."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from eqsat.errors import EqsatError, OptionError, ShapeError, UnsupportedDTypeError
from eqsat.frontends.convert import lift
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import bool_, float32, float64

Ints = int | Sequence[int]
"""One number for all axes of space, or one for each."""

LAYOUTS = {1: ("NCL", "NLC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
"""Orders of axes of images with so many axes of space: channels first, which is PyTorch's, and channels last."""


def misfit(message: str) -> NoReturn:
    """Refuse shapes or extents."""
    raise ShapeError(message, LINE.get() or user_line())


def misuse(message: str) -> NoReturn:
    """Refuse the value of an option."""
    raise OptionError(message, LINE.get() or user_line())


@dataclass(frozen=True)
class Images:
    """An array of images: which of its axes is that of channels, and which are those of space."""

    node: Node
    channel: int
    spatial: tuple[int, ...]

    @property
    def channels(self) -> int:
        return self.node.shape[self.channel]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(self.node.shape[axis] for axis in self.spatial)

    def of(self, node: Node) -> Images:
        """Other images with the same order of axes."""
        return replace(self, node=node)

    def along_channels(self, row: Node) -> Node:
        """A row with an element for each channel, shaped to broadcast with the images."""
        axes = range(self.node.type.ndim)
        return build.reshape(row, [row.type.size if axis == self.channel else 1 for axis in axes])

    def over_space(self, widths: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Widths of the axes of space as widths of all axes."""
        given = dict(zip(self.spatial, widths, strict=True))
        return [given.get(axis, (0, 0)) for axis in range(self.node.type.ndim)]

    def resized(self, extents: Sequence[int]) -> list[int]:
        """The shape of images of these extents of space."""
        shape = list(self.node.shape)
        for axis, extent in zip(self.spatial, extents, strict=True):
            shape[axis] = extent
        return shape


def images(name: str, node: Node, layout: str | None, rank: int | None = None) -> Images:
    """An array as images with ``rank`` axes of space (None: as many as its shape or the layout says).

    ``layout`` None is PyTorch's: channels first. Without an axis of batches it is one image. Without ``rank``, and with
    no layout, the axis of batches is there, and there may be any number of axes of space.
    """
    ndim = node.type.ndim
    if rank is None and layout is None:
        if ndim < 2:
            misfit(f"{name}: images have axes of batches and channels at least, not the shape {node.shape}")
        return Images(node, 1, tuple(range(2, ndim)))
    ranks = LAYOUTS if rank is None else (rank,)
    known = [given for n in ranks for given in LAYOUTS[n]]
    if layout is None:
        assert rank is not None
        layout = LAYOUTS[rank][0]
    if layout not in known:
        misuse(f"{name}: layout must be one of {', '.join(map(repr, known))}, not {layout!r}")
    if ndim not in (len(layout), len(layout) - 1):
        axes = f"{', '.join(layout)} or {', '.join(layout[1:])}"
        misfit(f"{name}: images have the axes {axes}, not the shape {node.shape}")
    names = layout[len(layout) - ndim :]
    channel = names.index("C")
    return Images(node, channel, tuple(axis for axis in range(ndim) if names[axis] not in "NC"))


def per_axis(name: str, option: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """An option's value for each axis of space."""
    try:
        given = [operator.index(v) for v in value] if isinstance(value, (tuple, list)) else [operator.index(value)]
    except TypeError as error:
        if isinstance(error, EqsatError):
            raise
        misuse(f"{name}: {option} must be an integer, or one for each of {rank} axes, not {value!r}")
    if len(given) not in (1, rank):
        misuse(f"{name}: {option}={value!r} has {len(given)} numbers for {rank} axes of space")
    if any(v < least for v in given):
        misuse(f"{name}: {option} must be at least {least}, not {value!r}")
    return tuple(given) if len(given) == rank else (given[0],) * rank


def numbers(name: str, x: Any) -> Node:
    """The node of an array of real numbers."""
    node = lift(x)
    if node.dtype == bool_ or node.dtype.kind == "complex":
        raise UnsupportedDTypeError(f"{name} of {node.dtype}: cast before with x.astype(…)", LINE.get() or user_line())
    return node


def floats(name: str, x: Any) -> Node:
    """The node of an array of real numbers, of integers in float64, of 16-bit floats in float32."""
    node = numbers(name, x)
    if node.dtype.is_half:
        return build.cast(node, float32)
    return node if node.dtype.is_float else build.cast(node, float64)


def narrowed(node: Node, x: Any) -> TracedArray:
    """What was computed of ``floats(x)``, rounded to the type of an ``x`` of 16-bit floats."""
    given = lift(x).dtype
    return TracedArray(build.cast(node, given) if given.is_half else node)

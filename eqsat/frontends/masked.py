"""``where=`` of reductions: elements elsewhere are as if they were not there."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.errors import ShapeError, UnsupportedDTypeError
from eqsat.frontends.convert import lift
from eqsat.ir import build
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import bool_, int64


def is_mask(where: Any) -> bool:
    """Whether ``where=`` leaves elements out."""
    return where is not np._NoValue and where is not True


def mask_like(node: Node, where: Any) -> Node:
    """The mask in the shape of the array that is reduced."""
    mask = lift(where)
    if mask.dtype != bool_:
        raise UnsupportedDTypeError(f"where= must be a mask of bool, not {mask.dtype}", LINE.get())
    try:
        return build.broadcast_to(mask, node.shape)
    except ValueError:
        raise ShapeError(f"where= of shape {mask.shape} does not fit an array of {node.shape}", LINE.get()) from None


def under_mask(node: Node, where: Any, value: Any) -> Node:
    """The array with ``value`` where a mask does not hold."""
    if not is_mask(where):
        return node
    return call("where", mask_like(node, where), node, value if isinstance(value, Node) else scalar(value, node))


def counts(node: Node, where: Any, axes: tuple[int, ...]) -> Node:
    """How many elements the mask leaves along some axes, which are dropped."""
    return build.reduce("reduce_sum", build.cast(mask_like(node, where), int64), axes)

"""Running results along an axis, by steps that double: no element waits for the one before it."""

from __future__ import annotations

import numpy as np

from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node

RUNNING: dict[np.ufunc, str] = {np.maximum: "maximum", np.minimum: "minimum"}
"""Associative in every type, NaN among the values."""

LONGEST, MOST = 1024, 1 << 14
"""Elements of a row, and of the array, at most: of more, steps that double take about what NumPy's walk takes."""


def short(x: Node, axis: int) -> bool:
    """Whether steps that double are for such an array."""
    return x.shape[axis] <= LONGEST and x.type.size <= MOST


def running(op: str, x: Node, axis: int) -> Node:
    """Each element combined with all before it along an axis: step by step with 1, 2, 4, … of them.

    As in Hillis & Steele, "Data parallel algorithms" (1986).
    """
    size, known = x.shape[axis], 1
    while known < size:
        before = build.take_range(x, axis, 0, size - known)
        later = call(op, before, build.take_range(x, axis, known, size))
        x = build.concat([build.take_range(x, axis, 0, known), later], axis)
        known *= 2
    return x

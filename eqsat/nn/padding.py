"""Padding by PyTorch's names: of the last axes, from the last one on."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.frontends.convert import is_weak, lift
from eqsat.frontends.registry import call as np_call
from eqsat.frontends.trace import traceable
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.nn.images import misfit, misuse

__all__ = ["pad"]

_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge", "circular": "wrap"}
"""What NumPy calls PyTorch's modes."""


@traceable
def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """An array with ``pad[0]`` elements before its last axis and ``pad[1]`` after it, ``pad[2]`` before the next, …

    ``mode``: 'constant' (``value``, None: 0), 'reflect' (mirrored, without the outermost element, of less than the
    extent), 'replicate' (the outermost element), 'circular' (around, of at most the extent). Below 0, they are cut off.
    Raises ``ShapeError`` where there are more pairs than axes, or more padding than there is to mirror or to repeat.
    """
    if mode not in _MODES:
        misuse(f"pad: mode must be one of {', '.join(map(repr, _MODES))}, not {mode!r}")
    node = lift(input)
    try:
        given = [operator.index(n) for n in pad]
    except TypeError:
        misuse(f"pad: pad must be a sequence of integers, not {pad!r}")
    if len(given) % 2 or len(given) > 2 * node.type.ndim:
        misfit(f"pad: pad={tuple(given)} must have a pair for each of the last axes of input {node.shape}")
    if value is not None and (mode != "constant" or not (is_weak(value) or isinstance(value, bool))):
        misuse(f"pad: value={value!r} must be a Python number, and is of mode='constant'")
    pairs = [(0, 0)] * (node.type.ndim - len(given) // 2) + list(zip(given[::2], given[1::2], strict=True))[::-1]
    if mode == "circular":  # of what is left; the other modes give the same before and after cutting
        node, pairs = _cut(node, pairs), [(max(low, 0), max(high, 0)) for low, high in pairs]
    for axis, (n, pair) in enumerate(zip(node.shape, pairs, strict=True)):
        most = {"reflect": max(n - 1, 0), "circular": n}.get(mode, max(*pair, 0) if n or mode == "constant" else 0)
        if max(pair) > most:
            misfit(f"pad: mode={mode!r} puts at most {most} elements beside axis {axis} of {node.shape}, not {pair}")
    options = {"constant_values": 0 if value is None else value} if mode == "constant" else {}
    added = [(max(low, 0), max(high, 0)) for low, high in pairs]
    wide = lift(np_call(np.pad, TracedArray(node), added, mode=_MODES[mode], **options)) if np.any(added) else node
    return TracedArray(_cut(wide, pairs))


def _cut(node: Node, pairs: Sequence[tuple[int, int]]) -> Node:
    """Without as many elements at the ends of each axis as a pair is below 0."""
    starts = [max(-low, 0) for low, _ in pairs]
    sizes = [n - start + min(high, 0) for n, start, (_, high) in zip(node.shape, starts, pairs, strict=True)]
    if any(size < 0 for size in sizes):
        misfit(f"pad: {tuple(pairs)} cuts more off the axes of {node.shape} than there is")
    return build.slices(node, starts, [1] * len(starts), sizes)

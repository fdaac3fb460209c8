"""Padding: constants, edges, mirrored and wrapped elements, ramps and statistics of the ends."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.errors import UnsupportedOpError
from eqsat.frontends.convert import holds_traced, normalize_axis, traced
from eqsat.frontends.registry import implements
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build, complexes
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import float64


@implements(np.pad)
def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> TracedArray:
    x = traced(array)
    node = x.node
    if isinstance(pad_width, dict):
        table = [(0, 0)] * x.ndim
        for axis, width in pad_width.items():
            low, high = np.broadcast_to(np.asarray(width), (2,)).tolist()
            table[normalize_axis(axis, x.ndim)] = (low, high)
    else:
        table = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    widths = [(operator.index(low), operator.index(high)) for low, high in table]
    if any(low < 0 or high < 0 for low, high in widths):
        raise ValueError("index can't contain negative values")
    if mode == "constant":
        values = kwargs.pop("constant_values", 0)
        if not kwargs:
            return TracedArray(pad_constant(node, widths, values))
    if mode in STATISTICS and x.size:
        return _by_ends(x, widths, mode, kwargs)
    if kwargs.get("reflect_type") == "even":
        del kwargs["reflect_type"]
    if mode not in ("edge", "reflect", "symmetric", "wrap", "empty") or kwargs:
        raise UnsupportedOpError(
            f"np.pad(mode={mode!r}) with {sorted(kwargs)} is not supported: use 'constant', 'edge', 'reflect', "
            "'symmetric' or 'wrap'",
            LINE.get(),
        )
    if mode == "empty":
        return TracedArray(build.pad(node, widths, 0))
    for axis, (low, high) in enumerate(widths):
        if low or high:
            picks = np.pad(np.arange(node.shape[axis]), (low, high), mode)  # type: ignore[call-overload]
            node = build.gather(node, build.const(picks), axis)
    return TracedArray(node)


def pad_constant(node: Node, widths: list[tuple[int, int]], values: Any) -> Node:
    """``node`` with ``widths`` elements of ``values`` before and after each axis, cast to its type."""
    if isinstance(values, TracedArray):
        raise UnsupportedOpError("np.pad with a traced value: join with np.concatenate", LINE.get())
    table = np.broadcast_to(np.asarray(values), (len(widths), 2)).astype(node.dtype.numpy)
    # nan and -0.0 are not told apart by equality, which the pad operator's attributes are compared by.
    parts = complexes.as_real(table)
    odd = (np.isnan(parts) | ((parts == 0) & np.signbit(parts))).any()
    if len(set(table.reshape(-1).tolist())) <= 1 and not odd:
        return build.pad(node, widths, table.reshape(-1)[0].item() if table.size else 0)
    for axis, (low, high) in enumerate(widths):
        for amount, value, front in ((low, table[axis, 0], True), (high, table[axis, 1], False)):
            if amount:
                shape = (*node.shape[:axis], amount, *node.shape[axis + 1 :])
                block = build.broadcast_to(build.scalar(value, node), shape)
                node = build.concat([block, node] if front else [node, block], axis)
    return node


def _by_ends(x: TracedArray, widths: list[tuple[int, int]], mode: str, options: dict[str, Any]) -> TracedArray:
    """``np.pad`` with what is computed of the ends of each axis."""
    node = x.node
    given = options.pop("stat_length" if mode in _ENDS else "end_values", None if mode in _ENDS else 0)
    if options or holds_traced(given):
        raise UnsupportedOpError(f"np.pad(mode={mode!r}) with {sorted(options)}", LINE.get())
    table = np.broadcast_to(np.asarray(given), (x.ndim, 2))
    for axis, ends in enumerate(widths):
        size, parts = node.shape[axis], [node]
        for last, width in enumerate(ends):
            if not width:
                continue
            if mode in _ENDS:
                length = size if table[axis, last] is None else min(int(table[axis, last]), size)
                chunk = build.take_range(node, axis, size - length if last else 0, size if last else length)
                block = build.broadcast_to(_ENDS[mode](chunk, axis), _widened(node, axis, width))
            else:
                edge = build.take_range(node, axis, size - 1 if last else 0, size if last else 1)
                block = _ramp(edge, axis, width, table[axis, last], bool(last))
            parts = [*parts, block] if last else [block, *parts]
        node = build.concat(parts, axis)
    return TracedArray(node)


def _widened(node: Node, axis: int, width: int) -> tuple[int, ...]:
    return (*node.shape[:axis], width, *node.shape[axis + 1 :])


def _ramp(edge: Node, axis: int, width: int, end: Any, after: bool) -> Node:
    """From an end value to the edge, as ``np.linspace`` without its last point."""
    shape = [width if i == axis else 1 for i in range(edge.type.ndim)]
    steps = np.arange(width)[::-1] if after else np.arange(width)
    place = build.const(steps.reshape(shape).astype(np.float64))
    start = scalar(float(end), float64)
    gap = call("div", call("sub", build.cast(edge, float64), start), scalar(float(width), float64))
    ramp = call("add", call("mul", place, gap), start)
    return build.cast(ramp if edge.dtype.is_float else call("floor", ramp), edge.dtype)


def _mean_end(node: Node, axis: int) -> Node:
    mean = TracedArray(node).mean(axis=axis, keepdims=True)
    return build.cast(mean.node if node.dtype.is_float else call("round", mean.node), node.dtype)


def _extreme(kind: str) -> Callable[[Node, int], Node]:
    return lambda node, axis: build.reduce(kind, node, (axis,), keepdims=True)


_ENDS: dict[str, Callable[[Node, int], Node]] = {
    "mean": _mean_end,
    "maximum": _extreme("reduce_max"),
    "minimum": _extreme("reduce_min"),
}
"""What fills the ends in ``np.pad``'s modes of statistics."""

STATISTICS = (*_ENDS, "linear_ramp")

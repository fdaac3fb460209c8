"""Positions of extremes that rounding cannot tell apart.

``argmax`` over values that nearly tie may answer with any of them. Noise on the reference shows some of the
answers; where many values tie (a saturated ``tanh``), no number of samples shows all. Here the value at the
position that was answered is looked up instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import Node
from eqsat.ir.table import OPS
from eqsat.verify.rounding import rounding_noise


def nearly_extreme(
    output: Node, ours: np.ndarray, bound: Mapping[Node, np.ndarray], factor: float, ulps: float
) -> np.ndarray | None:
    """Where ``ours`` names an element as extreme as rounding can tell, for an output that is a view of positions.

    None where ``output`` is no view of an ``argmax`` or ``argmin`` of computed floats. As extreme: no further from the
    extreme in float64 than ``factor`` times what noise does to the operand, plus ``ulps`` units in the last place of
    its greatest finite value. Lines with NaN or infinities have one answer, which is not excused here.
    """
    views, node = _below_views(output)
    if node.op not in ("argmax", "argmin"):
        return None
    assert isinstance(node.attrs, tuple)
    (operand,), (axis,) = node.inputs, node.attrs
    _, source = _below_views(operand)
    if not operand.dtype.is_float or source in bound or source.op == "const":
        return None  # nothing was rounded: of equals it is the first
    (values,) = evaluate_nodes([operand], bound, double=True)
    lines = np.moveaxis(np.asarray(values, np.float64), axis, -1).reshape(node.type.size, -1)
    if node.op == "argmin":
        lines = -lines
    shown = np.arange(node.type.size).reshape(node.type.shape)  # which line each element of the output is about
    for view in reversed(views):
        shown = OPS[view.op].reference([shown], view.attrs)
    valid = (ours >= 0) & (ours < lines.shape[1])
    finite = np.isfinite(lines)
    slack = factor * rounding_noise([operand], bound)[0]
    slack += ulps * float(np.finfo(operand.dtype.numpy).eps) * float(np.abs(lines[finite]).max(initial=0.0))
    named = lines[shown, np.where(valid, ours, 0)]
    settled = np.asarray(finite.all(axis=1))
    close: np.ndarray = valid & settled[shown] & (named >= lines.max(axis=1, initial=-np.inf)[shown] - slack)
    return close


def _below_views(node: Node) -> tuple[list[Node], Node]:
    """The views on top of a node, and what they are views of."""
    views: list[Node] = []
    while OPS[node.op].kind == "view":
        views.append(node)
        node = node.inputs[0]
    return views, node

"""Positions that rounding cannot tell apart.

``argmax`` over values that nearly tie may answer with any of them, and ``argsort`` may put them in any order. Noise on
the reference shows some of the answers; where many values tie (a saturated ``tanh``), no number of samples shows all.
Here the values at the positions that were answered are looked up instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import Node, topological
from eqsat.ir.table import OPS
from eqsat.ir.types import finfo
from eqsat.verify.rounding import jumps, rounding_noise


def nearly_right(
    output: Node, ours: np.ndarray, bound: Mapping[Node, np.ndarray], factor: float, ulps: float
) -> np.ndarray | None:
    """Where ``ours`` names an element as right as rounding can tell, for an output that is a view of positions.

    None where ``output`` is no view of an ``argmax``, ``argmin`` or ``argsort`` of floats. An element is as right as
    the extreme, or as the one of its rank, if its value in float64 is no further from that one's than ``factor`` times
    what noise does to the operand, plus ``ulps`` units in the last place of its greatest finite value. Of floats that
    are given nothing was rounded: only sorts that are not stable may put equal ones in another order. Of an ``argsort``
    no position may be named twice. An extreme that is NaN or infinite has one position.
    """
    views, node = _below_views(output)
    sorts = node.op.startswith("argsort")
    if not sorts and node.op not in ("argmax", "argmin"):
        return None
    (operand,) = node.inputs
    axis = node.attrs if sorts else node.attrs[0]  # type: ignore[index]
    assert isinstance(axis, int)
    _, source = _below_views(operand)
    if not operand.dtype.is_float:
        return None
    given = source in bound or source.op == "const"
    if given and node.op not in ("argsort", "argsort_heapsort"):
        return np.zeros(ours.shape, bool)
    (values,) = evaluate_nodes([operand], bound, double=True)
    count = operand.shape[axis]
    lines = np.moveaxis(np.asarray(values, np.float64), axis, -1).reshape(-1, count)
    if node.op == "argmin":
        lines = -lines
    # Which line each element of the output is about, and its rank in it.
    shape = [1 if a == axis else n for a, n in enumerate(operand.shape)]
    line = np.arange(len(lines)).reshape(shape)
    rank = np.arange(count).reshape([-1 if a == axis else 1 for a in range(operand.type.ndim)])
    if sorts:
        line, rank = np.broadcast_to(line, operand.shape), np.broadcast_to(rank, operand.shape)
    else:
        line = line.reshape(node.shape)
        rank = np.zeros_like(line)
    for view in reversed(views):
        line, rank = (OPS[view.op].reference([each], view.attrs) for each in (line, rank))
    valid = (ours >= 0) & (ours < count)
    finite = np.isfinite(lines)
    slack = 0.0
    if not given:
        slack = factor * rounding_noise([operand], bound)[0]
        slack += ulps * float(finfo(operand.dtype).eps) * float(np.abs(lines[finite]).max(initial=0.0))
    at = np.where(valid, ours, 0)
    named = lines[line, at]
    if not sorts:
        extreme = lines.max(axis=1, initial=-np.inf)[line]
        close: np.ndarray = valid & np.isfinite(extreme) & (named >= extreme - slack)
        return close
    expected = np.sort(lines, axis=1)[line, rank]  # NaN comes last
    with np.errstate(invalid="ignore"):
        same = (named == expected) | (np.isnan(named) & np.isnan(expected))
        close = valid & (same | (np.abs(named - expected) <= slack))
    # Each pair of a line and a rank answers with one position, and each position with one rank.
    answers = np.unique(np.stack([line.ravel(), rank.ravel(), at.ravel()]), axis=1)
    places, uses = np.unique(answers[[0, 2]], axis=1, return_counts=True)
    _, ranks = np.unique(answers[:2], axis=1, return_counts=True)
    if (uses > 1).any() or (ranks > 1).any():
        twice = {tuple(place) for place in places[:, uses > 1].T.tolist()}
        close &= ~np.reshape([(i, j) in twice for i, j in zip(line.flat, at.flat, strict=True)], ours.shape)
        close &= bool((ranks == 1).all())
    return close


def jumps_before(output: Node) -> bool:
    """Whether what positions are told of is computed by steps: then rounding moves it by more than noise shows."""
    _, node = _below_views(output)
    return any(jumps(n) for n in topological(node.inputs))


def _below_views(node: Node) -> tuple[list[Node], Node]:
    """The views on top of a node, and what they are views of."""
    views: list[Node] = []
    while OPS[node.op].kind == "view":
        views.append(node)
        node = node.inputs[0]
    return views, node

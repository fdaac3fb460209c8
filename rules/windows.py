"""Reductions of sliding windows, one axis after the other.

A window of k × k elements takes k² of them; a window of k along one axis, of windows of k along the other one, takes
2k, as windows that overlap share the inner ones. So do boxes of any rank, axis by axis. The axis that steps least is
the last one: the others then combine whole rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.types import row_major
from eqsat.rules import Match, attributes, family, reduction, tensors, view
from eqsat.rules.examples import Maker

x = tensors("x")
ax, mp = attributes("ax mp")
GAIN = 2
"""Elements that windows combine at least, in terms of those that windows of windows do."""
KINDS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")


@dataclass(frozen=True)
class _Last:
    """A position axis and the axis within windows that walk one axis of the tensor, ``unit`` elements a step.

    ``rows`` steps cover all windows.
    """

    position: int
    tap: int
    unit: int
    rows: int


def _last(m: Match) -> _Last | None:
    """The axis to reduce last: that of overlapping windows which steps least."""
    steps, shape = m.mp.strides, m.mp.shape
    if steps is None or len(m.ax) < 2 or 0 in shape:
        return None
    found: list[_Last] = []
    for tap in m.ax:
        for position in range(len(shape)):
            far, near = steps[position], steps[tap]
            if position in m.ax or far <= 0 or near <= 0:
                continue
            unit = math.gcd(far, near)
            rows = ((shape[position] - 1) * far + (shape[tap] - 1) * near) // unit + 1
            if rows < shape[position] * shape[tap]:
                found.append(_Last(position, tap, unit, rows))
    return min(found, key=lambda one: (one.unit, one.rows, one.position, one.tap), default=None)


def overlapping(m: Match) -> bool:
    """windows have several axes, and overlap along one of them so far that half as many elements are combined

    With 3 × 3 windows a third less is, but neighbours share rows of them without storing any (see
    ``eqsat.schedule.shared_rows``), and what one reduction has stored the next loads in other vectors.
    """
    last = _last(m)
    if last is None:
        return False
    positions, taps = m.mp.shape[last.position], m.mp.shape[last.tap]
    others = math.prod(m.mp.shape[k] for k in m.ax) // taps
    return bool(GAIN * (last.rows * others + positions * taps) <= positions * others * taps)


def _by_axis(kind: str) -> object:
    def separate(m: Match) -> Node | None:
        last = _last(m)
        assert last is not None
        steps, shape = m.mp.strides, list(m.mp.shape)
        kept = [k for k in range(len(shape)) if k not in m.ax]
        others = [k for k in m.ax if k != last.tap]
        rows = [last.rows if k == last.position else shape[k] for k in kept]
        step = [last.unit if k == last.position else steps[k] for k in kept]
        seen = views.strided([*rows, *(shape[k] for k in others)], [*step, *(steps[k] for k in others)], m.mp.offset)
        inner = build.reduce(kind, build.view(m.x, seen, "windows"), range(len(kept), len(kept) + len(others)))
        at, dense = kept.index(last.position), list(row_major(inner.shape))
        near = dense[at] * steps[last.tap] // last.unit
        dense[at] *= steps[last.position] // last.unit
        windows = views.strided([*(shape[k] for k in kept), shape[last.tap]], [*dense, near])
        return build.reduce(kind, build.view(inner, windows, "windows"), [len(kept)])

    return separate


def _boxes(mk: Maker) -> Node:
    """Windows of two or three axes, with strides and dilation."""
    rank = mk.random.choice((2, 2, 3))
    options = [
        (mk.random.choice((3, 5, 6)), mk.random.choice((1, 1, 2)), mk.random.choice((1, 1, 2))) for _ in range(rank)
    ]
    counts = [mk.random.randint(1, 6) for _ in range(rank)]
    given = mk.tensor(2, *((n - 1) * s + (k - 1) * d + 1 for n, (k, s, d) in zip(counts, options, strict=True)))
    steps = row_major(given.shape)
    taken = [(n * s, n * d) for n, (_, s, d) in zip(steps[1:], options, strict=True)]
    shape = [2, *counts, *(k for k, _, _ in options)]
    seen = build.view(given, views.strided(shape, [steps[0], *(far for far, _ in taken), *(near for _, near in taken)]))
    return build.reduce(mk.random.choice(KINDS), seen, range(1 + rank, 1 + 2 * rank))


windows_by_axis = family(
    [(reduction(k, view(x, mp), ax), _by_axis(k)) for k in KINDS],
    where=overlapping, example=_boxes, doc="windows of windows: k + k elements in place of k·k",
)  # fmt: skip

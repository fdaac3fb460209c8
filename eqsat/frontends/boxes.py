"""Boxes: what a view of an array in memory covers, as positions ``start + step·k`` on every axis of the memory's shape.

A write stores its value with the box it covers. A later read of part of that box is a slice of the value, and a read of
something else does not depend on it; only where a read covers several boxes are they put together (:func:`assembled`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.types import row_major
from eqsat.ir.views import ViewMap

MOST_CLASSES = 16
"""Longest common period of the steps on an axis for which writes are put together class by class."""


@dataclass(frozen=True, slots=True)
class Box:
    """On every axis the positions ``start``, ``start + step``, … (``size`` of them; steps are at least 1)."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int, ...]

    def within(self, outer: Box) -> Box | None:
        """This box in positions of ``outer``, where that contains it; else None."""
        starts, steps = [], []
        for s, t, n, start, step, size in zip(
            self.starts, self.steps, self.sizes, outer.starts, outer.steps, outer.sizes, strict=True
        ):
            first, by = s - start, t if n > 1 else step
            if first < 0 or first % step or by % step or (first + by * (n - 1)) // step >= size:
                return None
            starts.append(first // step)
            steps.append(by // step)
        return Box(tuple(starts), tuple(steps), self.sizes)

    def meets(self, other: Box) -> bool:
        """Whether the two have a position in common."""
        return all(
            common(*mine, *theirs) is not None
            for mine, theirs in zip(
                zip(self.starts, self.steps, self.sizes, strict=True),
                zip(other.starts, other.steps, other.sizes, strict=True),
                strict=True,
            )
        )

    def around(self, other: Box | None) -> Box:
        """The least box without gaps that contains this one and another."""
        ranges = [(s, s + t * (n - 1)) for s, t, n in zip(self.starts, self.steps, self.sizes, strict=True)]
        if other is not None:
            last = (s + n - 1 for s, n in zip(other.starts, other.sizes, strict=True))
            ranges = [(min(a, s), max(b, e)) for (a, b), s, e in zip(ranges, other.starts, last, strict=True)]
        return Box(tuple(s for s, _ in ranges), (1,) * len(ranges), tuple(e - s + 1 for s, e in ranges))

    def of(self, node: Node) -> Node:
        """The part of ``node`` that this box covers."""
        return build.slices(node, self.starts, self.steps, self.sizes)


def common(s: int, t: int, n: int, start: int, step: int, size: int) -> tuple[int, int, int] | None:
    """Which ``k`` of ``s + t·k`` (n of them) are also ``start + step·m`` (size of them): first, period, count."""
    g = math.gcd(t, step)
    if (start - s) % g:
        return None
    period = step // g
    k = (start - s) // g * pow(t // g, -1, period) % period if period > 1 else 0
    low = max(0, -((s - start) // t))  # the least k with s + t·k >= start
    if k < low:
        k += -(-(low - k) // period) * period
    last = min(n - 1, (start + step * (size - 1) - s) // t)
    return None if k > last else (k, period, (last - k) // period + 1)


@dataclass(frozen=True, slots=True)
class Placed:
    """A view as a box: ``digits`` are its mixed-radix factors, outermost first: (axis of the memory, size, backwards).

    The axis of a factor that repeats elements is None.
    """

    box: Box
    digits: tuple[tuple[int | None, int, bool], ...]
    shape: tuple[int, ...]

    @property
    def repeats(self) -> bool:
        return any(axis is None for axis, _, _ in self.digits)

    def as_view(self, node: Node) -> Node:
        """The box's elements as the view shows them."""
        real = [d for d in self.digits if d[0] is not None]
        order = sorted(range(len(real)), key=lambda i: real[i][0] or 0)
        node = build.reshape(node, [real[i][1] for i in order])
        node = _flipped(build.transpose(node, [order.index(i) for i in range(len(real))]), [d[2] for d in real])
        if self.repeats:
            node = build.reshape(node, [1 if axis is None else n for axis, n, _ in self.digits])
            node = build.broadcast_to(node, [n for _, n, _ in self.digits])
        return build.reshape(node, self.shape)

    def as_box(self, node: Node) -> Node:
        """The view's elements as they lie in the box."""
        node = build.reshape(node, [n for _, n, _ in self.digits])
        node = _flipped(node, [backwards for _, _, backwards in self.digits])
        order = sorted(range(len(self.digits)), key=lambda i: self.digits[i][0] or 0)
        return build.reshape(build.transpose(node, order), self.box.sizes)


def _flipped(node: Node, backwards: Sequence[bool]) -> Node:
    if not any(backwards):
        return node
    starts = [n - 1 if back else 0 for n, back in zip(node.shape, backwards, strict=True)]
    return build.slices(node, starts, [-1 if back else 1 for back in backwards], node.shape)


def place(map: ViewMap, frame: Sequence[int]) -> Placed | None:
    """A view of row-major memory of shape ``frame`` as a box of it; None where it is none."""
    strides = row_major(tuple(frame))
    starts = [map.offset // step % n for step, n in zip(strides, frame, strict=True)]
    steps, sizes = [1] * len(starts), [1] * len(starts)
    digits: list[tuple[int | None, int, bool]] = []
    taken: set[int] = set()
    pending = [atom for atoms in map.axes for atom in atoms][::-1]
    while pending:
        size, stride = pending.pop()
        if stride == 0:
            digits.append((None, size, False))
            continue
        pitch, back = abs(stride), stride < 0
        axis = next((a for a, (f, n) in enumerate(zip(strides, frame, strict=True)) if n > 1 and f <= pitch), None)
        if axis is None or axis in taken or pitch % strides[axis]:
            return None
        step, at, extent = pitch // strides[axis], starts[axis], frame[axis]
        reach = step * (size - 1)
        if (at - reach >= 0) if back else (at + reach < extent):
            taken.add(axis)
            digits.append((axis, size, back))
            starts[axis], steps[axis], sizes[axis] = (at - reach if back else at), step, size
            continue
        whole = at == (extent - 1 if back else 0) and step == 1 and size % extent == 0
        if not whole or size == extent:
            return None
        pending.append((extent, stride))
        pending.append((size // extent, stride * extent))
    return Placed(Box(tuple(starts), tuple(steps), tuple(sizes)), tuple(digits), map.shape)


def frame_for(map: ViewMap, size: int) -> tuple[int, ...] | None:
    """A shape of at least ``size`` elements of which ``map`` is a box, if its strides divide one another."""
    steps = sorted({abs(stride) for atoms in map.axes for _, stride in atoms if stride}, reverse=True)
    shape, outer = [], -(-size // steps[0]) * steps[0] if steps else 0
    for step in steps:
        if outer % step:
            return None
        shape.append(outer // step)
        outer = step
    return (*shape, outer) if steps else None


@dataclass(frozen=True, slots=True)
class Write:
    """What a box of memory was given."""

    box: Box
    value: Node


FEW_WRITES, MOST_WRITES = 1024, 8192
"""Writes that are kept apart in any case, and at most."""
MOST_LOOKS = 1 << 20
"""Writes that may be compared with others before more than a few are put together: a second of Python."""


class Writes:
    """The writes to an array, each with the box that it covers, in their order; later ones cover what they contain.

    Loops write, and read, mostly behind all that they wrote, or element by element, or row by row. Then it takes no
    search to know what a box meets: either it is outside of the range of all, or all boxes are of one *form*, alike but
    for where they start on axes of which they have one position, and meet only those that they are.
    """

    def __init__(self) -> None:
        self._writes: dict[Box, Write] = {}
        self._range: Box | None = None
        self._forms: set[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = set()
        self._looks = 0

    def __len__(self) -> int:
        return len(self._writes)

    def __iter__(self) -> Iterator[Write]:
        return iter(self._writes.values())

    @property
    def crowded(self) -> bool:
        """Whether they are to be put together."""
        return len(self) > (MOST_WRITES if self._looks < MOST_LOOKS else FEW_WRITES)

    def last(self, box: Box) -> Write | None:
        """The last write that a box has a position in common with."""
        if not self._may_meet(box):
            return None
        if self._forms == {_form(box)}:
            return self._writes.get(box)
        for number, write in enumerate(reversed(self._writes.values())):
            if box.meets(write.box):
                self._looks += number
                return write
        self._looks += len(self)
        return None

    def add(self, write: Write) -> None:
        """Note one more."""
        box = write.box
        if self._may_meet(box):
            if self._forms == {_form(box)}:
                self._writes.pop(box, None)
            else:
                self._looks += len(self)
                self._writes = {b: w for b, w in self._writes.items() if b.within(box) is None}
        self._range = box.around(self._range)
        self._forms.add(_form(box))
        self._writes[box] = write

    def _may_meet(self, box: Box) -> bool:
        return self._range is not None and self._range.meets(box)


def _form(box: Box) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """What boxes have in common that are the same or have nothing in common."""
    return box.sizes, box.steps, tuple(s if n > 1 else 0 for s, n in zip(box.starts, box.sizes, strict=True))


def assembled(base: Node, writes: Sequence[Write]) -> Node:
    """``base`` after the writes, one after the other."""
    rank = base.type.ndim
    return _fill(base, Box((0,) * rank, (1,) * rank, base.shape), writes)


def _fill(base: Node, part: Box, writes: Sequence[Write]) -> Node:
    live: list[Write] = []
    for write in reversed(writes):
        if part.meets(write.box):
            inner = part.within(write.box)
            if inner is not None and not live:
                return inner.of(write.value)
            live.append(write)
            if inner is not None:
                break
    live.reverse()
    if not live:
        return part.of(base)
    for axis, extent in enumerate(part.sizes):
        found = [_shared(part, write.box, axis) for write in live]
        period = math.lcm(*(p for _, p, count in found if count > 1), 1)
        if period > min(MOST_CLASSES, extent) and len(live) > 1:
            return _fill(assembled(base, live[:-1]), part, live[-1:])
        if period > 1:
            return _by_classes(base, part, live, axis, period)
        cuts = sorted({0, extent, *(k for k, _, _ in found), *(k + count for k, _, count in found)})
        if len(cuts) > 2:
            number = {k: i for i, k in enumerate(cuts)}
            inside: list[list[Write]] = [[] for _ in cuts[1:]]
            for write, (k, _, count) in zip(live, found, strict=True):
                for within in inside[number[k] : number[k + count]]:
                    within.append(write)
            pieces = [_cut(part, axis, a, b - a) for a, b in itertools.pairwise(cuts)]
            return build.concat([_fill(base, p, w) for p, w in zip(pieces, inside, strict=True)], axis)
    raise AssertionError("a box that is met on every axis as a whole is contained")


def _shared(part: Box, box: Box, axis: int) -> tuple[int, int, int]:
    """Which positions of ``part`` on an axis are in ``box``; one alone, or all that follow, have the period 1."""
    found = common(
        part.starts[axis], part.steps[axis], part.sizes[axis], box.starts[axis], box.steps[axis], box.sizes[axis]
    )
    assert found is not None
    return found


def _cut(part: Box, axis: int, first: int, size: int, step: int = 1) -> Box:
    """Positions ``first``, ``first + step``, … of a box on an axis."""
    starts, steps, sizes = list(part.starts), list(part.steps), list(part.sizes)
    starts[axis] += first * steps[axis]
    steps[axis] *= step
    sizes[axis] = size
    return Box(tuple(starts), tuple(steps), tuple(sizes))


def _by_classes(base: Node, part: Box, writes: Sequence[Write], axis: int, period: int) -> Node:
    """Positions on an axis in classes modulo ``period``: together they are an axis that is split in two."""
    rows, rest = divmod(part.sizes[axis], period)
    if rest:
        ends = [_cut(part, axis, 0, rows * period), _cut(part, axis, rows * period, rest)]
        return build.concat([_fill(base, end, writes) for end in ends if 0 not in end.sizes], axis)
    written = [any(_cut(part, axis, r, rows, period).meets(w.box) for w in writes) for r in range(period)]
    shape = (*part.sizes[:axis], rows, period, *part.sizes[axis + 1 :])
    plain = build.reshape(part.of(base), shape)
    pieces: list[Node] = []
    r = 0
    while r < period:
        if written[r]:
            value = _fill(base, _cut(part, axis, r, rows, period), writes)
            pieces.append(build.expand_dims(value, (axis + 1,)))
            r += 1
            continue
        stop = next((q for q in range(r, period) if written[q]), period)
        pieces.append(build.take_range(plain, axis + 1, r, stop))
        r = stop
    return build.reshape(build.concat(pieces, axis + 1), part.sizes)


def positions(map: ViewMap) -> np.ndarray:
    """Where in memory each element of a view lies."""
    total = np.full((), map.offset, np.int64)
    for atoms in map.axes:
        axis = np.zeros(1, np.int64)
        for size, stride in atoms:
            axis = (axis[:, None] + np.arange(size) * stride).reshape(-1)
        total = total[..., None] + axis
    return total.reshape(map.shape)


def evenly(where: np.ndarray) -> ViewMap | None:
    """The view whose elements lie at these positions, if they go in even steps and none comes twice."""
    if where.size == 0:
        return None
    first = int(where[(0,) * where.ndim])
    strides = []
    for axis, n in enumerate(where.shape):
        second = where[tuple(int(n > 1 and a == axis) for a in range(where.ndim))]
        strides.append(int(second) - first if n > 1 else 0)
    found = views.strided(where.shape, strides, first)
    distinct = _distinct(where.shape, strides)
    return found if distinct and bool((positions(found) == where).all()) else None


def _distinct(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no position comes twice, seen from the strides alone."""
    reach = 0
    for stride, n in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= reach:
            return False
        reach += stride * (n - 1)
    return True

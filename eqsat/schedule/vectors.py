"""Maps and reductions in the search: which tiles, steps and orders their axes may take."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from functools import partial

from eqsat.cost.movement import slots_of
from eqsat.cost.target import Target, TileOpRow
from eqsat.ir.kernel import Call, Kernel, Load, unique
from eqsat.schedule.forms import StageForm
from eqsat.schedule.jams import counts
from eqsat.schedule.peel import may_peel
from eqsat.schedule.problem import Problem
from eqsat.schedule.tensorize import matches, tile_sizes
from eqsat.schedule.tiles import balanced, ceil_div, round_up
from eqsat.schedule.vector_cost import AT_ONCE, body_slots, fresh, lanes_of, op_slots, tile_slots, turned_loads

FEW_SLOTS = 16.0
"""Issue slots of a tile's body up to which it may take several vectors: more neither hides latency nor saves loops."""

ROWS = 8
"""Positions of a reduced axis that are combined at once where partial results are kept in scratch."""

PIECE = 4096
"""Elements of a row of partial results that are kept in scratch at a time."""

PARTS = 32
"""Parts that a reduction is split into. It does not depend on the threads there are, so results do not either."""

LARGE = 1 << 15
"""Points from which splitting a reduction may pay."""

SHORT, FEW_SHORT = 4, 2
"""Positions of a short axis at most, and how many of those may be walked in any order among themselves: of more, each
order costs as much to price as that of long ones, and decides over next to nothing."""

STREAMED = 256 << 10
"""Bytes of a result from which it may go past the caches."""


def vector_facts(form: StageForm, problem: Problem, target: Target, again: Collection[str]) -> tuple[str, list[str]]:
    """The starting nest of a stage that is no contraction, without its shared rows, and its facts.

    ``again``: axes along which it reads what an earlier stage read (see :mod:`~eqsat.schedule.read_again`).
    """
    i, lanes, kernel = form.index, lanes_of(form, target), form.kernel
    extents = {axis: max(1, form.extent(axis)) for axis in form.own}
    facts: list[str] = []
    steps: dict[str, set[int]] = {axis: set() for axis in extents}
    if not extents:
        facts.append(f"(scalar {i})")
    carriers = _carriers(form, lanes)
    for axis in carriers:
        name = form.name(axis)
        sizes = _sizes(form, target, axis, extents[axis])
        facts += [f'(lanes {i} "{name}" {size})' for size in sizes]
        steps[axis].update(sizes)
        for other, count in _jams(form, axis, extents):
            facts.append(f'(jams {i} "{form.name(other)}" {count} "{name}" {min(lanes, extents[axis])})')
            steps[other].add(count)
            if not form.reduced(axis) and extents[axis] > PIECE:
                steps[axis].add(PIECE)
        if not form.reduced(axis) and _streamable(form, problem, target, axis, lanes):
            facts.append(f'(streams {i} "{name}")')
        if axis in again:
            facts.append(f'(prefetches {i} "{name}")')
        for other in _turned(form, axis, extents, lanes):
            facts.append(f'(transposes {i} "{form.name(other)}" "{name}" {lanes})')
            steps[axis].add(lanes)
            steps[other].add(lanes)
    single = not problem.rows
    for row, taken in tile_ops(form, target) if single else ():
        points = f"(Point {i})"
        for axis, size in reversed(taken):
            points = f'(Loop "{form.name(axis)}" {size} 1 {points})'
            steps[axis].add(size)
        facts.append(f'(computes {i} "{row.name}" "{sizes_text([(form.name(a), n) for a, n in taken])}" {points})')
    for axis in extents if single and target.threads > 1 and kernel.points >= LARGE else ():
        if form.reduced(axis) and extents[axis] > 1:
            widest = max((s for s in steps[axis] if 2 * s <= extents[axis] and s <= PIECE), default=1)
            part = round_up(ceil_div(extents[axis], PARTS), widest)
            if part < extents[axis]:
                facts.append(f'(divides "{form.name(axis)}" {part})')
                steps[axis].add(part)
    short = {axis for axis, extent in extents.items() if extent <= SHORT}
    if len(short) <= FEW_SHORT:
        short.clear()
    for axis, extent in extents.items():
        walked = [step for step in sorted({1, *steps[axis]}) if may_peel((kernel,), form.named[axis][0], step)]
        facts += [f'(peels "{form.name(axis)}" {extent} {step})' for step in walked]
        facts += _factors(form.name(axis), extent, steps[axis])
        for other in extents:
            # What tiles take goes to the inside past the others, which stay in their order.
            if other != axis and (steps[axis] or not {axis, other} <= short):
                facts.append(f'(points "{form.name(axis)}" "{form.name(other)}")')
        if single and not form.reduced(axis) and target.threads > 1:
            facts.append(f'(splits "{form.name(axis)}")')
    nest = f"(Point {i})"
    for axis in reversed(list(extents)):
        nest = f'(Loop "{form.name(axis)}" {extents[axis]} 1 {nest})'
    return nest, facts


def tile_ops(form: StageForm, target: Target) -> list[tuple[TileOpRow, tuple[tuple[str, int], ...]]]:
    """Tile operations that compute blocks of a stage by their semantics, with the elements they take of own axes."""
    kernel, shared, found = form.kernel, len(form.outer) + len(form.rows), []
    lanes = lanes_of(form, target)
    if 0 in kernel.extents or form.siblings or lanes != target.lanes(kernel.body.dtype):
        return []
    names = {axes[0]: name for name, axes in form.axes if axes and name in form.own}
    for row in target.tiles:
        for match in matches(row, kernel, shared) if row.emit else ():
            sizes = dict(tile_sizes(row, match, kernel, lanes))
            found.append((row, tuple((names[axis], sizes[name]) for name, axis in match.assigned.items())))
    return found


def sizes_text(sizes: Iterable[tuple[str, int]]) -> str:
    """Axes and sizes of a tile operation as one literal of a term: ``p0_0=4,p1_0=64``."""
    return ",".join(f"{axis}={size}" for axis, size in sizes)


def sizes_of_text(text: str) -> tuple[tuple[str, int], ...]:
    """The inverse of :func:`sizes_text`."""
    parts = (part.partition("=") for part in text.split(","))
    return tuple((axis, int(size)) for axis, _, size in parts)


def _factors(axis: str, extent: int, steps: Iterable[int]) -> list[str]:
    """``factor`` facts where what is left over of a block is left over of the whole axis: steps divide one another."""
    inside = sorted({step for step in steps if 1 < step < extent}, reverse=True)
    facts = [f'(factor "{axis}" {extent} {step})' for step in inside]
    facts += [f'(factor "{axis}" {step} 1)' for step in inside]
    return facts + [f'(factor "{axis}" {a} {b})' for n, a in enumerate(inside) for b in inside[n + 1 :] if a % b == 0]


def _carriers(form: StageForm, lanes: int) -> list[str]:
    """Axes that may carry lanes: any; of many only those that most accesses walk contiguously."""
    own = list(form.own)
    if len(own) <= 3:
        return own
    first = lane_axis(form.kernel, len(form.outer) + len(form.rows))

    def rank(axis: str) -> tuple[bool, int, int]:
        a = form.named[axis][0]
        far = sum(not 0 <= access.strides[a] <= 2 for access in form.accesses)
        return a != first, far, -a

    return sorted(own, key=rank)[:2]


def _sizes(form: StageForm, target: Target, axis: str, extent: int) -> list[int]:
    """Elements of an axis that one tile may take by vectors."""
    lanes = lanes_of(form, target)
    if form.kernel.combine in ("argmax", "argmin") and form.reduced(axis):
        return [min(lanes, extent)]  # positions are compared in order
    found = {min(lanes, extent)}
    few = FEW_SLOTS / max(1.0, body_slots(form, target, axis))
    found |= {lanes * n for n in AT_ONCE if n <= few and lanes * n <= extent}
    if extent <= lanes * min(few, AT_ONCE[-1]):
        found.add(extent)
    return sorted(found)


def _jams(form: StageForm, axis: str, extents: dict[str, int]) -> list[tuple[str, int]]:
    """(another axis, positions of it) that vectors along ``axis`` may take at once.

    Rows of a matrix or of windows, or of a map whose neighbours share what they read, so that it is loaded once; steps
    of a reduction, so that partial results in scratch are loaded and stored less often.
    """
    if form.kernel.combine is None:
        named = [(other, form.named[other][0]) for other in extents if other != axis]
        return [(other, count) for other, a in named for count in counts(form.kernel, a)]
    if form.kernel.combine in ("argmax", "argmin"):
        return []
    found = []
    for other, extent in extents.items():
        if form.reduced(other) != form.reduced(axis):
            count = ROWS if form.reduced(other) else ROWS // 2
            shared = form.reduced(other) or any(
                not access.strides[form.named[other][0]] for access in form.accesses if not access.write
            )
            if extent >= 2 * count and shared:
                found.append((other, count))
        elif other != axis and extent > 1 and not form.reduced(axis):
            count = balanced(extent, ROWS if extent <= 2 * ROWS else ROWS // 2)  # tests in short runs are settled
            if _overlap(form, other, count, form.named[axis][0]):
                found.append((other, count))
    return found


def _overlap(form: StageForm, axis: str, count: int, lanes: int) -> bool:
    """Whether a reduction reads anew only a part of what it reads at each of ``count`` positions of an axis.

    By whole vectors: lane by lane it is too long for straight code, and results crowd the sets of a cache.
    """
    a, kernel = form.named[axis][0], form.kernel
    moving = [e for e in unique(kernel.body) if isinstance(e, Load) and e.strides[a]]
    whole = kernel.store_strides[lanes] == 1 and all(e.strides[lanes] in (0, 1, 2) for e in moving)
    return whole and any(fresh(kernel, e, a, count) < 1.0 for e in moving)


def _turned(form: StageForm, vector: str, extents: dict[str, int], lanes: int) -> list[str]:
    """Axes that loads walk contiguously where they walk ``vector`` in strides, if blocks fit both and agree in kind."""
    if form.siblings or form.kernel.combine in ("argmax", "argmin") or extents[vector] < lanes or lanes < 2:
        return []
    return [
        axis
        for axis in extents
        if axis != vector
        and extents[axis] >= lanes
        and form.reduced(axis) == form.reduced(vector) == (form.kernel.combine is not None)
        and turned_loads(form.kernel, form.named[vector][0], form.named[axis][0])
    ]


def _streamable(form: StageForm, problem: Problem, target: Target, axis: str, lanes: int) -> bool:
    """Whether whole vectors of results lie at multiples of their size, and nothing of the group reads them again.

    Behind long arithmetic they go out one by one, which takes longer, and there is nothing to gain where arithmetic
    hides the traffic: tanh of 10 M took 22 ms past the caches and 10 through them, a·b + c 15 and 20. What a trip of a
    loop writes is read soon: ten five-point means of 3 MB took 1.5 ms through the caches and 2.8 past them, of 13 MB
    9.8 and 10.9, of 32 MB 22 and 24 (first Zen, whose last cache has 8 MB).
    """
    kernel = form.kernel
    if kernel.out.again:
        return False
    at = form.named[axis][0]
    slots = slots_of(form.functions)
    if sum(slots.get(e.fn, 1.0) for e in unique(kernel.body) if isinstance(e, Call)) > FEW_SLOTS:
        return False
    if kernel.out.nbytes < STREAMED or kernel.store_strides[at] != 1 or form.result[0] != "operand":
        return False
    if any(form.result in other.sources for other in problem.stages):
        return False
    return all(step % lanes == 0 for a, step in enumerate(kernel.store_strides) if a != at)


def least_slots(form: StageForm, target: Target) -> float:
    """Slots of all points of a stage by the tile that takes least, loops aside."""
    extents = {axis: max(1, form.extent(axis)) for axis in form.own}
    bare = partial(tile_slots, form, target, free=lambda held: held is not None)  # peeling may settle them
    rates = [bare("", 1, "", 1)] if not extents else []
    for axis in extents:
        for size in _sizes(form, target, axis, extents[axis]):
            rates.append(bare("", 1, axis, size) / size)
        size = min(lanes_of(form, target), extents[axis])
        for other, count in _jams(form, axis, extents):
            rates.append(bare(other, count, axis, size) / size / count)
    for row, blocks in tile_ops(form, target):
        rates.append(op_slots(form, target, row.name, dict(blocks)) / math.prod(n for _, n in blocks))
    return min(rates) * form.kernel.points


def lane_axis(kernel: Kernel, fixed: int = 0) -> int | None:
    """The axis along which vectors need the fewest instructions in a kernel that is no contraction; the last of equals.

    Any axis past the first ``fixed`` (shared) ones may be chosen, reduced ones too; ``None`` when there is no
    axis of more than one position. What a search starts from, and what runs without one.
    """

    def cost(axis: int) -> float:
        total = 0.0
        for strides in kernel.maps:
            total += {0: 0.25, 1: 1.0, 2: 3.0}.get(strides[axis], 20.0)
        extent = kernel.extents[axis]
        if axis >= kernel.parallel:
            total += 16.0 / math.ceil(extent / 16)  # combining lanes
        return (total + sum(isinstance(e, Call) for e in unique(kernel.body))) * math.ceil(extent / 16) / extent

    return min(
        (a for a in range(fixed, len(kernel.extents)) if kernel.extents[a] > 1),
        key=lambda a: (cost(a), -a),
        default=None,
    )

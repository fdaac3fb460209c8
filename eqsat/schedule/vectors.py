"""Maps and reductions in the search: which tiles their axes may take, and what those and the loops around them cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial

from eqsat.cost.calibration import (
    ACROSS,
    AHEAD,
    FAR_LOAD,
    FAR_STORE,
    FILL,
    GUARD_SLOTS,
    LANE_SLOTS,
    LOAD_SLOTS,
    MASK_SLOTS,
    PAGE_BYTES,
    PIECE_APART,
    PIECE_INSIDE,
    PIECE_LOST,
    SCATTERED,
    START,
    STEPS_IN_SIGHT,
    TLB_ENTRIES,
)
from eqsat.cost.movement import Functions, all_dependences, slots_of, thrashes
from eqsat.cost.target import Target, TileOpRow
from eqsat.ir.axes import unique
from eqsat.ir.kernel import Call, Guarded, Index, Kernel, Load, unconditional
from eqsat.schedule.peel import Held, may_peel, runs, seams, settled
from eqsat.schedule.problem import Problem, Source, StageForm, lane_axis
from eqsat.schedule.tensorize import matches, tile_cost, tile_sizes
from eqsat.schedule.tiles import COMBINE, ceil_div, round_up

AT_ONCE = (1, 2, 4)
"""Vectors that a tile may take of its axis."""

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

VALUES = 4
"""Registers for the values at hand, where reductions side by side keep their partial results in the others."""

STREAMED = 256 << 10
"""Bytes of a result from which it may go past the caches."""


def lanes_of(form: StageForm, target: Target) -> int:
    """Elements of one vector of a map or a reduction."""
    return max(1, target.vector_bits // form.bits)


# what is offered


def vector_facts(form: StageForm, problem: Problem, target: Target, again: Collection[str]) -> tuple[str, list[str]]:
    """The starting nest of a stage that is no contraction, without its shared rows, and its facts.

    ``again``: axes along which it reads what an earlier stage read (see :func:`read_again`).
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
    for axis, extent in extents.items():
        walked = [step for step in sorted({1, *steps[axis]}) if may_peel((kernel,), form.named[axis][0], step)]
        facts += [f'(peels "{form.name(axis)}" {extent} {step})' for step in walked]
        facts += _factors(form.name(axis), extent, steps[axis])
        facts += [f'(points "{form.name(axis)}" "{form.name(other)}")' for other in extents if other != axis]
        if single and not form.reduced(axis):
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
        far = sum(abs(access.strides[a]) > 1 for access in form.accesses)
        return a != first, far, -a

    return sorted(own, key=rank)[:2]


def _sizes(form: StageForm, target: Target, axis: str, extent: int) -> list[int]:
    """Elements of an axis that one tile may take by vectors."""
    lanes = lanes_of(form, target)
    if form.kernel.combine in ("argmax", "argmin") and form.reduced(axis):
        return [min(lanes, extent)]  # positions are compared in order
    found = {min(lanes, extent)}
    few = FEW_SLOTS / max(1.0, _body(form, target, axis))
    found |= {lanes * n for n in AT_ONCE if n <= few and lanes * n <= extent}
    if extent <= lanes * min(few, AT_ONCE[-1]):
        found.add(extent)
    return sorted(found)


def _jams(form: StageForm, axis: str, extents: dict[str, int]) -> list[tuple[str, int]]:
    """(another axis, positions of it) that vectors along ``axis`` may take at once.

    Rows of a matrix, so that what they share is loaded once; steps of a reduction, so that partial results in scratch
    are loaded and stored less often.
    """
    if form.kernel.combine in (None, "argmax", "argmin"):
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
    return found


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


def turned_loads(kernel: Kernel, vector: int, axis: int) -> tuple[Load, ...]:
    """Loads that walk ``axis`` contiguously and ``vector`` in strides; none in a guard, for blocks are loaded whole."""
    found: dict[tuple[int, int, tuple[int, ...]], Load] = {}
    for load in unconditional(kernel.body):
        if not isinstance(load, Load) or load.gathers:
            continue
        if load.strides[axis] == 1 and load.strides[vector] not in (0, 1):
            found.setdefault((load.operand, load.offset, load.strides), load)
    return tuple(found.values())


def read_again(problem: Problem, target: Target) -> dict[int, dict[str, tuple[Load, ...]]]:
    """Loads, by stage and the axis that they walk, of what an earlier stage of the group read at the same row.

    The earlier stage waits for it, and if this one computes meanwhile, the next row may be on its way. Of several that
    read the same the one with most arithmetic, and none where two rows of the group do not fit a private cache.
    """
    if not problem.rows:
        return _next_of_siblings(problem.stages[0], problem, target)
    row = {"outer": 1, "rows": 1}
    touched: dict[Source, int] = {}
    for form in problem.stages:
        touched |= problem.touched(form.index, form.extents(row), frozenset())
    if 2 * sum(touched.values()) > target.middle[0].capacity:
        return {}
    first: dict[Source, int] = {}
    found: dict[Source, tuple[float, int]] = {}
    for form in problem.stages:
        slots = math.inf if form.contraction else -_arithmetic(form)
        for source in dict.fromkeys(form.sources):
            if source[0] == "operand" and first.setdefault(source, form.index) != form.index:
                found[source] = min(found.get(source, (math.inf, 0)), (slots, form.index))
    chosen: dict[int, dict[str, tuple[Load, ...]]] = {}
    for form in problem.stages:
        for axis in form.own if not form.contraction else ():
            (a,) = form.named[axis]
            loads = tuple(
                load
                for load in ahead_loads(form.kernel, a, form.rows)
                if found.get(form.sources[load.operand], (0.0, -1))[1] == form.index
            )
            if loads:
                chosen.setdefault(form.index, {})[axis] = loads
    return chosen


def _next_of_siblings(form: StageForm, problem: Problem, target: Target) -> dict[int, dict[str, tuple[Load, ...]]]:
    """What reductions side by side read of the next row, which as stages over shared rows they might ask for ahead."""
    kernel = form.kernel
    if not form.siblings or not kernel.parallel:
        return {}
    row = (*(1 for _ in range(kernel.parallel)), *kernel.extents[kernel.parallel :])
    if 2 * sum(problem.touched(form.index, row, frozenset()).values()) > target.middle[0].capacity:
        return {}
    reduced = (axis for axis in form.own if form.reduced(axis))
    found = {axis: ahead_loads(kernel, form.named[axis][0], (kernel.parallel - 1,)) for axis in reduced}
    return {form.index: {axis: loads for axis, loads in found.items() if loads}}


def asking_stage(problem: Problem, target: Target) -> int | None:
    """The stage whose rows may ask for what contractions read at the next outer position: that with most arithmetic.

    None where there is no such stage, nothing to ask for, or more than may stay in a private cache meanwhile.
    """
    rowwise = [form for form in problem.stages if not form.contraction]
    nbytes = sum(share.piece for share in problem.shares) * problem.rows
    if not rowwise or not nbytes or nbytes > AHEAD * target.middle[0].capacity:
        return None
    return max(rowwise, key=lambda form: (_arithmetic(form), -form.index)).index


def _arithmetic(form: StageForm) -> float:
    """Slots of what a stage computes at every point: of what moves along its own axes."""
    slots, shared = slots_of(form.functions), len(form.outer) + len(form.rows)
    calls = (e for e in unique(form.kernel.body) if isinstance(e, Call))
    depends = all_dependences(form.kernel.body, len(form.kernel.extents))
    moving = (e for e in calls if any(a >= shared for a in depends[id(e)]))
    return sum(slots.get(e.fn, 1.0) for e in moving) * form.kernel.points


def ahead_loads(kernel: Kernel, axis: int, rows: Collection[int]) -> tuple[Load, ...]:
    """Loads that walk an axis contiguously and move with the rows, so that their next row can be asked for."""
    found: dict[tuple[int, int, tuple[int, ...]], Load] = {}
    for load in unconditional(kernel.body):
        if not isinstance(load, Load) or load.gathers or load.strides[axis] != 1:
            continue
        if any(load.strides[a] for a in rows):
            found.setdefault((load.operand, load.offset, load.strides), load)
    return tuple(found.values())


def _streamable(form: StageForm, problem: Problem, target: Target, axis: str, lanes: int) -> bool:
    """Whether whole vectors of results lie at multiples of their size, and nothing of the group reads them again.

    Behind long arithmetic they go out one by one, which takes longer, and there is nothing to gain where arithmetic
    hides the traffic: tanh of 10 M took 22 ms past the caches and 10 through them, a·b + c 15 and 20.
    """
    kernel = form.kernel
    at = form.named[axis][0]
    slots = slots_of(form.functions)
    if sum(slots.get(e.fn, 1.0) for e in unique(kernel.body) if isinstance(e, Call)) > FEW_SLOTS:
        return False
    if kernel.out.nbytes < STREAMED or kernel.store_strides[at] != 1 or form.result[0] != "operand":
        return False
    if any(form.result in other.sources for other in problem.stages):
        return False
    return all(step % lanes == 0 for a, step in enumerate(kernel.store_strides) if a != at)


# what it costs


def _body(form: StageForm, target: Target, axis: str, count: int = 1, other: str = "", vectors: int = 1) -> float:
    """Slots of the body for ``vectors`` vectors along an axis at ``count`` positions of another."""
    at = form.named[axis][0] if axis else None
    beside = form.named[other][0] if other else None
    lanes, cache = lanes_of(form, target), target.middle[0].capacity
    return _body_slots(form.kernel, form.functions, lanes, target.vector_bits, cache, at, vectors, beside, count)


@lru_cache(maxsize=4096)
def _body_slots(
    kernel: Kernel,
    functions: Functions,
    lanes: int,
    vector_bits: int,
    cache: float,
    axis: int | None,
    vectors: int,
    other: int | None,
    count: int,
) -> float:
    slots, rank, total = slots_of(functions), len(kernel.extents), 0.0
    of = all_dependences(kernel.body, rank)
    for expr in unique(kernel.body):
        if not isinstance(expr, Load | Call | Index | Guarded):
            continue
        depends = of[id(expr)]
        times = (vectors if axis in depends else 1) * (count if other in depends else 1)
        wide = max(1, lanes * expr.dtype.bits // vector_bits) if axis in depends else 1
        match expr:
            case Call(fn):
                total += times * wide * slots.get(fn, 1.0)
            case Guarded():
                total += times * wide * GUARD_SLOTS
            case Index():
                total += times * wide * 1.0 if axis in depends else 0.0
            case Load():
                gathered, size = bool(expr.gathers) and axis in depends, kernel.operands[expr.operand].nbytes
                total += times * _access(expr.strides, axis, gathered, lanes, expr.dtype.itemsize, size > cache) * wide
    return total


@lru_cache(maxsize=4096)
def _guards(
    kernel: Kernel, lanes: int, vector_bits: int, axis: int | None, vectors: int, other: int | None, count: int
) -> tuple[tuple[Held | None, bool, float, float], ...]:
    """Of each guard: how one axis holds it, whether it is the epilogue's, and for a vector of the tile (of results, in
    an epilogue) the slots of its selections and of its masks."""
    found, rank = [], len(kernel.extents)
    for root in (kernel.body, kernel.epilogue):
        of = all_dependences(root, rank)
        for guard in (e for e in unique(root) if isinstance(e, Guarded)):
            depends, last = of[id(guard)], root is kernel.epilogue
            times = 1 if last else (vectors if axis in depends else 1) * (count if other in depends else 1)
            times *= max(1, lanes * guard.dtype.bits // vector_bits) if axis in depends else 1
            masks = MASK_SLOTS if axis is not None and guard.index.strides[axis] else 0.0
            found.append((guard.held, last, times * GUARD_SLOTS, times * masks))
    return tuple(found)


def _access(
    strides: tuple[int, ...],
    axis: int | None,
    gathered: bool,
    lanes: int,
    itemsize: int,
    large: bool,
    far: float = FAR_LOAD,
) -> float:
    if axis is None or (not gathered and strides[axis] in (0, 1)):
        return LOAD_SLOTS
    step = abs(strides[axis]) * itemsize  # lines that crowd are lost before their other elements are needed
    apart = large and not gathered and (step >= PAGE_BYTES or thrashes(step, AT_ONCE[-1] * lanes))
    return (far if apart else LANE_SLOTS) * lanes


def _finish(form: StageForm, target: Target, axis: str) -> float:
    """Slots of finishing one vector of results, or one result if the lanes are combined, and of storing it."""
    lanes = lanes_of(form, target)
    if form.kernel.combine is None or not axis or not form.reduced(axis):
        at, out = form.named[axis][0] if axis else None, form.kernel.out
        strides, large = form.kernel.store_strides, out.nbytes > target.middle[0].capacity
        stores = len(form.results) * _access(strides, at, False, lanes, out.dtype.itemsize, large, FAR_STORE / 2)
        return form.epilogue_slots + 2 * stores
    return form.epilogue_slots + len(form.results) * ACROSS


def tile_slots(
    form: StageForm,
    target: Target,
    other: str,
    count: int,
    axis: str,
    size: int,
    free: Callable[[Held | None], bool] = lambda _: False,
) -> float:
    """Slots of a tile of vectors, with its share of finishing the results that it is part of.

    ``free``: of how one axis holds a guard, whether that is settled when code is made.
    """
    lanes, kernel = lanes_of(form, target), form.kernel
    vectors = ceil_div(size, lanes)
    slots = _body(form, target, axis, count, other, vectors)
    reduced = max(1, math.prod(kernel.extents[kernel.parallel :]))
    mine = (size if axis and form.reduced(axis) else 1) * (count if other and form.reduced(other) else 1)
    results = (1 if axis and form.reduced(axis) else vectors) * (1 if other and form.reduced(other) else count)
    share = results * min(1.0, mine / reduced)
    finish = _finish(form, target, axis)
    at, beside = (form.named[name][0] if name else None for name in (axis, other))
    for held, last, select, mask in _guards(kernel, lanes, target.vector_bits, at, vectors, beside, count):
        if last:
            finish += 0.0 if free(held) else select + mask
        else:  # the selection is in the body's
            slots += -select if free(held) else mask
    if kernel.combine is None:
        return slots + vectors * count * finish
    slots += vectors * count * sum(COMBINE[combine] for combine in form.combines)
    if form.siblings:  # what registers do not hold is loaded and stored
        kept = vectors * (1 if other and form.reduced(other) else count) * len(form.combines)
        slots += 1.5 * max(0, kept - _held(target))
    chains = 4.0 if kernel.combine in ("argmax", "argmin") else 1.0
    return max(slots, target.ports.latency * chains) + share * finish


def peeled_slots(
    form: StageForm, target: Target, body: dict[str, int], axis: str, tile: tuple[tuple[str, int], ...]
) -> float:
    """Slots that a step of a loop saves on average where it is peeled: in most runs its axis' guards are settled.

    ``body``: sizes of what a step covers, by own axes; ``tile``: axes and sizes of its tile, the lanes' last.
    """
    a, step, sizes = form.named[axis][0], body.get(axis, 1), dict(tile)
    extent, marks = form.kernel.extents[a], seams((form.kernel,), a)
    tiles = math.prod(ceil_div(body.get(name, 1), sizes.get(name, 1)) for name in form.own)
    (other, count), (lanes, size) = (("", 1),) * (2 - len(tile)) + tile
    usual, saved = tile_slots(form, target, other, count, lanes, size), 0.0
    found = runs(extent // step * step, step, marks)
    for start, stop in found:

        def free(held: Held | None, start: int = start, stop: int = stop) -> bool:
            return held is not None and held[0] == a and settled(held, start, stop)

        less = usual - tile_slots(form, target, other, count, lanes, size, free)
        saved += (stop - start) // step * tiles * less
    return (saved - START * (len(found) - 1)) / ceil_div(extent, step)


def _held(target: Target) -> int:
    """Vectors of partial results that stay in registers beside the values that go into them."""
    return target.registers - VALUES


def op_slots(form: StageForm, target: Target, name: str, sizes: dict[str, int]) -> float:
    """Slots of a tile operation on so many elements of own axes, with its share of the epilogue.

    Its accumulators lie in scratch: once for each result they are filled, loaded, and stored as results.
    """
    kernel, lanes = form.kernel, lanes_of(form, target)
    shared = len(form.outer) + len(form.rows)
    best = math.inf
    for row in target.rows(name):
        for match in matches(row, kernel, shared):
            if {form.named[axis][0] for axis in sizes} != set(match.assigned.values()):
                continue
            by_axis = {form.named[axis][0]: size for axis, size in sizes.items()}
            own = {tile: by_axis[axis] for tile, axis in match.assigned.items()}
            carrier = next(axis for axis in sizes if form.named[axis][0] == match.assigned[row.lanes])
            kept = math.prod(n for axis, n in sizes.items() if not form.reduced(axis) and axis != carrier)
            vectors = kept * ceil_div(sizes[carrier], lanes)
            mine = math.prod(n for axis, n in sizes.items() if form.reduced(axis))
            share = min(1.0, mine / max(1, math.prod(kernel.extents[kernel.parallel :])))
            finish = vectors * (_finish(form, target, carrier) + FILL)
            best = min(best, tile_cost(row, own, target, lanes) + finish * share)
    return best


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


def transpose_slots(form: StageForm, target: Target, first: str, second: str, lanes: int) -> float:
    """Slots of a block of lanes × lanes that is transposed in registers."""
    kernel, at = form.kernel, form.named[second][0]
    turned = turned_loads(kernel, at, form.named[first][0])
    slots = tile_slots(form, target, first, lanes, second, lanes)
    for load in turned:
        large = kernel.operands[load.operand].nbytes > target.middle[0].capacity
        slots -= lanes * _access(load.strides, at, False, lanes, load.dtype.itemsize, large)
    return slots + len(turned) * lanes * (1.5 + math.log2(max(2, lanes)))


def scattered_seconds(form: StageForm, target: Target, lanes: int) -> float:
    """Seconds that a transposed block waits for the lines of its results."""
    return (
        lanes * SCATTERED if form.kernel.combine is None and form.kernel.out.nbytes > target.middle[0].capacity else 0.0
    )


def written(form: StageForm, sizes: dict[str, int]) -> float:
    """Bytes of results that a tile of these sizes stores, as its share where it is part of a reduction."""
    kernel = form.kernel
    kept = reduced = 1
    for axis in form.own:
        size = sizes.get(axis, 1)
        kept, reduced = (kept, reduced * size) if form.reduced(axis) else (kept * size, reduced)
    whole = max(1, math.prod(kernel.extents[kernel.parallel :]))
    itemsize = kernel.out.dtype.itemsize + sum(one.dtype.itemsize for one in form.siblings)
    return kept * itemsize * min(1.0, reduced / whole)


def loop_slots(
    form: StageForm,
    target: Target,
    body: dict[str, int],
    axis: str,
    loops: tuple[str, ...],
    tile: tuple[tuple[str, int], ...],
) -> float | None:
    """Slots that every step of a loop adds to its body, the loop's own aside; None where the loop is not legal.

    ``body``: sizes of what its body covers, by own axes; ``loops``: axes of the loops in it, outermost first; ``tile``:
    axes and sizes of its tile, the lanes' last. Partial results of a loop over a parallel axis inside one over a
    reduced axis are kept in scratch, so loaded and stored; positions of extremes are not.
    """
    inside = [name for name in loops if not form.reduced(name)]
    if not form.reduced(axis) or not inside:
        return 0.0
    if form.kernel.combine in ("argmax", "argmin"):
        return None
    if form.reduced(loops[0]):
        return 0.0
    lanes = lanes_of(form, target)
    kept = math.prod(size for name, size in body.items() if not form.reduced(name))
    if tile:
        name, size = tile[-1]
        kept = ceil_div(kept, lanes) if not form.reduced(name) else kept * ceil_div(size, lanes)
    return 1.5 * kept * len(form.combines)


def jump_seconds(
    form: StageForm, problem: Problem, target: Target, sizes: dict[str, int], axis: str, n: int, stream: bool
) -> float:
    """Seconds that every step of a loop over n positions adds because it takes short pieces of rows that lie apart.

    ``sizes``: of the block that its body covers, by the names of the search. ``stream``: results go past the caches,
    so nothing waits for the lines that they go to.
    """
    extents, a = form.extents(sizes), form.named[axis][0]
    if extents[a] > STEPS_IN_SIGHT:
        return 0.0  # counted by the loops inside
    total = 0.0
    for access in form.accesses:
        far, size = abs(access.strides[a]) * access.dtype.itemsize, access.dtype.itemsize
        source = form.source(access)
        if far <= 64 or access.gathered or (stream if access.write else n <= STEPS_IN_SIGHT) or source[0] != "operand":
            continue  # among them what prefetching follows
        run, pieces = 1, extents[a]
        others = ((abs(s), e) for b, (s, e) in enumerate(zip(access.strides, extents, strict=True)) if b != a and s)
        for stride, extent in sorted(others):
            if stride <= run:
                run += stride * (extent - 1)
            elif extent <= STEPS_IN_SIGHT:
                pieces *= extent
        if run * size >= min(far, PAGE_BYTES):
            continue
        if problem.sizes[source[1]] <= target.middle[0].capacity:
            each = PIECE_INSIDE
        elif access.write and not (n > TLB_ENTRIES or thrashes(far, STEPS_IN_SIGHT)):
            each = SCATTERED
        else:
            each = PIECE_LOST if n > TLB_ENTRIES or thrashes(far, STEPS_IN_SIGHT) else PIECE_APART
        total += each * pieces
    return total

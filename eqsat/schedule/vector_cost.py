"""What tiles and loops of maps and reductions cost: issue slots of vectors, masks, transposed blocks and scratch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from eqsat.cost.calibration import (
    ACROSS,
    FAR_LOAD,
    FAR_STORE,
    FILL,
    GUARD_SLOTS,
    LOAD_SLOTS,
    LOOP,
    MASK_SLOTS,
    OVERLAPPED,
    PAGE_BYTES,
    PIECE_APART,
    PIECE_INSIDE,
    PIECE_LOST,
    SCATTERED,
    SHUFFLE_SLOTS,
    START,
    STEPS_IN_SIGHT,
    STRAIGHT,
    TLB_ENTRIES,
)
from eqsat.cost.movement import Access, Functions, all_dependences, crowds, slots_of, thrashes
from eqsat.cost.target import Target
from eqsat.ir.kernel import Call, Guarded, Index, Kernel, Load, unconditional, unique
from eqsat.schedule.forms import StageForm
from eqsat.schedule.jams import together, window_starts
from eqsat.schedule.peel import Held, held, runs, seams, settled, unrolled
from eqsat.schedule.problem import Problem
from eqsat.schedule.shared_rows import SharedRows, shared_rows
from eqsat.schedule.standing import Standing
from eqsat.schedule.tensorize import matches, tile_cost
from eqsat.schedule.tiles import COMBINE, ceil_div

AT_ONCE = (1, 2, 4)
"""Vectors that a tile may take of its axis."""

VALUES = 4
"""Registers for the values at hand, where reductions side by side keep their partial results in the others."""


Computed = Load | Call | Index | Guarded
"""Expressions that take slots."""


def lanes_of(form: StageForm, target: Target) -> int:
    """Elements of one vector of a map or a reduction."""
    return max(1, target.vector_bits // form.bits)


def turned_loads(kernel: Kernel, vector: int, axis: int) -> tuple[Load, ...]:
    """Loads that walk ``axis`` contiguously and ``vector`` in strides; none in a guard, for blocks are loaded whole."""
    found: dict[tuple[int, int, tuple[int, ...]], Load] = {}
    for load in unconditional(kernel.body):
        if not isinstance(load, Load) or load.gathers:
            continue
        if load.strides[axis] == 1 and load.strides[vector] not in (0, 1):
            found.setdefault((load.operand, load.offset, load.strides), load)
    return tuple(found.values())


def turns_results(kernel: Kernel, vector: int, axis: int) -> bool:
    """Whether a transposed block is computed along ``axis``, as its loads lie, and turned over to be stored in whole
    vectors: each load walks ``axis`` in order or not at all, and results lie along ``vector``."""
    if kernel.combine is not None or kernel.store_strides[vector] != 1 or not turned_loads(kernel, vector, axis):
        return False
    found = list(unique(kernel.body))
    if any(isinstance(e, Guarded | Index) or (isinstance(e, Load) and e.gathers) for e in found):
        return False
    return all(load.strides[axis] in (0, 1) for load in found if isinstance(load, Load))


def body_slots(form: StageForm, target: Target, axis: str, count: int = 1, other: str = "", vectors: int = 1) -> float:
    """Slots of the body for ``vectors`` vectors along an axis at ``count`` positions of another."""
    at = form.named[axis][0] if axis else None
    beside = form.named[other][0] if other else None
    lanes, cache = lanes_of(form, target), target.middle[0].capacity
    rates = (lanes, target.vector_bits, target.ports.lane, cache)
    return _slots(form.kernel, form.functions, *rates, at, vectors, beside, count)


@lru_cache(maxsize=4096)
def _slots(
    kernel: Kernel,
    functions: Functions,
    lanes: int,
    vector_bits: int,
    lane: float,
    cache: float,
    axis: int | None,
    vectors: int,
    other: int | None,
    count: int,
) -> float:
    slots, total = slots_of(functions), 0.0
    jammed, exprs = _computed(kernel, other, count)
    read = _read(kernel, axis, vectors, other, count)
    for expr, depends, chosen in exprs:
        shared = read if other in depends and isinstance(expr, Call | Guarded) else 1.0
        times = (vectors if axis in depends else 1) * (count if other in depends and not jammed else 1) * shared
        wide = max(1, lanes * expr.dtype.bits // vector_bits) if axis in depends else 1
        match expr:
            case Call(fn):
                total += times * wide * slots.get(fn, 1.0)
            case Guarded():
                total += times * wide * _selection(expr, axis)
            case Index():
                total += times * wide * 1.0 if axis in depends else 0.0
            case Load():
                size, large = expr.dtype.itemsize, kernel.operands[expr.operand].nbytes > cache
                each = _access(expr.strides, axis, axis in chosen, lanes, size, large, lane)
                total += times * wide * each * (fresh(kernel, expr, other, count) if other in depends else 1.0)
    return total


@lru_cache(maxsize=4096)
def _computed(
    kernel: Kernel, other: int | None, count: int
) -> tuple[bool, tuple[tuple[Computed, frozenset[int], frozenset[int]], ...]]:
    """Whether the bodies of ``count`` positions of an axis share values, and what is computed of these or of one body,
    with the axes that each varies with, and those along which an index chooses where it is loaded from."""
    jammed = together(kernel, other, count)
    exprs = jammed or tuple(unique(kernel.body))
    of = all_dependences(len(kernel.extents), *exprs)
    indices = [(e, e.gathers if isinstance(e, Load) else ()) for e in exprs if isinstance(e, Computed)]
    none = frozenset[int]()
    return bool(jammed), tuple([(e, of[id(e)], none.union(*(of[id(i)] for i, _ in by))) for e, by in indices])


def rows_in(kernel: Kernel, axis: int | None, vectors: int, other: int | None, count: int) -> SharedRows | None:
    """What neighbours along ``other`` share of their windows in a tile of vectors along ``axis``."""
    if axis is None or axis >= kernel.parallel or other is None:
        return None
    return shared_rows(kernel, other, count, vectors * count)


def _read(kernel: Kernel, axis: int | None, vectors: int, other: int | None, count: int) -> float:
    """The part of a body's values that is computed, of those that move along ``other``."""
    rows = rows_in(kernel, axis, vectors, other, count)
    return 1.0 if rows is None else rows.read(count)


@lru_cache(maxsize=4096)
def fresh(kernel: Kernel, load: Load, other: int, count: int) -> float:
    """Of what a load reads at ``count`` positions of a parallel axis, over all reduced ones, the part that is not read
    twice: windows overlap, and in straight code, as of loops over short axes, what was loaded is in a register.
    """
    reduced = kernel.extents[kernel.parallel :]
    if count == 1 or other >= kernel.parallel or load.gathers or not 0 < math.prod(reduced) <= STRAIGHT:
        return 1.0
    starts = {0}
    for stride, extent in ((load.strides[other], count), *zip(load.strides[kernel.parallel :], reduced, strict=True)):
        starts = {start + stride * i for start in starts for i in range(extent)}
    return len(starts) / (count * math.prod(reduced))


@lru_cache(maxsize=4096)
def _guards(
    kernel: Kernel, lanes: int, vector_bits: int, axis: int | None, vectors: int, other: int | None, count: int
) -> tuple[tuple[Held | None, bool, float, float], ...]:
    """Of each guard: how one axis holds it, whether it is the epilogue's, and for a vector of the tile (of results, in
    an epilogue) the slots of its selections and of its masks."""
    found = []
    for guard, last, depends, kept in _guards_in(kernel):
        times = 1 if last else (vectors if axis in depends else 1) * (count if other in depends else 1)
        times *= max(1, lanes * guard.dtype.bits // vector_bits) if axis in depends else 1
        masks = MASK_SLOTS if axis is not None and guard.index.strides[axis] else 0.0
        select = times * _selection(guard, axis)
        if not last:  # positions that share a test, of those in straight code
            select *= _read(kernel, axis, vectors, other, count) if other in depends else 1.0
            along = [(other, count)] if other is not None else []
            inner = kernel.extents[kernel.parallel :]
            along += enumerate(inner, kernel.parallel) if math.prod(inner) <= STRAIGHT else ()
            masks /= math.prod(n for a, n in along if not guard.index.strides[a])
        found.append((kept, last, select, times * masks))
    return tuple(found)


@lru_cache(maxsize=4096)
def _guards_in(kernel: Kernel) -> tuple[tuple[Guarded, bool, frozenset[int], Held | None], ...]:
    """Guards, whether each is the epilogue's, the axes that it varies with, and how one axis holds it."""
    found, rank = [], len(kernel.extents)
    for root in (kernel.body, kernel.epilogue):
        guards = [e for e in unique(root) if isinstance(e, Guarded)]
        of = all_dependences(rank, root) if guards else {}
        found += [(g, root is kernel.epilogue, of[id(g)], held(g, kernel)) for g in guards]
    return tuple(found)


def _selection(guard: Guarded, axis: int | None) -> float:
    """Slots of choosing a guard's branch: none where a masked load along ``axis`` leaves zeros already."""
    return 0.0 if axis is not None and guard.index.strides[axis] and guard.masks(axis) else GUARD_SLOTS


def _access(
    strides: tuple[int, ...],
    axis: int | None,
    gathered: bool,
    lanes: int,
    itemsize: int,
    large: bool,
    lane: float,
    far: float = FAR_LOAD,
) -> float:
    if axis is None or (not gathered and strides[axis] in (0, 1)):
        return LOAD_SLOTS
    if not gathered and strides[axis] == 2:  # of two vectors, every second element
        return 2 * LOAD_SLOTS + SHUFFLE_SLOTS
    step = abs(strides[axis]) * itemsize  # lines that crowd are lost before their other elements are needed
    apart = large and not gathered and (step >= PAGE_BYTES or thrashes(step, AT_ONCE[-1] * lanes))
    return (far if apart else lane) * lanes


def _finish(form: StageForm, target: Target, axis: str) -> float:
    """Slots of finishing one vector of results, or one result if the lanes are combined, and of storing it."""
    lanes = lanes_of(form, target)
    if form.kernel.combine is None or not axis or not form.reduced(axis):
        at, out = form.named[axis][0] if axis else None, form.kernel.out
        strides, large = form.kernel.store_strides, out.nbytes > target.middle[0].capacity
        lane = target.ports.lane
        far = max(lane, FAR_STORE / 2 * target.holding(out.nbytes).scattered / SCATTERED)
        stores = len(form.results) * _access(strides, at, False, lanes, out.dtype.itemsize, large, lane, far)
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
    slots = body_slots(form, target, axis, count, other, vectors)
    reduced = max(1, math.prod(kernel.extents[kernel.parallel :]))
    mine = (size if axis and form.reduced(axis) else 1) * (count if other and form.reduced(other) else 1)
    results = (1 if axis and form.reduced(axis) else vectors) * (1 if other and form.reduced(other) else count)
    share = results * min(1.0, mine / reduced)
    finish = _finish(form, target, axis)
    # The chains of the next results have begun before that of a short reduction ends.
    begun = max(1.0, OVERLAPPED * target.ports.latency * mine / (max(1.0, slots) * reduced))
    at, beside = (form.named[name][0] if name else None for name in (axis, other))
    known = unrolled(kernel, vectors * count)
    for by, last, select, mask in _guards(kernel, lanes, target.vector_bits, at, vectors, beside, count):
        here = free(by) or (known and by is not None and by[0] == beside and count == kernel.extents[beside])
        if last:
            finish += 0.0 if here else select + mask
        else:  # the selection is in the body's
            slots += -select if here else mask
    if kernel.combine is None:
        return slots + vectors * count * finish
    product = isinstance(kernel.body, Call) and kernel.body.fn == "mul" and kernel.body.dtype.is_float
    fused = kernel.combine == "sum" and product  # multiplies and adds at once
    rows = rows_in(kernel, at, vectors, beside, count)
    combined = vectors * count * (1.0 if rows is None else rows.combined(count))
    slots += combined * (sum(COMBINE[combine] for combine in form.combines) - fused)
    if form.siblings:  # what registers do not hold is loaded and stored
        kept = vectors * (1 if other and form.reduced(other) else count) * len(form.combines)
        slots += 1.5 * max(0, kept - _held(target))
    latency = target.ports.latency * (4.0 if kernel.combine in ("argmax", "argmin") else 1.0)
    return max(slots, latency / begun) + share * finish


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
    known = sizes.get(axis, 1) == step and unrolled(form.kernel, ceil_div(size, lanes_of(form, target)) * count)
    for start, stop in found:

        def free(by: Held | None, start: int = start, stop: int = stop) -> bool:
            alone = known and stop - start == step and axis != lanes  # one position, which code knows
            return by is not None and by[0] == a and (alone or settled(by, start, stop))

        less = usual - tile_slots(form, target, other, count, lanes, size, free)
        saved += (stop - start) // step * tiles * less
    loops = sum(stop - start > step for start, stop in found)
    saved += LOOP * (len(found) - loops)  # a run of one step is no loop
    return (saved - START * (loops - 1)) / ceil_div(extent, step)


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


def transpose_slots(form: StageForm, target: Target, first: str, second: str, lanes: int) -> float:
    """Slots of a block of lanes × lanes that is transposed in registers."""
    kernel, at = form.kernel, form.named[second][0]
    turned = turned_loads(kernel, at, form.named[first][0])
    over = lanes * (1.5 + math.log2(max(2, lanes)))
    if turns_results(kernel, at, form.named[first][0]):
        results = over + lanes * len(form.results) * 2 * LOAD_SLOTS
        if isinstance(kernel.body, Load):
            return results
        scratch = lanes * 2 * LOAD_SLOTS
        return lanes * (body_slots(form, target, first) + form.epilogue_slots) + scratch + results
    if window_starts(kernel):  # blocks are loaded whole, so nothing is shared
        slots = lanes * tile_slots(form, target, "", 1, second, lanes)
    else:
        slots = tile_slots(form, target, first, lanes, second, lanes)
    for load in turned:
        large = kernel.operands[load.operand].nbytes > target.middle[0].capacity
        slots -= lanes * _access(load.strides, at, False, lanes, load.dtype.itemsize, large, target.ports.lane)
    return slots + len(turned) * over


def scattered_seconds(form: StageForm, target: Target, lanes: int) -> float:
    """Seconds that a transposed block waits for the lines of its results."""
    nbytes = form.kernel.out.nbytes
    if form.kernel.combine is not None or nbytes <= target.middle[0].capacity:
        return 0.0
    return lanes * target.holding(nbytes).scattered


def written(form: StageForm, sizes: dict[str, int]) -> float:
    """Bytes of results that a tile of these sizes stores, as its share where it is part of a reduction."""
    kernel = form.kernel
    kept = reduced = 1
    for axis in form.own:
        size = sizes.get(axis, 1)
        kept, reduced = (kept, reduced * size) if form.reduced(axis) else (kept * size, reduced)
    whole = max(1, math.prod(kernel.extents[kernel.parallel :]))
    return kept * stored(form) * min(1.0, reduced / whole)


def stored(form: StageForm) -> int:
    """Bytes that are stored for each result, those of siblings beside it."""
    return form.kernel.out.dtype.itemsize + sum(one.dtype.itemsize for one in form.siblings)


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
    form: StageForm,
    problem: Problem,
    target: Target,
    standing: Standing,
    extents: tuple[int, ...],
    axis: str,
    n: int,
    stream: bool,
) -> float:
    """Seconds that every step of a loop over n positions adds because it takes short pieces of rows that lie apart.

    ``extents``: of the block that its body covers, along the kernel's axes. ``stream``: results go past the caches,
    so nothing waits for the lines that they go to.
    """
    a = form.named[axis][0]
    if extents[a] > STEPS_IN_SIGHT:
        return 0.0  # counted by the loops inside
    total, inner = 0.0, target.inner
    for access, others in form.far_apart[a]:
        size = access.dtype.itemsize
        far = abs(access.strides[a]) * size
        followed = n <= STEPS_IN_SIGHT and not thrashes(far, n, inner.sets, inner.ways, inner.line)
        if stream if access.write else followed:
            continue  # what prefetching follows, while the lines it fetches stay
        run, pieces, apart = 1, extents[a], list[tuple[int, int]]()
        for stride, extent in sorted([(stride, extents[b]) for b, stride in others]):
            if stride <= run or stride * size < inner.line:  # in the same lines
                run += stride * (extent - 1)
            elif 1 < extent <= STEPS_IN_SIGHT:
                pieces *= extent
                apart.append((stride * size, extent))
        if run * size >= min(far, PAGE_BYTES):
            continue
        if standing.middle:
            each = PIECE_INSIDE
        else:
            lost = _lost(form, problem, target, access, ((far, n), *apart))
            kept = PIECE_APART
            if access.write:  # a line stays until its other pieces come
                kept = standing.space.scattered * min(1.0, run * size / inner.line)
            each = lost * PIECE_LOST + (1 - lost) * kept
        total += each * pieces
    return total


def _lost(
    form: StageForm, problem: Problem, target: Target, access: Access, steps: tuple[tuple[int, int], ...]
) -> float:
    """The part of an access's pieces whose lines are lost before what is beside in them comes: with their pages, or
    because they crowd into few sets of the nearest cache. Those that the next cache keeps are lost the first time.

    ``steps``: rows, and pieces of each, as (bytes from one to the next, how many).
    """
    (far, n), *apart = steps
    inner, *others = target.caches
    if n * min(1.0, far / PAGE_BYTES) > TLB_ENTRIES:
        return 1.0
    if not crowds(((far, min(n, STEPS_IN_SIGHT)), *apart), inner.sets, inner.ways, inner.line):
        return 0.0
    known = [space for space in others[:1] if space.sets and not access.write]
    if all(crowds(steps, space.sets, space.ways, space.line) for space in known):
        return 1.0
    source = form.source(access)
    same = sum(not other.write and form.source(other) == source for other in form.accesses)
    read = same * form.kernel.points * access.dtype.itemsize
    return min(1.0, problem.sizes[int(source[1])] / max(1, read))

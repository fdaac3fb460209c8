"""What loops around the tiles of a nest, copies and passes cost: bytes moved, loop control, packing, barriers.

Data movement after Chimera (Zheng et al., HPCA 2023): where the block of a whole loop stays resident in a cache, each
buffer moves its footprint once; else a loop whose body is resident moves each buffer of the whole block once, and one
whose body is not moves what its body moves, every step.
"""

from __future__ import annotations

from eqsat.cost import calibration as c
from eqsat.cost.target import Moved
from eqsat.schedule.price import Block, Pricer, Summary
from eqsat.schedule.problem import plain_axis
from eqsat.schedule.tiles import ceil_div
from eqsat.schedule.vector_cost import jump_seconds, lanes_of, loop_slots, peeled_slots


def loop_moved(whole: Summary, body: Summary, moved: Moved, steps: float) -> Moved:
    """Bytes that a loop moves: see the module docstring."""
    if True in whole.fits or True in body.fits:
        return tuple(
            [
                once if fits or part else each * steps
                for fits, part, once, each in zip(whole.fits, body.fits, whole.cold, moved, strict=True)
            ]
        )
    return tuple([each * steps for each in moved])


def shared_moved(
    pricer: Pricer, whole: Block, part: Block, body: Block, moved: Moved, steps: float, threads: int
) -> Moved:
    """The same for one thread's share of a parallel loop; what all threads read enters a shared cache once for all."""
    found = []
    for number, cache in enumerate(pricer.target.caches):
        if pricer.summary(part).fits[number] or pricer.summary(body).fits[number]:
            own, everyone = pricer.touched(part), pricer.touched(whole)
            total = 0.0
            for source, size in own.items():
                common = cache.shared and size == everyone[source]
                total += size * pricer.weight(source, part, number) / (threads if common else 1)
            found.append(total)
        else:
            found.append(moved[number] * steps)
    return tuple(found)


def widen(body: Block, axis: str, size: int) -> Block:
    """The block of a loop over ``axis`` that covers ``size`` positions; a shared axis makes stages whole."""
    sizes = dict(body.sizes)
    if axis in ("rows", "outer"):
        sizes = {name: n for name, n in sizes.items() if name in ("rows", "outer")}
    sizes[axis] = size
    sizes = {name: n for name, n in sizes.items() if not name.startswith("point")}
    return Block(body.stages, tuple(sorted(sizes.items())), body.packed)


def join(one: Block, two: Block) -> Block:
    """The block of two bodies one after the other."""
    return Block(one.stages | two.stages, tuple(sorted({*one.sizes, *two.sizes})), one.packed | two.packed)


def loop_steps(
    pricer: Pricer, block: Block, axis: str, n: int, step: int, kept: float | None = None
) -> tuple[float, float]:
    """(steps, the last one counted by its share of compute; seconds of loop control).

    ``kept``: the part of its work that a step does, by default the average of all.
    """
    stage = min(block.stages)
    form = pricer.problem.stages[stage]
    rest = n % step
    share = 0.0
    if rest:
        shared = axis in ("rows", "outer")
        share = rest / step if shared else pricer.ratio(stage, plain_axis(axis), step, rest)
    slot, pages = pricer.target.slot(form.dtype), pricer.target.pages
    control = c.LOOP * slot
    kept = pricer.needed(axis, step) if kept is None else kept
    if not form.contraction:
        steps, own = ceil_div(n, step), plain_axis(axis)
        straight = steps <= c.UNROLLED and form.reduced(own) and n == form.extent(own)
        return kept * (n // step + share), 0.0 if straight else steps * control + c.START * slot
    sizes = dict(block.sizes)
    if stage in pricer.streamed and axis[0] == "n" and sizes.get(f"k{stage}", 1) < form.extent("k"):
        control += c.RESTART
    piece = sizes.get(f"n{stage}", 1) * form.kernel.out.dtype.itemsize
    if form.contraction and axis[0] == "m" and n > pages.at_hand and piece < pages.nbytes <= form.result_row_bytes:
        last = sizes.get(f"k{stage}", 1) / max(form.extent("k"), 1)  # of its steps, which others only add to sums
        control += step * last * pages.slots * slot  # results go out as pieces of rows
    return kept * (n // step + share), ceil_div(n, step) * control


def order_counts(pricer: Pricer, body: Block, axis: str) -> bool:
    """Whether what a loop over ``axis`` costs depends on the loops inside of it: in maps and reductions."""
    form = pricer.problem.stages[min(body.stages)]
    return not form.contraction and plain_axis(axis) in form.own


def inner_seconds(
    pricer: Pricer,
    body: Block,
    axis: str,
    block: int,
    loops: tuple[str, ...],
    tile: tuple[tuple[str, int], ...],
    stream: bool,
    peel: bool = False,
) -> float | None:
    """Seconds that every step of a loop over ``block`` adds to its body in a map or reduction; None if not legal.

    ``loops``: axes of the loops in the body, outermost first; ``tile``: axes and sizes of its tile; ``stream``: its
    results go past the caches; ``peel``: the loop is peeled, which takes from what its steps compute.
    """
    if not order_counts(pricer, body, axis):
        return 0.0
    stage, axis = min(body.stages), plain_axis(axis)
    form, slots = pricer.problem.stages[stage], 0.0
    if peel or form.reduced(axis):
        sizes = {plain_axis(a): n for a, n in body.sizes}
        added = loop_slots(form, pricer.target, sizes, axis, loops, tile)
        if added is None:
            return None
        slots = added - (peeled_slots(form, pricer.target, sizes, axis, tile) if peel else 0.0)
    key = body, axis, block, stream
    jumps = pricer.jumps.get(key)
    if jumps is None:
        extents = pricer.extents(stage, body)
        jumps = jump_seconds(form, pricer.problem, pricer.target, pricer.standing, extents, axis, block, stream)
        pricer.jumps[key] = jumps
    return slots * pricer.target.slot(form.dtype) + jumps


def split_seconds(pricer: Pricer, block: Block, axis: str, n: int, step: int) -> float:
    """Seconds of the pass that combines what the steps of a split reduction left."""
    form = pricer.problem.stages[min(block.stages)]
    lanes = lanes_of(form, pricer.target)
    parts, vectors = ceil_div(n, step), ceil_div(max(1, form.kernel.results), lanes)
    threads = pricer.target.threads if form.kernel.results > lanes else 1
    slots = 2 * parts * vectors * len(form.combines) / threads + 2 * c.START
    return pricer.barrier + slots * pricer.target.slot(form.dtype)


def sums_bytes(pricer: Pricer, block: Block, axis: str, n: int, step: int) -> float:
    """Scratch for partial sums where a loop blocks the reduced axis of a contraction."""
    if axis[0] != "k" or step >= n:
        return 0.0
    sizes, stage = dict(block.sizes), int(axis[1:])
    return float(sizes.get(f"m{stage}", 1) * sizes.get(f"n{stage}", 1) * pricer.problem.stages[stage].dtype.itemsize)


def pack_moved(pricer: Pricer, stage: int, factor: str, body: Block) -> tuple[float, Moved, Moved, float]:
    """(seconds of the copy, bytes that it adds, bytes saved in the body because it lies in cache, its bytes).

    What comes from beyond the second space counts as seconds, for it is waited for; so does what tiles are not charged.
    """
    known = pricer.packs.get((stage, factor, body))
    if known is not None:
        return known
    form = pricer.problem.stages[stage]
    extra, sources = pricer.pack(stage, factor, body)
    copy = pricer.touched(body)["packed", stage, factor]
    added, saved, waits = [], [], [0.0]
    for number, (cache, origin) in enumerate(zip(pricer.target.caches, pricer.target.origins, strict=True)):
        reads = sum(size * pricer.weight(source, body, number) for source, size in sources.items())
        kept = copy <= cache.capacity * (form.share if number and factor == "b" else c.BLOCK_SHARE)
        moved = reads + (0.0 if kept else 2.0 * copy)
        if number:  # a copy has no arithmetic to hide behind
            waits.append(moved / origin.bandwidth)
        added.append(0.0 if number else moved)
        saved.append(float(copy) if kept and pricer.summary(body).fits[number] else 0.0)
    extra += max(waits) + pricer.uncharged(added[0])
    found = extra, tuple(added), tuple(saved), float(copy)
    pricer.packs[stage, factor, body] = found
    return found


def total_seconds(pricer: Pricer, compute: float, moved: Moved, fixed: float, scratch: float) -> float:
    """What a nest is ranked by. Scratch pushes other data out of the caches: part of it is fetched again later."""
    target = pricer.target
    taken = target.seconds(compute, moved) - pricer.uncharged(moved[0])
    return taken + fixed + scratch * c.EVICTS / target.outer.bandwidth

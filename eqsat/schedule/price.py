"""Footprints and costs of blocks and tiles of one problem on one target, shared by the search and the evaluator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from eqsat.cost import calibration as c
from eqsat.cost.movement import access_bytes, crowding, thrashes
from eqsat.cost.target import Moved, Target
from eqsat.ir.copied import goes_by_windows
from eqsat.ir.kernel import Load
from eqsat.ir.types import float32
from eqsat.schedule.domain import rows_inside, step_inside
from eqsat.schedule.forms import Factor, Source, StageForm
from eqsat.schedule.problem import Problem, plain_axis
from eqsat.schedule.read_again import read_again
from eqsat.schedule.standing import standing
from eqsat.schedule.tiles import best_tiles, ceil_div, round_up, step_slots, tile_seconds, update_seconds
from eqsat.schedule.vector_cost import op_slots, scattered_seconds, stored, tile_slots, transpose_slots, written
from eqsat.schedule.vectors import least_slots


@dataclass(frozen=True)
class Block:
    """What an e-class covers: which stages, named sizes, which factors are read as packed copies."""

    stages: frozenset[int]
    sizes: tuple[tuple[str, int], ...]
    packed: frozenset[tuple[int, str]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.stages, self.sizes, self.packed)))  # looked up again and again

    def __hash__(self) -> int:
        found: int = self.__dict__["_hash"]
        return found


@dataclass(frozen=True, slots=True)
class Summary:
    """Bytes a block touches in all; by cache, whether they stay resident and what then moves."""

    total: float
    fits: tuple[bool, ...]
    cold: Moved


class Pricer:
    """Footprints and prices of blocks of one problem on one target; shared by the search and the evaluator."""

    def __init__(self, problem: Problem, target: Target) -> None:
        self.problem, self.target = problem, target
        self.barrier = target.barrier
        self._extents: dict[tuple[int, Block], tuple[int, ...]] = {}
        self._touched: dict[Block, dict[Source, int]] = {}
        self._summaries: dict[Block, Summary] = {}
        self._weights: dict[tuple[Source, frozenset[int]], tuple[float, ...]] = {}
        self.packs: dict[tuple[int, str, Block], tuple[float, Moved, Moved, float]] = {}
        self.jumps: dict[tuple[Block, str, int, bool], float] = {}
        self.standing = standing(list(zip(problem.sizes, problem.const, strict=True)), target)
        self.streamed = frozenset(
            form.index
            for form in problem.stages
            if form.contraction and form.extent("m") <= c.FEW_ROWS and self.standing.streams
        )
        """Stages whose second factor comes from the outermost space, once, past a few rows."""
        self.resident = {False: self.standing.variable, True: self.standing.known}
        """By whether operands are constant: the caches that they are in when the kernel starts."""
        self.missed = self._missed()
        """By cache, the part of operands that are not constant which is read from further away."""

    def free(self, stage: int) -> frozenset[tuple[int, str]]:
        """The factors of a stage that come packed from compile time."""
        return frozenset((stage, factor.name) for factor in self.problem.stages[stage].factors if factor.free)

    def extents(self, stage: int, block: Block) -> tuple[int, ...]:
        """Extents of a block along the axes of a stage's kernel."""
        found = self._extents.get((stage, block))
        if found is None:
            found = self._extents[stage, block] = self.problem.stages[stage].extents(dict(block.sizes))
        return found

    def touched(self, block: Block) -> dict[Source, int]:
        """Bytes touched of each buffer over a block."""
        found = self._touched.get(block)
        if found is None:
            found = {}
            for stage in sorted(block.stages):
                extents = self.extents(stage, block)
                for source, size in self.problem.touched(stage, extents, block.packed).items():
                    found[source] = max(size, found.get(source, 0))
            self._touched[block] = found
        return found

    def summary(self, block: Block) -> Summary:
        found = self._summaries.get(block)
        if found is None:
            touched = self.touched(block)
            total = float(sum(touched.values()))
            caches = self.target.caches
            room = total + self._crowded(block)
            fits = tuple(room <= cache.capacity for cache in caches)
            entering = [(n, self.weights(s, block)) for s, n in touched.items()]
            cold = tuple([sum([n * weights[cache] for n, weights in entering]) for cache in range(len(caches))])
            found = self._summaries[block] = Summary(total, fits, cold)
        return found

    def _crowded(self, block: Block) -> float:
        """Bytes of the sets that a block of reductions leaves out beside those that it crowds.

        A tile of a contraction is told whether its rows crowd (see ``crowds``). Maps come back to few of their lines:
        counted for these, Winograd's transforms took other nests, and up to 17 % longer.
        """
        inner, more = self.target.inner, 0.0
        for form in (self.problem.stages[stage] for stage in block.stages if inner.sets):
            summed = form.kernel.combine is not None and not form.contraction
            extents = self.extents(form.index, block) if summed else ()
            for access in form.accesses if summed else ():
                size = access.dtype.itemsize
                times = crowding(access.strides, extents, size, inner.sets * inner.line, inner.line) / c.STAY
                more += (times - 1) * access_bytes(access, extents, inner.line) if times > 1 else 0
        return more

    def least_compute(self) -> float:
        """Seconds of the units for all stages: by the register tiles of least waste, and by whole vectors."""
        total = 0.0
        for form in self.problem.stages:
            slot, lanes = self.target.slot(form.dtype), self.target.lanes(form.dtype)
            if not form.contraction:
                total += least_slots(form, self.target) * slot
                continue
            b, m, n, k = (form.extent(axis) for axis in "bmnk")
            rows, columns = best_tiles(self.target, form.dtype, m, n, 1)[0]
            tiles = max(1, self.problem.outer) * b * m * n / rows / columns
            inside = self.inside(form, 1, step_inside(form.kernel, form.named["k"]))
            total += inside * tiles * tile_seconds(self.target, form.dtype, rows, columns, k, False)
            total += _finish_slots(form, lanes) * form.kernel.results / lanes * slot
        return total * self.needed("rows", 1)

    def least_moved(self) -> Moved:
        """Bytes that all nests move: every operand once into each cache that it does not lie in already."""
        sizes: dict[Source, int] = {}
        for form in self.problem.stages:
            for source, size in self.problem.touched(form.index, form.kernel.extents, frozenset()).items():
                sizes[source] = max(size, sizes.get(source, 0))
        whole = Block(frozenset(form.index for form in self.problem.stages), (), frozenset())
        return tuple(
            sum(n * self.weight(source, whole, cache) for source, n in sizes.items() if source[0] == "operand")
            for cache in range(len(self.target.caches))
        )

    def most_saved(self) -> float:
        """Seconds that nests may save by results of maps that go past the caches."""
        maps = (form for form in self.problem.stages if form.kernel.combine is None and not form.contraction)
        kept = (form for form in maps if any(kind == "operand" for kind, _, _ in form.results))
        return sum(max(0.0, -self.bypass(form.kernel.results * stored(form))) for form in kept)

    def weight(self, source: Source, block: Block, cache: int) -> float:
        """How often a buffer's footprint enters a cache when the block is resident: 0, once, or twice if written."""
        return self.weights(source, block)[cache]

    def weights(self, source: Source, block: Block) -> tuple[float, ...]:
        """The same for every cache."""
        key = source, block.stages
        found = self._weights.get(key)
        if found is None:
            caches = range(len(self.target.caches))
            found = self._weights[key] = tuple([self._weight(source, block.stages, cache) for cache in caches])
        return found

    def _weight(self, source: Source, stages: frozenset[int], cache: int) -> float:
        kind, index, factor = source
        written = any(source in self.problem.stages[i].results for i in stages)
        if kind == "packed":
            stage = self.problem.stages[index]
            if not next(f for f in stage.factors if f.name == factor).free:
                return 1.0
            return 0.0 if self.resident[True][cache] else 1.0
        if kind == "stage":
            return 0.0 if written else 1.0
        if self.resident[self.problem.const[index]][cache]:
            return 0.0
        return (2.0 if written else 1.0) * (1.0 if self.problem.const[index] else self.missed[cache])

    def _missed(self) -> tuple[float, ...]:
        """All of them; of a loop's kernel, the last cache keeps what it holds from trip to trip."""
        *near, last = [1.0] * len(self.target.caches)
        if any(form.kernel.out.again for form in self.problem.stages):
            last = max(0.0, 1.0 - self.target.holds(self.target.caches[-1]) / max(1, sum(self.problem.sizes)))
        return (*near, last)

    @cached_property
    def fed(self) -> float:
        """The part of its wait that traffic from the second space, if that is a cache, is charged: of a kernel that is
        one product and no stream (see ``FEW_ROWS``), whose tiles have multiply-adds to hide most of it behind.
        """
        form, *more = self.problem.stages
        alone = not more and form.contraction and form.extent("m") > c.FEW_ROWS
        return c.FED if alone and len(self.target.caches) > 1 else 1.0

    def uncharged(self, nbytes: float) -> float:
        """Seconds that bytes from the second space are not waited for, of those that :meth:`Target.seconds` counts."""
        bandwidth, _, shown = self.target.rates[0]
        return (1 - self.fed) * nbytes * shown / bandwidth

    def tile(self, stage: int, m: int, n: int, k: int, a: bool, b: bool) -> float | None:
        """Seconds of a register tile with its share of the epilogue, or None when it cannot read a factor in place."""
        form = self.problem.stages[stage]
        target, dtype = self.target, form.dtype
        whole = form.extent("k")
        seconds = tile_seconds(target, dtype, m, n, k, k < whole)
        lanes = target.lanes(dtype)
        slot = target.slot(dtype)
        vectors = -(-n // lanes)
        inside = self.inside(form, m, k)
        if inside < 1:
            seconds = inside * seconds + m * vectors * (k / whole) * slot  # sums are 0 to begin with
        seconds += _finish_slots(form, lanes) * m * vectors * (k / max(whole, 1)) * slot
        first, second = form.factors
        if not a:
            if not first.in_place(m, k):
                return None
            row = target.rows("fma", dtype)[0]
            if row.steps > 1 and form.source(first.accesses[0])[0] == "operand":  # callers' arrays begin anywhere
                crossed = c.CROSSED * m / row.steps + vectors / target.ports.loads
                longer = max(0.0, crossed - step_slots(target, row, m, vectors))
                seconds += round_up(k, row.steps) * longer * slot
            if self.crowds(first.row_bytes, m):  # every broadcast fetches its line again
                seconds += m * k / row.steps * target.inner.line / target.refill
            seconds += self.parts_of_lines(first, m, k, n * dtype.itemsize)
        if not b:
            if not second.direct:
                return None
            size = dtype.itemsize
            far = second.row_bytes >= c.FAR_ROW_BYTES
            pieces = second.row_bytes > n * size and k * n * size > target.inner.capacity / 2
            if second.contiguous and (far or pieces):  # few cache sets, or pieces of rows from the next cache
                seconds += k * c.FAR_ROW * slot
                if self.crowds(second.row_bytes, min(k, target.inner.sets)):
                    seconds += k * n * size / target.refill
            if second.contiguous and far and second.row_bytes > n * size:
                seconds += k * n * size * m / form.extent("m") * self.first_read(form, second)
        return seconds

    def parts_of_lines(self, first: Factor, m: int, k: int, panel_row: int) -> float:
        """Seconds that a tile waits for lines of which it reads the ``m`` elements for a step of k, each step others.

        Where they are too many to stay for the next tile, beside the rows of the other panel, they come anew, and not
        in the order of memory.
        """
        inner = self.target.inner
        unread = inner.line - m * first.accesses[0].dtype.itemsize
        stays = k * (inner.line + panel_row) <= c.STAYS_FOR_NEXT * inner.capacity
        if stays or unread <= 0 or not first.contiguous or first.depth_bytes < inner.line:
            return 0.0
        return c.UNREAD * k * unread / self.target.refill

    def inside(self, form: StageForm, m: int, k: int) -> float:
        """The part of a contraction's rows to which steps of k add something (see ``eqsat.schedule.domain``)."""
        if self.problem.rows or not form.kernel.domain:
            return 1.0
        found = rows_inside(form.kernel, form.named["m"], form.named["k"], m, k)
        return found[0] if found else 1.0

    def ask(self, stage: int, m: int, n: int, k: int) -> tuple[float, float]:
        """Seconds of the units in which a tile asks for its share of the next panel, and the wait that this saves.

        A factor that fits into the second space is there as often as not, unless it is constant: those of other
        kernels have passed since.
        """
        form = self.problem.stages[stage]
        asks = k * c.LOAD_SLOTS * self.target.slot(form.dtype)
        (access,) = form.factors[1].accesses
        kind, index, _ = form.source(access)
        one = min(self.target.rows("fma", form.dtype)[0].size("m"), c.FEW_ROWS)
        if kind != "operand" or form.extent("m") <= one:  # a stream of one tile, which asks for its own panel ahead
            return asks, 0.0
        size = self.problem.sizes[index]
        if not self.problem.const[index] and size <= self.target.middle[0].capacity:
            return asks, 0.0
        waits = k * n * form.dtype.itemsize * m / form.extent("m") * self.first_read(form, form.factors[1])
        return asks, c.ASKED * waits

    def first_read(self, form: StageForm, factor: Factor) -> float:
        """Seconds a byte until pieces of a factor's rows have come from beyond the second space, where they are.

        No hardware prefetcher follows pieces of a few lines, each on a page of its own: they are waited for, once,
        like what is copied (see ``pack_moved``).
        """
        (access,) = factor.accesses
        kind, index, _ = form.source(access)
        if kind != "operand":
            return 0.0
        at_hand = self.resident[self.problem.const[index]]
        far = zip(at_hand[1:], self.target.origins[1:], strict=True)
        return max((1 / origin.bandwidth for here, origin in far if not here), default=0.0)

    def crowds(self, row_bytes: int, rows: int) -> bool:
        """Whether rows that far apart evict one another from the innermost cache."""
        inner = self.target.inner
        return thrashes(row_bytes, rows, inner.sets, inner.ways, inner.line)

    def update(self, stage: int, m: int, n: int, k: int, a: bool) -> float | None:
        """Seconds of a rank update with its share of the epilogue, or None when it cannot read a factor in place."""
        form = self.problem.stages[stage]
        first, second = form.factors
        if not (a or first.direct) or not second.stored:
            return None
        target = self.target
        slot, pages = target.slot(form.dtype), target.pages
        seconds = update_seconds(target, form.dtype, m, n, k)
        lanes = target.lanes(form.dtype)
        vectors = -(-n // lanes)
        seconds += _finish_slots(form, lanes) * m * vectors * (k / max(form.extent("k"), 1)) * slot
        seconds += second.slots * c.WIDENED * k * vectors * slot
        if not a and self.crowds(first.row_bytes, m):
            seconds += m * k * target.inner.line / target.refill
        if n * second.stored < pages.nbytes <= second.row_bytes:
            seconds += k * pages.slots * slot  # pieces of rows
            seconds += k * n * second.stored * self.first_read(form, second)
        return seconds

    def vector(
        self,
        stage: int,
        other: str,
        count: int,
        axis: str,
        size: int,
        stream: bool = False,
        prefetch: bool = False,
    ) -> tuple[float, float]:
        """Seconds of a tile of a map or reduction, and those that its traffic adds to (or saves of) the usual."""
        form = self.problem.stages[stage]
        other, axis = plain_axis(other), plain_axis(axis)
        slots = tile_slots(form, self.target, other, count, axis, size)
        sizes = {other: count, axis: size}
        extra = self.bypass(written(form, sizes)) if stream else 0.0
        again = self.again.get(stage, {}).get(axis, ())
        if prefetch:
            slots += sum(c.LOAD_SLOTS * ceil_div(size * load.dtype.itemsize, self.problem.line) for load in again)
        elif again:
            extra += self.exposed(form, again, size, slots * self.target.slot(form.dtype))
        return slots * self.target.slot(form.dtype), extra

    @cached_property
    def again(self) -> dict[int, dict[str, tuple[Load, ...]]]:
        """See :func:`~eqsat.schedule.read_again.read_again`."""
        return read_again(self.problem, self.target)

    @cached_property
    def ahead(self) -> tuple[float, float]:
        """Seconds that rows take to ask for what contractions read at the next outer position, and that this saves.

        What comes from beyond the second space is waited for where a position begins, as far as traffic does not hide;
        asked for ahead it hides behind arithmetic.
        """
        slots = saved = 0.0
        for share in self.problem.shares:
            slots += self.problem.rows * len(share.lines()) * c.LOAD_SLOTS
            at_hand = self.resident[self.problem.const[share.source]]
            for number, (bandwidth, _, shown) in enumerate(self.target.rates):
                if number and not at_hand[number]:
                    saved += self.problem.rows * share.piece * shown / bandwidth
        return slots * self.target.slot(float32), saved

    def exposed(self, form: StageForm, again: tuple[Load, ...], size: int, seconds: float) -> float:
        """Seconds of a sweep over what an earlier one waited for that stand beside that wait, instead of behind it.

        Out-of-order execution looks a few hundred instructions ahead, so the next row is not asked for while this one
        is computed on.
        """
        wait = 0.0
        for load in again:
            _, operand, _ = form.sources[load.operand]
            for number, (bandwidth, _, _) in enumerate(self.target.rates):
                if number and not self.resident[self.problem.const[operand]][number]:
                    wait += size * load.dtype.itemsize / bandwidth
        return min(self.target.hidden * seconds, wait)

    def transpose(self, stage: int, first: str, second: str, lanes: int, stream: bool = False) -> tuple[float, float]:
        """The same of a transposed block."""
        form = self.problem.stages[stage]
        first, second = plain_axis(first), plain_axis(second)
        slots = transpose_slots(form, self.target, first, second, lanes)
        extra = self.bypass(written(form, {first: lanes, second: lanes})) if stream else 0.0
        wait = 0.0 if stream else scattered_seconds(form, self.target, lanes)
        return slots * self.target.slot(form.dtype) + wait, extra

    def op(self, stage: int, name: str, sizes: tuple[tuple[str, int], ...]) -> float:
        """Seconds of a tile operation of the target's table, with its share of the epilogue."""
        form = self.problem.stages[stage]
        slots = op_slots(form, self.target, name, {plain_axis(axis): size for axis, size in sizes})
        return slots * self.target.slot(form.dtype)

    def bypass(self, nbytes: float) -> float:
        """Seconds by which bytes of results that go to memory at once are later than those that caches take in first.

        What is stored through a cache is read into it and written back; what goes past it is read from memory later.
        While a kernel's operands take less than half of what the last cache keeps, they are taken to be found there.
        """
        stays, passes = (0.0, 2.0) if self.standing.held else (3.0, 2.0)
        return nbytes * (passes - stays) / self.target.outer.bandwidth

    def needed(self, axis: str, step: int) -> float:
        """The part of its work that a loop's steps do on average: blocks of rows leave out columns."""
        columns = self.problem.columns
        return columns.needed(step) if columns is not None and axis == "rows" else 1.0

    def busiest(self, axis: str, step: int, cyclic: bool) -> float:
        """The same of the thread with most work, next to whole steps of a share that is as long as any."""
        columns = self.problem.columns
        return columns.busiest(step, self.target.threads, cyclic) if columns is not None and axis == "rows" else 1.0

    def pack(self, stage: int, factor: str, block: Block) -> tuple[float, dict[Source, int]]:
        """Seconds of the units to copy a factor's block, and the bytes it touches of its sources."""
        form = self.problem.stages[stage]
        it = next(f for f in form.factors if f.name == factor)
        extents = self.extents(stage, block)
        points = 1
        for axis in it.axes:
            points *= extents[axis]
        touched = self.problem.touched(stage, extents, block.packed - {(stage, factor)})
        sources = {form.source(access): 0 for access in it.accesses}
        for source in sources:
            sources[source] = touched.get(source, 0)
        per_vector = c.PACK_ROWS if it.contiguous or factor == "a" else c.PACK_TRANSPOSED
        lanes = self.target.lanes(form.dtype)
        piece = min(it.piece, dict(block.sizes).get(f"m{stage}", lanes), lanes)
        slots = points / (piece or lanes) * (per_vector + it.slots)
        rows = dict(block.sizes).get(f"m{stage}", 1)
        if factor == "a" and it.contiguous_rows and rows < form.extent("m"):
            slots += c.PAGE * points / rows  # rows of the copy are pieces of rows
        if not piece and 0 < it.run < min(lanes, form.extent("k")):
            # a row of the copy is so many pieces, each of which has to be found
            depth = dict(block.sizes).get(f"k{stage}", 1)
            if goes_by_windows(it.window, depth, lanes):
                slots = max(slots, points / it.window[1] * c.WINDOW_ROW)
            else:
                slots = max(slots, points / it.run * c.SHORT_PIECE)
        seconds = (slots + 2 * c.CALL) * self.target.slot(form.dtype)
        if it.apart:
            seconds += it.apart * points * self.lane(form, swept(form, it, extents, lanes))
        return seconds, sources

    def lane(self, form: StageForm, swept: int) -> float:
        """Seconds of one lane of a load whose lanes lie apart, in a copy that comes back after so many positions.

        Where these are more lines than the first space has room for, each is fetched again for its next element.
        """
        inner, lane = self.target.inner, self.target.ports.lane * self.target.slot(form.dtype)
        return lane if swept * inner.line <= inner.capacity else max(lane, inner.line / self.target.refill)

    def ratio(self, stage: int, axis: str, step: int, rest: int) -> float:
        """Compute of a last, shorter step next to a whole one."""
        form = self.problem.stages[stage]
        if form.contraction and axis == "n":
            lanes = self.target.lanes(form.dtype)
            return -(-rest // lanes) / -(-step // lanes)
        if form.contraction and axis == "m":
            rows = self.target.rows("fma", form.dtype)
            row = min((r for r in rows if r.size("m") >= step), key=lambda r: r.size("m"), default=rows[0])
            vectors = row.size("n")
            return step_slots(self.target, row, rest, vectors) / step_slots(self.target, row, step, vectors)
        return rest / step


def swept(form: StageForm, factor: Factor, extents: Sequence[int], lanes: int) -> int:
    """Lines that a copy which loads lane by lane touches until it reads the next element of the first of them.

    A first factor's rows are copied along k one after the other. A second factor's vectors are along its columns, and
    where it is contiguous along one of these, the others behind that come first, each for all of k; else the next
    element is along k, and in the same lines.
    """
    depth = math.prod(extents[axis] for axis in form.named["k"])
    if factor.name == "a" and not factor.piece:
        return depth
    axes = form.named["m" if factor.name == "a" else "n"]
    near = [n for n, axis in enumerate(axes) if any(abs(load.strides[axis]) == 1 for load in factor.accesses)]
    inner = axes[near[-1] + 1 :] if near else ()
    passed = math.prod(extents[axis] for axis in inner)
    return max(lanes, depth * passed) if passed > 1 else lanes


def _finish_slots(form: StageForm, lanes: int) -> float:
    """Slots to finish a vector of a contraction's results: their epilogue, and stores that have to be cut."""
    run = form.result_run
    pieces = lanes / run if 0 < run < min(lanes, form.extent("n")) else 0.0
    return form.epilogue_slots + pieces * c.SHORT_PIECE

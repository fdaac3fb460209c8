"""Groups with contractions: attention, multi-layer perceptrons, products with a softmax or a layer norm behind them.

Blocks of rows (positions of the last shared axis) go through all stages one after the other, and what flows
between stages stays in a scratch that fits the second-level cache. The second factors of contractions are packed
once for all blocks of rows that use them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from eqsat.ir.kernel import Expr, FromStage, Kernel, KernelGroup, Load, Stage, rewrite_kernel, walk
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, show
from eqsat.schedule.tiles import EVEN_STEPS, balanced, ceil_div, round_up
from eqsat_backends.numba_cpu.ahead import UNIT_BYTES, Share, share_of
from eqsat_backends.numba_cpu.axes import map_strides, simplify
from eqsat_backends.numba_cpu.contract import in_place, needs_copy, packs_for
from eqsat_backends.numba_cpu.contract_layout import padded_row, tile_size
from eqsat_backends.numba_cpu.contract_printer import ContractPrinter
from eqsat_backends.numba_cpu.emitted import Emitted, PackSpec
from eqsat_backends.numba_cpu.factors import Contraction, contraction_of, depends_on, loads, plain
from eqsat_backends.numba_cpu.nests import WIDE, Place, Rows, place_of
from eqsat_backends.numba_cpu.places import weight
from eqsat_backends.numba_cpu.printer import Printer
from eqsat_backends.numba_cpu.source import Module, Scratch, address, minus
from eqsat_backends.numba_cpu.target import host
from eqsat_backends.numba_cpu.tiles import tile_shape

BLOCK_BYTES = 96 * 1024
"""Bytes of intermediates in flight, which choose the number of rows of a block."""

SHORT = 16
"""Vectors of a row up to which all rows are reduced before any is used."""

CHAIN = 512
"""Steps of k after which partial sums are put down, which bounds the rounding error."""


@dataclass(frozen=True)
class _Product:
    """A stage that is a contraction over a block of rows: its kernel over local places, its tile, its packing."""

    stage: int
    contraction: Contraction
    tile: TileOp
    per_row: int  # positions of m for one row
    pack: bool
    prepacked: bool
    by_outer: bool  # the second factor depends on the outer shared axes


def emit(group: KernelGroup, nest: Nest | None = None, *, lanes: int | None = None) -> Emitted:
    """Print a group of several stages, some of which are contractions.

    ``nest`` chooses the number of rows of a block; tiles and packing follow from shapes. ``lanes``: float32
    lanes of a vector (the machine's by default).

    Raises:
        ValueError: the stages share no axis.
    """
    if group.shared < 1:
        raise ValueError(f"the stages of group {group.name!r} share no axis, so they cannot run block by block")
    simple = simplify(group)
    stages = tuple(replace(stage, kernel=_without_unit_steps(stage.kernel)) for stage in simple.stages)
    return _Blocks(replace(simple, stages=stages), nest, lanes or host().lanes()).emit()


def _without_unit_steps(kernel: Kernel) -> Kernel:
    """The kernel with strides of 0 along axes of extent 1, where a stride means nothing."""

    def zero(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(0 if extent == 1 else s for s, extent in zip(strides, kernel.extents, strict=False))

    body, epilogue = map_strides(kernel.body, zero), map_strides(kernel.epilogue, zero)
    return replace(kernel, body=body, epilogue=epilogue, store_strides=zero(kernel.store_strides))


class _Blocks:
    def __init__(self, group: KernelGroup, nest: Nest | None, lanes: int) -> None:
        self.group, self.nest = group, nest
        wide = any(stage.kernel.body.dtype.name == "float64" for stage in group.stages if stage.kernel.combine == "sum")
        self.lanes = max(2, lanes // 2) if wide else lanes
        self.p, self.module = Printer(self.lanes), Module("")
        self.scratch, self.shared = Scratch(), Scratch()
        self.bases = [f"x{i}" for i in range(len(group.operands))]
        first = group.stages[0].kernel.extents
        self.outer = first[: max(0, group.shared - 1)]
        self.rows = first[group.shared - 1] if group.shared else 1
        self.places: dict[int, Place] = {}
        self.products: dict[int, _Product] = {}

    def emit(self) -> Emitted:
        group = self.group
        local = [self._candidate(stage, stage.kernel) for stage in group.stages]
        self.products = {n: product for n, product in enumerate(local) if product}
        self.block = self._block_rows()
        self._make_places()
        self.products = {n: self._product(n) for n in self.products}
        phases = self._pack_phases()
        phases.append("blocks")
        with self.p.scope("def blocks(args, tid, nt):", "args", "tid", "nt"):
            self._arguments()
            if all(stage.kernel.results for stage in group.stages if stage.result is not None):
                self._units()
            else:
                self.p.line("return")
        thread_bytes = -(-self.scratch.bytes // 64) * 64
        self.module.title = self._describe()
        source = self.module.render(self.p.text().replace("THREAD_BYTES", str(thread_bytes)))
        return Emitted(source, tuple(phases), self.shared.bytes, thread_bytes, tuple(self._packs()))

    # planning

    def _candidate(self, stage: Stage, kernel: Kernel) -> _Product | None:
        """The contraction that a stage is on a block of rows; None where it has to go row by row."""
        fixed = len(self.outer)
        c = contraction_of(kernel, fixed, fixed if self.group.shared else None)
        if c is None or any(isinstance(stage.sources[load.operand], FromStage) for load in _loads_of(c.b)):
            return None
        rows, vectors = tile_shape(self.lanes * c.dtype.itemsize // 4)
        per_row = c.extent("m") // max(1, self.rows)
        chain = min(max(1, c.extent("k")), CHAIN)
        tile = TileOp("fma", (("m", rows), ("n", vectors * self.lanes), ("k", chain)))
        load = plain(c.b, c.dtype)
        by_outer = bool(depends_on(c.b) & set(range(fixed)))
        uses = 0
        if load is not None:
            uses = sum(s == stage.sources[load.operand] for s in self._reads())
        const = load is not None and c.kernel.operands[load.operand].const and uses == 1 and not by_outer
        pack = not const and not in_place(c, *tile_size(c, tile, self.lanes))
        return _Product(-1, c, tile, per_row, pack, const, by_outer)

    def _reads(self) -> list[int | FromStage]:
        return [stage.sources[load.operand] for stage in self.group.stages for load in loads(stage.kernel)]

    def _block_rows(self) -> int:
        """Rows that go through all stages together: enough blocks to share out, a few even ones or whole tiles."""
        tile = max((product.tile.size("m") for product in self.products.values()), default=1)
        asked = _rows_step(self.nest)
        if asked is None:
            outer = max(1, math.prod(self.outer))
            kept = sum(s.kernel.out.dtype.itemsize * s.kernel.results for s in self.group.stages if s.result is None)
            asked = BLOCK_BYTES // max(1, kept // (outer * max(1, self.rows)))
            asked = min(asked, 8 * tile, -(-self.rows * outer // 8))
        if self.rows <= tile:
            return max(1, self.rows)
        asked = max(1, asked)
        few = ceil_div(self.rows, asked) <= EVEN_STEPS
        return balanced(self.rows, asked) if few else round_up(asked, tile)

    def _make_places(self) -> None:
        """Scratch for results that are read by another run of stages, or by a contraction."""
        group = self.group
        wanted = set(Rows(self.p, group, self.bases, {}).needs_place()) | set(self.products)
        run = self._runs()
        for number, stage in enumerate(group.stages):
            for load in loads(stage.kernel):
                source = stage.sources[load.operand]
                if isinstance(source, FromStage) and run[source.stage] != run[number]:
                    wanted.add(source.stage)
        for number in sorted(wanted):
            kernel = group.stages[number].kernel
            if group.stages[number].result is not None:
                continue
            size = kernel.out.dtype.itemsize
            _, length = place_of(kernel, group.shared, "")
            pitch = padded_row(length * size) // size if length * size > 64 else length
            pitches = (*(0 for _ in self.outer), pitch)[-group.shared :] if group.shared else ()
            self.places[number], _ = place_of(kernel, group.shared, f"s{number}", pitches)

    def _runs(self) -> list[int]:
        """For each stage, which run of stages it is in: a contraction alone, or neighbours that go row by row.

        What needs the reduction of a short row starts a run of its own. All rows are reduced first: the latency of
        combining a vector's lanes hides behind other rows, where in one run it would stand between a row's sweeps.
        """
        runs: list[int] = []
        for number, stage in enumerate(self.group.stages):
            joins = number and number not in self.products and number - 1 not in self.products
            for source in stage.sources if joins else ():
                if isinstance(source, FromStage) and runs[source.stage] == runs[-1]:
                    joins = joins and not self._latency_bound(self.group.stages[source.stage].kernel)
            runs.append(runs[-1] if joins else number)
        return runs

    def _latency_bound(self, kernel: Kernel) -> bool:
        """Whether a kernel reduces rows of so few vectors that combining lanes at their ends is what takes time."""
        return kernel.combine is not None and math.prod(kernel.extents[kernel.parallel :]) <= SHORT * self.lanes

    def _local(self, number: int) -> Kernel:
        """A stage's kernel as it sees the places of the block: loads and store moved there."""
        stage = self.group.stages[number]

        def moved(expr: Expr) -> Expr:
            source = stage.sources[expr.operand] if isinstance(expr, Load) else None
            if not isinstance(expr, Load) or not isinstance(source, FromStage) or source.stage not in self.places:
                return expr
            access = self.places[source.stage].access(expr)
            strides = access.gathers if access.gathers is not None else tuple(s for _, s in expr.gathers)
            gathers = tuple((index, s) for (index, _), s in zip(expr.gathers, strides, strict=True))
            return replace(expr, offset=access.offset, strides=access.strides, gathers=gathers)

        kernel = rewrite_kernel(stage.kernel, moved)
        place = self.places.get(number)
        if place is None:
            return kernel
        shared = self.group.shared
        strides = (*place.shared, *(place.move(s) for s in kernel.store_strides[shared:]))
        return replace(kernel, store_offset=0, store_strides=strides)

    def _product(self, number: int) -> _Product:
        product = self._candidate(self.group.stages[number], self._local(number))
        assert product is not None
        return replace(product, stage=number)

    def _stage_nest(self, product: _Product) -> Nest:
        """Loops of one contraction over one block of rows."""
        c, tile = product.contraction, product.tile
        rows, columns = tile_size(c, tile, self.lanes)
        nest: Nest = tile
        if c.extent("k") > CHAIN:
            nest = Loop("k", c.extent("k"), CHAIN, nest)
        nest = Loop("n", c.extent("n"), columns, Loop("m", self.block * product.per_row, rows, nest))
        if needs_copy(c, rows):
            nest = Pack("a", nest)
        if c.batch and product.pack and product.by_outer:
            nest = Pack("b", nest)
        return Loop("b", c.extent("b"), 1, nest) if c.batch else nest

    def _packs(self) -> list[PackSpec]:
        found: list[PackSpec] = []
        for number, product in self.products.items():
            if product.prepacked:
                load = plain(product.contraction.b, product.contraction.dtype)
                assert load is not None
                places = [s if isinstance(s, int) else -1 for s in self.group.stages[number].sources]
                tile = tile_size(product.contraction, product.tile, self.lanes)
                found += packs_for(product.contraction, {load.operand: "b"}, places, tile)
        return found

    def _describe(self) -> str:
        parts = []
        for number, stage in enumerate(self.group.stages):
            extents = "×".join(map(str, stage.kernel.extents))
            product = self.products.get(number)
            parts.append(f"{extents}: {show(self._stage_nest(product)) if product else stage.kernel.combine or 'map'}")
        return f"{self.group.name}: blocks of {self.block} rows: " + "; ".join(parts)

    # printing

    def _arguments(self) -> None:
        count = len(self.group.operands)
        for number, base in enumerate(self.bases):
            self.p.bind(base, f"word(args, {number})")
        self.p.bind("shared", f"word(args, {count})")
        self.p.bind("scratch", f"word(args, {count + 1}) + THREAD_BYTES * tid")
        self.p.bind("status", f"word(args, {count + 2})")

    def _printer(self, number: int, fixed: tuple[str, ...]) -> ContractPrinter:
        """What prints the contraction of a stage."""
        product, stage = self.products[number], self.group.stages[number]
        bases = {}
        for operand, source in enumerate(stage.sources):
            if isinstance(source, FromStage) and source.stage in self.places:
                bases[operand] = self.places[source.stage].base
                continue
            place = self.group.stages[source.stage].result if isinstance(source, FromStage) else source
            assert place is not None
            bases[operand] = self.bases[place]
        store = self.places[number].base if number in self.places else self.bases[stage.result or 0]
        load = plain(product.contraction.b, product.contraction.dtype)
        packed = frozenset({load.operand} if product.prepacked and load else ())
        return ContractPrinter(
            self.module, self.p, self.scratch, product.contraction, bases, store, product.tile, fixed, packed
        )

    def _pack_phases(self) -> list[str]:
        """Second factors that all outer positions share: packed by all threads beforehand."""
        phases = []
        self.offsets: dict[int, int] = {}
        for number, product in self.products.items():
            if product.pack and not product.by_outer:
                phases.append(f"pack_{number}")
                with self.p.scope(f"def pack_{number}(args, tid, nt):", "args", "tid", "nt"):
                    self._arguments()
                    printer = self._printer(number, ("0",) * len(self.outer))
                    self.offsets[number] = printer.pack_shared("b", self.shared)
                self.p.line("")
                self.p.line("")
        return phases

    def _units(self) -> None:
        """The loop over this thread's blocks of rows."""
        p, blocks = self.p, -(-self.rows // self.block)
        units = math.prod(self.outer) * blocks
        private = [n for n, x in self.products.items() if x.pack and x.by_outer and not x.contraction.batch]
        if private:
            p.bind("packed", "-1")
        unit = p.fresh("unit")
        with p.scope(f"for {unit} in range({units} * tid // nt, {units} * (tid + 1) // nt):", unit):
            outer, start, stop = p.fresh("outer"), p.fresh("row"), p.fresh("row_stop")
            p.bind(outer, f"{unit} // {blocks}")
            p.bind(start, address("0", (self.block, f"{unit} % {blocks}")))
            p.bind(stop, f"min({start} + {self.block}, {self.rows})")
            fixed = self._coordinates(outer)
            for number, place in self.places.items():
                size = self.group.stages[number].kernel.out.dtype.itemsize
                pitch = (place.shared[-1] if place.shared else 0) * size
                offset = self.scratch.take(max(1, self._place_bytes(number)))
                p.bind(place.base, address("scratch", (1, str(offset)), (-pitch, start)))
            printers = {number: self._printer(number, fixed) for number in self.products}
            for number, offset in self.offsets.items():
                printers[number].sources["b"] = printers[number].panels("b", address("shared", (1, str(offset))))
            if private:
                with p.scope(f"if packed != {outer}:"):
                    for number in private:
                        printers[number].sources["b"] = printers[number].pack_private("b")
                    p.line(f"packed = {outer}")
            asks = self._asks(outer) if blocks == 1 and units > 1 else []
            self._stages(printers, fixed, start, stop, asks)

    def _asks(self, outer: str) -> list[tuple[str, Share]]:
        """Addresses, and shares of each row, of what the products of the next outer position read."""
        p, fixed = self.p, len(self.outer)
        wanted: dict[tuple[int, Load], Share] = {}
        for number, product in self.products.items():
            c, sources = product.contraction, self.group.stages[number].sources
            for load in (plain(c.a, c.dtype), plain(c.b, c.dtype)):
                source = sources[load.operand] if load else None
                share = share_of(load, c.kernel.extents, fixed, self.rows) if load else None
                if load and share and isinstance(source, int):
                    wanted[source, replace(load, operand=0)] = share
        if not wanted or sum(share.piece for share in wanted.values()) * self.rows > UNIT_BYTES:
            return []
        following = p.fresh("following")
        p.bind(following, f"{outer} + 1")
        where = self._coordinates(following)
        asks = []
        for (source, load), share in wanted.items():
            ahead, size = p.fresh("ahead"), load.dtype.itemsize
            terms = [(size * stride, at) for stride, at in zip(load.strides, where, strict=False)]
            p.bind(ahead, address(self.bases[source], (size, str(load.offset)), *terms))
            asks.append((ahead, share))
        return asks

    def _coordinates(self, outer: str) -> tuple[str, ...]:
        """Names of the positions along the outer shared axes."""
        if len(self.outer) <= 1:
            return (outer,) * len(self.outer)
        names, below = [], math.prod(self.outer)
        for axis, extent in enumerate(self.outer):
            below //= max(1, extent)
            names.append(self.p.fresh("o"))
            text = f"{outer} // {below}" if below > 1 else outer
            self.p.bind(names[-1], text if axis == 0 else f"{text} % {extent}")
        return tuple(names)

    def _place_bytes(self, number: int) -> int:
        kernel, place = self.group.stages[number].kernel, self.places[number]
        row = place.shared[-1] if place.shared else place_of(kernel, self.group.shared, "")[1]
        return row * self.block * kernel.out.dtype.itemsize

    def _stages(
        self,
        printers: dict[int, ContractPrinter],
        fixed: tuple[str, ...],
        start: str,
        stop: str,
        asks: list[tuple[str, Share]],
    ) -> None:
        p, group = self.p, self.group
        rest = len(printers) < len(group.stages)
        wide = address("scratch", (1, str(self.scratch.take(WIDE * 8)))) if rest else None
        rows = Rows(p, group, self.bases, self.places, wide)
        runs = self._runs()
        work = {run: 0 for run in runs if run not in printers}
        for number, run in enumerate(runs):
            if run in work:
                work[run] += weight(group.stages[number].kernel)
        busiest = max(work, key=lambda run: work[run], default=None)  # requests hide best behind arithmetic
        for run in sorted(set(runs)):
            if run in printers:
                product, printer = self.products[run], printers[run]
                if group.shared:
                    scaled = product.per_row
                    printer.range["m"] = address("0", (scaled, start)), address("0", (scaled, stop))
                    printer.span["m"] = min(self.block, self.rows) * scaled
                    printer.block["m"], printer.limit["m"] = self.block * scaled, printer.range["m"][1]
                printer.walk(self._stage_nest(product))
                p.mark(f"stage {run}")
                continue
            members = [number for number, other in enumerate(runs) if other == run]
            if not group.shared:
                rows.emit((), members)
                continue
            row = p.fresh("r")
            with p.scope(f"for {row} in range({start}, {stop}):", row):
                for ahead, share in asks if run == busiest else ():
                    for line in share.lines():
                        p.line(f"prefetch({address(ahead, (share.step, minus(row, start)), (1, str(line)))})")
                rows.emit((*fixed, row), members)


def _loads_of(expr: Expr) -> list[Load]:
    return [part for part in walk(expr) if isinstance(part, Load)]


def _rows_step(nest: Nest | None) -> int | None:
    """The number of rows of a block that a nest asks for."""
    match nest:
        case Loop("rows", _, step):
            return step
        case Loop(body=body) | Pack(body=body):
            return _rows_step(body)
        case Seq(bodies):
            return next((step for step in map(_rows_step, bodies) if step), None)
        case _:
            return None

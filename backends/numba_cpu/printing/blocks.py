"""Groups of several stages: softmax, layer norm, attention, multi-layer perceptrons, products with those behind them.

Blocks of rows (positions of the last shared axis) go through all parts one after the other, and what flows
between stages stays in a scratch. How many rows a block has, which stages run row by row or in one sweep of a row, in
which loops each contraction runs and what is packed where is what the nest says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eqsat.ir.axes import map_strides, simplify
from eqsat.ir.contraction import Contraction, Product, contraction_of, loads, product_of
from eqsat.ir.kernel import Expr, FromStage, Kernel, KernelGroup, Load, rewrite_kernel
from eqsat.ir.nest import PRODUCTS, Loop, Nest, Pack, Seq, TileOp, show, tiles
from eqsat.schedule import below, check, is_parallel
from eqsat.schedule.ahead import Share, shares_of
from eqsat.schedule.domain import columns_of, common_grain
from eqsat.schedule.sweeps import aligned, sweeps
from eqsat_backends.numba_cpu.printing.contract import pack_spec
from eqsat_backends.numba_cpu.printing.contract_layout import Factor, padded_row, tile_size
from eqsat_backends.numba_cpu.printing.contract_printer import ContractPrinter, shaped
from eqsat_backends.numba_cpu.printing.emitted import Emitted, PackSpec
from eqsat_backends.numba_cpu.printing.nests import Place, Rows, place_of
from eqsat_backends.numba_cpu.printing.places import Window
from eqsat_backends.numba_cpu.printing.printer import Printer
from eqsat_backends.numba_cpu.printing.source import Module, Scratch, address, minus
from eqsat_backends.numba_cpu.target import Target


@dataclass(frozen=True)
class _Product:
    """A stage that is a contraction over a block of rows: over local places, its nest, and positions of m for a row."""

    contraction: Contraction
    nest: Nest
    tile: TileOp
    per_row: int


def emit(group: KernelGroup, nest: Nest, target: Target, varying: frozenset[int] = frozenset()) -> Emitted:
    """Print a group of several stages by a nest (see ``eqsat.ir.nest``). ``varying``: see ``emit.emit_group``.

    Raises:
        ValueError: the nest is not a legal one of the group.
    """
    check(nest, group, target.lanes(), target.registers, target.matrix)
    simple = simplify(group)
    stages = tuple(replace(stage, kernel=_without_unit_steps(stage.kernel)) for stage in simple.stages)
    return _Blocks(replace(simple, stages=stages), nest, target, varying).emit()


def _without_unit_steps(kernel: Kernel) -> Kernel:
    """The kernel with strides of 0 along axes of extent 1, where a stride means nothing."""

    def zero(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(0 if extent == 1 else s for s, extent in zip(strides, kernel.extents, strict=False))

    body, epilogue = map_strides(kernel.body, zero), map_strides(kernel.epilogue, zero)
    return replace(kernel, body=body, epilogue=epilogue, store_strides=zero(kernel.store_strides))


class _Blocks:
    def __init__(self, group: KernelGroup, nest: Nest, target: Target, varying: frozenset[int]) -> None:
        self.group, self.nest, self.target = group, nest, target
        vectors = {tile.lanes for tile in tiles(nest) if tile.name not in PRODUCTS}
        wide = any(group.stages[t.stage].kernel.body.dtype.bits == 64 for t in tiles(nest) if t.name in PRODUCTS)
        self.lanes = vectors.pop() if vectors else target.lanes(64 if wide else 32)
        self.p = Printer(self.lanes, varying=varying)
        self.module = Module(f"{group.name}: {show(nest)}")
        self.scratch, self.shared = Scratch(), Scratch()
        self.bases = [f"x{i}" for i in range(len(group.operands))]
        first = group.stages[0].kernel.extents
        self.fixed = max(0, group.shared - 1)
        self.rows = first[group.shared - 1] if group.shared else 1
        self.places: dict[int, Place] = {}
        sequence = below(nest)
        assert isinstance(sequence, Seq), "a nest of several stages, which has been checked"
        self.block = min(_step(nest, "rows"), self.rows)
        self.parts = sequence.bodies
        self.loop_nests = {tiles(p)[0].stage: p for p in self.parts if tiles(p)[0].name in PRODUCTS}
        self.products: dict[int, _Product] = {}
        self.ahead: set[int] = set()
        self.packed: dict[int, Factor] = {}
        """Where the second factors lie that are packed outside of the loop over rows."""

    def emit(self) -> Emitted:
        group = self.group
        products = {n: self._recognized(n) for n in self.loop_nests}
        self._make_places()
        self.products = {n: self._product(n, product) for n, product in products.items()}
        phases = self._shared_packings()
        phases.append("blocks")
        with self.p.scope("def blocks(args, tid, nt):", "args", "tid", "nt"):
            self._arguments()
            if not all(stage.kernel.results for stage in group.stages if stage.result is not None):
                self.p.line("return")
            else:
                elements = (p.contraction.dot.element.name for p in self.products.values())
                with shaped(self.p, self.module, next((e for e in elements if self._by_matrix(e)), "")):
                    if is_parallel(self.nest):
                        self._walk(self.nest, ("0",) * self.fixed)
                    else:
                        with self.p.scope("if tid == 0:"):
                            self._walk(self.nest, ("0",) * self.fixed)
            if any(tile.stream for tile in tiles(self.nest)):
                self.p.line("fence()")
        source = self.module.render(self.p.text().replace("THREAD_BYTES", str(self.scratch.bytes)))
        packs = tuple(self._pack_spec(number) for number in sorted(self.ahead))
        return Emitted(source, tuple(phases), self.shared.bytes, self.scratch.bytes, packs)

    # planning

    def _recognized(self, number: int) -> Product:
        stage = self.group.stages[number]
        late = [operand for operand, source in enumerate(stage.sources) if isinstance(source, FromStage)]
        product = product_of(stage.kernel, self.fixed, self.group.shared - self.fixed, late, self.target.matrix)
        if product is None:
            raise ValueError(f"stage {number} of group {self.group.name!r} is no contraction, its nest is one of it")
        return product

    def _product(self, number: int, product: Product) -> _Product:
        nest = self.loop_nests[number]
        c = contraction_of(self._local(number), product, self.fixed)
        return _Product(c, nest, _tile(nest), c.extent("m") // max(1, self.rows))

    def _make_places(self) -> None:
        """Scratch for results that are read by another part, or by a sweep that does not have them in a register.

        What the same part reads again row by row has one place for all rows.
        """
        group = self.group
        home: dict[int, tuple[int, int]] = {}
        for n, part in enumerate(self.parts):
            for m, sweep in enumerate(sweeps(part)):
                home |= {tile.stage: (n, m) for tile in tiles(sweep)}
        wanted = dict.fromkeys(self.loop_nests, True)
        for number, stage in enumerate(group.stages):
            for load in loads(stage.kernel):
                source = stage.sources[load.operand]
                if not isinstance(source, FromStage):
                    continue
                kernel = group.stages[source.stage].kernel
                if home[source.stage][0] != home[number][0]:
                    wanted[source.stage] = True
                elif kernel.parallel > group.shared and not (
                    home[source.stage] == home[number] and aligned(load, kernel)
                ):
                    wanted.setdefault(source.stage, False)
        for number, every in sorted(wanted.items()):
            kernel = group.stages[number].kernel
            if group.stages[number].result is not None:
                continue
            size = kernel.out.dtype.itemsize
            _, length = place_of(kernel, group.shared, "")
            pitch = padded_row(length * size) // size if length * size > 64 else length
            pitches = (*(0 for _ in range(self.fixed)), pitch if every else 0)[-group.shared :] if group.shared else ()
            self.places[number], _ = place_of(kernel, group.shared, f"s{number}", pitches)

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

    def _pack_spec(self, number: int) -> PackSpec:
        product = self.products[number]
        places = [s if isinstance(s, int) else -1 for s in self.group.stages[number].sources]
        return pack_spec(product.contraction, "b", places, tile_size(product.contraction, product.tile, self.lanes))

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
        ahead = "b" if number in self.ahead else ""
        c = product.contraction
        matrix = self._by_matrix(c.dot.element.name)
        printer = ContractPrinter(
            self.module, self.p, self.scratch, c, bases, store, product.tile, fixed, ahead, matrix
        )
        if number in self.packed:
            printer.sources["b"] = self.packed[number]
        return printer

    def _by_matrix(self, element: str) -> bool:
        return element in self.target.matrix and self.lanes == self.target.lanes()

    def _shared_packings(self) -> list[str]:
        """Print what all threads pack before the threads' loop; what is packed at compile time is noted."""
        phases, nest = [], self.nest
        while isinstance(nest, Loop | Pack):
            if isinstance(nest, Pack):
                number = int(nest.operand.partition("@")[2])
                if nest.ahead:
                    self.ahead.add(number)
                elif is_parallel(nest.body):
                    phases.append(f"pack_{number}")
                    with self.p.scope(f"def pack_{number}(args, tid, nt):", "args", "tid", "nt"):
                        self._arguments()
                        printer = self._printer(number, ("0",) * self.fixed)
                        offset = printer.pack_shared(nest, self.shared)
                    self.packed[number] = printer.panels("b", address("shared", (1, str(offset))), shared=True)
                    self.p.line("")
                    self.p.line("")
            nest = nest.body
        return phases

    def _walk(self, nest: Nest, fixed: tuple[str, ...], asks: Sequence[tuple[str, Share]] = ()) -> None:
        """Print a nest down to its stages. ``fixed``: positions of the outer axes; ``asks``: see :meth:`_asks`."""
        p = self.p
        match nest:
            case Pack(operand, body):
                number = int(operand.partition("@")[2])
                if number not in self.ahead and number not in self.packed:
                    p.line(f"# pack {operand}")
                    self.packed[number] = self._printer(number, fixed).pack_private(nest)
                self._walk(body, fixed, asks)
            case Loop("outer", block, _, body, parallel) if block > 1:
                position = p.fresh("outer")
                bounds = f"{block} * tid // nt, {block} * (tid + 1) // nt" if parallel else str(block)
                if nest.cyclic:
                    bounds = f"tid, {block}, 1 * nt"
                with p.scope(f"for {position} in range({bounds}):", position):
                    asking = any(isinstance(part, Loop) and part.prefetch for part in self.parts)
                    asks = self._asks(f"{position} + {'nt' if nest.cyclic else 1}") if asking else []
                    self._walk(body, self._coordinates(position), asks)
            case Loop("rows", block, step, body, parallel) if parallel or step < block:
                position, steps = p.fresh("rows"), -(-block // step)
                first, end, by = "0", str(block), str(step)
                if nest.cyclic:
                    first, by = f"{step} * tid", f"{step} * nt"
                elif parallel:
                    first, end = "rows_start", "rows_stop"
                    p.bind(first, address("0", (step, f"{steps} * tid // nt")))
                    p.bind(end, f"min({address('0', (step, f'{steps} * (tid + 1) // nt'))}, {block})")
                with p.scope(f"for {position} in range({first}, {end}, {by}):", position):
                    stop = p.fresh("stop")
                    p.bind(stop, f"min({position} + {step}, {end})")
                    self._stages(body, fixed, position, stop, asks)
            case Loop("rows", block, _, body):
                self._stages(body, fixed, "0", str(block), asks)
            case Loop(body=body):
                self._walk(body, fixed, asks)
            case _:
                raise ValueError(f"{show(nest)}: a sequence of stages is inside of the loop over rows")

    def _asks(self, outer: str) -> list[tuple[str, Share]]:
        """Addresses, and shares of each row, of what the products of the outer position ``outer`` read."""
        p = self.p
        following = p.fresh("following")
        p.bind(following, outer)
        where = self._coordinates(following)
        asks = []
        for share in shares_of(self.group, self.products):
            load = share.load
            ahead, size = p.fresh("ahead"), load.dtype.itemsize
            terms = [(size * stride, at) for stride, at in zip(load.strides, where, strict=False)]
            p.bind(ahead, address(self.bases[share.source], (size, str(load.offset)), *terms))
            asks.append((ahead, share))
        return asks

    def _coordinates(self, outer: str) -> tuple[str, ...]:
        """Names of the positions along the outer shared axes."""
        extents = self.group.stages[0].kernel.extents[: self.fixed]
        if len(extents) <= 1:
            return (outer,) * len(extents)
        names, below = [], math.prod(extents)
        for axis, extent in enumerate(extents):
            below //= max(1, extent)
            names.append(self.p.fresh("o"))
            text = f"{outer} // {below}" if below > 1 else outer
            self.p.bind(names[-1], text if axis == 0 else f"{text} % {extent}")
        return tuple(names)

    def _place_bytes(self, number: int) -> int:
        kernel, place = self.group.stages[number].kernel, self.places[number]
        pitch = place.shared[-1] if place.shared else 0
        length = pitch * self.block if pitch else place_of(kernel, self.group.shared, "")[1]
        return length * kernel.out.dtype.itemsize

    def _stages(
        self, nest: Nest, fixed: tuple[str, ...], start: str, stop: str, asks: Sequence[tuple[str, Share]]
    ) -> None:
        """Print all stages for the rows from ``start`` to ``stop``."""
        if not isinstance(nest, Seq):
            raise ValueError(f"{show(nest)}: nothing is between the loop over rows and the sequence of stages")
        p, group = self.p, self.group
        for number, place in self.places.items():
            pitch = (place.shared[-1] if place.shared else 0) * group.stages[number].kernel.out.dtype.itemsize
            offset = self.scratch.take(max(1, self._place_bytes(number)))
            p.bind(place.base, address("scratch", (1, str(offset)), (-pitch, start)))
        rows = Rows(p, group, self.bases, self.places, lambda n: address("scratch", (1, str(self.scratch.take(n)))))
        rows.window = self._window(rows, fixed, start, stop)
        for part in self.parts:
            number = tiles(part)[0].stage
            if number in self.products:
                product, printer = self.products[number], self._printer(number, fixed)
                if group.shared:
                    sizes = {self.block, self.rows % self.block} if self.block < self.rows else {self.rows}
                    low, high = (address("0", (product.per_row, end)) for end in (start, stop))
                    printer.narrow("m", low, high, frozenset(product.per_row * n for n in sizes))
                if rows.window is not None:
                    self._take(printer, product, rows.window)
                printer.walk(product.nest)
                p.mark(f"stage {number}")
                continue
            if not (isinstance(part, Loop) and part.axis == "rows"):
                rows.emit((*fixed, start)[: group.shared], sweeps(part))
                continue
            row = p.fresh("rows")
            with p.scope(f"for {row} in range({start}, {stop}):", row):
                for ahead, share in asks if part.prefetch else ():
                    for line in share.lines():
                        p.line(f"prefetch({address(ahead, (share.step, minus(row, start)), (1, str(line)))})")
                rows.emit((*fixed, row), sweeps(part))

    def _swept(self) -> list[Nest]:
        """The parts that run row by row."""
        return [part for part in self.parts if tiles(part)[0].name not in PRODUCTS]

    def _bounded(self, product: _Product) -> str | None:
        """The group of a contraction's axes that is the column axis, if that is one of them alone."""
        c = product.contraction
        moving = {
            a for index in c.kernel.domain for a, s in enumerate(index.strides) if s and a in (*c.batch, *c.n, *c.k)
        }
        return next((name for name in "nk" if c.group(name) and set(c.group(name)) == moving), None)

    def _window(self, rows: Rows, fixed: tuple[str, ...], start: str, stop: str) -> Window | None:
        """Print which columns the rows from ``start`` to ``stop`` need; None where all are taken."""
        p, group = self.p, self.group
        columns = columns_of(group) if self.products else None
        if columns is None:
            return None
        extent = columns.count
        grains = []
        for number, product in self.products.items():
            axis = self._bounded(product)
            if group.stages[number].kernel.domain and axis != "n":
                update = axis == "k" and product.tile.name == "update"
                grains.append(product.tile.size("k") if update else 1 if axis == "k" else extent)
        for part in self._swept():
            grains += rows.grains(sweeps(part))
        grain = common_grain(grains, extent)
        if grain >= extent:
            return None
        ends: dict[bool, list[str]] = {False: [], True: []}
        for bound in columns.bounds:
            step = bound.strides[-1]
            at, more = (start, 0) if (step < 0) == bound.upper else (stop, -step)
            places = zip(bound.strides, (*fixed, at), strict=True)
            ends[bound.upper].append(address("0", *places, (1, str(bound.offset + more))))
        every = p.fresh("every")
        p.bind(every, " | ".join(f"word({self.bases[operand]}, 0)" for operand in group.unless))
        window = Window(p.fresh("first"), p.fresh("last"), grain)
        low, high = ", ".join([*ends[False], "0"]), ", ".join([*ends[True], str(extent)])
        low = f"min(max({low}), {extent - 1}) // {grain} * {grain}" if ends[False] else "0"
        high = f"(min({high}) + {grain - 1}) // {grain} * {grain}" if ends[True] else str(extent)
        p.bind(window.start, f"(1 - {every}) * ({low})")
        p.bind(window.stop, f"min(max({high}, {window.start} + {grain}, {every} * {extent}), {extent})")
        return window

    def _take(self, printer: ContractPrinter, product: _Product, window: Window) -> None:
        """Narrow a contraction to a window; results are made in whole tiles."""
        axis = self._bounded(product)
        if axis is None:
            return
        start, stop, extent, unit = window.start, window.stop, product.contraction.extent(axis), window.grain
        if axis == "n" and unit % printer.columns:
            unit = printer.columns
            start, stop = self.p.fresh("first"), self.p.fresh("last")
            self.p.bind(start, f"{window.start} // {unit} * {unit}")
            self.p.bind(stop, f"min(({window.stop} + {unit - 1}) // {unit} * {unit}, {extent})")
        sizes = range(unit, extent + 1, unit)
        printer.narrow(axis, start, stop, frozenset((*sizes, *(extent - n for n in (0, *sizes)))))


def _tile(nest: Nest) -> TileOp:
    tile = below(nest)
    assert isinstance(tile, TileOp), "the nest of a stage, which has been checked"
    return tile


def _step(nest: Nest, axis: str) -> int:
    """The step of the loop over a shared axis."""
    while isinstance(nest, Loop | Pack):
        if isinstance(nest, Loop) and nest.axis == axis:
            return nest.step
        nest = nest.body
    raise ValueError(f"the nest has no loop over {axis}")

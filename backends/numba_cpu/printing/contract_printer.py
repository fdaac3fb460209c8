"""Printing a contraction: walk its loop nest and print loops, packing, the register tile and the epilogue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from eqsat.ir.contraction import is_accumulator, streamed
from eqsat.ir.kernel import Load
from eqsat.ir.kernel import walk as expressions
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, tiles, walks
from eqsat.schedule.domain import box_of, greatest
from eqsat_backends.numba_cpu.printing.contract_layout import (
    Around,
    Ask,
    Factor,
    Range,
    Sums,
    Target,
    padded_row,
)
from eqsat_backends.numba_cpu.printing.contract_packing import ContractPacking
from eqsat_backends.numba_cpu.printing.printer import Printer
from eqsat_backends.numba_cpu.printing.source import Module, address, minus
from eqsat_backends.numba_cpu.tiles.dots import NEEDS, last_width
from eqsat_backends.numba_cpu.tiles.tile_ops import ASK_STEPS, CLAIM_EVERY
from eqsat_backends.numba_cpu.vectors.lanes import cpu_features


@contextmanager
def shaped(printer: Printer, module: Module, element: str) -> Iterator[None]:
    """Around tiles in registers of two axes, of an element type: print what begins and ends that (none: nothing)."""
    if element:
        printer.line("shape = 0")
    yield
    if element:
        module.use("tiles.matrix", "matrix_release")
        release = module.define("release", f'matrix_release("{element}")')
        printer.line(f"{release}()")


class ContractPrinter(ContractPacking):
    """Prints one contraction by a legal nest (see ``eqsat.schedule.legal``): its loops, in its order, in its steps.

    The range of m may be narrowed (:meth:`narrow`) before :meth:`walk`.
    """

    # nest

    def walk(self, nest: Nest) -> None:
        """Print ``nest`` for the current ranges."""
        match nest:
            case Loop():
                self.loop(nest)
            case Pack(which, body):
                kept = self.sources[which[0]], self.keeping
                self.p.line(f"# pack {which}")
                self.sources[which[0]] = self.pack_private(nest)
                self.walk(body)
                self.sources[which[0]], self.keeping = kept
            case Seq():
                raise ValueError("the nest of a contraction has one tile operation, not a sequence")
            case TileOp():
                target = self.target()
                self.multiply(nest, target)
                self.finish(target)

    def narrow(self, group: str, start: str, stop: str, sizes: frozenset[int]) -> None:
        """Cover the positions of a group from ``start`` to ``stop`` only; ``sizes``: how many these can be."""
        self.range[group] = self.ends[group] = start, stop
        self.limit[group], self.sizes[group] = stop, sizes - {0}

    def loop(self, nest: Loop) -> None:
        axis, step = nest.axis, nest.step
        if self.span(axis) <= step and not nest.parallel and not (axis == "b" and self.c.batch):
            self.walk(nest.body)
            return
        kept = self.range[axis], self.sizes[axis], self.limit[axis], dict(self.coordinates), self.batch, self.sums
        start, stop = self.share(nest) if nest.parallel else self.range[axis]
        innermost = nest.body if isinstance(nest.body, TileOp) and axis == "k" else None
        if axis == "k" and self.sums is None:
            self.sums = self.new_sums(nest)
            if self.bounded:
                self.clear(self.sums)
        target = self.target() if innermost else None
        variable = self.p.fresh(axis)
        by = f", {step} * nt" if nest.cyclic else f", {step}" if step > 1 else ""
        asking = self.asking
        if isinstance(nest.body, TileOp) and nest.body.prefetch:
            self.asking = self.ask(nest.body.prefetch, variable)
        with self.p.scope(f"for {variable} in range({start}, {stop}{by}):", variable):
            end = f"{variable}_stop"
            if axis == "k" or walks(nest.body, axis):
                self.p.bind(end, f"min({variable} + {step}, {stop})")
            self.range[axis], self.limit[axis] = (variable, end), stop
            self.sizes[axis] = frozenset({min(n, step) for n in kept[1]} | {n % step for n in kept[1]}) - {0}
            self.around.append((axis, variable, step, start, stop))
            if axis == "b" and step == 1:
                self.batch = variable
                self.coordinates.update(self.split("b", variable))
            if innermost and target:
                self.multiply(innermost, target)
            else:
                self.walk(nest.body)
            self.around.pop()
        self.range[axis], self.sizes[axis], self.limit[axis] = kept[:3]
        self.asking = asking
        if target:
            self.finish(target)
        self.coordinates, self.batch, self.sums = kept[3:]

    def ask(self, which: int, variable: str) -> Ask | None:
        """Print where the loops around the loop at hand read a factor next; how its tiles ask, by its ``variable``."""
        group, other = "mn" if which == 3 else "nm"
        loops = [loop for loop in self.around if loop[0] in (group, "k")]
        tiles = -(-self.span(other) // self.unit[other])
        if not loops:
            return None
        at = {axis: self.p.fresh(f"{axis}_next") for axis in (group, "k")}
        for axis, name in at.items():
            self.p.bind(name, self.range[axis][0])
        self.step_on(at, loops)
        place = self.direct("b") if self.keeping is not None and which == 1 else self.source("b" if which < 3 else "a")
        assert place is not None
        start, k_step = place.at(at[group], at["k"]), place.k_step
        tile = f"({minus(variable, self.range[other][0])}) // {self.unit[other]}"
        if which == 3:
            each, steps = -(-self.rows // tiles), max(1, 64 // abs(k_step))
            return Ask(address(start, (each * place.row, tile)), "", (steps, each, place.row, steps * k_step))
        lines = -(-self.columns * self.size // 64)
        each = min(n for n in range(1, lines + 1) if lines % n == 0 and (n * tiles >= ASK_STEPS * lines or n == lines))
        first, stop = address("0", (each, tile)), ASK_STEPS * lines // each
        start = address(start, (k_step, f"({first}) // {lines}"), (64, f"({first}) % {lines}"))
        return Ask(start, f"{tile} < {stop}" if stop < tiles else "", (ASK_STEPS, each, 64, ASK_STEPS * k_step))

    def step_on(self, at: dict[str, str], loops: list[Around]) -> None:
        """Print where loops, outermost first, go next: a step of the innermost, at its end one of that around it."""
        *outer, (axis, variable, step, start, stop) = loops
        self.p.line(f"{at[axis]} = {variable} + {step}")
        if outer:
            with self.p.scope(f"if {at[axis]} >= {stop}:"):
                self.p.line(f"{at[axis]} = {start}")
                self.step_on(at, outer)

    def share(self, nest: Loop) -> Range:
        """Print this thread's share of an axis: a contiguous run of steps, or where its turns begin."""
        axis, step = nest.axis, nest.step
        extent = self.extent[axis]
        if nest.cyclic:
            return f"{step} * tid", str(extent)
        steps = -(-extent // step)
        start, stop = f"{axis}_start", f"{axis}_stop"
        self.p.bind(start, address("0", (step, f"{steps} * tid // nt")))
        share = address("0", (step, f"{steps} * (tid + 1) // nt"))
        self.p.bind(stop, share if extent % step == 0 else f"min({share}, {extent})")
        return start, stop

    def new_sums(self, nest: Nest) -> Sums:
        """Room for the partial sums of the current block: the results', where tiles leave what these are."""
        m, n = self.range["m"][0], self.range["n"][0]
        if self.storing(m, n) and tiles(nest)[0].name == "fma":
            return Sums("", 0, m, n)
        row = padded_row(-(-self.span("n") // self.columns) * self.columns * self.size)
        return Sums(address("scratch", (1, str(self.scratch.take(self.span("m") * row)))), row, m, n)

    def clear(self, sums: Sums) -> None:
        """Print that the sums of the current block begin with 0."""
        m, n, zero = self.range["m"][0], self.range["n"][0], self.p.literal(0, self.c.dtype)
        base, row = (sums.base, sums.row) if sums.base else self.storing(m, n) or ("", 0)
        rows, columns = (f"min({self.span(x)}, {minus(self.limit[x], self.range[x][0])})" for x in "mn")
        i, j = self.p.fresh("i"), self.p.fresh("j")
        with (
            self.p.scope(f"for {i} in range({rows}):", i),
            self.p.scope(f"for {j} in range(0, {columns}, {self.lanes}):", j),
        ):
            to = address(base, (row, i), (self.size, j))
            self.p.line(f"storen({to}, {zero.name}, min({self.lanes}, {columns} - {j}))")

    # tile

    def target(self) -> Target:
        """Print what bounds the tile of the current ranges, and say where it leaves its sums."""
        m, n = self.range["m"][0], self.range["n"][0]
        rows, columns = self.count("rows", "m"), self.count("columns", "n")
        if self.sums and self.sums.base:
            sums = self.sums
            base = address(sums.base, (sums.row, minus(m, sums.m)), (self.size, minus(n, sums.n)))
            return Target(base, sums.row, rows, columns, False)
        if place := self.storing(m, n):
            return Target(*place, rows, columns, True, place)
        row = -(-self.span("n") // self.columns) * self.columns * self.size
        base = address("scratch", (1, str(self.scratch.take(self.span("m") * row))))
        return Target(base, row, rows, columns, False, self.destination(m, n, near=self.lanes))  # asked for, at most

    def storing(self, m: str, n: str) -> tuple[str, int] | None:
        """The destination of sums at (m, n) that are the results as they are; None for others."""
        same = is_accumulator(self.c.kernel.epilogue) and self.c.kernel.out.dtype == self.c.dtype
        return self.destination(m, n) if same and self.c.out_stride("m") is not None else None

    def destination(self, m: str, n: str, base: str = "", offset: int = 0, near: int = 0) -> tuple[str, int] | None:
        """Address of the result at (m, n) and bytes between its rows; None where rows of a tile are not contiguous.

        Where m is several axes, rows past the end of the innermost one lie elsewhere. ``base``, ``offset``: of an
        operand that lies as the result does. ``near``: elements by which rows may be interrupted.
        """
        kernel, strides, size = self.c.kernel, self.c.kernel.store_strides, self.c.kernel.out.dtype.itemsize
        axes = {group: self.c.group(group) for group in "mn"}
        step = {group: strides[axes[group][-1]] if axes[group] else 0 for group in "mn"}
        whole = {group: self.c.out_stride(group) is not None for group in "mn"}
        inner = kernel.extents[axes["n"][-1]] if axes["n"] else 1
        gap = strides[axes["n"][-2]] - inner if len(axes["n"]) > 1 else 0
        if step["n"] != 1 or not (whole["n"] or inner % self.columns == 0 or 0 < gap < near):
            return None
        terms = [(strides[axis] * size, name) for axis, name in sorted(self.coordinates.items())]
        for group, position in (("m", m), ("n", n)):
            known = {} if whole[group] else self.split(group, position)
            terms += [(strides[axis] * size, name) for axis, name in known.items()] or [(step[group] * size, position)]
        start = (base, offset) if base else (self.store_base, kernel.store_offset)
        return address(start[0], (size, str(start[1])), *terms), step["m"] * size

    def claim(self, target: Target) -> Target:
        """With the request for the cache lines of its results and of what its epilogue reads as they lie, or of the
        stored sums that they are added to."""
        if target.place is None:
            return replace(target, claim=((target.base, target.row),)) if self.sums else target
        kernel, places = self.c.kernel, {target.place: None}
        for load in expressions(kernel.epilogue) if not target.stored else ():
            if not isinstance(load, Load) or load.gathers or load.strides[: kernel.parallel] != kernel.store_strides:
                continue
            base, (m, _), (n, _) = self.bases[load.operand], self.range["m"], self.range["n"]
            place = self.destination(m, n, base, load.offset, self.lanes)
            if place is not None and load.dtype.itemsize == kernel.out.dtype.itemsize:
                places[place] = None
        return replace(target, claim=tuple(places))

    def count(self, name: str, group: str) -> str:
        """Positions of this tile along m or n: a number where they are the same for all tiles."""
        unit, (start, stop) = self.unit[group], self.range[group]
        if self.span(group) > unit:
            return minus(stop, start)
        if len(self.sizes[group]) <= 1:
            return str(self.span(group))
        name = self.p.fresh(name)
        self.p.bind(name, f"min({unit}, {minus(self.limit[group], start)})")
        return name

    def multiply(self, op: TileOp, target: Target) -> None:
        """Print the tile operation for the current ranges, of the rows to which they add something."""
        m, sizes = self.range["m"][0], self.sizes["m"]
        if not self.bounded:
            self.products(op, target, m, sizes)
            return
        first, rows = self.rows_inside()
        inside = replace(target, base=address(target.base, (target.row, first)), rows=rows)
        with self.p.scope(f"if {rows} > 0:"):
            self.products(op, inside, address(first, (1, m)), (sizes | self.bounded[1]) - {0})

    def rows_inside(self) -> Range:
        """Print which rows of the tile at hand have a point of the domain for the k at hand: the first, how many."""
        (m, _), (k, _), axes = self.range["m"], self.range["k"], self.c.k
        at = [*self.split("m", m).items(), *self.split("k", k).items()]
        box = box_of(self.c.kernel.extents, axes, self.span("k"))
        assert box is not None, "tiles are boxes, by ``rows_of``"
        low, high = ["0", "0"], [str(self.rows)] * 2
        for index in self.c.kernel.domain:
            terms = [(index.strides[axis], name) for axis, name in at]
            most = address(str(index.offset + greatest(index, axes, box)), (1 << 40, "every"), *terms)
            step = index.strides[self.c.m[-1]]
            if step > 0:
                low.append(f"-(({most}) // {step})")
            else:
                high.append(f"({most}) // {-step} + 1" if step else f"{self.rows} * ({most} >= 0)")
        first, rows = self.p.fresh("first"), self.p.fresh("rows")
        self.p.bind(first, f"max({', '.join(low)})")
        self.p.bind(rows, f"min({', '.join(high)}) - {first}")
        return first, rows

    def products(self, op: TileOp, target: Target, m: str, row_counts: frozenset[int]) -> None:
        """Print the tile operation for rows from ``m`` on, one call for each size a tile can have."""
        n, (k, k_stop) = self.range["n"][0], self.range["k"]
        a, b = self.source("a"), self.stream() if op.name == "update" else self.source("b")
        arguments, special = [a.at(m, k), b.at(n, k), target.base], {}
        if op.name == "update":
            arguments += [target.columns, f"{k} == {self.ends['k'][0]}"]
            depths = sorted(self.sizes["k"], reverse=True)
            tests = {self.update(a, b, depth, target.row): [f"{k_stop} - {k} == {depth}"] for depth in depths}
        else:
            arguments.append(minus(k_stop, k))
            if self.sums:
                arguments.append("False" if self.bounded else f"{k} == {self.ends['k'][0]}")
            tests = {}
            ask = self.asking
            target = self.claim(target) if op.claim else target
            ends = [base for base, _ in target.claim]
            last = [ask.base, *ends] if ask else ends
            for columns in sorted(self.sizes["n"], reverse=True):
                sized = [] if target.columns.isdigit() else [f"{target.columns} == {columns}"]
                for rows in sorted(row_counts, reverse=True):
                    test = sized if target.rows.isdigit() else [*sized, f"{target.rows} == {rows}"]
                    if self.keeping is not None:
                        place = self.direct("b")
                        assert place is not None
                        first, steps = self.keeping
                        name = self.fma(a, place, rows, columns, target, steps, ask, keep=b.k_step)
                        tests[name] = [*test, f"{m} == {first}"]
                        special[name] = [a.at(m, k), place.at(n, k), *arguments[2:], b.at(n, k), *last]
                    if ask and (rows == self.rows or not ask.test):
                        name = self.fma(a, b, rows, columns, target, op.ahead, ask)
                        tests[name] = [*test, *[ask.test] * bool(ask.test)]
                        special[name] = [*arguments, *last]
                    if not ask or ask.test:
                        name = self.fma(a, b, rows, columns, target, op.ahead, None)
                        tests[name], special[name] = test, [*arguments, *ends]
        for number, (name, test) in enumerate(tests.items()):
            call = f"{name}({', '.join(special.get(name, arguments))})"
            if len(tests) == 1:
                self.call(name, call)
                continue
            word = "if" if number == 0 else "elif"
            with self.p.scope("else:" if number == len(tests) - 1 else f"{word} {' and '.join(test)}:"):
                self.call(name, call)

    def call(self, name: str, call: str) -> None:
        """Print the call of a tile, where its registers have to be shaped after that."""
        if name in self.shapes:
            number, shape = self.shapes[name]
            with self.p.scope(f"if shape != {number}:"):
                self.p.line(f"{shape}()")
                self.p.line(f"shape = {number}")
        self.p.line(call)

    def fma(
        self, a: Factor, b: Factor, rows: int, columns: int, target: Target, steps: int, ask: Ask | None, keep: int = 0
    ) -> str:
        vectors, tail = -(-columns // self.lanes), columns % self.lanes
        options = ", accumulate=True" if self.sums else ""
        cut, narrow = tail if b.in_place or target.stored else 0, 0 < 2 * tail <= self.lanes
        options += f", tail={cut}" if cut else ""
        options += ", narrow=True" if narrow else ""
        options += f", ahead={steps}" if steps else ""
        options += f", keep={keep}" if keep else ""
        options += f", ask={ask.steps}" if ask else ""
        if target.claim:  # all in the first half of k, and not at once: that would hold up the loads
            depth = max(self.sizes["k"], default=0)
            every = next((n for n in CLAIM_EVERY if depth // n >= rows), CLAIM_EVERY[-1])
            turns = max(1, depth // (ask.steps[0] if ask else every) // 2)
            size = self.c.kernel.out.dtype.itemsize if target.place else self.size
            lines = -(-self.columns * size // 64)
            options += f", claim={(every, -(-rows // turns), lines, *(row for _, row in target.claim))}"
        tile, module, kind = "fma_tile", "micro_kernels", f'"{self.dtype}"'
        if self.depth > 1:
            dot, signed = self.c.dot, self.c.a.dtype != self.c.dot.factors[0]
            kind += f', "{dot.element}", {signed}'
            if self.matrix:
                tile, module = "matrix_tile", "matrix"
            else:
                tile, kind = "dot_tile", f"{kind}, {NEEDS.get(dot.element.name) in cpu_features()}"
        self.module.use(f"tiles.{module}", tile)
        name = self.module.define(
            f"tile_{rows}x{columns}" + ("_pack" if keep else "_ask" if ask else ""),
            f"{tile}({kind}, {rows}, {vectors}, {self.lanes}, {a.row}, {a.k_step}, {b.k_step}, {target.row}{options})",
        )
        if self.matrix:
            last = last_width(cut, narrow)
            self.module.use("tiles.matrix", "matrix_shape")
            shape = f'matrix_shape("{self.c.dot.element}", {rows}, {vectors}, {last})'
            number = (rows << 16) + (vectors << 8) + last
            self.shapes[name] = number, self.module.define(f"shape_{rows}x{columns}", shape)
        return name

    def update(self, a: Factor, b: Factor, depth: int, c_row: int) -> str:
        self.module.use("tiles.micro_kernels", "rank_update")
        load = streamed(self.c.b)
        assert load is not None, "what is streamed"
        stored = f', "{load.dtype}"' if load.dtype != self.c.dtype else ""
        return self.module.define(
            f"update_{self.extent['m']}x{depth}",
            f'rank_update("{self.dtype}", {self.extent["m"]}, {depth}, {self.lanes}, '
            f"{a.row}, {a.k_step}, {b.k_step}, {c_row}{stored})",
        )

    def finish(self, target: Target) -> None:
        """Print the epilogue for the current ranges, where all of k has been summed."""
        if target.stored:
            return
        stop, end = self.range["k"][1], self.ends["k"][1]
        if stop == end:
            self.epilogue(target)
        else:
            with self.p.scope(f"if {stop} == {end}:"):
                self.epilogue(target)

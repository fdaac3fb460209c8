"""Printing a contraction: walk its loop nest and print loops, packing, the register tile and the epilogue."""

from __future__ import annotations

from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp
from eqsat_backends.numba_cpu.contract_layout import (
    CLAIM_DEPTH,
    KEEP_AHEAD,
    PREFETCH,
    STREAMED,
    UPDATE_DEPTH,
    Factor,
    Range,
    Sums,
    Target,
    loops_over,
    padded_row,
    sink,
    walks,
)
from eqsat_backends.numba_cpu.contract_packing import ContractPacking
from eqsat_backends.numba_cpu.factors import is_accumulator
from eqsat_backends.numba_cpu.source import address, minus


class ContractPrinter(ContractPacking):
    """Prints one contraction. Ranges and spans may be narrowed (to a block of rows) before :meth:`walk`."""

    # nest

    def walk(self, nest: Nest) -> None:
        """Print ``nest`` for the current ranges."""
        match nest:
            case Loop():
                self.loop(nest)
            case Pack(which, body) if loops_over(body, "b"):
                self.walk(sink(which, body))
            case Pack(which, body):
                kept = self.sources[which[0]], self.keeping
                self.sources[which[0]] = self.pack_private(which[0], on_the_fly=loops_over(body, "m"))
                self.walk(body)
                self.sources[which[0]], self.keeping = kept
            case Seq(bodies):
                for body in bodies:
                    self.walk(body)
            case TileOp():
                target = self.target()
                self.multiply(nest, target)
                self.finish(target)

    def loop(self, nest: Loop) -> None:
        axis, unit = nest.axis, self.unit[nest.axis]
        step = max(1, -(-nest.step // unit)) * unit
        if axis == "k" and nest.parallel:
            raise ValueError("threads cannot share out k, the axis that is summed")
        kept = self.range[axis], self.span[axis], dict(self.coordinates), self.batch, self.sums
        start, stop = self.share(axis, unit) if nest.parallel else self.range[axis]
        innermost = nest.body if isinstance(nest.body, TileOp) and axis == "k" else None
        if self.span[axis] <= step and not nest.parallel and axis != "b" and innermost is None:
            self.walk(nest.body)
            return
        if axis == "k" and self.sums is None:
            self.sums = self.new_sums()
        target = self.target() if innermost else None
        variable = self.p.fresh(axis)
        with self.p.scope(f"for {variable} in range({start}, {stop}, {step}):", variable):
            end = f"{variable}_stop"
            if axis == "k" or walks(nest.body, axis):
                self.p.bind(end, f"min({variable} + {step}, {stop})")
            self.range[axis], self.span[axis] = (variable, end), min(step, self.span[axis])
            if axis == "b":
                self.batch = variable
                self.coordinates.update(self.split("b", variable))
            if innermost and target:
                self.multiply(innermost, target)
            else:
                self.walk(nest.body)
        self.range[axis], self.span[axis] = kept[:2]
        if target:
            self.finish(target)
        self.coordinates, self.batch, self.sums = kept[2:]

    def share(self, axis: str, unit: int) -> Range:
        """Print this thread's share of an axis: a contiguous run of whole tiles."""
        extent = self.extent[axis]
        units = -(-extent // unit)
        start, stop = f"{axis}_start", f"{axis}_stop"
        self.p.bind(start, address("0", (unit, f"{units} * tid // nt")))
        share = address("0", (unit, f"{units} * (tid + 1) // nt"))
        self.p.bind(stop, share if extent % unit == 0 else f"min({share}, {extent})")
        return start, stop

    def new_sums(self) -> Sums:
        """Room for the partial sums of the current block."""
        row = padded_row(-(-self.span["n"] // self.columns) * self.columns * self.size)
        base = address("scratch", (1, str(self.scratch.take(self.span["m"] * row))))
        return Sums(base, row, self.range["m"][0], self.range["n"][0])

    # tile

    def target(self) -> Target:
        """Print what bounds the tile of the current ranges, and say where it leaves its sums."""
        m, n = self.range["m"][0], self.range["n"][0]
        rows, columns = self.count("rows", "m"), self.count("columns", "n")
        if self.sums:
            sums = self.sums
            base = address(sums.base, (sums.row, minus(m, sums.m)), (self.size, minus(n, sums.n)))
            return Target(base, sums.row, rows, columns, False)
        place = self.destination(m, n)
        exact = self.c.out_stride("m") is not None
        if place and exact and is_accumulator(self.c.kernel.epilogue) and self.c.kernel.out.dtype == self.c.dtype:
            return Target(*place, rows, columns, True, place)
        row = self.columns * self.size
        base = address("scratch", (1, str(self.scratch.take(self.rows * row))))
        return Target(base, row, rows, columns, False, place)

    def destination(self, m: str, n: str) -> tuple[str, int] | None:
        """Address of the result at (m, n) and bytes between its rows; None where rows of a tile are not contiguous.

        Where m is several axes, rows past the end of the innermost one lie elsewhere.
        """
        kernel, strides, size = self.c.kernel, self.c.kernel.store_strides, self.c.kernel.out.dtype.itemsize
        axes = {group: self.c.group(group) for group in "mn"}
        step = {group: strides[axes[group][-1]] if axes[group] else 0 for group in "mn"}
        whole = {group: self.c.out_stride(group) is not None for group in "mn"}
        if step["n"] != 1 or not (whole["n"] or kernel.extents[axes["n"][-1]] % self.columns == 0):
            return None
        terms = [(strides[axis] * size, name) for axis, name in sorted(self.coordinates.items())]
        for group, position in (("m", m), ("n", n)):
            known = {} if whole[group] else self.split(group, position)
            terms += [(strides[axis] * size, name) for axis, name in known.items()] or [(step[group] * size, position)]
        return address(self.store_base, (size, str(kernel.store_offset)), *terms), step["m"] * size

    def claim(self, target: Target) -> None:
        """Print the request for the cache lines that the tile's results go to: they arrive while it multiplies."""
        if target.place is None or self.span["k"] < CLAIM_DEPTH:
            return
        self.module.use("tiles", "claim_rows")
        width = self.columns * self.c.kernel.out.dtype.itemsize
        claim = self.module.define("claim", f"claim_rows({width}, {target.place[1]})")
        self.p.line(f"{claim}({target.place[0]}, {target.rows})")

    def count(self, name: str, group: str) -> str:
        """Positions of this tile along m or n: a number where they are the same for all tiles."""
        unit, (start, stop) = self.unit[group], self.range[group]
        if self.span[group] > unit:
            return minus(stop, start)
        sizes = self.sizes(group)
        if len(sizes) == 1:
            return str(sizes[0])
        name = self.p.fresh(name)
        self.p.bind(name, f"min({unit}, {self.limit[group]} - {start})")
        return name

    def multiply(self, op: TileOp, target: Target) -> None:
        """Print the tile operation for the current ranges, one call for each size a tile can have."""
        m, n, (k, k_stop) = self.range["m"][0], self.range["n"][0], self.range["k"]
        a, b = self.source("a"), self.source("b")
        for group in "m" if op.name == "update" else "mn":
            if self.span[group] > self.unit[group]:
                raise ValueError(
                    f"the nest ends in {self.span[group]} positions of {group}, its tile has {self.unit[group]}"
                )
        if op.name == "fma":
            self.claim(target)
        arguments, on_the_fly = [a.at(m, k), b.at(n, k), target.base], {}
        if op.name == "update":
            arguments += [target.columns, f"{k} == 0"]
            depths = sorted({min(UPDATE_DEPTH, self.extent["k"]), self.extent["k"] % UPDATE_DEPTH} - {0}, reverse=True)
            tests = {self.update(a, b, depth, target.row): [f"{k_stop} - {k} == {depth}"] for depth in depths}
        else:
            arguments.append(minus(k_stop, k))
            if self.sums:
                arguments.append(f"{k} == 0")
            tests = {}
            for columns in self.sizes("n"):
                sized = [] if target.columns.isdigit() else [f"{target.columns} == {columns}"]
                for rows in self.sizes("m"):
                    test = sized if target.rows.isdigit() else [*sized, f"{target.rows} == {rows}"]
                    if self.keeping is not None:
                        place = self.direct("b")
                        assert place is not None
                        name = self.fma(a, place, rows, columns, target, keep=b.k_step)
                        tests[name] = [*test, f"{m} == {self.keeping}"]
                        on_the_fly[name] = [a.at(m, k), place.at(n, k), *arguments[2:], b.at(n, k)]
                    tests[self.fma(a, b, rows, columns, target)] = test
        for number, (name, test) in enumerate(tests.items()):
            call = f"{name}({', '.join(on_the_fly.get(name, arguments))})"
            if len(tests) == 1:
                self.p.line(call)
                continue
            word = "if" if number == 0 else "elif"
            with self.p.scope("else:" if number == len(tests) - 1 else f"{word} {' and '.join(test)}:"):
                self.p.line(call)

    def sizes(self, group: str) -> list[int]:
        """The sizes that tiles have along m or n: full ones, and what is left at the end of a block and of the last."""
        unit, extent, block = self.unit[group], self.extent[group], min(self.block[group], self.extent[group])
        lengths = {block, extent % max(1, block)}
        return sorted({size for n in lengths for size in (unit if n >= unit else 0, n % unit) if size}, reverse=True)

    def fma(self, a: Factor, b: Factor, rows: int, columns: int, target: Target, keep: int = 0) -> str:
        self.module.use("tiles", "fma_tile")
        vectors, tail = -(-columns // self.lanes), columns % self.lanes
        options = ", accumulate=True" if self.sums else ""
        if (b.in_place or target.stored) and tail:
            options += f", tail={tail}"
        streamed = self.extent["m"] <= self.rows and self.extent["k"] * self.extent["n"] * self.size > STREAMED
        if keep:
            options += f", ahead={KEEP_AHEAD}, keep={keep}"
        elif streamed and not b.in_place:
            options += f", ahead={max(1, PREFETCH // b.k_step)}"
        return self.module.define(
            f"tile_{rows}x{columns}" + ("_pack" if keep else ""),
            f'fma_tile("{self.dtype}", {rows}, {vectors}, {self.lanes}, '
            f"{a.row}, {a.k_step}, {b.k_step}, {target.row}{options})",
        )

    def update(self, a: Factor, b: Factor, depth: int, c_row: int) -> str:
        self.module.use("tiles", "rank_update")
        return self.module.define(
            f"update_{self.extent['m']}x{depth}",
            f'rank_update("{self.dtype}", {self.extent["m"]}, {depth}, {self.lanes}, '
            f"{a.row}, {a.k_step}, {b.k_step}, {c_row})",
        )

    def finish(self, target: Target) -> None:
        """Print the epilogue for the current ranges, where all of k has been summed."""
        if target.stored:
            return
        stop, extent = self.range["k"][1], str(self.extent["k"])
        if stop == extent:
            self.epilogue(target)
        else:
            with self.p.scope(f"if {stop} == {extent}:"):
                self.epilogue(target)

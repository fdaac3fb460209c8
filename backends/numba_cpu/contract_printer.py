"""Printing a contraction: walk its loop nest and print loops, packing, the register tile and the epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from eqsat.ir.kernel import Expr, Load
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
    tile_size,
    walks,
)
from eqsat_backends.numba_cpu.factors import Contraction, is_accumulator, plain
from eqsat_backends.numba_cpu.printer import Access, Printer, Value, View, affine
from eqsat_backends.numba_cpu.source import Module, Scratch, address, minus


class ContractPrinter:
    """Prints one contraction with ``printer``.

    ``bases``: address expressions of the operands; ``store``: of the output; ``fixed``: names of the coordinates of
    the axes that are in no group. ``packed``: operands that come packed by a ``PackSpec``. ``tile``: the nest's
    tile operation, which says how wide panels are. Ranges and spans may be narrowed (a block of rows) before
    :meth:`walk`.
    """

    def __init__(
        self,
        module: Module,
        printer: Printer,
        scratch: Scratch,
        contraction: Contraction,
        bases: Mapping[int, str],
        store: str,
        tile: TileOp,
        fixed: tuple[str, ...] = (),
        packed: frozenset[int] = frozenset(),
    ) -> None:
        self.module, self.p, self.scratch = module, printer, scratch
        self.c, self.bases, self.store_base = contraction, bases, store
        self.size = contraction.dtype.itemsize
        self.lanes = lanes = printer.lanes
        self.dtype = contraction.dtype.name
        self.extent = {group: contraction.extent(group) for group in "bmnk"}
        self.rows, self.columns = tile_size(contraction, tile, lanes)
        self.unit = {"b": 1, "m": self.rows, "n": self.columns, "k": 1}
        self.range: dict[str, Range] = {group: ("0", str(extent)) for group, extent in self.extent.items()}
        self.span = dict(self.extent)
        self.coordinates = dict(enumerate(fixed))
        self.batch = "0"
        self.packed = packed
        self.sums: Sums | None = None
        self.keeping: str | None = None  # the first m of a block whose second factor is packed by its first tiles
        self.sources: dict[str, Factor | None] = {which: self.constant(which) for which in "ab"}

    # factors

    def factor(self, which: str) -> Expr:
        return self.c.a if which == "a" else self.c.b

    def width(self, which: str) -> int:
        """Positions in a register tile."""
        return self.rows if which == "a" else self.columns

    def constant(self, which: str) -> Factor | None:
        """The factor as packed when the plan was built."""
        load = plain(self.factor(which), self.c.dtype)
        if load is None or load.operand not in self.packed:
            return None
        return self.panels(which, self.bases[load.operand])

    def panels(self, which: str, base: str) -> Factor:
        """All of a factor as panels of one tile's width, every batch one after the other."""
        width, k = self.width(which), self.extent["k"]
        extent = self.extent["m" if which == "a" else "n"]
        whole = -(-extent // width) * width * k * self.size
        return Factor(base, k * self.size, width * self.size, self.size, batch_step=whole)

    def direct(self, which: str) -> Factor | None:
        """The factor read where it lies, or None where a tile cannot."""
        load = plain(self.factor(which), self.c.dtype)
        if load is None:
            return None
        step, k_step = self.c.stride(load, "m" if which == "a" else "n"), self.c.stride(load, "k")
        if step is None or k_step is None or (which == "b" and step != 1):
            return None
        return Factor(self.base(load), step * self.size, k_step * self.size, step * self.size, in_place=True)

    def source(self, which: str) -> Factor:
        found = self.sources[which] or self.direct(which)
        if found is None:
            raise ValueError(
                f"factor {which} of this contraction cannot be read in place, and the nest does not pack it"
            )
        return replace(found, batch=self.batch)

    def base(self, load: Load) -> str:
        """The address of a load at the first position of m, n and k."""
        terms = [(load.strides[axis] * load.dtype.itemsize, name) for axis, name in sorted(self.coordinates.items())]
        return address(self.bases[load.operand], *terms, (load.dtype.itemsize, str(load.offset)))

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

    def split(self, group: str, position: str) -> dict[int, str]:
        """Names of the coordinates, along each axis of a group, of a flattened position."""
        axes, extents = self.c.group(group), self.c.kernel.extents
        if len(axes) == 1:
            return {axes[0]: position}
        found, below = {}, 1
        for number, axis in reversed(list(enumerate(axes))):
            above = position if below == 1 else f"({position}) // {below}"
            if number:
                above = f"({above}) % {extents[axis]}"
            name = self.p.fresh(f"{group}{number}_")
            self.p.bind(name, above)
            found[axis] = name
            below *= extents[axis]
        return found

    def new_sums(self) -> Sums:
        """Room for the partial sums of the current block."""
        row = padded_row(-(-self.span["n"] // self.columns) * self.columns * self.size)
        base = address("scratch", (1, str(self.scratch.take(self.span["m"] * row))))
        return Sums(base, row, self.range["m"][0], self.range["n"][0])

    # packing

    def pack_shared(self, which: str, shared: Scratch) -> int:
        """Print this thread's share of packing all of a factor to the shared scratch, at the offset returned."""
        group, width = ("m" if which == "a" else "n"), self.width(which)
        packed = self.panels(which, "0")
        extent, k = self.extent[group], self.extent["k"]
        offset = shared.take(self.extent["b"] * packed.batch_step)
        by_depth = which == "b" and self.direct(which) is not None
        piece = 16 if by_depth else width
        per_batch = -(-(k if by_depth else extent) // piece)
        units = self.extent["b"] * per_batch
        unit, start = self.p.fresh("unit"), self.p.fresh("k" if by_depth else group)
        with self.p.scope(f"for {unit} in range({units} * tid // nt, {units} * (tid + 1) // nt):", unit):
            place = unit
            if self.c.batch:
                self.batch, place = self.p.fresh("b"), f"{unit} % {per_batch}"
                self.p.bind(self.batch, f"{unit} // {per_batch}")
                self.coordinates.update(self.split("b", self.batch))
            self.p.bind(start, address("0", (piece, place)))
            packed = replace(packed, base=address("shared", (1, str(offset))), batch=self.batch)
            if by_depth:
                stop = f"{start}_stop"
                self.p.bind(stop, f"min({start} + {piece}, {k})")
                self.copy_panels(packed, "0", str(extent), start, stop, k)
            else:
                self.copy_panel(packed, which, start, "0", str(k))
        return offset

    def pack_private(self, which: str, on_the_fly: bool = False) -> Factor:
        """Copy the current block of a factor to this thread's scratch.

        ``on_the_fly``: a second factor may be copied by the first row of tiles, which reads it where it lies.
        """
        group = "m" if which == "a" else "n"
        (start, stop), (k, k_stop) = self.range[group], self.range["k"]
        span, k_span = self.span[group], self.span["k"]
        load = plain(self.factor(which), self.c.dtype)
        if which == "b":
            size = -(-span // self.columns) * self.columns * k_span * self.size
            packed = Factor("", k_span * self.size, self.columns * self.size, self.size, start, k)
        elif load is not None and self.c.stride(load, "m") == 1 and self.c.stride(load, "k") not in (None, 1):
            column = padded_row(span * self.size)
            size = column * k_span
            packed = Factor("", self.size, column, self.size, start, k)
        else:
            row = padded_row(k_span * self.size)
            size = row * span
            packed = Factor("", row, self.size, row, start, k)
        packed = replace(packed, base=address("scratch", (1, str(self.scratch.take(size)))))
        if which == "a":
            self.copy_rows(packed, start, stop, k, k_stop)
        elif self.direct("b") is not None and on_the_fly:
            self.keeping = self.range["m"][0]
        elif self.direct("b") is not None:
            self.copy_panels(packed, start, stop, k, k_stop, k_span)
        else:
            panel = self.p.fresh("n")
            with self.p.scope(f"for {panel} in range({start}, {stop}, {self.columns}):", panel):
                self.copy_panel(packed, "b", panel, k, k_stop)
        return packed

    def copy_rows(self, packed: Factor, m: str, m_stop: str, k: str, k_stop: str) -> None:
        """Print the copy of a block of the first factor."""
        place, rows, depth = self.direct("a"), minus(m_stop, m), minus(k_stop, k)
        if place is not None and place.k_step == self.size and packed.k_step == self.size:
            copy = self.copier("copy", packed.row, place.row)
            self.p.line(f"{copy}({packed.at(m, k)}, {place.at(m, k)}, {rows}, {depth})")
        elif place is not None and place.step == self.size and packed.step == self.size:
            copy = self.copier("copy", packed.k_step, place.k_step)
            self.p.line(f"{copy}({packed.at(m, k)}, {place.at(m, k)}, {depth}, {rows})")
        else:
            self.evaluate_rows(packed, m, m_stop, k, k_stop)

    def copy_panels(self, packed: Factor, n: str, n_stop: str, k: str, k_stop: str, k_span: int) -> None:
        """Print the copy of a block of a second factor that is contiguous along n, all panels in one sweep."""
        place = self.direct("b")
        assert place is not None
        self.module.use("tiles", "pack_panels")
        pack = self.module.define(
            "pack",
            f'pack_panels("{self.dtype}", {self.lanes}, {self.columns}, '
            f"{self.columns * k_span * self.size}, {packed.k_step}, {place.k_step})",
        )
        self.p.line(f"{pack}({packed.at(n, k)}, {place.at(n, k)}, {minus(k_stop, k)}, {minus(n_stop, n)})")

    def copy_panel(self, packed: Factor, which: str, start: str, k: str, k_stop: str) -> None:
        """Print the copy of one panel: as many positions as a register tile is wide, from ``start``."""
        group = "m" if which == "a" else "n"
        width, extent, depth = self.width(which), self.extent[group], minus(k_stop, k)
        count = str(width) if extent % width == 0 else f"min({width}, {minus(str(extent), start)})"
        load = plain(self.factor(which), self.c.dtype)
        step, k_step = (self.c.stride(load, group), self.c.stride(load, "k")) if load else (None, None)
        if load is not None and step is not None and k_step is not None and 1 in (step, k_step):
            source = address(self.base(load), (step * self.size, start), (k_step * self.size, k))
            if step == 1:
                copy = self.copier("copy", packed.k_step, k_step * self.size)
                self.p.line(f"{copy}({packed.at(start, k)}, {source}, {depth}, {count})")
            else:
                copy = self.copier("transpose", packed.k_step, step * self.size)
                self.p.line(f"{copy}({packed.at(start, k)}, {source}, {count}, {depth})")
        else:
            self.evaluate_panel(packed, which, start, count, k, k_stop)

    def copier(self, name: str, to_row: int, from_row: int) -> str:
        self.module.use("tiles", f"{name}_block")
        return self.module.define(name, f'{name}_block("{self.dtype}", {self.lanes}, {to_row}, {from_row})')

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
        unit, extent, (start, stop) = self.unit[group], self.extent[group], self.range[group]
        if self.span[group] > unit:
            return minus(stop, start)
        if extent % unit == 0:
            return str(unit)
        if extent < unit:
            return str(extent)
        name = self.p.fresh(name)
        self.p.bind(name, f"min({unit}, {extent} - {start})")
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
                if self.keeping is not None:
                    place = self.direct("b")
                    assert place is not None
                    name = self.fma(a, place, self.sizes("m")[0], columns, target, keep=b.k_step)
                    tests[name] = [*sized, f"{m} == {self.keeping}"]
                    on_the_fly[name] = [a.at(m, k), place.at(n, k), *arguments[2:], b.at(n, k)]
                for rows in self.sizes("m"):
                    test = [] if target.rows.isdigit() else [f"{target.rows} == {rows}"]
                    tests[self.fma(a, b, rows, columns, target)] = [*sized, *test]
        for number, (name, test) in enumerate(tests.items()):
            call = f"{name}({', '.join(on_the_fly.get(name, arguments))})"
            if len(tests) == 1:
                self.p.line(call)
                continue
            word = "if" if number == 0 else "elif"
            with self.p.scope("else:" if number == len(tests) - 1 else f"{word} {' and '.join(test)}:"):
                self.p.line(call)

    def sizes(self, group: str) -> list[int]:
        """The sizes that tiles have along m or n: full ones, and what is left at the end."""
        unit, extent = self.unit[group], self.extent[group]
        return [size for size in (unit if extent >= unit else 0, extent % unit) if size]

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

    # elementwise parts

    def sweep(
        self,
        group: str,
        start: str,
        stop: str,
        body: Callable[[dict[int, str], str, View], None],
        aligned: bool = True,
    ) -> None:
        """Print a loop over positions of a group, a vector at a time, and ``body`` for each.

        A vector lies along the group's innermost axis; where axes are too short or uneven for that, one
        position is done at a time. ``body`` gets the coordinates, the position, and a view for the printer.
        ``aligned``: the range starts at a multiple of the lanes, and ends at one or where the group ends.
        """
        axes, extents = self.c.group(group), self.c.kernel.extents
        whole = bool(axes) and (len(axes) == 1 or (aligned and extents[axes[-1]] % self.lanes == 0))
        step = self.lanes if whole else 1
        position = self.p.fresh("j")
        with self.p.scope(f"for {position} in range({start}, {stop}, {step}):", position):
            count = None
            if whole and (extents[axes[-1]] % self.lanes or not aligned):
                count = self.p.fresh("count")
                self.p.bind(count, f"min({self.lanes}, {minus(stop, position)})")
            coordinates = self.split(group, position)
            body(coordinates, position, View((), axes[-1] if whole else None, self.rule, count))

    def rule(self, load: Load) -> Access:
        return Access(self.bases[load.operand], load.offset, load.strides)

    def view(self, view: View, coordinates: Mapping[int, str], acc: Value | None = None) -> View:
        """``view`` with the coordinates of all axes (0 along those that do not matter)."""
        known = {**self.coordinates, **coordinates}
        axes = tuple(known.get(axis, "0") for axis in range(len(self.c.kernel.extents)))
        return replace(view, axes=axes, acc=acc)

    def epilogue(self, target: Target) -> None:
        """Print the epilogue of the tile, and the stores of its results."""
        kernel, size = self.c.kernel, self.size
        m, n = self.range["m"][0], self.range["n"][0]
        row = self.p.fresh("i")
        with self.p.scope(f"for {row} in range({target.rows}):", row):
            at_row = self.split("m", address("0", (1, m), (1, row)))

            def vector(coordinates: dict[int, str], position: str, view: View) -> None:
                where = address(target.base, (target.row, row), (size, minus(position, n)))
                kind = f"{self.p.type(self.c.dtype)}({where})"
                acc = self.p.fresh("acc")
                self.p.bind(acc, f"load_{kind}" if view.vector is not None else f"bcast_{kind}")
                value = Value(acc, self.c.dtype, frozenset({acc}), view.vector is None)
                full = self.view(view, {**at_row, **coordinates}, value)
                result = self.p.value(kernel.epilogue, full)
                strides = (*kernel.store_strides, *[0] * (len(kernel.extents) - kernel.parallel))
                to = affine(self.store_base, kernel.store_offset, strides, full.axes, kernel.out.dtype.itemsize)
                self.p.store(to, 0 if view.vector is None else strides[view.vector], result, view.count)

            self.sweep("n", n, address("0", (1, n), (1, target.columns)), vector)

    def evaluate_rows(self, packed: Factor, m: str, m_stop: str, k: str, k_stop: str) -> None:
        """Print the evaluation of a block of the first factor, row by row."""
        row = self.p.fresh("m")
        with self.p.scope(f"for {row} in range({m}, {m_stop}):", row):
            at_row = self.split("m", row)

            def vector(coordinates: dict[int, str], position: str, view: View) -> None:
                value = self.p.value(self.c.a, self.view(view, {**at_row, **coordinates}))
                self.p.store(packed.at(row, position), 0 if view.vector is None else 1, value, view.count)

            self.sweep("k", k, k_stop, vector, self.span["k"] % self.lanes == 0 or self.span["k"] == self.extent["k"])

    def evaluate_panel(self, packed: Factor, which: str, start: str, count: str, k: str, k_stop: str) -> None:
        """Print the evaluation of one panel of a factor."""
        depth = self.p.fresh("k")
        with self.p.scope(f"for {depth} in range({k}, {k_stop}):", depth):
            at_depth = self.split("k", depth)

            def vector(coordinates: dict[int, str], position: str, view: View) -> None:
                value = self.p.value(self.factor(which), self.view(view, {**at_depth, **coordinates}))
                to = address(packed.at(start, depth), (self.size, minus(position, start)))
                self.p.store(to, 0 if view.vector is None else 1, value, view.count)

            aligned = self.width(which) % self.lanes == 0
            self.sweep("m" if which == "a" else "n", start, address("0", (1, start), (1, count)), vector, aligned)

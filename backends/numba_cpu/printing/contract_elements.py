"""Elements of a contraction in print: where its factors lie, and the sweeps that evaluate factors and epilogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import product

from eqsat.ir.contraction import Contraction, plain, streamed
from eqsat.ir.copied import goes_by_windows, window_of
from eqsat.ir.kernel import Expr, Load
from eqsat.ir.nest import TileOp
from eqsat_backends.numba_cpu.printing.contract_layout import (
    Around,
    Ask,
    Factor,
    Range,
    Sums,
    Target,
    padded_row,
    tile_size,
)
from eqsat_backends.numba_cpu.printing.printer import Access, Printer, View, affine
from eqsat_backends.numba_cpu.printing.scopes import Value
from eqsat_backends.numba_cpu.printing.source import Module, Scratch, Term, address, minus


class ContractElements:
    """What printing a contraction builds on: its factors, the ranges at hand, sweeps over elements.

    ``bases``: address expressions of the operands; ``store``: of the output; ``fixed``: names of the coordinates of
    the axes that are in no group. ``ahead``: factors that come packed by a ``PackSpec``. ``tile``: the nest's
    tile operation, which says how wide panels are. ``matrix``: it runs by registers of two axes.
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
        ahead: str = "",
        matrix: bool = False,
    ) -> None:
        self.module, self.p, self.scratch, self.matrix = module, printer, scratch, matrix
        self.c, self.bases, self.store_base = contraction, bases, store
        self.size, self.depth = contraction.dtype.itemsize, contraction.dot.depth
        self.lanes = lanes = printer.lanes
        self.dtype = contraction.dtype.name
        self.extent = {group: contraction.extent(group) for group in "bmnk"}
        self.rows, self.columns = tile_size(contraction, tile, lanes)
        self.unit = {"m": self.rows, "n": self.columns}
        self.range: dict[str, Range] = {group: ("0", str(extent)) for group, extent in self.extent.items()}
        self.sizes = {group: frozenset({extent}) - {0} for group, extent in self.extent.items()}
        """The numbers of positions that the range at hand can have."""
        self.limit = {group: str(extent) for group, extent in self.extent.items()}
        """Where the loop at hand over a group ends."""
        self.ends = dict(self.range)
        """What is covered of each group in all."""
        self.coordinates = dict(enumerate(fixed))
        self.batch = "0"
        self.sums: Sums | None = None
        self.keeping: tuple[str, int] | None = None
        """Of a block whose second factor its first tiles copy: the first m, and steps of k that they ask ahead."""
        self.around: list[Around] = []
        self.beside: Load | None = None
        """The elements of the second factor, where a phase before puts neighbours along k side by side."""
        self.asking: Ask | None = None  # how the tiles of the loop at hand ask for the next panel
        self.bounded: tuple[float, frozenset[int]] | None = None  # of a kernel with a domain, see ``rows_of``
        self.shapes: dict[str, tuple[int, str]] = {}
        """Of tiles in registers of two axes, by name: a number for the shapes of these, and what shapes them."""
        self.sources: dict[str, Factor | None] = dict.fromkeys("ab")
        self.sources |= {which: self.constant(which) for which in ahead}

    def span(self, group: str) -> int:
        """Positions of the range at hand, at most."""
        return max(self.sizes[group], default=0)

    # factors

    def factor(self, which: str) -> Expr:
        return self.c.a if which == "a" else self.c.b

    def width(self, which: str) -> int:
        """Positions in a register tile."""
        return self.rows if which == "a" else self.columns

    def constant(self, which: str) -> Factor:
        """The factor as packed when the plan was built."""
        load = plain(self.factor(which))
        assert load is not None, "what comes packed is a plain load"
        return self.panels(which, self.bases[load.operand])

    def panels(self, which: str, base: str, shared: bool = False) -> Factor:
        """All of a factor as panels of one tile's width, every batch that it differs in one after the other.

        ``shared``: in scratch, where rows that registers of two axes are loaded from begin at cache lines.
        """
        width, step = self.width(which), self.extent["k"] * self.size
        row = self.size
        if self.by_rows(which):
            row = step = padded_row(step) if shared else step
            width = 1
        extent = self.extent["m" if which == "a" else "n"]
        whole = -(-extent // width) * width * step if self.c.varies(self.factor(which)) else 0
        return Factor(base, step, width * self.size, row, batch_step=whole)

    def by_rows(self, which: str) -> bool:
        """Whether a copy of all of a factor has its rows one after the other: registers of two axes are loaded so."""
        return self.matrix and which == "a"

    def direct(self, which: str) -> Factor | None:
        """The factor read where it lies, or None where a tile cannot."""
        load = plain(self.factor(which))
        if load is None:
            return None
        step, k_step = self.c.stride(load, "m" if which == "a" else "n"), self.c.stride(load, "k")
        if step is None or k_step is None or (which == "b" and step != 1):
            return None
        if self.depth > 1:
            if which == "b" or k_step != 1 or self.c.ragged:
                return None
            k_step = self.depth
        size = load.dtype.itemsize
        return Factor(self.base(load), step * size, k_step * size, step * size, in_place=True)

    def in_runs(self) -> Factor | None:
        """The first factor where it lies, of a tile along which it lies evenly."""
        load, starts = plain(self.c.a), {group: self.range[group][0] for group in "mk"}
        if load is None or self.depth > 1 or not (self.c.m and self.c.k):
            return None
        size, at = load.dtype.itemsize, {**self.split("m", starts["m"]), **self.split("k", starts["k"])}
        base = address(self.base(load), *((load.strides[axis] * size, name) for axis, name in at.items()))
        step, k_step = (load.strides[self.c.group(group)[-1]] * size for group in "mk")
        return Factor(base, step, k_step, step, starts["m"], starts["k"], in_place=True)

    def stream(self) -> Factor:
        """The second factor as a rank-k update reads it where it lies, in the type that is stored."""
        load = streamed(self.c.b)
        step, k_step = (None, None) if load is None else (self.c.stride(load, "n"), self.c.stride(load, "k"))
        if load is None or step != 1 or k_step is None:
            raise ValueError("the second factor of this contraction cannot be read in place")
        size = load.dtype.itemsize
        return Factor(self.base(load), size, k_step * size, size, batch=self.batch, in_place=True)

    def source(self, which: str) -> Factor:
        found = self.sources[which] or self.direct(which) or (self.in_runs() if which == "a" else None)
        if found is None:
            raise ValueError(
                f"factor {which} of this contraction cannot be read in place, and the nest does not pack it"
            )
        return replace(found, batch=self.batch)

    def base(self, load: Load) -> str:
        """The address of a load at the first position of m, n and k."""
        terms = [(load.strides[axis] * load.dtype.itemsize, name) for axis, name in sorted(self.coordinates.items())]
        return address(self.bases[load.operand], *terms, (load.dtype.itemsize, str(load.offset)))

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

    def sweep(
        self,
        group: str,
        start: str,
        stop: str,
        body: Callable[[dict[int, str], str, View], None],
        aligned: bool = True,
        flat: bool = False,
    ) -> None:
        """Print a loop over positions of a group, a vector at a time, and ``body`` for each.

        A vector lies along the group's innermost axis, and ends where that does. ``body`` gets the coordinates, the
        position, and a view for the printer. ``aligned``: the range starts at a multiple of the lanes, and ends at one
        or where the group ends. ``flat``: all axes of the group are walked as one.
        """
        axes, extents, lanes = self.c.group(group), self.c.kernel.extents, self.lanes
        position, count = self.p.fresh("j"), None
        inner = extents[axes[-1]] if axes else 1
        if flat and axes:
            axes, inner = axes[-1:], self.extent[group]
        even = bool(axes) and (len(axes) == 1 or (aligned and inner % lanes == 0))
        if even or inner == 1:
            header = f"for {position} in range({start}, {stop}, {lanes if even else 1}):"
        else:
            self.p.line(f"{position} = {start}")
            header = f"while {position} < {stop}:"
        with self.p.scope(header, position):
            ends = [str(lanes), minus(stop, position)]
            if even and (inner % lanes or not aligned):
                count = self.p.fresh("count")
            elif not even and inner > 1:
                count = self.p.fresh("count")
                ends.append(f"{inner} - {position} % {inner}")
            if count is not None:
                self.p.bind(count, f"min({', '.join(ends)})")
            view = View((), axes[-1] if even or inner > 1 else None, self.rule, count)

            def at(place: str, view: View) -> None:
                body({axes[0]: place} if flat and axes else self.split(group, place), place, view)

            if even and count is not None and self.span(group) > lanes:  # whole vectors without masks, which take time
                for header, part in ((f"if {count} == {lanes}:", replace(view, count=None)), ("else:", view)):
                    with self.p.scope(header):
                        place = self.p.fresh("j")  # a name of its own: what a branch reads is not to be read before it
                        self.p.bind(place, position)
                        at(place, part)
            else:
                at(position, view)
            if len(ends) > 2:
                self.p.line(f"{position} += {count}")

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
        strides = (*kernel.store_strides, *[0] * (len(kernel.extents) - kernel.parallel))
        end, whole = address("0", (1, n), (1, target.columns)), self.c.rows_are_whole

        def vector(row: str, at_row: dict[int, str], coordinates: dict[int, str], position: str, view: View) -> None:
            where = address(target.base, (target.row, row), (size, minus(position, n)))
            kind = self.p.type(self.c.dtype)
            acc = self.p.fresh("acc")
            if view.vector is None:
                self.p.bind(acc, f"bcast_{kind}({where})")
            elif view.count is None:
                self.p.bind(acc, f"load_{kind}({where})")
            else:
                self.p.bind(acc, f"loadn_{kind}({where}, {view.count})")
            value = Value(acc, self.c.dtype, frozenset({acc}), view.vector is None)
            full = self.view(view, {**at_row, **coordinates}, value)
            result = self.p.value(kernel.epilogue, full)
            to = affine(self.store_base, kernel.store_offset, strides, full.axes, kernel.out.dtype.itemsize)
            self.p.store(to, 0 if view.vector is None else strides[view.vector], result, view.count)

        def rows(body: Callable[[str, dict[int, str]], None]) -> None:
            row = self.p.fresh("i")
            with self.p.scope(f"for {row} in range({target.rows}):", row):
                body(row, self.split("m", address("0", (1, m), (1, row))))

        if self.c.n and kernel.extents[self.c.n[-1]] % self.lanes and not whole:  # vectors end at rows: found once
            self.sweep("n", n, end, lambda *at: rows(lambda *of: vector(*of, *at)))
        else:
            rows(lambda *of: self.sweep("n", n, end, lambda *at: vector(*of, *at), flat=whole))

    def inside(self, k: str, k_stop: str) -> Range:
        """Positions along the axes of k from one element of the dot product to before another."""
        if self.depth == 1:
            return k, k_stop
        first, last = (address("0", (self.depth, at)) for at in (k, k_stop))
        whole = math.prod(self.c.kernel.extents[axis] for axis in self.c.k)
        return first, f"min({last}, {whole})" if self.c.ragged else last

    def evaluate_rows(self, packed: Factor, m: str, m_stop: str, k: str, k_stop: str) -> None:
        """Print the evaluation of a block of the first factor, row by row."""
        row, size = self.p.fresh("row"), self.c.a.dtype.itemsize
        first, last = self.inside(k, k_stop)
        whole = self.whole_windows()
        behind = (self.lanes - 1) * size if self.depth == 1 else math.inf
        with self.p.scope(f"for {row} in range({m}, {m_stop}):", row):
            at_row = self.split("m", row)
            if self.c.ragged:
                zero = self.p.literal(0, self.c.a.dtype)
                self.p.line(f"storen({packed.at(row, f'({k_stop} - 1)')}, {zero.name}, {self.depth})")

            def vector(coordinates: dict[int, str], position: str, view: View) -> None:
                value = self.p.value(self.c.a, self.view(view, {**at_row, **coordinates}))
                to = address(packed.at(row, k), (size, minus(position, first)))
                # What is behind the last lane comes next, or is room between the rows: whole stores are quicker.
                count = None if self.span("k") * size + behind <= packed.row else view.count
                self.p.store(to, 0 if view.vector is None else 1, value, count)

            if whole and goes_by_windows(window_of(self.c.kernel.extents, self.c.k), whole, self.lanes):
                self.windows(whole, first, last, vector)
                return
            aligned = self.starts_at(self.lanes // math.gcd(self.lanes, self.depth))
            self.sweep("k", first, last, vector, aligned)

    def starts_at(self, unit: int) -> bool:
        """Whether the range of k at hand starts at a multiple of ``unit``, and ends at one or where k does."""
        steps = (step for axis, _, step, *_ in self.around if axis == "k")
        return self.ends["k"] == ("0", str(self.extent["k"])) and not any(step % unit for step in steps)

    def whole_windows(self) -> int:
        """Positions of k behind one of its outermost axis, where the range at hand is whole ones of these; else 0."""
        rows, columns = window_of(self.c.kernel.extents, self.c.k)
        size = rows * columns
        return size if self.depth == 1 and size and self.starts_at(size) else 0

    def windows(self, size: int, first: str, last: str, body: Callable[[dict[int, str], str, View], None]) -> None:
        """Print a loop over whole windows of ``size`` positions of k, and ``body`` for each row of one as a vector.

        The rows are printed one after the other: what is asked of a position in the window is asked once for all.
        """
        extents = self.c.kernel.extents
        outer, *between, inner = (axis for axis in self.c.k if extents[axis] != 1)
        position, place, width = self.p.fresh("j"), self.p.fresh("k"), extents[inner]
        with self.p.scope(f"for {position} in range({first}, {last}, {size}):", position):
            self.p.bind(place, f"{position} // {size}")
            for row, at in enumerate(product(*(range(extents[axis]) for axis in between))):
                coordinates = {outer: place, **dict(zip(between, map(str, at), strict=True)), inner: "0"}
                view = View((), inner, self.rule, None if width == self.lanes else str(width))
                body(coordinates, address("0", (1, position), (1, str(width * row))), view)

    def depths(self, scopes: ExitStack, depth: str, first: str, last: str, each: int) -> dict[int, str]:
        """Print loops over positions along k, ``each`` at a time; their coordinates.

        Over all of k, or whole windows of it, one for each axis: the axes of a position take divisions.
        """
        extents = self.c.kernel.extents
        axes = [axis for axis in self.c.k if extents[axis] != 1]
        partly = first != "0" or self.span("k") < self.extent["k"]
        if len(axes) < 2 or (partly and not self.whole_windows()):
            scopes.enter_context(self.p.scope(f"for {depth} in range({first}, {last}):", depth))
            return self.split("k", address("0", (each, depth)))
        found, terms, below = {}, list[Term](), math.prod(extents[axis] for axis in axes) // each
        for axis in axes:
            count, name = extents[axis] // (each if axis == axes[-1] else 1), self.p.fresh("k")
            below //= count
            steps = f"{first} // {below}, {last} // {below}" if partly and axis == axes[0] else str(count)
            scopes.enter_context(self.p.scope(f"for {name} in range({steps}):", name))
            terms.append((below, name))
            found[axis] = address("0", (each if axis == axes[-1] else 1, name))
        self.p.bind(depth, address("0", *terms))
        return found

    def evaluate_panel(self, packed: Factor, which: str, start: str, count: str, k: str, k_stop: str) -> None:
        """Print the evaluation of one panel of a factor."""
        group, factor, depth = "m" if which == "a" else "n", self.factor(which), self.p.fresh("depth")
        first, last, each = *self.inside(k, k_stop), 1
        if self.beside and which == "b":  # elements as they are
            factor, first, last, each = self.beside, k, k_stop, self.depth
        size, rows = factor.dtype.itemsize, ""
        row = -(-self.width(which) // self.lanes) * self.lanes * size
        if self.depth > each:  # to rows that are then put side by side
            rows = address("scratch", (1, str(self.scratch.take(self.span("k") * self.depth * row))))

        def vector(coordinates: dict[int, str], position: str, view: View) -> None:
            with ExitStack() as scopes:
                at = self.depths(scopes, depth, first, last, each)
                value = self.p.value(factor, self.view(view, {**at, **coordinates}))
                base = address(rows, (row, minus(depth, first))) if rows else packed.at(start, depth)
                to = address(base, (size, minus(position, start)))
                self.p.store(to, 0 if view.vector is None else 1, value, view.count)

        # Depth inside: where a vector lies in the axes of n is found once for all of its rows.
        aligned = self.width(which) % self.lanes == 0
        self.sweep(group, start, address("0", (1, start), (1, count)), vector, aligned)
        if not rows:
            return
        if self.c.ragged:
            with self.p.scope(f"for {depth} in range({last}, {self.depth} * ({k_stop})):", depth):
                for offset in range(0, row, self.lanes * size):
                    zero = self.p.literal(0, factor.dtype)
                    self.p.line(f"store({address(rows, (row, minus(depth, first)))} + {offset}, {zero.name})")
        self.side_by_side(packed, factor, rows, row, start, count, k, k_stop)

    def side_by_side(
        self,
        packed: Factor,
        factor: Expr,
        rows: str,
        row: int,
        start: str,
        count: str,
        k: str,
        k_stop: str,
        panels: tuple[int, int] = (0, 0),
    ) -> None:
        """Print the copy of rows of a factor, ``row`` bytes apart, to where they lie as the dot product takes them.

        ``panels``: columns of one, and bytes from one to the next, where it is to several.
        """
        self.module.use("tiles.micro_kernels", "interleave")
        options = f'"{factor.dtype.name}", {self.depth}, {self.lanes}, {packed.k_step}, {row}'
        options += f", {panels[0]}, {panels[1]}" if panels[0] else ""
        copy = self.module.define("beside", f"interleave({options})")
        self.p.line(f"{copy}({packed.at(start, k)}, {rows}, {minus(k_stop, k)}, {count})")

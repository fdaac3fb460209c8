"""Packing in print: blocks of a contraction's factors are copied to where a register tile reads them in order."""

from __future__ import annotations

from dataclasses import replace

from eqsat.ir.contraction import Planes, plain
from eqsat.ir.copied import piece_along_rows
from eqsat.ir.kernel import Load
from eqsat.ir.nest import Pack, steps_of
from eqsat_backends.numba_cpu.printing.contract_elements import ContractElements
from eqsat_backends.numba_cpu.printing.contract_layout import Factor, padded_row, spread_panel
from eqsat_backends.numba_cpu.printing.source import Scratch, address, minus
from eqsat_backends.numba_cpu.tiles.micro_kernels import reach


class ContractPacking(ContractElements):
    """Copies of factors, for one thread or shared by all."""

    def pack_shared(self, nest: Pack, shared: Scratch) -> int:
        """Print this thread's share of packing all of a factor to the shared scratch, at the offset returned."""
        which = nest.operand[0]
        group, width = ("m" if which == "a" else "n"), self.width(which)
        packed = self.panels(which, "0", shared=True)
        extent, k = self.extent[group], self.extent["k"]
        batches = self.extent["b"] if packed.batch_step else 1
        by_depth = nest.piece > 0
        piece = nest.piece or width
        per_batch = -(-(k if by_depth else extent) // piece)
        units = batches * per_batch
        offset = shared.take(batches * -(-extent // width) * width * packed.step)
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

    def pack_private(self, nest: Pack) -> Factor:
        """Copy the current block of a factor to this thread's scratch, of every batch of the range at hand.

        Where it is fused, the first row of tiles makes the copy.
        """
        which, fused = nest.operand[0], nest.fused  # "b", of a group "b@" and its stage
        group = "m" if which == "a" else "n"
        start, k = self.range[group][0], self.range["k"][0]
        span, k_span, batches = self.span(group), self.span("k"), self.span("b")
        if which == "b":
            size = -(-span // self.columns) * self.columns * k_span * self.size
            packed = Factor("", k_span * self.size, self.columns * self.size, self.size, start, k)
        elif self.depth == 1 and self.along_rows():
            if self.cuts_rows(nest):
                row = self.rows * self.size
                panel = spread_panel(row, k_span * row + (reach(self.rows, self.lanes) - self.rows) * self.size)
                size = -(-span // self.rows) * panel
                packed = Factor("", panel // self.rows, row, self.size, start, k)
            else:
                column = padded_row(span * self.size)
                size = column * k_span
                packed = Factor("", self.size, column, self.size, start, k)
        else:
            behind = (self.lanes - 1) * self.size if self.depth == 1 and self.direct("a") is None else 0
            row = padded_row(k_span * self.size + behind)  # room for all lanes of a row's last store
            size = row * span
            packed = Factor("", row, self.size, row, start, k)
        room = size * (self.extent["b"] if batches > 1 else 1)
        packed = replace(packed, base=address("scratch", (1, str(self.scratch.take(room)))))
        if batches == 1:
            if fused:
                self.keeping = self.range["m"][0], nest.prefetch
            else:
                self.copy_block(packed, which, nest.prefetch)
            return replace(packed, batch_step=0)
        kept = dict(self.coordinates), self.batch
        self.batch = self.p.fresh("batch")
        with self.p.scope(f"for {self.batch} in range({self.extent['b']}):", self.batch):
            self.coordinates.update(self.split("b", self.batch))
            self.copy_block(replace(packed, batch_step=size, batch=self.batch), which, nest.prefetch)
        self.coordinates, self.batch = kept
        return replace(packed, batch_step=size)

    def cuts_rows(self, nest: Pack) -> bool:
        """Whether a block of the first factor that is copied column by column is cut into panels of a tile's rows.

        Its tiles start at panels then, and the whole of a panel is what a tile reads.
        """
        if self.bounded or self.direct("a") is None:
            return False
        return not any(step % self.rows for step in steps_of(nest.body, "m"))

    def along_rows(self) -> bool:
        """Whether a block of the first factor is copied column by column."""
        load = plain(self.c.a)
        if load and self.c.stride(load, "m") == 1 and self.c.stride(load, "k") not in (None, 1):
            return True
        return piece_along_rows(self.c.a, self.c.kernel.extents, self.c.m, self.c.k) > 0

    def copy_block(self, packed: Factor, which: str, ahead: int) -> None:
        """Print the copy of the current block of a factor, of one batch. ``ahead``: steps of k, see ``pack_panels``."""
        (start, stop), (k, k_stop) = self.range["m" if which == "a" else "n"], self.range["k"]
        if which == "a":
            self.copy_rows(packed, start, stop, k, k_stop, ahead)
        elif self.direct("b") is not None:
            self.copy_panels(packed, start, stop, k, k_stop, self.span("k"))
        elif (load := self.neighbours_apart()) is not None:
            size, k_step = load.dtype.itemsize, self.c.stride(load, "k")
            assert k_step is not None
            source = address(self.base(load), (size, start), (k_step * size * self.depth, k))
            panels = self.columns, self.columns * self.span("k") * self.size
            self.side_by_side(packed, load, source, k_step * size, start, minus(stop, start), k, k_stop, panels)
        else:
            panel = self.p.fresh("panel")
            with self.p.scope(f"for {panel} in range({start}, {stop}, {self.columns}):", panel):
                self.copy_panel(packed, "b", panel, k, k_stop)

    def neighbours_apart(self) -> Load | None:
        """The second factor where it is rows of bytes or the like, several of which become one of a panel."""
        load = plain(self.c.b)
        if load is None or self.depth == 1 or self.c.ragged or self.beside or self.c.stride(load, "n") != 1:
            return None
        return load if self.c.stride(load, "k") not in (None, 1) else None

    def copy_rows(self, packed: Factor, m: str, m_stop: str, k: str, k_stop: str, ahead: int = 0) -> None:
        """Print the copy of a block of the first factor."""
        place, rows, depth = self.direct("a"), minus(m_stop, m), minus(k_stop, k)
        if place is not None and place.k_step == self.size and packed.k_step == self.size:
            copy = self.copier("copy", packed.row, place.row)
            self.p.line(f"{copy}({packed.at(m, k)}, {place.at(m, k)}, {rows}, {depth})")
        elif packed.row == self.size != packed.step:
            assert place is not None
            pack = self.cutter(self.rows, self.rows * packed.step, packed.k_step, place.k_step, ahead)
            self.p.line(f"{pack}({packed.at(m, k)}, {place.at(m, k)}, {depth}, {rows})")
        elif place is not None and place.step == self.size and packed.step == self.size:
            copy = self.copier("copy", packed.k_step, place.k_step)
            self.p.line(f"{copy}({packed.at(m, k)}, {place.at(m, k)}, {depth}, {rows})")
        elif packed.step == self.size:
            self.evaluate_panel(packed, "a", m, rows, k, k_stop)
        else:
            self.evaluate_rows(packed, m, m_stop, k, k_stop)

    def copy_panels(self, packed: Factor, n: str, n_stop: str, k: str, k_stop: str, k_span: int) -> None:
        """Print the copy of a block of a second factor that is contiguous along n, all panels in one sweep."""
        place = self.direct("b")
        assert place is not None
        pack = self.cutter(self.columns, self.columns * k_span * self.size, packed.k_step, place.k_step)
        self.p.line(f"{pack}({packed.at(n, k)}, {place.at(n, k)}, {minus(k_stop, k)}, {minus(n_stop, n)})")

    def copy_panel(self, packed: Factor, which: str, start: str, k: str, k_stop: str) -> None:
        """Print the copy of one panel: as many positions as a register tile is wide, from ``start``."""
        group = "m" if which == "a" else "n"
        width, extent, depth = self.width(which), self.extent[group], minus(k_stop, k)
        count = str(width) if extent % width == 0 else f"min({width}, {minus(str(extent), start)})"
        if self.by_rows(which):
            self.copy_rows(packed, start, address("0", (1, start), (1, count)), k, k_stop)
            return
        load = plain(self.factor(which))
        step, k_step = (self.c.stride(load, group), self.c.stride(load, "k")) if load else (None, None)
        usable = load is not None and step is not None and k_step is not None and 1 in (step, k_step)
        if usable and not (self.depth > 1 and self.c.ragged):
            assert load is not None and step is not None and k_step is not None
            size = load.dtype.itemsize
            source = address(self.base(load), (step * size, start), (k_step * size * self.depth, k))
            if self.depth > 1 and k_step != 1:
                self.side_by_side(packed, load, source, k_step * size, start, count, k, k_stop)
            elif step == 1 and self.depth == 1:
                copy = self.copier("copy", packed.k_step, k_step * self.size)
                self.p.line(f"{copy}({packed.at(start, k)}, {source}, {depth}, {count})")
            else:
                copy = self.copier("transpose", packed.k_step, step * size)
                self.p.line(f"{copy}({packed.at(start, k)}, {source}, {count}, {depth})")
        else:
            self.evaluate_panel(packed, which, start, count, k, k_stop)

    def put_beside(self, planes: Planes, shared: Scratch) -> None:
        """Print this thread's share of putting the second factor's neighbours along k side by side, in its place."""
        load, first, stop = plain(self.c.b), self.p.fresh("row"), self.p.fresh("stop")
        assert load is not None
        self.p.bind(first, f"{planes.rows} * tid // nt")
        self.p.bind(stop, f"{planes.rows} * (tid + 1) // nt")
        size, apart = load.dtype.itemsize, planes.apart * load.dtype.itemsize
        source = address(self.bases[load.operand], (size, str(planes.start)), (self.depth * apart, first))
        to = Factor("shared", self.size, planes.pitch * self.size, 0)
        shared.take(planes.rows * to.k_step)
        self.side_by_side(to, load, source, apart, "0", str(planes.columns), first, stop)

    def cutter(self, width: int, to_panel: int, to_row: int, from_row: int, ahead: int = 0) -> str:
        self.module.use("tiles.micro_kernels", "pack_panels")
        strides = f"{to_panel}, {to_row}, {from_row}" + f", ahead={ahead}" * (ahead > 0)
        return self.module.define("pack", f'pack_panels("{self.dtype}", {self.lanes}, {width}, {strides})')

    def copier(self, name: str, to_row: int, from_row: int) -> str:
        self.module.use("tiles.micro_kernels", f"{name}_block")
        return self.module.define(name, f'{name}_block("{self.dtype}", {self.lanes}, {to_row}, {from_row})')

"""Printed kernels for groups without contractions: maps, reductions, and rows of both.

Work is shared between threads in contiguous runs: rows, blocks of a long row, or parts of a long reduction.
A reduction with few results is made in two phases: parts of it into scratch that all threads share, then the
parts. How it is cut does not depend on the number of threads, nor does any result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from eqsat.ir.kernel import Acc, Kernel, KernelGroup, Load, Operand, Stage
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp
from eqsat.ir.types import int64, row_major
from eqsat_backends.numba_cpu.axes import map_axes, map_strides, simplify, unique
from eqsat_backends.numba_cpu.emitted import Emitted
from eqsat_backends.numba_cpu.nests import WIDE, Part, Place, Rows, lane_cost, place_of
from eqsat_backends.numba_cpu.printer import Printer, reports
from eqsat_backends.numba_cpu.target import Target, host
from eqsat_backends.numba_cpu.transposes import Tiles, TransposedMap, transposed_axis, unguarded

__all__ = ["emit"]

_FEW = 16
"""Fewer units of work than this are cut further, so that threads find enough to share."""
_LARGE = 1 << 15
"""Elements below which cutting further does not pay."""
_PARTS = 32
_CHAINED = 4
"""Fewer rows than this, and a group runs stage after stage, each shared by all threads."""


def emit(
    group: KernelGroup, nest: Nest | None = None, *, lanes: int | None = None, target: Target | None = None
) -> Emitted:
    """Source of a kernel group without contractions.

    ``nest``: its lane count is used if it names one; the order of loops follows from the access maps.
    ``lanes``: lanes of every vector, a power of two; by default what the registers of ``target`` hold.
    A result may share its buffer with an input only if the group is one map, and every load of that input
    walks it just as the result is stored. Buffers are aligned to 64 bytes.
    Raises ``TypeError`` for element types or functions that kernels do not have.
    """
    target = target or host()
    lanes = lanes or _lanes_of(nest) or _default_lanes(group, target)
    writer = _Writer(simplify(group), lanes, target)
    return writer.emit()


def _lanes_of(nest: Nest | None) -> int | None:
    match nest:
        case TileOp("vector"):
            found = nest.size("lanes")
            return found if found in (2, 4, 8, 16, 32) else None
        case Loop() | Pack():
            return _lanes_of(nest.body)
        case Seq():
            return next((n for n in map(_lanes_of, nest.bodies) if n), None)
    return None


def _default_lanes(group: KernelGroup, target: Target) -> int:
    """What a register holds: of 64-bit elements if nothing is narrower but masks."""
    kernels = [stage.kernel for stage in group.stages]
    bits = {e.dtype.bits for k in kernels for e in unique(k.body, k.epilogue) if e.dtype.kind != "bool"}
    return target.lanes(64 if bits == {64} else 32)


class _Writer:
    """Writes the phases of one group."""

    def __init__(self, group: KernelGroup, lanes: int, target: Target) -> None:
        self.group = group
        self.p = Printer(lanes)
        self.lanes = lanes
        self.name = re.sub(r"\W", "_", group.name) or "kernel"
        self.bases = [f"a{i}" for i in range(len(group.operands))]
        self.phases: list[str] = []
        # What does not stay in the caches is stored past them.
        self.stream = sum(operand.nbytes for operand in group.operands) >= target.cache_bytes
        self.shared_bytes = 0
        self.thread_bytes = 0

    def emit(self) -> Emitted:
        group = self.group
        if all(stage.kernel.results == 0 for stage in group.stages):
            self.phase(lambda: None, group.stages, ())
        elif len(group.stages) == 1:
            self.single(group.stages[0], ())
        elif self._rows() < _CHAINED and max(s.kernel.points for s in group.stages) >= _LARGE:
            self.chain()
        else:
            self.rows()
        return Emitted(
            source=self.p.module(describe(group)),
            phases=tuple(self.phases),
            shared_bytes=self.shared_bytes,
            thread_bytes=self.thread_bytes,
        )

    def _rows(self) -> int:
        return math.prod(self.group.stages[0].kernel.extents[: self.group.shared])

    # phases

    def phase(self, body: Callable[[], None], stages: Sequence[Stage], buffers: Sequence[tuple[str, int]]) -> None:
        """One phase function around ``body``. ``buffers``: names and offsets in the shared scratch."""
        name = f"{self.name}_{len(self.phases)}"
        self.phases.append(name)
        operands = len(self.group.operands)
        used = sorted({i for s in stages for i in (*s.sources, s.result) if isinstance(i, int) and i < operands})
        with self.p.scope(f"def {name}(args, tid, nt):", "args", "tid", "nt"):
            for i in used:
                self.p.bind(f"a{i}", f"word(args, {i})")
            for buffer, offset in buffers:
                self.p.bind(buffer, f"word(args, {operands})" + (f" + {offset}" if offset else ""))
            if self.thread_bytes:
                self.p.bind("scratch", f"word(args, {operands + 1}) + {self.thread_bytes} * tid")
            if any(reports(e) for s in stages for e in unique(s.kernel.body, s.kernel.epilogue)):
                self.p.bind("status", f"word(args, {operands + 2})")
            body()
            if self.stream:
                self.p.line("fence()")
        self.p.line("")
        self.p.line("")

    def share(self, stack: ExitStack, units: int, prefix: str = "row") -> str:
        """A loop over this thread's run of ``units``; its variable."""
        variable = self.p.fresh(prefix)
        if units == 1:
            stack.enter_context(self.p.scope("if tid == 0:"))
            return "0"
        bounds = f"{units} * tid // nt, {units} * (tid + 1) // nt"
        stack.enter_context(self.p.scope(f"for {variable} in range({bounds}):", variable))
        return variable

    def positions(self, row: str, extents: Sequence[int]) -> tuple[str, ...]:
        """Expressions for the positions along axes that are flattened in ``row``."""
        if len(extents) <= 1:
            return (row,) * len(extents)
        names = []
        for a, (extent, step) in enumerate(zip(extents, row_major(tuple(extents)), strict=True)):
            text = row if step == 1 else f"{row} // {step}"
            names.append(self.p.fresh("p"))
            self.p.bind(names[-1], text if a == 0 else f"{text} % {extent}")
        return tuple(names)

    # groups of several stages

    def rows(self) -> None:
        """All stages on one row after another; what passes between them stays in this thread's scratch."""
        group = self.group
        planner = Rows(self.p, group, self.bases, {})
        places: dict[int, Place] = {}
        for s in planner.needs_place():
            kernel = group.stages[s].kernel
            place, size = place_of(kernel, group.shared, f"scratch + {self.thread_bytes}")
            places[s] = place if self.thread_bytes else replace(place, base="scratch")
            self.thread_bytes += -(-size * kernel.out.dtype.itemsize // 64) * 64
        printer = Rows(self.p, group, self.bases, places, stream=self.stream)

        def body() -> None:
            extents = group.stages[0].kernel.extents[: group.shared]
            with ExitStack() as stack:
                row = self.share(stack, math.prod(extents))
                printer.emit(self.positions(row, extents))

        self.phase(body, group.stages, ())

    def chain(self) -> None:
        """Few but long rows: stage after stage, each by all threads, through shared scratch."""
        group = self.group
        operands = len(group.operands)
        buffers: list[tuple[str, int]] = []
        index: dict[int, int] = {}
        for s, stage in enumerate(group.stages):
            if stage.result is None:
                index[s] = len(self.bases)
                buffers.append((f"t{s}", self.reserve(stage.kernel.out.nbytes)))
                self.bases.append(f"t{s}")
            else:
                index[s] = stage.result
        for s, stage in enumerate(group.stages):
            sources = tuple(i if isinstance(i, int) else index[i.stage] for i in stage.sources)
            used = {i for i in (*sources, index[s]) if i >= operands}
            here = tuple(b for i, b in enumerate(buffers, operands) if i in used)
            alone = simplify(KernelGroup((Stage(stage.kernel, sources, index[s]),), 0, group.operands, ()))
            self.single(alone.stages[0], here)

    def reserve(self, size: int) -> int:
        """Bytes in the shared scratch: their offset."""
        offset = self.shared_bytes
        self.shared_bytes += -(-size // 64) * 64
        return offset

    # one kernel

    def single(self, stage: Stage, buffers: tuple[tuple[str, int], ...]) -> None:
        """One kernel, by all threads."""
        kernel = stage.kernel
        if kernel.results == 0:
            self.phase(lambda: None, (stage,), ())
            return
        if kernel.combine is None:
            for part in unguarded(kernel, self.lanes):
                alone = KernelGroup((replace(stage, kernel=part),), 0, self.group.operands, ())
                self.map((simplify(alone) if part is not kernel else alone).stages[0], buffers)
        else:
            self.reduction(stage, buffers)

    def split_rows(self, stage: Stage, vector: int | None) -> KernelGroup:
        """The kernel with all parallel axes but ``vector`` as shared axes of a group of one stage."""
        kernel = stage.kernel
        parallel = [a for a in range(kernel.parallel) if a != vector]
        rest = [a for a in range(len(kernel.extents)) if a not in parallel]
        order = (*parallel, *rest)
        moved = map_axes(kernel, lambda s: tuple(s[a] for a in order), kernel.parallel)
        return KernelGroup((replace(stage, kernel=moved),), len(parallel), self.group.operands, ())

    def map(self, stage: Stage, buffers: tuple[tuple[str, int], ...]) -> None:
        kernel = stage.kernel
        axes = range(kernel.parallel)
        vector = min(axes, key=lambda a: (lane_cost(kernel, a, self.lanes), -a)) if axes else None
        turned = None if vector is None else transposed_axis(kernel, vector, self.lanes)
        for a in axes:  # contiguous stores, if the loads along the other axis can be turned
            if a != vector and kernel.store_strides[a] == 1 and transposed_axis(kernel, a, self.lanes) == vector:
                vector, turned = a, vector
        if vector is None or turned is None:
            self.spread(self.split_rows(stage, vector), buffers)
            return
        order = (*(a for a in axes if a not in (turned, vector)), turned, vector)
        moved = map_axes(kernel, lambda s: tuple(s[a] for a in order), kernel.parallel)
        extents = moved.extents[:-2]
        group = KernelGroup((replace(stage, kernel=moved),), len(extents), self.group.operands, ())
        printer = TransposedMap(self.p, Rows(self.p, group, self.bases, {}, stream=self.stream), "scratch")
        self.thread_bytes = max(self.thread_bytes, printer.scratch_bytes)
        units = printer.units()

        def body() -> None:
            with ExitStack() as stack:
                unit = row = self.share(stack, math.prod(extents) * units, "unit")
                if extents and units > 1:
                    block, row = self.p.fresh("block"), self.p.fresh("row")
                    self.p.bind(block, f"{unit} % {units}")
                    self.p.bind(row, f"{unit} // {units}")
                    unit = block
                elif extents:
                    unit = "0"
                printer.emit(self.positions(row, extents), unit)

        self.phase(body, (stage,), buffers)

    def spread(self, group: KernelGroup, buffers: tuple[tuple[str, int], ...], positions: Load | None = None) -> None:
        """Rows of one stage; where they are few, blocks of each row's first axis."""
        stage, shared = group.stages[0], group.shared
        kernel = stage.kernel
        rows = math.prod(kernel.extents[:shared])
        printer = Rows(self.p, group, self.bases, {}, "scratch", self.stream)
        if positions is not None:
            printer.positions[0] = positions
        kept = kernel.extents[shared : kernel.parallel]
        wide = printer.columns.wide(0)
        if wide:
            self.thread_bytes = max(self.thread_bytes, WIDE * kernel.body.dtype.itemsize)
        self.turn(printer)
        step = self.lanes * (1 if kernel.combine is None or wide else printer.columns.copies(0))
        main = kept[0] // step if kept else 0

        def body() -> None:
            with ExitStack() as stack:
                if rows >= _FEW or main * step < 256:
                    row = self.share(stack, rows)
                    printer.emit(self.positions(row, kernel.extents[:shared]))
                    return
                if rows == 1:
                    low, high = self.p.fresh("low"), self.p.fresh("high")
                    self.p.bind(low, f"{main} * tid // nt * {step}")
                    self.p.bind(high, f"{main} * (tid + 1) // nt * {step}")
                    self._walk(printer, ("0",) * shared, Part(low, high, "tid == nt - 1"))
                    return
                per = -(-main // -(-2 * _FEW // rows))
                blocks = -(-main // per)
                unit = self.share(stack, rows * blocks, "unit")
                low, high = self.p.fresh("low"), self.p.fresh("high")
                self.p.bind(low, f"{unit} % {blocks} * {per * step}")
                self.p.bind(high, f"min({low} + {per * step}, {main * step})")
                row = self.p.fresh("row")
                self.p.bind(row, f"{unit} // {blocks}")
                positions = self.positions(row, kernel.extents[:shared])
                self._walk(printer, positions, Part(low, high, f"{high} == {main * step}"))

        self.phase(body, (stage,), buffers)

    def turn(self, printer: Rows) -> None:
        """Give a reduction whose operands lie along different axes the scratch to turn blocks of them over."""
        axis = printer.turned(0)
        if axis is None:
            return
        kernel = printer.stages[0].kernel
        vector = printer.vector_axis(0, range(printer.shared, len(kernel.extents)))
        printer.tiles = "scratch"
        self.thread_bytes = max(self.thread_bytes, Tiles(printer, kernel, vector, axis, "scratch").nbytes)

    @staticmethod
    def _walk(printer: Rows, axes: tuple[str, ...], part: Part) -> None:
        if printer.stages[0].kernel.combine is None:
            printer.line([0], axes, part)
        else:
            printer.nest(0, axes, split=part)

    def reduction(self, stage: Stage, buffers: tuple[tuple[str, int], ...]) -> None:
        kernel = stage.kernel
        axes = range(len(kernel.extents))
        vector = min(axes, key=lambda a: (lane_cost(kernel, a, self.lanes), -a))
        in_lanes = vector >= kernel.parallel
        units = kernel.results // (1 if in_lanes else min(kernel.extents[vector], 4 * self.lanes))
        if units < _FEW and kernel.points >= _LARGE and self.cut(stage, vector, buffers):
            return
        self.spread(self.split_rows(stage, None if in_lanes else vector), buffers)

    def cut(self, stage: Stage, vector: int, buffers: tuple[tuple[str, int], ...]) -> bool:
        """Two phases: parts of the outermost reduced axis, then the parts. False if that axis is too short."""
        group = self.split_rows(stage, vector if vector < stage.kernel.parallel else None)
        kernel, shared = group.stages[0].kernel, group.shared
        extents = kernel.extents[: kernel.parallel]
        rows, results = math.prod(extents[:shared]), kernel.results
        printer = Rows(self.p, group, self.bases, {})
        outermost = kernel.extents[kernel.parallel]
        if printer.vector_axis(0, range(shared, len(kernel.extents))) == kernel.parallel:
            step = printer.line_step(0)
        else:
            step = self.lanes if printer.turned(0) == kernel.parallel else 1
        steps = outermost // step
        per = -(-steps // _PARTS)
        if steps < 2:
            return False
        parts = -(-steps // per)

        partial = Operand(kernel.acc_dtype, parts * results)
        operand, extreme = len(self.bases), len(self.bases) + 1
        tables = [("parts", self.reserve(partial.nbytes))]
        self.bases.append("parts")
        positional = kernel.combine in ("argmax", "argmin")
        if positional:
            tables.append(("extremes", self.reserve(parts * results * kernel.body.dtype.itemsize)))
            self.bases.append("extremes")
        # the part is a first, shared axis of the kernel that makes the parts
        first = replace(
            map_axes(kernel, lambda s: (0, *s), kernel.parallel + 1),
            epilogue=Acc(kernel.acc_dtype),
            out=partial,
            store_offset=0,
            store_strides=(results, *row_major(extents)),
        )
        first = replace(first, extents=(parts, *kernel.extents))
        makers = KernelGroup((replace(group.stages[0], kernel=first, result=operand),), shared + 1, group.operands, ())
        maker = Rows(self.p, makers, self.bases, {})
        self.turn(maker)
        if positional:
            maker.extremes[0] = "extremes"

        def body() -> None:
            with ExitStack() as stack:
                unit = self.share(stack, rows * parts, "unit")
                part, row = unit, "0"
                if rows > 1:
                    part, row = self.p.fresh("part"), self.p.fresh("row")
                    self.p.bind(part, f"{unit} % {parts}")
                    self.p.bind(row, f"{unit} // {parts}")
                low, high = self.p.fresh("low"), self.p.fresh("high")
                self.p.bind(low, f"{part} * {per * step}")
                self.p.bind(high, f"min({low} + {per * step}, {steps * step})")
                share = Part(low, high, f"{part} == {parts - 1}")
                positions = (part, *self.positions(row, extents[:shared]))
                if maker.stages[0].kernel.parallel == maker.shared:
                    maker.line([0], positions, share)
                else:
                    maker.nest(0, positions, part=share)

        self.phase(body, makers.stages, (*buffers, *tables))
        self.combine_parts(group.stages[0], parts, operand, extreme if positional else None, (*buffers, *tables))
        return True

    def combine_parts(
        self, stage: Stage, parts: int, operand: int, extreme: int | None, buffers: tuple[tuple[str, int], ...]
    ) -> None:
        """The second phase: what the parts' results combine to, and the epilogue."""
        kernel = stage.kernel
        extents, results = kernel.extents[: kernel.parallel], kernel.results
        strides = (*row_major(extents), results)
        slot = len(kernel.operands)
        second = replace(
            kernel,
            extents=(*extents, parts),
            body=Load(slot, 0, strides, kernel.body.dtype),
            epilogue=map_strides(kernel.epilogue, lambda s: (*s[: kernel.parallel], 0)),
            operands=(*kernel.operands, Operand(kernel.body.dtype, parts * results)),
        )
        sources = (*stage.sources, operand if extreme is None else extreme)
        positions = None
        if extreme is not None:
            positions = Load(slot + 1, 0, strides, int64)
            sources = (*sources, operand)
        axes = range(len(second.extents))
        vector = min(axes, key=lambda a: (lane_cost(second, a, self.lanes), -a))
        group = self.split_rows(
            replace(stage, kernel=second, sources=sources), vector if vector < second.parallel else None
        )
        if positions is not None:
            order = [a for a in range(second.parallel) if a != vector] + [vector] * (vector < second.parallel)
            positions = replace(positions, strides=(*(strides[a] for a in order), strides[-1]))
        self.spread(group, buffers, positions)


def describe(group: KernelGroup) -> str:
    """One line: the name, and each stage's extents and reduction."""
    parts = []
    for stage in group.stages:
        kernel: Kernel = stage.kernel
        shape = "x".join(map(str, kernel.extents[: kernel.parallel])) or "1"
        reduced = "x".join(map(str, kernel.extents[kernel.parallel :]))
        parts.append(f"{shape} {kernel.combine} over {reduced}" if kernel.combine else f"{shape} map")
    name = re.sub(r"[^\w .,:+-]", "_", group.name)
    return f"{name}: " + "; ".join(parts) + "."

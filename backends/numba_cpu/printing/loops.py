"""Printed kernels for groups without contractions: maps, reductions, and rows of both.

A single kernel runs by its nest (see ``walk``). A reduction that is split is made in two phases: parts of it into
scratch that all threads share, then the parts. How it is cut does not depend on the number of threads, nor does any
result. A group runs row by row, each stage by its own nest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from eqsat.ir.axes import map_strides, simplify, unique
from eqsat.ir.kernel import Acc, Kernel, KernelGroup, Load, Operand, Stage
from eqsat.ir.nest import Loop, Nest, TileOp
from eqsat.ir.types import int64, row_major
from eqsat.schedule.maps import axes_of, check_nest, tile_of
from eqsat.schedule.plain import plain_nest, stage_nests, unguarded
from eqsat.schedule.problem import element_bits
from eqsat_backends.numba_cpu.printing.emitted import Emitted
from eqsat_backends.numba_cpu.printing.nests import Place, Rows, place_of
from eqsat_backends.numba_cpu.printing.printer import Printer, reports
from eqsat_backends.numba_cpu.target import Target, host
from eqsat_backends.numba_cpu.tiles.tile_ops import registered

__all__ = ["emit"]

_LARGE = 1 << 15
"""Elements from which a stage of a group of few rows is worth sharing between threads."""
_CHAINED = 4
"""Fewer rows than this, and a group runs stage after stage, each shared by all threads."""


def emit(
    group: KernelGroup, nest: Nest | None = None, *, lanes: int | None = None, target: Target | None = None
) -> Emitted:
    """Source of a kernel group without contractions.

    ``nest``: how it runs (see ``eqsat.ir.nest``); what it does not say runs by plain nests.
    ``lanes``: lanes of every vector of those, a power of two; by default what the registers of ``target`` hold.
    A result may share its buffer with an input only if the group is one map, and every load of that input
    walks it just as the result is stored. Buffers are aligned to 64 bytes.

    Raises:
        TypeError: element types or functions that kernels do not have.
        ValueError: the nest is not legal for the kernel; the message names the axis.
    """
    single = simplify(replace(group, shared=0) if len(group.stages) == 1 else group)
    nests = stage_nests(nest)
    if nests:
        lanes = next(tile_of(own).lanes for own in nests.values())
    else:
        width = element_bits(stage.kernel for stage in group.stages)
        lanes = lanes or (target or host()).lanes(width)
    return _Writer(single, lanes, nests).emit()


class _Writer:
    """Writes the phases of one group."""

    def __init__(self, group: KernelGroup, lanes: int, nests: dict[int, Nest]) -> None:
        self.group, self.nests = group, nests
        self.p = Printer(lanes)
        self.lanes = lanes
        self.name = re.sub(r"\W", "_", group.name) or "kernel"
        self.bases = [f"a{i}" for i in range(len(group.operands))]
        self.phases: list[str] = []
        self.shared_bytes = 0
        self.thread_bytes = 0

    def emit(self) -> Emitted:
        group = self.group
        if all(stage.kernel.results == 0 for stage in group.stages):
            self.phase(lambda: None, group.stages, ())
        elif len(group.stages) == 1:
            self.single(group.stages[0], (), self.nests.get(0))
        elif self._rows() < _CHAINED and max(s.kernel.points for s in group.stages) >= _LARGE:
            self.chain()
        else:
            self.rows()
        source = self.p.module(describe(group))
        if not self.thread_bytes:
            source = re.sub(r"\n *scratch = .*THREAD_BYTES.*", "", source)
        return Emitted(
            source=source.replace("THREAD_BYTES", str(self.thread_bytes)),
            phases=tuple(self.phases),
            shared_bytes=self.shared_bytes,
            thread_bytes=self.thread_bytes,
        )

    def take(self, size: int) -> str:
        """Address of so many new bytes of the thread's scratch."""
        offset = self.thread_bytes
        self.thread_bytes += -(-size // 64) * 64
        return f"scratch + {offset}" if offset else "scratch"

    def _rows(self) -> int:
        return math.prod(self.group.stages[0].kernel.extents[: self.group.shared])

    # phases

    def phase(
        self,
        body: Callable[[], None],
        stages: Sequence[Stage],
        buffers: Sequence[tuple[str, int]],
        streams: bool = False,
    ) -> None:
        """One phase function around ``body``. ``buffers``: names and offsets in the shared scratch.

        ``streams``: results go past the caches.
        """
        name = f"{self.name}_{len(self.phases)}"
        self.phases.append(name)
        operands = len(self.group.operands)
        used = sorted({i for s in stages for i in (*s.sources, s.result) if isinstance(i, int) and i < operands})
        with self.p.scope(f"def {name}(args, tid, nt):", "args", "tid", "nt"):
            for i in used:
                self.p.bind(f"a{i}", f"word(args, {i})")
            for buffer, offset in buffers:
                self.p.bind(buffer, f"word(args, {operands})" + (f" + {offset}" if offset else ""))
            self.p.bind("scratch", f"word(args, {operands + 1}) + THREAD_BYTES * tid")
            if any(reports(e) for s in stages for e in unique(s.kernel.body, s.kernel.epilogue)):
                self.p.bind("status", f"word(args, {operands + 2})")
            body()
            if streams:
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
        planner = Rows(self.p, group, self.bases, {}, self.take)
        places: dict[int, Place] = {}
        for s in planner.needs_place():
            kernel = group.stages[s].kernel
            place, size = place_of(kernel, group.shared, "")
            places[s] = replace(place, base=self.take(size * kernel.out.dtype.itemsize))
        printer = Rows(self.p, group, self.bases, places, self.take, self.nests)

        def body() -> None:
            extents = group.stages[0].kernel.extents[: group.shared]
            with ExitStack() as stack:
                row = self.share(stack, math.prod(extents))
                printer.emit(self.positions(row, extents))

        self.phase(body, group.stages, (), any(tile_of(nest).stream for nest in self.nests.values()))

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
            self.single(alone.stages[0], here, None)

    def reserve(self, size: int) -> int:
        """Bytes in the shared scratch: their offset."""
        offset = self.shared_bytes
        self.shared_bytes += -(-size // 64) * 64
        return offset

    # one kernel

    def single(self, stage: Stage, buffers: tuple[tuple[str, int], ...], nest: Nest | None) -> None:
        """One kernel, by all threads where its nest says so."""
        kernel = stage.kernel
        if kernel.results == 0:
            self.phase(lambda: None, (stage,), ())
            return
        parts = unguarded(kernel, self.lanes)
        for part in parts if len(parts) > 1 else ():
            alone = KernelGroup((replace(stage, kernel=part),), 0, self.group.operands, ())
            self.single(simplify(alone).stages[0], buffers, None)
        if len(parts) > 1:
            return
        nest = nest or plain_nest(kernel, self.lanes, parallel=True)
        check_nest(nest, kernel, 0, registered())
        if isinstance(nest, Loop) and nest.split:
            self.split(stage, nest, buffers)
            return
        group = KernelGroup((stage,), 0, self.group.operands, ())
        rows = Rows(self.p, group, self.bases, {}, self.take, {0: nest})
        self.phase(lambda: self.walk(rows, nest), (stage,), buffers, tile_of(nest).stream)

    def walk(self, rows: Rows, nest: Nest) -> None:
        with ExitStack() as stack:
            if not _is_parallel(nest):
                stack.enter_context(self.p.scope("if tid == 0:"))
            rows.emit(())

    def split(self, stage: Stage, nest: Loop, buffers: tuple[tuple[str, int], ...]) -> None:
        """Two phases: parts of a reduced axis, then the parts."""
        kernel = stage.kernel
        extents, results = kernel.extents[: kernel.parallel], kernel.results
        parts = -(-kernel.extents[axes_of(kernel)[nest.axis]] // nest.step)
        partial = Operand(kernel.acc_dtype, parts * results)
        operand, extreme = len(self.bases), None
        tables = [("parts", self.reserve(partial.nbytes))]
        self.bases.append(f"parts + {results * partial.dtype.itemsize} * part")
        maker = replace(
            kernel, epilogue=Acc(kernel.acc_dtype), out=partial, store_offset=0, store_strides=row_major(extents)
        )
        group = KernelGroup((replace(stage, kernel=maker, result=operand),), 0, self.group.operands, ())
        rows = Rows(self.p, group, self.bases, {}, self.take, {0: nest})
        if kernel.combine in ("argmax", "argmin"):
            size = kernel.body.dtype.itemsize
            tables.append(("extremes", self.reserve(parts * results * size)))
            extreme = operand + 1
            rows.extremes[0] = f"extremes + {results * size} * part"
        self.phase(lambda: rows.emit(()), group.stages, (*buffers, *tables))
        self.bases[operand:] = ["parts", "extremes"]
        self.combine_parts(stage, parts, operand, extreme, (*buffers, *tables))

    def combine_parts(
        self, stage: Stage, parts: int, operand: int, extreme: int | None, buffers: tuple[tuple[str, int], ...]
    ) -> None:
        """The second phase: what the parts' results combine to, and the epilogue; by vectors of results if it can."""
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
        if extreme is not None:
            sources = (*sources, operand)
        stage = replace(stage, kernel=second, sources=sources)
        group = KernelGroup((stage,), 0, self.group.operands, ())
        nest: Nest
        if extents:
            lanes = f"p{kernel.parallel - 1}"
            nest = Loop("r0", parts, 1, TileOp("reduce", ((lanes, self.lanes),), lanes=self.lanes))
            for a in reversed(range(kernel.parallel)):
                step = self.lanes if a == kernel.parallel - 1 else 1
                if extents[a] > step:
                    nest = Loop(f"p{a}", extents[a], step, nest)
        else:
            nest = TileOp("reduce", (("r0", self.lanes),), lanes=self.lanes)
            if parts > self.lanes:
                nest = Loop("r0", parts, self.lanes, nest)
        if isinstance(nest, Loop) and nest.axis != "r0":
            nest = replace(nest, parallel=True)
        rows = Rows(self.p, group, self.bases, {}, self.take, {0: nest})
        if extreme is not None:
            rows.positions[0] = Load(slot + 1, 0, strides, int64)
        self.phase(lambda: self.walk(rows, nest), (stage,), buffers)


def _is_parallel(nest: Nest) -> bool:
    while isinstance(nest, Loop):
        if nest.parallel:
            return True
        nest = nest.body
    return False


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

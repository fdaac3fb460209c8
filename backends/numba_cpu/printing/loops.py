"""Printed kernels for maps and reductions: each runs by its nest (see ``walk``), in the phases that it says.

A reduction that is split is made in two phases: parts of it into scratch that all threads share, then the parts. How it
is cut does not depend on the number of threads, nor does any result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from eqsat.ir.axes import simplify
from eqsat.ir.kernel import Acc, FromStage, KernelGroup, Load, Operand, Stage
from eqsat.ir.nest import Loop, Nest, Seq, tiles
from eqsat.ir.types import int64, row_major
from eqsat.schedule import is_parallel
from eqsat.schedule.phases import apart, check_beside, combining, is_split, parts_of, phases
from eqsat.schedule.problem import element_bits
from eqsat.schedule.simple import plain_group_nest
from eqsat_backends.numba_cpu.printing import blocks
from eqsat_backends.numba_cpu.printing.emitted import Emitted
from eqsat_backends.numba_cpu.printing.nests import Rows
from eqsat_backends.numba_cpu.printing.printer import Printer, reports
from eqsat_backends.numba_cpu.printing.source import Scratch, address
from eqsat_backends.numba_cpu.target import Target, host
from eqsat_backends.numba_cpu.tiles.tile_ops import registered

__all__ = ["emit"]


def emit(
    group: KernelGroup,
    nest: Nest | None = None,
    *,
    lanes: int | None = None,
    target: Target | None = None,
    varying: frozenset[int] = frozenset(),
) -> Emitted:
    """Source of a kernel group without contractions.

    ``nest``: how it runs (see ``eqsat.ir.nest``); by default by plain nests. ``lanes``: lanes of every vector of those,
    a power of two; by default what the registers of ``target`` hold. ``varying``: see ``emit.emit_group``.
    A result may share its buffer with an input only if the group is one map, and every load of that input
    walks it just as the result is stored. Buffers are aligned to 64 bytes.

    Raises:
        TypeError: element types or functions that kernels do not have.
        ValueError: the nest is not legal for the kernel; the message names the axis.
    """
    if nest is None:
        width = element_bits(stage.kernel for stage in group.stages)
        nest = plain_group_nest(group, lanes or (target or host()).lanes(width))
    if (
        group.shared
        and len(group.stages) > 1
        and not isinstance(nest, Seq)
        and any(stage.kernel.results for stage in group.stages)
    ):
        return blocks.emit(group, nest, target or host(), varying)
    return _Writer(group, nest, varying).emit()


class _Writer:
    """Writes the phases of one group."""

    def __init__(self, group: KernelGroup, nest: Nest, varying: frozenset[int]) -> None:
        self.group = group
        empty = not any(stage.kernel.results for stage in group.stages)
        found = [(apart(group, 1)[0], nest)] if empty else phases(group, nest)
        self.kernels = [(simplify(replace(one, shared=0)), own) for one, own in found]
        self.p = Printer(tiles(nest)[0].lanes, varying=varying)
        self.name = re.sub(r"\W", "_", group.name) or "kernel"
        self.names: list[str] = []
        self.shared, self.scratch = Scratch(), Scratch()
        self.bases = [f"a{i}" for i in range(len(group.operands))]
        self.buffers: dict[int, tuple[str, int]] = {}
        """Names and offsets in the shared scratch of what passes from phase to phase, by operand."""
        for operand in self.kernels[0][0].operands[len(self.bases) :]:
            self.buffers[len(self.bases)] = (f"t{len(self.buffers)}", self.shared.take(operand.nbytes))
            self.bases.append(f"t{len(self.buffers) - 1}")

    def emit(self) -> Emitted:
        for group, nest in self.kernels:
            self.kernel(group.stages, nest)
        source = self.p.module(self.group.describe())
        if not self.scratch.bytes:
            source = re.sub(r"\n *scratch = .*THREAD_BYTES.*", "", source)
        source = source.replace("THREAD_BYTES", str(self.scratch.bytes))
        return Emitted(source, tuple(self.names), self.shared.bytes, self.scratch.bytes)

    def take(self, size: int) -> str:
        """Address of so many new bytes of the thread's scratch."""
        return address("scratch", (1, str(self.scratch.take(size))))

    def phase(
        self,
        body: Callable[[], None],
        stages: Sequence[Stage],
        buffers: Sequence[tuple[str, int]] = (),
        streams: bool = False,
    ) -> None:
        """One phase function around ``body``. ``buffers``: names and offsets in the shared scratch.

        ``streams``: results go past the caches.
        """
        name = f"{self.name}_{len(self.names)}"
        self.names.append(name)
        operands = len(self.group.operands)
        used = sorted({i for stage in stages for i in (*stage.sources, stage.result) if isinstance(i, int)})
        here = [*(self.buffers[i] for i in used if i in self.buffers), *buffers]
        with self.p.scope(f"def {name}(args, tid, nt):", "args", "tid", "nt"):
            for i in used:
                if i < operands:
                    self.p.bind(f"a{i}", f"word(args, {i})")
            for buffer, offset in here:
                self.p.bind(buffer, f"word(args, {operands})" + (f" + {offset}" if offset else ""))
            self.p.bind("scratch", f"word(args, {operands + 1}) + THREAD_BYTES * tid")
            if any(reports(e) for stage in stages for e in stage.kernel.expressions):
                self.p.bind("status", f"word(args, {operands + 2})")
            body()
            if streams:
                self.p.line("fence()")
        self.p.line("")
        self.p.line("")

    def kernel(self, stages: tuple[Stage, ...], nest: Nest) -> None:
        """One kernel, or reductions side by side, by all threads where the nest says so."""
        if stages[0].kernel.results == 0:
            self.phase(lambda: None, stages)
            return
        check_beside(nest, [stage.kernel for stage in stages], registered())
        self.p.lanes = tiles(nest)[0].lanes  # a part of a map may have no narrow elements, and wider lanes
        if isinstance(nest, Seq) and is_split(nest):
            self.split(stages, *nest.bodies)
        else:
            self.walk(self.rows(stages), nest)

    def rows(self, stages: tuple[Stage, ...]) -> Rows:
        return Rows(self.p, KernelGroup(stages, 0, self.group.operands, ()), self.bases, {}, self.take)

    def walk(self, rows: Rows, nest: Nest, buffers: Sequence[tuple[str, int]] = ()) -> None:
        def body() -> None:
            with ExitStack() as stack:
                if not is_parallel(nest):
                    stack.enter_context(self.p.scope("if tid == 0:"))
                rows.emit((), [nest])

        self.phase(body, rows.stages, buffers, tiles(nest)[0].stream)

    def split(self, stages: tuple[Stage, ...], nest: Nest, second: Nest) -> None:
        """Two phases: parts of a reduced axis, then what they combine to."""
        assert isinstance(nest, Loop)
        parts, operands = parts_of(nest), len(self.bases)
        first, last = [], []
        tables: list[tuple[str, int]] = []
        then: list[str] = []
        extremes: dict[int, str] = {}
        positions: dict[int, Load] = {}
        for s, stage in enumerate(stages):
            kernel, slot = stage.kernel, len(stage.kernel.operands)
            results, number = kernel.results, str(s or "")
            strides = row_major(kernel.extents[: kernel.parallel])
            partial = Operand(kernel.acc_dtype, parts * results)
            tables.append((f"parts{number}", self.shared.take(partial.nbytes)))
            operand = operands + len(then)
            self.bases.append(f"parts{number} + {results * partial.dtype.itemsize} * part")
            then.append(f"parts{number}")
            maker = replace(kernel, epilogue=Acc(kernel.acc_dtype), out=partial, store_offset=0, store_strides=strides)
            first.append(replace(stage, kernel=maker, result=operand))
            sources: tuple[int | FromStage, ...] = (operand,)
            if kernel.combine in ("argmax", "argmin"):
                size = kernel.body.dtype.itemsize
                tables.append(("extremes", self.shared.take(parts * results * size)))
                extremes[s] = f"extremes + {results * size} * part"
                positions[s] = Load(slot + 1, 0, (*strides, results), int64)
                self.bases.append("extremes")
                then.append("extremes")
                sources = (operand + 1, operand)
            last.append(replace(stage, kernel=combining(kernel, parts), sources=(*stage.sources, *sources)))
        rows = self.rows(tuple(first))
        rows.extremes.update(extremes)
        self.phase(lambda: rows.emit((), [nest]), first, tables)
        self.bases[operands:] = then
        rows = self.rows(tuple(last))
        rows.positions.update(positions)
        self.walk(rows, second, tables)
        del self.bases[operands:]

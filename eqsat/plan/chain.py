"""What runs after what in a call: segments of steps, the loops around them, and when a tensor is no longer needed.

Steps are data as backends emit them. All have ``of``, the number of the plan's step that they were made of, and
``tensors``. A compiled one has ``kernel`` (the key of its code), ``phases``, ``outputs`` (positions in ``tensors``),
bytes of scratch (``shared``, and ``thread`` for each thread) and ``packs`` (how constant operands are packed). Others
have a group of kernels that is interpreted (``interpreted``, ``outputs``), or operators (``reference``, ``reads``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from eqsat.ir.evaluate import evaluator
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.loop import runs_of
from eqsat.ir.node import ConstArray, Node
from eqsat.ir.opaque import Call, call_alone
from eqsat.ir.serialize import nodes_from_json
from eqsat.ir.types import TensorType
from eqsat.plan.tabulate import Table, Tabulator
from eqsat.plan.trips import is_loop, reads_writes


class Program(Protocol):
    """What a backend makes of a table."""

    def __call__(self, arrays: tuple[Any, ...], threads: int = 1) -> int:
        """Run on the table's arguments: 0, or what keeps it from having run, or from having run well."""

    def tried(self) -> Program:
        """The same with loops of fewer trips (:attr:`eqsat.plan.table.Again.trial`)."""


@dataclass
class Segment:
    """A run of compiled steps, a loop, or a step without: operators or a library's call (``values``), or a kernel."""

    program: Program | None
    arguments: list[int]
    writes: list[int]
    values: Sequence[Node] = ()
    call: Call | None = None
    group: KernelGroup | None = None
    loop: ChainLoop | None = None

    @cached_property
    def evaluate(self) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        """What computes ``values`` of ``arguments``."""
        return evaluator(self.values)


@dataclass
class Chain:
    """Segments one after the other, and the tensors that nobody reads after each."""

    segments: list[Segment]
    dead: list[list[int]]

    def every(self) -> Iterator[Segment]:
        """Segments, and those inside of loops."""
        for segment in self.segments:
            yield segment
            if segment.loop is not None:
                yield from segment.loop.body.every()

    def tried(self) -> Chain:
        """With loops of fewer trips, where they may be tried so."""
        segments = []
        for segment in self.segments:
            program, loop = segment.program and segment.program.tried(), segment.loop
            if loop is not None:
                r = loop.repeat
                loop = ChainLoop(r, loop.body.tried(), runs_of(r["trips"], r["conditional"], r["trial"], r["copies"]))
            segments.append(replace(segment, program=program, loop=loop))
        return replace(self, segments=segments)


@dataclass
class ChainLoop:
    """A loop (fields of :class:`eqsat.plan.plan.Repeat`) around a body."""

    repeat: Mapping[str, Any]
    body: Chain
    runs: int
    """Trips that are run."""


def is_compiled(step: Mapping[str, Any]) -> bool:
    """Whether a table can hold a step, or all of a loop."""
    if is_loop(step):
        return not step["loop"]["conditional"] and all(map(is_compiled, step["body"]))
    return "kernel" in step


def nested(steps: Sequence[Mapping[str, Any]], repeats: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Steps in order, each loop among them as one step that holds its own (``body``)."""
    left = [dict(repeat) for repeat in repeats]

    def walk(begin: int, end: int) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        number = begin
        while number < end:
            outer = next((r for r in left if r["begin"] == number), None)
            if outer is None:
                found.append(steps[number])
                number += 1
                continue
            left.remove(outer)
            found.append({"loop": outer, "body": walk(number, outer["end"])})
            number = outer["end"]
        return found

    return walk(0, len(steps))


@dataclass
class Chains:
    """Makes chains of steps. ``load``: a table's program. ``peak_bytes``: memory for what they were made of so far."""

    types: Mapping[int, TensorType]
    tabulator: Tabulator
    load: Callable[[Table], Program]
    peak_bytes: int = 0

    def chain(
        self, steps: Sequence[Mapping[str, Any]], outputs: Sequence[int], inputs: Sequence[int] | None = None
    ) -> Chain:
        """Segments of these steps; ``inputs``: of the program, if they are all of its steps."""
        runs: list[list[Mapping[str, Any]]] = []
        for step in steps:
            if not runs or not is_compiled(step) or not is_compiled(runs[-1][0]):
                runs.append([step])
            else:
                runs[-1].append(step)
        made: dict[int, int] = {}
        used: dict[int, set[int]] = {}
        for number, run in enumerate(runs):
            for step in run:
                reads, writes = reads_writes(step)
                for tensor in (*reads, *writes):
                    used.setdefault(tensor, set()).add(number)
                for tensor in writes:
                    made[tensor] = number
        crossing = {t for t, n in made.items() if used[t] != {n}} | set(outputs)
        if inputs is None:
            crossing |= set(used) - set(made)
        dead: list[list[int]] = [[] for _ in runs]
        for tensor in sorted(crossing & set(made) - set(outputs)):
            dead[max(used[tensor])].append(tensor)
        self.peak_bytes += self._peak(crossing & set(made), outputs, used, len(runs))
        made_once = len(set(outputs)) == len(outputs) and all(t in made for t in outputs)
        order = [*inputs, *outputs] if inputs is not None and len(runs) == 1 and made_once else None
        return Chain([self.segment(run, crossing, order) for run in runs], dead)

    def _peak(self, stored: set[int], outputs: Sequence[int], used: Mapping[int, set[int]], runs: int) -> int:
        """Most bytes alive at once of results and of tensors that runs of steps pass on; arenas come on top."""
        alive = []
        for tensor in sorted(stored):
            last = runs if tensor in outputs else max(used[tensor])
            alive.append((self.types[tensor].nbytes, min(used[tensor]), last))
        peak = max((sum(n for n, first, last in alive if first <= run <= last) for run in range(runs)), default=0)
        # Outputs that are inputs, constants or the same tensor again are copied.
        copied = len(outputs) > len(set(outputs)) or not set(outputs) <= stored
        results = sum(self.types[t].nbytes for t in outputs)
        return max(peak, results) if copied else peak

    def segment(self, run: Sequence[Mapping[str, Any]], crossing: set[int], order: list[int] | None = None) -> Segment:
        """``order``: the arguments, where all of the program's are to be passed as they come."""
        if "reference" in run[0]:
            (step,) = run
            values, reads = nodes_from_json(step["reference"], _no_constant), list(step["reads"])
            call = call_alone(values)
            if call is not None:  # its operands in order
                reads = [reads[node.attrs.index] for node in values[0].inputs]  # type: ignore[attr-defined]
            return Segment(None, reads, list(step["tensors"]), values, call)
        if is_loop(run[0]) and not is_compiled(run[0]):
            (step,) = run
            repeat, (reads, writes) = step["loop"], reads_writes(step)
            left = [written for _, _, written in repeat["carries"]] + [written for written, _ in repeat["stacked"]]
            return Segment(
                None,
                reads,
                writes,
                loop=ChainLoop(
                    repeat, self.chain(step["body"], left), runs_of(repeat["trips"], repeat["conditional"], False)
                ),
            )
        if "interpreted" in run[0]:
            (step,) = run
            return Segment(None, list(step["tensors"]), reads_writes(step)[1], group=step["interpreted"])
        table = self.tabulator.table(run, crossing, order)
        self.peak_bytes += table.arena_bytes
        return Segment(self.load(table), table.arguments, table.writes)


def _no_constant(digest: str) -> ConstArray:
    raise KeyError(f"a reference step holds a large constant {digest}")

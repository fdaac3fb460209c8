"""A run of compiled steps as a table: arguments found, intermediates and scratch placed, loops' slots made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.ir.types import TensorType
from eqsat.plan.memory import LINE, assign, lifetimes
from eqsat.plan.table import Again, Arena, Argument, ArraySpec, Constant, Enter, Moving, Slot, Status, Step
from eqsat.plan.trips import Entry, Loop, flattened, wiring

Packs = Sequence[Mapping[str, Any]]
"""How a kernel wants its constant operands packed, in the words of the backend that printed it."""


@dataclass(frozen=True)
class Table:
    """Steps over slots. ``arguments``: tensors of the arrays of a call, as ``specs`` say; ``writes``: those it makes.

    ``keep``: has to live as long as the steps' functions may be called.
    """

    steps: list[Step | Enter | Again]
    slots: list[Slot]
    specs: list[ArraySpec]
    arena_bytes: int
    arguments: list[int]
    writes: list[int]
    keep: list[object]


@dataclass(frozen=True)
class Tabulator:
    """Makes tables of a program's steps, for at most so many threads.

    ``code``: addresses of a step's phases, by name. ``constant``: the array of a tensor in ``known`` as the operand
    with a number in a step wants it, which asks for ``Packs``.
    """

    types: Mapping[int, TensorType]
    inputs: Collection[int]
    known: Collection[int]
    threads: int
    code: Callable[[Mapping[str, Any]], Mapping[str, int]]
    constant: Callable[[int, int, Packs], np.ndarray]

    def table(
        self, run: Sequence[Mapping[str, Any]], crossing: Collection[int], order: Sequence[int] | None = None
    ) -> Table:
        """``crossing``: tensors that steps elsewhere read or make. ``order``: of the arguments, where it is given."""
        entries = flattened(run, self.types)
        wires = wiring(entries)
        arguments, written = self._arguments(wires, crossing)
        loops = [entry[1] for entry in entries if isinstance(entry, tuple) and entry[0] == "enter"]
        places, arena = assign(lifetimes(wires, self._inner(entries, wires, loops, arguments)))
        # Inputs before outputs: a call passes one tuple.
        arguments = list(order) if order else [t for t in arguments if t not in written] + written
        slots: list[Slot] = [Argument(n) for n in range(len(arguments))]
        slot_of = {t: n for n, t in enumerate(arguments)}
        for tensor, offset in sorted(places.items()):
            slot_of[tensor] = len(slots)
            slots.append(Arena(offset))
        for name in sorted(name for loop in loops for name in loop.moving):
            slot_of[name] = len(slots)
            slots.append(Moving())
        steps, keep = self._steps(entries, slots, slot_of)
        specs = [
            ArraySpec(self.types[t].shape, self.types[t].dtype.numpy, t in written, self.types[t].dtype.itemsize)
            for t in arguments
        ]
        return Table(steps, slots, specs, arena, arguments, written, keep)

    def _arguments(
        self, wires: Sequence[tuple[list[int], list[int]]], crossing: Collection[int]
    ) -> tuple[list[int], list[int]]:
        """Tensors that are passed to a run of steps, and those of them that it writes."""
        arguments: list[int] = []
        written: list[int] = []
        for reads, writes in wires:
            for tensor in (*reads, *writes):
                outside = tensor in crossing or tensor in self.inputs
                if outside and tensor not in self.known and tensor not in arguments:
                    arguments.append(tensor)
                if tensor in writes and tensor in crossing and tensor not in written:
                    written.append(tensor)
        return arguments, written

    def _inner(
        self,
        entries: Sequence[Entry],
        wires: list[tuple[list[int], list[int]]],
        loops: Sequence[Loop],
        arguments: Collection[int],
    ) -> dict[int, int]:
        """Bytes of each buffer that only these steps use. Scratch is one too, which ``wires`` say from here on."""
        sizes = {name: size for loop in loops for name, size in loop.sizes.items()}
        inner = {
            t: sizes[t] if t in sizes else self.types[t].nbytes
            for reads, writes in wires
            for t in (*reads, *writes)
            if t not in arguments and t not in self.known
        }
        # A step's scratch is a buffer like any other, alive during that step only.
        for number, entry in enumerate(entries):
            if isinstance(entry, tuple):
                continue
            for name, nbytes in (
                (_shared(number), entry["shared"]),
                (_thread(number), _lines(entry["thread"]) * self.threads),
            ):
                if nbytes:
                    inner[name] = nbytes
                    reads, writes = wires[number]
                    wires[number] = ([*reads, name], writes)
        return inner

    def _steps(
        self, entries: Sequence[Entry], slots: list[Slot], slot_of: dict[int, int]
    ) -> tuple[list[Step | Enter | Again], list[object]]:
        """Steps over ``slots``, which grow by those that only one step uses; and what the steps' functions live by."""
        status, start = len(slots), len(slots) + 1
        slots += [Status(), Arena(0)]

        def slot(name: int) -> int:
            if name not in slot_of:  # a constant
                slot_of[name] = len(slots)
                slots.append(Constant(self.constant(name, 0, ())))
            return slot_of[name]

        steps: list[Step | Enter | Again] = []
        keep: list[object] = []
        open_loops: list[tuple[int, int]] = []
        for number, entry in enumerate(entries):
            if isinstance(entry, tuple):
                kind, loop = entry
                if kind == "enter":
                    slots.append(Moving())
                    open_loops.append((len(slots) - 1, len(steps) + 1))
                    steps.append(loop.enter(slot, len(slots) - 1, self.types))
                else:
                    steps.append(loop.again(slot, *open_loops.pop(), self.types))
                continue
            scratch = (slot_of.get(_shared(number), start), slot_of.get(_thread(number), start))
            place = [slot_of.get(t, -1) for t in entry["tensors"]]
            for position, tensor in enumerate(entry["tensors"]):
                if tensor in self.known:
                    place[position] = len(slots)
                    slots.append(Constant(self.constant(tensor, position, entry["packs"])))
            own: tuple[int, ...] = ()
            if entry.get("sizes"):
                own = (len(slots),)
                slots.append(Constant(np.array(entry["sizes"], np.int64)))
            addresses = self.code(entry)
            keep.append(addresses)
            steps += [Step(addresses[phase], (*place, *scratch, status, *own)) for phase in entry["phases"]]
        return steps, keep


def _shared(step: int) -> int:
    """The name of a step's shared scratch among the buffers; tensors are numbered from 0."""
    return -1 - 2 * step


def _thread(step: int) -> int:
    """The name of a step's per-thread scratch."""
    return -2 - 2 * step


def _lines(nbytes: int) -> int:
    return -(-int(nbytes) // LINE) * LINE

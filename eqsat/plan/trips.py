"""Loops among compiled steps: what each trip reads and writes, as slots of a table that move from trip to trip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eqsat.ir.loop import trial_trips
from eqsat.ir.types import TensorType
from eqsat.plan.memory import LINE
from eqsat.plan.table import Again, Enter


def is_loop(step: Mapping[str, Any]) -> bool:
    return "loop" in step


def reads_writes(step: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Tensors that a step, or a loop as a whole, reads and writes."""
    if "reference" in step:
        return list(step["reads"]), list(step["tensors"])
    if is_loop(step):
        repeat = step["loop"]
        inside = {read for _, read, _ in (*repeat["carries"], *repeat["windows"])}
        reads = [t for t, *_ in (*repeat["carries"], *repeat["windows"])]
        for part in step["body"]:
            used, made = reads_writes(part)
            reads += [t for t in used if t not in inside]
            inside.update(made)
        return list(dict.fromkeys(reads)), [t for _, t in (*repeat["finals"], *repeat["stacked"])]
    tensors = step["tensors"]
    writes = [tensors[o] for o in step["outputs"]]
    return [t for n, t in enumerate(tensors) if n not in step["outputs"]], writes


def copied(repeat: Mapping[str, Any], types: Mapping[int, TensorType]) -> list[tuple[int, int]]:
    """Of ``stacked``, what a trip writes elsewhere before it is copied to its row: all rows that are no multiple of a
    cache line, as streaming stores need aligned places."""
    return [(written, whole) for written, whole in repeat["stacked"] if types[written].nbytes % LINE]


@dataclass
class Loop:
    """A loop among the steps of a program, and the names of its buffers: negative numbers of their own.

    ``ending`` and ``other``: for each value that is carried, the buffer that the last trip writes, and the one that it
    reads. ``moving``: names whose address the loop changes.
    """

    repeat: Mapping[str, Any]
    reads: list[int]
    ending: list[int] = field(default_factory=list)
    other: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)
    away: list[int] = field(default_factory=list)
    """What each trip writes and is copied at its end."""

    def buffers(self) -> list[int]:
        """What is there from the first trip to the last."""
        stacked = [whole for _, whole in self.repeat["stacked"]]
        return list(dict.fromkeys([*self.reads, *self.ending, *self.other, *stacked]))

    def writes(self) -> list[int]:
        return [*(t for _, t in self.repeat["finals"]), *(whole for _, whole in self.repeat["stacked"])]

    def enter(self, slot: Callable[[int], int], counter: int, types: Mapping[int, TensorType]) -> Enter:
        """The step before the first trip; ``slot``: of a name."""
        r, moves = self.repeat, []
        for (before, read, written), ending, other in zip(r["carries"], self.ending, self.other, strict=True):
            moves += [(slot(read), slot(before), 0), (slot(written), slot(ending if r["trips"] % 2 else other), 0)]
        for tensor, read, step in r["windows"]:
            back = max(0, -step) * (r["trips"] - 1) * types[tensor].dtype.itemsize
            moves.append((slot(read), slot(tensor), back))
        moves += [(slot(written), slot(whole), 0) for written, whole in self.direct(types)]
        moves += [(slot(row_of(written)), slot(whole), 0) for written, whole in copied(r, types)]
        return Enter(counter, tuple(moves))

    def again(self, slot: Callable[[int], int], counter: int, first: int, types: Mapping[int, TensorType]) -> Again:
        """The step behind a trip; ``first``: the number of the step that follows the first one."""
        r = self.repeat
        moves = [(slot(read), step * types[tensor].dtype.itemsize) for tensor, read, step in r["windows"]]
        moves += [(slot(written), types[written].nbytes) for written, _ in self.direct(types)]
        moves += [(slot(row_of(written)), types[written].nbytes) for written, _ in copied(r, types)]
        carries = tuple(
            (slot(read), slot(written), slot(other if r["trips"] % 2 else ending))
            for (_, read, written), ending, other in zip(r["carries"], self.ending, self.other, strict=True)
        )
        copies = tuple((slot(row_of(w)), slot(w), types[w].nbytes) for w, _ in copied(r, types))
        trial = trial_trips(r["trips"], r["copies"]) if r["trial"] else 0
        return Again(counter, r["trips"], first, tuple(moves), carries, copies, trial)

    def direct(self, types: Mapping[int, TensorType]) -> list[tuple[int, int]]:
        """Of ``stacked``, what a trip writes where it stays."""
        away = copied(self.repeat, types)
        return [pair for pair in self.repeat["stacked"] if pair not in away]


_ROW = 1 << 40


def row_of(written: int) -> int:
    """The name of the row that what a trip writes is copied to."""
    return -_ROW - written


Entry = Mapping[str, Any] | tuple[str, Loop]


def flattened(run: Sequence[Mapping[str, Any]], types: Mapping[int, TensorType]) -> list[Entry]:
    """Steps in order, with ``("enter", loop)`` before each loop's body and ``("again", loop)`` behind it."""
    names = iter(range(-_ROW // 2, -_ROW, -1))

    def walk(steps: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
        for step in steps:
            if not is_loop(step):
                yield step
                continue
            loop = _loop(step, types, names)
            yield "enter", loop
            yield from walk(step["body"])
            yield "again", loop

    return list(walk(run))


def _loop(step: Mapping[str, Any], types: Mapping[int, TensorType], names: Iterator[int]) -> Loop:
    repeat = step["loop"]
    loop = Loop(repeat, reads_writes(step)[0])
    finals = dict(repeat["finals"])
    for k, (_, read, written) in enumerate(repeat["carries"]):
        ending, other = finals.get(k, next(names)), next(names)
        loop.ending.append(ending)
        loop.other.append(other)
        loop.sizes.update(dict.fromkeys((ending, other), types[written].nbytes))
        loop.moving.update((read, written))
    loop.moving.update(read for _, read, _ in repeat["windows"])
    loop.moving.update(written for written, _ in loop.direct(types))
    loop.away = [written for written, _ in copied(repeat, types)]
    loop.moving.update(map(row_of, loop.away))
    return loop


def wiring(entries: Sequence[Entry]) -> list[tuple[list[int], list[int]]]:
    """What each entry reads and writes of buffers that stay where they are."""
    moving = set().union(*(entry[1].moving for entry in entries if isinstance(entry, tuple)))
    found: list[tuple[list[int], list[int]]] = []
    for entry in entries:
        if isinstance(entry, tuple):
            kind, loop = entry
            reads, writes = loop.buffers(), loop.writes() if kind == "enter" else []
            reads += loop.away if kind == "again" else []
        else:
            reads, writes = reads_writes(entry)
        found.append(([t for t in reads if t not in moving], [t for t in writes if t not in moving]))
    return found

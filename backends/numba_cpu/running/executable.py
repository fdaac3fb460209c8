"""Executables: memory placed, the driver's table filled, and calls, with reference steps between compiled ones."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eqsat.buffers import Recycler, Shelf
from eqsat.deadline import NEVER, Deadline
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.loop import runs_of, window
from eqsat.ir.node import ConstArray, Node, topological
from eqsat.ir.opaque import call_alone
from eqsat.ir.serialize import nodes_from_json, type_from_json
from eqsat.ir.structure import InputAttrs
from eqsat.ir.types import TensorType
from eqsat.plan import fallback
from eqsat.plan.backend import Direct
from eqsat.plan.memory import assign, lifetimes
from eqsat.plan.plan import Repeat, as_after, first_trip, trips_of
from eqsat_backends.numba_cpu.compiling.jit import kept_source, load_module
from eqsat_backends.numba_cpu.compiling.objects import Code
from eqsat_backends.numba_cpu.printing.emitted import BAD_EXPONENT, BAD_INDEX, PackSpec
from eqsat_backends.numba_cpu.running.driver import (
    Again,
    Arena,
    Argument,
    ArraySpec,
    Constant,
    Enter,
    Moving,
    Program,
    Slot,
    Status,
    Step,
)
from eqsat_backends.numba_cpu.running.trips import copied, flattened, is_loop, reads_writes, wiring


@dataclass
class _Segment:
    """A run of compiled steps, a loop, or a step without: operators or a library's call (``values``), or a kernel."""

    program: Program | None
    arguments: list[int]
    writes: list[int]
    values: Sequence[Node] = ()
    group: KernelGroup | None = None
    loop: _Loop | None = None


@dataclass
class _Chain:
    """Segments one after the other, and the tensors that nobody reads after each."""

    segments: list[_Segment]
    dead: list[list[int]]


@dataclass
class _Loop:
    """A loop (fields of :class:`eqsat.plan.plan.Repeat`) around a body."""

    repeat: Mapping[str, Any]
    body: _Chain
    runs: int
    """Trips that are run."""


def _compiled(step: Mapping[str, Any]) -> bool:
    if is_loop(step):
        return not step["loop"]["conditional"] and all(map(_compiled, step["body"]))
    return "kernel" in step


def _code(step: Mapping[str, Any], deadline: Deadline) -> Code:
    """Addresses of a kernel's phases: compiled by this process, or in the cache under the kernel's key."""
    code: Code | None = step.get("code")
    return code if code is not None else load_module(step["kernel"], tuple(step["phases"]), deadline)


class CpuExecutable:
    """Segments of compiled steps with reference steps between them."""

    def __init__(
        self,
        emitted: Mapping[str, Any],
        constants: Mapping[int, np.ndarray],
        threads: int,
        deadline: Deadline = NEVER,
    ) -> None:
        self._deadline = deadline
        self.types: dict[int, TensorType] = {int(n): type_from_json(t) for n, t in emitted["types"].items()}
        self.constants: dict[int, np.ndarray] = {}
        self._given = {n: np.asarray(a, order="C") for n, a in constants.items()}
        self._known = frozenset(constants)
        self.inputs: list[int] = list(emitted["inputs"])
        self.outputs: list[int] = list(emitted["outputs"])
        self.threads = threads
        self.emitted = emitted
        self.peak_bytes = 0
        self._packed: dict[tuple[int, PackSpec | None], np.ndarray] = {}
        self._shelf = Shelf()
        self.chain = self._build(emitted["steps"])
        self._own_constants()
        self.direct = self._direct_call()
        self._deadline = NEVER

    def _nested(self, steps: Sequence[Mapping[str, Any]], begin: int, end: int) -> list[Mapping[str, Any]]:
        """Steps from ``begin`` to ``end``, each loop among them as one step that holds its own (``body``)."""
        found: list[Mapping[str, Any]] = []
        number = begin
        while number < end:
            outer = next((r for r in self._repeats if r["begin"] == number), None)
            if outer is None:
                found.append(steps[number])
                number += 1
                continue
            self._repeats.remove(outer)
            found.append({"loop": outer, "body": self._nested(steps, number, outer["end"])})
            number = outer["end"]
        return found

    def _build(self, steps: Sequence[Mapping[str, Any]]) -> _Chain:
        self._repeats = [dict(r) for r in self.emitted.get("repeats", ())]
        return self._chain(self._nested(steps, 0, len(steps)), self.outputs, self.inputs)

    def _chain(
        self, steps: Sequence[Mapping[str, Any]], outputs: Sequence[int], inputs: Sequence[int] | None = None
    ) -> _Chain:
        """Segments of these steps; ``inputs``: of the program, if they are all of its steps."""
        runs: list[list[Mapping[str, Any]]] = []
        for step in steps:
            if not runs or not _compiled(step) or not _compiled(runs[-1][0]):
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
        return _Chain([self._segment(run, crossing, order) for run in runs], dead)

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

    def _segment(self, run: list[Mapping[str, Any]], crossing: set[int], order: list[int] | None = None) -> _Segment:
        """``order``: the arguments, where all of the program's are to be passed as they come."""
        if "reference" in run[0]:
            (step,) = run
            values = nodes_from_json(step["reference"], _no_constant)
            return _Segment(None, list(step["reads"]), list(step["tensors"]), values)
        if is_loop(run[0]) and not _compiled(run[0]):
            (step,) = run
            repeat, (reads, writes) = step["loop"], reads_writes(step)
            left = [written for _, _, written in repeat["carries"]] + [written for written, _ in repeat["stacked"]]
            return _Segment(
                None,
                reads,
                writes,
                loop=_Loop(
                    repeat, self._chain(step["body"], left), runs_of(repeat["trips"], repeat["conditional"], False)
                ),
            )
        if "interpreted" in run[0]:
            (step,) = run
            return _Segment(None, list(step["tensors"]), reads_writes(step)[1], group=step["interpreted"])
        entries = flattened(run, self.types)
        wires = wiring(entries)
        arguments: list[int] = []
        written: list[int] = []
        for reads, writes in wires:
            for tensor in (*reads, *writes):
                outside = tensor in crossing or tensor in self.inputs
                if outside and tensor not in self._known and tensor not in arguments:
                    arguments.append(tensor)
                if tensor in writes and tensor in crossing and tensor not in written:
                    written.append(tensor)
        loops = [entry[1] for entry in entries if isinstance(entry, tuple) and entry[0] == "enter"]
        sizes = {name: size for loop in loops for name, size in loop.sizes.items()}
        inner = {
            t: sizes[t] if t in sizes else self.types[t].nbytes
            for reads, writes in wires
            for t in (*reads, *writes)
            if t not in arguments and t not in self._known
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
        places, arena = assign(lifetimes(wires, inner))
        # Inputs before outputs: a call passes one tuple.
        arguments = order or [t for t in arguments if t not in written] + written
        slots: list[Slot] = [Argument(n) for n in range(len(arguments))]
        slot_of = {t: n for n, t in enumerate(arguments)}
        for tensor, offset in sorted(places.items()):
            slot_of[tensor] = len(slots)
            slots.append(Arena(offset))
        for name in sorted(name for loop in loops for name in loop.moving):
            slot_of[name] = len(slots)
            slots.append(Moving())
        status, start = len(slots), len(slots) + 1
        slots += [Status(), Arena(0)]

        def slot(name: int) -> int:
            if name not in slot_of:  # a constant
                slot_of[name] = len(slots)
                slots.append(Constant(self._constant(name)))
            return slot_of[name]

        table: list[Step | Enter | Again] = []
        codes: list[object] = []
        open_loops: list[tuple[int, int]] = []
        for number, entry in enumerate(entries):
            if isinstance(entry, tuple):
                kind, loop = entry
                if kind == "enter":
                    slots.append(Moving())
                    open_loops.append((len(slots) - 1, len(table) + 1))
                    table.append(loop.enter(slot, len(slots) - 1, self.types))
                else:
                    table.append(loop.again(slot, *open_loops.pop(), self.types))
                continue
            scratch = (slot_of.get(_shared(number), start), slot_of.get(_thread(number), start))
            place = [slot_of.get(t, -1) for t in entry["tensors"]]
            for position, tensor in enumerate(entry["tensors"]):
                if tensor in self._known:
                    place[position] = len(slots)
                    slots.append(Constant(self._constant(tensor, position, entry["packs"])))
            addresses = _code(entry, self._deadline)
            codes.append(addresses)
            for phase in entry["phases"]:
                table.append(Step(addresses[phase], (*place, *scratch, status)))
        specs = [
            ArraySpec(
                self.types[t].shape,
                self.types[t].dtype.numpy,
                t in written,
                self.types[t].dtype.itemsize,
            )
            for t in arguments
        ]
        self.peak_bytes += arena
        return _Segment(Program(table, slots, specs, arena, self.threads, keep=codes), arguments, written)

    def _constant(self, tensor: int, position: int = 0, packs: Sequence[Mapping[str, Any]] = ()) -> np.ndarray:
        """A constant as a kernel wants it: an aligned copy that nobody else can change, packed if asked for."""
        self._deadline.check("packing constants")
        pack = next((PackSpec.from_json(data) for data in packs if data["operand"] == position), None)
        key = (tensor, pack)
        if key not in self._packed:
            flat = self._given[tensor].reshape(-1)
            value = pack.apply(flat) if pack else flat
            copy = self._shelf.empty(value.shape, value.dtype)
            copy[...] = value
            self._packed[key] = copy
        return self._packed[key]

    def _own_constants(self) -> None:
        """Copy what calls read without a kernel, and let go of all else: whoever gave the arrays may change them."""
        read = {t for segment in _every(self.chain) if segment.program is None for t in segment.arguments}
        for tensor in sorted((read | set(self.outputs)) & self._known):
            plain = self._packed.get((tensor, None))
            value = self._given[tensor]
            self.constants[tensor] = value.copy() if plain is None else plain.reshape(value.shape)
        self._given.clear()
        self.nbytes = sum({id(a): a.nbytes for a in (*self._packed.values(), *self.constants.values())}.values())

    def _direct_call(self) -> Direct | None:
        """The only segment as a function, when arguments and outputs can be passed to it as they come."""
        if len(self.chain.segments) != 1:
            return None
        (segment,) = self.chain.segments
        if segment.program is None or segment.arguments != [*self.inputs, *self.outputs]:
            return None
        program, threads = segment.program.__call__, self.threads
        made = [_allocation(self.types[t]) for t in self.outputs]
        if len(made) == 1:
            ((empty, shape, dtype),) = made

            def run_one(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
                output = empty(shape, dtype)
                status = program((*arrays, output), threads)
                if status:
                    _raise_for(status)
                    return None
                return (output,)

            return run_one

        def run(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
            outputs = tuple([empty(shape, dtype) for empty, shape, dtype in made])
            status = program((*arrays, *outputs), threads)
            if status:
                _raise_for(status)
                return None
            return outputs

        return run

    def __call__(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        if self.direct is not None:
            found = self.direct(arrays)
            if found is None:
                found = self.direct([_plain(a) for a in arrays])
            if found is None:
                raise ValueError("arrays do not have the shapes and types the program was compiled for")
            return found
        values = dict(zip(self.inputs, map(_plain, arrays), strict=True))
        values.update(self.constants)
        self._run_chain(self.chain, values)
        seen: set[int] = set(self.inputs) | set(self.constants)
        results = []
        for tensor in self.outputs:
            value = values[tensor]
            results.append(value.copy() if tensor in seen else value)
            seen.add(tensor)
        return results

    def tried(self) -> CpuExecutable:
        found = copy.copy(self)
        found.chain = _tried(self.chain)
        found.direct = found._direct_call()
        return found

    def _run_chain(self, chain: _Chain, values: dict[int, np.ndarray]) -> None:
        for segment, dead in zip(chain.segments, chain.dead, strict=True):
            self._run(segment, values)
            for tensor in dead:
                del values[tensor]

    def _run_loop(self, loop: _Loop, values: dict[int, np.ndarray]) -> None:
        """All trips. What is carried goes to and fro between two buffers."""
        repeat = loop.repeat
        free: dict[int, np.ndarray] = {}
        away = [tuple(pair) for pair in copied(repeat, self.types)]
        for _, whole in repeat["stacked"]:
            values[whole] = _output(self.types[whole])
        for before, read, _ in repeat["carries"]:
            values[read] = values[before]
        for trip in range(loop.runs):
            if repeat["conditional"] and not values[repeat["carries"][0][1]]:
                break
            for tensor, read, step in repeat["windows"]:
                values[read] = window(values[tensor], step, repeat["trips"], trip)
            rows = {w: values[t][trip : trip + 1].reshape(self.types[w].shape) for w, t in repeat["stacked"]}
            values.update((w, rows[w]) for w, t in repeat["stacked"] if (w, t) not in away)
            values.update(free)
            self._run_chain(loop.body, values)
            for written, row in rows.items():
                made = values.pop(written)
                if made is not row:  # made elsewhere: by a copy's kernel, or by a library
                    row[...] = made
            for _, read, written in repeat["carries"]:
                if trip:
                    free[written] = values[read]
                values[read] = values.pop(written)
        for number, tensor in repeat["finals"]:
            before, read, _ = repeat["carries"][number]
            values[tensor] = values[read].copy() if values[read] is values[before] else values[read]
        for name in (
            *(read for _, read, _ in (*repeat["carries"], *repeat["windows"])),
            *(written for written, _ in repeat["stacked"]),
        ):
            values.pop(name, None)

    def _run(self, segment: _Segment, values: dict[int, np.ndarray]) -> None:
        if segment.loop is not None:
            self._run_loop(segment.loop, values)
            return
        if segment.values:
            results = _reference(segment.values, [values[t] for t in segment.arguments])
            values.update(zip(segment.writes, results, strict=True))
            return
        for tensor in segment.writes:
            if tensor not in values:  # several steps may write a part each
                values[tensor] = _output(self.types[tensor])
        if segment.group is not None:
            fallback.interpret(segment.group, [values[t].reshape(-1) for t in segment.arguments])
            return
        assert segment.program is not None
        status = segment.program(tuple(values[t] for t in segment.arguments), self.threads)
        if status:
            _raise_for(status)
            raise ValueError("a step was given arrays of other shapes and types than it was compiled for")

    def profile(self, arrays: Sequence[np.ndarray], repeat: int = 5) -> list[float]:
        """Median seconds of each step of the plan, its kernels timed one at a time."""
        values = dict(zip(self.inputs, map(_plain, arrays), strict=True))
        values.update(self.constants)
        times: list[list[float]] = []
        single = CpuExecutable.__new__(CpuExecutable)
        single.__dict__.update(self.__dict__)
        crossing = set(self.types)
        steps = self.emitted["steps"]
        loops = [Repeat(**r) for r in self.emitted.get("repeats", ())]
        segments = [single._segment([step], crossing) for step in steps]
        for _ in range(repeat + 1):
            row = []
            for number, segment in enumerate(segments):
                for loop in loops:
                    if loop.begin == number:
                        first_trip(loop, values)
                start = time.perf_counter()
                self._run(segment, values)
                row.append(time.perf_counter() - start)
                for loop in reversed(loops):
                    if loop.end == number + 1:
                        as_after(loop, values)
            times.append(row)
        total = [0.0] * len(self.emitted["kinds"])
        trips = trips_of(len(steps), loops)
        for number, (step, column) in enumerate(zip(steps, zip(*times[1:], strict=True), strict=True)):
            total[step["of"]] += trips[number] * statistics.median(column)
        return total

    def sources(self) -> list[str]:
        kernels = {s["kernel"]: s for s in self.emitted["steps"] if _compiled(s)}
        return [s.get("source") or kept_source(key, tuple(s["phases"])) for key, s in kernels.items()]


def _tried(chain: _Chain) -> _Chain:
    """With loops of fewer trips, where they may be tried so."""
    segments = []
    for segment in chain.segments:
        program, loop = segment.program and segment.program.tried(), segment.loop
        if loop is not None:
            r = loop.repeat
            loop = _Loop(r, _tried(loop.body), runs_of(r["trips"], r["conditional"], r["trial"]))
        segments.append(replace(segment, program=program, loop=loop))
    return replace(chain, segments=segments)


def _every(chain: _Chain) -> Iterator[_Segment]:
    for segment in chain.segments:
        yield segment
        if segment.loop is not None:
            yield from _every(segment.loop.body)


def _shared(step: int) -> int:
    """The name of a step's shared scratch among the buffers; tensors are numbered from 0."""
    return -1 - 2 * step


def _thread(step: int) -> int:
    """The name of a step's per-thread scratch."""
    return -2 - 2 * step


def _lines(nbytes: int) -> int:
    return -(-int(nbytes) // 64) * 64


def _no_constant(digest: str) -> ConstArray:
    raise KeyError(f"a reference step holds a large constant {digest}")


def _plain(array: np.ndarray) -> np.ndarray:
    """The array as kernels take it: C-contiguous, aligned, native byte order, of NumPy's own class."""
    dtype = array.dtype.newbyteorder("=")
    if array.size == 0:  # NumPy calls it aligned wherever it lies
        return np.empty(array.shape, dtype)
    return np.require(array, dtype, ("C", "A", "E"))


recycler = Recycler()


def _allocation(type: TensorType) -> tuple[Callable[..., np.ndarray], tuple[int, ...], np.dtype]:
    """What makes an output, and its arguments: small arrays come from NumPy itself."""
    dtype = type.dtype.numpy
    return (np.empty if type.nbytes < recycler.least_bytes else recycler.empty), type.shape, dtype


def _output(type: TensorType) -> np.ndarray:
    return recycler.empty(type.shape, type.dtype.numpy)


def _reference(values: Sequence[Node], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    call = call_alone(values)
    if call is not None:
        results = call.run([arrays[operand.attrs.index] for operand in values[0].inputs])  # type: ignore[attr-defined]
        return [results[value.attrs.number] for value in values]  # type: ignore[attr-defined]
    bound = {}
    for node in topological(values):
        if isinstance(node.attrs, InputAttrs):
            bound[node] = arrays[node.attrs.index]
    found = evaluate_nodes(values, bound)
    return [np.ascontiguousarray(a).reshape(value.shape) for a, value in zip(found, values, strict=True)]


def _raise_for(status: int) -> None:
    """The exception NumPy has for what a kernel found in its inputs; none for arrays that did not fit."""
    if status == BAD_INDEX:
        raise IndexError("an index is out of bounds for the axis it selects from")
    if status == BAD_EXPONENT:
        raise ValueError("integers to negative integer powers are not allowed; cast the base to a float type")

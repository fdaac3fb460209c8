"""Executables: memory placed, the driver's table filled, and calls, with reference steps between compiled ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.buffers import Recycler, Shelf
from eqsat.deadline import NEVER, Deadline
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.node import ConstArray, Node, topological
from eqsat.ir.serialize import nodes_from_json, type_from_json
from eqsat.ir.structure import InputAttrs
from eqsat.ir.types import TensorType
from eqsat.plan import fallback
from eqsat.plan.backend import Direct
from eqsat.plan.memory import assign, lifetimes
from eqsat_backends.numba_cpu.compiling.jit import kept_source, load_module
from eqsat_backends.numba_cpu.compiling.objects import Code
from eqsat_backends.numba_cpu.printing.emitted import BAD_EXPONENT, BAD_INDEX, PackSpec
from eqsat_backends.numba_cpu.running.driver import Arena, Argument, ArraySpec, Constant, Program, Slot, Status, Step


@dataclass
class _Segment:
    """A run of compiled steps, or one step through the reference: operators (``value``) or a kernel (``group``)."""

    program: Program | None
    arguments: list[int]
    writes: list[int]
    value: Node | None = None
    group: KernelGroup | None = None


def _compiled(step: Mapping[str, Any]) -> bool:
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
        self.segments = self._build(emitted["steps"])
        self._own_constants()
        self.direct = self._direct_call()
        self._deadline = NEVER

    def _build(self, steps: Sequence[Mapping[str, Any]]) -> list[_Segment]:
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
                reads, writes = _reads_writes(step)
                for tensor in (*reads, *writes):
                    used.setdefault(tensor, set()).add(number)
                for tensor in writes:
                    made[tensor] = number
        crossing = {t for t, n in made.items() if used[t] != {n}} | set(self.outputs)
        self._dead: list[list[int]] = [[] for _ in runs]
        passed = sorted(crossing - set(self.outputs))
        for tensor in passed:
            self._dead[max(used[tensor])].append(tensor)
        self.peak_bytes = self._peak(crossing & set(made), used, len(runs))
        made_once = len(set(self.outputs)) == len(self.outputs) and all(t in made for t in self.outputs)
        order = [*self.inputs, *self.outputs] if len(runs) == 1 and made_once else None
        return [self._segment(run, crossing, order) for run in runs]

    def _peak(self, stored: set[int], used: Mapping[int, set[int]], runs: int) -> int:
        """Most bytes alive at once of results and of tensors that runs of steps pass on; arenas come on top."""
        alive = []
        for tensor in sorted(stored):
            last = runs if tensor in self.outputs else max(used[tensor])
            alive.append((self.types[tensor].nbytes, min(used[tensor]), last))
        peak = max((sum(n for n, first, last in alive if first <= run <= last) for run in range(runs)), default=0)
        # Outputs that are inputs, constants or the same tensor again are copied.
        copied = len(self.outputs) > len(set(self.outputs)) or not set(self.outputs) <= stored
        results = sum(self.types[t].nbytes for t in self.outputs)
        return max(peak, results) if copied else peak

    def _segment(self, run: list[Mapping[str, Any]], crossing: set[int], order: list[int] | None = None) -> _Segment:
        """``order``: the arguments, where all of the program's are to be passed as they come."""
        if "reference" in run[0]:
            (step,) = run
            (value,) = nodes_from_json(step["reference"], _no_constant)
            return _Segment(None, list(step["reads"]), [step["tensor"]], value)
        if "interpreted" in run[0]:
            (step,) = run
            return _Segment(None, list(step["tensors"]), _reads_writes(step)[1], group=step["interpreted"])
        arguments: list[int] = []
        written: list[int] = []
        wiring: list[tuple[list[int], list[int]]] = []
        for step in run:
            reads, writes = _reads_writes(step)
            wiring.append((reads, writes))
            for tensor in (*reads, *writes):
                outside = tensor in crossing or tensor in self.inputs
                if outside and tensor not in self._known and tensor not in arguments:
                    arguments.append(tensor)
                if tensor in writes and tensor in crossing and tensor not in written:
                    written.append(tensor)
        inner = {
            t: self.types[t].nbytes
            for reads, writes in wiring
            for t in (*reads, *writes)
            if t not in arguments and t not in self._known
        }
        # A step's scratch is a buffer like any other, alive during that step only.
        for number, step in enumerate(run):
            for name, nbytes in (
                (_shared(number), step["shared"]),
                (_thread(number), _lines(step["thread"]) * self.threads),
            ):
                if nbytes:
                    inner[name] = nbytes
                    reads, writes = wiring[number]
                    wiring[number] = ([*reads, name], writes)
        places, arena = assign(lifetimes(wiring, inner))
        # Inputs before outputs: a call passes one tuple.
        arguments = order or [t for t in arguments if t not in written] + written
        slots: list[Slot] = [Argument(n) for n in range(len(arguments))]
        slot_of = {t: n for n, t in enumerate(arguments)}
        for tensor, offset in sorted(places.items()):
            slot_of[tensor] = len(slots)
            slots.append(Arena(offset))
        status, start = len(slots), len(slots) + 1
        slots += [Status(), Arena(0)]
        table: list[Step] = []
        codes: list[object] = []
        for number, step in enumerate(run):
            scratch = (slot_of.get(_shared(number), start), slot_of.get(_thread(number), start))
            place = [slot_of.get(t, -1) for t in step["tensors"]]
            for position, tensor in enumerate(step["tensors"]):
                if tensor in self._known:
                    place[position] = len(slots)
                    slots.append(Constant(self._constant(tensor, position, step)))
            addresses = _code(step, self._deadline)
            codes.append(addresses)
            for phase in step["phases"]:
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

    def _constant(self, tensor: int, position: int, step: Mapping[str, Any]) -> np.ndarray:
        """A constant as a kernel wants it: an aligned copy that nobody else can change, packed if asked for."""
        self._deadline.check("packing constants")
        packs = [PackSpec.from_json(data) for data in step["packs"] if data["operand"] == position]
        key = (tensor, packs[0] if packs else None)
        if key not in self._packed:
            flat = self._given[tensor].reshape(-1)
            value = packs[0].apply(flat) if packs else flat
            copy = self._shelf.empty(value.shape, value.dtype)
            copy[...] = value
            self._packed[key] = copy
        return self._packed[key]

    def _own_constants(self) -> None:
        """Copy what calls read without a kernel, and let go of all else: whoever gave the arrays may change them."""
        read = {t for segment in self.segments if segment.program is None for t in segment.arguments}
        for tensor in sorted((read | set(self.outputs)) & self._known):
            plain = self._packed.get((tensor, None))
            value = self._given[tensor]
            self.constants[tensor] = value.copy() if plain is None else plain.reshape(value.shape)
        self._given.clear()
        self.nbytes = sum({id(a): a.nbytes for a in (*self._packed.values(), *self.constants.values())}.values())

    def _direct_call(self) -> Direct | None:
        """The only segment as a function, when arguments and outputs can be passed to it as they come."""
        if len(self.segments) != 1:
            return None
        (segment,) = self.segments
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
        for segment, dead in zip(self.segments, self._dead, strict=True):
            self._run(segment, values)
            for tensor in dead:
                del values[tensor]
        seen: set[int] = set(self.inputs) | set(self.constants)
        results = []
        for tensor in self.outputs:
            value = values[tensor]
            results.append(value.copy() if tensor in seen else value)
            seen.add(tensor)
        return results

    def _run(self, segment: _Segment, values: dict[int, np.ndarray]) -> None:
        if segment.value is not None:
            (tensor,) = segment.writes
            values[tensor] = _reference(segment.value, [values[t] for t in segment.arguments])
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
        segments = [single._segment([step], crossing) for step in steps]
        for _ in range(repeat + 1):
            row = []
            for segment in segments:
                start = time.perf_counter()
                self._run(segment, values)
                row.append(time.perf_counter() - start)
            times.append(row)
        total = [0.0] * len(self.emitted["kinds"])
        for step, column in zip(steps, zip(*times[1:], strict=True), strict=True):
            total[step["of"]] += statistics.median(column)
        return total

    def sources(self) -> list[str]:
        kernels = {s["kernel"]: s for s in self.emitted["steps"] if _compiled(s)}
        return [s.get("source") or kept_source(key, tuple(s["phases"])) for key, s in kernels.items()]


def _shared(step: int) -> int:
    """The name of a step's shared scratch among the buffers; tensors are numbered from 0."""
    return -1 - 2 * step


def _thread(step: int) -> int:
    """The name of a step's per-thread scratch."""
    return -2 - 2 * step


def _lines(nbytes: int) -> int:
    return -(-int(nbytes) // 64) * 64


def _reads_writes(step: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    if "reference" in step:
        return list(step["reads"]), [step["tensor"]]
    tensors = step["tensors"]
    writes = [tensors[o] for o in step["outputs"]]
    return [t for n, t in enumerate(tensors) if n not in step["outputs"]], writes


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


def _reference(value: Node, arrays: Sequence[np.ndarray]) -> np.ndarray:
    bound = {}
    for node in topological([value]):
        if isinstance(node.attrs, InputAttrs):
            bound[node] = arrays[node.attrs.index]
    return np.ascontiguousarray(evaluate_nodes([value], bound)[0]).reshape(value.shape)


def _raise_for(status: int) -> None:
    """The exception NumPy has for what a kernel found in its inputs; none for arrays that did not fit."""
    if status == BAD_INDEX:
        raise IndexError("an index is out of bounds for the axis it selects from")
    if status == BAD_EXPONENT:
        raise ValueError("integers to negative integer powers are not allowed; cast the base to a float type")

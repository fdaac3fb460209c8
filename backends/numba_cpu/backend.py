"""Plans to executables: groups emitted and compiled, memory placed, the driver's table filled."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from eqsat_backends.numba_cpu.buffers import Recycler, aligned_empty
from eqsat_backends.numba_cpu.driver import (
    Arena,
    Argument,
    ArraySpec,
    MISMATCH,
    Constant,
    Program,
    Slot,
    Status,
    Step,
)
from eqsat_backends.numba_cpu.emitted import PackSpec
from eqsat_backends.numba_cpu.jit import compile_module
from eqsat_backends.numba_cpu.objects import host, package_fingerprint

from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import ConstArray, Node, topological
from eqsat.ir.serialize import nodes_from_json, nodes_to_json, type_from_json, type_to_json
from eqsat.ir.structure import InputAttrs
from eqsat.ir.types import TensorType
from eqsat.plan.memory import assign, lifetimes
from eqsat.plan.plan import KernelStep, Plan


class NumbaCpuBackend:
    """Explicit-SIMD kernels printed as Python, compiled by Numba, run by one compiled driver."""

    name = "numba_cpu"

    def key(self) -> str:
        return f"{host().key}|{version('numba')}|{package_fingerprint()}"

    def emit(self, plan: Plan) -> dict[str, Any]:
        """Printed modules of every step (compiled when loaded), and the plan's wiring."""
        from eqsat_backends.numba_cpu.emit import emit_group

        steps: list[dict[str, Any]] = []
        for step in plan.steps:
            if isinstance(step, KernelStep):
                emitted = emit_group(step.group, step.nest)
                steps.append(
                    {
                        "source": emitted.source,
                        "phases": list(emitted.phases),
                        "tensors": list(step.tensors),
                        "outputs": list(step.group.outputs),
                        "shared": emitted.shared_bytes,
                        "thread": emitted.thread_bytes,
                        "packs": [pack.to_json() for pack in emitted.packs],
                        "label": step.label,
                    }
                )
            else:
                value = nodes_to_json([step.value])
                steps.append(
                    {"reference": value, "reads": list(step.reads), "tensor": step.tensor, "label": step.label}
                )
        return {
            "types": {str(n): type_to_json(t) for n, t in plan.types.items()},
            "inputs": list(plan.inputs),
            "outputs": list(plan.outputs),
            "constants": sorted(plan.constants),
            "steps": steps,
        }

    def load(self, emitted: Mapping[str, Any], constants: Mapping[int, np.ndarray], threads: int) -> CpuExecutable:
        return CpuExecutable(emitted, constants, threads)


@dataclass
class _Segment:
    """A run of compiled steps, or one reference step."""

    program: Program | None
    arguments: list[int]
    writes: list[int]
    value: Node | None = None
    labels: tuple[str, ...] = ()


class CpuExecutable:
    """Segments of compiled steps with reference steps between them."""

    def __init__(self, emitted: Mapping[str, Any], constants: Mapping[int, np.ndarray], threads: int) -> None:
        self.types: dict[int, TensorType] = {int(n): type_from_json(t) for n, t in emitted["types"].items()}
        self.constants = {n: np.asarray(a, order="C") for n, a in constants.items()}
        self.inputs: list[int] = list(emitted["inputs"])
        self.outputs: list[int] = list(emitted["outputs"])
        self.threads = threads
        self.emitted = emitted
        self.arena_bytes = 0
        self._packed: dict[tuple[int, PackSpec], np.ndarray] = {}
        self.segments = self._build(emitted["steps"])
        self._direct = self._direct_call()

    def _build(self, steps: Sequence[Mapping[str, Any]]) -> list[_Segment]:
        runs: list[list[Mapping[str, Any]]] = []
        for step in steps:
            if "reference" in step or not runs or "reference" in runs[-1][0]:
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
        return [self._segment(run, crossing) for run in runs]

    def _segment(self, run: list[Mapping[str, Any]], crossing: set[int]) -> _Segment:
        if "reference" in run[0]:
            (step,) = run
            (value,) = nodes_from_json(step["reference"], _no_constant)
            return _Segment(None, list(step["reads"]), [step["tensor"]], value, (step["label"],))
        arguments: list[int] = []
        written: list[int] = []
        wiring: list[tuple[Sequence[int], Sequence[int]]] = []
        for step in run:
            reads, writes = _reads_writes(step)
            wiring.append((reads, writes))
            for tensor in (*reads, *writes):
                outside = tensor in crossing or tensor in self.inputs
                if outside and tensor not in self.constants and tensor not in arguments:
                    arguments.append(tensor)
                if tensor in writes and tensor in crossing and tensor not in written:
                    written.append(tensor)
        inner = {
            t: self.types[t].nbytes
            for reads, writes in wiring
            for t in (*reads, *writes)
            if t not in arguments and t not in self.constants
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
        arguments = [t for t in arguments if t not in written] + written
        slots: list[Slot] = [Argument(n) for n in range(len(arguments))]
        slot_of = {t: n for n, t in enumerate(arguments)}
        for tensor, offset in sorted(places.items()):
            slot_of[tensor] = len(slots)
            slots.append(Arena(offset))
        status, start = len(slots), len(slots) + 1
        slots += [Status(), Arena(0)]
        table: list[Step] = []
        for number, step in enumerate(run):
            scratch = (slot_of.get(_shared(number), start), slot_of.get(_thread(number), start))
            place = [slot_of.get(t, -1) for t in step["tensors"]]
            for position, tensor in enumerate(step["tensors"]):
                if tensor in self.constants:
                    place[position] = len(slots)
                    slots.append(Constant(self._constant(tensor, position, step)))
            addresses = compile_module(step["source"], tuple(step["phases"]))
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
        self.arena_bytes += arena
        labels = tuple(step["label"] for step in run for _ in step["phases"])
        return _Segment(Program(table, slots, specs, arena, self.threads), arguments, written, None, labels)

    def _constant(self, tensor: int, position: int, step: Mapping[str, Any]) -> np.ndarray:
        flat = self.constants[tensor].reshape(-1)
        for data in step["packs"]:
            if data["operand"] == position:
                spec = PackSpec.from_json(data)
                key = (tensor, spec)
                if key not in self._packed:
                    packed = spec.apply(flat)
                    aligned = aligned_empty(packed.shape, packed.dtype)
                    aligned[...] = packed
                    self._packed[key] = aligned
                return self._packed[key]
        return flat

    def _direct_call(self) -> _Segment | None:
        """The only segment, when arguments and outputs can be passed to it as they come."""
        if len(self.segments) != 1 or self.segments[0].program is None:
            return None
        segment = self.segments[0]
        plain = segment.writes == self.outputs and [*self.inputs, *self.outputs] == segment.arguments
        return segment if plain else None

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self._direct is not None:
            outputs = [_output(self.types[t]) for t in self.outputs]
            program = self._direct.program
            assert program is not None
            status = program((*arrays, *outputs), self.threads)
            if status == MISMATCH:
                status = program((*map(_plain, arrays), *outputs), self.threads)
            if status:
                _raise(status)
            return outputs
        values = dict(zip(self.inputs, map(_plain, arrays), strict=True))
        values.update(self.constants)
        for segment in self.segments:
            self._run(segment, values)
        seen: set[int] = set(self.inputs) | set(self.constants)
        results = []
        for tensor in self.outputs:
            value = values[tensor]
            results.append(value.copy() if tensor in seen else value)
            seen.add(tensor)
        return results

    def _run(self, segment: _Segment, values: dict[int, np.ndarray]) -> None:
        if segment.program is None:
            assert segment.value is not None
            (tensor,) = segment.writes
            values[tensor] = _reference(segment.value, [values[t] for t in segment.arguments])
            return
        for tensor in segment.writes:
            values[tensor] = _output(self.types[tensor])
        status = segment.program(tuple(values[t] for t in segment.arguments), self.threads)
        if status:
            _raise(status)

    def profile(self, arrays: Sequence[np.ndarray], repeat: int = 5) -> list[float]:
        """Median seconds of each step of the plan, timed one at a time."""
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
        return [statistics.median(column) for column in zip(*times[1:], strict=True)]

    def sources(self) -> list[str]:
        return list(dict.fromkeys(s["source"] for s in self.emitted["steps"] if "source" in s))


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
    return np.require(array, array.dtype.newbyteorder("="), ("C", "A", "E"))


_recycler = Recycler()


def _output(type: TensorType) -> np.ndarray:
    return _recycler.empty(type.shape, type.dtype.numpy)


def _reference(value: Node, arrays: Sequence[np.ndarray]) -> np.ndarray:
    bound = {}
    for node in topological([value]):
        if isinstance(node.attrs, InputAttrs):
            bound[node] = arrays[node.attrs.index]
    return np.ascontiguousarray(evaluate_nodes([value], bound)[0]).reshape(value.shape)


def _raise(status: int) -> None:
    if status < 0:
        raise ValueError("arrays do not have the shapes and types the program was compiled for")
    raise IndexError("an index is out of bounds for the axis it selects from")

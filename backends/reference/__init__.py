"""The NumPy backend: any plan, node by node. Slow, and right: what other backends are checked against."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import Any

import numpy as np

from eqsat.cost.machine import Machine
from eqsat.cost.target import Target, TileOpRow, target_of
from eqsat.deadline import NEVER, Deadline
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.loop import runs_of, window
from eqsat.ir.node import topological
from eqsat.ir.sources import InputAttrs
from eqsat.ir.types import TensorType
from eqsat.plan.fallback import interpret
from eqsat.plan.plan import KernelStep, Plan, ReferenceStep, Repeat, as_after, first_trip, trips_of
from eqsat.plan.sized import Alike


class NumpyBackend:
    """Runs the plan's kernels point by point from their index notation; remembers nothing between processes."""

    name = "numpy"
    reference = True

    def key(self) -> str:
        return f"numpy {version('numpy')}"

    def target(self, machine: Machine, threads: int) -> Target:
        """Vector loops alone: the interpreter follows no nest, so there is nothing to be gained by others."""
        return target_of(machine, threads, (TileOpRow("vector", lanes="lanes"),))

    def helpers(self, operators: int, results: Sequence[TensorType] = ()) -> AbstractContextManager[None]:
        """None are needed."""
        return nullcontext()

    def emit(
        self,
        plan: Plan,
        machine: Machine,
        deadline: Deadline = NEVER,
        helpers: None = None,
        alike: Alike | None = None,
    ) -> dict[str, Any]:
        """The plan itself, which is not for keeping."""
        return {"plan": plan, "volatile": True, "kinds": ["numpy"] * len(plan.steps)}

    def kept(self, emitted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Nothing: the plan is not for keeping."""
        return {}

    def release(self) -> None:
        """Nothing is kept for later calls."""

    def load(
        self,
        emitted: Mapping[str, Any],
        constants: Mapping[int, np.ndarray],
        threads: int,
        deadline: Deadline = NEVER,
    ) -> NumpyExecutable:
        return NumpyExecutable(emitted["plan"], constants)


class NumpyExecutable:
    """A plan interpreted with NumPy."""

    direct = None
    trial = False

    def __init__(self, plan: Plan, constants: Mapping[int, np.ndarray]) -> None:
        self.plan = plan
        self.constants = {n: np.array(a) for n, a in constants.items()}
        self.nbytes = sum(a.nbytes for a in self.constants.values())
        self.inputs = list(plan.inputs)
        stored = {s.tensors[o] for s in plan.steps if isinstance(s, KernelStep) for o in s.group.outputs}
        stored |= {t for s in plan.steps if isinstance(s, ReferenceStep) for t in s.tensors}
        stored |= {tensor for repeat in plan.repeats for tensor in repeat.writes}
        self.peak_bytes = sum(plan.types[t].nbytes for t in (*stored, *plan.outputs))

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = self._given(arrays)
        self._run_steps(0, len(self.plan.steps), values, self.plan.repeats)
        return [np.array(values[t]) for t in self.plan.outputs]

    def tried(self) -> NumpyExecutable:
        found = copy.copy(self)
        found.trial = True
        return found

    def _run_steps(self, begin: int, end: int, values: dict[int, np.ndarray], repeats: Sequence[Repeat]) -> None:
        """Steps from ``begin`` to ``end``, with the loops among them."""
        number = begin
        while number < end:
            repeat = next((r for r in repeats if r.begin == number), None)
            if repeat is None:
                self._run(self.plan.steps[number], values)
                number += 1
                continue
            inner = [r for r in repeats if r is not repeat and repeat.begin <= r.begin and r.end <= repeat.end]
            values.update(self._looped(repeat, values, inner))
            number = repeat.end

    def _looped(self, repeat: Repeat, values: dict[int, np.ndarray], inner: Sequence[Repeat]) -> dict[int, np.ndarray]:
        """What a loop leaves."""
        carried = [values[before] for before, _, _ in repeat.carries]
        wholes: dict[int, list[np.ndarray]] = {whole: [] for _, whole in repeat.stacked}
        trips = runs_of(repeat.trips, repeat.conditional, self.trial and repeat.trial, repeat.copies)
        for trip in range(trips):
            if repeat.conditional and not carried[0]:
                break
            own = dict(values)
            own.update((read, value) for (_, read, _), value in zip(repeat.carries, carried, strict=True))
            own.update((read, window(own[t], step, repeat.trips, trip)) for t, read, step in repeat.windows)
            self._run_steps(repeat.begin, repeat.end, own, inner)
            carried = [own[written] for _, _, written in repeat.carries]
            for written, whole in repeat.stacked:
                wholes[whole].append(own[written])
        return {t: carried[k] for k, t in repeat.finals} | {t: np.stack(rows) for t, rows in wholes.items()}

    def _given(self, arrays: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
        """What is known when a call begins: constants and arguments, those in native byte order."""
        types = (self.plan.types[t].dtype.numpy for t in self.inputs)
        native = [np.asarray(a, dtype) for a, dtype in zip(arrays, types, strict=True)]
        return {**self.constants, **dict(zip(self.inputs, native, strict=True))}

    def _run(self, step: KernelStep | ReferenceStep, values: dict[int, np.ndarray]) -> None:
        if isinstance(step, ReferenceStep):
            bound = {
                n: values[step.reads[n.attrs.index]]
                for n in topological(step.values)
                if isinstance(n.attrs, InputAttrs)
            }
            values.update(zip(step.tensors, evaluate_nodes(step.values, bound), strict=True))
            return
        for operand in step.group.outputs:
            tensor = step.tensors[operand]
            if tensor not in values:
                type = self.plan.types[tensor]
                values[tensor] = np.zeros(type.shape, type.dtype.numpy)
        interpret(step.group, [values[t].reshape(-1) for t in step.tensors])

    def profile(self, arrays: Sequence[np.ndarray], repeat: int = 3) -> list[float]:
        """Median seconds of each step, of a loop's steps the first trip's times their number."""
        rows = []
        for _ in range(repeat):
            values = self._given(arrays)
            row = []
            for number, step in enumerate(self.plan.steps):
                for loop in self.plan.repeats:
                    if loop.begin == number:
                        first_trip(loop, values)
                start = time.perf_counter()
                self._run(step, values)
                row.append(time.perf_counter() - start)
                for loop in reversed(self.plan.repeats):
                    if loop.end == number + 1:
                        as_after(loop, values)
            rows.append(row)
        trips = trips_of(len(self.plan.steps), self.plan.repeats)
        return [n * statistics.median(column) for n, column in zip(trips, zip(*rows, strict=True), strict=True)]

    def sources(self) -> list[str]:
        return []

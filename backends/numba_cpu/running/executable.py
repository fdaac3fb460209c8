"""Executables: kernels' code, loaded, and tables, run by the compiled driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from eqsat.deadline import Deadline
from eqsat.plan.execution import SegmentedExecutable
from eqsat.plan.tabulate import Table
from eqsat_backends.numba_cpu.compiling.jit import kept_source, load_module
from eqsat_backends.numba_cpu.compiling.objects import Code
from eqsat_backends.numba_cpu.printing.emitted import BAD_EXPONENT, BAD_INDEX, PackSpec
from eqsat_backends.numba_cpu.running.driver import Program
from eqsat_backends.numba_cpu.running.laps import Stopwatch


class CpuExecutable(SegmentedExecutable):
    """A program whose compiled segments are run by the driver."""

    def code(self, step: Mapping[str, Any], deadline: Deadline) -> Code:
        """Addresses of a kernel's phases: compiled by this process, or in the cache under the kernel's key."""
        code: Code | None = step.get("code")
        return code if code is not None else load_module(step["kernel"], tuple(step["phases"]), deadline)

    def program(self, table: Table) -> Program:
        return Program(table.steps, table.slots, table.specs, table.arena_bytes, self.threads, keep=table.keep)

    def packed(self, flat: np.ndarray, pack: Mapping[str, Any]) -> np.ndarray:
        return PackSpec.from_json(pack).apply(flat)

    def stopwatch(self, steps: int) -> Stopwatch:
        return Stopwatch(steps)

    @staticmethod
    def raise_for(status: int) -> None:
        if status == BAD_INDEX:
            raise IndexError("an index is out of bounds for the axis it selects from")
        if status == BAD_EXPONENT:
            raise ValueError("integers to negative integer powers are not allowed; cast the base to a float type")

    def sources(self) -> list[str]:
        kernels = {s["kernel"]: s for s in self.emitted["steps"] if "kernel" in s}
        return [s.get("source") or kept_source(key, tuple(s["phases"])) for key, s in kernels.items()]

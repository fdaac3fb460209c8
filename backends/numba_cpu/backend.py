"""The backend: plans to executables by way of data that can be remembered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from eqsat.aside import load
from eqsat.compilers import Compilers
from eqsat.cost.machine import Machine
from eqsat.cost.target import Target, TileOpRow
from eqsat.deadline import NEVER, Deadline
from eqsat.installed import version
from eqsat.ir.serialize import type_to_json
from eqsat.ir.types import TensorType
from eqsat.plan.execution import recycler
from eqsat.plan.plan import Plan
from eqsat.plan.sized import Alike
from eqsat_backends.numba_cpu.compiling.jit import OPERATORS, forget, helpers
from eqsat_backends.numba_cpu.compiling.objects import host, package_fingerprint, unload
from eqsat_backends.numba_cpu.printing.emission import Emission
from eqsat_backends.numba_cpu.running import driver
from eqsat_backends.numba_cpu.running.executable import CpuExecutable
from eqsat_backends.numba_cpu.tiles import registry
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target

_PRINTERS = tuple(
    f"eqsat_backends.numba_cpu.printing.{name}" for name in ("emit", "blocks", "contract", "loops", "running")
)


class NumbaCpuBackend:
    """Explicit-SIMD kernels printed as Python, compiled by Numba, run by one compiled driver."""

    name = "numba_cpu"
    reference = False

    def key(self) -> str:
        own = f"{host().key}|{version('numba')}|{package_fingerprint()}"
        return f"{own}|{registry.digest()}" if registry.registered(trial=False) else own

    def register_tile_op(self, row: TileOpRow) -> None:
        """Offer a tile operation wherever a kernel is its semantics. See ``registry.register`` for what is checked.

        Raises:
            RuleError: it cannot be emitted, or computes something else than its semantics say.
        """
        registry.register(row)

    def unregister_tile_op(self, name: str) -> None:
        """Take a registered tile operation back. ``KeyError`` if there is none of this name."""
        registry.unregister(name)

    def target(self, machine: Machine, threads: int) -> Target:
        """The processor, with the tile operations of this package."""
        return cpu_target(machine, threads)

    @contextmanager
    def helpers(self, operators: int, results: Sequence[TensorType] = ()) -> Iterator[Compilers]:
        """Processes that get ready to compile while a program of so many operators is searched, and memory."""
        driver.load_aside()
        with (
            recycler.ready([(t.shape, t.dtype.numpy) for t in results]),
            helpers(operators // OPERATORS) as compilers,
        ):
            yield compilers

    def emit(
        self,
        plan: Plan,
        machine: Machine,
        deadline: Deadline = NEVER,
        helpers: Compilers | None = None,
        alike: Alike | None = None,
    ) -> dict[str, Any]:
        """Printed modules of every step, compiled; the plan's wiring; and how each step of the plan is run.

        A group whose kernel cannot be generated is run stage by stage, and a stage without a kernel by the
        interpreter, with a warning. Such data may hold the group itself, and is not for keeping (``volatile``):
        another version, or another process, may do better.
        """
        load(*_PRINTERS, deadline=deadline)
        emission = Emission(dict(plan.types), machine, deadline, helpers, alike, fuses=plan.fuses)
        emission.run(plan.steps)
        return {
            "types": {str(n): type_to_json(t) for n, t in emission.types.items()},
            "inputs": list(plan.inputs),
            "outputs": list(plan.outputs),
            "constants": sorted(plan.constants),
            "steps": emission.steps,
            "repeats": emission.repeats(plan.repeats),
            "kinds": emission.kinds,
            "volatile": emission.volatile,
        }

    def kept(self, emitted: Mapping[str, Any]) -> dict[str, Any]:
        """Without printed modules and machine code: kernels by key."""
        steps = [{n: value for n, value in step.items() if n not in ("source", "code")} for step in emitted["steps"]]
        return {**emitted, "steps": steps}

    def release(self) -> None:
        """Free the memory of earlier results, idle arenas, and machine code that no program uses any more."""
        recycler.release()
        driver.release_arenas()
        forget()
        unload()

    def load(
        self,
        emitted: Mapping[str, Any],
        constants: Mapping[int, np.ndarray],
        threads: int,
        deadline: Deadline = NEVER,
    ) -> CpuExecutable:
        return CpuExecutable(emitted, constants, threads, deadline)

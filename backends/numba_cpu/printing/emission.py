"""Plans to data: groups printed and compiled, and how each step of the plan is run."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from eqsat.compilers import Compilers
from eqsat.cost.machine import Machine
from eqsat.deadline import Deadline
from eqsat.ir.serialize import nodes_to_json
from eqsat.ir.types import TensorType
from eqsat.plan import fallback
from eqsat.plan.plan import KernelStep, ReferenceStep, Repeat
from eqsat.plan.sized import Alike
from eqsat.plan.texts import named
from eqsat_backends.numba_cpu.compiling.jit import KernelCompileError, compile_modules, source_key
from eqsat_backends.numba_cpu.compiling.objects import Code
from eqsat_backends.numba_cpu.printing.emitted import Emitted
from eqsat_backends.numba_cpu.printing.sizes import reading
from eqsat_backends.numba_cpu.printing.source import rounding_products
from eqsat_backends.numba_cpu.target import target_of

log = logging.getLogger("eqsat")

_Kernel = tuple[Emitted, Code]


class Emission:
    """The steps of a plan as data for ``load``; ``of`` says which step of the plan each belongs to."""

    def __init__(
        self,
        types: dict[int, TensorType],
        machine: Machine,
        deadline: Deadline,
        helpers: Compilers | None,
        alike: Alike | None = None,
        fuses: bool = True,
    ) -> None:
        self.types = types
        self.machine = machine
        self.deadline = deadline
        self.helpers = helpers
        self.alike = alike
        self.fuses = fuses
        self.steps: list[dict[str, Any]] = []
        self.kinds: list[str] = []
        self.volatile = False
        self.values: list[list[int]] = []
        """What each kernel takes as its varying integers."""

    def run(self, steps: Sequence[KernelStep | ReferenceStep]) -> None:
        for number, (step, kernel) in enumerate(zip(steps, self._kernels(steps), strict=True)):
            self._add(number, step, kernel)

    def repeats(self, repeats: Sequence[Repeat]) -> list[dict[str, Any]]:
        """The loops, by the numbers of the steps that were made of theirs."""
        first = [step["of"] for step in self.steps]
        places = ((bisect_left(first, repeat.begin), bisect_left(first, repeat.end)) for repeat in repeats)
        return [{**asdict(r), "begin": begin, "end": end} for r, (begin, end) in zip(repeats, places, strict=True)]

    def _kernels(self, steps: Sequence[KernelStep | ReferenceStep]) -> list[_Kernel | None]:
        """Steps' printed modules, compiled and loaded; None where there is none, with a warning where that fails."""
        known: dict[tuple[int, ...], Emitted | None] = {}  # by identity: layers have groups in common
        printed = list[Emitted | None]()
        for step in steps:
            self.deadline.check("printing kernels")
            key = (id(step.group), id(step.nest)) if isinstance(step, KernelStep) else tuple(map(id, step.values))
            if key not in known:
                varying = self.alike.varying[len(printed)] if self.alike is not None else frozenset()
                known[key] = self._print(step, varying)
            printed.append(known[key])
        if self.alike is not None and None in printed:
            raise ValueError("a nest has no kernel at this length")
        values = self._lift(steps, printed) if self.alike is not None else {}
        modules = [(p.source, p.phases) for p in printed if p is not None]
        compiled = compile_modules(modules, self.deadline, self.helpers)
        made: list[_Kernel | None] = []
        for emitted, step in zip(printed, steps, strict=True):
            code = compiled[emitted.source, emitted.phases] if emitted is not None else None
            if isinstance(code, KernelCompileError):
                if self.alike is not None:
                    raise ValueError(f"a kernel takes no length as an argument: {code}")
                _refuse(step.label, code)
            made.append((emitted, code) if emitted is not None and isinstance(code, Code) else None)
            self.values.append(values.get(len(self.values), []))
        return made

    def _print(self, step: KernelStep | ReferenceStep, varying: frozenset[int]) -> Emitted | None:
        """A step's printed module; None where there is none, with a warning where there should be: integers that cannot
        be arguments stay part of their programs."""
        from eqsat_backends.numba_cpu.printing import emit, running

        try:
            if isinstance(step, ReferenceStep):
                return running.emit(step.values, target_of(self.machine))
            emitted = emit.emit_group(step.group, step.nest, self.machine, varying)
            fused = self.fuses or emitted is None
            return emitted if fused else replace(emitted, source=rounding_products(emitted.source))
        except Exception as error:  # whatever an emitter refuses, the reference can still run
            _refuse(step.label, error, logging.WARNING if self.alike is None else logging.INFO)
            return None

    def _lift(self, steps: Sequence[KernelStep | ReferenceStep], printed: list[Emitted | None]) -> dict[int, list[int]]:
        """Replace modules by those whose integers are arguments, which are returned."""
        assert self.alike is not None
        alike, values = self.alike, dict[int, list[int]]()

        def others(number: int) -> Iterator[str]:
            for plan in alike.others():
                made = self._print(plan.steps[number], alike.varying[number])
                if made is not None:
                    yield made.source

        for number, (step, emitted) in enumerate(zip(steps, printed, strict=True)):
            if emitted is not None:
                source, values[number] = named(number, emitted.source, alike.known, partial(others, number))
                printed[number] = replace(emitted, source=reading(source, len(step.tensors) + 3))
        return values

    def _add(self, number: int, step: KernelStep | ReferenceStep, kernel: _Kernel | None) -> None:
        if kernel is not None:
            self.kinds.append("kernel")
            own = {"sizes": self.values[number]} if self.alike is not None else {}
            if isinstance(step, KernelStep):
                made = _as_data(kernel, step.group.outputs, step.tensors)
            else:
                made = _as_data(kernel, range(len(step.tensors)), (*step.tensors, *step.reads))
            self.steps.append({**made, **own, "of": number})
            return
        if isinstance(step, ReferenceStep):
            self.kinds.append("reference" if step.call is None else "opaque")
            value, tensors = nodes_to_json(step.values), list(step.tensors)
            self.steps.append({"reference": value, "reads": list(step.reads), "tensors": tensors, "of": number})
            return
        kind, self.volatile = "stages", True
        parts = fallback.split(step.group, step.tensors, self._fresh)
        alone = [KernelStep(part.group, part.tensors, None, step.label) for part in parts] if len(parts) > 1 else []
        for part, one in zip(parts, self._kernels(alone) or [None], strict=True):
            if one is not None:
                made = _as_data(one, part.group.outputs, part.tensors)
            else:
                kind = "reference"
                outputs = list(part.group.outputs)
                made = {"interpreted": part.group, "tensors": list(part.tensors), "outputs": outputs}
            self.steps.append({**made, "of": number})
        self.kinds.append(kind)

    def _fresh(self, type: TensorType) -> int:
        number = max(self.types) + 1
        self.types[number] = type
        return number


def _refuse(label: str, error: Exception, level: int = logging.WARNING) -> None:
    log.log(level, "no kernel could be generated for %s (%s: %s)", label, type(error).__name__, error)


def _as_data(kernel: _Kernel, outputs: Sequence[int], tensors: Sequence[int]) -> dict[str, Any]:
    """``code`` keeps the machine code alive, of however many kernels, until a program holds it."""
    emitted, code = kernel
    return {
        "source": emitted.source,
        "code": code,
        "kernel": source_key(emitted.source, emitted.phases),
        "phases": list(emitted.phases),
        "tensors": list(tensors),
        "outputs": list(outputs),
        "shared": emitted.shared_bytes,
        "thread": emitted.thread_bytes,
        "packs": [pack.to_json() for pack in emitted.packs],
    }

"""The processor a process runs on, as far as it decides timings: what a measurement is good for."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from eqsat.cost.machine import Machine, caches, cpu_flags, cpu_name, usable_cores


@dataclass(frozen=True)
class Processor:
    """What the system says of a processor, and what kernels use of it.

    Measured figures are no part of it: they differ from one measurement to the next.

    Attributes:
        architecture: such as ``x86_64``.
        cpu: the processor's name.
        features: hash of its instruction-set extensions.
        cores: physical cores that the process may use.
        vector_bits, registers: of the vectors that kernels are printed for.
        caches: (name, bytes) of the data caches, innermost first.
    """

    architecture: str
    cpu: str
    features: str
    cores: int
    vector_bits: int
    registers: int
    caches: tuple[tuple[str, int], ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "caches": [list(cache) for cache in self.caches]}

    @staticmethod
    def from_json(data: Any) -> Processor:
        """Raises ``ValueError`` for anything that :meth:`to_json` does not make."""
        names = {field.name: field.type for field in fields(Processor)}
        if not isinstance(data, Mapping) or set(data) != set(names):
            raise ValueError("a processor has the fields " + ", ".join(names))
        for name, kind in names.items():
            wanted = {"str": str, "int": int}.get(str(kind), list)
            if not isinstance(data[name], wanted) or isinstance(data[name], bool):
                raise ValueError(f"a processor's {name} is no {wanted.__name__}")
        found = []
        for cache in data["caches"]:
            if not (isinstance(cache, list) and [type(part) for part in cache] == [str, int]):
                raise ValueError("a processor's caches are pairs of a name and bytes")
            found.append((cache[0], cache[1]))
        return Processor(**{**data, "caches": tuple(found)})


def processor_of(machine: Machine) -> Processor:
    """This computer's, with the vectors that ``machine`` has kernels printed for."""
    return Processor(
        platform.machine(),
        cpu_name(),
        hashlib.blake2b(" ".join(sorted(cpu_flags().split())).encode(), digest_size=8).hexdigest(),
        usable_cores(),
        8 * machine.vector_bytes,
        machine.registers,
        tuple((name, nbytes) for name, nbytes, _ in caches()),
    )

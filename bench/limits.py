"""The least time that a workload can take on this machine, from figures measured in the same run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bench.workload import Workload
from eqsat.cost import machine as model
from eqsat.cost.machine import Machine

AT_ONCE = {"bfloat16": 2, "int8": 4}
"""Products that an instruction adds up where it adds one of float32."""


@dataclass(frozen=True)
class Limits:
    """``fma_gflops``: float32 FMA peak, ``stream_gbs``: bandwidth of a copy in memory, both of ``threads`` cores."""

    cpu: str
    fma_gflops: float
    stream_gbs: float
    threads: int

    def milliseconds(self, workload: Workload, touched: float, machine: Machine) -> float:
        """max(flops / FMA peak, bytes / bandwidth of the first level that holds the bytes twice over).

        Data that just fills a cache does not stay there from call to call.
        """
        level = machine.level_of(2 * int(touched), self.threads)
        floats = "float32" if workload.dtype in AT_ONCE else workload.dtype
        peak = AT_ONCE.get(workload.dtype, 1) * machine.peak_gflops(floats, self.threads)
        bandwidth = _bandwidth(machine, level.name, self.threads)
        return max(workload.flops / (peak * 1e6), touched / (bandwidth * 1e6))

    def record(self) -> dict[str, Any]:
        return asdict(self)


def _bandwidth(machine: Machine, level: str, threads: int) -> float:
    """GB/s of ``threads`` cores: between the figures of one core and of all, in proportion."""
    one, every = machine.level(level).copy_gbs, machine.level(level).copy_gbs_all
    if machine.cores == 1:
        return one
    share = (min(threads, machine.cores) - 1) / (machine.cores - 1)
    return one + (every - one) * share


def measure(threads: int, quick: bool) -> tuple[Limits, Machine]:
    """Measure the machine now; ``quick`` takes the stored figures where there are any."""
    machine = model.load() if quick else model.remeasure()
    memory = machine.levels[-1].name
    return (
        Limits(machine.cpu, machine.peak_gflops("float32", threads), _bandwidth(machine, memory, threads), threads),
        machine,
    )

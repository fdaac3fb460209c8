"""The least time that a workload can take on this machine, from figures measured in the same run."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.workload import Workload
from eqsat.cost import machine as model
from eqsat.cost.machine import Machine

AT_ONCE = {"bfloat16": 2, "int8": 4}
"""Products that an instruction adds up where it adds one of float32."""


@dataclass(frozen=True)
class Limits:
    """``fma_gflops``: float32 FMA peak, ``stream_gbs``: bandwidth of a copy in memory, both of ``threads`` cores.

    ``python``: the interpreter's version; ``python_ms``: see :func:`interpreter_ms`.
    """

    cpu: str
    fma_gflops: float
    stream_gbs: float
    threads: int
    python: str = ""
    python_ms: float = 0.0

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
    peak, copied = machine.peak_gflops("float32", threads), _bandwidth(machine, machine.levels[-1].name, threads)
    return Limits(machine.cpu, peak, copied, threads, platform.python_version(), interpreter_ms()), machine


class _Pair:
    __slots__ = ("one", "two")

    def __init__(self, one: int, two: tuple[int, int]) -> None:
        self.one, self.two = one, two


def interpreter_ms() -> float:
    """Milliseconds in which the interpreter makes 100,000 small objects and looks them up again; least of five.

    A search takes as long as the interpreter, which is faster where it was compiled with a profile.
    """
    least = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        made = {}
        for n in range(100_000):
            pair = _Pair(n, (n, n + 1))
            made[pair.two] = pair
        assert sum(pair.one for pair in made.values()) == sum(range(100_000))
        least = min(least, time.perf_counter() - start)
    return 1e3 * least

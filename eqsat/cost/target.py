"""The machine as the movement analysis sees it: capacities, bandwidths per thread, cost of an issue slot.

Derived from a measured :class:`eqsat.cost.machine.Machine` and a thread count; everything in seconds and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from eqsat.ir.types import DType

if TYPE_CHECKING:
    from eqsat.cost.machine import Machine

LEVELS = ("L2", "L3", "memory")
"""Where bytes come from: those from L2 missed the L1 cache, and so on."""

HIDDEN = (0.6, 0.8, 0.7, 0.8)
"""How much of compute, and of traffic from L2, L3 and memory, hides behind the longest of them (1: a perfect roofline).

Traffic from L2 is covered by out-of-order execution nearly whole (a register tile fed from L2 runs at peak); the rest
depends on prefetching.
"""


@dataclass(frozen=True)
class Target:
    """Rates of one thread while ``threads`` threads are at work.

    ``slots``: (32 or 64, seconds of one vector multiply-add of such elements issued at peak). ``capacity``: bytes that
    stay resident in L1, L2 and this thread's share of L3. ``bandwidth``: bytes a second from L2, L3 and memory.
    ``barrier``: seconds of one barrier, ``step``: of starting one more kernel. ``functions``: measured slots of
    elementwise functions.
    """

    slots: tuple[tuple[int, float], ...]
    vector_bits: int
    registers: int
    capacity: tuple[float, float, float]
    bandwidth: tuple[float, float, float]
    barrier: float
    step: float
    threads: int
    functions: tuple[tuple[str, float], ...] = ()

    def slot(self, dtype: DType) -> float:
        """Seconds of one vector issue slot for this element type."""
        wide = dtype.bits == 64
        return next(seconds for bits, seconds in self.slots if (bits == 64) == wide)

    def lanes(self, dtype: DType) -> int:
        """Elements of one vector register; booleans are widened to 32 bits."""
        return max(1, self.vector_bits // max(32, dtype.bits))

    def seconds(self, compute: float, moved: tuple[float, float, float]) -> float:
        """Time of a computation that keeps the units busy for ``compute`` s and moves those bytes from each level."""
        hides, hides2, hides3, hides4 = HIDDEN
        l2, l3, memory = (n / rate for n, rate in zip(moved, self.bandwidth, strict=True))
        longest = max(compute * hides, l2 * hides2, l3 * hides3, memory * hides4)
        shown = compute * (1 - hides) + l2 * (1 - hides2) + l3 * (1 - hides3) + memory * (1 - hides4)
        return longest + shown


@lru_cache(maxsize=64)
def target_of(machine: Machine, threads: int = 1) -> Target:
    """The target that ``threads`` threads of a machine are; more threads than cores count as the cores.

    Of a private cache 80 % is taken to stay resident, of a shared one a thread's share of half of it: the rest goes
    to streams, to other processes, and to what limited associativity wastes.
    """
    threads = max(1, min(threads, machine.cores))
    by_name = {level.name: level for level in machine.levels}
    memory = machine.levels[-1]
    capacity: list[float] = []
    bandwidth: list[float] = []
    for name, room in (("L1", 0.8), ("L2", 0.7), ("L3", 0.5)):
        level = by_name.get(name)
        if level is None:  # no such cache: it holds what the one before holds
            capacity.append(capacity[-1] if capacity else 0.0)
        else:
            capacity.append(level.nbytes * (0.5 / threads if level.shared else room))
    for name in LEVELS:
        level = by_name.get(name, memory)
        bandwidth.append(1e9 * min(level.read_gbs, level.read_gbs_all / threads))
    slots = []
    for name, bits in (("float32", 32), ("float64", 64)):
        lanes = machine.vector_bytes * 8 // bits
        slots.append((bits, 2.0 * lanes / (machine.peak_gflops(name) * 1e9)))
    one = 2.0 / machine.peak_gflops("float32")  # nanoseconds of one slot, per lane
    functions = tuple(sorted((name, round(max(1.0, ns / one), 1)) for name, ns in machine.function_ns))
    return Target(
        tuple(slots),
        machine.vector_bytes * 8,
        machine.registers,
        (capacity[0], capacity[1], capacity[2]),
        (bandwidth[0], bandwidth[1], bandwidth[2]),
        machine.barrier_us * 1e-6,
        machine.step_us * 1e-6,
        threads,
        functions,
    )

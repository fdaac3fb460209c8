"""Whether measured figures can be true, and what stands in for those that cannot.

Other programs can only make a machine look slower, and seldom all of it alike. So figures are held to what
any processor can do (bounds below), and to one another: a float64 multiply-add costs twice a float32 one, an
inner memory level is no slower than an outer one, all cores together are no faster than as many times one. Of
two figures that contradict each other the faster one is right. What is out of bounds is replaced by a
conservative value: one that makes no program look cheap by mistake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from eqsat.cost import calibration

if TYPE_CHECKING:
    from eqsat.cost.machine import Level, Machine

CLOCK_GHZ = (0.4, 7.0)
"""Clocks from an idling phone core's to an overclocked desktop's."""
FMA_PER_CYCLE = (0.25, 4.0)
"""Vector multiply-adds a cycle: from a vector cut in four to four pipes."""
VECTORS_PER_CYCLE = 4.0
"""Most vectors a core moves in a cycle."""
LEAST_GBS = 0.1
RATIO = (1.85, 2.15)
"""Float32's peak over float64's."""
ORDER = 0.85
"""An inner level may measure this much of an outer one before that is a contradiction."""
COPY = 0.45
"""Copying (bytes read plus bytes written) and reading have no less than this share of each other's bandwidth:
where a line is fetched before it is overwritten three pass for two that count, and stores may have ports of
their own."""
TOGETHER = 1.25
"""All cores may measure this much more than as many times one core."""
CALL_US = (0.02, 20.0)
STEP_US = (0.001, 1.0)
LAUNCH_US = (0.02, 100.0)
WAKE_US = (0.02, 1000.0)
BARRIER_US = (0.01, 5.0)
BARRIER_US_PER_CORE = 0.1
"""Added to the upper bound for every core."""
FMA_LATENCY_NS = (0.2, 40.0)
"""From three cycles to ten."""
BROADCAST_GS = (0.05, 28.0)
"""From one in eight cycles to four a cycle."""
FUNCTION_NS = (0.001, 200.0)
MATRIX_NS = (1.0, 1000.0)
SCATTERED_NS = (0.1, 200.0)
"""Up to what memory takes to answer."""

SAFE_CLOCK_GHZ = 2.5
SAFE_CALL_US, SAFE_STEP_US, SAFE_LAUNCH_US, SAFE_BARRIER_US = 0.5, 0.02, 10.0, 1.0
"""Conservative values: those of a slow server core, one vector multiply-add a cycle."""
SAFE_VECTORS_PER_CYCLE = (1.0, 0.5, 0.25)
"""Bandwidth of L1, L2 and L3; memory: ``SAFE_MEMORY_GBS``. All cores: what one reaches, but for private caches."""
SAFE_MEMORY_GBS = 8.0

_BANDWIDTHS = ("read_gbs", "copy_gbs")


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A figure that cannot be true. ``figure``: its name, as ``step_us``, ``float32`` or ``L2 read_gbs``.

    ``contradicts``: the figure it disagrees with; empty where it is out of bounds by itself.
    """

    figure: str
    value: float
    reason: str
    contradicts: str = ""

    def __str__(self) -> str:
        return f"{self.figure} = {self.value:.3g} ({self.reason})"


def failed_checks(machine: Machine) -> list[FailedCheck]:
    """Figures of ``machine`` that cannot be true, in a fixed order."""
    return [*_out_of_bounds(machine), *_contradictions(machine)]


def repaired(machine: Machine) -> Machine:
    """``machine`` with every doubtful figure replaced: :func:`failed_checks` of the result are none.

    Functions whose cost is out of bounds are left out: the op table's cost stands for them.
    """
    machine = _within_bounds(machine)
    if _contradictions(machine):
        machine = _agreeing(machine)
    return machine


def _bounds(machine: Machine) -> Iterator[tuple[str, float, tuple[float, float]]]:
    """(name, value, bounds) of every figure."""
    low, high = CLOCK_GHZ
    for name, peak in machine.fma_gflops:
        lanes = machine.vector_bytes / (8 if name == "float64" else 4)
        yield name, peak, (2 * lanes * low * FMA_PER_CYCLE[0], 2 * lanes * high * FMA_PER_CYCLE[1])
    most = machine.vector_bytes * VECTORS_PER_CYCLE * high
    for level in machine.levels:
        for kind in _BANDWIDTHS:
            yield f"{level.name} {kind}", getattr(level, kind), (LEAST_GBS, most)
            yield f"{level.name} {kind}_all", getattr(level, kind + "_all"), (LEAST_GBS, most * machine.cores)
        if level.scattered_ns:  # 0: it was not measured
            yield f"{level.name} scattered_ns", level.scattered_ns, SCATTERED_NS
    yield "call_us", machine.call_us, CALL_US
    yield "step_us", machine.step_us, STEP_US
    if machine.cores > 1:
        yield "launch_us", machine.launch_us, LAUNCH_US
        yield "wake_us", machine.wake_us, WAKE_US
        yield "barrier_us", machine.barrier_us, (BARRIER_US[0], BARRIER_US[1] + BARRIER_US_PER_CORE * machine.cores)
    for name, bounds in (("fma_latency_ns", FMA_LATENCY_NS), ("broadcast_gs", BROADCAST_GS)):
        if getattr(machine, name):  # 0: it was not measured
            yield name, getattr(machine, name), bounds
    for name, cost in machine.function_ns:
        yield f"function {name}", cost, FUNCTION_NS
    for name, cost in machine.matrix_ns:
        yield f"matrix {name}", cost, MATRIX_NS
    for rows, ahead, rate in machine.panels_gbs:
        yield f"panels {rows} {ahead}", rate, (LEAST_GBS, most)


def _out_of_bounds(machine: Machine) -> list[FailedCheck]:
    return [
        FailedCheck(name, value, f"outside {low:.3g} to {high:.3g}")
        for name, value, (low, high) in _bounds(machine)
        if not low <= value <= high
    ]


def _contradictions(machine: Machine) -> list[FailedCheck]:
    found: list[FailedCheck] = []
    peaks = dict(machine.fma_gflops)
    if "float32" in peaks and "float64" in peaks:
        ratio = peaks["float32"] / peaks["float64"]
        if not RATIO[0] <= ratio <= RATIO[1]:
            slow, fast = ("float32", "float64") if ratio < 2 else ("float64", "float32")
            found.append(FailedCheck(slow, peaks[slow], f"{fast} has {peaks[fast]:.3g}", fast))
    for kind in (*_BANDWIDTHS, *(kind + "_all" for kind in _BANDWIDTHS)):
        for inner, outer in pairwise(machine.levels):
            here, beyond = getattr(inner, kind), getattr(outer, kind)
            if here < ORDER * beyond:
                other = f"{outer.name} {kind}"
                found.append(FailedCheck(f"{inner.name} {kind}", here, f"slower than {other}, {beyond:.3g}", other))
    for level in machine.levels:
        for end in ("", "_all"):
            for kind, other in (_BANDWIDTHS, _BANDWIDTHS[::-1]):
                rate, beside = getattr(level, kind + end), getattr(level, other + end)
                if rate < COPY * beside:
                    name, other_name = f"{level.name} {kind}{end}", f"{level.name} {other}{end}"
                    found.append(FailedCheck(name, rate, f"{other_name} is {beside:.3g}", other_name))
        for kind in _BANDWIDTHS:
            one, every = getattr(level, kind), getattr(level, kind + "_all")
            if every > TOGETHER * machine.cores * one:
                reason = f"{machine.cores} cores together have {every:.3g}"
                found.append(FailedCheck(f"{level.name} {kind}", one, reason, f"{level.name} {kind}_all"))
            if every < one:
                reason = f"one core has {one:.3g}"
                found.append(FailedCheck(f"{level.name} {kind}_all", every, reason, f"{level.name} {kind}"))
    return found


def _within_bounds(machine: Machine) -> Machine:
    wrong = {check.figure for check in _out_of_bounds(machine)}
    if not wrong:
        return machine

    def safe_peak(name: str) -> float:
        return 2 * machine.vector_bytes / (8 if name == "float64" else 4) * SAFE_CLOCK_GHZ

    def us(name: str, safe: float) -> float:
        value: float = getattr(machine, name)
        return safe if name in wrong else value

    return dataclasses.replace(
        machine,
        fma_gflops=tuple((n, safe_peak(n) if n in wrong else v) for n, v in machine.fma_gflops),
        levels=tuple(_safe_level(machine, depth, level, wrong) for depth, level in enumerate(machine.levels)),
        call_us=us("call_us", SAFE_CALL_US),
        step_us=us("step_us", SAFE_STEP_US),
        launch_us=us("launch_us", SAFE_LAUNCH_US),
        wake_us=us("wake_us", calibration.WAKE_US),
        fma_latency_ns=us("fma_latency_ns", 0.0),
        broadcast_gs=us("broadcast_gs", 0.0),
        barrier_us=us("barrier_us", SAFE_BARRIER_US),
        function_ns=tuple((n, v) for n, v in machine.function_ns if f"function {n}" not in wrong),
        matrix_ns=tuple((n, v) for n, v in machine.matrix_ns if f"matrix {n}" not in wrong),
        panels_gbs=tuple(row for row in machine.panels_gbs if f"panels {row[0]} {row[1]}" not in wrong),
    )


def _safe_level(machine: Machine, depth: int, level: Level, wrong: set[str]) -> Level:
    outermost = depth == len(machine.levels) - 1
    rate = SAFE_VECTORS_PER_CYCLE[min(depth, len(SAFE_VECTORS_PER_CYCLE) - 1)]
    one = SAFE_MEMORY_GBS if outermost else rate * machine.vector_bytes * SAFE_CLOCK_GHZ
    together = one if level.shared else one * machine.cores
    safe = {kind + end: value for kind in _BANDWIDTHS for end, value in (("", one), ("_all", together))}
    if f"{level.name} scattered_ns" in wrong:
        level = dataclasses.replace(level, scattered_ns=0.0)
    return _with_rates(level, {k: v for k, v in safe.items() if f"{level.name} {k}" in wrong})


def _with_rates(level: Level, rates: Mapping[str, float]) -> Level:
    return dataclasses.replace(
        level,
        read_gbs=rates.get("read_gbs", level.read_gbs),
        copy_gbs=rates.get("copy_gbs", level.copy_gbs),
        read_gbs_all=rates.get("read_gbs_all", level.read_gbs_all),
        copy_gbs_all=rates.get("copy_gbs_all", level.copy_gbs_all),
    )


def _agreeing(machine: Machine) -> Machine:
    """Every figure raised to what those it contradicts say."""
    peaks = dict(machine.fma_gflops)
    if "float32" in peaks and "float64" in peaks:
        single = max(peaks["float32"], 2 * peaks["float64"])
        peaks |= {"float32": single, "float64": single / 2}
    rates: dict[str, list[float]] = {}
    for kind in _BANDWIDTHS:
        every = [max(getattr(level, kind + "_all"), getattr(level, kind)) for level in machine.levels]
        one = [max(getattr(level, kind), e / machine.cores) for level, e in zip(machine.levels, every, strict=True)]
        rates |= {kind: _falling(one), kind + "_all": _falling(every)}
    for end in ("", "_all"):
        read, copy = rates["read_gbs" + end], rates["copy_gbs" + end]
        rates["read_gbs" + end] = [max(r, COPY * c) for r, c in zip(read, copy, strict=True)]
        rates["copy_gbs" + end] = [max(c, COPY * r) for r, c in zip(read, copy, strict=True)]
    levels = tuple(
        _with_rates(level, {kind: found[depth] for kind, found in rates.items()})
        for depth, level in enumerate(machine.levels)
    )
    return dataclasses.replace(machine, fma_gflops=tuple((n, peaks[n]) for n, _ in machine.fma_gflops), levels=levels)


def _falling(rates: Sequence[float]) -> list[float]:
    """Each raised to the greatest that follows."""
    return [max(rates[depth:]) for depth in range(len(rates))]

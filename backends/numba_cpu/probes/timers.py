"""Micro-benchmarks behind the machine model: FMA peak, bandwidths, costs of calls and barriers, functions.

Other programs can only make a machine look slower, so every figure is the best of many short runs. A figure is
settled when its few best samples agree; those that do not settle are sampled until the time is up, and those
that cannot be true (see ``eqsat.cost.plausible``) are measured once more.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from eqsat.buffers import aligned_bytes
from eqsat.cost.machine import Level, Machine, caches, cpu_name, geometry, usable_cores
from eqsat.cost.plausible import doubts
from eqsat_backends.numba_cpu.probes import probe_code
from eqsat_backends.numba_cpu.probes.probe_code import ELEMENTS, fma_chains
from eqsat_backends.numba_cpu.running.driver import Argument, ArraySpec, Constant, Program, Slot, Step
from eqsat_backends.numba_cpu.vectors.lanes import native_lanes

__all__ = ["FUNCTIONS", "Sizes", "Timer", "figures", "measure"]

FUNCTIONS = ("div", "sqrt", "exp", "log", "tanh", "erf", "sigmoid", "sin", "pow")
BUDGET_S = 1.5
"""Most seconds of sampling; a quiet machine takes a third of it."""
_LEAST_S = 0.5
"""Sampling goes on for this long, lest all of it falls into one spell of somebody else's work."""
_SAMPLE_S = 0.001
_BATCH_S = 25e-6
"""A batch this long hides the cost of reading the clock, and finds a quiet moment on a busy machine."""
_AGREE = 4
_CLOSE = 0.04
"""A figure is settled when its ``_AGREE`` shortest samples differ by less than this share."""
_STEPS = 200
_SHARED_STEPS = 50
_SHARE_BLOCKS, _SHARE_PASSES = 16, 16
"""What a thread of a team reads in a step, half a microsecond from L1: the others would miss a step of nothing."""
_STREAMS = ("read", "copy")

_REST_S = 0.002
"""After so long without a job the driver's workers sleep."""
_RESTED = 16
"""Calls after a rest that are timed."""

Sizes = tuple[str, int, bool, int, int]
"""A memory level: (name, bytes, shared, bytes to touch with one thread, with all)."""


def measure(budget_s: float = BUDGET_S) -> Machine:
    """Measure this computer for ``budget_s`` seconds at most, on all cores for part of it."""
    cores = usable_cores()
    sizes = _level_sizes(cores)
    return figures(_timers(sizes, cores), sizes, cores, budget_s)


class Timer:
    """Shortest time in seconds of one ``run()``; ``work`` is what a run does. ``clock`` in seconds."""

    def __init__(self, run: Callable[[], Any], work: float = 0.0, clock: Callable[[], float] = time.perf_counter):
        self.run, self.work, self.clock = run, work, clock
        run()
        self._shortest: list[float] = []

    @property
    def best(self) -> float:
        return self._shortest[0]

    @property
    def rate(self) -> float:
        """Work done, in 1e9 a second."""
        return self.work / self.best / 1e9

    @property
    def settled(self) -> bool:
        """Whether the best time was reached several times."""
        return len(self._shortest) == _AGREE and self._shortest[-1] <= (1 + _CLOSE) * self.best

    def sample(self) -> None:
        """The shortest of the batches that fit into a sample's time."""
        known = self.best if self._shortest else self._batch(1)
        calls = max(1, math.ceil(_BATCH_S / known))
        batches = max(1, int(_SAMPLE_S / (calls * known)))
        bisect.insort(self._shortest, min(self._batch(calls) for _ in range(batches)))
        del self._shortest[_AGREE:]

    def forget(self) -> None:
        """Begin anew."""
        self._shortest.clear()

    def _batch(self, calls: int) -> float:
        run, clock = self.run, self.clock
        begin = clock()
        for _ in range(calls):
            run()
        return max((clock() - begin) / calls, 1e-9)


class Rested(Timer):
    """A timer of runs that come after a rest. Waking varies by itself: ``best`` is the first quartile."""

    @property
    def best(self) -> float:
        return self._shortest[len(self._shortest) // 4]

    @property
    def settled(self) -> bool:
        return len(self._shortest) >= _RESTED

    def sample(self) -> None:
        time.sleep(_REST_S)
        bisect.insort(self._shortest, self._batch(1))


def figures(
    timers: Mapping[str, Timer],
    sizes: Sequence[Sizes],
    cores: int,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Machine:
    """The machine that ``timers`` (see ``_timers``) measure. What cannot be true takes half of ``budget_s`` more."""
    _settle(timers.values(), clock, budget_s)
    machine = _machine(timers, sizes, cores)
    wrong = {name for doubt in doubts(machine) for f in (doubt.figure, doubt.contradicts) for name in _behind(f, cores)}
    if wrong:
        again = [timers[name] for name in sorted(wrong)]
        for timer in again:
            timer.forget()
        _settle(again, clock, budget_s / 2)
        machine = _machine(timers, sizes, cores)
    return machine


def _settle(timers: Iterable[Timer], clock: Callable[[], float], budget_s: float) -> None:
    """Sample in turn, round after round, so that each figure has its chance of a quiet moment."""
    begin = clock()
    left = list(timers)
    for number in itertools.count(1):
        for timer in left:
            timer.sample()
        spent = clock() - begin
        if spent < min(_LEAST_S, budget_s):
            continue
        left = [timer for timer in left if not timer.settled]
        if not left or (number >= _AGREE and spent >= budget_s):
            return


def _behind(figure: str, cores: int) -> Iterator[str]:
    """Names of the timers that a figure of the model is made of."""
    match figure.split(" "):
        case [""]:
            return
        case ["function", name]:
            yield from (name, "neg")
        case [level, kind]:
            stream, _, together = kind.partition("_gbs")
            yield f"{stream} {level} {cores if together else 1}"
        case _:
            yield from _MADE_OF[figure]


_MADE_OF = {
    "float32": ("fma4",),
    "float64": ("fma8",),
    "fma_latency_ns": ("chain4",),
    "broadcast_gs": ("broadcast",),
    "call_us": ("call",),
    "step_us": ("steps", "one step"),
    "launch_us": ("launch", "one share"),
    "wake_us": ("rested launch", "rested step"),
    "barrier_us": ("barriers", "launch", "shares", "one share"),
}


def _machine(timers: Mapping[str, Timer], sizes: Sequence[Sizes], cores: int) -> Machine:
    def spread(longer: str, shorter: str, times: int) -> float:
        # noise may make a tiny difference negative
        return max(1e6 * (timers[longer].best - timers[shorter].best) / times, 1e-4)

    step_us = spread("steps", "one step", _STEPS - 1)
    launch_us = spread("launch", "one share", 1) if cores > 1 else step_us
    share_us = spread("shares", "one share", _SHARED_STEPS - 1)
    barrier_us = max(spread("barriers", "launch", _SHARED_STEPS - 1) - share_us, 1e-4) if cores > 1 else step_us
    return Machine(
        cpu=cpu_name(),
        cores=cores,
        vector_bytes=4 * native_lanes(32),
        registers=probe_code.registers(),
        fma_gflops=(("float32", timers["fma4"].rate), ("float64", timers["fma8"].rate)),
        levels=tuple(_level(timers, name, size, shared, cores) for name, size, shared, *_ in sizes),
        call_us=1e6 * timers["call"].best,
        step_us=step_us,
        launch_us=launch_us,
        barrier_us=barrier_us,
        function_ns=tuple(
            (name, max(1e9 * (timers[name].best - timers["neg"].best) / ELEMENTS, 1e-3)) for name in FUNCTIONS
        ),
        fma_latency_ns=1 / timers["chain4"].rate,
        broadcast_gs=timers["broadcast"].rate,
        wake_us=max(spread("rested launch", "rested step", 1), launch_us) if cores > 1 else step_us,
    )


def _level(timers: Mapping[str, Timer], name: str, size: int, shared: bool, cores: int) -> Level:
    read, copy = (timers[f"{kind} {name} 1"].rate for kind in _STREAMS)
    # together never slower than one alone: the others could be idle
    read_all = max(timers[f"read {name} {cores}"].rate, read)
    copy_all = max(timers[f"copy {name} {cores}"].rate, copy)
    return Level(name, size, shared, read, copy, read_all, copy_all, *geometry(name))


def _timers(sizes: Sequence[Sizes], cores: int) -> dict[str, Timer]:
    """One timer for each thing that is timed."""
    loops = probe_code.loops()
    return {
        "fma4": _fma_timer(loops, 4),
        "fma8": _fma_timer(loops, 8),
        "chain4": _chain_timer(loops),
        "broadcast": _broadcast_timer(loops),
        "call": _call_timer(loops),
        "one step": _empty_timer(loops, 1, 1),
        "steps": _empty_timer(loops, _STEPS, 1),
        "one share": _share_timer(loops, 1, 1),
        "shares": _share_timer(loops, _SHARED_STEPS, 1),
        "launch": _share_timer(loops, 1, cores),
        "barriers": _share_timer(loops, _SHARED_STEPS, cores),
        "rested step": _empty_timer(loops, 1, 1, Rested),
        "rested launch": _empty_timer(loops, 1, cores, Rested),
        **_stream_timers(loops, sizes, cores),
        **_function_timers(),
    }


def _program(steps: Sequence[int], slots: Sequence[np.ndarray], threads: int = 1) -> Program:
    """A program whose steps (functions) all see the same constant arrays."""
    table: list[Slot] = [Constant(array) for array in slots]
    numbers = tuple(range(len(table)))
    return Program([Step(function, numbers) for function in steps], table, [], 0, threads)


def _fma_timer(loops: dict[str, int], itemsize: int) -> Timer:
    lanes, rounds = native_lanes(8 * itemsize), 5_000
    dtype = np.dtype(f"f{itemsize}")
    x, out = np.full(lanes, 0.5, dtype), np.zeros(lanes * fma_chains(), dtype)
    program = _program([loops[f"fma{itemsize}"]], (x, out, np.array([rounds, 0], np.int64)))
    return Timer(lambda: program(()), 2.0 * lanes * fma_chains() * rounds)


def _chain_timer(loops: dict[str, int]) -> Timer:
    lanes, rounds = native_lanes(32), 10_000
    x, out = np.full(lanes, 0.5, np.float32), np.zeros(lanes, np.float32)
    program = _program([loops["chain4"]], (x, out, np.array([rounds, 0], np.int64)))
    return Timer(lambda: program(()), rounds)


def _broadcast_timer(loops: dict[str, int]) -> Timer:
    rounds, count = 5_000, probe_code.BROADCASTS
    x, out = np.zeros(1024 + count, np.int32), np.zeros(native_lanes(32) * count, np.int32)
    program = _program([loops["broadcast"]], (x, out, np.array([rounds, 0], np.int64)))
    return Timer(lambda: program(()), rounds * count)


def _level_sizes(cores: int) -> list[Sizes]:
    """The levels, touching as much as lies well inside each and well outside the last."""
    rows: list[Sizes] = []
    inner = 0
    for name, size, shared in caches():
        one = max(size // 2, min(2 * inner, size * 3 // 4))
        if shared:
            each = max(one // cores, min(2 * inner, one))  # of one thread, still outside its private cache
            rows.append((name, size, shared, each, min(each * cores, size * 3 // 4)))
        else:
            rows.append((name, size, shared, one, one * cores))
        inner = size
    beyond = min(max(3 * inner, 64 << 20), 256 << 20)
    return [*rows, ("memory", 0, True, beyond, beyond)]


def _stream_timers(loops: dict[str, int], sizes: Sequence[Sizes], cores: int) -> dict[str, Timer]:
    """Reading and copying at every level, with one thread and with all. A copy touches half the bytes in each array."""
    block = probe_code.block_bytes()
    largest = max(max(one, everyone) for *_, one, everyone in sizes)
    source, target = aligned_bytes(largest + block), aligned_bytes(largest // 2 + block)
    source[:] = target[:] = 1
    timers: dict[str, Timer] = {}
    for name, _, _, one, everyone in sizes:
        for threads, total in ((1, one), (cores, everyone)):
            for kind in _STREAMS:
                touched = 2 if kind == "copy" else 1
                blocks = max(threads, total // touched // block)
                passes = max(1, int(_SAMPLE_S * 50e9 / (blocks * block * touched)))
                # a read leaves a vector a thread behind the parameters
                parameters = np.zeros(8 * (threads + 1) + 8, np.int64)
                parameters[:2] = blocks, passes
                program = _program([loops[kind]], (source, target, parameters), threads)
                moved = float(blocks * block * passes * touched)
                timers[f"{kind} {name} {threads}"] = Timer(functools.partial(program, (), threads), moved)
    return timers


def _call_timer(loops: dict[str, int]) -> Timer:
    arrays = tuple(np.zeros(16, np.float32) for _ in range(3))
    specs = [ArraySpec((16,), np.dtype(np.float32))] * 3
    program = Program([Step(loops["empty"], (0, 1, 2))], [Argument(i) for i in range(3)], specs)
    return Timer(lambda: program(arrays))


def _empty_timer(loops: dict[str, int], steps: int, threads: int, timer: type[Timer] = Timer) -> Timer:
    program = _program([loops["empty"]] * steps, [np.zeros(8)] * 4, threads)
    return timer(lambda: program((), threads))


def _share_timer(loops: dict[str, int], steps: int, threads: int) -> Timer:
    """Steps in which each thread reads as much; what many take longer than one is what working together costs."""
    nbytes = probe_code.block_bytes() * _SHARE_BLOCKS * threads
    parameters = np.zeros(8 * (threads + 1) + 8, np.int64)
    parameters[:2] = _SHARE_BLOCKS * threads, _SHARE_PASSES
    slots = [aligned_bytes(nbytes), aligned_bytes(64), parameters]
    program = _program([loops["read"]] * steps, slots, threads)
    return Timer(lambda: program((), threads))


def _function_timers() -> dict[str, Timer]:
    """Elementwise functions over 8 KB of operands, and ``neg``: the cost of the loop around them."""
    names = ("neg", *FUNCTIONS)
    addresses = probe_code.functions(names)
    x = np.linspace(0.1, 4.0, ELEMENTS, dtype=np.float32)
    y = np.empty_like(x)
    programs = {name: _program([addresses[name]], (x, y)) for name in names}
    return {name: Timer(functools.partial(program, ())) for name, program in programs.items()}

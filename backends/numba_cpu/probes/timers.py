"""Micro-benchmarks behind the machine model: FMA peak, bandwidths, costs of calls and barriers, functions.

How each is sampled is said in ``eqsat.cost.sampling``. Figures that cannot be true (see ``eqsat.cost.sanity``) are
measured once more.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from eqsat.buffers import aligned_bytes
from eqsat.cost.calibration import LINE
from eqsat.cost.machine import Level, Machine, caches, cpu_name, geometry, usable_cores
from eqsat.cost.sampling import Rested, Timer, Varying, settle
from eqsat.cost.sanity import failed_checks
from eqsat.ir.table import OPS
from eqsat.plan.table import Argument, ArraySpec, Constant, Slot, Step
from eqsat.schedule.tiles import MATRIX_ROWS
from eqsat_backends.numba_cpu.probes import probe_code
from eqsat_backends.numba_cpu.probes.probe_code import ELEMENTS, fma_chains
from eqsat_backends.numba_cpu.running.driver import Program
from eqsat_backends.numba_cpu.tiles.dots import EXTENSIONS, STEPS, WIDTH
from eqsat_backends.numba_cpu.vectors.lanes import cpu_features, native_lanes, vector_registers

_log = logging.getLogger(__name__)

__all__ = ["FUNCTIONS", "Sizes", "Timer", "figures", "measure"]

FUNCTIONS = tuple(row.name for row in OPS.values() if row.timed)
BUDGET_S = 1.5
"""Most seconds of sampling; a quiet machine takes a third of it."""
_SAMPLE_S = 0.001
_STEPS = 200
_SHARED_STEPS = 50
_SHARE_BLOCKS, _SHARE_PASSES = 16, 16
"""What a thread of a team reads in a step, half a microsecond from L1: the others would miss a step of nothing."""
_STREAMS = ("read", "copy")
_ROWS = 256
"""Rows at least that lines are written to: more than the nearest caches, and tables of pages, have room for."""
_LEAST_SCATTERED = 0.5
"""Nanoseconds: less is not told from nothing."""
_APART = 12_032
"""Bytes between the rows that lines are written to: a few pages, and no multiple of one."""
_PRODUCTS = 1_000
"""Rounds of products of matrices: sums of up to 384 each stay exact in float32."""
_PREFETCH_BYTES = (0, 1024, 2048, 6144)
"""Distances in bytes at which panels are prefetched; 0: they are not."""
_PARTS, _EVICTING = 17, 8
"""Parts of the memory that is streamed, of which tiles that read panels take one after the other, and how many of them
no cache holds. A prime, so that in turns each tile comes to every part."""
_HALVES = 2 << 20
"""What is copied to begins so many bytes behind what is copied from, or a multiple: at the same place in a page."""

Sizes = tuple[str, int, bool, int, int]
"""A memory level: (name, bytes, shared, bytes to touch with one thread, with all)."""


def measure(budget_s: float = BUDGET_S) -> Machine:
    """Measure this computer for ``budget_s`` seconds at most, on all cores for part of it."""
    cores = usable_cores()
    sizes = _level_sizes(cores)
    return figures(_timers(sizes, cores), sizes, cores, budget_s)


def figures(
    timers: Mapping[str, Timer],
    sizes: Sequence[Sizes],
    cores: int,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Machine:
    """The machine that ``timers`` (see ``_timers``) measure. What cannot be true takes half of ``budget_s`` more."""
    settle(timers.values(), clock, budget_s)
    machine = _machine(timers, sizes, cores)
    failed = failed_checks(machine)
    wrong = {name for check in failed for f in (check.figure, check.contradicts) for name in _behind(f, cores)}
    if wrong:
        again = [timers[name] for name in sorted(wrong)]
        for timer in again:
            timer.forget()
        settle(again, clock, budget_s / 2)
        machine = _machine(timers, sizes, cores)
    return machine


def _behind(figure: str, cores: int) -> Iterator[str]:
    """Names of the timers that a figure of the model is made of."""
    match figure.split(" "):
        case [""]:
            return
        case ["function", name]:
            yield from (name, "neg")
        case ["matrix", _]:
            yield figure
        case ["panels", _, _]:
            yield from ("evict", figure)
        case [level, "scattered_ns"]:
            yield from (f"scattered {level}", f"in order {level}")
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
        registers=vector_registers(),
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
        matrix_ns=tuple((name, 1 / timers[f"matrix {name}"].rate) for name in EXTENSIONS if f"matrix {name}" in timers),
        panels_gbs=tuple(
            (rows, ahead, timers[f"panels {rows} {ahead}"].rate)
            for rows, ahead in itertools.product(probe_code.panel_sizes(), _PREFETCH_BYTES)
        ),
    )


def _level(timers: Mapping[str, Timer], name: str, size: int, shared: bool, cores: int) -> Level:
    read, copy = (timers[f"{kind} {name} 1"].rate for kind in _STREAMS)
    # together never slower than one alone: the others could be idle
    read_all = max(timers[f"read {name} {cores}"].rate, read)
    copy_all = max(timers[f"copy {name} {cores}"].rate, copy)
    scattered = 0.0
    if f"scattered {name}" in timers:
        lines = [1 / timers[f"{order} {name}"].rate for order in ("scattered", "in order")]
        scattered = max(round(2 * (lines[0] - lines[1])) / 2, _LEAST_SCATTERED)  # in halves, for what is just missed
    return Level(name, size, shared, read, copy, read_all, copy_all, *geometry(name), scattered)


def _timers(sizes: Sequence[Sizes], cores: int) -> dict[str, Timer]:
    """One timer for each thing that is timed."""
    with ThreadPoolExecutor(1) as beside:  # first touches take as long as LLVM does, and neither holds the interpreter
        touched = beside.submit(_streamed, sizes)
        loops, chains, functions = probe_code.loops(), fma_chains(), _function_timers()
        memory = touched.result()
    return {
        "fma4": _rounds_timer(loops["fma4"], "f4", 5_000, 2.0 * native_lanes(32) * chains, chains),
        "fma8": _rounds_timer(loops["fma8"], "f8", 5_000, 2.0 * native_lanes(64) * chains, chains),
        "chain4": _rounds_timer(loops["chain4"], "f4", 10_000, 1.0),
        "broadcast": _rounds_timer(loops["broadcast"], "i4", 5_000, probe_code.BROADCASTS, probe_code.BROADCASTS),
        "call": _call_timer(loops),
        "one step": _empty_timer(loops, 1, 1),
        "steps": _empty_timer(loops, _STEPS, 1),
        "one share": _share_timer(loops, 1, 1),
        "shares": _share_timer(loops, _SHARED_STEPS, 1),
        "launch": _share_timer(loops, 1, cores),
        "barriers": _share_timer(loops, _SHARED_STEPS, cores),
        "rested step": _empty_timer(loops, 1, 1, Rested),
        "rested launch": _empty_timer(loops, 1, cores, Rested),
        **_stream_timers(loops, sizes, cores, memory),
        **_line_timers(loops["write"], sizes, memory),
        **_panel_timers(sizes, memory),
        **functions,
        **_matrix_timers(),
    }


def _program(steps: Sequence[int], slots: Sequence[np.ndarray], threads: int = 1) -> Program:
    """A program whose steps (functions) all see the same constant arrays."""
    table: list[Slot] = [Constant(array) for array in slots]
    numbers = tuple(range(len(table)))
    return Program([Step(function, numbers) for function in steps], table, [], 0, threads)


def _rounds_timer(loop: int, dtype: str, rounds: int, work: float, vectors: int = 1) -> Timer:
    """Rounds of a loop on one thread, each of so much work, which leaves so many vectors."""
    element = np.dtype(dtype)
    x = np.full(1024 + probe_code.BROADCASTS, 0.5).astype(element)
    out = np.zeros(native_lanes(8 * element.itemsize) * vectors, element)
    program = _program([loop], (x, out, np.array([rounds, 0], np.int64)))
    return Timer(lambda: program(()), work * rounds)


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


def _streamed(sizes: Sequence[Sizes]) -> np.ndarray:
    """Memory for the largest stream, and a block for each half of it, on pages that have been touched."""
    largest = max(max(one, everyone) for *_, one, everyone in sizes)
    memory = aligned_bytes(2 * _half(largest))
    memory.fill(probe_code.FILL_BYTE)
    return memory


def _half(nbytes: int) -> int:
    """A multiple of huge pages, with room for half so many bytes and a block more."""
    return -(-(nbytes // 2 + probe_code.block_bytes()) // _HALVES) * _HALVES


def _stream_timers(loops: dict[str, int], sizes: Sequence[Sizes], cores: int, memory: np.ndarray) -> dict[str, Timer]:
    """Reading and copying at every level, with one thread and with all; a copy reads half the bytes and writes half."""
    block = probe_code.block_bytes()
    source, target = memory, memory[memory.size // 2 :]
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


def _line_timers(loop: int, sizes: Sequence[Sizes], memory: np.ndarray) -> dict[str, Timer]:
    """Writing lines far from one another, and the same number of them in order, on one thread, at levels beyond those
    of a core alone; work is in lines, so that rates are lines a nanosecond."""
    timers: dict[str, Timer] = {}
    columns = _APART // LINE // 2
    for name, _, shared, nbytes, _ in sizes:
        rows = nbytes // _APART
        if not shared or rows < _ROWS:
            continue
        lines = rows * columns
        passes = max(1, int(_SAMPLE_S * 2e9 / lines))  # the first finds the lines where other timers left them
        for order, shape in (("scattered", (rows, _APART, columns)), ("in order", (lines, LINE, 1))):
            program = _program([loop], (memory, memory, np.array([*shape, passes], np.int64)))
            timers[f"{order} {name}"] = Timer(functools.partial(program, ()), float(lines * passes))
    return timers


def _panel_timers(sizes: Sequence[Sizes], memory: np.ndarray) -> dict[str, Timer]:
    """Register tiles that read panels from memory, each run the next part of it, so that none is in a cache.

    The first timer evicts what others wrote: the lines' way back to memory would be timed.
    """
    part = sizes[-1][3] // _PARTS // LINE * LINE
    starts = itertools.cycle(range(0, part * _PARTS, part))
    loops, timers = probe_code.panels(), dict[str, Timer]()

    def timer(rows: int, ahead: int, parts: int) -> Timer:
        nbytes = 4 * native_lanes(32) * probe_code.panel_sizes()[rows]
        first = np.ones(rows * (probe_code.PANEL_APART + nbytes) // 4, np.float32)
        parameters = np.array([part // nbytes, 0, ahead], np.int64)
        program = _program([loops[f"{'prefetch' if ahead else 'plain'}{rows}"]], (first, memory, parameters))

        def run() -> None:
            for _ in range(parts):
                parameters[1] = next(starts)
                program(())

        return Varying(run, float(part // nbytes * nbytes))

    few, *_ = probe_code.panel_sizes()
    timers["evict"] = timer(few, 0, _EVICTING)
    for rows, ahead in itertools.product(probe_code.panel_sizes(), _PREFETCH_BYTES):
        timers[f"panels {rows} {ahead}"] = timer(rows, ahead, 1)
    return timers


def _matrix_timers() -> dict[str, Timer]:
    """Products of registers of two axes, of each element type for which the processor has them. Work is in products.

    Only where sums are seen to be right: nothing else checks these instructions on a processor that is new.
    """
    timers: dict[str, Timer] = {}
    for element, extension in EXTENSIONS.items():
        if extension in cpu_features():
            factors, rounds = _matrix_factors(element), np.array([_PRODUCTS, 0], np.int64)
            sums = np.zeros((probe_code.MATRIX_SUMS, MATRIX_ROWS, WIDTH // 4), factors[1].dtype)
            program = _program([probe_code.matrix(element)], (factors[0], sums, rounds))
            program(())
            if (sums == _PRODUCTS * factors[1]).all():
                timers[f"matrix {element}"] = Timer(
                    functools.partial(program, ()), float(probe_code.MATRIX_SUMS * _PRODUCTS)
                )
            else:
                _log.warning("%s computes wrong sums of %s on this processor: it is not used", extension, element)
    return timers


def _matrix_factors(element: str) -> tuple[np.ndarray, np.ndarray]:
    """Two factors in memory, as registers take them, and their product: all bytes, and floats whose sums are exact."""
    floats = element.startswith("bf")
    limits = [(-2, 2) if floats else (np.iinfo(dtype).min, np.iinfo(dtype).max) for dtype in element.split("·")]
    numbers, depth = np.random.default_rng(0).integers, STEPS * (2 if floats else 4)
    shapes = ((MATRIX_ROWS, depth), (depth, WIDTH // 4))
    a, b = (numbers(*ends, shape, endpoint=True) for ends, shape in zip(limits, shapes, strict=True))
    both = np.concatenate([a.ravel(), b.reshape(STEPS, -1, WIDTH // 4).swapaxes(1, 2).ravel()])
    stored = (both.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if floats else both.astype(np.uint8)
    return stored, (a @ b).astype(np.float32 if floats else np.int32)


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

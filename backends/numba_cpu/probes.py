"""Micro-benchmarks behind the machine model: FMA peak, bandwidths, costs of calls and barriers, functions.

The loops are written in LLVM IR, so that what runs is what is meant to be measured. Every figure is the best
of several short runs: other programs can only make a machine look slower.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from eqsat.cache import kernel_store
from eqsat.cost.machine import Level, Machine, caches, cpu_name, usable_cores
from eqsat_backends.numba_cpu.buffers import aligned_bytes
from eqsat_backends.numba_cpu.driver import Argument, ArraySpec, Constant, Program, Slot, Step
from eqsat_backends.numba_cpu.jit import compile_module
from eqsat_backends.numba_cpu.lanes import cpu_features, native_lanes
from eqsat_backends.numba_cpu.objects import CodeObjectError, emit, host, load_object, optimize, target_machine

FUNCTIONS = ("div", "sqrt", "exp", "log", "tanh", "erf", "sigmoid", "sin", "pow")
BUDGET_S = 2.0
_SAMPLE_S = 0.001
_LEAST_ROUNDS = 5
_STEPS = 200
_ELEMENTS = 2048
_STREAMS = ("read", "copy")


def measure(budget_s: float = BUDGET_S) -> Machine:
    """Measure this computer for ``budget_s`` seconds and a little more, on all cores for part of it.

    All figures are sampled in turn, round after round, so that each has its chance of a quiet moment.
    """
    kernels = _kernels()
    cores = usable_cores()
    sizes = _level_sizes(cores)
    timers = {
        "fma4": _fma_timer(kernels, 4),
        "fma8": _fma_timer(kernels, 8),
        "call": _call_timer(kernels),
        "one step": _empty_timer(kernels, 1, 1),
        "steps": _empty_timer(kernels, _STEPS, 1),
        "launch": _empty_timer(kernels, 1, cores),
        "barriers": _empty_timer(kernels, _STEPS, cores),
        **_stream_timers(kernels, sizes, cores),
        **_function_timers(),
    }
    deadline = time.perf_counter() + budget_s
    rounds = 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < deadline:
        for timer in timers.values():
            timer.sample()
        rounds += 1

    def spread(longer: str, shorter: str, times: int) -> float:
        # noise may make a tiny difference negative
        return max(1e6 * (timers[longer].best - timers[shorter].best) / times, 1e-4)

    step_us = spread("steps", "one step", _STEPS - 1)
    return Machine(
        cpu=cpu_name(),
        cores=cores,
        vector_bytes=4 * native_lanes(32),
        registers=_registers(),
        fma_gflops=(("float32", timers["fma4"].rate), ("float64", timers["fma8"].rate)),
        levels=tuple(_level(timers, name, size, shared, cores) for name, size, shared, *_ in sizes),
        call_us=1e6 * timers["call"].best,
        step_us=step_us,
        launch_us=spread("launch", "one step", 1) if cores > 1 else step_us,
        barrier_us=spread("barriers", "launch", _STEPS - 1) if cores > 1 else step_us,
        function_ns=tuple(
            (name, max(1e9 * (timers[name].best - timers["neg"].best) / _ELEMENTS, 1e-3)) for name in FUNCTIONS
        ),
    )


def _level(timers: Mapping[str, _Timer], name: str, size: int, shared: bool, cores: int) -> Level:
    one = [timers[f"{kind} {name} 1"].rate for kind in _STREAMS]
    # together never slower than one alone: the others could be idle
    everyone = [max(timers[f"{kind} {name} {cores}"].rate, rate) for kind, rate in zip(_STREAMS, one, strict=True)]
    return Level(name, size, shared, *one, *everyone)


class _Timer:
    """Shortest time in seconds of one ``run()``, over samples of some milliseconds; ``work`` is what a run does."""

    def __init__(self, run: Callable[[], Any], work: float = 0.0) -> None:
        self.run, self.work = run, work
        run()
        begin = time.perf_counter()
        run()
        self.best = max(time.perf_counter() - begin, 1e-8)
        self.repeats = max(1, int(_SAMPLE_S / self.best))

    def sample(self) -> None:
        run = self.run
        begin = time.perf_counter()
        for _ in range(self.repeats):
            run()
        self.best = min(self.best, (time.perf_counter() - begin) / self.repeats)

    @property
    def rate(self) -> float:
        """Work done, in 1e9 a second."""
        return self.work / self.best / 1e9


def _registers() -> int:
    return 32 if "avx512f" in cpu_features() or host().triple.startswith(("aarch64", "arm64")) else 16


# The loops. Arguments of each: a table [array 0, array 1, parameters]; parameters are int64.


def _kernels() -> dict[str, int]:
    text = "\n".join(
        (
            f'target triple = "{host().triple}"',
            _EMPTY,
            _fma_ir("fma4", "float", 4),
            _fma_ir("fma8", "double", 8),
            _stream_ir("read", copy=False),
            _stream_ir("copy", copy=True),
        )
    )
    names = ("empty", "fma4", "fma8", "read", "copy")
    key = hashlib.blake2b(f"{host().key}\0{text}".encode(), digest_size=20).hexdigest()
    store = kernel_store()
    data = store.get(key)
    if data is not None:
        try:
            return load_object(data)
        except CodeObjectError:
            data = None  # foreign or damaged: made anew
    import llvmlite.binding as llvm

    machine = target_machine()
    module = llvm.parse_assembly(text)
    module.verify()
    optimize(module, machine, loop_vectorize=False)
    data = emit(module, machine, {name: f"eqsat_probe_{name}" for name in names})
    store.put(key, data)
    return load_object(data)


_EMPTY = """
define void @eqsat_probe_empty(i64 %args, i64 %tid, i64 %nt) {
  ret void
}"""

_HEAD = """
define void @eqsat_probe_{name}(i64 %args, i64 %tid, i64 %nt) {{
entry:
  %table = inttoptr i64 %args to ptr
  %a = load ptr, ptr %table
  %b.at = getelementptr i64, ptr %table, i64 1
  %b = load ptr, ptr %b.at
  %parameters.at = getelementptr i64, ptr %table, i64 2
  %parameters = load ptr, ptr %parameters.at
  %count = load i64, ptr %parameters
  %second.at = getelementptr i64, ptr %parameters, i64 1
  %second = load i64, ptr %second.at
"""


def _fma_ir(name: str, scalar: str, itemsize: int) -> str:
    """``count`` rounds of independent fused multiply-adds, enough of them to fill the pipelines."""
    lanes, chains = native_lanes(8 * itemsize), _chains()
    vector = f"<{lanes} x {scalar}>"
    function = f"@llvm.fma.v{lanes}f{8 * itemsize}"
    lines = [_HEAD.format(name=name)]
    lines.append(f"  %x = load {vector}, ptr %a, align {itemsize}")
    lines.append("  br label %loop\nloop:\n  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]")
    for c in range(chains):
        lines.append(f"  %c{c} = phi {vector} [ {_splat(lanes, scalar, c)}, %entry ], [ %n{c}, %loop ]")
    for c in range(chains):
        lines.append(f"  %n{c} = call {vector} {function}({vector} %c{c}, {vector} %x, {vector} %x)")
    lines.append("  %i.next = add i64 %i, 1\n  %more = icmp ult i64 %i.next, %count")
    lines.append("  br i1 %more, label %loop, label %done\ndone:")
    for c in range(chains):
        lines.append(f"  %p{c} = getelementptr {vector}, ptr %b, i64 {c}")
        lines.append(f"  store {vector} %n{c}, ptr %p{c}, align {itemsize}")
    lines.append(f"  ret void\n}}\ndeclare {vector} {function}({vector}, {vector}, {vector})")
    return "\n".join(lines)


def _chains() -> int:
    """Independent sums that keep the pipelines full, and fit in the registers."""
    return 24 if _registers() == 32 else 12


def _splat(lanes: int, scalar: str, value: int) -> str:
    return "<" + ", ".join([f"{scalar} {float(value):.1f}"] * lanes) + ">"


def _stream_ir(name: str, copy: bool) -> str:
    """Read, or copy, thread tid's slice of ``count`` blocks of eight vectors, ``second`` times over."""
    lanes = native_lanes(32)
    vector = f"<{lanes} x i32>"
    lines = [_HEAD.format(name=name)]
    lines.append("""  %lo.0 = mul i64 %count, %tid
  %lo = udiv i64 %lo.0, %nt
  %tid.1 = add i64 %tid, 1
  %hi.0 = mul i64 %count, %tid.1
  %hi = udiv i64 %hi.0, %nt
  %none = icmp uge i64 %lo, %hi
  br i1 %none, label %end, label %pass
pass:
  %r = phi i64 [ 0, %entry ], [ %r.next, %pass.end ]""")
    lines.extend(f"  %s{v} = phi {vector} [ zeroinitializer, %entry ], [ %n{v}, %pass.end ]" for v in range(8))
    lines.append("  br label %block\nblock:\n  %i = phi i64 [ %lo, %pass ], [ %i.next, %block ]")
    lines.extend(f"  %t{v} = phi {vector} [ %s{v}, %pass ], [ %n{v}, %block ]" for v in range(8))
    lines.append("  %first = mul i64 %i, 8")
    for v in range(8):
        lines.append(f"  %k{v} = add i64 %first, {v}\n  %p{v} = getelementptr {vector}, ptr %a, i64 %k{v}")
        lines.append(f"  %x{v} = load {vector}, ptr %p{v}, align 4")
        lines.append(f"  %n{v} = xor {vector} %t{v}, %x{v}")
        if copy:
            lines.append(f"  %q{v} = getelementptr {vector}, ptr %b, i64 %k{v}")
            lines.append(f"  store {vector} %x{v}, ptr %q{v}, align 4")
    lines.append("""  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %hi
  br i1 %more, label %block, label %pass.end
pass.end:
  %r.next = add i64 %r, 1
  call void asm sideeffect "", "~{memory}"()
  %again = icmp ult i64 %r.next, %second
  br i1 %again, label %pass, label %done
done:""")
    # The sums go to the parameter block, a vector per thread behind its first line, so that no read is dropped
    if not copy:
        for v in range(7):
            lines.append(f"  %u{v} = or {vector} %{'n0' if v == 0 else f'u{v - 1}'}, %n{v + 1}")
        lines.append("  %slot = add i64 %tid, 1\n  %sum = getelementptr [64 x i8], ptr %parameters, i64 %slot")
        lines.append(f"  store {vector} %u6, ptr %sum, align 4")
    lines.append("  br label %end\nend:\n  ret void\n}")
    return "\n".join(lines)


def _program(steps: Sequence[tuple[int, bool]], slots: Sequence[np.ndarray], threads: int = 1) -> Program:
    """A program whose steps (function, barrier) all see the same constant arrays."""
    table: list[Slot] = [Constant(array) for array in slots]
    numbers = tuple(range(len(table)))
    return Program([Step(function, numbers, barrier) for function, barrier in steps], table, [], 0, threads)


def _fma_timer(kernels: dict[str, int], itemsize: int) -> _Timer:
    lanes, rounds = native_lanes(8 * itemsize), 5_000
    dtype = np.dtype(f"f{itemsize}")
    x, out = np.full(lanes, 0.5, dtype), np.zeros(lanes * _chains(), dtype)
    program = _program([(kernels[f"fma{itemsize}"], False)], (x, out, np.array([rounds, 0], np.int64)))
    return _Timer(lambda: program(()), 2.0 * lanes * _chains() * rounds)


def _level_sizes(cores: int) -> list[tuple[str, int, bool, int, int]]:
    """(name, bytes, shared, bytes to touch with one thread, with all): well inside a level, well outside the last."""
    rows: list[tuple[str, int, bool, int, int]] = []
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


def _stream_timers(
    kernels: dict[str, int], sizes: Sequence[tuple[str, int, bool, int, int]], cores: int
) -> dict[str, _Timer]:
    """Reading and copying at every level, with one thread and with all. A copy touches half the bytes in each array."""
    block = 8 * 4 * native_lanes(32)
    largest = max(max(one, everyone) for *_, one, everyone in sizes)
    source, target = aligned_bytes(largest + block), aligned_bytes(largest // 2 + block)
    source[:] = target[:] = 1
    timers: dict[str, _Timer] = {}
    for name, _, _, one, everyone in sizes:
        for threads, total in ((1, one), (cores, everyone)):
            for kind in _STREAMS:
                touched = 2 if kind == "copy" else 1
                blocks = max(threads, total // touched // block)
                passes = max(1, int(_SAMPLE_S * 50e9 / (blocks * block * touched)))
                # a read leaves a vector a thread behind the parameters
                parameters = np.zeros(8 * (threads + 1) + 8, np.int64)
                parameters[:2] = blocks, passes
                program = _program([(kernels[kind], False)], (source, target, parameters), threads)
                moved = float(blocks * block * passes * touched)
                timers[f"{kind} {name} {threads}"] = _Timer(functools.partial(program, (), threads), moved)
    return timers


def _call_timer(kernels: dict[str, int]) -> _Timer:
    arrays = tuple(np.zeros(16, np.float32) for _ in range(3))
    specs = [ArraySpec((16,), np.dtype(np.float32))] * 3
    program = Program([Step(kernels["empty"], (0, 1, 2))], [Argument(i) for i in range(3)], specs)
    return _Timer(lambda: program(arrays))


def _empty_timer(kernels: dict[str, int], steps: int, threads: int) -> _Timer:
    program = _program([(kernels["empty"], True)] * steps, [np.zeros(8)] * 4, threads)
    return _Timer(lambda: program((), threads))


_FUNCTION_SOURCE = """\
from eqsat_backends.numba_cpu.simd import load_{T}, store, word, {functions}


{phases}"""

_PHASE = """\
def run_{name}(args, tid, nt):
    x = word(args, 0)
    y = word(args, 1)
    for i in range({vectors}):
        a = load_{T}(x + i * {step})
        store(y + i * {step}, {call})
"""


def _function_timers() -> dict[str, _Timer]:
    """Elementwise functions over 8 KB of operands, and ``neg``: the cost of the loop around them."""
    lanes = native_lanes(32)
    names = ("neg", *FUNCTIONS)
    fields = {"T": f"f32x{lanes}", "step": 4 * lanes, "vectors": _ELEMENTS // lanes}
    calls = {name: f"{name}(a, a)" if name in ("div", "pow") else f"{name}(a)" for name in names}
    phases = "\n\n".join(_PHASE.format(name=name, call=calls[name], **fields) for name in names)
    source = _FUNCTION_SOURCE.format(T=fields["T"], functions=", ".join(names), phases=phases)
    addresses = compile_module(source, tuple(f"run_{name}" for name in names))
    x = np.linspace(0.1, 4.0, _ELEMENTS, dtype=np.float32)
    y = np.empty_like(x)
    programs = {name: _program([(addresses[f"run_{name}"], False)], (x, y)) for name in names}
    return {name: _Timer(functools.partial(program, ())) for name, program in programs.items()}

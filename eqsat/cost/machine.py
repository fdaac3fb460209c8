"""The machine model: what this computer can do, measured once and stored. The one source of hardware figures.

Given a :class:`Machine`, everything downstream is deterministic. It comes, in this order, from the file named
by the environment variable ``EQSAT_MACHINE`` (if it was measured on this processor), from the cache directory, or from
a measurement of a second or two made by a backend: a backend package that can measure has a submodule ``probes`` with
``measure() -> Machine``.

Units: GFLOP/s and GB/s are 1e9 per second, times are microseconds, functions' costs nanoseconds an element.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import logging
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eqsat.cache import cache_root, machine_store
from eqsat.cost.calibration import LINE, WAKE_US
from eqsat.cost.sanity import failed_checks, repaired
from eqsat.forks import IMPORTING
from eqsat.installed import entry_points

ENVIRONMENT_VARIABLE = "EQSAT_MACHINE"
VECTOR_VARIABLE = "EQSAT_VECTOR_BITS"
"""Names the width that vectors are held to: what a processor with wider ones would do with these."""
VECTOR_BITS = (128, 256, 512)
FORMAT = 5
READABLE = (1, 2, 3, 4, 5)
"""Earlier formats lack fields that have defaults; a stored model of them is measured anew."""

BUSY = 0.85
"""The part of a core that a measurement has at least where no other program takes from it: its loops never wait."""
LEAST_SECONDS = 0.2
"""Shorter ones tell nothing of that."""

_log = logging.getLogger(__name__)


class MachineError(RuntimeError):
    """No machine model: the file is not one, or nothing here can measure."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the memory hierarchy, as one core sees it.

    ``nbytes``: capacity (of the whole cache when ``shared``); 0 for memory, which is never full.
    ``read_gbs``, ``copy_gbs``: bandwidth of one thread reading, and copying (bytes read plus bytes written).
    ``read_gbs_all``, ``copy_gbs_all``: of all cores at once, in sum.
    ``line``: bytes of a cache line. ``sets``, ``ways``: how it is divided, 0 where that is unknown.
    ``scattered_ns``: what a line that is written takes longer where the next one is far away; 0 where it was not
    measured.
    """

    name: str
    nbytes: int
    shared: bool
    read_gbs: float
    copy_gbs: float
    read_gbs_all: float
    copy_gbs_all: float
    line: int = LINE
    sets: int = 0
    ways: int = 0
    scattered_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured figures of one computer.

    Attributes:
        cpu: the processor's name.
        cores: physical cores this process may use; also the default number of threads.
        vector_bytes: width of a vector register.
        registers: vector registers.
        fma_gflops: (dtype name, peak of fused multiply-adds of one core; two flops each).
        levels: L1, L2, L3 where there is one, then memory.
        call_us: a call of a plan from Python with three arrays, without its kernels.
        step_us: one more kernel in a plan, on one thread.
        launch_us: what a call on all cores takes longer than one thread's share of it, in a loop of such calls.
        barrier_us: what each further kernel takes longer that all cores share.
        function_ns: (function name, one element in float32 on one core, operands in L1).
        fma_latency_ns: from a float32 multiply-add to one that needs its result; 0 where it was not measured.
        broadcast_gs: 1e9 numbers a second that one core copies from L1 to all lanes of a register; 0 likewise.
        wake_us: what a small call on all cores takes longer than one thread alone, where the others sleep, as they
            do a millisecond after the last one.
        matrix_ns: (element type, a product of two registers of two axes on one core, operands in L1), of those element
            types for which the processor has such registers and they were seen to compute the right sums.
        panels_gbs: (rows, bytes, GB/s at which a register tile of so many rows reads panels of a second factor from
            memory on one core, each line asked for so many bytes ahead; 0 bytes: left to the hardware).
    """

    cpu: str
    cores: int
    vector_bytes: int
    registers: int
    fma_gflops: tuple[tuple[str, float], ...]
    levels: tuple[Level, ...]
    call_us: float
    step_us: float
    launch_us: float
    barrier_us: float
    function_ns: tuple[tuple[str, float], ...] = ()
    fma_latency_ns: float = 0.0
    broadcast_gs: float = 0.0
    wake_us: float = WAKE_US
    matrix_ns: tuple[tuple[str, float], ...] = ()
    panels_gbs: tuple[tuple[int, int, float], ...] = ()

    def peak_gflops(self, dtype: str, threads: int = 1) -> float:
        """FMA peak of ``threads`` cores for ``"float32"`` or ``"float64"``.

        Raises:
            KeyError: the dtype was not measured.
        """
        for name, peak in self.fma_gflops:
            if name == dtype:
                return peak * min(threads, self.cores)
        raise KeyError(f"no FMA peak for {dtype}; measured: {', '.join(name for name, _ in self.fma_gflops)}")

    def lanes(self, itemsize: int) -> int:
        """Elements of ``itemsize`` bytes in a vector register."""
        return self.vector_bytes // itemsize

    def level(self, name: str) -> Level:
        """The level called ``name``: "L1", "L2", "L3" or "memory".

        Raises:
            KeyError: there is no such level.
        """
        for level in self.levels:
            if level.name == name:
                return level
        raise KeyError(f"no level {name}; this machine has {', '.join(level.name for level in self.levels)}")

    def level_of(self, nbytes: int, threads: int = 1) -> Level:
        """The first level that holds ``nbytes`` touched evenly by ``threads`` threads."""
        for level in self.levels:
            if level.nbytes >= (nbytes if level.shared else nbytes / max(1, threads)):
                return level
        return self.levels[-1]

    def to_json(self) -> str:
        """A JSON document that :meth:`from_json` reads back to an equal model."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str, formats: tuple[int, ...] = READABLE) -> Machine:
        """The model in a document written by :meth:`to_json`, of one of these formats.

        Raises:
            MachineError: the document is something else, of another format, or has impossible figures.
        """
        try:
            document = json.loads(text)
            if document.pop("format") not in formats:
                raise MachineError("machine model of another version of eqsat; run `eqsat machine --remeasure`")
            document.setdefault("matrix_ns", ())
            panels = tuple((rows, ahead, rate) for rows, ahead, rate in document.pop("panels_gbs", ()))
            levels = tuple(Level(**level) for level in document.pop("levels"))
            pairs: dict[str, Any] = {k: tuple((str(n), float(v)) for n, v in document.pop(k)) for k in _PAIRS}
            machine = Machine(levels=levels, panels_gbs=panels, **pairs, **document)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise MachineError(f"not a machine model: {error!r}") from error
        machine._check()
        return machine

    def _check(self) -> None:
        figures: list[Any] = [self.cores, self.vector_bytes, self.registers, self.call_us, self.step_us]
        figures += [
            self.launch_us,
            self.wake_us,
            self.barrier_us,
            *(value for _, value in self.fma_gflops + self.function_ns + self.matrix_ns),
            *(rate for *_, rate in self.panels_gbs),
        ]
        sizes = [(rows, ahead) for rows, ahead, _ in self.panels_gbs]
        if not all(_is_count(m, 1) and _is_count(ahead, 0) for m, ahead in sizes) or len({*sizes}) < len(sizes):
            raise MachineError(f"machine model with impossible panels: {self.panels_gbs!r}")
        for level in self.levels:
            figures += [level.read_gbs, level.copy_gbs, level.read_gbs_all, level.copy_gbs_all, level.line]
            figures += [level.scattered_ns] if level.scattered_ns != 0 else []
            if not all(_is_count(n, 0, math.inf) for n in (level.line, level.sets, level.ways)):
                raise MachineError(f"machine model with an impossible cache: {level!r}")
        if not self.levels or not self.fma_gflops:
            raise MachineError("machine model without memory levels or FMA peaks")
        figures += [figure for figure in (self.fma_latency_ns, self.broadcast_gs) if figure != 0]
        for figure in figures:
            if isinstance(figure, bool) or not isinstance(figure, int | float) or not 0 < figure < sys.float_info.max:
                raise MachineError(f"machine model with an impossible figure: {figure!r}")


MOST_AHEAD = 1 << 20
"""No tile asks so many bytes ahead, nor has so many rows."""


def _is_count(value: object, least: int, most: float = MOST_AHEAD) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_PAIRS = ("fma_gflops", "function_ns", "matrix_ns")
Probe = Callable[[], Machine]


def load(probe: Probe | None = None) -> Machine:
    """The machine model in force: from ``EQSAT_MACHINE``, the cache directory, or measured now and stored.

    A model of another processor is not used: a ``UserWarning`` names both.

    Raises:
        MachineError: ``EQSAT_MACHINE`` names no machine model, or nothing installed can measure.
    """
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        machine = _from_file(chosen)
        if machine.cpu == cpu_name():
            return held(machine, vector_limit())
        _foreign(chosen, machine.cpu)
    return _stored_or_measured(probe)


@functools.cache
def _foreign(chosen: str, cpu: str) -> None:
    """Tell, once a process, that a model is not used."""
    warnings.warn(
        f"{ENVIRONMENT_VARIABLE}={chosen} is a model of {cpu!r}, and this is {cpu_name()!r}: it is not used, this "
        "machine's own is; `eqsat machine --json` writes it",
        UserWarning,
        stacklevel=3,
    )


@functools.cache
def vector_limit() -> int:
    """Bits that vector registers are held to by ``EQSAT_VECTOR_BITS``, which a process reads once; 512 where unset.

    Raises:
        MachineError: it is set to something else than 128, 256 (AVX2) or 512.
    """
    given = os.environ.get(VECTOR_VARIABLE) or str(VECTOR_BITS[-1])
    if given not in map(str, VECTOR_BITS):
        raise MachineError(f"{VECTOR_VARIABLE} must be one of {', '.join(map(str, VECTOR_BITS))}, not {given!r}")
    return int(given)


def held(machine: Machine, bits: int) -> Machine:
    """A model measured with wider vectors, as it is taken to be with registers of ``bits``: its peak is in proportion.

    That is a guess (some processors split their widest vectors in two): models measured while vectors are held to that
    width know better, and come through unchanged.
    """
    width = bits // 8
    if machine.vector_bytes <= width:
        return machine
    share = width / machine.vector_bytes
    return dataclasses.replace(
        machine,
        vector_bytes=width,
        registers=min(machine.registers, 16),  # the others came with the wider ones
        fma_gflops=tuple((name, peak * share) for name, peak in machine.fma_gflops),
        panels_gbs=(),  # measured of tiles with wider ones
    )


@functools.lru_cache(maxsize=8)
def _from_file(chosen: str) -> Machine:
    try:
        text = Path(chosen).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise MachineError(f"{ENVIRONMENT_VARIABLE}={chosen} cannot be read: {error}") from error
    try:
        return Machine.from_json(text)
    except MachineError as error:
        raise MachineError(f"{ENVIRONMENT_VARIABLE}={chosen}: {error}") from error


_in_process: dict[tuple[Path, str], Machine] = {}


def _stored_or_measured(probe: Probe | None) -> Machine:
    key = (cache_root(), document_key())
    if key not in _in_process:
        _in_process[key] = stored() or remeasure(probe)
    return _in_process[key]


def stored() -> Machine | None:
    """The model in the cache directory; None where there is none that can be used."""
    data = machine_store().read("machine", document_key())
    if data is None:
        return None
    try:
        machine = Machine.from_json(data.decode(errors="replace"), (FORMAT,))
    except MachineError as error:
        _log.info("the stored machine model is not usable (%s); measuring again", error)
        return None
    found = failed_checks(machine)
    if found:
        _log.info("the stored machine model cannot be right: %s; measuring again", "; ".join(map(str, found)))
        return None
    return machine


def remeasure(probe: Probe | None = None) -> Machine:
    """Measure now (a second or two), store the model, and use it from now on in this process.

    Figures that cannot be true (see ``sanity``) are replaced by conservative ones; no such figure is ever stored.
    That, and a measurement that other programs took a good part of, is told in a ``UserWarning``: figures that are
    low all alike contradict nothing.

    Raises:
        MachineError: nothing installed can measure.
    """
    _log.info("measuring the machine")
    wall, own = time.perf_counter(), time.process_time()
    machine = (probe or find_probe())()
    had = (time.process_time() - own) / max(1e-9, time.perf_counter() - wall)
    machine._check()
    found = failed_checks(machine)
    told = [f"{'; '.join(map(str, found))}; other values stand in"] if found else []
    if had < BUSY and time.perf_counter() - wall > LEAST_SECONDS:
        told.append(f"it had {had:.0%} of a core's time while it was measured")
    if told:
        warnings.warn(
            f"the machine could not be measured well, it may be busy: {'. '.join(told)}. Programs are chosen by these "
            "figures: run `eqsat machine --remeasure` when it is idle",
            UserWarning,
            stacklevel=2,
        )
        machine = repaired(machine)
    machine_store().write("machine", document_key(), machine.to_json().encode(), name=machine.cpu)
    _in_process[cache_root(), document_key()] = machine
    return machine


def find_probe() -> Probe:
    """``measure`` of the first backend package (by name) that has a submodule ``probes``.

    Raises:
        MachineError: there is none.
    """
    failures = []
    for entry in entry_points("eqsat.backends"):
        try:
            with IMPORTING:
                module = importlib.import_module(entry.module + ".probes")
        except ImportError as error:
            failures.append(f"{entry.name}: {error}")
            continue
        measure: Probe = module.measure
        return measure
    raise MachineError(
        "no installed backend can measure this machine "
        f"({'; '.join(failures) or 'no backends are installed'}); "
        f"set {ENVIRONMENT_VARIABLE} to a machine model in JSON"
    )


@functools.cache
def document_key() -> str:
    """What this computer's model is kept under: it follows the processor, the core count and the width of vectors."""
    limit = vector_limit()
    width = () if limit == VECTOR_BITS[-1] else (str(limit),)
    identity = "\0".join((platform.machine(), cpu_name(), cpu_flags(), str(usable_cores()), *width))
    return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


@functools.cache
def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _cpuinfo_field(*names: str) -> str:
    for line in _cpuinfo().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in names:
            return value.strip()
    return ""


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    return _cpuinfo_field("model name") or platform.processor() or platform.machine()


def cpu_flags() -> str:
    """The names of its instruction-set extensions, as the system gives them."""
    return _cpuinfo_field("flags", "Features")


@functools.cache
def usable_cores() -> int:
    """Physical cores this process may run on: its affinity mask without SMT siblings, within its CPU quota."""
    logical = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_read(f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list") or str(n) for n in logical}
    cores = len(siblings)
    quota, _, period = (_read("/sys/fs/cgroup/cpu.max") or "max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


# Where the system tells nothing: sizes that most processors have at least
_DEFAULT_CACHES = {1: (32 << 10, False), 2: (512 << 10, False), 3: (8 << 20, True)}
_WAYS_FILE = "ways_of_associativity"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@functools.cache
def caches() -> tuple[tuple[str, int, bool], ...]:
    """(name, bytes, shared between cores) of the data caches, innermost first; common sizes where unknown."""
    found = {level: (cache["size"], level >= 3) for level, cache in _system_caches().items()}
    known = found or _DEFAULT_CACHES
    return tuple((f"L{level}", *known[level]) for level in sorted(known))


@functools.cache
def geometry(name: str) -> tuple[int, int, int]:
    """(bytes of a line, sets, ways) of the data cache called ``name``; a common line and zeros where unknown."""
    found = {f"L{level}": cache for level, cache in _system_caches().items()}.get(name, {})
    return found.get("line", 0) or LINE, found.get("sets", 0), found.get("ways", 0)


def _system_caches() -> dict[int, dict[str, int]]:
    """What the system tells of each level's data cache: bytes in all, of a line, sets and ways."""
    found: dict[int, dict[str, int]] = {}
    root = Path("/sys/devices/system/cpu/cpu0/cache")
    for index in sorted(root.glob("index*")) if root.is_dir() else ():
        level, size = _read(f"{index}/level"), _read(f"{index}/size")
        if _read(f"{index}/type") in ("Data", "Unified") and level.isdigit() and size[:-1].isdigit():
            # A cache of SMT siblings of one core is private; beyond L2 sharing is the rule
            found[int(level)] = {"size": int(size[:-1]) * _UNITS.get(size[-1], 1)}
            for key, file in (("line", "coherency_line_size"), ("sets", "number_of_sets"), ("ways", _WAYS_FILE)):
                figure = _read(f"{index}/{file}")
                found[int(level)][key] = int(figure) if figure.isdigit() else 0
    return found

"""Schedules timed on the machine: the model ranks, the clock decides, and what it said is recorded."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from eqsat import cache, records
from eqsat.cost.machine import Machine
from eqsat.cost.processor import Processor, processor_of
from eqsat.cost.target import Target
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.errors import OptionError
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Nest, show
from eqsat.ir.types import TensorType
from eqsat.options import Options
from eqsat.plan.backend import backend
from eqsat.plan.plan import KernelStep, Plan, SearchReport
from eqsat.progress import Tell
from eqsat.records import Setup, TuningRecord
from eqsat.schedule import Candidate, schedule
from eqsat.scoped import Scoped
from eqsat.search import SearchOptions

log = logging.getLogger("eqsat")
REPEAT = 7
SHARE = 0.7
"""Part of the time left that tuning may take; kernels tuned are compiled already."""

_measuring = threading.Lock()
"""Held while a nest is compiled and timed: another one in the same process would disturb it."""
if hasattr(os, "register_at_fork"):  # a fork does not wait for a measurement, and its child has none
    os.register_at_fork(after_in_child=_measuring._at_fork_reinit)  # type: ignore[attr-defined]


class Future(Protocol):
    """What ``submit`` returns: as of ``concurrent.futures``."""

    def result(self, timeout: float | None = None) -> Any: ...
    def cancel(self) -> Any: ...


class Executor(Protocol):
    """As of ``concurrent.futures``, as far as tuning needs it; a ``dask.distributed.Client`` is one, too."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future: ...


_executor: Scoped[Executor | None] = Scoped(None)


@contextmanager
def tuning(executor: Executor) -> Iterator[None]:
    """Within, on this thread, compilations with ``tune=`` measure on an executor instead of in this process.

    Any object with ``submit(fn, *args) -> future`` will do: a ``ProcessPoolExecutor``, a ``dask.distributed.Client``.
    A task compiles and times one nest of one kernel; a worker process runs one at a time. Workers should be
    alone on their computer's cores: several at once disturb each other's timings. What workers on another processor
    measure is recorded for that one, and not used here. A nest whose worker fails is left out.

    Raises:
        OptionError: ``executor`` has no ``submit``.
    """
    if not callable(getattr(executor, "submit", None)):
        raise OptionError(f"an executor has a method submit(fn, *args), {type(executor).__name__} has none")
    before = _executor.set(executor)
    try:
        yield
    finally:
        _executor.reset(before)


class NotRunError(RuntimeError):
    """The backend cannot make a kernel of this nest: what would be timed is something else."""


class Measurement(NamedTuple):
    """Median seconds of a nest, and of which processor and version of the backend."""

    seconds: float
    processor: Processor
    version: str


def measure(
    group: KernelGroup, nest: Nest, machine: Machine, backend_name: str, threads: int, seconds: float, keep: bool
) -> Measurement:
    """One nest, compiled and timed in this process, while no other one is.

    ``seconds``: that it may take. ``keep``: its machine code in the cache.

    Raises:
        OutOfTime: it takes longer.
        NotRunError: no kernel can be made of it.
    """
    deadline = Deadline(seconds)
    if not _measuring.acquire(timeout=min(deadline.left, threading.TIMEOUT_MAX)):
        raise OutOfTime("tuning")
    try:
        with nullcontext() if keep else cache.bypassed():
            found = time_of(group, nest, backend_name, machine, threads, deadline)
    finally:
        _measuring.release()
    return Measurement(found, processor_of(machine), backend(backend_name).key())


@dataclass
class _Kernel:
    """What a plan's groups of the same content are: its record as kept, and what was measured now, by setup."""

    group: KernelGroup
    label: str
    content: str
    record: TuningRecord | None
    found: dict[Setup, dict[Nest, float]]


def tune(
    plan: Plan,
    options: Options,
    machine: Machine,
    search: SearchOptions,
    progress: Tell,
    deadline: Deadline = NEVER,
) -> Plan:
    """The plan with each kernel's nest the fastest that was ever measured on this processor, where one was.

    With ``options.tune``, so many of the nests that the model ranks best are timed first, one at a time, unless they
    are in the record. Bounded by kernels × nests (the model offers ``schedule.CANDIDATES`` of each), and by ``SHARE``
    of the time that is left. Kernels that come too late, or of which no measurement succeeded, keep what the model or
    the record has, and the plan's report counts them as ``untuned``. Without ``options.tune`` it costs a look into the
    cache for each different kernel.
    """
    kept = cache.plan_store().root is not None
    labels = {s.group: s.label for s in plan.steps if isinstance(s, KernelStep) and s.chosen is not None}
    if not labels or not (kept or options.tune):
        return plan
    threads = plan.report.team
    target = search.target if threads > 1 else search.target.alone
    here = records.setup_of(machine, threads, options.backend)
    contents = {group: records.content(group) for group in labels}
    kernels: dict[str, _Kernel] = {}
    for group, content in contents.items():
        if content not in kernels:
            record = records.read(records.key_of(content, here))
            kernels[content] = _Kernel(group, labels[group], content, record, {})
    if options.tune:
        different = list(kernels.values())
        plan.report.untuned = _measure(different, options, machine, search, target, here, progress, deadline)
    chosen: dict[str, Candidate] = {}
    unknown = 0
    for content, kernel in kernels.items():
        best = _settle(kernel, here, target, plan.report)
        if best is not None:
            chosen[content] = _candidate(kernel.group, *best, target, search)
            log.info("by measurement, %s: %s in %.3g ms", kernel.label, show(best[0]), best[1] * 1e3)
        elif options.tune:
            unknown += 1
    plan.report.untuned = max(plan.report.untuned, unknown)
    steps = tuple(
        replace(s, chosen=chosen.get(contents[s.group], s.chosen))
        if isinstance(s, KernelStep) and s.group in contents
        else s
        for s in plan.steps
    )
    return replace(plan, steps=steps)


def _settle(kernel: _Kernel, here: Setup, target: Target, report: SearchReport) -> tuple[Nest, float] | None:
    """Record what was measured of a kernel; the fastest nest known on this processor, and its seconds."""
    now = kernel.record
    for setup, nests in kernel.found.items():
        new = records.measured(kernel.content, setup, kernel.label, nests)
        old = kernel.record if setup == here else records.read(new.key)
        both = records.merged(old, new)
        if records.write(both) and setup == here:
            kernel.record = both
        if setup == here:
            now = both
    best = records.fastest(now, kernel.group, target) if now is not None else None
    report.records[records.key_of(kernel.content, here)] = records.mark(kernel.record, best[0] if best else None)
    return best


def _candidate(group: KernelGroup, nest: Nest, seconds: float, target: Target, search: SearchOptions) -> Candidate:
    """A nest with what was measured of it, and what the model says if it offers it."""
    for candidate in schedule(group, target, disable=search.no_loops).candidates:
        if candidate.nest == nest:
            return replace(candidate, measured=seconds)
    return Candidate(nest, seconds, (), "", measured=seconds)


def _measure(
    kernels: Sequence[_Kernel],
    options: Options,
    machine: Machine,
    search: SearchOptions,
    target: Target,
    here: Setup,
    progress: Tell,
    deadline: Deadline,
) -> int:
    """Measure what the records lack of the best nests; the number of kernels that there was no time for."""
    end = Deadline(SHARE * deadline.left, deadline)
    wanted: list[list[Nest]] = []
    executor, tasks = _executor.get(), dict[tuple[int, Nest], Future | None]()

    def task(kernel: _Kernel, nest: Nest) -> tuple[KernelGroup, Nest, Machine, str, int, float, bool]:
        return kernel.group, nest, machine, here.backend, here.threads, end.left, options.cache

    def submit(kernel: _Kernel, nest: Nest) -> Future | None:
        assert executor is not None
        try:
            return executor.submit(measure, *task(kernel, nest))
        except Exception as error:  # whatever an executor has against it: a pool that broke, a client that closed
            _failed(kernel, nest, error)
            return None

    number = 0
    try:
        for kernel in kernels:
            found = schedule(kernel.group, target, disable=search.no_loops, deadline=end)
            known = dict(kernel.record.nests) if kernel.record is not None else {}
            wanted.append([c.nest for c in found.candidates[: options.tune] if c.nest not in known])
        if executor is not None:
            tasks = {(n, nest): submit(kernels[n], nest) for n, nests in enumerate(wanted) for nest in nests}
        for number, kernel in enumerate(kernels):
            progress("tune: kernel", number, len(kernels))
            done = []
            for nest in wanted[number]:
                if executor is None:
                    try:
                        done.append((nest, measure(*task(kernel, nest))))
                    except NotRunError as error:
                        _failed(kernel, nest, error)
                elif (future := tasks[number, nest]) is not None and (got := _result(future, kernel, nest, end)):
                    done.append((nest, got))
            for nest, (seconds, processor, version) in done:
                setup = Setup(processor, here.threads, here.backend, version)
                if setup != here:
                    log.info("measured on another processor or by another version, not used here: %s", kernel.label)
                kernel.found.setdefault(setup, {})[nest] = seconds
    except OutOfTime:
        log.info("no time to tune the last %d of %d kernels", len(kernels) - number, len(kernels))
        return len(kernels) - number
    finally:
        for future in tasks.values():
            if future is not None:
                future.cancel()
    return 0


def _result(future: Future, kernel: _Kernel, nest: Nest, end: Deadline) -> Measurement | None:
    """What a worker measured; None, with a line in the log, if it failed. ``OutOfTime`` past ``end``."""
    try:
        found = future.result(timeout=end.left if end.left < math.inf else None)
    except Exception as error:  # of the worker, of the executor, or of the wait
        end.check("tuning")
        _failed(kernel, nest, error)
        return None
    if isinstance(found, Measurement) and 0 < found.seconds < math.inf:
        return found
    _failed(kernel, nest, TypeError(f"it returned {str(found)[:80]}"))
    return None


def _failed(kernel: _Kernel, nest: Nest, error: Exception) -> None:
    log.warning("%s was not measured by %s: %s: %s", kernel.label, show(nest), type(error).__name__, error)


def time_of(
    group: KernelGroup,
    nest: Nest,
    backend_name: str,
    machine: Machine,
    threads: int,
    deadline: Deadline = NEVER,
) -> float:
    """Median seconds of one kernel group under one nest, on random operands.

    ``OutOfTime`` past ``deadline``, ``NotRunError`` where no kernel can be made of the nest.
    """
    plan, const, arrays = alone(group, [nest])
    made = backend(backend_name)
    emitted = made.emit(plan, machine, deadline)
    if {"stages", "reference"} & set(emitted["kinds"]):
        raise NotRunError("no kernel could be generated")
    run = made.load(emitted, const, threads, deadline)
    deadline.check("tuning")
    (once,) = run.profile(arrays, 1)
    return once if once * REPEAT > deadline.left else run.profile(arrays, REPEAT)[0]


def alone(group: KernelGroup, nests: Sequence[Nest]) -> tuple[Plan, dict[int, np.ndarray], list[np.ndarray]]:
    """A program of one kernel group under each of ``nests``, its constants, and its other operands.

    They are random, integers zero. All of its steps compute the same.
    """
    from eqsat.ir import build

    rng = np.random.default_rng(0)
    types = {n: TensorType((o.size,), o.dtype) for n, o in enumerate(group.operands)}
    values = {
        n: (rng.standard_normal(t.shape) if t.dtype.is_float else np.zeros(t.shape)).astype(t.dtype.numpy)
        for n, t in types.items()
        if n not in group.outputs
    }
    const = {n: a for n, a in values.items() if group.operands[n].const}
    inputs = tuple(n for n in values if n not in const)
    nodes = {n: build.const(a) for n, a in const.items()}
    steps = tuple(KernelStep(group, tuple(types), Candidate(nest, 0.0, (), ""), "") for nest in nests)
    plan = Plan(types, inputs, group.outputs, nodes, steps, SearchReport())
    return plan, const, [values[n] for n in inputs]

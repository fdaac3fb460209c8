"""Random whole programs, optimized and compared with NumPy; the command is in ``fuzz_command``.

    eqsat fuzz --minutes 20 --jobs 2

Programs run in worker processes, so that a crash of the interpreter is a finding too. Needs the development dependency
``hypothesis``.

A program may take so many seconds of processor time, which other work on the machine does not lengthen; one that takes
none is given ``PATIENCE`` times as long. A process may map so much memory.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import math
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from eqsat import tracebacks
from eqsat.errors import SharedMemoryError
from eqsat.verify.minimise import minimise
from eqsat.verify.program_check import Failure, check
from eqsat.verify.programs import REFERENCE, Array, Function, Optimizer, Program
from eqsat.verify.user_operators import OWN, draw_those_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

PATIENCE = 10.0
BATCH = 250
"""Programs of one process: machine code that was loaded stays."""
MINIMISE_SECONDS = 120.0
"""Of processor time for the programs that a failure is minimised by."""
BEAT = 2.0
"""Seconds between two messages that a worker is alive."""


VARIANTS: tuple[Mapping[str, object], ...] = (
    {},
    {"numerics": "exact"},
    {"threads": 2},
    {"cache": False},
    {"numerics": "exact", "threads": 1},
    {"budget": 0.5},
    {"caches": 256},
)
"""Options that programs are optimized with in turn, where they vary; ``caches``: for a machine whose caches are so many
times smaller, so that small programs are run block by block, and part by part."""


def written(options: Mapping[str, object]) -> str:
    """Options as in a call."""
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


@dataclass
class Finding:
    """A failure, and the program that shows it: as a script, and as an expression; optimized with ``options``."""

    failure: Failure
    script: str
    seed: int
    program: str = ""
    options: Mapping[str, object] = field(default_factory=dict)


CRASHED = Failure("crashed", "the process ended")


def finding_of(failure: Failure, program: Program, seed: int, options: Mapping[str, object]) -> Finding:
    """A failure of a program."""
    given = {name: value for name, value in options.items() if name != "caches"}
    caches = options.get("caches", 1)
    note = f"# EQSAT_MACHINE: a model with caches {caches} times smaller\n" if caches != 1 else ""
    return Finding(failure, note + program.source(written(given)), seed, repr(program), dict(options))


@dataclass
class Report:
    """Counts of a run."""

    programs: int = 0
    operators: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def count(self, kind: str) -> int:
        return sum(f.failure.kind == kind for f in self.findings)

    def merge(self, other: Report) -> None:
        self.programs += other.programs
        self.operators.update(other.operators)
        self.warnings.update(other.warnings)
        self.findings.extend(other.findings)


def run(
    optimizer: Optimizer,
    names: Mapping[str, object],
    *,
    examples: int,
    seed: int = 0,
    max_ops: int = 30,
    attempts: int = 60,
    before: Callable[[Program, Mapping[str, object]], None] = lambda program, options: None,
    found: Callable[[Finding], None] = lambda finding: None,
    after: Callable[[Report], None] = lambda report: None,
    variants: Sequence[Mapping[str, object]] = ({},),
) -> Report:
    """Check ``examples`` different random programs in this process.

    ``names``: what optimized programs call besides NumPy. ``attempts`` bounds the minimising of a failure. ``before``
    is called with each program and its options, ``found`` with a failure before it is minimised, ``after`` with the
    report of that program alone. ``variants``: options that the optimizer takes, in turn. ``ImportError`` without
    Hypothesis.
    """
    total = Report()
    kinds: Counter[str] = Counter()
    for number, program in enumerate(different_programs(examples, seed, max_ops)):
        options = variants[number % len(variants)]
        before(program, options)
        one = examine(program, optimizer, names, seed, attempts, kinds, found, options)
        total.merge(one)
        after(one)
    return total


def signature(failure: Failure) -> str:
    """A failure without its numbers and names of values: equal for failures that probably have one cause."""
    return re.sub(r"\[[\d, ]*\]|v?\d[\d.e+-]*", "#", f"{failure.kind}: {failure.message}")


def examine(
    program: Program,
    optimizer: Optimizer,
    names: Mapping[str, object],
    seed: int = 0,
    attempts: int = 60,
    kinds: Counter[str] | None = None,
    found: Callable[[Finding], None] = lambda finding: None,
    options: Mapping[str, object] | None = None,
) -> Report:
    """The report of one program. A failing one is minimised first, unless ``kinds`` has counted two like it."""
    from eqsat.verify.strategies import coverage

    report, given = Report(1, Counter(coverage(program))), dict(options or {})
    optimizer = partial(optimizer, **given) if given else optimizer

    with _warnings(report.warnings):
        failure = check(program, optimizer, names)
    if failure is not None:
        kinds = kinds if kinds is not None else Counter()
        wanted = signature(failure)
        kinds[wanted] += 1
        found(finding_of(failure, program, seed, given))
        start = time.process_time()

        def fails(candidate: Program) -> bool:
            if time.process_time() - start > MINIMISE_SECONDS:
                return False
            again = check(candidate, optimizer, names)
            return again is not None and signature(again) == wanted

        with _warnings(Counter()):
            smaller = minimise(program, fails, attempts=attempts) if kinds[wanted] <= 2 else program
            failure = check(smaller, optimizer, names) or failure
        report.findings.append(finding_of(failure, smaller, seed, given))
    return report


@contextmanager
def _warnings(into: Counter[str]) -> Iterator[None]:
    """Count what eqsat logs as a warning, such as an operator that runs through the reference."""

    class Counting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            into[record.getMessage()] += 1

    handler, logger = Counting(logging.WARNING), logging.getLogger("eqsat")
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def different_programs(
    examples: int, seed: int, max_ops: int, operators: Sequence[str] | None = None
) -> Iterator[Program]:
    """Random programs, no two alike, the same for the same seed; of these operators alone, if any are named."""
    try:
        import hypothesis
    except ImportError:
        raise ImportError("fuzzing needs the development dependency: pip install hypothesis") from None
    from eqsat.verify.strategies import programs

    seen: set[str] = set()
    for round in range(1000):
        batch: list[Program] = []

        @hypothesis.seed(1000 * seed + round)
        @hypothesis.settings(
            max_examples=min(200, 10 + 2 * examples),
            phases=[hypothesis.Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(programs(min_ops=min(3, max_ops), max_ops=max_ops, operators=operators))
        def draw(program: Program) -> None:
            batch.append(program)  # noqa: B023  (called before the next round)

        draw()
        for program in batch:
            text = program.source()
            if text not in seen:
                seen.add(text)
                yield program
                if len(seen) == examples:
                    return


def _load(path: str) -> Optimizer:
    module, _, name = path.partition(":")
    found: Any = getattr(importlib.import_module(module), name or "optimize")
    chosen: Optimizer = partial(compiled, found) if path in ("eqsat", "eqsat:optimize") else found
    return chosen


@cache
def _smaller(times: int) -> str:
    """A file with this machine's model, whose caches are so many times smaller."""
    from eqsat.cost import machine

    model = machine.load()
    levels = tuple(replace(level, nbytes=level.nbytes // times, sets=level.sets // times) for level in model.levels)
    handle, path = tempfile.mkstemp(".json", "eqsat-machine-")
    atexit.register(os.unlink, path)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(replace(model, levels=levels).to_json())
    return path


@contextmanager
def _caches(times: int) -> Iterator[None]:
    from eqsat.cost.machine import ENVIRONMENT_VARIABLE

    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = _smaller(times)
    try:
        yield
    finally:
        del os.environ[ENVIRONMENT_VARIABLE]
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before


def compiled(optimize: Callable[..., Function], function: Function, *, caches: int = 1, **options: object) -> Function:
    """The function as eqsat compiles it: what it does not compile is a finding, and no program for NumPy to run.

    Except where sharing of memory is not known, which random programs come to: there NumPy runs them, which is said;
    and with a budget, which may be too small. ``caches``: see :data:`VARIANTS`.
    """
    if caches != 1:
        usual = compiled(partial(optimize, **options), function)

        def on_smaller(*arguments: Array) -> tuple[Array, ...]:
            with _caches(caches):
                return usual(*arguments)

        return on_smaller
    lenient = optimize(function, **options)
    if "budget" in options:
        return lenient
    strict = optimize(function, strict=True, **options)

    def call(*arguments: Array) -> tuple[Array, ...]:
        try:
            return strict(*arguments)
        except SharedMemoryError:
            logging.getLogger("eqsat").warning("left to NumPy: whether arrays share memory is not known")
            return lenient(*arguments)

    return call


def _names(optimizer: str) -> Mapping[str, object]:
    """What programs call besides NumPy: eqsat's own, or their NumPy stand-ins for other optimizers."""
    if optimizer.startswith("eqsat:"):
        return {"nn": importlib.import_module("eqsat.nn"), "eqsat": importlib.import_module("eqsat")}
    return REFERENCE


def _worker(
    pipe: Connection,
    optimizer: str,
    examples: int,
    seed: int,
    max_ops: int,
    memory: float,
    vary: bool,
    operators: Sequence[str],
) -> None:
    """Run programs; say through the pipe which one starts, how each ended, and the processor time so far."""
    sending = threading.Lock()

    def say(event: str, detail: object) -> None:
        with sending:
            pipe.send((event, detail, time.process_time()))

    def beat() -> None:
        while True:
            time.sleep(BEAT)
            say("alive", None)

    os.environ[tracebacks.ENVIRONMENT_VARIABLE] = "full"  # where in eqsat a crash is
    if importlib.util.find_spec("resource") is not None:
        resource = importlib.import_module("resource")
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = int(memory * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    threading.Thread(target=beat, daemon=True).start()
    draw_those_of((OWN, *operators))
    run(
        _load(optimizer),
        _names(optimizer),
        examples=examples,
        seed=seed,
        max_ops=max_ops,
        before=lambda program, options: say("start", finding_of(CRASHED, program, seed, options)),
        found=lambda finding: say("found", finding),
        after=lambda report: say("done", report),
        variants=VARIANTS if vary else ({},),
    )
    say("end", None)


def keep_machine(optimizer: str, folder: str) -> None:
    """Measure the machine once, not once a worker, when the cache is about to move."""
    from eqsat.cost import machine

    if optimizer.startswith("eqsat:") and machine.ENVIRONMENT_VARIABLE not in os.environ:
        path = os.path.join(folder, "machine.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(machine.load().to_json())
        os.environ[machine.ENVIRONMENT_VARIABLE] = path


@dataclass
class _Job:
    """A worker: what it is at, since when, by the clock and in its own processor time, and when it was heard last."""

    process: SpawnProcess
    pipe: Connection
    seed: int
    left: int
    rest: int
    started: Finding | None = None
    finding: Finding | None = None
    since: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    busy_before: float = 0.0
    busy: float = 0.0

    def note(self, event: str, detail: Any, busy: float) -> None:
        self.heard, self.busy = time.monotonic(), busy
        if event != "alive":
            self.since, self.busy_before = self.heard, busy
        if event in ("start", "done"):
            self.started, self.finding = detail if event == "start" else self.started, None
        elif event == "found":
            self.finding = detail

    def late(self, timeout: float) -> str:
        """Why it is given up, if it is. One that holds the interpreter is not heard."""
        now = time.monotonic()
        if self.busy - self.busy_before > timeout:
            return f"no result within {timeout:.0f} s of processor time"
        if now - self.since > PATIENCE * timeout:
            return f"no result within {PATIENCE * timeout:.0f} s"
        return f"not heard of for {timeout:.0f} s" if now - self.heard > timeout else ""


def run_jobs(
    optimizer: str,
    *,
    examples: int,
    seed: int,
    max_ops: int,
    jobs: int,
    timeout: float,
    memory: float = 16.0,
    vary: bool = False,
    operators: Sequence[str] = (),
    seconds: float = math.inf,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """The same in worker processes, each of which may map ``memory`` GiB. One that dies, or takes longer than
    ``timeout`` seconds for a program, is a finding, and another goes on with the next seed. ``vary``: with options of
    :data:`VARIANTS`; ``operators``: modules whose elementwise operators programs have, too. Past ``seconds`` by the
    clock, programs that run are left as they are."""
    import multiprocessing
    from multiprocessing.connection import wait

    context = multiprocessing.get_context("spawn")
    total = Report()
    seeds = iter(range(seed, seed + 100_000))
    running: list[_Job] = []

    def start(count: int) -> None:
        if count > 0:
            ours, theirs = context.Pipe(duplex=False)
            number, now = next(seeds), min(count, BATCH)
            arguments = theirs, optimizer, now, number, max_ops, memory, vary, operators
            process = context.Process(target=_worker, args=arguments, daemon=True)
            process.start()
            theirs.close()
            running.append(_Job(process, ours, number, now, count - now))

    def lost(job: _Job, message: str) -> None:
        running.remove(job)
        job.process.kill()
        job.process.join()
        if job.started is None:
            raise RuntimeError(f"a fuzz worker did not come to its first program: {message}")
        finding = job.finding or replace(job.started, failure=Failure("crashed", message))
        total.merge(Report(programs=1, findings=[finding]))
        start(job.left - 1 + job.rest)

    for number in range(jobs):
        start(examples // jobs + (number < examples % jobs))
    end = time.monotonic() + seconds
    try:
        while running and time.monotonic() < end:
            for ready in wait([job.pipe for job in running], timeout=1.0):
                job = next(j for j in running if j.pipe is ready)
                try:
                    event, detail, busy = job.pipe.recv()
                except EOFError:
                    job.process.join()
                    lost(job, f"the process ended with exit status {job.process.exitcode}")
                    continue
                job.note(event, detail, busy)
                if event == "done":
                    job.left -= 1
                    total.merge(detail)
                    progress(total)
                elif event == "end":
                    running.remove(job)
                    job.process.join()
                    start(job.rest)
            for job in list(running):
                if message := job.late(timeout):
                    lost(job, message)
    finally:
        for job in running:
            job.process.kill()
            job.process.join()
    for job in running:  # what was found by then, and not minimised yet
        if job.finding is not None:
            total.merge(Report(programs=1, findings=[job.finding]))
    return total


if __name__ == "__main__":
    from eqsat.verify.fuzz_command import main

    sys.exit(main())

"""From a workload to a row: every contender checked against float64, then timed in turn."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bench import cold
from bench.limits import Limits
from bench.measure import Time, interleaved
from bench.peers import Peer, Run
from bench.setup import inputs_of
from bench.workload import Inputs, Workload, in_double, nbytes, relative_error
from eqsat.cost.machine import Machine

log = logging.getLogger("bench")

PAUSE = 0.1
"""Seconds between contenders that use several threads (see ``interleaved``)."""


class Contender(Protocol):
    name: str
    version: str

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None: ...

    def result(self, value: Any) -> Any: ...


@dataclass
class Row:
    """One line of the report; times in milliseconds are medians."""

    workload: Workload
    limit_ms: float
    times: dict[str, Time]
    ours: str
    max_rel_error: float
    search_s: float
    compile_s: float
    cold_compile_s: dict[str, float] = field(default_factory=dict)

    @property
    def ours_ms(self) -> float:
        return self.times[self.ours].median

    @property
    def peers(self) -> dict[str, float]:
        return {name: time.median for name, time in self.times.items() if name != self.ours}

    @property
    def best_peer(self) -> str | None:
        return min(self.peers, key=self.peers.__getitem__) if self.peers else None

    @property
    def ratio(self) -> float | None:
        return self.peers[self.best_peer] / self.ours_ms if self.best_peer else None

    @property
    def of_limit(self) -> float:
        return self.limit_ms / self.ours_ms

    def record(self) -> dict[str, Any]:
        """As in the JSON report."""
        made: dict[str, Any] = {
            "suite": self.workload.suite,
            "name": self.workload.name,
            "ours_ms": self.ours_ms,
            "limit_ms": self.limit_ms,
            "peers": self.peers,
            "best_peer": self.best_peer,
            "ratio": self.ratio,
            "of_limit": self.of_limit,
            "max_rel_error": self.max_rel_error,
            "search_s": self.search_s,
            "compile_s": self.compile_s,
            "ours_min_ms": self.times[self.ours].minimum,
            "peers_min": {name: t.minimum for name, t in self.times.items() if name != self.ours},
        }
        if self.cold_compile_s:
            made["cold_compile_s"] = self.cold_compile_s
        return made


@dataclass(frozen=True)
class Problem:
    """A contender that gave no right result for a workload."""

    workload: Workload
    contender: str
    message: str

    def __str__(self) -> str:
        return f"{self.workload.suite} / {self.workload.name}: {self.contender}: {self.message}"


class Wrong(Exception):
    """A result too far from the float64 reference."""


@dataclass(frozen=True)
class Checked:
    """A contender's call, its error against float64, and the seconds from ``prepare`` to its first result."""

    run: Run
    error: float
    first_s: float


def checked(
    contender: Contender,
    workload: Workload,
    inputs: Inputs,
    reference: Any,
    clock: Callable[[], float] = time.perf_counter,
) -> Checked | None:
    """A contender whose first result is right; None where it does not apply.

    Raises:
        Wrong: the result is too far from ``reference``.
    """
    begin = clock()
    run = contender.prepare(workload, inputs)
    if run is None:
        return None
    value = run()
    first = clock() - begin
    error = relative_error(contender.result(value), reference)
    if not error <= workload.tolerance:
        raise Wrong(f"relative error {error:.1e} against float64, where {workload.tolerance:.0e} is allowed")
    return Checked(run, error, first)


def compile_cold(
    row: Row,
    contenders: Collection[str],
    threads: int,
    *,
    repeat: int,
    seconds: Callable[..., float] = cold.seconds,
) -> list[Problem]:
    """Put the time of every contender's cold compilation (see ``cold``) into the row; what went wrong."""
    problems = []
    for name in cold.CONTENDERS:
        if name in contenders:
            try:
                row.cold_compile_s[name] = seconds(row.workload, name, threads, repeat=repeat)
            except cold.ColdError as error:
                problems.append(Problem(row.workload, name, f"cold compilation: {error}"))
    return problems


def run_workload(
    workload: Workload,
    ours: Contender,
    peers: Sequence[Peer],
    limits: Limits,
    machine: Machine,
    *,
    seconds: float,
    least: int,
    cost: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
) -> tuple[Row | None, list[Problem]]:
    """The row of a workload and what went wrong; no row without a right result of ours."""
    inputs = inputs_of(workload)
    with np.errstate(all="ignore"):
        reference = workload.function(*in_double(inputs).values())
    problems: list[Problem] = []
    runs: dict[str, Run] = {}
    error, searched, compiled = 0.0, 0.0, 0.0
    contenders: list[Contender] = [ours, *peers]
    for contender in contenders:
        try:
            found = checked(contender, workload, inputs, reference)
        except Exception as problem:  # reported, never a row: one system's failure must not stop the others
            log.debug("%s", contender.name, exc_info=True)
            text = str(problem).strip().split("\n")[0]
            problems.append(Problem(workload, contender.name, f"{type(problem).__name__}: {text}"))
            continue
        if found is None:
            continue
        runs[contender.name] = found.run
        if contender is ours:
            error = found.error
            searched, compiled = cost()
    if ours.name not in runs:
        return None, problems
    times = interleaved(runs, seconds=seconds, least=least, pause=PAUSE if limits.threads > 1 else 0.0)
    touched = workload.touched if workload.touched is not None else nbytes(*inputs.values()) + _result_bytes(reference)
    row = Row(
        workload,
        limits.milliseconds(workload, touched, machine),
        times,
        ours.name,
        error,
        searched,
        compiled,
    )
    return row, problems


def _result_bytes(reference: Any) -> float:
    """Bytes of the results in float32, from those in float64."""
    return nbytes(reference) / 2

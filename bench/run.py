"""From a workload to a row: every peer checked against float64, then timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import cold
from bench.limits import Limits
from bench.measure import Time, interleaved
from bench.peers import WRITTEN, Cost, Program
from bench.process import PeerProcess, Wrong, reference_of
from bench.superopt import published
from bench.worker import WorkerError
from bench.workload import Workload
from eqsat.cost.machine import Machine

PAUSE = 0.2
"""Seconds between peers that use several threads (see ``interleaved``): OpenBLAS's spin for about 0.13 s."""


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
    programs: dict[str, Program] = field(default_factory=dict)
    """What eqsat made, and what it made of the program as written where that was timed."""

    @property
    def ours_ms(self) -> float:
        return self.times[self.ours].median

    @property
    def peers(self) -> dict[str, float]:
        return {name: time.median for name, time in self.times.items() if name not in (self.ours, WRITTEN)}

    @property
    def gain(self) -> float | None:
        """By how much of the time as optimized the program as written takes longer."""
        return self.times[WRITTEN].median / self.ours_ms - 1 if WRITTEN in self.times else None

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
            "peers_min": {name: self.times[name].minimum for name in self.peers},
        }
        if self.gain is not None:
            made |= {"gain": self.gain, "written_ms": self.times[WRITTEN].median}
            made |= {"written_min_ms": self.times[WRITTEN].minimum}
            if (other := published(self.workload.name)) is not None:
                made["tensat"] = {"gain": other[0], "search_s": other[1]}
            made["programs"] = {name: asdict(program) for name, program in self.programs.items()}
        if self.cold_compile_s:
            made["cold_compile_s"] = self.cold_compile_s
        return made


@dataclass(frozen=True)
class Problem:
    """A peer that gave no right result for a workload, or no time."""

    workload: Workload
    peer: str
    message: str

    def __str__(self) -> str:
        return f"{self.workload.suite} / {self.workload.name}: {self.peer}: {self.message}"


def compile_cold(
    row: Row, peers: Collection[str], threads: int, *, repeat: int, seconds: Callable[..., float] = cold.seconds
) -> list[Problem]:
    """Put the time of every peer's cold compilation (see ``cold``) into the row; what went wrong."""
    problems = []
    for name in cold.COMPILERS:
        if name in peers:
            try:
                row.cold_compile_s[name] = seconds(row.workload, name, threads, repeat=repeat)
            except (WorkerError, Wrong, ValueError) as error:
                problems.append(Problem(row.workload, name, f"cold compilation: {error}"))
    return problems


def run_workload(
    workload: Workload,
    ours: PeerProcess,
    peers: Sequence[PeerProcess],
    limits: Limits,
    machine: Machine,
    *,
    rounds: int,
) -> tuple[Row | None, list[Problem]]:
    """The row of a workload, and what went wrong; no row without a right result of ours.

    One peer's failure does not stop the others: it is left out of the row.
    """
    reference = reference_of(workload)
    problems: list[Problem] = []
    right: dict[str, PeerProcess] = {}
    error, cost = 0.0, Cost()
    programs: dict[str, Program] = {}
    for peer in (ours, *peers):
        try:
            prepared = peer.prepare(workload)
            if prepared is None:
                continue
            found = reference.error_of(prepared, workload)
        except (WorkerError, Wrong, ValueError) as problem:
            problems.append(Problem(workload, peer.name, str(problem)))
            continue
        right[peer.name] = peer
        if prepared.cost.program is not None:
            programs[peer.name] = prepared.cost.program
        if peer is ours:
            error, cost = found, prepared.cost
    if ours.name not in right:
        return None, problems
    turns = {name: peer.turn for name, peer in right.items()}
    times, failed = interleaved(turns, rounds=rounds, pause=PAUSE if limits.threads > 1 else 0.0)
    problems += [Problem(workload, name, str(problem)) for name, problem in failed.items()]
    if ours.name not in times:
        return None, problems
    touched = workload.touched if workload.touched is not None else reference.nbytes
    limit = limits.milliseconds(workload, touched, machine)
    row = Row(workload, limit, times, ours.name, error, cost.search_s, cost.compile_s, programs=programs)
    return row, problems

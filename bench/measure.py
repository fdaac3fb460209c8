"""Timing in turn: A B C, B C A, …, so that a machine that slows down slows everyone."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.worker import WorkerError

WARM_S = 0.01
"""Seconds of untimed calls, at least one, at the start of a turn: caches are filled, and threads awake, afterwards."""
TURN_S = 0.05
"""Seconds of timed calls that a turn lasts at least."""

K = TypeVar("K")


@dataclass(frozen=True)
class Time:
    """Milliseconds a call."""

    minimum: float
    median: float


def loop(run: Callable[[], Any], seconds: float) -> float:
    """Seconds a call, of calls in a row that take at least ``seconds`` together. The clock is read seldom."""
    calls, batch = 0, 1
    start = time.perf_counter()
    while True:
        for _ in range(batch):
            run()
        calls += batch
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return elapsed / calls
        batch = min(calls, math.ceil((seconds - elapsed) * calls / elapsed))


def turn(run: Callable[[], Any], seconds: float = TURN_S, warm: float = WARM_S) -> float:
    """Seconds a call in a warm loop."""
    loop(run, warm)
    return loop(run, seconds)


def interleaved(
    turns: Mapping[K, Callable[[], float]], *, rounds: int, pause: float = 0.0
) -> tuple[dict[K, Time], dict[K, WorkerError]]:
    """Times from ``rounds`` turns of each, in milliseconds where turns are in seconds; the order rotates.

    Who fails gets no more turns and no time, but is named with the error. Before each turn is a ``pause`` (seconds) in
    which waiting threads of others go to sleep: pools spin for tens of milliseconds, on the cores that are needed.
    """
    taken: dict[K, list[float]] = {name: [] for name in turns}
    failed: dict[K, WorkerError] = {}
    names = list(turns)
    for number in range(rounds):
        shift = number % len(names)
        for name in (*names[shift:], *names[:shift]):
            if name in failed:
                continue
            time.sleep(pause)
            try:
                taken[name].append(1e3 * turns[name]())
            except WorkerError as error:
                failed[name] = error
    times = {n: Time(min(t), statistics.median(t)) for n, t in taken.items() if n not in failed}
    return times, failed

"""Timing in turn: A B C A B C …, so that a machine that slows down slows everyone."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.peers import Run

SHORTEST = 1e-3
"""Seconds that one timed batch of calls lasts at least, so that the clock's own cost does not show."""


@dataclass(frozen=True)
class Time:
    """Milliseconds a call."""

    minimum: float
    median: float


def once(run: Run) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def batch(run: Run, calls: int) -> float:
    """Seconds a call, of several in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def rounds_of(total: float, seconds: float, least: int, most: int) -> int:
    """How often to go round when once round takes ``total`` seconds."""
    return max(least, min(most, int(seconds / max(total, 1e-9))))


def interleaved(
    runs: Mapping[str, Run], *, seconds: float = 3.0, least: int = 7, most: int = 40, pause: float = 0.0
) -> dict[str, Time]:
    """Times of all contenders, measured in turn for about ``seconds``, ``least`` to ``most`` times each.

    Every batch follows an untimed call, which takes the cold caches that the contender before left behind,
    and a ``pause`` (seconds, not counted) in which its waiting threads go to sleep: thread pools spin for
    tens of milliseconds, on the cores that the next contender needs. The order rotates from round to round.
    """
    calls: dict[str, int] = {}
    total = 0.0
    for name, run in runs.items():
        run()
        estimate = min(once(run), once(run))
        calls[name] = max(1, math.ceil(SHORTEST / max(estimate, 1e-7)))
        total += estimate * (calls[name] + 1)
    names: Sequence[str] = tuple(runs)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds_of(total, seconds, least, most)):
        shift = turn % len(names)
        for name in (*names[shift:], *names[:shift]):
            time.sleep(pause)
            runs[name]()
            taken[name].append(1e3 * batch(runs[name], calls[name]))
    return {name: Time(min(times), statistics.median(times)) for name, times in taken.items()}

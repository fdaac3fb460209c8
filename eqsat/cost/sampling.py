"""Figures of a machine from many short runs, for the probes of a backend.

Other programs can only make a machine look slower, so every figure is the best of them. It is settled when its few best
samples agree; those that do not settle are sampled until the time is up.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

LEAST_S = 0.5
"""Sampling goes on for this long, lest all of it falls into one spell of somebody else's work."""
_SAMPLE_S = 0.001
_BATCH_S = 25e-6
"""A batch this long hides the cost of reading the clock, and finds a quiet moment on a busy machine."""
_AGREE = 4
_CLOSE = 0.04
"""A figure is settled when its ``_AGREE`` shortest samples differ by less than this share."""
_REST_S = 0.002
"""After so long without a job threads that wait for one sleep."""
_VARIED = 16
"""Runs that are timed where they vary by themselves."""


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


class Varying(Timer):
    """A timer of runs that vary by themselves, as they find caches, or threads: ``best`` is the first quartile."""

    @property
    def best(self) -> float:
        return self._shortest[len(self._shortest) // 4]

    @property
    def settled(self) -> bool:
        return len(self._shortest) >= _VARIED

    def sample(self) -> None:
        bisect.insort(self._shortest, self._batch(1))


class Rested(Varying):
    """A timer of runs that come after a rest."""

    def sample(self) -> None:
        time.sleep(_REST_S)
        super().sample()


def settle(timers: Iterable[Timer], clock: Callable[[], float], budget_s: float) -> None:
    """Sample in turn, round after round, so that each figure has its chance of a quiet moment."""
    begin = clock()
    left = list(timers)
    for number in itertools.count(1):
        for timer in left:
            timer.sample()
        spent = clock() - begin
        if spent < min(LEAST_S, budget_s):
            continue
        left = [timer for timer in left if not timer.settled]
        if not left or (number >= _AGREE and spent >= budget_s):
            return

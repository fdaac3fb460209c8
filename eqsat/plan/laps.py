"""Steps of a program timed in place: laps between them, in whole calls, with caches as the steps before leave them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from eqsat.plan.trips import is_loop

EMPTY_LAPS = 16
"""Laps of nothing, which tell what one takes."""
PATIENCE = 2.0
"""Seconds after which no further call is timed."""


class Stopwatch(Protocol):
    """Times of the steps of a program. ``cells``: of each step, nanoseconds and laps so far, int64."""

    cells: np.ndarray

    def lap(self, step: int) -> Mapping[str, Any]:
        """A compiled step (see :mod:`eqsat.plan.chain`) that adds the time since the last lap to that of ``step``."""


def in_laps(steps: Sequence[Mapping[str, Any]], watch: Stopwatch, count: int) -> list[Mapping[str, Any]]:
    """Steps, made of ``count`` steps of a plan, with a lap behind each, in loops too.

    Two more are timed: one of nothing, and one of what comes before.
    """

    def walk(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for step in steps:
            found += [{**step, "body": walk(step["body"])}] if is_loop(step) else [step, watch.lap(step["of"])]
        return found

    return [watch.lap(count + 1), *[watch.lap(count)] * EMPTY_LAPS, *walk(steps)]


def median_seconds(call: Callable[[], object], watch: Stopwatch, count: int, repeat: int) -> list[float]:
    """Of each of ``count`` steps, over ``repeat`` calls after a first one; over fewer where calls take seconds."""
    rows: list[np.ndarray] = []
    start = time.perf_counter()
    for number in range(repeat + 1):
        watch.cells[:] = 0
        call()
        late = time.perf_counter() - start > PATIENCE
        if number or late:
            elapsed, laps = watch.cells[: count + 1].T.astype(float)
            rows.append(np.maximum(elapsed - laps * (elapsed[count] / EMPTY_LAPS), 0.0)[:count])
        if late:
            break
    seconds: list[float] = (1e-9 * np.median(rows, axis=0)).tolist()
    return seconds

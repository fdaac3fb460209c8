"""Whether a compiled program is faster than the function it was made of: both are timed once, when it is compiled."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("eqsat")

ENVIRONMENT_VARIABLE = "EQSAT_CHECK_SPEED"
"""0: programs are timed nowhere, whatever their options."""

SECONDS = 4e-3
"""Spent on each; two runs, or one long one, may take more."""

RUNS = 5
"""Most runs of each: the function may do more than compute."""

LEAST = 10e-6
"""A program that takes less may be slower than the function: what a call costs besides is most of both."""

CLEAR = 1.25
"""A program that is not so many times as fast is timed again, in turns with the function: other work may have delayed
it, and what is found is remembered."""

TURNS = 3
"""How often: their best runs count."""

IDLE = 0.2
"""Seconds after which threads of BLAS that have nothing to do sleep: those of OpenBLAS spin for about 0.13 s (first
Zen), on cores that a program of several threads wants too (one on two cores took 34 ms, and 17 when they slept)."""

MARGIN = 1.03
"""How much slower a program is that loses: what lies between depends on the noise of the timing."""

LONG = 0.1
AHEAD = 8.0
"""A program so much faster than a ``LONG`` first run of the function wins, though that finds libraries, caches and
pages cold: a product of 256×256 took 7 to 24 ms the first time in a process."""

timer: Callable[[], float] = time.perf_counter
wait: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Speed:
    """Seconds of a program and of the function itself, on the arguments that it was compiled for."""

    program: float
    plain: float

    @property
    def loses(self) -> bool:
        return self.program > MARGIN * self.plain

    def __str__(self) -> str:
        return f"the compiled program takes {_told(self.program)}, NumPy {_told(self.plain)}"


def _told(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def wanted() -> bool:
    """Whether this process times programs at all."""
    return os.environ.get(ENVIRONMENT_VARIABLE, "") != "0"


def compared(
    program: Callable[[], object], plain: Callable[[], object], first: float | None, threads: int
) -> Speed | None:
    """The best of a few runs each; None where the function raises, or a call is all that there is to time.

    ``first``: seconds of a first run of ``plain``, if one has been timed. ``threads``: those of the program. Of one,
    some runs follow each other before those of the other: threads of both would wait for each other's cores.
    """
    rested = threads > 1 and first is not None and first > LONG
    if rested:
        wait(IDLE)
    best = _best(program)
    if best <= LEAST:
        return None
    if first is not None and first > max(LONG, AHEAD * best):
        return Speed(best, first)
    try:
        other = _best(plain)
        for turn in range(TURNS):
            if max(best, other) > LONG or CLEAR * best <= other:
                break
            if threads > 1 and not (rested or turn):
                wait(IDLE)
            best, other = min(best, _best(program)), min(other, _best(plain))
        return Speed(best, other)
    except Exception as error:
        log.info("the function was not timed: %r", error)
        return None


def _best(run: Callable[[], object]) -> float:
    best, spent = float("inf"), 0.0
    for number in range(RUNS):
        start = timer()
        run()
        took = timer() - start
        best, spent = min(best, took), spent + took
        if spent > SECONDS and (number or took > LONG):
            break
    return best

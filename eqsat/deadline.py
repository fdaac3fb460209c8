"""The time that a compilation may take, shared by all that works on it."""

from __future__ import annotations

import math
import time


class OutOfTime(Exception):
    """A deadline has passed; the argument says in what work. Never reaches the user: NumPy runs the program then."""


class Deadline:
    """A moment after which nothing more is to be begun.

    Args:
        seconds: wall time from now; infinite by default.
        within: another deadline that this one does not outlast.
    """

    __slots__ = ("end",)

    def __init__(self, seconds: float = math.inf, within: Deadline | None = None) -> None:
        self.end = time.monotonic() + seconds
        if within is not None:
            self.end = min(self.end, within.end)

    @property
    def left(self) -> float:
        """Seconds that are left, 0 when it has passed."""
        return max(0.0, self.end - time.monotonic())

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end

    def check(self, work: str) -> None:
        """Raise :class:`OutOfTime` if it has passed."""
        if self.over:
            raise OutOfTime(work)


NEVER = Deadline()
"""For work that nobody limits."""

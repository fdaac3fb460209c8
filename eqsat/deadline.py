"""The time that a compilation may take, shared by all that works on it."""

from __future__ import annotations

import math
import time


class OutOfTime(Exception):
    """A deadline has passed; the argument says in what work. Never reaches the user: NumPy runs the program then."""


class TooMuchWork(OutOfTime):
    """A deadline will pass: at the pace seen so far, what is left to do takes far more time than is left."""


WARM, COUNTED, SHARE, HOPELESS = 4, 8, 16, 3


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


class Pace:
    """Parts of a work that are done one after the other, given up long before a deadline that would be missed by far.

    Parts differ, the first ones wait for processes and libraries, and a machine may be busy for a while: so the pace
    is that of all but the ``WARM`` first ones, it counts from ``COUNTED`` further ones on, one in ``SHARE`` of all, and
    the rest has to take ``HOPELESS`` times what is left.
    """

    __slots__ = ("begun", "deadline", "done", "parts", "work")

    def __init__(self, work: str, parts: int, deadline: Deadline) -> None:
        self.work, self.parts, self.deadline = work, parts, deadline
        self.done, self.begun = 0, time.monotonic()

    def step(self) -> None:
        """Note that a part is done. Raises :class:`OutOfTime` past the deadline, :class:`TooMuchWork` long before."""
        self.deadline.check(self.work)
        self.done += 1
        now, counted = time.monotonic(), self.done - WARM
        if counted <= 0:
            self.begun = now
        elif counted >= max(COUNTED, self.parts / SHARE):
            rest = (now - self.begun) / counted * (self.parts - self.done)
            if rest > HOPELESS * self.deadline.left:
                raise TooMuchWork(self.work)


NEVER = Deadline()
"""For work that nobody limits."""

"""How much a selection may do, counted in work, so that its result does not depend on the machine's speed."""

from __future__ import annotations

import time

from eqsat.deadline import NEVER, Deadline

INFINITY = float("inf")


class Budget:
    """Work that is left, and a clock as the safety net.

    ``work``: choices and targets looked at; about 3 million a second. ``nodes``: nodes of integer programs.
    ``choices``: an integer program may have at most so many, for work inside one node cannot be counted.
    ``seconds``: wall time, which is looked at between steps. Equal budgets give equal results unless the clock
    stopped one of them: then it is ``late``. Past ``deadline``, ``over`` raises ``OutOfTime``.
    """

    def __init__(
        self,
        seconds: float = INFINITY,
        *,
        work: float = INFINITY,
        nodes: int = 1_000_000,
        choices: int = 60_000,
        deadline: Deadline = NEVER,
    ) -> None:
        self._deadline = time.monotonic() + seconds
        self._work = work
        self.nodes = nodes
        self.choices = choices
        self.late = False
        self.deadline = deadline

    @property
    def seconds(self) -> float:
        """Wall time that is left; may be negative."""
        return self._deadline - time.monotonic()

    def spend(self, work: float) -> None:
        """Count work that was done."""
        self._work -= work

    def over(self) -> bool:
        """Whether to stop."""
        self.deadline.check("selecting kernels")
        if self._work <= 0:
            return True
        if time.monotonic() > self._deadline:
            self.late = True
        return self.late

"""What a group of kernels costs: the one measure by which fusion, sharing of parts and cuts are chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eqsat.cost.target import Target
from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.engine import usable
from eqsat.errors import OptionError
from eqsat.ir.kernel import KernelGroup
from eqsat.schedule import Scheduled, ScheduleError, least_busy, least_seconds, schedule


class ScheduledPrice:
    """Predicted seconds of groups on a target, each by its best schedule.

    ``disable``: ids of loop rules to leave out. A group that cannot run without them, or not block by block, costs
    ``inf``. Where schedules cannot be searched for, the lower bound is the price.
    """

    def __init__(self, target: Target, disable: tuple[str, ...] = (), deadline: Deadline = NEVER) -> None:
        self.target, self.disable, self.deadline = target, disable, deadline
        self._known: dict[int, tuple[KernelGroup, Scheduled | None, float]] = {}
        """By identity, for groups are asked for often, and are long: a group, its schedule, and how much it wastes."""

    def seconds(self, group: KernelGroup) -> float:
        if not usable():
            return self.least(group, ())
        found = self._look_up(group)[1]
        return math.inf if found is None else found.predicted_seconds

    def least(self, group: KernelGroup, parts: Sequence[KernelGroup]) -> float:
        """A bound; what ``parts`` waste of the units, together they are taken to waste, too."""
        done = least = 0.0
        for part in parts if usable() else ():
            _, found, busy = self._look_up(part)
            if found is not None:
                done, least = done + found.best.busy, least + busy
        try:
            return least_seconds(group, self.target, max(1.0, done / least) if least else 1.0)
        except ScheduleError:
            return math.inf

    def _look_up(self, group: KernelGroup) -> tuple[KernelGroup, Scheduled | None, float]:
        if id(group) not in self._known:
            found, busy = None, 0.0
            try:
                found = schedule(group, self.target, disable=self.disable, deadline=self.deadline)
                busy = least_busy(group, self.target)
            except (OptionError, ScheduleError):
                pass  # it has no schedule
            self._known[id(group)] = (group, found, busy)
        return self._known[id(group)]

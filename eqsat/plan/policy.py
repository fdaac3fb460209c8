"""What a group of kernels costs: the one measure by which fusion, sharing of parts and cuts are chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eqsat.cost.target import Target
from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.engine import usable
from eqsat.errors import OptionError
from eqsat.ir.kernel import KernelGroup
from eqsat.schedule import Scheduled, ScheduleError, least_seconds, schedule


class ScheduledPrice:
    """Predicted seconds of groups on a target, each by its best schedule.

    ``disable``: ids of loop rules to leave out. A group that cannot run without them, or not block by block, costs
    ``inf``. Where schedules cannot be searched for, the lower bound is the price.
    """

    def __init__(self, target: Target, disable: tuple[str, ...] = (), deadline: Deadline = NEVER) -> None:
        self.target, self.disable, self.deadline = target, disable, deadline

    def seconds(self, group: KernelGroup) -> float:
        if not usable():
            return self.least(group, ())
        found = self._schedule(group)
        return math.inf if found is None else found.predicted_seconds

    def least(self, group: KernelGroup, parts: Sequence[KernelGroup]) -> float:
        known = [self._schedule(part) for part in parts] if usable() else []
        done = None if None in known or not known else sum(s.best.busy for s in known if s is not None)
        try:
            return least_seconds(group, self.target, parts, done)
        except ScheduleError:
            return math.inf

    def _schedule(self, group: KernelGroup) -> Scheduled | None:
        try:
            return schedule(group, self.target, disable=self.disable, deadline=self.deadline)
        except (OptionError, ScheduleError):
            return None

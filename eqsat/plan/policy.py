"""What a group of kernels costs: the one measure by which fusion, sharing of parts and cuts are chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

from eqsat.cost.target import Target
from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.engine import usable
from eqsat.errors import OptionError
from eqsat.ir.kernel import KernelGroup
from eqsat.schedule import Least, Scheduled, ScheduleError, essence, least_of, prepare, schedule


class ScheduledPrice:
    """Predicted seconds of groups on a target, each by its best schedule.

    ``disable``: ids of loop rules to leave out. A group that cannot run without them, or not block by block, costs
    ``inf``. Where schedules cannot be searched for, the lower bound is the price.
    """

    def __init__(self, target: Target, disable: tuple[str, ...] = (), deadline: Deadline = NEVER) -> None:
        self.target, self.disable, self.deadline = target, disable, deadline
        # By identity, for groups are asked for often, and are long: each is held, so that no other one has its id.
        self._scheduled: dict[int, tuple[KernelGroup, Scheduled | None]] = {}
        self._least: dict[int, tuple[KernelGroup, Least | None]] = {}
        self._known: dict[object, float] = {}

    def prepare(self, groups: Iterable[KernelGroup]) -> None:
        """Prices of these will be asked for: to begin with all at once takes less time."""
        if usable():
            new = [group for group in groups if id(group) not in self._scheduled]
            prepare(new, self.target, disable=self.disable, deadline=self.deadline)

    def seconds(self, group: KernelGroup) -> float:
        if not usable():
            return self.least(group, ())
        found = self._schedule(group)
        return math.inf if found is None else found.predicted_seconds

    def known(self, group: KernelGroup) -> float | None:
        """The same where this price has been asked for it: what else the process has scheduled must decide nothing."""
        return self._known.get(essence(group)) if usable() else self.least(group, ())

    def least(self, group: KernelGroup, parts: Sequence[KernelGroup]) -> float:
        """A bound; what ``parts`` waste of the units, together they are taken to waste, too."""
        done = least = 0.0
        for part in parts if usable() else ():
            found, busy = self._schedule(part), self._least_of(part)
            if found is not None and busy is not None:
                done, least = done + found.best.busy, least + busy.busy
        bound = self._least_of(group)
        return math.inf if bound is None else bound.seconds(self.target, max(1.0, done / least) if least else 1.0)

    def _schedule(self, group: KernelGroup) -> Scheduled | None:
        """The group's schedule, None where it has none."""
        if id(group) not in self._scheduled:
            found = None
            with suppress(OptionError, ScheduleError):
                found = schedule(group, self.target, disable=self.disable, deadline=self.deadline)
            self._scheduled[id(group)] = group, found
            self._known[essence(group)] = math.inf if found is None else found.predicted_seconds
        return self._scheduled[id(group)][1]

    def _least_of(self, group: KernelGroup) -> Least | None:
        if id(group) not in self._least:
            found = None
            with suppress(ScheduleError):
                found = least_of(group, self.target)
            self._least[id(group)] = group, found
        return self._least[id(group)][1]

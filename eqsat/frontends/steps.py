"""Python's ``for … in range(…)`` over many steps, while a function is traced: one step stands for those like it.

The first steps are traced as they are. When what the loop's code can reach is the same from one step to another, up to
values of arrays (:mod:`eqsat.frontends.loop_state`), these steps are run once more, on arrays that stand for the values
before any of them. If that leaves the same state again, so does every step, for the loop's code is a function of it:
what was traced is the body of a :class:`~eqsat.ir.loop.Loop` of all steps but the last ones, which are traced as
they are. Whatever goes wrong on the way, the function is traced again, with that loop step by step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from eqsat.frontends.loop_code import LoopCode, loop_code, range_loops
from eqsat.frontends.loop_state import State, Unseen
from eqsat.frontends.memory import LEVEL
from eqsat.frontends.numbered import LEAST_NUMBERED, Numbered, Site, Unlike
from eqsat.frontends.pytree import Static
from eqsat.frontends.traced_loops import Closing, TracedBody, fresh_input, on_users_line
from eqsat.frontends.tracing import CURRENT, Trace
from eqsat.ir.loop import Loop, loop
from eqsat.ir.node import Node, topological
from eqsat.ir.stretches import LEAST_TRIPS

LEAST_STEPS = 128
"""Of a loop whose steps are not all traced."""
OBSERVED = 10
"""Steps that are traced before one has to be like another."""
PERIODS = 4
"""Steps after which the arrays of a loop have changed places in turn and are where they were, at most."""

GET_ITER_BYTES = 2
"""Of the instruction before the loop's head."""


class Retraced(Exception):
    """The function is to be traced again, with the loops ``barred`` step by step."""

    def __init__(self, barred: frozenset[object], soon: frozenset[object] = frozenset()) -> None:
        super().__init__()
        self.barred, self.soon = barred, soon


class Steps:
    """What ``range`` makes where ``for`` runs over it."""

    __slots__ = ("_numbers",)

    def __init__(self, *args: Any) -> None:
        (only,) = args if len(args) == 1 else (None,)
        self._numbers = only if isinstance(only, range) else range(*args)

    def __reversed__(self) -> Steps:
        return Steps(self._numbers[::-1])

    def __iter__(self) -> Iterator[Any]:
        trace = CURRENT.get()
        frame = sys._getframe(1)
        if trace is None or LEVEL.get() or (len(self._numbers) < LEAST_NUMBERED and trace.numbered is None):
            return iter(self._numbers)
        site = frame.f_code, frame.f_lasti + GET_ITER_BYTES
        code = None if site in trace.barred else loop_code(*site)
        if code is None:
            return iter(self._numbers)
        if trace.numbered is not None:
            return trace.numbered.inside(self._numbers, site, code)
        if code.numbered:
            return Numbered(self._numbers, trace, site, code)
        long = len(self._numbers) >= LEAST_STEPS
        return _Iterator(self._numbers, trace, site, code) if long else iter(self._numbers)


def shown_range(frame: FrameType) -> Any:
    """What the name ``range`` means where this frame reads it."""
    return Steps if frame.f_lasti in range_loops(frame.f_code) else range


@dataclass
class _Standing:
    """The steps that stand for others: what was before them, whose values they change and what stood for these."""

    period: int
    trips: int
    first: State
    state: State
    changed: list[int]
    before: list[Node]
    inputs: list[Node]


class _Iterator:
    """The numbers of the steps."""

    def __init__(self, numbers: range, trace: Trace, site: Site, code: LoopCode) -> None:
        self._numbers, self._trace, self._site, self._code = numbers, trace, site, code
        self._next = 0
        self._states: list[State] | None = []
        self._standing: _Standing | None = None
        self._left = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._standing is not None:
            if self._left:
                self._left -= 1
                return self._numbers[self._next]  # which is not read
            self._close(self._standing, sys._getframe(1))
        elif self._states is not None and self._observe(sys._getframe(1)):
            return self._numbers[self._next]
        if self._next == len(self._numbers):
            raise StopIteration
        self._next += 1
        return self._numbers[self._next - 1]

    def _observe(self, frame: FrameType) -> bool:
        """Note what the next step begins with; whether it is one that stands for others."""
        assert self._states is not None
        if self._next > OBSERVED:
            self._states = None
            return False
        try:
            self._states.append(State(frame, self._code, self._trace))
        except Unseen:
            self._states = None
            return False
        *earlier, now = self._states
        for period in range(1, min(PERIODS, len(earlier)) + 1):
            if _same(earlier[-period], now, earlier[0]):
                trips = (len(self._numbers) - self._next - 1) // period
                return self._stand(earlier[0], now, earlier[-period], period, trips)
        return False

    def _stand(self, first: State, now: State, then: State, period: int, trips: int) -> bool:
        changed = [
            n
            for n, (new, old) in enumerate(zip(now.memories, then.memories, strict=True))
            if new.known is None and (new is not old or now.versions[n] != then.versions[n])
        ]
        self._states = None
        memories = [now.memories[n] for n in changed]
        before = [memory.node for memory in memories]
        if not changed or trips < LEAST_TRIPS or any(node.dtype.kind == "complex" for node in before):
            return False
        inputs = [fresh_input(node.type) for node in before]
        for memory, node in zip(memories, inputs, strict=True):
            memory.become(node)
        now.versions = [memory.version for memory in now.memories]
        self._trace.standing.append(self._site)
        self._standing = _Standing(period, trips, first, now, changed, before, inputs)
        self._left = period - 1
        return True

    def _close(self, standing: _Standing, frame: FrameType) -> None:
        """What follows has the values after all steps that these stood for."""
        before = standing.state
        try:
            after = State(frame, self._code, self._trace)
        except Unseen:
            raise Unlike from None
        if not _same(before, after, standing.first):
            raise Unlike
        changed = [after.memories[n] for n in standing.changed]
        for n, (new, old) in enumerate(zip(after.memories, before.memories, strict=True)):
            same = new is old and after.versions[n] == before.versions[n]
            if n not in standing.changed and new.known is None and not same:
                raise Unlike
        outputs = [memory.node for memory in changed]
        used = set(topological(outputs))
        # What is written anew before it is read is not carried: the steps that follow write it, too.
        kept = [n for n, node in enumerate(standing.inputs) if node in used]
        body = TracedBody([standing.inputs[n] for n in kept], [], Static(None), [], Static(None), [])
        with on_users_line():
            closing = Closing(body, standing.trips, False, [], None)
            graph = closing.graph([outputs[n] for n in kept])
            made = Loop(standing.trips, graph, len(kept), tuple(closing.steps))
            results = loop(made, [*(standing.before[n] for n in kept), *closing.others])
        for n, (memory, node) in enumerate(zip(changed, standing.before, strict=True)):
            memory.become(results[kept.index(n)] if n in kept else node)
        self._trace.standing.remove(self._site)
        self._trace.stood.append(self._site)
        self._standing = None
        self._next += standing.period * standing.trips


def _same(state: State, other: State, first: State) -> bool:
    """Whether two steps begin with the same, and what was there before the ``first`` is where it was."""
    if state.token != other.token:
        return False
    old = {id(value) for value in first.objects}
    return all(
        a is b or (id(a) not in old and id(b) not in old) for a, b in zip(state.objects, other.objects, strict=True)
    )

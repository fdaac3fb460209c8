"""Steps of a ``for … in range(…)`` that read their number, where the lengths of what they work on change with it.

Each step is traced on arrays that stand for the values before it, so that its trace does not grow with the steps that
came before; so is each step of a loop inside of it. Those that are alike but for lengths, offsets and constants are
trips of one loop (:mod:`eqsat.ir.ragged`). Arrays that a step may read are seen as in :mod:`eqsat.frontends.steps`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any

from eqsat.deadline import NEVER, Pace
from eqsat.frontends.loop_code import LoopCode
from eqsat.frontends.loop_state import State, Unseen
from eqsat.frontends.memory import Memory
from eqsat.frontends.traced_loops import fresh_input, on_users_line
from eqsat.frontends.tracing import Trace
from eqsat.ir.node import Node
from eqsat.ir.ragged import Segment, Unfit, ragged, stepped
from eqsat.ir.types import TensorType

__all__ = ["LEAST_NUMBERED", "Numbered", "Unlike"]

Site = tuple[CodeType, int]

LEAST_NUMBERED = 32
"""Steps of a loop of which this is tried."""
OBSERVED = 6
"""Steps that are traced before two have to begin with arrays of the same types."""
EARLY = 6
"""Steps among which two that follow each other have to be alike but for lengths."""


class Unlike(BaseException):
    """Steps were taken for alike that are not, or may not be.

    ``soon``: a loop whose steps may be so from the second on.
    """

    def __init__(self, soon: object = None) -> None:
        super().__init__()
        self.soon = soon


class Numbered:
    """The numbers of the steps."""

    def __init__(self, numbers: range, trace: Trace, site: Site, code: LoopCode) -> None:
        self._numbers, self._trace, self._site, self._code = numbers, trace, site, code
        self._next = 0
        self._states: list[State] = []
        self._marks: list[int] = []
        self._watching = True
        self._before: list[Node] = []
        self._points: dict[Site, tuple[Node, ...]] = {}
        self._at: tuple[Node, ...] = ()
        self._steps: list[list[Segment]] = []
        self._within = False
        self._pace = Pace("tracing", 0, NEVER)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._at:
            self._end_step(sys._getframe(1))
        elif self._watching:
            self._observe(sys._getframe(1))
        if self._next == len(self._numbers):
            raise StopIteration
        self._next += 1
        return self._numbers[self._next - 1]

    def inside(self, numbers: range, site: Site, code: LoopCode) -> Iterator[Any]:
        """The numbers of a loop in a step, each step of which is traced by itself, too."""
        if self._within or site[0] is not self._site[0]:
            yield from numbers
            return
        self._within = True
        variables = {*self._code.live, *code.live} - {self._code.target, code.target}
        both = replace(code, variables=tuple(sorted(variables)))
        for number in numbers:
            self._cut(sys._getframe(1), site, both)
            yield number
        self._cut(sys._getframe(1), site, both)
        self._within = False

    def _observe(self, frame: FrameType) -> None:
        """Note what the next step begins with. Where no step is like the one before it, the function is traced again,
        and arrays begin to stand for others as soon as they may."""
        self._marks.append(len(self._trace.nodes))
        try:
            self._states.append(State(frame, self._live_code(), self._trace))
        except Unseen:
            self._watching = False
            return
        again = len(self._states) > 1 and _types(self._states[-2]) == _types(self._states[-1])
        if again and self._site in self._trace.soon:
            self._watching = False
            self._begin()
        elif len(self._states) > 2:
            differ = self._seen(-3) != self._seen(-2)
            self._watching = differ and self._next <= OBSERVED
            if differ and again and len(self._states) > 3:
                raise Unlike(self._site)

    def _seen(self, step: int) -> Counter[TensorType]:
        """The types of what was computed from one mark to the next."""
        return Counter(node.type for node in self._trace.nodes[self._marks[step] : self._marks[step + 1]])

    def _live_code(self) -> LoopCode:
        return replace(self._code, variables=self._code.live)

    def _begin(self) -> None:
        memories = _traced(self._states[-1])
        self._before = [memory.node for memory in memories]
        if not memories or any(node.dtype.kind == "complex" for node in self._before):
            return
        self._trace.standing.append(self._site)
        self._trace.numbered = self
        self._pace = Pace("tracing", len(self._numbers) - self._next, self._trace.deadline)
        self._steps.append([])
        self._stand(memories, self._site)

    def _stand(self, memories: list[Memory], site: Site) -> None:
        """Let arrays have the values that stand for others at a point of the code."""
        if site not in self._points:
            self._points[site] = tuple(fresh_input(memory.node.type) for memory in memories)
        self._at = self._points[site]
        if [memory.node.type for memory in memories] != [node.type for node in self._at]:
            raise Unlike
        for memory, node in zip(memories, self._at, strict=True):
            if memory.node is not node:
                memory.become(node)

    def _cut(self, frame: FrameType, site: Site, code: LoopCode) -> list[Memory]:
        """End a segment, and begin another one, at a point of the code."""
        try:
            memories = _traced(State(frame, code, self._trace))
        except Unseen:
            raise Unlike from None
        self._steps[-1].append(Segment(self._at, tuple(memory.node for memory in memories)))
        self._stand(memories, site)
        return memories

    def _end_step(self, frame: FrameType) -> None:
        """Note what a step has made of its inputs; the last one is traced as it is, for variables that it leaves."""
        memories = self._cut(frame, self._site, self._live_code())
        self._within = False
        if len(self._steps) == EARLY and not ragged(self._steps):
            raise Unlike
        self._pace.step()
        if self._next < len(self._numbers) - 1:
            self._steps.append([])
            return
        with on_users_line():
            try:
                results = stepped(self._before, self._steps)
            except Unfit:
                raise Unlike from None
        for memory, node in zip(memories, results, strict=True):
            memory.become(node)
        self._trace.standing.remove(self._site)
        self._trace.numbered = None
        self._trace.stood.append(self._site)
        self._at = ()


def _traced(state: State) -> list[Memory]:
    """The memories whose values are not known."""
    return [memory for memory in state.memories if memory.known is None]


def _types(state: State) -> list[TensorType | None]:
    return [memory.type for memory in _traced(state)]

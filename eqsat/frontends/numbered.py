"""Steps of a ``for … in range(…)`` that read their number, where the lengths of what they work on change with it.

Each step is traced on arrays that stand for the values before it, so that its trace does not grow with the steps that
came before. Those that are alike but for lengths, offsets and constants are trips of one loop
(:mod:`eqsat.ir.padded`). That holds for what the loop's code can reach, as in :mod:`eqsat.frontends.steps`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from eqsat.frontends.loop_code import LoopCode
from eqsat.frontends.loop_state import State, Unseen
from eqsat.frontends.traced_loops import fresh_input, on_users_line
from eqsat.frontends.tracing import Trace
from eqsat.ir.node import Node
from eqsat.ir.padded import Unfit, signature, stepped

__all__ = ["LEAST_NUMBERED", "Numbered", "Unlike", "same"]

LEAST_NUMBERED = 32
"""Steps of a loop of which this is tried."""
OBSERVED = 6
"""Steps that are traced before two have to begin with the same."""
EARLY = 6
"""Steps among which two that follow each other have to be alike."""


class Unlike(BaseException):
    """Steps were taken for alike that are not, or may not be."""


def same(state: State, other: State, first: State) -> bool:
    """Whether two steps begin with the same, and what was there before the ``first`` is where it was."""
    if state.token != other.token:
        return False
    old = {id(value) for value in first.objects}
    return all(
        a is b or (id(a) not in old and id(b) not in old) for a, b in zip(state.objects, other.objects, strict=True)
    )


class Numbered:
    """The numbers of the steps."""

    def __init__(self, numbers: range, trace: Trace, site: object, code: LoopCode) -> None:
        self._numbers, self._trace, self._site, self._code = numbers, trace, site, code
        self._next = 0
        self._states: list[State] = []
        self._marks: list[int] = []
        self._watching = True
        self._before: list[Node] = []
        self._inputs: list[Node] = []
        self._steps: list[list[Node]] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._inputs:
            self._end_step(sys._getframe(1))
        elif self._watching:
            self._observe(sys._getframe(1))
        if self._next == len(self._numbers):
            raise StopIteration
        self._next += 1
        return self._numbers[self._next - 1]

    def _observe(self, frame: FrameType) -> None:
        """Note what the next step begins with, and begin to let arrays stand for others where it is time."""
        self._marks.append(len(self._trace.nodes))
        try:
            self._states.append(State(frame, self._code, self._trace))
        except Unseen:
            self._watching = False
            return
        if len(self._states) > 2 and same(self._states[-2], self._states[-1], self._states[0]):
            self._watching = False
            if self._ragged():
                self._begin()
        elif self._next > OBSERVED:
            self._watching = False

    def _ragged(self) -> bool:
        """Whether each of the last two steps had values of types that the other had not."""
        a, b, c = self._marks[-3:]
        one, other = ({node.type for node in self._trace.nodes[i:j]} for i, j in ((a, b), (b, c)))
        return bool(one - other) and bool(other - one)

    def _begin(self) -> None:
        memories = [memory for memory in self._states[-1].memories if memory.known is None]
        self._before = [memory.node for memory in memories]
        if not memories or any(node.dtype.kind == "complex" for node in self._before):
            return
        self._inputs = [fresh_input(node.type) for node in self._before]
        self._trace.standing.append(self._site)
        self._become(self._states[-1], self._inputs)

    def _become(self, state: State, nodes: list[Node]) -> None:
        traced = [memory for memory in state.memories if memory.known is None]
        for memory, node in zip(traced, nodes, strict=True):
            if memory.node is not node:
                memory.become(node)

    def _end_step(self, frame: FrameType) -> None:
        """Note what a step has made of its inputs; the last one is traced as it is, for variables that it leaves."""
        try:
            after = State(frame, self._code, self._trace)
        except Unseen:
            raise Unlike from None
        if not same(self._states[-1], after, self._states[0]):
            raise Unlike
        outputs = [memory.node for memory in after.memories if memory.known is None]
        if [node.type for node in outputs] != [node.type for node in self._inputs]:
            raise Unlike
        self._steps.append(outputs)
        if len(self._steps) == EARLY:
            keys = [signature(step) for step in self._steps]
            if all(one != other for one, other in itertools.pairwise(keys)):
                raise Unlike
        if self._next < len(self._numbers) - 1:
            self._become(after, self._inputs)
            return
        with on_users_line():
            try:
                results = stepped(self._inputs, self._before, self._steps)
            except Unfit:
                raise Unlike from None
        self._become(after, results)
        self._trace.standing.remove(self._site)
        self._trace.stood.append(self._site)
        self._inputs = []

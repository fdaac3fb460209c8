"""One run of a user's function on traced arrays: what was made, what was asked, what stands for values outside."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.deadline import NEVER, Deadline
from eqsat.frontends.guards import Guard
from eqsat.ir.node import Node
from eqsat.scoped import Scoped

if TYPE_CHECKING:
    from eqsat.frontends.numbered import Numbered
    from eqsat.frontends.tracer import TracedArray


class Trace:
    """One run of a user's function, on the thread that makes this; traced arrays belong to one.

    ``disorderly``: some array's elements are not in row-major order in NumPy's memory. ``rows``: what is written where
    depends on arguments being in that order. ``file``: the function's. ``nodes``: values of its arrays in the order in
    which they were made. ``values`` are those of the inputs in the call that is traced, and of what was learned by
    running functions on them. ``shown``: what stands for a value from outside, such as a helper function, and
    ``inside`` for the one that is traced; ``original``: what such a stand-in was made of. ``bound``: how many inputs
    bodies of loops were given.
    ``barred``: loops whose steps are all traced; ``soon``: whose steps differ in lengths, it seems; ``standing``:
    those of which one step is traced for others just now,
    ``stood``: of which one was. ``numbered``: the loop whose steps are just now traced by themselves, each of them.
    ``guards``: values that Python asked for, which the trace is for; None where it may not.
    """

    __slots__ = (
        "barred", "bound", "deadline", "disorderly", "file", "guards", "inside", "nodes", "numbered",
        "original", "rows", "shown", "soon", "standing", "stood", "thread", "values",
    )  # fmt: skip

    def __init__(
        self, deadline: Deadline = NEVER, values: dict[Node, np.ndarray] | None = None, *, guarded: bool = False
    ) -> None:
        self.deadline = deadline
        self.nodes: list[Node] = []
        self.bound = 0
        self.barred: frozenset[object] = frozenset()
        self.soon: frozenset[object] = frozenset()
        self.standing: list[object] = []
        self.stood: list[object] = []
        self.numbered: Numbered | None = None
        self.thread = get_ident()
        self.disorderly = False
        self.file = ""
        self.shown: Callable[[Any], Any] = lambda value: value
        self.inside: Callable[[Any], Any] = lambda value: value
        self.rows = False
        self.original: Callable[[Any], Any] = lambda value: value
        self.values = {} if values is None else values
        self.guards: list[Guard] | None = [] if guarded else None


CURRENT: Scoped[Trace | None] = Scoped(None)


class Unsized:
    """An array whose number of elements depends on values, and is not asked for yet."""

    __slots__ = ()

    def array(self) -> TracedArray:
        """The array, of the size that it has in the call that is traced; refused where a trace may not be for that."""
        raise NotImplementedError

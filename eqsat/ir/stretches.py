"""Where operators of a trace repeat: stretches in which, at a distance of one period, the same ones come again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir.identity import identity
from eqsat.ir.node import Graph, Node
from eqsat.ir.views import ViewMap

LEAST_TRIPS = 8
"""Trips of a loop at least; fewer steps that are alike stay one after the other."""
LEAST_NODES = 192
"""Operators that its trips have together at least: shorter programs are searched as a whole, across iterations."""


@dataclass(frozen=True)
class Least:
    """What a repetition has at least to become a loop; None: ``LEAST_TRIPS``, ``LEAST_NODES``."""

    trips: int | None = None
    nodes: int | None = None
    times: int = 1
    """How often the graph runs, as the body of a loop: its operators count as often."""

    def enough(self, trips: int) -> bool:
        return trips >= (LEAST_TRIPS if self.trips is None else self.trips)

    @property
    def run(self) -> int:
        """Operators of the graph's own."""
        return -(-(LEAST_NODES if self.nodes is None else self.nodes) // self.times)


LONG = Least()
"""Of loops that are taken without planning the program across iterations."""
SHORT = Least(4, 24)
"""Of loops that may be better than the program across iterations, or worse: both have to be planned."""
PERIODS = 64
"""Distances between equal operators that are tried as a period: those of most operators first."""


def in_order(graph: Graph, order: Sequence[Node], least: Least) -> list[Node]:
    """Operators that the graph needs, operands before users, otherwise in the order given."""
    needed = graph.nodes()
    wanted = set(needed)
    found: dict[Node, None] = {}
    for node in (*(n for n in order if n in wanted), *needed):
        stack = [node]
        while stack:
            missing = [i for i in stack[-1].inputs if i not in found]
            if missing:
                stack.append(missing[0])
            else:
                found[stack.pop()] = None
    users = Counter(operand for node in found for operand in set(node.inputs))
    hoisted: dict[Node, None] = {}
    for node in found:  # what all iterations read is traced in the first one
        if all(operand in hoisted for operand in node.inputs) and (not node.inputs or least.enough(users[node])):
            hoisted[node] = None
    return [node for node in (*hoisted, *(n for n in found if n not in hoisted)) if node.inputs]


def _label(node: Node) -> Hashable:
    """What iterations have in common: an operator up to the offset of a view, its type and its operands' types."""
    attrs: Hashable = node.attrs.axes if isinstance(node.attrs, ViewMap) else identity(node.attrs)
    return node.op, attrs, node.type, tuple(operand.type for operand in node.inputs)


def repeated(sequence: Sequence[Node], least: Least) -> Iterator[tuple[int, int, int]]:
    """Places from and to which operators repeat, and their period: those of most operators first."""
    numbers: dict[Hashable, int] = {}
    labels = np.array([numbers.setdefault(_label(node), len(numbers)) for node in sequence])
    places: dict[int, list[int]] = defaultdict(list)
    for position, label in enumerate(labels.tolist()):
        places[label].append(position)
    periods: Counter[int] = Counter()
    for at in places.values():
        for n in (1, 2, 3, 4, 5, 6, 8):  # an operator may be so many times in one iteration
            apart = np.subtract(at[n:], at[:-n])
            if least.enough(apart.size + 1):
                values, counts = np.unique(apart, return_counts=True)
                periods[int(values[counts.argmax()])] += 1
    found = []
    for period, _ in periods.most_common(PERIODS):
        same = np.flatnonzero(np.diff(np.concatenate([[0], labels[:-period] == labels[period:], [0]]).astype(np.int8)))
        for start, end in zip(same[::2].tolist(), same[1::2].tolist(), strict=True):
            length = end - start + period
            if length >= least.run and least.enough(length // period):
                found.append((start, start + length, period))
    yield from sorted(found, key=lambda run: (run[0] - run[1], run[2], run[0]))

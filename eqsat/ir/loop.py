"""Loops in graphs: a body that runs many times, what it carries from trip to trip, and where each reads and writes.

As in JAX's ``scan`` and XLA's ``While``, the body is a graph of its own, searched and compiled once. Unlike theirs, it
may read tensors from outside through *windows* that move by a number of elements on every trip: ``x[t]``, ``x[t + 1:]``
and ``x[:, t]`` are views of a window, so that nothing is copied and the address is all that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eqsat.ir.node import Formed, Graph, Node, remade
from eqsat.ir.table import Op, make, register
from eqsat.ir.types import TensorType

__all__ = [
    "ENDLESS",
    "EXPECTED",
    "TRIAL",
    "Loop",
    "LoopResult",
    "loop",
    "of_loop",
    "results",
    "runs_of",
    "trial_trips",
    "window",
    "with_bodies",
    "with_loops",
]

TRIAL = 16
"""Trips that loops are tried for are this many at least, where there are more than twice as many."""

EXPECTED = 100
"""Trips of a loop whose number depends on values, where a number is asked for before it is known."""
ENDLESS = 1 << 62


def trial_trips(trips: int, copies: int = 1) -> int:
    """How many of its trips a loop is tried for: all of few; of many some, as even or odd as all.

    Equal for numbers of trips only that differ by a multiple of ``TRIAL``, so that a loop of another number is found.
    ``copies``: of the body that is meant, in each trip; as many of these are run.
    """
    some = TRIAL // copies
    return trips if trips <= 2 * some else some + trips % some


def runs_of(trips: int, conditional: bool, tried: bool, copies: int = 1) -> int:
    """How many trips of a loop are run, at most where they are conditional."""
    if conditional:
        return 2 * TRIAL if tried else ENDLESS
    return trial_trips(trips, copies) if tried else trips


@dataclass(frozen=True)
class Loop:
    """``trips`` runs of ``body``, at least one.

    The body's inputs are the ``carries`` values that the trip before left (its first outputs; before the first trip,
    the first operands of the loop), then a window of each other operand. ``steps[i]``: elements of the operand's
    flat row-major memory by which its window moves on a trip, 0 where the body reads the operand as it is. A window
    that moves is a vector: it begins at 0 on the first trip, or ends at the operand's end if it moves backwards.
    Outputs of the body behind the carries are stacked: the loop's result has an axis of ``trips`` before theirs.
    ``tried``: what is meant is a trial (:func:`trial_trips`), where nothing is stacked; windows begin where they do.
    ``conditional``: there are as many trips as the first carried value, a bool, holds at the beginning of; nothing is
    stacked, no window moves, and ``trips`` are what is expected.
    ``copies``: how many trips of the loop that is meant are in ``body``, one after the other.
    ``parts``: its trips are parts of what is meant as one step, so all of them are run wherever any is.
    """

    trips: int
    body: Graph
    carries: int
    steps: tuple[int, ...]
    tried: bool = False
    conditional: bool = False
    copies: int = 1
    parts: bool = False

    @cached_property
    def name(self) -> str:
        """Equal for equal loops, and for no others."""
        tried = " tried" * self.tried + " while" * self.conditional + f" of {self.copies}" * (self.copies > 1)
        tried += " in parts" * self.parts
        return f"{self.trips} trips{tried} of {self.body.key()}, {self.carries} carried, by {self.steps}"

    @property
    def stacks(self) -> bool:
        return len(self.body.outputs) > self.carries

    @property
    def runs(self) -> int:
        """Trips that are run, at most where they are conditional."""
        return runs_of(self.trips, self.conditional, self.tried and self.shortens, self.copies)

    @property
    def shortens(self) -> bool:
        """Whether a trial may run fewer trips."""
        return not (self.stacks or self.parts)

    @property
    def operands(self) -> int:
        return self.carries + len(self.steps)

    def window_type(self, number: int, operand: TensorType) -> TensorType:
        """What the body sees of operand ``number`` behind the carries.

        Raises:
            ValueError: its window would leave the operand.
        """
        step = self.steps[number]
        if not step:
            return operand
        size = operand.size - (self.trips - 1) * abs(step)
        if size < 1:
            raise ValueError(f"a window of {operand} that moves by {step} elements on each of {self.trips} trips")
        return TensorType((size,), operand.dtype)

    def result_types(self) -> list[TensorType]:
        """Of the values carried out of the last trip, then of the stacked outputs."""
        types = [node.type for node in self.body.outputs]
        stacked = [TensorType((self.trips, *t.shape), t.dtype) for t in types[self.carries :]]
        return [*types[: self.carries], *stacked]

    def __repr__(self) -> str:
        return f"Loop({self.name})"


@dataclass(frozen=True)
class LoopResult:
    """Attributes of a ``loop`` node: result ``index`` of a loop. Nodes of one loop have the same inputs."""

    loop: Loop
    index: int


def window(array: np.ndarray, step: int, trips: int, trip: int) -> np.ndarray:
    """What the body sees of an operand on a trip."""
    if not step:
        return array
    size = array.size - (trips - 1) * abs(step)
    start = trip * step if step > 0 else (trips - 1 - trip) * -step
    return array.reshape(-1)[start : start + size]


def loop(loop: Loop, operands: Sequence[Node]) -> list[Node]:
    """The results of a loop over its operands: values carried out of the last trip, then the stacked outputs."""
    return [make("loop", operands, LoopResult(loop, n)) for n in range(len(loop.body.outputs))]


def of_loop(node: Node) -> Loop | None:
    """The loop that a node is a result of."""
    return node.attrs.loop if isinstance(node.attrs, LoopResult) else None


def with_bodies(graph: Graph) -> list[Node]:
    """The graph's nodes, then those of its loops' bodies, in an order that the graph alone decides."""
    nodes = graph.nodes()
    loops = dict.fromkeys(node.attrs.loop for node in nodes if isinstance(node.attrs, LoopResult))
    return [*nodes, *(node for each in loops for node in with_bodies(each.body))]


def with_loops(
    graph: Graph, results: Callable[[Node, tuple[Node, ...]], list[Node]], origins: dict[Node, Node]
) -> Formed | None:
    """The graph with other results of its loops, not of those in their bodies; None where all are the same.

    ``results``: what stands for all results of the loop that a node is one of, given the loop's operands, which may be
    other ones by then. ``origins``: what new nodes stand for, to which those of the graph itself are added.
    """
    done: dict[Node, Node] = {}
    loops: dict[tuple[Loop, tuple[Node, ...]], list[Node]] = {}
    for node in graph.nodes():
        inputs, whole = tuple(done[i] for i in node.inputs), of_loop(node)
        if whole is None:
            done[node] = remade(node, inputs)
        else:
            assert isinstance(node.attrs, LoopResult)
            if (whole, node.inputs) not in loops:
                loops[whole, node.inputs] = results(node, inputs)
            done[node] = loops[whole, node.inputs][node.attrs.index]
        if done[node] is not node:
            origins.setdefault(done[node], node)
    outputs = tuple(done[o] for o in graph.outputs)
    return Formed(Graph(graph.inputs, outputs, graph.names), origins) if outputs != graph.outputs else None


def _type(types: Sequence[TensorType], attrs: object) -> TensorType:
    assert isinstance(attrs, LoopResult)
    loop, body = attrs.loop, attrs.loop.body
    if loop.trips < 1 or len(body.inputs) != loop.operands or len(types) != loop.operands:
        raise ValueError(f"{len(types)} operands for a loop of {loop.trips} trips with {loop.operands} of them")
    seen = [
        *types[: loop.carries],
        *(loop.window_type(n, t) for n, t in enumerate(types[loop.carries :])),
    ]
    for number, (given, node) in enumerate(zip(seen, body.inputs, strict=True)):
        if given != node.type:
            raise ValueError(f"operand {number} of a loop is {given}, its body takes {node.type}")
    for number, (before, after) in enumerate(zip(body.inputs[: loop.carries], body.outputs, strict=False)):
        if before.type != after.type:
            raise ValueError(f"a loop carries {before.type} into a trip as value {number}, and {after.type} out of it")
    return loop.result_types()[attrs.index]


def results(loop: Loop, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All results of a loop on these values, computed in float64 where its body takes others and they are that."""
    from eqsat.ir.evaluate import evaluate_loop

    types = (node.dtype.numpy for node in loop.body.inputs)
    double = any(a.dtype == np.float64 != dtype for a, dtype in zip(arrays, types, strict=True))
    return evaluate_loop(loop, arrays, double=double)


def _reference(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, LoopResult)
    return results(attrs.loop, arrays)[attrs.index]


register(Op("loop", "loop", _type, _reference, doc="one result of a loop: see eqsat.ir.loop"))

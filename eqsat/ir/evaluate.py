"""The reference interpreter: NumPy, node by node, in the types of the program or in float64."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from eqsat.deadline import NEVER, Deadline
from eqsat.ir.loop import Loop, LoopResult, window
from eqsat.ir.node import Graph, Node, topological
from eqsat.ir.opaque import Result
from eqsat.ir.sources import InputAttrs
from eqsat.ir.table import OPS


def evaluate_nodes(
    outputs: Sequence[Node],
    bound: Mapping[Node, np.ndarray],
    *,
    double: bool = False,
    deadline: Deadline = NEVER,
) -> list[np.ndarray]:
    """Values of the outputs. ``bound`` gives nodes' values; with ``double``, floats are computed as float64.

    Raises ``OutOfTime`` before the first operator after ``deadline``.

    Floating-point warnings are silenced: NaN and inf are results like any other.
    """
    return _Order(outputs, bound).run(bound, double, deadline)


def evaluator(outputs: Sequence[Node]) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """What computes the outputs of the inputs' arrays, by their index, again and again: their order is found once."""
    order = _Order(outputs)
    inputs = [(node, node.attrs.index) for node, *_ in order.steps if isinstance(node.attrs, InputAttrs)]

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return order.run({node: arrays[index] for node, index in inputs}, False, NEVER)

    return run


class _Order:
    """What the outputs need beside ``given`` nodes, in order, and which values nobody needs after each."""

    def __init__(self, outputs: Sequence[Node], given: Collection[Node] = ()) -> None:
        self.outputs = outputs
        made = topological(outputs, given)
        used = dict.fromkeys([*outputs, *(operand for node in made for operand in node.inputs)])
        self.steps = [
            (node, node.inputs, node.dtype.is_float, node.dtype.numpy)
            for node in (*(node for node in used if node in given), *made)
        ]
        last: dict[Node, Node] = {operand: node for node in made for operand in node.inputs}
        keep = set(outputs)
        self.dead: dict[Node, list[Node]] = {}
        for operand, node in last.items():
            if operand not in keep:
                self.dead.setdefault(node, []).append(operand)

    def run(self, bound: Mapping[Node, np.ndarray], double: bool, deadline: Deadline) -> list[np.ndarray]:
        values: dict[Node, np.ndarray] = {}
        together: dict[object, list[np.ndarray]] = {}
        with np.errstate(all="ignore"):
            for node, inputs, is_float, dtype in self.steps:
                deadline.check("evaluating the reference")
                value = bound.get(node)
                if value is None:
                    value = _value(node, [values[i] for i in inputs], together, double, deadline)
                if is_float and double:
                    value = value.astype(np.float64, copy=False)
                elif value.dtype != dtype:
                    value = value.astype(dtype)
                values[node] = value
                for operand in self.dead.get(node, ()):
                    del values[operand]
        return [values[o] for o in self.outputs]


def _value(
    node: Node,
    operands: list[np.ndarray],
    together: dict[object, list[np.ndarray]],
    double: bool,
    deadline: Deadline,
) -> np.ndarray:
    """``together``: all results of the loops and calls of which one is known."""
    if isinstance(node.attrs, LoopResult):
        key: object = (node.attrs.loop, node.inputs)
        if key not in together:
            together[key] = evaluate_loop(node.attrs.loop, operands, double=double, deadline=deadline)
        return together[key][node.attrs.index]
    if isinstance(node.attrs, Result):
        key = (node.attrs.call, node.inputs)
        if key not in together:
            together[key] = node.attrs.call.run(operands)
        return together[key][node.attrs.number]
    if double and OPS[node.op].sorts and node.dtype.kind == "int":  # which of equals comes first is the type's
        operands = [v.astype(i.dtype.numpy, copy=False) for v, i in zip(operands, node.inputs, strict=True)]
    return OPS[node.op].reference(operands, node.attrs)


def evaluate_loop(
    loop: Loop,
    operands: Sequence[np.ndarray],
    run: Callable[[Mapping[Node, np.ndarray], int], list[np.ndarray]] | None = None,
    *,
    double: bool = False,
    deadline: Deadline = NEVER,
) -> list[np.ndarray]:
    """All results of a loop (see :func:`eqsat.ir.loop.loop`); arguments as those of :func:`evaluate_nodes`.

    ``run``: what computes a trip's results of the values of the body's inputs, where this module does not.
    """
    carried, others = list(operands[: loop.carries]), operands[loop.carries :]
    stacked: list[list[np.ndarray]] = [[] for _ in loop.body.outputs[loop.carries :]]
    body = _Order(loop.body.outputs)
    for trip in range(loop.runs):
        if loop.conditional and not carried[0]:
            break
        bound = trip_inputs(loop, carried, others, trip)
        found = body.run(bound, double, deadline) if run is None else run(bound, trip)
        carried = found[: loop.carries]
        for rows, value in zip(stacked, found[loop.carries :], strict=True):
            rows.append(np.array(value))
    return [*carried, *(np.stack(rows) for rows in stacked)]


def trip_inputs(
    loop: Loop, carried: Sequence[np.ndarray], others: Sequence[np.ndarray], trip: int
) -> dict[Node, np.ndarray]:
    """The values of the body's inputs on a trip: what is carried, and windows of the other operands."""
    seen = [window(np.asarray(a), step, loop.trips, trip) for a, step in zip(others, loop.steps, strict=True)]
    return dict(zip(loop.body.inputs, [*carried, *seen], strict=True))


def evaluate(graph: Graph, arrays: Sequence[np.ndarray], *, double: bool = False) -> list[np.ndarray]:
    """The program's outputs on these arguments (one per input, of the input's type)."""
    bound = {}
    for node in graph.inputs:
        assert isinstance(node.attrs, InputAttrs)
        bound[node] = np.asarray(arrays[node.attrs.index])
    return evaluate_nodes(graph.outputs, bound, double=double)

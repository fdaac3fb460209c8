"""The reference interpreter: NumPy, node by node, in the types of the program or in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from eqsat.deadline import NEVER, Deadline
from eqsat.ir.loop import Loop, LoopResult, window
from eqsat.ir.node import Graph, Node, topological
from eqsat.ir.structure import InputAttrs
from eqsat.ir.table import OPS
from eqsat.ir.types import float32


def evaluate_nodes(
    outputs: Sequence[Node],
    bound: Mapping[Node, np.ndarray],
    *,
    double: bool = False,
    deadline: Deadline = NEVER,
) -> list[np.ndarray]:
    """Values of the outputs. ``bound`` gives nodes' values; with ``double``, float32 is computed as float64.

    Raises ``OutOfTime`` before the first operator after ``deadline``.

    Floating-point warnings are silenced: NaN and inf are results like any other.
    """
    values: dict[Node, np.ndarray] = {}
    users: dict[Node, int] = {}
    order = topological(outputs)
    for node in order:
        for operand in node.inputs:
            users[operand] = users.get(operand, 0) + 1
    keep = set(outputs)
    loops: dict[tuple[Loop, tuple[Node, ...]], list[np.ndarray]] = {}
    with np.errstate(all="ignore"):
        for node in order:
            deadline.check("evaluating the reference")
            given = bound.get(node)
            if given is None:
                operands = [values[i] for i in node.inputs]
                if (
                    double and OPS[node.op].sorts and node.dtype.kind == "int"
                ):  # which of equals comes first is the type's
                    operands = [v.astype(i.dtype.numpy, copy=False) for v, i in zip(operands, node.inputs, strict=True)]
            if given is not None:
                value = given
            elif isinstance(node.attrs, LoopResult):
                key = (node.attrs.loop, node.inputs)
                if key not in loops:
                    loops[key] = evaluate_loop(node.attrs.loop, operands, double=double, deadline=deadline)
                value = loops[key][node.attrs.index]
            else:
                value = OPS[node.op].reference(operands, node.attrs)
            if node.dtype == float32 and double:
                value = value.astype(np.float64, copy=False)
            elif value.dtype != node.dtype.numpy:
                value = value.astype(node.dtype.numpy)
            values[node] = value
            for operand in node.inputs:
                users[operand] -= 1
                if users[operand] == 0 and operand not in keep:
                    del values[operand]
    return [values[o] for o in outputs]


def evaluate_loop(
    loop: Loop, operands: Sequence[np.ndarray], *, double: bool = False, deadline: Deadline = NEVER
) -> list[np.ndarray]:
    """All results of a loop (see :func:`eqsat.ir.loop.loop`); arguments as those of :func:`evaluate_nodes`."""
    carried, others = list(operands[: loop.carries]), operands[loop.carries :]
    stacked: list[list[np.ndarray]] = [[] for _ in loop.body.outputs[loop.carries :]]
    for trip in range(loop.trips):
        seen = [window(np.asarray(a), step, loop.trips, trip) for a, step in zip(others, loop.steps, strict=True)]
        bound = dict(zip(loop.body.inputs, [*carried, *seen], strict=True))
        found = evaluate_nodes(loop.body.outputs, bound, double=double, deadline=deadline)
        carried = found[: loop.carries]
        for rows, value in zip(stacked, found[loop.carries :], strict=True):
            rows.append(np.array(value))
    return [*carried, *(np.stack(rows) for rows in stacked)]


def evaluate(graph: Graph, arrays: Sequence[np.ndarray], *, double: bool = False) -> list[np.ndarray]:
    """The program's outputs on these arguments (one per input, of the input's type)."""
    bound = {}
    for node in graph.inputs:
        assert isinstance(node.attrs, InputAttrs)
        bound[node] = np.asarray(arrays[node.attrs.index])
    return evaluate_nodes(graph.outputs, bound, double=double)

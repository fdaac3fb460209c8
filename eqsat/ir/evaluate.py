"""The reference interpreter: NumPy, node by node, in the types of the program or in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from eqsat.deadline import NEVER, Deadline
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
            value = given if given is not None else OPS[node.op].reference(operands, node.attrs)
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


def evaluate(graph: Graph, arrays: Sequence[np.ndarray], *, double: bool = False) -> list[np.ndarray]:
    """The program's outputs on these arguments (one per input, of the input's type)."""
    bound = {}
    for node in graph.inputs:
        assert isinstance(node.attrs, InputAttrs)
        bound[node] = np.asarray(arrays[node.attrs.index])
    return evaluate_nodes(graph.outputs, bound, double=double)

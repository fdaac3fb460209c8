"""The values of a saturated e-graph: every e-node of a class must compute the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from eqsat.egraph.saturated import ENode, SaturatedEGraph
from eqsat.ir.node import Node
from eqsat.ir.structure import InputAttrs
from eqsat.ir.table import OPS
from eqsat.ir.types import TensorType


def _compute(node: ENode, type: TensorType, values: dict[int, np.ndarray], bound: dict[int, np.ndarray]) -> np.ndarray:
    if isinstance(node.attrs, InputAttrs):
        value = bound[node.attrs.index]
    else:
        value = np.asarray(OPS[node.op].reference([values[c] for c in node.children], node.attrs))
    if type.dtype.is_float:
        return value.astype(np.float64, copy=False)
    return value.astype(type.dtype.numpy, copy=False)


def class_values(graph: SaturatedEGraph, inputs: Mapping[Node, np.ndarray]) -> dict[int, np.ndarray]:
    """The value of every class, by its first e-node that can be computed; floats in float64.

    Composites count by their expansion, which is in the same class and is what runs.
    """
    plain = {h: [n for n in nodes if OPS[n.op].kind != "composite"] for h, nodes in graph.classes.items()}
    bound = {n.attrs.index: v for n, v in inputs.items() if isinstance(n.attrs, InputAttrs)}
    values: dict[int, np.ndarray] = {}
    with np.errstate(all="ignore"):
        while len(values) < len(graph.classes):
            before = len(values)
            for handle, nodes in plain.items():
                ready = next((n for n in nodes if all(c in values for c in n.children)), None)
                if handle not in values and ready is not None:
                    values[handle] = _compute(ready, graph.types[handle], values, bound)
            if len(values) == before:
                raise ValueError("some classes of the e-graph contain only themselves")
    return values


def disagreements(
    graph: SaturatedEGraph,
    inputs: Mapping[Node, np.ndarray],
    *,
    rule: str | None = None,
    exact: bool = False,
    lossy: bool = False,
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """E-nodes that do not compute their class's value: (term, class's value, its own value).

    Floats are computed in float64 and compared to 1e-8 of the class's largest magnitude (1e-6 in a float32 class,
    whose constants are rounded to its type), NaN against NaN; ``exact``: bit by bit, signs of zeros included, for
    e-nodes of ``rule`` and of the program; ``lossy``: only where both are finite.
    """
    bound = {n.attrs.index: v for n, v in inputs.items() if isinstance(n.attrs, InputAttrs)}
    values = class_values(graph, inputs)
    with np.errstate(all="ignore"):
        for handle, nodes in graph.classes.items():
            for node in nodes:
                found = _compute(node, graph.types[handle], values, bound)
                strict = exact and node.rule in (None, rule) and OPS[node.op].kind != "composite"
                if not _same(
                    values[handle], found, strict, lossy, 1e-6 if graph.types[handle].dtype.bits < 64 else 1e-8
                ):
                    term = f"{node.op}({', '.join(map(str, node.children))}; {node.attrs}) by {node.rule}"
                    yield term, values[handle], found


def _same(expected: np.ndarray, found: np.ndarray, exact: bool, lossy: bool, tolerance: float) -> bool:
    if expected.shape != found.shape:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(expected, found))
    if exact:
        numbers = ~np.isnan(expected)
        return bool(
            np.array_equal(expected, found, equal_nan=True)
            and np.array_equal(np.signbit(expected[numbers]), np.signbit(found[numbers]))
        )
    if lossy:
        both = np.isfinite(expected) & np.isfinite(found)
        expected, found = expected[both], found[both]
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    return bool(np.allclose(expected, found, rtol=tolerance, atol=tolerance * scale, equal_nan=True))

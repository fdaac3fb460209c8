"""What rounding may do to a program's outputs, whatever the order of evaluation.

NumPy's own error says little where it is small by luck, and nothing for float64, which is its own
reference. Monte Carlo arithmetic (Parker, 1997) asks the program itself: it is evaluated in float64 a few
times with every intermediate changed by a random relative amount of up to one unit of its type, and the
outputs' spread shows how much the program amplifies such changes (cancellation, normalisation of nearly
constant rows, long sums).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from eqsat.ir.node import Node, topological
from eqsat.ir.table import OPS
from eqsat.ir.types import float32

RUNS = 3
DISCRETE = frozenset({"floor", "ceil", "round", "sign", "floor_divide", "remainder"})
"""Operators with float results that jump: a change of their operands is not propagated through them."""


def rounding_noise(outputs: Sequence[Node], bound: Mapping[Node, np.ndarray], *, runs: int = RUNS) -> list[float]:
    """For each output the largest change (absolute; 0 for integers and bools) over ``runs`` noisy evaluations.

    ``bound`` gives the inputs' values. Positions that are not finite are left out. Deterministic.
    """
    worst = [0.0] * len(outputs)
    for changes in _changes(outputs, bound, runs):
        for number, change in enumerate(changes):
            worst[number] = max(worst[number], float(change.max(initial=0.0, where=np.isfinite(change))))
    return worst


def element_noise(outputs: Sequence[Node], bound: Mapping[Node, np.ndarray], *, runs: int = RUNS) -> list[np.ndarray]:
    """The same for every element; infinite where a value is not always finite."""
    worst = [np.zeros(node.shape) for node in outputs]
    for changes in _changes(outputs, bound, runs):
        worst = [np.maximum(w, np.where(np.isfinite(c), c, np.inf)) for w, c in zip(worst, changes, strict=True)]
    return worst


def _changes(outputs: Sequence[Node], bound: Mapping[Node, np.ndarray], runs: int) -> Iterator[list[np.ndarray]]:
    """How far each output moves in each noisy evaluation."""
    order = topological(outputs)
    clean: dict[Node, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for node in order:
            clean[node] = _evaluate(node, clean, bound)
        for run in range(runs):
            rng = np.random.default_rng(run)
            noisy: dict[Node, np.ndarray] = {}
            for node in order:
                jumps = not node.dtype.is_float or node.op in DISCRETE
                value = clean[node] if jumps else _evaluate(node, noisy, bound)
                if node.dtype.is_float:
                    unit = np.finfo(node.dtype.numpy).eps
                    value = np.asarray(value * (1.0 + unit * rng.uniform(-1.0, 1.0, value.shape)))
                noisy[node] = value
            yield [np.abs(noisy[o] - clean[o]) if o.dtype.is_float else np.zeros(o.shape) for o in outputs]


def _evaluate(node: Node, values: Mapping[Node, np.ndarray], bound: Mapping[Node, np.ndarray]) -> np.ndarray:
    """A node's value by its reference, float32 computed as float64."""
    given = bound.get(node)
    value = given if given is not None else OPS[node.op].reference([values[i] for i in node.inputs], node.attrs)
    if node.dtype == float32:
        return value.astype(np.float64, copy=False)
    return value if value.dtype == node.dtype.numpy else value.astype(node.dtype.numpy)

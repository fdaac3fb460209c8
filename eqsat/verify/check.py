"""A compiled program held against the float64 reference before its results are trusted.

The allowed error is what float32 itself costs: the reference is computed in the program's own types and
in float64, and the compiled program may be up to ``FACTOR`` times as far from float64 as NumPy is, plus
``ULPS`` units in the last place of the largest value of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.errors import VerificationError
from eqsat.explain.listing import program
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import Graph, Node
from eqsat.ir.types import TensorType

FACTOR = 4.0
ULPS = 16.0


@dataclass(frozen=True)
class OutputError:
    """Largest deviations from float64 of one output: ours, NumPy's in the program's types, and what was allowed."""

    ours: float
    reference: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.ours <= self.allowed


def random_inputs(
    types: Sequence[TensorType], examples: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """Random arrays of these types; integers are drawn from the values of the caller's own arrays.

    An integer may be an index, so only values that the caller uses are known to be valid.
    """
    arrays = []
    for type, example in zip(types, examples, strict=True):
        dtype = type.dtype.numpy
        if type.dtype.kind == "float":
            arrays.append(rng.standard_normal(type.shape).astype(dtype))
        elif type.dtype.kind == "bool":
            arrays.append(rng.random(type.shape) < 0.5)
        elif type.size:
            arrays.append(rng.permutation(np.asarray(example).reshape(-1)).reshape(type.shape).astype(dtype))
        else:
            arrays.append(np.zeros(type.shape, dtype))
    return arrays


def compare(ours: np.ndarray, exact: np.ndarray, reference: np.ndarray) -> OutputError:
    """How far ``ours`` and ``reference`` are from ``exact``, in absolute terms, and what is allowed.

    Where the reference is NaN or infinite, ours must be the same; such positions count as an infinite
    error otherwise.
    """
    if ours.shape != exact.shape or ours.dtype != reference.dtype:
        return OutputError(float("inf"), 0.0, 0.0)
    if ours.dtype.kind in "ib":
        wrong = int(np.count_nonzero(ours != reference))
        return OutputError(float(wrong), 0.0, 0.0)
    with np.errstate(all="ignore"):
        finite = np.isfinite(reference) & np.isfinite(exact)
        settled = ~finite & ~np.isfinite(reference)
        same = (ours == reference) | (np.isnan(ours) & np.isnan(reference))
        if not same[settled].all() or not np.isfinite(ours[finite]).all():
            return OutputError(float("inf"), 0.0, 0.0)
        if not finite.any():
            return OutputError(0.0, 0.0, 0.0)
        at = exact[finite].astype(np.float64)
        mine = float(np.abs(ours[finite] - at).max())
        theirs = float(np.abs(reference[finite] - at).max())
        scale = float(np.abs(at).max())
    info = np.finfo(reference.dtype)
    allowed = FACTOR * theirs + ULPS * float(info.eps) * scale + float(info.tiny)
    return OutputError(mine, theirs, allowed)


def verify(
    graph: Graph,
    constants: dict[Node, np.ndarray],
    run: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]],
    examples: Sequence[np.ndarray],
    *,
    seed: int = 0,
) -> list[OutputError]:
    """Errors of every output on random inputs; ``constants`` are values of constant inputs.

    Raises :class:`~eqsat.errors.VerificationError` with a program to paste when one exceeds its bound.
    """
    free = [n for n in graph.inputs if n not in constants]
    arrays = random_inputs([n.type for n in free], examples, np.random.default_rng(seed))
    bound = {**dict(zip(free, arrays, strict=True)), **constants}
    exact = evaluate_nodes(graph.outputs, bound, double=True)
    plain = evaluate_nodes(graph.outputs, bound)
    ours = run(arrays)
    errors = [compare(a, b, c) for a, b, c in zip(ours, exact, plain, strict=True)]
    bad = [n for n, e in enumerate(errors) if not e.ok]
    if bad:
        worst = errors[bad[0]]
        raise VerificationError(
            f"the optimized program differs from the reference: output {bad[0]} is off by {worst.ours:.3g}, "
            f"allowed {worst.allowed:.3g} (NumPy's own error is {worst.reference:.3g}); it is not used",
            program(graph, seed=seed),
        )
    return errors

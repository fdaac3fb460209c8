"""Which parts of complex numbers that are not finite count as the same.

Complex results are compared part by part, on a last axis of 2. Which part of a number is NaN is not specified, and
NumPy's product and quotient mix the parts. What it made NaN beside an infinity is the trace's number: nothing else says
what it should be.
"""

from __future__ import annotations

import numpy as np

from eqsat.ir import build
from eqsat.ir.loop import with_bodies
from eqsat.ir.node import Graph


def both_nan(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where parts, on a last axis of 2, are NaN in one array or both, of complex numbers that are NaN in both.

    A number is NaN where either part is, as ``np.isnan`` says. The array API leaves it open which: NumPy's product and
    quotient mix the parts, so that both are; a sum, or a quotient of the parts, keeps them apart.
    """
    one, two = np.isnan(a), np.isnan(b)
    found: np.ndarray = (one | two) & one.any(-1, keepdims=True) & two.any(-1, keepdims=True)
    return found


def beside_infinity(plain: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where NumPy has NaN as one part of a complex number whose other part is the same infinity in both arrays.

    ``(inf + 1j) / 2`` is ``inf + nanj`` to NumPy, which divides by ``2 + 0j`` and adds infinity times 0. C99 calls that
    an infinity, whatever the NaN. An infinity in another part, or of another sign, is another number.
    """
    infinite = (np.isinf(plain) & (plain == other)).any(-1, keepdims=True)
    found: np.ndarray = np.isnan(plain) & infinite
    return found


def replaced(values: np.ndarray, where: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The values, of their own type, with others in their place somewhere."""
    with np.errstate(all="ignore"):
        return np.where(where, others, values).astype(values.dtype, copy=False)


def quotients(graph: Graph) -> frozenset[int]:
    """The outputs, by number, that quotients by numbers are in: of complex ones they are quotients of the parts."""

    def divides(graph: Graph) -> bool:
        divisors = (node.inputs[1] for node in with_bodies(graph) if node.op == "div")
        return any(build.scalar_value(divisor) is not None for divisor in divisors)

    parts = (Graph(graph.inputs, (output,)) for output in graph.outputs)
    return frozenset(number for number, part in enumerate(parts) if divides(part))

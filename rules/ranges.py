"""What is known of the range of a tensor's elements, from the forms it has."""

from __future__ import annotations

import numpy as np

from eqsat.ir.node import Node
from eqsat.ir.table import OPS
from eqsat.rules import Match

_NOT_NEGATIVE = tuple(row.name for row in OPS.values() if row.range[0] >= 0)
LEAST = 1e-30
"""Far above the numbers, near the least normal one, whose reciprocals are infinite."""
DEPTH = 4
"""How many operators deep to look."""


def reciprocal_exists(m: Match, node: Node, depth: int = DEPTH) -> bool:
    """Whether no element lies between 0 and ``LEAST`` in magnitude: the reciprocal of one that is not 0 is finite.

    Of 0 it is infinite, and a product with it what the quotient is.
    """
    value, array = m.value(node), m.array(node)
    if value is not None or array is not None:
        size = np.abs(np.asarray(value if array is None else array.array, np.float64))
        return bool(((size >= LEAST) | (size == 0)).all())
    # A root's exponent is half as large.
    if m.forms(node, "sqrt") or any(not x.dtype.is_float for _, (x,) in m.forms(node, "cast")):
        return True
    return at_least(m, node, depth) or _sum_of_shifted_exp(m, node)


def at_least(m: Match, node: Node, depth: int = DEPTH) -> bool:
    """Whether every element is known to be ``LEAST`` or more."""
    value = m.value(node)
    if value is not None:
        return bool(value >= LEAST)
    if depth == 0:
        return False
    for op in ("view", "sqrt", "reduce_max", "reduce_min"):
        if any(at_least(m, x, depth - 1) for _, (x,) in m.forms(node, op)):
            return True
    if any(at_least(m, x, depth - 1) for _, pair in m.forms(node, "maximum") for x in pair):
        return True
    return any(
        all(s > 0 for s in signs)  # type: ignore[attr-defined]
        and all(not_negative(m, x, depth - 1) for x in terms)
        and any(at_least(m, x, depth - 1) for x in terms)
        for signs, terms in m.forms(node, "add_n")
    )


def not_negative(m: Match, node: Node, depth: int = DEPTH) -> bool:
    """Whether no element is known to be below 0."""
    value = m.value(node)
    if value is not None:
        return bool(value >= 0)
    if depth == 0:
        return False
    if any(m.forms(node, op) for op in _NOT_NEGATIVE):
        return True
    for op in ("view", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min"):
        if any(not_negative(m, x, depth - 1) for _, (x,) in m.forms(node, op)):
            return True
    return any(
        all(not_negative(m, x, depth - 1) for x in pair) for op in ("mul", "div") for _, pair in m.forms(node, op)
    ) or any(
        all(s > 0 for s in signs) and all(not_negative(m, x, depth - 1) for x in terms)  # type: ignore[attr-defined]
        for signs, terms in m.forms(node, "add_n")
    )


def _sum_of_shifted_exp(m: Match, node: Node) -> bool:
    """Whether it is Σ exp(x - max x), which has a term of 1."""
    sums = [*m.forms(node, "reduce_sum"), *(f for _, (x,) in m.forms(node, "view") for f in m.forms(x, "reduce_sum"))]
    for axes, (powers,) in sums:
        for _, (shifted,) in m.forms(powers, "exp"):
            for signs, terms in m.forms(shifted, "add_n"):
                if sorted(signs) != [-1, 1]:  # type: ignore[call-overload]
                    continue
                x, top = terms if signs == (1, -1) else terms[::-1]
                for _, (low,) in m.forms(top, "view"):
                    if any(over == axes and of is x for over, (of,) in m.forms(low, "reduce_max")):
                        return True
    return False

"""Updates of a part of a tensor as updates of all of it: elsewhere with what changes nothing.

``a[1:] += b`` is traced as the concatenation of ``a[:1]`` and ``a[1:] + b``. As ``a + pad(b)`` it is one map, which
tests where b ends, and what reads it has no parts to tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.ir.types import DType
from eqsat.rules import Match, Parts, family, rewrite, signed_sum
from eqsat.rules.examples import Maker
from eqsat_rules.labels import continued

NEUTRAL = {
    "logical_or": False,
    "logical_and": True,
    "logical_xor": False,
    "bitwise_or": 0,
    "bitwise_and": -1,  # all bits, also of unsigned integers
    "bitwise_xor": 0,
    "mul": 1,
    "maximum": -math.inf,
    "minimum": math.inf,
}
"""By function of two tensors, the value that leaves the other one as it is."""


def program_parts(m: Match) -> bool:
    """the concatenation is one of the program's, of at most three parts"""
    return m.original(m.root) and 2 <= len(m.ps) <= 3


def _neutral(f: str, dtype: DType) -> float | int | bool:
    value = NEUTRAL[f]
    if dtype.kind == "bool":
        return value > 0
    if dtype.kind == "int" and (math.isinf(value) or value not in range(dtype.limits[0], dtype.limits[1] + 1)):
        low, high = dtype.limits
        return low if value == -math.inf else high
    return value


def _updated(m: Match, f: str) -> Iterator[tuple[Node, int, list[tuple[int, Node]], list[tuple[int, int]]]]:
    """Each part that is f of what continues the other parts: that as a whole, the part, f's other operands with their
    signs, and how much is beside the part."""
    axis = m.ps_axis
    for number, part in enumerate(m.ps):
        before, after = m.ps[:number], m.ps[number + 1 :]
        widths = [(0, 0)] * m.root.type.ndim
        widths[axis] = sum(p.shape[axis] for p in before), sum(p.shape[axis] for p in after)
        for signs, operands in m.forms(part, f):
            terms = list(zip(signs if isinstance(signs, tuple) else (1, 1), operands, strict=True))
            for place, (sign, term) in enumerate(terms):
                if sign < 0 or term.shape != part.shape:
                    continue
                whole = continued(m, [*before, term, *after])
                if whole is not None:
                    yield whole, number, [*terms[:place], *terms[place + 1 :]], widths


def _of(f: str) -> Callable[[Match], Node | None]:
    def over_all(m: Match) -> Node | None:
        if m.root.dtype.kind == "complex":  # infinity times 1 is NaN
            return None
        for whole, number, ((_, other),), widths in _updated(m, f):
            wide = build.broadcast_to(other, m.ps[number].shape)
            return call(f, whole, build.pad(wide, widths, _neutral(f, m.root.dtype)))
        return None

    return over_all


def _sum(m: Match) -> Node | None:
    for whole, number, others, widths in _updated(m, "add_n"):
        wide = build.broadcast_to(signed_sum(others), m.ps[number].shape)
        return signed_sum([(1, whole), (1, build.pad(wide, widths))])
    return None


def _example(f: str | None, mk: Maker) -> Node:
    rows, cols = mk.random.randint(2, 5), mk.random.randint(1, 4)
    x = mk.tensor(rows, cols)
    low = mk.random.randint(0, rows - 1)
    high = mk.random.randint(low + 1, rows)
    y = mk.tensor(high - low, cols)
    inner = build.take_range(x, 0, low, high)
    changed = signed_sum([(1, inner), (mk.random.choice((1, -1)), y)]) if f is None else call(f, inner, y)
    ends = [build.take_range(x, 0, a, b) for a, b in ((0, low), (high, rows)) if a < b]
    return build.concat([*ends[:1], changed, *ends[1:]] if low else [changed, *ends], 0)


update_of_part = family(
    [(Parts("ps"), _of(f)) for f in NEUTRAL],
    where=program_parts,
    numerics="exact",
    example=lambda mk: _example(mk.random.choice(tuple(NEUTRAL)), mk),
    doc="[a f(b, c)] = f([a b], [neutral c])",
)
sum_of_part = rewrite(
    Parts("ps"),
    _sum,
    where=program_parts,
    example=lambda mk: _example(None, mk),
    doc="[a b + c] = [a b] + [0 c]; -0 becomes 0",
)

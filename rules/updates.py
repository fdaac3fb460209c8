"""Updates of a part of a tensor as updates of all of it: elsewhere with what changes nothing.

``a[1:] += b`` is traced as the concatenation of ``a[:1]`` and ``a[1:] + b``. As ``a + pad(b)`` it is one map, which
tests where b ends, and what reads it has no parts to tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from eqsat.ir import build, views
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.ir.types import DType
from eqsat.ir.views import ViewMap
from eqsat.rules import Match, Parts, family, rewrite, signed_sum
from eqsat.rules.examples import Maker

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


def _continued(m: Match, parts: Sequence[Node]) -> Node | None:
    """The tensor whose views these are, one after the other along the axis, or a view of it."""
    for map, (source,) in m.forms(parts[0], "view"):
        assert isinstance(map, ViewMap)
        whole: ViewMap | None = map
        for part in parts[1:]:
            others = [other for other, (same,) in m.forms(part, "view") if same is source]
            longer = (views.joined((whole, o), m.ps_axis) for o in others if whole and isinstance(o, ViewMap))
            whole = next((found for found in longer if found is not None), None)
        if whole is not None:
            return build.view(source, whole, "slice")
    return None


def _updated(m: Match, f: str) -> Iterator[tuple[Node, Any, list[tuple[int, int]]]]:
    """Each part that is f of what continues the other parts: that as a whole, the rest of f, and what is beside it."""
    axis = m.ps_axis
    for number, part in enumerate(m.ps):
        before, after = m.ps[:number], m.ps[number + 1 :]
        widths = [(0, 0)] * m.root.type.ndim
        widths[axis] = sum(p.shape[axis] for p in before), sum(p.shape[axis] for p in after)
        for signs, terms in m.forms(part, f):
            for place, term in enumerate(terms):
                if term.shape != part.shape or (f == "add_n" and signs[place] < 0):  # type: ignore[index]
                    continue
                whole = _continued(m, [*before, term, *after])
                if whole is not None:
                    rest = [t for n, t in enumerate(terms) if n != place]
                    yield whole, (signs, place, rest, part.shape), widths


def _of(f: str) -> Any:
    def over_all(m: Match) -> Node | None:
        if m.root.dtype.kind == "complex":  # infinity times 1 is NaN
            return None
        for whole, (_, _, (other,), shape), widths in _updated(m, f):
            neutral = _neutral(f, m.root.dtype)
            return call(f, whole, build.pad(build.broadcast_to(other, shape), widths, neutral))
        return None

    return over_all


def _sum(m: Match) -> Node | None:
    for whole, (signs, place, rest, shape), widths in _updated(m, "add_n"):
        others = [s for n, s in enumerate(signs) if n != place]
        added = signed_sum(list(zip(others, rest, strict=True)))
        return signed_sum([(1, whole), (1, build.pad(build.broadcast_to(added, shape), widths))])
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

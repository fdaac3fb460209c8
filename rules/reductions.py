"""Reductions: of reductions, of sums, of scaled and viewed tensors, through monotone functions."""

from __future__ import annotations

import math

import numpy as np

from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.rules import (
    Match,
    Parts,
    Terms,
    attributes,
    family,
    for_each,
    numbers,
    op,
    reduction,
    rewrite,
    signed_sum,
    tensors,
    view,
)
from eqsat.rules.guards import alike
from eqsat_rules.labels import axes_read

a, b, c, x = tensors("a b c x")
p = numbers("p")
ax, ax2, mp = attributes("ax ax2 mp")
KINDS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")


def positive(m: Match) -> bool:
    """the factor is a positive 0-d number"""
    value = m.value(m.p)
    return m.p.type.ndim == 0 and value is not None and 0 < value < math.inf


def floats(m: Match) -> bool:
    """the reduced elements are floats: integers wrap around"""
    return bool(m.x.dtype.is_float)


def float_terms(m: Match) -> bool:
    """the element type is a float: integers wrap around"""
    return bool(m.root.dtype.is_float)


def scalar_factor(m: Match) -> bool:
    """the factor is a 0-d number and the rest is not"""
    return m.p.type.ndim == 0 and m.value(m.x) is None


def program_tensor(m: Match) -> bool:
    """the tensor is the program's, the sum short, and a term known, repeated or a product"""
    if not m.original(m.root) or len(m.ts) > 3 or not m.fewer(m.root, "add_n", 4):
        return False
    size = max(t.type.size for _, t in m.ts)
    return any(t.type.size < size or m.known(t) or m.forms(t, "contract") for _, t in m.ts)


def _both(m: Match) -> tuple[int, ...]:
    """Axes of the inner operand that two nested reductions take."""
    left = [k for k in range(m.x.type.ndim) if k not in m.ax]
    return tuple(sorted((*m.ax, *(left[k] for k in m.ax2))))


def _merged(kind: str) -> object:
    return lambda m: build.reduce(kind, m.x, _both(m))


def _reduced_term(t: Node, shape: tuple[int, ...], axes: tuple[int, ...]) -> Node:
    """A term that broadcasts to ``shape``, summed over axes of that shape."""
    lead = len(shape) - t.type.ndim
    own = [k for k in axes if k >= lead and t.shape[k - lead] == shape[k]]
    repeated = math.prod(shape[k] for k in axes if k not in own)
    kept = [k for k in range(len(shape)) if k not in axes]
    total = build.reduce("reduce_sum", t, tuple(k - lead for k in own))
    inner = [k for k in range(lead, len(shape)) if k not in own]
    result = build.reshape(total, tuple(t.shape[k - lead] if k >= lead else 1 for k in kept))
    assert set(kept) | set(axes) >= set(inner)
    return result if repeated == 1 else call("mul", result, build.scalar(repeated, result))


def _of_sum(m: Match) -> Node:
    shape = np.broadcast_shapes(*(t.shape for _, t in m.ts))
    return build.broadcast_to(signed_sum([(s, _reduced_term(t, shape, m.ax)) for s, t in m.ts]), m.root.shape)


def _constant_along(node: Node, rank: int, axes: tuple[int, ...]) -> bool:
    """Whether a right-aligned operand repeats along these axes of a shape of that rank."""
    lead = rank - node.type.ndim
    return all(k < lead or node.shape[k - lead] == 1 for k in axes)


def _without(node: Node, rank: int, axes: tuple[int, ...]) -> Node:
    """An operand that repeats along ``axes``, aligned to the shape without them."""
    lead = rank - node.type.ndim
    return build.reshape(node, tuple(n for k, n in enumerate(node.shape) if k + lead not in axes))


def _scale_out(m: Match) -> Node | None:
    """Σ a·b with b constant along the summed axes: b·Σ a."""
    rank = max(m.a.type.ndim, m.b.type.ndim)
    if m.a.type.ndim != rank or not _constant_along(m.b, rank, m.ax):
        return None
    if any(m.a.shape[k] == 1 and m.b.type.ndim == rank and m.b.shape[k] != 1 for k in range(rank)):
        return None
    out = call("mul", build.reduce("reduce_sum", m.a, m.ax), _without(m.b, rank, m.ax))
    return out if out.shape == m.root.shape else None


def _shift_out(kind: str) -> object:
    def shift(m: Match) -> Node | None:
        rank = max(t.type.ndim for _, t in m.ts)
        moving = [(s, t) for s, t in m.ts if _constant_along(t, rank, m.ax)]
        rest = [(s, t) for s, t in m.ts if not _constant_along(t, rank, m.ax)]
        if not moving or len(rest) != 1:
            return None
        ((sign, t),) = rest
        lead = rank - t.type.ndim
        if any(k < lead or t.shape[k - lead] == 1 for k in m.ax):
            return None
        flipped = {"reduce_max": "reduce_min", "reduce_min": "reduce_max"}[kind] if sign < 0 else kind
        top = build.reduce(flipped, t, tuple(k - lead for k in m.ax))
        shifts = [(s, _without(n, rank, m.ax)) for s, n in moving]
        out = signed_sum([(sign, top), *shifts])
        return build.broadcast_to(out, m.root.shape)

    return shift


def _of_view(kind: str) -> object:
    def through(m: Match) -> Node | None:
        read = axes_read(m.x, m.mp)
        if read is None or m.root.type.size == 0:
            return None
        gone = [axis for k in m.ax for axis in read[k] if axis is not None]
        repeats = math.prod(n for k in m.ax for n, stride in m.mp.axes[k] if stride == 0)
        if repeats > 1 and kind == "reduce_prod":
            return None
        kept = [k for k in range(len(m.mp.axes)) if k not in m.ax]
        if any(axis is None for k in kept for axis in read[k]):
            return None
        reduced = build.reduce(kind, m.x, tuple(gone))
        left = [axis for axis in range(m.x.type.ndim) if axis not in gone]
        order = [left.index(axis) for k in kept for axis in read[k] if axis is not None]
        order += [i for i in range(len(left)) if i not in order]
        result = build.reshape(build.transpose(reduced, order), m.root.shape)
        if repeats > 1 and kind == "reduce_sum":
            return call("mul", result, build.scalar(repeats, result))
        return result

    return through


def _of_parts(kind: str) -> object:
    combine = {"reduce_sum": "add", "reduce_max": "maximum", "reduce_min": "minimum", "reduce_prod": "mul"}[kind]

    def through(m: Match) -> Node | None:
        if len(m.ps) > 4 or not m.original(m.root):
            return None
        parts = [build.reduce(kind, part, m.ax) for part in m.ps]
        if m.ps_axis not in m.ax:
            return build.concat(parts, m.ps_axis - sum(k < m.ps_axis for k in m.ax))
        if kind == "reduce_sum":
            return signed_sum([(1, part) for part in parts])
        total = parts[0]
        for part in parts[1:]:
            total = call(combine, total, part)
        return total

    return through


def parts_nonempty(m: Match) -> bool:
    """no part is empty"""
    return all(part.type.size for part in m.ps)


def _unit_axes(kind: str) -> object:
    def drop(m: Match) -> Node | None:
        ones = tuple(k for k in m.ax if m.x.shape[k] == 1)
        if not ones:
            return None
        flat = build.reshape(m.x, tuple(n for k, n in enumerate(m.x.shape) if k not in ones))
        rest = [k - sum(o < k for o in ones) for k in m.ax if k not in ones]
        return build.reduce(kind, flat, rest)

    return drop


reduce_reduce = family([(reduction(k, reduction(k, x, ax), ax2), _merged(k)) for k in KINDS])
reduce_view = family(
    [(reduction(k, view(x, mp), ax), _of_view(k)) for k in KINDS], doc="a reduced transpose or broadcast"
)
reduce_concat = family([(reduction(k, Parts("ps"), ax), _of_parts(k)) for k in KINDS], where=parts_nonempty)
reduce_unit_axes = family(
    [(reduction(k, x, ax), _unit_axes(k)) for k in KINDS], doc="nothing to reduce; a sum turns -0 into 0"
)
sum_of_sum = rewrite(reduction("reduce_sum", Terms("ts"), ax), _of_sum, where=program_tensor)
sum_of_sums = rewrite(
    reduction("reduce_sum", a, ax) + reduction("reduce_sum", b, ax),
    reduction("reduce_sum", a + b, ax),
    where=lambda m: m.a.shape == m.b.shape,
)
sum_of_neg = rewrite(
    reduction("reduce_sum", -x, ax), -reduction("reduce_sum", x, ax), doc="but for the sign of a sum that is 0"
)
sum_of_scaled = rewrite(reduction("reduce_sum", p * x, ax), p * reduction("reduce_sum", x, ax), where=scalar_factor)
sum_scale_out = rewrite(reduction("reduce_sum", a * b, ax), _scale_out, where=lambda m: m.value(m.b) is None)
max_of_scaled = family(
    [(reduction(k, p * x, ax), p * reduction(k, x, ax)) for k in ("reduce_max", "reduce_min")],
    where=[positive, scalar_factor, floats],
    numerics="exact",
)
max_of_neg = family(
    [
        (reduction("reduce_max", -x, ax), -reduction("reduce_min", x, ax)),
        (reduction("reduce_min", -x, ax), -reduction("reduce_max", x, ax)),
    ],
    where=floats,
    numerics="exact",
)
max_of_shifted = family(
    [(reduction(k, Terms("ts"), ax), _shift_out(k)) for k in ("reduce_max", "reduce_min")], where=float_terms
)
max_of_monotone = for_each(
    "increasing",
    lambda f: [(reduction(k, op(f, x), ax), op(f, reduction(k, x, ax))) for k in ("reduce_max", "reduce_min")],
)
max_of_decreasing = for_each(
    "decreasing",
    lambda f: [
        (reduction(k, op(f, x), ax), op(f, reduction(other, x, ax)))
        for k, other in (("reduce_max", "reduce_min"), ("reduce_min", "reduce_max"))
    ],
    doc="the greatest value of a decreasing function is that of the least number",
)
max_of_maximum = family(
    [
        (op(f, reduction(k, a, ax), reduction(k, b, ax)), reduction(k, op(f, a, b), ax))
        for k, f in (("reduce_max", "maximum"), ("reduce_min", "minimum"))
    ],
    where=alike("a b"),
    numerics="exact",
    doc="max a, max b in one pass",
)
prod_of_exp = rewrite(reduction("reduce_prod", np.exp(x), ax), np.exp(reduction("reduce_sum", x, ax)))
argmax_of_softmax = family(
    [
        (reduction("argmax", op(f, x, attrs=c_axis), ax), reduction("argmax", x, ax))
        for f in ("softmax", "log_softmax")
        for c_axis in [attributes("k")]
    ],
    where=lambda m: m.ax == (m.k,),
    numerics="approximates",
    doc="the place of a NaN changes",
)
argmax_of_scaled = family(
    [(reduction(k, p * x, ax), reduction(k, x, ax)) for k in ("argmax", "argmin")],
    where=[positive, floats],
    doc="a positive factor",
)

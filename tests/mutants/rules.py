"""Unsound rewrite rules of every kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.ir.spec import make_spec
from eqsat.rules import (
    Match,
    Rule,
    Terms,
    attributes,
    contract,
    numbers,
    op,
    reduction,
    rewrite,
    signed_sum,
    tensors,
    view,
)

a, b, c, w, x = tensors("a b c w x")
p, q = numbers("p q")
s, ax, mp = attributes("s ax mp")


@dataclass(frozen=True)
class Unsound:
    """A rule that does not hold, and what is wrong with it."""

    rule: Rule
    fault: str


def square(m: Match) -> bool:
    """the tensor is a square matrix"""
    return m.root.type.ndim == 2 and m.root.shape[0] == m.root.shape[1] > 1


def all_square(m: Match) -> bool:
    """the factors and the product are square matrices of one size"""
    return m.a.shape == m.b.shape == m.root.shape and square(m)


def is_float(m: Match) -> bool:
    """the element type is a float"""
    return bool(m.root.dtype.is_float)


def of_integers(m: Match) -> bool:
    """the tensor is of integers"""
    return m.a.dtype.kind == "int"


def of_doubles(m: Match) -> bool:
    """the tensor is of float64"""
    return m.a.dtype.bits == 64 and m.a.dtype.is_float


def is_integer(m: Match) -> bool:
    """the element type is an integer"""
    return m.root.dtype.kind == "int"


def broadcasts(m: Match) -> bool:
    """the second term has fewer elements than the sum"""
    return bool(m.b.type.size < m.a.type.size)


def has_one(m: Match) -> bool:
    """an axis has one element"""
    return 1 in m.x.shape


def _other_axis(m: Match) -> Node | None:
    if m.x.type.ndim != 2 or len(m.ax) != 1 or m.x.shape[0] != m.x.shape[1]:
        return None
    return build.reduce("reduce_sum", m.x, (1 - m.ax[0],))


def _without_multiplicity(m: Match) -> Node | None:
    """Σ(a + b) = Σa + Σb with b summed over its own axes, though it is repeated."""
    kept = [n for axis, n in enumerate(m.a.shape) if axis not in m.ax]
    if m.b.type.ndim != 0 or m.a.type.ndim != 2:
        return None
    return call("add", build.reduce("reduce_sum", m.a, m.ax), build.broadcast_to(m.b, tuple(kept)))


def _one_less(m: Match) -> Node | None:
    n = m.x.type.size // max(1, m.root.type.size)
    if n < 3 or not m.root.dtype.is_float:
        return None
    total = build.reduce("reduce_sum", m.x, m.ax)
    return call("mul", total, build.scalar(n / (n - 1), total))


def _commuted(m: Match) -> Node | None:
    return build.contract(m.s, m.b, m.a)


def _transposed_factor(m: Match) -> Node | None:
    spec = m.s
    if len(spec.a) != 2 or m.a.shape[0] != m.a.shape[1]:
        return None
    try:
        return build.contract(make_spec(spec.a[::-1], spec.b, spec.out), m.a, m.b)
    except ValueError:
        return None


def _first_term_only(m: Match) -> Node | None:
    if len(m.ts) < 2:
        return None
    sign, term = m.ts[0]
    if term.shape != np.broadcast_shapes(*(t.shape for _, t in m.ts)):
        return None
    return build.contract(m.s, signed_sum([(sign, term)]), m.w)


def _one_earlier(m: Match) -> Node | None:
    return build.view(m.x, views.ViewMap(m.mp.axes, m.mp.offset - 1)) if m.mp.offset > 0 else None


def _never_flipped(m: Match) -> Node | None:
    strides = m.mp.strides
    if strides is None or not any(stride < 0 for stride in strides):
        return None
    offset = m.mp.offset + sum((n - 1) * t for n, t in zip(m.mp.shape, strides, strict=True) if t < 0)
    return build.view(m.x, views.strided(m.mp.shape, [abs(t) for t in strides], offset))


def _not_transposed(m: Match) -> Node | None:
    square = m.x.type.ndim == 2 and m.x.shape[0] == m.x.shape[1] > 1
    return m.x if square and m.mp == views.transpose(m.x.shape, [1, 0]) else None


def _repeated_wrongly(m: Match) -> Node | None:
    """A row repeated down, read as a column repeated across."""
    n = m.x.type.size
    if m.root.shape != (n, n) or n < 2 or m.mp.strides != (0, 1):
        return None
    return build.view(m.x, views.strided((n, n), (1, 0)))


def _last_of_equal(m: Match) -> Node | None:
    """argmax from the end: another element where several are equal."""
    if len(m.ax) != 1 or m.x.type.ndim != 1 or m.x.shape[0] < 2:
        return None
    n = m.x.shape[0]
    place = build.reduce("argmax", build.view(m.x, views.strided((n,), (-1,), n - 1)), m.ax)
    return call("sub", build.scalar(n - 1, place), place)


def _swapped_parts(m: Match) -> Node | None:
    return build.concat([m.b, m.a], m.ax) if m.a.shape == m.b.shape else None


def _sum_of_one(m: Match) -> Node | None:
    """Sums over axes of one element that leave out a factor of two."""
    if m.ax == () or any(m.x.shape[axis] != 1 for axis in m.ax):
        return None
    total = build.reduce("reduce_sum", m.x, m.ax)
    return call("add", total, total)


def _number_leaves_maximum(m: Match) -> Node | None:
    return call("mul", m.p, build.reduce("reduce_max", m.x, m.ax)) if m.p.type.ndim == 0 else None


UNSOUND = (
    Unsound(rewrite(a - b, b - a, id="m.sub_commutes"), "swapped operands"),
    Unsound(rewrite(a * b + c, a * (b + c), id="m.distributes"), "a factor too many on one term"),
    Unsound(rewrite(np.maximum(a, -10.0), a, id="m.floor_at_minus_ten"), "wrong below -10 only"),
    Unsound(rewrite(np.log(a), np.sqrt(a), id="m.log_is_sqrt"), "NaN on both sides for negatives"),
    Unsound(rewrite(abs(a), a, id="m.abs_is_nothing"), "wrong for negatives"),
    Unsound(rewrite(np.sqrt(np.square(a)), a, id="m.sqrt_of_square"), "wrong for negatives"),
    Unsound(rewrite(a * 0, 0, id="m.zero_exact", numerics="exact"), "a lossy rule declared exact"),
    Unsound(rewrite(a + 0, a, id="m.plus_zero_exact", numerics="exact"), "the sign of a zero"),
    Unsound(rewrite(a - a, 0, id="m.difference_is_zero"), "loses a NaN, declared to reassociate"),
    Unsound(rewrite(a / a, 1, id="m.quotient_is_one"), "wrong at zero"),
    Unsound(
        rewrite(np.exp(a) * np.exp(b), np.exp(a + b), id="m.exp_sum_exact", numerics="exact"),
        "rounds otherwise, declared exact",
    ),
    Unsound(
        rewrite((a + b) + c, a + (b + c) * 1, id="m.sum_exact", numerics="exact"), "rounds otherwise, declared exact"
    ),
    Unsound(rewrite(np.tanh(a), np.tanh(a * 1.0001), id="m.constant_tanh"), "a constant off by 1e-4"),
    Unsound(rewrite(2 * np.exp(a), 2.0002 * np.exp(a), id="m.constant"), "a constant off by 1e-4"),
    Unsound(rewrite(op("floor_divide", a, p) * p, a, where=is_integer, id="m.floor_undone"), "integers only"),
    Unsound(rewrite(abs(a) * abs(b), abs(a * b), id="m.abs_wraps", where=is_integer), "wraps around only"),
    Unsound(
        rewrite(reduction("reduce_max", p * x, ax), _number_leaves_maximum, id="m.scale_leaves_max"),
        "wrong for a negative scale",
    ),
    Unsound(
        rewrite(reduction("reduce_sum", x, ax), _other_axis, id="m.other_axis"), "the wrong axis, of square shapes only"
    ),
    Unsound(
        rewrite(reduction("reduce_sum", a + b, ax), _without_multiplicity, where=broadcasts, id="m.repeated_term"),
        "broadcast terms only",
    ),
    Unsound(rewrite(reduction("reduce_sum", x, ax), _one_less, id="m.mean_of_one_less"), "n - 1 for n"),
    Unsound(
        rewrite(contract(a, b, s), _commuted, where=all_square, id="m.product_commutes"),
        "swapped factors of square matrices",
    ),
    Unsound(rewrite(contract(a, b, s), _transposed_factor, id="m.transposed_factor"), "swapped labels of a spec"),
    Unsound(rewrite(contract(Terms("ts"), w, s), _first_term_only, id="m.term_lost"), "a dropped term"),
    Unsound(rewrite(view(x, mp), _one_earlier, id="m.one_earlier"), "a slice off by one"),
    Unsound(rewrite(view(x, mp), _never_flipped, id="m.never_flipped"), "a reversal left out"),
    Unsound(
        rewrite(view(x, mp), _not_transposed, id="m.not_transposed"), "a transposition left out, of square shapes only"
    ),
    Unsound(rewrite(view(x, mp), _repeated_wrongly, id="m.repeated_wrongly"), "a broadcast along the other axis"),
    Unsound(rewrite(np.where(c, a, b), np.where(c, b, a), id="m.where_swapped"), "swapped branches"),
    Unsound(rewrite(np.exp(np.log(a)), a, id="m.exp_of_log"), "negatives only: loses a NaN"),
    Unsound(rewrite(np.tanh(a), a, id="m.tanh_of_small"), "right near zero only"),
    Unsound(rewrite(np.log1p(np.exp(a)), np.maximum(a, 0), id="m.softplus_of_large"), "right for large values only"),
    Unsound(rewrite(np.maximum(a, b), a, id="m.maximum_is_first"), "a dropped operand"),
    Unsound(
        rewrite(reduction("reduce_max", -x, ax), -reduction("reduce_max", x, ax), id="m.max_of_negated"), "max for min"
    ),
    Unsound(rewrite(np.square(a + b), np.square(a) + np.square(b), id="m.cross_term"), "a dropped cross term"),
    Unsound(rewrite(np.square(a), a * abs(a), id="m.square_keeps_sign"), "wrong for negatives"),
    Unsound(rewrite(np.floor(a), np.rint(a), id="m.floor_rounds"), "wrong above one half"),
    Unsound(rewrite(op("lt", a, b), op("le", a, b), id="m.less_or_equal"), "wrong where equal only"),
    Unsound(rewrite(op("isnan", a), op("lt", a, a), id="m.never_nan"), "NaN only"),
    Unsound(rewrite(reduction("argmax", x, ax), _last_of_equal, id="m.last_of_equal"), "equal elements only"),
    Unsound(
        rewrite(reduction("reduce_sum", x, ax), _sum_of_one, where=has_one, id="m.axes_of_one"),
        "axes of one element only",
    ),
    Unsound(
        rewrite(np.minimum(np.maximum(a, p), q), np.maximum(np.minimum(a, q), p), id="m.clip_order"),
        "bounds the wrong way round only",
    ),
    Unsound(rewrite(np.exp(a) - 1, a, id="m.expm1_of_tiny"), "right for tiny values only"),
    Unsound(
        rewrite(
            a.astype("float64").astype("float32"),
            a.astype("float32"),
            where=of_integers,
            id="m.integers_rounded_once",
            numerics="exact",
        ),
        "integers past 2**53 that are rounded twice only",
    ),
    Unsound(
        rewrite(
            a.astype("float32").astype("float16"),
            a.astype("float16"),
            where=of_doubles,
            id="m.doubles_rounded_once",
            numerics="exact",
        ),
        "numbers next to a tie only",
    ),
)

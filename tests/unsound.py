"""Rules that are wrong in one way each: negative controls of the rule checker."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.build import call
from eqsat.ir.composite import composite
from eqsat.ir.types import DType, bool_, float16, float32, float64, int8, int16, int32, int64
from eqsat.rules import (
    Match,
    Parts,
    Rule,
    Terms,
    attributes,
    contract,
    family,
    gather,
    numbers,
    op,
    rewrite,
    rewrite_together,
    signed,
    signed_sum,
    tensors,
    view,
)

a, b, c, x = tensors("a b c x")
p, q = numbers("p q")
ax, ax2, s, s1, s2, k, t, mp, mq = attributes("ax ax2 s s1 s2 k t mp mq")


def _as_many(m: Match) -> bool:
    return bool(np.prod(m.mp.shape) == m.x.type.size)


def _all_summed(m: Match) -> Any:
    rank = m.x.type.ndim
    return build.reduce("reduce_sum", m.x, tuple(range(rank))) if rank and len(m.ax) == len(m.mp.shape) else None


def _sliced(m: Match, off: int) -> Any:
    """A view one element further on."""
    map = m.mp
    last = map.offset + sum((n - 1) * st for axis in map.axes for n, st in axis) + off
    if not 0 <= last < m.x.type.size or m.root.type.size == 0:
        return None
    return build.view(m.x, views.ViewMap(map.axes, map.offset + off))


def _parts(m: Match, order: int) -> Any:
    return build.concat(list(m.ps)[::order], m.ps_axis)


def _f32(m: Match) -> bool:
    return m.root.dtype == float32


def _sum(x: Any, axes: tuple[int, ...]) -> Any:
    return build.reduce("reduce_sum", x, axes)


def _floats(m: Match) -> bool:
    return m.root.dtype.is_float or m.root.dtype == bool_


def _through(inner: DType, outer: DType, bits: int) -> Rule:
    """A cast left out that no integer of so many bits should need."""

    def at_most(m: Match) -> bool:
        return m.x.dtype.kind == "int" and m.x.dtype.bits <= bits

    left = op("cast", op("cast", x, attrs=inner), attrs=outer)
    return rewrite(left, lambda m: build.cast(m.x, outer), where=at_most, numerics="exact", id="w")


WRONG: dict[str, Rule] = {
    # by sign, magnitude, equality, special values
    "log is sqrt": rewrite(np.log(a), np.sqrt(a), id="w"),
    "negative only": rewrite(np.maximum(x, -10), x, id="w"),
    "negative only, far": rewrite(np.maximum(x, -1000), x, id="w"),
    "abs is itself": rewrite(abs(x), x, id="w"),
    "sqrt of square": rewrite(np.sqrt(np.square(x)), x, id="w"),
    "large only": rewrite(np.minimum(x, 1e6), x, id="w"),
    "very large only": rewrite(np.minimum(x, 1e20), x, id="w"),
    "small only": rewrite(np.where(abs(x) < 1e-6, 0, x), x, id="w"),
    "tiny only": rewrite(np.where(abs(x) < 1e-20, 0, x), x, id="w"),
    "zero only": rewrite(np.where(op("eq", x, 0), 1, x), x, id="w"),
    "equal only": rewrite(a > b, a >= b, id="w"),
    "equal only, negated": rewrite(~(a < b), a > b, id="w"),
    "NaN only": rewrite(~(a < b), a >= b, id="w"),
    "NaN lost": rewrite(x - x, 0, id="w"),
    "NaN lost by a factor": rewrite(x * 0, 0, id="w"),
    "NaN lost by a quotient": rewrite(x / x, 1, id="w"),
    "NaN lost by where": rewrite(np.where(op("eq", x, x), x, 0), x, id="w"),
    "NaN lost below zero": rewrite(np.exp(np.log(x)), x, id="w"),
    "NaN lost of two": rewrite(np.log(a) + np.log(b), np.log(a * b), id="w"),
    "half integers": rewrite(op("round", x), op("floor", x + 0.5), id="w"),
    "integers": rewrite(op("ceil", x), op("floor", x) + 1, id="w"),
    "pole": rewrite(a / b * b, a, id="w"),
    "nearly": rewrite(np.exp(x) - 1, np.expm1(x) * 1.000001, id="w"),
    "nearly, for small": rewrite(np.sin(x), x, id="w"),
    "asymptotic": rewrite(np.tanh(x), np.sign(x), id="w"),
    "approximation": rewrite(op("gelu", x), op("gelu_tanh", x), id="w"),
    "rounded constant": rewrite(np.exp(x) * np.exp(1 * b), np.exp(x + 1.0001 * b), id="w"),
    # integers and types
    "wraps in products": rewrite(abs(a) * abs(b), abs(a * b), id="w"),
    "wraps in sums": rewrite(op("relu", x) + op("relu", -x), abs(x), id="w"),
    "wraps in comparisons": rewrite(a - b > 0, a > b, id="w"),
    "wraps in maxima": rewrite((2 * x).max(axis=ax), 2 * x.max(axis=ax), id="w"),
    "integer division": rewrite(a // b * b, a, id="w"),
    "integers only": rewrite(
        a * b, lambda m: call("add", m.a, m.b), id="w", where=lambda m: m.root.dtype == int64 and m.a.shape == m.b.shape
    ),
    "int32 only": rewrite(a - b, lambda m: call("sub", m.b, m.a), id="w", where=lambda m: m.root.dtype == int32),
    "float32 only": rewrite(np.exp(x), lambda m: call("neg", call("exp", m.x)), id="w", where=_f32),
    "bool only": rewrite(op("logical_xor", a, b), op("logical_or", a, b), id="w"),
    "casts": rewrite(op("cast", op("cast", x, attrs=t), attrs=k), lambda m: build.cast(m.x, m.k), id="w"),
    # shapes
    "square only": rewrite(
        a @ b,
        lambda m: (
            build.matmul(m.a, build.transpose(m.b, (1, 0))) if m.b.shape == (3, 3) and m.a.type.ndim == 2 else None
        ),
        id="w",
    ),
    "swapped factors": rewrite(a @ b, lambda m: build.matmul(m.b, m.a) if m.a.shape == m.b.shape else None, id="w"),
    "rank three only": rewrite(
        x.sum(axis=ax), lambda m: _sum(m.x, (0,)) if m.x.shape == (2, 2, 2) and len(m.ax) == 1 else None, id="w"
    ),
    "other axis": rewrite(
        x.max(axis=ax),
        lambda m: (
            build.reduce("reduce_max", m.x, (1 - m.ax[0],))
            if m.x.shape in ((3, 3), (2, 2)) and len(m.ax) == 1
            else None
        ),
        id="w",
    ),
    "keepdims": rewrite(
        x - x.mean(axis=0, keepdims=True),
        lambda m: call("sub", m.x, build.reduce("reduce_max", m.x, (0,), keepdims=True)),
        id="w",
    ),
    "mean over fewer": rewrite(
        x.mean(axis=ax), lambda m: call("div", _sum(m.x, m.ax), build.scalar(m.x.shape[m.ax[0]], m.x)), id="w"
    ),
    "broadcast sum": rewrite(
        (a * b).sum(axis=ax),
        lambda m: call("mul", _sum(m.a, m.ax), _sum(m.b, m.ax)) if m.a.shape == m.b.shape else None,
        id="w",
    ),
    "broadcast counted once": rewrite(
        (a + b).sum(axis=-1),
        lambda m: (
            call("add", _sum(m.a, (m.a.type.ndim - 1,)), _sum(m.b, (m.b.type.ndim - 1,)))
            if m.a.type.ndim and m.b.type.ndim == m.a.type.ndim
            else None
        ),
        id="w",
    ),
    "0-d only": rewrite(
        a * b, lambda m: call("add", m.a, m.b) if m.root.shape == () and m.root.dtype.is_float else None, id="w"
    ),
    "ones only": rewrite(np.exp(x), lambda m: m.x if 1 in m.x.shape else None, id="w"),
    "broadcast only": rewrite(
        a - b, lambda m: signed_sum([(-1, m.b), (-1, m.a)]) if m.a.shape != m.b.shape else None, id="w"
    ),
    # sums, products, contractions
    "distributes": rewrite(a * b + c, a * (b + c), id="w"),
    "sign of a difference": rewrite(a - b, b - a, id="w"),
    "long sums only": rewrite(
        Terms("ts"), lambda m: signed_sum([(1, t) for _, t in m.ts]) if len(m.ts) > 3 else None, id="w"
    ),
    "dropped term": rewrite(
        Terms("ts"),
        lambda m: build.broadcast_to(signed_sum(m.ts[:-1]), m.root.shape) if len(m.ts) > 2 else None,
        id="w",
    ),
    "sign of the second": rewrite(
        signed((0, a * b), (0, a * c)),
        lambda m: call("mul", m.a, signed_sum([(m.signs[0], m.b), (m.signs[0], m.c)])),
        id="w",
    ),
    "known factors only": rewrite(
        a * b,
        lambda m: build.broadcast_to(m.a, m.root.shape),
        id="w",
        where=lambda m: m.known(m.b) and not m.known(m.a),
    ),
    "a number only": rewrite(
        x * p, lambda m: build.broadcast_to(m.x, m.root.shape), id="w", where=lambda m: m.value(m.p) == 3.0
    ),
    "a number of zero": rewrite((x * p) / p, x, id="w"),
    "numbers by hand": rewrite(x * 0.3, x * 0.3001, id="w"),
    "contraction as product": rewrite(
        contract(a, b, s),
        lambda m: (
            build.contract(m.s, m.b, m.a) if m.a.shape == m.b.shape and m.s.summed and m.s.swapped() != m.s else None
        ),
        id="w",
    ),
    "scaled twice": rewrite(contract(p * a, b, s), contract(p * a, p * b, s), id="w"),
    "low rank": rewrite((a @ b) @ c, a @ (c @ b), id="w"),
    # views, joins, pads
    "slice off by one": rewrite(view(x, mp), lambda m: _sliced(m, 1), id="w"),
    "slice off by one, back": rewrite(view(x, mp), lambda m: _sliced(m, -1), id="w"),
    "composed the wrong way": rewrite(
        view(view(x, mp), mq),
        lambda m: build.view(build.view(m.x, m.mq), m.mp) if m.x.shape == m.mp.shape == m.mq.shape else None,
        id="w",
    ),
    "parts reversed": rewrite(Parts("ps"), lambda m: _parts(m, -1), id="w"),
    "second part twice": rewrite(
        Parts("ps"),
        lambda m: (
            build.concat([m.ps[0], *m.ps[1:-1], m.ps[0]], m.ps_axis)
            if m.ps[0].shape == m.ps[-1].shape and len(m.ps) > 2
            else None
        ),
        id="w",
    ),
    "pad with zero": rewrite(op("pad", x, attrs=k), lambda m: build.pad(m.x, m.k.widths, 0), id="w"),
    "gathered axis": rewrite(
        op("gather", x, a, attrs=k),
        lambda m: build.gather(m.x, call("neg", m.a), m.k) if m.root.type.size else None,
        id="w",
    ),
    "argmax of the negative": rewrite(op("argmax", -x, attrs=ax), op("argmax", x, attrs=ax), id="w"),
    "last maximum": rewrite(
        op("argmax", x, attrs=ax),
        lambda m: (
            call(
                "sub",
                build.scalar(m.x.shape[m.ax[0]] - 1, int64),
                build.reduce(
                    "argmax",
                    build.slices(
                        m.x,
                        [n - 1 if i in m.ax else 0 for i, n in enumerate(m.x.shape)],
                        [-1 if i in m.ax else 1 for i in range(m.x.type.ndim)],
                        m.x.shape,
                    ),
                    m.ax,
                ),
            )
            if m.x.type.size
            else None
        ),
        id="w",
    ),
    # composites, groups, several sides
    "other softmax axis": rewrite(
        op("softmax", x, attrs=k), lambda m: composite("softmax", [m.x], m.x.type.ndim - 1), id="w"
    ),
    "epsilon": rewrite(
        op("rms_norm", x, a, attrs=k),
        lambda m: composite("rms_norm", [m.x, m.a], 2 * m.k),
        id="w",
        example=lambda mk: composite("rms_norm", [mk.tensor(3, 4), mk.tensor(4)], 0.1),
    ),
    "one way of several": family(
        [(np.maximum(x, x), x), (np.minimum(x, x), x), (abs(abs(x)), abs(x)), (op("relu", op("relu", x)), x)], id="w"
    ),
    "one way of two": rewrite(np.exp(a) * np.exp(b), np.exp(a + b) * np.where(a > 2, 1.001, 1.0), id="w"),
    "backwards": rewrite(op("square", x), x * abs(x), id="w", both_ways=True),
    "together": rewrite_together((np.sin(a), np.cos(a)), (np.cos(a), np.sin(a)), id="w"),
    "grouped": gather(
        contract(x, a, s),
        ("x", "s"),
        lambda ms: (
            [ms[(i + 1) % len(ms)].root for i in range(len(ms))] if len({m.root.type for m in ms}) == 1 else None
        ),
        id="w",
    ),
    # classes that are too strict
    "exact: reassociated product": rewrite((a * b) * c, a * (b * c), id="w", numerics="exact"),
    "exact: reassociated sum": rewrite((a + b) + c, a + (b + c) * 1, id="w", numerics="exact"),
    "exact: sign of zero": rewrite(x + 0, x, id="w", numerics="exact"),
    "exact: sign of zero in a sum": rewrite(-x.sum(axis=ax), (-x).sum(axis=ax), id="w", numerics="exact"),
    "exact: factor of nothing": rewrite(x * 0, 0, id="w", numerics="exact"),
    "exact: functions": rewrite(np.exp(a) * np.exp(b), np.exp(a + b), id="w", numerics="exact"),
    "exact: reciprocal": rewrite(a / b, a * op("reciprocal", b), id="w", numerics="exact"),
    "exact: division by three": rewrite(x / 3, x * (1 / 3), id="w", numerics="exact"),
    "exact: matrices": rewrite((a @ b) @ c, a @ (b @ c), id="w", numerics="exact"),
    "exact: order of a sum": rewrite(
        x.sum(axis=ax),
        lambda m: (
            build.reduce(
                "reduce_sum",
                build.slices(
                    m.x,
                    [n - 1 if i in m.ax else 0 for i, n in enumerate(m.x.shape)],
                    [-1 if i in m.ax else 1 for i in range(m.x.type.ndim)],
                    m.x.shape,
                ),
                m.ax,
            )
            if m.x.type.size
            else None
        ),
        id="w",
        numerics="exact",
    ),
    "exact: doubled past the range": rewrite(
        np.maximum(x, 1) * 4 / 4, np.maximum(x, 1), id="w", numerics="exact", where=_floats
    ),
    "exact: compared past the range": rewrite(2 * a < 2 * b, a < b, id="w", numerics="exact", where=_floats),
    "exact: uint32 by int32": _through(int32, int64, 32),
    "exact: uint16 by int16": _through(int16, float64, 16),
    "exact: int16 by float16": _through(float16, int32, 16),
    "cast: doubled before": rewrite(op("cast", 2 * x, attrs=float64) * b, 2 * op("cast", x, attrs=float64) * b, id="w"),
    "cast: the least integer": rewrite(
        op("cast", np.maximum(abs(x), 0), attrs=float64) * b, op("cast", abs(x), attrs=float64) * b, id="w"
    ),
    "exact: overflow": rewrite(np.sqrt(np.square(x)), abs(x), id="w", numerics="exact"),
    "exact: float32 only": rewrite(
        x * 2,
        lambda m: call(
            "mul", call("mul", m.x, build.scalar(1.4142135623730951, m.x)), build.scalar(1.4142135623730951, m.x)
        ),
        id="w",
        numerics="exact",
        where=_f32,
    ),
    "exact: minimum of zeros": rewrite(np.where(a < b, a, b), np.minimum(a, b), id="w", numerics="exact"),
    "approximates: other numbers": rewrite(np.tanh(x), x, id="w", numerics="approximates"),
    "approximates: sign": rewrite(abs(x), x, id="w", numerics="approximates"),
    "raises: rows of what is broadcast": rewrite(
        op("gather", a + b, c, attrs=0),
        op("gather", a, c, attrs=0) + op("gather", b, c, attrs=0),
        id="w",
        where=lambda m: m.a.type.ndim == m.b.type.ndim > 0,
    ),
    "raises: a negative power": rewrite(
        a // b, (a // b) * op("pow", a * 0 + 1, a * 0 - 1), id="w", where=lambda m: m.root.dtype.kind == "int"
    ),
    "pad: squared number": rewrite(np.square(op("pad", x, attrs=s)), op("pad", np.square(x), attrs=s), id="w"),
    "pad: negative number": rewrite(abs(op("pad", x, attrs=s)), op("pad", abs(x), attrs=s), id="w", numerics="exact"),
    "pad: product of numbers": rewrite(
        op("pad", a, attrs=s) * op("pad", b, attrs=s), op("pad", a * b, attrs=s), id="w"
    ),
    "cast: by way of bool": rewrite(
        op("cast", op("cast", x, attrs=t), attrs=k),
        op("cast", x, attrs=k),
        id="w",
        numerics="exact",
        where=lambda m: (
            m.t.kind != "float" and m.k.kind != "float" and m.x.dtype.kind == "int" and m.t.bits >= m.k.bits
        ),
    ),
    "view: as many elements": rewrite(view(x, mp).sum(ax), _all_summed, id="w", where=_as_many),
    "concat: parts of other ranks": rewrite(
        np.concatenate([a, b], 0) + np.concatenate([c, x], 0),
        np.concatenate([a + c, b + x], 0),
        id="w",
        where=lambda m: bool(m.a.type.ndim and m.c.type.ndim and m.a.shape[0] == m.c.shape[0]),
    ),
    "near a number: greatest": rewrite(
        op("eq", np.maximum(x, 100).max(ax), 100), x.max(ax) < 100, id="w", where=lambda m: m.x.dtype.is_float
    ),
    "near a number: counted": rewrite((x > 10).astype(float32).sum(ax), (x >= 10).astype(float32).sum(ax), id="w"),
    "near a number: far out": rewrite(np.maximum(x, -1e35).sum(ax), x.sum(ax), id="w", where=_floats),
    "many: counted in bytes": rewrite(
        (x > 0).astype(float32).sum(ax).astype(int8).astype(int64),
        (x > 0).astype(float32).sum(ax).astype(int64),
        id="w",
    ),
    "axis: from the other end": rewrite((-x).sum(axis=-3), -(x.max(axis=-3)), id="w"),
}

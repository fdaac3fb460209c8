"""Softmax, log-softmax, layer norm and RMS norm, recognised from their written-out forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.composite import composite
from eqsat.ir.node import Node
from eqsat.rules import Guard, Match, Terms, attributes, family, numbers, op, rewrite, signed_sum, tensors
from eqsat.rules.examples import Maker

a, b, g, x = tensors("a b g x")
eps = numbers("eps")
ax, k = attributes("ax k")


def one_axis(m: Match) -> bool:
    """one axis is reduced"""
    return len(m.ax) == 1


def new(name: str) -> Guard:
    """Stops a composite from being found again in its own expansion."""
    return Guard(f"the tensor is not known as {name} yet", lambda m: not m.forms(m.root, name))


def _shifted(name: str) -> object:
    """The composite without those terms that are constant along its axis."""

    def build_one(m: Match) -> Node | None:
        rank = m.root.type.ndim
        rest = [(s, t) for s, t in m.ts if m.k >= rank - t.type.ndim and t.shape[m.k - (rank - t.type.ndim)] != 1]
        if len(rest) == len(m.ts) or not rest or m.root.shape[m.k] == 1:
            return None
        return composite(name, [build.broadcast_to(signed_sum(rest), m.root.shape)], m.k)

    return build_one


def _epsilon(m: Match) -> float:
    value = m.value(m.eps)
    assert value is not None, "guarded by plain_epsilon"
    return float(value)


def _standardized(m: Match) -> Node:
    """(x - mean) / sqrt(variance + eps) as a layer norm of scale 1 and shift 0."""
    return composite("layer_norm", [m.x, _row(m, 1), _row(m, 0)], _epsilon(m))


def _rms(m: Match) -> Node:
    return composite("rms_norm", [m.x, _row(m, 1)], _epsilon(m))


def row_of_x(m: Match) -> bool:
    """scale and shift are vectors along the last axis"""
    return bool(m.g.shape == m.root.shape[-1:] == m.x.shape[-1:] and m.root.shape == m.x.shape)


def shift_of_x(m: Match) -> bool:
    """the shift is a vector along the last axis"""
    return bool(m.b.shape == m.x.shape[-1:])


def plain_epsilon(m: Match) -> bool:
    """epsilon is a 0-d number, and the last axis is not empty"""
    value = m.value(m.eps)
    return (
        m.eps.type.ndim == 0 and value is not None and math.isfinite(value) and m.x.type.ndim > 0 and m.x.shape[-1] > 0
    )


def _row(m: Match, value: float) -> Node:
    """A vector along the last axis of x, of one number."""
    return build.const(np.full(m.x.shape[-1], value, m.x.dtype.numpy), m.x.dtype)


ROWS = ((4,), (4,), (3, 4), (3, 1), (1,), ())
"""Shapes of scales and shifts in examples: also those that the guards must refuse."""


def _scaled_before(mk: Maker) -> Node:
    x = mk.tensor(3, 4)
    centered = call("sub", x, _mean_of(x))
    variance = call("add", _mean_of(call("square", centered)), build.scalar(1e-5, x))
    return call("mul", call("mul", mk.tensor(*mk.random.choice(ROWS)), centered), call("rsqrt", variance))


def _scaled_before_rms(mk: Maker) -> Node:
    x = mk.tensor(3, 4)
    square = call("add", _mean_of(call("square", x)), build.scalar(1e-5, x))
    return call("mul", call("mul", mk.tensor(*mk.random.choice(ROWS)), x), call("rsqrt", square))


def _mean_of(x: Node) -> Node:
    return call("div", build.reduce("reduce_sum", x, (x.type.ndim - 1,), keepdims=True), build.scalar(x.shape[-1], x))


def same_axis(m: Match) -> bool:
    """the maximum is along the composite's axis"""
    return bool(m.ax == (m.k,))


def _shifted_by_max(mk: Maker) -> Node:
    x = mk.tensor(3, 4)
    # Examples include such that the guard must refuse.
    top = build.reduce("reduce_max", x, (mk.random.choice((0, 1)),), keepdims=True)
    return composite(mk.random.choice(("softmax", "log_softmax")), [call("sub", x, top)], 1)


def _norm(name: str, *vectors: float | None) -> Callable[[Maker], Node]:
    """An example: the composite with scale and shift of these numbers (None: an input), scaled or shifted."""

    def example(mk: Maker) -> Node:
        shape = (2, 3, 4)
        rows = [mk.tensor(4) if v is None else build.const(np.full(4, v)) for v in vectors]
        y = composite(name, [mk.tensor(*shape), *rows], 1e-5)
        return call("add" if None in vectors else "mul", y, mk.tensor(*mk.random.choice(ROWS)))

    return example


_e = np.exp(x)
_top = x.max(axis=ax, keepdims=True)
_mean = x.mean(axis=-1, keepdims=True)
_centered = x - _mean
_variance = np.square(_centered).mean(axis=-1, keepdims=True)
_mean_square = np.square(x).mean(axis=-1, keepdims=True)

softmax_written = rewrite(
    _e / _e.sum(axis=ax, keepdims=True),
    lambda m: composite("softmax", [m.x], m.ax[0]),
    where=[one_axis, new("softmax")],
)
softmax_product = rewrite(
    _e * op("reciprocal", _e.sum(axis=ax, keepdims=True)),
    lambda m: composite("softmax", [m.x], m.ax[0]),
    where=[one_axis, new("softmax")],
)
log_softmax_written = rewrite(
    x - np.log(_e.sum(axis=ax, keepdims=True)), lambda m: composite("log_softmax", [m.x], m.ax[0]), where=one_axis
)
log_softmax_sum_written = rewrite(
    x - np.log(np.exp(x - _top).sum(axis=ax, keepdims=True)) - _top,
    lambda m: composite("log_softmax", [m.x], m.ax[0]),
    where=[one_axis, new("log_softmax")],
    doc="x less its log-sum-exp",
)
log_of_softmax = rewrite(np.log(op("softmax", x, attrs=k)), op("log_softmax", x, attrs=k))
exp_of_log_softmax = rewrite(np.exp(op("log_softmax", x, attrs=k)), op("softmax", x, attrs=k))
softmax_of_shifted = family(
    [(op(f, x - x.max(axis=ax, keepdims=True), attrs=k), op(f, x, attrs=k)) for f in ("softmax", "log_softmax")],
    where=same_axis,
    doc="softmax(x - max x) = softmax(x)",
    example=_shifted_by_max,
)
softmax_shift = family(
    [(op(f, Terms("ts"), attrs=k), _shifted(f)) for f in ("softmax", "log_softmax")],
    numerics="approximates",
    doc="softmax(x + c) = softmax(x) for c constant along the axis; loses a NaN of c",
)
layer_norm_written = family(
    [
        (_centered * op("rsqrt", _variance + eps), _standardized),
        (_centered / np.sqrt(_variance + eps), _standardized),
        (_centered * op("rsqrt", (_mean_square - np.square(_mean)) + eps), _standardized),
        (_centered / np.sqrt((_mean_square - np.square(_mean)) + eps), _standardized),
    ],
    where=[plain_epsilon, new("layer_norm")],
)
layer_norm_scaled = rewrite(
    op("layer_norm", x, 1, 0, attrs=k) * g,
    lambda m: composite("layer_norm", [m.x, m.g, _row(m, 0)], m.k),
    where=row_of_x,
    example=_norm("layer_norm", 1.0, 0.0),
)
layer_norm_shifted = rewrite(
    op("layer_norm", x, g, 0, attrs=k) + b,
    lambda m: composite("layer_norm", [m.x, m.g, m.b], m.k),
    where=shift_of_x,
    example=_norm("layer_norm", None, 0.0),
)
layer_norm_scaled_before = rewrite(
    (g * _centered) * op("rsqrt", _variance + eps),
    lambda m: composite("layer_norm", [m.x, m.g, _row(m, 0)], _epsilon(m)),
    where=[plain_epsilon, row_of_x, new("layer_norm")],
    doc="scaled before it is divided by the deviation",
    example=_scaled_before,
)
rms_norm_scaled_before = rewrite(
    (g * x) * op("rsqrt", _mean_square + eps),
    lambda m: composite("rms_norm", [m.x, m.g], _epsilon(m)),
    where=[plain_epsilon, row_of_x, new("rms_norm")],
    doc="scaled before it is divided by the root mean square",
    example=_scaled_before_rms,
)
rms_norm_written = family(
    [(x * op("rsqrt", _mean_square + eps), _rms), (x / np.sqrt(_mean_square + eps), _rms)],
    where=[plain_epsilon, new("rms_norm")],
)
rms_norm_scaled = rewrite(
    op("rms_norm", x, 1, attrs=k) * g,
    lambda m: composite("rms_norm", [m.x, m.g], m.k),
    where=row_of_x,
    example=_norm("rms_norm", 1.0),
)

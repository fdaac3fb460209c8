"""Identities of elementwise functions, and activations recognised from their written-out forms."""

from __future__ import annotations

import math

import numpy as np

from eqsat.ir import build
from eqsat.ir.types import DType
from eqsat.rules import Match, attributes, family, for_each, numbers, op, rewrite, tensors

a, b, c, d, x = tensors("a b c d x")
p, q = numbers("p q")
t, u = attributes("t u")


def positive(m: Match) -> bool:
    """the factor is a positive number"""
    value = m.value(m.p)
    return value is not None and 0 < value < math.inf


def floats(m: Match) -> bool:
    """the element type is a float: integers wrap around"""
    return bool(m.root.dtype.is_float)


def signed(m: Match) -> bool:
    """the element type has numbers below 0"""
    return bool(m.root.dtype.is_signed)


def lossless(m: Match) -> bool:
    """the inner cast keeps every value of its operand, and an integer that was a float between fits the result"""
    if m.x.dtype.is_float and m.u.kind == "int":  # what does not fit is anything, which depends on the float's type
        return False
    back = m.t.is_float and m.u.kind == m.x.dtype.kind == "int"  # a float that does not fit is no integer that wraps
    return _keeps(m.x.dtype, m.t) and (not back or _keeps(m.x.dtype, m.u))


def _keeps(source: DType, target: DType) -> bool:
    if source == target or source.kind == "bool":
        return True
    if source.kind == target.kind == "int":
        return source.limits[0] >= target.limits[0] and source.limits[1] <= target.limits[1]
    if source.kind == target.kind:  # of as many bits they differ in how many are the exponent's
        return source.bits < target.bits
    return source.kind == "int" and target.is_float and 2 * source.bits <= target.bits


def ordered(m: Match) -> bool:
    """the lower bound is a number below the upper one"""
    low, high = m.value(m.q), m.value(m.p)
    return low is not None and high is not None and low < high


def numeric(m: Match) -> bool:
    """the element type is a number, not bool"""
    return bool(m.root.dtype.kind != "bool")


# exp and log
exp_mul = rewrite(np.exp(a) * np.exp(b), np.exp(a + b))
exp_div = rewrite(np.exp(a) / np.exp(b), np.exp(a - b))
exp_reciprocal = rewrite(op("reciprocal", np.exp(x)), np.exp(-x), both_ways=True)
exp_square = rewrite(np.square(np.exp(x)), np.exp(2 * x))
exp_sqrt = rewrite(np.sqrt(np.exp(x)), np.exp(0.5 * x))
exp_log = rewrite(np.exp(np.log(x)), x, numerics="approximates", doc="loses NaN below 0")
log_exp = rewrite(np.log(np.exp(x)), x)
log_sqrt = rewrite(np.log(np.sqrt(x)), 0.5 * np.log(x))
log_reciprocal = rewrite(np.log(op("reciprocal", x)), -np.log(x))
log_sum = rewrite(np.log(a) + np.log(b), np.log(a * b), numerics="approximates", doc="loses NaN where both are below 0")
expm1_definition = rewrite(np.exp(x) - 1, np.expm1(x))
log1p_definition = rewrite(np.log(1 + x), np.log1p(x))
log1p_expm1 = rewrite(np.log1p(np.expm1(x)), x)

# Absolute value, signs and rounding
abs_abs = rewrite(abs(abs(x)), abs(x), numerics="exact")
abs_neg = rewrite(abs(-x), abs(x), where=signed, numerics="exact")
abs_square = rewrite(abs(np.square(x)), np.square(x), where=floats, numerics="exact")
square_abs = rewrite(np.square(abs(x)), np.square(x), numerics="exact")
abs_mul = rewrite(abs(a) * abs(b), abs(a * b), where=floats, numerics="exact")
abs_of_positive = family([(abs(np.exp(x)), np.exp(x)), (abs(np.sqrt(x)), np.sqrt(x))])
sign_times_abs = rewrite(np.sign(x) * abs(x), x)
rounding_idempotent = family(
    [(op(f, op(g, x)), op(g, x)) for f in ("floor", "ceil", "round") for g in ("floor", "ceil", "round")],
    numerics="exact",
)
odd_functions = for_each("odd", lambda f: [(op(f, -x), -op(f, x))])
even_functions = for_each("even", lambda f: [(op(f, -x), op(f, x)), (op(f, abs(x)), op(f, x))])

# Maximum and minimum
relu_definition = rewrite(np.maximum(x, 0), op("relu", x), where=numeric, numerics="exact")
relu_relu = rewrite(op("relu", op("relu", x)), op("relu", x), numerics="exact")
relu_of_square = family(
    [(op("relu", np.square(x)), np.square(x)), (op("relu", np.exp(x)), np.exp(x))],
    where=floats,
)
relu_difference = rewrite(op("relu", x) - op("relu", -x), x, where=floats)
relu_sum = rewrite(op("relu", x) + op("relu", -x), abs(x), where=floats)
relu_scaled = rewrite(op("relu", p * x), p * op("relu", x), where=[positive, floats], both_ways=True, numerics="exact")
relu_where = rewrite(
    np.where(x > 0, x, 0), op("relu", x), where=numeric, numerics="approximates", doc="where loses a NaN; relu keeps it"
)
maximum_same = family([(np.maximum(x, x), x), (np.minimum(x, x), x)], numerics="exact")
maximum_again = family(
    [(np.maximum(np.maximum(a, b), b), np.maximum(a, b)), (np.minimum(np.minimum(a, b), b), np.minimum(a, b))],
    numerics="exact",
)
maximum_numbers = family(
    [
        (np.maximum(np.maximum(x, p), q), np.maximum(x, np.maximum(p, q))),
        (np.minimum(np.minimum(x, p), q), np.minimum(x, np.minimum(p, q))),
    ],
    numerics="exact",
)
maximum_bounds = family([(np.maximum(x, -math.inf), x), (np.minimum(x, math.inf), x)], where=floats, numerics="exact")
clamp = rewrite(
    np.maximum(np.minimum(x, p), q),
    np.minimum(np.maximum(x, q), p),
    where=ordered,
    numerics="exact",
    doc="the lower bound first",
)
maximum_absorbs = family(
    [(np.maximum(a, np.minimum(a, b)), a), (np.minimum(a, np.maximum(a, b)), a)],
    numerics="approximates",
    doc="loses a NaN of b",
)
maximum_neg = family(
    [(-np.maximum(-a, -b), np.minimum(a, b)), (-np.minimum(-a, -b), np.maximum(a, b))],
    where=floats,
)
maximum_of_neg = family([(np.maximum(x, -x), abs(x)), (np.minimum(x, -x), -abs(x))], where=floats)
relu_of_maximum = rewrite(op("maximum", op("relu", a), op("relu", b)), op("relu", np.maximum(a, b)), numerics="exact")
maximum_exp = family(
    [
        (np.maximum(np.exp(a), np.exp(b)), np.exp(np.maximum(a, b))),
        (np.minimum(np.exp(a), np.exp(b)), np.exp(np.minimum(a, b))),
    ]
)

# where, comparisons, logic
where_same = rewrite(np.where(c, x, x), x, numerics="exact")
where_not = rewrite(np.where(~c, a, b), np.where(c, b, a), numerics="exact")
where_constant = family([(op("where", True, a, b), a), (op("where", False, a, b), b)], numerics="exact")
where_nested = family(
    [(np.where(c, np.where(c, a, x), b), np.where(c, a, b)), (np.where(c, a, np.where(c, x, b)), np.where(c, a, b))],
    numerics="exact",
)
where_either = family(
    [
        (np.where(c, a, np.where(d, a, b)), np.where(c | d, a, b)),
        (np.where(c, np.where(d, a, b), b), np.where(c & d, a, b)),
    ],
    numerics="exact",
    doc="masks are joined",
)
compare_swapped = family([(a > b, b < a), (a >= b, b <= a)], numerics="exact")
compare_itself = rewrite(a < a, False, numerics="exact")
compare_both = family(
    [((a < b) & (a < c), a < np.minimum(b, c)), ((b < a) & (c < a), np.maximum(b, c) < a)], numerics="exact"
)
compare_maximum = family([(b < np.maximum(a, b), b < a), (np.minimum(a, b) < b, a < b)], numerics="exact")
not_equal = family([(~op("eq", a, b), op("ne", a, b)), (~op("ne", a, b), op("eq", a, b))], numerics="exact")
isnan_definition = rewrite(op("ne", x, x), np.isnan(x), where=lambda m: m.x.dtype.is_float, numerics="exact")
not_not = rewrite(~(~x), x, numerics="exact")
logic_same = family([(x & x, x), (x | x, x)], numerics="exact")
logic_absorbs = family([(a & (a | b), a), (a | (a & b), a)], numerics="exact")
de_morgan = family([((~a) & (~b), ~(a | b)), ((~a) | (~b), ~(a & b))], numerics="exact")

# Bits
bits_same = family([(op(f, x, x), x) for f in ("bitwise_and", "bitwise_or")], numerics="exact")
bits_absorb = family(
    [
        (op("bitwise_and", a, op("bitwise_or", a, b)), a),
        (op("bitwise_or", a, op("bitwise_and", a, b)), a),
    ],
    numerics="exact",
)
bits_inverted = rewrite(op("invert", op("invert", x)), x, numerics="exact")
bits_of_both = family(
    [(op("bitwise_and", x, op("invert", x)), 0), (op("bitwise_or", x, op("invert", x)), -1)], numerics="exact"
)

# Casts
cast_cast = rewrite(
    op("cast", op("cast", x, attrs=t), attrs=u), lambda m: build.cast(m.x, m.u), where=lossless, numerics="exact"
)

# Activations
_inverse_sqrt2 = 1 / math.sqrt(2)
_sqrt_2_pi = math.sqrt(2 / math.pi)
sigmoid_written = rewrite(1 / (1 + np.exp(-x)), op("sigmoid", x))
sigmoid_of_neg = rewrite(1 / (1 + np.exp(x)), op("sigmoid", -x))
sigmoid_exp_form = rewrite(np.exp(x) / (1 + np.exp(x)), op("sigmoid", x))
sigmoid_complement = rewrite(1 - op("sigmoid", x), op("sigmoid", -x))
sigmoid_tanh_form = rewrite(0.5 + 0.5 * np.tanh(0.5 * x), op("sigmoid", x))
sigmoid_tanh_product = rewrite(0.5 * (1 + np.tanh(0.5 * x)), op("sigmoid", x))
tanh_halved = family(
    [
        (0.5 * (1 + np.tanh(a)), op("sigmoid", 2 * a)),
        (0.5 * (x * (1 + np.tanh(a))), x * op("sigmoid", 2 * a)),
    ],
    doc="half of 1 + tanh is a sigmoid, which does not cancel near -1",
)
tanh_exp_form = rewrite((np.exp(x) - np.exp(-x)) / (np.exp(x) + np.exp(-x)), np.tanh(x))
tanh_sigmoid_form = rewrite(2 * op("sigmoid", 2 * x) - 1, np.tanh(x))
silu_written = rewrite(x * op("sigmoid", x), op("silu", x))
silu_quotient = rewrite(x / (1 + np.exp(-x)), op("silu", x))
gelu_written = rewrite(0.5 * (x * (1 + op("erf", _inverse_sqrt2 * x))), op("gelu", x))
gelu_tanh_written = rewrite(
    0.5 * (x * (1 + np.tanh(_sqrt_2_pi * (x + 0.044715 * (x * np.square(x)))))), op("gelu_tanh", x)
)
gelu_tanh_factored = rewrite(
    0.5 * (x * (1 + np.tanh(_sqrt_2_pi * (x * (1 + 0.044715 * np.square(x)))))), op("gelu_tanh", x)
)

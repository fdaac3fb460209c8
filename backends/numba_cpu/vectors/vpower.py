"""Vectorized powers as LLVM code: 2 to the y·log₂|x|, and by squaring for integers.

The logarithm of a float32 is made in float64, to 36 bits, for an error there grows with the exponent; the rest is in
float32. Accuracy is stated and polynomials are fitted as in ``vmath``; signs and special cases are C's.
"""

from __future__ import annotations

from typing import Any

from eqsat_backends.numba_cpu.vectors.lanes import Lanes, Value, cpu_features
from eqsat_backends.numba_cpu.vectors.vmath import ROUND, scale, split

# log₂((1 + s)/(1 - s)) = s·P(s²) on √½ to √2
_LOG2 = (2.885390081790153, 0.9617966732672693, 0.5770835978990895, 0.4116720009190954, 0.3407425609527769)
# 2ʳ = 1 + r·P(r) on |r| ≤ ½
_EXP2 = (
    *(0.6931471807045325, 0.24022651066561676, 0.05550410365990017, 0.009618038131988903, 0.0013333935056767615),
    *(0.0001546675633581303, 1.519615625261284e-05),
)


def pow(e: Lanes, x: Value, y: Value) -> Value:
    """(1, 1) ulp; exact where the power is a float32. Integers: modulo 2 to the width; exponents are not negative."""
    match e.kind(x):
        case "f32":
            return _float_power(e, x, y)
        case "f64":
            return e.libm("pow", x, y)
    return _integer_power(e, x, y)


def _log2(e: Lanes, x: Value) -> Value:
    """log₂ of float32 x ≥ 0 in float64; 0, infinity and NaN as in C."""
    subnormal = e.compare("<", x, e.like(x, 2.0**-126))
    n, f = split(e, e.select(subnormal, e.mul(x, e.like(x, 2.0**24)), x))
    n = e.select(subnormal, e.sub(n, e.like(n, 24.0)), n)
    # s = f/(f + 2): the quotient of float32, then one step of Newton's
    wide, guess = e.cast(f, "f64"), e.cast(e.div(e.like(f, 1.0), e.add(f, e.like(f, 2.0))), "f64")
    quotient = e.mul(wide, guess)
    error = e.madd(e.b.fneg(e.add(wide, e.like(wide, 2.0))), guess, e.like(wide, 1.0))
    s = e.madd(quotient, error, quotient)
    result = e.madd(s, e.poly(e.mul(s, s), _LOG2), e.cast(n, "f64"))
    result = e.select(e.compare("<", x, e.like(x, float("inf"))), result, e.cast(x, "f64"))
    return e.select(e.compare("==", x, e.like(x, 0.0)), e.like(result, float("-inf")), result)


def _exp2(e: Lanes, t: Value) -> Value:
    """2ᵗ in float32 of a float64."""
    t = e.at_most(e.at_least(t, -160.0), 130.0)
    magic = e.like(t, ROUND["f64"])
    whole = e.sub(e.add(t, magic), magic)
    n, r = e.cast(whole, "f32"), e.sub(t, whole)
    if "fma" in cpu_features():  # its last step rounds once; two roundings would lose exact results
        r = e.cast(r, "f32")
    power = e.cast(e.poly(r, (1.0, *_EXP2)), "f32")
    return scale(e, power, e.add(n, e.like(n, ROUND["f32"])), n)


def _float_power(e: Lanes, x: Value, y: Value) -> Value:
    one, half = e.like(x, 1.0), e.mul(y, e.like(y, 0.5))
    size = e.abs(x)
    result = _exp2(e, e.mul(e.cast(y, "f64"), _log2(e, size)))
    # anything to the 0 and 1 to anything are 1, NaN included
    unit = e.b.or_(e.compare("==", y, e.like(y, 0.0)), e.compare("==", size, one))
    result = e.select(unit, one, result)
    whole = e.compare("==", e.intrinsic("floor", y), y)
    odd = e.b.and_(whole, e.compare("!=", e.intrinsic("floor", half), half))
    result = e.copysign(result, e.select(odd, x, one))
    below = e.b.and_(e.compare("<", x, e.like(x, 0.0)), e.compare(">", x, e.like(x, float("-inf"))))
    # a negative number to a fractional or unknown power is NaN; NaN to any power but 0, too
    undefined = e.b.or_(e.b.and_(below, e.not_(whole)), e.b.and_(e.is_nan(y), e.compare("!=", x, one)))
    return e.select(undefined, e.like(x, float("nan")), result)


def _integer_power(e: Lanes, x: Value, y: Value) -> Value:
    builder: Any = e.b
    entry = builder.block
    loop, done = builder.append_basic_block("pow"), builder.append_basic_block("pow.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    result, base, left = (builder.phi(x.type) for _ in range(3))
    one, zero = e.like(x, 1), e.like(x, 0)
    odd = e.compare("!=", builder.and_(left, one), zero)
    following = (e.select(odd, builder.mul(result, base), result), builder.mul(base, base), builder.lshr(left, one))
    for phi, first, value in zip((result, base, left), (one, x, y), following, strict=True):
        phi.add_incoming(first, entry)
        phi.add_incoming(value, loop)
    builder.cbranch(e.any(e.compare("!=", following[2], zero)), loop, done)
    builder.position_at_end(done)
    return following[0]

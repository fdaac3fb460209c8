"""Vectorized powers as LLVM code: 2 to the y·log₂|x|, and by squaring for integers.

The logarithm of a float32 is made in float64, to 36 bits, for an error there grows with the exponent; the rest is in
float32. That of a float64 is a sum of two, whose errors an fma knows. Accuracy is stated and polynomials are fitted as
in ``vmath``; signs and special cases are C's.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
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
# log(1 + r) = r - r²/2 + r³·P(r) on |r| ≤ 0.0331
_LOG1P = (
    *(0.3333333333333333, -0.24999999999998704, 0.199999999999953, -0.166666666762809, 0.1428571430480241),
    *(-0.12499976380786142, 0.11111077824200175, -0.10023661248492835, 0.0911715287017456),
)
# 2ʳ = 1 + r·ln 2 + r²·P(r) on |r| ≤ ½
_EXP2_F64 = (
    *(0.24022650695910122, 0.055504108664820744, 0.009618129107596966, 0.0013333558146683688, 0.00015403530454084836),
    *(1.5252733549535317e-05, 1.3215436602010883e-06, 1.0178183472438211e-07, 7.07358025148284e-09),
    4.4364867934196503e-10,
)
# ln 2 and its reciprocal, each the sum of two
_LN2 = (0.6931471805599453, 2.3190468138462996e-17)
_LOG2E = (1.4426950408889634, 2.0355273740931033e-17)
# Sixteen parts of an octave that begins here, by the leading bits of the distance to it, and reciprocals of numbers
# in them: of so few bits that products with numbers of a part differ from 1 by a float64, and 1 around 1
_OCTAVE, _PART = 0x3FE5860000000000, 48
# Up to this, an exponent times a logarithm is far from where its rounding error is great
_GREATEST = 512.0
_RECIPROCALS = (
    *(1.4375, 1.375, 1.34375, 1.28125, 1.21875, 1.1875, 1.15625, 1.09375, 1.0625, 1.03125, 1.0, 0.9375),
    *(0.890625, 0.84375, 0.796875, 0.765625),
)


def _minus_logs() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """-log₂ of the reciprocals as sums of two: the first of so few bits that it can be added to a whole number."""
    with localcontext() as context:
        context.prec = 50
        exact = [-Decimal(c).ln() / Decimal(2).ln() for c in _RECIPROCALS]
        first = [math.ldexp(round(math.ldexp(float(number), 40)), -40) for number in exact]
        return tuple(first), tuple(float(number - Decimal(high)) for number, high in zip(exact, first, strict=True))


_MINUS_LOGS = _minus_logs()


def pow(e: Lanes, x: Value, y: Value) -> Value:
    """(1, 1) ulp; exact where the power is a float. Integers: modulo 2 to the width; exponents are not negative."""
    match e.kind(x):
        case "f64" if "fma" not in cpu_features():
            return e.libm("pow", x, y)
        case "f64":
            return _usual_power(e, x, y)
        case "f32":
            return _float_power(e, x, y)
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


def _double_log2(e: Lanes, x: Value) -> tuple[Value, Value]:
    """log₂ of float64 as a sum of two, for 0 < x < ∞."""
    small = e.compare("<", x, e.like(x, 2.0**-1022))
    bits = e.bits(e.select(small, e.mul(x, e.like(x, 2.0**54)), x))
    return _log2_of_normal(e, bits, e.select(small, e.like(bits, 54), e.like(bits, 0)))


def _log2_of_normal(e: Lanes, bits: Value, less: Value | None = None) -> tuple[Value, Value]:
    """log₂ of the float64 that has these bits, normal and positive, over 2 to the ``less``."""
    distance = e.b.sub(bits, e.like(bits, _OCTAVE))
    whole = e.b.ashr(distance, e.like(bits, 52))
    part = e.b.and_(e.b.lshr(distance, e.like(bits, _PART)), e.like(bits, 15))
    m = e.floats(e.b.sub(bits, e.b.shl(whole, e.like(bits, 52))))
    n = e.cast(whole if less is None else e.b.sub(whole, less), "f64")
    first, second = (e.lookup(table, part) for table in _MINUS_LOGS)
    r = e.fma(m, e.lookup(_RECIPROCALS, part), e.like(m, -1.0))
    # log(1 + r), the first two terms with the rounding errors of product and sum
    half = e.mul(r, e.like(r, -0.5))
    square = e.mul(r, half)
    high = e.add(r, square)
    low = e.add(e.add(e.sub(r, high), square), e.fma(r, half, e.b.fneg(square)))
    low = e.fma(e.mul(e.mul(r, r), r), e.poly(r, _LOG1P), low)
    both = e.add(high, low)
    high, low = both, e.add(e.sub(high, both), low)
    product = e.mul(high, e.like(high, _LOG2E[0]))
    rest = e.fma(high, e.like(high, _LOG2E[0]), e.b.fneg(product))
    rest = e.add(e.fma(high, e.like(high, _LOG2E[1]), rest), e.fma(low, e.like(low, _LOG2E[0]), second))
    start = e.add(n, first)
    total = e.add(start, product)
    return total, e.add(e.add(e.sub(start, total), product), rest)


def _double_power(e: Lanes, x: Value, y: Value) -> Value:
    """Float64 x^y for x ≥ 0; 0, infinity and NaN as in C but for y = 0."""
    high, low = _double_log2(e, x)
    y = e.at_most(e.at_least(y, -(2.0**66)), 2.0**66)  # beyond 2^±1100 for any x but 1
    t = e.mul(y, high)
    rest = e.at_most(e.at_least(_rest(e, y, high, low, t), -1.0), 1.0)  # great where t will be cut
    t = e.select(e.compare("<", x, e.like(x, float("inf"))), t, e.mul(y, x))
    t = e.select(e.compare("==", x, e.like(x, 0.0)), e.mul(y, e.like(y, float("-inf"))), t)
    return _double_exp2(e, t, rest)


def _plain_power(e: Lanes, x: Value, y: Value) -> Value:
    """The same where x is normal and |y| is at most ``_GREATEST``."""
    high, low = _log2_of_normal(e, e.bits(x))
    t = e.mul(y, high)
    return _double_exp2(e, t, _rest(e, y, high, low, t))


def _rest(e: Lanes, y: Value, high: Value, low: Value, t: Value) -> Value:
    """y·(high + low) - t, where t is y·high, rounded."""
    return e.fma(y, low, e.fma(y, high, e.b.fneg(t)))


def _double_exp2(e: Lanes, t: Value, rest: Value) -> Value:
    """2 to the t + rest, float64."""
    t = e.at_most(e.at_least(t, -1100.0), 1100.0)
    magic = e.like(t, ROUND["f64"])
    rounded = e.add(t, magic)
    n = e.sub(rounded, magic)
    whole = e.sub(t, n)
    r = e.add(whole, rest)
    low = e.add(e.sub(whole, r), rest)
    # 2ʳ = 1 + r·ln 2 + r²·P, the first two terms with the rounding errors of product and sum
    product = e.mul(r, e.like(r, _LN2[0]))
    error = e.fma(r, e.like(r, _LN2[0]), e.b.fneg(product))
    error = e.fma(low, e.like(low, _LN2[0]), e.fma(r, e.like(r, _LN2[1]), error))
    start = e.add(product, e.like(product, 1.0))
    error = e.add(e.add(e.sub(e.like(start, 1.0), start), product), error)
    power = e.add(start, e.fma(e.mul(r, r), e.poly(r, _EXP2_F64), error))
    return scale(e, power, rounded, n)


def _usual_power(e: Lanes, x: Value, y: Value) -> Value:
    """Float64 x^y; where no lane holds a special case, in 0.7 of the time (10M on Zen 4)."""
    builder: Any = e.b
    bits = e.bits(x)
    least, infinite = (e.bits(e.like(x, number)) for number in (2.0**-1022, float("inf")))
    normal = builder.icmp_unsigned("<", builder.sub(bits, least), builder.sub(infinite, least))
    usual = builder.and_(normal, e.compare("<=", e.abs(y), e.like(y, _GREATEST)))
    return e.usually(usual, lambda: _plain_power(e, x, y), lambda: _float_power(e, x, y))


def _float_power(e: Lanes, x: Value, y: Value) -> Value:
    one, half = e.like(x, 1.0), e.mul(y, e.like(y, 0.5))
    size = e.abs(x)
    single = e.kind(x) == "f32"
    result = _exp2(e, e.mul(e.cast(y, "f64"), _log2(e, size))) if single else _double_power(e, size, y)
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

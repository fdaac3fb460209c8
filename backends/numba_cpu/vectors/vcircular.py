"""Vectorized sine and cosine as LLVM code: Cody and Waite's reduction by π/2, then a minimax polynomial.

The reduced argument is kept in two parts, so that the rounding of its reduction does not show in the result.
Arguments beyond ``LIMIT``, infinities and NaN go through libm lane by lane. Accuracy is stated and polynomials
are fitted as in ``vmath``.
"""

from __future__ import annotations

from eqsat_backends.numba_cpu.vectors.lanes import Lanes, Value, cpu_features
from eqsat_backends.numba_cpu.vectors.vmath import ROUND

LIMIT = 1.0e5
"""Largest magnitude that is reduced here: its quotient by π/2 has 16 bits."""

_TWO_OVER_PI = 0.6366197723675814
# π/2 in three parts: of the full precision, where fma makes products exact; of 33 bits, whose products are exact anyway
_HALF_PI_FMA = {
    "f32": (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    "f64": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
# sin r = r + r³·P(r²), cos r = 1 - r²/2 + r⁴·P(r²): float64 on |r| ≤ π/4, float32 on |r| ≤ 0.8, for there
# the quotient may be rounded the wrong way
_SIN = {
    "f32": (-0.16666653192274278, 0.008332070885333377, -0.00019503068924366874),
    "f64": (
        *(-0.16666666666666632, 0.00833333333332231, -0.0001984126982972264, 2.755731366129635e-06),
        *(-2.5050753159596093e-08, 1.5896499484136845e-10),
    ),
}
_COS = {
    "f32": (0.04166664318285532, -0.0013887194228534737, 2.4419196606792178e-05),
    "f64": (
        *(0.0416666666666666, -0.001388888888887397, 2.4801587289384484e-05, -2.755731432330929e-07),
        *(2.087571922022514e-09, -1.1359432470235738e-11),
    ),
}


def sin(e: Lanes, x: Value) -> Value:
    """(1, 1) ulp; 1.2 without fma instructions."""
    return _circular(e, x, "sin", 0)


def cos(e: Lanes, x: Value) -> Value:
    """(1, 1) ulp; 1.2 without fma instructions."""
    return _circular(e, x, "cos", 1)


def _circular(e: Lanes, x: Value, name: str, quarter: int) -> Value:
    small = e.compare("<=", e.abs(x), e.like(x, LIMIT))
    safe = e.select(small, x, e.like(x, 0.0))
    if e.kind(x) == "f32" and "fma" not in cpu_features():  # parts of π/2 with exact products would be too short
        fast = e.cast(_reduced(e, e.cast(safe, "f64"), quarter), "f32")
    else:
        fast = _reduced(e, safe, quarter)
    result = e.usually(small, lambda: fast, lambda: e.select(small, fast, e.libm(name, x)))
    # sin(-0.0) is -0.0, which the reduction would lose
    return result if quarter else e.select(e.compare("==", x, e.like(x, 0.0)), x, result)


def _reduced(e: Lanes, x: Value, quarter: int) -> Value:
    """sin(x + quarter·π/2), |x| ≤ LIMIT."""
    kind = e.kind(x)
    magic = e.const(kind, ROUND[kind])
    rounded = e.madd(x, e.const(kind, _TWO_OVER_PI), magic)
    n = e.sub(rounded, magic)
    first, second, third = (e.const(kind, -p) for p in (_HALF_PI_FMA[kind] if "fma" in cpu_features() else _HALF_PI))
    near = e.madd(n, first, x)  # exact, as is the sum of product and lost, and that of r and what addition lost
    product = e.mul(n, second)
    lost = e.madd(n, second, e.b.fneg(product))
    r = e.add(near, product)
    added = e.sub(r, near)
    rest = e.add(e.sub(near, e.sub(r, added)), e.sub(product, added))
    rest = e.add(rest, e.madd(n, third, lost))  # the reduced argument is r + rest
    z = e.mul(r, r)
    sine = e.add(r, e.madd(e.mul(r, z), e.poly(z, _SIN[kind]), rest))
    half, one = e.mul(z, e.const(kind, 0.5)), e.const(kind, 1.0)
    large = e.sub(one, half)
    small = e.sub(e.sub(one, large), half)  # what the difference lost
    small = e.sub(small, e.mul(r, rest))
    cosine = e.add(large, e.madd(e.mul(z, z), e.poly(z, _COS[kind]), small))
    turns = e.b.add(e.bits(rounded), e.like(e.bits(rounded), quarter))
    odd = e.compare("!=", e.b.and_(turns, e.like(turns, 1)), e.like(turns, 0))
    top = e.like(turns, 30 if kind == "f32" else 62)
    sign = e.b.shl(e.b.and_(turns, e.like(turns, 2)), top)
    return e.floats(e.b.xor(e.bits(e.select(odd, cosine, sine)), sign))

"""Vectorized exp, log, tanh, erf … as LLVM code: range reduction, then a minimax polynomial.

Polynomials and rational functions were fitted to the relative error by Lawson's iteratively reweighted least
squares at Chebyshev nodes, in 50-digit arithmetic. Range reductions are Cody and Waite's. Greatest errors seen
on dense samples of the whole range are stated per function as (float32, float64) in units in the last place,
and held by the tests. NaN, infinities, signed zeros, subnormal arguments and results follow C.
"""

from __future__ import annotations

import math

from llvmlite import ir

from eqsat_backends.numba_cpu.vectors.flow import I32
from eqsat_backends.numba_cpu.vectors.lanes import Lanes, Value, cpu_features, masks_are_quick

_LOG2E = 1.4426950408889634
# ln 2 in two parts; the first has so few bits that its product with an exponent is exact even without fma
_LN2 = {"f32": (0.693359375, -2.12194440e-4), "f64": (0.6931471803691238, 1.9082149292705877e-10)}
# adding this rounds to an integer, and leaves it in the low bits
ROUND = {"f32": 12582912.0, "f64": 6755399441055744.0}
_MANTISSA = {"f32": 23, "f64": 52}
_BIAS = {"f32": 127, "f64": 1023}

# exp(r) = 1 + r + r²·P(r) on |r| ≤ ln2/2
_EXP = {
    "f32": (0.5000000095547945, 0.16666518255452017, 0.04166620480933829, 0.008368958203052022, 0.0013950553542937802),
    "f64": (
        *(0.5000000000000013, 0.1666666666666669, 0.041666666666513565, 0.008333333333311833, 0.001388888894748654),
        *(0.00019841269908051794, 2.4801489457535922e-05, 2.755722418277443e-06, 2.7631454482525195e-07),
        2.5115477086174204e-08,
    ),
}
# exp(r) - 1 = r + r²·P(r), relative to the result
_EXPM1 = {
    "f32": (
        *(0.5000000047268146, 0.16666666795344706, 0.04166635198532978, 0.008333278158521777),
        *(0.001394119277389698, 0.00019911360124740717),
    ),
    "f64": (
        *(0.5, 0.16666666666666677, 0.0416666666666667, 0.008333333333321548, 0.0013888888888867348),
        *(0.0001984126988636013, 2.480158735957563e-05, 2.7557243951929048e-06, 2.7557243564229134e-07),
        *(2.5109133776727402e-08, 2.0924205115451747e-09),
    ),
}
# log(1 + f) = f + f²·P(f) on [√½ - 1, √2 - 1]
_LOG_F32 = (
    *(-0.49999988844834314, 0.33333309511152115, -0.2500154589558618, 0.20002961166308192, -0.16610576590760923),
    *(0.14164101004738508, -0.13214031799453493, 0.1300326118364269, -0.07809073693575747),
)
# log(1 + f) = 2s + s·z·P(z), s = f / (2 + f), z = s²
_LOG_F64 = (
    *(0.6666666666666735, 0.3999999999940728, 0.28571428744179395, 0.22222198375068544, 0.18183575324333118),
    *(0.15313752049695947, 0.1479910044356646),
)
# erf x = x + x·P(x²) below 0.92; 1 - exp(x·Q(x)) up to 3.93, beyond which float32 rounds it to 1
_ERF_SPLIT = 0.92
_ERF_SMALL = (
    *(0.12837916669202024, -0.3761263418739833, 0.11283701606905917, -0.026859701643250657, 0.0052017146729143775),
    *(-0.000814979141876903, 8.397738911615309e-05),
)
_ERF_LARGE = (
    *(-1.1286523177618393, -0.635135318283273, -0.1062640617089792, 0.023786074921868745, -0.003654078611237843),
    *(0.00032572280481813057, -1.1528589395457716e-05),
)
# float64: log(1 - erf x) = x·P(x) below 5.93, from where on erf rounds to 1
_ERF_LOG = (
    *(-1.1283791670955126, -0.6366197723676126, -0.10277260330001295, 0.019128446962202603),
    *(0.00020919523863006427, -0.0016962105793781382, 0.0005901470104189975, -2.595576921773185e-05),
    *(-6.428882157704765e-05, 2.9321618820566905e-05, -2.7934554117752877e-06, -3.56706039913941e-06),
    *(2.431652143738819e-06, -8.548653904625059e-07, 1.74660047475086e-07, -8.591685387759266e-09),
    *(-7.715179296413217e-09, 3.137232747488993e-09, -6.78252806189673e-10, 9.511083540067226e-11),
    *(-8.687642067422823e-12, 4.736400694236798e-13, -1.1752871992618801e-14),
)
# Taylor coefficients of erf around the multiples of 1/8 below 4, one table a power; erf rounds to 1 beyond the end
_ERF_STEP, _ERF_END = 1 / 8, 3.92


def _erf_tables(degree: int) -> tuple[tuple[float, ...], ...]:
    """Row k: coefficients of r^k in erf(c + r) - r, for c = 0, 1/8, …: derivatives by the Hermite recurrence, over k!.

    Without r, which is added on its own, a rounded coefficient costs little where erf is small.
    """
    rows: list[tuple[float, ...]] = []
    for c in (number * _ERF_STEP for number in range(32)):
        hermite = [1.0, 2 * c]
        for k in range(1, degree):
            hermite.append(2 * c * hermite[k] - 2 * k * hermite[k - 1])
        slope = 2 / math.sqrt(math.pi) * math.exp(-c * c)
        first, *rest = ((-1) ** k * slope * hermite[k] / math.factorial(k + 1) for k in range(degree))
        rows.append((math.erf(c), first - 1, *rest))
    return tuple(zip(*rows, strict=True))


_ERF_TABLES = _erf_tables(5)


def scale(e: Lanes, x: Value, rounded: Value, n: Value) -> Value:
    """``x·2ⁿ`` with one rounding, also where the result is subnormal. ``rounded`` holds n in its low bits."""
    if not _has_scale(e, x):
        return e.usually(_few(e, n), lambda: scale_normal(e, x, rounded), lambda: _scale(e, x, rounded))
    native = 16 if e.kind(x) == "f32" else 8
    name = "llvm.x86.avx512.mask.scalef." + ("ps.512" if native == 16 else "pd.512")
    full = ir.Constant(ir.IntType(native), -1)
    parts = [
        e.call(name, a.type, a, b, a, full, ir.Constant(I32, 4))
        for a, b in zip(e.chunks(native, x), e.chunks(native, n), strict=True)
    ]
    return e.join(parts)


def _has_scale(e: Lanes, x: Value) -> bool:
    """Whether :func:`scale` is an instruction."""
    return "avx512f" in cpu_features() and e.lanes % (16 if e.kind(x) == "f32" else 8) == 0


def _few(e: Lanes, n: Value) -> Value:
    """A mask: numbers in [½, 2) times 2ⁿ are normal. NaN is not among such n."""
    return e.compare("<", e.abs(n), e.like(n, _BIAS[e.kind(n)] - 1))


def _scale(e: Lanes, x: Value, rounded: Value) -> Value:
    """By two powers of two, of which each is normal."""
    magic = e.bits(e.const(e.kind(x), ROUND[e.kind(x)]))
    whole = e.b.sub(e.bits(rounded), magic)
    half = e.b.ashr(whole, e.like(whole, 1))
    return e.mul(e.mul(x, _power_of_two(e, half)), _power_of_two(e, e.b.sub(whole, half)))


def scale_normal(e: Lanes, x: Value, rounded: Value) -> Value:
    """``x·2ⁿ`` where x and that are normal: n, in the low bits of ``rounded``, is added to the exponent.

    What else ``rounded`` has is shifted out (see ``ROUND``).
    """
    bits = e.bits(x)
    return e.floats(e.b.add(bits, e.b.shl(e.bits(rounded), e.like(bits, _MANTISSA[e.kind(x)]))))


def _power_of_two(e: Lanes, n: Value) -> Value:
    kind = "f32" if e.kind(n) == "i32" else "f64"
    return e.floats(e.b.shl(e.b.add(n, e.like(n, _BIAS[kind])), e.like(n, _MANTISSA[kind])))


def _reduce_exp(e: Lanes, x: Value) -> tuple[Value, Value, Value]:
    """(x·log₂e rounded, with the integer in its low bits; that integer n; x - n·ln 2)."""
    kind = e.kind(x)
    magic = e.const(kind, ROUND[kind])
    rounded = e.madd(x, e.const(kind, _LOG2E), magic)
    n = e.sub(rounded, magic)
    high, low = _LN2[kind]
    r = e.madd(n, e.const(kind, -low), e.madd(n, e.const(kind, -high), x))
    return rounded, n, r


def exp(e: Lanes, x: Value) -> Value:
    """(1, 1) ulp; 1.2 without fma instructions.

    What rounds to 0 is 0 before it is scaled: processors take a hundred cycles to round a result that underflows,
    and softmax of masked scores has little else.
    """
    least, most = (-104.0, 89.0) if e.kind(x) == "f32" else (-746.0, 710.0)

    def any_exp() -> Value:
        rounded, n, r = _reduce_exp(e, e.at_most(e.at_least(x, least), most))
        vanishes = e.compare("<", x, e.like(x, least))
        p = e.select(vanishes, e.like(x, 0.0), _exp_of(e, r))
        return scale(e, p, rounded, n) if _has_scale(e, x) else _scale(e, p, rounded)

    if _has_scale(e, x):
        return any_exp()
    rounded, n, r = _reduce_exp(e, x)
    return e.usually(_few(e, n), lambda: scale_normal(e, _exp_of(e, r), rounded), any_exp)


def _exp_of(e: Lanes, r: Value) -> Value:
    return e.poly(r, (1.0, 1.0, *_EXP[e.kind(r)]))


def expm1(e: Lanes, x: Value) -> Value:
    """(2, 2) ulp."""
    single = e.kind(x) == "f32"
    half = _half_expm1(e, e.at_most(e.at_least(x, -20.0 if single else -40.0), 89.0 if single else 710.0))
    result = e.copysign(e.add(half, half), x)
    # x itself where x² is below its rounding: half of a subnormal number loses its last bit
    return e.select(e.compare("<", e.abs(x), e.like(x, 2.0 ** (-26 if single else -55))), x, result)


def _half_expm1(e: Lanes, x: Value) -> Value:
    """(exp(x) - 1) / 2, which does not overflow before the result does; x ≥ -40. The sign of 0 is lost."""
    kind = e.kind(x)
    rounded, _, r = _reduce_exp(e, x)
    p = e.madd(e.mul(r, r), e.poly(r, _EXPM1[kind]), r)
    whole = e.b.sub(e.bits(rounded), e.bits(e.const(kind, ROUND[kind])))
    half = _power_of_two(e, e.b.sub(whole, e.like(whole, 1)))
    return e.madd(half, p, e.sub(half, e.like(half, 0.5)))


def split(e: Lanes, x: Value) -> tuple[Value, Value]:
    """(n, m - 1) with x = m·2ⁿ and m in [√½, √2), for normal x > 0; n as a float."""
    bits = e.bits(x)
    single = e.kind(x) == "f32"
    root_half = e.like(bits, 0x3F3504F3 if single else 0x3FE6A09E667F3BCD)
    shift = e.like(bits, 23 if single else 52)
    n = e.b.ashr(e.b.sub(bits, root_half), shift)
    m = e.floats(e.b.sub(bits, e.b.shl(n, shift)))
    return e.cast(n, e.kind(x)), e.sub(m, e.like(m, 1.0))


def _log_of(e: Lanes, f: Value, n: Value) -> Value:
    """log((1 + f)·2ⁿ) for f in [√½ - 1, √2 - 1]."""
    kind = e.kind(f)
    high, low = _LN2[kind]
    if kind == "f32":
        tail = e.madd(n, e.const(kind, low), e.mul(e.mul(f, f), e.poly(f, _LOG_F32)))
        return e.madd(n, e.const(kind, high), e.add(f, tail))
    s = e.div(f, e.add(f, e.like(f, 2.0)))
    z = e.mul(s, s)
    half = e.mul(e.mul(f, f), e.like(f, 0.5))
    # 2s + s·z·P = f - (f²/2 - s·(f²/2 + z·P)), which keeps the rounding error of s small
    series = e.mul(z, e.poly(z, _LOG_F64))
    tail = e.sub(half, e.madd(s, e.add(half, series), e.mul(n, e.const(kind, low))))
    return e.madd(n, e.const(kind, high), e.sub(f, tail))


def _log_specials(e: Lanes, x: Value, result: Value) -> Value:
    """+inf and NaN as they are; 0 -> -inf; negative -> NaN."""
    result = e.select(e.compare("<", x, e.like(x, float("inf"))), result, x)
    result = e.select(e.compare("==", x, e.like(x, 0.0)), e.like(x, float("-inf")), result)
    return e.select(e.compare("<", x, e.like(x, 0.0)), e.like(x, float("nan")), result)


def log(e: Lanes, x: Value) -> Value:
    """(1, 1) ulp."""
    single = e.kind(x) == "f32"
    shift, least = 24 if single else 54, e.like(x, 2.0**-126 if single else 2.0**-1022)

    def any_log() -> Value:
        subnormal = e.compare("<", x, least)
        n, f = split(e, e.select(subnormal, e.mul(x, e.like(x, 2.0**shift)), x))
        n = e.select(subnormal, e.sub(n, e.like(n, shift)), n)
        return _log_specials(e, x, _log_of(e, f, n))

    def plain_log() -> Value:
        n, f = split(e, x)
        return _log_of(e, f, n)

    if masks_are_quick():  # and choosing by them
        return any_log()
    finite = e.compare("<", x, e.like(x, float("inf")))
    return e.usually(e.b.and_(e.compare(">=", x, least), finite), plain_log, any_log)


def log1p(e: Lanes, x: Value) -> Value:
    """(2, 2) ulp."""
    one = e.like(x, 1.0)
    u = e.add(x, one)
    # what the sum lost: from the greater of the two terms
    lost = e.select(e.compare(">", e.abs(x), one), e.sub(one, e.sub(u, x)), e.sub(x, e.sub(u, one)))
    n, f = split(e, u)
    kind = e.kind(x)
    shift = e.cast(n, "i32" if kind == "f32" else "i64")
    # u below half the greatest exponent in all that matters: the correction vanishes beyond 2**MANTISSA
    f = e.add(f, e.mul(lost, _power_of_two(e, e.b.sub(e.like(shift, 0), _limited(e, shift)))))
    result = _log_specials(e, u, _log_of(e, f, n))
    return e.select(e.compare("==", x, e.like(x, 0.0)), x, result)


def _limited(e: Lanes, n: Value) -> Value:
    """min(n, 120), so that 2⁻ⁿ stays normal."""
    limit = e.like(n, 120)
    return e.select(e.compare("<", n, limit), n, limit)


def tanh(e: Lanes, x: Value) -> Value:
    """(3, 3) ulp; never beyond ±1."""
    limit = 18.1 if e.kind(x) == "f32" else 40.0
    s = _half_expm1(e, e.at_most(e.at_least(e.add(x, x), -limit), limit))
    return e.copysign(e.div(s, e.add(s, e.like(s, 1.0))), x)


def erf(e: Lanes, x: Value) -> Value:
    """(2, 4) ulp; never beyond ±1."""
    if e.kind(x) == "f64":
        t = e.at_most(e.abs(x), 5.93)
        return e.copysign(expm1(e, e.mul(t, e.poly(t, _ERF_LOG))), x)
    if e.has_lookup(x):
        return _erf_by_table(e, x)
    small = e.madd(x, e.poly(e.mul(x, x), _ERF_SMALL), x)
    t = e.at_most(e.abs(x), 3.93)
    rounded, _, r = _reduce_exp(e, e.mul(t, e.poly(t, _ERF_LARGE)))
    power = scale_normal(e, e.like(x, 1.0), rounded)  # 2⁻²³ and more
    rest = e.mul(_exp_of(e, r), power)  # NaN, where the power is anything
    large = e.copysign(e.sub(e.like(x, 1.0), rest), x)
    return e.select(e.compare("<", t, e.like(t, _ERF_SPLIT)), small, large)


def _erf_by_table(e: Lanes, x: Value) -> Value:
    """Float32: a Taylor polynomial around the nearest multiple of 1/8, its coefficients looked up."""
    t = e.abs(x)
    nearest = e.add(t, e.like(t, ROUND["f32"] * _ERF_STEP))  # the multiple's number is in the low bits
    r = e.sub(t, e.sub(nearest, e.like(t, ROUND["f32"] * _ERF_STEP)))
    number = e.bits(nearest)
    start, *slopes = (e.lookup(table, number) for table in _ERF_TABLES)
    result = slopes[-1]
    for coefficient in reversed(slopes[:-1]):
        result = e.madd(result, r, coefficient)
    result = e.madd(result, r, e.add(start, r))
    one = e.like(x, 1.0)
    return e.copysign(e.select(e.compare(">", t, e.like(t, _ERF_END)), one, result), x)


def sigmoid(e: Lanes, x: Value) -> Value:
    """``1 / (1 + exp(-x))``: (2.5, 2.5) ulp; 0 where exp(-x) overflows."""
    one = e.like(x, 1.0)
    return e.div(one, e.add(one, exp(e, e.b.fneg(x))))

"""Identities of sums, products, quotients and powers."""

from __future__ import annotations

import math

import numpy as np

from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.rules import Match, Terms, builtin, family, fit, numbers, op, rewrite, signed, signed_sum, tensors
from eqsat.rules.examples import Maker
from eqsat.rules.pattern import Literal
from eqsat_rules.ranges import at_least, not_negative, reciprocal_exists

a, b, c, x = tensors("a b c x")
p, q = numbers("p q")


def floats(m: Match) -> bool:
    """the element type is a float"""
    return bool(m.root.dtype.is_float)


def power_of_two(m: Match) -> bool:
    """the divisor is a power of two whose reciprocal is normal"""
    value = m.value(m.p)
    return (
        value is not None
        and math.isfinite(value)
        and 2.0**-100 < abs(value) < 2.0**100
        and math.frexp(value)[0] in (0.5, -0.5)
    )


def plain_divisor(m: Match) -> bool:
    """the divisor's reciprocal is neither zero nor infinite"""
    value = m.value(m.p)
    return value is not None and 1e-30 < abs(value) < 1e30


def b_known(m: Match) -> bool:
    """the second operand is known when compiled"""
    return m.known(m.b)


def b_in_range(m: Match) -> bool:
    """no element of the divisor is so small that its reciprocal is infinite"""
    return reciprocal_exists(m, m.b)


def b_not_number(m: Match) -> bool:
    """the other factor is not a number"""
    return m.value(m.b) is None


def scaled_tensors(m: Match) -> bool:
    """neither the other factor nor what is scaled is a number"""
    # 0 = 0·2, so that a tensor scaled by 0 would be scaled by each power of 2 too.
    return m.value(m.a) is None and m.value(m.b) is None


def b_only_known(m: Match) -> bool:
    """the second factor is known when compiled and not a number, the first is not known"""
    return m.known(m.b) and m.value(m.b) is None and not m.known(m.a)


def new_scale(m: Match) -> bool:
    """what is scaled is no number, and the tensor is not known as a number times it already"""
    return m.value(m.a) is None and not any(
        m.a in f and any(m.value(t) is not None for t in f) for _, f in m.forms(m.root, "mul")
    )


def program_tensor(m: Match) -> bool:
    """the tensor is one of the program's"""
    return m.original(m.root)


def both_known(m: Match) -> bool:
    """both factors are known when compiled, not both numbers, and the rest is not known"""
    numbers_only = m.value(m.b) is not None and m.value(m.c) is not None
    return m.known(m.b) and m.known(m.c) and not numbers_only and not m.known(m.a)


def negative_number(m: Match) -> bool:
    """the e-graph is small, and the number subtracted"""
    return m.small() and m.signs[0] == -1 and bool(m.root.dtype.is_float) and m.value(m.p) is not None


def tensors_alone(m: Match) -> bool:
    """the e-graph is small, and divisor and factor are no numbers"""
    return m.small() and m.value(m.b) is None and m.value(m.c) is None


def b_repeats(m: Match) -> bool:
    """the divisor is smaller than the result"""
    return bool(m.b.type.size < m.root.type.size and m.root.dtype.is_float)


def few_terms(m: Match) -> bool:
    """the tensor is the program's, and the sum has at most four terms, one of them known"""
    return len(m.ts) <= 4 and m.original(m.root) and any(m.known(t) for _, t in m.ts) and m.fewer(m.root, "add_n", 8)


def program_sum(m: Match) -> bool:
    """the sum is a tensor of the program with fewer than eight forms as a sum"""
    return m.original(m.root) and m.fewer(m.root, "add_n", 8)


def shared_tensor(m: Match) -> bool:
    """the sum is the program's, and the shared factor is a tensor or the whole sum shares it"""
    return program_sum(m) and m.b is not m.c and (m.value(m.a) is None or not m.rest)


def own_scaled(m: Match) -> bool:
    """the sum is the program's, and what is scaled is not a number"""
    return program_sum(m) and m.value(m.a) is None


def both_tensors(m: Match) -> bool:
    """the e-graph is small, and neither factor a number"""
    return m.small() and program_sum(m) and m.value(m.a) is None and m.value(m.b) is None


def whole_power(m: Match) -> bool:
    """the exponent is a whole number of 5 to 64, or of a float's that are negative, -3 to -64"""
    value = m.value(m.p)
    if value is None or not math.isfinite(value) or value != int(value):
        return False
    return 5 <= value <= 64 or (bool(m.root.dtype.is_float) and -64 <= value <= -3)


def half_power(m: Match) -> bool:
    """the exponent is a whole number and a half, of 2.5 to 64.5 or likewise negative"""
    value = m.value(m.p)
    return value is not None and math.isfinite(value) and 2 < abs(value) < 65 and abs(value) % 1 == 0.5


def _by_squares(m: Match) -> Node:
    """The product of those repeated squares that the exponent's bits name, and of the root where it has a half; other
    powers of the same base share them."""
    value = m.value(m.p)
    assert value is not None
    left, square, product = abs(int(value)), m.x, None if value == int(value) else call("sqrt", m.x)
    while True:
        if left & 1:
            product = square if product is None else call("mul", product, square)
        left >>= 1
        if not left:
            break
        square = call("square", square)
    assert product is not None
    if value > 0:
        return fit(product, m.root.shape)
    inverse = call("reciprocal", product)
    return fit(inverse, m.root.shape) if value == int(value) else _by_root(m, inverse)


def _by_root(m: Match, power: Node) -> Node:
    """A negative power of x that a root is part of: 0 at -infinity, of which there is no root."""
    if not_negative(m, m.x):
        return fit(power, m.root.shape)
    endless = call("eq", m.x, build.scalar(-math.inf, m.x))
    return fit(call("where", endless, build.scalar(0, m.x), power), m.root.shape)


def _rsqrt(m: Match) -> Node:
    zero, infinite = build.scalar(0, m.x), build.scalar(math.inf, m.x)
    return call("where", call("eq", m.x, zero), infinite, _by_root(m, call("rsqrt", m.x)))


def _whole_powers(mk: Maker, more: float = 0.0) -> Node:
    x = mk.tensor(3, 4)
    whole = mk.random.choice([*range(5, 65), *range(-64, -2)])
    number = build.scalar(whole + math.copysign(more, whole), x)
    return call("pow", x, number if mk.random.random() < 0.5 else build.broadcast_to(number, (2, 3, 4)))


def _rsqrt_of_sum(m: Match) -> Node | None:
    """The reciprocal root of a sum that is not -0."""
    (base, _) = next((f for _, f in m.forms(m.root, "pow") if m.value(f[1]) == -0.5), (None, None))
    return call("rsqrt", base) if base is not None and at_least(m, base) else None


def _by_plain(mk: Maker) -> Node:
    """Quotients by what cannot be tiny, and by what can."""
    x, row = mk.tensor(3, 4), mk.tensor(3, 1, known=mk.random.random() < 0.5)
    one = build.scalar(1, x)
    shifted = call("sub", x, build.reduce("reduce_max", x, (1,), keepdims=True))
    divisors = (
        row,
        call("sqrt", row),
        call("maximum", row, build.scalar(1e-9, x)),
        call("add", call("square", row), one),
        build.reduce("reduce_sum", call("exp", shifted), (1,), keepdims=True),
        build.const(np.array([[0.5], [2.0], [-3.0]])),
    )
    return call("div", x, mk.random.choice(divisors))


def _sum_in_sum(mk: Maker) -> Node:
    return call("add", call("add", mk.tensor(4), mk.tensor(4)), mk.tensor(3, 4))


def _plain(value: float, bits: int) -> float:
    """The number of few digits that a value rounded a few times was, or the value: 561 for 560.99994, 1 for 0.9999999.

    Scales that should cancel would otherwise leave ever new numbers near 1.
    """
    if value == 0 or not math.isfinite(value):
        return value
    mantissa, exponent = math.frexp(value)
    short = math.ldexp(round(mantissa * 4096) / 4096, exponent)
    return short if abs(short - value) <= abs(value) * 2.0 ** (3 - bits) else value


def _numbers_meet(m: Match) -> Node | None:
    one, other = m.value(m.p), m.value(m.q)
    if m.root.dtype.kind != "float" or one is None or other is None:
        return call("mul", m.a, call("mul", m.p, m.q))
    value = _plain(float(one) * float(other), 53 if m.root.dtype.bits == 64 else 24)
    plain = bool(one) and bool(other) and math.isfinite(one) and math.isfinite(other)
    if plain and not 2.0**-100 < abs(value) < 2.0**100:
        return None  # (p·a)·q may be finite, and not 0, where a·(p·q) is infinite or 0
    scaled = m.a if value == 1 else call("mul", m.a, build.scalar(value, m.a))
    return build.broadcast_to(scaled, m.root.shape)


def _negated(m: Match) -> Node:
    return signed_sum([(-m.signs[0], m.a), (m.signs[1], m.b)])


def _signed_pair(m: Match) -> Node:
    """±a ±b of the two matched terms, each with its own sign."""
    return signed_sum([(m.signs[0], m.b), (m.signs[1], m.c)])


def _group_known(m: Match) -> Node | None:
    known = [t for t in m.ts if m.known(t[1])]
    rest = [t for t in m.ts if not m.known(t[1])]
    if len(known) < 2 or not rest:
        return None
    return build.broadcast_to(signed_sum([*rest, (1, signed_sum(known))]), m.root.shape)


def _flatten(m: Match) -> Node | None:
    """Of two sums with known terms, these are added when compiled."""
    terms = [(m.signs[0] * s, t) for s, t in m.ts]
    known = [t for t in terms if m.known(t[1])]
    if known and len(known) < len(terms) and m.known(m.b):
        return signed_sum([*(t for t in terms if t not in known), (1, signed_sum([*known, (m.signs[1], m.b)]))])
    if known or len(m.ts) + len(m.rest) + 1 > 6:
        return None
    return signed_sum([*terms, (m.signs[1], m.b)])


def _distribute(m: Match) -> Node:
    return build.broadcast_to(signed_sum([(s, call("mul", m.p, t)) for s, t in m.ts]), m.root.shape)


def _add_one(m: Match) -> Node | None:
    factor = m.value(m.p)
    if factor is not None:
        total = m.signs[0] * factor + m.signs[1]
        # What is left of a cancellation is the rounding of p; multiplied up again it would pass for a value.
        if abs(total) < 0.125 * (abs(factor) + 1):
            return None
    one = build.scalar(1, m.a)
    return call("mul", m.a, signed_sum([(m.signs[0], m.p), (m.signs[1], one)]))


fold_constants = builtin("fold.constants", "operators of small known tensors are computed when compiled")
product_reorder = builtin(
    "product.reorder", "(a·b)·c = a·(b·c): products of the same factors are one", numerics="reassociates"
)
read_store = builtin(
    "fuse.read_store", "a tensor that one kernel stores and another reads stays in registers: one kernel"
)

sum_flatten = rewrite(
    signed((0, Terms("ts")), (0, b)),
    _flatten,
    id="sum.flatten",
    where=program_sum,
    doc="a sum in a sum",
    example=_sum_in_sum,
)
sum_known = rewrite(Terms("ts"), _group_known, doc="known terms of a sum are added when compiled")
add_zero = rewrite(signed((1, x), (0, Literal(0))), x, doc="x + 0 is x, but for the sign of zero")
sub_itself = rewrite(a - a, 0, numerics="approximates", doc="loses NaN and infinity")
add_itself = rewrite(a + a, 2 * a, numerics="exact")
add_negated = rewrite(signed((0, -a), (0, b)), _negated, numerics="exact", doc="a + (-b) = a - b")
sub_number = rewrite(
    signed((0, p), (0, b)),
    lambda m: signed_sum([(1, build.scalar(-m.value(m.p), m.p)), (m.signs[1], m.b)]),
    where=negative_number,
    doc="b - p = b + (-p)",
)
neg_neg = rewrite(op("neg", -x), x, numerics="exact")
neg_sum = rewrite(-Terms("ts"), lambda m: signed_sum([(-s, t) for s, t in m.ts]))
neg_mul = rewrite((-a) * b, -(a * b), numerics="exact")
neg_div = family([((-a) / b, -(a / b)), (a / (-b), -(a / b))], numerics="exact")
neg_mul_number = rewrite(-(p * b), lambda m: call("mul", call("neg", m.p), m.b), numerics="exact")

mul_one = rewrite(x * 1, x, numerics="exact")
mul_minus_one = rewrite(x * -1, -x, numerics="exact")
mul_zero = rewrite(x * 0, 0, numerics="approximates", doc="loses NaN and infinity")
div_one = rewrite(x / 1, x, numerics="exact")
div_itself = rewrite(x / x, 1, numerics="approximates", doc="loses NaN, infinity and 0/0")
zero_div = rewrite(0 / x, 0, numerics="approximates", doc="loses NaN and 0/0")
mul_itself = rewrite(x * x, op("square", x), both_ways=True, numerics="exact")
mul_numbers = rewrite((p * a) * q, _numbers_meet, where=new_scale, doc="(p·a)·q = a·(p·q): numbers meet")
mul_number_outward = rewrite((p * a) * b, p * (a * b), where=scaled_tensors)
mul_known_meet = rewrite((a * b) * c, a * (b * c), where=both_known)
square_scaled = rewrite(op("square", p * x), op("square", p) * op("square", x), where=program_tensor)
square_neg = rewrite(op("square", -x), op("square", x), numerics="exact")

div_power_of_two = rewrite(
    x / p, lambda m: call("mul", m.x, call("reciprocal", m.p)), where=power_of_two, numerics="exact"
)
div_number = rewrite(x / p, lambda m: call("mul", m.x, call("reciprocal", m.p)), where=plain_divisor)
div_known = rewrite(
    a / b,
    a * op("reciprocal", b),
    where=[b_known, floats, b_in_range],
    doc="the reciprocal is taken when compiled",
    example=_by_plain,
)
div_repeated = rewrite(
    a / b, a * op("reciprocal", b), where=[b_repeats, b_in_range], doc="one division per row", example=_by_plain
)
div_sqrt = rewrite(a / op("sqrt", b), a * op("rsqrt", b))
div_div = family([((a / b) / c, a / (b * c)), (a / (b / c), (a * c) / b)], where=b_not_number)
mul_quotient = rewrite((a / b) * c, (a * c) / b, where=tensors_alone)
div_number_inward = rewrite((a * b) / p, a * (b / p), where=b_only_known)
mul_number_over = rewrite((p * a) / b, p * (a / b), where=scaled_tensors)
reciprocal_definition = rewrite(1 / x, op("reciprocal", x), both_ways=True, numerics="exact")
mul_reciprocal = rewrite(a * op("reciprocal", b), a / b, doc="the reverse of dividing by the reciprocal")
reciprocal_reciprocal = rewrite(op("reciprocal", op("reciprocal", x)), x)
reciprocal_sqrt = rewrite(op("reciprocal", op("sqrt", x)), op("rsqrt", x), both_ways=True, numerics="exact")
sqrt_reciprocal = rewrite(op("sqrt", op("reciprocal", x)), op("rsqrt", x))
square_rsqrt = rewrite(
    op("square", op("rsqrt", x)), op("reciprocal", x), numerics="approximates", doc="loses NaN below 0"
)
square_sqrt = rewrite(op("square", op("sqrt", x)), x, numerics="approximates", doc="loses NaN below 0")
div_own_sqrt = rewrite(x / op("sqrt", x), op("sqrt", x), numerics="approximates", doc="loses 0/0")
sqrt_mul = rewrite(op("sqrt", a) * op("sqrt", b), op("sqrt", a * b), numerics="approximates", doc="loses NaN below 0")
sqrt_square = rewrite(op("sqrt", op("square", x)), abs(x))

pow_zero = rewrite(op("pow", x, 0), 1, numerics="exact")
pow_one = rewrite(op("pow", x, 1), x, numerics="exact")
pow_two = rewrite(op("pow", x, 2), op("square", x))
pow_three = rewrite(op("pow", x, 3), x * op("square", x))
pow_four = rewrite(op("pow", x, 4), op("square", op("square", x)))
pow_whole = rewrite(
    op("pow", x, p),
    _by_squares,
    where=whole_power,
    example=_whole_powers,
    doc="x⁷ = x·x²·(x²)²",
)
pow_halves = rewrite(
    op("pow", x, p),
    _by_squares,
    where=half_power,
    example=lambda mk: _whole_powers(mk, 0.5),
    doc="x^2.5 = √x·x²",
)
pow_half = rewrite(op("pow", x, 0.5), op("sqrt", x))
pow_three_halves = rewrite(op("pow", x, 1.5), x * op("sqrt", x))
pow_minus_three_halves = rewrite(
    op("pow", x, -1.5),
    lambda m: _by_root(m, call("reciprocal", call("mul", m.x, call("sqrt", m.x)))),
    doc="x^-1.5 = 1/(x·√x), but 0 at -infinity",
)
pow_minus_one = rewrite(op("pow", x, -1), op("reciprocal", x), where=floats)
pow_minus_two = rewrite(op("pow", x, -2), op("reciprocal", op("square", x)), where=floats)
pow_minus_half = family(
    [
        (op("pow", Terms("ts"), -0.5), _rsqrt_of_sum),
        (op("pow", x, -0.5), _rsqrt),
    ],
    doc="infinite at 0 of either sign, where 1/sqrt(-0) is -infinity, and 0 at -infinity",
)

factor = rewrite(
    signed((0, a * b), (0, a * c)),
    lambda m: call("mul", m.a, _signed_pair(m)),
    doc="a·b ± a·c = a·(b ± c)",
    where=shared_tensor,
)
factor_own = rewrite(signed((0, a * p), (0, a)), _add_one, where=own_scaled, doc="a·p ± a")
factor_one = rewrite(
    signed((0, a * b), (0, a)),
    lambda m: call("mul", m.a, signed_sum([(m.signs[0], m.b), (m.signs[1], build.scalar(1, m.b))])),
    where=both_tensors,
    doc="a·b ± a = a·(b ± 1)",
)
factor_div = rewrite(signed((0, b / a), (0, c / a)), lambda m: call("div", _signed_pair(m), m.a), where=program_sum)
distribute = rewrite(p * Terms("ts"), _distribute, where=few_terms, doc="p·(b ± c) = p·b ± p·c")

"""Elementary functions as expressions of the operators that have kernels: inverse trigonometric and hyperbolic ones,
and functions of signs. Errors are a few units in the last place; edges are C's (Annex F), as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eqsat.frontends.ufuncs import PAIRS, written
from eqsat.ir.build import call, scalar
from eqsat.ir.node import Node
from eqsat.ir.table import REALS

# atan(t) / t over t² for t up to tan(π/8), interpolated at Chebyshev's points: within 5e-20 and 2.2e-11.
_ATAN = (
    1.0, -0.33333333333333326, 0.19999999999997012, -0.1428571428532936, 0.11111111085301238, -0.0909090805829841,
    0.07692281083678901, -0.06666205023178091, 0.058768317098427496, -0.05217297919655059, 0.044994415067496046,
    -0.03338645225903317, 0.01511237643149517,
)  # fmt: skip
_ATAN_SINGLE = (
    0.9999999999783846, -0.33333332096926027, 0.19999883803853233, -0.1428158730709012, 0.11040471009581072,
    -0.0845608946699897, 0.04707129655257451,
)  # fmt: skip
_PI_REST = 1.2246467991473532e-16
"""π less its double."""


def polynomial(coefficients: Sequence[float], x: Node) -> Node:
    """``Σ coefficients[i]·xⁱ`` by Horner's rule."""
    result = scalar(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        result = call("add", call("mul", result, x), scalar(c, x))
    return result


def is_single(x: Node) -> bool:
    """Whether a type has at most single precision."""
    return x.dtype.bits <= 32


def signbit(x: Node) -> Node:
    """Whether a number is negative or -0; of a NaN's sign nothing is known."""
    zero = scalar(0, x)
    below = call("lt", call("reciprocal", x), zero)
    return call("logical_or", call("lt", x, zero), call("logical_and", call("eq", x, zero), below))


def copysign(x: Node, y: Node) -> Node:
    size = call("abs", x)
    return call("where", signbit(y), call("neg", size), size)


def _odd(x: Node, result: Node) -> Node:
    """An odd function, from its value at |x|; -0 stays -0."""
    return call("where", call("gt", call("abs", x), scalar(0, x)), call("mul", call("sign", x), result), x)


def _part(x: Node, part: float) -> tuple[Node, Node]:
    """A part of π: its nearest number, and the rest."""
    value = x.dtype.numpy.type(part * math.pi)
    return scalar(float(value), x), scalar(part * math.pi - float(value) + part * _PI_REST, x)


def _atan_to_one(t: Node) -> Node:
    """The arctangent of numbers in [0, 1]."""
    big = call("gt", t, scalar(math.tan(math.pi / 8), t))
    one, zero = scalar(1, t), scalar(0, t)
    near = call("where", big, call("div", call("sub", t, one), call("add", t, one)), t)
    series = polynomial(_ATAN_SINGLE if is_single(t) else _ATAN, call("square", near))
    base, rest = _part(t, 0.25)
    value = call("add", call("mul", near, series), call("where", big, rest, zero))
    return call("where", big, call("add", base, value), value)


def _from_right_angle(turned: Node, angle: Node) -> Node:
    """π/2 - angle where ``turned``."""
    base, rest = _part(angle, 0.5)
    return call("where", turned, call("add", base, call("sub", rest, angle)), angle)


def arctan(x: Node) -> Node:
    size = call("abs", x)
    steep = call("gt", size, scalar(1, x))
    angle = _atan_to_one(call("where", steep, call("reciprocal", size), size))
    return _odd(x, _from_right_angle(steep, angle))


def arctan2(y: Node, x: Node) -> Node:
    tall, wide = call("abs", y), call("abs", x)
    top, low = call("maximum", tall, wide), call("minimum", tall, wide)
    # Equal sides have the ratio 1, also where they are infinite; no side has the angle 0.
    ratio = call("where", call("eq", top, low), scalar(1, x), call("div", low, top))
    ratio = call("where", call("eq", top, scalar(0, x)), scalar(0, x), ratio)
    angle = _from_right_angle(call("gt", tall, wide), _atan_to_one(ratio))
    base, rest = _part(x, 1.0)
    angle = call("where", signbit(x), call("add", base, call("sub", rest, angle)), angle)
    return copysign(angle, y)


def _other_leg(x: Node) -> Node:
    one = scalar(1, x)
    return call("sqrt", call("mul", call("sub", one, x), call("add", one, x)))


def _arcsin(x: Node) -> Node:
    return _odd(x, arctan2(call("abs", x), _other_leg(x)))


def _arccos(x: Node) -> Node:
    return arctan2(_other_leg(x), x)


def _halves(x: Node) -> tuple[Node, Node]:
    """Of |x|: whether the exponential is so large that its reciprocal is nothing to it, and half of it."""
    size = call("abs", x)
    half = scalar(0.5, x)
    root = call("exp", call("mul", size, half))  # which does not overflow before the result does
    return call("gt", size, scalar(40, x)), call("mul", call("mul", half, root), root)


def _sinh(x: Node) -> Node:
    large, half = _halves(x)
    e = call("expm1", call("minimum", call("abs", x), scalar(41, x)))
    small = call("mul", scalar(0.5, x), call("add", e, call("div", e, call("add", e, scalar(1, x)))))
    return _odd(x, call("where", large, half, small))


def _cosh(x: Node) -> Node:
    large, half = _halves(x)
    e = call("exp", call("minimum", call("abs", x), scalar(41, x)))
    small = call("mul", scalar(0.5, x), call("add", e, call("reciprocal", e)))
    return call("where", large, half, small)


_LARGE = 2.0**28
"""Beyond the reciprocal square root of every type's rounding."""


def _log_twice(x: Node) -> Node:
    return call("add", call("log", x), scalar(math.log(2), x))


def _arcsinh(x: Node) -> Node:
    one, size = scalar(1, x), call("abs", x)
    square = call("square", size)
    more = call("div", square, call("add", one, call("sqrt", call("add", one, square))))
    near = call("log1p", call("add", size, more))
    return _odd(x, call("where", call("gt", size, scalar(_LARGE, x)), _log_twice(size), near))


def _arccosh(x: Node) -> Node:
    over = call("sub", x, scalar(1, x))
    more = call("sqrt", call("mul", over, call("add", over, scalar(2, x))))
    near = call("where", call("lt", over, scalar(0, x)), scalar(math.nan, x), call("log1p", call("add", over, more)))
    return call("where", call("gt", x, scalar(_LARGE, x)), _log_twice(x), near)


def _arctanh(x: Node) -> Node:
    size, one = call("abs", x), scalar(1, x)
    ratio = call("div", call("mul", scalar(2, x), size), call("sub", one, size))
    return _odd(x, call("mul", scalar(0.5, x), call("log1p", ratio)))


def _logaddexp2(x: Node, y: Node) -> Node:
    top, gap = call("maximum", x, y), call("abs", call("sub", x, y))
    part = call("log1p", call("exp", call("mul", gap, scalar(-math.log(2), x))))
    soft = call("add", top, call("mul", part, scalar(1 / math.log(2), x)))
    return call("where", call("eq", x, y), call("add", x, scalar(1, x)), soft)


def _fmod(x: Node, y: Node) -> Node:
    if x.dtype.is_float:
        return copysign(call("remainder", call("abs", x), call("abs", y)), x)
    rest = call("remainder", x, y)  # with the divisor's sign; the least integer has no magnitude
    if not x.dtype.is_signed:
        return rest
    zero = scalar(0, x)
    other = call("logical_and", call("ne", rest, zero), call("lt", call("bitwise_xor", x, y), zero))
    return call("where", other, call("sub", rest, y), rest)


def _whole(x: Node) -> Node:
    return copysign(call("floor", call("abs", x)), x)


def _fraction(x: Node) -> Node:
    rest = call("sub", x, _whole(x))
    return copysign(call("where", call("eq", call("abs", x), scalar(math.inf, x)), scalar(0, x), rest), x)


written(np.arctan, arctan, REALS)
written(np.arctan2, arctan2, REALS, (0.5, math.inf))
written(np.arcsin, _arcsin, (-0.9, 0.9))
written(np.arccos, _arccos, (-0.9, 0.9))
written(np.sinh, _sinh, (-10, 10))
written(np.cosh, _cosh, (-10, 10))
written(np.arcsinh, _arcsinh, REALS)
written(np.arccosh, _arccosh, (1.5, math.inf))
written(np.arctanh, _arctanh, (-0.9, 0.9))
written(np.logaddexp2, _logaddexp2, REALS, REALS)
written(np.signbit, signbit)
written(np.copysign, copysign)
written(np.fmod, _fmod)
PAIRS[np.modf] = (_fraction, _whole)

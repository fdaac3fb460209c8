"""NumPy's elementwise functions on vectors of lanes: name -> how many arguments, and the code.

Each entry has the semantics of the NumPy ufunc on the kinds NumPy defines it for. Arguments of one call have
one kind. Functions not named here are not available in printed kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eqsat_backends.numba_cpu.vectors import vcircular, vmath, vpower
from eqsat_backends.numba_cpu.vectors.lanes import Lanes, Value

Build = Callable[..., Value]


@dataclass(frozen=True, slots=True)
class Function:
    """``build(lanes, *values)``; ``result`` is ``same`` (kind of the last argument) or ``mask``."""

    arity: int
    result: str
    build: Build
    kinds: frozenset[str]


_FLOAT = frozenset(("f32", "f64"))
_NUMBER = _FLOAT | {"i32", "i64"}
_ALL = _NUMBER | {"b1"}


def _mask(e: Lanes, x: Value) -> Value:
    return e.cast(x, "b1")


def _add(e: Lanes, a: Value, b: Value) -> Value:
    return e.b.or_(a, b) if e.kind(a) == "b1" else e.add(a, b)


def _mul(e: Lanes, a: Value, b: Value) -> Value:
    return e.b.and_(a, b) if e.kind(a) == "b1" else e.mul(a, b)


def _neg(e: Lanes, x: Value) -> Value:
    return e.b.fneg(x) if e.is_float(x) else e.sub(e.like(x, 0), x)


def _abs(e: Lanes, x: Value) -> Value:
    return x if e.kind(x) == "b1" else e.abs(x)


def _sign(e: Lanes, x: Value) -> Value:
    zero, one = e.like(x, 0), e.like(x, 1)
    result = e.select(e.compare(">", x, zero), one, e.select(e.compare("<", x, zero), e.like(x, -1), zero))
    return e.select(e.is_nan(x), x, result) if e.is_float(x) else result


def maximum(e: Lanes, a: Value, b: Value) -> Value:
    """The greater; NaN if either is. One instruction when ``a`` is a number known at compile time."""
    if e.kind(a) == "b1":
        return e.b.or_(a, b)
    if not e.is_float(a):
        return e.select(e.compare(">", a, b), a, b)
    return e.select(e.is_nan(a), a, e.extremum("max", a, b))


def minimum(e: Lanes, a: Value, b: Value) -> Value:
    """The smaller; NaN if either is."""
    if e.kind(a) == "b1":
        return e.b.and_(a, b)
    if not e.is_float(a):
        return e.select(e.compare("<", a, b), a, b)
    return e.select(e.is_nan(a), a, e.extremum("min", a, b))


def _relu(e: Lanes, x: Value) -> Value:
    return x if e.kind(x) == "b1" else maximum(e, e.like(x, 0), x)


def _reciprocal(e: Lanes, x: Value) -> Value:
    if e.is_float(x):
        return e.div(e.like(x, 1.0), x)
    # C's 1 / x; NumPy's value at 0 is the smallest integer
    width = 32 if e.kind(x) == "i32" else 64
    zero, one, minus = e.like(x, 0), e.like(x, 1), e.like(x, -1)
    unit = e.b.or_(e.compare("==", x, one), e.compare("==", x, minus))
    return e.select(e.compare("==", x, zero), e.like(x, -(1 << (width - 1))), e.select(unit, x, zero))


def _rounding(name: str) -> Build:
    def build(e: Lanes, x: Value) -> Value:
        return e.intrinsic(name, x) if e.is_float(x) else x

    return build


def _is_nan(e: Lanes, x: Value) -> Value:
    return e.is_nan(x) if e.is_float(x) else e.const("b1", 0)


def _is_finite(e: Lanes, x: Value) -> Value:
    if not e.is_float(x):
        return e.const("b1", 1)
    return e.compare("<", e.abs(x), e.like(x, float("inf")))


def _divisor(e: Lanes, b: Value) -> tuple[Value, Value, Value]:
    """(a divisor that never traps, where b is 0, where b is -1): x86 traps on 0 and on MIN / -1."""
    zero, minus = e.compare("==", b, e.like(b, 0)), e.compare("==", b, e.like(b, -1))
    return e.select(e.b.or_(zero, minus), e.like(b, 1), b), zero, minus


def _floor_divide(e: Lanes, a: Value, b: Value) -> Value:
    if e.is_float(a):
        quotient, _ = _float_divmod(e, a, b)
        return e.select(e.compare("==", b, e.like(b, 0)), e.div(a, b), quotient)
    safe, zero, minus = _divisor(e, b)
    quotient = e.b.sdiv(a, safe)
    rest = e.sub(a, e.mul(quotient, safe))
    down = e.b.and_(e.compare("!=", rest, e.like(a, 0)), e.compare("<", e.b.xor(rest, safe), e.like(a, 0)))
    quotient = e.select(down, e.sub(quotient, e.like(a, 1)), quotient)
    return e.select(zero, e.like(a, 0), e.select(minus, _neg(e, a), quotient))


def _remainder(e: Lanes, a: Value, b: Value) -> Value:
    if e.is_float(a):
        _, rest = _float_divmod(e, a, b)
        return e.select(e.compare("==", b, e.like(b, 0)), e.like(a, float("nan")), rest)
    safe, zero, minus = _divisor(e, b)
    rest = e.sub(a, e.mul(e.b.sdiv(a, safe), safe))
    down = e.b.and_(e.compare("!=", rest, e.like(a, 0)), e.compare("<", e.b.xor(rest, safe), e.like(a, 0)))
    rest = e.select(down, e.add(rest, safe), rest)
    return e.select(e.b.or_(zero, minus), e.like(a, 0), rest)


def _float_divmod(e: Lanes, a: Value, b: Value) -> tuple[Value, Value]:
    """Python's divmod from C's fmod, with NumPy's treatment of signed zeros; for b ≠ 0."""
    zero = e.like(a, 0)
    rest = e.libm("fmod", a, b)
    quotient = e.div(e.sub(a, rest), b)
    exact = e.compare("==", rest, zero)
    other_sign = e.b.xor(e.compare("<", rest, zero), e.compare("<", b, zero))
    adjust = e.b.and_(e.not_(exact), other_sign)
    quotient = e.select(adjust, e.sub(quotient, e.like(a, 1)), quotient)
    rest = e.select(exact, e.copysign(zero, b), e.select(adjust, e.add(rest, b), rest))
    down = e.intrinsic("floor", quotient)
    down = e.select(e.compare(">", e.sub(quotient, down), e.like(a, 0.5)), e.add(down, e.like(a, 1)), down)
    return e.select(e.compare("==", quotient, zero), e.copysign(zero, e.div(a, b)), down), rest


def _comparison(op: str) -> Build:
    return lambda e, a, b: e.compare(op, a, b)


def _where(e: Lanes, condition: Value, a: Value, b: Value) -> Value:
    return e.select(_mask(e, condition), a, b)


FUNCTIONS: dict[str, Function] = {
    "neg": Function(1, "same", _neg, _NUMBER),
    "abs": Function(1, "same", _abs, _ALL),
    "sign": Function(1, "same", _sign, _NUMBER),
    "exp": Function(1, "same", vmath.exp, _FLOAT),
    "log": Function(1, "same", vmath.log, _FLOAT),
    "log1p": Function(1, "same", vmath.log1p, _FLOAT),
    "expm1": Function(1, "same", vmath.expm1, _FLOAT),
    "sqrt": Function(1, "same", lambda e, x: e.intrinsic("sqrt", x), _FLOAT),
    "rsqrt": Function(1, "same", lambda e, x: e.div(e.like(x, 1.0), e.intrinsic("sqrt", x)), _FLOAT),
    "reciprocal": Function(1, "same", _reciprocal, _NUMBER),
    "square": Function(1, "same", lambda e, x: _mul(e, x, x), _ALL),
    "sin": Function(1, "same", vcircular.sin, _FLOAT),
    "cos": Function(1, "same", vcircular.cos, _FLOAT),
    "tanh": Function(1, "same", vmath.tanh, _FLOAT),
    "erf": Function(1, "same", vmath.erf, _FLOAT),
    "sigmoid": Function(1, "same", vmath.sigmoid, _FLOAT),
    "relu": Function(1, "same", _relu, _ALL),
    "floor": Function(1, "same", _rounding("floor"), _ALL),
    "ceil": Function(1, "same", _rounding("ceil"), _ALL),
    "round": Function(1, "same", _rounding("rint"), _ALL),
    "isnan": Function(1, "mask", _is_nan, _ALL),
    "isfinite": Function(1, "mask", _is_finite, _ALL),
    "logical_not": Function(1, "mask", lambda e, x: e.not_(_mask(e, x)), _ALL),
    "logical_and": Function(2, "mask", lambda e, a, b: e.b.and_(_mask(e, a), _mask(e, b)), _ALL),
    "logical_or": Function(2, "mask", lambda e, a, b: e.b.or_(_mask(e, a), _mask(e, b)), _ALL),
    "logical_xor": Function(2, "mask", lambda e, a, b: e.b.xor(_mask(e, a), _mask(e, b)), _ALL),
    "add": Function(2, "same", _add, _ALL),
    "sub": Function(2, "same", lambda e, a, b: e.sub(a, b), _NUMBER),
    "mul": Function(2, "same", _mul, _ALL),
    "div": Function(2, "same", lambda e, a, b: e.div(a, b), _FLOAT),
    "floor_divide": Function(2, "same", _floor_divide, _NUMBER),
    "remainder": Function(2, "same", _remainder, _NUMBER),
    "pow": Function(2, "same", vpower.pow, _NUMBER),
    "maximum": Function(2, "same", maximum, _ALL),
    "minimum": Function(2, "same", minimum, _ALL),
    "eq": Function(2, "mask", _comparison("=="), _ALL),
    "ne": Function(2, "mask", _comparison("!="), _ALL),
    "lt": Function(2, "mask", _comparison("<"), _ALL),
    "le": Function(2, "mask", _comparison("<="), _ALL),
    "gt": Function(2, "mask", _comparison(">"), _ALL),
    "ge": Function(2, "mask", _comparison(">="), _ALL),
    "where": Function(3, "same", _where, _ALL),
    "fma": Function(3, "same", lambda e, a, b, c: e.fma(a, b, c) if e.is_float(a) else e.add(e.mul(a, b), c), _NUMBER),
}

"""NumPy's elementwise functions on vectors of lanes: name -> how many arguments, and the code.

Each entry has the semantics of the NumPy ufunc on the kinds NumPy defines it for. Arguments of one call have
one kind. Functions not named here are not available in printed kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eqsat_backends.numba_cpu.vectors import vcircular, vmath, vpower
from eqsat_backends.numba_cpu.vectors.lanes import BYTES, ELEMENTS, Lanes, Value

Build = Callable[..., Value]


@dataclass(frozen=True, slots=True)
class Function:
    """``build(lanes, *values)``; ``result`` is ``same`` (kind of the last argument) or ``mask``."""

    arity: int
    result: str
    build: Build
    kinds: frozenset[str]


_FLOAT = frozenset(("f32", "f64"))
_ALL = frozenset(ELEMENTS) - {"f16", "bf16"}
_BOOL = frozenset(("b1",))
_NUMBER = _ALL - _BOOL
_INTEGER = _NUMBER - _FLOAT


def _accumulate(e: Lanes, a: Value, b: Value) -> Value:
    """A sum that may take a product unrounded."""
    return e.b.fadd(a, b, flags=("contract",)) if e.is_float(a) else _add(e, a, b)


def _add(e: Lanes, a: Value, b: Value) -> Value:
    return e.b.or_(a, b) if e.kind(a) == "b1" else e.add(a, b)


def _mul(e: Lanes, a: Value, b: Value) -> Value:
    if e.is_float(a):
        return e.b.fmul(a, b, flags=("contract",))
    return e.b.and_(a, b) if e.kind(a) == "b1" else e.mul(a, b)


def _neg(e: Lanes, x: Value) -> Value:
    return e.b.fneg(x) if e.is_float(x) else e.sub(e.like(x, 0), x)


def _sign(e: Lanes, x: Value) -> Value:
    zero, one = e.like(x, 0), e.like(x, 1)
    below = zero if e.kind(x)[0] == "u" else e.select(e.compare("<", x, zero), e.like(x, -1), zero)
    result = e.select(e.compare(">", x, zero), one, below)
    return e.select(e.is_nan(x), x, result) if e.is_float(x) else result


def _extremum(name: str, op: str, of_masks: str) -> Build:
    """The greater or the smaller; NaN if either is. One instruction when ``a`` is a number known at compile time."""

    def build(e: Lanes, a: Value, b: Value) -> Value:
        if e.kind(a) == "b1":
            return getattr(e.b, of_masks)(a, b)
        if not e.is_float(a):
            return e.select(e.compare(op, a, b), a, b)
        return e.select(e.is_nan(a), a, e.extremum(name, a, b))

    return build


maximum, minimum = _extremum("max", ">", "or_"), _extremum("min", "<", "and_")


def _integer_divmod(e: Lanes, a: Value, b: Value) -> tuple[Value, Value]:
    """Rounded down; both 0 for a divisor of 0. x86 traps on that, and on MIN / -1, which is MIN."""
    zero = e.compare("==", b, e.like(b, 0))
    bad = e.b.or_(zero, e.compare("==", b, e.like(b, -1))) if e.is_signed(b) else zero
    safe = e.select(bad, e.like(b, 1), b)
    wide = "f32" if BYTES[e.kind(a)] < 4 else "f64"  # in which no quotient that is not whole is rounded to a whole one
    divide = e.b.sdiv if e.is_signed(a) else e.b.udiv
    # LLVM divides by constants by multiplications, by others by element: a vector divided by itself failed. So
    # did one of 64 bits, of which it knew that few are set, by a constant; vectors have no multiplication for those.
    if BYTES[e.kind(a)] == 8:
        quotient = e.by_lane(divide, a, safe)
    else:
        constant = e.call(f"llvm.is.constant.v{e.lanes}i{e.kind(a)[1:]}", ELEMENTS["b1"], safe)
        other = e.cast(e.div(e.cast(a, wide), e.cast(safe, wide)), e.kind(a))
        quotient = e.b.select(constant, divide(a, safe), other)
    rest = e.sub(a, e.mul(quotient, safe))
    if e.is_signed(a):
        down = e.b.and_(e.compare("!=", rest, e.like(a, 0)), e.compare("<", e.b.xor(rest, safe), e.like(a, 0)))
        quotient = e.select(bad, _neg(e, a), e.select(down, e.sub(quotient, e.like(a, 1)), quotient))
        rest = e.select(down, e.add(rest, safe), rest)
    return e.select(zero, e.like(a, 0), quotient), e.select(bad, e.like(a, 0), rest)


def _floor_divide(e: Lanes, a: Value, b: Value) -> Value:
    if e.is_float(a):
        quotient, _ = _float_divmod(e, a, b)
        return e.select(e.compare("==", b, e.like(b, 0)), e.div(a, b), quotient)
    return _integer_divmod(e, a, b)[0]


def _remainder(e: Lanes, a: Value, b: Value) -> Value:
    if e.is_float(a):
        _, rest = _float_divmod(e, a, b)
        return e.select(e.compare("==", b, e.like(b, 0)), e.like(a, float("nan")), rest)
    return _integer_divmod(e, a, b)[1]


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


def _shift(name: str) -> Build:
    """Bits shifted out, also where the distance is not in [0, bits)."""

    def build(e: Lanes, a: Value, b: Value) -> Value:
        most = e.like(b, 8 * BYTES[e.kind(b)] - 1)
        within = e.b.icmp_unsigned("<=", b, most)
        if name == "right" and e.is_signed(a):
            return e.b.ashr(a, e.select(within, b, most))
        return e.select(within, (e.b.shl if name == "left" else e.b.lshr)(a, b), e.like(a, 0))

    return build


_SERIES = (
    vmath.exp, vmath.log, vmath.log1p, vmath.expm1, vmath.tanh, vmath.erf, vmath.sigmoid, vcircular.sin, vcircular.cos,
)  # fmt: skip
_INTRINSICS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint"}
_BITWISE = {"and": "and_", "or": "or_", "xor": "xor"}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

FUNCTIONS: dict[str, Function] = {
    **{f.__name__: Function(1, "same", f, _FLOAT) for f in _SERIES},
    **{name: Function(1, "same", lambda e, x, f=f: e.intrinsic(f, x), _FLOAT) for name, f in _INTRINSICS.items()},
    **{name: Function(2, "mask", lambda e, a, b, op=op: e.compare(op, a, b), _ALL) for name, op in _COMPARED.items()},
    **{
        f"logical_{op}": Function(2, "mask", lambda e, a, b, f=f: getattr(e.b, f)(a, b), _BOOL)
        for op, f in _BITWISE.items()
    },
    **{
        f"bitwise_{op}": Function(2, "same", lambda e, a, b, f=f: getattr(e.b, f)(a, b), _INTEGER)
        for op, f in _BITWISE.items()
    },
    "neg": Function(1, "same", _neg, _NUMBER),
    "abs": Function(1, "same", lambda e, x: x if e.kind(x) == "b1" else e.abs(x), _ALL),
    "sign": Function(1, "same", _sign, _NUMBER),
    "rsqrt": Function(1, "same", lambda e, x: e.div(e.like(x, 1.0), e.intrinsic("sqrt", x)), _FLOAT),
    "reciprocal": Function(1, "same", lambda e, x: e.div(e.like(x, 1.0), x), _FLOAT),
    "square": Function(1, "same", lambda e, x: _mul(e, x, x), _ALL),
    "relu": Function(1, "same", lambda e, x: x if e.kind(x) == "b1" else maximum(e, e.like(x, 0), x), _ALL),
    "isnan": Function(1, "mask", lambda e, x: e.is_nan(x), _FLOAT),
    "isfinite": Function(1, "mask", lambda e, x: e.compare("<", e.abs(x), e.like(x, float("inf"))), _FLOAT),
    "logical_not": Function(1, "mask", lambda e, x: e.not_(x), _BOOL),
    "invert": Function(1, "same", lambda e, x: e.b.xor(x, e.like(x, -1)), _INTEGER),
    "left_shift": Function(2, "same", _shift("left"), _INTEGER),
    "right_shift": Function(2, "same", _shift("right"), _INTEGER),
    "add": Function(2, "same", _add, _ALL),
    "accumulate": Function(2, "same", _accumulate, _ALL),
    "sub": Function(2, "same", lambda e, a, b: e.sub(a, b), _NUMBER),
    "mul": Function(2, "same", _mul, _ALL),
    "div": Function(2, "same", lambda e, a, b: e.div(a, b), _FLOAT),
    "floor_divide": Function(2, "same", _floor_divide, _NUMBER),
    "remainder": Function(2, "same", _remainder, _NUMBER),
    "pow": Function(2, "same", vpower.pow, _NUMBER),
    "maximum": Function(2, "same", maximum, _ALL),
    "minimum": Function(2, "same", minimum, _ALL),
    "where": Function(3, "same", lambda e, condition, a, b: e.select(condition, a, b), frozenset(ELEMENTS)),
    "fma": Function(3, "same", lambda e, a, b, c: e.fma(a, b, c) if e.is_float(a) else e.add(e.mul(a, b), c), _NUMBER),
}

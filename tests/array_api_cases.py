"""Calls of every function of the Array API standard, drawn: element types, shapes, keywords, values.

A case draws arrays, and what is done to them with a namespace: ``array_api_strict``, or that of traced arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = (*SIGNED, *UNSIGNED)
REALS = (*FLOATS, *INTS)
INEXACT = (*FLOATS, *COMPLEX)
NUMBERS = (*REALS, *COMPLEX)
ALL = (*NUMBERS, "bool")
BITS = (*INTS, "bool")
Arrays = list[np.ndarray]
Action = Callable[..., Any]
"""Called with a namespace and arrays."""
Case = Callable[[Any], tuple[Arrays, Action]]
"""Called with Hypothesis's ``draw``."""


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def values(seed: int, shape: tuple[int, ...], dtype: str, hard: bool = True) -> np.ndarray:
    """Values of a type; ``hard``: with infinities, NaN, zeros of both signs, and the ends of an integer type."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        ends = [np.iinfo(kind).min, np.iinfo(kind).max]
        small = rng.integers(0 if kind.kind == "u" else -4, 5, shape).astype(kind)
        return np.where(rng.random(shape) < 0.1, rng.choice(np.array(ends, kind), shape), small) if hard else small
    if kind.kind == "c":
        return np.asarray(rng.normal(0, 2, shape) + 1j * rng.normal(0, 2, shape), kind)
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 2.0, -1.0, 0.5], shape)
    drawn = rng.normal(0, 2, shape)
    return np.asarray(np.where(rng.random(shape) < 0.25, special, drawn) if hard else drawn, kind)


seeds = st.integers(0, 9999)


@st.composite
def shaped(draw: Any, low: int = 0, high: int = 3, least: int = 0) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(least, 4), min_size=low, max_size=high)))


def axis_of(draw: Any, x: np.ndarray, wrong: bool = True) -> int:
    """An axis of an array; now and then one that it does not have."""
    return int(draw(st.integers(-x.ndim - wrong, x.ndim - 1 + wrong))) if x.ndim else 0


def one(
    dtypes: Sequence[str], call: Callable[[Any, np.ndarray], Action], low: int = 0, least: int = 0, hard: bool = True
) -> Case:
    """Of one array of at least ``low`` axes; ``call`` draws what is done to it."""

    def make(draw: Any) -> tuple[Arrays, Action]:
        x = values(draw(seeds), draw(shaped(low, least=least)), draw(st.sampled_from(dtypes)), hard)
        return [x], call(draw, x)

    return make


def pair(dtypes: Sequence[str], shapes: Any, call: Action, hard: bool = False) -> Case:
    """Of two arrays of one type and shapes from a list."""

    def make(draw: Any) -> tuple[Arrays, Action]:
        first, second = draw(st.sampled_from(shapes))
        dtype = draw(st.sampled_from(dtypes))
        return [values(draw(seeds), shape, dtype, hard) for shape in (first, second)], call

    return make


def named(path: str) -> Action:
    """The function of a name, in a namespace."""
    return lambda xp, *args, **kwargs: operator.attrgetter(path)(xp)(*args, **kwargs)


def unary(path: str, dtypes: Sequence[str]) -> Case:
    return one(dtypes, lambda draw, x: named(path))


def with_options(
    path: str, dtypes: Sequence[str], options: Callable[[Any, np.ndarray], dict[str, Any]], **more: Any
) -> Case:
    """A call with keywords that are drawn; types among them are names."""

    def call(draw: Any, x: np.ndarray) -> Action:
        drawn = options(draw, x)

        def action(xp: Any, v: Any) -> Any:
            kind = drawn.get("dtype")
            given = {**drawn, "dtype": getattr(xp, kind)} if kind else {k: v for k, v in drawn.items() if k != "dtype"}
            return named(path)(xp, v, **given)

        return action

    return one(dtypes, call, **more)


SHAPES = [((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 1, 3), (4, 1)), ((0, 2), (1, 2)), ((2,), (3,)), ((4,), ())]
PRODUCTS = [((2, 3), (3, 4)), ((3,), (3,)), ((5, 2, 3), (3, 2)), ((2, 3), (2, 3)), ((0, 3), (3, 2)), ((3,), (3, 2))]


def binary(name: str, dtypes: Sequence[str], adjust: Callable[[np.ndarray, np.ndarray], Arrays] | None = None) -> Case:
    """Of two arrays of types that promote together, or of one and a Python number."""

    def make(draw: Any) -> tuple[Arrays, Action]:
        first, second = draw(st.sampled_from(SHAPES))
        left = draw(st.sampled_from(dtypes))
        kin = [d for d in dtypes if together(left, d)]
        x, y = values(draw(seeds), first, left), values(draw(seeds), second, draw(st.sampled_from(kin)))
        if adjust is not None:
            x, y = adjust(x, y)
        scalar = draw(st.sampled_from((None, None, True, False)))
        if scalar is None or adjust is not None or x.dtype == bool:
            return [x, y], named(name)
        number: Any = draw(st.sampled_from((0, 1, 3)))
        number = float(number) if x.dtype.kind in "fc" else number
        return [x], (lambda xp, a: named(name)(xp, a, number) if scalar else named(name)(xp, number, a))

    return make


def together(a: str, b: str) -> bool:
    """Whether the standard promotes two types together: no mixed kinds but of floats, no uint64 with signed ones."""
    if a == b:
        return True
    floats = {"float32", "float64", "complex64", "complex128"}
    if a in floats or b in floats:
        return a in floats and b in floats
    return "bool" not in (a, b) and not ("uint64" in (a, b) and (a in SIGNED or b in SIGNED))


def _counts(x: np.ndarray, y: np.ndarray) -> Arrays:
    """Shifts by fewer bits than there are."""
    return [x, (np.abs(y.astype("i8")) % min(x.dtype.itemsize * 8, y.dtype.itemsize * 8)).astype(y.dtype)]


def _natural(x: np.ndarray, y: np.ndarray) -> Arrays:
    """Integers to powers that are not negative."""
    return [x, y if y.dtype.kind in "fc" else np.abs(y.astype("i8") % 5).astype(y.dtype)]


def _reduction(*keywords: str) -> Callable[[Any, np.ndarray], dict[str, Any]]:
    def options(draw: Any, x: np.ndarray) -> dict[str, Any]:
        axis: Any = draw(st.sampled_from([None, axis_of(draw, x), tuple(range(x.ndim))]))
        found: dict[str, Any] = {"axis": axis, "keepdims": draw(st.booleans())}
        if "correction" in keywords:
            found["correction"] = draw(st.sampled_from([0, 1, 0.5, 2.0]))
        if "dtype" in keywords and draw(st.booleans()):
            found["dtype"] = draw(st.sampled_from({"f": FLOATS, "c": COMPLEX}.get(x.dtype.kind, ("int64", "float64"))))
        return found

    return options


def _axis(**fixed: Any) -> Callable[[Any, np.ndarray], dict[str, Any]]:
    return lambda draw, x: {"axis": axis_of(draw, x), **{k: draw(v) for k, v in fixed.items()}}


def _scan(draw: Any, x: np.ndarray) -> dict[str, Any]:
    found: dict[str, Any] = {"axis": axis_of(draw, x), "include_initial": draw(st.booleans())}
    if x.dtype.kind == "f" and draw(st.booleans()):
        found["dtype"] = draw(st.sampled_from(FLOATS))
    return found


def _of(path: str, *options: Any) -> Callable[[Any, np.ndarray], Action]:
    """A call with one drawn argument by place."""

    def call(draw: Any, x: np.ndarray) -> Action:
        value = draw(options[0](x) if callable(options[0]) else options[0])
        return lambda xp, v: named(path)(xp, v, value)

    return call


def _drawn(name: str, bounds: Callable[[np.ndarray], tuple[int, int]]) -> Callable[[Any, np.ndarray], dict[str, Any]]:
    return lambda draw, x: {name: draw(st.integers(*bounds(x)))}


def _repeat(draw: Any, x: np.ndarray) -> Action:
    count, axis = draw(st.integers(0, 3)), draw(st.sampled_from([None, axis_of(draw, x)]))
    return lambda xp, v: xp.repeat(v, count, axis=axis)


def _squeeze(draw: Any, x: np.ndarray) -> Action:
    new, axis = axis_of(draw, x, wrong=False), axis_of(draw, x)
    return lambda xp, v: (xp.squeeze(xp.expand_dims(v, axis=new), axis=new), xp.squeeze(v[:1, ...], axis=axis))


def _moveaxis(draw: Any, x: np.ndarray) -> Action:
    source, destination = axis_of(draw, x), axis_of(draw, x)
    return lambda xp, v: xp.moveaxis(v, source, destination)


def _take(draw: Any, x: np.ndarray) -> Action:
    axis = axis_of(draw, x, wrong=False)
    n = x.shape[axis]
    index = np.asarray(draw(st.lists(st.integers(0, n - 1), max_size=4)) if n else [], dtype=np.int64)
    return lambda xp, v: xp.take(v, xp.asarray(index), axis=axis)


def _take_along(draw: Any, x: np.ndarray) -> Action:
    axis = axis_of(draw, x, wrong=False)
    return lambda xp, v: xp.take_along_axis(v, xp.argsort(v, axis=axis, descending=True), axis=axis)


def _clip(draw: Any, x: np.ndarray) -> Action:
    low, high = draw(st.sampled_from([(-1, 2), (None, 1), (0, None), (None, None)]))
    if x.dtype.kind == "u" and low is not None:
        low = abs(low)
    return lambda xp, v: xp.clip(v, low, high)


def _diff(draw: Any, x: np.ndarray) -> Action:
    axis, n, ends = axis_of(draw, x), draw(st.integers(0, 3)), draw(st.booleans())

    def action(xp: Any, v: Any) -> Any:
        return xp.diff(v, axis=axis, n=n, **({"prepend": v, "append": v} if ends else {}))

    return action


def _astype(draw: Any, x: np.ndarray) -> Action:
    to = draw(st.sampled_from(ALL if x.dtype.kind != "c" else COMPLEX))
    small = x.dtype.kind != "f" or np.dtype(to).kind in "fcb"
    return lambda xp, v: xp.astype(v if small else xp.ones_like(v) * 3, getattr(xp, to), copy=True)


def _cross(xp: Any, a: Any, b: Any) -> Any:
    return xp.linalg.cross(a, b) + 1  # terms may cancel, but for their rounding


def _norm(draw: Any, x: np.ndarray) -> Action:
    order = draw(st.sampled_from([1, 2, 3, 0.5, np.inf, -np.inf, 0, -1, -2]))
    axis = draw(st.sampled_from([None, axis_of(draw, x, wrong=False)]))
    keep = draw(st.booleans())
    return lambda xp, v: xp.linalg.vector_norm(v, axis=axis, keepdims=keep, ord=order)


def _square(x: np.ndarray) -> np.ndarray:
    """A matrix that is not near to a singular one."""
    return np.asarray(x + 5 * np.eye(x.shape[-1]), x.dtype)


def matrices(path: str, call: Action | None = None, *, spd: bool = False, dtypes: Sequence[str] = INEXACT) -> Case:
    """Of a stack of well-conditioned square matrices, and a matrix that fits."""

    def make(draw: Any) -> tuple[Arrays, Action]:
        n, stack = draw(st.integers(1, 4)), draw(st.sampled_from([(), (2,), (0,)]))
        x = _square(values(draw(seeds), (*stack, n, n), draw(st.sampled_from(dtypes)), hard=False))
        if spd:
            x = np.asarray(x @ np.conj(np.swapaxes(x, -1, -2)), x.dtype)
        return [x], call or named(path)

    return make


def _phase(xp: Any, parts: Any) -> Any:
    """What of vectors is theirs alone: absolute values, for each may be turned."""
    return xp.abs(parts)


def _slogdet(xp: Any, x: Any) -> Any:
    found = xp.linalg.slogdet(x)
    return found.sign, found.logabsdet


def _eigh(xp: Any, x: Any) -> Any:
    found = xp.linalg.eigh(x)
    return found.eigenvalues, xp.matmul(
        found.eigenvectors * found.eigenvalues[..., None, :], xp.conj(found.eigenvectors.mT)
    )


def _qr(xp: Any, x: Any) -> Any:
    found = xp.linalg.qr(x)
    return xp.abs(found.Q), xp.abs(found.R)


def _svd(xp: Any, x: Any) -> Any:
    found = xp.linalg.svd(x, full_matrices=False)
    return found.S, xp.matmul(found.U * xp.astype(found.S, x.dtype)[..., None, :], found.Vh)


def _solve(xp: Any, x: Any) -> Any:
    return xp.linalg.solve(x, xp.ones(x.shape[-1:], dtype=x.dtype)) if x.ndim == 2 else xp.linalg.solve(x, x)


def _transform(name: str, real: bool = False) -> Case:
    def options(draw: Any, x: np.ndarray) -> dict[str, Any]:
        found: dict[str, Any] = {"norm": draw(st.sampled_from(("backward", "ortho", "forward")))}
        if name.endswith("n"):
            axes = draw(st.sampled_from([None, (0,), (-1,), (0, x.ndim - 1)]))
            return {**found, "axes": axes} if axes is not None else found
        return {**found, "axis": axis_of(draw, x), "n": draw(st.sampled_from([None, 3, 6]))}

    return with_options(f"fft.{name}", FLOATS if real else COMPLEX, options, low=1, least=1, hard=False)


def _made(call: Action) -> Case:
    """A function that makes arrays of nothing: added to one that is given, or beside it."""
    return one(("float64",), lambda draw, x: lambda xp, v: (v, call(xp)), hard=False)


def _kinds(xp: Any, a: Any, b: Any) -> Any:
    """Functions of types, told by arrays of what they say."""
    kind = xp.result_type(a, b)
    facts = [xp.can_cast(a, kind), xp.isdtype(kind, "real floating"), xp.isdtype(kind, "integral")]
    limits = xp.finfo(kind).eps if facts[1] else xp.iinfo(kind).max if facts[2] else 0
    return xp.zeros(2, dtype=kind), xp.asarray(facts), xp.asarray(float(limits))


CASES: dict[str, Case] = {
    **{n: unary(n, INEXACT) for n in words(
        "acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 reciprocal sin sinh sqrt tan tanh")},
    **{n: unary(n, NUMBERS) for n in words("abs isfinite isinf isnan negative positive round sign square conj")},
    **{n: unary(n, REALS) for n in words("ceil floor trunc")},
    **{n: unary(n, COMPLEX) for n in words("imag real")},
    "real of reals": unary("real", FLOATS),
    "signbit": unary("signbit", FLOATS),
    "logical_not": unary("logical_not", ("bool",)),
    "bitwise_invert": unary("bitwise_invert", BITS),
    **{n: binary(n, FLOATS) for n in words("atan2 hypot logaddexp copysign nextafter")},
    "divide": binary("divide", INEXACT),
    **{n: binary(n, NUMBERS) for n in words("add multiply subtract")},
    "pow": binary("pow", NUMBERS, _natural),
    **{n: binary(n, REALS) for n in words(
        "floor_divide remainder greater greater_equal less less_equal maximum minimum")},
    **{n: binary(n, ALL) for n in words("equal not_equal")},
    **{n: binary(n, ("bool",)) for n in words("logical_and logical_or logical_xor")},
    **{n: binary(n, BITS) for n in words("bitwise_and bitwise_or bitwise_xor")},
    **{n: binary(n, INTS, _counts) for n in words("bitwise_left_shift bitwise_right_shift")},
    **{n: with_options(n, REALS, _reduction()) for n in words("max min")},
    **{n: with_options(n, NUMBERS, _reduction("dtype"), hard=False) for n in words("sum prod")},
    "mean": with_options("mean", INEXACT, _reduction()),
    **{n: with_options(n, FLOATS, _reduction("correction")) for n in words("std var")},
    **{n: with_options(n, ALL, _reduction()) for n in words("all any count_nonzero")},
    **{n: with_options(n, REALS, _axis(keepdims=st.booleans()), low=1, least=1) for n in words("argmax argmin")},
    **{n: with_options(n, REALS, _axis(descending=st.booleans()), low=1) for n in words("argsort sort")},
    "cumulative_prod": with_options("cumulative_prod", NUMBERS, _scan, low=1, hard=False),
    "cumulative_sum": with_options("cumulative_sum", NUMBERS, _scan, low=1, hard=False),
    "asarray": one(ALL, lambda draw, x: lambda xp, v: xp.asarray(v, copy=True)),
    "astype": one(ALL, _astype),
    "broadcast_arrays": pair(ALL, SHAPES, named("broadcast_arrays")),
    "broadcast_to": one(ALL, _of("broadcast_to", lambda x: st.sampled_from([x.shape, (2, *x.shape), (3,), ()]))),
    "clip": one(REALS, _clip),
    "clip by arrays": pair(REALS, SHAPES[:4], lambda xp, a, b: xp.clip(a, b, b + xp.ones_like(b))),
    "concat": pair(ALL, [*SHAPES, ((2, 3), (4, 3))], lambda xp, a, b: xp.concat([a, b])),
    "concat of all": pair(ALL, SHAPES, lambda xp, a, b: xp.concat([a, b], axis=None)),
    "diff": one(NUMBERS, _diff, low=1),
    "expand_dims": with_options("expand_dims", ALL, _drawn("axis", lambda x: (-x.ndim - 2, x.ndim + 1))),
    "flip": with_options("flip", ALL, _axis(), low=1),
    **{n: unary(n, ALL) for n in words("zeros_like ones_like")},
    "empty_like": one(ALL, lambda draw, x: lambda xp, v: xp.empty_like(v) * 0 if x.dtype != bool else xp.ones_like(v)),
    "full_like": one(NUMBERS, lambda draw, x: lambda xp, v: xp.full_like(v, 3)),
    "matmul": pair(NUMBERS, PRODUCTS, named("matmul")),
    "matrix_transpose": unary("matrix_transpose", ALL),
    "moveaxis": one(ALL, _moveaxis, 1),
    "permute_dims": one(ALL, _of("permute_dims", lambda x: st.permutations(range(x.ndim)).map(tuple))),
    "repeat": one(ALL, _repeat, 1),
    "reshape": one(ALL, _of("reshape", lambda x: st.sampled_from([(-1,), (1, x.size), x.shape[::-1], (7, 3)]))),
    "roll": with_options("roll", ALL, _axis(shift=st.integers(-5, 5)), low=1),
    "searchsorted": pair(FLOATS, [((4,), (3,)), ((0,), (2,)), ((5,), (2, 3))], lambda xp, a, b: (
        xp.searchsorted(xp.sort(a), b, side="right"), xp.searchsorted(a, b, sorter=xp.argsort(a)))),
    "squeeze": one(ALL, _squeeze, 1, least=1),
    "stack": pair(ALL, SHAPES, lambda xp, a, b: (xp.stack([a, b]), xp.stack([a, b], axis=-1))),
    "take": one(ALL, _take, 1),
    "take_along_axis": one(REALS, _take_along, 1),
    "tensordot": pair(NUMBERS, PRODUCTS, lambda xp, a, b: (xp.tensordot(a, b, axes=1), xp.tensordot(a, b, axes=0))),
    "tile": one(ALL, _of("tile", st.sampled_from([(2,), (1, 3), (), (0,)]))),
    **{n: with_options(n, ALL, _drawn("k", lambda x: (-2, 2)), low=2) for n in words("tril triu")},
    "unstack": with_options("unstack", ALL, _axis(), low=1),
    "vecdot": pair(NUMBERS, [((3,), (3,)), ((2, 3), (3,)), ((2, 3), (2, 2))], named("vecdot")),
    "where": pair(REALS, SHAPES, lambda xp, a, b: (xp.where(a > b, a, b), xp.where(a > b, a, 1)), hard=True),
    "linalg.cross": pair(NUMBERS, [((3,), (3,)), ((2, 3), (2, 3)), ((2,), (2,))], _cross),
    "linalg.diagonal": with_options("linalg.diagonal", ALL, _drawn("offset", lambda x: (-2, 2)), low=2),
    "linalg.matmul": pair(NUMBERS, PRODUCTS, named("linalg.matmul")),
    "linalg.matrix_norm": matrices("", lambda xp, a: tuple(
        xp.linalg.matrix_norm(a, ord=o, keepdims=True) for o in ("fro", 1, -1, np.inf, -np.inf, 2, -2, "nuc"))),
    "linalg.matrix_power": matrices("", lambda xp, a: (
        xp.linalg.matrix_power(a, 0), xp.linalg.matrix_power(a, 3), xp.linalg.matrix_power(a, -1))),
    "linalg.matrix_rank": matrices("", lambda xp, a: (xp.linalg.matrix_rank(a), xp.linalg.matrix_rank(a, rtol=0.1))),
    "linalg.matrix_transpose": unary("linalg.matrix_transpose", ALL),
    "linalg.outer": pair(NUMBERS, [((3,), (2,)), ((0,), (2,)), ((2, 2), (2,))], named("linalg.outer")),
    "linalg.tensordot": pair(NUMBERS, PRODUCTS, lambda xp, a, b: xp.linalg.tensordot(a, b, axes=1)),
    "linalg.trace": with_options("linalg.trace", NUMBERS, _drawn("offset", lambda x: (-2, 2)), low=2, hard=False),
    "linalg.vecdot": pair(NUMBERS, [((2, 3), (3,)), ((3, 2), (3, 1))], named("linalg.vecdot")),
    "linalg.vector_norm": one(INEXACT, _norm, 1, least=1),
    "linalg.cholesky": matrices("linalg.cholesky", spd=True),
    "linalg.det": matrices("linalg.det"),
    "linalg.eigh": matrices("", _eigh, spd=True, dtypes=FLOATS),
    "linalg.eigvalsh": matrices("linalg.eigvalsh", spd=True),
    "linalg.inv": matrices("linalg.inv"),
    "linalg.pinv": matrices("", lambda xp, a: (xp.linalg.pinv(a), xp.linalg.pinv(a, rtol=0.5))),
    "linalg.qr": matrices("", _qr),
    "linalg.slogdet": matrices("", _slogdet),
    "linalg.solve": matrices("", _solve),
    "linalg.svd": matrices("", _svd),
    "linalg.svdvals": matrices("linalg.svdvals"),
    **{f"fft.{n}": _transform(n) for n in words("fft ifft fftn ifftn irfft irfftn hfft")},
    **{f"fft.{n}": _transform(n, real=True) for n in words("rfft rfftn ihfft")},
    **{f"fft.{n}": one(INEXACT, lambda draw, x, n=n: lambda xp, v: named(f"fft.{n}")(xp, v, axes=0), 1) for n in words(
        "fftshift ifftshift")},
    "fft.fftfreq": _made(lambda xp: (xp.fft.fftfreq(5, d=0.5), xp.fft.fftfreq(4, dtype=xp.float32))),
    "fft.rfftfreq": _made(lambda xp: (xp.fft.rfftfreq(5, d=0.5), xp.fft.rfftfreq(4, dtype=xp.float32))),
    "arange": _made(lambda xp: (xp.arange(5), xp.arange(1, 4, 0.5, dtype=xp.float32), xp.arange(3, 0, -1))),
    "empty": _made(lambda xp: xp.empty((2, 0), dtype=xp.int8)),
    "eye": _made(lambda xp: (xp.eye(3), xp.eye(2, 4, k=1, dtype=xp.int16))),
    "full": _made(lambda xp: (xp.full((2, 3), 1.5), xp.full(2, 3, dtype=xp.uint8))),
    "linspace": _made(lambda xp: (xp.linspace(0, 1, 5), xp.linspace(0, 3, 4, endpoint=False, dtype=xp.float32))),
    "meshgrid": pair(NUMBERS, [((3,), (2,)), ((0,), (2,))], lambda xp, a, b: (
        tuple(xp.meshgrid(a, b)), tuple(xp.meshgrid(a, b, indexing="ij")))),
    **{n: _made(lambda xp, n=n: (getattr(xp, n)((2, 3)), getattr(xp, n)(4, dtype=xp.complex64))) for n in words(
        "ones zeros")},
    **{n: pair(ALL, SHAPES[:3], _kinds) for n in words("can_cast finfo iinfo isdtype result_type")},
}  # fmt: skip

VALUES_DECIDE = {
    "nonzero": lambda xp, v: xp.nonzero(v),
    "unique_all": lambda xp, v: tuple(xp.unique_all(v)),
    "unique_counts": lambda xp, v: tuple(xp.unique_counts(v)),
    "unique_inverse": lambda xp, v: tuple(xp.unique_inverse(v)),
    "unique_values": lambda xp, v: xp.unique_values(v),
}
"""Functions of which the values decide about the shape of the result."""

DEVIATIONS: dict[str, str] = {
    **dict.fromkeys(
        VALUES_DECIDE, "values decide about the shape of the result: NumPy runs the function that calls it"
    ),
    "from_dlpack": "memory is not known while the function is traced",
    "broadcast_shapes": "it is of a later edition than 2024.12, and takes no arrays",
    "isin": "it is of a later edition than 2024.12",
    "linalg.eig": "it is of a later edition than 2024.12",
    "linalg.eigvals": "it is of a later edition than 2024.12",
}
"""Functions that are not as the standard says, and why."""

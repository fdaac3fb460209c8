"""Functions of the Array API standard (2024.12) on traced arrays give what ``array_api_strict`` gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.errors import EqsatError
from eqsat.frontends.trace import run_by_reference
from tests.test_trace import random_array, same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    strict = pytest.importorskip("array_api_strict")

FLOATS = ("float32", "float64")
INTS = ("int32", "int64")
NUMBERS = (*FLOATS, *INTS)
BOOLS = ("bool",)
ALL = (*NUMBERS, *BOOLS)
Draw = Callable[[Any], Any]
Call = tuple[list[np.ndarray], Callable[[Any, Any], Any]]
"""Arrays, and what is done to them with a namespace."""


def _text(names: str) -> tuple[str, ...]:
    return tuple(names.split())


UNARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        _text(
            "acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 reciprocal sin sinh sqrt tan tanh"
        ),
        FLOATS,
    ),
    **dict.fromkeys(_text("abs ceil floor isfinite isinf isnan negative positive round sign square trunc"), NUMBERS),
    "signbit": FLOATS,
    "logical_not": BOOLS,
    "bitwise_invert": BOOLS,
    **dict.fromkeys(_text("zeros_like ones_like"), ALL),
}
BINARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_text("atan2 divide hypot logaddexp copysign"), FLOATS),
    **dict.fromkeys(
        _text("add floor_divide greater greater_equal less less_equal maximum minimum multiply remainder subtract"),
        NUMBERS,
    ),
    **dict.fromkeys(_text("equal not_equal"), ALL),
    **dict.fromkeys(_text("logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor"), BOOLS),
}
REDUCTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_text("max min sum prod"), NUMBERS),
    **dict.fromkeys(_text("mean std var"), FLOATS),
    **dict.fromkeys(_text("all any count_nonzero"), ALL),
}
DEVIATIONS: dict[str, str] = {
    **dict.fromkeys(
        _text("nonzero unique_all unique_counts unique_inverse unique_values"),
        "the shape of the result depends on values, which are not known while the function is traced",
    ),
    **dict.fromkeys(_text("conj imag real"), "arrays are of real numbers here"),
    **dict.fromkeys(
        _text("bitwise_left_shift bitwise_right_shift nextafter"), "no operator computes it; the library runs it"
    ),
    **dict.fromkeys(
        _text("arange empty empty_like eye from_dlpack full linspace meshgrid ones zeros"),
        "it makes arrays of nothing, which NumPy does; empty arrays hold anything",
    ),
    **dict.fromkeys(
        _text("broadcast_arrays broadcast_shapes can_cast finfo iinfo isdtype result_type"),
        "it is of types, or tested with the others",
    ),
    "isin": "it is of a later edition than 2024.12, for which array_api_strict refuses it",
    "pow": "integers to negative powers are refused by NumPy, by the standard not defined",
}
LINALG_DEVIATIONS: dict[str, str] = dict.fromkeys(
    _text("cholesky det eigh eigvalsh inv matrix_rank pinv qr slogdet solve svd svdvals"),
    "a decomposition, which the library computes",
)


@st.composite
def arrays(draw: Any, dtypes: tuple[str, ...], low: int = 0, high: int = 3, least: int = 0) -> np.ndarray:
    shape = tuple(draw(st.lists(st.integers(least, 4), min_size=low, max_size=high)))
    return random_array(np.random.default_rng(draw(st.integers(0, 999))), shape, draw(st.sampled_from(dtypes)))


def like(draw: Any, x: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    return random_array(rng, x.shape if shape is None else shape, x.dtype.name)


def axis_of(draw: Any, x: np.ndarray, wrong: bool = True) -> int:
    """An axis of an array; now and then one that it does not have."""
    return int(draw(st.integers(-x.ndim - wrong, x.ndim - 1 + wrong))) if x.ndim else 0


def _reduction(name: str) -> Callable[[Any], Call]:
    def make(draw: Any) -> Call:
        x = draw(arrays(REDUCTIONS[name]))
        axis: Any = draw(st.sampled_from([None, axis_of(draw, x), tuple(range(x.ndim))]))
        options: dict[str, Any] = {"axis": axis, "keepdims": draw(st.booleans())}
        if name in ("std", "var"):
            options["correction"] = draw(st.sampled_from([0, 1, 0.5]))
        return [x], lambda xp, v: getattr(xp, name)(v, **options)

    return make


def _of(dtypes: tuple[str, ...], low: int, call: Callable[[Any, np.ndarray], Callable[..., Any]]) -> Any:
    """A case of one array of at least ``low`` axes; ``call`` draws what is done to it."""

    def make(draw: Any) -> Call:
        x = draw(arrays(dtypes, low=low))
        return [x], call(draw, x)

    return make


def _pairs(dtypes: tuple[str, ...], shapes: Any, call: Callable[..., Any]) -> Any:
    """A case of two arrays of shapes that are drawn from a list."""

    def make(draw: Any) -> Call:
        first, second = draw(st.sampled_from(shapes))
        rng = np.random.default_rng(draw(st.integers(0, 999)))
        dtype = draw(st.sampled_from(dtypes))
        return [random_array(rng, shape, dtype, hard=False) for shape in (first, second)], call

    return make


def _axis(name: str, **options: Any) -> Any:
    def call(draw: Any, x: np.ndarray) -> Any:
        axis = axis_of(draw, x)
        return lambda xp, v: getattr(xp, name)(v, axis=axis, **options)

    return call


def _roll(draw: Any, x: np.ndarray) -> Any:
    by, axis = draw(st.integers(-5, 5)), draw(st.sampled_from([None, axis_of(draw, x)]))
    return lambda xp, v: xp.roll(v, by, axis=axis)


def _permute(draw: Any, x: np.ndarray) -> Any:
    order = tuple(draw(st.permutations(range(x.ndim))))
    return lambda xp, v: xp.permute_dims(v, order)


def _reshape(draw: Any, x: np.ndarray) -> Any:
    shape = draw(st.sampled_from([(-1,), (x.size,), (1, x.size), tuple(reversed(x.shape)), (7, 3)]))
    return lambda xp, v: xp.reshape(v, shape)


def _take(draw: Any, x: np.ndarray) -> Any:
    axis = axis_of(draw, x, wrong=False)
    n = x.shape[axis]
    index = np.asarray(draw(st.lists(st.integers(0, n - 1), max_size=4)) if n else [], dtype=np.int64)
    return lambda xp, v: xp.take(v, xp.asarray(index), axis=axis)


def _scan(name: str) -> Any:
    def call(draw: Any, x: np.ndarray) -> Any:
        axis, initial = axis_of(draw, x), draw(st.booleans())
        return lambda xp, v: getattr(xp, name)(v, axis=axis, include_initial=initial)

    return call


def _drawn(values: Any, call: Callable[..., Any]) -> Any:
    """A call with an option that is drawn."""

    def make(draw: Any, x: np.ndarray) -> Any:
        value = draw(values)
        return lambda xp, v: call(xp, v, value)

    return make


def _norm(draw: Any, x: np.ndarray) -> Any:
    order = draw(st.sampled_from([1, 2, 3, np.inf, -np.inf, 0]))
    axis, keep = axis_of(draw, x, wrong=False), draw(st.booleans())
    return lambda xp, v: xp.linalg.vector_norm(v, axis=axis, keepdims=keep, ord=order)


def _norms(xp: Any, a: Any, b: Any) -> Any:
    return xp.linalg.matrix_norm(a), xp.linalg.matrix_norm(a, ord=1)


def _powers(xp: Any, a: Any, b: Any) -> Any:
    return xp.linalg.matrix_power(a, 0), xp.linalg.matrix_power(a, 3)


_SAME = [((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 1, 3), (4, 1)), ((0, 2), (1, 2)), ((2,), (3,))]
_PRODUCTS = [((2, 3), (3, 4)), ((3,), (3,)), ((5, 2, 3), (3, 2)), ((2, 3), (2, 3)), ((0, 3), (3, 2)), ((3,), (3, 2))]
CASES: dict[str, Callable[[Any], Call]] = {
    **{name: _of(types, 0, lambda draw, x, n=name: lambda xp, v: getattr(xp, n)(v)) for name, types in UNARY.items()},
    **{name: _pairs(types, _SAME, lambda xp, a, b, n=name: getattr(xp, n)(a, b)) for name, types in BINARY.items()},
    **{name: _reduction(name) for name in REDUCTIONS},
    "argmax": _of(NUMBERS, 1, _axis("argmax")),
    "argmin": _of(NUMBERS, 1, _axis("argmin", keepdims=True)),
    "argsort": _of(NUMBERS, 1, _axis("argsort", stable=True)),
    "asarray": _of(ALL, 0, lambda draw, x: lambda xp, v: xp.asarray(v, copy=True)),
    "astype": _of(ALL, 0, _drawn(st.sampled_from(FLOATS), lambda xp, v, kind: xp.astype(v, getattr(xp, kind)))),
    "broadcast_to": _of(ALL, 0, _drawn(st.sampled_from([(), (2,)]), lambda xp, v, s: xp.broadcast_to(v, s + v.shape))),
    "clip": _of(NUMBERS, 0, _drawn(st.sampled_from([(-1, 2), (None, 1), (0, None)]), lambda xp, v, b: xp.clip(v, *b))),
    "concat": _pairs(ALL, [*_SAME, ((2, 3), (4, 3))], lambda xp, a, b: xp.concat([a, b])),
    "cumulative_prod": _of(FLOATS, 1, _scan("cumulative_prod")),
    "cumulative_sum": _of(NUMBERS, 1, _scan("cumulative_sum")),
    "diff": _of(NUMBERS, 1, _drawn(st.integers(0, 3), lambda xp, v, n: xp.diff(v, n=n))),
    "expand_dims": _of(ALL, 0, _axis("expand_dims")),
    "flip": _of(ALL, 1, _axis("flip")),
    "full_like": _of(NUMBERS, 0, lambda draw, x: lambda xp, v: xp.full_like(v, 3)),
    "matmul": _pairs(NUMBERS, _PRODUCTS, lambda xp, a, b: xp.matmul(a, b)),
    "matrix_transpose": _of(ALL, 1, lambda draw, x: lambda xp, v: xp.matrix_transpose(v)),
    "moveaxis": _of(ALL, 1, lambda draw, x: lambda xp, v: xp.moveaxis(v, 0, -1)),
    "permute_dims": _of(ALL, 0, _permute),
    "repeat": _of(ALL, 1, _drawn(st.integers(0, 3), lambda xp, v, n: xp.repeat(v, n, axis=0))),
    "reshape": _of(ALL, 0, _reshape),
    "roll": _of(ALL, 1, _roll),
    "searchsorted": _pairs(
        FLOATS, [((4,), (3,)), ((0,), (2,))], lambda xp, a, b: xp.searchsorted(xp.sort(a), b, side="right")
    ),
    "sort": _of(NUMBERS, 1, _axis("sort")),
    "squeeze": _of(ALL, 1, _axis("squeeze")),
    "stack": _pairs(ALL, _SAME, lambda xp, a, b: xp.stack([a, b], axis=-1)),
    "take": _of(ALL, 1, _take),
    "take_along_axis": _of(
        NUMBERS, 1, lambda draw, x: lambda xp, v: xp.take_along_axis(v, xp.argsort(v, axis=-1, stable=True), axis=-1)
    ),
    "tensordot": _pairs(NUMBERS, _PRODUCTS, lambda xp, a, b: xp.tensordot(a, b, axes=1)),
    "tile": _of(ALL, 0, _drawn(st.sampled_from([(2,), (1, 3), ()]), lambda xp, v, n: xp.tile(v, n))),
    "tril": _of(NUMBERS, 2, _drawn(st.integers(-2, 2), lambda xp, v, k: xp.tril(v, k=k))),
    "triu": _of(NUMBERS, 2, _drawn(st.integers(-2, 2), lambda xp, v, k: xp.triu(v, k=k))),
    "unstack": _of(ALL, 1, lambda draw, x: lambda xp, v: xp.unstack(v, axis=0)),
    "vecdot": _pairs(NUMBERS, [((3,), (3,)), ((2, 3), (3,)), ((2, 3), (2, 2))], lambda xp, a, b: xp.vecdot(a, b)),
    "where": _pairs(NUMBERS, _SAME, lambda xp, a, b: xp.where(a > b, a, b)),
    "linalg.cross": _pairs(NUMBERS, [((3,), (3,)), ((2, 3), (2, 3))], lambda xp, a, b: xp.linalg.cross(a, b)),
    "linalg.diagonal": _of(
        ALL, 2, _drawn(st.integers(-2, 2), lambda xp, v, k: xp.linalg.diagonal(v, offset=k))
    ),
    "linalg.matmul": _pairs(NUMBERS, _PRODUCTS, lambda xp, a, b: xp.linalg.matmul(a, b)),
    "linalg.matrix_norm": _pairs(
        FLOATS, [((2, 3), ()), ((4, 2, 2), ())], _norms
    ),
    "linalg.matrix_power": _pairs(
        FLOATS, [((3, 3), ()), ((2, 3), ())], _powers
    ),
    "linalg.matrix_transpose": _of(ALL, 2, lambda draw, x: lambda xp, v: xp.linalg.matrix_transpose(v)),
    "linalg.outer": _pairs(NUMBERS, [((3,), (2,)), ((0,), (2,))], lambda xp, a, b: xp.linalg.outer(a, b)),
    "linalg.tensordot": _pairs(NUMBERS, _PRODUCTS, lambda xp, a, b: xp.linalg.tensordot(a, b, axes=1)),
    "linalg.trace": _of(NUMBERS, 2, _drawn(st.integers(-2, 2), lambda xp, v, k: xp.linalg.trace(v, offset=k))),
    "linalg.vecdot": _pairs(NUMBERS, [((2, 3), (3,))], lambda xp, a, b: xp.linalg.vecdot(a, b)),
    "linalg.vector_norm": _of(FLOATS, 1, _norm),
}  # fmt: skip


def _functions(module: Any) -> set[str]:
    found = {name for name in getattr(module, "__all__", dir(module)) if callable(getattr(module, name, None))}
    return {n for n in found if not n.startswith("_") and not isinstance(getattr(module, n), type)}


def test_every_function_of_the_standard_is_tried() -> None:
    other = _text(
        "set_array_api_strict_flags get_array_api_strict_flags reset_array_api_strict_flags ArrayAPIStrictFlags"
    )
    types = {n for n in _functions(strict) if hasattr(getattr(strict, n), "_np_dtype")}
    missing = _functions(strict) - set(CASES) - set(DEVIATIONS) - set(other) - types
    assert not missing
    inside = {f"linalg.{n}" for n in _functions(strict.linalg) - set(LINALG_DEVIATIONS)}
    assert not inside - set(CASES)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    return np.asarray(value._array) if hasattr(value, "_array") else value


@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_functions_of_the_standard(name: str, data: st.DataObject) -> None:
    given_arrays, call = CASES[name](data.draw)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        traced = lambda *v: call(v[0].__array_namespace__(), *v)  # noqa: E731
        try:
            want = _plain(call(strict, *(strict.asarray(x) for x in given_arrays)))
        except (TypeError, ValueError, IndexError):
            with pytest.raises((TypeError, ValueError, IndexError, EqsatError)):
                run_by_reference(traced, tuple(given_arrays), {})
            return
        got = run_by_reference(traced, tuple(given_arrays), {})
    same(tuple(got) if isinstance(got, list) else got, want, scale=20)

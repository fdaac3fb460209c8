"""Tracing ordinary NumPy code and evaluating the graph gives what NumPy gives: types, shapes and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat import nn
from eqsat.errors import EqsatError, UnsupportedDTypeError
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.ir.types import DTYPES
from tests.sweeps import a_part

FLOATS = ("float32", "float64")
INTS = ("int32", "int64")
NUMBERS = (*FLOATS, *INTS)
ALL = (*NUMBERS, "bool")

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)

Function = Callable[..., Any]


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, hard: bool = True) -> np.ndarray:
    """Values of a type; floats include nan, infinities and signed zeros."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTS:
        return rng.integers(-4, 5, shape).astype(dtype)
    values = rng.normal(0, 2, shape)
    if hard:
        special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 2.0], shape)
        values = np.where(rng.random(shape) < 0.2, special, values)
    return np.asarray(values).astype(dtype)


def same(got: Any, want: Any, scale: float = 1.0) -> None:
    """Same structure, types, shapes, and values up to a few rounding errors of the type."""
    if isinstance(want, (list, tuple)):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w, scale)
        return
    if isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            same(got[key], want[key], scale)
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, f"{got.dtype} for {want.dtype}"
    assert got.shape == want.shape, f"{got.shape} for {want.shape}"
    if want.dtype.kind in "fc":
        bound = {"e": 1e-3, "f": 3e-6, "d": 1e-14}[want.dtype.char.lower()] * scale
        finite = np.abs(want[np.isfinite(want)])
        np.testing.assert_allclose(got, want, rtol=8 * bound, atol=8 * bound * (finite.max() if finite.size else 1))
    else:
        np.testing.assert_array_equal(got, want)


def check(fn: Function, *args: Any, scale: float = 1.0, **kwargs: Any) -> None:
    """``fn`` traced and evaluated does as NumPy does, also where NumPy refuses."""
    with np.errstate(all="ignore"):
        try:
            want = fn(*args, **kwargs)
        except (TypeError, ValueError, IndexError):
            with pytest.raises((TypeError, ValueError, IndexError, EqsatError)):
                run_by_reference(fn, args, kwargs)
            return
        try:
            got = run_by_reference(fn, args, kwargs)
        except UnsupportedDTypeError:
            parts = want if isinstance(want, (tuple, list)) else [want]
            assert any(np.asarray(p).dtype.name not in DTYPES or np.asarray(p).dtype.itemsize < 4 for p in parts)
            return
    same(got, want, scale)


# Elementwise

UNARY: dict[str, np.ufunc] = {
    u.__name__: u
    for u in (
        np.negative, np.positive, np.absolute, np.fabs, np.sign, np.exp, np.exp2, np.log, np.log2, np.log10, np.log1p,
        np.expm1, np.sqrt, np.cbrt, np.square, np.sin, np.cos, np.tan, np.tanh, np.deg2rad, np.rad2deg, np.floor,
        np.ceil, np.trunc, np.rint, np.isnan, np.isinf, np.isfinite, np.logical_not,
    )
}  # fmt: skip
BINARY: dict[str, np.ufunc] = {
    u.__name__: u
    for u in (
        np.add, np.subtract, np.multiply, np.divide, np.floor_divide, np.remainder, np.divmod, np.maximum, np.minimum,
        np.fmax, np.fmin, np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
        np.logical_and, np.logical_or, np.logical_xor, np.hypot, np.logaddexp, np.heaviside,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
@given(shape=shapes, dtype=st.sampled_from(ALL), seed=seeds)
@settings(max_examples=a_part(12), deadline=None)
def test_unary(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    check(UNARY[name], random_array(np.random.default_rng(seed), shape, dtype), scale=4)


@pytest.mark.parametrize("name", BINARY)
@given(shape=shapes, data=st.data(), left=st.sampled_from(ALL), right=st.sampled_from(ALL), seed=seeds)
@settings(max_examples=a_part(25), deadline=None)
def test_binary(name: str, shape: tuple[int, ...], data: st.DataObject, left: str, right: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cut = data.draw(st.integers(0, len(shape)))
    narrow = tuple(n if data.draw(st.booleans()) else 1 for n in shape[cut:])
    a, b = random_array(rng, shape, left), random_array(rng, narrow, right)
    check(BINARY[name], *((a, b) if data.draw(st.booleans()) else (b, a)), scale=4)


SCALARS = (0, 1, 2, -3, 0.5, 2.0, -1.5, True, np.float32(1.5), np.int64(3), float("inf"))


@given(dtype=st.sampled_from(ALL), scalar=st.sampled_from(SCALARS), name=st.sampled_from(sorted(BINARY)), seed=seeds)
@settings(max_examples=a_part(150), deadline=None)
def test_python_scalars_are_weak(dtype: str, scalar: Any, name: str, seed: int) -> None:
    x = random_array(np.random.default_rng(seed), (5,), dtype)
    check(lambda x: BINARY[name](x, scalar), x, scale=4)
    check(lambda x: BINARY[name](scalar, x), x, scale=4)


@given(dtype=st.sampled_from(NUMBERS), exponent=st.sampled_from((0, 1, 2, 3, -1, 0.5, 2.0, -0.5)), seed=seeds)
@settings(max_examples=a_part(60), deadline=None)
def test_powers(dtype: str, exponent: Any, seed: int) -> None:
    x = random_array(np.random.default_rng(seed), (6,), dtype)
    check(lambda x: x**exponent, x, scale=4)
    check(lambda x: np.power(x, exponent), x, scale=4)
    # numpy.power takes the square root for 0.5, numpy.float_power does not: they differ at -inf.
    check(lambda x: np.float_power(x, exponent), np.where(np.isinf(x), 1, x).astype(dtype), scale=4)
    check(lambda x: exponent**x if x.dtype.kind == "f" else x, x, scale=4)


def operators(x: Any, y: Any) -> Any:
    a = (x + y, x - y, x * y, x / (y + 10), x // (y + 10), x % (y + 10), -x, +x, abs(x))
    b = (x < y, x <= y, x > y, x >= y, x == y, x != y, 1 + x, 2 - x, 3 * x, 2 / (x + 10), 7 // (x + 10), 7 % (x + 10))
    c = divmod(x, y + 10)
    low = (x < y) & (x > 0) | ~(y > 0) ^ (x > 1)
    return [a, b, c, low, x[0] + y, (x > 0) + (y > 0), (x > 0) * (y > 0)]


@pytest.mark.parametrize("left", NUMBERS)
@pytest.mark.parametrize("right", NUMBERS)
def test_operators(left: str, right: str) -> None:
    rng = np.random.default_rng(1)
    check(operators, random_array(rng, (3, 4), left, False), random_array(rng, (4,), right, False))


def in_place(x: Any, y: Any) -> Any:
    z = x + 0
    alias = z
    z += y
    z *= 2
    z -= 1
    np.maximum(z, 0, out=z)
    total = z.sum()
    z /= total + 1000
    return alias, z, x


@pytest.mark.parametrize("dtype", FLOATS)
def test_in_place_operators_keep_the_type_and_reach_aliases(dtype: str) -> None:
    rng = np.random.default_rng(2)
    check(in_place, random_array(rng, (3, 2), dtype, False), random_array(rng, (2,), "float64", False))


# Reductions

REDUCTIONS: dict[str, Function] = {
    f.__name__: f
    for f in (
        np.sum, np.prod, np.max, np.min, np.mean, np.var, np.std, np.any, np.all, np.ptp, np.count_nonzero,
        np.nansum, np.nanmean, np.argmax, np.argmin, np.average,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@given(shape=shapes, dtype=st.sampled_from(ALL), data=st.data(), seed=seeds)
@settings(max_examples=a_part(25), deadline=None)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_reductions(name: str, shape: tuple[int, ...], dtype: str, data: st.DataObject, seed: int) -> None:
    x = random_array(np.random.default_rng(seed), shape, dtype, hard=name not in ("var", "std", "mean", "average"))
    one = [*range(-len(shape), len(shape))]
    several = [(), (0, 1), (-1, 0)] if len(shape) > 1 and not name.startswith("arg") else []
    axis = data.draw(st.sampled_from([None, *one, *several]))
    keepdims = data.draw(st.booleans())
    if name == "count_nonzero" and axis is None and not keepdims:
        return  # NumPy returns a Python int
    if name == "average" and 0 in shape:
        return  # NumPy divides by the empty result's size
    check(lambda x: REDUCTIONS[name](x, axis=axis, keepdims=keepdims), x, scale=16)


def test_reduction_options() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(3, 4)).astype("f4"), rng.random(4).astype("f4")
    check(lambda x: (x.var(ddof=1), x.std(0, ddof=1), np.var(x, axis=1, correction=1)), x, scale=8)
    check(lambda x: (x.sum(dtype=np.float64), x.sum(0, initial=3), x.max(initial=100), x.prod(1, initial=2)), x)
    check(lambda x: (np.max(x[:0], axis=0, initial=-1), np.min(x[:0], initial=5)), x)
    check(lambda x, w: (np.average(x, axis=1, weights=w), np.average(x, weights=x * x)), x, w, scale=8)
    check(lambda i: (i.mean(), i.sum(), i.prod(), np.average(i, weights=i)), np.arange(1, 5, dtype="i4"))
    check(lambda x: (np.mean(x, dtype=np.float64), np.mean(x.astype(int))), x)


@pytest.mark.parametrize("fn", [np.cumsum, np.cumprod, np.sort], ids=lambda f: f.__name__)
@given(shape=shapes, dtype=st.sampled_from(NUMBERS), data=st.data(), seed=seeds)
@settings(max_examples=a_part(20), deadline=None)
def test_scans(fn: Function, shape: tuple[int, ...], dtype: str, data: st.DataObject, seed: int) -> None:
    axis = data.draw(st.sampled_from([None, *range(-len(shape), len(shape))]))
    check(lambda x: fn(x, axis=axis), random_array(np.random.default_rng(seed), shape, dtype, False), scale=8)


def test_argsort_and_methods() -> None:
    x = np.random.default_rng(4).permutation(24).reshape(4, 6).astype("f4")
    check(lambda x: (np.argsort(x), x.argsort(0), np.argsort(x, axis=None), x.cumsum(1)), x)
    check(lambda x: (x.T, x.mT, x.copy(), x.flatten(), x.ravel(), x.transpose(1, 0), x.swapaxes(0, 1)), x)
    check(lambda x: (x.reshape(3, 8), x.reshape((2, -1)), x.reshape(-1), x.squeeze(), x[:1].squeeze(0)), x)
    check(lambda x: (x.sum(0), x.mean(), x.argmax(1), x.clip(2, 9), x.dot(x.T), x.round(1), x.trace(), x.diagonal()), x)
    check(lambda x: (x.any(), x.all(1), x.take([1, 2], axis=1), x.repeat(2, axis=0), x.astype(int), x.min()), x)
    check(lambda x: [row * 2 for row in x] + [len(x), x.shape, x.ndim, x.size, x.dtype == np.float32], x)


# Moving elements


@given(shape=st.lists(st.integers(1, 4), max_size=3).map(tuple), data=st.data(), dtype=st.sampled_from(ALL))
@settings(max_examples=a_part(60), deadline=None)
def test_moves(shape: tuple[int, ...], data: st.DataObject, dtype: str) -> None:
    x = random_array(np.random.default_rng(7), shape, dtype)
    n = len(shape)
    order = data.draw(st.permutations(range(n)))
    axis = data.draw(st.integers(-n, n - 1)) if n else None
    widths = [(data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in shape]
    reps = tuple(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)))
    shift = data.draw(st.integers(-5, 5))
    check(lambda x: (np.transpose(x, order), np.transpose(x), x.T.reshape(-1), np.ravel(x)), x)
    check(lambda x: (np.tile(x, reps), np.flip(x), np.roll(x, shift), np.repeat(x, 2), np.copy(x)), x)
    check(lambda x: (np.zeros_like(x), np.ones_like(x, dtype=float), np.full_like(x, 1), np.atleast_2d(x)), x)
    check(lambda x: (np.broadcast_to(x, (2, *shape)), np.expand_dims(x, (0, -1)), np.squeeze(x), np.atleast_3d(x)), x)
    if n:
        check(lambda x: (np.flip(x, axis), np.roll(x, shift, axis), np.repeat(x, 3, axis), np.moveaxis(x, axis, 0)), x)
        check(lambda x: (np.pad(x, widths), np.pad(x, 1, mode="edge"), np.swapaxes(x, axis, 0)), x)
        check(lambda x: (np.pad(x, widths, mode="reflect"), np.pad(x, widths, mode="wrap")), x)
        check(lambda x: np.array_split(x, 3, axis) + list(np.split(x, [1, 2], axis=axis)), x)
        check(lambda x: (np.concatenate([x, x[::-1], x], axis), np.stack([x, x], axis), np.diff(x, axis=axis)), x)
        check(lambda x: (np.tril(x, shift), np.triu(x, -1)) if n > 1 else x, x)
    if n >= 2:
        check(lambda x: (np.diagonal(x, shift % 3 - 1), np.trace(x), np.rot90(x, shift), np.diagonal(x, 0, -1, 0)), x)


def test_joins_promote() -> None:
    a, b = np.arange(3, dtype="i4"), np.ones((3,), "f4")
    check(lambda a, b: (np.concatenate([a, b]), np.stack([a, b]), np.vstack([a, b]), np.hstack([a, b])), a, b)
    check(lambda a, b: (np.column_stack([a, b]), np.dstack([a, b]), np.append(a, b), np.concatenate([a, [1.5]])), a, b)
    check(lambda a, b: (np.where(a > 1, a, b), np.where(b > 1, b, 0.5), np.where(a, 1, 2), np.where(a, a, 1.5)), a, b)
    check(lambda a, b: (np.clip(a, 1, None), np.clip(b, 0.5, 0.75), np.clip(a, 0.5, 2), a.clip(min=1)), a, b)
    check(lambda a, b: (*np.meshgrid(a, b), *np.meshgrid(a, b, indexing="ij", sparse=True)), a, b)
    check(lambda a, b: (*np.broadcast_arrays(a[:, None], b), np.isclose(a, b), np.array_equal(a, a)), a, b)
    check(lambda a, b: (np.diag(a), np.diag(b, 2), np.diag(b, -1), np.diag(np.outer(a, b), 1)), a, b)
    check(lambda a, b: (np.select([a > 1, a > 0], [a, b], 9), np.nan_to_num(b / a), np.round(b * 1.26, 1)), a, b)
    check(lambda a, b: (np.pad(b, 1, constant_values=-np.inf), np.pad(b, (1, 2), constant_values=(np.nan, 2))), a, b)
    check(lambda a, b: (np.unstack(np.stack([a, a])), np.result_type(a, b) == np.float64, np.shape(a)), a, b)


# Indexing

BASIC: list[Any] = [
    0, -1, slice(None), slice(1, None), slice(None, None, -1), slice(-1, 0, -2), slice(5, 2), None, ..., (..., 0),
    (slice(None), None, 1), (0, ..., -1), (slice(None, None, 2), slice(1, 3), slice(None, None, -1)), (None, 0, None),
    (1, 1, 1), (..., None), (slice(0, 0),), (), (1, slice(None), slice(None, None, -2)),
]  # fmt: skip
I, J = np.array([[0, -1], [1, 1]]), np.array([2, 0])  # noqa: E741
ADVANCED: list[Any] = [
    (None, np.array([0, 2]), np.array([1, 3]), Ellipsis, 2),  # an Ellipsis that stands for no axis
    I, [0, 1], (I, J), (slice(None), I), (I, slice(None), J), (0, slice(None), J), (slice(None), I, J), (..., J),
    (I, 1), (1, I), (slice(None, None, -1), J), (I, None, J), (J, 0, 1), ([], slice(None)), (slice(None), 0, J),
    (None, I, J), (I[..., None], J, slice(1, None)), (np.array([True, False, True]),), (np.int32(1), J),
    (slice(None), np.array([True, False, True, True])), np.array(2), (I, slice(1, 3), 0), (0, None, J),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BASIC)))
def test_basic_indexing(number: int) -> None:
    x = np.arange(60.0).reshape(3, 4, 5)
    check(lambda x: x[BASIC[number]], x)


@pytest.mark.parametrize("number", range(len(ADVANCED)))
def test_integer_array_indexing(number: int) -> None:
    x = np.arange(60.0).reshape(3, 4, 5)
    index = ADVANCED[number]
    check(lambda x: x[index], x)
    # The same with the index arrays traced.
    given = index if isinstance(index, tuple) else (index,)
    arrays = [i for i in given if isinstance(i, np.ndarray) and i.dtype != bool]

    def traced_index(x: Any, arrays: list[Any]) -> Any:
        rest = iter(arrays)
        return x[tuple(next(rest) if isinstance(i, np.ndarray) and i.dtype != bool else i for i in given)]

    check(traced_index, x, arrays)


@given(data=st.data())
@settings(max_examples=a_part(120), deadline=None)
def test_mixed_indexing(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    x = np.arange(np.prod(shape)).reshape(shape)
    spread = tuple(data.draw(st.lists(st.integers(1, 3), max_size=2)))
    index: list[Any] = []
    for n in shape[: data.draw(st.integers(0, len(shape)))]:
        if data.draw(st.integers(0, 5)) == 0:
            index.append(None)
        kind = data.draw(st.sampled_from(("int", "slice", "array", "array")))
        if kind == "int":
            index.append(data.draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            ends = st.one_of(st.none(), st.integers(-5, 5))
            index.append(slice(data.draw(ends), data.draw(ends), data.draw(st.sampled_from((None, 1, 2, -1, -3)))))
        else:
            own = tuple(m if data.draw(st.booleans()) else 1 for m in spread[data.draw(st.integers(0, len(spread))) :])
            picks = data.draw(st.lists(st.integers(-n, n - 1), min_size=int(np.prod(own)), max_size=int(np.prod(own))))
            index.append(np.array(picks, np.int64).reshape(own))
    if data.draw(st.booleans()):
        index.insert(data.draw(st.integers(0, len(index))), Ellipsis)
    check(lambda x: x[tuple(index)], x)


def test_an_ellipsis_of_no_axes_stands_between_indices() -> None:
    x, i = np.arange(16).reshape(2, 2, 2, 2), np.array([0, 1, 1])
    for index in (
        (slice(None), 0, i, ..., 1),
        (slice(None), i, ..., i, 0),
        (..., slice(None), 0, i, 1),
        (0, 1, ..., i, 1),
    ):
        check(lambda x, at=index: x[at], x)


def test_take() -> None:
    x = np.arange(12.0).reshape(3, 4)
    ids = np.array([[2, -1], [0, 1]])
    check(lambda x, i: (np.take(x, i), np.take(x, i, 1), x.take(i, axis=0), np.take(x, i[0, 0], 0)), x, ids)
    check(lambda x, i: (np.take(x, i + 7, 1, mode="wrap"), np.take(x, i * 9, 1, mode="clip")), x, ids)
    check(lambda i: eqsat.asarray(x)[i], ids)
    order = np.argsort(-x, axis=1)
    check(lambda x, o: np.take_along_axis(x, o, 1), x, order)
    check(lambda x, o: np.take_along_axis(x, o[:, :2], 1), x, order)
    check(lambda x: np.take_along_axis(x, np.argmax(x, 0)[None], 0), x)


# Linear algebra


@given(data=st.data(), left=st.sampled_from(ALL), right=st.sampled_from(ALL), seed=seeds)
@settings(max_examples=a_part(80), deadline=None)
def test_products(data: st.DataObject, left: str, right: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = st.integers(0, 4)
    m, k, n = data.draw(size), data.draw(size), data.draw(size)
    stack = tuple(data.draw(st.lists(st.integers(1, 3), max_size=2)))
    other = tuple(s if data.draw(st.booleans()) else 1 for s in stack[data.draw(st.integers(0, len(stack))) :])
    a = random_array(rng, (*stack, m, k) if data.draw(st.booleans()) else (k,), left, False)
    b = random_array(rng, (*other, k, n) if data.draw(st.booleans()) else (k,), right, False)
    check(lambda a, b: a @ b, a, b, scale=8)
    check(np.dot, a, b, scale=8)
    check(np.outer, a, b)
    flat = random_array(rng, (m, k), left, False), random_array(rng, (n, k), right, False)
    check(np.inner, *flat, scale=8)
    check(lambda a, b: np.tensordot(a, b, ((1,), (1,))), *flat, scale=8)
    check(np.vdot, flat[0], flat[0], scale=8)
    check(np.kron, *flat)


EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,kj", (2, 3), (4, 3)), ("ii->i", (3, 3)), ("ii", (3, 3)), ("ij->", (2, 3)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("i,j,k->ijk", (2,), (3,), (4,)), ("ij,ij->i", (2, 3), (2, 3)),
    ("ij,ij->ij", (2, 3), (2, 3)), ("ijk,k->", (2, 3, 4), (4,)), ("iij,jk->ik", (3, 3, 2), (2, 4)),
    ("ij,j->j", (2, 3), (3,)), ("i...->...", (2, 3, 4)), ("ij,kl->jl", (2, 3), (4, 5)), ("ij,jk->ki", (1, 3), (1, 4)),
    ("a,a,a->", (5,), (5,), (5,)), ("ba,cb", (2, 3), (4, 2)), ("...,...", (3,), (2, 1)), (",ij->ji", (), (2, 3)),
    ("ij,jk->ik", (0, 3), (3, 2)), ("ij,jk->ik", (2, 0), (0, 2)), ("aab,bcc->ac", (2, 2, 3), (3, 4, 4)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(EINSUMS)))
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_einsum(number: int, dtype: str) -> None:
    spec, *sizes = EINSUMS[number]
    rng = np.random.default_rng(number)
    arrays = [random_array(rng, s, dtype, False) for s in sizes]
    check(lambda *arrays: np.einsum(spec, *arrays), *arrays, scale=16)


def test_more_linear_algebra() -> None:
    rng = np.random.default_rng(9)
    a, b, v = rng.normal(size=(3, 4, 5)), rng.normal(size=(5, 4, 2)), rng.normal(size=5)
    check(lambda a, b: (np.tensordot(a, b, ((1, 2), (1, 0))), np.tensordot(a, v, 1), np.tensordot(a, b, 0)), a, b)
    check(lambda a, b: (np.dot(a, b.transpose(2, 0, 1)), np.inner(a, v), np.vecdot(a, v), np.dot(a, 2.0)), a, b)
    check(
        lambda a, b: (np.einsum(a, [0, 1, 2], b, [2, 1, 3], [0, 3]), np.linalg.multi_dot([a[0], b[:, :, 0], v[:4]])),
        a,
        b,
    )
    check(lambda a, v: (np.linalg.norm(a), np.linalg.norm(v), np.linalg.norm(a, axis=1, keepdims=True)), a, v)
    check(lambda a, v: (np.linalg.norm(v, 1), np.linalg.norm(v, np.inf), np.linalg.norm(v, 3)), a, v)
    check(lambda a: (np.trace(a), np.trace(a, 1, 1, 2), np.linalg.matrix_power(a[:, :3, :3], 3)), a)
    check(lambda a, v: (np.add.reduce(a, axis=1), np.multiply.outer(v, v), np.add.accumulate(v)), a, v)


# scipy, Array API, nn


def test_scipy_ufuncs_dispatch() -> None:
    from scipy import special

    x = np.linspace(-3, 3, 7, dtype="f4")
    check(lambda x: (special.erf(x), special.expit(x), special.log_expit(x)), x, scale=8)
    check(lambda x: special.xlogy(x, np.abs(x)), x, scale=4)


def test_array_api_namespace() -> None:
    def program(x: Any) -> Any:
        xp = x.__array_namespace__() if hasattr(x, "__array_namespace__") else np
        y = xp.matmul(x, xp.matrix_transpose(x))
        z = xp.concat([y, xp.permute_dims(y, (1, 0))], axis=0)
        e = xp.exp(z - xp.max(z, axis=-1, keepdims=True))
        w = xp.astype(xp.asarray(e), xp.float64) + xp.full((4,), e[0, 0]) + xp.zeros((4,)) + xp.asarray([1, 2, 3, 4])
        assert x.device == "cpu" and xp.isdtype(x.dtype, "real floating")
        return xp.where(xp.isnan(w), 0.0, w), xp.squeeze(w[:1], axis=0), xp.sum(e), xp.pow(y, 2.0)

    check(program, np.random.default_rng(1).normal(size=(4, 3)).astype("f4"), scale=8)


@pytest.mark.parametrize("dtype", [*FLOATS, "int64"])
def test_nn_functions(dtype: str) -> None:
    from scipy import special

    rng = np.random.default_rng(5)
    x = random_array(rng, (3, 4, 5), dtype, False)
    real = x if dtype in FLOATS else x.astype(float)
    scale, shift = rng.normal(size=5).astype(real.dtype), rng.normal(size=5).astype(real.dtype)
    centered = real - real.mean(-1, keepdims=True)
    half = (real.var(-1, keepdims=True) + real.dtype.type(1e-5)) ** 0.5
    cases: list[tuple[Function, np.ndarray]] = [
        (lambda x: nn.softmax(x), special.softmax(real, axis=-1)),
        (lambda x: nn.softmax(x, axis=None), special.softmax(real)),
        (lambda x: nn.softmax(x, (0, 2)), special.softmax(real, axis=(0, 2))),
        (lambda x: nn.log_softmax(x, 1), special.log_softmax(real, axis=1)),
        (lambda x: nn.layer_norm(x), centered / half),
        (lambda x: nn.layer_norm(x, scale, shift), centered / half * scale + shift),
        (lambda x: nn.rms_norm(x, scale), real / ((real**2).mean(-1, keepdims=True) + 1e-5) ** 0.5 * scale),
        (lambda x: nn.gelu(x), real * special.ndtr(real)),
        (lambda x: nn.gelu(x, "tanh"), 0.5 * real * (1 + np.tanh((2 / np.pi) ** 0.5 * (real + 0.044715 * real**3)))),
        (lambda x: nn.silu(x), real * special.expit(real)),
        (lambda x: nn.sigmoid(x), special.expit(real)),
        (lambda x: nn.relu(x), np.maximum(x, 0)),
        (lambda x: nn.erf(x), special.erf(real)),
        (lambda x: nn.rsqrt(x * x + 1), 1 / np.sqrt(real * real + 1)),
    ]
    for fn, want in cases:
        want = want.astype(x.dtype if want.dtype.kind == "i" else real.dtype)
        same(fn(x), want, 32)  # on NumPy arrays
        same(run_by_reference(fn, (x,), {}), want, 32)  # traced


def test_a_wrong_function_is_caught() -> None:
    """Negative control: the comparison sees a wrong value, a wrong type and a wrong shape."""
    x = np.arange(3.0)
    for wrong in (x + 1e-9, x.astype("f4"), x[None]):
        with pytest.raises(AssertionError):
            same(wrong, x)


def test_a_mean_is_one_node_with_and_without_kept_axes() -> None:
    """So that a mean and a variance of the same array share their first pass."""
    x = np.ones((3, 4, 5), np.float32)
    traced = trace(lambda x: (x.mean(axis=1), x.var(axis=1), x.mean(axis=1, keepdims=True)), (x,), {})
    assert sum(node.op == "reduce_sum" for node in traced.graph.nodes()) == 2
    assert sum(node.op == "div" for node in traced.graph.nodes()) == 2
    assert [node.shape for node in traced.graph.outputs] == [(3, 5), (3, 5), (3, 1, 5)]


def test_a_traced_array_is_an_instance_of_ndarray() -> None:
    seen = []

    def fn(x: Any, y: Any) -> Any:
        seen.append((isinstance(x, np.ndarray), isinstance(x, (list, np.ndarray)), isinstance(np.sin(x), np.ndarray)))
        y += 1
        return np.stack([np.tanh(x), y]) + np.asarray([1.0, 2.0])[:, None]

    x, y = np.ones(3), np.zeros(3)
    traced = trace(fn, (x, y))
    assert seen == [(True, True, True)]
    assert [(changed.name, changed.line.text) for changed in traced.written] == [("y", "y += 1")]

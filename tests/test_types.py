"""Every element type beside every other: NumPy's promotion, wrap-around, casts, bits, accumulators and indices."""

from __future__ import annotations

import itertools
import operator
import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.frontends.trace import run_by_reference
from eqsat.ir.types import COMPUTED, INTEGERS
from tests.sweeps import a_part

TYPES = [np.dtype(d.name) for d in COMPUTED]
PARTS = 4
FEW = ("uint8", "int16", "uint64")
INTS = [np.dtype(d.name) for d in INTEGERS]
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{f.__name__: f for f in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)},
    **{f.__name__: f for f in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)},
    **{f.__name__: f for f in (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift)},
    **{f.__name__: f for f in (operator.truediv, np.maximum, np.minimum, np.fmax)},
    "where": lambda a, b: np.where(a > b, a, b),
    "joined": lambda a, b: np.concatenate([np.ravel(a), np.ravel(b)]),
    "matmul": lambda a, b: np.atleast_1d(a) @ np.atleast_1d(b),
    "in place": lambda a, b: operator.iadd(np.array(a) if not hasattr(a, "node") else a.copy(), b),
}
UNARY: dict[str, Callable[[Any], Any]] = {
    **{f.__name__: f for f in (operator.neg, operator.pos, operator.invert, abs, np.sign, np.square, np.isnan)},
    **{f.__name__: f for f in (np.floor, np.ceil, np.trunc, np.rint, np.conjugate, np.logical_not)},
}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        np.sum,
        np.prod,
        np.max,
        np.min,
        np.mean,
        np.any,
        np.all,
        np.argmax,
        np.argmin,
        np.cumsum,
        np.count_nonzero,
    )
}


def numbers(dtype: np.dtype, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Small numbers, the ends of the type, and anything between; special values of floats."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "f":
        special = rng.choice(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.5]), shape)
        return np.where(rng.random(shape) < 0.3, special, rng.normal(0, 3, shape)).astype(dtype)
    limits = np.iinfo(dtype)
    edges = np.array([limits.min, limits.max, limits.max - 1, 0, 1, 2, 7, limits.bits], dtype)
    some = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    small = rng.integers(max(limits.min, -9), 10, shape).astype(dtype)
    return np.choose(rng.integers(0, 3, shape), [some, small, rng.choice(edges, shape)])


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """A result, or the kind of error."""
    with np.errstate(all="ignore"):
        try:
            return np.asarray(fn(*args))
        except (TypeError, ValueError, OverflowError) as error:
            return next(kind for kind in (OverflowError, TypeError, ValueError) if isinstance(error, kind))


def same(got: Any, want: Any, *, rtol: float = 0.0) -> None:
    if isinstance(want, type) or isinstance(got, type):
        assert got is want
        return
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype.kind == "f" and rtol:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(got, want)


def tolerance(dtype: np.dtype) -> float:
    return 8 * float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


@pytest.mark.parametrize("name", BINARY)
@given(left=st.sampled_from(TYPES), right=st.sampled_from(TYPES), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=a_part(40), deadline=None)
def test_pairs_of_types(name: str, left: np.dtype, right: np.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fn, a, b = BINARY[name], numbers(left, (5,), rng), numbers(right, (5,), rng)
    want = outcome(fn, a, b)
    if isinstance(want, np.ndarray) and want.dtype not in TYPES:
        return
    got = outcome(lambda *args: run_by_reference(fn, args, {}), a, b)
    same(got, want, rtol=0.0 if isinstance(want, type) else tolerance(want.dtype))


@pytest.mark.parametrize("name", [n for n in BINARY if n not in ("joined", "matmul", "in place")])
@given(
    dtype=st.sampled_from(TYPES),
    number=st.one_of(
        st.sampled_from([0, 1, 2, -1, 3, 127, 128, 255, 256, -128, -129, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**70]),
        st.sampled_from([0.5, -2.0, 1e10]),
        st.sampled_from([np.uint8(3), np.int8(-3), np.int64(5), np.uint64(2**63), np.float32(0.25), np.bool_(True)]),
    ),
    swapped=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=a_part(60), deadline=None)
def test_numbers_beside_arrays(name: str, dtype: np.dtype, number: Any, swapped: bool, seed: int) -> None:
    x = numbers(dtype, (6,), np.random.default_rng(seed))
    if dtype == np.bool_ and isinstance(number, int) and number >= 2**63:
        return  # no comparison in NumPy, though of other types there is

    def fn(x: Any) -> Any:
        return BINARY[name](number, x) if swapped else BINARY[name](x, number)

    want = outcome(fn, x)
    if isinstance(want, np.ndarray) and want.dtype not in TYPES:
        return
    same(outcome(lambda x: run_by_reference(fn, (x,), {}), x), want, rtol=0.0 if isinstance(want, type) else 1e-6)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_functions_of_one_array(dtype: np.dtype) -> None:
    x = numbers(dtype, (3, 7), np.random.default_rng(1))
    for name, fn in UNARY.items():
        want = outcome(fn, x)
        if isinstance(want, np.ndarray) and want.dtype not in TYPES:
            continue
        got = outcome(lambda x, fn=fn: run_by_reference(fn, (x,), {}), x)
        assert (got is want) if isinstance(want, type) else got.dtype == want.dtype, name
        if isinstance(want, np.ndarray):
            np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_accumulators(dtype: np.dtype) -> None:
    x = numbers(dtype, (4, 9), np.random.default_rng(2))
    x = np.where(np.isfinite(x), x, 1).astype(dtype)
    for name, fn in REDUCTIONS.items():
        for axis in (None, 0, 1):
            want = outcome(lambda x, fn=fn, axis=axis: fn(x, axis=axis), x)
            got = outcome(lambda x, fn=fn, axis=axis: run_by_reference(lambda y: fn(y, axis=axis), (x,), {}), x)
            assert got.dtype == want.dtype, (name, axis)
            np.testing.assert_allclose(got, want, rtol=tolerance(want.dtype), atol=tolerance(want.dtype), err_msg=name)


@pytest.mark.parametrize("source", TYPES, ids=str)
def test_casts_wrap_around(source: np.dtype) -> None:
    x = numbers(source, (40,), np.random.default_rng(3))
    for target in TYPES:
        y = x
        if source.kind == "f" and target.kind in "iu":  # elsewhere undefined
            y = np.clip(np.nan_to_num(x), 0, 100)
        with np.errstate(all="ignore"):
            same(outcome(lambda y, t=target: run_by_reference(lambda z: z.astype(t), (y,), {}), y), y.astype(target))


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64])
def test_kernels_cast_numbers_below_zero_and_above_signed_ones_as_c_does(source: Any) -> None:
    x = np.array([-1.5, -0.5, 3, -300.25, 2.0**31, 2.0**32 - 2**8, 2.0**63, 2.0**62, 2.0**64 - 2**40, -(2.0**62)] * 2)
    defined = {np.uint8: 31, np.uint16: 31, np.uint32: 32, np.int64: 63, np.uint64: 65}  # C leaves the rest undefined
    for size, target in itertools.product((3, 20), defined):
        with np.errstate(all="ignore"):
            y = x[np.abs(x) < min(2.0 ** defined[target], np.finfo(source).max)][:size].astype(source)
            want = y.astype(target)
            got = eqsat.optimize(lambda y, t=target: np.negative(-y).astype(t), strict=True, cache=False)(y)
        np.testing.assert_array_equal(got, want, err_msg=f"{target.__name__} {size}")


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="C leaves it undefined")
@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64])
def test_kernels_cast_what_no_uint64_holds_as_numpy_does(source: Any) -> None:
    x = np.array([np.inf, 3, -np.inf, np.nan, 2.0**64, 1e25, -1e25, 2.0**63 + 2**41] * 3)
    for size in (3, 24):
        with np.errstate(all="ignore"):
            y = x[:size].astype(source)
            want = y.astype(np.uint64)
            got = eqsat.optimize(lambda y: np.negative(-y).astype(np.uint64), strict=True, cache=False)(y)
        np.testing.assert_array_equal(got, want)


def _everything(a: Any, b: Any) -> tuple[Any, ...]:
    return (
        a + b, a - b, a * b, a // b, a % b, -a, abs(a), np.sign(b), a & b, a | b, a ^ b, ~a, a << b, a >> b, a < b,
        a >= 3, np.maximum(a, b), np.minimum(a, 5), np.where(a > b, a, b), a**3, a.sum(), a.sum(axis=0), b.max(axis=1),
        a.prod(axis=1), a.argmax(axis=0), a @ b.T, np.clip(a, 2, 7), a.astype(np.float32) * 0.5, a.mean(axis=1),
        (a.astype(np.float64) * 1e-16).astype(np.int16), a[::-1, ::2] + b[:, 1::2], a.astype(np.uint8),
        a.astype(np.int64) * b, np.pad(a, 1, constant_values=3),
    )  # fmt: skip


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=[] if d.name in FEW else pytest.mark.slow) for d in INTS], ids=str
)
def test_compiled_kernels_wrap_around(dtype: np.dtype) -> None:
    rng = np.random.default_rng(4)
    # in parts: to choose which of so many kernels run together takes longer than all else
    parts = [eqsat.optimize(lambda a, b, part=part: _everything(a, b)[part::PARTS]) for part in range(PARTS)]
    for a, b in (
        (numbers(dtype, (5, 34), rng), numbers(dtype, (5, 34), rng)),
        (numbers(dtype, (34, 10), rng).T[::2], numbers(dtype, (5, 34), rng)),
    ):
        with np.errstate(all="ignore"):
            want = _everything(a, b)
        found = {part + PARTS * n: got for part, f in enumerate(parts) for n, got in enumerate(f(a, b))}
        assert len(found) == len(want)
        for number, right in enumerate(want):
            got = found[number]
            assert got.dtype == right.dtype, number
            np.testing.assert_allclose(got, right, rtol=1e-6 if right.dtype.kind == "f" else 0, err_msg=str(number))


def test_images() -> None:
    rng = np.random.default_rng(5)
    image = rng.integers(0, 256, (19, 23, 3), np.uint8)

    def brighter(image: Any) -> Any:
        return np.clip(image.astype(np.float32) * 1.2 + 10, 0, 255).astype(np.uint8)

    def gray(image: Any) -> Any:
        return ((image.astype(np.uint16) @ np.array([77, 150, 29], np.uint16)) >> 8).astype(np.uint8)

    def blended(image: Any) -> Any:
        return (image // 2 + image[:, ::-1] // 2, 255 - image, image > image.mean(), np.where(image > 128, 255, 0))

    for fn in (brighter, gray, blended):
        for got, want in zip(np.atleast_1d(eqsat.optimize(fn)(image)), np.atleast_1d(fn(image)), strict=True):
            same(got, want)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_indices_of_any_integer_type(dtype: np.dtype) -> None:
    table = np.arange(300.0)
    index = np.array([0, 5, 100, 3, 126 if dtype.itemsize == 1 else 299, -1 if dtype.kind == "i" else 2], dtype)

    def fn(table: Any, index: Any) -> Any:
        return table[index], np.take(table, index + dtype.type(1), mode="wrap"), np.take_along_axis(table, index, 0)

    for got, want in zip(eqsat.optimize(fn)(table, index), fn(table, index), strict=True):
        same(got, want)
    with pytest.raises(IndexError):
        eqsat.optimize(lambda table, index: table[:5][index])(table, index)


def test_a_kernel_of_bytes_has_a_lane_for_each() -> None:
    lanes = []
    for dtype in (np.uint8, np.float32):
        x = np.arange(4096).astype(dtype)
        f = eqsat.optimize(lambda x: x + 1)
        assert np.array_equal(f(x), x + 1)
        found = re.search(r"load_\w\d+x(\d+)", f.source(x))
        assert found is not None
        lanes.append(int(found[1]))
    assert lanes[0] == 4 * lanes[1]


def test_promotion_is_the_standards() -> None:
    """Where the array API standard defines a promotion, traced arrays have the type that it says."""
    xp = pytest.importorskip("array_api_strict")
    names = [d.name for d in COMPUTED if d.name != "float16"] + ["complex64", "complex128"]
    operators = (
        operator.add,
        operator.mul,
        operator.lt,
        operator.and_,
        operator.lshift,
        operator.truediv,
        operator.mod,
    )
    seen = 0
    for left in names:
        for right in names:
            for op in operators:
                try:
                    want = op(xp.ones(2, dtype=getattr(xp, left)), xp.ones(2, dtype=getattr(xp, right))).dtype
                except TypeError:
                    continue
                got = run_by_reference(op, (np.ones(2, left), np.ones(2, right)), {})
                assert got.dtype.name == str(want).rpartition(".")[2], (left, right, op)
                seen += 1
    assert seen > 200

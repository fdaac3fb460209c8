"""bfloat16: ml_dtypes' promotion, casts and functions; products by dot products of pairs, and what those may do."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16

import eqsat
from eqsat import nn
from eqsat.errors import EqsatError, UnsupportedDTypeError, VerificationError
from eqsat.frontends.trace import run_by_reference
from eqsat.ir.types import finfo
from eqsat_backends.numba_cpu.tiles import dots
from tests.test_small_integers import beside
from tests.test_tiles import call

BF = np.dtype(bfloat16)
EVERY = np.arange(1 << 16, dtype=np.uint16).view(BF)
NAMES = "float16", "float32", "float64", "int8", "uint8", "int16", "int32", "uint64", "bool", "complex64"
TYPES = [BF, *map(np.dtype, NAMES)]
PAIR = "bfloat16·bfloat16"


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def bits(x: Any) -> Any:
    """What tells values apart: those of an array, and signs of zeros; one NaN is like another."""
    x = np.asarray(x)
    if x.dtype != BF:
        return x
    return np.where(np.isnan(x), 0x7FC0, x.view(np.uint16))


def same(got: Any, want: Any) -> None:
    got, want = (np.asarray(v) for v in (got, want))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(bits(got), bits(want))
    if want.dtype.kind == "f":
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


# Promotion: what NumPy does with ml_dtypes' type, also where it refuses

BINARY: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.mul, operator.truediv, operator.pow, operator.floordiv, operator.lt,
    np.maximum, np.fmax, np.hypot, np.arctan2, lambda a, b: np.where(a > 0, a, b), lambda a, b: np.clip(a, 0, b),
    lambda a, b: np.concatenate([np.ravel(a), np.ravel(b)]), lambda a, b: np.dot(np.ravel(a), np.ravel(b)),
    lambda a, b: np.matmul(np.ravel(a), np.ravel(b)), lambda a, b: operator.iadd(a.copy(), b),
]  # fmt: skip
SCALARS = [2, 0.5, True, 1j, np.float32(0.5), np.float64(2), np.int8(2), np.int64(2), np.float16(2)]


def checked(fn: Callable[..., Any], *arguments: Any) -> None:
    """The type of ``fn``'s result as NumPy has it, or an error as well."""
    try:
        want = fn(*arguments)
    except (TypeError, ValueError):
        with pytest.raises((TypeError, ValueError, EqsatError)):
            run_by_reference(fn, arguments, {})
        return
    try:
        got = run_by_reference(fn, arguments, {})
    except UnsupportedDTypeError:  # complex numbers of a few functions
        assert any(np.iscomplexobj(a) for a in arguments)
        return
    except EqsatError as error:
        assert "arctan2" in str(error)  # for which there is no operator
        return
    assert np.asarray(got).dtype == np.asarray(want).dtype


@pytest.mark.parametrize("fn", BINARY)
def test_promotion(fn: Callable[[Any, Any], Any]) -> None:
    x = np.array([1, 2, 3], BF)
    for dtype in TYPES:
        other = np.array([1, 0, 1], dtype)
        checked(fn, x, other)
        checked(fn, other, x)
    for scalar in SCALARS:
        checked(lambda a, scalar=scalar: fn(a, scalar), x)


UNARY = [
    np.negative, np.abs, np.sign, np.square, np.sqrt, np.reciprocal, np.floor, np.ceil, np.trunc, np.rint, np.exp,
    np.log, np.tanh, np.sin, np.isnan, np.isfinite, np.degrees, np.deg2rad, np.zeros_like, np.round, np.nan_to_num,
    np.mean, np.sum, np.prod, np.max, np.argmax, np.std, np.var, np.median, np.any, np.ptp, np.linalg.norm, np.cumsum,
    lambda x: np.full_like(x, 0.3), lambda x: np.outer(x, x), lambda x: np.tensordot(x, x, 1), lambda x: np.vdot(x, x),
    lambda x: np.vecdot(x, x), lambda x: np.sum(x, dtype=np.float32), lambda x: x.astype(int), lambda x: np.pad(x, 1),
    lambda x: np.take(x, [0, 2]), lambda x: x[::-1].copy(), np.sort, np.argsort,
]  # fmt: skip


@pytest.mark.parametrize("fn", UNARY)
def test_types_of_results(fn: Callable[[Any], Any]) -> None:
    checked(fn, np.array([1, 2, 3], BF))


def test_there_is_no_einsum() -> None:
    x = np.ones((3, 3), BF)
    with pytest.raises(TypeError):
        np.einsum("ij,jk->ik", x, x)
    with pytest.raises(UnsupportedDTypeError, match="no einsum of bfloat16: cast to float32"):
        run_by_reference(lambda x: np.einsum("ij,jk->ik", x, x), (x,), {})


# Kernels, on every value that there is


def functions(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    return (
        x + y, x * y, x / y, -x, np.sign(x), np.sqrt(x), np.rint(x), np.maximum(x, y), x < y, x * y + x,
    )  # fmt: skip


def casts(x: np.ndarray) -> tuple[np.ndarray, ...]:
    kinds = np.float16, np.float32, np.float64, bool
    small = np.where(abs(x) < 100, x, 0).astype(BF)
    return *(x.astype(kind) for kind in kinds), small.astype(np.int8), small.astype(np.int64)


def narrowed(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(x.astype(BF) for x in arrays)


compiled = {f: eqsat.optimize(f, strict=True, check_speed=False, verify=False) for f in (functions, casts, narrowed)}


def test_elementwise_functions_are_rounded_one_by_one() -> None:
    x, y = EVERY, np.random.default_rng(0).permutation(EVERY)
    for got, want in zip(compiled[functions](x, y), functions(x, y), strict=True):
        same(got, want)


def test_casts_of_every_value() -> None:
    for got, want in zip(compiled[casts](EVERY), casts(EVERY), strict=True):
        same(got, want)


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_numbers_are_rounded_as_ml_dtypes_does(seed: int) -> None:
    """Any bits, ties and their neighbours, of which float64's are rounded to float32 first."""
    rng = np.random.default_rng(seed)
    single = rng.integers(0, 1 << 32, 256, np.uint32)
    tied = np.where(rng.random(256) < 0.5, (single & 0xFFFF0000) + 0x8000 + rng.integers(-1, 2, 256), single)
    floats = tied.astype(np.uint32).view(np.float32)
    doubles = floats.astype(np.float64) * (1 + rng.integers(-2, 3, 256) * 2.0**-40)
    arrays = floats, doubles, rng.integers(-(1 << 63), 1 << 63, 256), floats.astype(np.float16)
    for got, want in zip(compiled[narrowed](*arrays), narrowed(*arrays), strict=True):
        same(got, want)


def test_limits() -> None:
    assert finfo(BF).eps == 2.0**-7 and finfo(np.dtype("float32")).eps == 2.0**-23


# Sums: rounded once, when all is added


def test_long_sums_are_held_against_numpy_as_it_rounds_them() -> None:
    """NumPy rounds at every step, and stops at 256 ones; a trace that rounds once is no other function."""
    total = eqsat.optimize(lambda x: (x.sum(1), x.mean(1)), strict=True, check_speed=False)
    x = np.ones((3, 5000), BF)
    assert x.sum(1).tolist() == [256] * 3
    sums, means = total(x)
    assert sums.tolist() == [4992] * 3 and (sums.dtype, means.dtype) == (BF, BF)  # 5000 is between two numbers
    assert means.tolist() == [1] * 3


# Products


def subnormal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 128, shape, np.uint16).view(BF)


@pytest.mark.parametrize("lanes", [16, 8, 4])
@pytest.mark.parametrize("native", [True, False])
def test_tile(lanes: int, native: bool) -> None:
    """Within float32's rounding of the sum. Subnormal factors count as zeros where an instruction adds pairs."""
    rng, k, rows = np.random.default_rng(lanes), 48, 3
    sizes = f"{rows}, 1, {lanes}, {2 * k}, 4, {lanes * 4}, {lanes * 4}"
    tile = f'dot_tile("float32", "{PAIR}", False, {native}, {sizes})'

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        c = np.zeros((rows, lanes), np.float32)
        call(tile, (a, beside(b, 2), c), k // 2)
        return c

    a, b = rng.standard_normal((rows, k)).astype(BF), rng.standard_normal((k, lanes)).astype(BF)
    exact, size = (f(a.astype(np.float64)) @ f(b.astype(np.float64)) for f in (np.asarray, np.abs))
    assert (abs(product(a, b) - exact) <= k * 2.0**-24 * size).all()
    a, b = subnormal((rows, k), 1), np.full((k, lanes), 1e30, BF)
    exact, found = a.astype(np.float64) @ b.astype(np.float64), product(a, b)
    if native and dots.NEEDS[PAIR] in dots.cpu_features():
        assert not found.any()
    else:
        assert np.allclose(found, exact, rtol=1e-6)


def multiply(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x @ w, np.dot(x, w)


@pytest.mark.parametrize(("m", "k", "n"), [(37, 61, 50), (64, 64, 48)])
@pytest.mark.parametrize("const", [(), ("w",)])
def test_products(m: int, k: int, n: int, const: tuple[str, ...]) -> None:
    """``@`` is of float32 in NumPy, ``dot`` of bfloat16. Known factors stay small, for tiles of pairs."""
    rng = np.random.default_rng(k)
    x, w = rng.standard_normal((m, k)).astype(BF), rng.standard_normal((k, n)).astype(BF)
    program = eqsat.optimize(multiply, strict=True, const=const, check_speed=False)
    wide, rounded = program(x, w)
    assert (wide.dtype, rounded.dtype) == (np.float32, BF)
    exact, size = (f(x.astype(np.float64)) @ f(w.astype(np.float64)) for f in (np.asarray, np.abs))
    assert (abs(wide - exact) <= k * 2.0**-24 * size).all()
    same(rounded, wide.astype(BF))
    source = program.source(x, w)  # without instructions for pairs either way may be the quicker one
    assert dots.NEEDS[PAIR] not in dots.cpu_features() or "dot_tile" in source or "matrix_tile" in source


def test_exact_products_keep_subnormal_numbers() -> None:
    x, w = subnormal((16, 32), 2), np.full((32, 48), 1e30, BF)
    if dots.NEEDS[PAIR] in dots.cpu_features():  # which makes them zeros: verification sees it
        with pytest.raises(VerificationError, match=r"numerics='exact'.* keeps NumPy's") as caught:
            eqsat.optimize(lambda x, w: x @ w, strict=True, check_speed=False)(x, w)
        exec(caught.value.program.replace("print", "np.isfinite"), {})  # runs as it stands
    program = eqsat.optimize(lambda x, w: x @ w, strict=True, numerics="exact", check_speed=False)
    assert np.allclose(program(x, w), x.astype(np.float64) @ w.astype(np.float64), rtol=1e-6)
    assert not any(tile in program.source(x, w) for tile in ("dot_tile", "matrix_tile"))


def test_networks_of_bfloat16() -> None:
    """Functions of ``nn`` take and give it, and differ from float32 by its rounding."""
    rng = np.random.default_rng(3)
    x, w, b = (rng.standard_normal(shape).astype(BF) for shape in ((4, 32), (32, 32), (32,)))

    def network(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> Any:
        hidden = nn.gelu(np.dot(nn.layer_norm(x, b, b), w) + b)
        return nn.softmax(hidden), nn.silu(hidden)

    got = eqsat.optimize(network, strict=True, check_speed=False)(x, w, b)
    want = network(*(v.astype(np.float32) for v in (x, w, b)))
    for one, other in zip(got, want, strict=True):
        assert one.dtype == BF and np.allclose(one.astype(np.float32), other, rtol=0.1, atol=0.1)


def test_what_is_known_in_bfloat16_is_indexed_by_what_is_traced() -> None:
    table, column = np.arange(33).astype(np.uint64), np.ones((33, 1), np.int64)

    def program(x: Any) -> Any:
        known = table.astype(bfloat16) @ column.astype(bfloat16)
        kept = table.astype(bfloat16) * 2
        return eqsat.fori_loop(0, 1, lambda i, w: 0.5 * w + known[i] + kept[i].astype(np.float32), x)

    x = np.ones((4, 4), np.float32)
    optimized = eqsat.optimize(program, cache=False, check_speed=False, strict=True)
    np.testing.assert_array_equal(optimized(x), program(x))

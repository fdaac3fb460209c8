"""Complex numbers: pairs of real ones from the arguments to the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import VerificationError
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.ir.complexes import as_complex, as_real
from tests.sweeps import a_part

Function = Callable[..., Any]

FUNCTIONS: dict[str, Function] = {
    "sums": lambda z, w, x: (z + w, z - x, -w, z + 1, 2j - z, x + 1j, z.sum(), w.sum(axis=0), z.mean(axis=1)),
    "products": lambda z, w, x: (z * w, z * x, 2 * z, z * 1j, np.square(z), z**2, w**5, z**-1),
    "quotients": lambda z, w, x: (z / w, z / x, x / z, z / 3, 1 / w, np.reciprocal(z), z / (2 - 1j)),
    "parts": lambda z, w, x: (z.real, z.imag, np.real(w), np.imag(x), z.conj(), np.conj(x), abs(z), np.sign(z)),
    "exponentials": lambda z, w, x: (np.exp(z), np.sin(z), np.cos(w), np.sqrt(z), np.sqrt(-z), z**0.5),
    "tests": lambda z, w, x: (z == w, z != z, np.isnan(z), np.isfinite(z), np.isinf(w), z.astype(bool), np.any(z)),
    "casts": lambda z, w, x: (z.astype(np.complex128), x.astype(np.complex64), z.astype(np.complex64) + x),
    "choices": lambda z, w, x: (np.where(x > 0, z, w), np.where(x > 0, z, 1), np.nansum(z), np.clip(x, 0, 1) * z),
    "moves": lambda z, w, x: (z.T, z[::-1, 1:], z[1], np.roll(z, 1), np.stack([z, w]), np.concatenate([z, x]), z[0, 0]),
    "paddings": lambda z, w, x: (np.pad(z, 1), np.pad(z, 1, constant_values=1 - 2j), np.tile(z, 2), np.triu(z)),
    "gathers": lambda z, w, x: (np.take(z, np.abs(x[0]).astype(int) % 3, axis=0), np.cumsum(z, axis=1), np.diff(w)),
    "contractions": lambda z, w, x: (z @ w.T, x @ z.T, z @ w.conj().T, np.vdot(z, w), np.einsum("ij,kj->ik", z, w)),
    "conjugated": lambda z, w, x: (
        np.vecdot(z, w),
        np.correlate(z[0], w[0][:2], "full"),
        np.correlate(w[0][:2], z[0]),
        np.correlate(x[0], z[0]),
        np.convolve(z[0], w[0][:2]),
        np.cov(z),
        np.inner(z, w),
        np.kron(z, w[:1]),
        np.linalg.norm(z, axis=1),
    ),
    "spreads": lambda z, w, x: (z.var(), z.std(axis=0), np.linalg.norm(z), np.trace(z), np.outer(z[0], w[0])),
    "answers": lambda z, w, x: (np.iscomplexobj(z), np.iscomplexobj(abs(z)), z.dtype, z[0].sum().ndim),
}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: type, special: bool = False) -> np.ndarray:
    parts = [rng.normal(size=shape) for _ in range(2)]
    if special:
        odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1.0])
        parts = [np.where(rng.random(shape) < 0.3, rng.choice(odd, shape), part) for part in parts]
    made = np.empty(shape, dtype)
    made.real, made.imag = parts
    return made


def check(fn: Function, run: Function, *args: np.ndarray, rtol: float) -> None:
    with np.errstate(all="ignore"):
        want = fn(*args)
    for number, (a, b) in enumerate(zip(run(*args), want, strict=True)):
        got, right = np.asarray(a), np.asarray(b)
        assert (got.dtype, got.shape) == (right.dtype, right.shape), number
        if right.dtype.kind in "fc":
            np.testing.assert_allclose(got, right, rtol=rtol, atol=rtol, err_msg=str(number))
        else:
            np.testing.assert_array_equal(got, right, err_msg=str(number))


@pytest.mark.skipif(not hasattr(np, "vecmat"), reason="since NumPy 2.2")
def test_a_vector_times_a_matrix_is_conjugated() -> None:
    rng = np.random.default_rng(0)
    v, m = numbers(rng, (3,), np.complex128), numbers(rng, (2, 3, 4), np.complex128)
    for fn, args in ((np.vecmat, (v, m)), (np.matvec, (m.transpose(0, 2, 1), v))):
        np.testing.assert_allclose(run_by_reference(fn, args, {}), fn(*args), rtol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
@given(single=st.booleans(), rows=st.integers(1, 4), strided=st.booleans(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=a_part(12), deadline=None)
def test_traced_as_numpy_computes(name: str, single: bool, rows: int, strided: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, real = (np.complex64, np.float32) if single else (np.complex128, np.float64)
    shape = (2 * rows + 1, 5) if strided else (rows + 2, 5)
    z, w = (numbers(rng, shape, dtype) for _ in range(2))
    x = rng.normal(size=shape).astype(real)
    if strided:
        z, w, x = z[::-2], np.asfortranarray(w)[::2], x[::2]
    fn = FUNCTIONS[name]
    check(fn, lambda *args: run_by_reference(fn, args, {}), z, w, x, rtol=2e-5 if single else 1e-13)


@pytest.mark.parametrize("name", ["sums", "products", "quotients", "parts", "exponentials", "contractions", "paddings"])
def test_compiled_as_numpy_computes(name: str) -> None:
    rng = np.random.default_rng(1)
    z, w = (numbers(rng, (6, 19), np.complex64) for _ in range(2))
    x = rng.normal(size=(6, 19)).astype(np.float32)
    check(FUNCTIONS[name], eqsat.optimize(FUNCTIONS[name]), z, w, x, rtol=1e-4)


@pytest.mark.parametrize(
    "fn",
    [
        lambda z, w: z + w, lambda z, w: z - w, lambda z, w: z * w, lambda z, w: -z, lambda z, w: z.conj(),
        lambda z, w: abs(z), lambda z, w: z == w, lambda z, w: np.isnan(z), lambda z, w: np.isinf(z),
        lambda z, w: np.sqrt(z),
    ],
)  # fmt: skip
def test_special_values(fn: Function) -> None:
    rng = np.random.default_rng(2)
    z, w = (numbers(rng, (300,), np.complex128, special=True) for _ in range(2))
    with np.errstate(all="ignore"):
        want = np.asarray(fn(z, w))
    got = np.asarray(run_by_reference(fn, (z, w), {}))
    finite = np.isfinite(want) if want.dtype.kind != "b" else np.ones(want.shape, bool)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-14)
    assert not np.isfinite(got[~finite]).any()


def test_arguments_and_results_of_every_form() -> None:
    f = eqsat.optimize(lambda z, s: {"twice": z * s, "size": abs(z)})
    for z in (np.complex64(1 - 2j), np.arange(4) * (1 + 1j), np.zeros((0, 3), complex), np.ones((2, 3), ">c16")):
        got = f(z, 2)
        np.testing.assert_array_equal(got["twice"], z * 2)
        np.testing.assert_allclose(got["size"], abs(z), rtol=1e-6)
    wide = np.broadcast_to(np.array([1 + 1j], np.complex64), (1 << 16,))
    assert (f(wide, 3)["twice"] == wide * 3).all()
    held = eqsat.optimize(lambda z, c: z @ c, const=["c"])
    c = np.array([[1, 2j], [3, -1j]])
    np.testing.assert_allclose(held(c, c), c @ c)
    np.testing.assert_allclose(eqsat.optimize(lambda x: x * c)(np.ones(2)), c)


def test_a_trace_is_of_real_numbers() -> None:
    graph = trace(lambda z: z * z, (np.ones((3, 4), np.complex64),), {}).graph
    assert all(node.dtype.name == "float32" for node in graph.nodes())
    assert graph.inputs[0].shape == graph.outputs[0].shape == (3, 4, 2)


def test_views_both_ways() -> None:
    z = numbers(np.random.default_rng(3), (4, 6), np.complex64)
    for part in (z, z.T, z[::2, ::-1], z[0, 0]):
        real = as_real(np.asarray(part))
        assert np.shares_memory(real, z) or not part.shape
        np.testing.assert_array_equal(as_complex(np.ascontiguousarray(real)), part)


def test_an_empty_part_of_a_view() -> None:
    def fn(z: np.ndarray) -> np.ndarray:
        return np.negative((z * z)[0, :, 1:, None]).reshape((0, 8))

    z = numbers(np.random.default_rng(4), (1, 8, 1), np.complex128)
    check(lambda *a: (fn(*a),), lambda *a: (eqsat.optimize(fn)(*a),), z, rtol=1e-12)


def test_python_computes_with_a_complex_number_before_a_float64_scalar() -> None:
    """NumPy's float64 is Python's float as well: ``1j * x`` is a Python number, which takes the type of any array."""

    def before(x: Any, y: Any) -> Any:
        return y + 1j * x.sum()

    def after(x: Any, y: Any) -> Any:
        return y + x.sum() * 1j, y + 1j * x, 1j * y.sum() + y

    x, y = np.arange(3.0), np.ones(3, np.float32)
    assert before(x, y).dtype == np.complex64
    with pytest.raises(eqsat.errors.UnsupportedOpError, match="write the scalar first"):
        eqsat.optimize(before, strict=True, cache=False)(x, y)
    with pytest.warns(eqsat.errors.EqsatWarning, match="Python number"):
        assert eqsat.optimize(before, cache=False)(x, y).dtype == np.complex64
    for got, want in zip(eqsat.optimize(after, strict=True, cache=False)(x, y), after(x, y), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("product", [np.vdot, np.matmul], ids=lambda product: product.__name__)
@pytest.mark.parametrize("special", [np.inf, complex(0, np.inf), complex(np.nan, -np.inf)])
def test_products_of_infinities_are_nobodys_fault(product: Function, special: complex) -> None:
    """Which part of such a sum is NaN, and which infinite, BLAS decides otherwise than the trace."""
    x = np.array([special, 1 - 2j], np.complex64)
    y = np.array([0.5 + 1j, -1 + 3j], np.complex64)
    with np.errstate(all="ignore"):
        got = eqsat.optimize(lambda x, y: product(x, y), strict=True)(x, y)
    assert not np.isfinite(got)


def halved_in_place(z: np.ndarray) -> None:
    z /= 2


@pytest.mark.parametrize("special", [complex(np.nan, 1), complex(1, np.nan), complex(np.inf, 1), complex(1, -np.inf)])
def test_quotients_by_a_number_are_those_of_the_parts(special: complex) -> None:
    """NumPy's, by a complex number, are NaN in a part that is finite here: verification takes neither for a fault."""
    z = np.array([[1 - 2j, 3 - 2j], [special, special]], np.complex64)
    number = complex(z[1, 0].real / 2, z[1, 0].imag / 2)

    def fn(z: Any) -> Any:
        return z / 2, z.mean(axis=1)

    with np.errstate(all="ignore"):
        half, mean = eqsat.optimize(fn, strict=True, cache=False)(z)
        eqsat.optimize(halved_in_place, strict=True, cache=False)(z)
    np.testing.assert_array_equal(as_real(half), as_real(np.array([[0.5 - 1j, 1.5 - 1j], [number] * 2], np.complex64)))
    np.testing.assert_array_equal(as_real(mean), as_real(np.array([2 - 2j, special], np.complex64)))
    np.testing.assert_array_equal(as_real(z), as_real(half))


def test_complex_numbers_that_are_nan_on_one_side_differ() -> None:
    def looks(z: Any) -> Any:
        return z / 2 + (np.nan if type(z) is np.ndarray else 0)

    with pytest.raises(VerificationError):
        eqsat.optimize(looks, strict=True)(np.array([1 + 2j, 3 - 1j]))


def test_an_infinity_of_the_other_sign_is_one() -> None:
    def looks(x: Any) -> Any:
        return x if type(x) is np.ndarray else -x

    with pytest.raises(VerificationError):
        eqsat.optimize(looks, strict=True)(np.array([np.inf, np.inf]))


def test_calls_that_fit_take_the_quick_way() -> None:
    """And those that do not fit exactly, the other: views, orders of bytes, shapes, subclasses."""

    def rotated(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> Any:
        return 1j * x + w, (x * y).real, y.sum() + x

    function = eqsat.optimize(rotated, const=["w"])
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4)) for _ in "ab")
    y = rng.standard_normal((3, 4)).astype(np.float32)
    wide = np.zeros((3, 8), complex)
    wide[:, ::2] = x
    for array in (
        x,
        x,
        x[::-1],
        np.asfortranarray(x),
        wide[:, ::2],
        x.astype(">c16"),
        x[:1],
        np.broadcast_to(x[0], x.shape),
    ):
        for _ in range(2):
            for a, b in zip(function(array, y, w), rotated(array, y, w), strict=True):
                assert (a.dtype, a.shape) == (np.asarray(b).dtype.newbyteorder("="), b.shape)
                np.testing.assert_allclose(a, b, rtol=1e-6)
    program = function.compile(x, y, w)
    assert program.direct is not None and program.direct((x, y, w)) is not None
    for other in (x[::-1], x.astype(">c16"), x[:1], x.real, x.astype(np.complex64), x.tolist()):
        assert program.direct((other, y, w)) is None
    assert program.direct((x, y, w.copy())) is None and program.direct((x, y)) is None


def test_complex_arguments_that_are_changed() -> None:
    def turned(x: np.ndarray, y: np.ndarray) -> Any:
        x *= 1j
        return x + y

    function = eqsat.optimize(turned)
    for number in range(3):
        x, y = np.arange(6.0).reshape(2, 3) + number * 1j, np.ones((2, 3), np.complex128)
        other = x.copy()
        np.testing.assert_array_equal(function(x, y), turned(other, y))
        np.testing.assert_array_equal(x, other)
    np.testing.assert_array_equal(function(x, x), turned(other, other))

"""Corners of NumPy's functions: options, odd shapes, and what NumPy refuses."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import (
    BoundsError,
    ConcretizationError,
    EqsatError,
    ShapeError,
    UnsupportedDTypeError,
    UnsupportedOpError,
)
from eqsat.frontends.trace import run_by_reference
from tests.test_trace import check

M = np.arange(6, dtype="f4").reshape(2, 3) - 2
CUBE = np.arange(18, dtype="f4").reshape(2, 3, 3)
SQUARE = np.arange(9, dtype="f8").reshape(3, 3) - 3
INTS = np.arange(-2, 4, dtype="i4")
BOOLS = np.array([True, False, True])
ROW = np.arange(3, dtype="f4")


def run(fn: Callable[..., Any], *args: Any) -> Any:
    return run_by_reference(fn, args, {})


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_logarithms_of_powers_are_whole(dtype: str) -> None:
    tens, twos = 10.0 ** np.arange(-30, 31).astype(dtype), 2.0 ** np.arange(-60, 61).astype(dtype)
    assert np.array_equal(run(np.log10, tens), np.arange(-30, 31))
    assert np.array_equal(run(np.log2, twos), np.arange(-60, 61))
    rest = np.array([0, -0.0, -1, np.inf, np.nan, 1, 3, 999, 1001, 1e-3], dtype)
    check(lambda x: (np.log2(x), np.log10(x)), rest, scale=2)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_cube_roots_over_the_whole_range(dtype: str) -> None:
    limits = np.finfo(dtype)
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e30, 1000, -27, limits.max, limits.tiny], dtype)
    got, want = run(np.cbrt, x), np.cbrt(x)
    np.testing.assert_allclose(got, want, rtol=2 * limits.eps, atol=0)
    assert np.array_equal(np.signbit(got[:2]), np.signbit(want[:2]))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.divmod(x, 2, out=(x.copy(), x.copy())),
        lambda x: (lambda y: (np.divmod(x, 2, out=(y, None)), y))(x.copy()),
        lambda x: (lambda y: (np.multiply(x[0], 2, out=y), y))(x.copy()),
        lambda x: (lambda y: (np.matmul(x, np.eye(3, dtype="f4"), out=y), y))(x.copy()),
        lambda x: np.matmul(x, x.T, dtype="f8"),
        lambda x: np.matmul(x, x.T, dtype="i4"),
        lambda x: np.vecdot(x, x, axis=0),
        lambda x: np.add(x, x, nonsense=1),
    ],
)
def test_options_of_ufuncs(fn: Callable[..., Any]) -> None:
    check(fn, M)


@pytest.mark.parametrize("option", [{"axes": [(0, 1), (1, 0), (0, 1)]}, {"axis": 0}, {"keepdims": True}])
def test_options_of_products_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedOpError, match="matmul"):
        run(lambda x: np.matmul(x, x.T, **option), M)


def test_products_stretch_no_axis_of_theirs() -> None:
    for a, b in (((1,), (3,)), ((2, 1), (2, 3)), ((2, 3), (2, 3)), ((), (3,)), ((4, 1, 3), (2, 3))):
        check(np.vecdot, np.ones(a, "f4"), np.ones(b, "f4"))
    for name, a, b in (("matvec", (2, 3), (1,)), ("vecmat", (1,), (2, 3)), ("matvec", (2, 3), (4, 3))):
        if hasattr(np, name):
            check(getattr(np, name), np.ones(a, "f4"), np.ones(b, "f4"))


@pytest.mark.parametrize("fn", [np.dot, np.inner, np.outer, np.kron, np.multiply])
@pytest.mark.parametrize("number", [2, 2.5, np.inf, np.float64(2), np.int32(2)])
def test_products_with_a_number(fn: Callable[..., Any], number: Any) -> None:
    for x in (M, INTS):
        check(lambda v: fn(v, number), x)
        check(lambda v: fn(number, v), x)


@pytest.mark.parametrize("axes", [3, 2, 1, 0, -1, ([0, 0], [0, 1]), ([0, 1], [1, 0]), ([1], [0, 1])])
def test_axes_of_tensordot(axes: Any) -> None:
    check(lambda a, b: np.tensordot(a, b, axes=axes), SQUARE, np.ones((3, 3, 3)))
    check(lambda a, b: np.tensordot(a, b, axes=axes), SQUARE, SQUARE)


@pytest.mark.parametrize("x", [CUBE, SQUARE, M, ROW], ids=["cube", "square", "matrix", "row"])
def test_linear_algebra_of_last_axes(x: np.ndarray) -> None:
    check(np.linalg.diagonal, x)
    check(lambda x: np.linalg.diagonal(x, offset=1), x)
    check(np.linalg.trace, x)
    check(lambda x: np.linalg.matrix_power(x, 2), x)
    check(lambda x: np.linalg.matrix_power(x, 1), x)
    check(lambda x: np.linalg.outer(x, x), x)
    check(lambda x: np.linalg.multi_dot([x, x, x]), x)
    check(np.linalg.matrix_norm, x)


@pytest.mark.parametrize("order", [None, "fro", 2, 1, 0, 3, 0.5, -1, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), (0, 1, 2)])
def test_norms(order: Any, axis: Any) -> None:
    for x in (CUBE, SQUARE, ROW + 1, INTS + 5, np.zeros((0, 2))):
        try:
            check(lambda x: np.linalg.norm(x, order, axis=axis, keepdims=True), x, scale=4)
        except UnsupportedOpError:
            assert len(axis or x.shape) == 2
        check(lambda x: np.linalg.vector_norm(x, ord=2 if order is None else order, axis=axis), x, scale=4)


def test_clip_promotes_once() -> None:
    check(lambda b, i: (np.clip(b, 0, i), np.clip(b, i, 1)), BOOLS, INTS[:3])
    check(lambda b, x: np.clip(b, 0, x), BOOLS, ROW)


@pytest.mark.parametrize(
    ("low", "high"), [(-(2**70), 2**70), (0, 2**40), (-(2**31), 2**31 - 1), (0.5, 2), (2**40, None), (None, -(2**40))]
)
def test_bounds_of_clip_beyond_the_type(low: Any, high: Any) -> None:
    try:
        check(lambda x: x.clip(low, high), INTS)
    except OverflowError:
        with pytest.raises(OverflowError):
            run(lambda x: x.clip(low, high), INTS)


def test_joins_cast_as_numpy_does() -> None:
    check(lambda x: np.concatenate([x, x], dtype="i4"), ROW)
    check(lambda x: np.concatenate([x, x], dtype="i4", casting="unsafe"), ROW)
    check(lambda x: np.stack([x, x], dtype="f8"), ROW)
    check(lambda x: np.vstack([x, x], dtype="i4"), ROW)
    check(lambda x: np.hstack([x, x], dtype="f8"), ROW)
    check(lambda x: np.concatenate([x, 3, 2.5], axis=None), ROW)
    check(lambda x: np.append(x, 2.5), ROW)
    check(lambda x: np.einsum("i,i", x, x, dtype="i4"), ROW)
    check(lambda x: np.einsum("i,->i", x, 2.0), ROW)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.meshgrid(x, x, indexing="zz"),
        lambda x: np.diff(x, -1),
        lambda x: np.vsplit(x, 3),
        lambda x: np.pad(x, 1.5),
        lambda x: np.pad(x, 1, stat_length=2),
        lambda x: np.reshape(x, -1, order="K"),
        lambda x: np.tril(x[0]),
        lambda x: np.einsum("é", x),
    ],
)
def test_what_numpy_refuses(fn: Callable[..., Any]) -> None:
    check(fn, ROW)


def test_comparison_with_none_is_of_elements() -> None:
    check(lambda x: (x == None, x != None, x == None), M)  # noqa: E711


def test_rounding_bools_is_in_half_precision() -> None:
    check(np.round, BOOLS)


@pytest.mark.parametrize(
    "index",
    [
        (..., np.array([True, False, True])),
        (..., np.array([True, False])),
        (np.array([[True, False, True], [False] * 3]), np.array([True, False, False])),
        (np.array([[True, False, True], [False] * 3]), np.array([True, False])),
        (None, np.array([True, False]), ..., [True, False, False]),
        (0, [True, False, False]),
        (0, [True, False]),
        (np.zeros((2, 3, 3, 1), bool),),
        (..., np.ones((3, 3), bool)),
        (..., np.ones((2, 3), bool), 0),
        (..., np.ones((3, 2), bool), 0),
    ],
)
def test_known_masks_fit_their_axes(index: Any) -> None:
    check(lambda x: x[index], CUBE)


def test_a_mask_of_the_wrong_size_is_named() -> None:
    with pytest.raises(BoundsError, match=r"\(2,\)"):
        run(lambda x: x[..., np.array([True, False])], CUBE)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "count_nonzero", "mean", "var"])
@pytest.mark.parametrize("axis", [0, -1, 1, None, (), (0,)])
def test_axes_of_a_number(name: str, axis: Any) -> None:
    check(lambda x: getattr(np, name)(x, axis=axis), np.array(3.0, "f4"))


def test_initial_values_of_bools() -> None:
    check(lambda x: np.sum(x, dtype=bool, initial=True), np.zeros(3))
    check(lambda x: np.prod(x, dtype=bool, initial=False, axis=0), np.ones((2, 3)))


@pytest.mark.parametrize("outside", ["a", np.ones(2), [0]])
def test_values_outside_are_numbers(outside: Any) -> None:
    import eqsat

    with pytest.raises(ShapeError, match="outside"):
        run(lambda x: eqsat.compute((3,), lambda i: x[i - 1], outside=outside), ROW)


def test_values_outside_are_of_the_arrays_type() -> None:
    import eqsat

    for outside in (1.5, np.nan, np.inf):
        with pytest.raises(UnsupportedDTypeError, match="int32"):
            run(lambda x, outside=outside: eqsat.compute((3,), lambda i: x[i - 1], outside=outside), INTS)
    assert run(lambda x: eqsat.compute((3,), lambda i: x[i - 1], outside=7.0), INTS).tolist() == [7, -2, -1]


def test_axes_to_reduce_over_are_axes() -> None:
    import eqsat

    with pytest.raises(ShapeError, match="one of the result's"):
        run(lambda x: eqsat.compute((3,), lambda i: eqsat.sum(x[i], over=i)), ROW)
    with pytest.raises(EqsatError, match=r"eqsat\.axis"):
        run(lambda x: eqsat.compute((3,), lambda i: eqsat.sum(x[i], over=3)), ROW)  # type: ignore[arg-type]
    with pytest.raises(EqsatError, match="math"):
        run(lambda x: eqsat.compute((3,), lambda i: float(x[i])), ROW)


@given(st.lists(st.integers(1, 4), min_size=4, max_size=7), st.booleans(), st.booleans(), st.integers(0, 1000))
@settings(deadline=None)
def test_a_chain_of_products_overflows_where_numpys_does(sizes: list[int], row: bool, column: bool, seed: int) -> None:
    """NumPy chooses the order by the shapes, and the order decides over infinities and NaN."""
    big = np.finfo(np.float64).max
    few = np.array([1.0, -1.5, 0.0, big, -big, np.inf, 0.5])
    rng = np.random.default_rng(seed)
    factors = [rng.choice(few, shape, p=[0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]) for shape in itertools.pairwise(sizes)]
    if row:
        factors[0] = factors[0][0]
    if column:
        factors[-1] = factors[-1][:, 0]
    with np.errstate(all="ignore"):
        want = np.asarray(np.linalg.multi_dot(factors))
        got = np.asarray(run(lambda *parts: np.linalg.multi_dot(parts), *factors))
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    fine = np.isfinite(want)
    np.testing.assert_allclose(got[fine], want[fine], rtol=1e-12)


def test_pythons_round_of_a_scalar() -> None:
    assert run(lambda x: round(x, 1), np.float32(2.345)) == round(np.float32(2.345), 1)
    assert run(lambda x: round(x.sum(), -1), M * 10) == 30
    with pytest.raises(ConcretizationError, match="int value"):
        run(lambda x: round(x), np.float64(2.5))
    with pytest.raises(TypeError, match=r"np\.round"):
        run(lambda x: round(x, 1), ROW)


@pytest.mark.parametrize(
    "initial", [0, 0.0, -0.0, np.inf, -np.inf, np.nan, 2.5, np.float32(0), np.array(0.0), 10**30, False]
)
def test_a_product_begins_with_its_initial_value(initial: Any) -> None:
    """Which is 0 whatever overflows behind it."""
    x = 1e5 * (np.arange(30, dtype="f4").reshape(3, 10) - 9.5)

    def fn(x: Any) -> Any:
        products = (
            x.prod(initial=initial),
            np.multiply.reduce(x, axis=0, initial=initial),
            x[1:].prod(0, initial=initial),
        )
        return *products, x[:0].prod(axis=0, initial=initial), x[:, :0].prod(initial=initial)

    with np.errstate(all="ignore"):
        for got, want in zip(run(fn, x), fn(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
            assert np.array_equal(np.signbit(got), np.signbit(want)) or np.isnan(initial)


def test_a_chain_of_two_is_a_dot() -> None:
    for a in (np.array(2.0), ROW, M.T):
        check(lambda a, b: np.linalg.multi_dot([a, b]), a, M)
        check(lambda a, b: np.linalg.multi_dot([b, a]), a, M)


def test_points_between_are_of_the_type_of_the_ends() -> None:
    for kind in ("f2", "f4", "f8", "i4", "c8"):
        x = np.array([1, 2, 4], kind)
        for fn in (
            lambda x: np.linspace(x, 9, 3),
            lambda x: np.linspace(0.0, x[1], 3),
            lambda x: np.linspace(x, np.float64(9), 4, axis=1),
            lambda x: np.linspace(x, x[::-1], 5, endpoint=False, retstep=True),
        ):
            for got, want in zip(run(fn, x), fn(x), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-2 if kind == "f2" else 1e-6)
                assert got.dtype == want.dtype


def lists(x: Any, y: Any) -> Any:
    a, b = x[0], y[1]
    return (
        np.sum([x, y], axis=0), np.mean((x, y)), np.max([a, b, 1]), np.median([x, y], axis=0), np.argmax([a, b]),
        np.where([a > 0, True], 1, [b, 2]), np.dot([a, b], [1, 2]), np.diag([a, 1, b]), np.outer([a, 1], (b, 2)),
        np.sqrt([[a, b], (1, 4)]), np.hypot([a, b], 3), np.maximum(x[:2], [a, b]), np.linalg.norm([a, b]),
        np.minimum.reduce([x, y]), np.logical_and.reduce((x > 0, y > 0)), np.add.accumulate([a, b]),
        np.multiply.outer([a, b], x), np.transpose([x, y]), np.stack([x, y]).sum(),
        np.average([a, b], weights=[b, 1]), np.clip(x, a_min=[a, 1, b], a_max=9), np.mean(deque([a, b])),
        np.add(x[:2], [a, b], out=np.zeros(2)), np.where(np.array_equal([a, b], [a, b]), a, b), np.append(x, [a, b]),
        np.stack([[a, b], [b, 1]]), np.concatenate(([a, b], [1])), np.vstack([[a, b], x[:2]]), np.vander([a, b]),
        np.column_stack(([a, b], [b, 1])), *np.meshgrid([a, b], x), np.linspace([a, b], 9, 3), x * np.size([x, y]),
        *np.divmod.outer([a, b], x), np.sum(*[[a, b]]), np.linalg.norm(*[[a, b]]), np.maximum.reduce(*[[x, y]]),
    )  # fmt: skip


def test_lists_of_traced_arrays_are_arrays() -> None:
    for kind in ("f4", "f8", "i4"):
        x, y = np.arange(1, 4).astype(kind), np.array([4, 2, 6], kind)
        for got, want in zip(run(lists, x, y), lists(x, y), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
            assert got.dtype == want.dtype and got.shape == want.shape
    with pytest.raises(ValueError):
        run(lambda x: np.sum([x, x[:2]]), ROW)


def operands(x: Any, i: Any) -> Any:
    a, b = x[0], x[1]
    y = x.copy()
    y[[i[0], i[1]]] = [a, 7]
    y[[i[1], 0]] += 1
    return (
        np.add(x[:2], [a, b]), x[:2] - [a, b], [a, b] - x[:2], (a, 2) * x[:2], x[:2] ** [b, 2], x[:2] > [b, 1],
        [a, b] - b, a - [a, b],
        [[a, b], [b, a]] @ x[:2], x[:2] @ [a, b], x[:2].astype("f4") * [a, 1], np.array([2, 3]) * [a, b],
        x[[i[0], i[1]]], x[[i[0], 0]], x[[[i[0], 1], (0, i[1])]], np.outer(x, x)[[i[0], i[1]], (0, i[0])], y,
    )  # fmt: skip


def test_lists_of_traced_arrays_are_operands_and_indices() -> None:
    i = np.array([2, 1])
    for kind in ("f4", "f8", "i4"):
        x = np.arange(1, 4).astype(kind)
        for got, want in zip(run(operands, x, i), operands(x, i), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
            assert got.dtype == want.dtype and got.shape == want.shape
    for wrong in (lambda x: x - [x[0], x[1]], lambda x: x[:2] - [x[0], x[:2]]):
        with pytest.raises(ValueError):
            run(wrong, ROW)
    for repeated in (lambda x: [x[0], 2.0] * x[1], lambda x: x[1] * [1.0, 2.0], lambda x: x.sum() * (1.0, x[0])):
        with pytest.raises(TypeError):
            repeated(ROW)
        with pytest.raises(UnsupportedOpError, match="repeats"):
            run(repeated, ROW)


def test_functions_that_are_not_called_are_themselves() -> None:
    given = {np.sum: 2.0, np.add: 3.0, np.linalg.norm: 4.0}

    def chosen(x: Any) -> Any:
        function, ufunc, norm = np.sum, np.add, np.linalg.norm
        assert isinstance(np.add, np.ufunc) and [np.sum, np.add] == [function, ufunc]
        return x * given[function] * given[ufunc] * given[norm]

    assert np.array_equal(run(chosen, ROW), 24 * ROW)

    def beside(x: Any) -> Any:
        def same(f: Any) -> Any:
            return f

        kept, module, rest = [np.add, same(x)], np, [x, [0, 2]]
        from numpy import add, maximum, minimum  # each at another place among the names of the code
        from numpy import sum as total

        assert kept[0] is np.add is add is same(np.add) is same(module.add) is (module.add, same(x))[0]
        assert isinstance(maximum, np.ufunc) and isinstance(minimum, np.ufunc) and total is np.sum
        y = np.zeros(3)
        np.add.at(*[y, [0, 0, 1], x])
        return y, np.add.reduceat(*rest), (module.sum, same(x))[0](x)

    for got, want in zip(run(beside, ROW), beside(ROW), strict=True):
        assert np.array_equal(got, want)


def test_functions_that_the_user_put_into_numpy_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    real_sum, real_zeros = np.sum, np.zeros
    monkeypatch.setattr(np, "sum", lambda x: real_sum(x) + 100)
    monkeypatch.setattr(np, "zeros", lambda n: real_zeros(n) + 100)
    assert np.array_equal(run(lambda x: np.sum(x) + np.zeros(3), ROW), real_sum(ROW) + 200 + real_zeros(3))


WHOLE = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def extremes(dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.array([limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 7], dtype)


@pytest.mark.parametrize("dtype", (*WHOLE, "?"))
@np.errstate(all="ignore")
def test_fmod_and_closeness_at_the_ends_of_a_type(dtype: str) -> None:
    """The least integer has no magnitude: fmod(-128, 3) was -1, and -128 as near to 0 as can be."""
    x, y = np.meshgrid(*[extremes(dtype) if dtype != "?" else BOOLS] * 2)
    functions: tuple[Callable[..., Any], ...] = (
        np.fmod, np.isclose, lambda x, y: np.isclose(x, y, 0, 1), lambda x, y: np.isclose(x, 3),
        lambda x, y: np.isclose(3, y), lambda x, y: np.isclose(x, True), lambda x, y: np.fmod(x, y.dtype.type(1)),
    )  # fmt: skip
    for fn in functions:
        expected = fn(x, y)
        found = run(fn, x, y)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert run(np.allclose, x[:1, :1], y[:1, :1]) == np.allclose(x[:1, :1], y[:1, :1])


@pytest.mark.parametrize("dtype", (*WHOLE, "?", "f2", "f4", "f8"))
@pytest.mark.parametrize("of_weights", ["same", "i1", "u4", "f2", "f4", "f8"])
def test_weighted_means_do_not_wrap_around(dtype: str, of_weights: str) -> None:
    """Products are of NumPy's type for both: unsigned bytes wrapped around, 1.4 for 60.9."""
    x = extremes(dtype)[1:4] if dtype in WHOLE else np.array([1, 0, 1], dtype)
    weights = np.array([100, 3, 120]).astype(dtype if of_weights == "same" else of_weights)

    def chosen(x: Any, w: Any) -> Any:
        return np.average(x[w > 5], weights=w[w > 5])

    for fn in (lambda x, w: np.average(x, weights=w, returned=True), chosen):
        if fn is chosen and weights.dtype == bool:
            continue  # none is chosen
        for found, expected in zip(np.atleast_1d(run(fn, x, weights)), np.atleast_1d(fn(x, weights)), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=2e-3 if expected.dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("power", [-0.5, -1.5, -2.5, -7.5])
def test_negative_powers_of_minus_infinity_are_0(power: float) -> None:
    """There is no root of it, and none is asked for."""
    x = np.array([-np.inf, np.inf, 4.0, 0.25])
    fast = eqsat.optimize(lambda x: x**power, strict=True, check_speed=False)
    np.testing.assert_allclose(fast(np.ones(4)), 1)
    np.testing.assert_allclose(fast(x), x**power, rtol=1e-12)


def test_what_is_not_negative_is_not_asked_whether_it_is_infinite() -> None:
    """Forces between bodies take the power of a sum of squares."""
    fast = eqsat.optimize(lambda x, y: (x * x + np.square(y) + 0.1) ** -1.5, strict=True, check_speed=False)
    x = np.linspace(-2, 2, 64)
    np.testing.assert_allclose(fast(x, x[::-1].copy()), (2 * np.square(x) + 0.1) ** -1.5, rtol=1e-12)
    assert "where" not in fast.source(x, x)
    assert "where" in eqsat.optimize(lambda x: x**-1.5, strict=True, check_speed=False).source(x)


def test_unsigned_integers_of_all_64_bits_choose_rows() -> None:
    """Values to verify with are drawn between the caller's, which int64 does not hold."""
    table, hashes = np.arange(10.0), np.array([2**63 + 5, 17, 2**64 - 1], np.uint64)
    fast = eqsat.optimize(lambda t, h: t[h % np.uint64(10)], strict=True, check_speed=False)
    np.testing.assert_array_equal(fast(table, hashes), table[hashes % np.uint64(10)])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4", "i8"])
def test_sums_of_products_in_index_notation_wrap_around_as_products_do(dtype: str) -> None:
    """They were of 64 bits where all that is summed is one product, and only there."""
    x = extremes(dtype)

    def total(x: Any, twice: Callable[[Any], Any]) -> Any:
        k = eqsat.axis(x.shape[0])
        return eqsat.compute((), lambda: eqsat.sum(twice(x[k] * x[k]), over=k))

    with np.errstate(over="ignore"):
        expected = np.sum(x * x)
        for twice in (lambda v: v, lambda v: -(0 - v)):
            found = run(lambda x, twice=twice: total(x, twice), x)
            assert found.dtype == expected.dtype and found == expected

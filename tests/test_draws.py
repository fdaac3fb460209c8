"""Arguments that verification draws are valid where the caller's are, and show what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import rules
from eqsat.errors import VerificationError
from eqsat.frontends.trace import trace
from eqsat.ir.views import transpose
from eqsat.rules import op, rewrite, tensors
from eqsat.verify import draws
from eqsat.verify.draws import Draws

a, b = tensors("a b")


def wrong(left: Any, right: Any, **options: Any) -> Any:
    return rewrite(left, right, id="wrong.elsewhere", **options)


rng = np.random.default_rng(0)
QUICK: Any = {"cache": False, "backend": "numpy"}  # nothing here depends on the kernels


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Any:
    return rng.uniform(0.5, 5, shape).astype(np.float32)


# Valid

VALID: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a float as index": (lambda t, u: t[np.floor(u * 10).astype(np.int64)] + 1, (normal(10), rng.random(50))),
    "a sum as index": (lambda x, i, j: x[i + j] * 2, (normal(10), np.arange(5), np.arange(5)[::-1] + 5)),
    "a difference as index": (lambda x, i, j: x[i - j] * 2, (normal(3), np.array([7, 9]), np.array([5, 9]))),
    "one index beside another": (
        lambda x, i, w: x[i * w.shape[0] + w] * 2,
        (normal(16), np.arange(4), np.array([3, 0, 1, 2])),
    ),
    "an index into an index": (lambda t, i, x: x[t[i]] + 1, (np.array([2, 0, 1]), np.array([0, 2]), normal(3))),
    "a difference as exponent": (lambda p, q: 2 ** (q - p), (np.arange(5), np.arange(5) * 2)),
    "an exponent": (lambda p, q: p**q, (np.arange(5), np.arange(5))),
    "a broadcast index": (lambda x, i, j: x[i[:, None] * 4 + j], (normal(12), np.arange(3), np.arange(4))),
    "ids and a mask": (lambda t, i, m: np.where(m[:, None], t[i], 0), (normal(9, 2), np.arange(9), np.arange(9) > 4)),
}


@pytest.mark.parametrize("name", VALID)
def test_valid_calls_do_not_raise(name: str) -> None:
    fn, args = VALID[name]
    np.testing.assert_allclose(eqsat.optimize(fn, **QUICK)(*args), fn(*args), rtol=1e-5, atol=1e-6)


def test_the_callers_own_bad_index_is_the_callers_error() -> None:
    f = eqsat.optimize(lambda x, i, j: x[i + j], **QUICK)
    with pytest.raises(IndexError, match="11 is out of bounds"):
        f(normal(10), np.array([0, 5]), np.array([1, 6]))


def drawn(fn: Callable[..., Any], *args: Any) -> Draws:
    graph = trace(fn, args).graph
    return Draws(graph, graph.inputs, [np.asarray(a) for a in args])


def test_what_reaches_an_index_stays_nearer_and_nearer() -> None:
    i, j = np.arange(20), np.arange(20)[::-1].copy()
    made = drawn(lambda x, i, j: x[i + j] + 1, normal(20), i, j)
    assert [made.graph.names[n] for n, node in enumerate(made.free) if node in made.indices] == ["i", "j"]
    x, p, q = made.draw(draws.NORMAL)
    assert p.min() >= 0 and p.max() <= 19 and (p + q > 19).any()
    assert made.nearer()
    x, p, q = made.draw(draws.NORMAL)
    assert (p + q == 19).all() and (p != i).any()  # in another order, together
    assert made.nearer()
    assert (made.draw(draws.NORMAL)[1] == i).all()
    assert not made.nearer()
    assert not np.array_equal(x, made.examples[0])


@pytest.mark.parametrize(
    "kind", [draws.NORMAL, draws.POSITIVE, draws.LIKE, *draws.WIDE_KINDS, draws.TIES, draws.NAN, draws.INF, draws.MIXED]
)
def test_draws_have_the_types_asked_for_and_repeat(kind: draws.Kind) -> None:
    shapes = [(7, 3), (), (0, 4), (70_001,)]
    for dtype in (np.float32, np.float64, np.int32, np.int64, bool):
        args = [np.ones(shape, dtype) for shape in shapes]
        made = drawn(lambda *xs: tuple(np.abs(x) for x in xs), *args)
        first, second = made.draw(kind), made.draw(kind)
        for array, again, example in zip(first, second, args, strict=True):
            assert (array.shape, array.dtype) == (example.shape, example.dtype)
            np.testing.assert_array_equal(array, again)
            assert not np.shares_memory(array, example) or not array.size


def test_wide_values_have_both_signs_and_many_magnitudes() -> None:
    made = drawn(lambda x: np.where(x < 37.25, x, 0), normal(2000))
    (values,) = made.draw(draws.WIDE_KINDS[0])
    for low, high in ((1e-6, 1e-3), (1e-3, 1), (1, 1e3), (1e3, 1e6)):
        for sign in (1, -1):
            assert np.count_nonzero((sign * values > low) & (sign * values < high)) > 50
    assert (values == 0).any()
    assert (values == np.float32(37.25)).any()  # a number of the program


@pytest.mark.parametrize("kind", draws.WIDE_KINDS)
def test_wide_values_narrow_from_both_sides(kind: draws.Kind) -> None:
    (values,) = drawn(lambda x: np.where(x < 37.25, x, 0) + 1e-3, normal(20_000)).draw(kind)
    size = np.abs(values[values != 0])
    assert kind.magnitude / 2 < size.max() < 2 * kind.magnitude
    assert 0.5 / kind.magnitude < size.min() < 2 / kind.magnitude
    assert bool((values == 0).any()) == (kind.magnitude >= draws.WITH_ZERO)


# Telling: each of these rules is right on the arguments of the call, or on random normal values.

SHAPE = (8, 8)
UNSOUND: dict[str, tuple[Any, Callable[..., Any], tuple[Any, ...]]] = {
    "NaN on both sides": (wrong(np.log(a), np.sqrt(a)), lambda x: np.log(x).sum(), (positive(40),)),
    "a low bound": (wrong(np.maximum(a, -10.0), a), lambda x: np.maximum(x, -10) * 2, (normal(40),)),
    "a high bound": (wrong(np.minimum(a, 1000.0), a), lambda x: np.minimum(x, 1000) - 1, (normal(40),)),
    "a bound of its own": (wrong(np.minimum(a, 37.5), a), lambda x: np.minimum(x, 37.5) + 1, (normal(10),)),
    "a threshold": (wrong(np.where(a < 1e-3, b, a), a), lambda x: np.where(x < 1e-3, 1, x) * 2, (positive(10),)),
    "NaN lost": (wrong(a * 0, 0, numerics="exact"), lambda x: x * 0.0 + 1, (normal(40),)),
    "NaN of a difference lost": (wrong(a - a, 0), lambda x: np.tanh(x) - np.tanh(x) + 1, (normal(40),)),
    "0/0 lost": (wrong(a / a, 1), lambda x: x / x + 1, (positive(40),)),
    "abs of positive": (wrong(np.abs(a), a), lambda x: np.abs(x) + 1, (positive(40),)),
    "relu of positive": (wrong(np.maximum(a, 0.0), a), lambda x: np.maximum(x, 0) + 1, (positive(40),)),
    "root of a square": (wrong(op("sqrt", op("square", a)), a), lambda x: np.sqrt(x * x) * 3, (positive(40),)),
    "least of two": (wrong(np.minimum(a, b), a), lambda x, y: np.minimum(x, y) * 2, (normal(9), normal(9) + 30)),
    "floor of whole": (wrong(np.floor(a), a), lambda x: np.floor(x) * 2, (np.arange(40.0),)),
    "small angles": (wrong(np.sin(a), a), lambda x: np.sin(x) * 1.5, (normal(40) * 1e-4,)),
    "at zero": (wrong(np.tanh(a), a), lambda x: np.tanh(x) * 2, (np.zeros(9),)),
    "sign at zero": (wrong(-a, a), lambda x: np.tanh(-x) * 2, (np.zeros(9),)),
    "large alone": (wrong(np.expm1(a), np.exp(a)), lambda x: np.expm1(x) * 2, (np.linspace(30, 40, 4000),)),
    "a square matrix": (
        wrong(op("view", a, attrs=transpose(SHAPE, (1, 0))), a),
        lambda x: np.tanh(x.T) * 2,
        (np.ones(SHAPE),),
    ),
    "sorted already": (wrong(op("sort", a, attrs=0), a), lambda x: np.sort(x) + 1, (np.arange(10.0),)),
    "a power of one": (wrong(a**2.5, op("square", a)), lambda x: x**2.5, (np.ones(40),)),
    "neither small nor large": (
        wrong(np.where(a, 5.0, b), b),
        lambda x: np.where((x > 6) & (x < 8), 5, x) * (1 / (x * x * x * x * x * x * x * x)).sum(),
        (np.clip(normal(400), -3, 3),),
    ),
    "whole numbers: abs": (wrong(abs(a), a), lambda x: np.abs(x) + 1, (np.arange(10),)),
    "whole numbers: a bound": (wrong(np.minimum(a, 100), a), lambda x: np.minimum(x, 100) + 1, (np.arange(10),)),
    "whole numbers: the rest": (wrong(op("remainder", a, b), a), lambda x, y: x % y, (np.arange(9), np.full(9, 50))),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_a_rule_that_is_wrong_elsewhere_is_found(name: str) -> None:
    rule, fn, args = UNSOUND[name]
    numerics = "exact" if rule.numerics == "exact" else "reassociates"
    np.testing.assert_allclose(eqsat.optimize(fn, **QUICK, numerics=numerics)(*args), fn(*args), rtol=1e-5)
    rules.add(rule, check=False)
    try:
        with pytest.raises(VerificationError, match="differs from the reference"):
            eqsat.optimize(fn, **QUICK, numerics=numerics)(*args)
    finally:
        rules.remove(rule.id)


def test_an_exact_program_keeps_the_sign_of_zero() -> None:
    rule = rewrite(a + 0.0, a, id="wrong.zero", numerics="exact")
    rules.add(rule, check=False)
    try:
        with pytest.raises(VerificationError, match="zeros of the wrong sign"):
            eqsat.optimize(lambda x: (x + 0.0) * 2, **QUICK, numerics="exact")(normal(40))
        eqsat.optimize(lambda x: (x + 0.0) * 2, **QUICK)(normal(40))  # otherwise free to
    finally:
        rules.remove(rule.id)


FREE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "log of exp": (lambda x: np.log(np.exp(x)), (normal(40) * 300,)),
    "a product of many": (lambda x: x**9 / (x * x * x), (normal(40),)),
    "softmax of infinities": (lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(), (np.array([0.0, -np.inf]),)),
    "cast of anything": (lambda x: (x * 1e5).astype(np.int32), (normal(40),)),
    "quotients": (lambda x, y: x / y + y / x, (normal(40), normal(40))),
    "a chain of products": (lambda x, y, z: (x @ y) @ z, (normal(40, 30), normal(30, 50), normal(50, 2))),
    "a mask of infinity": (lambda x: np.exp(np.where(x > 0, x, -np.inf)).sum(), (normal(40),)),
    "sum of infinities": (lambda x, y: x.sum() + y.sum() - x.sum(), (np.array([np.inf, 1.0]), normal(3))),
}


@pytest.mark.parametrize("name", FREE)
def test_what_the_order_of_evaluation_may_change_is_no_error(name: str) -> None:
    fn, args = FREE[name]
    eqsat.optimize(fn, **QUICK)(*args)

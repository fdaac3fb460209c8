"""Divisions become products with reciprocals only where these exist; the smallest numbers and signed zeros are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import rules
from eqsat.egraph.saturate import saturate
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.ir.types import float32, float64, int32
from eqsat.rules.examples import Maker

TINY = np.array([1e-40, 1e-45, 3e38, 1.0], np.float32)

QUOTIENTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "known": (lambda x, b: x / b, {"const": "b"}),
    "captured": (lambda x, b: x / TINY, {}),
    "repeated": (lambda x, b: x / b, {}),
    "by row": (lambda x, b: x / b[:, None], {}),
    "by a root": (lambda x, b: x / np.sqrt(b), {}),
    "by a known root": (lambda x, b: x / np.sqrt(b), {"const": "b"}),
    "by a row's sum": (lambda x, b: x / (x * b).sum(axis=1, keepdims=True), {}),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_tiny_divisor_gives_numpys_quotient(name: str) -> None:
    fn, options = QUOTIENTS[name]
    x = np.full((4, 4), 1e-39, np.float32) * np.arange(4, dtype=np.float32)
    with np.errstate(all="ignore"):
        want = fn(x, TINY)
    np.testing.assert_allclose(eqsat.optimize(fn, threads=1, **options)(x, TINY), want, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [-0.5, -1, -2])
def test_negative_powers_of_zeros(dtype: type, exponent: float) -> None:
    x = np.array([-0.0, 0.0, 4.0, -4.0, np.inf], dtype)
    with np.errstate(all="ignore"):
        want = x**exponent
    np.testing.assert_allclose(eqsat.optimize(lambda x: x**exponent, threads=1)(x), want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_expm1_of_the_smallest_numbers(dtype: type) -> None:
    least = np.finfo(dtype).smallest_subnormal
    tiny = np.finfo(dtype).tiny
    x = np.array(
        [least, -least, 3 * least, -5 * least, tiny, -tiny, 7 * tiny, 0.0, -0.0, 1e-30, 1e-9, -1e-7, 1e-5], dtype
    )
    found = eqsat.optimize(lambda x: np.expm1(x), threads=1)(x)
    np.testing.assert_array_max_ulp(found, np.expm1(x), 2)
    assert (np.signbit(found) == np.signbit(x)).all()


def _row(mk: Maker) -> tuple[Node, Node]:
    return mk.tensor(4, 8, dtype=float32), mk.tensor(4, 1, dtype=float32)


def _number(value: float, like: Node) -> Node:
    return build.scalar(value, like)


def _softmax_sum(x: Node) -> Node:
    e = call("exp", call("sub", x, build.reduce("reduce_max", x, (1,), keepdims=True)))
    return build.reduce("reduce_sum", e, (1,), keepdims=True)


DIVISORS: dict[str, tuple[Callable[[Node, Node], Node], bool]] = {
    "anything": (lambda x, r: r, False),
    "a root": (lambda x, r: call("sqrt", r), True),
    "1 + a square": (lambda x, r: call("add", _number(1, r), call("square", r)), True),
    "1 - a square": (lambda x, r: call("sub", _number(1, r), call("square", r)), False),
    "1 + anything": (lambda x, r: call("add", _number(1, r), r), False),
    "a tiny number + a square": (lambda x, r: call("add", _number(1e-38, r), call("square", r)), False),
    "at least a number": (lambda x, r: call("maximum", r, _number(1e-9, r)), True),
    "at least a tiny number": (lambda x, r: call("maximum", r, _number(1e-38, r)), False),
    "at most a number": (lambda x, r: call("minimum", r, _number(1, r)), False),
    "a softmax's sum": (lambda x, r: _softmax_sum(x), True),
    "a sum of exponentials": (lambda x, r: build.reduce("reduce_sum", call("exp", x), (1,), keepdims=True), False),
    "integers": (lambda x, r: build.cast(build.cast(r, int32), float32), True),
    "doubles": (lambda x, r: build.cast(build.cast(r, float64), float32), False),
    "known integers": (lambda x, r: build.cast(build.const(np.array([[1], [2], [-3], [0]])), float32), True),
    "known numbers": (lambda x, r: build.const(np.array([[1], [2], [-3], [0]], np.float32)), True),
    "known numbers, one tiny": (lambda x, r: build.const(np.array([[1], [2], [-3], [1e-40]], np.float32)), False),
}


@pytest.mark.parametrize("name", DIVISORS)
def test_one_division_per_row_where_its_reciprocal_exists(name: str) -> None:
    divisor, exists = DIVISORS[name]
    x, row = _row(Maker(0))
    graph = saturate([call("div", x, divisor(x, row))], rules=[rules.get("div_repeated")])
    assert bool(graph.report.rules["div_repeated"].fired) == exists

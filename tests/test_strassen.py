"""Strassen's algorithm: its coefficients, its rule's class, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import nn
from eqsat.egraph.check import check_rule
from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.ir.spec import make_spec
from eqsat.ir.types import float32, float64
from eqsat.rules.examples import Maker
from eqsat_rules import strassen
from tests.sweeps import a_part

RNG = np.random.default_rng(0)
EPS = float(np.finfo(np.float32).eps)
QUICK: dict[str, Any] = {"threads": 1, "check_speed": False, "strict": True}
LOOSE: dict[str, Any] = {**QUICK, "numerics": "approximates"}


def test_coefficients_are_those_of_a_product() -> None:
    first, second, result = (np.array(c) for c in (strassen.FIRST, strassen.SECOND, strassen.RESULT))
    found = np.einsum("pil,pab,pcd->ilabcd", result, first, second)
    one = np.eye(2, dtype=int)
    np.testing.assert_array_equal(found, np.einsum("ia,bc,ld->ilabcd", one, one, one))


@pytest.mark.parametrize("name", ["FIRST", "SECOND", "RESULT"])
def test_a_wrong_coefficient_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = np.array(getattr(strassen, name))
    wrong[2] = -wrong[2]
    monkeypatch.setattr(strassen, name, wrong)
    assert check_rule(replace(strassen.strassen, id="wrong.strassen"), enough=4).counterexample is not None


def test_it_is_not_taken_for_another_order_of_sums() -> None:
    """A NaN spreads to a row that does not have it."""
    wrong = replace(strassen.strassen, id="wrong.strassen", numerics="reassociates")
    found = check_rule(wrong, enough=6).counterexample
    assert found is not None and found.looser == "approximates"


def any_product(mk: Maker) -> Node:
    """Of two or three axes of rows, columns and summed ones, apart or not, in any order, that are even or odd."""
    choice, shuffled = mk.random.choice, mk.random.sample
    sizes = {
        "m": choice((1, 2, 3, 7)),
        "h": choice((1, 2, 5)),
        "k": choice((64, 69)),
        "j": 4,
        "n": 150,
        "l": choice((2, 3)),
    }
    rows, summed, cols = choice(("m", "mh")), choice(("k", "kj", "kj")), choice(("n", "nl"))
    factors = rows + summed, summed + cols
    a, b, out = ([*shuffled(axes, len(axes))] for axes in (*factors, rows + cols))
    dtype = choice((float32, float64))
    first = mk.tensor(*(sizes[x] for x in a), dtype=dtype)
    second = mk.known(*(sizes[x] for x in b), dtype=dtype)
    return build.contract(make_spec(a, b, out), first, second)


def test_any_product() -> None:
    found = check_rule(replace(strassen.strassen, example=any_product), enough=a_part(60))
    assert found.counterexample is None and found.fired >= a_part(60) // 6


def used(optimized: Any, *args: np.ndarray) -> bool:
    """Whether the rule is among those of the program that was chosen."""
    return "strassen ×" in str(optimized.explain(*args))


def bound(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What the guide says of the errors of ``x @ w``, element by element."""
    k = x.shape[-1]
    return 6 * (k / 2 + 5) * EPS * k * largest(np.abs(x).max(1))[:, None] * largest(np.abs(w).max(0))


def largest(sizes: np.ndarray) -> np.ndarray:
    """Of each position and the one at its place in the other half."""
    half = -(-len(sizes) // 2)
    both = np.pad(sizes.astype(np.float64), (0, 2 * half - len(sizes))).reshape(2, half).max(0)
    return np.tile(both, 2)[: len(sizes)]


@pytest.mark.parametrize("rows", [196, 147, 49])
@pytest.mark.parametrize("known", [True, False])
def test_products_of_matrices(rows: int, known: bool) -> None:
    x, w = (RNG.standard_normal(shape).astype(np.float32) for shape in ((rows, 1024), (1024, 1023)))

    def product(x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return np.maximum(x @ w + bias, 0)

    options = {**LOOSE, "const": ("w",) if known else ()}
    fast, bias = eqsat.optimize(product, **options), w[0].copy()
    exact = product(x.astype(np.float64), w.astype(np.float64), bias)
    assert (np.abs(fast(x, w, bias) - exact) <= bound(x, w)).all()
    assert used(fast) or not known
    strict = eqsat.optimize(product, **{**options, "numerics": "reassociates"})
    strict(x, w, bias)
    assert not used(strict)


@pytest.mark.parametrize("scale", ["ones", "rows", "columns", "one", "all"])
def test_errors_are_in_proportion_to_the_largest_elements(scale: str) -> None:
    """Of two rows and two columns. Where known weights make that too much for verification, it is compiled without."""
    x, w = (RNG.standard_normal(shape) for shape in ((196, 1024), (1024, 512)))
    if scale == "ones":
        x, w = np.ones_like(x), np.ones_like(w)
    elif scale == "rows":
        x *= 10.0 ** RNG.uniform(-3, 3, (196, 1))
    elif scale == "columns":
        w *= 10.0 ** RNG.uniform(-6, 6, (1, 512))
    elif scale == "one":
        x[5, 6] = 1e4
    else:
        x *= 10.0 ** RNG.uniform(-3, 3, x.shape)
    plain, weights = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32), w.astype(np.float32)
    fast = eqsat.optimize(lambda x, w: x @ w, const=("w",), **LOOSE)
    fast(plain, weights)
    assert used(fast) == (scale != "columns")
    x = x.astype(np.float32)
    exact = x.astype(np.float64) @ weights.astype(np.float64)
    assert (np.abs(fast(x, weights) - exact) <= bound(x, weights)).all()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("extent", [14, 15])
def test_convolutions_of_one_element(last: bool, extent: int) -> None:
    """Channels first or last; of an odd image a row of zeros more is read."""
    x = RNG.standard_normal((1, 1024, extent, extent)).astype(np.float32)
    w = (RNG.standard_normal((1024, 1024, 1, 1)) / 32).astype(np.float32)
    if last:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return nn.conv2d(x, w) + x

    fast = eqsat.optimize(convolved, const=("w",), **LOOSE)
    exact = convolved(x.astype(np.float64), w.astype(np.float64))
    products = bound(x.reshape(1024, -1).T, w[:, :, 0, 0].T)
    assert (np.abs(fast(x, w) - exact) <= products.T.reshape(x.shape) + 1e-6).all()
    assert used(fast)
    (found,) = fast.explain().algorithms
    assert found.chosen == "matrix product"


def test_a_stack_of_matrices_has_their_rows() -> None:
    x, w = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 66, 1024), (1024, 1024)))
    fast = eqsat.optimize(lambda x, w: x @ w, const=("w",), **LOOSE)
    exact = x.reshape(-1, 1024).astype(np.float64) @ w.astype(np.float64)
    assert (np.abs(fast(x, w).reshape(-1, 1024) - exact) <= bound(x.reshape(-1, 1024), w)).all()
    assert used(fast)


@pytest.mark.parametrize("case", ["batch", "windows", "cropped", "small", "thin"])
def test_what_has_no_use_for_it(case: str) -> None:
    """Products of a batch, whose halves are too small, and windows, whose sums would store what is read in place."""
    shapes = {
        "batch": ((8, 64, 512), (8, 512, 512)),
        "windows": ((1, 64, 18, 18), (512, 64, 5, 5)),
        "cropped": ((1, 64, 100, 100), (512, 64, 5, 5)),
        "small": ((200, 128), (128, 128)),
        "thin": ((200, 1000), (1000, 20)),
    }
    x, w = (RNG.standard_normal(shape).astype(np.float32) for shape in shapes[case])
    functions: dict[str, Any] = {
        "windows": lambda x, w: nn.conv2d(x, w),
        "cropped": lambda x, w: nn.conv2d(x[:, :, :18, :18], w),
    }
    function = functions.get(case, lambda x, w: x @ w)
    fast = eqsat.optimize(function, const=("w",), **LOOSE)
    assert not used(fast, x, w)
    assert "trassen" not in str(fast.explain().algorithms)

"""Winograd's algorithm: its matrices, its rule's class, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import eqsat
from eqsat import nn
from eqsat.egraph.check import check_rule
from eqsat.rules.rule import Rule
from eqsat_rules import convolutions


@pytest.mark.parametrize(("size", "taps"), [(2, 3), (4, 3), (3, 2), (5, 2), (2, 5)])
def test_transforms_are_a_filter_exactly(size: int, taps: int) -> None:
    results, filters, inputs = convolutions.transforms(size, taps)
    for i in range(size):
        for k in range(taps):
            for d in range(size + taps - 1):
                terms = (results[i][j] * filters[j][k] * inputs[j][d] for j in range(size + taps - 1))
                assert sum(terms, Fraction(0)) == (d == i + k)


def test_a_wrong_matrix_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = convolutions.transforms

    def wrong(size: int, taps: int) -> tuple[convolutions.Matrix, convolutions.Matrix, convolutions.Matrix]:
        results, filters, inputs = right(size, taps)
        return ((results[0][0] + Fraction(1, 100), *results[0][1:]), *results[1:]), filters, inputs

    monkeypatch.setattr(convolutions, "transforms", wrong)
    rule = replace(convolutions.winograd_small, id="wrong.winograd")
    images = rule.example
    assert images is not None
    assert check_rule(rule, enough=10).counterexample is not None


@pytest.mark.parametrize("rule", [convolutions.winograd_small, convolutions.winograd_large], ids=lambda rule: rule.id)
def test_is_not_taken_for_another_order_of_sums(rule: Rule) -> None:
    """A NaN spreads over its tile, further than over the windows that it is in."""
    found = check_rule(replace(rule, id="wrong.winograd", numerics="reassociates"), enough=15).counterexample
    assert found is not None and found.looser == "approximates"


def test_is_chosen_only_where_the_numerics_allow_it() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 64, 14, 15)).astype(np.float32)
    w = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)

    def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return nn.conv2d(x, w, padding=1)

    loose = eqsat.optimize(convolved, threads=1, const=("w",), numerics="approximates", check_speed=False)
    strict = eqsat.optimize(convolved, threads=1, const=("w",), check_speed=False)
    np.testing.assert_allclose(loose(x, w), strict(x, w), atol=5e-5)
    assert "winograd_" in str(loose.explain()) and "winograd_" not in str(strict.explain())
    products = [part for part in loose.source(x, w).split('"""kernel: ') if "fma_tile" in part]
    assert len(products) == 5 and not any("strided" in part for part in products)  # channels last, not lane by lane

    lone = rng.standard_normal(x.shape)
    lone[0, 5, 6, 7] = 1e4
    mixed = rng.standard_normal(x.shape) * 10.0 ** rng.uniform(-4, 4, x.shape)
    for given in (rng.random(x.shape), rng.standard_normal(x.shape) + 100, 1e-4 * x, mixed, lone):
        given = given.astype(np.float32)
        exact = convolved(given.astype(np.float64), w.astype(np.float64))
        assert (np.abs(loose(given, w) - exact) <= allowed(given, w)).all()


def test_amplification_is_what_the_guide_says() -> None:
    assert amplification(2) == 16
    assert round(amplification(4)) == 205


def amplification(size: int) -> float:
    """How much further an image's rounding errors reach than those of a direct convolution, to first order."""
    results, filters, inputs = (
        np.abs([[float(v) for v in row] for row in matrix]) for matrix in convolutions.transforms(size, 3)
    )
    return float(np.einsum("ij,jk,j->ik", results, filters, inputs.sum(1)).max() ** 2)


def allowed(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The bound of the guide on errors of F(4×4, 3×3) over images (1, C, H, W) padded by 1."""
    reach = np.zeros((1, *x.shape[2:]))
    for i, j in np.ndindex(x.shape[2:]):
        top, left = i - i % 4, j - j % 4
        reach[0, i, j] = np.abs(x[0, :, max(top - 1, 0) : top + 5, max(left - 1, 0) : left + 5]).max()
    filters = np.abs(w.astype(np.float64)).sum((1, 2, 3))
    return (x.shape[1] + 12) * float(np.finfo(np.float32).eps) * amplification(4) * filters[:, None, None] * reach

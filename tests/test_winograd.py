"""Winograd's algorithm: its matrices, its rule's class, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import eqsat
from eqsat import nn
from eqsat.egraph.check import check_rule
from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.spec import make_spec
from eqsat.ir.types import float32, float64, row_major
from eqsat.rules.examples import Maker
from eqsat.rules.rule import Rule
from eqsat_rules import convolutions
from tests.sweeps import a_part


@pytest.mark.parametrize(("size", "taps"), [(4, 3), (5, 2), (2, 5)])
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
    monkeypatch.setattr(convolutions, "FILTERS", ((1, 0, 0), (0.51, 0.51, 0.51), (0.5, -0.5, 0.5), (0, 0, 1)))
    for rule in (convolutions.winograd_small, convolutions.winograd_large):
        assert check_rule(replace(rule, id="wrong.winograd"), enough=10).counterexample is not None


@pytest.mark.parametrize("dilation", [(2, 2), (1, 3), (3, 2)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_dilated_windows_are_tiles_of_their_phases(dilation: tuple[int, int], groups: int, last: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 256 * groups, 13, 12)).astype(np.float32)
    w = (rng.standard_normal((256 * groups, 256, 3, 3)) / 48).astype(np.float32)

    def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        if last:
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        return nn.conv2d(x, w, padding=dilation, dilation=dilation, groups=groups)

    fast = eqsat.optimize(convolved, threads=1, const=("w",), check_speed=False, strict=True)
    exact = convolved(x.astype(np.float64), w.astype(np.float64))
    np.testing.assert_allclose(fast(x, w), exact, atol=2e-5)
    assert [found.chosen for found in fast.explain().algorithms] == ["Winograd F(2, 3)"]


def test_large_tiles_are_not_taken_for_another_order_of_sums() -> None:
    """A NaN spreads over its tile, further than over the windows that it is in."""
    wrong = replace(convolutions.winograd_large, id="wrong.winograd", numerics="reassociates")
    found = check_rule(wrong, enough=15).counterexample
    assert found is not None and found.looser == "approximates"


def any_convolution(mk: Maker) -> Node:
    """Windows along one to three axes, of any extents, strides, dilations, paddings, groups; channels last or not."""
    choice = mk.random.choice
    rank, groups, last = choice((1, 2, 2, 3)), choice((0, 0, 1, 3)), choice((False, True))
    taps, apart, step = ([choice(values) for _ in range(rank)] for values in ((3, 3, 3, 2), (1, 1, 2, 3), (1, 1, 1, 2)))
    counts = [choice((1, 2, 3, 4, 5, 7, 8)) for _ in range(rank)]
    extents = [s * (n - 1) + d * (k - 1) + 1 for n, k, d, s in zip(counts, taps, apart, step, strict=True)]
    before = [choice((0, 1)) if n > 2 else 0 for n in extents]
    channels, results = choice((16, 17, 20)), choice((16, 18))
    cut = [groups] if groups else []
    inside = [n - low for n, low in zip(extents, before, strict=True)]
    lead, after = ([2, *cut], [channels]) if last else ([2, *cut, channels], [])
    given = mk.tensor(*lead, *inside, *after, dtype=choice((float32, float64)))
    widths = [(0, 0)] * len(lead) + [(low, 0) for low in before] + [(0, 0)] * len(after)
    image = build.pad(given, widths)
    steps, first = row_major(image.shape), len(lead)
    moves = [by * s for by, s in zip(steps[first : first + rank], step, strict=True)]
    spread = [by * d for by, d in zip(steps[first : first + rank], apart, strict=True)]
    shape = [*lead, *counts, *after, *taps]
    seen = build.view(image, views.strided(shape, [*steps[:first], *moves, *steps[first + rank :], *spread]))
    p, r, g = [f"p{i}" for i in range(rank)], [f"r{i}" for i in range(rank)], ["g"] * len(cut)
    a = ["n", *g, *p, "c", *r] if last else ["n", *g, "c", *p, *r]
    out = ["n", *g, *p, "m"] if choice((False, True)) else ["n", *g, "m", *p]
    factor = mk.known(*cut, results, channels, *taps, dtype=given.dtype)
    return build.contract(make_spec(a, [*g, "m", "c", *r], out), seen, factor)


@pytest.mark.parametrize("rule", [convolutions.winograd_small, convolutions.winograd_large], ids=lambda rule: rule.id)
def test_any_convolution(rule: Rule) -> None:
    found = check_rule(replace(rule, example=any_convolution), enough=a_part(80))
    assert found.counterexample is None and found.fired >= 10


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e20, 3e38])
def test_pairs_of_results_read_nothing_outside_their_windows(value: float) -> None:
    """Next to one input that is not finite, or is so large that all others are below its last digit."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)

    def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return nn.conv2d(x, w, padding=1)

    fast = eqsat.optimize(convolved, threads=1, const=("w",), check_speed=False, strict=True)
    for row, column in ((0, 0), (5, 6), (5, 7), (6, 7), (13, 14)):
        x = rng.standard_normal((1, 64, 14, 15)).astype(np.float32)
        there = np.zeros((14, 15), bool)
        there[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2] = True
        clean = fast(x, w)
        x[0, 5, row, column] = value
        found = fast(x, w)
        assert np.array_equal(found[..., ~there], clean[..., ~there])
        assert (~np.isfinite(found[..., there]) | (np.abs(found[..., there]) > 1e10)).all()
    assert [found.chosen for found in fast.explain().algorithms] == ["Winograd F(2, 3)"]


@pytest.mark.parametrize("taps", ["masked", "shift", "pruned"])
def test_filters_whose_zeros_it_would_lose_are_compiled_without_it(taps: str) -> None:
    """Where a direct convolution adds only zeros its results are exact; verification sees that others are not."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 32, 14, 14)).astype(np.float32)
    w = (rng.standard_normal((32, 32, 3, 3)) / 17).astype(np.float32)
    if taps == "masked":
        w *= np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0]], np.float32)
    elif taps == "shift":
        w = np.zeros_like(w)
        w[np.arange(32), np.arange(32), 1, 2] = 1
    else:
        w *= rng.random(w.shape) < 0.03

    def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return nn.conv2d(x, w, padding=1)

    fast = eqsat.optimize(convolved, threads=1, const=("w",), check_speed=False, strict=True)
    exact = convolved(x.astype(np.float64), w.astype(np.float64))
    size = convolved(np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64)))
    assert (np.abs(fast(x, w) - exact) <= 300 * np.finfo(np.float32).eps * size).all()
    (found,) = fast.explain().algorithms
    assert "Winograd" not in found.chosen


def test_filters_that_are_not_known_are_not_transformed() -> None:
    x, w = np.ones((1, 64, 14, 14), np.float32), np.ones((64, 64, 3, 3), np.float32)
    fast = eqsat.optimize(lambda x, w: nn.conv2d(x, w, padding=1), threads=1, check_speed=False)
    assert not any("Winograd F(2, 3)" in found.chosen for found in fast.explain(x, w).algorithms)


def test_is_chosen_only_where_the_numerics_allow_it() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 64, 14, 15)).astype(np.float32)
    w = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)

    def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return nn.conv2d(x, w, padding=1)

    loose = eqsat.optimize(convolved, threads=1, const=("w",), numerics="approximates", check_speed=False)
    strict = eqsat.optimize(convolved, threads=1, const=("w",), check_speed=False)
    np.testing.assert_allclose(loose(x, w), strict(x, w), atol=5e-5)
    assert "winograd_large" in str(loose.explain()) and "winograd_large" not in str(strict.explain())
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
    pairs = (
        ((1, 1, 1, 0), (0, 1, -1, 1)),
        convolutions.FILTERS,
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
    )
    matrices = pairs if size == 2 else convolutions.transforms(size, 3)
    results, filters, inputs = (np.abs([[float(v) for v in row] for row in matrix]) for matrix in matrices)
    return float(np.einsum("ij,jk,j->ik", results, filters, inputs.sum(1)).max() ** 2)


def allowed(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The bound of the guide on errors of F(4×4, 3×3) over images (1, C, H, W) padded by 1."""
    reach = np.zeros((1, *x.shape[2:]))
    for i, j in np.ndindex(x.shape[2:]):
        top, left = i - i % 4, j - j % 4
        reach[0, i, j] = np.abs(x[0, :, max(top - 1, 0) : top + 5, max(left - 1, 0) : left + 5]).max()
    filters = np.abs(w.astype(np.float64)).sum((1, 2, 3))
    return (x.shape[1] + 12) * float(np.finfo(np.float32).eps) * amplification(4) * filters[:, None, None] * reach


def test_a_program_in_blocked_channels_is_searched_like_others() -> None:
    """Channels in blocks of a vector, as other libraries lay images out: a program's own layout hides no algorithm."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 14, 15, 16)).astype(np.float32)
    w = (rng.standard_normal((4, 4, 3, 3, 16, 16)) / 24).astype(np.float32)

    def blocked(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), (3, 3), (1, 2))
        return np.einsum("chwbij,kcijbl->khwl", windows, w)

    fast = eqsat.optimize(blocked, threads=1, const=("w",), check_speed=False, strict=True)
    exact = blocked(x.astype(np.float64), w.astype(np.float64))
    assert np.abs(fast(x, w) - exact).max() <= 1e-5 * np.abs(exact).max()
    (found,) = fast.explain().algorithms
    assert found.chosen == "Winograd F(2, 3)" and "implicit GEMM, channels last" in found.others, found

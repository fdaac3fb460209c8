"""Convolutions with known weights leave out the taps that read only padding."""

from __future__ import annotations

import numpy as np
import pytest
from image_references import convolved

import eqsat
from eqsat import nn
from eqsat.ir.kernel import Index, Kernel, Literal, Operand
from eqsat.ir.types import float32, int64
from eqsat.schedule.domain import rows_inside

CASES = {
    "3x3": (1, 64, 7, 9, 48, 3, 1, 1, 1),
    "dilated": (1, 64, 8, 8, 32, 3, 1, 2, 2),
    "stride": (2, 96, 10, 9, 32, 3, 2, 1, 1),
    "wide": (1, 64, 6, 6, 32, 5, 1, 3, 1),
    "more padding than image": (1, 64, 3, 4, 32, 3, 1, 4, 1),
}


def sources(case: str, w: np.ndarray, x: np.ndarray) -> tuple[str, np.ndarray]:
    """What is printed for the convolution of a case, and its result."""
    *_, stride, padding, dilation = CASES[case]

    def conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return nn.conv2d(x, w, stride=stride, padding=padding, dilation=dilation)

    optimized = eqsat.optimize(conv, const=("w",), threads=1, check_speed=False, disable=("winograd_small",))
    return optimized.source(x, w), optimized(x, w)


@pytest.mark.parametrize("case", CASES)
def test_taps_in_the_padding_are_left_out(case: str) -> None:
    batch, cin, high, wide, cout, kernel, stride, padding, dilation = CASES[case]
    random = np.random.default_rng(7)
    x = random.standard_normal((batch, cin, high, wide)).astype(np.float32)
    w = random.standard_normal((cout, cin, kernel, kernel)).astype(np.float32)
    source, got = sources(case, w, x)
    assert "every" in source
    want = convolved(x, w, (stride,) * 2, ((padding,) * 2,) * 2, (dilation,) * 2, 1)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_weights_that_are_not_finite_meet_the_padding() -> None:
    random = np.random.default_rng(7)
    x = random.standard_normal((1, 64, 7, 9)).astype(np.float32)
    w = random.standard_normal((48, 64, 3, 3)).astype(np.float32)
    w[5, 3, 0, 0] = np.inf
    _, got = sources("3x3", w, x)
    assert np.isnan(got[0, 5, 0]).all() and np.isnan(got[0, 5, :, 0]).all()  # infinity times the zeros around
    assert np.isfinite(np.delete(got, 5, axis=1)).all()


@pytest.mark.parametrize("n", [1 << 12, 1 << 13])
def test_products_with_too_many_rows_and_steps_to_look_at_stay_whole(n: int) -> None:
    domain = Index(-8, (1, 0, 0), int64), Index(-8, (0, 0, 1), int64)
    out = Operand(float32, 32 * n)
    kernel = Kernel((n, 32, n), 2, "sum", Literal(0.0, float32), Literal(0.0, float32), (), out, 0, (32, 1), domain)
    found = rows_inside(kernel, (0,), (2,), 1, 1)
    if n > 1 << 12:
        assert found is None
    else:
        assert found == (((n - 8) / n) ** 2, frozenset({0, 1}))


def test_rows_that_read_nothing_but_padding_are_results() -> None:
    """Of a dilated transposed convolution a phase has rows without any tap: their zeros were not stored."""
    random = np.random.default_rng(5)
    x = random.standard_normal((16, 8)).astype(np.float32)
    w = random.standard_normal((8, 2, 3)).astype(np.float32)
    image = random.standard_normal((1, 32, 7, 7)).astype(np.float32)
    point = random.standard_normal((48, 32, 1, 1)).astype(np.float32)
    ways = {"stride": (3,), "padding": (1,), "groups": 4, "dilation": (2,), "layout": "NLC"}
    for function, given in (
        (lambda x: eqsat.nn.conv_transpose1d(x, w, **ways), x),
        (lambda x: eqsat.nn.conv2d(x, point, padding=2), image),
    ):
        optimized = eqsat.optimize(function, cache=False, check_speed=False, verify=False)
        np.testing.assert_allclose(optimized(given), function(given), rtol=1e-4, atol=1e-4)

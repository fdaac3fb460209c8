"""Convolutions whose images are turned, for their channels to be innermost."""

from __future__ import annotations

import numpy as np
import pytest
from image_references import convolved

import eqsat
from eqsat import nn
from eqsat_rules.layouts import _groups_apart


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(("stride", "dilation"), [(2, 1), (2, 2)])
def test_groups_of_channels_are_innermost(groups: int, stride: int, dilation: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 32 * groups, 15, 14)).astype(np.float32)
    w = (rng.standard_normal((48 * groups, 32, 3, 3)) / 16).astype(np.float32)

    def conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return nn.conv2d(x, w, stride=stride, dilation=dilation, padding=1, groups=groups)

    fast = eqsat.optimize(conv, const=("w",), threads=1, check_speed=False, strict=True)
    want = convolved(x.astype(np.float64), w.astype(np.float64), (stride,) * 2, ((1, 1),) * 2, (dilation,) * 2, groups)
    np.testing.assert_allclose(fast(x, w), want, atol=2e-5)
    (found,) = fast.explain().algorithms
    assert any("channels last" in name for name in (found.chosen, *found.others))


def test_only_groups_cut_an_axis() -> None:
    steps, counts = (1280, 80, 10, 1, 1), (4, 16, 8, 8, 3)
    assert _groups_apart((64, 8, 10), steps, counts, [True, False, False, False, False]) == (4, 16, 8, 10)
    assert _groups_apart((64, 8, 10), steps, counts, [False] * 5) == (64, 8, 10)
    # groups that no axis inside fills up to the next one
    assert _groups_apart((64, 8, 10), (1280, 80, 10), (4, 8, 8), [True, False, False]) == (64, 8, 10)
    assert _groups_apart((0, 8), (8, 1), (0, 8), [True, False]) == (0, 8)

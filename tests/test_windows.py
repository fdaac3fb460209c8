"""Windows reduced axis by axis: where the rule fires, that a wrong one is refused, and that it is chosen."""

from __future__ import annotations

import numpy as np

import eqsat
from eqsat import nn
from eqsat.egraph.check import check_rule
from eqsat.egraph.saturate import saturate
from eqsat.frontends.trace import trace
from eqsat.nn.images import Ints
from eqsat.rules import family, reduction, view
from eqsat_rules import windows


def test_minima_of_maxima_are_refused() -> None:
    left = reduction("reduce_max", view(windows.x, windows.mp), windows.ax)
    right = windows._by_axis("reduce_min")
    wrong = family([(left, right)], where=windows.overlapping, example=windows._boxes, id="wrong.windows")
    assert check_rule(wrong, enough=10).counterexample is not None


def test_fires_where_windows_overlap_along_an_axis() -> None:
    x = np.zeros((2, 12, 12), np.float32)

    def fired(kernel: Ints, stride: Ints, dilation: int = 1) -> bool:
        traced = trace(lambda x: nn.max_pool2d(x, kernel, stride, 0, dilation), (x,))
        found = saturate(traced.graph.outputs, rules=[windows.windows_by_axis])
        return bool(found.report.rules["windows_by_axis"].fired)

    assert fired(3, 1) and fired(3, 2) and fired((2, 3), (2, 1)) and fired(2, 1, 3)
    assert not fired(2, 2) and not fired(3, 4) and not fired((1, 3), 1)


def test_is_chosen() -> None:
    x = np.random.default_rng(0).standard_normal((8, 40, 36)).astype(np.float32)
    pooled = eqsat.optimize(lambda x: nn.max_pool2d(x, 5, 1, 2), threads=1, check_speed=False)
    around = np.pad(x, ((0, 0), (2, 2), (2, 2)), constant_values=-np.inf)
    seen = np.lib.stride_tricks.sliding_window_view(around, (5, 5), (1, 2))
    np.testing.assert_array_equal(pooled(x), seen.max((-2, -1)))
    assert "windows_by_axis" in str(pooled.explain())

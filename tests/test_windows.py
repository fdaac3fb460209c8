"""Windows reduced axis by axis: where the rule fires, that a wrong one is refused, and that it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import eqsat
from eqsat import nn
from eqsat.egraph.check import check_rule
from eqsat.egraph.saturate import saturate
from eqsat.frontends.trace import trace
from eqsat.ir.kernel import Call, KernelGroup, Load, walk
from eqsat.nn.images import Ints
from eqsat.plan.inline import inlined
from eqsat.rules import family, reduction, view
from eqsat.schedule import check_offered
from eqsat.schedule.sample import sample
from eqsat.schedule.vector_cost import fresh
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from eqsat_rules import windows
from tests.kernel_groups import DESK, gemm, windowed
from tests.test_obeyed_maps import check_runs


def test_minima_of_maxima_are_refused() -> None:
    left = reduction("reduce_max", view(windows.x, windows.mp), windows.ax)
    right = windows._by_axis("reduce_min")
    wrong = family([(left, right)], where=windows.overlapping, example=windows._boxes, id="wrong.windows")
    assert check_rule(wrong, enough=10).counterexample is not None


def test_fires_where_windows_overlap_along_an_axis() -> None:
    x = np.zeros((2, 40, 40), np.float32)

    def fired(kernel: Ints, stride: Ints, dilation: int = 1) -> bool:
        traced = trace(lambda x: nn.max_pool2d(x, kernel, stride, 0, dilation), (x,))
        found = saturate(traced.graph.outputs, rules=[windows.windows_by_axis])
        return bool(found.report.rules["windows_by_axis"].fired)

    assert fired(5, 1) and fired((5, 4), (2, 1)) and fired(8, 2) and fired(5, 1, 2)
    assert not fired(5, 5) and not fired(5, 4) and not fired((1, 5), 1)
    assert not fired(3, 1) and not fired(2, 1) and not fired((5, 2), 1), "too little is shared"


def test_is_chosen() -> None:
    x = np.random.default_rng(0).standard_normal((8, 40, 36)).astype(np.float32)
    pooled = eqsat.optimize(lambda x: nn.max_pool2d(x, 5, 1, 2), threads=1, check_speed=False)
    around = np.pad(x, ((0, 0), (2, 2), (2, 2)), constant_values=-np.inf)
    seen = np.lib.stride_tricks.sliding_window_view(around, (5, 5), (1, 2))
    np.testing.assert_array_equal(pooled(x), seen.max((-2, -1)))
    assert "windows_by_axis" in str(pooled.explain())


def directly(group: KernelGroup) -> KernelGroup:
    """The group without its padded image."""
    stages = inlined(group.stages)
    assert stages is not None
    return replace(group, stages=tuple(stages), shared=0)


@pytest.mark.parametrize(("extent", "stride"), [(7, 1), (15, 2)])
def test_padding_is_tested_in_the_sum_by_every_nest(extent: int, stride: int) -> None:
    group, target = directly(windowed(3, extent, 3, stride)), cpu_target(DESK, 1)
    assert len(group.stages) == 1
    for nest, _ in sample(group, target, 2, seed=5):
        check_offered(nest, group, target)
        check_runs(group, nest, 3, 1)


def test_what_is_computed_or_packed_stays_a_stage() -> None:
    group = windowed(3, 7, 3, 1)
    pad, summed = group.stages
    computed = replace(pad.kernel, body=Call("neg", (pad.kernel.body,), pad.kernel.body.dtype))
    assert inlined((replace(pad, kernel=computed), summed)) is None
    assert inlined((replace(pad, result=2), summed)) is None
    assert inlined((pad, summed, gemm(64, 64, 64).stages[0])) is None


def test_of_windows_that_overlap_a_part_is_read_anew() -> None:
    """Of 4 rows of 3×3 windows 6 for 12 with stride 1, and 9 with stride 2; all where windows are apart."""

    def part(stride: int, axis: int, kernel: int = 3) -> float:
        summed = windowed(2, 40, kernel, stride).stages[1].kernel
        (seen,) = (e for e in walk(summed.body) if isinstance(e, Load) and e.operand == 1)
        return fresh(summed, seen, axis, 4)

    assert [part(stride, 1) for stride in (1, 2, 3)] == [0.5, 0.75, 1.0]
    assert part(1, 0) == 1.0 and part(1, 1, 7) == 1.0  # other channels; more steps than straight code has


def test_padding_lets_nothing_into_other_results() -> None:
    x, w = np.ones((1, 4, 9, 9), np.float32), np.full((4, 1, 3, 3), -2, np.float32)
    x[0, 0, 4, 0], x[0, 1, 0, 8] = np.nan, np.inf
    conv = eqsat.optimize(lambda x, w: nn.conv2d(x, w, padding=1, groups=4), const=("w",), threads=1, check_speed=False)
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    np.testing.assert_array_equal(conv(x, w), np.einsum("ncijrs,crs->ncij", seen, w[:, 0]))

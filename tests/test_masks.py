"""Rows of masked attention cut into runs: fewer columns, the same numbers, NaN and infinities included."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from eqsat.frontends.trace import trace
from eqsat.ir.evaluate import evaluate
from eqsat.plan.plan import KernelStep
from eqsat.search import describe_group
from tests.plans import interpret, plan_of

Mask = Callable[[int, int], np.ndarray]


def causal(rows: int, columns: int) -> np.ndarray:
    return np.tril(np.ones((rows, columns), bool), columns - rows)


def window(rows: int, columns: int) -> np.ndarray:
    i, j = np.ogrid[:rows, :columns]
    return abs(i - j) < 64


def attention(mask: np.ndarray) -> Callable[..., np.ndarray]:
    def f(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        scores = np.where(mask, scores, -np.inf)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True) @ v

    return f


def arrays(rows: int, columns: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, n, 8)).astype(np.float32) for n in (rows, columns, columns)]


@pytest.mark.parametrize("mask", [causal, window])
@pytest.mark.parametrize(("rows", "columns"), [(512, 512), (300, 300), (384, 400)])
def test_runs_compute_what_the_whole_does(mask: Mask, rows: int, columns: int) -> None:
    f, args = attention(mask(rows, columns)), arrays(rows, columns)
    graph = trace(f, tuple(args)).graph
    plan = plan_of(graph)
    assert sum("exp" in step.label for step in plan.steps) >= 2, "the group was not cut"
    np.testing.assert_allclose(interpret(plan, args)[0], evaluate(graph, args, double=True)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [3, 200, 511])
def test_values_left_out_are_seen_when_they_are_not_finite(bad: float, place: int) -> None:
    """NumPy multiplies a masked weight, 0, by every value: 0·inf is NaN in the rows that may not see it."""
    f, args = attention(causal(512, 512)), arrays(512, 512)
    args[2][1, place, 5] = bad
    graph = trace(f, tuple(args)).graph
    ours, exact = interpret(plan_of(graph), args)[0], evaluate(graph, args)[0]
    assert np.isnan(exact[1, :place, 5]).all()
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(ours), np.isinf(exact))


@pytest.mark.parametrize("where", [0, 1])
def test_scores_that_are_not_finite(where: int) -> None:
    f, args = attention(causal(512, 512)), arrays(512, 512)
    args[where][0, 300, 2] = np.inf
    graph = trace(f, tuple(args)).graph
    with np.errstate(all="ignore"):
        ours, exact = interpret(plan_of(graph), args)[0], evaluate(graph, args)[0]
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact))


def test_masks_that_save_little_or_hide_whole_rows_are_left_alone() -> None:
    mostly = np.ones((512, 512), bool)
    mostly[:, -8:] = False
    hidden = causal(512, 512)
    hidden[:300] = False
    for mask in (mostly, hidden):
        args = arrays(512, 512)
        plan = plan_of(trace(attention(mask), tuple(args)).graph)
        assert sum("exp" in step.label for step in plan.steps) == 1


def test_rows_that_see_nothing_are_nan_within_a_run() -> None:
    mask = causal(512, 512)
    mask[:200] = False
    f, args = attention(mask), arrays(512, 512)
    graph = trace(f, tuple(args)).graph
    plan = plan_of(graph)
    assert sum("exp" in step.label for step in plan.steps) == 2, "the group was not cut once"
    with np.errstate(all="ignore"):
        ours, exact = interpret(plan, args)[0], evaluate(graph, args, double=True)[0]
    assert np.isnan(exact[:, :200]).all()
    np.testing.assert_allclose(ours, exact, rtol=1e-4, atol=1e-5)


def test_sums_over_what_is_left_out_build_on_one_another() -> None:
    """One kernel reads every value left out once, whatever the number of runs."""
    f, args = attention(causal(768, 768)), arrays(768, 768)
    plan = plan_of(trace(f, tuple(args)).graph)
    runs = sum("exp" in step.label for step in plan.steps)
    groups = [step.group for step in plan.steps if isinstance(step, KernelStep)]
    (sums,) = [g for g in groups if "exp" not in describe_group(g)]
    assert runs > 2 and len(sums.outputs) == runs - 1
    assert sum(stage.kernel.extents[-1] for stage in sums.stages) < 768


def test_other_uses_of_the_scores_are_left_alone() -> None:
    """A maximum over columns of the weights themselves would see the zeros."""
    mask = causal(512, 512)

    def f(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores = np.where(mask, q @ k.swapaxes(-1, -2), -np.inf)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return e @ v, np.minimum.reduce(e, axis=-1)

    args = arrays(512, 512)
    graph = trace(f, tuple(args)).graph
    for ours, exact in zip(interpret(plan_of(graph), args), evaluate(graph, args), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-3, atol=1e-5)


def test_split_needs_a_known_mask() -> None:
    def f(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return attention(mask)(q, k, v)

    args = [*arrays(512, 512), causal(512, 512)]
    plan = plan_of(trace(f, tuple(args)).graph)
    assert sum("exp" in step.label for step in plan.steps) == 1

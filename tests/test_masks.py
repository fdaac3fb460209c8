"""Masked attention without what its mask hides: fewer columns, the same numbers, NaN and infinities included."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.frontends.trace import trace
from eqsat.ir.evaluate import evaluate
from eqsat.ir.interpret import run_group
from eqsat.ir.kernel import Call, Expr, KernelGroup, Literal, Load, Operand
from eqsat.ir.nest import show
from eqsat.ir.types import bool_, float32, float64
from eqsat.plan.masks import MaskedPrice, split_masked
from eqsat.plan.placed import PlacedGroup
from eqsat.plan.plan import KernelStep, Plan
from eqsat.schedule import Scheduled, schedule
from eqsat.schedule.decode import decode
from eqsat.schedule.domain import Bound, Columns, bounds_of, needed
from eqsat.schedule.loop_price import total_seconds
from eqsat.schedule.price import Pricer
from eqsat.schedule.problem import problem_of
from eqsat.schedule.sample import sample
from eqsat.schedule.scheduler import search_graph
from eqsat.schedule.search import Search
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import machine
from tests.nest_price import evaluate as evaluate_nest
from tests.plans import interpret, plan_of
from tests.sweeps import a_part
from tests.test_contract import attention as attention_group
from tests.test_contract import printed, random_buffers, run

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


def bounded(plan: Plan) -> list[KernelGroup]:
    """The groups of a plan that leave out what a mask hides."""
    return [step.group for step in plan.steps if isinstance(step, KernelStep) and step.group.unless]


# what is found


@pytest.mark.parametrize("mask", [causal, window])
@pytest.mark.parametrize(("rows", "columns"), [(512, 512), (300, 300), (384, 400)])
def test_what_a_mask_hides_is_left_out(mask: Mask, rows: int, columns: int) -> None:
    f, args = attention(mask(rows, columns)), arrays(rows, columns)
    graph = trace(f, tuple(args)).graph
    plan = plan_of(graph)
    (group,) = bounded(plan)
    assert not any(operand.dtype == bool_ for operand in group.operands), "the mask is loaded"
    np.testing.assert_allclose(interpret(plan, args)[0], evaluate(graph, args, double=True)[0], rtol=1e-4, atol=1e-5)


def test_masks_by_comparison_are_like_stored_ones() -> None:
    def f(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        n = np.arange(512)
        return attention(n[:, None] >= n)(q, k, v)  # type: ignore[no-any-return]

    args = arrays(512, 512)
    stored = plan_of(trace(attention(causal(512, 512)), tuple(args)).graph)
    assert bounded(plan_of(trace(f, tuple(args)).graph)) == bounded(stored) != []


def test_masks_of_no_shape_and_unknown_ones_are_left_alone() -> None:
    args = arrays(512, 512)
    noise = np.random.default_rng(0).random((512, 512)) < 0.5
    assert not bounded(plan_of(trace(attention(noise), tuple(args)).graph))

    def f(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return attention(mask)(q, k, v)

    assert not bounded(plan_of(trace(f, (*args, causal(512, 512))).graph))


def test_rows_of_one_head_are_shared_in_turns() -> None:
    """A triangle's later blocks take more: threads that share rows may get some of each."""
    group, buffers = masked_group(causal(128, 512), 1, 16, float32)
    *_, placed = leave_out(group, buffers)
    target = cpu_target(machine(), 2)
    nests = [nest for nest, _ in sample(placed.group, target, 40, seed=2)]
    given = [*(buffers[t] for t in placed.tensors[:-1]), np.zeros(1, np.int64)]
    out, results = placed.group.outputs[0], []
    turns = r"for rows\d+ in range\(\d+ \* tid, 128, \d+ \* nt\)"
    for pattern, in_turns in ((r"rows\*:128/(?!128)\d+ cyclic", True), (r"rows\*:128/(?!128)\d+ >", False)):
        shared = next(nest for nest in nests if re.search(pattern, show(nest)))
        assert bool(re.search(turns, printed(placed.group, shared).source)) == in_turns
        results += [run(printed(placed.group, shared), given, threads)[out] for threads in (1, 2)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[2], results[3])
    np.testing.assert_allclose(results[0], results[2], rtol=1e-5, atol=1e-6)


def test_threads_take_turns_where_that_is_predicted_to_be_sooner() -> None:
    """At blocks of a triangle; not where all rows are alike, nor where heads are shared, nor without the rule."""
    target = cpu_target(machine(), 2)

    def found(mask: np.ndarray, heads: int, disable: tuple[str, ...] = ()) -> Scheduled:
        *_, placed = leave_out(*masked_group(mask, heads, 64, float32))
        return schedule(placed.group, target, disable=disable)

    one = found(causal(512, 512), 1)
    assert re.search(r"rows\*:512/\d+ cyclic", show(one.nest))
    apart = found(causal(512, 512), 1, ("loop.cyclic",))
    assert "cyclic" not in show(apart.nest) and apart.predicted_seconds > one.predicted_seconds
    assert "outer*:8/1 >" in show(found(causal(512, 512), 8).nest)
    assert "cyclic" not in show(found(np.ones((512, 512), bool), 1).nest)


@settings(max_examples=a_part(60), deadline=None)
@given(st.integers(1, 90), st.integers(1, 300), st.integers(-60, 200), st.integers(1, 40), st.integers(1, 4))
def test_the_busiest_thread_is_found(rows: int, columns: int, at: int, block: int, threads: int) -> None:
    """By counting what each thread's blocks take of the points."""
    bounds, part, grain = (Bound(True, at, (1,)),), 0.75, 64
    blocks = [range(start, min(start + block, rows)) for start in range(0, rows, block)]
    each = -(-len(blocks) // threads)
    for cyclic in (False, True):
        work = [0.0] * threads
        for number, those in enumerate(blocks):
            thread = number % threads
            if not cyclic:
                thread = next(t for t in range(threads) if number < len(blocks) * (t + 1) // threads)
            end = min(max(-(-min(max(row + at, 0), columns) // grain) * grain for row in those), columns)
            first = min(0, columns - 1) // grain * grain
            taken = max(end, min(first + grain, columns)) / columns
            work[thread] += len(those) * (1 - part * (1 - taken))
        found = Columns(columns, bounds, (rows,), part).busiest(block, threads, cyclic)
        assert found == pytest.approx(max(work) / min(rows, each * block))


def test_other_uses_of_the_weights_are_left_alone() -> None:
    """A minimum over columns of the weights themselves would see the zeros."""
    mask = causal(512, 512)

    def f(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores = np.where(mask, q @ k.swapaxes(-1, -2), -np.inf)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return e @ v, np.minimum.reduce(e, axis=-1)

    args = arrays(512, 512)
    graph = trace(f, tuple(args)).graph
    plan = plan_of(graph)
    assert not bounded(plan)
    for ours, exact in zip(interpret(plan, args), evaluate(graph, args), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-3, atol=1e-5)


def test_weights_scaled_by_what_may_be_infinite_are_left_alone() -> None:
    """0 times infinity is NaN, also where the mask hides."""
    group, buffers = masked_group(causal(60, 60), 1, 4, float32)
    assert leave_out(group, buffers)[-1].group.unless
    weights = group.stages[2]
    scale = Load(2, 0, (0, 1, 0), float32)
    kernel = replace(
        weights.kernel,
        body=Call("mul", (weights.kernel.body, scale), float32),
        operands=(*weights.kernel.operands, Operand(float32, 60)),
    )
    stages = (*group.stages[:2], replace(weights, kernel=kernel, sources=(*weights.sources, 5)), *group.stages[3:])
    scaled = replace(group, stages=stages, operands=(*group.operands, Operand(float32, 60)))
    assert len(leave_out(scaled, [*buffers, np.ones(60, np.float32)])) == 1


def test_columns_needed_are_counted_as_they_are() -> None:
    """By the bounds, against the mask itself, in runs of a grain."""
    for mask in (causal(100, 130), window(90, 200), causal(60, 60)[::-1]):
        group, buffers = masked_group(mask, 1, 4, float32)
        whole = leave_out(group, buffers)[-1].group
        kernel = whole.stages[1].kernel
        columns = mask.shape[1]
        for grain in (1, 16, 64):
            seen = 0
            for row in mask:
                places = np.flatnonzero(row)
                seen += min(columns, -(-(places[-1] + 1) // grain) * grain) - places[0] // grain * grain
            part = needed(bounds_of(kernel, 2), kernel.extents[:2], columns, grain)
            assert part == pytest.approx(seen / mask.size)
        for block in (7, 32, 500):
            blocks = [mask[n : n + block] for n in range(0, len(mask), block)]
            seen = sum(np.ptp(np.flatnonzero(rows.any(axis=0))) * len(rows) + len(rows) for rows in blocks)
            part = needed(bounds_of(kernel, 2), kernel.extents[:2], columns, 1, block)
            assert part == pytest.approx(seen / mask.size)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_search_prices_what_rows_need_as_the_evaluator_does(threads: int) -> None:
    group, buffers = masked_group(causal(200, 600), 3, 32, float32)
    whole = leave_out(group, buffers)[-1].group
    target = cpu_target(machine(), threads)
    problem = problem_of(whole, target)
    pricer = Pricer(problem, target)
    assert problem.columns is not None
    parts = [problem.columns.needed(block) for block in (1, 8, 50, 200)]
    assert parts == sorted(parts) and parts[0] < parts[-1]
    _, graph = search_graph(whole, target)
    search = Search(graph, pricer, threads > 1)
    entries = search.roots(20)
    assert len(entries) > 1
    for entry in entries:
        price = evaluate_nest(decode(entry, problem, target), problem, pricer)
        assert price is not None
        total = total_seconds(pricer, price.compute, price.moved, price.fixed, price.scratch)
        assert total == pytest.approx(search.seconds(entry), rel=1e-9)
    assert schedule(whole, target).predicted_seconds < 0.95 * schedule(group, target).predicted_seconds


def test_explain_says_what_rows_need() -> None:
    args = arrays(512, 512)
    text = str(eqsat.optimize(attention(window(512, 512)), threads=1).explain(*args))
    assert "a row needs 23% of 512 columns: column >= row - 63, column < row + 64" in text


# what is run


class _Always:
    """A price by which leaving columns out always pays."""

    def prepare(self, groups: Iterable[KernelGroup]) -> None:
        pass

    def seconds(self, group: KernelGroup) -> float:
        return 0.0 if group.unless or len(group.stages) == 1 else 1.0

    def least(self, group: KernelGroup, parts: Sequence[KernelGroup]) -> float:
        return 0.0


def masked_group(mask: np.ndarray, heads: int, width: int, dtype: object) -> tuple[KernelGroup, list[np.ndarray]]:
    """Attention under a mask that is known, and its buffers."""
    rows, columns = mask.shape
    group = attention_group(heads, rows, columns, width, dtype, False)  # type: ignore[arg-type]
    first = group.stages[0]
    operand = Operand(bool_, mask.size, const=True)
    load = Load(2, 0, (0, columns, 1, 0), bool_)
    f = first.kernel.out.dtype
    hidden: Expr = Call("where", (load, first.kernel.epilogue, Literal(-math.inf, f)), f)
    kernel = replace(first.kernel, epilogue=hidden, operands=(*first.kernel.operands, operand))
    stages = (replace(first, kernel=kernel, sources=(*first.sources, 4)), *group.stages[1:])
    whole = replace(group, stages=stages, operands=(*group.operands, operand))
    buffers = random_buffers(group, 3)
    return whole, [*buffers, mask.reshape(-1)]


def leave_out(group: KernelGroup, buffers: Sequence[np.ndarray]) -> list[PlacedGroup]:
    numbers = iter(range(len(buffers), 99))
    placed = PlacedGroup(group, tuple(range(len(buffers))))
    price = MaskedPrice(lambda t: buffers[t], _Always())
    return split_masked(placed, price, lambda size, operand: next(numbers))


def compare(mask: np.ndarray, buffers: list[np.ndarray], group: KernelGroup, seed: int, threads: int) -> int:
    """Random legal nests of the group without what the mask hides, against the whole one; how many were run."""
    *checks, placed = leave_out(group, buffers)
    tensors = dict(enumerate(buffers))
    for part in checks:
        tensors[part.tensors[-1]] = np.full(1, 9, part.group.operands[-1].dtype.numpy)
        run_group(part.group, [tensors[t] for t in part.tensors])
    plain = [array.copy() for array in buffers]
    with np.errstate(all="ignore"):
        run_group(group, plain)
    host = machine(l1=8 << 10, l2=64 << 10)
    nests = sample(placed.group, cpu_target(host, threads), 2, seed=seed)
    for nest, _ in nests:
        given = [tensors[t] for t in placed.tensors]
        got = run(printed(placed.group, nest, None, threads), given, threads)
        out = placed.group.outputs[0]
        np.testing.assert_allclose(got[out], plain[group.outputs[0]], rtol=2e-4, atol=2e-5)
    return len(nests)


@st.composite
def masks(draw: st.DrawFn) -> np.ndarray:
    """Triangles, bands, paddings, blocks and what hides whole rows, of any size."""
    rows, columns = draw(st.integers(1, 90)), draw(st.integers(1, 260))
    i, j = np.ogrid[:rows, :columns]
    mask = np.ones((rows, columns), bool)
    for kind in draw(st.lists(st.sampled_from(["low", "high", "rising", "padding", "blocks", "rows"]), max_size=3)):
        at = draw(st.integers(-40, 200))
        if kind == "low":
            mask &= j <= i + at
        elif kind == "high":
            mask &= j >= i + at - 150
        elif kind == "rising":
            mask &= i + j <= abs(at) + 20
        elif kind == "padding":
            mask &= j < abs(at) + 1
        elif kind == "blocks":
            mask &= i // (abs(at) + 1) == j // (2 * abs(at) + 3)
        else:
            mask &= i % (abs(at) + 2) != 1
    return mask


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(masks(), st.integers(1, 2), st.sampled_from([3, 16, 33]), st.integers(0, 99), st.integers(1, 2), st.booleans())
def test_any_nest_takes_what_rows_need(
    mask: np.ndarray, heads: int, width: int, seed: int, threads: int, wide: bool
) -> None:
    group, buffers = masked_group(mask, heads, width, float64 if wide else float32)
    compare(mask, buffers, group, seed, threads)


@pytest.mark.slow
@settings(max_examples=a_part(250), deadline=None, suppress_health_check=list(HealthCheck))
@given(masks(), st.integers(1, 3), st.sampled_from([1, 3, 16, 33, 64]), st.integers(0, 999), st.integers(1, 3))
def test_many_nests_take_what_rows_need(mask: np.ndarray, heads: int, width: int, seed: int, threads: int) -> None:
    group, buffers = masked_group(mask, heads, width, float32)
    compare(mask, buffers, group, seed, threads)


def test_columns_left_out_are_not_read() -> None:
    """Where nothing says that a value is not finite, one that is hidden changes nothing: it is not there to be seen."""
    group, buffers = masked_group(causal(96, 512), 1, 16, float32)
    *_, placed = leave_out(group, buffers)
    clean = [*(buffers[t] for t in placed.tensors[:-1]), np.zeros(1, np.int64)]
    (nest, _), *_ = sample(placed.group, cpu_target(machine(), 1), 4, seed=1)
    emitted, out = printed(placed.group, nest, None, 1), placed.group.outputs[0]
    first = run(emitted, clean, 1)[out]
    values = placed.tensors.index(2)
    broken = [array.copy() for array in clean]
    broken[values].reshape(512, 16)[511] = np.nan  # the last row alone sees it
    second = run(emitted, broken, 1)[out]
    assert np.isnan(second.reshape(96, 16)[95]).all()
    np.testing.assert_array_equal(first.reshape(96, 16)[:16], second.reshape(96, 16)[:16])
    broken[-1] = np.ones(1, np.int64)
    assert np.isnan(run(emitted, broken, 1)[out]).all()


@pytest.fixture(scope="module")
def compiled() -> Callable[..., np.ndarray]:
    mask = causal(512, 512)
    mask[:200] = False
    f = eqsat.optimize(attention(mask), threads=1)
    assert bounded(f.compile(*arrays(512, 512)).search())
    return f


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("which", "place"), [(2, 3), (2, 260), (2, 511), (0, 300), (1, 300)])
def test_what_is_not_finite_shows_where_it_does_in_numpy(
    compiled: Callable[..., np.ndarray], bad: float, which: int, place: int
) -> None:
    """NumPy multiplies a masked weight, 0, by every value: 0·inf is NaN in rows that may not see it.

    Rows that see nothing are NaN in any case.
    """
    args = arrays(512, 512)
    args[which][1, place, 5] = bad
    mask = causal(512, 512)
    mask[:200] = False
    with np.errstate(all="ignore"):
        ours, exact = compiled(*args), attention(mask)(*args)
    assert np.isnan(exact[:, :200]).all()
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(ours), np.isinf(exact))
    finite = np.isfinite(exact)
    np.testing.assert_allclose(ours[finite], exact[finite], rtol=1e-4, atol=1e-5)


def test_a_mask_is_of_a_groups_tensors_not_of_its_form() -> None:
    """Two layers of one form, of which one hides nothing; each mask is looked at once."""
    group, buffers = masked_group(causal(512, 512), 2, 8, float32)
    last, asked = len(buffers) - 1, list[int]()

    def value(tensor: int) -> np.ndarray:
        asked.append(tensor)
        return buffers[last] if tensor == last else np.ones_like(buffers[last])

    price = MaskedPrice(value, _Always())
    hiding, plain = (PlacedGroup(group, (*range(last), mask)) for mask in (last, last + 1))
    for _ in range(2):
        assert price.masked(hiding) and not price.masked(plain)
        assert price.seconds(hiding) < price.seconds(plain) == _Always().seconds(group)
    assert sorted(asked) == [last, last + 1]

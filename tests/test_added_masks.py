"""Masks that are added to scores: fewer columns, and the same numbers whatever the scores hide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy.special import erf

import eqsat
from eqsat.frontends.trace import trace
from eqsat.ir.evaluate import evaluate
from eqsat.ir.interpret import run_group
from eqsat.ir.kernel import Acc, Call, Expr, KernelGroup, Literal, Load, Operand
from eqsat.ir.types import DType, float32, float64
from eqsat.schedule.sample import sample
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.conftest import MACHINE
from tests.kernel_groups import machine
from tests.plans import interpret, plan_of
from tests.sweeps import a_part
from tests.test_contract import attention as attention_group
from tests.test_contract import printed, random_buffers, run
from tests.test_masks import bounded, causal, compare, leave_out, masks, window

Function = Callable[..., np.ndarray]
ROWS = 512


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]


def added(keep: np.ndarray, hidden: float = -math.inf) -> np.ndarray:
    return np.where(keep, 0, hidden).astype(np.float32)


def attention(mask: np.ndarray) -> Function:
    def f(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + mask) @ v

    return f


def arrays(rows: int = ROWS, columns: int = ROWS, width: int = 64) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, n, width)).astype(np.float32) for n in (rows, columns, columns)]


FORMS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "plain": lambda q, k, mask: q @ k.swapaxes(-1, -2) + mask,
    "mask first": lambda q, k, mask: mask + q @ k.swapaxes(-1, -2),
    "product scaled": lambda q, k, mask: q @ k.swapaxes(-1, -2) * np.float32(0.125) + mask,
    "product divided": lambda q, k, mask: mask + q @ k.swapaxes(-1, -2) / 8,
    "factor scaled": lambda q, k, mask: (q * np.float32(0.125)) @ k.swapaxes(-1, -2) + mask,
    "subtracted": lambda q, k, mask: q @ k.swapaxes(-1, -2) / 8 - (-mask),
}


@pytest.fixture(scope="module", autouse=True)
def slow_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A machine on which squares are not worth storing, so that attention is one group."""
    *caches, memory = MACHINE.levels
    memory = replace(memory, read_gbs=4.0, copy_gbs=4.0, read_gbs_all=5.0, copy_gbs_all=5.0)
    model = tmp_path_factory.mktemp("slow") / "machine.json"
    model.write_text(replace(MACHINE, levels=(*caches, memory)).to_json())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQSAT_MACHINE", str(model))
        yield


# what is found


@pytest.mark.parametrize(
    ("form", "hidden"),
    [*((form, -math.inf) for form in FORMS), ("plain", -1e9), ("mask first", float(np.finfo(np.float32).min))],
)
def test_what_an_added_mask_hides_is_left_out(form: str, hidden: float) -> None:
    mask, args = added(causal(ROWS, ROWS), hidden), arrays()
    graph = trace(lambda q, k, v: softmax(FORMS[form](q, k, mask)) @ v, tuple(args)).graph
    plan = plan_of(graph)
    (group,) = bounded(plan)
    assert len(group.unless) == 2
    assert all(operand.size < mask.size for operand in group.operands), "the mask is loaded"
    np.testing.assert_allclose(interpret(plan, args)[0], evaluate(graph, args, double=True)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns", "shape"), [(500, 700, causal), (611, 530, window)])
def test_sizes_and_diagonals_are_any(rows: int, columns: int, shape: Callable[[int, int], np.ndarray]) -> None:
    f, args = attention(added(shape(rows, columns))), arrays(rows, columns)
    graph = trace(f, tuple(args)).graph
    plan = plan_of(graph)
    assert bounded(plan)
    np.testing.assert_allclose(interpret(plan, args)[0], evaluate(graph, args, double=True)[0], rtol=1e-4, atol=1e-5)


def test_known_biases_stay_beside_what_is_hidden() -> None:
    """Biases by distance, with a slope for each head, in one array with the mask or in one of their own."""
    i, j = np.ogrid[:ROWS, :ROWS]
    slopes = np.array([0.5, 0.03125], np.float32)[:, None, None]
    biases, mask = (slopes * (j - i)).astype(np.float32), added(causal(ROWS, ROWS))
    args = arrays()

    def apart(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return softmax(q @ k.swapaxes(-1, -2) / 8 + biases + mask) @ v

    for f in (attention(biases + mask), apart):
        graph = trace(f, tuple(args)).graph
        plan = plan_of(graph)
        assert bounded(plan)
        reference = evaluate(graph, args, double=True)[0]
        np.testing.assert_allclose(interpret(plan, args)[0], reference, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_bounded_is_left_alone() -> None:
    args, mask = arrays(), added(causal(ROWS, ROWS))

    def argument(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return attention(mask)(q, k, v)

    assert not bounded(plan_of(trace(argument, (*args, mask)).graph))

    def squared(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return softmax(np.square(q @ k.swapaxes(-1, -2)) + mask) @ v

    assert not bounded(plan_of(trace(squared, tuple(args)).graph))


def test_biases_that_hide_nothing_are_left_alone() -> None:
    """Numbers that are low and not so low that what they are added to vanishes."""
    args = arrays()
    assert not bounded(plan_of(trace(attention(added(causal(ROWS, ROWS), -500.0)), tuple(args)).graph))


@pytest.mark.parametrize("hidden", [-np.inf, -1e9])
def test_what_is_added_inside_of_padding_hides_nothing_outside(hidden: float) -> None:
    mask = np.where(np.arange(7) % 3 == 1, hidden, 0.0)

    def fn(q: Any, k: Any, v: Any) -> Any:
        scores = np.pad(q @ k.T + mask, ((0, 0), (2, 1)))
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return (e / e.sum(axis=-1, keepdims=True)) @ v, np.pad(q + np.arange(5), ((0, 1), (2, 1)))

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in ((6, 5), (7, 5), (10, 5))]
    for got, want in zip(eqsat.optimize(fn, strict=True)(*arrays), fn(*arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_numbers_known_under_a_guard_are_read_inside_of_it() -> None:
    def fn(x: Any) -> Any:
        y = erf(x)
        e = np.exp(y - np.max(y, axis=-2, keepdims=True))
        ranked = e / np.sum(e, axis=-2, keepdims=True) + np.arange(17)
        return np.add(y, ranked).T, np.pad(ranked, ((0, 0), (0, 1), (2, 1)))

    x = np.random.default_rng(0).uniform(-2.0, 2.0, (17, 1, 17)).astype(np.float32)
    for got, want in zip(eqsat.optimize(fn, strict=True)(x), fn(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_explain_says_what_rows_need() -> None:
    text = str(eqsat.optimize(attention(added(window(ROWS, ROWS))), threads=1).explain(*arrays()))
    assert "a row needs 23% of 512 columns: column >= row - 63, column < row + 64" in text


# what is run


def added_group(
    mask: np.ndarray, heads: int, width: int, dtype: DType, scale: float, first: bool, divide: bool
) -> tuple[KernelGroup, list[np.ndarray]]:
    """Attention under a mask that is added, and its buffers."""
    rows, columns = mask.shape
    group = attention_group(heads, rows, columns, width, dtype, False)
    scores = group.stages[0]
    operand = Operand(dtype, mask.size, const=True)
    load = Load(2, 0, (0, columns, 1, 0), dtype)
    product: Expr = Call(
        "div" if divide else "mul", (Acc(dtype), Literal(float(dtype.numpy.type(scale)), dtype)), dtype
    )
    total = Call("add", (load, product) if first else (product, load), dtype)
    kernel = replace(scores.kernel, epilogue=total, operands=(*scores.kernel.operands, operand))
    stages = (replace(scores, kernel=kernel, sources=(*scores.sources, 4)), *group.stages[1:])
    whole = replace(group, stages=stages, operands=(*group.operands, operand))
    return whole, [*random_buffers(group, 3), mask.astype(dtype.numpy).reshape(-1)]


SPOILT = [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e20, 3e18]
"""Values of which some products overflow float32, and some of these only with others."""


@st.composite
def spoilt(draw: st.DrawFn) -> list[tuple[int, int, float]]:
    """Elements of queries, keys and values to be replaced."""
    one = st.tuples(st.integers(0, 2), st.integers(0, 9999), st.sampled_from(SPOILT))
    return draw(st.lists(one, max_size=3))


def check(
    keep: np.ndarray,
    sizes: tuple[int, int],
    dtype: DType,
    form: tuple[float, bool, bool],
    hidden: float,
    bad: Sequence[tuple[int, int, float]],
    seed: int,
    threads: int,
) -> None:
    """As drawn, and with nothing spoilt: then the flags are 0 and the loops are short."""
    group, buffers = added_group(np.where(keep, 0.0, hidden), *sizes, dtype, *form)
    assume(len(leave_out(group, buffers)) > 1)
    assert not any(flags_of(group, buffers))
    compare(keep, buffers, group, seed, threads)
    for which, place, value in bad:
        buffers[which][place % buffers[which].size] = value
    compare(keep, buffers, group, seed, threads)


BAD = settings(deadline=None, suppress_health_check=list(HealthCheck))
FORM = st.tuples(st.sampled_from([0.125, 3.0]), st.booleans(), st.booleans())
HIDDEN = st.sampled_from([-math.inf, -math.inf, -1e9, -1e5])
SIZES = st.tuples(st.integers(1, 2), st.sampled_from([3, 16, 33]))
DRAWN = (
    *(masks(), SIZES, st.sampled_from([float32, float64]), FORM, HIDDEN, spoilt()),
    *(st.integers(0, 99), st.integers(1, 2)),
)


@settings(BAD, max_examples=3)
@given(*DRAWN)
def test_any_nest_takes_what_rows_need(
    keep: np.ndarray,
    sizes: tuple[int, int],
    dtype: DType,
    form: tuple[float, bool, bool],
    hidden: float,
    bad: list[tuple[int, int, float]],
    seed: int,
    threads: int,
) -> None:
    check(keep, sizes, dtype, form, hidden, bad, seed, threads)


@pytest.mark.slow
@settings(BAD, max_examples=a_part(100))
@given(*DRAWN)
def test_many_nests_take_what_rows_need(
    keep: np.ndarray,
    sizes: tuple[int, int],
    dtype: DType,
    form: tuple[float, bool, bool],
    hidden: float,
    bad: list[tuple[int, int, float]],
    seed: int,
    threads: int,
) -> None:
    check(keep, sizes, dtype, form, hidden, bad, seed, threads)


def flags_of(group: KernelGroup, buffers: list[np.ndarray]) -> list[int]:
    """What the checks before a group without hidden columns say."""
    *checks, placed = leave_out(group, buffers)
    tensors = dict(enumerate(buffers))
    for part in checks:
        tensors[part.tensors[-1]] = np.full(1, 9, part.group.operands[-1].dtype.numpy)
        run_group(part.group, [tensors[t] for t in part.tensors])
    return [int(tensors[placed.tensors[operand]][0]) for operand in placed.group.unless]


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("hidden", [-math.inf, -1e9])
def test_flags_say_what_scores_may_hide(dtype: DType, hidden: float) -> None:
    """A product of two large elements anywhere is enough, and neither of them alone."""
    mask = np.where(causal(60, 60), 0, hidden)
    group, clean = added_group(mask, 1, 4, dtype, 0.125, False, False)
    assert flags_of(group, clean) == [0, 0]
    most = math.sqrt(np.finfo(dtype.numpy).max) if math.isinf(hidden) else 3e4
    for which in (0, 1):
        for value in (math.nan, math.inf, -math.inf):
            buffers = [array.copy() for array in clean]
            buffers[which][77] = value
            assert flags_of(group, buffers) == [0, 1]
    buffers = [array.copy() for array in clean]
    buffers[0][3] = most
    assert flags_of(group, buffers) == [0, 0]
    buffers[1][201] = -4 * most
    assert flags_of(group, buffers) == [0, 1]
    clean[2][5] = math.inf
    assert flags_of(group, clean) == [1, 0]


def test_flags_are_needed() -> None:
    """With flags that say all is well, a hidden score that overflows is not seen: the checks above can fail."""
    group, buffers = added_group(np.where(causal(96, 512), 0, -math.inf), 1, 16, float32, 0.125, False, False)
    buffers[0][:16] = buffers[1][511 * 16 :] = 1e20  # the first row may not see the last column
    *_, placed = leave_out(group, buffers)
    (nest, _), *_ = sample(placed.group, cpu_target(machine(), 1), 4, seed=1)
    emitted, out = printed(placed.group, nest, None, 1), placed.group.outputs[0]
    given = [buffers[t] for t in placed.tensors if t < len(buffers)]
    trusted, told = (
        run(emitted, [*given, *(np.full(1, n, np.int64) for n in flags)], 1)[out]
        for flags in ([0, 0], flags_of(group, buffers))
    )
    assert np.isnan(told[:16]).all()
    assert np.isfinite(trusted[:16]).all()


@pytest.fixture(scope="module")
def mask() -> np.ndarray:
    mask = added(causal(ROWS, ROWS))
    mask[:40] = -math.inf
    return mask


@pytest.fixture(scope="module")
def compiled(mask: np.ndarray) -> Function:
    f = eqsat.optimize(attention(mask), threads=1)
    assert bounded(f.compile(*arrays()).search())
    return f


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e25])
@pytest.mark.parametrize(("which", "place"), [(0, 3), (0, 300), (1, 3), (1, 300), (1, 511), (2, 300)])
def test_what_is_not_finite_shows_where_it_does_in_numpy(
    compiled: Function, mask: np.ndarray, bad: float, which: int, place: int
) -> None:
    """A hidden score of NaN or +inf makes its row NaN, one of -inf does not."""
    args = arrays()
    args[which][1, place, 5] = bad
    if bad == 1e25 and which < 2:  # a score of ±1e50 there, which is an infinity
        args[1 - which][1, 450, 5] = math.copysign(1e25, float(args[1 - which][1, 450, 5]))
    with np.errstate(all="ignore"):
        ours, exact = compiled(*args), attention(mask)(*args)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(ours), np.isinf(exact))
    finite = np.isfinite(exact)
    np.testing.assert_allclose(ours[finite], exact[finite], rtol=1e-4, atol=1e-5)

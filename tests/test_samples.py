"""Dear programs whose outputs are computed alike along their outer axes are compared in some blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import eqsat
from eqsat import nn
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.errors import VerificationError
from eqsat.frontends.trace import trace
from eqsat.ir.complexes import as_real
from eqsat.ir.composite import without_composites
from eqsat.verify import blocks as by_blocks
from eqsat.verify import boxes, draws, judge, samples
from eqsat.verify.blocks import Evaluation, demanded, storage
from eqsat.verify.boxes import Pieces, whole
from eqsat.verify.draws import Draws
from eqsat.verify.judge import Judge
from eqsat.verify.programs import Program
from eqsat.verify.strategies import programs
from tests.plans import plan_of
from tests.sweeps import a_part
from tests.test_masks import arrays, attention, causal

HEADS, ROWS = 2, 256


@given(st.lists(st.integers(1, 9), max_size=4), st.integers(1, 50), st.data())
def test_the_piece_that_holds_an_element(shape: list[int], most: int, data: st.DataObject) -> None:
    pieces = Pieces(whole(shape), most)
    at = [data.draw(st.integers(0, n - 1)) for n in shape]
    box = pieces[pieces.holding(at)]
    assert all(low <= n < high for n, (low, high) in zip(at, box, strict=True))


@given(programs(2, 12), st.sampled_from([1, 1000, 10**6]), st.booleans(), st.data())
@settings(max_examples=a_part(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_parts_have_the_values_of_the_whole(drawn: Program, limit: int, double: bool, data: st.DataObject) -> None:
    given = drawn.arrays()
    fn = drawn.function({"nn": nn, "eqsat": eqsat}, {i.name: given[i.name] for i in drawn.inputs if i.captured})
    args = tuple(given[name] for name in drawn.parameters)
    real = [as_real(a) for a in args]
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_blocks, "BLOCK", 40)
        patch.setattr(by_blocks, "SMALL", 16)
        graph = trace(fn, args).graph
        outputs = without_composites(graph.outputs)
        bound = {n: np.ascontiguousarray(v).reshape(n.shape) for n, v in zip(graph.inputs, real, strict=True)}
        places = []
        for node in outputs:
            pieces = Pieces(whole(node.shape), data.draw(st.integers(1, 20)))
            chosen = data.draw(st.sets(st.integers(0, len(pieces) - 1), max_size=3)) if node.type.size else set()
            places += [(node, pieces[n]) for n in sorted(chosen)]
        parts = demanded(places)
        some = Evaluation(storage(outputs, bound, limit, parts), bound, double=double, deadline=Deadline(3))
        everything = Evaluation(storage(outputs, bound, None), bound, double=double, deadline=Deadline(3))
        for node, box in places:
            try:
                got, want = some.part(node, box), everything.part(node, box)
            except OutOfTime:
                reject()
            assert got.dtype == want.dtype
            if want.dtype.kind == "f":
                largest = float(np.abs(np.nan_to_num(want)).max(initial=0))
                relative, absolute = (1e-8, 1e-7) if double else (1e-3, 1e-2 * (1 + largest))
                np.testing.assert_allclose(got, want, rtol=relative, atol=absolute)
            else:
                assert (got == want).mean() > 0.9


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 99), st.data())
def test_products_in_pieces(b: int, m: int, n: int, k: int, alone: int, data: st.DataObject) -> None:
    """Pieces that BLAS computes on one thread are those of the whole, whatever the order of axes."""
    rng = np.random.default_rng(0)
    sizes = {"b": b, "m": m, "n": n, "k": k}
    names = ["".join(data.draw(st.permutations(axes))) for axes in ("bmk", "bkn", "bmn")]
    x, y = (rng.integers(-9, 9, [sizes[c] for c in name]).astype(np.float64) for name in names[:2])
    text = f"{names[0]},{names[1]}->{names[2]}"
    graph = trace(lambda x, y: np.einsum(text, x, y), (x, y)).graph
    bound = dict(zip(graph.inputs, (x, y), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxes, "ALONE", alone)
        got = Evaluation(storage(graph.outputs, bound, None), bound).value(graph.outputs[0])
    np.testing.assert_array_equal(got, np.einsum(text, x, y))


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of a few milliseconds count as dear, and calls cost nothing beside elements."""
    monkeypatch.setattr(judge, "SAMPLED_SECONDS", 1e-3)
    monkeypatch.setattr(samples, "CALL", 0.0)


def judged(fn: Callable[..., Any], args: list[np.ndarray], wrong: Callable[[np.ndarray], None]) -> Judge:
    """A judge of a program that computes what NumPy does, but for what ``wrong`` does to the result."""
    graph = trace(fn, tuple(args)).graph

    def run(given: Any) -> list[np.ndarray]:
        result = np.array(fn(*given))
        wrong(result)
        return [result]

    ends = plan_of(graph).ends()
    return Judge(graph, {}, run, Draws(graph, graph.inputs, args), "reassociates", "", 256 << 20, NEVER, ends=ends)


def nothing(result: np.ndarray) -> None:
    pass


def test_where_stores_begin_and_end() -> None:
    """The parts of a concatenation are stored one by one."""
    parts = trace(lambda x, y: np.concatenate([np.exp(x) @ x.T, np.exp(y) @ x.T]), (np.ones((5, 4)), np.ones((3, 4))))
    (ends,) = plan_of(parts.graph).ends()
    assert ends == [0, 24, 25, 39]


def test_few_blocks_of_an_attention_are_compared(dear: None) -> None:
    one = judged(attention(causal(ROWS, ROWS)), arrays(ROWS, ROWS), nothing)
    assert one.drawn is not None
    (drawn,) = one.drawn
    heads = {box[0][0] for box in drawn}
    assert len(drawn) < 100 and heads == set(range(HEADS))
    assert drawn[0][1][0] == 0 and drawn[-1][1][1] == ROWS
    for kind in (draws.OWN, draws.NORMAL):
        seen = one.examine(kind)
        assert seen.tells(None) and all(e.ok for e in seen.errors)


def first_rows_of_blocks(result: np.ndarray) -> None:
    result[0, ::56] *= 1.01


def last_rows_of_blocks(result: np.ndarray) -> None:
    result[HEADS - 1, 55::56] *= 1.01


def first_element(result: np.ndarray) -> None:
    result[0, 0, 0] += 0.01


def last_element(result: np.ndarray) -> None:
    result[-1, -1, -1] += 0.01


def one_column(result: np.ndarray) -> None:
    result[..., 5] += 0.01


def rows_of_a_tile(result: np.ndarray) -> None:
    result.reshape(-1, 8)[::14] += 0.01


def a_head(result: np.ndarray) -> None:
    result[1] = result[0]


def a_quarter(result: np.ndarray) -> None:
    result[:, ROWS // 4 : ROWS // 2] *= 1.01


@pytest.mark.parametrize(
    "wrong",
    [
        first_rows_of_blocks,
        last_rows_of_blocks,
        first_element,
        last_element,
        one_column,
        rows_of_a_tile,
        a_head,
        a_quarter,
    ],
)
def test_faults_of_an_attention_are_found_in_few_blocks(dear: None, wrong: Callable[[np.ndarray], None]) -> None:
    one = judged(attention(causal(ROWS, ROWS)), arrays(ROWS, ROWS), wrong)
    assert one.drawn is not None
    with pytest.raises(VerificationError):
        one.examine(draws.NORMAL)


WHOLE: dict[str, Callable[[Any], Any]] = {
    "of all elements": lambda x: x - np.exp(x @ x.swapaxes(-1, -2)).max(),
    "in order": lambda x: np.sort(np.exp(x @ x.swapaxes(-1, -2)), axis=-1),
    "joined": lambda x: np.concatenate([np.exp(x @ x.swapaxes(-1, -2)), np.tanh(x @ x.swapaxes(-1, -2))], axis=1),
}


@pytest.mark.parametrize("name", WHOLE)
def test_all_of_what_is_not_alike_is_compared(dear: None, name: str) -> None:
    (x, *_) = arrays(ROWS, ROWS)
    assert judged(WHOLE[name], [x], nothing).drawn is None


def test_an_index_out_of_range_beside_the_blocks_is_the_callers(dear: None) -> None:
    """The program refuses arguments that blocks of the reference allow: all of it is asked."""
    table = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    index = np.arange(ROWS * 16) % 16
    index[ROWS + 1] = 16

    def fn(table: Any, index: Any) -> Any:
        return np.exp(table[index] @ table) @ table

    def run(given: Any) -> list[np.ndarray]:
        return [np.asarray(fn(*given))]

    good = np.minimum(index, 15)
    graph = trace(fn, (table, good)).graph
    drawn = Draws(graph, graph.inputs, [table, index])
    one = Judge(graph, {}, run, drawn, "reassociates", "", 256 << 20, NEVER, ends=[()])
    assert one.drawn is not None
    assert not any(low <= ROWS + 1 < high for (low, high), _ in one.drawn[0])
    with pytest.raises(judge.Invalid):
        one.examine(draws.OWN)

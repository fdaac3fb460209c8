"""The reference by blocks: the same values as all at once, within a limit; and verification within its own."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import eqsat
from eqsat import nn, rules
from eqsat.deadline import Deadline, OutOfTime
from eqsat.errors import VerificationError
from eqsat.frontends.trace import trace
from eqsat.ir import Graph, build, stretches
from eqsat.ir.build import call
from eqsat.ir.complexes import as_real
from eqsat.ir.composite import without_composites
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.loop import Loop, loop
from eqsat.ir.types import TensorType, float32
from eqsat.rules import rewrite, tensors
from eqsat.verify import blocks as by_blocks
from eqsat.verify import check
from eqsat.verify.blocks import Evaluation, storage
from eqsat.verify.boxes import Pieces, compute, operand_boxes, part, volume, whole
from eqsat.verify.programs import Program
from eqsat.verify.strategies import programs
from tests.sweeps import a_part

a, b = tensors("a b")
rng = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


@given(st.lists(st.integers(1, 9), max_size=4), st.integers(1, 50))
def test_a_cut_covers_all_once_in_order(shape: list[int], most: int) -> None:
    count = np.zeros(shape, int)
    order = []
    for box in Pieces(whole(shape), most):
        assert volume(box) <= most
        part(count, box)[...] += 1
        order.append(int(np.ravel_multi_index(tuple(low for low, _ in box), tuple(shape))) if shape else 0)
    assert (count == 1).all()
    assert order == sorted(order)


@given(programs(2, 12), st.sampled_from([1, 1000, 10**6]), st.sampled_from([3, 40]), st.booleans())
@settings(max_examples=a_part(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_blocks_make_the_same_values(drawn: Program, limit: int, block: int, double: bool) -> None:
    arrays = drawn.arrays()
    fn = drawn.function({"nn": nn, "eqsat": eqsat}, {i.name: arrays[i.name] for i in drawn.inputs if i.captured})
    args = tuple(arrays[name] for name in drawn.parameters)
    real = [as_real(a) for a in args]
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_blocks, "BLOCK", block)
        patch.setattr(by_blocks, "SMALL", 16)
        graph = trace(fn, args).graph
        outputs = without_composites(graph.outputs)
        bound = {n: np.ascontiguousarray(v).reshape(n.shape) for n, v in zip(graph.inputs, real, strict=True)}
        # Where hardly anything is stored, sums over sums over sums take a time exponential in their number.
        made = Evaluation(storage(outputs, bound, limit), bound, double=double, deadline=Deadline(3))
        for node, want in zip(outputs, evaluate_nodes(outputs, bound, double=double), strict=True):
            got = np.empty_like(want)
            for box in Pieces(whole(node.shape), block):
                try:
                    piece = made.part(node, box)
                except OutOfTime:
                    reject()
                assert piece.dtype == want.dtype
                part(got, box)[...] = piece
            if want.dtype.kind == "f":
                largest = float(np.abs(np.nan_to_num(want)).max(initial=0))
                near = {"rtol": 1e-8, "atol": 1e-7} if double else {"rtol": 1e-3, "atol": 1e-2 * (1 + largest)}
                np.testing.assert_allclose(got, want, **near)
            else:
                assert not want.size or (got == want).mean() > 0.9


@given(data=st.data())
@settings(max_examples=a_part(150), deadline=None)
def test_a_box_of_merged_axes_reads_no_more_than_rows(data: st.DataObject) -> None:
    """Of an operand whose axes a view joins, cut as groups of channels are: the rows between the first and the last."""
    lead, groups, depth, width = (data.draw(st.integers(1, most)) for most in (3, 5, 4, 6))
    x = np.arange(lead * groups * depth * width).reshape(lead, groups, depth, width)
    joined = build.reshape(build.input_node(0, TensorType(x.shape, float32)), (lead, groups * depth, width))
    box = []
    for n in joined.shape:
        low = data.draw(st.integers(0, n - 1))
        box.append((low, data.draw(st.integers(low + 1, n))))
    (read,) = operand_boxes(joined, tuple(box))
    got = compute(joined, tuple(box), [read], [part(x, read)])
    np.testing.assert_array_equal(got, part(x.reshape(joined.shape), tuple(box)))
    images, channels, _ = (high - low for low, high in box)
    if images == 1:
        assert volume(read) <= (-(-(channels - 1) // depth) + 1) * depth * width


def test_a_large_intermediate_is_never_there_as_a_whole() -> None:
    x, y = normal(3000), normal(3000)
    graph = trace(lambda x, y: np.abs(x[:, None] - y[None, :]).max(), (x, y)).graph
    bound = dict(zip(graph.inputs, (x, y), strict=True))
    plan = storage(graph.outputs, bound, 4 << 20)
    assert plan.peak <= 4 << 20
    tracemalloc.start()
    try:
        value = Evaluation(plan, bound, double=True).value(graph.outputs[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value == np.abs(x.astype(float)[:, None] - y.astype(float)).max()
    assert peak < 8 << 20  # all of it: 72 MB


def test_a_loop_is_evaluated_as_a_whole_however_large_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any, y: Any) -> Any:
        rows = np.zeros((40, *x.shape))
        for t in range(40):
            x = np.sqrt(x * x + 1) - y
            rows[t] = x
        return np.exp(-x) + 1, rows[::-1].mean(axis=0)

    x, y = rng.random((40, 5)), rng.random((40, 5))
    monkeypatch.setattr(stretches, "LEAST_NODES", 1)
    monkeypatch.setattr(by_blocks, "BLOCK", 16)
    monkeypatch.setattr(by_blocks, "SMALL", 16)
    graph = trace(fn, (x, y)).graph
    assert any(node.op == "loop" for node in graph.nodes())
    bound = dict(zip(graph.inputs, (x, y), strict=True))
    made = Evaluation(storage(graph.outputs, bound, 1), bound, double=True)
    for node, want in zip(graph.outputs, fn(x, y), strict=True):
        for box in Pieces(whole(node.shape), 16):
            np.testing.assert_allclose(made.part(node, box), part(want, box), rtol=1e-14)


LARGE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "pairs": (
        lambda x, y: np.abs(x[:, None] - y[None, :]).min(),
        (normal(6_000), normal(6_000)),
        rewrite(np.abs(a), a, id="wrong.large"),
    ),
    "repeated": (
        lambda x: np.tanh(np.broadcast_to(x, (60_000, 500))).sum(),
        (normal(500),),
        rewrite(np.tanh(a), a, id="wrong.large"),
    ),
    "elementwise": (
        lambda x: np.tanh(x) * 0.5 + x,
        (normal(4_000_000),),
        rewrite(np.tanh(a), np.minimum(a, 0.75), id="wrong.large"),
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_verification_stays_within_its_limit_and_still_sees(name: str) -> None:
    fn, args, wrong = LARGE[name]
    program = eqsat.optimize(fn, cache=False, verify=False).compile(*args)
    needs = sum(x.nbytes for x in args) + program.executable.peak_bytes
    limit = check.sizes(program.traced.graph, program.executable.peak_bytes).limit
    assert check.LEAST_MEMORY <= limit <= max(check.LEAST_MEMORY, 1.5 * 2 * needs)
    f = eqsat.optimize(fn, cache=False)
    tracemalloc.start()
    try:
        f.compile(*args)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit
    rules.add(wrong, check=False)
    try:
        with pytest.raises(VerificationError):
            eqsat.optimize(fn, cache=False).compile(*args)
    finally:
        rules.remove(wrong.id)


def test_out_of_memory_says_whose_and_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(lambda x: x + 1, (normal(1 << 20),)).graph
    x = normal(1 << 20)

    def none(*_: Any) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError, match="the program itself needs 4 MiB"):
        check.verify(graph, {}, none, [x])
    monkeypatch.setattr(Evaluation, "_made", none)
    with pytest.raises(MemoryError, match=r"verification needs up to 256 MiB beside the 8 MiB.*verify=False"):
        check.verify(graph, {}, lambda arrays: [arrays[0] + 1], [x])


def test_a_deadline_that_has_passed_ends_verification() -> None:
    x = normal(4000, 600)
    graph = trace(lambda x: np.tanh(x) @ x.T, (x,)).graph
    deadline = Deadline(0.0)
    start = time.monotonic()
    with pytest.raises(OutOfTime):
        check.verify(graph, {}, lambda arrays: [np.tanh(arrays[0]) @ arrays[0].T], [x], deadline=deadline)
    assert time.monotonic() - start < 30


def test_a_loop_is_run_once_for_all_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (build.input_node(n, TensorType((3, 5), float32)) for n in range(3))
    body = Graph((a, b, c), (call("add", a, c), call("mul", b, c), call("sub", a, b)))
    results = loop(Loop(4, body, 2, (0,)), (a, b, c))
    values = {node: normal(3, 5) for node in (a, b, c)}
    want = evaluate_nodes(results, values)
    runs = []
    sound = by_blocks.evaluate_loop
    monkeypatch.setattr(by_blocks, "evaluate_loop", lambda *a, **k: runs.append(0) or sound(*a, **k))
    made = Evaluation(storage(results, values, None), values)
    for result, value in zip(results, want, strict=True):
        np.testing.assert_array_equal(made.value(result), value)
    assert len(runs) == 1

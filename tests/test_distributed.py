"""Contractions computed before the loop they are in: what they compute, where that pays, and whole programs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.cost.machine import cpu_name
from eqsat.distribution import computed_ahead
from eqsat.frontends.trace import trace
from eqsat.ir import build
from eqsat.ir.distributed import distributed
from eqsat.ir.evaluate import evaluate
from eqsat.ir.loop import Loop, loop, of_loop
from eqsat.ir.node import Formed, Graph
from eqsat.ir.spec import Spec
from eqsat.ir.types import TensorType, float64
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import DESK, machine
from tests.sweeps import a_part

SMALL = replace(machine(l1=4 << 10, l2=16 << 10, l3=160 << 10), cpu=cpu_name())


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape) / max(1, shape[-1])


def loops(graph: Graph) -> list[Loop]:
    return [found for found in dict.fromkeys(map(of_loop, graph.nodes())) if found is not None]


def products(graph: Graph) -> int:
    return sum(isinstance(node.attrs, Spec) for node in graph.nodes())


def everything_ahead(fn: Callable[..., Any], *args: np.ndarray) -> tuple[Graph, Formed | None]:
    """The traced graph, and with all before its loops that can be, which computes the same."""
    graph = trace(fn, args).graph
    made = distributed(graph, lambda ahead: True)
    if made is not None:
        assert set(made.graph.inputs) == set(graph.inputs)
        assert set(made.origins.values()) >= set(graph.outputs)
        with np.errstate(all="ignore"):
            for one, other in zip(evaluate(graph, args), evaluate(made.graph, args), strict=True):
                np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-12)
    return graph, made


def recurrent(x: Any, w: Any, u: Any) -> Any:
    h = np.zeros_like(x[0] @ w)
    states = []
    for t in range(x.shape[0]):
        h = np.tanh(x[t] @ w + h @ u)
        states.append(h)
    return np.stack(states)


def backwards(x: Any, w: Any, u: Any) -> Any:
    h = np.zeros_like(x[0] @ w)
    for t in reversed(range(x.shape[0])):
        h = np.tanh(x[t] @ w + h @ u)
    return h


def joined(x: Any, w: Any, u: Any) -> Any:
    both = np.concatenate([w, u])
    h = np.zeros_like(x[0] @ w)
    for t in range(x.shape[0]):
        h = np.tanh(np.concatenate([x[t], h], axis=-1) @ both)
    return h


def joined_around(x: Any, w: Any, u: Any) -> Any:
    """The state lies between two parts that it does not touch."""
    both = np.concatenate([w, u, w])
    h = np.zeros_like(x[0] @ w)
    for t in range(x.shape[0]):
        h = np.tanh(np.concatenate([x[t], h, 2 * x[t]], axis=-1) @ both)
    return h


def of_columns(x: Any, w: Any, u: Any) -> Any:
    """Matrix first, columns of a matrix; what is multiplied is computed on the trip."""
    rows = np.ascontiguousarray(x.reshape(x.shape[0], -1).T)
    wide = np.zeros((3, rows.shape[0])) + np.arange(rows.shape[0])
    s = np.zeros(3)
    for t in range(rows.shape[1]):
        s = np.cos(s + wide @ np.exp(rows[:, t] - rows[:, t].max()))
    return s


def overlapping(x: Any, w: Any, u: Any) -> Any:
    """Differences of steps, and a row that is the same on all of them."""
    h = np.zeros_like(x[0] @ w)
    both = np.concatenate([w, w])
    for t in range(1, x.shape[0]):
        h = np.sin(np.concatenate([x[t] - x[t - 1], x[0]], axis=-1) @ both - h @ u)
    return h


@pytest.mark.parametrize("fn", [recurrent, backwards, joined, joined_around, of_columns, overlapping])
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_what_loops_need_not_compute_is_computed_before(fn: Callable[..., Any], batch: tuple[int, ...]) -> None:
    args = normal(100, *batch, 5), normal(5, 4), normal(4, 4)
    graph, made = everything_ahead(fn, *args)
    (before,) = loops(graph)
    assert made is not None
    (after,) = loops(made.graph)
    assert products(made.graph) > products(graph)
    inside = products(after.body)
    assert inside == (0 if fn is of_columns else 1)
    assert inside < products(before.body) or "joined" in fn.__name__


def test_what_depends_on_the_state_stays() -> None:
    def power(x: Any, w: Any) -> Any:
        for _ in range(100):
            x = np.tanh(w @ x)
        return x

    def by_what_is_carried(x: Any, w: Any) -> Any:
        h = w
        for t in range(100):
            h = h / (1 + x[t] @ h)
        return h

    assert everything_ahead(power, normal(4), normal(4, 4))[1] is None
    assert everything_ahead(by_what_is_carried, normal(100, 4), normal(4, 4))[1] is None


def test_a_product_that_needs_much_for_all_trips_stays() -> None:
    def attend(x: Any, keys: Any, values: Any) -> Any:
        h = np.zeros(4)
        for t in range(x.shape[0]):
            scores = np.exp(keys @ x[t])
            h = np.tanh(h + scores @ values)
        return h

    x, many = normal(100, 4), np.broadcast_to(0.25, (1_000_000, 4))
    assert found(attend, x, many[:4000], many[:4000]) is not None
    assert found(attend, x, many, many) is None, "100 times 8 MB"


def test_values_are_handed_on_for_any_number_of_trips() -> None:
    count, type = 300, TensorType((2,), float64)
    inputs = [build.input_node(n, type) for n in range(count + 1)]
    delayed = Loop(3, Graph(tuple(inputs), (inputs[-1], *inputs[: count - 1], inputs[count - 1])), count, (2,))
    given = [*inputs[:-1], build.input_node(count, TensorType((6,), float64))]
    graph = Graph(tuple(given), tuple(loop(delayed, given)))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 200)
    try:
        assert distributed(graph, lambda ahead: False) is None
    finally:
        sys.setrecursionlimit(limit)


@settings(deadline=None, max_examples=a_part(60))
@given(
    st.sampled_from([90, 101, 128]),
    st.sampled_from([(), (1,), (2,), (2, 3)]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["rows", "steps of two", "reversed", "repeated"]),
    st.sampled_from([recurrent, joined, joined_around, overlapping]),
)
def test_any_shapes(trips: int, batch: tuple[int, ...], n: int, m: int, order: str, fn: Callable[..., Any]) -> None:
    x = normal(2 * trips, *batch, n)

    def program(x: Any, w: Any, u: Any) -> Any:
        if order == "repeated":
            x = np.broadcast_to(x[:1], x.shape)
        steps = {"rows": slice(None), "steps of two": slice(None, None, 2), "reversed": slice(None, None, -1)}
        return fn(x[steps.get(order, slice(None))], w, u)

    everything_ahead(program, x, normal(n, m), normal(m, m))


def found(fn: Callable[..., Any], *args: np.ndarray, host: Any = SMALL, exact: bool = False) -> Formed | None:
    return computed_ahead(trace(fn, args).graph, cpu_target(host, 1), exact=exact)


def test_it_is_done_where_trips_read_much_again() -> None:
    large = normal(64, 1, 200), normal(200, 100), normal(100, 100)
    assert found(recurrent, *large) is not None
    assert found(joined, *large) is not None
    assert found(joined, *large, exact=True) is None, "the sum is split"
    assert found(recurrent, *large, exact=True) is not None, "no sum is split"
    many = normal(64, 256, 20), normal(20, 16), normal(16, 16)
    assert found(recurrent, *many, host=DESK) is None, "rows enough on a trip, and weights nearby"


def test_programs_compute_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(SMALL.to_json())
    monkeypatch.setenv("EQSAT_MACHINE", str(tmp_path / "machine.json"))
    args = [each.astype(np.float32) for each in (normal(64, 1, 200), normal(200, 100), normal(100, 100))]
    for fn in (recurrent, joined, backwards):
        f = eqsat.optimize(fn, threads=1)
        np.testing.assert_allclose(f(*args), fn(*args), rtol=1e-4, atol=1e-5)
        report = f.explain(*args)
        print(report)
        (large,) = [step for step in report.steps if "×100×200" in step.label and step.flops > 1e6]
        assert large.trips == 1
        assert any("test_distributed.py" in str(line) for line in large.source)

"""Loops none of whose trips needs another's are operators over all of them, and compute what the trips do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import EqsatWarning, VerificationError
from eqsat.frontends.trace import trace
from eqsat.ir import build
from eqsat.ir.batched import FOLDS, batched
from eqsat.ir.evaluate import evaluate
from eqsat.ir.loop import Loop, loop, of_loop, with_bodies
from eqsat.ir.node import Graph, substitute
from eqsat.ir.types import TensorType
from eqsat.verify.programs import Program
from eqsat.verify.strategies import programs
from tests.drawn import traced_with_values
from tests.sweeps import a_part

RNG = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def row_products(a: Any, w: Any) -> Any:
    out = np.empty((a.shape[0], w.shape[1]))
    for i in range(a.shape[0]):
        out[i] = a[i] @ w
    return out


def elements(a: Any, b: Any) -> Any:
    out = np.zeros(a.shape)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[i, j] = np.sin(a[i, j]) + b[i]
    return out


def softmax_rows(a: Any) -> Any:
    out = np.empty_like(a)
    for i in range(a.shape[0]):
        e = np.exp(a[i] - a[i].max())
        out[i] = e / e.sum()
    return out


def in_place(a: Any, w: Any) -> Any:
    for i in range(a.shape[0]):
        a[i] = a[i] @ w
    return a


def distances(a: Any, b: Any) -> Any:
    d = np.zeros((a.shape[0], b.shape[0]))
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            d[i, j] = np.sqrt(((a[i] - b[j]) ** 2).sum())
    return d


def backwards(a: Any) -> Any:
    return np.array([a[i] * 2 + a[0] for i in range(a.shape[0] - 1, -1, -1)])


def windows(x: Any) -> Any:
    return np.array([x[i : i + 7].mean() + x[i : i + 7].std() for i in range(x.size - 7)])


def sorted_rows(a: Any) -> Any:
    return np.stack([np.cumsum(np.sort(row)) - row.argmax() for row in a])


def looked_up(table: Any, k: Any) -> Any:
    return np.stack([table[:, k[i]] for i in range(k.shape[0])])


def pieces(a: Any) -> Any:
    return np.stack([np.concatenate([np.pad(row, 1), row[:2], a[0, :2]]) for row in a])


def mapped(a: Any) -> Any:
    return eqsat.scan(lambda carry, row: (carry, row / np.sqrt((row * row).sum())), None, a)[1]


def upper(x: Any) -> Any:
    return np.stack([np.outer(row, row) + np.outer(x[0], row) for row in x])


def dot(a: Any, b: Any) -> Any:
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


def products_of_rows(a: Any, b: Any) -> Any:
    c = np.ones((a.shape[1], b.shape[1]))
    for k in range(a.shape[0]):
        c += a[k, :, None] * b[k]
    return c


def ranges(a: Any) -> Any:
    low, high = a[0], a[0]
    for row in a:
        low, high = np.minimum(low, row), np.maximum(high, np.abs(row))
    return low, high


def both(a: Any, b: Any) -> Any:
    total, parts = np.zeros(a.shape[1]), []
    for i in range(a.shape[0]):
        parts.append(np.tanh(a[i]) * b[i])
        total += parts[-1]
    return total, np.stack(parts)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "row_products": (row_products, (normal(200, 6), normal(6, 4))),
    "elements": (elements, (normal(40, 30), normal(40))),
    "softmax_rows": (softmax_rows, (normal(100, 9),)),
    "in_place": (in_place, (normal(70, 5, 6), normal(6, 6))),
    "distances": (distances, (normal(23, 3), normal(19, 3))),
    "backwards": (backwards, (normal(200, 3),)),
    "windows": (windows, (normal(150),)),
    "sorted_rows": (sorted_rows, (normal(120, 6),)),
    "looked_up": (looked_up, (normal(4, 9), RNG.integers(0, 9, (200, 3)))),
    "pieces": (pieces, (normal(130, 4),)),
    "mapped": (mapped, (normal(30, 4),)),
    "dot": (dot, (normal(300), normal(300))),
    "products_of_rows": (products_of_rows, (normal(150, 4), normal(150, 3))),
    "ranges": (ranges, (normal(200, 5),)),
    "both": (both, (normal(200, 5), normal(200))),
    "upper": (upper, (normal(150, 4),)),
}
SUMS = (dot, products_of_rows, both)
"""Loops that round, and are loops until the program is planned."""


def leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def copies(args: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(a.copy() for a in args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_over_what_is_independent_are_none(name: str) -> None:
    fn, args = PROGRAMS[name]
    traced = trace(fn, copies(args))
    formed = batched(traced.graph, rounding=True)
    assert (formed is not None) == (fn in SUMS)
    graph = traced.graph if formed is None else formed.graph
    assert not any(of_loop(node) for node in with_bodies(graph))
    assert traced.rolled is None
    assert len(graph.nodes()) < 40


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_compute_what_the_loop_does(name: str) -> None:
    fn, args = PROGRAMS[name]
    wanted = fn(*copies(args)) if fn is not mapped else args[0] / np.sqrt((args[0] ** 2).sum(axis=1, keepdims=True))
    for threads in (1, 2):
        f = eqsat.optimize(fn, threads=threads, strict=True, check_speed=False)
        for got, want in zip(leaves(f(*copies(args))), leaves(wanted), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    assert "test_batched.py" in str(f.explain(*copies(args)))


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: eqsat.scan(lambda c, row: (c + row, c * row), np.zeros(3), x), (normal(30, 3),)),
        (lambda x: np.stack([np.outer(row, row) for row in x]), (normal(9, 200),)),
        (lambda x: eqsat.scan(lambda c, row: (c + row, c), np.zeros(3), x), (normal(30, 3),)),
        (lambda x: eqsat.scan(lambda c, row: (c + c * row, row), np.zeros(3), x), (normal(30, 3),)),
        (
            lambda x: eqsat.scan(lambda c, row: (c + row, row), np.zeros(3, np.float16), x)[0],
            (normal(30, 3).astype("e"),),
        ),
    ],
    ids=["a trip needs the one before", "a trip is long", "sums are wanted", "a sum of itself", "each sum is rounded"],
)
def test_other_loops_stay(fn: Callable[..., Any], args: tuple[np.ndarray, ...]) -> None:
    traced = trace(fn, args)
    graphs = [traced.graph, *([] if traced.rolled is None else [traced.rolled])]
    loops = [graph for graph in graphs if any(of_loop(node) for node in graph.nodes())]
    assert loops
    assert all(batched(graph, rounding=True) is None for graph in loops)


def test_sums_of_floats_are_batched_by_the_plan_alone() -> None:
    """What is compiled is held against sums in their order; with ``exact`` numerics it adds up in that order, too."""
    args = normal(300).astype(np.float32), normal(300).astype(np.float32)

    def narrow(a: Any, b: Any) -> Any:
        total = np.float32(0)
        for i in range(a.size):
            total = total + a[i] * b[i]
        return total

    graph = trace(narrow, args).graph
    assert any(of_loop(node) for node in graph.nodes())
    formed = batched(graph, rounding=True)
    assert formed is not None
    assert not any(of_loop(node) for node in formed.graph.nodes())
    fast, exact = (
        eqsat.optimize(narrow, numerics=n, strict=True, check_speed=False) for n in ("reassociates", "exact")
    )
    assert exact(*args) == narrow(*args)
    np.testing.assert_allclose(fast(*args), narrow(*args), rtol=1e-4, atol=1e-4)


def test_what_leaves_the_range_in_another_order_only_is_refused() -> None:
    a = np.array([1e308, -1e308] * 20)

    def total(a: Any) -> Any:
        t = a[1]
        for i in range(40):
            t = t + a[i]
        return t

    with pytest.raises(VerificationError):
        eqsat.optimize(total, strict=True, check_speed=False)(a)
    with pytest.warns(EqsatWarning):
        assert eqsat.optimize(total, check_speed=False)(a) == total(a)
    assert eqsat.optimize(total, numerics="exact", strict=True, check_speed=False)(a) == total(a)


def test_a_large_batch_stays_a_loop() -> None:
    """Whoever loops over rows may do so because all of it would not fit."""

    def farthest(a: Any) -> Any:
        out = np.empty(a.shape[0])
        for i in range(a.shape[0]):
            out[i] = np.abs(a[i] - a).sum(axis=-1).max()
        return out

    few, many = (trace(farthest, (normal(n, 4),)).graph for n in (200, 2000))
    assert not any(of_loop(node) for node in few.nodes())
    assert any(of_loop(node) for node in many.nodes())


def test_loops_in_loops_that_carry() -> None:
    """Rows of a time step are independent; steps are not."""

    def steps(x: Any) -> Any:
        def step(k: Any, u: Any) -> Any:
            v = u.copy()
            for i in range(1, u.shape[0] - 1):
                v[i] = 0.25 * (u[i - 1] + 2 * u[i] + u[i + 1])
            return v

        return eqsat.fori_loop(0, 12, step, x)

    graph = trace(steps, (normal(300, 4),)).graph
    (outer,) = {loop for node in with_bodies(graph) if (loop := of_loop(node)) is not None}
    assert outer.carries == 1


def stacked(value: np.ndarray, trips: int, seed: int) -> np.ndarray:
    """As many values like one: other floats, the same integers (which may be indices) elsewhere."""
    if value.dtype.kind == "f":
        return np.random.default_rng(seed).standard_normal((trips, *value.shape)).astype(value.dtype)
    return np.stack([np.roll(value, trip) for trip in range(trips)])


@given(
    programs(1, 12),
    st.integers(2, 5),
    st.sets(st.integers(0, 5), min_size=1),
    st.lists(st.sampled_from(["stacked", "passed on", *FOLDS]), max_size=3),
)
@settings(max_examples=a_part(400), deadline=None, suppress_health_check=list(HealthCheck))
def test_bodies_of_any_operators(drawn: Program, trips: int, moving: set[int], ways: list[str]) -> None:
    """Any program as a body: some arguments move, some results are folded, passed on to the next trip, or stacked."""
    graph, values = traced_with_values(drawn)
    moving = {n for n in moving if n < len(values) and values[n].size}
    assume(moving)
    kept = [o for o in dict.fromkeys(graph.outputs) if o not in graph.inputs]
    results = [
        (
            o,
            way
            if way in ("stacked", "passed on") or (o.dtype.kind in ("float", "int") and not o.dtype.is_half)
            else "stacked",
        )
        for o, way in zip(kept, [*ways, *["stacked"] * len(kept)], strict=False)
    ]
    carried = [(o, way) for o, way in results if way != "stacked"]
    count = len(carried)
    starts = [stacked(np.ones(o.shape, o.dtype.numpy), 1, n)[0] for n, (o, _) in enumerate(carried)]
    carries = [build.input_node(n, o.type) for n, (o, _) in enumerate(carried)]
    operands, inputs, instead, steps = [], [], {}, []
    for n, node in enumerate(graph.inputs):
        if n in moving:
            values[n] = stacked(values[n], trips, n)
        type = TensorType((node.type.size,), node.dtype) if n in moving else node.type
        inputs.append(build.input_node(count + n, type))
        operands.append(build.input_node(count + n, TensorType(values[n].shape, node.dtype)))
        instead[node] = build.reshape(inputs[n], node.shape) if n in moving else inputs[n]
        steps.append(node.type.size if n in moving else 0)
    made_of = dict(zip(kept, substitute(kept, instead), strict=True))
    ends = [
        made_of[o] if way == "passed on" else build.call(way, carry, made_of[o])
        for carry, (o, way) in zip(carries, carried, strict=True)
    ]
    body = Graph((*carries, *inputs), (*ends, *(made_of[o] for o, way in results if way == "stacked")))
    given_nodes = [*carries, *operands]
    whole = Graph(tuple(given_nodes), tuple(loop(Loop(trips, body, count, tuple(steps)), given_nodes)))
    formed = batched(whole, rounding=True)
    made = whole if formed is None else formed.graph
    with np.errstate(all="ignore"):
        both = (evaluate(graph, [*starts, *values], double=True) for graph in (made, whole))
        for got, want in zip(*both, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)

"""Matrices that are read once for two passes: what the loop over blocks of rows computes, and where there is one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.cost.machine import Machine, cpu_name
from eqsat.frontends.trace import trace
from eqsat.ir.evaluate import evaluate
from eqsat.ir.loop import Loop, of_loop, with_bodies
from eqsat.ir.node import Graph
from eqsat.ir.row_blocks import in_row_blocks, row_blocks
from eqsat.rereads import read_once
from eqsat.verify.programs import Program
from eqsat.verify.strategies import programs
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.drawn import traced_with_values
from tests.kernel_groups import DESK, machine
from tests.sweeps import a_part

SMALL = replace(machine(l1=4 << 10, l2=64 << 10, l3=128 << 10), step_us=0.004, cpu=cpu_name())
"""Caches of which none holds 300 rows of 100 float64, and the second one 40 of them."""


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def normal_equations(a: Any, x: Any) -> Any:
    return (a @ x) @ a


def biconjugate(a: Any, p: Any, r: Any) -> Any:
    return r @ a, a @ p


def logistic(a: Any, y: Any, w: Any) -> Any:
    return w - 0.1 * (a.T @ (1 / (1 + np.exp(-(a @ w))) - y))


def means_of_nearest(a: Any, centres: Any) -> Any:
    nearest = ((a[:, None] - centres) ** 2).sum(axis=-1).argmin(axis=1)
    mine = (nearest[:, None] == np.arange(centres.shape[0])).astype(a.dtype)
    return (mine.T @ a) / (1 + mine.sum(axis=0)[:, None])


def marginals(a: Any) -> Any:
    return a.sum(axis=0), a.sum(axis=1), a.sum()


def scaled(c: Any, v: Any) -> Any:
    k = np.exp(-c)
    return (1 / (1 + k @ v)) @ k


def scaled_again(k: Any, v: Any) -> Any:
    """Each loop needs the sums of the one before."""
    for _ in range(3):
        u = 1 / (4 + (k @ v) ** 2)
        v = 1 / (4 + (k.T @ u) ** 2)
    return u, v


def centred(a: Any, w: Any) -> Any:
    b = a - a.mean(axis=0)
    return (b @ w) @ b


def weighted(a: Any, v: Any) -> Any:
    e = np.exp(a)
    return (e / e.sum(axis=1, keepdims=True)).T @ v


def shared(a: Any, x: Any) -> Any:
    """A square matrix, and a vector that goes along its rows and, block by block, beside them."""
    return ((a @ x) * x) @ a, a @ (2 * x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], int]] = {
    "normal_equations": (normal_equations, (normal(11, 7), normal(7)), 1),
    "biconjugate": (biconjugate, (normal(11, 7), normal(7), normal(11)), 1),
    "logistic": (logistic, (normal(11, 7), normal(11), normal(7)), 1),
    "means_of_nearest": (means_of_nearest, (normal(11, 7), normal(3, 7)), 1),
    "marginals": (marginals, (normal(11, 7),), 1),
    "scaled": (scaled, (normal(11, 7), normal(7)), 1),
    "scaled_again": (scaled_again, (normal(11, 7), normal(7)), 3),
    "centred": (centred, (normal(11, 7), normal(7)), 1),
    "weighted": (weighted, (normal(11, 7), normal(11, 2)), 1),
    "shared": (shared, (normal(11, 11), normal(11)), 1),
}


def same_in_blocks(graph: Graph, args: list[np.ndarray], rows: int) -> int:
    """How many loops over rows of the program's tensors there may be; each computes what the program does."""
    count = 0
    for matrix in graph.nodes():
        if matrix.type.ndim < 2 or matrix.shape[0] < 2 * rows:
            continue
        for blocks in row_blocks(graph, matrix):
            count += 1
            formed = in_row_blocks(graph, blocks, rows)
            (loop,) = loops_of(formed.graph) - loops_of(graph)
            assert loop.parts
            assert loop.trips == matrix.shape[0] // rows
            stand_for = {formed.origins.get(n, n) for n in with_bodies(formed.graph)}
            assert stand_for >= {*blocks.sums, *(n for n in graph.nodes() if n.op == "input")}
            with np.errstate(all="ignore"):
                wanted = evaluate(graph, args, double=True)
                for one, other in zip(evaluate(formed.graph, args, double=True), wanted, strict=True):
                    largest = np.abs(other[np.isfinite(other)]).max(initial=1.0) if other.dtype.kind == "f" else 1.0
                    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * largest)
    return count


def loops_of(graph: Graph) -> set[Loop]:
    return {loop for node in with_bodies(graph) if (loop := of_loop(node)) is not None}


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", PROGRAMS)
def test_blocks_compute_the_whole(name: str, rows: int) -> None:
    fn, args, loops = PROGRAMS[name]
    graph = trace(fn, args).graph
    assert same_in_blocks(graph, list(args), rows) >= loops


@given(programs(2, 14), st.integers(1, 4))
@settings(max_examples=a_part(200), deadline=None, suppress_health_check=list(HealthCheck))
def test_blocks_of_any_program(drawn: Program, rows: int) -> None:
    graph, real = traced_with_values(drawn)
    same_in_blocks(graph, real, rows)


@st.composite
def two_passes(draw: st.DrawFn) -> tuple[str, tuple[np.ndarray, ...]]:
    """A program that goes over ``a`` by rows and over all of them, by a drawn way each."""
    n, m = draw(st.integers(2, 9)), draw(st.integers(1, 9))
    form = draw(
        st.sampled_from(["a", "a.T.T", "(a * 2)", "np.exp(-a)", "(a - a.mean(axis=0))", "(a + x)", "(a * y[:, None])"])
    )
    row = draw(
        st.sampled_from(["b @ x", "x @ b.T", "b.sum(axis=1)", "(b * x).max(axis=1)", "np.einsum('ij,j->i', b, x)"])
    )
    between = draw(
        st.sampled_from(["u", "u + y", "np.tanh(u) * y", "u / (1 + np.abs(u).sum())", "u[:, None] * np.ones(2)"])
    )
    over = draw(
        st.sampled_from(
            ["b.T @ v", "v.T @ b", "np.tensordot(v, b, (0, 0))", "v.sum(axis=0) + (y @ b).sum()", "(v.T @ b, u)"]
        )
    )
    return f"b = {form}; u = {row}; v = {between}; r = {over}", (normal(n, m), normal(m), normal(n))


@given(two_passes(), st.integers(1, 4))
@settings(max_examples=a_part(400), deadline=None)
def test_two_passes_of_any_kind(drawn: tuple[str, tuple[np.ndarray, ...]], rows: int) -> None:
    text, args = drawn

    def program(a: Any, x: Any, y: Any) -> Any:
        names = {"a": a, "x": x, "y": y, "np": np}
        exec(text, names)
        return names["r"]

    graph = trace(program, args).graph
    count = same_in_blocks(graph, list(args), rows)
    assert count or args[0].shape[0] < 2 * rows or "sum()" in text, text


@pytest.mark.parametrize(
    "needs_all",
    [
        lambda a, x: (a @ x, (a @ x) / (a @ x).sum()),
        lambda a, x: np.sort(a, axis=0) @ x,
        lambda a, x: a @ a.T,
        lambda a, x: (a.T @ (2 * x), a.sum(axis=0)),
        lambda a, x: np.cumsum(a, axis=0) @ x,
        lambda a, x: a[::-1] @ x,
        lambda a, x: (a @ x).max(),
    ],
)
def test_one_pass_is_none_too_many(needs_all: Callable[[Any, Any], Any]) -> None:
    graph = trace(needs_all, (normal(6, 6), normal(6))).graph
    assert row_blocks(graph, graph.inputs[0]) == []


def test_sums_of_small_types_are_carried_in_wide_ones() -> None:
    """Blocks of float16 are not rounded one by one: traced sums of it are of float32, rounded in the end."""
    args = normal(6, 5).astype(np.float16), normal(5).astype(np.float16)
    graph = trace(normal_equations, args).graph
    sums = [
        node for matrix in graph.nodes() if matrix.type.ndim > 1 for b in row_blocks(graph, matrix) for node in b.sums
    ]
    assert sums
    assert not any(node.dtype.is_half for node in sums)


def once(host: Machine, rows: int, columns: int, threads: int = 1, const: bool = False) -> set[Loop]:
    graph = trace(logistic, (normal(rows, columns), normal(rows), normal(columns))).graph
    held = frozenset(graph.inputs[:1]) if const else frozenset()
    formed = read_once(graph, held, cpu_target(host, threads))
    return set() if formed is None else loops_of(formed.graph)


def test_a_loop_is_made_where_no_cache_holds_the_matrix() -> None:
    (loop,) = once(SMALL, 300, 100)
    assert loop.trips * 4 <= 300
    assert once(SMALL, 20, 100) == set(), "all of it fits a cache"
    assert once(DESK, 300, 100) == set(), "all of it fits the cache of a larger machine"
    assert once(SMALL, 6, 6000) == set(), "no block of rows fits"
    assert once(SMALL, 300, 100, const=True) == set(), "what is known may be packed"
    assert {loop.trips for loop in once(SMALL, 300, 100, threads=2)} <= {loop.trips}


def test_many_columns_are_not_limited_by_memory() -> None:
    def many(a: Any, x: Any) -> Any:
        return (a @ x).T @ a

    graph = trace(many, (normal(300, 100), normal(100, 256))).graph
    assert read_once(graph, frozenset(), cpu_target(SMALL, 1)) is None


def test_loops_are_made_in_loops() -> None:
    def steps(a: Any, y: Any, w: Any) -> Any:
        return eqsat.fori_loop(0, 20, lambda i, w: logistic(a, y, w), w)

    args = normal(300, 100), normal(300), normal(100)
    traced = trace(steps, args)
    graph = traced.graph
    formed = read_once(graph, frozenset(), cpu_target(SMALL, 1))
    assert formed is not None
    assert sorted(loop.trips for loop in loops_of(formed.graph) if not loop.parts) == [20]
    assert sum(loop.parts for loop in loops_of(formed.graph)) == 1
    given = traced.given(args)
    for one, other in zip(evaluate(formed.graph, given), evaluate(graph, given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(SMALL.to_json())
    monkeypatch.setenv("EQSAT_MACHINE", str(tmp_path / "machine.json"))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [299, 320])
def test_programs_read_matrices_once(rows: int, threads: int) -> None:
    def steps(a: Any, y: Any, w: Any) -> Any:
        for _ in range(40):
            w = logistic(a, y, w) / rows
        return w

    args = normal(rows, 101), normal(rows), normal(101)
    for fn in (logistic, steps):
        f = eqsat.optimize(fn, threads=threads, check_speed=False)
        np.testing.assert_allclose(f(*args), fn(*args), rtol=1e-9, atol=1e-12)
        report = f.explain(*args)
        if threads == 1:
            assert max(step.trips for step in report.steps) > 10
            inside = [line for step in report.steps if step.trips > 10 for line in step.source]
            assert any("test_row_blocks.py" in str(line) for line in inside)
    again = eqsat.optimize(logistic, threads=threads, check_speed=False)
    once = eqsat.optimize(logistic, threads=threads, check_speed=False)
    np.testing.assert_array_equal(again(*args), once(*args))
    assert again.compile(*args).cached


@pytest.mark.usefixtures("small")
def test_exact_numerics_keep_sums_whole() -> None:
    args = normal(300, 101), normal(300), normal(101)
    exact = eqsat.optimize(logistic, numerics="exact", threads=1, check_speed=False)
    np.testing.assert_allclose(exact(*args), logistic(*args), rtol=1e-9)
    assert all(step.trips == 1 for step in exact.explain(*args).steps)


@pytest.mark.usefixtures("small")
def test_the_model_says_what_it_is_for() -> None:
    args = normal(300, 101), normal(101)
    text = str(eqsat.optimize(normal_equations, threads=1, check_speed=False).explain(*args))
    assert re.search(r"× \d+ trips", text)

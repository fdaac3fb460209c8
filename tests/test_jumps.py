"""Several trips of a loop in one are the same trips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import eqsat
from eqsat.cost.machine import Machine
from eqsat.frontends.trace import trace
from eqsat.ir.evaluate import evaluate
from eqsat.ir.jumps import jumped
from eqsat.ir.loop import Loop, of_loop, trial_trips
from eqsat.ir.node import Graph
from eqsat.planned import form
from tests.conftest import MACHINE

RNG = np.random.default_rng(0)


def diffused(u: Any) -> Any:
    v = u.copy()
    v[1:-1, 1:-1] = 0.2 * (u[1:-1, 1:-1] + u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    return v


def moved(state: Any, speed: Any) -> Any:
    u, before = state
    around = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u
    return 2 * u - before + 0.1 * speed * around, u


def jacobi(u: Any, steps: int) -> Any:
    return eqsat.fori_loop(0, steps, lambda i, u: diffused(u), u)


def waves(u: Any, steps: int) -> Any:
    speed = u[0]
    return eqsat.fori_loop(0, steps, lambda i, state: moved(state, speed), (u, u * 0.5))


def stepped(program: Callable[..., Any], u: np.ndarray, steps: int) -> Any:
    """What a program returns, step by step."""
    state: Any = u if program is jacobi else (u, u * 0.5)
    for _ in range(steps):
        state = diffused(state) if program is jacobi else moved(state, u[0])
    return state


def loops_of(graph: Graph) -> list[Loop]:
    return list(dict.fromkeys(found for node in graph.nodes() if (found := of_loop(node)) is not None))


@given(st.sampled_from([jacobi, waves]), st.integers(2, 70), st.sampled_from([2, 4, 8]))
def test_what_is_meant_is_the_same(program: Callable[..., Any], steps: int, copies: int) -> None:
    u = RNG.standard_normal((6, 7))
    traced = trace(program, (u, steps), {})
    found = jumped(traced.graph, lambda loop: copies if copies <= loop.trips else 1)
    if found is None:
        assert steps < max(4, copies) or 32 < steps < 48
        return
    assert [loop.copies for loop in loops_of(found.graph)] == [copies]
    values = traced.given((u, steps))
    for got, want in zip(evaluate(found.graph, values), evaluate(traced.graph, values), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("copies", [1, 2, 4, 8, 16])
def test_as_many_trips_are_tried_as_of_the_loop_that_is_meant(copies: int) -> None:
    for trips in (*range(copies, 33), *range(48, 200)):
        whole, rest = divmod(trips, copies)
        assert copies * trial_trips(whole, copies) + rest == trial_trips(trips)
        assert trial_trips(whole, copies) % 2 == whole % 2 or copies == 16


def stacked(u: Any) -> Any:
    return eqsat.scan(lambda u, _: (u * 0.5 + 1, u), u, None, length=10)


def windows(u: Any) -> Any:
    return eqsat.scan(lambda u, row: (u * 0.5 + row, None), u, np.ones((10, 5)) * u[0])


def products(u: Any) -> Any:
    return eqsat.fori_loop(0, 10, lambda i, u: u @ u * 0.1, u)


def in_space(u: Any) -> Any:
    return eqsat.fori_loop(0, 10, lambda i, v: v * 0.5 + np.roll(v, 1, 0), np.zeros((6, 6, 6)) + u[0, 0])


@pytest.mark.parametrize("program", [stacked, windows, products, in_space])
def test_loops_that_do_more_than_carry_stay(program: Callable[..., Any]) -> None:
    graph = trace(program, (RNG.random((5, 5)),), {}).graph
    assert loops_of(graph)
    assert jumped(graph, lambda loop: 2) is None


@pytest.mark.parametrize("steps", [4, 5, 31, 48, 51])
@pytest.mark.parametrize("program", [jacobi, waves])
def test_compiled_programs_take_several_steps_at_once(
    program: Callable[..., Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where fewer trips are tried than there are: verification compares the first of them."""
    monkeypatch.setattr("eqsat.planned._jump", lambda loop, *rest: 2)
    u = RNG.standard_normal((20, 33))
    optimized = eqsat.optimize(program, cache=False, check_speed=False, strict=True)
    np.testing.assert_allclose(optimized(u, steps), stepped(program, u, steps), rtol=1e-9, atol=1e-9)
    explained = optimized.explain()
    assert (steps // 2, 2) in [(step.trips, step.copies) for step in explained.steps]
    with Console(width=200, record=True, file=StringIO()) as wide:
        wide.print(explained)
    assert f"× {steps // 2} trips of 2 steps" in wide.export_text()


def test_what_passes_through_memory_is_stepped_several_times_at_once() -> None:
    """Where a step is bound by memory, and no cache holds what it reads and writes."""

    def copies(size: int) -> list[int]:
        u = np.ones((size, size), np.float32)
        graph = trace(jacobi, (u, 20), {}).graph
        options = eqsat.optimize(jacobi, threads=1).options
        return [loop.copies for loop in loops_of(form(graph, frozenset(), options, slow(MACHINE)))]

    assert max(copies(4096)) > 1
    assert copies(64) == [1]


def slow(machine: Machine) -> Machine:
    """With memory of a sixteenth of the bandwidth."""
    levels = tuple(
        replace(
            level,
            read_gbs=level.read_gbs / 16,
            copy_gbs=level.copy_gbs / 16,
            read_gbs_all=level.read_gbs_all / 16,
            copy_gbs_all=level.copy_gbs_all / 16,
        )
        if not level.nbytes
        else level
        for level in machine.levels
    )
    return replace(machine, levels=levels)

"""Loops of many trips are verified by fewer: every fault of a loop is found all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.compiled import Compiled
from eqsat.frontends.trace import trace
from eqsat.ir.evaluate import evaluate
from eqsat.ir.known import trial
from eqsat.ir.loop import TRIAL, trial_trips
from eqsat.plan.plan import Plan, Repeat
from eqsat.verify import check
from eqsat_backends.numba_cpu import backend

Array = np.ndarray
RNG = np.random.default_rng(5)


def normal(*shape: int) -> Array:
    return (0.3 * RNG.standard_normal(shape)).astype(np.float32)


def pair(x: Array, y: Array, table: Array) -> tuple[Array, Array]:
    """Rows count with two factors: with one, what a trip adds cancels what the one before took off, wherever it is."""
    for t in range(90):
        x, y = np.tanh(y + table[t]), x * np.float32(0.9) - np.float32(0.7) * table[t + 1]
    return x, y


def rows(x: Array, table: Array) -> tuple[Array, Array]:
    found = []
    for t in range(89):
        x = np.sin(x) + table[t] * np.float32(0.5)
        found.append(np.cos(x))
    return np.stack(found), x


def _windows(repeat: Repeat) -> Repeat:
    return replace(repeat, windows=tuple((t, read, step // 2) for t, read, step in repeat.windows))


def _carries(repeat: Repeat) -> Repeat:
    (a, b, x), (c, d, y), *rest = repeat.carries
    return replace(repeat, carries=((a, b, y), (c, d, x), *rest))


def _befores(repeat: Repeat) -> Repeat:
    (a, b, x), (c, d, y), *rest = repeat.carries
    return replace(repeat, carries=((c, b, x), (a, d, y), *rest))


def _trips(by: int) -> Callable[[Repeat], Repeat]:
    return lambda repeat: replace(repeat, trips=repeat.trips - by)


FAULTS: list[tuple[str, Callable[[Repeat], Repeat], Callable[..., Any], tuple[Array, ...]]] = [
    ("windows move by half", _windows, pair, (normal(6), normal(6), normal(91, 6))),
    ("what is carried changes places", _carries, pair, (normal(6), normal(6), normal(91, 6))),
    ("the first trip reads the other value", _befores, pair, (normal(6), normal(6), normal(91, 6))),
    ("a trip is missing", _trips(1), pair, (normal(6), normal(6), normal(91, 6))),
    ("two trips are missing", _trips(2), pair, (normal(6), normal(6), normal(91, 6))),
    ("what is kept lacks a row", _trips(1), rows, (normal(6), normal(89, 6))),
    ("rows move by half", _windows, rows, (normal(6), normal(89, 6))),
]


SOUND: set[tuple[Callable[..., Any], bool]] = set()
"""Programs that pass without a fault."""


@pytest.mark.parametrize("dear", [False, True])
@pytest.mark.parametrize(("name", "change", "fn", "args"), FAULTS, ids=[name for name, *_ in FAULTS])
def test_a_fault_of_a_loop_is_caught(
    name: str,
    change: Callable[[Repeat], Repeat],
    fn: Callable[..., Any],
    args: tuple[Array, ...],
    dear: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``dear``: by a trial alone."""
    sound = backend.NumbaCpuBackend.emit
    seen: list[Repeat] = []
    if dear:
        monkeypatch.setattr(check, "SHARE_SECONDS", 0.0)
        verify = eqsat.compiled.verify  # type: ignore[attr-defined]
        monkeypatch.setattr("eqsat.compiled.verify", lambda *a, **k: verify(*a, **{**k, "plain": None, "patience": 0}))
    if (fn, dear) not in SOUND:
        eqsat.optimize(fn, cache=False, strict=True)(*args)
        SOUND.add((fn, dear))

    def emit(self: Any, plan: Plan, *rest: Any) -> dict[str, Any]:
        changed = tuple(change(repeat) for repeat in plan.repeats)
        seen.extend(plan.repeats)
        return sound(self, replace(plan, repeats=changed), *rest)

    monkeypatch.setattr(backend.NumbaCpuBackend, "emit", emit)
    with pytest.raises(eqsat.VerificationError):
        eqsat.optimize(fn, cache=False, strict=True)(*args)
    assert seen


@pytest.mark.parametrize("name", ["numba_cpu", "numpy"])
def test_a_trial_is_what_the_shortened_graph_says(name: str) -> None:
    args = (normal(6), normal(6), normal(91, 6))
    compiled = eqsat.optimize(pair, backend=name).compile(*args)
    assert isinstance(compiled, Compiled)
    graph = trace(pair, args).graph
    assert trial(graph).key() != graph.key()
    expected = evaluate(trial(graph), args)
    assert not np.allclose(expected[0], evaluate(graph, args)[0])
    for _ in range(2):
        for one, other in zip(expected, compiled.executable.tried()(args), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    for one, other in zip(evaluate(graph, args), compiled.executable(args), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)


def known_loop_beside(x: Array, y: Array, table: Array, known: Array) -> tuple[Array, ...]:
    """Where ``known`` is, its loop has run when the program is compiled; the other reads what it ends with."""
    held = np.tanh(known[0])
    for t in range(1, 90):
        held = np.sin(held + known[t]) + known[t + 1]
    for t in range(90):
        x, y = np.tanh(y + table[t]), x * held - np.float32(0.7) * table[t + 1]
    return x, y, held


def known_but_for_nothing(x: Array, y: Array, table: Array, known: Array) -> tuple[Array, ...]:
    """The loop of ``known`` begins with a sum over no elements of an argument."""
    held = known[0] + x[:0].sum()
    for t in range(1, 90):
        held = np.sin(held + known[t]) + known[t + 1]
    for t in range(90):
        x, y = np.tanh(y + table[t]), x * held - np.float32(0.7) * table[t + 1]
    return x, y, held


@pytest.mark.parametrize("fn", [known_loop_beside, known_but_for_nothing])
@pytest.mark.parametrize("const", [(), ("known",), ("known", "table")])
def test_loops_of_known_values_are_not_shortened(
    fn: Callable[..., Any], const: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (normal(6), normal(6), normal(91, 6), normal(91, 6))
    monkeypatch.setattr(check, "SHARE_SECONDS", 0.0)
    verify = eqsat.compiled.verify  # type: ignore[attr-defined]
    monkeypatch.setattr("eqsat.compiled.verify", lambda *a, **k: verify(*a, **{**k, "plain": None, "patience": 0}))
    found = eqsat.optimize(fn, const=const, cache=False, strict=True)(*args)
    for one, other in zip(fn(*args), found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)


def test_numbers_of_trips_that_are_near_have_other_trials() -> None:
    for trips in range(1, 200):
        assert trial_trips(trips) <= max(trips if trips <= 2 * TRIAL else 0, 2 * TRIAL)
        assert trial_trips(trips) % 2 == trips % 2
        assert len({trial_trips(n) for n in range(trips, trips + 8)}) == 8 or trips < 3 * TRIAL

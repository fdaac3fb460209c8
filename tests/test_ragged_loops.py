"""Loops whose steps work on more, or less, from step to step: one body on whole axes; masks say what counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.frontends import numbered, steps
from eqsat.frontends.trace import Traced, run_by_reference, trace
from eqsat.ir import padded
from eqsat.ir.loop import of_loop
from tests.programs import PROGRAMS
from tests.test_programs import check

SIZES = 44, 48
"""Steps enough for loops of this kind."""


def matrix(n: int) -> np.ndarray:
    return np.random.default_rng(n).random((n, n)) + n * np.eye(n)


def growing_dot(a: Any) -> Any:
    x = np.zeros(a.shape[0])
    for i in range(a.shape[0]):
        x[i] = (1.0 - a[i, :i] @ x[:i]) / a[i, i]
    return x


def backwards(a: Any) -> Any:
    x = np.zeros(a.shape[0])
    for i in reversed(range(a.shape[0])):
        x[i] = (1.0 - a[i, i + 1 :] @ x[i + 1 :]) / a[i, i]
    return x


def outer_products(a: Any) -> Any:
    for k in range(a.shape[0] - 1):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a


def flipped(a: Any) -> Any:
    r, y = a[0], np.zeros(a.shape[0])
    for k in range(1, a.shape[0]):
        y[:k] += 0.01 * y[:k][::-1] + r[:k] / 8
        y[k] = r[:k][::-1] @ y[:k] / (100 * k)
    return y


def reductions(a: Any) -> Any:
    out = np.zeros((a.shape[0], 4))
    for k in range(a.shape[0]):
        part = a[k:, : k + 1] - 50
        out[k, 0] = part.max()
        out[k, 1] = part.min()
        out[k, 2] = part.sum(axis=0).max()
        out[k, 3] = (part / 50).prod(axis=1).sum()
    return out


def elimination(a: Any) -> Any:
    for k in range(a.shape[0]):
        for i in range(k + 1, a.shape[0]):
            factor = a[i, k] / a[k, k]
            a[i, k:] -= factor * a[k, k:]
    return a


def triangle(a: Any) -> Any:
    for i in range(1, a.shape[0]):
        for j in range(i):
            a[i, j] = (a[i, j] - a[i, :j] @ a[j, :j]) / a[j, j]
        a[i, i] -= a[i, :i] @ a[i, :i] * 1e-3
    return a


def changing_places(a: Any) -> Any:
    u, v = a[0].copy(), a[1].copy()
    for k in range(1, a.shape[0]):
        v[k:] += u[:-k] * 0.1
        u, v = v, u
    return u, v


def with_a_helper(a: Any) -> Any:
    def half(x: Any) -> Any:
        return x / 2 + x.mean()

    last = 0.0
    for k in range(a.shape[0]):
        last = a[k:, k].sum() + last * 0.5
        a[k, k:] = half(a[k, k:])
    return a, last


def by_branches(a: Any) -> Any:
    for k in range(1, a.shape[0]):
        if k % 2:
            a[k, :k] *= 0.5
        else:
            a[k, k:] += a[k - 1, :-k] if k > 5 else 1.0
    return a


ONE_LOOP = [
    growing_dot, backwards, outer_products, flipped, reductions, elimination, triangle, changing_places, with_a_helper,
]  # fmt: skip


def traced(fn: Callable[..., Any], n: int) -> Traced:
    return trace(fn, (matrix(n),), {})


def same_as_numpy(fn: Callable[..., Any], a: np.ndarray) -> None:
    mine, theirs = a.copy(), a.copy()
    got, want = run_by_reference(fn, (mine,), {}), fn(theirs)
    np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-11)
    for one, other in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("fn", [*ONE_LOOP, by_branches], ids=lambda fn: fn.__name__)
def test_what_is_traced_means_what_numpy_does(fn: Callable[..., Any]) -> None:
    same_as_numpy(fn, matrix(SIZES[0]))


@pytest.mark.parametrize("fn", ONE_LOOP, ids=lambda fn: fn.__name__)
def test_the_program_does_not_grow_with_the_steps(fn: Callable[..., Any]) -> None:
    graphs = [traced(fn, n).graph for n in SIZES]
    assert all(any(of_loop(node) for node in graph.nodes()) for graph in graphs)
    assert len({len(graph.nodes()) for graph in graphs}) == 1


def spoiled(n: int) -> np.ndarray:
    """A lower triangle; what is above the diagonal is never read."""
    a = matrix(n)
    a[np.triu_indices(n, 1)] = np.nan
    a[0, 1:] = np.inf
    return a


def test_what_does_not_count_gets_into_nothing() -> None:
    same_as_numpy(growing_dot, spoiled(SIZES[0]))
    assert np.isfinite(growing_dot(spoiled(SIZES[0]))).all()


def test_without_masks_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded.Body, "_counted", lambda body, value, at, neutral: value)
    with pytest.raises(AssertionError):
        same_as_numpy(growing_dot, spoiled(SIZES[0]))


def test_steps_of_one_length_are_traced_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def recurrence(a: Any) -> Any:
        for k in range(1, a.shape[0]):
            a[k] = a[k] * 0.5 + a[k - 1]
        return a

    def settling(a: Any) -> Any:
        x, out = np.zeros(4), np.zeros((a.shape[0], 4))
        for k in range(a.shape[0]):
            x = a[:4, :4] @ x * 0.01
            x = x + a[k, :4]
            out[k] = x
        return out

    keys = [traced(fn, 40).graph.key() for fn in (recurrence, settling)]
    monkeypatch.setattr(steps, "LEAST_NUMBERED", 1 << 30)
    assert [traced(fn, 40).graph.key() for fn in (recurrence, settling)] == keys


def test_unlike_steps_are_traced_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found = traced(by_branches, 40).graph.key()
    monkeypatch.setattr(steps, "LEAST_NUMBERED", 1 << 30)
    assert traced(by_branches, 40).graph.key() == found
    assert numbered.LEAST_NUMBERED < 40


def test_a_compiled_program_is_right() -> None:
    program = PROGRAMS["forward_substitution"]
    check(program, (40,), eqsat.optimize(program.function, strict=True, check_speed=False))

"""Kernels are printed for the machine model that was handed down, not for whatever machine this is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.cost.machine import Level, Machine, load
from eqsat_backends.numba_cpu import target
from eqsat_backends.numba_cpu.printing import emit as emitters


def programs() -> list[tuple[Any, tuple[np.ndarray, ...]]]:
    """A map, a reduction, a product, a product known to be a matrix times a vector, and fused products."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return [
        (lambda x, y: x * y + 1, (normal(70, 33), normal(70, 33))),
        (lambda x: (x * x).sum(axis=1), (normal(70, 33).astype(np.float64),)),
        (lambda x, w: np.tanh(x @ w), (normal(33, 24), normal(24, 40))),
        (lambda x: normal(0, 1).sum() + np.ones((64, 48), np.float32) @ x, (normal(48),)),
        (lambda q, k, v: np.exp(q @ k.T) @ v, (normal(32, 8), normal(32, 8), normal(32, 8))),
    ]


def sources(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> list[str]:
    """Printed modules of all programs; also those that register no nest of their own."""
    monkeypatch.setattr("eqsat.making.machine_model.load", lambda: machine)
    found = []
    for fn, arguments in programs():
        optimized = eqsat.optimize(fn, threads=1, cache=False)
        np.testing.assert_allclose(optimized(*arguments), fn(*arguments), rtol=2e-4, atol=1e-5)
        found.append(optimized.source(*arguments))
    return found


def test_the_printed_modules_follow_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors and caches of the machine that the tests run on are not looked at."""
    first = sources(monkeypatch, load())

    def unknown(*_: Any) -> Any:
        raise AssertionError("the machine was looked at")

    monkeypatch.setattr("eqsat.cost.machine.caches", unknown)
    monkeypatch.setattr("eqsat_backends.numba_cpu.vectors.lanes.native_lanes", unknown)
    monkeypatch.setattr("eqsat_backends.numba_cpu.target.native_lanes", unknown)
    target.host.cache_clear()
    assert sources(monkeypatch, load()) == first


@pytest.mark.parametrize("width", [16, 32, 64])
def test_vectors_are_as_wide_as_the_models(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    found = "\n".join(sources(monkeypatch, replace(load(), vector_bytes=width)))
    assert f"f32x{width // 4}" in found and f"f64x{width // 8}" in found
    for other in (16, 32, 64):
        assert other == width or f"load_f32x{other // 4}" not in found


@pytest.mark.parametrize(("nbytes", "streams"), [(1 << 10, True), (1 << 30, False)])
def test_what_does_not_fit_the_models_caches_is_stored_past_them(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, streams: bool
) -> None:
    model = load()
    levels = (Level("L1", 1 << 9, False, 150.0, 150.0, 300.0, 300.0), replace(model.levels[1], nbytes=nbytes))
    monkeypatch.setattr("eqsat.making.machine_model.load", lambda: replace(model, levels=(*levels, model.levels[-1])))
    x = np.ones(100_000, np.float32)
    assert ("stream(" in eqsat.optimize(lambda x: x * 3 + 1, cache=False).source(x)) == streams


@pytest.mark.parametrize(("given", "width"), [(8, 16), (16, 16), (24, 16), (48, 32), (64, 64), (256, 64)])
def test_widths_that_no_register_has(given: int, width: int) -> None:
    assert target.target_of(replace(load(), vector_bytes=given)).vector_bytes == width


def test_emitters_are_given_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By both ways that lead to them: a program's kernels, and candidates that are timed."""
    seen = []
    emit = emitters.emit_group

    def noted(group: Any, nest: Any, machine: Any = None, *more: Any) -> Any:
        seen.append(machine)
        return emit(group, nest, machine, *more)

    monkeypatch.setattr(emitters, "emit_group", noted)
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    x = np.ones((6, 7), np.float32)
    eqsat.optimize(lambda x: np.exp(x * 5) - 1, tune=2)(x)
    assert len(seen) >= 2 and set(seen) == {load()}

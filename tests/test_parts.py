"""Batches that run part by part: what a loop over parts computes, where one is made, and that programs stay right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eqsat
from eqsat import nn
from eqsat.batches import by_parts
from eqsat.cost.machine import Machine, cpu_name
from eqsat.frontends.trace import trace
from eqsat.ir.evaluate import evaluate
from eqsat.ir.known import known_nodes
from eqsat.ir.loop import of_loop
from eqsat.ir.node import Graph, Node
from eqsat.ir.parts import axes_of, in_parts
from eqsat.verify.programs import Program
from eqsat.verify.strategies import programs
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.drawn import traced_with_values
from tests.kernel_groups import DESK, machine
from tests.sweeps import a_part

SMALL = replace(machine(l1=4 << 10, l2=16 << 10, l3=160 << 10), cpu=cpu_name())
"""Caches that an image of 32 by 32 in a few channels just fits, and eight of them do not."""


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def same_in_parts(graph: Graph, args: list[np.ndarray], const: set[Node], trips: int) -> int:
    """How many nodes have parts; the graph with all of them in a loop computes what the graph does."""
    extent = next(i.shape[0] for i in graph.inputs if i not in const and i.type.ndim)
    axes = axes_of(graph, const, extent, trips)
    inside = [node for node in graph.nodes() if node in axes and node.op != "input"]
    if not inside:
        return 0
    parted = in_parts(graph, axes, inside, known_nodes(graph, const), trips)
    assert {parted.origins.get(n, n) for n in parted.graph.nodes()} >= set(graph.inputs)
    with np.errstate(all="ignore"):
        for one, other in zip(evaluate(graph, args), evaluate(parted.graph, args), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return len(inside)


def network(x: Any, w: Any, v: Any, scale: Any, shift: Any) -> Any:
    y = np.maximum(nn.conv2d(x, w, padding=1) * scale[:, None, None] + shift[:, None, None], 0)
    y = nn.conv2d(y, v, stride=2, padding=1) + nn.max_pool2d(y, 2)
    return np.tanh(y) / (1 + np.abs(y).sum(axis=1, keepdims=True))


def arguments(images: int, size: int, channels: int = 4) -> list[np.ndarray]:
    weights = normal(channels, channels, 3, 3), normal(channels, channels, 3, 3) / 6
    return [normal(images, channels, size, size), *weights, normal(channels), normal(channels)]


def attention(x: Any, q: Any, k: Any, v: Any) -> Any:
    b, n, _ = x.shape
    heads = [(x.reshape(b * n, -1) @ w).reshape(b, n, 2, -1).transpose(0, 2, 1, 3) for w in (q, k, v)]
    scores = nn.softmax(heads[0] @ heads[1].swapaxes(-1, -2), axis=-1)
    return nn.gelu((scores @ heads[2]).transpose(0, 2, 1, 3).reshape(b, n, -1)) + x


def centered(x: Any, w: Any) -> Any:
    """What depends on the whole batch is an operand of the loop."""
    return np.tanh((x - x.mean(axis=0)) @ w)


def turned(x: Any, w: Any) -> Any:
    """The batch is the last axis on the way, and beside another in one."""
    y = np.concatenate([x, x[:, ::-1] * 2], axis=1).transpose(1, 2, 0)
    z = np.einsum("ctb,cd->dtb", y, w).reshape(w.shape[1], -1)
    return np.pad(z, ((1, 0), (0, 0))).sum(axis=0)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[np.ndarray], int]] = {
    "network": (network, arguments(6, 8), 10),
    "attention": (attention, [normal(6, 5, 8), normal(8, 8), normal(8, 8), normal(8, 8)], 12),
    "centered": (centered, [normal(6, 3), normal(3, 4)], 3),
    "turned": (turned, [normal(6, 3, 5), normal(6, 4)], 5),
}


@pytest.mark.parametrize("trips", [2, 3, 6])
@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_compute_the_whole(name: str, trips: int) -> None:
    fn, args, least = PROGRAMS[name]
    graph = trace(fn, tuple(args)).graph
    assert same_in_parts(graph, args, set(graph.inputs[1:]), trips) >= least
    same_in_parts(graph, args, set(), trips)  # weights that are not known are operands of the loop


@given(programs(2, 14), st.sampled_from([2, 3, 4, 5, 8]))
@settings(max_examples=a_part(120), deadline=None, suppress_health_check=list(HealthCheck))
def test_parts_of_any_program(drawn: Program, trips: int) -> None:
    graph, real = traced_with_values(drawn)
    batched = [i for i in graph.inputs if i.type.ndim and i.shape[0] % trips == 0 and i.type.size]
    if batched:
        same_in_parts(graph, real, {i for i in graph.inputs if i is not batched[0]}, trips)


@pytest.mark.parametrize(
    "mixes",
    [
        lambda x: x[::-1] + 1,
        lambda x: np.concatenate([x, x]) * 2,
        lambda x: x @ x.T,
        lambda x: x * np.arange(6.0, dtype=np.float32)[:, None],
        lambda x: np.pad(x, ((1, 1), (0, 0))),
        lambda x: x.reshape(4, 9) * 2,
        lambda x: np.sort(x, axis=0),
        lambda x: x[[0, 2, 1]] + 1,
    ],
)
def test_what_mixes_the_batch_has_no_parts(mixes: Callable[[Any], Any]) -> None:
    graph = trace(mixes, (normal(6, 6),)).graph
    assert graph.outputs[0] not in axes_of(graph, set(), 6, 3)


def test_nothing_has_no_parts() -> None:
    graph = trace(lambda x, w: (x.T.reshape(2, 0) @ w, np.trace(x)), (normal(6, 0), normal(0, 3))).graph
    assert axes_of(graph, set(), 6, 3) == {}
    graph = trace(lambda x: x[:, :0].reshape(0, 6).T + 1, (normal(6, 4),)).graph
    assert graph.outputs[0] not in axes_of(graph, set(), 6, 3)


def found(host: Machine, images: int, size: int, channels: int = 4, const: bool = True, threads: int = 1) -> Any:
    graph = trace(network, tuple(arguments(images, size, channels))).graph
    held = frozenset(graph.inputs[1:]) if const else frozenset()
    return by_parts(graph, held, cpu_target(host, threads), threads)


def test_a_loop_is_made_where_it_keeps_tensors_in_a_cache() -> None:
    parted = found(SMALL, 8, 32)
    assert parted is not None
    (loop,) = {of_loop(node) for node in parted.graph.nodes()} - {None}
    assert loop.trips in (4, 8)
    assert found(SMALL, 1, 32) is None, "there is one part"
    assert found(DESK, 8, 32) is None, "all of it fits anyway"
    assert found(SMALL, 8, 32, const=False) is None, "weights would be packed anew on every trip"
    (few,) = {of_loop(node) for node in found(SMALL, 64, 4).graph.nodes()} - {None}
    assert few.trips <= 16, "a part has columns for two vectors: of four positions, those of four images"


def test_programs_run_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(SMALL.to_json())
    monkeypatch.setenv("EQSAT_MACHINE", str(tmp_path / "machine.json"))
    args = arguments(8, 32)
    names = ("w", "v", "scale", "shift")
    for threads in (1, 2):
        f = eqsat.optimize(network, const=names, threads=threads)
        np.testing.assert_allclose(f(*args), network(*args), rtol=1e-4, atol=1e-5)
        report = f.explain(*args)
        assert any(step.trips > 1 for step in report.steps)
        assert any("test_parts.py" in str(line) for step in report.steps if step.trips > 1 for line in step.source)
        assert "network" in str(report)
    again = eqsat.optimize(network, const=names, threads=2)
    np.testing.assert_array_equal(again(*args), f(*args))
    assert again.compile(*args).cached


def test_rows_without_windows_are_left_to_groups() -> None:
    def perceptron(x: Any, w: Any, v: Any) -> Any:
        return np.maximum(x @ w, 0) @ v

    graph = trace(perceptron, (normal(4096, 16), normal(16, 64), normal(64, 16))).graph
    assert by_parts(graph, frozenset(graph.inputs[1:]), cpu_target(SMALL, 1), 1) is None


@pytest.mark.parametrize(("channels", "kernel", "trips"), [(16, 3, 8), (4, 3, None), (16, 1, None)])
def test_a_convolution_passes_on_its_tiles(channels: int, kernel: int, trips: int | None) -> None:
    """Images and results fit in the last cache as they are, and not four times over; few channels, and windows of one
    element, are in no tiles."""
    host = machine(l1=4 << 10, l2=16 << 10, l3=channels * 16 * 16 * 4 * 8 * 6)

    def convolved(x: Any, w: Any) -> Any:
        return nn.conv2d(x, w, padding=kernel // 2)

    graph = trace(convolved, (normal(8, channels, 16, 16), normal(channels, channels, kernel, kernel))).graph
    parted = by_parts(graph, frozenset(graph.inputs[1:]), cpu_target(host, 1), 1)
    loops = {of_loop(node) for node in parted.graph.nodes()} - {None} if parted is not None else set()
    assert [loop.trips for loop in loops if loop is not None] == ([] if trips is None else [trips])

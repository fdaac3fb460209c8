"""Pooling, normalization and resizing of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.images import Ops, of_images
from bench.workload import Workload, normal, positive

SUITE = "pool"


def row(name: str, shape: tuple[int, ...], build: Callable[[Ops, Any], Any]) -> Workload:
    elements = 1.0
    for extent in shape:
        elements *= extent
    return of_images(SUITE, name, build, {"x": normal(*shape)}, elements)


def workloads() -> list[Workload]:
    def normalized(ops: Ops, x: Any, p: Any) -> Any:
        return ops.relu(ops.batch_norm(x, p))

    channels = {"mean": normal(256), "variance": positive(256), "scale": normal(256), "shift": normal(256)}
    return [
        row("max 3x3/2 64 112", (1, 64, 112, 112), lambda ops, x: ops.max_pool(x, 3, stride=2, padding=1)),
        row("max 2x2/2 64 224", (1, 64, 224, 224), lambda ops, x: ops.max_pool(x, 2, stride=2)),
        row("max 3x3/1 192 28", (1, 192, 28, 28), lambda ops, x: ops.max_pool(x, 3, stride=1, padding=1)),
        row("max 5x5/1 256 13 batch 4", (4, 256, 13, 13), lambda ops, x: ops.max_pool(x, 5, stride=1, padding=2)),
        row("mean 2x2/2 128 56", (1, 128, 56, 56), lambda ops, x: ops.avg_pool(x, 2, stride=2)),
        row("mean 3x3/1 256 35", (1, 256, 35, 35), lambda ops, x: ops.avg_pool(x, 3, stride=1, padding=1)),
        row(
            "mean 3x3/1 without padding 256 35", (1, 256, 35, 35),
            lambda ops, x: ops.avg_pool(x, 3, stride=1, padding=1, count_padding=False),
        ),
        row("mean of all 2048 7", (1, 2048, 7, 7), lambda ops, x: ops.mean_pool(x)),
        row("mean of all 512 14 batch 8", (8, 512, 14, 14), lambda ops, x: ops.mean_pool(x)),
        row("adaptive mean 7 512 16", (1, 512, 16, 16), lambda ops, x: ops.adaptive_avg_pool(x, 7)),
        row("bilinear x2 64 56", (1, 64, 56, 56), lambda ops, x: ops.resize(x, 2)),
        of_images(
            SUITE, "batch norm, relu 256 56", normalized,
            {"x": normal(1, 256, 56, 56), "p": lambda rng: {name: make(rng) for name, make in channels.items()}},
            2.0 * 256 * 56 * 56, const=("p",),
        ),
    ]  # fmt: skip

"""Inception-v3, its batch norms folded into biases, as exporters leave it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.images import Ops
from bench.vision import Maker, Params

EXTENT = 299
Layer = tuple[int, int | tuple[int, int], int]
"""Channels, kernel, stride of a convolution with relu; one with stride 2, and the second of the stem, is unpadded."""

STEM: tuple[Layer, ...] = ((32, 3, 2), (32, 3, 0), (64, 3, 1))
"""Stride 0: 1, but unpadded."""
MIDDLE: tuple[Layer, ...] = ((80, 1, 1), (192, 3, 0))
"""Between the stem's pools."""


def block_a(pooled: int) -> list[list[Layer]]:
    return [[(64, 1, 1)], [(48, 1, 1), (64, 5, 1)], [(64, 1, 1), (96, 3, 1), (96, 3, 1)], [(pooled, 1, 1)]]


def block_c(width: int) -> list[list[Layer]]:
    across, down = (1, 7), (7, 1)
    third: list[Layer] = [(width, 1, 1), (width, down, 1), (width, across, 1), (width, down, 1), (192, across, 1)]
    return [[(192, 1, 1)], [(width, 1, 1), (width, across, 1), (192, down, 1)], third, [(192, 1, 1)]]


SHRINK_B: list[list[Layer]] = [[(384, 3, 2)], [(64, 1, 1), (96, 3, 1), (96, 3, 2)]]
SHRINK_D: list[list[Layer]] = [
    [(192, 1, 1), (320, 3, 2)],
    [(192, 1, 1), (192, (1, 7), 1), (192, (7, 1), 1), (192, 3, 2)],
]
BLOCKS = (
    *(("mean", block_a(pooled)) for pooled in (32, 64, 64)),
    ("max", SHRINK_B),
    *(("mean", block_c(width)) for width in (128, 160, 160, 192)),
    ("max", SHRINK_D),
)
"""Branches of each block; the pool feeds the last branch of some, and is the last branch of others."""
ENDS = 2
"""Blocks of the last stage, whose 3×3 convolutions are two side by side."""


def inception_params(rng: np.random.Generator) -> Params:
    make = Maker(rng)

    def chain(cin: int, layers: list[Layer]) -> tuple[list[Params], int]:
        found = []
        for width, kernel, _ in layers:
            found.append(make.biased(cin, width, kernel))
            cin = width
        return found, cin

    stem, cin = chain(3, list(STEM))
    middle, cin = chain(cin, list(MIDDLE))
    blocks = []
    for pool, branches in BLOCKS:
        made = [chain(cin, layers) for layers in branches]
        blocks.append([params for params, _ in made])
        cin = sum(width for _, width in made) + (cin if pool == "max" else 0)
    ends = []
    for _ in range(ENDS):
        ends.append(
            {
                "one": make.biased(cin, 320),
                "two": make.biased(cin, 384),
                "three": [make.biased(cin, 448), make.biased(448, 384, 3)],
                "pool": make.biased(cin, 192),
                "split": [make.biased(384, 384, kernel) for kernel in ((1, 3), (3, 1), (1, 3), (3, 1))],
            }
        )
        cin = 320 + 4 * 384 + 192
    return {"stem": stem, "middle": middle, "blocks": blocks, "ends": ends, "head": make.head(cin)}


def conv(ops: Ops, x: Any, p: Params, kernel: int | tuple[int, int] = 1, stride: int = 1) -> Any:
    high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (high // 2, wide // 2) if stride == 1 else 0
    return ops.relu(ops.conv(x, p["w"], p["b"], stride=max(stride, 1), padding=padding))


def run(ops: Ops, x: Any, params: list[Params], layers: Any) -> Any:
    for p, (_, kernel, stride) in zip(params, layers, strict=True):
        x = conv(ops, x, p, kernel, stride)
    return x


def inception(ops: Ops, params: Params, x: Any) -> Any:
    """Szegedy et al. 2016, without the auxiliary head."""
    x = ops.max_pool(run(ops, x, params["stem"], STEM), 3, stride=2)
    x = ops.max_pool(run(ops, x, params["middle"], MIDDLE), 3, stride=2)
    for given, (pool, branches) in zip(params["blocks"], BLOCKS, strict=True):
        if pool == "max":
            parts = [run(ops, x, p, layers) for p, layers in zip(given, branches, strict=True)]
            x = ops.concat(*parts, ops.max_pool(x, 3, stride=2))
        else:
            mean = ops.avg_pool(x, 3, stride=1, padding=1)
            fed = [x] * (len(branches) - 1) + [mean]
            x = ops.concat(*(run(ops, y, p, layers) for y, p, layers in zip(fed, given, branches, strict=True)))
    for p in params["ends"]:
        two = conv(ops, x, p["two"])
        three = conv(ops, conv(ops, x, p["three"][0]), p["three"][1], 3)
        sources, kernels = (two, two, three, three), ((1, 3), (3, 1), (1, 3), (3, 1))
        split = [conv(ops, y, q, k) for y, q, k in zip(sources, p["split"], kernels, strict=True)]
        pooled = conv(ops, ops.avg_pool(x, 3, stride=1, padding=1), p["pool"])
        x = ops.concat(conv(ops, x, p["one"]), *split, pooled)
    return ops.linear(ops.mean_pool(x), params["head"]["w"], params["head"]["b"])

"""ResNeXt-50 (32×4d) as Tensat's benchmark has it: no norms, no biases, and a relu behind shortcuts' convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.images import Ops
from bench.vision import Maker, Params

GROUPS = 32
STAGES = ((3, 128, 1), (4, 256, 2), (6, 512, 2), (3, 1024, 2))
"""Blocks, channels, stride of the first."""


def resnext50_params(rng: np.random.Generator) -> Params:
    make, blocks, cin = Maker(rng), [], 64
    for count, width, _ in STAGES:
        for block in range(count):
            p = {
                "reduce": make.weights(width, cin, 1, 1),
                "middle": make.weights(width, width // GROUPS, 3, 3),
                "expand": make.weights(2 * width, width, 1, 1, gain=0.2),
            }
            if block == 0:
                p["shortcut"] = make.weights(2 * width, cin, 1, 1)
            cin = 2 * width
            blocks.append(p)
    return {"stem": make.weights(64, 3, 7, 7), "blocks": blocks}


def resnext50(ops: Ops, params: Params, x: Any) -> Any:
    """Xie et al. 2017, up to the last block."""
    x = ops.relu(ops.conv(x, params["stem"], stride=2, padding=3))
    x = ops.max_pool(x, 3, stride=2, padding=1)
    strides = [stride if block == 0 else 1 for count, _, stride in STAGES for block in range(count)]
    for p, stride in zip(params["blocks"], strides, strict=True):
        y = ops.relu(ops.conv(x, p["reduce"]))
        y = ops.relu(ops.conv(y, p["middle"], stride=stride, padding=1, groups=GROUPS))
        y = ops.conv(y, p["expand"])
        shortcut = ops.relu(ops.conv(x, p["shortcut"], stride=stride)) if "shortcut" in p else x
        x = ops.relu(ops.add(shortcut, y))
    return x

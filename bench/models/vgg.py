"""VGG-19."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.images import Ops
from bench.vision import CLASSES, Maker, Params

STAGES = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))
"""Convolutions, and their channels."""
DENSE = (4096, 4096, CLASSES)


def vgg19_params(rng: np.random.Generator) -> Params:
    make, cin = Maker(rng), 3
    stages = []
    for count, width in STAGES:
        stages.append([make.biased(cin if n == 0 else width, width, 3) for n in range(count)])
        cin = width
    wide, dense = cin * 7 * 7, []
    for width in DENSE:
        dense.append({"w": make.weights(width, wide), "b": make.vector(width)})
        wide = width
    return {"stages": stages, "dense": dense}


def vgg19(ops: Ops, params: Params, x: Any) -> Any:
    """Simonyan and Zisserman 2015, for one image."""
    for stage in params["stages"]:
        for p in stage:
            x = ops.relu(ops.conv(x, p["w"], p["b"], padding=1))
        x = ops.max_pool(x, 2, stride=2)
    x = ops.reshape(x, (1, 512 * 7 * 7))
    *hidden, last = params["dense"]
    for p in hidden:
        x = ops.relu(ops.linear(x, p["w"], p["b"]))
    return ops.linear(x, last["w"], last["b"])

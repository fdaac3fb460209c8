"""ResNet-50, MobileNetV2 and SqueezeNet 1.1 with random weights that keep the variance of what passes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.images import Ops, of_images
from bench.workload import Array, Workload, normal

SUITE = "vision"
CLASSES, EXTENT = 1000, 224
Params = dict[str, Any]
BOTTLENECKS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""ResNet-50's stages: blocks, channels, stride of the first."""
INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""MobileNetV2's stages: expansion, channels, blocks, stride of the first."""
FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
"""SqueezeNet's modules: channels squeezed to, and of each half that they are expanded to."""


class Maker:
    """Draws weights; the variance of a sum is 1 where that of what is summed is 1 and half of it is cut off by relu."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def weights(self, *shape: int, gain: float = 2.0) -> Array:
        """``gain``: 2 behind a relu, 1 elsewhere."""
        scale = np.float32(math.sqrt(gain / math.prod(shape[1:])))
        return self.rng.standard_normal(shape, np.float32) * scale

    def vector(self, width: int, middle: float = 0.0) -> Array:
        drawn: Array = middle + 0.1 * self.rng.standard_normal(width, np.float32)
        return drawn.astype(np.float32)

    def normalized(self, cin: int, cout: int, kernel: int = 1, groups: int = 1, scale: float = 1.0) -> Params:
        """A convolution and the batch norm behind it."""
        return {
            "w": self.weights(cout, cin // groups, kernel, kernel),
            "mean": self.vector(cout),
            "variance": np.abs(self.vector(cout, 1.0)),
            "scale": self.vector(cout, scale),
            "shift": self.vector(cout),
        }

    def biased(self, cin: int, cout: int, kernel: int | tuple[int, int] = 1) -> Params:
        extents = (kernel, kernel) if isinstance(kernel, int) else kernel
        return {"w": self.weights(cout, cin, *extents), "b": self.vector(cout)}

    def head(self, width: int) -> Params:
        return {"w": self.weights(CLASSES, width), "b": self.vector(CLASSES)}


def norm(ops: Ops, x: Any, p: Params, **options: int) -> Any:
    return ops.batch_norm(ops.conv(x, p["w"], **options), p)


def resnet50_params(rng: np.random.Generator) -> Params:
    make, blocks, cin = Maker(rng), [], 64
    for count, width, _ in BOTTLENECKS:
        for block in range(count):
            p = {
                "reduce": make.normalized(cin, width),
                "middle": make.normalized(width, width, 3),
                "expand": make.normalized(width, 4 * width, scale=0.3),
            }
            if block == 0:
                p["shortcut"] = make.normalized(cin, 4 * width)
            cin = 4 * width
            blocks.append(p)
    return {"stem": make.normalized(3, 64, 7), "blocks": blocks, "head": make.head(cin)}


def resnet50(ops: Ops, params: Params, x: Any) -> Any:
    """He et al. 2016, with the stride in the 3×3 convolutions."""
    x = ops.relu(norm(ops, x, params["stem"], stride=2, padding=3))
    x = ops.max_pool(x, 3, stride=2, padding=1)
    strides = [stride if block == 0 else 1 for count, _, stride in BOTTLENECKS for block in range(count)]
    for p, stride in zip(params["blocks"], strides, strict=True):
        y = ops.relu(norm(ops, x, p["reduce"]))
        y = ops.relu(norm(ops, y, p["middle"], stride=stride, padding=1))
        y = norm(ops, y, p["expand"])
        shortcut = norm(ops, x, p["shortcut"], stride=stride) if "shortcut" in p else x
        x = ops.relu(ops.add(y, shortcut))
    return ops.linear(ops.mean_pool(x), params["head"]["w"], params["head"]["b"])


def mobilenet_params(rng: np.random.Generator) -> Params:
    make, blocks, cin = Maker(rng), [], 32
    for expansion, width, count, _ in INVERTED:
        for _ in range(count):
            wide = cin * expansion
            p = {} if expansion == 1 else {"expand": make.normalized(cin, wide)}
            p |= {"depthwise": make.normalized(wide, wide, 3, groups=wide), "project": make.normalized(wide, width)}
            blocks.append(p)
            cin = width
    found = {"stem": make.normalized(3, 32, 3), "blocks": blocks}
    return found | {"last": make.normalized(cin, 1280), "head": make.head(1280)}  # fmt: skip


def mobilenet(ops: Ops, params: Params, x: Any) -> Any:
    """Sandler et al. 2018, MobileNetV2 of width 1."""
    x = ops.clip(norm(ops, x, params["stem"], stride=2, padding=1), 0.0, 6.0)
    blocks, cin = [], 32
    for expansion, width, count, stride in INVERTED:
        for block in range(count):
            blocks.append((cin * expansion, stride if block == 0 else 1, block > 0))
            cin = width
    for p, (groups, stride, residual) in zip(params["blocks"], blocks, strict=True):
        y = ops.clip(norm(ops, x, p["expand"]), 0.0, 6.0) if "expand" in p else x
        y = ops.clip(norm(ops, y, p["depthwise"], stride=stride, padding=1, groups=groups), 0.0, 6.0)
        y = norm(ops, y, p["project"])
        x = ops.add(x, y) if residual else y
    x = ops.clip(norm(ops, x, params["last"]), 0.0, 6.0)
    return ops.linear(ops.mean_pool(x), params["head"]["w"], params["head"]["b"])


def squeezenet_params(rng: np.random.Generator) -> Params:
    make, fires, cin = Maker(rng), [], 64
    for narrow, half in FIRES:
        one, three = make.biased(narrow, half), make.biased(narrow, half, 3)
        fires.append({"squeeze": make.biased(cin, narrow), "one": one, "three": three})
        cin = 2 * half
    return {"stem": make.biased(3, 64, 3), "fires": fires, "last": make.biased(cin, CLASSES)}


def squeezenet(ops: Ops, params: Params, x: Any) -> Any:
    """Iandola et al. 2016, version 1.1."""

    def conv(x: Any, p: Params, **options: int) -> Any:
        return ops.relu(ops.conv(x, p["w"], p["b"], **options))

    x = ops.max_pool(conv(x, params["stem"], stride=2), 3, stride=2)
    for number, p in enumerate(params["fires"]):
        if number in (2, 4):
            x = ops.max_pool(x, 3, stride=2)
        narrow = conv(x, p["squeeze"])
        x = ops.concat(conv(narrow, p["one"]), conv(narrow, p["three"], padding=1))
    return ops.mean_pool(conv(x, params["last"]))


NETWORKS: dict[str, tuple[Callable[..., Any], Callable[[np.random.Generator], Params], float]] = {
    "ResNet-50": (resnet50, resnet50_params, 8.18e9),
    "MobileNetV2": (mobilenet, mobilenet_params, 0.601e9),
    "SqueezeNet 1.1": (squeezenet, squeezenet_params, 0.698e9),
}
"""Function, parameters, and operations for one image of 224×224."""


def workloads() -> list[Workload]:
    rows = []
    for name, (build, params, flops) in NETWORKS.items():
        for batch in (1, 8):
            makers: dict[str, Any] = {"params": functools.partial(params), "x": normal(batch, 3, EXTENT, EXTENT)}
            cold = name == "ResNet-50" and batch == 1
            rows.append(
                of_images(
                    SUITE, f"{name} batch {batch}", build, makers, flops * batch, const=("params",), cold_compile=cold,
                    tolerance=1e-4,
                )
            )  # fmt: skip
    return rows

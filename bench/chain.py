"""Products and convolutions one after the other, whose middle need never be stored.

Shapes of the matrix and convolution chains are those of Chimera (Zheng et al., HPCA 2023); others MobileNetV2's.
"""

from __future__ import annotations

from typing import Any

from bench.images import Ops, convolution_flops, of_images, weights
from bench.workload import Workload, normal

SUITE = "chain"

PRODUCTS = ((8, 512, 64, 64, 512), (12, 256, 64, 64, 256), (16, 208, 80, 80, 208), (1, 512, 64, 64, 256))
"""Batch, and m, n, k, l of (m × k · k × l) · l × n."""
CONVOLUTIONS = ((64, 56, 128, 64, 3, 1), (64, 56, 64, 64, 1, 3), (64, 56, 64, 64, 1, 1), (256, 56, 256, 64, 1, 1))
"""In channels, extent, channels in the middle, out channels, the two kernels; stride 1."""
SEPARABLE = ((32, 112, 16), (192, 28, 64), (384, 14, 96), (960, 7, 320))
"""In channels of a 3×3 depthwise convolution, extent, out channels of the 1×1 convolution behind it."""


def product(batch: int, m: int, n: int, k: int, length: int) -> Workload:
    def products(ops: Ops, a: Any, b: Any, d: Any) -> Any:
        return ops.matmul(ops.matmul(a, b), d)

    makers = {"a": normal(batch, m, k), "b": normal(batch, k, length), "d": normal(batch, length, n)}
    flops = 2.0 * batch * m * length * (k + n)
    return of_images(SUITE, f"products {batch}x{m}x{k}x{length}x{n}", products, makers, flops)


def convolutions(cin: int, extent: int, middle: int, cout: int, first: int, second: int) -> Workload:
    def conv_relu_conv_relu(ops: Ops, x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = ops.relu(ops.conv(x, w, b, padding=first // 2))
        return ops.relu(ops.conv(y, v, c, padding=second // 2))

    shape, w, v = (1, cin, extent, extent), (middle, cin, first, first), (cout, middle, second, second)
    flops = convolution_flops(shape, w, padding=first // 2)
    flops += convolution_flops((1, middle, extent, extent), v, padding=second // 2)
    makers = {"x": normal(*shape), "w": weights(*w), "b": normal(middle), "v": weights(*v), "c": normal(cout)}
    name = f"convolutions {first}x{first} {cin}-{middle}, {second}x{second} {middle}-{cout} {extent}"
    return of_images(SUITE, name, conv_relu_conv_relu, makers, flops, const=("w", "b", "v", "c"))


def separable(channels: int, extent: int, cout: int) -> Workload:
    def depthwise_pointwise(ops: Ops, x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = ops.clip(ops.conv(x, w, b, padding=1, groups=channels), 0.0, 6.0)
        return ops.conv(y, v, c)

    shape, w, v = (1, channels, extent, extent), (channels, 1, 3, 3), (cout, channels, 1, 1)
    flops = convolution_flops(shape, w, padding=1) + convolution_flops(shape, v)
    makers = {"x": normal(*shape), "w": weights(*w), "b": normal(channels), "v": weights(*v), "c": normal(cout)}
    name = f"depthwise 3x3 {channels}, 1x1 {channels}-{cout} {extent}"
    return of_images(SUITE, name, depthwise_pointwise, makers, flops, const=("w", "b", "v", "c"))


def workloads() -> list[Workload]:
    rows = [product(*numbers) for numbers in PRODUCTS]
    rows += [convolutions(*numbers) for numbers in CONVOLUTIONS]
    return rows + [separable(*numbers) for numbers in SEPARABLE]

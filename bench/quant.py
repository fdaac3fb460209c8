"""Products of bfloat16 and of 8-bit integers, and quantized convolutions; weights are known, as in inference.

bfloat16 is added up in float32 and rounded. Integers are added up in int32; a convolution's sums are quantized again,
as ONNX's QLinearConv does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bench.images import convolution_flops
from bench.workload import Array, Workload, made_of, normal
from eqsat import nn

SUITE = "quant"
SHAPES = ((1024, 1024, 1024), (64, 768, 3072))
CONVOLUTIONS = ((64, 64, 3, 56), (256, 64, 1, 56), (128, 128, 3, 28), (512, 512, 3, 7))
"""ResNet-50's: in channels, out channels, kernel, extent."""


def _bytes(*shape: int, dtype: str = "int8") -> Callable[[np.random.Generator], Array]:
    limits = np.iinfo(dtype)
    return lambda rng: rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _small_floats(*shape: int) -> Callable[[np.random.Generator], Array]:
    from ml_dtypes import bfloat16

    drawn = normal(*shape)
    return lambda rng: drawn(rng).astype(bfloat16)


def dot(a: Array, b: Array) -> Array:
    return np.dot(a, b)


def integers(a: Array, b: Array) -> Array:
    return np.matmul(a.astype(np.int32), b.astype(np.int32))


def weight_only(x: Array, w: Array, scale: Array) -> Array:
    return np.matmul(x, w.astype(x.dtype)) * scale


X, W, Y = (np.float32(0.02), np.uint8(128)), np.float32(0.01), (np.float32(0.5), np.uint8(128))
"""Scales and zero points of images, weights and results."""


def _convolution(cin: int, cout: int, kernel: int, extent: int) -> Workload:
    shape, w, padding = (1, cin, extent, extent), (cout, cin, kernel, kernel), kernel // 2

    def conv(x: Array, w: Array, b: Array) -> Array:
        return nn.qlinear_conv(x, X[0], X[1], w, W, np.int8(0), Y[0], Y[1], b, padding=padding)

    makers = {
        "x": _bytes(*shape, dtype="uint8"),
        "w": _bytes(*w),
        "b": lambda rng: rng.integers(-5000, 5000, cout, np.int32),
    }
    flops = convolution_flops(shape, w, padding=padding)
    name = f"conv {kernel}x{kernel} {cin}-{cout} {extent} int8"
    known, options = ("w", "b"), {"padding": padding}
    # One step of 255, where a sum lies between two.
    return Workload(
        SUITE, name, "quantized_conv", conv, made_of(**makers), flops, known, options, dtype="int8", tolerance=0.005
    )


def _products(m: int, k: int, n: int, const: tuple[str, ...]) -> list[Workload]:
    name, flops = f"{m}x{k}x{n} %s{' known' * bool(const)}", 2.0 * m * k * n
    floats, whole = (made_of(a=make(m, k), b=make(k, n)) for make in (_small_floats, _bytes))
    return [
        Workload(SUITE, name % "bfloat16", "dot", dot, floats, flops, const, dtype="bfloat16", tolerance=0.01),
        Workload(SUITE, name % "int8", "integers", integers, whole, flops, const, dtype="int8", tolerance=1e-9),
    ]


def workloads() -> list[Workload]:
    rows = [row for shape in SHAPES for const in ((), ("b",)) for row in _products(*shape, const)]
    k, n = 4096, 4096
    makers = {"x": normal(1, k), "w": _bytes(k, n), "scale": normal(n, scale=0.01)}
    name, known = f"1x{k}x{n} int8 weights known", ("w", "scale")
    # ONNX Runtime quantizes the row, too.
    drawn = made_of(**makers)
    rows.append(Workload(SUITE, name, "weight_only", weight_only, drawn, 2.0 * k * n, known, tolerance=0.02))
    return rows + [_convolution(*numbers) for numbers in CONVOLUTIONS]

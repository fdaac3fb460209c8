"""Convolutions with bias and relu: those of networks, and other kinds. Weights are known, as in inference."""

from __future__ import annotations

from typing import Any

from bench.images import Ops, convolution_flops, of_images, weights
from bench.workload import Workload, normal

SUITE = "conv"

RESNET50 = (
    (3, 64, 7, 224, 2), (64, 64, 1, 56, 1), (64, 64, 3, 56, 1), (64, 256, 1, 56, 1), (256, 64, 1, 56, 1),
    (256, 128, 1, 56, 1), (128, 128, 3, 56, 2), (256, 512, 1, 56, 2), (128, 512, 1, 28, 1), (512, 128, 1, 28, 1),
    (128, 128, 3, 28, 1), (512, 256, 1, 28, 1), (256, 256, 3, 28, 2), (512, 1024, 1, 28, 2), (256, 1024, 1, 14, 1),
    (1024, 256, 1, 14, 1), (256, 256, 3, 14, 1), (1024, 512, 1, 14, 1), (512, 512, 3, 14, 2), (1024, 2048, 1, 14, 2),
    (512, 2048, 1, 7, 1), (2048, 512, 1, 7, 1), (512, 512, 3, 7, 1),
)  # fmt: skip
"""In channels, out channels, kernel, extent, stride; padded so that stride 1 keeps the extent."""

SQUEEZENET = (
    (3, 96, 7, 224, 2), (96, 16, 1, 54, 1), (16, 64, 1, 54, 1), (16, 64, 3, 54, 1), (128, 16, 1, 54, 1),
    (128, 32, 1, 54, 1), (32, 128, 1, 54, 1), (32, 128, 3, 54, 1), (256, 32, 1, 27, 1), (32, 128, 1, 27, 1),
    (32, 128, 3, 27, 1), (256, 48, 1, 27, 1), (48, 192, 1, 27, 1), (48, 192, 3, 27, 1), (384, 48, 1, 27, 1),
    (384, 64, 1, 27, 1), (64, 256, 1, 27, 1), (64, 256, 3, 27, 1), (512, 64, 1, 13, 1), (64, 256, 1, 13, 1),
    (64, 256, 3, 13, 1), (512, 1000, 1, 13, 1),
)  # fmt: skip

DEPTHWISE = (
    (32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2), (384, 14, 1), (576, 14, 1),
    (576, 14, 2), (960, 7, 1),
)  # fmt: skip
"""MobileNetV2's, 3×3: channels, extent, stride."""

POINTWISE = (
    (32, 16, 112), (16, 96, 112), (96, 24, 56), (24, 144, 56), (144, 32, 28), (32, 192, 28), (192, 64, 14),
    (64, 384, 14), (384, 96, 14), (96, 576, 14), (576, 160, 7), (160, 960, 7), (960, 320, 7), (320, 1280, 7),
)  # fmt: skip
"""MobileNetV2's, 1×1: in channels, out channels, extent."""


def row(
    name: str, shape: tuple[int, ...], w: tuple[int, ...], *, approximates: bool = False, **options: int
) -> Workload:
    """``shape``: of the images, ``w``: of the weights; ``approximates``: eqsat may use Winograd's F(4, 3), too."""
    groups = options.get("groups", 1)

    def conv_relu(ops: Ops, x: Any, w: Any, b: Any) -> Any:
        return ops.relu(ops.conv(x, w, b, **options))

    flops = convolution_flops(shape, w, **{key: n for key, n in options.items() if key != "groups"})
    assert shape[1] == w[1] * groups
    makers = {"x": normal(*shape), "w": weights(*w), "b": normal(w[0])}
    if not approximates:
        # By Winograd's F(2, 3) 16 multiplications make 2×2 results, in place of 36.
        pairs = w[2:] == (3, 3) and groups == options.get("stride", 1) == 1 and min(w[:2]) >= 16
        return of_images(SUITE, name, conv_relu, makers, flops * 16 / 36 if pairs else flops, const=("w", "b"))
    name += " approximates"
    # By F(4, 3) 36 multiplications make 4×4 results, in place of 144.
    more: dict[str, Any] = {"numerics": "approximates", "tolerance": 1e-4}
    return of_images(SUITE, name, conv_relu, makers, flops / 4, const=("w", "b"), **more)


def square(
    kind: str, cin: int, cout: int, kernel: int, extent: int, stride: int, approximates: bool = False
) -> Workload:
    name = f"{kind} {kernel}x{kernel}/{stride} {cin}-{cout} {extent}"
    # The first convolution of SqueezeNet has no padding, its others keep the extent as ResNet's do.
    padding = 0 if (kind, kernel) == ("squeezenet", 7) else kernel // 2
    return row(
        name,
        (1, cin, extent, extent),
        (cout, cin, kernel, kernel),
        stride=stride,
        padding=padding,
        approximates=approximates,
    )


def transposed() -> Workload:
    shape, w = (16, 256, 2, 2), (256, 448, 4, 4)

    def conv_transpose_relu(ops: Ops, x: Any, w: Any, b: Any) -> Any:
        return ops.relu(ops.conv_transpose(x, w, b, stride=2, padding=1))

    flops = 2.0 * 16 * 2 * 2 * 256 * 448 * 4 * 4
    makers = {"x": normal(*shape), "w": weights(*w), "b": normal(w[1])}
    return of_images(SUITE, "transposed 4x4/2 256-448 2 batch 16", conv_transpose_relu, makers, flops, ("w", "b"))


def workloads() -> list[Workload]:
    rows = [square("resnet50", *numbers) for numbers in RESNET50]
    rows += [square("resnet50", *numbers, approximates=True) for numbers in RESNET50 if numbers[2::2] == (3, 1)]
    rows += [square("squeezenet", *numbers) for numbers in SQUEEZENET]
    rows += [
        row(f"depthwise 3x3/{s} {c} {n}", (1, c, n, n), (c, 1, 3, 3), stride=s, padding=1, groups=c)
        for c, n, s in DEPTHWISE
    ]
    rows += [square("mobilenet", cin, cout, 1, n, 1) for cin, cout, n in POINTWISE]
    rows += [
        row("grouped 32 3x3/1 128-128 56", (1, 128, 56, 56), (128, 4, 3, 3), padding=1, groups=32),
        row("dilated 2 3x3/1 512-512 14", (1, 512, 14, 14), (512, 512, 3, 3), padding=2, dilation=2),
        transposed(),
        row("1-D 5/1 64-128 1024 batch 4", (4, 64, 1024), (128, 64, 5), padding=2),
        row("3-D 3x3x3/1 32-32 16x56x56", (1, 32, 16, 56, 56), (32, 32, 3, 3, 3), padding=1),
        row("5x5/1 32-1 224", (1, 32, 224, 224), (1, 32, 5, 5), padding=2),
        row("resnet50 3x3/1 64-64 56 batch 8", (8, 64, 56, 56), (64, 64, 3, 3), padding=1),
    ]
    return rows

"""Builders of random steps over images and quantized numbers: convolutions, pooling, windows, norms, resizing.

See :mod:`eqsat.verify.operators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from eqsat.verify.drafts import MAX_SIZE, Builder, Draft, Made, Reject, Value

IMAGE_OPERATORS: dict[str, Builder] = {}
TOP = 1e4
"""Largest magnitude that is multiplied."""
MAX_WORK = 1 << 18
"""Products of one convolution, which NumPy adds up without a library."""
SMALL = ("int8", "uint8")
FLOATS = ("float32", "float32", "float64", "float16")


def _operator(*names: str) -> Callable[[Builder], Builder]:
    def add(build: Builder) -> Builder:
        for name in names:
            IMAGE_OPERATORS[name] = build
        return build

    return add


def _pick(d: Draft, least: int, accept: Callable[[Value], bool], dtypes: tuple[str, ...] = FLOATS) -> Value:
    """A value of ``least`` to five axes, or a new one of three to five, which are rare."""

    def fits(v: Value) -> bool:
        return least <= v.ndim <= 5 and v.array.size > 0 and accept(v)

    if d.below(3) != 1 and any(map(fits, d.values)):
        return d.pick(fits)
    space = [d.choose((8, 5, 4, 7, 1, 16)) for _ in range(d.choose((2, 2, 1, 3)))]
    shape = (d.choose((2, 1)), d.choose((4, 3, 1, 16, 6)), *(n if len(space) < 3 else min(n, 5) for n in space))
    x: Value = d.fresh(shape, d.choose(dtypes))
    return x


class _Images:
    """A value as images: with a batch or without, with channels first or last."""

    def __init__(self, d: Draft, accept: Callable[[Value], bool], *, batched: bool = False) -> None:
        self.value = x = _pick(d, 3 if batched else 2, accept)
        ranks = [r for r in (x.ndim - 2, x.ndim - 1) if 1 <= r <= 3 and not (batched and r == x.ndim - 1)]
        self.rank: int = d.choose(ranks)
        last = not batched and d.flag()
        self.layout = f', layout="{("NLC", "NHWC", "NDHWC")[self.rank - 1]}"' if last else ""
        at = x.ndim - 1 if last else x.ndim - self.rank - 1
        self.channels = x.shape[at]
        self.space = [n for i, n in enumerate(x.shape) if i > x.ndim - self.rank - 2 and i != at]
        self.name = x.name

    def each(self, d: Draft, options: tuple[int, ...]) -> tuple[int, ...]:
        """A number for each axis of space."""
        return tuple(d.choose(options) for _ in self.space)


def _real(v: Value) -> bool:
    return v.kind in "fi" and v.top <= TOP


def _divisors(n: int) -> tuple[int, ...]:
    return tuple(m for m in (1, 2, n, 4) if n and n % m == 0)


@_operator("conv", "conv_bias", "conv_strided")
def _conv(d: Draft) -> Made:
    x = _Images(d, _real)
    groups = d.choose(_divisors(x.channels))
    kernel = tuple(min(k, n + 2) for k, n in zip(x.each(d, (3, 1, 2, 5)), x.space, strict=True))
    width, depth = groups * d.choose((4, 1, 3, 16)), x.channels // groups
    dtype = x.value.dtype
    w = d.fresh((width, depth, *kernel), dtype)
    options = [d.fresh((width,), dtype).name] if d.flag() else []
    if d.flag():
        options.append(f"stride={x.each(d, (2, 1, 3))}")
    padding = d.below(4)
    if padding == 1:
        options.append(f"padding={tuple(k // 2 for k in kernel)}")
    elif padding == 2:
        options.append(f"padding={tuple((d.choose((1, 0, 2)), d.choose((0, 1, 3))) for _ in kernel)}")
    if d.below(4) == 1:
        options.append(f"dilation={x.each(d, (2, 1, 3))}")
    if groups != 1:
        options.append(f"groups={groups}")
    if x.value.array.size * w.array.size > MAX_WORK * x.channels:
        raise Reject
    terms = depth * math.prod(kernel) + 1
    exact = x.value.integral and w.integral and x.value.top * w.top * terms < min(x.value.limit, w.limit)
    return Made(f"nn.conv{x.rank}d({', '.join([x.name, w.name, *options])}{x.layout})", exact=exact)


@_operator("conv_transpose")
def _conv_transpose(d: Draft) -> Made:
    x = _Images(d, _real)
    groups, kernel, stride = d.choose(_divisors(x.channels)), x.each(d, (2, 3, 1, 4)), x.each(d, (2, 1, 3))
    width = d.choose((2, 1, 5))
    w = d.fresh((x.channels, width, *kernel), x.value.dtype)
    options = [f"stride={stride}"]
    if d.flag():
        options.append(f"padding={tuple(k // 2 for k in kernel)}")
    if d.below(4) == 1:
        options.append(f"output_padding={tuple(s - 1 for s in stride)}")
    if groups != 1:
        options.append(f"groups={groups}")
    if d.below(4) == 1:
        options.append(f"dilation={x.each(d, (2, 1))}")
    if x.value.array.size * width * math.prod(kernel) * math.prod(stride) > MAX_WORK:
        raise Reject
    exact = x.value.integral and w.integral and x.value.top * w.top * w.array.size < min(x.value.limit, w.limit)
    return Made(f"nn.conv_transpose{x.rank}d({x.name}, {w.name}, {', '.join(options)}{x.layout})", exact=exact)


@_operator("max_pool", "avg_pool")
def _pool(d: Draft) -> Made:
    x = _Images(d, _real)
    kind = d.choose(("max", "avg"))
    kernel = x.each(d, (2, 3, 1, 4))
    options = [str(kernel if d.flag() else kernel[0])]
    if d.flag():
        options.append(f"stride={x.each(d, (1, 2, 3))}")
    if d.flag():
        options.append("ceil_mode=True")
    if d.flag():
        options.append(f"padding={min(kernel) // 2}")
    if kind == "avg" and d.flag():
        options.append("count_include_pad=False")
    if kind == "max" and d.below(4) == 1:
        options.append("dilation=2")
    return Made(
        f"nn.{kind}_pool{x.rank}d({x.name}, {', '.join(options)}{x.layout})", exact=kind == "max" and x.value.exact
    )


@_operator("adaptive_pool", "global_pool")
def _other_pool(d: Draft) -> Made:
    kind = d.choose(("avg", "max"))
    if d.flag():
        x = _Images(d, _real, batched=True)
        return Made(f"nn.global_{kind}_pool({x.name})", exact=kind == "max" and x.value.exact)
    x = _Images(d, _real)
    sizes = x.each(d, (1, 2, 3, 7))
    return Made(f"nn.adaptive_{kind}_pool{x.rank}d({x.name}, {sizes}{x.layout})", exact=kind == "max" and x.value.exact)


@_operator("windows", "window_product")
def _windows(d: Draft) -> Made:
    """Windows as NumPy has them, reduced or multiplied by weights."""
    x = d.pick(lambda v: v.ndim > 0 and v.kind in "fi" and min(v.shape) > 0 and v.top <= TOP)
    axis = d.below(x.ndim)
    k = min(d.choose((3, 2, 5)), x.shape[axis])
    if x.array.size * k > MAX_SIZE:
        raise Reject
    seen = f"np.lib.stride_tricks.sliding_window_view({x.name}, {k}, axis={axis})"
    case = d.below(4)
    if case == 0:
        w = d.fresh((k,), x.dtype)
        exact = x.integral and w.integral and x.top * w.top * k < min(x.limit, w.limit)
        return Made(f"{seen} @ {w.name}", exact=exact)
    if case == 1:
        return Made(f"{seen}.max(axis=-1)", exact=x.exact)
    if case == 2:
        return Made(f"{seen}.mean(axis=-1)")
    return Made(f"{seen}[..., ::{d.choose((2, 1))}]", exact=x.exact)


@_operator("batch_norm", "group_norm", "instance_norm")
def _norm(d: Draft) -> Made:
    x = _pick(d, 3, lambda v: v.kind == "f" and v.top <= TOP)
    n = x.shape[1]

    def row(low: float = -2) -> str:
        return d.fresh((n,), x.dtype, low=low).name

    case = d.below(4)
    if case < 2:
        parameters = [row(), row(0.5), *([row(), row()] if case else [])]
        return Made(f"nn.batch_norm({', '.join([x.name, *parameters])})")
    if math.prod(x.shape[2:]) < 2:
        raise Reject
    rows = f", weight={row()}, bias={row()}" if d.flag() else ""
    if case == 2:
        return Made(f"nn.group_norm({x.name}, {d.choose(_divisors(n))}{rows})")
    return Made(f"nn.instance_norm({x.name}{rows})")


@_operator("interpolate")
def _interpolate(d: Draft) -> Made:
    x = _pick(d, 3, lambda v: v.kind in "fi")
    size = tuple(d.choose((2 * n, n, 3 * n, max(n // 2, 1), n + 1)) for n in x.shape[2:])
    if x.kind == "f" and d.flag():
        mode = ("linear", "bilinear", "trilinear")[x.ndim - 3]
        return Made(f'nn.interpolate({x.name}, {size}, mode="{mode}")')
    return Made(f"nn.interpolate({x.name}, {size})", exact=x.exact)


# -- quantized numbers: scales are powers of two, by which floats are divided and multiplied exactly ------------------


def _zero(d: Draft, dtype: str) -> str:
    low = 0 if dtype == "uint8" else -20
    return f"np.{dtype}({d.choose((0, 3, 100, low))})"


def _scale(d: Draft) -> str:
    return f"np.float32({d.choose((0.25, 1.0, 0.0625, 8.0))})"


def _quantized(d: Draft, accept: Callable[[Value], bool] = lambda v: True) -> tuple[Value, str]:
    """A value of small integers, and a zero point of its type."""
    x = d.pick(lambda v: v.dtype in SMALL and accept(v))
    return x, _zero(d, x.dtype)


def _scaled(d: Draft, x: Value, zero: str, w: Value, other: str) -> str:
    """Operands of a product that is quantized again: both factors with scales and zero points, and the result's."""
    to = _zero(d, d.choose(SMALL))
    return f"{x.name}, {_scale(d)}, {zero}, {w.name}, {_scale(d)}, {other}, {_scale(d)}, {to}"


@_operator("quantize", "quantize_again")
def _quantize(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "f" and v.exact and v.dtype != "float16" and not np.isnan(v.array).any())
    scale, zero = _scale(d), _zero(d, d.choose(SMALL))
    made = f"nn.quantize_linear({x.name}, {scale}, {zero})"
    if d.flag():  # and back
        return Made(f"nn.dequantize_linear({made}, {scale}, {zero})", exact=True, discrete=True)
    return Made(made, discrete=True)


@_operator("dequantize")
def _dequantize(d: Draft) -> Made:
    x, zero = _quantized(d)
    return Made(f"nn.dequantize_linear({x.name}, {_scale(d)}, {zero})", exact=True)


@_operator("dequantized_product")
def _dequantized_product(d: Draft) -> Made:
    x, zero = _quantized(d, lambda v: v.ndim > 1)
    w = d.fresh((x.shape[-1], d.choose((4, 16, 3))), d.choose(SMALL), low=-100, high=100)
    left = f"nn.dequantize_linear({x.name}, {_scale(d)}, {zero})"
    right = f"nn.dequantize_linear({w.name}, {_scale(d)}, {_zero(d, w.dtype)})"
    if d.flag():
        right = f"({w.name}.astype(np.float32) * {_scale(d)})"
    return Made(f"{left} @ {right}")


@_operator("matmul_integer", "qlinear_matmul")
def _integer_product(d: Draft) -> Made:
    x, zero = _quantized(d, lambda v: v.ndim > 0)
    w = d.fresh((x.shape[-1], d.choose((4, 16, 3, 33))), d.choose(SMALL), low=-128, high=127)
    other = _zero(d, w.dtype)
    if d.flag():
        return Made(f"nn.qlinear_matmul({_scaled(d, x, zero, w, other)})", discrete=True)
    return Made(f"nn.matmul_integer({x.name}, {w.name}{f', {zero}, {other}' if d.flag() else ''})")


@_operator("conv_integer", "qlinear_conv")
def _integer_conv(d: Draft) -> Made:
    x = _pick(d, 3, lambda v: v.dtype in SMALL, SMALL)
    zero = _zero(d, x.dtype)
    kernel = tuple(min(d.choose((3, 1, 2)), n) for n in x.shape[2:])
    w = d.fresh((d.choose((4, 1, 8)), x.shape[1], *kernel), d.choose(SMALL), low=-128, high=127)
    if x.array.size * w.array.size > MAX_WORK * x.shape[1]:
        raise Reject
    other = _zero(d, w.dtype)
    options = f", padding={d.choose((0, 1))}, stride={d.choose((1, 2))}"
    if d.flag():
        return Made(f"nn.qlinear_conv({_scaled(d, x, zero, w, other)}{options})", discrete=True)
    return Made(f"nn.conv_integer({x.name}, {w.name}, {zero}, {other}{options})")


@_operator("small_integers", "half")
def _small(d: Draft) -> Made:
    """Values in a small type, which what follows computes with."""
    x = d.pick(lambda v: v.kind in "fi" and v.exact and v.top <= 1e4 and bool(np.isfinite(v.array).all()))
    target = d.choose(("int8", "uint8", "float16"))
    if target == "float16":
        return Made(f"{x.name}.astype(np.float16)", exact=x.integral and x.top <= 2048, discrete=not x.integral)
    low, high = (-128, 127) if target == "int8" else (0, 255)
    return Made(f"np.clip(np.rint({x.name}), {low}, {high}).astype(np.{target})", discrete=True)

"""Functions of images and of quantized numbers written in NumPy, as their definitions have them: see ``stand_ins``.

Arrays stay of the class that they are of, so that rounding noise reaches what is computed inside. What does not fit
raises ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

LAST = {"NLC": 1, "NHWC": 2, "NDHWC": 3}
"""Layouts with channels last, and how many axes of space they have."""


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank


def _first(x: Any, layout: str | None) -> Any:
    return np.moveaxis(x, -1, -1 - LAST[layout]) if layout in LAST else x


def _back(x: Any, layout: str | None) -> Any:
    return np.moveaxis(x, -1 - LAST[layout], -1) if layout in LAST else x


def _padded(x: Any, widths: Sequence[tuple[int, int]], value: Any = 0) -> Any:
    """With so much around the last axes; less than nothing is cut off."""
    lead = x.ndim - len(widths)
    space = [n + low + high for n, (low, high) in zip(x.shape[lead:], widths, strict=True)]
    if min(space, default=1) < 1:
        raise ValueError("nothing is left")
    out: Any = np.full_like(x, value, shape=(*x.shape[:lead], *space))
    inside = tuple(slice(max(low, 0), m - max(high, 0)) for m, (low, high) in zip(space, widths, strict=True))
    kept = tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(x.shape[lead:], widths, strict=True))
    out[(..., *inside)] = x[(..., *kept)]
    return out


def _windows(x: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Any:
    """The windows of the last axes, with axes for places in a window last."""
    rank = len(kernel)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(-rank, 0)), subok=True)
    every: Any = (..., *(slice(None, None, s) for s in stride), *(slice(None, None, d) for d in dilation))
    return seen[every]


def _biased(x: Any, bias: Any, rank: int) -> Any:
    return x if bias is None else x + bias.reshape(-1, *(1,) * rank)


def _contracted(x: Any, w: Any, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Any:
    """Windows of x (N, C, space…) or (C, space…) with weights (M, C / groups, kernel…)."""
    rank = w.ndim - 2
    lead = x.shape[: x.ndim - rank - 1]
    if x.shape[len(lead)] != w.shape[1] * groups or w.shape[0] % groups:
        raise ValueError("groups do not fit")
    seen = _windows(x.reshape(*lead, groups, w.shape[1], *x.shape[len(lead) + 1 :]), w.shape[2:], stride, dilation)
    factor = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    batch, (g, c, m) = "ab"[: len(lead)], "gcm"
    p, r = "pqs"[:rank], "xyz"[:rank]
    out = np.einsum(f"{batch}{g}{c}{p}{r},{g}{m}{c}{r}->{batch}{g}{m}{p}", seen, factor)
    return out.reshape(*lead, w.shape[0], *out.shape[len(lead) + 2 :])


def _conv(
    rank: int, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    layout: str | None = None,
) -> Any:  # fmt: skip
    widths = [p if isinstance(p, tuple) else (p, p) for p in _each(padding, rank)]
    seen = _padded(_first(x, layout), widths)
    out = _contracted(seen, w, _each(stride, rank), _each(dilation, rank), groups)
    return _back(_biased(out, bias, rank), layout)


def _conv_transpose(
    rank: int, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1, layout: str | None = None,
) -> Any:  # fmt: skip
    """A convolution, with the kernel turned around, of x with zeros between its elements."""
    x = _first(x, layout)
    steps, apart = _each(stride, rank), _each(dilation, rank)
    space, lead = x.shape[-rank:], x.shape[:-rank]
    if 0 in space:
        raise ValueError("no elements")
    wide: Any = np.full_like(x, 0, shape=(*lead, *((n - 1) * s + 1 for n, s in zip(space, steps, strict=True))))
    wide[(..., *(slice(None, None, s) for s in steps))] = x
    given = zip(w.shape[2:], apart, _each(padding, rank), _each(output_padding, rank), strict=True)
    wide = _padded(wide, [(d * (k - 1) - p, d * (k - 1) - p + more) for k, d, p, more in given])
    inner: Any = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    inner = inner[(..., *(slice(None, None, -1),) * rank)].reshape(-1, w.shape[0] // groups, *w.shape[2:])
    return _back(_biased(_contracted(wide, inner, (1,) * rank, apart, groups), bias, rank), layout)


def _pooled(
    reduce: Callable[..., Any], x: Any, fill: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Any:
    rank = len(kernel)
    widths = []
    for n, k, s, p, d in zip(x.shape[-rank:], kernel, stride, padding, dilation, strict=True):
        rest = n + 2 * p - d * (k - 1) - 1
        count = (-(-rest // s) if ceil else rest // s) + 1
        count -= ceil and (count - 1) * s >= n + p
        if count < 1 or n < 1 or 2 * p > k:
            raise ValueError("no window fits")
        widths.append((p, (count - 1) * s + d * (k - 1) + 1 - n - p))
    seen = _windows(_padded(x, widths, fill), kernel, stride, dilation)
    return reduce(seen, axis=tuple(range(-rank, 0)))


def _max_pool(
    rank: int, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, layout: str | None = None,
) -> Any:  # fmt: skip
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    kernel = _each(kernel_size, rank)
    steps = kernel if stride is None else _each(stride, rank)
    given = kernel, steps, _each(padding, rank), _each(dilation, rank), ceil_mode
    return _back(_pooled(np.max, _first(x, layout), least, *given), layout)


def _floats(x: Any) -> Any:
    return x if x.dtype.kind == "f" else x.astype(np.float64)


def _avg_pool(
    rank: int, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, layout: str | None = None,
) -> Any:  # fmt: skip
    kernel = _each(kernel_size, rank)
    steps, pads, ones = kernel if stride is None else _each(stride, rank), _each(padding, rank), (1,) * rank
    seen = _floats(_first(x, layout))
    total = _pooled(np.sum, seen, 0, kernel, steps, pads, ones, ceil_mode)
    whole = _padded(np.ones(seen.shape[-rank:]), [(p, p) for p in pads], float(count_include_pad))
    given = zip(total.shape[-rank:], steps, kernel, whole.shape, strict=True)
    rims = [(0, max(0, (m - 1) * s + k - n)) for m, s, k, n in given]
    counts = _windows(_padded(whole, rims), kernel, steps, ones)[tuple(slice(m) for m in total.shape[-rank:])]
    return _back(total / counts.sum(tuple(range(-rank, 0))).astype(seen.dtype), layout)


def _adaptive(reduce: Callable[..., Any], rank: int, x: Any, output_size: Any, layout: str | None = None) -> Any:
    """Axis by axis: means of means, and maxima of maxima, are those of blocks."""
    x = _first(_floats(x) if reduce is np.mean else x, layout)
    if 0 in x.shape[-rank:]:
        raise ValueError("no elements")
    for axis, m in enumerate(_each(output_size, rank), x.ndim - rank):
        n, seen = x.shape[axis], np.moveaxis(x, axis, 0)
        out = np.full_like(x, 0, shape=(m, *seen.shape[1:]))
        for i in range(m):
            out[i] = reduce(seen[i * n // m : -(-(i + 1) * n // m)], axis=0)
        x = np.moveaxis(out, 0, axis)
    return _back(x, layout)


def _global(reduce: Callable[..., Any], x: Any) -> Any:
    x = _floats(x) if reduce is np.mean else x
    if 0 in x.shape[2:]:
        raise ValueError("no elements")
    return reduce(x, axis=tuple(range(2, x.ndim)), keepdims=True)


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    rank = x.ndim - 2
    return _biased(x if weight is None else x * weight.reshape(-1, *(1,) * rank), bias, rank)


def _batch_norm(x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    scale = (1 if weight is None else weight) / np.sqrt(var + eps)
    return _scaled(x, scale, (0 if bias is None else bias) - mean * scale)


def _group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    cut = x.reshape(x.shape[0], num_groups, -1)
    centered = cut - np.mean(cut, axis=-1, keepdims=True)
    variance = np.mean(centered * centered, axis=-1, keepdims=True)
    return _scaled((centered / np.sqrt(variance + eps)).reshape(x.shape), weight, bias)


def _instance_norm(x: Any, weight: Any = None, bias: Any = None) -> Any:
    return _group_norm(x, x.shape[1], weight, bias)


def _interpolate(x: Any, size: Sequence[int], mode: str = "nearest") -> Any:
    """``size`` for each of the last axes."""
    for axis, m in enumerate(size, x.ndim - len(size)):
        n = x.shape[axis]
        if mode == "nearest":  # in float32, as PyTorch finds places
            scale = np.float32(n) / np.float32(m)
            x = x.take(np.minimum((np.arange(m, dtype=np.float32) * scale).astype(np.int64), n - 1), axis)
            continue
        if n == m:  # as PyTorch: no neighbour's NaN comes in by a weight of zero
            continue
        places = np.maximum((np.arange(m) + 0.5) * (n / m) - 0.5, 0)
        below = np.minimum(np.floor(places).astype(np.int64), n - 1)
        part = np.minimum(places - below, 1.0).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1 - axis))
        x = x.take(below, axis) * (1 - part) + x.take(np.minimum(below + 1, n - 1), axis) * part
    return x


def _saturated(x: Any, zero_point: Any, dtype: Any) -> Any:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x) + float(zero_point), limits.min, limits.max).astype(dtype)


def _quantize(x: Any, scale: Any, zero_point: Any) -> Any:
    return _saturated(x / scale, zero_point, zero_point.dtype)


def _dequantize(x: Any, scale: Any, zero_point: Any) -> Any:
    return (x.astype(np.int32) - np.int32(zero_point)).astype(scale.dtype) * scale


def _matmul_integer(a: Any, b: Any, a_zero_point: Any = 0, b_zero_point: Any = 0) -> Any:
    return (a.astype(np.int32) - np.int32(a_zero_point)) @ (b.astype(np.int32) - np.int32(b_zero_point))


def _conv_integer(x: Any, w: Any, x_zero_point: Any = 0, w_zero_point: Any = 0, **options: Any) -> Any:
    left, right = x.astype(np.int32) - np.int32(x_zero_point), w.astype(np.int32) - np.int32(w_zero_point)
    return _conv(w.ndim - 2, left, right, **options)


def _qlinear(
    product: Callable[..., Any], a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, sy: Any, zy: Any, **options: Any
) -> Any:
    scale = sa * sb / sy
    return _saturated(product(a, b, za, zb, **options).astype(scale.dtype) * scale, zy, zy.dtype)


_WRITTEN: dict[str, Callable[..., Any]] = {
    **{
        f"{name}{rank}d": partial(function, rank)
        for rank in (1, 2, 3)
        for name, function in (
            ("conv", _conv),
            ("conv_transpose", _conv_transpose),
            ("max_pool", _max_pool),
            ("avg_pool", _avg_pool),
            ("adaptive_max_pool", partial(_adaptive, np.max)),
            ("adaptive_avg_pool", partial(_adaptive, np.mean)),
        )
    },
    "global_max_pool": partial(_global, np.max),
    "global_avg_pool": partial(_global, np.mean),
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "interpolate": _interpolate,
    "quantize_linear": _quantize,
    "dequantize_linear": _dequantize,
    "matmul_integer": _matmul_integer,
    "conv_integer": _conv_integer,
    "qlinear_matmul": partial(_qlinear, _matmul_integer),
    "qlinear_conv": partial(_qlinear, _conv_integer),
}


def _in_rows(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result in memory of its own, row by row, as eqsat's are: by that it is decided whether a reshaped one is a
    view. Of one element without axes a scalar, of which nothing is a view."""
    found = np.array(function(*args, **options), order="C")
    return found if found.ndim else found[()]


IMAGES = {name: partial(_in_rows, function) for name, function in _WRITTEN.items()}
"""Functions of ``eqsat.nn`` by their names."""

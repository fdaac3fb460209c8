"""Functions of images by their definitions: loops over positions, in float64, of images (N, C, space…)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Pairs = Sequence[tuple[int, int]]


def convolved(
    x: np.ndarray, w: np.ndarray, stride: Sequence[int], widths: Pairs, dilation: Sequence[int], groups: int
) -> np.ndarray:
    """``out[n, m, p…] = Σ x[n, c, stride·p + dilation·r - before…]·w[m, c, r…]``, where the index is in the images."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    space, kernel = x.shape[2:], w.shape[2:]
    counts = [
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, k, s, d, (low, high) in zip(space, kernel, stride, dilation, widths, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *counts))
    per_in, per_out = x.shape[1] // groups, w.shape[0] // groups
    for place in np.ndindex(*counts):
        for tap in np.ndindex(*kernel):
            at = [
                s * p + d * r - low for p, r, s, d, (low, _) in zip(place, tap, stride, dilation, widths, strict=True)
            ]
            if all(0 <= i < n for i, n in zip(at, space, strict=True)):
                for g in range(groups):
                    seen = x[(slice(None), slice(g * per_in, (g + 1) * per_in), *at)]
                    weights = w[(slice(g * per_out, (g + 1) * per_out), slice(None), *tap)]
                    out[(slice(None), slice(g * per_out, (g + 1) * per_out), *place)] += seen @ weights.T
    return out


def transposed(
    x: np.ndarray, w: np.ndarray, stride: Sequence[int], padding: Sequence[int], more: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> np.ndarray:  # fmt: skip
    """``out[n, m, stride·i + dilation·r - padding…] += x[n, c, i…]·w[c, m, r…]``, where the index is in the result."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    space, kernel = x.shape[2:], w.shape[2:]
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, k, s, p, e, d in zip(space, kernel, stride, padding, more, dilation, strict=True)
    ]
    per_in, per_out = x.shape[1] // groups, w.shape[1]
    out = np.zeros((x.shape[0], per_out * groups, *sizes))
    for place in np.ndindex(*space):
        for tap in np.ndindex(*kernel):
            at = [s * i + d * r - p for i, r, s, d, p in zip(place, tap, stride, dilation, padding, strict=True)]
            if all(0 <= i < n for i, n in zip(at, sizes, strict=True)):
                for g in range(groups):
                    own = slice(g * per_in, (g + 1) * per_in)
                    target = (slice(None), slice(g * per_out, (g + 1) * per_out), *at)
                    out[target] += x[(slice(None), own, *place)] @ w[(own, slice(None), *tap)]
    return out


def window_starts(n: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> list[int]:
    """Where the windows of a pooling begin: those that are whole, or that begin inside after one that ends inside."""
    span, starts = dilation * (kernel - 1) + 1, list[int]()
    for start in itertools.count(-padding, stride):
        whole = start + span <= n + padding
        needed = start - stride + span < n + padding
        if not (whole or (ceil and needed and start < n)):
            return starts
        starts.append(start)
    return starts


def pooled(
    x: np.ndarray, kind: str, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil: bool, padded: bool = True, divisor: int | None = None,
) -> np.ndarray:  # fmt: skip
    """The maximum or mean of each window's elements within the images."""
    space = x.shape[2:]
    starts = [window_starts(*given, ceil) for given in zip(space, kernel, stride, padding, dilation, strict=True)]
    out = np.empty((*x.shape[:2], *map(len, starts)))
    for place in np.ndindex(*out.shape[2:]):
        begins = [row[i] for row, i in zip(starts, place, strict=True)]
        taps = [[b + d * r for r in range(k)] for b, k, d in zip(begins, kernel, dilation, strict=True)]
        inside = [[i for i in row if 0 <= i < n] for row, n in zip(taps, space, strict=True)]
        seen = x[np.ix_(range(x.shape[0]), range(x.shape[1]), *inside)].astype(np.float64)
        counted = [[i for i in row if i < n + p] for row, n, p in zip(taps, space, padding, strict=True)]
        count = divisor or math.prod(map(len, counted if padded else inside))
        axes = tuple(range(2, x.ndim))
        out[(..., *place)] = seen.max(axes) if kind == "max" else seen.sum(axes) / count
    return out


def adapted(x: np.ndarray, kind: str, sizes: Sequence[int]) -> np.ndarray:
    """The maximum or mean of elements ``floor(i·n/m)`` to ``ceil((i + 1)·n/m)``."""
    out, axes = np.empty((*x.shape[:2], *sizes)), tuple(range(2, x.ndim))
    for place in np.ndindex(*sizes):
        cuts = [slice(i * n // m, -(-(i + 1) * n // m)) for i, n, m in zip(place, x.shape[2:], sizes, strict=True)]
        seen = x[(slice(None), slice(None), *cuts)].astype(np.float64)
        out[(..., *place)] = seen.max(axes) if kind == "max" else seen.mean(axes)
    return out


def interpolated(x: np.ndarray, sizes: Sequence[int], scales: Sequence[float], corners: bool) -> np.ndarray:
    """Linear interpolation, axis by axis; ``scales``: extents of elements of the result.

    As in PyTorch an axis of the same extent stays, whatever the factor that was given for it.
    """
    out = x.astype(np.float64)
    for axis, (m, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        n = out.shape[axis]
        if m == n:
            continue
        rows: list[Any] = []
        for i in range(m):
            place = (i * (n - 1) / (m - 1) if m > 1 else 0.0) if corners else max((i + 0.5) * scale - 0.5, 0.0)
            below = min(math.floor(place), n - 1)
            part = min(place - below, 1.0)
            rows.append(out.take(below, axis) * (1 - part) + out.take(min(below + 1, n - 1), axis) * part)
        out = np.stack(rows, axis)
    return out

"""New operators from their definitions alone: no kernel is written, and what comes out is timed against NumPy.

Each is one `eqsat.compute` in index notation. The first twelve are those that Zheng et al., FlexTensor (2020), evaluate
on; after them come a capsule convolution, a locally connected layer, a shift of channels, and a product with a Toeplitz
matrix.

python examples/operators.py
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import eqsat

Array = Any  # a NumPy array, or a traced one while eqsat looks on
Shape = tuple[int, ...]


@eqsat.op
def matrix_product(a: Array, b: Array) -> Array:
    k = eqsat.axis(a.shape[1])
    if len(b.shape) == 1:
        return eqsat.compute((a.shape[0],), lambda i: eqsat.sum(a[i, k] * b[k], over=k))
    return eqsat.compute((a.shape[0], b.shape[1]), lambda i, j: eqsat.sum(a[i, k] * b[k, j], over=k))


@eqsat.op
def bilinear(a: Array, b: Array, c: Array) -> Array:
    k, m = eqsat.axes(a.shape[1], c.shape[1])
    return eqsat.compute((a.shape[0], b.shape[0]), lambda i, j: eqsat.sum(a[i, k] * b[j, k, m] * c[i, m], over=(k, m)))


@eqsat.op
def convolution(x: Array, w: Array, stride: int = 1, dilation: int = 1) -> Array:
    """x (n, c, space…), w (m, c, kernel…): along as many axes as there are."""
    c, *taps = eqsat.axes(*w.shape[1:])
    counts = [(n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]

    def element(n: Any, m: Any, *places: Any) -> Any:
        at = [stride * p + dilation * r for p, r in zip(places, taps, strict=True)]
        return eqsat.sum(x[(n, c, *at)] * w[(m, c, *taps)], over=(c, *taps))

    return eqsat.compute((x.shape[0], w.shape[0], *counts), element)


@eqsat.op
def transposed_convolution(x: Array, w: Array, stride: int = 2) -> Array:
    """x (n, c, space…), w (c, m, kernel…): position stride·j + f has the taps stride·t + f."""
    space, kernel = x.shape[2:], w.shape[2:]
    rank = len(kernel)
    c, *taps = eqsat.axes(w.shape[0], *(-(-k // stride) for k in kernel))
    rows = [n + t.extent - 1 for n, t in zip(space, taps, strict=True)]

    def element(n: Any, m: Any, *places: Any) -> Any:
        at = [j - t for j, t in zip(places[:rank], taps, strict=True)]
        tap = [stride * t + f for t, f in zip(taps, places[rank:], strict=True)]
        return eqsat.sum(x[(n, c, *at)] * w[(c, m, *tap)], over=(c, *taps))

    phases = eqsat.compute((x.shape[0], w.shape[1], *rows, *[stride] * rank), element, outside=0)
    order = [0, 1, *itertools.chain(*((2 + a, 2 + rank + a) for a in range(rank)))]
    whole = np.transpose(phases, order).reshape(x.shape[0], w.shape[1], *(n * stride for n in rows))
    full: Any = (..., *(slice((n - 1) * stride + k) for n, k in zip(space, kernel, strict=True)))
    return whole[full]


@eqsat.op
def grouped_convolution(x: Array, w: Array) -> Array:
    """x (n, g, c, h, w), w (g, m, c, r, s)."""
    c, r, s = eqsat.axes(*w.shape[2:])
    rows, columns = x.shape[3] - w.shape[3] + 1, x.shape[4] - w.shape[4] + 1
    return eqsat.compute(
        (x.shape[0], w.shape[0], w.shape[1], rows, columns),
        lambda n, g, m, p, q: eqsat.sum(x[n, g, c, p + r, q + s] * w[g, m, c, r, s], over=(c, r, s)),
    )


@eqsat.op
def depthwise_convolution(x: Array, w: Array) -> Array:
    """x (n, c, h, w), w (c, r, s)."""
    r, s = eqsat.axes(*w.shape[1:])
    rows, columns = x.shape[2] - w.shape[1] + 1, x.shape[3] - w.shape[2] + 1
    return eqsat.compute(
        (x.shape[0], x.shape[1], rows, columns),
        lambda n, c, p, q: eqsat.sum(x[n, c, p + r, q + s] * w[c, r, s], over=(r, s)),
    )


@eqsat.op
def capsule_convolution(a: Array, b: Array) -> Array:
    """Images of matrices: a (n, c, h, w, i, l), b (k, c, r, s, l, j), windows two apart."""
    c, r, s, m = eqsat.axes(*b.shape[1:5])
    rows, columns = (a.shape[2] - b.shape[2]) // 2 + 1, (a.shape[3] - b.shape[3]) // 2 + 1
    return eqsat.compute(
        (a.shape[0], b.shape[0], rows, columns, a.shape[4], b.shape[5]),
        lambda n, k, p, q, i, j: eqsat.sum(
            a[n, c, 2 * p + r, 2 * q + s, i, m] * b[k, c, r, s, m, j], over=(c, r, s, m)
        ),
    )


@eqsat.op
def locally_connected(x: Array, w: Array) -> Array:
    """A convolution with weights of their own at each position: x (n, c, h, w), w (p, q, m, c, r, s)."""
    c, r, s = eqsat.axes(*w.shape[3:])
    return eqsat.compute(
        (x.shape[0], w.shape[2], w.shape[0], w.shape[1]),
        lambda n, m, p, q: eqsat.sum(x[n, c, p + r, q + s] * w[p, q, m, c, r, s], over=(c, r, s)),
    )


@eqsat.op
def shift(x: Array, down: Array, right: Array) -> Array:
    """Each channel moved by offsets of its own: rows ``down[c, p]`` and columns ``right[c, q]`` of x (n, c, h, w)."""
    return eqsat.compute(
        (*x.shape[:2], down.shape[1], right.shape[1]), lambda n, c, p, q: x[n, c, down[c, p], right[c, q]]
    )


@eqsat.op
def toeplitz_product(t: Array, x: Array) -> Array:
    """The matrix with ``t[i - j + n - 1]`` at i, j, times x (n, m)."""
    n = x.shape[0]
    j = eqsat.axis(n)
    return eqsat.compute((t.shape[0] - n + 1, x.shape[1]), lambda i, k: eqsat.sum(t[i - j + n - 1] * x[j, k], over=j))


# The same in NumPy, as fast as it can be said there


def windows(x: Array, kernel: Shape, stride: int = 1, dilation: int = 1) -> Array:
    spans = [dilation * (k - 1) + 1 for k in kernel]
    rank = len(kernel)
    seen = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(x.ndim - rank, x.ndim)))
    every: Any = (..., *[slice(None, None, stride)] * rank, *[slice(None, None, dilation)] * rank)
    return seen[every]


def convolved(x: Array, w: Array, stride: int = 1, dilation: int = 1) -> Array:
    """One product of matrices, of all windows with all filters."""
    rank = w.ndim - 2
    seen = windows(x, w.shape[2:], stride, dilation)
    axes = [1, *range(2 + rank, 2 + 2 * rank)], [1, *range(2, 2 + rank)]
    return np.moveaxis(np.tensordot(seen, w, axes), -1, 1)


def transposed(x: Array, w: Array, stride: int = 2) -> Array:
    """One product of matrices, whose columns are added where they belong."""
    rank = w.ndim - 2
    parts = np.moveaxis(np.tensordot(w, x, (0, 1)), 1 + rank, 0)  # (n, m, kernel…, space…)
    sizes = [(n - 1) * stride + k for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    out = np.zeros((x.shape[0], w.shape[1], *sizes), x.dtype)
    for tap in np.ndindex(*w.shape[2:]):
        at = [slice(r, r + (n - 1) * stride + 1, stride) for r, n in zip(tap, x.shape[2:], strict=True)]
        places: Any = (..., *at)
        out[places] += parts[(slice(None), slice(None), *tap)]
    return out


def capsules(a: Array, b: Array) -> Array:
    seen = windows(np.moveaxis(a, (2, 3), (4, 5)), b.shape[2:4], 2)  # (n, c, i, l, p, q, r, s)
    return np.tensordot(seen, b, ((1, 6, 7, 3), (1, 2, 3, 4))).transpose(0, 4, 2, 3, 1, 5)


def by_einsum(subscripts: str, *operands: Array) -> Array:
    return np.einsum(subscripts, *operands, optimize=True)


def toeplitz(t: Array, x: Array) -> Array:
    return np.lib.stride_tricks.sliding_window_view(t, x.shape[0])[:, ::-1] @ x


@dataclass(frozen=True)
class Case:
    """An operator, NumPy's expression of it, and the shapes of its arguments: small ones and those that are timed.

    A shape that ends in 0 is that of row or column numbers.
    """

    operator: Callable[..., Array]
    peer: Callable[..., Array]
    small: tuple[Shape, ...]
    timed: tuple[Shape, ...]


def _shifted(x: Array, down: Array, right: Array) -> Array:
    channels = np.arange(x.shape[1])[:, None, None]
    return x[:, channels, down[:, :, None], right[:, None, :]]


CASES = {
    "GMV": Case(matrix_product, np.matmul, ((5, 7), (7,)), ((2048, 2048), (2048,))),
    "GMM": Case(matrix_product, np.matmul, ((5, 7), (7, 3)), ((512, 512), (512, 512))),
    "BIL": Case(
        bilinear, lambda a, b, c: by_einsum("ik,jkl,il->ij", a, b, c), ((4, 3), (5, 3, 6), (4, 6)),
        ((128, 128), (64, 128, 128), (128, 128)),
    ),
    "C1D": Case(convolution, convolved, ((2, 3, 9), (4, 3, 3)), ((1, 64, 1024), (128, 64, 3))),
    "T1D": Case(transposed_convolution, transposed, ((2, 3, 5), (3, 4, 3)), ((1, 64, 512), (64, 64, 4))),
    "C2D": Case(convolution, convolved, ((2, 3, 6, 7), (4, 3, 3, 2)), ((1, 64, 58, 58), (64, 64, 3, 3))),
    "T2D": Case(transposed_convolution, transposed, ((1, 3, 4, 5), (3, 2, 3, 4)), ((1, 64, 28, 28), (64, 32, 4, 4))),
    "C3D": Case(convolution, convolved, ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2)), ((1, 16, 18, 30, 30), (32, 16, 3, 3, 3))),
    "T3D": Case(
        transposed_convolution, transposed, ((1, 2, 3, 2, 3), (2, 3, 3, 2, 3)), ((1, 32, 8, 14, 14), (32, 16, 2, 2, 2))
    ),
    "GRP": Case(
        grouped_convolution, lambda x, w: by_einsum("ngcpqrs,gmcrs->ngmpq", windows(x, w.shape[3:]), w),
        ((2, 2, 3, 5, 6), (2, 4, 3, 3, 2)), ((1, 4, 32, 30, 30), (4, 32, 32, 3, 3)),
    ),
    "DEP": Case(
        depthwise_convolution, lambda x, w: by_einsum("ncpqrs,crs->ncpq", windows(x, w.shape[1:]), w),
        ((2, 3, 5, 6), (3, 3, 2)), ((1, 96, 58, 58), (96, 3, 3)),
    ),
    "DIL": Case(
        lambda x, w: convolution(x, w, dilation=2), lambda x, w: convolved(x, w, dilation=2),
        ((2, 3, 7, 8), (4, 3, 3, 2)), ((1, 64, 60, 60), (64, 64, 3, 3)),
    ),
    "capsules": Case(
        capsule_convolution, capsules, ((2, 2, 5, 6, 3, 2), (3, 2, 3, 2, 2, 4)),
        ((1, 16, 15, 15, 4, 4), (32, 16, 3, 3, 4, 4)),
    ),
    "locally connected": Case(
        locally_connected, lambda x, w: by_einsum("ncpqrs,pqmcrs->nmpq", windows(x, w.shape[4:]), w),
        ((2, 3, 5, 6), (3, 5, 4, 3, 3, 2)), ((8, 16, 16, 16), (14, 14, 32, 16, 3, 3)),
    ),
    "shift": Case(shift, _shifted, ((2, 3, 6, 5), (3, 4, 0), (3, 3, 0)), ((4, 64, 58, 58), (64, 56, 0), (64, 56, 0))),
    "Toeplitz": Case(toeplitz_product, toeplitz, ((11,), (6, 3)), ((2047,), (1024, 128))),
}  # fmt: skip
"""Abbreviations are FlexTensor's: products of matrices with vectors and matrices, bilinear, (transposed) convolutions
along one to three axes, grouped, depthwise, dilated."""


def arguments(shapes: tuple[Shape, ...], seed: int = 0) -> list[np.ndarray]:
    """Random arrays; for shapes that end in 0, consecutive numbers from a random one on for each channel."""
    rng = np.random.default_rng(seed)
    made: list[np.ndarray] = []
    for at, shape in enumerate(shapes):
        if shape[-1]:
            made.append(rng.standard_normal(shape).astype(np.float32))
        else:
            channels, count = shape[:2]
            first = rng.integers(0, made[0].shape[1 + at] - count + 1, (channels, 1))
            made.append(first + np.arange(count))
    return made


def interleaved(a: Callable[[], object], b: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median milliseconds of two functions called in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for f, kept in zip((a, b), times, strict=True):
            start = time.perf_counter()
            f()
            kept.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Operators defined in index notation, timed against NumPy.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="with small arguments")
    options = parser.parse_args()

    print(f"{'operator':<18} {'eqsat ms':>9} {'NumPy ms':>9} {'ratio':>6}  largest error / largest result")
    ratios = []
    for name in options.names or CASES:
        case = CASES[name]
        given = arguments(case.small if options.small else case.timed)
        fast = eqsat.optimize(case.operator, threads=1)
        exact = case.peer(*(a.astype(np.float64) if a.dtype == np.float32 else a for a in given))
        error = np.abs(fast(*given) - exact).max() / np.abs(exact).max()
        ours, theirs = interleaved(partial(fast, *given), partial(case.peer, *given), options.repeats)
        ratios.append(theirs / ours)
        print(f"{name:<18} {ours:9.3f} {theirs:9.3f} {theirs / ours:6.2f}  {error:.1e}")
    print(f"geometric mean {math.prod(ratios) ** (1 / len(ratios)):.2f}")


if __name__ == "__main__":
    main()

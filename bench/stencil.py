"""Stencils on grids and images, as NumPy programs of slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.workload import Array, Workload, made_of, normal

SUITE = "stencil"
STEPS = 10


def blur(x: Array) -> Array:
    """Means of three along rows, then of three along columns."""
    rows = (x[:, :-2] + x[:, 1:-1] + x[:, 2:]) * np.float32(1 / 3)
    return (rows[:-2] + rows[1:-1] + rows[2:]) * np.float32(1 / 3)


def unsharp(x: Array) -> Array:
    """A Gaussian of five along both axes is taken away from the image, which is twice as strong."""
    a, b, c = np.float32(0.375), np.float32(0.25), np.float32(0.0625)
    rows = c * (x[:, :-4] + x[:, 4:]) + b * (x[:, 1:-3] + x[:, 3:-1]) + a * x[:, 2:-2]
    smooth = c * (rows[:-4] + rows[4:]) + b * (rows[1:-3] + rows[3:-1]) + a * rows[2:-2]
    return 2 * x[2:-2, 2:-2] - smooth


def harris(x: Array) -> Array:
    """Harris' corner response: gradients by Sobel, their products summed over 3×3, determinant and trace."""
    above, middle, below = x[:-2], x[1:-1], x[2:]
    across = (above + 2 * middle + below) * np.float32(1 / 12)
    dx = across[:, 2:] - across[:, :-2]
    down = (below - above) * np.float32(1 / 12)
    dy = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]

    def summed(a: Array) -> Array:
        rows = a[:-2] + a[1:-1] + a[2:]
        return rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]

    xx, xy, yy = summed(dx * dx), summed(dx * dy), summed(dy * dy)
    trace = xx + yy
    return xx * yy - xy * xy - np.float32(0.04) * trace * trace


def jacobi_2d(x: Array) -> Array:
    """Steps of the five-point mean on the inside."""
    for _ in range(STEPS):
        y = x.copy()
        y[1:-1, 1:-1] = np.float32(0.2) * (x[1:-1, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1])
        x = y
    return x


def jacobi_3d(x: Array) -> Array:
    """One seven-point mean on the inside."""
    i = slice(1, -1)
    total = x[:-2, i, i] + x[2:, i, i] + x[i, :-2, i] + x[i, 2:, i] + x[i, i, :-2] + x[i, i, 2:]
    return np.float32(1 / 7) * (x[i, i, i] + total)


def heat_2d(x: Array) -> Array:
    """Steps of the heat equation on a torus."""
    for _ in range(STEPS):
        around = np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, -1, 1)
        x = x + np.float32(0.1) * (around - 4 * x)
    return x


def row(function: Callable[[Array], Array], *shape: int, steps: int = 1, flops: int) -> Workload:
    """``flops``: of one element in one step."""
    name = f"{function.__name__} {'x'.join(map(str, shape))}" + (f", {steps} steps" if steps > 1 else "")
    elements = float(np.prod(shape))
    inputs: Any = made_of(x=normal(*shape))
    return Workload(SUITE, name, "program", function, inputs, flops * elements * steps)


def workloads() -> list[Workload]:
    return [
        row(blur, 2048, 3072, flops=6),
        row(unsharp, 2048, 3072, flops=16),
        row(harris, 2048, 3072, flops=34),
        row(jacobi_2d, 1024, 1024, steps=STEPS, flops=5),
        row(jacobi_2d, 256, 256, steps=STEPS, flops=5),
        row(jacobi_3d, 128, 128, 128, flops=7),
        row(heat_2d, 1024, 1024, steps=STEPS, flops=7),
    ]

"""The stencils of the suite as Halide's functions.

Dimensions are in Halide's order: the axis along which elements are adjacent comes first. Each algorithm returns its
functions in the order in which they are computed; the last one is the output. Only those among them are ever stored:
what a schedule leaves alone is computed where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import halide as hl

from bench import stencil

Algorithm = Callable[[Any, Sequence[int]], list[Any]]
"""Of the image, and the extents of the output."""

x, y, z = hl.Var("x"), hl.Var("y"), hl.Var("z")


def blur(image: Any, _: Sequence[int]) -> list[Any]:
    rows, out = hl.Func("rows"), hl.Func("out")
    rows[x, y] = (image[x, y] + image[x + 1, y] + image[x + 2, y]) * hl.f32(1 / 3)
    out[x, y] = (rows[x, y] + rows[x, y + 1] + rows[x, y + 2]) * hl.f32(1 / 3)
    return [rows, out]


def unsharp(image: Any, _: Sequence[int]) -> list[Any]:
    a, b, c = hl.f32(0.375), hl.f32(0.25), hl.f32(0.0625)
    rows, out = hl.Func("rows"), hl.Func("out")
    rows[x, y] = c * (image[x, y] + image[x + 4, y]) + b * (image[x + 1, y] + image[x + 3, y]) + a * image[x + 2, y]
    smooth = c * (rows[x, y] + rows[x, y + 4]) + b * (rows[x, y + 1] + rows[x, y + 3]) + a * rows[x, y + 2]
    out[x, y] = 2 * image[x + 2, y + 2] - smooth
    return [rows, out]


def harris(image: Any, _: Sequence[int]) -> list[Any]:
    dx, dy, out = hl.Func("dx"), hl.Func("dy"), hl.Func("out")

    def across(i: Any) -> Any:
        return (image[i, y] + 2 * image[i, y + 1] + image[i, y + 2]) * hl.f32(1 / 12)

    def down(i: Any) -> Any:
        return (image[i, y + 2] - image[i, y]) * hl.f32(1 / 12)

    dx[x, y] = across(x + 2) - across(x)
    dy[x, y] = down(x) + 2 * down(x + 1) + down(x + 2)

    def summed(f: Any, g: Any) -> Any:
        found = [f[x + i, y + j] * g[x + i, y + j] for i in range(3) for j in range(3)]
        return sum(found[1:], start=found[0])

    xx, xy, yy = summed(dx, dx), summed(dx, dy), summed(dy, dy)
    trace = xx + yy
    out[x, y] = xx * yy - xy * xy - hl.f32(0.04) * trace * trace
    return [dx, dy, out]


def jacobi_2d(image: Any, extents: Sequence[int]) -> list[Any]:
    width, height = extents
    # One formula everywhere, with other factors on the border: quicker than a selection among two, by up to a half.
    inside = (x > 0) & (x < width - 1) & (y > 0) & (y < height - 1)
    middle, others = hl.select(inside, hl.f32(0.2), hl.f32(1)), hl.select(inside, hl.f32(0.2), hl.f32(0))
    steps = [hl.BoundaryConditions.repeat_edge(image)]
    for step in range(stencil.STEPS):
        last, now = steps[-1], hl.Func(f"step_{step}")
        now[x, y] = middle * last[x, y] + others * (last[x - 1, y] + last[x + 1, y] + last[x, y - 1] + last[x, y + 1])
        steps.append(now)
    return steps[1:]


def jacobi_3d(image: Any, _: Sequence[int]) -> list[Any]:
    out = hl.Func("out")
    i, j, k = x + 1, y + 1, z + 1
    total = image[i, j, z] + image[i, j, k + 1] + image[i, y, k] + image[i, j + 1, k] + image[x, j, k]
    out[x, y, z] = hl.f32(1 / 7) * (image[i, j, k] + total + image[i + 1, j, k])
    return [out]


def heat_2d(image: Any, extents: Sequence[int]) -> list[Any]:
    steps = [hl.BoundaryConditions.repeat_image(image, [(0, extent) for extent in extents])]
    for step in range(stencil.STEPS):
        last, now = steps[-1], hl.Func(f"step_{step}")
        around = last[x, y - 1] + last[x, y + 1] + last[x - 1, y] + last[x + 1, y]
        now[x, y] = last[x, y] + hl.f32(0.1) * (around - 4 * last[x, y])
        steps.append(now)
    return steps[1:]


ALGORITHMS: dict[str, Algorithm] = {f.__name__: f for f in (blur, unsharp, harris, jacobi_2d, jacobi_3d, heat_2d)}

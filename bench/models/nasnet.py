"""NasNet-A as TASO's and Tensat's benchmark has it: three times five normal cells and a reduction, without norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.images import Ops
from bench.vision import Maker, Params

WIDTHS, CELLS = (128, 256, 512), 5
"""Channels of the normal cells, twice as many in the reduction behind them; normal cells in a row."""
NORMAL = ("cur", "prev", "cur", "prev", "prev")
"""What each separable 3×3 convolution of a normal cell reads."""
REDUCTION = (7, 5, 7, 5, 3)
"""Kernels of the separable convolutions of a reduction cell."""


def nasnet_params(rng: np.random.Generator) -> Params:
    make, cells, cin = Maker(rng), [], 64
    for width in WIDTHS:
        before = cin  # both inputs of a stack's first cell are what the stack is given
        for cell in range(CELLS + 1):
            wide = width if cell < CELLS else 2 * width
            kernels = (3,) * len(NORMAL) if cell < CELLS else REDUCTION
            separable = [
                {
                    "depthwise": make.weights(wide, 1, n, n, gain=1.0),
                    "pointwise": make.weights(wide, wide, 1, 1, gain=0.5),
                }
                for n in kernels
            ]
            cur, prev = make.weights(wide, cin, 1, 1), make.weights(wide, before, 1, 1)
            cells.append({"cur": cur, "prev": prev, "separable": separable})
            before, cin = cin, 5 * wide
    return {"stem": make.weights(64, 3, 7, 7), "cells": cells}


def nasnet(ops: Ops, params: Params, x: Any) -> Any:
    """Zoph et al. 2018, up to the last reduction."""
    x = ops.relu(ops.conv(x, params["stem"], stride=2, padding=3))
    x = ops.max_pool(x, 3, stride=2, padding=1)
    cells = iter(params["cells"])
    for width in WIDTHS:
        prev = cur = x
        for _ in range(CELLS):
            prev, cur = cur, normal_cell(ops, next(cells), prev, cur, width)
        x = reduction_cell(ops, next(cells), prev, cur, 2 * width)
    return x


def fitted(ops: Ops, p: Params, *given: Any) -> list[Any]:
    """The two inputs of a cell with its channels."""
    return [ops.relu(ops.conv(x, p[name])) for x, name in zip(given, ("prev", "cur"), strict=True)]


def separable(ops: Ops, x: Any, p: Params, width: int, kernel: int = 3, stride: int = 1) -> Any:
    y = ops.conv(x, p["depthwise"], stride=stride, padding=kernel // 2, groups=width)
    return ops.conv(y, p["pointwise"])


def mean(ops: Ops, x: Any, stride: int = 1) -> Any:
    return ops.avg_pool(x, 3, stride=stride, padding=1, count_padding=False)


def normal_cell(ops: Ops, p: Params, prev: Any, cur: Any, width: int) -> Any:
    prev, cur = fitted(ops, p, prev, cur)
    read = {"prev": prev, "cur": cur}
    a, b, c, d, e = (separable(ops, read[n], q, width) for n, q in zip(NORMAL, p["separable"], strict=True))
    pairs = ((a, cur), (b, c), (mean(ops, cur), prev), (mean(ops, prev), mean(ops, prev)), (d, e))
    return ops.concat(*(ops.add(*pair) for pair in pairs))


def reduction_cell(ops: Ops, p: Params, prev: Any, cur: Any, width: int) -> Any:
    prev, cur = fitted(ops, p, prev, cur)
    a, b, c, d = (
        separable(ops, x, q, width, kernel, 2)
        for x, q, kernel in zip((prev, cur, prev, prev), p["separable"][:4], REDUCTION[:4], strict=True)
    )
    first = ops.add(a, b)
    most = ops.max_pool(cur, 3, stride=2, padding=1)
    second = ops.add(most, c)
    third = ops.add(mean(ops, cur, 2), d)
    fourth = ops.add(most, separable(ops, first, p["separable"][4], width))
    return ops.concat(first, second, third, fourth, ops.add(mean(ops, first), second))

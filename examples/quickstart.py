"""eqsat in one minute: optimize ordinary NumPy code, check it, time it, ask what happened.

python examples/quickstart.py
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import eqsat

Array = Any  # a NumPy array, or a traced one while eqsat looks on


def feed_forward(x: Array, w1: Array, b1: Array, w2: Array, b2: Array, scale: Array, shift: Array) -> Array:
    """The feed-forward half of a transformer layer: linear, gelu, linear, residual, layer norm."""
    hidden = x @ w1 + b1
    hidden = 0.5 * hidden * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (hidden + 0.044715 * hidden**3)))
    y = x + hidden @ w2 + b2
    centered = y - y.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift


TURNS = 4
PAUSE = 0.2
"""Seconds before a turn, in which the threads of the other side go to sleep: OpenBLAS's spin for 0.13 s at 2 GHz."""


def in_turns(a: Callable[[], object], b: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median milliseconds of two functions, each called some times in a row before the other."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for f, kept in zip((a, b), times, strict=True):
            time.sleep(PAUSE)
            f()
            for _ in range(-(-repeats // TURNS)):
                start = time.perf_counter()
                f()
                kept.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Optimize one NumPy function and compare it with itself.")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    rows, width, inner = options.rows, options.width, 4 * options.width

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return rng.normal(0.0, scale, shape).astype(np.float32)

    x = normal(rows, width)
    weights = {
        "w1": normal(width, inner, scale=width**-0.5),
        "b1": normal(inner, scale=0.1),
        "w2": normal(inner, width, scale=inner**-0.5),
        "b2": normal(width, scale=0.1),
        "scale": 1.0 + normal(width, scale=0.1),
        "shift": normal(width, scale=0.1),
    }

    # Weights named in `const` are known when the function is compiled: they are folded and packed once.
    fast = eqsat.optimize(feed_forward, const=tuple(weights))

    start = time.perf_counter()
    result = fast(x, **weights)
    compiled = time.perf_counter() - start

    exact = feed_forward(x.astype(np.float64), **{name: w.astype(np.float64) for name, w in weights.items()})
    plain = feed_forward(x, **weights)
    before, after = in_turns(lambda: feed_forward(x, **weights), lambda: fast(x, **weights), options.repeats)

    print(f"transformer feed-forward block, {rows} x {width} -> {inner} -> {width}, float32\n")
    print(f"  first call, with search, compilation and verification: {compiled:.2f} s")
    errors = [float(np.abs(y - exact).max()) for y in (plain, result)]
    print(f"  largest error against float64:  NumPy {errors[0]:.1e}   eqsat {errors[1]:.1e}")
    print(
        f"  time a call:                    NumPy {before:.2f} ms   eqsat {after:.2f} ms   ({before / after:.2f} x)\n"
    )
    print(fast.explain(x, **weights))


if __name__ == "__main__":
    main()

"""Programs that are slow as written and have a faster equal. Every system is given the program as written."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from bench.workload import Array, Workload, made_of, normal

HIDDEN, LENGTH, GATES = 512, 5, 8


def chain(a: Array, b: Array, c: Array, d: Array) -> Array:
    return a @ b @ c @ d


def qkv(x: Array, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return x @ q, x @ k, x @ v


def common_factor(a: Array, b: Array, c: Array) -> Array:
    return a @ b + a @ c


def sum_of_product(a: Array, b: Array) -> Any:
    return (a @ b).sum()


def trace_of_product(a: Array, b: Array) -> Any:
    return np.trace(a @ b)


def low_rank(x: Array, u: Array, v: Array) -> Array:
    return (x @ u) @ v


def lora(x: Array, w: Array, a: Array, b: Array) -> Array:
    """Hu et al., "LoRA" (2021): the weights are written out before they are used."""
    return x @ (w + 0.5 * (a @ b))


def linear_attention(q: Array, k: Array, v: Array) -> Array:
    return (q @ k.swapaxes(-1, -2)) @ v


def relu_relu(x: Array) -> Array:
    return np.maximum(np.maximum(x, 0), 0)


def nas_rnn(x: Array, state: Array, wx: Array, wh: Array) -> Array:
    """The recurrent cell of Zoph and Le, "Neural Architecture Search" (2017), as in TASO's benchmarks, unrolled.

    ``x`` (length, 1, hidden), ``state`` (1, hidden), ``wx`` and ``wh`` (8, hidden, hidden).
    """
    for step in range(LENGTH):
        t = [x[step] @ wx[i] + state @ wh[i] for i in range(GATES)]
        m0 = np.maximum(t[0], 0) + expit(t[3])
        m1 = expit(t[1]) + np.tanh(t[2])
        m2 = expit(t[4]) * np.tanh(t[5])
        m3 = expit(t[6]) * np.maximum(t[7], 0)
        m4 = expit(m1) + np.tanh(m2)
        m5 = np.tanh(m0) * np.tanh(m3)
        state = np.tanh(np.tanh(m4) * np.tanh(m5))
    return state


def workloads() -> list[Workload]:
    def row(name: str, kind: str, function: object, flops: float, makers: dict, **more: object) -> Workload:
        return Workload("algebra", name, kind, function, made_of(**makers), flops, **more)  # type: ignore[arg-type]

    square = normal(1024, 1024)
    heads = normal(8, 1024, 64)
    elements = 10_000_000
    gates = normal(GATES, HIDDEN, HIDDEN, scale=HIDDEN**-0.5)
    return [
        row(
            "chain 200x100x200x100x1",
            "chain",
            chain,
            2.0 * (200 * 100 + 100 * 200 + 200 * 100),
            {"a": normal(200, 100), "b": normal(100, 200), "c": normal(200, 100), "d": normal(100, 1)},
        ),
        row(
            "QKV 128x768",
            "qkv",
            qkv,
            3 * 2.0 * 128 * 768 * 768,
            {"x": normal(128, 768), "q": normal(768, 768), "k": normal(768, 768), "v": normal(768, 768)},
            const=("q", "k", "v"),
        ),
        row(
            "A@B + A@C 512",
            "common_factor",
            common_factor,
            2.0 * 512**3,
            {"a": normal(512, 512), "b": normal(512, 512), "c": normal(512, 512)},
        ),
        row(
            "sum(A@B) 1024", "sum_of_product", sum_of_product, 4.0 * 1024**2, {"a": square, "b": square}, tolerance=1e-3
        ),
        row(
            "trace(A@B) 1024",
            "trace_of_product",
            trace_of_product,
            2.0 * 1024**2,
            {"a": square, "b": square},
            tolerance=1e-3,
        ),
        row(
            "(x@U)@V 128x1024, rank 16",
            "low_rank",
            low_rank,
            2 * 2.0 * 128 * 1024 * 16,
            {"x": normal(128, 1024), "u": normal(1024, 16), "v": normal(16, 1024)},
        ),
        row(
            "LoRA 16x1024x1024, rank 8",
            "lora",
            lora,
            2.0 * 16 * 1024 * (1024 + 16),
            {"x": normal(16, 1024), "w": normal(1024, 1024), "a": normal(1024, 8), "b": normal(8, 1024)},
        ),
        row(
            "linear attention 8x1024x64",
            "as_written_linear_attention",
            linear_attention,
            2 * 2.0 * 8 * 1024 * 64 * 64,
            {"q": heads, "k": heads, "v": heads},
        ),
        row(
            "NasRNN 512, length 5",
            "nas_rnn",
            nas_rnn,
            LENGTH * GATES * 2 * 2.0 * HIDDEN * HIDDEN,
            {"x": normal(LENGTH, 1, HIDDEN), "state": normal(1, HIDDEN), "wx": gates, "wh": gates},
            const=("wx", "wh"),
            options={"length": LENGTH, "gates": GATES},
        ),
        row("relu(relu(x)) 10M", "relu_relu", relu_relu, 1.0 * elements, {"x": normal(elements)}),
    ]

"""Matrix products, square, thin, batched and odd; the right operand known when compiling, or not."""

from __future__ import annotations

import numpy as np

from bench.workload import Array, Workload, made_of, normal

SHAPES = (
    (1024, 1024, 1024),
    (64, 3072, 768),
    (128, 384, 1536),
    (1, 4096, 4096),
    (8, 4096, 4096),
    (2048, 64, 2048),
    (64, 64, 64),
    (511, 257, 1023),
)
BATCHED = ((16, 128, 64, 128),)


def matmul(a: Array, b: Array) -> Array:
    return np.matmul(a, b)


def workloads() -> list[Workload]:
    """``M x K x N``, each twice."""
    rows = []
    for batch, (m, k, n) in [((), s) for s in SHAPES] + [(s[:1], s[1:]) for s in BATCHED]:
        for known in (False, True):
            label = "x".join(map(str, (*batch, m, k, n)))
            rows.append(
                Workload(
                    suite="gemm",
                    name=f"{label} known" if known else label,
                    kind="matmul",
                    function=matmul,
                    inputs=made_of(a=normal(*batch, m, k), b=normal(*batch, k, n)),
                    flops=2.0 * m * k * n * (batch[0] if batch else 1),
                    const=("b",) if known else (),
                )
            )
    return rows

"""Matrix products, square, thin, batched and odd, of float32 and of float64; the right operand known, or not."""

from __future__ import annotations

import math

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
DOUBLE = ((1000, 1000, 1000), (2000, 2000, 2000), (3000, 3000, 3000))
"""In float64."""
STREAMED = (8, 30000, 10000)
"""Its right operand has 1.2 GB, in every process once; packed it would be there twice."""


def matmul(a: Array, b: Array) -> Array:
    return np.matmul(a, b)


def product(*shape: int, dtype: str = "float32", known: bool = False) -> Workload:
    """``M x K x N``, or ``batch x M x K x N``."""
    *batch, m, k, n = shape
    words = ["x".join(map(str, shape))]
    if dtype != "float32":
        words.append(dtype)
    if known:
        words.append("known")
    return Workload(
        suite="gemm",
        name=" ".join(words),
        kind="matmul",
        function=matmul,
        inputs=made_of(a=normal(*batch, m, k, dtype=dtype), b=normal(*batch, k, n, dtype=dtype)),
        flops=2.0 * math.prod(shape),
        const=("b",) if known else (),
        dtype=dtype,
        tolerance=1e-5 if dtype == "float32" else 1e-13,
    )


def workloads() -> list[Workload]:
    """Each twice, but those that would take minutes, or a machine's memory."""
    rows = [product(*shape, known=known) for shape in (*SHAPES, *BATCHED) for known in (False, True)]
    rows += [product(*shape, dtype="float64") for shape in DOUBLE]
    return [*rows, product(*STREAMED)]

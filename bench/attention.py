"""Scaled dot-product attention of 8 heads of width 64, and its linear cousin."""

from __future__ import annotations

import math

import numpy as np

from bench.workload import Array, Workload, made_of, normal

HEADS, WIDTH = 8, 64


def attention(q: Array, k: Array, v: Array) -> Array:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def causal_attention(q: Array, k: Array, v: Array) -> Array:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    n = q.shape[-2]
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def linear_attention(q: Array, k: Array, v: Array) -> Array:
    """Katharopoulos et al., "Transformers are RNNs" (2020), in its fast form, with exp for the feature map."""
    fq, fk = np.exp(q), np.exp(k)
    mixed = fq @ (fk.swapaxes(-1, -2) @ v)
    return mixed / (fq @ fk.sum(axis=-2, keepdims=True).swapaxes(-1, -2))


def workloads() -> list[Workload]:
    def row(name: str, kind: str, function: object, queries: int, keys: int, flops: float) -> Workload:
        makers = {"q": normal(HEADS, queries, WIDTH), "k": normal(HEADS, keys, WIDTH), "v": normal(HEADS, keys, WIDTH)}
        return Workload("attention", name, kind, function, made_of(**makers), flops)  # type: ignore[arg-type]

    def flops(queries: int, keys: int) -> float:
        return HEADS * queries * keys * (4.0 * WIDTH + 5)

    return [
        row("sequence 128", "attention", attention, 128, 128, flops(128, 128)),
        row("sequence 512", "attention", attention, 512, 512, flops(512, 512)),
        row("sequence 2048", "attention", attention, 2048, 2048, flops(2048, 2048)),
        row("causal 512", "causal_attention", causal_attention, 512, 512, flops(512, 512) / 2),
        row("causal 2048", "causal_attention", causal_attention, 2048, 2048, flops(2048, 2048) / 2),
        row("cross 64 on 2048", "attention", attention, 64, 2048, flops(64, 2048)),
        row(
            "linear 2048", "linear_attention", linear_attention, 2048, 2048, HEADS * 2048 * (4.0 * WIDTH**2 + 4 * WIDTH)
        ),
    ]

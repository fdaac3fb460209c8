"""Transformers: BERT as Tensat's benchmark has it, and a layer of the real one."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.images import Ops
from bench.vision import Maker, Params

LENGTH, WIDTH, HEADS, LAYERS = 64, 1024, 16, 8
"""Of Tensat's BERT."""
TOKENS, BASE, BASE_HEADS = 128, 768, 12
"""Of the layer of BERT-base."""


def heads(ops: Ops, x: Any, length: int, count: int, width: int) -> Any:
    """(length, count · width) → (count, length, width)."""
    return ops.transpose(ops.reshape(x, (length, count, width)), (1, 0, 2))


def joined(ops: Ops, x: Any, length: int, width: int) -> Any:
    """(heads, length, …) → (length, width)."""
    return ops.reshape(ops.transpose(x, (1, 0, 2)), (length, width))


def tensat_bert_params(rng: np.random.Generator) -> Params:
    make = Maker(rng)
    names = ("query", "key", "value", "next")
    return {"layers": [{name: make.weights(WIDTH, WIDTH, gain=1.0) for name in names} for _ in range(LAYERS)]}


def tensat_bert(ops: Ops, params: Params, x: Any) -> Any:
    """Yang et al., "Equality Saturation for Tensor Graph Superoptimization" (2021): per layer four products with the
    same input, the last of which is the next layer's input; heads multiply without a softmax, and keys are not
    transposed (as many positions as elements of a head). All heads are results."""
    x, results = ops.relu(x), []
    for p in params["layers"]:
        q, k, v = (heads(ops, ops.matmul(x, p[n]), LENGTH, HEADS, WIDTH // HEADS) for n in ("query", "key", "value"))
        results.append(joined(ops, ops.matmul(ops.matmul(q, k), v), LENGTH, WIDTH))
        x = ops.matmul(x, p["next"])
    return (*results, x)


def bert_layer_params(rng: np.random.Generator) -> Params:
    make = Maker(rng)

    def dense(width: int, out: int, gain: float = 1.0) -> Params:
        return {"w": make.weights(out, width, gain=gain), "b": make.vector(out)}

    def norm() -> Params:
        return {"scale": make.vector(BASE, 1.0), "shift": make.vector(BASE)}

    found = {name: dense(BASE, BASE) for name in ("query", "key", "value", "output")}
    wide = {"wide": dense(BASE, 4 * BASE), "narrow": dense(4 * BASE, BASE, gain=2.0)}
    return found | wide | {"attention_norm": norm(), "norm": norm()}


def bert_layer(ops: Ops, params: Params, x: Any) -> Any:
    """Devlin et al. 2019, an encoder layer of BERT-base."""

    def dense(x: Any, name: str) -> Any:
        return ops.linear(x, params[name]["w"], params[name]["b"])

    def norm(x: Any, name: str) -> Any:
        return ops.layer_norm(x, params[name]["scale"], params[name]["shift"])

    width = BASE // BASE_HEADS
    q, k, v = (heads(ops, dense(x, n), TOKENS, BASE_HEADS, width) for n in ("query", "key", "value"))
    scores = ops.scaled(ops.matmul(q, ops.transpose(k, (0, 2, 1))), width**-0.5)
    mixed = joined(ops, ops.matmul(ops.softmax(scores), v), TOKENS, BASE)
    x = norm(ops.add(x, dense(mixed, "output")), "attention_norm")
    return norm(ops.add(x, dense(ops.gelu(dense(x, "wide")), "narrow")), "norm")

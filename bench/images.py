"""Operators of networks that every peer has; a workload written with them is one function for all.

Images are NCHW (NCL and NCDHW for other ranks), weights (out, in / groups, kernel…), as PyTorch's and ONNX's.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bench.workload import Array, Inputs, Workload, made_of
from eqsat import nn

KIND = "images"
Padding = int | tuple[int, ...]
"""Of all axes of space, or of each."""


class Ops(Protocol):
    """What a peer brings; ``x`` and what is returned are whatever it computes with."""

    def conv(
        self, x: Any, w: Any, b: Any = None, *, stride: int = 1, padding: Padding = 0, dilation: int = 1,
        groups: int = 1,
    ) -> Any: ...  # fmt: skip

    def conv_transpose(self, x: Any, w: Any, b: Any = None, *, stride: int = 1, padding: int = 0) -> Any:
        """``w`` has axes (in, out, kernel…)."""

    def batch_norm(self, x: Any, p: Mapping[str, Any]) -> Any:
        """``(x - mean) / sqrt(variance + 1e-5) * scale + shift`` per channel."""

    def max_pool(self, x: Any, kernel: int, *, stride: int, padding: int = 0) -> Any: ...

    def avg_pool(self, x: Any, kernel: int, *, stride: int, padding: int = 0, count_padding: bool = True) -> Any: ...

    def mean_pool(self, x: Any) -> Any:
        """(N, C, H, W) → (N, C)."""

    def adaptive_avg_pool(self, x: Any, size: int) -> Any: ...

    def resize(self, x: Any, factor: int) -> Any:
        """Bilinear, pixels' centres aligned."""

    def relu(self, x: Any) -> Any: ...

    def clip(self, x: Any, low: float, high: float) -> Any: ...

    def add(self, x: Any, y: Any) -> Any: ...

    def concat(self, *parts: Any) -> Any:
        """Along channels."""

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        """``x @ w.T + b``."""

    def matmul(self, x: Any, y: Any) -> Any: ...

    def scaled(self, x: Any, by: float) -> Any: ...

    def reshape(self, x: Any, shape: tuple[int, ...]) -> Any: ...

    def transpose(self, x: Any, axes: tuple[int, ...]) -> Any: ...

    def softmax(self, x: Any) -> Any:
        """Over the last axis."""

    def layer_norm(self, x: Any, scale: Any, shift: Any) -> Any:
        """Over the last axis, with 1e-5 added to the variance."""

    def gelu(self, x: Any) -> Any: ...


CONVOLUTIONS: dict[int, Callable[..., Any]] = {3: nn.conv1d, 4: nn.conv2d, 5: nn.conv3d}
TRANSPOSED: dict[int, Callable[..., Any]] = {3: nn.conv_transpose1d, 4: nn.conv_transpose2d, 5: nn.conv_transpose3d}


class NumpyOps:
    """NumPy and ``eqsat.nn``, for NumPy's arrays and traced ones."""

    def conv(self, x: Array, w: Array, b: Array = None, **options: Any) -> Array:
        return CONVOLUTIONS[x.ndim](x, w, b, **options)

    def conv_transpose(self, x: Array, w: Array, b: Array = None, **options: int) -> Array:
        return TRANSPOSED[x.ndim](x, w, b, **options)

    def batch_norm(self, x: Array, p: Mapping[str, Array]) -> Array:
        return nn.batch_norm(x, p["mean"], p["variance"], p["scale"], p["shift"])

    def max_pool(self, x: Array, kernel: int, *, stride: int, padding: int = 0) -> Array:
        return nn.max_pool2d(x, kernel, stride, padding)

    def avg_pool(self, x: Array, kernel: int, *, stride: int, padding: int = 0, count_padding: bool = True) -> Array:
        return nn.avg_pool2d(x, kernel, stride, padding, count_include_pad=count_padding)

    def mean_pool(self, x: Array) -> Array:
        return x.mean(axis=(2, 3))

    def adaptive_avg_pool(self, x: Array, size: int) -> Array:
        return nn.adaptive_avg_pool2d(x, size)

    def resize(self, x: Array, factor: int) -> Array:
        return nn.interpolate(x, scale_factor=factor, mode="bilinear")

    def relu(self, x: Array) -> Array:
        return np.maximum(x, 0)

    def clip(self, x: Array, low: float, high: float) -> Array:
        return np.clip(x, low, high)

    def add(self, x: Array, y: Array) -> Array:
        return x + y

    def concat(self, *parts: Array) -> Array:
        return np.concatenate(parts, axis=1)

    def linear(self, x: Array, w: Array, b: Array) -> Array:
        return x @ w.T + b

    def matmul(self, x: Array, y: Array) -> Array:
        return x @ y

    def scaled(self, x: Array, by: float) -> Array:
        return x * by

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        return x.reshape(shape)

    def transpose(self, x: Array, axes: tuple[int, ...]) -> Array:
        return x.transpose(axes)

    def softmax(self, x: Array) -> Array:
        return nn.softmax(x)

    def layer_norm(self, x: Array, scale: Array, shift: Array) -> Array:
        return nn.layer_norm(x, scale, shift)

    def gelu(self, x: Array) -> Array:
        return nn.gelu(x)


Build = Callable[..., Any]
"""``build(ops, *inputs)``."""
NUMPY = NumpyOps()


def of_images(
    suite: str, name: str, build: Build, makers: Mapping[str, Callable[[np.random.Generator], Any]], flops: float,
    const: Sequence[str] = (), **more: Any,
) -> Workload:  # fmt: skip
    """A workload whose function, for NumPy, has the parameters that ``makers`` names, and calls ``build``."""
    names = tuple(makers)

    def function(*inputs: Array) -> Any:
        return build(NUMPY, *inputs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
    function.__name__ = build.__name__
    return Workload(suite, name, KIND, function, made_of(**makers), flops, tuple(const), {"build": build}, **more)


def weights(*shape: int) -> Callable[[np.random.Generator], Array]:
    """A maker of weights that keep the variance of what they are contracted with: (out, in…)."""
    scale = np.float32(1.0 / math.sqrt(math.prod(shape[1:])))
    return lambda rng: rng.standard_normal(shape, np.float32) * scale


def flat(inputs: Inputs) -> dict[str, Array]:
    """The arrays of nested inputs, by dotted names."""
    found: dict[str, Array] = {}

    def add(at: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                add(f"{at}.{key}" if at else str(key), item)
        elif isinstance(value, list | tuple):
            for number, item in enumerate(value):
                add(f"{at}.{number}", item)
        else:
            found[at] = value

    add("", inputs)
    return found


def convolution_flops(
    shape: Sequence[int], w: Sequence[int], *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> float:
    """Multiplications and additions of a direct convolution of images ``shape`` with weights ``w``."""
    places = math.prod(
        (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(shape[2:], w[2:], strict=True)
    )
    return 2.0 * shape[0] * places * math.prod(w)

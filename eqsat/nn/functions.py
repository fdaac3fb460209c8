"""Functions of neural networks, for traced arrays and NumPy arrays alike.

Each is one operator to the optimizer, equal to its written-out form; writing the form out in NumPy is
recognised too. Integers are computed in float64, as NumPy's float functions do.
"""

from __future__ import annotations

from typing import Any, Literal

from eqsat.errors import OptionError, UnsupportedDTypeError
from eqsat.frontends.convert import lift, promote
from eqsat.frontends.scipy_functions import log_softmax_of, softmax_of
from eqsat.frontends.trace import traceable
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.composite import composite
from eqsat.ir.node import Node
from eqsat.ir.types import bool_, float64

__all__ = [
    "erf",
    "gelu",
    "layer_norm",
    "log_softmax",
    "relu",
    "rms_norm",
    "rsqrt",
    "sigmoid",
    "silu",
    "softmax",
]


def _floating(x: Any) -> Node:
    node = lift(x)
    return node if node.dtype.is_float else build.cast(node, float64)


@traceable
def softmax(x: Any, axis: int | tuple[int, ...] | None = -1) -> Any:
    """``exp(x - max) / sum(exp(x - max))`` over ``axis`` (None: all axes). Same shape as ``x``."""
    return TracedArray(softmax_of(_floating(x), axis))


@traceable
def log_softmax(x: Any, axis: int | tuple[int, ...] | None = -1) -> Any:
    """The logarithm of :func:`softmax`, without its overflow. Same shape as ``x``."""
    return TracedArray(log_softmax_of(_floating(x), axis))


def _row_parameters(x: Any, *given: tuple[Any, float]) -> list[Node]:
    """``x`` and parameters of shape ``x.shape[-1:]`` in one float type; absent ones filled."""
    dtype = promote(x, *(p for p, _ in given if p is not None))
    dtype = dtype if dtype.is_float else float64
    node = lift(x, dtype)
    if node.type.ndim == 0:
        raise ValueError("normalization needs at least one axis, not a 0-d array")
    row = node.shape[-1:]
    nodes = [node]
    for parameter, fill in given:
        if parameter is None:
            nodes.append(build.broadcast_to(build.scalar(fill, dtype), row))
        else:
            own = lift(parameter, dtype)
            if own.shape != row:
                raise ValueError(f"scale and shift must have shape {row} for x of shape {node.shape}, not {own.shape}")
            nodes.append(own)
    return nodes


@traceable
def layer_norm(x: Any, scale: Any = None, shift: Any = None, eps: float = 1e-5) -> Any:
    """``(x - mean) / sqrt(var + eps) * scale + shift`` over the last axis; scale and shift ``x.shape[-1:]``.

    Ba, Kiros and Hinton, Layer Normalization, 2016.
    """
    return TracedArray(composite("layer_norm", _row_parameters(x, (scale, 1), (shift, 0)), float(eps)))


@traceable
def rms_norm(x: Any, scale: Any = None, eps: float = 1e-5) -> Any:
    """``x / sqrt(mean(x²) + eps) * scale`` over the last axis; scale ``x.shape[-1:]``.

    Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    return TracedArray(composite("rms_norm", _row_parameters(x, (scale, 1)), float(eps)))


@traceable
def gelu(x: Any, approximate: Literal["none", "tanh"] | bool = "none") -> Any:
    """``x · Φ(x)``, Φ the normal distribution: with erf, or approximated through tanh.

    Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
    """
    if approximate not in ("none", "tanh", True, False):
        raise OptionError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    name = "gelu_tanh" if approximate in ("tanh", True) else "gelu"
    return TracedArray(composite(name, [_floating(x)]))


@traceable
def silu(x: Any) -> Any:
    """``x · sigmoid(x)``."""
    return TracedArray(composite("silu", [_floating(x)]))


@traceable
def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``."""
    return TracedArray(call("sigmoid", _floating(x)))


@traceable
def relu(x: Any) -> Any:
    """``maximum(x, 0)``, in the type of ``x``, which is a number's."""
    node = lift(x)
    if node.dtype == bool_:
        raise UnsupportedDTypeError("relu of bool: cast before with x.astype(…)")
    return TracedArray(call("relu", node))


@traceable
def rsqrt(x: Any) -> Any:
    """``1 / sqrt(x)``."""
    return TracedArray(call("rsqrt", _floating(x)))


@traceable
def erf(x: Any) -> Any:
    """The error function."""
    return TracedArray(call("erf", _floating(x)))

"""Quantized numbers, with ONNX's meaning: real values are ``(q - zero_point) · scale`` for integers q.

Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, 2018.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.errors import ShapeError, UnsupportedDTypeError
from eqsat.frontends.convert import lift
from eqsat.frontends.trace import traceable
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.build import call, cast, scalar
from eqsat.ir.node import Node
from eqsat.ir.types import DType, dtype_of, float32, int8, int16, int32, uint8, uint16
from eqsat.nn.convolution import Padding, convolution
from eqsat.nn.images import Ints

__all__ = [
    "conv_integer",
    "dequantize_linear",
    "matmul_integer",
    "qlinear_conv",
    "qlinear_matmul",
    "quantize_linear",
]

QUANTIZED = (uint8, int8, uint16, int16)


def _integers(name: str, x: Any, what: str) -> Node:
    node = lift(x)
    if node.dtype not in QUANTIZED:
        names = ", ".join(map(str, QUANTIZED))
        raise UnsupportedDTypeError(f"{name}: {what} must be one of {names}, not {node.dtype}")
    return node


def _float(x: Any) -> Node:
    """In the type that it is computed in."""
    node = lift(x)
    return node if node.dtype.is_float and not node.dtype.is_half else cast(node, float32)


def _along(name: str, what: str, parameter: Node, x: Node, axis: int) -> Node:
    """A scale or zero point, one for all (0-d or of one element) or one for each position of an axis, beside ``x``."""
    if parameter.type.size == 1:
        return build.reshape(parameter, ())
    if not -x.type.ndim <= axis < x.type.ndim or parameter.shape != x.shape[axis : axis + 1 or None]:
        raise ShapeError(f"{name}: {what} of shape {parameter.shape} along axis {axis} of {x.shape}")
    return build.reshape(parameter, (*parameter.shape, *[1] * (x.type.ndim - 1 - axis % x.type.ndim)))


def _saturated(x: Node, zero_point: Node | None, dtype: DType) -> Node:
    """Whole numbers and a zero point, as integers of a type."""
    low, high = dtype.limits
    if zero_point is not None:
        x = call("add", x, cast(zero_point, x.dtype))
    return cast(call("minimum", call("maximum", x, scalar(low, x)), scalar(high, x)), dtype)


@traceable
def quantize_linear(x: Any, scale: Any, zero_point: Any = None, *, axis: int = 1, dtype: Any = None) -> Any:
    """``saturate(round(x / scale) + zero_point)``, halves to even, as ONNX's QuantizeLinear.

    ``scale`` and ``zero_point``: 0-d, or one for each position of ``axis``. The result has the type of ``zero_point``,
    without one ``dtype`` (uint8): uint8, int8, uint16 or int16. Raises ``UnsupportedDTypeError`` for others, and
    ``ShapeError`` for parameters of other shapes.
    """
    node = _float(x)
    found = dtype_of(dtype or np.uint8)
    if zero_point is not None and (dtype is None or not isinstance(zero_point, int)):
        found = _integers("quantize_linear", zero_point, "zero_point").dtype
    if found not in QUANTIZED:
        raise UnsupportedDTypeError(f"quantize_linear: no integers of {found}")
    by = _along("quantize_linear", "scale", cast(lift(scale), node.dtype), node, axis)
    zero = None
    if zero_point is not None:
        zero = _along("quantize_linear", "zero_point", lift(zero_point, found), node, axis)
    return TracedArray(_saturated(call("round", call("div", node, by)), zero, found))


@traceable
def dequantize_linear(x: Any, scale: Any, zero_point: Any = None, *, axis: int = 1) -> Any:
    """``(x - zero_point) · scale``, as ONNX's DequantizeLinear, in the float type of ``scale``.

    ``x``: uint8, int8, uint16 or int16. ``scale`` and ``zero_point``: 0-d, or one for each position of ``axis``. Raises
    ``UnsupportedDTypeError`` for other types, and ``ShapeError`` for parameters of other shapes.
    """
    node, by = _integers("dequantize_linear", x, "x"), _float(scale)
    by = _along("dequantize_linear", "scale", by, node, axis)
    whole = node
    if zero_point is not None:
        zero = _along("dequantize_linear", "zero_point", lift(zero_point, node.dtype), node, axis)
        whole = call("sub", cast(node, int32), cast(zero, int32))
    product, given = call("mul", cast(whole, by.dtype), by), lift(scale).dtype
    return TracedArray(cast(product, given) if given.is_half else product)


def _product(name: str, a: Any, b: Any, a_zero_point: Any, b_zero_point: Any) -> Node:
    """``(a - a_zero_point) @ (b - b_zero_point)`` in int32."""
    factors = []
    for what, x, zero_point, axis in (("a", a, a_zero_point, -2), ("b", b, b_zero_point, -1)):
        node = _integers(name, x, what)
        wide = cast(node, int32)
        if zero_point is not None:
            axis = axis if node.type.ndim > 1 else -1
            zero = _along(name, f"{what}_zero_point", lift(zero_point, node.dtype), node, axis)
            wide = call("sub", wide, cast(zero, int32))
        factors.append(wide)
    return build.matmul(*factors)


@traceable
def matmul_integer(a: Any, b: Any, a_zero_point: Any = None, b_zero_point: Any = None) -> Any:
    """``(a - a_zero_point) @ (b - b_zero_point)`` in int32, which wraps around, as ONNX's MatMulInteger.

    ``a``, ``b``: uint8, int8, uint16 or int16, of shapes that ``numpy.matmul`` takes. ``a_zero_point``: 0-d or one for
    each row of ``a``; ``b_zero_point``: 0-d or one for each column of ``b``; of the types of ``a`` and ``b``.
    """
    return TracedArray(_product("matmul_integer", a, b, a_zero_point, b_zero_point))


@traceable
def qlinear_matmul(
    a: Any, a_scale: Any, a_zero_point: Any, b: Any, b_scale: Any, b_zero_point: Any, y_scale: Any, y_zero_point: Any
) -> Any:
    """The product of two quantized tensors, quantized again, as ONNX's QLinearMatMul.

    ``saturate(round(p · (a_scale · b_scale / y_scale)) + y_zero_point)`` with the product p of :func:`matmul_integer`,
    halves to even. Scales and zero points of ``a``: 0-d or one for each row, of ``b``: 0-d or one for each column;
    those of the result are 0-d. The result has the type of ``y_zero_point``.
    """
    name = "qlinear_matmul"
    product = _product(name, a, b, a_zero_point, b_zero_point)
    zero = _integers(name, y_zero_point, "y_zero_point")
    left, right, to = (_float(scale) for scale in (a_scale, b_scale, y_scale))
    if to.type.size != 1 or zero.type.size != 1:
        raise ShapeError(f"{name}: y_scale and y_zero_point are single numbers, not of {to.shape} and {zero.shape}")
    left = _along(name, "a_scale", left, lift(a), -2 if lift(a).type.ndim > 1 else -1)
    right = _along(name, "b_scale", right, lift(b), -1)
    by = call("div", call("mul", left, right), build.reshape(to, ()))
    whole = call("round", call("mul", cast(product, by.dtype), by))
    return TracedArray(_saturated(whole, build.reshape(zero, ()), zero.dtype))


def _shifted(name: str, what: str, x: Node, zero_point: Any, axis: int) -> Node:
    """``x - zero_point`` in the smallest type that holds it, which is padded and copied, then in int32."""
    if zero_point is None:
        return cast(x, int32)
    zero = _along(name, f"{what}_zero_point", lift(zero_point, x.dtype), x, axis)
    narrow = int16 if x.dtype.bits == 8 else int32
    return cast(call("sub", cast(x, narrow), cast(zero, narrow)), int32)


def _convolved(name: str, x: Any, w: Any, x_zero_point: Any, w_zero_point: Any, how: dict[str, Any]) -> Node:
    node, weight = _integers(name, x, "x"), _integers(name, w, "w")
    if not 3 <= weight.type.ndim <= 5:
        raise ShapeError(f"{name}: weight has shape {weight.shape}; it must be (out, in / groups, kernel…)")
    left, right = _shifted(name, "x", node, x_zero_point, 1), _shifted(name, "w", weight, w_zero_point, 0)
    return lift(convolution(name, weight.type.ndim - 2, TracedArray(left), TracedArray(right), None, **how))


@traceable
def conv_integer(
    x: Any, w: Any, x_zero_point: Any = None, w_zero_point: Any = None, *, stride: Ints = 1, padding: Padding = 0,
    dilation: Ints = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """The convolution of ``x - x_zero_point`` with ``w - w_zero_point`` in int32, as ONNX's ConvInteger.

    ``x``: (N, C, …), ``w``: (out, C / groups, kernel…), with one to three axes of space, uint8, int8, uint16 or int16;
    the rest as of :func:`conv2d`. ``x_zero_point`` is 0-d, ``w_zero_point`` 0-d or one for each channel of the result.
    What is padded counts as 0 after the zero point is subtracted.
    """
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": None}
    return TracedArray(_convolved("conv_integer", x, w, x_zero_point, w_zero_point, how))


@traceable
def qlinear_conv(
    x: Any, x_scale: Any, x_zero_point: Any, w: Any, w_scale: Any, w_zero_point: Any, y_scale: Any, y_zero_point: Any,
    bias: Any = None, *, stride: Ints = 1, padding: Padding = 0, dilation: Ints = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """A convolution of quantized tensors, quantized again, as ONNX's QLinearConv.

    ``saturate(round((c + bias) · (x_scale · w_scale / y_scale)) + y_zero_point)`` with c of :func:`conv_integer`,
    halves to even. ``w_scale``: 0-d or one for each channel of the result; ``bias``: int32, one for each. The result
    has the type of ``y_zero_point``.
    """
    name = "qlinear_conv"
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": None}
    found, zero = _convolved(name, x, w, x_zero_point, w_zero_point, how), _integers(name, y_zero_point, "y_zero_point")
    left, right, to = (_float(scale) for scale in (x_scale, w_scale, y_scale))
    if any(p.type.size != 1 for p in (left, to, zero)):
        raise ShapeError(f"{name}: x_scale, y_scale and y_zero_point are single numbers")
    if bias is not None:
        found = call("add", found, _along(name, "bias", lift(bias, int32), found, 1))
    by = call(
        "div", call("mul", build.reshape(left, ()), _along(name, "w_scale", right, found, 1)), build.reshape(to, ())
    )
    whole = call("round", call("mul", cast(found, by.dtype), by))
    return TracedArray(_saturated(whole, build.reshape(zero, ()), zero.dtype))

"""Quantized operators against exact integers and ONNX's own reference, and what the rules make of their programs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqsat
from eqsat import nn
from eqsat_backends.numba_cpu.tiles import dots
from tests.test_small_integers import drawn, wide

QUADS = dots.NEEDS["uint8·int8"] in dots.cpu_features()
"""Whether an instruction multiplies bytes four at a time; without it other ways may be as quick."""

F = np.float32
TYPES = ("uint8", "int8", "uint16", "int16")


def scalar(value: float, dtype: str = "float32") -> np.ndarray:
    return np.asarray(value, dtype)


def rounded(x: Fraction) -> int:
    """To the nearest integer, halves to even."""
    return round(x)


@given(
    st.lists(st.integers(-400, 400), min_size=1, max_size=12),
    st.sampled_from((0.25, 0.5, 2.0)),
    st.sampled_from(TYPES),
    st.integers(0, 100),
)
def test_quantize_rounds_halves_to_even_and_saturates(halves: list[int], scale: float, dtype: str, zero: int) -> None:
    x = np.array(halves, F) / 4
    found = nn.quantize_linear(x, F(scale), scalar(zero, dtype))
    limits = np.iinfo(dtype)
    exact = [rounded(Fraction(n, 4) / Fraction(scale)) + zero for n in halves]
    assert found.dtype == dtype and found.tolist() == [min(max(n, limits.min), limits.max) for n in exact]
    back = nn.dequantize_linear(found, F(scale), scalar(zero, dtype))
    assert back.dtype == F and np.array_equal(back, (found.astype(int) - zero) * F(scale))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dequantized_in_the_type_of_the_scale(dtype: type) -> None:
    x, scale = np.arange(-8, 8, dtype=np.int8), np.array(0.3, dtype)
    for function in (nn.dequantize_linear, eqsat.optimize(nn.dequantize_linear, strict=True)):
        found = function(x, scale)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, x * scale, rtol=np.finfo(dtype).eps)


def test_quantize_along_an_axis() -> None:
    x = np.arange(-12, 12, dtype=F).reshape(2, 3, 4)
    scale, zero = np.array([0.5, 1, 4], F), np.array([0, 3, -2], np.int8)
    for function in (nn.quantize_linear, eqsat.optimize(nn.quantize_linear, strict=True)):
        found = function(x, scale, zero)
        for i in range(3):
            assert np.array_equal(found[:, i], np.clip(np.rint(x[:, i] / scale[i]) + zero[i], -128, 127))


@pytest.mark.parametrize("name", ["quantize", "dequantize", "integer", "qlinear", "conv", "qconv"])
def test_operators_are_those_of_onnx(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    a, b = drawn((5, 9), "uint8"), drawn((9, 4), "int8")
    x = np.linspace(-50, 60, 45, dtype=F).reshape(5, 9)
    zero_a, zero_b, scale = scalar(100, "uint8"), scalar(-3, "int8"), scalar(0.3)
    image, kernel = drawn((1, 3, 7, 6), "uint8"), drawn((4, 3, 3, 3), "int8")
    pads = {"pads": [1, 1, 1, 1], "strides": [2, 1]}
    widths = {"padding": 1, "stride": (2, 1)}
    cases: dict[str, tuple[str, Callable[..., Any], list[np.ndarray]]] = {
        "quantize": ("QuantizeLinear", nn.quantize_linear, [x, scale, zero_a]),
        "dequantize": ("DequantizeLinear", nn.dequantize_linear, [b, scale, zero_b]),
        "integer": ("MatMulInteger", nn.matmul_integer, [a, b, zero_a, zero_b]),
        "qlinear": (
            "QLinearMatMul",
            nn.qlinear_matmul,
            [a, scalar(0.02), zero_a, b, scalar(0.05), zero_b, scalar(1.7), scalar(7, "uint8")],
        ),
        "conv": ("ConvInteger", partial(nn.conv_integer, **widths), [image, kernel, zero_a, zero_b]),
        "qconv": (
            "QLinearConv",
            partial(nn.qlinear_conv, **widths),
            [
                *(image, scalar(0.02), zero_a, kernel, np.array([0.01, 0.05, 0.03, 0.02], F), np.zeros(4, np.int8)),
                *(scalar(1.7), scalar(7, "uint8"), np.array([-900, 0, 5, 800], np.int32)),
            ],
        ),
    }
    kind, function, arrays = cases[name]
    attributes = pads if "conv" in name else {}
    names = [f"x{i}" for i in range(len(arrays))]
    types = onnx.helper.np_dtype_to_tensor_dtype
    given_ = [
        onnx.helper.make_tensor_value_info(n, types(v.dtype), v.shape) for n, v in zip(names, arrays, strict=True)
    ]
    expected = function(*arrays)
    result = onnx.helper.make_tensor_value_info("y", types(expected.dtype), None)
    graph = onnx.helper.make_graph([onnx.helper.make_node(kind, names, ["y"], **attributes)], "g", given_, [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])
    (found,) = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


def around(a: Any, b: Any, sa: Any, za: Any, sb: Any, zb: Any, sy: Any, zy: Any) -> Any:
    """Dequantized, multiplied in floats, quantized again."""
    return nn.quantize_linear(nn.dequantize_linear(a, sa, za) @ nn.dequantize_linear(b, sb, zb), sy, zy)


PARAMETERS = {
    "per tensor": (
        scalar(0.02),
        scalar(113, "uint8"),
        scalar(0.03),
        scalar(-7, "int8"),
        scalar(0.5),
        scalar(9, "uint8"),
    ),
    "per column": (
        scalar(0.02),
        scalar(113, "uint8"),
        np.linspace(0.01, 0.05, 87, dtype=F),
        np.arange(-43, 44, dtype=np.int8),
        scalar(2.0),
        scalar(-9, "int8"),
    ),
}


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_quantized_products_are_one_integer_product_with_its_epilogue(parameters: str) -> None:
    a, b = drawn((60, 250), "uint8"), drawn((250, 87), "int8")
    sa, za, sb, zb, sy, zy = PARAMETERS[parameters]

    def linear(a: Any, b: Any, *more: Any) -> Any:
        return nn.qlinear_matmul(a, more[0], more[1], b, *more[2:])

    product = (wide(a) - za.astype(int)) @ (wide(b) - zb.astype(int))
    limits = np.iinfo(zy.dtype)
    exact = np.clip(np.rint(product * (sa * sb / sy)) + zy, limits.min, limits.max)
    assert np.array_equal(nn.qlinear_matmul(a, sa, za, b, sb, zb, sy, zy), exact)
    optimized = eqsat.optimize(around if sb.ndim else linear, strict=True)
    found = optimized(a, b, sa, za, sb, zb, sy, zy)
    assert found.dtype == zy.dtype
    difference = np.abs(found.astype(int) - exact.astype(int))
    assert difference.max() <= 1 and (difference == 1).mean() < 0.01  # halves, by another order of the scales
    report = str(optimized.explain(a, b, sa, za, sb, zb, sy, zy))
    assert not QUADS or ("fma" in report and "k=63" in report), "250 bytes in quads"


def test_bad_quantization() -> None:
    x = np.zeros((2, 3), np.uint8)
    with pytest.raises(eqsat.errors.UnsupportedDTypeError, match="float32"):
        nn.dequantize_linear(x.astype(F), 1.0)
    with pytest.raises(eqsat.errors.UnsupportedDTypeError, match="int64"):
        nn.matmul_integer(x.astype(np.int64), x.T)
    with pytest.raises(eqsat.errors.ShapeError, match=r"scale of shape \(2,\) along axis 1 of \(2, 3\)"):
        nn.dequantize_linear(x, np.ones(2, F))
    with pytest.raises(eqsat.errors.ShapeError, match="single numbers"):
        nn.qlinear_matmul(x, 1.0, np.uint8(0), x.T, 1.0, np.uint8(0), np.ones(3, F), np.uint8(0))


def test_infinite_scales_leave_the_order_of_evaluation_free() -> None:
    """0·∞ before the sum is NaN, a sum times ∞ is not; after a limit both are bytes, and which is nobody's fault."""

    def layer(x: Any, w: Any, scale: Any) -> Any:
        real = nn.dequantize_linear(x, F(0.05), np.uint8(128)) @ nn.dequantize_linear(w, scale)
        return nn.quantize_linear(nn.relu(real), F(0.1), np.uint8(0))

    scale = np.linspace(0.01, 0.02, 48, dtype=F)
    x, w = drawn((32, 64), "uint8"), drawn((64, 48), "int8")
    found, expected = eqsat.optimize(layer, strict=True)(x, w, scale), layer(x, w, scale)
    assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    ("known", "images", "options"),
    [
        (False, 1, {"padding": 1}),
        (True, 2, {"padding": 1}),
        (True, 2, {"padding": (2, 1), "stride": (2, 1), "dilation": (1, 2), "groups": 2}),
    ],
)
def test_quantized_convolutions_are_one_product(known: bool, images: int, options: dict[str, Any]) -> None:
    """Zero points are padding, and a term of the sums: bytes are multiplied in quads, of four channels side by side
    where weights are known."""

    def layer(x: Any, w: Any, scale: Any, bias: Any) -> Any:
        zero = np.uint8(7)
        return nn.qlinear_conv(x, F(0.02), np.uint8(99), w, scale, None, F(1.5), zero, bias, **options)

    groups = options.get("groups", 1)
    x, w = drawn((images, 24, 12, 13), "uint8"), drawn((30, 24 // groups, 3, 3), "int8")
    scale, bias = np.linspace(0.001, 0.01, 30, dtype=F), np.arange(-15, 15, dtype=np.int32) * 99
    optimized = eqsat.optimize(layer, strict=True, const=("w", "bias") if known else (), threads=images)
    assert np.array_equal(optimized(x, w, scale, bias), layer(x, w, scale, bias))
    if QUADS:
        assert f"k={54 // groups}" in str(optimized.explain(x, w, scale, bias))
        assert ("def planes" in optimized.source(x, w, scale, bias)) == known

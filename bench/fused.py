"""Operators that want to share a pass over memory: epilogues, normalisations, elementwise chains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import erf, expit

from bench.workload import Array, Workload, made_of, normal, positive

SUITE = "fused"
MILLIONS = 10_000_000


def linear_gelu(x: Array, w: Array, b: Array) -> Array:
    y = x @ w + b
    return 0.5 * y * (1.0 + erf(y / math.sqrt(2.0)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + 1e-5) * scale + shift


def rms_norm(x: Array, scale: Array) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * scale


def add_layer_norm(x: Array, y: Array, scale: Array, shift: Array) -> Array:
    return layer_norm(x + y, scale, shift)


def swiglu(x: Array, gate: Array, up: Array) -> Array:
    g = x @ gate
    return g * expit(g) * (x @ up)


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def erf_of(x: Array) -> Array:
    return erf(x)


def power(x: Array, y: Array) -> Array:
    return x**y


def power_2_5(x: Array) -> Array:
    return x**2.5


def power_3(x: Array) -> Array:
    return x**3


def mean_variance(x: Array, axis: int) -> tuple[Array, Array]:
    return x.mean(axis=axis), x.var(axis=axis)


def mean_variance_0(x: Array) -> tuple[Array, Array]:
    return mean_variance(x, 0)


def mean_variance_1(x: Array) -> tuple[Array, Array]:
    return mean_variance(x, 1)


def mean_variance_2(x: Array) -> tuple[Array, Array]:
    return mean_variance(x, 2)


def workloads() -> list[Workload]:
    rows, width = 4096, 1024
    table = normal(rows, width)
    vector = normal(width)
    size = rows * width
    weights = {"w": normal(768, 3072, scale=768**-0.5), "b": normal(3072)}
    gates = {"gate": normal(768, 2048, scale=768**-0.5), "up": normal(768, 2048, scale=768**-0.5)}
    linear_flops = 2.0 * 128 * 768 * 3072
    swiglu_flops = 2 * 2.0 * 128 * 768 * 2048
    x = normal(128, 768)
    rowwise = {"scale": vector, "shift": vector}

    def row(name: str, kind: str, function: object, flops: float, makers: dict, **more: object) -> Workload:
        return Workload(SUITE, name, kind, function, made_of(**makers), flops, **more)  # type: ignore[arg-type]

    found = [
        row("linear+gelu 128x768x3072", "linear_gelu", linear_gelu, linear_flops, {"x": x, **weights}),
        row(
            "linear+gelu 128x768x3072 known",
            "linear_gelu",
            linear_gelu,
            linear_flops,
            {"x": x, **weights},
            const=("w", "b"),
        ),
        row("gelu tanh 10M", "gelu_tanh", gelu_tanh, 8.0 * MILLIONS, {"x": normal(MILLIONS)}),
        row("softmax 4096x1024", "softmax", softmax, 5.0 * size, {"x": table}),
        row("log softmax 4096x1024", "log_softmax", log_softmax, 5.0 * size, {"x": table}),
        row("layer norm 4096x1024", "layer_norm", layer_norm, 8.0 * size, {"x": table, **rowwise}),
        row("rms norm 4096x1024", "rms_norm", rms_norm, 4.0 * size, {"x": table, "scale": vector}),
        row(
            "add+layer norm 4096x1024",
            "add_layer_norm",
            add_layer_norm,
            9.0 * size,
            {"x": table, "y": table, **rowwise},
        ),
        row("swiglu 128x768x2048", "swiglu", swiglu, swiglu_flops, {"x": x, **gates}),
        row("swiglu 128x768x2048 known", "swiglu", swiglu, swiglu_flops, {"x": x, **gates}, const=("gate", "up")),
        row(
            "a*b+c 10M",
            "multiply_add",
            multiply_add,
            2.0 * MILLIONS,
            {"a": normal(MILLIONS), "b": normal(MILLIONS), "c": normal(MILLIONS)},
        ),
    ]
    double: dict[str, Any] = {"dtype": "float64", "tolerance": 1e-14}
    x, base = normal(MILLIONS, dtype="float64"), positive(MILLIONS, dtype="float64")
    found += [
        row("erf 10M float64", "erf", erf_of, MILLIONS, {"x": x}, **double),
        row("x**y 10M float64", "power", power, MILLIONS, {"x": base, "y": x}, **double),
    ]
    for exponent, function in ((2.5, power_2_5), (3, power_3)):
        options = {"exponent": exponent}
        name = f"x**{exponent} 10M float64"
        found.append(row(name, "fixed_power", function, MILLIONS, {"x": base}, options=options, **double))
    for axis, function in enumerate((mean_variance_0, mean_variance_1, mean_variance_2)):
        found.append(
            row(
                f"mean, variance 512x512x64 axis {axis}",
                "mean_variance",
                function,
                4.0 * 512 * 512 * 64,
                {"x": normal(512, 512, 64)},
                options={"axis": axis},
            )
        )
    return found

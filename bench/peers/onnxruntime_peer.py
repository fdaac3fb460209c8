"""ONNX Runtime on graphs built for it: its own fused operators, weights as initializers where they are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto

from bench import quant
from bench.images import KIND
from bench.peers import Run
from bench.peers.onnx_graph import Graph
from bench.peers.onnx_images import network
from bench.workload import Inputs, Workload

Build = Callable[..., list[str]]


def _layer_norm(g: Graph, x: str, scale: str, shift: str) -> str:
    found: str = g.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)
    return found


def _mean_variance(g: Graph, x: str, axis: int) -> list[str]:
    axes = g.constant([axis], np.int64)
    mean = g.op("ReduceMean", x, axes, keepdims=1)
    centered = g.op("Sub", x, mean)
    variance = g.op("ReduceMean", g.op("Mul", centered, centered), axes, keepdims=0)
    return [g.op("Squeeze", mean, axes), variance]


def _swiglu(g: Graph, x: str, gate: str, up: str) -> list[str]:
    gated = g.op("MatMul", x, gate)
    return [g.op("Mul", g.op("Mul", gated, g.op("Sigmoid", gated)), g.op("MatMul", x, up))]


def _attention(g: Graph, q: str, k: str, v: str, causal: int = 0) -> list[str]:
    zero = g.constant([0], np.int64)
    q, k, v = (g.op("Unsqueeze", name, zero) for name in (q, k, v))
    return [g.op("Squeeze", g.op("Attention", q, k, v, is_causal=causal), zero)]


def _linear_attention(g: Graph, q: str, k: str, v: str) -> list[str]:
    fq, fk = g.op("Exp", q), g.op("Exp", k)
    turned = g.op("Transpose", fk, perm=[0, 2, 1])
    total = g.op("ReduceSum", turned, g.constant([2], np.int64), keepdims=1)
    return [g.op("Div", g.op("MatMul", fq, g.op("MatMul", turned, v)), g.op("MatMul", fq, total))]


def _trace(g: Graph, a: str, b: str) -> list[str]:
    product = g.op("MatMul", a, b)
    return [g.op("Einsum", product, equation="ii->")]


def _lora(g: Graph, x: str, w: str, a: str, b: str) -> list[str]:
    return [g.op("MatMul", x, g.op("Add", w, g.op("Mul", g.constant(0.5), g.op("MatMul", a, b))))]


def _as_written_linear_attention(g: Graph, q: str, k: str, v: str) -> list[str]:
    return [g.op("MatMul", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), v)]


def _nas_rnn(g: Graph, x: str, state: str, wx: str, wh: str, length: int, gates: int) -> list[str]:
    def part(name: str, i: int) -> str:
        found: str = g.op("Gather", name, g.constant(i, np.int64), axis=0)
        return found

    def call(kind: str) -> Callable[..., str]:
        return lambda *values: g.op(kind, *values)

    add, mul, relu, sigmoid, tanh = (call(kind) for kind in ("Add", "Mul", "Relu", "Sigmoid", "Tanh"))
    inner, outer = [part(wx, i) for i in range(gates)], [part(wh, i) for i in range(gates)]
    for step in range(length):
        row = part(x, step)
        t = [add(g.op("MatMul", row, inner[i]), g.op("MatMul", state, outer[i])) for i in range(gates)]
        m0, m1 = add(relu(t[0]), sigmoid(t[3])), add(sigmoid(t[1]), tanh(t[2]))
        m2, m3 = mul(sigmoid(t[4]), tanh(t[5])), mul(sigmoid(t[6]), relu(t[7]))
        m4, m5 = add(sigmoid(m1), tanh(m2)), mul(tanh(m0), tanh(m3))
        state = tanh(mul(tanh(m4), tanh(m5)))
    return [state]


def _quantized_conv(g: Graph, x: str, w: str, b: str, padding: int) -> list[str]:
    (xs, xz), (ys, yz) = ([g.constant(v, v.dtype) for v in pair] for pair in (quant.X, quant.Y))
    ws, wz = g.constant(quant.W), g.constant(0, np.int8)
    return [g.op("QLinearConv", x, xs, xz, w, ws, wz, ys, yz, b, pads=[padding] * 4)]


BUILDERS: dict[str, Build] = {
    "matmul": lambda g, a, b: [g.op("MatMul", a, b)],
    "power": lambda g, x, y: [g.op("Pow", x, y)],
    "fixed_power": lambda g, x, exponent: [g.op("Pow", x, g.constant(exponent, np.float64))],
    "linear_gelu": lambda g, x, w, b: [g.op("Gelu", g.linear(x, w, b))],
    "gelu_tanh": lambda g, x: [g.op("Gelu", x, approximate="tanh")],
    "softmax": lambda g, x: [g.op("Softmax", x, axis=-1)],
    "log_softmax": lambda g, x: [g.op("LogSoftmax", x, axis=-1)],
    "layer_norm": lambda g, x, scale, shift: [_layer_norm(g, x, scale, shift)],
    "rms_norm": lambda g, x, scale: [g.op("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-5)],
    "add_layer_norm": lambda g, x, y, scale, shift: [
        g.contrib("SkipLayerNormalization", x, y, scale, shift, epsilon=1e-5)
    ],
    "swiglu": _swiglu,
    "multiply_add": lambda g, a, b, c: [g.op("Add", g.op("Mul", a, b), c)],
    "mean_variance": _mean_variance,
    "attention": _attention,
    "causal_attention": lambda g, q, k, v: _attention(g, q, k, v, causal=1),
    "linear_attention": _linear_attention,
    "chain": lambda g, a, b, c, d: [g.op("MatMul", g.op("MatMul", g.op("MatMul", a, b), c), d)],
    "qkv": lambda g, x, q, k, v: [g.op("MatMul", x, w) for w in (q, k, v)],
    "common_factor": lambda g, a, b, c: [g.op("Add", g.op("MatMul", a, b), g.op("MatMul", a, c))],
    "sum_of_product": lambda g, a, b: [g.op("ReduceSum", g.op("MatMul", a, b), keepdims=0)],
    "trace_of_product": _trace,
    "low_rank": lambda g, x, u, v: [g.op("MatMul", g.op("MatMul", x, u), v)],
    "lora": _lora,
    "as_written_linear_attention": _as_written_linear_attention,
    "nas_rnn": _nas_rnn,
    "integers": lambda g, a, b: [g.op("MatMulInteger", a, b)],
    "weight_only": lambda g, x, w, scale: [g.op("MatMul", x, g.op("DequantizeLinear", w, scale, axis=1))],
    "quantized_conv": _quantized_conv,
    "relu_relu": lambda g, x: [g.op("Relu", g.op("Relu", x))],
}


def _minilm(g: Graph, params: Any) -> list[str]:
    """The encoder with ONNX Runtime's transformer operators: packed QKV attention, skip layer norm, bias gelu."""

    def pack(p: Any) -> tuple[str, str]:
        return g.constant(p["weight"].T), g.constant(p["bias"])

    x = g.op("Gather", g.constant(params["word"]), "tokens", axis=0)
    length = g.op("Shape", "tokens", start=1, end=2)
    zero = g.constant([0], np.int64)
    position = g.op("Slice", g.constant(params["position"] + params["type"][0]), zero, length, zero)
    norm = params["norm"]
    x = g.op(
        "LayerNormalization", g.op("Add", x, position), *map(g.constant, (norm["weight"], norm["bias"])), epsilon=1e-12
    )
    mask = g.op("Cast", "mask", to=TensorProto.INT32)
    for p in params["layers"]:
        block = p["attention"]
        parts = [block[n] for n in ("query", "key", "value")]
        weight = g.constant(np.concatenate([part["weight"].T for part in parts], axis=1))
        bias = g.constant(np.concatenate([part["bias"] for part in parts]))
        mixed = g.contrib("Attention", x, weight, bias, mask, num_heads=12)

        def skip(norm: Any, x: str, dense: Any, y: str) -> str:
            weight, bias = pack(dense)
            scale, shift = g.constant(norm["weight"]), g.constant(norm["bias"])
            product = g.op("MatMul", y, weight)
            found: str = g.contrib("SkipLayerNormalization", product, x, scale, shift, bias, epsilon=1e-12)
            return found

        x = skip(p["attention_norm"], x, block["output"], mixed)
        weight, bias = pack(p["intermediate"])
        hidden = g.contrib("BiasGelu", g.op("MatMul", x, weight), bias)
        x = skip(p["output_norm"], x, p["output"], hidden)
    one, last = g.constant([1], np.int64), g.constant([-1], np.int64)
    weight = g.op("Unsqueeze", g.op("Cast", "mask", to=TensorProto.FLOAT), last)
    total = g.op("ReduceSum", g.op("Mul", x, weight), one, keepdims=0)
    pooled = g.op("Div", total, g.op("ReduceSum", weight, one, keepdims=0))
    return [g.op("Div", pooled, g.op("ReduceL2", pooled, last, keepdims=1))]


def serialized(workload: Workload, inputs: Inputs) -> tuple[bytes, Inputs] | None:
    """The model of a workload and arrays to feed it with; None where there is none."""
    if workload.kind == KIND:
        return network(workload, inputs)
    graph = Graph()
    if workload.kind == "minilm":
        outputs = _minilm(graph, inputs["params"])
        inputs = {"tokens": inputs["tokens"], "mask": inputs["mask"]}
    else:
        build = BUILDERS.get(workload.kind)
        if build is None:
            return None
        for name in workload.const:
            graph.constant(inputs[name], inputs[name].dtype, name)
        outputs = build(graph, *inputs, **workload.options)
    return graph.model(inputs, outputs), inputs


class OnnxRuntimePeer:
    name = "onnxruntime"
    version = onnxruntime.__version__

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        found = serialized(workload, inputs)
        if found is None:
            return None
        model, inputs = found
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        feeds = {i.name: inputs[i.name] for i in session.get_inputs()}
        return lambda: session.run(None, feeds)

    def result(self, value: Any) -> Any:
        return tuple(value) if len(value) > 1 else value[0]


def make(threads: int) -> OnnxRuntimePeer:
    return OnnxRuntimePeer(threads)

"""Operators of networks as nodes of an ONNX graph; values are names. Known inputs are initializers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.images import flat
from bench.peers.onnx_graph import Graph
from bench.workload import Inputs, Workload, convert


class OnnxOps:
    def __init__(self, graph: Graph, ranks: Mapping[str, int]) -> None:
        """``ranks``: of the inputs, known or not."""
        self.graph = graph
        self.ranks = ranks

    def _spread(self, w: str, **options: Any) -> dict[str, Any]:
        """Numbers for all axes of space that ``w`` has; of padding, before all axes and after them."""
        rank = self.ranks[w] - 2
        names = {"stride": "strides", "dilation": "dilations", "padding": "pads"}
        each = {key: [value] * rank if isinstance(value, int) else [*value] for key, value in options.items()}
        return {names[key]: value * 2 if key == "padding" else value for key, value in each.items()}

    def conv(self, x: str, w: str, b: str | None = None, *, groups: int = 1, **options: Any) -> Any:
        return self.graph.op("Conv", *filter(None, (x, w, b)), group=groups, **self._spread(w, **options))

    def conv_transpose(self, x: str, w: str, b: str | None = None, **options: int) -> Any:
        return self.graph.op("ConvTranspose", *filter(None, (x, w, b)), **self._spread(w, **options))

    def batch_norm(self, x: str, p: Mapping[str, str]) -> Any:
        return self.graph.op("BatchNormalization", x, p["scale"], p["shift"], p["mean"], p["variance"], epsilon=1e-5)

    def _pool(self, kind: str, x: str, kernel: int, stride: int, padding: int, **more: Any) -> Any:
        return self.graph.op(kind, x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4, **more)

    def max_pool(self, x: str, kernel: int, *, stride: int, padding: int = 0) -> Any:
        return self._pool("MaxPool", x, kernel, stride, padding)

    def avg_pool(self, x: str, kernel: int, *, stride: int, padding: int = 0, count_padding: bool = True) -> Any:
        return self._pool("AveragePool", x, kernel, stride, padding, count_include_pad=int(count_padding))

    def mean_pool(self, x: str) -> Any:
        return self.graph.op("Flatten", self.graph.op("GlobalAveragePool", x))

    def resize(self, x: str, factor: int) -> Any:
        scales = self.graph.constant([1, 1, factor, factor])
        return self.graph.op("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")

    def relu(self, x: str) -> Any:
        return self.graph.op("Relu", x)

    def clip(self, x: str, low: float, high: float) -> Any:
        return self.graph.op("Clip", x, self.graph.constant(low), self.graph.constant(high))

    def add(self, x: str, y: str) -> Any:
        return self.graph.op("Add", x, y)

    def concat(self, *parts: str) -> Any:
        return self.graph.op("Concat", *parts, axis=1)

    def linear(self, x: str, w: str, b: str) -> Any:
        return self.graph.op("Gemm", x, w, b, transB=1)

    def matmul(self, x: str, y: str) -> Any:
        return self.graph.op("MatMul", x, y)

    def scaled(self, x: str, by: float) -> Any:
        return self.graph.op("Mul", x, self.graph.constant(by))

    def reshape(self, x: str, shape: tuple[int, ...]) -> Any:
        return self.graph.op("Reshape", x, self.graph.constant(shape, np.int64))

    def transpose(self, x: str, axes: tuple[int, ...]) -> Any:
        return self.graph.op("Transpose", x, perm=list(axes))

    def softmax(self, x: str) -> Any:
        return self.graph.op("Softmax", x, axis=-1)

    def layer_norm(self, x: str, scale: str, shift: str) -> Any:
        return self.graph.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)

    def gelu(self, x: str) -> Any:
        return self.graph.op("Gelu", x)


def network(workload: Workload, inputs: Inputs) -> tuple[bytes, dict[str, Any]] | None:
    """The serialized model and what it is fed; None where ONNX has no such operator."""
    graph = Graph()
    arrays = flat(inputs)
    for name, array in arrays.items():
        if name.split(".")[0] in workload.const:
            graph.constant(array, array.dtype, name)
    ops = OnnxOps(graph, {name: array.ndim for name, array in arrays.items()})
    names = {id(array): name for name, array in arrays.items()}
    try:
        made = workload.options["build"](ops, *(convert(value, lambda a: names[id(a)]) for value in inputs.values()))
    except AttributeError as missing:
        if getattr(missing, "obj", None) is ops:
            return None
        raise
    outputs = [*made] if isinstance(made, tuple) else [made]
    rest = {name: array for name, array in arrays.items() if name.split(".")[0] not in workload.const}
    return graph.model({name: np.asarray(array) for name, array in rest.items()}, outputs), rest

"""ONNX graphs under construction."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_tensor_value_info

TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "bool": TensorProto.BOOL,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
}
OPSET, CONTRIB = 23, "com.microsoft"


class Graph:
    """A graph under construction; values are names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.float32, name: str = "") -> str:
        array = np.asarray(value, dtype)
        name = name or f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def contrib(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        return self.op(kind, *inputs, outputs=outputs, domain=CONTRIB, **attributes)

    def linear(self, x: str, w: str, b: str) -> str:
        found: str = self.op("Add", self.op("MatMul", x, w), b)
        return found

    def model(self, inputs: dict[str, np.ndarray], outputs: list[str]) -> bytes:
        """The serialized model; initializers keep their names, so inputs must not share one."""
        known = {i.name for i in self.initializers}
        declared = [
            make_tensor_value_info(name, TYPES[a.dtype.name], a.shape)
            for name, a in inputs.items()
            if name not in known
        ]
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "workload", declared, results, self.initializers)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        made = helper.make_model(graph, opset_imports=opsets)
        made.ir_version = 10
        serialized: bytes = made.SerializeToString()
        return serialized

"""Nodes as plain JSON data and back; large arrays that the reader has stay outside, named by digest."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from eqsat.ir import build
from eqsat.ir.composite import without_composites
from eqsat.ir.defined import Applied
from eqsat.ir.joins import PadAttrs
from eqsat.ir.loop import Loop, LoopResult
from eqsat.ir.node import ConstArray, Graph, Node, topological
from eqsat.ir.opaque import Result, call_of
from eqsat.ir.sources import InputAttrs, IotaAttrs
from eqsat.ir.spec import Spec
from eqsat.ir.table import make
from eqsat.ir.types import DTYPES, DType, TensorType
from eqsat.ir.views import ViewMap, view_map

SMALL = 64
"""Constants up to this many elements are written out as numbers; larger ones are named by digest, or as bytes."""


def type_to_json(type: TensorType) -> list[Any]:
    return [list(type.shape), type.dtype.name]


def type_from_json(data: Sequence[Any]) -> TensorType:
    return TensorType(tuple(int(n) for n in data[0]), DTYPES[data[1]])


def _number(value: float | int | bool) -> Any:
    """JSON has no NaN and no infinities."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _attrs_to_json(attrs: object, named: Container[str] | None) -> Any:
    match attrs:
        case None | bool() | int() | str():
            return attrs
        case float():
            return {"float": repr(attrs)}
        case tuple():
            return {"tuple": list(attrs)}
        case DType():
            return {"dtype": attrs.name}
        case Spec():
            return {"spec": [list(attrs.a), list(attrs.b), list(attrs.out)]}
        case ViewMap():
            return {"view": [[list(map(list, axis)) for axis in attrs.axes], attrs.offset]}
        case InputAttrs():
            return {"input": [attrs.index, type_to_json(attrs.type)]}
        case Result():
            return {"opaque": [attrs.call.key, attrs.number]}
        case IotaAttrs():
            return {"iota": [attrs.size, attrs.dtype.name]}
        case PadAttrs():
            return {"pad": [list(map(list, attrs.widths)), _number(attrs.value)]}
        case LoopResult(loop, index):
            inputs = [type_to_json(node.type) for node in loop.body.inputs]
            body = nodes_to_json(loop.body.outputs, named)
            return {"loop": [loop.trips, loop.carries, list(loop.steps), inputs, body, index, loop.conditional]}
        case ConstArray():
            # Written as a number, a NaN would lose its bits.
            if attrs.array.size <= SMALL and not (attrs.dtype.is_float and np.isnan(attrs.array).any()):
                values = [_number(v) for v in attrs.array.reshape(-1).tolist()]
                return {"value": [values, *type_to_json(attrs.type)]}
            if named is None or attrs.digest in named:
                return {"const": attrs.digest}
            data = base64.b64encode(np.ascontiguousarray(attrs.array).tobytes()).decode()
            return {"array": [data, *type_to_json(attrs.type)]}
    raise TypeError(f"attributes of type {type(attrs).__name__} cannot be stored")


def _attrs_from_json(data: Any, constant: Callable[[str], ConstArray]) -> object:
    if not isinstance(data, Mapping):
        return data
    ((kind, value),) = data.items()
    match kind:
        case "float":
            return float(value)
        case "tuple":
            return tuple(value)
        case "dtype":
            return DTYPES[value]
        case "spec":
            return Spec(*(tuple(part) for part in value))
        case "view":
            return view_map([[(n, s) for n, s in axis] for axis in value[0]], value[1])
        case "input":
            return InputAttrs(value[0], type_from_json(value[1]))
        case "opaque":
            return Result(call_of(value[0]), value[1])
        case "iota":
            return IotaAttrs(value[0], DTYPES[value[1]])
        case "pad":
            fill = float(value[1]) if isinstance(value[1], str) else value[1]
            return PadAttrs(tuple((low, high) for low, high in value[0]), fill)
        case "loop":
            trips, carries, steps, inputs, body, index, conditional = value
            seen = tuple(build.input_node(n, type_from_json(t)) for n, t in enumerate(inputs))
            graph = Graph(seen, tuple(nodes_from_json(body, constant)))
            return LoopResult(Loop(trips, graph, carries, tuple(steps), conditional=conditional), index)
        case "array":
            of = type_from_json(value[1:])
            flat = np.frombuffer(base64.b64decode(value[0]), of.dtype.numpy)
            return ConstArray(flat.reshape(of.shape), of.dtype)
        case "value":
            of = type_from_json(value[1:])
            values = [float(v) if isinstance(v, str) else v for v in value[0]]
            return ConstArray(np.array(values, of.dtype.numpy).reshape(of.shape), of.dtype)
        case "const":
            return constant(value)
    raise ValueError(f"unknown attributes {kind!r}")


def nodes_to_json(outputs: Sequence[Node], named: Container[str] | None = None) -> dict[str, Any]:
    """Every node that the outputs need, as rows [op, operand rows, attributes].

    ``named``: digests of the arrays that are given again when the rows are read (None: all are); any other array,
    such as one that the search folded, is written out. Operators that users defined are written as what they mean.
    """
    order = topological(outputs)
    if any(isinstance(node.attrs, Applied) for node in order):
        outputs = without_composites(outputs)
        order = topological(outputs)
    row = {node: n for n, node in enumerate(order)}
    rows = [[node.op, [row[i] for i in node.inputs], _attrs_to_json(node.attrs, named)] for node in order]
    return {"nodes": rows, "outputs": [row[o] for o in outputs]}


def nodes_from_json(data: Mapping[str, Any], constant: Callable[[str], ConstArray]) -> list[Node]:
    """The outputs again. ``constant`` finds an array by digest; it may raise ``KeyError``."""
    nodes: list[Node] = []
    for op, operands, attrs in data["nodes"]:
        nodes.append(make(op, [nodes[i] for i in operands], _attrs_from_json(attrs, constant)))
    return [nodes[o] for o in data["outputs"]]

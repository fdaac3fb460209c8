"""Rows of the op table: composites, which rules can name and which equal their expansion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from eqsat.ir import build
from eqsat.ir.build import call, reduce, scalar
from eqsat.ir.node import Node, topological
from eqsat.ir.table import Op, make, register
from eqsat.ir.types import TensorType


def _float(name: str, t: TensorType) -> TensorType:
    if not t.dtype.is_float or t.dtype.is_half:
        raise ValueError(f"{name} is defined for float types, not {t.dtype}")
    return t


def by_expansion(expansion: Callable[[Sequence[Node], object], Node]) -> Callable[..., np.ndarray]:
    """The reference of a composite: its expansion, node by node."""

    def reference(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
        from eqsat.ir.evaluate import evaluate_nodes

        nodes = [build.const(a) for a in arrays]
        (value,) = evaluate_nodes([expansion(nodes, attrs)], {})
        return value

    return reference


def _composite(name: str, arity: int, expansion: Callable[[Sequence[Node], object], Node], doc: str) -> None:
    def type_rule(types: Sequence[TensorType], attrs: object) -> TensorType:
        if len(types) != arity:
            raise ValueError(f"{name} takes {arity} tensors, not {len(types)}")
        x = _float(name, types[0])
        if isinstance(attrs, int) and not 0 <= attrs < x.ndim:
            raise ValueError(f"{name}: axis {attrs} of a tensor with {x.ndim} axes")
        if isinstance(attrs, int) and x.shape[attrs] == 0:
            raise ValueError(f"{name}: axis {attrs} of shape {x.shape} is empty")
        if isinstance(attrs, float) and (x.ndim == 0 or x.shape[-1] == 0):
            raise ValueError(f"{name} needs a non-empty last axis, not shape {x.shape}")
        for t in types[1:]:
            if t.shape != x.shape[-1:] or t.dtype != x.dtype:
                raise ValueError(f"{name}: scale and shift must be {x.dtype} of shape {x.shape[-1:]}, not {t}")
        return x

    register(Op(name, "composite", type_rule, by_expansion(expansion), expansion=expansion, arity=arity, doc=doc))


def _mean_last(x: Node) -> Node:
    """Mean over the last axis, kept with extent 1."""
    total = reduce("reduce_sum", x, (x.type.ndim - 1,), keepdims=True)
    return call("div", total, scalar(x.shape[-1], x))


def _softmax(inputs: Sequence[Node], attrs: object) -> Node:
    (x,) = inputs
    assert isinstance(attrs, int)
    top = reduce("reduce_max", x, (attrs,), keepdims=True)
    e = call("exp", call("sub", x, top))
    return call("div", e, reduce("reduce_sum", e, (attrs,), keepdims=True))


def _log_softmax(inputs: Sequence[Node], attrs: object) -> Node:
    (x,) = inputs
    assert isinstance(attrs, int)
    shifted = call("sub", x, reduce("reduce_max", x, (attrs,), keepdims=True))
    total = reduce("reduce_sum", call("exp", shifted), (attrs,), keepdims=True)
    return call("sub", shifted, call("log", total))


def _layer_norm(inputs: Sequence[Node], attrs: object) -> Node:
    x, scale, shift = inputs
    assert isinstance(attrs, float)
    centered = call("sub", x, _mean_last(x))
    variance = _mean_last(call("square", centered))
    normed = call("div", centered, call("sqrt", call("add", variance, scalar(attrs, x))))
    return call("add", call("mul", normed, scale), shift)


def _rms_norm(inputs: Sequence[Node], attrs: object) -> Node:
    x, scale = inputs
    assert isinstance(attrs, float)
    mean = _mean_last(call("square", x))
    return call("mul", call("div", x, call("sqrt", call("add", mean, scalar(attrs, x)))), scale)


def _gelu(inputs: Sequence[Node], attrs: object) -> Node:
    (x,) = inputs
    inner = call("erf", call("mul", x, scalar(1 / math.sqrt(2), x)))
    return call("mul", call("mul", scalar(0.5, x), x), call("add", scalar(1.0, x), inner))


def _gelu_tanh(inputs: Sequence[Node], attrs: object) -> Node:
    (x,) = inputs
    cubic = call("mul", scalar(0.044715, x), call("mul", x, call("square", x)))
    inner = call("tanh", call("mul", scalar(math.sqrt(2 / math.pi), x), call("add", x, cubic)))
    return call("mul", call("mul", scalar(0.5, x), x), call("add", scalar(1.0, x), inner))


def _silu(inputs: Sequence[Node], attrs: object) -> Node:
    (x,) = inputs
    return call("mul", x, call("sigmoid", x))


_composite("softmax", 1, _softmax, "exp(x - max) / sum of the same, over one axis")
_composite("log_softmax", 1, _log_softmax, "log of softmax over one axis")
_composite("layer_norm", 3, _layer_norm, "(x - mean) / sqrt(variance + eps) · scale + shift over the last axis")
_composite("rms_norm", 2, _rms_norm, "x / sqrt(mean(x²) + eps) · scale over the last axis")
_composite("gelu", 1, _gelu, "x · Φ(x), with the error function")
_composite("gelu_tanh", 1, _gelu_tanh, "x · Φ(x), Φ approximated through tanh")
_composite("silu", 1, _silu, "x · sigmoid(x)")


def composite(name: str, inputs: Sequence[Node], attrs: object = None) -> Node:
    return build.rounded(name, inputs, attrs)


def expand(node: Node) -> Node:
    """A composite node in simpler operators."""
    from eqsat.ir.table import OPS

    expansion = OPS[node.op].expansion
    assert expansion is not None
    return expansion(node.inputs, node.attrs)


def without_composites(outputs: Sequence[Node]) -> list[Node]:
    """The outputs with every composite node in simpler operators; inputs are the same nodes."""
    from eqsat.ir.table import OPS

    done: dict[Node, Node] = {}
    for node in topological(outputs):
        inputs = [done[i] for i in node.inputs]
        done[node] = node if inputs == list(node.inputs) else make(node.op, inputs, node.attrs)
        if OPS[node.op].kind == "composite":
            done[node] = expand(done[node])
    return [done[o] for o in outputs]

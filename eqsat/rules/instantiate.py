"""Right sides as typed nodes over the classes that the left side bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS, make
from eqsat.ir.types import DType, bool_
from eqsat.ir.views import ViewMap
from eqsat.rules.pattern import Apply, Attribute, Expanded, Joined, Literal, Mean, NumberVar, Pattern, Sum, Swapped, Var


def signed_sum(terms: Sequence[tuple[int, Node]]) -> Node:
    """±x₀ ±x₁ …, one term or more."""
    if len(terms) == 1:
        sign, node = terms[0]
        return node if sign > 0 else build.call("neg", node)
    return make("add_n", [n for _, n in terms], tuple(s for s, _ in terms))


def fit(node: Node, shape: tuple[int, ...]) -> Node:
    """The node broadcast to a shape it broadcasts to."""
    if node.shape == shape:
        return node
    try:
        wide = np.broadcast_shapes(node.shape, shape)
    except ValueError:
        return node
    return build.broadcast_to(node, shape) if wide == shape else node


def swapped(node: Node) -> Node:
    """With its last two axes exchanged; ``ValueError`` where there are none."""
    rank = node.type.ndim
    if rank < 2:
        raise ValueError(f"a transposed matrix has two axes or more, not shape {node.shape}")
    return build.transpose(node, (*range(rank - 2), rank - 1, rank - 2))


def instantiate(pattern: Pattern, names: Mapping[str, object], dtype: DType) -> Node:
    """The node of a pattern whose variables are bound; ``dtype`` is that of numbers without a neighbour."""
    if isinstance(pattern, (Var, NumberVar)):
        node = names[pattern.name]
        assert isinstance(node, Node)
        return node
    if isinstance(pattern, Literal):
        return build.scalar(pattern.value, dtype)
    if isinstance(pattern, Sum):
        args = _operands([t for _, t in pattern.terms], names, dtype)
        return signed_sum([(s, a) for (s, _), a in zip(pattern.terms, args, strict=True)])
    if isinstance(pattern, Expanded):
        x, axes = _reduced(pattern.reduced, names, dtype)
        return build.reduce(pattern.reduced.op, x, axes, keepdims=True)
    if isinstance(pattern, Mean):
        x, axes = _reduced(Apply("reduce_sum", (pattern.x,), pattern.axes), names, dtype)
        total = build.reduce("reduce_sum", x, axes, keepdims=pattern.keepdims)
        return build.call("div", total, build.scalar(math.prod(x.shape[a] for a in axes), x))
    if isinstance(pattern, Swapped):
        return swapped(instantiate(pattern.x, names, dtype))
    if isinstance(pattern, Joined):
        parts = _operands(pattern.parts, names, dtype)
        axis = names[pattern.axis.name] if isinstance(pattern.axis, Attribute) else pattern.axis
        assert isinstance(axis, int)
        return build.concat(parts, axis if axis >= 0 else axis + parts[0].type.ndim)
    assert isinstance(pattern, Apply), pattern
    if OPS[pattern.op].kind == "reduce" if pattern.op != "matmul" else False:
        x, axes = _reduced(pattern, names, dtype)
        return build.reduce(pattern.op, x, axes)
    if pattern.op == "where":  # the condition is a bool, and no neighbour
        args = [*_operands(pattern.args[:1], names, bool_), *_operands(pattern.args[1:], names, dtype)]
    else:
        args = _operands(pattern.args, names, dtype)
    attrs = names[pattern.attrs.name] if isinstance(pattern.attrs, Attribute) else pattern.attrs
    if pattern.op == "matmul":
        a, b = args
        return build.matmul(a, b)
    if isinstance(attrs, ViewMap):
        return build.view(args[0], attrs)
    if isinstance(attrs, Spec):
        a, b = args
        return build.contract(attrs, a, b)
    if pattern.op == "cast":
        assert isinstance(attrs, DType)
        return build.cast(args[0], attrs)
    return make(pattern.op, args, attrs)


def _operands(patterns: Sequence[Pattern], names: Mapping[str, object], dtype: DType) -> list[Node]:
    """Operands, numbers taking the element type of their neighbours."""
    nodes = {i: instantiate(p, names, dtype) for i, p in enumerate(patterns) if not isinstance(p, Literal)}
    near = next((node.dtype for node in nodes.values()), dtype)
    return [nodes[i] if i in nodes else instantiate(p, names, near) for i, p in enumerate(patterns)]


def _reduced(pattern: Apply, names: Mapping[str, object], dtype: DType) -> tuple[Node, tuple[int, ...]]:
    x = instantiate(pattern.args[0], names, dtype)
    axes = names[pattern.attrs.name] if isinstance(pattern.attrs, Attribute) else pattern.attrs
    assert isinstance(axes, tuple)
    rank = x.type.ndim
    for axis in axes:
        if not -rank <= axis < rank:
            raise ValueError(f"axis {axis} of a tensor with {rank} axes")
    return x, tuple(sorted(a % rank for a in axes))

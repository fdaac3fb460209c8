"""Constructors of canonical nodes, used by the tracing frontend, by expansions and by rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eqsat.ir import elementwise, structure, views
from eqsat.ir.joins import PadAttrs
from eqsat.ir.node import ConstArray, Node
from eqsat.ir.sources import InputAttrs, IotaAttrs
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.table import COMPLEX, OPS, make
from eqsat.ir.types import DType, TensorType, float32, int32, int64
from eqsat.ir.views import ViewMap

__all__ = ["OPS", "elementwise", "structure"]


def input_node(index: int, type: TensorType, label: str = "") -> Node:
    """The program's argument number ``index``."""
    return make("input", (), InputAttrs(index, type), label=label or f"arg{index}")


def const(value: object, dtype: DType | None = None) -> Node:
    """A tensor of known value."""
    array = np.asarray(value, None if dtype is None else dtype.numpy)
    if array.dtype.kind == "c":
        return make("pair", (const(array.real), const(array.imag)))
    return make("const", (), ConstArray(value, dtype))


def scalar(value: float | int | bool | complex, like: Node | DType) -> Node:
    """A 0-d constant of a node's element type, in which an integer wraps around."""
    dtype = like if isinstance(like, DType) else like.dtype
    return const(dtype.array(value), dtype)


def scalar_value(node: Node) -> float | int | bool | None:
    """The value of a constant all of whose elements are equal (through broadcasts), else None."""
    while node.op == "view" and node.inputs[0].type.size == 1:
        node = node.inputs[0]
    if not isinstance(node.attrs, ConstArray) or node.attrs.array.size == 0:
        return None
    flat = node.attrs.array.reshape(-1)
    first = flat[0]
    same = flat.size == 1 or bool((flat == first).all() and (np.signbit(flat) == np.signbit(first)).all())
    value: float | int | bool = first.item()
    return value if same else None


def call(op: str, *args: Node, attrs: object = None) -> Node:
    """An elementwise function of operands that broadcast together."""
    return make(op, args, attrs) if op == "where" else rounded(op, args, attrs)


def widened(args: Sequence[Node]) -> tuple[Node, ...]:
    """These with 16-bit floats as float32."""
    return tuple(cast(a, float32) if a.dtype.is_half else a for a in args)


def rounded(op: str, args: Sequence[Node], attrs: object, label: str = "") -> Node:
    """A node; of 16-bit floats computed in float32 and rounded, as NumPy does: a sum only once, when all is added."""
    made = make(op, widened(args), attrs, label=label)
    half = next((a.dtype for a in args if a.dtype.is_half), None)
    return made if half is None or made.dtype != float32 else cast(made, half)


def cast(x: Node, dtype: DType) -> Node:
    if dtype.kind == "complex" and x.dtype.kind != "complex":
        return COMPLEX["cast"]((x,), dtype)
    return x if x.dtype == dtype else make("cast", (x,), dtype)


def view(x: Node, map: ViewMap, label: str = "") -> Node:
    """A view; identities vanish, and views of views compose where the maps allow it."""
    if x.op == "view" and isinstance(x.attrs, ViewMap):
        both = views.compose(x.attrs, map)
        if both is not None:
            return view(x.inputs[0], both, label)
    if map.is_identity(x.shape):
        return x
    return make("view", (x,), map, label=label)


def transpose(x: Node, order: Sequence[int]) -> Node:
    return view(x, views.transpose(x.shape, order), "transpose")


def reshape(x: Node, shape: Sequence[int]) -> Node:
    return view(x, views.reshape(x.shape, shape), "reshape")


def broadcast_to(x: Node, shape: Sequence[int]) -> Node:
    return view(x, views.broadcast(x.shape, shape), "broadcast_to")


def slices(x: Node, starts: Sequence[int], steps: Sequence[int], sizes: Sequence[int]) -> Node:
    return view(x, views.slices(x.shape, starts, steps, sizes), "slice")


def take_range(x: Node, axis: int, start: int, stop: int) -> Node:
    """``x[start:stop]`` along one axis."""
    starts, sizes = [0] * x.type.ndim, list(x.shape)
    starts[axis], sizes[axis] = start, stop - start
    return slices(x, starts, [1] * x.type.ndim, sizes)


def row(x: Node, index: int) -> Node:
    """``x[index]``."""
    return reshape(take_range(x, 0, index, index + 1), x.shape[1:])


def expand_dims(x: Node, axes: Sequence[int]) -> Node:
    """With axes of extent 1 at these positions of the result."""
    shape, rest = [], iter(x.shape)
    for axis in range(x.type.ndim + len(axes)):
        shape.append(1 if axis in axes else next(rest))
    return reshape(x, shape)


def contract(spec: Spec, a: Node, b: Node, label: str = "") -> Node:
    return rounded("contract", (a, b), spec, label)


def matmul(a: Node, b: Node) -> Node:
    """``numpy.matmul``: vectors, matrices, and stacks of them, which broadcast."""
    if a.type.ndim == 0 or b.type.ndim == 0:
        raise ValueError(f"matmul: operands need at least one axis, not shapes {a.shape} and {b.shape}")
    inner = b.shape[-2] if b.type.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(
            f"matmul: shapes {a.shape} and {b.shape} do not fit: {a.shape[-1]} columns against {inner} rows"
        )
    left, right = list(a.shape[:-2]), list(b.shape[:-2])
    try:
        batch = np.broadcast_shapes(tuple(left), tuple(right))
    except ValueError:
        raise ValueError(
            f"matmul: stacks {tuple(left)} and {tuple(right)} of {a.shape} and {b.shape} do not broadcast"
        ) from None
    width = len(batch)
    a_labels: list[object] = []
    b_labels: list[object] = []
    a_keep: list[int] = []
    b_keep: list[int] = []
    # A stack axis of extent 1 that the other side repeats is not part of the contraction: drop it there.
    for axis in range(width):
        for labels, keep, shape in ((a_labels, a_keep, left), (b_labels, b_keep, right)):
            at = axis - (width - len(shape))
            if at >= 0 and (shape[at] == batch[axis]):
                labels.append(axis)
                keep.append(shape[at])
    out: list[object] = [axis for axis in range(width) if axis in a_labels or axis in b_labels]
    a_tail: list[object] = ["k"] if a.type.ndim == 1 else ["m", "k"]
    b_tail: list[object] = ["k"] if b.type.ndim == 1 else ["k", "n"]
    tail: list[object] = [*(["m"] if a.type.ndim > 1 else []), *(["n"] if b.type.ndim > 1 else [])]
    a_core = a.shape[-1:] if a.type.ndim == 1 else a.shape[-2:]
    b_core = b.shape[-1:] if b.type.ndim == 1 else b.shape[-2:]
    left_factor = reshape(a, (*a_keep, *a_core))
    right_factor = reshape(b, (*b_keep, *b_core))
    spec = make_spec(a_labels + a_tail, b_labels + b_tail, out + tail)
    return contract(spec, left_factor, right_factor, "matmul")


def reduce(kind: str, x: Node, axes: Sequence[int], *, keepdims: bool = False) -> Node:
    """``reduce_sum``, ``reduce_prod``, ``reduce_max``, ``reduce_min``, ``argmax`` or ``argmin`` over axes."""
    axes = tuple(sorted(axes))
    if not axes and kind.startswith("reduce"):
        return x
    reduced = rounded(kind, (x,), axes)
    return expand_dims(reduced, axes) if keepdims else reduced


def concat(parts: Sequence[Node], axis: int) -> Node:
    return parts[0] if len(parts) == 1 else make("concat", tuple(parts), axis)


def pad(x: Node, widths: Sequence[tuple[int, int]], value: float | int | bool = 0) -> Node:
    if all(low == high == 0 for low, high in widths):
        return x
    return make("pad", (x,), PadAttrs(tuple(widths), value))


def iota(size: int, dtype: DType = int64) -> Node:
    return make("iota", (), IotaAttrs(size, dtype))


def gather(x: Node, index: Node, axis: int) -> Node:
    """``numpy.take(x, index, axis)``; indices out of range raise ``IndexError`` when the program runs."""
    if index.dtype != int32 or x.shape[axis] > index.dtype.limits[1]:  # where -1 is may be more than the type holds
        index = cast(index, int64)
    safe = make("wrap_index", (index,), x.shape[axis])
    return make("gather", (x, safe), axis, label="take")

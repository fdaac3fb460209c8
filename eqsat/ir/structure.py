"""Rows of the op table: sources, views, contractions, reductions, joins, gathers and opaque operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from eqsat.ir.identity import identity
from eqsat.ir.kernel import Acc, Call, Combine, Index, Kernel, Load, Operand
from eqsat.ir.node import ConstArray
from eqsat.ir.repeats import repeated_axes
from eqsat.ir.spec import Spec
from eqsat.ir.table import Op, register
from eqsat.ir.types import (
    DType,
    TensorType,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int32,
    int64,
    row_major,
)
from eqsat.ir.views import ViewMap, recut


def _operands(types: Sequence[TensorType]) -> tuple[Operand, ...]:
    return tuple(Operand(t.dtype, t.size) for t in types)


# Sources


@dataclass(frozen=True)
class InputAttrs:
    """Which argument of the program."""

    index: int
    type: TensorType


def _input_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    assert isinstance(attrs, InputAttrs)
    return attrs.type


def _input(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    raise RuntimeError("an input has no value of its own; evaluate binds it")


register(Op("input", "source", _input_type, _input))


def _const_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    assert isinstance(attrs, ConstArray)
    return attrs.type


def _const(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, ConstArray)
    return attrs.array


register(Op("const", "source", _const_type, _const))


@dataclass(frozen=True)
class IotaAttrs:
    """0, 1, …, size - 1 of an integer type."""

    size: int
    dtype: DType


def _iota_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    assert isinstance(attrs, IotaAttrs) and attrs.dtype in (int64, int32)
    return TensorType((attrs.size,), attrs.dtype)


def _iota(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, IotaAttrs)
    return np.arange(attrs.size, dtype=attrs.dtype.numpy)


def _define_iota(types: Sequence[TensorType], attrs: object) -> Kernel:
    assert isinstance(attrs, IotaAttrs)
    body = Index(0, (1,), attrs.dtype)
    out = Operand(attrs.dtype, attrs.size)
    return Kernel((attrs.size,), 1, None, body, Acc(attrs.dtype), (), out, 0, (1,))


register(Op("iota", "source", _iota_type, _iota, _define_iota))


def _pair_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    real, imaginary = types
    if real != imaginary or real.dtype not in (float32, float64):
        raise ValueError(f"a pair of {real} and {imaginary} is no complex tensor")
    return TensorType(real.shape, complex64 if real.dtype == float32 else complex128)


def _pair(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    return np.asarray(arrays[0] + 1j * arrays[1])


register(Op("pair", "opaque", _pair_type, _pair, doc="a complex tensor while a function is traced: real, imaginary"))


# Views


def _view_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    (t,) = types
    assert isinstance(attrs, ViewMap)
    for atoms in attrs.axes:
        for size, stride in atoms:
            if size > 1 and stride and t.size == 0:
                raise ValueError("a view of an empty tensor must be empty")
    return TensorType(attrs.shape, t.dtype)


def _view(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, ViewMap)
    (x,) = arrays
    if 0 in attrs.shape:
        return np.empty(attrs.shape, x.dtype)
    flat = np.ascontiguousarray(x).reshape(-1)
    atoms = [atom for axis in attrs.axes for atom in axis]
    item = flat.itemsize
    parts: np.ndarray = np.ndarray(
        [n for n, _ in atoms], flat.dtype, flat, attrs.offset * item, [s * item for _, s in atoms]
    )
    if repeated_axes(parts):  # a copy might be more than there is memory
        return parts.reshape(attrs.shape)
    return np.ascontiguousarray(parts).reshape(attrs.shape)


def _define_view(types: Sequence[TensorType], attrs: object) -> Kernel:
    assert isinstance(attrs, ViewMap)
    (t,) = types
    out = _view_type(types, attrs)
    if out.size == 0:
        zeros = (0,) * out.ndim
        body = Load(0, 0, zeros, t.dtype)
        return Kernel(
            out.shape,
            out.ndim,
            None,
            body,
            Acc(t.dtype),
            _operands(types),
            Operand(t.dtype, 0),
            0,
            row_major(out.shape),
        )
    cuts = [[n for n, _ in axis] for axis in attrs.axes]
    extents = tuple(n for axis in cuts for n in axis)
    strides = tuple(s for axis, sizes in zip(attrs.axes, cuts, strict=True) for s in recut(axis, sizes) or ())
    body = Load(0, attrs.offset, strides, t.dtype)
    return Kernel(
        extents,
        len(extents),
        None,
        body,
        Acc(t.dtype),
        _operands(types),
        Operand(t.dtype, out.size),
        0,
        row_major(extents),
    )


register(Op("view", "view", _view_type, _view, _define_view, doc="transpose, reshape, slice, flip, broadcast, window…"))


# Contraction


def _contract_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    a, b = types
    assert isinstance(attrs, Spec)
    if a.dtype != b.dtype or a.dtype in (bool_, float16):
        raise ValueError(f"contraction of {a.dtype} and {b.dtype}")
    extents = attrs.extents(a.shape, b.shape)
    return TensorType(tuple(extents[x] for x in attrs.out), a.dtype)


def _contract(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, Spec)
    a, b = arrays
    # Batched matrix products reach BLAS; einsum's own loops do not.
    extents = attrs.extents(a.shape, b.shape)
    batch, rows, cols, summed = attrs.batch, attrs.rows, attrs.cols, attrs.summed
    left = a.transpose([attrs.a.index(x) for x in (*batch, *rows, *summed)])
    right = b.transpose([attrs.b.index(x) for x in (*batch, *summed, *cols)])

    def extent(labels: Sequence[int]) -> int:
        size = 1
        for label in labels:
            size *= extents[label]
        return size

    head = [extents[x] for x in batch]
    product = np.matmul(
        left.reshape(*head, extent(rows), extent(summed)), right.reshape(*head, extent(summed), extent(cols))
    )
    order = (*batch, *rows, *cols)
    shaped = product.reshape([extents[x] for x in order])
    return np.asarray(shaped.transpose([order.index(x) for x in attrs.out]), order="C")


def _define_contract(types: Sequence[TensorType], attrs: object) -> Kernel:
    a, b = types
    assert isinstance(attrs, Spec)
    out = _contract_type(types, attrs)
    extents = attrs.extents(a.shape, b.shape)
    labels = (*attrs.out, *attrs.summed)

    def load(number: int, t: TensorType, axes: tuple[int, ...]) -> Load:
        stride = dict(zip(axes, row_major(t.shape), strict=True))
        return Load(number, 0, tuple(stride.get(x, 0) for x in labels), t.dtype)

    body = Call("mul", (load(0, a, attrs.a), load(1, b, attrs.b)), a.dtype)
    return Kernel(
        tuple(extents[x] for x in labels),
        len(attrs.out),
        "sum",
        body,
        Acc(a.dtype),
        _operands(types),
        Operand(out.dtype, out.size),
        0,
        row_major(out.shape),
    )


register(Op("contract", "contract", _contract_type, _contract, _define_contract, doc="matmul, dot, einsum of two…"))


# Reductions


def _reduce(name: str, combine: Combine, fn: Callable[..., np.ndarray], *, empty: bool) -> None:
    def type_rule(types: Sequence[TensorType], attrs: object) -> TensorType:
        (t,) = types
        assert isinstance(attrs, tuple)
        if not all(0 <= axis < t.ndim for axis in attrs) or list(attrs) != sorted(set(attrs)):
            raise ValueError(f"{name}: axes {attrs} of a tensor with {t.ndim} axes")
        if t.dtype == bool_ and combine in ("sum", "prod"):
            raise ValueError(f"{name} of bool: cast to int64 first")
        if t.dtype == float16:
            raise ValueError(f"{name} of float16: cast to float32 first")
        if not empty and any(t.shape[axis] == 0 for axis in attrs):
            raise ValueError(f"{name}: zero-size reduction of shape {t.shape} over axes {attrs} has no identity")
        position = combine in ("argmax", "argmin")
        if position and len(attrs) != 1:
            raise ValueError(f"{name} reduces exactly one axis")
        shape = tuple(n for axis, n in enumerate(t.shape) if axis not in attrs)
        return TensorType(shape, int64 if position else t.dtype)

    def reference(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
        assert isinstance(attrs, tuple)
        (x,) = arrays
        if combine in ("argmax", "argmin"):
            return np.asarray(fn(x, axis=attrs[0]))
        if combine in ("sum", "prod"):
            return np.asarray(fn(x, axis=attrs, dtype=x.dtype))
        return np.asarray(fn(x, axis=attrs))

    def definition(types: Sequence[TensorType], attrs: object) -> Kernel:
        (t,) = types
        assert isinstance(attrs, tuple)
        out = type_rule(types, attrs)
        order = [a for a in range(t.ndim) if a not in attrs] + list(attrs)
        strides = row_major(t.shape)
        return Kernel(
            tuple(t.shape[a] for a in order),
            out.ndim,
            combine,
            Load(0, 0, tuple(strides[a] for a in order), t.dtype),
            Acc(out.dtype),
            _operands(types),
            Operand(out.dtype, out.size),
            0,
            row_major(out.shape),
        )

    register(Op(name, "reduce", type_rule, reference, definition))


_reduce("reduce_sum", "sum", np.sum, empty=True)
_reduce("reduce_prod", "prod", np.prod, empty=True)
_reduce("reduce_max", "max", np.max, empty=False)
_reduce("reduce_min", "min", np.min, empty=False)
_reduce("argmax", "argmax", np.argmax, empty=False)
_reduce("argmin", "argmin", np.argmin, empty=False)


# Joins. Each part is stored to its own place: a kernel defines one part, so the definition is that of
# the last part and the plan makes one such kernel per part (plan/lower.py).


def _concat_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    assert isinstance(attrs, int)
    first = types[0]
    for t in types:
        if t.dtype != first.dtype:
            raise ValueError(f"concat: element types {first.dtype} and {t.dtype} differ")
        if t.ndim != first.ndim or not 0 <= attrs < t.ndim:
            raise ValueError(f"concat: shapes {first.shape} and {t.shape} along axis {attrs}")
        if any(n != m for axis, (n, m) in enumerate(zip(t.shape, first.shape, strict=True)) if axis != attrs):
            raise ValueError(f"concat: shapes {first.shape} and {t.shape} differ off axis {attrs}")
    shape = list(first.shape)
    shape[attrs] = sum(t.shape[attrs] for t in types)
    return TensorType(tuple(shape), first.dtype)


def define_part(types: Sequence[TensorType], out: TensorType, part: int, offset: int) -> Kernel:
    """``out[offset + i…] = in_part[i…]``."""
    t = types[part]
    return Kernel(
        t.shape,
        t.ndim,
        None,
        Load(part, 0, row_major(t.shape), t.dtype),
        Acc(t.dtype),
        _operands(types),
        Operand(out.dtype, out.size),
        offset,
        row_major(out.shape),
    )


def part_offsets(types: Sequence[TensorType], axis: int) -> list[int]:
    """Where each part of a concatenation starts, in elements of the result."""
    stride = row_major(_concat_type(types, axis).shape)[axis]
    offsets, at = [], 0
    for t in types:
        offsets.append(at * stride)
        at += t.shape[axis]
    return offsets


def _define_concat(types: Sequence[TensorType], attrs: object) -> Kernel:
    assert isinstance(attrs, int)
    return define_part(types, _concat_type(types, attrs), len(types) - 1, part_offsets(types, attrs)[-1])


register(
    Op(
        "concat",
        "concat",
        _concat_type,
        lambda arrays, attrs: np.concatenate(arrays, axis=attrs),  # type: ignore[call-overload]
        _define_concat,
    )
)


@dataclass(frozen=True, eq=False)
class PadAttrs:
    """How many elements of ``value`` go before and after each axis; equal by the value's type and bits."""

    widths: tuple[tuple[int, int], ...]
    value: float | int | bool

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PadAttrs)
            and self.widths == other.widths
            and identity(self.value) == identity(other.value)
        )

    def __hash__(self) -> int:
        return hash((self.widths, identity(self.value)))


def _pad_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    (t,) = types
    assert isinstance(attrs, PadAttrs)
    if len(attrs.widths) != t.ndim or any(low < 0 or high < 0 for low, high in attrs.widths):
        raise ValueError(f"pad: widths {attrs.widths} for shape {t.shape}")
    return TensorType(tuple(n + low + high for n, (low, high) in zip(t.shape, attrs.widths, strict=True)), t.dtype)


def _pad(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, PadAttrs)
    return np.pad(arrays[0], attrs.widths, constant_values=attrs.value)


def pad_offset(shape: Sequence[int], attrs: PadAttrs) -> int:
    """Where the first element of the padded tensor goes in the result."""
    wide = tuple(n + low + high for n, (low, high) in zip(shape, attrs.widths, strict=True))
    return sum(low * stride for (low, _), stride in zip(attrs.widths, row_major(wide), strict=True))


def _define_pad(types: Sequence[TensorType], attrs: object) -> Kernel:
    assert isinstance(attrs, PadAttrs)
    return define_part(types, _pad_type(types, attrs), 0, pad_offset(types[0].shape, attrs))


register(Op("pad", "pad", _pad_type, _pad, _define_pad))


# Gathers


def _gather_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    x, index = types
    assert isinstance(attrs, int)
    if index.dtype.kind != "int":
        raise ValueError(f"indices must be integers, not {index.dtype}")
    if not 0 <= attrs < x.ndim:
        raise ValueError(f"take: axis {attrs} of a tensor with {x.ndim} axes")
    if x.shape[attrs] == 0 and index.size:
        raise ValueError("take: cannot take from an empty axis")
    return TensorType((*x.shape[:attrs], *index.shape, *x.shape[attrs + 1 :]), x.dtype)


def _define_gather(types: Sequence[TensorType], attrs: object) -> Kernel:
    x, index = types
    assert isinstance(attrs, int)
    out = _gather_type(types, attrs)
    strides = row_major(x.shape)
    lead, width = attrs, index.ndim
    at = Load(1, 0, (0,) * lead + row_major(index.shape) + (0,) * (out.ndim - lead - width), index.dtype)
    body = Load(0, 0, strides[:lead] + (0,) * width + strides[lead + 1 :], x.dtype, ((at, strides[lead]),))
    return Kernel(
        out.shape,
        out.ndim,
        None,
        body,
        Acc(x.dtype),
        _operands(types),
        Operand(out.dtype, out.size),
        0,
        row_major(out.shape),
    )


def _gather(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    table, index = arrays
    assert isinstance(attrs, int)
    if repeated_axes(table):  # of which np.take makes a copy first
        return np.asarray(table[(slice(None),) * attrs + (index,)])
    return np.take(table, index, axis=attrs)


register(
    Op(
        "gather",
        "gather",
        _gather_type,
        _gather,
        _define_gather,
        doc="x[…, index, …] along one axis; the index is in range (see wrap_index)",
    )
)


# Operators that run through the reference


def _opaque(
    name: str, fn: Callable[..., np.ndarray], cost: float, result: DType | None = None, *, sorts: bool = False
) -> None:
    def type_rule(types: Sequence[TensorType], attrs: object) -> TensorType:
        (t,) = types
        if not isinstance(attrs, int) or not 0 <= attrs < t.ndim:
            raise ValueError(f"{name}: axis {attrs} of a tensor with {t.ndim} axes")
        return TensorType(t.shape, result or t.dtype)

    def reference(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
        return np.asarray(fn(arrays[0], axis=attrs))

    register(Op(name, "opaque", type_rule, reference, cost=cost, sorts=sorts))


_opaque("cumsum", lambda x, axis: np.cumsum(x, axis=axis, dtype=x.dtype), 160)
_opaque("cumprod", lambda x, axis: np.cumprod(x, axis=axis, dtype=x.dtype), 160)
# A row for each of NumPy's kinds: among equals, and zeros of both signs, each has an order of its own.
# Costs are of a million float32 on a Xeon with AVX-512, on one thread: 4 and 45 ns an element for the first kind.
_opaque("sort", partial(np.sort, kind="quicksort"), 15, sorts=True)
_opaque("sort_stable", partial(np.sort, kind="stable"), 400, sorts=True)
_opaque("sort_heapsort", partial(np.sort, kind="heapsort"), 500, sorts=True)
_opaque("argsort", partial(np.argsort, kind="quicksort"), 160, int64, sorts=True)
_opaque("argsort_stable", partial(np.argsort, kind="stable"), 450, int64, sorts=True)
_opaque("argsort_heapsort", partial(np.argsort, kind="heapsort"), 600, int64, sorts=True)


def _scatter_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    table, index, value = types
    assert isinstance(attrs, str)
    if index.dtype.kind != "int" or index.ndim != 1:
        raise ValueError(f"scatter: positions must be integers along one axis, not {index}")
    if value.shape != (*index.shape, *table.shape[1:]) or value.dtype != table.dtype:
        raise ValueError(f"scatter: {value} at {index} of {table}")
    return table


def _scatter(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    # ufunc.at has a fast loop for arrays whose element types are one object, which a byte order set anew is not
    table, index, value = (a.view(a.dtype.type) if a.dtype.isnative else a for a in arrays)
    out = np.array(table)
    if attrs == "set":
        out[index] = value
    else:
        getattr(np, str(attrs)).at(out, index, value)
    return out


register(
    Op(
        "scatter",
        "opaque",
        _scatter_type,
        _scatter,
        cost=30,
        doc="rows of a table at positions in range, set to or combined with rows of values one after the other",
    )
)

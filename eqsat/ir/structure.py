"""Rows of the op table: views, contractions, reductions, gathers, scatters and scans and sorts along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from eqsat.ir.kernel import Acc, Call, Combine, Kernel, Load, Operand
from eqsat.ir.repeats import repeated_axes
from eqsat.ir.spec import Spec
from eqsat.ir.table import Op, register
from eqsat.ir.types import DType, TensorType, bool_, int64, row_major
from eqsat.ir.views import ViewMap, recut


def operands_of(types: Sequence[TensorType]) -> tuple[Operand, ...]:
    """What a kernel reads of these tensors."""
    return tuple(Operand(t.dtype, t.size) for t in types)


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
    if repeated_axes(parts) or parts.nbytes > max(PART_BYTES, flat.nbytes):  # a copy might be more than there is memory
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
            operands_of(types),
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
        operands_of(types),
        Operand(t.dtype, out.size),
        0,
        row_major(extents),
    )


register(Op("view", "view", _view_type, _view, _define_view, doc="transpose, reshape, slice, flip, broadcast, window…"))


# Contraction

PART_BYTES = 1 << 24
"""Bytes of windows that are copied at once."""
BLAS_WORK = 1 << 15
"""Multiply-adds from which a product of integers is looked at for whether floats hold it."""


def _contract_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    a, b = types
    assert isinstance(attrs, Spec)
    if a.dtype != b.dtype or a.dtype == bool_ or a.dtype.is_half:
        raise ValueError(f"contraction of {a.dtype} and {b.dtype}")
    extents = attrs.extents(a.shape, b.shape)
    return TensorType(tuple(extents[x] for x in attrs.out), a.dtype)


def contract_by(
    product: Callable[[np.ndarray, np.ndarray], np.ndarray], arrays: Sequence[np.ndarray], attrs: Spec
) -> np.ndarray:
    """A contraction of two arrays as (batches of) one product of matrices, as ``product`` computes it.

    Where the first is a view that repeats elements, rows of a part at a time: their copy would take more memory, which
    systems are slow to give.
    """
    a, b = arrays
    cut = _rows_apart(a, attrs)
    if cut is not None:
        label, step = cut
        axis, along = attrs.a.index(label), attrs.out.index(label)
        parts = [a[(slice(None),) * axis + (slice(i, i + step),)] for i in range(0, a.shape[axis], step)]
        return np.concatenate([contract_by(product, (part, b), attrs) for part in parts], along)
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
    left = _matrices(left, len(batch), len(rows), (*head, extent(rows), extent(summed)))
    right = _matrices(right, len(batch), len(summed), (*head, extent(summed), extent(cols)))
    made = product(left, right)
    order = (*batch, *rows, *cols)
    shaped = made.reshape([extents[x] for x in order])
    return np.asarray(shaped.transpose([order.index(x) for x in attrs.out]), order="C")


def _rows_apart(a: np.ndarray, attrs: Spec) -> tuple[int, int] | None:
    """A label of rows, and how many of its positions make a part of a large array of windows; None for others."""
    span = sum((n - 1) * abs(step) for n, step in zip(a.shape, a.strides, strict=True)) + a.itemsize
    if a.nbytes <= max(PART_BYTES, span):
        return None
    label = max(attrs.rows, key=lambda x: a.shape[attrs.a.index(x)], default=None)
    if label is None or a.shape[attrs.a.index(label)] == 1:
        return None
    return label, max(1, a.shape[attrs.a.index(label)] * PART_BYTES // a.nbytes)


def _matrices(x: np.ndarray, batch: int, split: int, shape: Sequence[int]) -> np.ndarray:
    """``x.reshape(shape)``, a matrix or a batch of them: ``split`` axes behind the first ``batch`` ones by the others.

    Windows have to be copied for that, some elements at a time. It is columns that are copied, to be rows of the
    transpose, where more elements are next to one another that way: ten times as fast for images of 56 columns.
    """

    def run(axis: int) -> int:
        return x.shape[axis] if x.strides[axis] == x.itemsize else 1

    middle = batch + split
    if not 0 < split < x.ndim - batch or run(middle - 1) <= run(x.ndim - 1):
        return x.reshape(shape)
    turned = x.transpose([*range(batch), *range(middle, x.ndim), *range(batch, middle)])
    return turned.reshape(*shape[:-2], shape[-1], shape[-2]).swapaxes(-2, -1)


def _contract(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, Spec)
    return contract_by(matmul, arrays, attrs)


def matmul(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """``numpy.matmul``; of integers in float64 where that is exact: BLAS is a hundred times as fast."""
    if left.dtype.kind not in "iu" or left.size * right.shape[-1] < BLAS_WORK or not right.size:
        return np.asarray(np.matmul(left, right))
    largest = [max(-int(x.min()), int(x.max())) for x in (left, right)]
    if largest[0] * largest[1] * left.shape[-1] > 2**53:
        return np.asarray(np.matmul(left, right))
    exact = np.matmul(left.astype(np.float64), right.astype(np.float64))
    return np.asarray(exact.astype(np.int64).astype(left.dtype))


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
        operands_of(types),
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
        if t.dtype.is_half:
            raise ValueError(f"{name} of {t.dtype}: cast to float32 first")
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
            operands_of(types),
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
        operands_of(types),
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
    name: str,
    fn: Callable[..., np.ndarray],
    cost: float,
    result: DType | None = None,
    *,
    sorts: bool = False,
    running: Combine | None = None,
) -> None:
    def type_rule(types: Sequence[TensorType], attrs: object) -> TensorType:
        (t,) = types
        if not isinstance(attrs, int) or not 0 <= attrs < t.ndim:
            raise ValueError(f"{name}: axis {attrs} of a tensor with {t.ndim} axes")
        return TensorType(t.shape, result or t.dtype)

    def reference(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
        return np.asarray(fn(arrays[0], axis=attrs))

    register(Op(name, "opaque", type_rule, reference, cost=cost, sorts=sorts, running=running))


# Costs are of a row on its own, each element of which waits for the one before it.
_opaque("cumsum", lambda x, axis: np.cumsum(x, axis=axis, dtype=x.dtype), 40, running="sum")
_opaque("cumprod", lambda x, axis: np.cumprod(x, axis=axis, dtype=x.dtype), 40, running="prod")
_opaque("cummax", np.maximum.accumulate, 40, running="max")
_opaque("cummin", np.minimum.accumulate, 40, running="min")
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

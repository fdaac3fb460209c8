"""Parts of tensors: which part of its operands an operator needs for a part of its result, and how it computes that.

A :data:`Box` is one half-open range per axis. Everything here goes by the *kind* of an operator: elementwise functions
need the same box, a view the box around what its index map reads, a contraction the rows and columns that meet.
Composite operators are computed as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from eqsat.ir.joins import PadAttrs
from eqsat.ir.node import Node
from eqsat.ir.sources import IotaAttrs
from eqsat.ir.spec import Spec
from eqsat.ir.structure import contract_by, matmul
from eqsat.ir.table import OPS
from eqsat.ir.types import row_major
from eqsat.ir.views import ViewMap

Box = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, n) for n in shape)


def volume(box: Box) -> int:
    return math.prod(high - low for low, high in box)


def extents(box: Box) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


def part(array: np.ndarray, box: Box) -> np.ndarray:
    """A view of that part of an array."""
    at: tuple[Any, ...] = (*(slice(low, high) for low, high in box), ...)
    found: np.ndarray = array[at]
    return found


class Pieces(Sequence[Box]):
    """A box in pieces of at most ``most`` elements, cut along its outer axes, in row-major order.

    Made as they are asked for: a broadcast tensor may have millions.
    """

    def __init__(self, box: Box, most: int) -> None:
        self.box = box
        inner, axis = 1, len(box)
        while axis > 0 and inner * (box[axis - 1][1] - box[axis - 1][0]) <= most:
            axis -= 1
            inner *= box[axis][1] - box[axis][0]
        self.axis = axis - 1  # the outermost axis that does not fit whole; -1 where all do
        self.step = max(1, most // max(1, inner))
        counts = [high - low for low, high in box[: max(0, self.axis)]]
        if self.axis >= 0:
            low, high = box[self.axis]
            counts.append(-(-(high - low) // self.step))
        self.counts = counts

    def __len__(self) -> int:
        return math.prod(self.counts)

    @overload
    def __getitem__(self, at: int) -> Box: ...
    @overload
    def __getitem__(self, at: slice) -> list[Box]: ...
    def __getitem__(self, at: int | slice) -> Box | list[Box]:
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(len(self)))]
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(at)
        if self.axis < 0:
            return self.box
        *outer, last = (int(n) for n in np.unravel_index(number, self.counts))
        head = tuple((low + n, low + n + 1) for n, (low, _) in zip(outer, self.box[: self.axis], strict=True))
        low, high = self.box[self.axis]
        start = low + last * self.step
        return (*head, (start, min(start + self.step, high)), *self.box[self.axis + 1 :])

    def holding(self, at: Sequence[int]) -> int:
        """The number of the piece that holds the element at these indices."""
        if self.axis < 0:
            return 0
        inside = [n - low for n, (low, _) in zip(at, self.box[: self.axis + 1], strict=False)]
        inside[-1] //= self.step
        return int(np.ravel_multi_index(inside, self.counts))


def within(box: Box, outer: Box) -> Box | None:
    """The box counted from the corner of another one that holds it; None where that does not."""
    if any(low < first or high > last for (low, high), (first, last) in zip(box, outer, strict=True)):
        return None
    return tuple((low - first, high - first) for (low, high), (first, _) in zip(box, outer, strict=True))


def operand_boxes(node: Node, box: Box) -> list[Box]:
    """For each operand of a node the box of it that this (non-empty) box of the result is computed from.

    May be empty (``low == high``) for a part of a concatenation or the middle of a padding that lies elsewhere.
    """
    attrs = node.attrs
    match OPS[node.op].kind:
        case "source":
            return []
        case "map":
            found = []
            for operand in node.inputs:
                inside = box[len(box) - operand.type.ndim :]
                pairs = zip(operand.shape, inside, strict=True)
                found.append(tuple((0, 1) if n == 1 else r for n, r in pairs))
            return found
        case "view":
            assert isinstance(attrs, ViewMap)
            return [_Reads(attrs, node.inputs[0].shape, box).box]
        case "contract":
            assert isinstance(attrs, Spec)
            a, b = node.inputs
            ranges = {label: (0, n) for label, n in attrs.extents(a.shape, b.shape).items()}
            ranges.update(zip(attrs.out, box, strict=True))
            return [tuple(ranges[x] for x in attrs.a), tuple(ranges[x] for x in attrs.b)]
        case "reduce":
            assert isinstance(attrs, tuple)
            kept = iter(box)
            shape = node.inputs[0].shape
            return [tuple((0, n) if axis in attrs else next(kept) for axis, n in enumerate(shape))]
        case "concat":
            assert isinstance(attrs, int)
            found, at = [], 0
            low, high = box[attrs]
            for operand in node.inputs:
                n = operand.shape[attrs]
                start = min(max(low - at, 0), n)
                span = (start, max(start, min(high - at, n)))
                found.append((*box[:attrs], span, *box[attrs + 1 :]))
                at += n
            return found
        case "pad":
            assert isinstance(attrs, PadAttrs)
            inner: list[tuple[int, int]] = []
            for (low, high), (before, _), n in zip(box, attrs.widths, node.inputs[0].shape, strict=True):
                start = min(max(low - before, 0), n)
                inner.append((start, max(start, min(high - before, n))))
            return [tuple(inner)]
        case "gather":
            assert isinstance(attrs, int)
            table, index = node.inputs
            middle = attrs + index.type.ndim
            return [(*box[:attrs], (0, table.shape[attrs]), *box[middle:]), box[attrs:middle]]
        case "opaque" if isinstance(attrs, int):
            return [(*box[:attrs], (0, node.shape[attrs]), *box[attrs + 1 :])]
        case _:
            return [whole(operand.shape) for operand in node.inputs]


def compute(node: Node, box: Box, boxes: Sequence[Box], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """That box of the result, of the operands' boxes as :func:`operand_boxes` names them."""
    attrs = node.attrs
    row = OPS[node.op]
    match row.kind:
        case "source":
            if isinstance(attrs, IotaAttrs):
                return np.arange(*box[0], dtype=attrs.dtype.numpy)
            return part(row.reference([], attrs), box)
        case "view":
            assert isinstance(attrs, ViewMap)
            return _Reads(attrs, node.inputs[0].shape, box).of(arrays[0])
        case "concat":
            assert isinstance(attrs, int)
            return np.concatenate(arrays, axis=attrs)
        case "pad":
            assert isinstance(attrs, PadAttrs)
            out = np.full(extents(box), attrs.value, arrays[0].dtype)
            (inner,) = boxes
            if volume(inner):
                at = zip(inner, box, attrs.widths, strict=True)
                out[tuple(slice(a + w - low, b + w - low) for (a, b), (low, _), (w, _) in at)] = arrays[0]
            return out
        case "opaque" if isinstance(attrs, int):
            full = row.reference(arrays, attrs)
            low, high = box[attrs]
            return full[(slice(None),) * attrs + (slice(low, high),)]
        case "composite" | "opaque":
            return part(row.reference(arrays, attrs), box)
        case "contract":
            assert isinstance(attrs, Spec)
            return _contracted(attrs, arrays)
        case _:
            return np.asarray(row.reference(arrays, attrs))


ALONE, SHARED = 1 << 18, 1 << 25
"""Multiply-adds of a matrix product up to which OpenBLAS computes it on the thread that asks, and of products for whose
sake its other threads are woken here: where other programs have the cores, each waits for these for milliseconds."""


def _contracted(spec: Spec, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """A contraction by NumPy; one of a few blocks piece by piece, each of them too small for BLAS to share it out.

    The pieces are cut from the matrices: cut from the arrays, each would have windows copied anew.
    """
    sizes = spec.extents(arrays[0].shape, arrays[1].shape)
    size = math.prod(sizes[x] for x in (*spec.rows, *spec.cols, *spec.summed))
    if size <= ALONE or math.prod(sizes.values()) > SHARED:
        return OPS["contract"].reference(arrays, spec)

    def pieces(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        rows, cols = left.shape[-2], right.shape[-1]
        out = np.empty((*left.shape[:-1], cols), left.dtype)
        step = max(1, max(rows, cols) * ALONE // max(1, rows * cols * left.shape[-1]))
        for low in range(0, max(rows, cols), step):
            inside = slice(low, low + step)
            if rows >= cols:
                out[..., inside, :] = matmul(left[..., inside, :], right)
            else:
                out[..., inside] = matmul(left, right[..., inside])
        return out

    return contract_by(pieces, arrays, spec)


def _rows(first: int, last: int, shape: tuple[int, ...]) -> Box:
    """The box of whole rows that holds what lies between two flat indices: of the outermost axis where they differ."""
    box: list[tuple[int, int]] = []
    for axis, (stride, n) in enumerate(zip(row_major(shape), shape, strict=True)):
        box.append((first // stride % n, last // stride % n + 1))
        if first // stride != last // stride:
            return (*box, *((0, m) for m in shape[axis + 1 :]))
    return tuple(box)


class _Reads:
    """What a box of a view reads of its operand: the box around it, and where in that box the elements lie."""

    def __init__(self, map: ViewMap, shape: tuple[int, ...], box: Box) -> None:
        self.out = extents(box)
        self.slices: list[slice] = []  # of the result made from whole outer atoms, to the box
        offset = map.offset
        self.atoms: list[tuple[int, int]] = []
        merged = []
        for atoms, (low, high) in zip(map.axes, box, strict=True):
            if not atoms:
                merged.append(1)
                self.slices.append(slice(0, high - low))
                continue
            (n, stride), *inner = atoms
            width = math.prod(size for size, _ in inner)
            first, last = low // width, -(-high // width)
            offset += first * stride
            self.atoms += [(last - first, stride), *inner]
            merged.append((last - first) * width)
            self.slices.append(slice(low - first * width, high - first * width))
        self.merged = tuple(merged)
        # Negative strides read the same elements as positive ones from the other end.
        self.base = offset + sum((n - 1) * s for n, s in self.atoms if s < 0)
        strides = row_major(shape)
        start = [self.base // s % n if n else 0 for s, n in zip(strides, shape, strict=True)]
        reach = [0] * len(shape)
        for n, stride in self.atoms:
            step = abs(stride)
            for axis, (s, extent) in enumerate(zip(strides, shape, strict=True)):
                if n > 1 and step and step % (s * extent):
                    far = (n - 1) * step
                    reach[axis] += far // s if far < s * extent else extent - 1
        ends = [a + r + 1 for a, r in zip(start, reach, strict=True)]
        self.exact = all(end <= n for end, n in zip(ends, shape, strict=True))
        if self.exact:  # no digit carries into the next: the elements lie between these, axis by axis
            self.box: Box = tuple(zip(start, ends, strict=True))
        else:
            self.box = _rows(self.base, self.base + sum((n - 1) * abs(s) for n, s in self.atoms), shape)
        self.shape = shape
        self.offset = offset

    def of(self, array: np.ndarray) -> np.ndarray:
        """The elements, from the array of the box."""
        inside = row_major(extents(self.box))
        strides = row_major(self.shape)
        corner = [low for low, _ in self.box]

        def place(flat: np.ndarray | int) -> np.ndarray | int:
            """Where a flat index of the whole operand lies in the box."""
            total: np.ndarray | int = 0
            for axis, n in enumerate(self.shape):
                total = total + (flat // strides[axis] % n - corner[axis]) * inside[axis]
            return total

        flat = np.ascontiguousarray(array).reshape(-1)
        sizes = [n for n, _ in self.atoms]
        steps = []
        first = next((axis for axis, (a, b) in enumerate(self.box) if b - a != 1), len(self.box))
        if all(b - a == n for (a, b), n in zip(self.box[first + 1 :], self.shape[first + 1 :], strict=True)):
            # Whole rows: elements lie as in the operand.
            start = self.offset - sum(low * stride for low, stride in zip(corner, strides, strict=True))
            steps = [s for _, s in self.atoms]
        else:
            # Digits do not carry here, so each atom moves through the box by itself.
            start = int(place(self.base))
            walks = [np.asarray(place(self.base + np.arange(n) * abs(s))) - start for n, s in self.atoms]
            if not all(n < 3 or np.array_equal(w, np.arange(n) * w[1]) for n, w in zip(sizes, walks, strict=True)):
                where = np.full((1,) * len(sizes), start)
                for axis, (walk, (_, stride)) in enumerate(zip(walks, self.atoms, strict=True)):
                    along = walk[::-1] if stride < 0 else walk
                    where = where + along.reshape([-1 if a == axis else 1 for a in range(len(sizes))])
                gathered: np.ndarray = flat[where].reshape(self.merged)
                return gathered[tuple(self.slices)]
            for n, walk, (_, stride) in zip(sizes, walks, self.atoms, strict=True):
                step = int(walk[1]) if n > 1 else 0
                steps.append(-step if stride < 0 else step)
                start += (n - 1) * step if stride < 0 else 0
        view = np.lib.stride_tricks.as_strided(flat[start:], sizes, [s * flat.itemsize for s in steps])
        if self.merged != tuple(sizes):
            view = view.reshape(self.merged)
        return view[tuple(self.slices)]


def accumulate(node: Node, total: np.ndarray, seen: np.ndarray | None, piece: Box, value: np.ndarray, box: Box) -> None:
    """Combine the reduction of one piece of the operand into ``total``, the box ``box`` of a reduction's result.

    Pieces come in row-major order and cover the operand's box. ``seen`` holds the extremes found so far for positions
    (argmax, argmin), as float64 or int64.
    """
    axes = node.attrs
    assert isinstance(axes, tuple)
    kept = [r for axis, r in enumerate(piece) if axis not in axes]
    at = tuple(slice(a - low, b - low) for (a, b), (low, _) in zip(kept, box, strict=True))
    first = all(piece[axis][0] == 0 for axis in axes)
    name = node.op
    if name in ("argmax", "argmin"):
        assert seen is not None
        (axis,) = axes
        found = np.asarray((np.argmax if name == "argmax" else np.argmin)(value, axis=axis))
        best = np.take_along_axis(value, np.expand_dims(found, axis), axis).squeeze(axis)
        old = seen[at]
        better = best > old if name == "argmax" else best < old
        better |= (best != best) & (old == old)  # the first NaN is the extreme
        if first:
            better = np.ones_like(better)
        total[at] = np.where(better, found + piece[axis][0], total[at])
        seen[at] = np.where(better, best, old)
        return
    one = OPS[name].reference([value], axes)
    combine = {"reduce_sum": np.add, "reduce_prod": np.multiply, "reduce_max": np.maximum, "reduce_min": np.minimum}
    total[at] = one if first else combine[name](total[at], one)

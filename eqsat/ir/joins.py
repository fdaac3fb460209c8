"""Rows of the op table: joins of tensors, and constants around one.

Each part is stored to its own place: a kernel defines one part, so the definition is that of the last part, and the
plan makes one such kernel per part (``plan/lower.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir.identity import identity
from eqsat.ir.kernel import Acc, Kernel, Load, Operand
from eqsat.ir.structure import operands_of
from eqsat.ir.table import Op, register
from eqsat.ir.types import TensorType, row_major


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
        operands_of(types),
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

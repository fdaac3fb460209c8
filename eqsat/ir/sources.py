"""Rows of the op table: sources, which have no operands, and the pair that makes a complex tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir.kernel import Acc, Index, Kernel, Operand
from eqsat.ir.node import ConstArray
from eqsat.ir.table import Op, register
from eqsat.ir.types import DType, TensorType, complex64, complex128, float32, float64, int32, int64


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

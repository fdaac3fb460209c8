"""Element types and tensor types.

Element types follow NumPy 2 (NEP 50). ``bfloat16`` is that of the package ml_dtypes, which is imported when it is met.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from eqsat.forks import IMPORTING, lazy

Kind = Literal["float", "int", "bool", "complex"]


@dataclass(frozen=True, slots=True, order=True)
class DType:
    """An element type: its NumPy name, kind and size in bits as stored."""

    name: str
    kind: Kind
    bits: int

    def __hash__(self) -> int:
        return hash(self.name)  # it is hashed with every type and kernel

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.bits // 8

    @property
    def numpy(self) -> np.dtype:
        """The NumPy element type; ``TypeError`` for bfloat16 where ml_dtypes is not installed."""
        return _bfloat16() if self.name == "bfloat16" else np.dtype(self.name)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_half(self) -> bool:
        """Whether it is a type of memory only: a float that is computed in float32 and rounded (``ir.build``)."""
        return self.kind == "float" and self.bits == 16

    @property
    def is_signed(self) -> bool:
        """Whether values below 0 are of this type."""
        return not self.name.startswith("u") and self.kind != "bool"

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer of an integer type."""
        return (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1) if self.is_signed else (0, (1 << self.bits) - 1)

    def array(self, value: object) -> np.ndarray:
        """A number as a 0-d array; an integer that does not fit wraps around, as the results of arithmetic do."""
        if self.kind == "int" and type(value) is int:
            value = (value - self.limits[0]) % (1 << self.bits) + self.limits[0]
        return np.asarray(value, self.numpy)

    def __str__(self) -> str:
        return self.name


float64 = DType("float64", "float", 64)
float32 = DType("float32", "float", 32)
float16 = DType("float16", "float", 16)
bfloat16 = DType("bfloat16", "float", 16)
int64 = DType("int64", "int", 64)
int32 = DType("int32", "int", 32)
int16 = DType("int16", "int", 16)
int8 = DType("int8", "int", 8)
uint64 = DType("uint64", "int", 64)
uint32 = DType("uint32", "int", 32)
uint16 = DType("uint16", "int", 16)
uint8 = DType("uint8", "int", 8)
bool_ = DType("bool", "bool", 8)

complex128 = DType("complex128", "complex", 128)
complex64 = DType("complex64", "complex", 64)

INTEGERS = (int64, int32, int16, int8, uint64, uint32, uint16, uint8)
DTYPES = {d.name: d for d in (float64, float32, float16, bfloat16, *INTEGERS, bool_, complex128, complex64)}
COMPUTED = (float64, float32, float16, *INTEGERS, bool_)
"""NumPy's own element types that kernels take."""
STORED = (*COMPUTED, bfloat16)
"""All that kernels take."""


def widest(dtype: DType) -> DType:
    """The type in which elements of a type are added up: bools and integers in 64 bits."""
    if dtype.kind in ("float", "complex"):
        return dtype
    return int64 if dtype.is_signed or dtype.kind == "bool" else uint64


def part_of(dtype: DType) -> DType:
    """The element type of a complex one's parts."""
    return {128: float64, 64: float32}[dtype.bits]


def dtype_of(spec: DTypeLike | DType) -> DType:
    """The element type named by a NumPy dtype, its name, or a Python scalar type.

    Byte order is not part of a type: ``>f4`` is float32. Raises ``TypeError`` for object, string,
    datetime and structured types, and for extended precision.
    """
    if isinstance(spec, DType):
        return spec
    dtype = np.dtype(spec)
    found = _known.get(dtype)
    if found is not None:
        return found
    found = DTYPES.get(dtype.newbyteorder("=").name)
    if found is None or (found == bfloat16 and dtype != found.numpy):
        names = ", ".join(DTYPES)
        raise TypeError(f"element type {dtype.name!r} is not supported; eqsat computes with {names}")
    _known[dtype] = found
    return found


@functools.cache
def _bfloat16() -> np.dtype:
    try:
        with IMPORTING:
            import ml_dtypes
    except ImportError:
        raise TypeError("bfloat16 is an element type of the package ml_dtypes: pip install 'eqsat[bfloat16]'") from None
    found: np.dtype = np.dtype(ml_dtypes.bfloat16)
    return found


def is_floating(array: np.ndarray) -> bool:
    """Whether elements of an array are floats: NumPy's own, or bfloat16, whose kind NumPy does not know."""
    return array.dtype.kind == "f" or (array.dtype.kind == "V" and array.dtype.name == "bfloat16")


def finfo(dtype: np.dtype | DType) -> np.finfo:
    """``numpy.finfo``, of bfloat16 as well."""
    numpy = dtype.numpy if isinstance(dtype, DType) else dtype
    if numpy.kind != "V":
        return np.finfo(numpy)
    import ml_dtypes

    found: np.finfo = ml_dtypes.finfo(numpy)
    return found


_known: dict[np.dtype, DType] = {}
"""Element types by NumPy's, of those asked for so far."""


class NotOfThisType(ValueError):
    """An operator that an element type does not have."""


@dataclass(frozen=True)
class TensorType:
    """Shape (a tuple of non-negative ints, ``()`` for 0-d) and element type."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @lazy
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous array of this shape."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))

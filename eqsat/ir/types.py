"""Element types and tensor types.

Element types follow NumPy 2 (NEP 50). ``float16``, ``bfloat16`` and ``int8`` have their place in the
type system; no backend computes with them yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from eqsat.forks import lazy

Kind = Literal["float", "int", "bool"]


@dataclass(frozen=True, slots=True, order=True)
class DType:
    """An element type: its NumPy name, kind and size in bits as stored."""

    name: str
    kind: Kind
    bits: int

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.bits // 8

    @property
    def numpy(self) -> np.dtype:
        """The NumPy element type; ``TypeError`` for one that NumPy lacks (bfloat16)."""
        if self.name == "bfloat16":
            raise TypeError("bfloat16 has no NumPy element type; cast to float32 first")
        return np.dtype(self.name)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    def __str__(self) -> str:
        return self.name


float64 = DType("float64", "float", 64)
float32 = DType("float32", "float", 32)
float16 = DType("float16", "float", 16)
bfloat16 = DType("bfloat16", "float", 16)
int64 = DType("int64", "int", 64)
int32 = DType("int32", "int", 32)
int8 = DType("int8", "int", 8)
bool_ = DType("bool", "bool", 8)

DTYPES = {d.name: d for d in (float64, float32, float16, bfloat16, int64, int32, int8, bool_)}
COMPUTED = (float64, float32, int64, int32, bool_)
"""The element types that programs may use today."""


def dtype_of(spec: DTypeLike | DType) -> DType:
    """The element type named by a NumPy dtype, its name, or a Python scalar type.

    Byte order is not part of a type: ``>f4`` is float32. Raises ``TypeError`` for object, string,
    complex, datetime and structured types, and for integer widths that eqsat does not compute with.
    """
    if isinstance(spec, DType):
        return spec
    dtype = np.dtype(spec)
    found = DTYPES.get(dtype.newbyteorder("=").name)
    if found is None or found not in COMPUTED:
        names = ", ".join(d.name for d in COMPUTED)
        raise TypeError(f"element type {dtype.name!r} is not supported; eqsat computes with {names}")
    return found


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

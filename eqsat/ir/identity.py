"""What counts as the same number or attribute: the same type and the same bits."""

from __future__ import annotations

import struct
from collections.abc import Hashable

import numpy as np


def identity(value: object) -> Hashable:
    """A key that only values of one type and the same bits share.

    Python's ``==`` takes 0.0 for -0.0 and 1 for 1.0 and True, and no NaN for itself; as parts of a program they differ,
    and a NaN is itself. Tuples are compared by their elements; what else there is compares by its type and its own
    ``==``.
    """
    kind = type(value)
    if kind is float:
        return float, struct.pack("<d", value)
    if isinstance(value, complex) and kind is complex:
        return complex, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, np.generic):
        return kind, str(value.dtype), value.tobytes()
    if isinstance(value, tuple):
        return kind, *map(identity, value)
    return kind, value

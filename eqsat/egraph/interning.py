"""Attributes and numbers as keys: what counts as the same one."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from eqsat.ir.identity import identity
from eqsat.ir.node import ConstArray
from eqsat.ir.types import is_floating

Number = float | int | bool


def number_key(value: Number) -> str:
    """Equal for numbers that are the same real; 0.0 and -0.0 differ, and all NaN agree."""
    if isinstance(value, int) and abs(value) >= 2**53:
        return repr(value)
    return repr(float(value))


class Interner:
    """Attributes as small integers, the same one for the same type and bits."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, int] = {identity(None): 0}
        self.values: list[object] = [None]

    def __call__(self, value: object) -> int:
        found = self._ids.setdefault(identity(value), len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found

    def copy(self) -> Interner:
        found = Interner()
        found._ids, found.values = dict(self._ids), list(self.values)
        return found


def number_or_array_key(value: Number | ConstArray) -> str:
    """Likewise for known values, numbers or arrays."""
    return value.digest if isinstance(value, ConstArray) else number_key(value)


def uniform(array: np.ndarray) -> Number | None:
    """The number that all elements of a non-empty array are, else None."""
    if array.size == 0:
        return None
    flat = array.reshape(-1)
    first = flat[0]
    if flat.size > 1:
        if flat[-1] != first or not (flat == first).all():
            return None
        if is_floating(array) and first == 0 and not (np.signbit(flat) == np.signbit(first)).all():
            return None
    value: Number = first.item()
    return value

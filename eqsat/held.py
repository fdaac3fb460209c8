"""Constant arguments of a program, known again by content or identity; arrays as programs take them."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from eqsat.ir.repeats import base_of


class Held:
    """A constant argument as it was when the program was compiled: known again by content, then by identity.

    An array once known stands for what it was then, also when it is changed in place. ``array`` is the one used last.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.digest = digest_of(array)
        self._known: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary({id(array): array})

    def is_known(self, array: np.ndarray) -> bool:
        return array is self.array or self._known.get(id(array)) is array

    def know(self, array: np.ndarray) -> None:
        if array is not self.array:
            self._known[id(array)] = self.array = array


def digest_of(array: np.ndarray) -> bytes:
    """A hash of an array's values, repeated ones once; NaNs and zeros of different bits differ."""
    plain = np.ascontiguousarray(native(base_of(array)))
    return hashlib.blake2b(plain.reshape(-1).view(np.uint8).data, digest_size=16).digest()


def native(array: np.ndarray) -> np.ndarray:
    """The array in native byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def all_held(constants: Mapping[int, Held], leaves: Sequence[np.ndarray], digests: dict[int, bytes] | None) -> bool:
    """Whether the constant arguments are arrays that this is known to stand for or, given ``digests``, equal ones.

    ``digests``: those of the leaves, as far as they are known; more are added as they are needed.
    """
    for i, held in constants.items():
        if held.is_known(leaves[i]):
            continue
        if digests is None:
            return False
        if i not in digests:
            digests[i] = digest_of(leaves[i])
        if digests[i] != held.digest:
            return False
    for i, held in constants.items():
        held.know(leaves[i])
    return True

"""Functions whose results have shapes that depend on values: ``np.nonzero(x)``, ``np.unique(x)``, ``x[mask]``.

A call of one is an opaque step whose results have the shapes that they had in the call that was traced. The step tells
the shapes too, by a number that is a guard of the trace: a call in which they differ has a program of its own. What the
steps after it compute there is thrown away, so that the results need not mean anything: they are cut off, or filled
with zeros, to the shapes that the program has room for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat.ir.opaque import is_result, put_together, take_apart

Shape = tuple[int, ...]


def shapes_code(shapes: Sequence[Shape]) -> int:
    """A number that tells shapes apart, of 63 bits."""
    digest = hashlib.blake2b(repr(list(shapes)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Fitted:
    """A function whose arrays are brought to these shapes; its result is a pair of them and the code of their own.

    Arrays of another number of axes are returned as they are: the program has no place for them.
    """

    def __init__(self, function: Callable[..., Any], shapes: Sequence[Shape]) -> None:
        self.function, self.shapes = function, tuple(shapes)
        self.__name__ = getattr(function, "__name__", "function")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays: list[Any] = []
        nest = take_apart(self.function(*args, **kwargs), is_result, arrays)
        found = [np.shape(array) for array in arrays]
        if len(found) == len(self.shapes):
            arrays = [_fit(array, shape) for array, shape in zip(arrays, self.shapes, strict=True)]
        return put_together(nest, arrays), np.int64(shapes_code(found))


def _fit(array: Any, shape: Shape) -> Any:
    if np.shape(array) == shape or np.ndim(array) != len(shape):
        return array
    made = np.zeros(shape, np.asarray(array).dtype)
    common = tuple(slice(min(a, b)) for a, b in zip(array.shape, shape, strict=True))
    made[common] = array[common]
    return made

"""Arrays that repeat what they hold: axes of stride 0, as ``np.broadcast_to`` makes them.

A large array of that kind is passed as its *base*, those axes cut to length 1, and traced as a broadcast of it: nothing
of the full size is ever made. Which axes repeat is part of the key of its type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

LARGE = 1 << 22
"""Elements below which an array is taken as it is: a copy costs less than another program would."""
SPREAD = 16
"""How many times what it holds an array must repeat to be passed as its base."""

MOST_STORED = 1 << 30
"""Bytes of a tensor that repeats what it is made from above which it is never stored for being known."""


def worth_storing(nbytes: int, held: int) -> bool:
    """Whether a tensor known at compile time may be a stored constant; else it is a view of the ``held`` bytes that it
    is made from, read as such."""
    return nbytes <= MOST_STORED or nbytes < SPREAD * held


def repeated_axes(array: np.ndarray) -> tuple[int, ...]:
    """The axes longer than 1 along which every element is the same one; empty unless ``array`` is large by them."""
    if array.size < LARGE:
        return ()
    axes = still_axes(array)
    held = array.size
    for axis in axes:
        held //= array.shape[axis]
    return axes if held * SPREAD <= array.size else ()


def still_axes(array: np.ndarray) -> tuple[int, ...]:
    """The axes longer than 1 whose stride is 0."""
    return tuple([a for a, (n, step) in enumerate(zip(array.shape, array.strides, strict=True)) if n > 1 and not step])


def cut(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """A view of ``array`` with these axes cut to length 1."""
    return array[tuple([slice(0, 1) if axis in axes else slice(None) for axis in range(array.ndim)])] if axes else array


def base_of(array: np.ndarray) -> np.ndarray:
    """What is passed for an array: itself, or the part that it repeats."""
    return cut(array, repeated_axes(array))


def copy_of(array: np.ndarray) -> np.ndarray:
    """A copy that may be written to, and repeats what ``array`` does."""
    axes = repeated_axes(array)
    if not axes:
        return np.array(array)
    base = np.array(cut(array, axes))
    return as_strided(base, array.shape, [0 if a in axes else s for a, s in enumerate(base.strides)], writeable=True)


def astype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``array`` in another type, repeating what it does; itself where it has that type."""
    if array.dtype == dtype:
        return array
    return np.broadcast_to(base_of(array).astype(dtype), array.shape) if repeated_axes(array) else array.astype(dtype)


def array_key(array: np.ndarray) -> tuple[Any, ...]:
    """What tells an array's type: shape, native element type and, if it is passed as its base, the repeated axes."""
    axes = repeated_axes(array)
    dtype = array.dtype.newbyteorder("=")
    return (array.shape, dtype, axes) if axes else (array.shape, dtype)


def overlapping(array: np.ndarray) -> int:
    """Bytes of memory under an array that has more elements than its memory; 0 for any other."""
    if array.flags.c_contiguous or not array.size:
        return 0
    low, high = np.lib.array_utils.byte_bounds(array)
    return high - low if high - low < array.nbytes else 0

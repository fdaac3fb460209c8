"""The Array API namespace of traced arrays: NumPy 2's, whose functions traced arrays answer themselves.

Functions that make arrays from nothing return NumPy arrays, which are constants of the traced program.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.frontends import registry
from eqsat.frontends.tracer import TracedArray

__array_api_version__ = "2024.12"


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    """As the standard's ``asarray``; a traced array stays one."""
    if isinstance(obj, TracedArray):
        if dtype is not None and np.dtype(dtype) != obj.dtype:
            return obj.astype(dtype)
        return obj.copy() if copy else obj
    return np.asarray(obj, dtype=dtype)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """As the standard's ``full``; the value may be a traced 0-d array."""
    if isinstance(fill_value, TracedArray):
        return registry.call(np.full_like, fill_value, fill_value, dtype=dtype, shape=shape)
    return np.full(shape, fill_value, dtype=dtype)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    """As the standard's ``take``; either may be traced."""
    if isinstance(x, TracedArray) or isinstance(indices, TracedArray):
        return registry.call(np.take, x, indices, axis=axis)
    return np.take(x, indices, axis=axis)


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """As the standard's ``sort``."""
    found = np.sort(x, axis=axis, stable=stable)
    return np.flip(found, axis) if descending else found


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """As the standard's ``argsort``: equal elements keep their order, descending too."""
    if not descending:
        return np.argsort(x, axis=axis, stable=stable)
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, stable=stable), axis)


class _Fft:
    """The namespace ``fft``."""

    @staticmethod
    def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
        return np.fft.fftfreq(n, d).astype(dtype or np.float64)

    @staticmethod
    def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
        return np.fft.rfftfreq(n, d).astype(dtype or np.float64)

    def __getattr__(self, name: str) -> Any:
        return getattr(np.fft, name)


fft = _Fft()


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__array_namespace_info__":
        raise AttributeError(name)
    return getattr(np, name)

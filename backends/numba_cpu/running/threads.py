"""The threads behind the driver: a pool of POSIX threads, which the driver starts when it first needs them.

No OpenMP: its library is not everywhere, and its workers do not survive a fork. The pool serves one call at a
time; calls that come meanwhile, from other Python threads, run on the thread they are on.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.options import MAX_THREADS
from eqsat_backends.numba_cpu.running.driver_team import BLOCK, CAPACITY, FUNCTIONS, PLACEMENT, POOL


class Runtime:
    """Addresses of the thread functions, of the pool, and of what places threads, in the driver's order.

    ``threads=False``, or a system without POSIX threads: programs run on the calling thread alone.
    """

    def __init__(self, threads: bool = True) -> None:
        self._words = np.zeros(POOL + 1 + len(PLACEMENT), np.int64)
        self._pool = np.zeros((MAX_THREADS if threads else 1) * BLOCK + 8, np.int64)
        self._start = -(self._pool.ctypes.data // 8) % 8  # whole cache lines
        self._pool[self._start + CAPACITY] = MAX_THREADS if threads else 1
        if threads and os.name == "posix":
            self._words[:POOL] = addresses(FUNCTIONS)
            self._words[POOL + 1 :] = addresses(PLACEMENT)
        self._words[POOL] = self._pool[self._start :].ctypes.data

    @property
    def address(self) -> int:
        return int(self._words.ctypes.data)

    @property
    def parallel(self) -> bool:
        """Whether programs can have more than one thread."""
        return bool(self._words[0])

    def keep_for_ever(self) -> None:
        """Never free the pool: its workers may be polling it after the interpreter has ended."""
        for array in (self._words, self._pool):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))

    def forget_workers(self) -> None:
        """In a forked child: the workers exist in the parent only, whatever they were doing."""
        blocks = int(self._pool[self._start + CAPACITY])
        self._pool[:] = 0
        self._pool[self._start + CAPACITY] = blocks


def addresses(names: Sequence[str]) -> list[int]:
    """Addresses of the C library's functions; zeros where it lacks any of them."""
    process = ctypes.CDLL(None)
    found = [getattr(process, name, None) for name in names]
    if not all(found):
        return [0] * len(names)
    return [address_of(function) for function in found if function]


def address_of(function: Any) -> int:
    """Where a function of ``ctypes`` lies."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def runtime() -> Runtime:
    """The process's pool."""
    found = Runtime()
    found.keep_for_ever()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=found.forget_workers)
    return found

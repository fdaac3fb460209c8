"""The threads behind the driver: a pool of POSIX threads, which the driver starts when it first needs them.

No OpenMP: its library is not everywhere, and its workers do not survive a fork. The pool serves one call at a
time; calls that come meanwhile, from other Python threads, run on the thread they are on.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence

import numpy as np

from eqsat.options import MAX_THREADS
from eqsat_backends.numba_cpu.running.driver_code import POOL_BLOCK_WORDS

_FUNCTIONS = (
    "sched_yield",
    "pthread_create",
    "pthread_mutex_init",
    "pthread_cond_init",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_cond_wait",
    "pthread_cond_signal",
)
_PLACEMENT = ("sched_getcpu", "sched_getaffinity", "sched_setaffinity")


class Runtime:
    """Addresses of the thread functions, of the pool, and of what places threads, in the driver's order.

    ``threads=False``, or a system without POSIX threads: programs run on the calling thread alone.
    """

    def __init__(self, threads: bool = True) -> None:
        self._words = np.zeros(len(_FUNCTIONS) + 1 + len(_PLACEMENT), np.int64)
        self._pool = np.zeros((MAX_THREADS if threads else 1) * POOL_BLOCK_WORDS + 8, np.int64)
        self._start = -(self._pool.ctypes.data // 8) % 8  # whole cache lines
        self._pool[self._start + 1] = MAX_THREADS if threads else 1
        if threads and os.name == "posix":
            self._words[: len(_FUNCTIONS)] = _addresses(_FUNCTIONS)
            self._words[len(_FUNCTIONS) + 1 :] = _addresses(_PLACEMENT)
        self._words[len(_FUNCTIONS)] = self._pool[self._start :].ctypes.data

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
        blocks = int(self._pool[self._start + 1])
        self._pool[:] = 0
        self._pool[self._start + 1] = blocks


def _addresses(names: Sequence[str]) -> list[int]:
    """Addresses of the C library's functions; zeros where it lacks any of them."""
    process = ctypes.CDLL(None)
    found = [getattr(process, name, None) for name in names]
    if not all(found):
        return [0] * len(names)
    return [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found if function]


@functools.cache
def runtime() -> Runtime:
    """The process's pool."""
    found = Runtime()
    found.keep_for_ever()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=found.forget_workers)
    return found

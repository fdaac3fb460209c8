"""Who compiles, and who waits: one thread at a time compiles a function, and none waits for itself."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from eqsat.garbage import rarely_collected
from eqsat.scoped import Scoped

PATIENCE = 60.0
"""Seconds to wait while another thread compiles the function, and at least twice its budget. A call that waits
longer runs the plain function: what the other thread traces may itself wait for this one."""

compiling: Scoped[tuple[int, FrameType] | None] = Scoped(None)
"""The thread that compiles a function, and its frame that does."""

_measuring = threading.RLock()


def patience(budget: float) -> float:
    """Seconds that a call waits for another thread."""
    return max(PATIENCE, 2 * budget)


@contextmanager
def measuring() -> Iterator[None]:
    """Hold the lock of measurements of the machine."""
    with _measuring:
        yield


def is_compiling() -> bool:
    """Whether a function is being compiled. Optimized functions that it calls on arrays run as plain ones: they take no
    lock that another thread may hold while it waits for ours, and their results do not depend on earlier compilations.

    The stack is asked, too: Ctrl-C between two instructions may end a compilation without resetting the variable.
    """
    found = compiling.get()
    if found is None:
        return False
    thread, compiles = found
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not compiles and thread == threading.get_ident():
        frame = frame.f_back
    if frame is None:
        compiling.reset(None)
    return frame is not None


@contextmanager
def locked(lock: threading.Lock, seconds: float) -> Iterator[bool]:
    """Hold ``lock`` to compile: False if it was not to be had within ``seconds``."""
    # First of all, for a signal handler may call the function at any moment from here on.
    before = compiling.set((threading.get_ident(), sys._getframe(2)))
    mine = False
    try:
        mine = lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        with rarely_collected():
            yield mine
    finally:
        if mine:
            lock.release()
        compiling.reset(before)


def fresh_in_forks(renew: Callable[[], None]) -> None:
    """In the child of a fork, renew locks: what other threads of the parent were compiling will never be finished."""

    def fresh() -> None:
        global _measuring
        _measuring = threading.RLock()
        renew()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fresh)

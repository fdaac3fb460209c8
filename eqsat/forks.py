"""A fork copies one thread: locks that it waits for, and imports that it does not cut in two."""

from __future__ import annotations

import importlib
import logging  # noqa: F401  # whose own lock a fork must take after ours: an import may wait for it
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_Instance = TypeVar("_Instance")
_Value = TypeVar("_Value")
_Lock = TypeVar("_Lock", bound="threading.Lock | threading.RLock")

PATIENCE = 30.0
"""Seconds that a fork waits at most. The child of one that gave up finds the locks free, perhaps things half done."""

_locks: list[threading.Lock | threading.RLock] = []
_taken: dict[int, list[threading.Lock | threading.RLock]] = {}  # by forking thread


def hold_over_fork(lock: _Lock) -> _Lock:
    """``lock``, such that a fork waits for its holder: the child finds it free and what it guards whole.

    The holder may take other such locks, in any order, but wait for nothing else that a forking thread could hold.
    """
    _locks.append(lock)
    return lock


def _before() -> None:
    """Take all locks. Waits for one at a time, holding none meanwhile: so no order of taking them is wrong."""
    end = time.monotonic() + PATIENCE
    first: list[threading.Lock | threading.RLock] = []
    while True:
        missing = None
        taken = list(first)
        for lock in _locks:
            if not any(lock is one for one in first):
                if not lock.acquire(blocking=False):
                    missing = lock
                    break
                taken.append(lock)
        if missing is None:
            break
        for lock in taken:
            lock.release()
        if not missing.acquire(timeout=max(0.0, end - time.monotonic())):
            taken = []
            break
        first = [missing]
    _taken[threading.get_ident()] = taken


def _after_in_parent() -> None:
    for lock in _taken.pop(threading.get_ident(), ()):
        lock.release()


def _after_in_child() -> None:
    taken = _taken.pop(threading.get_ident(), [])
    _taken.clear()
    for lock in taken:
        lock.release()
    for lock in _locks:
        if not any(lock is one for one in taken):
            lock._at_fork_reinit()  # type: ignore[union-attr]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


IMPORTING = hold_over_fork(threading.RLock())
"""Held while modules are imported: the child of a fork would wait for ever for one that another thread was importing.

Imports inside functions, where another thread may be forking, take it."""


class lazy(Generic[_Instance, _Value]):
    """``functools.cached_property``, whose lock in Python 3.11 a forked child could find held by another thread."""

    def __init__(self, make: Callable[[_Instance], _Value]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[_Instance, _Value]: ...
    @overload
    def __get__(self, instance: _Instance, owner: type) -> _Value: ...
    def __get__(self, instance: _Instance | None, owner: type) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self.make.__name__] = self.make(instance)
        return value


def load(*modules: str) -> None:
    """Import modules that code to come would import on the way, such as parts of NumPy and of the standard library."""
    with IMPORTING:
        for module in modules:
            importlib.import_module(module)

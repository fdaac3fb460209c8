"""Variables that hold for the length of a call, for what it calls on its thread and on threads made by `carried`."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from threading import get_ident
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Value = TypeVar("Value")

_variables: list[Scoped[Any]] = []


class Scoped(Generic[Value]):
    """A value of the thread: ``before = V.set(value)``, and ``V.reset(before)`` in a ``finally``.

    Not a ``ContextVar``: where a collection of garbage inside its ``set`` runs a finalizer that sets a variable too
    (as ``np.errstate`` does), CPython before 3.12 reads memory that is free (python/cpython#148891).
    Storing into a dict with integer keys starts no collection.

    ``values`` are those of the threads that have set one: nothing while nobody has.
    """

    __slots__ = ("_default", "values")

    def __init__(self, default: Value) -> None:
        self._default = default
        self.values: dict[int, Value] = {}
        _variables.append(self)

    def get(self) -> Value:
        return self.values.get(get_ident(), self._default)

    def set(self, value: Value) -> Value:
        """Returns the value until now, for `reset`."""
        before = self.get()
        self.values[get_ident()] = value
        return before

    def reset(self, before: Value) -> None:
        if before is self._default:
            self.values.pop(get_ident(), None)  # a later thread may have this one's number
        else:
            self.values[get_ident()] = before


def carried(fn: Callable[P, R]) -> Callable[P, R]:
    """``fn``, to be called on another thread with this one's variables, context variables among them."""
    context = contextvars.copy_context()
    values = [(variable, variable.get()) for variable in _variables]

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        before = [(variable, variable.set(value)) for variable, value in values]
        try:
            return context.run(fn, *args, **kwargs)
        finally:
            for variable, value in before:
                variable.reset(value)

    return run


def _only_this_thread() -> None:
    """In the child of a fork: other threads' numbers may become those of new ones."""
    ident = get_ident()
    for variable in _variables:
        for other in [number for number in variable.values if number != ident]:
            del variable.values[other]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_only_this_thread)

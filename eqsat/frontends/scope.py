"""A function as it is traced: a copy whose globals and captured variables show what tracing needs in their place.

NumPy arrays from outside are known traced arrays, which traced arrays can index; creation functions that were imported
by name make known arrays; the user's own functions are copies, too; ``max`` and ``min`` choose among traced scalars.
Everything else is looked up where it is, when it is.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from eqsat.frontends.builtin import ORIGINALS, builtin
from eqsat.frontends.creation import OF_ORIGINAL, is_users
from eqsat.frontends.known import captured
from eqsat.frontends.steps import shown_range
from eqsat.frontends.tracing import Trace


class Scopes:
    """The copies made for one trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        trace.shown, trace.inside = self.shown, self.inside
        self._globals: dict[int, _Globals] = {}
        self._made: dict[int, tuple[Any, Any]] = {}  # by the identity of what they stand for, which is kept alive
        self._originals = dict(ORIGINALS)

    def inside(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function to trace in place of ``fn``; itself where its code cannot be told."""
        if isinstance(fn, MethodType):
            return MethodType(self.inside(fn.__func__), fn.__self__)
        if type(fn) is functools.partial:
            return functools.partial(self.inside(fn.func), *fn.args, **fn.keywords)
        if type(fn) is FunctionType:
            self.trace.file = fn.__code__.co_filename
            return self.shown(fn)  # type: ignore[no-any-return]
        return fn

    def shown(self, value: Any) -> Any:
        """What stands for a value from outside."""
        kind = type(value)
        if kind is not np.ndarray and kind is not FunctionType:
            return OF_ORIGINAL.get(id(value), value)
        found = self._made.get(id(value))
        if found is None:
            made = captured(value) if kind is np.ndarray else OF_ORIGINAL.get(id(value)) or self._copy(value)
            found = self._made[id(value)] = value, made
            self._originals[id(made)] = value
        return found[1]

    def original(self, value: Any) -> Any:
        """What a copy was made of; any other value as it is."""
        return self._originals.get(id(value), value)

    def _copy(self, fn: FunctionType) -> FunctionType:
        code = fn.__code__
        if not is_users(code.co_filename, self.trace.file) or _stores(code):
            return fn
        scope = self._globals.get(id(fn.__globals__))
        if scope is None:
            scope = self._globals[id(fn.__globals__)] = _Globals(fn.__globals__, self)
        made = FunctionType(
            code, scope, fn.__name__, fn.__defaults__, None if fn.__closure__ is None else fn.__closure__
        )
        self._made[id(fn)] = fn, made  # its variables may refer to it
        closure = tuple(self._cell(cell) for cell in fn.__closure__ or ())
        if closure:
            made = FunctionType(code, scope, fn.__name__, fn.__defaults__, closure)
        if fn.__defaults__:
            made.__defaults__ = tuple(self.shown(value) for value in fn.__defaults__)
        if fn.__kwdefaults__:
            made.__kwdefaults__ = {name: self.shown(value) for name, value in fn.__kwdefaults__.items()}
        made.__dict__.update(fn.__dict__)
        made.__qualname__, made.__doc__ = fn.__qualname__, fn.__doc__
        return made

    def _cell(self, cell: CellType) -> CellType:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return cell
        shown = self.shown(value)
        return cell if shown is value else CellType(shown)


class _Globals(dict[str, Any]):
    """A module's variables as they are at the moment, each as it is shown to the trace."""

    __slots__ = ("_live", "_scopes")

    def __init__(self, live: dict[str, Any], scopes: Scopes) -> None:
        super().__init__(live)
        self._live, self._scopes = live, scopes

    def __getitem__(self, name: str) -> Any:
        try:
            value = self._live[name]
        except KeyError:
            return shown_range(sys._getframe(1)) if name == "range" else builtin(name)
        return self._scopes.shown(value)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes(value)


@functools.lru_cache(maxsize=1024)
def _stores(code: CodeType) -> bool:
    """Whether a function, or one inside it, gives variables from outside another value: a copy's would be its own."""
    outside = set(code.co_freevars)
    for inner in _codes(code):
        for step in dis.get_instructions(inner):
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                return True
            if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in outside:
                return True
    return False

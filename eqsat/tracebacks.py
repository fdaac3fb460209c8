"""Tracebacks that end at the user's line: frames of eqsat, and of what it is called through, are left out.

As JAX does. What is left out is often what a report of a fault of eqsat needs: ``EQSAT_TRACEBACKS=full`` shows all, and
an exception that no argument or program is to blame for keeps every frame.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import ParamSpec, TypeVar

from eqsat.errors import EqsatError
from eqsat.frontends.source import is_users

__all__ = ["ENVIRONMENT_VARIABLE", "at_users_line", "shortened"]

ENVIRONMENT_VARIABLE = "EQSAT_TRACEBACKS"

P = ParamSpec("P")
R = TypeVar("R")

_BLAMED = (EqsatError, ArithmeticError, IndexError, MemoryError, TypeError, ValueError)
"""What eqsat itself raises for arguments and programs that are wrong."""


def at_users_line(fn: Callable[P, R]) -> Callable[P, R]:
    """``fn``, whose exceptions have :func:`shortened` tracebacks."""

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            raise shortened(error)  # noqa: B904 (the same exception)

    return run


def shortened(error: Exception) -> Exception:
    """The exception itself, the traceback of which, and of its causes, has no frames of eqsat.

    Of an exception that eqsat raises the last frame left is the user's; of one that comes from another library it is
    where that raises it.
    """
    if os.environ.get(ENVIRONMENT_VARIABLE) != "full":
        seen: set[int] = set()
        at: BaseException | None = error
        while at is not None and id(at) not in seen:
            seen.add(id(at))
            at.__traceback__ = _shortened(at)
            at = at.__cause__ or at.__context__
    return error


def _shortened(error: BaseException) -> TracebackType | None:
    entries = list(_entries(error.__traceback__))
    if not any(map(_is_ours, entries)):
        return error.__traceback__
    if _is_ours(entries[-1]):
        if not isinstance(error, _BLAMED):
            return error.__traceback__
        while entries and (_is_ours(entries[-1]) or not is_users(entries[-1].tb_frame.f_code.co_filename)):
            entries.pop()
    found: TracebackType | None = None
    for entry in reversed([entry for entry in entries if not _is_ours(entry)]):
        found = TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(entry: TracebackType) -> bool:
    """Whether a frame is of eqsat, or of a backend or rule library of its own."""
    module = entry.tb_frame.f_globals.get("__name__", "")
    return isinstance(module, str) and module.split(".")[0] in _PACKAGES


_PACKAGES = ("eqsat", "eqsat_backends", "eqsat_rules")

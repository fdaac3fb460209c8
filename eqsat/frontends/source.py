"""The user's line: the innermost frame that is neither eqsat's nor NumPy's."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys

import numpy as np

from eqsat.ir.node import Source

_HIDDEN = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (os.path.dirname(__file__), np.__file__) if path
)
_is_user: dict[str, bool] = {}


def _ours(file: str) -> bool:
    hidden = file.startswith(_HIDDEN) or file.startswith("<__array") or f"{os.sep}scipy{os.sep}" in file
    hidden |= file == contextlib.__file__  # between a context manager of ours and what it is made of
    _is_user[file] = not hidden
    return hidden


def is_users(file: str) -> bool:
    """Whether a file of code is neither eqsat's, NumPy's nor SciPy's."""
    known = _is_user.get(file)
    return not _ours(file) if known is None else known


def user_line() -> Source | None:
    """Where the running operator was called from, about a microsecond; None outside of user code."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            text = linecache.getline(file, frame.f_lineno).strip()
            return Source(file, frame.f_lineno, text if len(text) <= 160 else f"{text[:157]}...")
        frame = frame.f_back  # type: ignore[assignment]
    return None


def scipy_function() -> str:
    """The name of the SciPy function that the user called and that is running; empty if none is."""
    frame, name = sys._getframe(1), ""
    while frame is not None and not _is_user.get(frame.f_code.co_filename, False):
        if f"{os.sep}scipy{os.sep}" in frame.f_code.co_filename:
            name = frame.f_code.co_name if frame.f_code.co_name != "wrapper" else name
        frame = frame.f_back  # type: ignore[assignment]
    return name

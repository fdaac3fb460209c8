"""Where in the user's code a rule, or a part of one, is written."""

from __future__ import annotations

import os
import sys

import numpy as np

_INSIDE = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep for file in (os.path.dirname(__file__), np.__file__) if file
)


def place() -> str:
    """The file and line outside of this package and of NumPy that called into here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"

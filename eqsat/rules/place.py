"""Where in the user's code a rule, or a part of one, is written."""

from __future__ import annotations

import os
import sys
from types import FrameType

import numpy as np

_INSIDE = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep for file in (os.path.dirname(__file__), np.__file__) if file
)


def place() -> str:
    """The file and line outside of this package and of NumPy that called into here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_inside(frame: FrameType) -> bool:
    # Initializers that dataclasses write are in no file.
    own = str(frame.f_globals.get("__name__", "")).startswith(f"{__package__}.")
    return own or frame.f_code.co_filename.startswith(_INSIDE)

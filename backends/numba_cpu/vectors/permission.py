"""What the system has to be asked for before a process may use it, though the processor has it."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

_SYSCALL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
"""``arch_prctl`` on x86-64, ``ARCH_REQ_XCOMP_PERM``, and the number of the state that such registers are."""


@functools.cache
def matrix_registers_allowed() -> bool:
    """Whether this process may use registers of two axes (Intel's AMX).

    Linux has to be asked for them, once, since the state of threads is larger with them.

    Source: Documentation/arch/x86/xstate.rst of Linux.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        ask = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    return bool(ask(ctypes.c_long(_SYSCALL), ctypes.c_long(_REQUEST), ctypes.c_long(_TILE_DATA)) == 0)

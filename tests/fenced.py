"""Memory between pages that may not be read or written."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE


class Fenced:
    """float32 arrays between two pages that may not be read, at the first page's end or the last one's beginning."""

    def __init__(self, size: int) -> None:
        pages = -(-4 * size // PAGE)
        self.map = mmap.mmap(-1, (pages + 2) * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        self.ends = (self.address, self.address + (pages + 1) * PAGE)
        for end in self.ends:
            assert protect(ctypes.c_void_p(end), ctypes.c_size_t(PAGE), 0) == 0
        self.size = size

    def at(self, last: bool) -> np.ndarray:
        start = self.ends[1] - 4 * self.size if last else self.ends[0] + PAGE
        return np.ctypeslib.as_array((ctypes.c_float * self.size).from_address(start))

"""Memory for arenas and results: aligned, on huge pages when large, and used again when nobody holds it any more."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections import OrderedDict
from typing import Any

import numpy as np

from eqsat_backends.numba_cpu.emitted import ALIGNED_BYTES

CACHE_LINE = 64
_HUGE_PAGE = 2 << 20


def aligned_bytes(nbytes: int, alignment: int = CACHE_LINE, purpose: str = "a buffer") -> np.ndarray:
    """Uninitialized uint8 array of ``nbytes`` at a multiple of ``alignment`` (a power of two).

    From 2 MiB on it is a private mapping at a huge-page boundary, advised to use huge pages: first-touch
    and TLB misses otherwise show in kernels that stream.

    Raises:
        MemoryError: the system does not give that much; it says how much, and what for (``purpose``).
    """
    if nbytes >= _HUGE_PAGE >= alignment and hasattr(mmap, "MAP_PRIVATE"):
        try:
            mapping = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:  # too much for the system, for C, for its address space
            raise MemoryError(f"no memory for {purpose}: {nbytes:,} bytes") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a system without huge pages: ordinary ones serve
                mapping.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(mapping, np.uint8)
        alignment = _HUGE_PAGE
    else:
        raw = np.empty(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype, alignment: int = CACHE_LINE) -> np.ndarray:
    """``np.empty(shape, dtype)``, C-contiguous at a multiple of ``alignment`` bytes."""
    nbytes = math.prod(shape) * dtype.itemsize
    return aligned_bytes(max(nbytes, 1), alignment, _named(shape, dtype))[:nbytes].view(dtype).reshape(shape)


def _named(shape: tuple[int, ...], dtype: np.dtype) -> str:
    return f"an array of shape {shape} and type {dtype}"


KEPT_BYTES = 256 << 20
"""Most bytes of blocks to remember, unless the last ``KEPT_BLOCKS`` are larger."""

KEPT_BLOCKS = 4


class Recycler:
    """Makes result arrays, in memory of earlier results that nobody refers to any more.

    Fresh memory costs a page fault for every page and a pass of zeroing, as much as a streaming kernel itself.
    A block is free when its owner has no more references than when it was made: arrays over it, views of them,
    memoryviews and DLPack exports all hold one. Safe to use from several threads and in signal handlers: it takes
    no lock, and a block is taken out of the list while it is looked at.

    At most ``keep`` blocks of a size are remembered, and of all sizes at most ``KEPT_BYTES``, or the last
    ``KEPT_BLOCKS`` blocks if they are larger: a loop over results of one size has its memory at hand whatever the size.
    """

    def __init__(self, keep: int = 2, least_bytes: int = ALIGNED_BYTES) -> None:
        self.keep, self.least_bytes = keep, least_bytes
        self._blocks: OrderedDict[int, list[_Block]] = OrderedDict()  # by size, the one used last at the end

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialized C-contiguous array; 64-byte aligned from ``least_bytes`` on, below it as NumPy makes it.

        Raises ``MemoryError``, which says its shape and bytes, where there is not that much memory.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self.least_bytes:
            return np.empty(shape, dtype)
        blocks = self._blocks.setdefault(nbytes, [])
        with contextlib.suppress(KeyError):  # another thread has just released all
            self._blocks.move_to_end(nbytes)
        for _ in range(len(blocks)):
            try:
                block = blocks.pop(0)
            except IndexError:  # another thread has them all
                break
            if block.free():
                array = block.array(shape, dtype)
                blocks.append(block)
                return array
            blocks.append(block)
        self._shrink(nbytes)
        block = _Block(nbytes, _named(shape, dtype))
        array = block.array(shape, dtype)
        blocks.append(block)
        while len(blocks) > self.keep:
            try:
                blocks.pop(0)
            except IndexError:
                break
        return array

    def _shrink(self, nbytes: int) -> None:
        """Forget blocks, those of the size used longest ago first, so that one of ``nbytes`` may be added."""
        count, total = 1, nbytes
        for size, blocks in reversed(list(self._blocks.items())):
            while blocks and count + len(blocks) > KEPT_BLOCKS and total + size * len(blocks) > KEPT_BYTES:
                with contextlib.suppress(IndexError):
                    blocks.pop(0)
            count, total = count + len(blocks), total + size * len(blocks)
            if not blocks and size != nbytes:
                self._blocks.pop(size, None)

    @property
    def kept_bytes(self) -> int:
        """Bytes of all remembered blocks, in use or not."""
        return sum(size * len(blocks) for size, blocks in list(self._blocks.items()))

    def release(self) -> None:
        """Forget all blocks; those in use live on with their arrays."""
        self._blocks.clear()


class _Block:
    __slots__ = ("_bytes", "_idle", "_owner")

    def __init__(self, nbytes: int, purpose: str) -> None:
        self._bytes = aligned_bytes(nbytes, purpose=purpose)
        # NumPy gives every view the same base: the array, or the buffer object, that owns the memory
        self._owner: Any = self._bytes[:0].base
        self._idle = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self._owner)

    def free(self) -> bool:
        return self._references() == self._idle

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return self._bytes.view(dtype).reshape(shape)

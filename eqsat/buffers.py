"""Memory for arenas and results: aligned, on huge pages when large, and used again when nobody holds it any more."""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

log = logging.getLogger("eqsat")

ALIGNED_BYTES = 256 << 10
"""Results from this size on are given 64-byte aligned memory."""

CACHE_LINE = 64
PAGE = 4096
_HUGE_PAGE = 2 << 20
_START = 1536
"""Where in a page large blocks begin: away from where the arrays of other allocators and their rows do.

A load waits for earlier stores to the same place in any page, and more so across two cache lines. Softmax of
4096 × 1024 from an array 16 bytes behind a boundary, as NumPy's are, took 1.52 ms into one at a boundary, 1.26 so.
Half a page is a row of 512 float32: 8192 × 512 took 1.42 ms there, 1.18 here as at a boundary.
"""
PLACED = 16 * PAGE
"""Least bytes of a block that begins there."""


def aligned_bytes(nbytes: int, alignment: int = CACHE_LINE, purpose: str = "a buffer") -> np.ndarray:
    """Uninitialized uint8 array of ``nbytes`` at a multiple of ``alignment`` (a power of two).

    From 2 MiB on it is a private mapping on huge pages, where the system grants them: first-touch and TLB misses
    otherwise show in kernels that stream. From ``PLACED`` on it begins at ``_START`` in a page.

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
        boundary = _HUGE_PAGE
    else:
        boundary = max(alignment, PAGE if nbytes >= PLACED else 1)
        raw = np.empty(nbytes + boundary, np.uint8)
    shift = _START if boundary >= PAGE and _START % alignment == 0 else 0
    start = (shift - raw.ctypes.data) % boundary
    return raw[start : start + nbytes]


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype, alignment: int = CACHE_LINE) -> np.ndarray:
    """``np.empty(shape, dtype)``, C-contiguous at a multiple of ``alignment`` bytes."""
    nbytes = math.prod(shape) * dtype.itemsize
    return aligned_bytes(max(nbytes, 1), alignment, _named(shape, dtype))[:nbytes].view(dtype).reshape(shape)


def _named(shape: tuple[int, ...], dtype: np.dtype) -> str:
    return f"an array of shape {shape} and type {dtype}"


class Shelf:
    """Makes arrays that are held together, one behind the other in blocks of huge pages.

    A network's weights, each smaller than some huge pages, otherwise lie on thousands of ordinary ones, more than the
    TLB holds. Pages that no array reaches are not touched. From ``PLACED`` bytes on arrays begin at ``_START`` in a
    page; smaller ones, and those of a block and more, have memory of their own. A block lives as long as any of its
    arrays. Not for several threads at once.
    """

    def __init__(self) -> None:
        self._left = np.empty(0, np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialized C-contiguous array at a multiple of 64 bytes. Raises ``MemoryError``."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not PLACED <= nbytes < _SHELF:
            return aligned_empty(shape, dtype)
        room = -(-nbytes // PAGE) * PAGE
        if room > self._left.size:
            self._left = aligned_bytes(_SHELF, purpose=_named(shape, dtype))
        here, self._left = self._left[:nbytes], self._left[room:]
        return here.view(dtype).reshape(shape)


_SHELF = 16 << 20
"""Bytes of a block."""

KEPT_BYTES = 256 << 20
"""Most bytes of blocks to remember, unless the last ``KEPT_BLOCKS`` are larger."""

KEPT_BLOCKS = 4

READY_BYTES = 16 << 20
"""Least bytes of results for which memory is touched beside other work: less of it is there in a few milliseconds."""

_STRETCH = 8 << 20
"""Bytes touched between two looks whether to go on; NumPy lets other threads run meanwhile."""


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

    @contextlib.contextmanager
    def ready(self, results: Sequence[tuple[tuple[int, ...], np.dtype]]) -> Iterator[None]:
        """Inside it, a thread touches the pages of memory for arrays of these shapes and types, which is then at hand.

        On a virtual machine a first touch can take longer than the kernel that writes there. What is not touched at the
        end is left so. Nothing is done for results that are small, or more than may be remembered.
        """
        results = results[: self.keep]  # they may all be of one size
        total = sum(math.prod(shape) * dtype.itemsize for shape, dtype in results)
        if not READY_BYTES <= total <= KEPT_BYTES:
            yield
            return
        left = threading.Event()
        thread = threading.Thread(target=self._touch, args=(results, left), name="eqsat: memory", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            yield
            return
        try:
            yield
        finally:
            left.set()
            thread.join()

    def _touch(self, results: Sequence[tuple[tuple[int, ...], np.dtype]], left: threading.Event) -> None:
        arrays = []  # held together: each has a block of its own
        try:
            for shape, dtype in results:
                arrays.append(self.empty(shape, dtype))
                nbytes = arrays[-1].reshape(-1).view(np.uint8)
                for start in range(0, nbytes.size, _STRETCH):
                    if left.is_set():
                        return
                    nbytes[start : start + _STRETCH : PAGE] = 0
        except MemoryError as error:  # the program itself says so where it needs them
            log.info("memory for results: %s", error)

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

"""What runs a kernel group when its kernel cannot be generated: its stages one by one, or the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir.interpret import run_kernel
from eqsat.ir.kernel import FromStage, Kernel, KernelGroup, Stage, part_of
from eqsat.ir.types import TensorType

POINTS = 1 << 20
"""Points of a kernel's iteration space that are interpreted at a time."""


@dataclass(frozen=True)
class Part:
    """A group of one stage, and the tensors its operands are."""

    group: KernelGroup
    tensors: tuple[int, ...]


def split(group: KernelGroup, tensors: Sequence[int], fresh: Callable[[TensorType], int]) -> list[Part]:
    """The stages of a group as groups of one; ``fresh`` numbers a new tensor for a result kept in scratch."""
    results: list[int] = []
    parts = []
    for stage in group.stages:
        kernel = stage.kernel
        sources = [results[s.stage] if isinstance(s, FromStage) else tensors[s] for s in stage.sources]
        if stage.result is None:
            results.append(fresh(TensorType((kernel.out.size,), kernel.out.dtype)))
        else:
            results.append(tensors[stage.result])
        names = tuple(dict.fromkeys(sources))
        operands = tuple(kernel.operands[sources.index(t)] for t in names)
        alone = Stage(kernel, tuple(names.index(t) for t in sources), len(names))
        parts.append(Part(KernelGroup((alone,), 0, (*operands, kernel.out), (len(names),)), (*names, results[-1])))
    return parts


def interpret(group: KernelGroup, buffers: Sequence[np.ndarray]) -> None:
    """Run a group with NumPy, a bounded number of points at a time; ``buffers`` are its operands, flat.

    Raises ``IndexError`` for an index out of range.
    """
    results: list[np.ndarray] = []
    for stage in group.stages:
        kernel = stage.kernel
        given = [results[s.stage] if isinstance(s, FromStage) else buffers[s] for s in stage.sources]
        out = buffers[stage.result] if stage.result is not None else np.empty(kernel.out.size, kernel.out.dtype.numpy)
        for piece in _pieces(kernel):
            run_kernel(piece, given, out)
        results.append(out)


def _pieces(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel cut along its parallel axes into kernels of at most ``POINTS`` points, where that is possible."""
    longest = max(range(kernel.parallel), key=lambda a: kernel.extents[a], default=None)
    if kernel.points <= POINTS or longest is None or kernel.extents[longest] == 1:
        yield kernel
        return
    extent = kernel.extents[longest]
    step = max(1, extent * POINTS // kernel.points)
    for start in range(0, extent, step):
        bounds = [(0, n) for n in kernel.extents]
        bounds[longest] = (start, min(start + step, extent))
        yield from _pieces(part_of(kernel, tuple(bounds)))

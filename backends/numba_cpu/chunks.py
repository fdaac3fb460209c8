"""Printed loops over an axis in chunks of lanes: whole steps, what is left, and shares of both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from eqsat.ir.kernel import Guarded, Kernel
from eqsat_backends.numba_cpu.axes import unique
from eqsat_backends.numba_cpu.places import BLOCK
from eqsat_backends.numba_cpu.printer import Printer

__all__ = ["Chunk", "Part", "blocks", "seams_of"]

RUNS = 7
"""Loops at most that a loop is peeled into: each one is a copy of its body."""


@dataclass(frozen=True, slots=True)
class Part:
    """A share of a loop: expressions for its bounds, and for whether it is the last share.

    Bounds of a vectorized loop are multiples of the lanes that one step takes; what is left over after the
    last whole step belongs to the last share.
    """

    low: str
    high: str
    last: str


Chunk = tuple[str, str | None]
"""Position of the first lane, and how many lanes are in use (None: all)."""


def seams_of(kernels: Sequence[Kernel], axis: int) -> list[int]:
    """Positions of an axis at which a guard that moves along it alone begins or ceases to hold."""
    guards = (e for k in kernels for e in unique(k.body, k.epilogue) if isinstance(e, Guarded))
    held = (guard.held for guard in guards)
    return sorted({at for bounds in held if bounds is not None and bounds[0] == axis for at in bounds[1:]})


def peeled(extent: int, step: int, seams: Sequence[int]) -> list[tuple[int, int]]:
    """``extent`` elements in runs of whole steps, such that steps across a seam are not in one run with others.

    One run where there would be too many.
    """
    marks = {0, extent}
    for seam in seams:
        if 0 < seam < extent:
            marks |= {seam // step * step, -(-seam // step) * step}
    runs = list(itertools.pairwise(sorted(marks)))
    return runs if len(runs) <= RUNS else [(0, extent)]


def blocks(
    p: Printer,
    extent: int,
    step: int,
    body: Callable[[list[Chunk]], None],
    part: Part | None,
    hooks: tuple[Callable[[], None], Callable[[], None]] | None,
    seams: Sequence[int] = (),
) -> None:
    """Loop over ``extent`` elements, ``step`` at a time, then the whole and partial chunks that are left.

    ``body`` prints one step for a list of chunks. ``part``: bounds instead of the whole. ``hooks``: printed
    before and after each block of steps. ``seams``: positions where guards change: the steps across them are loops of
    their own, so that those between test nothing.
    """
    lanes = p.lanes
    main = extent // step * step
    chunks = range(0, step, lanes)
    if main == step and part is None and hooks is None:
        body([(str(c), None) for c in chunks])
    elif main:
        low, high = (part.low, part.high) if part else ("0", str(main))
        with ExitStack() as stack:
            if hooks:
                block = p.fresh("b")
                size = BLOCK * step
                stack.enter_context(p.scope(f"for {block} in range({low}, {high}, {size}):", block))
                low, high = block, f"min({block} + {size}, {high})"
                hooks[0]()
            runs = [(0, main)] if hooks else peeled(main, step, seams)
            for start, stop in runs:
                j = p.fresh("j")
                first = low if start == 0 else str(start) if part is None else f"max({low}, {start})"
                last = high if stop == main else str(stop) if part is None else f"min({high}, {stop})"
                with p.scope(f"for {j} in range({first}, {last}, {step}):", j):
                    p.reach(j, start, stop - step + 1)
                    body([(f"{j} + {c}" if c else j, None) for c in chunks])
            if hooks:
                hooks[1]()
    whole = extent // lanes * lanes
    left: list[Chunk] = [(str(at), None) for at in range(main, whole, lanes)]
    if whole < extent:
        left.append((str(whole), str(extent - whole)))
    if not left:
        return
    with ExitStack() as stack:
        if part is not None:
            stack.enter_context(p.scope(f"if {part.last}:"))
        # no more at once than a step takes
        for at in range(0, len(left), len(chunks)):
            body(left[at : at + len(chunks)])

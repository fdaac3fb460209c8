"""Printed loops over an axis in chunks of lanes: whole steps, what is left, and shares of both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from eqsat_backends.numba_cpu.places import BLOCK
from eqsat_backends.numba_cpu.printer import Printer

__all__ = ["Chunk", "Part", "blocks"]


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


def blocks(
    p: Printer,
    extent: int,
    step: int,
    body: Callable[[list[Chunk]], None],
    part: Part | None,
    hooks: tuple[Callable[[], None], Callable[[], None]] | None,
) -> None:
    """Loop over ``extent`` elements, ``step`` at a time, then the whole and partial chunks that are left.

    ``body`` prints one step for a list of chunks. ``part``: bounds instead of the whole. ``hooks``: printed
    before and after each block of steps.
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
                start = p.fresh("b")
                size = BLOCK * step
                stack.enter_context(p.scope(f"for {start} in range({low}, {high}, {size}):", start))
                low, high = start, f"min({start} + {size}, {high})"
                hooks[0]()
            j = p.fresh("j")
            with p.scope(f"for {j} in range({low}, {high}, {step}):", j):
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

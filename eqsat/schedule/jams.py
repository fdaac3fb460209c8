"""Several positions of an axis at once (unroll and jam): what neighbours share is loaded and computed once.

In a stencil a row of results reads rows that the next row of results reads, too, and often computes the same of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from eqsat.cost.calibration import FUNCTION_SLOTS, JAMMED
from eqsat.ir.axes import merged_all
from eqsat.ir.kernel import Call, Expr, Index, Kernel, Literal, Load, parts, unique, with_parts

AT_ONCE = (2, JAMMED)
"""Positions of an axis that a map may take at once. More share more, but values no longer stay in registers."""
SHARED = 0.9
"""The part of the work of its loads and operations at which that is offered: else there is little to share, and its
code is as much longer to compile."""
MOST = 1024
"""Work of a tile up to which it is offered, in slots, which bounds its code."""


def window_starts(kernel: Kernel) -> dict[int, int]:
    """Of each operand that a map reads at several places alike, the first of these."""
    places: dict[tuple[int, tuple[int, ...]], set[int]] = {}
    for load in kernel.expressions if kernel.combine is None else ():
        if isinstance(load, Load) and not load.gathers:
            places.setdefault((load.operand, load.strides), set()).add(load.offset)
    found: dict[int, int] = {}
    for (operand, _), offsets in places.items():
        if len(offsets) > 1:
            found[operand] = min(found.get(operand, min(offsets)), *offsets)
    return found


def shifted(expr: Expr, axis: int, by: int) -> Expr:
    """The expression ``by`` positions further along an axis."""
    done: dict[int, Expr] = {}
    for e in unique(expr):
        made = with_parts(e, [done[id(part)] for part in parts(e)])
        if isinstance(made, Load | Index) and made.strides[axis]:
            made = made.at(made.offset + by * made.strides[axis], made.strides)
        done[id(e)] = made
    return done[id(expr)]


@lru_cache(maxsize=1024)
def together(kernel: Kernel, axis: int | None, count: int) -> tuple[Expr, ...]:
    """Every distinct sub-expression of a map's body at ``count`` positions of an axis; none if it reads no windows."""
    if not window_starts(kernel):
        return ()
    bodies = [kernel.body] if axis is None else [shifted(kernel.body, axis, n) for n in range(count)]
    return tuple(unique(*merged_all(bodies)))


@lru_cache(maxsize=1024)
def counts(kernel: Kernel, axis: int) -> tuple[int, ...]:
    """Positions of an axis at which a map may be taken at once, as neighbours share some of what they compute."""

    def size(count: int) -> float:
        return slots_in(e for e in together(kernel, axis if count > 1 else None, count) if isinstance(e, Load | Call))

    if 2 * AT_ONCE[0] > kernel.extents[axis] or not meet(kernel, axis):
        return ()
    one = size(1)
    possible = [n for n in AT_ONCE if 2 * n <= kernel.extents[axis] and n * one <= 2 * MOST]
    return tuple(n for n in possible if 0 < size(n) <= min(MOST, SHARED * n * one))


def slots_in(exprs: Iterable[Expr]) -> float:
    """Slots of expressions: of functions what they take, of each other one a slot."""
    return sum(FUNCTION_SLOTS.get(e.fn, 1.0) if isinstance(e, Call) else 1.0 for e in exprs)


def meet(kernel: Kernel, axis: int) -> bool:
    """Whether neighbours along an axis, of which some are taken at once, may have anything in common: an element that
    both read, an index, a value of numbers alone."""
    places: dict[tuple[int, tuple[int, ...]], set[int]] = {}
    for e in kernel.expressions:
        if isinstance(e, Index) or (isinstance(e, Load) and (e.gathers or not e.strides[axis])):
            return True
        if isinstance(e, Call) and all(isinstance(part, Literal) for part in e.args):
            return True
        if isinstance(e, Load):
            places.setdefault((e.operand, e.strides), set()).add(e.offset)
    return any(
        offset + by * strides[axis] in offsets
        for (_, strides), offsets in places.items()
        for offset in offsets
        for by in range(1, AT_ONCE[-1])
    )

"""What a kernel costs, read off its index notation: work, footprints and bytes.

Work is counted in *slots*: issue slots of a vector FMA unit, per lane. A multiply-add is one slot, so is a
lone addition; a transcendental is as many slots as its polynomial has vector instructions. The FMA peak is
two flops a slot. Footprints count distinct elements and whole cache lines, so that transposed reads,
broadcasts and overlapping windows are priced for what they move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from eqsat.cost.calibration import CACHE_SETS, CACHE_WAYS, FUNCTION_SLOTS, GATHER_SLOTS, GUARD_SLOTS, LINE
from eqsat.ir.kernel import Acc, Call, Expr, Guarded, Index, Kernel, Literal, Load, parts, unique
from eqsat.ir.siblings import SIBLINGS
from eqsat.ir.types import DType


@lru_cache(maxsize=8192)
def thrashes(row_bytes: int, rows: int, sets: int = CACHE_SETS, ways: int = CACHE_WAYS, line: int = LINE) -> bool:
    """Whether streams ``row_bytes`` apart crowd into so few sets of a cache that they evict one another.

    One line of a set is left to the other stream of a contraction. Measured: 14 rows over two sets run as if they
    were spread, over one set at three quarters of the speed.
    """
    return crowds(((row_bytes, rows if row_bytes else 0),), sets, ways, line)


MOST_LINES = 1024
"""Lines that are looked at: more crowd anyway, or lie evenly."""


@lru_cache(maxsize=4096)
def crowds(steps: tuple[tuple[int, int], ...], sets: int, ways: int, line: int = LINE) -> bool:
    """The same of lines at all sums of multiples of several distances in bytes, each with how many of it."""
    if not sets or math.prod([count for _, count in steps]) < ways:
        return False
    if any(_in_one_set(step // line, count, sets) >= ways for step, count in steps if step % line == 0):
        return True
    starts = np.zeros(1, np.int64)
    for step, count in steps:
        starts = (starts[:, None] + step * np.arange(min(count, MOST_LINES // max(1, starts.size)))).ravel()
    lines = np.sort(starts // line)
    if not lines.size:
        return False
    distinct = np.append(lines[:1], lines[1:][lines[1:] != lines[:-1]])  # np.unique would import numpy.ma
    return int(np.bincount(distinct % sets).max()) >= ways


def _in_one_set(step: int, count: int, sets: int) -> int:
    """The most of so many lines, ``step`` lines apart, that are in one set."""
    return -(-count * math.gcd(sets, step) // sets) if step else 1


@dataclass(frozen=True, slots=True)
class Access:
    """A read or the write of a kernel: element strides along every axis (0 where it does not depend on one).

    ``operand`` indexes the kernel's operands, -1 for ``out``. ``gathered``: also moved by data-dependent
    indices, over ``span`` elements in all.
    """

    operand: int
    strides: tuple[int, ...]
    dtype: DType
    write: bool = False
    gathered: bool = False
    span: int = 0


def _merge(pairs: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """(count, step, span) of the sums of multiples of strides; step 0 when they form no arithmetic progression."""
    count, step, span = 1, 0, 1
    for stride, extent in sorted(pairs):
        if count == 1:
            count, step, span = extent, stride, stride * (extent - 1) + 1
        elif stride >= span + (step or 1):  # apart: every combination is another address
            count, span = count * extent, stride * (extent - 1) + span
            step = 0
        elif step and stride % step == 0:  # overlapping or adjoining progressions of one step
            span += stride * (extent - 1)
            count = (span - 1) // step + 1
        else:
            wide = stride * (extent - 1) + span
            count, span, step = min(count * extent, wide), wide, 0
    return count, step, span


@lru_cache(maxsize=65536)
def footprint(strides: tuple[int, ...], extents: tuple[int, ...], itemsize: int, line: int = LINE) -> tuple[int, int]:
    """(distinct elements, bytes of the cache lines they lie on) touched by an access over a block.

    ``extents`` has the block's size along each axis. Exact for strides that nest (any view of a
    C-contiguous array), also overlapping windows; otherwise an upper bound. Lines assume an aligned start.
    """
    if 0 in extents:
        return 0, 0
    pairs = sorted((abs(s), n) for s, n in zip(strides, extents, strict=True) if s and n > 1)
    count, _, _ = _merge(pairs)
    runs, step, run = 1, 0, 1  # dense part within a run, then how many runs
    for position, (stride, _) in enumerate(pairs):
        if stride * itemsize >= line and stride >= run + max(step, 1):
            runs = _merge(pairs[position:])[0]
            break
        _, step, run = _merge(pairs[: position + 1])
    return count, runs * -(-run * itemsize // line) * line


@lru_cache(maxsize=65536)
def crowding(strides: tuple[int, ...], extents: tuple[int, ...], itemsize: int, period: int, line: int = LINE) -> int:
    """How much more room an access takes over a block in a cache whose sets repeat every ``period`` bytes.

    Runs that lie multiples of a power of two apart, as a part of an image's channels does, leave most sets out.
    """
    pairs = sorted((abs(s), n) for s, n in zip(strides, extents, strict=True) if s and n > 1)
    run = 1
    for position, (stride, extent) in enumerate(pairs):
        if stride > run:
            apart = math.gcd(period, *(s * itemsize for s, _ in pairs[position:]))
            return max(1, apart // (-(-run * itemsize // line) * line)) if apart % line == 0 else 1
        run += stride * (extent - 1)
    return 1


def accesses(kernel: Kernel) -> tuple[Access, ...]:
    """The distinct accesses of a kernel, loads in order of appearance, then the store."""
    found: dict[tuple[int, tuple[int, ...]], Access] = {}

    def visit(expr: Expr) -> None:
        for part in parts(expr):
            visit(part)
        if isinstance(expr, Load):
            span = kernel.operands[expr.operand].size if expr.gathers else 0
            strides = expr.strides
            if expr.gathers:  # it goes wherever its indices go: at worst another element at every such point
                depends = set().union(*(dependences(index, len(kernel.extents)) for index, _ in expr.gathers))
                far = max(1, *(abs(s) for _, s in expr.gathers))
                strides = tuple(s or (far if axis in depends else 0) for axis, s in enumerate(strides))
            access = Access(expr.operand, strides, expr.dtype, False, bool(expr.gathers), span)
            found.setdefault((expr.operand, strides), access)

    visit(kernel.body)
    visit(kernel.epilogue)
    reduced = len(kernel.extents) - kernel.parallel
    store = Access(-1, kernel.store_strides + (0,) * reduced, kernel.out.dtype, True)
    return (*found.values(), store)


def access_bytes(access: Access, extents: tuple[int, ...], line: int = LINE) -> int:
    """Bytes of the cache lines that ``access`` touches over a block of these extents."""
    _, moved = footprint(access.strides, extents, access.dtype.itemsize, line)
    if access.gathered:
        moved = min(moved, -(-access.span * access.dtype.itemsize // line) * line)
    return moved


def dependences(expr: Expr, rank: int) -> frozenset[int]:
    """The axes that the value of ``expr`` varies with."""
    return all_dependences(rank, expr)[id(expr)]


def all_dependences(rank: int, *exprs: Expr) -> dict[int, frozenset[int]]:
    """The axes that ``exprs`` and all their sub-expressions vary with, by ``id``: shared ones are looked at once."""
    found: dict[int, frozenset[int]] = {}
    for e in unique(*exprs):
        strides = e.strides[:rank] if isinstance(e, Load | Index) else ()
        own = frozenset(axis for axis, stride in enumerate(strides) if stride)
        found[id(e)] = own.union(*(found[id(part)] for part in parts(e)))
    return found


@dataclass(frozen=True, slots=True)
class Work:
    """Slots of one kernel, over its whole iteration space.

    ``contraction``: slots of the multiply-adds of a contraction; ``other``: everything else, each
    sub-expression counted once for every point of the axes it depends on.
    """

    contraction: float
    other: float


Functions = tuple[tuple[str, float], ...]
"""(elementwise function, measured slots of one element)."""


@lru_cache(maxsize=64)
def slots_of(functions: Functions) -> dict[str, float]:
    """Slots of every function that takes more than one: those measured, else the calibrated ones."""
    return {**FUNCTION_SLOTS, SIBLINGS: 0.0, **dict(functions)}


@lru_cache(maxsize=8192)
def work(kernel: Kernel, functions: Functions = ()) -> Work:
    """Work of a kernel; see the module docstring for the unit. ``functions``: slots measured on the machine."""
    slots = slots_of(functions)
    rank = len(kernel.extents)
    seen: set[Expr] = set()
    other = 0.0

    def visit(expr: Expr, base: frozenset[int]) -> frozenset[int]:
        nonlocal other
        if isinstance(expr, Acc):
            return base
        if isinstance(expr, Load | Index | Literal):
            axes = dependences(expr, rank)
            if isinstance(expr, Load) and expr.gathers and expr not in seen:
                seen.add(expr)
                other += GATHER_SLOTS * math.prod(kernel.extents[a] for a in axes)
            return axes
        axes = frozenset().union(*(visit(part, base) for part in parts(expr)))
        if expr not in seen:
            seen.add(expr)
            points = math.prod(kernel.extents[a] for a in axes)
            other += (GUARD_SLOTS if isinstance(expr, Guarded) else slots.get(expr.fn, 1.0)) * points
        return axes

    everything = frozenset(range(rank))
    fused = 0.0
    if kernel.combine is None:
        visit(kernel.body, everything)
    elif kernel.combine == "sum" and isinstance(kernel.body, Call) and kernel.body.fn == "mul":
        for factor in kernel.body.args:
            visit(factor, everything)
        fused = float(kernel.points)
    else:
        visit(kernel.body, everything)
        other += (4.0 if kernel.combine in ("argmax", "argmin") else 1.0) * kernel.points
    seen.clear()
    if kernel.combine is not None:
        visit(kernel.epilogue, frozenset(range(kernel.parallel)))
    return Work(fused, other)

"""Whether what a backend makes of a tile operation computes what its semantics say: by running it.

Nothing of a backend is known here: it is handed a group of one kernel, a nest with the tile operation, and arrays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from eqsat.cost.target import TileOpRow
from eqsat.errors import RuleError
from eqsat.ir.axes import normalized
from eqsat.ir.interpret import run_kernel
from eqsat.ir.kernel import Acc, Call, Expr, Kernel, KernelGroup, Load, Operand, Stage, map_expr, walk
from eqsat.ir.nest import MAPS, PRODUCTS, Loop, Nest, TileOp
from eqsat.ir.types import row_major
from eqsat.schedule.maps import axes_of
from eqsat.schedule.tensorize import matches

__all__ = ["check_form", "check_meaning"]

Prepare = Callable[[KernelGroup, Nest], "Callable[[Sequence[np.ndarray]], np.ndarray]"]
"""Compiles a group of one kernel by a nest: to a function of the operands' arrays that returns the result, flat."""

_COMBINES = ("sum", "prod", "max", "min")

_ULPS = 64
"""Units in the last place, of the largest result, by which sums may differ: they are added in another order."""


def check_form(row: TileOpRow, taken: Collection[str]) -> None:
    """Raise ``RuleError`` for no semantics of a reduction, no emitter, or a name that is none or is ``taken``."""
    what, tile = f"tile operation {row.name!r}", row.semantics
    if tile is None or row.emit is None or tile.combine not in _COMBINES or not isinstance(tile.epilogue, Acc):
        raise RuleError(f"{what} needs semantics that combine by one of {', '.join(_COMBINES)}, and an emitter")
    reads = {part for part in walk(tile.body) if isinstance(part, Load)}
    if sorted(load.operand for load in reads) != list(range(len(tile.operands))):
        raise RuleError(f"{what} needs semantics that read every operand in one way")
    if not re.fullmatch(r"[A-Za-z_]\w{0,30}", row.name, re.ASCII):
        raise RuleError(f"{what}: a name is an identifier of at most 31 letters")
    if row.name in (*MAPS, *PRODUCTS, "vector", *taken):
        raise RuleError(f"{what}: the name is taken")


def check_meaning(row: TileOpRow, lanes: int, prepare: Prepare) -> None:
    """Hold a tile operation to the interpreter of its semantics, for vectors of so many lanes.

    On blocks of its largest sizes, of single positions, and of what is left over at the rim, in strides of its layouts
    and in others, on finite numbers, infinities and NaN.

    Raises:
        RuleError: it is not found in its own semantics, ``prepare`` fails, or a result differs: the message names the
            operation, the element and both values.
    """
    what, tile = f"tile operation {row.name!r}", row.semantics
    assert tile is not None, "its form has been checked"
    rng = np.random.default_rng(0)
    for number, extents in enumerate(_blocks(row, lanes)):
        kernel = normalized(_stretched(row, tile, extents, gap=number % 2))
        found = next(iter(matches(row, kernel)), None)
        if found is None and not number:
            raise RuleError(f"{what}: its semantics are not found in themselves; see its layouts and lanes")
        if found is None:
            continue  # an axis of one position is none
        sources = tuple(range(len(kernel.operands)))
        stage = Stage(kernel, sources, len(sources))
        group = KernelGroup((stage,), 0, (*kernel.operands, kernel.out), (len(sources),), row.name)
        try:
            run = prepare(group, _nest(row, kernel, found.assigned, lanes))
        except Exception as error:
            raise RuleError(f"{what} cannot be emitted for {extents}: {type(error).__name__}: {error}") from error
        for hard in (False, True):
            arrays = [_values(operand, rng, hard) for operand in kernel.operands]
            mine = run(arrays)
            right = np.zeros_like(mine)
            with np.errstate(all="ignore"):
                run_kernel(kernel, arrays, right)
            _compare(what, kernel, extents, mine, right)


def _blocks(row: TileOpRow, lanes: int) -> Iterator[dict[str, int]]:
    """Extents of blocks to try: whole tiles, one more and one less than a few, and single positions."""
    most = {name: row.size(name) * (lanes if name == row.lanes else 1) for name in row.axes}
    yield most
    yield {name: 2 * size + max(1, size // 2 - 1) for name, size in most.items()}
    yield {name: max(2, size - 1) for name, size in most.items()}
    yield {name: 2 if name != row.lanes else 3 for name in most}
    for one in most:
        if one != row.lanes:
            yield {name: 1 if name == one else size + 1 for name, size in most.items()}


def _stretched(row: TileOpRow, tile: Kernel, extents: dict[str, int], gap: int) -> Kernel:
    """The semantics over other extents, operands with ``gap`` elements after each run along their innermost axis."""
    sizes: dict[int, int] = {}

    def access(expr: Expr) -> Expr:
        if not isinstance(expr, Load):
            return expr
        order = sorted((a for a, s in enumerate(expr.strides) if s), key=lambda a: expr.strides[a])
        strides, reach = [0] * len(expr.strides), 1
        for a in order:
            strides[a] = reach
            reach = reach * extents[row.axes[a]] + gap
        sizes[expr.operand] = max(sizes.get(expr.operand, 1), reach)
        return replace(expr, strides=tuple(strides))

    body = map_expr(tile.body, access)
    kept = tuple(extents[name] for name in row.axes[: tile.parallel])
    return replace(
        tile,
        extents=tuple(extents[name] for name in row.axes),
        body=body,
        operands=tuple(replace(operand, size=sizes.get(n, 1)) for n, operand in enumerate(tile.operands)),
        out=Operand(tile.out.dtype, math.prod(kept)),
        store_strides=row_major(kept),
    )


def _nest(row: TileOpRow, kernel: Kernel, assigned: dict[str, int], lanes: int) -> Nest:
    """Loops over all axes around the tile, at its largest."""
    names = {axis: name for name, axis in axes_of(kernel).items()}
    sizes = {}
    for name, axis in assigned.items():
        sizes[axis] = min(kernel.extents[axis], row.size(name) * (lanes if name == row.lanes else 1))
    nest: Nest = TileOp(row.name, tuple((names[axis], size) for axis, size in sizes.items()), lanes=lanes)
    for axis in reversed(range(len(kernel.extents))):
        if kernel.extents[axis] > sizes.get(axis, 1):
            nest = Loop(names[axis], kernel.extents[axis], sizes.get(axis, 1), nest)
    return nest


def _values(operand: Operand, rng: np.random.Generator, hard: bool) -> np.ndarray:
    dtype = operand.dtype
    if dtype.is_float:
        found = rng.standard_normal(operand.size)
        if hard:
            special = rng.random(operand.size) < 0.02
            found = np.where(special, rng.choice([np.inf, -np.inf, np.nan, 0.0], operand.size), found)
        return found.astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.random(operand.size) < 0.5
    return rng.integers(-9, 10, operand.size).astype(dtype.numpy)


def _compare(what: str, kernel: Kernel, extents: dict[str, int], mine: np.ndarray, right: np.ndarray) -> None:
    if right.dtype.kind == "f":
        finite = np.abs(right[np.isfinite(right)])
        exact = kernel.combine in ("max", "min") and not _rounds(kernel)
        room = 0.0 if exact else _ULPS * float(np.finfo(right.dtype).eps) * max(1.0, float(finite.max(initial=0.0)))
        same = np.isclose(mine, right, rtol=0.0, atol=room, equal_nan=True)
    else:
        same = mine == right
    if same.all():
        return
    at = int(np.argmin(same))
    place = ", ".join(str(n) for n in np.unravel_index(at, kernel.extents[: kernel.parallel]))
    raise RuleError(
        f"{what} does not compute its semantics: element [{place}] of a block of "
        f"{', '.join(f'{name}={n}' for name, n in extents.items())} is {mine[at]!s}, and should be {right[at]!s}"
    )


def _rounds(kernel: Kernel) -> bool:
    """Whether functions of the body may be rounded differently."""
    return any(isinstance(part, Call) and part.fn not in ("add", "sub", "mul") for part in walk(kernel.body))

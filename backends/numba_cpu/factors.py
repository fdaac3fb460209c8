"""A contraction read off a kernel: its two factors and the four groups of axes.

    out[b, m, n] = epilogue(Σ_k a[b, m, k] · b[b, n, k])

Every axis of the kernel falls in one group by the factors that depend on it. Axes of one group that every
access walks as one are merged, so a plain matrix product has one axis a group whatever its rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from eqsat.ir.kernel import Acc, Call, Expr, Index, Kernel, Load, rewrite_kernel, walk
from eqsat.ir.types import DType, float32, float64


@dataclass(frozen=True)
class Contraction:
    """``kernel`` with its axes reordered to batch, m, n, k and merged; the groups are ranges of axis numbers."""

    kernel: Kernel
    a: Expr
    b: Expr
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]

    @property
    def dtype(self) -> DType:
        return self.kernel.acc_dtype

    def group(self, name: str) -> tuple[int, ...]:
        """The axes of group ``b``, ``m``, ``n`` or ``k``, outermost first."""
        return {"b": self.batch, "m": self.m, "n": self.n, "k": self.k}[name]

    def extent(self, name: str) -> int:
        """The flattened extent of a group (1 for an empty one)."""
        return math.prod(self.kernel.extents[axis] for axis in self.group(name))

    def stride(self, load: Load, name: str) -> int | None:
        """The one stride with which ``load`` walks a group, or None if it takes several (0 for an empty group)."""
        axes = self.group(name)
        if not axes:
            return 0
        extents, strides = self.kernel.extents, load.strides
        step = strides[axes[-1]]
        reach = step
        for axis in reversed(axes):
            if strides[axis] != reach:
                return None
            reach *= extents[axis]
        return step

    def out_stride(self, name: str) -> int | None:
        """The one stride with which results are stored along a group, or None."""
        k = self.kernel
        return self.stride(Load(0, k.store_offset, (*k.store_strides, *[0] * len(self.k)), k.out.dtype), name)


def plain(expr: Expr, dtype: DType) -> Load | None:
    """``expr`` if it is a load that a tile can read where it lies."""
    return expr if isinstance(expr, Load) and not expr.gathers and expr.dtype == dtype else None


def depends_on(expr: Expr) -> set[int]:
    """The axes that ``expr`` varies along."""
    return {
        axis
        for part in walk(expr)
        if isinstance(part, Load | Index)
        for axis, stride in enumerate(part.strides)
        if stride
    }


def contraction_of(kernel: Kernel, fixed: int = 0, rows: int | None = None) -> Contraction | None:
    """The contraction that ``kernel`` is, or None where a register tile does not apply.

    None for: another combine, a body that is no product, element types without a tile, and products in
    which no axis belongs to one factor only (dot products: those are reductions). The first ``fixed`` axes
    are shared with other stages: they keep their places and are neither reordered nor merged, and the
    caller deals with them (they are in no group). ``rows`` is an axis that has to be the outermost of m; None
    where it is not an axis of one factor alone.
    """
    if kernel.combine != "sum" or not isinstance(kernel.body, Call) or kernel.body.fn != "mul":
        return None
    if kernel.body.dtype not in (float32, float64) or len(kernel.body.args) != 2:
        return None
    a, b = kernel.body.args
    in_a, in_b = depends_on(a), depends_on(b)
    kept = set(range(fixed)) | {rows}
    axes = [axis for axis in range(len(kernel.extents)) if axis in kept or kernel.extents[axis] != 1]
    free = [axis for axis in axes if fixed <= axis < kernel.parallel]
    only_a = [axis for axis in free if axis in in_a and axis not in in_b]
    only_b = [axis for axis in free if axis in in_b and axis not in in_a]
    innermost = min(only_a + only_b, key=lambda axis: (abs(kernel.store_strides[axis]), -axis), default=None)
    if innermost is None:
        return None
    if innermost in only_a and rows is None:
        a, b, only_a, only_b = b, a, only_b, only_a
    if rows is not None and rows in only_b:
        a, b, only_a, only_b = b, a, only_b, only_a
    if not only_b or (rows is not None and rows not in only_a):
        return None
    batch = [axis for axis in free if axis not in only_a and axis not in only_b]

    def by_store(group: list[int]) -> list[int]:
        return sorted(group, key=lambda axis: (axis != rows, -abs(kernel.store_strides[axis]), axis))

    def by_factor(axis: int) -> tuple[int, int]:
        return (-max((abs(x.strides[axis]) for x in (b, a) if isinstance(x, Load)), default=0), axis)

    reduced = sorted((axis for axis in axes if axis >= kernel.parallel), key=by_factor)
    groups = [[[axis] for axis in range(fixed)]]
    accesses = _strides(kernel)
    for group in (by_store(batch), by_store(only_a), by_store(only_b), reduced):
        groups.append(_merge(group, kernel.extents, accesses))
    merged = [axes for group in groups for axes in group]
    parallel = sum(map(len, groups[:4]))
    fused = _rewrite(replace(kernel, body=Call("mul", (a, b), kernel.body.dtype)), merged, parallel)
    assert isinstance(fused.body, Call)
    starts = [sum(map(len, groups[:i])) for i in range(6)]
    batch_axes, m, n, k = (tuple(range(starts[i], starts[i + 1])) for i in range(1, 5))
    return Contraction(fused, fused.body.args[0], fused.body.args[1], batch_axes, m, n, k)


def _strides(kernel: Kernel) -> list[tuple[int, ...]]:
    reduced = len(kernel.extents) - kernel.parallel
    found = {(*kernel.store_strides, *[0] * reduced): None}
    for expr in (kernel.body, kernel.epilogue):
        for part in walk(expr):
            if isinstance(part, Load | Index):
                found[part.strides] = None
    return list(found)


def _merge(group: list[int], extents: tuple[int, ...], accesses: list[tuple[int, ...]]) -> list[list[int]]:
    """Neighbours that every access walks as one axis, joined."""
    merged: list[list[int]] = []
    for axis in group:
        joined = merged and all(s[merged[-1][-1]] == s[axis] * extents[axis] for s in accesses)
        if joined:
            merged[-1].append(axis)
        else:
            merged.append([axis])
    return merged


def _rewrite(kernel: Kernel, axes: list[list[int]], parallel: int) -> Kernel:
    """``kernel`` over new axes, each one or several old axes, outermost first."""

    def pick(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[group[-1]] for group in axes)

    def walked(expr: Expr) -> Expr:
        return replace(expr, strides=pick(expr.strides)) if isinstance(expr, Load | Index) else expr

    return rewrite_kernel(
        kernel,
        walked,
        extents=tuple(math.prod(kernel.extents[axis] for axis in group) for group in axes),
        parallel=parallel,
        store_strides=tuple(kernel.store_strides[group[-1]] for group in axes[:parallel]),
    )


def loads(kernel: Kernel) -> Iterator[Load]:
    """Every load of a kernel, those inside gathers included, once per use."""
    return (part for expr in (kernel.body, kernel.epilogue) for part in walk(expr) if isinstance(part, Load))


def is_accumulator(expr: Expr) -> bool:
    """Whether an epilogue stores the combined value as it is."""
    return isinstance(expr, Acc)

"""A stage of a kernel group as the search sees it: named axes, accesses over them, and what may be packed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from eqsat.cost.calibration import BLOCK_SHARE, CHAIN, LINE, LOAD_SLOTS, LONG_CHAINS, LONG_SHARE
from eqsat.cost.movement import Access as KernelAccess
from eqsat.cost.movement import Functions, accesses, slots_of
from eqsat.ir.axes import loads as loads_in
from eqsat.ir.contraction import Dot
from eqsat.ir.kernel import Call, Combine, Kernel, Load, unique, walk
from eqsat.ir.types import DType

Source = tuple[str, int, str]
"""A buffer: ("operand", i, ""), ("stage", i, "") for scratch, ("packed", stage, factor) for a packed factor."""


@dataclass(frozen=True)
class Factor:
    """One factor of a contraction. ``direct``: a tile may read it where it lies; ``free``: packed at compile time;
    ``stored``: bytes of an element where a rank update reads it, 0 where none can. ``runs``: of a first factor that is
    not direct, positions of m and of k along which it lies evenly; a tile may read it there that has whole parts of
    both. ``piece``: see :func:`~eqsat.ir.copied.piece_along_rows`. ``apart``: loads of a factor that is computed
    whose lanes lie apart where it is copied. ``run``: of a first factor, positions of k that lie evenly in all that it
    reads. ``window``: see :func:`~eqsat.ir.copied.window_of`. ``depth_bytes``: between neighbours along k where it is
    direct."""

    name: str
    accesses: tuple[KernelAccess, ...]
    axes: frozenset[int]
    direct: bool
    free: bool
    external: bool
    contiguous: bool
    slots: float
    row_bytes: int
    stored: int = 0
    runs: tuple[int, int] = (0, 0)
    piece: int = 0
    apart: int = 0
    run: int = 0
    window: tuple[int, int] = (0, 0)
    depth_bytes: int = 0

    @property
    def contiguous_rows(self) -> bool:
        """Whether it lies contiguously along m (or n), and not along k."""
        return self.direct and self.row_bytes == self.accesses[0].dtype.itemsize != self.depth_bytes

    def in_place(self, m: int, k: int) -> bool:
        """Whether a tile of so many rows and products reads it where it lies."""
        return self.direct or (0 not in self.runs and self.runs[0] % m == self.runs[1] % k == 0)


@dataclass(frozen=True)
class Sibling:
    """A reduction beside that of a stage: what its results are combined by, where they go, and their type."""

    combine: Combine
    result: Source
    dtype: DType


@dataclass(frozen=True)
class StageForm:
    """One stage over named axes: ``axes[name]`` are kernel axes, outermost first.

    ``bits``: element width that the vectors of a group without contractions are counted in. ``siblings``: the other
    stages that run by the nest of this one, whose kernel is then that of all of them (see ``eqsat.ir.siblings``).
    """

    index: int
    kernel: Kernel
    axes: tuple[tuple[str, tuple[int, ...]], ...]
    sources: tuple[Source, ...]
    result: Source
    outer: tuple[int, ...]
    rows: tuple[int, ...]
    factors: tuple[Factor, ...] = ()
    functions: Functions = ()
    bits: int = 32
    siblings: tuple[Sibling, ...] = ()
    dot: Dot | None = None

    @property
    def contraction(self) -> bool:
        return bool(self.factors)

    @property
    def depth(self) -> int:
        return self.dot.depth if self.dot is not None else 1

    @cached_property
    def dtype(self) -> DType:
        """The type that decides lanes and speed: of a contraction's elements, or the widest read or written."""
        if self.dot is not None:
            return self.dot.element
        kinds = [load.dtype for load in unique(self.kernel.body) if isinstance(load, Load)] + [self.kernel.out.dtype]
        return max(kinds, key=lambda d: (d.bits, d.name))

    @cached_property
    def named(self) -> dict[str, tuple[int, ...]]:
        return dict(self.axes)

    def name(self, axis: str) -> str:
        return f"{axis}_{self.index}" if axis[-1].isdigit() else f"{axis}{self.index}"

    @cached_property
    def own(self) -> tuple[str, ...]:
        """Names of the axes of a stage that is no contraction, the shared ones aside."""
        return tuple(name for name, _ in self.axes if name[-1].isdigit())

    def reduced(self, axis: str) -> bool:
        """Whether an own axis of a stage that is no contraction is reduced."""
        return axis.startswith("r") and axis != "rows"

    def extent(self, axis: str, block: int | None = None) -> int:
        """Flattened extent of ``b``, ``m``, …; within a block of ``block`` shared rows if given, one outer position."""
        axes = self.named.get(axis, ())
        total = math.prod(self.kernel.extents[a] for a in axes if block is None or a not in self.rows)
        total = -(-total // self.depth) if axis == "k" else total
        return total * block if block is not None and set(self.rows) & set(axes) else total

    @cached_property
    def accesses(self) -> tuple[KernelAccess, ...]:
        """Those of the kernel, then the stores of siblings, whose ``operand`` counts down from that of the kernel.

        What siblings walk alike but from different places on is not the same access.
        """
        if not self.siblings:
            return accesses(self.kernel)
        *rest, store = accesses(self.kernel)
        stores = [replace(store, operand=-2 - n, dtype=one.dtype) for n, one in enumerate(self.siblings)]
        starts: dict[tuple[int, tuple[int, ...]], set[int]] = {}
        assert isinstance(self.kernel.body, Call)
        for body in self.kernel.body.args:
            first: dict[tuple[int, tuple[int, ...]], int] = {}
            for load in loads_in(body):
                walked = load.operand, load.strides
                first[walked] = min(load.offset, first.get(walked, load.offset))
            for walked, start in first.items():
                starts.setdefault(walked, set()).add(start)
        reads = [access for access in rest for _ in starts.get((access.operand, access.strides), {0})]
        return (*reads, store, *stores)

    @cached_property
    def far_apart(self) -> tuple[tuple[tuple[KernelAccess, tuple[tuple[int, int], ...]], ...], ...]:
        """For each axis the accesses of operands whose neighbours along it lie in other cache lines, each with the
        other axes that it is walked along and its strides there."""
        outside = [access for access in self.accesses if not access.gathered and self.source(access)[0] == "operand"]
        return tuple(
            tuple(
                (access, tuple((b, abs(s)) for b, s in enumerate(access.strides) if b != a and s))
                for access in outside
                if abs(access.strides[a]) * access.dtype.itemsize > LINE
            )
            for a in range(len(self.kernel.extents))
        )

    @cached_property
    def results(self) -> tuple[Source, ...]:
        """What the stage and its siblings store."""
        return (self.result, *(one.result for one in self.siblings))

    @cached_property
    def combines(self) -> tuple[Combine, ...]:
        """What combines the results of a reduction and of its siblings."""
        assert self.kernel.combine is not None
        return (self.kernel.combine, *(one.combine for one in self.siblings))

    def source(self, access: KernelAccess) -> Source:
        return self.results[-1 - access.operand] if access.write else self.sources[access.operand]

    def extents(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Block extents along the kernel's axes for a block of named sizes."""
        found = list(self.kernel.extents)
        own = [(axes, sizes.get(self.name(name))) for name, axes in self.axes]
        if self.depth > 1:
            own = [(axes, size * self.depth if size and axes == self.named["k"] else size) for axes, size in own]
        if any(size is not None for _, size in own):
            for axis in self.outer:
                found[axis] = 1
            for axes, size in own:
                _unflatten(found, axes, size if size is not None else 1)
            return tuple(found)
        _unflatten(found, self.outer, sizes.get("outer", 1))
        _unflatten(found, self.rows, sizes.get("rows", 1))
        return tuple(found)

    @cached_property
    def result_row_bytes(self) -> int:
        """Bytes from one row of a contraction's results to the next (the innermost axis of m)."""
        rows = self.named.get("m", ())
        return abs(self.kernel.store_strides[rows[-1]]) * self.kernel.out.dtype.itemsize if rows else 0

    @property
    def long(self) -> bool:
        """Whether a contraction sums so many products that its sums are flushed several times."""
        return self.contraction and self.extent("k") >= LONG_CHAINS * CHAIN

    @property
    def share(self) -> float:
        """The part of a private cache that a packed block of the second factor stays in."""
        return LONG_SHARE if self.long else BLOCK_SHARE

    @cached_property
    def epilogue_slots(self) -> float:
        """Slots of the epilogue for one result, loads included."""
        slots = slots_of(self.functions)
        parts = tuple(walk(self.kernel.epilogue))
        calls = sum(slots.get(e.fn, 1.0) for e in parts if isinstance(e, Call))
        return calls + LOAD_SLOTS * sum(isinstance(e, Load) for e in parts)

    @cached_property
    def result_run(self) -> int:
        """Results of a contraction along n that lie one behind the other, 0 where its innermost axis does not."""
        run = 1
        for axis in reversed(self.named.get("n", ())):
            n, step = self.kernel.extents[axis], self.kernel.store_strides[axis]
            if n > 1 and step != run:
                return run if run > 1 else 0
            run *= n
        return run


def _unflatten(extents: list[int], axes: tuple[int, ...], size: int) -> None:
    """Extents of a block of ``size`` consecutive positions of flattened axes (outermost first)."""
    for axis in reversed(axes[1:]):
        whole = extents[axis]
        extents[axis] = min(whole, size)
        size = -(-size // max(whole, 1))
    if axes:
        extents[axes[0]] = min(extents[axes[0]], size)

"""Kernels in index notation: what one pass over memory computes, with no order of execution yet.

    out[store(p)] = epilogue(combine over r of body(p, r))        p: parallel axes, r: reduced axes

Every access is affine in the axes, so a kernel is a set of extents and, for each access, one stride per
axis: transposes, slices, flips, broadcasts (stride 0), windows and split heads are strides and nothing
else. Where an access ends (paddings, parts of a concatenation, shifted reads) is an affine guard. Loops,
footprints, flops, bytes, the legality of a schedule and the match against a hardware tile are all read off this
form.

A :class:`KernelGroup` runs several kernels block by block over axes they share (rows of a softmax, row
blocks of an attention), so that what flows between them stays in cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal as OneOf

from eqsat.ir.identity import identity
from eqsat.ir.types import DType

Combine = OneOf["sum", "prod", "max", "min", "argmax", "argmin"]


@dataclass(frozen=True, slots=True)
class Load:
    """``operand[offset + Σ strides[a]·axis[a] + Σ s·index]``, all in elements.

    ``strides`` has one entry per kernel axis (parallel axes first). ``gathers`` holds (index
    expression, stride) pairs for data-dependent addresses; index expressions are in range already
    (see ``wrap_index`` in the op table).
    """

    operand: int
    offset: int
    strides: tuple[int, ...]
    dtype: DType
    gathers: tuple[tuple[Expr, int], ...] = ()

    def at(self, offset: int, strides: tuple[int, ...]) -> Load:
        """The same load from elsewhere."""
        return Load(self.operand, offset, strides, self.dtype, self.gathers)


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A scalar constant, already representable in ``dtype``; equal by type and bits."""

    value: float | int | bool
    dtype: DType

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Literal) and self.dtype == other.dtype and identity(self.value) == identity(other.value)
        )

    def __hash__(self) -> int:
        return hash((identity(self.value), self.dtype))

    @property
    def is_zero(self) -> bool:
        """Whether this is what a masked load leaves: 0, and not -0.0."""
        return str(self.value) in ("0", "0.0", "False")


@dataclass(frozen=True, slots=True)
class Index:
    """``offset + Σ strides[a]·axis[a]`` as a value: iota, masks, aranges. ``dtype`` is int64 or int32."""

    offset: int
    strides: tuple[int, ...]
    dtype: DType

    def at(self, offset: int, strides: tuple[int, ...]) -> Index:
        """The same with another offset and other strides."""
        return Index(offset, strides, self.dtype)


@dataclass(frozen=True, slots=True)
class Call:
    """An elementwise function of the op table applied to operands already cast to the types it takes."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType
    attrs: object = None


@dataclass(frozen=True, slots=True)
class Acc:
    """The combined value, in an epilogue."""

    dtype: DType


Bounds = tuple[tuple[int, int], ...]
"""For each axis of a kernel the first position and the one after the last."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """``inside`` where ``low <= index < high``, elsewhere ``outside``; neither is evaluated where it is not the value.

    So loads of a branch need not be in range elsewhere: paddings, parts of a concatenation, shifted reads. The test is
    affine in the axes: ``index`` is rewritten with them, and axes merge only where it walks them as one, too.
    A box is a guard in a guard.
    """

    index: Index
    low: int
    high: int
    inside: Expr
    outside: Expr

    @property
    def dtype(self) -> DType:
        return self.inside.dtype

    @property
    def held(self) -> tuple[int, int, int] | None:
        """The axis that the test moves along, and the first position at which it holds and the one after the last.

        None where it moves along several axes, or along none.
        """
        moving = [a for a, s in enumerate(self.index.strides) if s]
        if len(moving) != 1:
            return None
        stride = self.index.strides[moving[0]]
        first, last = self.low - self.index.offset, self.high - 1 - self.index.offset
        if stride < 0:
            first, last, stride = -last, -first, -stride
        return moving[0], -(-first // stride), last // stride + 1

    def masks(self, axis: int) -> bool:
        """Whether masked loads with lanes along ``axis`` make the value: outside there are zeros, as they leave."""
        inside = self.inside
        if not isinstance(self.outside, Literal) or not self.outside.is_zero:
            return False
        if isinstance(inside, Guarded):
            return inside.masks(axis)
        return isinstance(inside, Load) and not inside.gathers and inside.strides[axis] != 0

    def branch(self, bounds: Bounds) -> Expr | None:
        """The branch that is the value everywhere within ``bounds``, None where it is not one of them."""
        if self.held is not None:
            axis, low, high = self.held
            least, greatest = bounds[axis][0], bounds[axis][1] - 1
        else:
            (least, greatest), low, high = span(self.index, bounds), self.low, self.high
        if low <= least and greatest < high:
            return self.inside
        return self.outside if low >= high or greatest < low or high <= least else None


Expr = Load | Literal | Index | Call | Acc | Guarded


def parts(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that one is computed from: arguments, index expressions, a guard's index and branches."""
    if isinstance(expr, Call):
        return expr.args
    if isinstance(expr, Guarded):
        return (expr.index, expr.inside, expr.outside)
    if isinstance(expr, Load) and expr.gathers:
        return tuple(index for index, _ in expr.gathers)
    return ()


def with_parts(expr: Expr, new: Sequence[Expr]) -> Expr:
    """The expression over other parts; itself where these are the parts it has."""
    if all(a is b for a, b in zip(parts(expr), new, strict=True)):
        return expr
    if isinstance(expr, Call):  # as `replace` does, in half of the time
        return Call(expr.fn, tuple(new), expr.dtype, expr.attrs)
    if isinstance(expr, Guarded):
        index, inside, outside = new
        assert isinstance(index, Index)
        return replace(expr, index=index, inside=inside, outside=outside)
    assert isinstance(expr, Load)
    gathers = tuple([(e, stride) for e, (_, stride) in zip(new, expr.gathers, strict=True)])
    return Load(expr.operand, expr.offset, expr.strides, expr.dtype, gathers)


def walk(expr: Expr) -> Iterator[Expr]:
    """Every sub-expression, index expressions of gathers included, operands before users, shared ones once per use."""
    stack = [(expr, False)]
    while stack:
        at, ready = stack.pop()
        below = () if ready else parts(at)
        if below:
            stack.append((at, True))
            stack.extend((part, False) for part in reversed(below))
        else:
            yield at


def unique(*exprs: Expr, branches: bool = True) -> list[Expr]:
    """Every sub-expression once, operands before users. Expressions may be deep: no recursion.

    Without ``branches`` a guard stands for what is in it.
    """
    found: list[Expr] = []
    done: set[int] = set()
    opened: set[int] = set()
    stack = list(reversed(exprs))
    while stack:
        expr = stack.pop()
        key = id(expr)
        if key in done:
            continue
        below = parts(expr) if key not in opened and (branches or not isinstance(expr, Guarded)) else ()
        if below:
            opened.add(key)
            stack.append(expr)
            stack.extend(reversed(below))
        else:
            done.add(key)
            found.append(expr)
    return found


def map_expr(expr: Expr, fn: Callable[[Expr], Expr], instead: Callable[[Expr], Expr | None] | None = None) -> Expr:
    """The expression rebuilt bottom-up through ``fn``, over the same sub-expressions as ``walk``, shared ones once.

    ``instead``, asked top-down, gives what stands for a sub-expression as a whole; None: it is rebuilt.
    """
    done: dict[int, Expr] = {}
    stack = [(expr, False)]
    while stack:
        at, ready = stack.pop()
        if id(at) in done:
            continue
        below = parts(at)
        whole = instead(at) if instead is not None and not ready else None
        if whole is not None:
            done[id(at)] = whole
        elif ready or not below:
            done[id(at)] = fn(with_parts(at, [done[id(part)] for part in below]) if below else at)
        else:
            stack.append((at, True))
            stack.extend((part, False) for part in reversed(below))
    return done[id(expr)]


def unconditional(expr: Expr) -> Iterator[Expr]:
    """The sub-expressions that have a value at every point, each once: all that are not in a branch of a guard."""
    stack, seen = [expr], set[int]()
    while stack:
        at = stack.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        yield at
        stack.extend(reversed((at.index,) if isinstance(at, Guarded) else parts(at)))


def span(index: Index, bounds: Bounds) -> tuple[int, int]:
    """The least and the greatest value of an index where every axis is within ``bounds`` (none of them empty)."""
    ends = [(s * low, s * (high - 1)) for s, (low, high) in zip(index.strides, bounds, strict=False) if s]
    return index.offset + sum(map(min, ends)), index.offset + sum(map(max, ends))


def settle(expr: Expr, bounds: Bounds) -> Expr:
    """The expression with only those guards that hold at some points within ``bounds`` and fail at others.

    What an outer guard of one axis implies for its branches counts.
    """
    if any(low >= high for low, high in bounds):
        return expr
    made: dict[tuple[int, Bounds], Expr] = {}

    def settled(at: Expr, here: Bounds) -> Expr:
        found = made.get((id(at), here))
        if found is None:
            found = made[id(at), here] = map_expr(at, lambda e: e, lambda e: instead(e, here))
        return found

    def instead(at: Expr, here: Bounds) -> Expr | None:
        if not isinstance(at, Guarded):
            return None
        alone = at.branch(here)
        if alone is not None:
            return settled(alone, here)
        within, without = _narrowed(at, here)
        return with_parts(at, (at.index, settled(at.inside, within), settled(at.outside, without)))

    return settled(expr, bounds)


def _narrowed(guard: Guarded, bounds: Bounds) -> tuple[Bounds, Bounds]:
    """``bounds`` for the points within a guard that is not settled there, and for those outside of it."""
    if guard.held is None:
        return bounds, bounds
    axis, first, end = guard.held
    start, stop = bounds[axis]
    low, high = max(start, first), min(stop, end)
    rest = (high, stop) if low == start else (start, low) if high == stop else (start, stop)

    def narrow(to: tuple[int, int]) -> Bounds:
        return (*bounds[:axis], to, *bounds[axis + 1 :]) if to[0] < to[1] else bounds

    return narrow((low, high)), narrow(rest)


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer: C-contiguous, 64-byte aligned, ``size`` elements.

    ``const``: known at compile time. ``again``: of a loop's trip, written to be read in this one or the next.
    """

    dtype: DType
    size: int
    const: bool = False
    again: bool = False

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * self.size


@dataclass(frozen=True)
class Kernel:
    """One kernel. Axes ``[0, parallel)`` are parallel, the rest reduced by ``combine``.

    ``body`` may use every axis. With ``combine`` None there are no reduced axes and ``epilogue`` is
    ``Acc``: the body is stored. Otherwise ``epilogue`` may use ``Acc`` and loads whose strides along
    reduced axes are 0. ``argmax``/``argmin`` have exactly one reduced axis and accumulate the position
    of the first extreme (of the first NaN if there is one), int64. The dtype of the combined value is
    ``acc_dtype``.

    ``store_strides`` (one per parallel axis) and ``store_offset`` say where in ``out`` a result goes;
    the map is one-to-one, and need not cover ``out`` (a part of a concatenation).

    ``domain``: only points at which all of these are at least 0 count. At others a result is not read, or what is
    combined is the identity. Only a group that says where this holds (``KernelGroup.unless``) may leave points out.
    """

    extents: tuple[int, ...]
    parallel: int
    combine: Combine | None
    body: Expr
    epilogue: Expr
    operands: tuple[Operand, ...]
    out: Operand
    store_offset: int
    store_strides: tuple[int, ...]
    domain: tuple[Index, ...] = ()

    def __hash__(self) -> int:
        # Many tables are keyed by kernels, and to hash one walks its body as a tree.
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = hash(tuple(getattr(self, field.name) for field in fields(self)))
            self.__dict__["_hash"] = found
        return found

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: another process makes the rest anew, for hashes of strings differ."""
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def acc_dtype(self) -> DType:
        from eqsat.ir.types import int64

        return int64 if self.combine in ("argmax", "argmin") else self.body.dtype

    @cached_property
    def points(self) -> int:
        """Size of the whole iteration space."""
        return math.prod(self.extents)

    @cached_property
    def results(self) -> int:
        """Number of elements stored."""
        return math.prod(self.extents[: self.parallel])

    @cached_property
    def expressions(self) -> tuple[Expr, ...]:
        """The sub-expressions of body and epilogue, each once, operands before users."""
        return tuple(unique(self.body, self.epilogue))

    @cached_property
    def maps(self) -> tuple[tuple[int, ...], ...]:
        """Strides, one entry per axis, of every access: loads, index values, the store (0 along reduced axes)."""
        found = [e.strides for e in self.expressions if isinstance(e, Load | Index)]
        return (*found, self.store_strides + (0,) * (len(self.extents) - self.parallel))

    @property
    def is_contraction(self) -> bool:
        """Whether the body is a product of two factors summed, with each factor free of some axis."""
        return self.combine == "sum" and isinstance(self.body, Call) and self.body.fn == "mul"


def rewrite_kernel(kernel: Kernel, fn: Callable[[Expr], Expr], **changes: object) -> Kernel:
    """The kernel with its expressions rebuilt bottom-up through ``fn``, and fields changed."""
    domain: tuple[Expr, ...] = tuple(map_expr(index, fn) for index in kernel.domain)
    made = {"body": map_expr(kernel.body, fn), "epilogue": map_expr(kernel.epilogue, fn), "domain": domain}
    return replace(kernel, **(made | changes))  # type: ignore[arg-type]


def part_of(kernel: Kernel, bounds: Bounds) -> Kernel:
    """The kernel over a part of its parallel axes, with the guards that are left there."""

    def moved(expr: Expr) -> Expr:
        if not isinstance(expr, Load | Index):
            return expr
        ends = zip(expr.strides, bounds, strict=False)
        return replace(expr, offset=expr.offset + sum(s * low for s, (low, _) in ends))

    extents = tuple(high - low for low, high in bounds)
    start = sum(s * low for s, (low, _) in zip(kernel.store_strides, bounds, strict=False))
    part = rewrite_kernel(kernel, moved, extents=extents, store_offset=kernel.store_offset + start)
    box = tuple((0, n) for n in extents)
    return replace(part, body=settle(part.body, box), epilogue=settle(part.epilogue, box))


@dataclass(frozen=True, slots=True)
class FromStage:
    """An operand that is the result of an earlier stage of the same group."""

    stage: int


@dataclass(frozen=True)
class Stage:
    """A kernel inside a group. ``sources[i]`` says what its operand ``i`` is: a group operand (int) or a stage.

    ``result`` is the group operand the stage's result is stored to, or None when only later stages of
    the group read it: then it lives in scratch, one block of rows at a time.
    """

    kernel: Kernel
    sources: tuple[int | FromStage, ...]
    result: int | None


@dataclass(frozen=True)
class KernelGroup:
    """Stages that share their first ``shared`` parallel axes (same extents, same order in every stage).

    A stage that reads an earlier one reads it at the same position along every shared axis, so running
    a block of the last shared axis through all stages is legal. A single kernel is a group of one stage
    with ``shared = 0``, and so are reductions side by side, which walk all axes alike (``eqsat.ir.siblings``).
    ``operands`` are the external buffers, inputs and outputs.

    ``unless``: operands of one int64 each. Where all are 0, points outside of the kernels' domains may be left out: of
    a block of rows all stages then leave out the same positions. Where one is not, every point counts.
    """

    stages: tuple[Stage, ...]
    shared: int
    operands: tuple[Operand, ...]
    outputs: tuple[int, ...]
    name: str = "kernel"
    unless: tuple[int, ...] = ()

    def describe(self) -> str:
        """One line: the name, and each stage's extents and reduction."""
        parts = []
        for stage in self.stages:
            kernel = stage.kernel
            shape = "x".join(map(str, kernel.extents[: kernel.parallel])) or "1"
            reduced = "x".join(map(str, kernel.extents[kernel.parallel :]))
            parts.append(f"{shape} {kernel.combine} over {reduced}" if kernel.combine else f"{shape} map")
        name = re.sub(r"[^\w .,:+-]", "_", self.name)
        return f"{name}: " + "; ".join(parts) + "."

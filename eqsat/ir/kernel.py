"""Kernels in index notation: what one pass over memory computes, with no order of execution yet.

    out[store(p)] = epilogue(combine over r of body(p, r))        p: parallel axes, r: reduced axes

Every access is affine in the axes, so a kernel is a set of extents and, for each access, one stride per
axis: transposes, slices, flips, broadcasts (stride 0), windows and split heads are strides and nothing
else. Loops, footprints, flops, bytes, the legality of a schedule and the match against a hardware tile
are all read off this form.

A :class:`KernelGroup` runs several kernels block by block over axes they share (rows of a softmax, row
blocks of an attention), so that what flows between them stays in cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Index:
    """``offset + Σ strides[a]·axis[a]`` as a value: iota, masks, aranges. ``dtype`` is int64 or int32."""

    offset: int
    strides: tuple[int, ...]
    dtype: DType


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


Expr = Load | Literal | Index | Call | Acc


def parts(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that one is computed from: arguments of a call, index expressions of a load."""
    if isinstance(expr, Call):
        return expr.args
    if isinstance(expr, Load) and expr.gathers:
        return tuple(index for index, _ in expr.gathers)
    return ()


def with_parts(expr: Expr, new: Sequence[Expr]) -> Expr:
    """The expression over other parts; itself where these are the parts it has."""
    if all(a is b for a, b in zip(parts(expr), new, strict=True)):
        return expr
    if isinstance(expr, Call):
        return replace(expr, args=tuple(new))
    assert isinstance(expr, Load)
    return replace(expr, gathers=tuple((e, stride) for e, (_, stride) in zip(new, expr.gathers, strict=True)))


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


def map_expr(expr: Expr, fn: Callable[[Expr], Expr], instead: Callable[[Expr], Expr | None] | None = None) -> Expr:
    """The expression rebuilt bottom-up through ``fn``, over the same sub-expressions as ``walk``.

    ``instead``, asked top-down, gives what stands for a sub-expression as a whole; None: it is rebuilt.
    """
    done: list[Expr] = []
    stack = [(expr, False)]
    while stack:
        at, ready = stack.pop()
        below = parts(at)
        if ready:
            new = done[-len(below) :]
            del done[-len(below) :]
            done.append(fn(with_parts(at, new)))
            continue
        whole = None if instead is None else instead(at)
        if whole is not None:
            done.append(whole)
        elif below:
            stack.append((at, True))
            stack.extend((part, False) for part in reversed(below))
        else:
            done.append(fn(at))
    return done[0]


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer: C-contiguous, 64-byte aligned, ``size`` elements. ``const``: known at compile time."""

    dtype: DType
    size: int
    const: bool = False

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

    @property
    def is_contraction(self) -> bool:
        """Whether the body is a product of two factors summed, with each factor free of some axis."""
        return self.combine == "sum" and isinstance(self.body, Call) and self.body.fn == "mul"


def rewrite_kernel(kernel: Kernel, fn: Callable[[Expr], Expr], **changes: object) -> Kernel:
    """The kernel with its expressions rebuilt bottom-up through ``fn``, and fields changed."""
    return replace(kernel, body=map_expr(kernel.body, fn), epilogue=map_expr(kernel.epilogue, fn), **changes)  # type: ignore[arg-type]


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
    with ``shared = 0``. ``operands`` are the external buffers, inputs and outputs.
    """

    stages: tuple[Stage, ...]
    shared: int
    operands: tuple[Operand, ...]
    outputs: tuple[int, ...]
    name: str = "kernel"

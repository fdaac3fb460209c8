"""Faults in kernels, in the functions on vectors, and in register tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eqsat import nn
from eqsat.ir.kernel import Acc, Call, Expr, Guarded, Kernel, KernelGroup, Literal, Load
from eqsat.plan.stages import rewrite_kernel
from eqsat_backends.numba_cpu.printing import emit, emitted, printer, shared_rows
from eqsat_backends.numba_cpu.tiles import micro_kernels as tiles
from eqsat_backends.numba_cpu.vectors import lanes, vmath
from tests.mutants.fault import IDS, LARGE, Apply, B, D, Fault, S, T, W, X

# kernels in index notation, between the search and the emitter


def in_kernels(change: Callable[[Kernel], Kernel]) -> Apply:
    """Every kernel is changed before it is printed."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        sound = emit.emit_group

        def faulty(group: KernelGroup, nest: Any, machine: Any = None, *more: Any) -> Any:
            stages = tuple(replace(stage, kernel=change(stage.kernel)) for stage in group.stages)
            return sound(replace(group, stages=stages), None, machine)

        patch.setattr(emit, "emit_group", faulty)

    return apply


def in_expressions(change: Callable[[Expr], Expr]) -> Apply:
    """Every expression of every kernel is changed, operands first."""
    return in_kernels(lambda kernel: rewrite_kernel(kernel, change))


def _shorter(axis: str) -> Callable[[Kernel], Kernel]:
    def change(kernel: Kernel) -> Kernel:
        place = 0 if axis == "first" else kernel.parallel
        if place >= len(kernel.extents) or kernel.extents[place] < 2:
            return kernel
        extents = list(kernel.extents)
        extents[place] -= 1
        return replace(kernel, extents=tuple(extents))

    return change


def _stored_transposed(kernel: Kernel) -> Kernel:
    if len(kernel.store_strides) != 2 or kernel.extents[0] != kernel.extents[1]:
        return kernel
    return replace(kernel, store_strides=kernel.store_strides[::-1])


def _backwards(kernel: Kernel) -> Kernel:
    """The first load walks its first axis from the end."""
    first = next((e for e in _loads(kernel.body) if e.strides[0] > 0), None)
    if first is None:
        return kernel
    strides = (-first.strides[0], *first.strides[1:])
    turned = replace(first, offset=first.offset + (kernel.extents[0] - 1) * first.strides[0], strides=strides)
    return rewrite_kernel(kernel, lambda e: turned if e == first else e)


def _loads(expr: Expr) -> Iterator[Load]:
    if isinstance(expr, Call):
        for arg in expr.args:
            yield from _loads(arg)
    elif isinstance(expr, Load):
        yield expr


def _epilogue_twice(kernel: Kernel) -> Kernel:
    def again(expr: Expr) -> Expr:
        if isinstance(expr, Acc):
            return kernel.epilogue
        return replace(expr, args=tuple(again(a) for a in expr.args)) if isinstance(expr, Call) else expr

    return kernel if isinstance(kernel.epilogue, Acc) else replace(kernel, epilogue=again(kernel.epilogue))


def _no_epilogue(kernel: Kernel) -> Kernel:
    return kernel if isinstance(kernel.epilogue, Acc) else replace(kernel, epilogue=Acc(kernel.acc_dtype))


def _combines(old: str, new: Any) -> Callable[[Kernel], Kernel]:
    return lambda kernel: replace(kernel, combine=new) if kernel.combine == old else kernel


def _constant_off(expr: Expr) -> Expr:
    if isinstance(expr, Literal) and expr.dtype.is_float and expr.value:
        return replace(expr, value=expr.value * 1.0001)
    return expr


def _swapped(expr: Expr) -> Expr:
    if isinstance(expr, Call) and expr.fn in ("sub", "div", "lt", "gt"):
        return replace(expr, args=expr.args[::-1])
    return expr


def _other_branch(expr: Expr) -> Expr:
    if isinstance(expr, Call) and expr.fn == "where":
        return replace(expr, args=(expr.args[0], expr.args[2], expr.args[1]))
    return expr


def _no_bias(expr: Expr) -> Expr:
    if isinstance(expr, Load) and sum(stride != 0 for stride in expr.strides) == 1 and not expr.gathers:
        return replace(expr, strides=(0,) * len(expr.strides))
    return expr


def _shifted_gather(expr: Expr) -> Expr:
    if isinstance(expr, Load) and expr.gathers:
        return replace(expr, gathers=tuple((index, stride - 1) for index, stride in expr.gathers))
    return expr


def _ends_early(expr: Expr) -> Expr:
    return replace(expr, high=expr.high - 1) if isinstance(expr, Guarded) else expr


# vectors and tiles


def _first_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The range of a loop is thought to begin one later, so that a test at its start seems settled."""
    sound = printer.Printer.reach
    patch.setattr(printer.Printer, "reach", lambda self, name, low, high: sound(self, name, low + 1, high + 1))


def _own_lane(patch: pytest.MonkeyPatch) -> None:
    """A horizontal reduction that takes every lane for its partner."""

    def across(self: Any, combine: Callable[[Any, Any], Any], value: Any) -> Any:
        step = self.lanes // 2
        while step:
            other = self.shuffle(value, value, [i ^ step if step > 1 else i for i in range(self.lanes)])
            value = combine(value, other)
            step //= 2
        return value

    patch.setattr(lanes.Lanes, "across", across)


def _neighbours_swapped(patch: pytest.MonkeyPatch) -> None:
    """Horizontal reductions of neighbours whose results change places."""
    sound = lanes.Lanes.across_each
    patch.setattr(lanes.Lanes, "across_each", lambda self, combine, rows: sound(self, combine, rows[::-1]))


def _row_short(patch: pytest.MonkeyPatch) -> None:
    """Rows of windows that neighbours share lack their last element."""
    sound = shared_rows._combined
    patch.setattr(shared_rows, "_combined", lambda walk, s, values: sound(walk, s, values[:-1] or values))


def _remainder_short(patch: pytest.MonkeyPatch) -> None:
    """The last vector of a row has a lane too few."""
    sound = lanes.Lanes.first
    patch.setattr(
        lanes.Lanes, "first", lambda self, n: self.b.and_(sound(self, n), sound(self, self.b.sub(n, n.type(1))))
    )


def _sum_of_two(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lanes.Lanes, "madd", lambda self, a, b, c: self.add(self.mul(a, b), self.mul(c, self.like(c, 0.999))))


def _coefficient(table: str, kind: str, change: float) -> Apply:
    def apply(patch: pytest.MonkeyPatch) -> None:
        sound = getattr(vmath, table)
        first, *rest = sound[kind]
        patch.setitem(sound, kind, (first + change, *rest))

    return apply


def _log_coefficient(patch: pytest.MonkeyPatch) -> None:
    first, *rest = vmath._LOG_F32
    patch.setattr(vmath, "_LOG_F32", (first + 1e-4, *rest))


def _last_k_lost(patch: pytest.MonkeyPatch) -> None:
    """The tile's loop over the summed axis ends a step early."""
    sound = tiles.VectorTile.loop

    def loop(self: Any, count: Any, step: int = 1, first: int = 0) -> Any:
        return sound(self, self.b.sub(count, tiles.ir.Constant(count.type, 1)), step, first)

    patch.setattr(tiles.VectorTile, "loop", loop)


def _tail_short(patch: pytest.MonkeyPatch) -> None:
    sound = tiles.VectorTile.store

    def store(self: Any, value: Any, pointer: Any, count: Any = None) -> None:
        sound(self, value, pointer, None if count is None else self.b.sub(count, count.type(1)))

    patch.setattr(tiles.VectorTile, "store", store)


def _row_twice(patch: pytest.MonkeyPatch) -> None:
    """A tile multiplies by what the lane beside holds."""
    patch.setattr(
        tiles.VectorTile,
        "madd",
        lambda self, x, y, z: self.b.fadd(self.b.fmul(x, y), self.b.fmul(z, z.type([0.999] * self.lanes))),
    )


def _panel(change: Callable[[np.ndarray], np.ndarray]) -> Apply:
    def apply(patch: pytest.MonkeyPatch) -> None:
        sound = emitted.PackSpec.apply

        def faulty(self: Any, flat: np.ndarray) -> np.ndarray:
            packed = sound(self, flat)
            return np.ascontiguousarray(change(packed.reshape(-1, self.tile))).reshape(-1)

        patch.setattr(emitted.PackSpec, "apply", faulty)

    return apply


KERNEL_FAULTS = (
    Fault("the last step of a sum is lost", in_kernels(_shorter("reduced")), lambda x: x.sum(axis=1), (X,)),
    Fault("the last step of a product is lost", in_kernels(_shorter("reduced")), lambda x, w: x @ w, (X, W)),
    Fault("the last row is skipped", in_kernels(_shorter("first")), lambda x: np.exp(x) + 1, (X,)),
    Fault("a result is stored transposed", in_kernels(_stored_transposed), lambda x, y: np.exp(x).T + y, (S, T)),
    Fault("a load walks backwards", in_kernels(_backwards), lambda x: np.exp(x) + 1, (X,)),
    Fault("an epilogue is applied twice", in_kernels(_epilogue_twice), lambda x, w: (x @ w) * 0.5 + 1, (X, W)),
    Fault("an epilogue is left out", in_kernels(_no_epilogue), lambda x, w, b: np.maximum(x @ w + b, 0), (X, W, B)),
    Fault("min for max", in_kernels(_combines("max", "min")), lambda x: x.max(axis=1), (X,)),
    Fault("a sum for a product", in_kernels(_combines("prod", "sum")), lambda x: x.prod(axis=1), (X,)),
    Fault("argmin for argmax", in_kernels(_combines("argmax", "argmin")), lambda x: x.argmax(axis=1), (X,)),
    Fault("a constant off by 1e-4", in_expressions(_constant_off), lambda x: np.exp(x * 0.7) + 0.1, (X,)),
    Fault("operands change places", in_expressions(_swapped), lambda x, y: np.tanh(x - y) / (1 + x * x), (S, T)),
    Fault("branches change places", in_expressions(_other_branch), lambda x, y: np.where(x > y, x, 2 * y), (S, T)),
    Fault("a bias stands still", in_expressions(_no_bias), lambda x, w, b: x @ w + b, (X, W, B)),
    Fault("a gather steps one short", in_expressions(_shifted_gather), lambda x, i: x[i] * 2, (X, IDS)),
    Fault("a guard ends a step early", in_expressions(_ends_early), lambda x: np.pad(x, 2) + 1, (LARGE,)),
    Fault("a shifted row ends early", in_expressions(_ends_early), lambda x: np.roll(x, 3, 1) - x, (LARGE,)),
    Fault("a loop forgets its first step", _first_forgotten, lambda x: np.pad(x, ((0, 0), (1, 0))) * 2, (LARGE,)),
    Fault("the wrong lane in a horizontal sum", _own_lane, lambda x: x.sum(), (LARGE,)),
    Fault("sums of neighbours change places", _neighbours_swapped, lambda x: abs(x - x[0]).sum(axis=1), (LARGE,)),
    Fault("rows of windows lack an element", _row_short, lambda x: nn.max_pool2d(x[None, None], 3, 1, 1), (LARGE,)),
    Fault("the last vector lacks a lane", _remainder_short, lambda x: np.exp(x) + x.sum(), (X,)),
    Fault("a fused multiply-add loses part of its addend", _sum_of_two, np.exp, (X,)),
    Fault("a coefficient of exp is off by 1e-4", _coefficient("_EXP", "f32", 1e-4), np.exp, (LARGE,)),
    Fault("a coefficient of a double exp is off by 1e-9", _coefficient("_EXP", "f64", 1e-9), np.exp, (D,)),
    Fault("a coefficient of expm1 is off by 1e-4", _coefficient("_EXPM1", "f32", 1e-4), np.expm1, (LARGE,)),
    Fault("a coefficient of log is off by 1e-4", _log_coefficient, lambda x: np.log(np.abs(x) + 0.1), (LARGE,)),
    Fault("the tile's last step is lost", _last_k_lost, lambda x, w: x @ w, (X, W)),
    Fault("the tile's last column is lost", _tail_short, lambda x, w: x @ w, (X, W)),
    Fault("the tile's sums fade", _row_twice, lambda x, w: x @ w, (X, W)),
    Fault("panels are mirrored", _panel(lambda p: p[:, ::-1]), lambda x, w: x @ w, (X, W), (("const", ("w",)),)),
    Fault(
        "panels are shifted", _panel(lambda p: np.roll(p, 1, axis=0)), lambda x, w: x @ w, (X, W), (("const", ("w",)),)
    ),
)

"""Kernels run point by point with NumPy: the meaning of index notation, slow and plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir.kernel import Acc, Call, Expr, FromStage, Guarded, Index, Kernel, KernelGroup, Literal, Load
from eqsat.ir.table import OPS


@dataclass(frozen=True)
class _Points:
    """Points of an iteration space: for each axis the positions, arrays that broadcast to ``shape``."""

    axes: tuple[np.ndarray, ...]
    shape: tuple[int, ...]

    def affine(self, strides: Sequence[int], offset: int) -> np.ndarray:
        """``offset + Σ strides·axis`` at every point."""
        if 0 in self.shape:  # the sum over the other axes alone may be of any size
            return np.zeros(self.shape, np.int64)
        total = np.full((1,) * len(self.shape), offset, np.int64)
        for positions, stride in zip(self.axes, strides, strict=False):
            total = total + positions * stride
        return np.broadcast_to(total, self.shape)

    def only(self, where: np.ndarray) -> _Points:
        """The points at which ``where`` is true, in one row."""
        axes = tuple(np.broadcast_to(positions, self.shape)[where] for positions in self.axes)
        return _Points(axes, (int(np.count_nonzero(where)),))


def _grid(extents: Sequence[int]) -> _Points:
    """All points of a space."""
    axes = []
    for axis, extent in enumerate(extents):
        shape = [1] * len(extents)
        shape[axis] = extent
        axes.append(np.arange(extent, dtype=np.int64).reshape(shape))
    return _Points(tuple(axes), tuple(extents))


def evaluate_expr(
    expr: Expr, extents: Sequence[int], buffers: Sequence[np.ndarray], acc: np.ndarray | None
) -> np.ndarray:
    """Values of an expression at every point; buffers are flat."""
    return _evaluate(expr, _grid(extents), buffers, acc)


def _evaluate(expr: Expr, points: _Points, buffers: Sequence[np.ndarray], acc: np.ndarray | None) -> np.ndarray:
    match expr:
        case Load(operand, offset, strides, _, gathers):
            where = points.affine(strides, offset)
            for index, stride in gathers:
                where = where + _evaluate(index, points, buffers, acc).astype(np.int64) * stride
            return np.asarray(buffers[operand][where])
        case Literal(value, dtype):
            return np.full(points.shape, value, dtype.numpy)
        case Index(offset, strides, dtype):
            return points.affine(strides, offset).astype(dtype.numpy)
        case Call(fn, args, dtype, attrs):
            values = [_evaluate(arg, points, buffers, acc) for arg in args]
            given = dtype if fn == "cast" else attrs
            return np.asarray(OPS[fn].reference(values, given)).astype(dtype.numpy)
        case Guarded(index, low, high, inside, outside):
            at = points.affine(index.strides, index.offset)
            holds = (low <= at) & (at < high)
            result = np.empty(points.shape, expr.dtype.numpy)
            for branch, where in ((inside, holds), (outside, ~holds)):
                if where.any():
                    result[where] = _evaluate(branch, points.only(where), buffers, None if acc is None else acc[where])
            return result
        case Acc():
            assert acc is not None
            return acc


def run_kernel(kernel: Kernel, buffers: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Store the kernel's results into ``out`` (flat), reading flat buffers."""
    with np.errstate(all="ignore"):
        body = evaluate_expr(kernel.body, kernel.extents, buffers, None)
        axes = tuple(range(kernel.parallel, len(kernel.extents)))
        match kernel.combine:
            case None:
                value = body
            case "sum" | "prod":
                fold = np.sum if kernel.combine == "sum" else np.prod
                value = np.asarray(fold(body, axis=axes, dtype=body.dtype))
            case "max" | "min":
                value = np.asarray((np.max if kernel.combine == "max" else np.min)(body, axis=axes))
            case "argmax" | "argmin":
                value = np.asarray((np.argmax if kernel.combine == "argmax" else np.argmin)(body, axis=axes[0]))
        extents = kernel.extents[: kernel.parallel]
        result = evaluate_expr(kernel.epilogue, extents, buffers, np.broadcast_to(value, extents))
    out[_grid(extents).affine(kernel.store_strides, kernel.store_offset)] = result


def run_group(group: KernelGroup, buffers: Sequence[np.ndarray]) -> None:
    """Run every stage over its whole domain; ``buffers`` are the group's operands, flat, outputs written."""
    results: list[np.ndarray] = []
    for stage in group.stages:
        kernel = stage.kernel
        given = [results[s.stage] if isinstance(s, FromStage) else buffers[s] for s in stage.sources]
        out = buffers[stage.result] if stage.result is not None else np.empty(kernel.out.size, kernel.out.dtype.numpy)
        run_kernel(kernel, given, out)
        results.append(out)

"""Kernels run point by point with NumPy: the meaning of index notation, slow and plain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eqsat.ir.kernel import Acc, Call, Expr, FromStage, Index, Kernel, KernelGroup, Literal, Load
from eqsat.ir.table import OPS


def _grid(extents: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
    """``offset + Σ strides·axis`` over the whole space."""
    total = np.full((1,) * len(extents), offset, np.int64)
    for axis, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
        shape = [1] * len(extents)
        shape[axis] = extent
        total = total + (np.arange(extent, dtype=np.int64) * stride).reshape(shape)
    return np.broadcast_to(total, tuple(extents))


def evaluate_expr(
    expr: Expr, extents: Sequence[int], buffers: Sequence[np.ndarray], acc: np.ndarray | None
) -> np.ndarray:
    """Values of an expression at every point; buffers are flat."""
    match expr:
        case Load(operand, offset, strides, _, gathers):
            where = _grid(extents, strides[: len(extents)], offset)
            for index, stride in gathers:
                where = where + evaluate_expr(index, extents, buffers, acc).astype(np.int64) * stride
            return np.asarray(buffers[operand][where])
        case Literal(value, dtype):
            return np.full(tuple(extents), value, dtype.numpy)
        case Index(offset, strides, dtype):
            return _grid(extents, strides[: len(extents)], offset).astype(dtype.numpy)
        case Call(fn, args, dtype, attrs):
            values = [evaluate_expr(arg, extents, buffers, acc) for arg in args]
            given = dtype if fn == "cast" else attrs
            return np.asarray(OPS[fn].reference(values, given)).astype(dtype.numpy)
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
    out[_grid(extents, kernel.store_strides, kernel.store_offset)] = result


def run_group(group: KernelGroup, buffers: Sequence[np.ndarray]) -> None:
    """Run every stage over its whole domain; ``buffers`` are the group's operands, flat, outputs written."""
    results: list[np.ndarray] = []
    for stage in group.stages:
        kernel = stage.kernel
        given = [results[s.stage] if isinstance(s, FromStage) else buffers[s] for s in stage.sources]
        out = buffers[stage.result] if stage.result is not None else np.empty(kernel.out.size, kernel.out.dtype.numpy)
        run_kernel(kernel, given, out)
        results.append(out)

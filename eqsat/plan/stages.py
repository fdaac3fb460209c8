"""Rewrites of kernels and of the stages of a group that leave their results alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from eqsat.ir.kernel import Acc, Call, Expr, FromStage, Index, Kernel, KernelGroup, Load, Operand, Stage, walk
from eqsat.ir.table import OPS
from eqsat.ir.types import row_major

COSTLY = 8.0
"""Vector instructions per element from which a value computed twice is worth keeping in scratch."""


def loads_of(kernel: Kernel) -> list[Load]:
    return [e for root in (kernel.body, kernel.epilogue) for e in walk(root) if isinstance(e, Load)]


def depends_on(expr: Expr, axis: int) -> bool:
    """Whether some access of the expression moves along an axis."""
    return any(e.strides[axis] != 0 for e in walk(expr) if isinstance(e, Load | Index))


def map_expr(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """The expression rebuilt bottom-up through ``fn``."""
    if isinstance(expr, Call):
        expr = replace(expr, args=tuple(map_expr(a, fn) for a in expr.args))
    elif isinstance(expr, Load) and expr.gathers:
        expr = replace(expr, gathers=tuple((map_expr(e, fn), s) for e, s in expr.gathers))
    return fn(expr)


def rewrite_kernel(kernel: Kernel, fn: Callable[[Expr], Expr], **changes: object) -> Kernel:
    return replace(kernel, body=map_expr(kernel.body, fn), epilogue=map_expr(kernel.epilogue, fn), **changes)  # type: ignore[arg-type]


def permute(kernel: Kernel, order: Sequence[int]) -> Kernel:
    """The kernel with its axes in this order; parallel axes stay before reduced ones."""

    def fix(expr: Expr) -> Expr:
        if isinstance(expr, Load | Index):
            return replace(expr, strides=tuple(expr.strides[a] for a in order))
        return expr

    head = order[: kernel.parallel]
    return rewrite_kernel(
        kernel,
        fix,
        extents=tuple(kernel.extents[a] for a in order),
        store_strides=tuple(kernel.store_strides[a] for a in head),
    )


def cost_of(expr: Expr) -> float:
    """Vector instructions of one evaluation."""
    return sum(OPS[e.fn].cost for e in walk(expr) if isinstance(e, Call))


def share_costly_parts(stages: Sequence[Stage]) -> list[Stage]:
    """Costly sub-expressions that two stages compute at the same points become a stage of their own."""
    stages = list(stages)
    while True:
        found = _repeated_part(stages)
        if found is None:
            return stages
        first, expr, extents = found
        stages = _split_part(stages, first, expr, extents)


_Keyed = tuple[object, ...]


def _keyed(expr: Expr, sources: Sequence[int | FromStage]) -> _Keyed:
    """The expression with operands named by what they are, comparable between stages."""
    match expr:
        case Load(operand, offset, strides, dtype, gathers):
            inner = tuple((_keyed(e, sources), s) for e, s in gathers)
            return ("load", sources[operand], offset, strides, dtype, inner)
        case Call(fn, args, dtype, attrs):
            return ("call", fn, tuple(_keyed(a, sources) for a in args), dtype, attrs)
        case _:
            return ("leaf", expr)


def _repeated_part(stages: Sequence[Stage]) -> tuple[int, Expr, tuple[int, ...]] | None:
    """The largest costly expression in the bodies of two stages over the same extents: its first stage."""
    seen: dict[tuple[object, ...], int] = {}
    best: tuple[float, int, Expr, tuple[int, ...]] | None = None
    for number, stage in enumerate(stages):
        extents = stage.kernel.extents
        here: set[tuple[object, ...]] = set()
        for expr in walk(stage.kernel.body):
            if not isinstance(expr, Call) or cost_of(expr) < COSTLY or _is_product(stage.kernel, expr):
                continue
            key = (extents, _keyed(expr, stage.sources))
            if key in here:
                continue
            here.add(key)
            first = seen.setdefault(key, number)
            if first != number and (best is None or cost_of(expr) > best[0]):
                best = (cost_of(expr), first, expr, extents)
    return None if best is None else (best[1], _find(stages[best[1]], best[2], stages), best[3])


def _is_product(kernel: Kernel, expr: Expr) -> bool:
    return kernel.combine == "sum" and expr is kernel.body and isinstance(expr, Call) and expr.fn == "mul"


def _find(stage: Stage, like: Expr, stages: Sequence[Stage]) -> Expr:
    """The expression of ``stage`` that equals ``like`` of some later stage."""
    for other in stages:
        for expr in walk(other.kernel.body):
            if expr is like:
                key = _keyed(like, other.sources)
                for mine in walk(stage.kernel.body):
                    if isinstance(mine, Call) and _keyed(mine, stage.sources) == key:
                        return mine
    raise AssertionError("a repeated part that is not there")


def _insert(stages: Sequence[Stage], at: int, part: Kernel, users: Callable[[Stage], Expr | None]) -> list[Stage]:
    """The stages with ``part`` before stage ``at``; ``users`` gives a later stage's body reading it, or None.

    The body returned reads the part as operand ``len(stage.sources)``. ``part`` has that stage's operands.
    """

    def shift(source: int | FromStage) -> int | FromStage:
        return FromStage(source.stage + 1) if isinstance(source, FromStage) and source.stage >= at else source

    out = [*stages[:at], _trim(Stage(part, stages[at].sources, None))]
    for stage in stages[at:]:
        body = users(stage)
        kernel, sources = stage.kernel, tuple(shift(s) for s in stage.sources)
        if body is not None:
            kernel = replace(kernel, body=body, operands=(*kernel.operands, part.out))
            sources = (*sources, FromStage(at))
        out.append(_trim(Stage(kernel, sources, stage.result)))
    return out


def _part(expr: Expr, extents: tuple[int, ...], operands: tuple[Operand, ...]) -> Kernel:
    """A kernel that stores ``expr`` densely over ``extents``."""
    result = Operand(expr.dtype, math.prod(extents))
    return Kernel(extents, len(extents), None, expr, Acc(expr.dtype), operands, result, 0, row_major(extents))


def _split_part(stages: list[Stage], at: int, expr: Expr, extents: tuple[int, ...]) -> list[Stage]:
    key = _keyed(expr, stages[at].sources)
    part = _part(expr, extents, stages[at].kernel.operands)
    strides = row_major(extents)

    def users(stage: Stage) -> Expr | None:
        if stage.kernel.extents != extents:
            return None

        def fix(e: Expr) -> Expr:
            if isinstance(e, Call) and _keyed(e, stage.sources) == key:
                return Load(len(stage.sources), 0, strides, e.dtype)
            return e

        body = _top_down(stage.kernel.body, fix)
        return None if body == stage.kernel.body else body

    return _insert(stages, at, part, users)


def split_factors(stages: Sequence[Stage], shared: int) -> list[Stage]:
    """Computed factors of contractions as stages of their own: evaluated once, not once per result column."""
    stages = list(stages)
    at = 0
    while at < len(stages):
        kernel = stages[at].kernel
        factor = next((f for f in _factors(kernel) if isinstance(f, Call) and _spans(f, shared)), None)
        if factor is None:
            at += 1
            continue
        axes = [a for a in range(len(kernel.extents)) if depends_on(factor, a)]
        extents = tuple(kernel.extents[a] for a in axes)
        dense = dict(zip(axes, row_major(extents), strict=True))
        load = Load(
            len(stages[at].sources), 0, tuple(dense.get(a, 0) for a in range(len(kernel.extents))), factor.dtype
        )

        def only(expr: Expr, axes: list[int] = axes) -> Expr:
            if isinstance(expr, Load | Index):
                return replace(expr, strides=tuple(expr.strides[a] for a in axes))
            return expr

        part = _part(map_expr(factor, only), extents, kernel.operands)
        assert isinstance(kernel.body, Call)
        body = replace(kernel.body, args=tuple(load if f is factor else f for f in kernel.body.args))
        target = stages[at]

        def users(stage: Stage, target: Stage = target, body: Call = body) -> Expr | None:
            return body if stage is target else None

        stages = _insert(stages, at, part, users)
        at += 1
    return stages


def _spans(expr: Expr, axes: int) -> bool:
    return all(depends_on(expr, a) for a in range(axes))


def _factors(kernel: Kernel) -> tuple[Expr, ...]:
    """The factors of a contraction that has columns for each to be reused over; none of other kernels."""
    if not kernel.is_contraction or not isinstance(kernel.body, Call):
        return ()
    reused = [any(not depends_on(f, a) for a in range(kernel.parallel)) for f in kernel.body.args]
    return kernel.body.args if any(reused) else ()


def _top_down(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    changed = fn(expr)
    if changed is not expr:
        return changed
    if isinstance(expr, Call):
        return replace(expr, args=tuple(_top_down(a, fn) for a in expr.args))
    return expr


def _trim(stage: Stage) -> Stage:
    """Without operands that no load reads any more."""
    used = sorted({load.operand for load in loads_of(stage.kernel)})
    if len(used) == len(stage.sources):
        return stage
    place = {old: new for new, old in enumerate(used)}

    def fix(expr: Expr) -> Expr:
        return replace(expr, operand=place[expr.operand]) if isinstance(expr, Load) else expr

    operands = tuple(stage.kernel.operands[u] for u in used)
    kernel = rewrite_kernel(stage.kernel, fix, operands=operands)
    return Stage(kernel, tuple(stage.sources[u] for u in used), stage.result)


def accesses(kernel: Kernel) -> list[tuple[int, ...]]:
    """Strides of every access over all axes; stores have stride 0 along reduced axes."""
    found = [e.strides for root in (kernel.body, kernel.epilogue) for e in walk(root) if isinstance(e, Load | Index)]
    return [*found, kernel.store_strides + (0,) * (len(kernel.extents) - kernel.parallel)]


def _mergeable(kernel: Kernel, axis: int) -> bool:
    """Whether axes ``axis`` and ``axis + 1`` step as one in every access."""
    if axis + 1 == kernel.parallel or (kernel.combine in ("argmax", "argmin") and axis >= kernel.parallel):
        return False
    extent = kernel.extents[axis + 1]
    return all(s[axis] == s[axis + 1] * extent for s in accesses(kernel))


def _merge(kernel: Kernel, axis: int) -> Kernel:
    def fix(expr: Expr) -> Expr:
        if isinstance(expr, Load | Index):
            return replace(expr, strides=expr.strides[:axis] + expr.strides[axis + 1 :])
        return expr

    extents = (*kernel.extents[:axis], kernel.extents[axis] * kernel.extents[axis + 1], *kernel.extents[axis + 2 :])
    inner = axis < kernel.parallel
    store = kernel.store_strides[:axis] + kernel.store_strides[axis + 1 :] if inner else kernel.store_strides
    return rewrite_kernel(kernel, fix, extents=extents, store_strides=store, parallel=kernel.parallel - inner)


def merge_axes(kernel: Kernel, start: int) -> Kernel:
    """Neighbouring axes from ``start`` on that step as one in every access, merged."""
    axis = start
    while axis + 1 < len(kernel.extents):
        if _mergeable(kernel, axis):
            kernel = _merge(kernel, axis)
        else:
            axis += 1
    return kernel


def merge_shared(group: KernelGroup) -> KernelGroup:
    """Shared axes that step as one in every stage merged, then each stage's own."""
    kernels = [stage.kernel for stage in group.stages]
    shared, axis = group.shared, 0
    while axis + 1 < shared:
        if all(_mergeable(k, axis) for k in kernels):
            kernels = [_merge(k, axis) for k in kernels]
            shared -= 1
        else:
            axis += 1
    kernels = [merge_axes(k, shared) for k in kernels]
    stages = tuple(replace(stage, kernel=k) for stage, k in zip(group.stages, kernels, strict=True))
    return replace(group, stages=stages, shared=shared)


def reuses_both_factors(kernel: Kernel) -> bool:
    """Whether each factor of a contraction is free of some parallel axis longer than 1: a matrix product."""
    if not kernel.is_contraction or not isinstance(kernel.body, Call):
        return False
    axes = [a for a in range(kernel.parallel) if kernel.extents[a] > 1]
    return all(any(not depends_on(f, a) for a in axes) for f in kernel.body.args)

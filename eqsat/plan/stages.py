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


def share_costly_parts(stages: Sequence[Stage], shared: int) -> list[Stage]:
    """Costly sub-expressions that two stages compute at the same points become a stage of their own."""
    stages = list(stages)
    while True:
        found = _repeated_part(stages, shared)
        if found is None:
            return stages
        stages = _split_part(stages, found, shared)


_Keyed = tuple[object, ...]


def _keyed(expr: Expr, sources: Sequence[int | FromStage], order: Sequence[int]) -> _Keyed:
    """The expression with operands named by what they are and axes in ``order``, comparable between stages."""
    match expr:
        case Load(operand, offset, strides, dtype, gathers):
            inner = tuple((_keyed(e, sources, order), s) for e, s in gathers)
            return ("load", sources[operand], offset, tuple(strides[a] for a in order), dtype, inner)
        case Index(offset, strides, dtype):
            return ("index", offset, tuple(strides[a] for a in order), dtype)
        case Call(fn, args, dtype, attrs):
            return ("call", fn, tuple(_keyed(a, sources, order) for a in args), dtype, attrs)
        case _:
            return ("leaf", expr)


def _axes_of(kernel: Kernel, expr: Expr, shared: int) -> list[int] | None:
    """Axes an expression depends on, shared ones first, then by how far they step; None if a shared one is missing."""
    steps = [e.strides for e in walk(expr) if isinstance(e, Load | Index)]
    axes = [a for a in range(len(kernel.extents)) if any(s[a] for s in steps)]
    if axes[:shared] != list(range(shared)):
        return None
    rest = sorted(axes[shared:], key=lambda a: (tuple(-s[a] for s in steps), kernel.extents[a], a))
    return axes[:shared] + rest


def _part_key(stage: Stage, expr: Expr, shared: int) -> tuple[_Keyed, list[int]] | None:
    """What makes two parts of different stages the same, and the axes in the order it is told in."""
    order = _axes_of(stage.kernel, expr, shared)
    if order is None:
        return None
    extents = tuple(stage.kernel.extents[a] for a in order)
    return (extents, _keyed(expr, stage.sources, order)), order


def _repeated_part(stages: Sequence[Stage], shared: int) -> tuple[int, Call, list[int]] | None:
    """The largest costly expression in the bodies of two stages: the first one's number, expression and axes."""
    seen: dict[_Keyed, tuple[int, Call, list[int]]] = {}
    best: tuple[float, tuple[int, Call, list[int]]] | None = None
    for number, stage in enumerate(stages):
        for expr in walk(stage.kernel.body):
            if not isinstance(expr, Call) or cost_of(expr) < COSTLY or _is_product(stage.kernel, expr):
                continue
            found = _part_key(stage, expr, shared)
            if found is None:
                continue
            key, order = found
            first = seen.setdefault(key, (number, expr, order))
            if first[0] != number and (best is None or cost_of(expr) > best[0]):
                best = (cost_of(expr), first)
    return None if best is None else best[1]


def _is_product(kernel: Kernel, expr: Expr) -> bool:
    return kernel.combine == "sum" and expr is kernel.body and isinstance(expr, Call) and expr.fn == "mul"


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


def _part_over(stage: Stage, expr: Expr, axes: Sequence[int]) -> Kernel:
    """A kernel that stores ``expr`` densely over ``axes`` of the stage, reading the stage's operands."""

    def only(e: Expr) -> Expr:
        return replace(e, strides=tuple(e.strides[a] for a in axes)) if isinstance(e, Load | Index) else e

    extents = tuple(stage.kernel.extents[a] for a in axes)
    result = Operand(expr.dtype, math.prod(extents))
    body = map_expr(expr, only)
    return Kernel(
        extents, len(extents), None, body, Acc(expr.dtype), stage.kernel.operands, result, 0, row_major(extents)
    )


def _load_part(stage: Stage, part: Kernel, axes: Sequence[int]) -> Load:
    """The stage's load of a part over its ``axes``, as the operand after its own."""
    step = dict(zip(axes, part.store_strides, strict=True))
    strides = tuple(step.get(a, 0) for a in range(len(stage.kernel.extents)))
    return Load(len(stage.sources), 0, strides, part.out.dtype)


def _split_part(stages: list[Stage], found: tuple[int, Call, list[int]], shared: int) -> list[Stage]:
    at, expr, order = found
    given = _part_key(stages[at], expr, shared)
    assert given is not None
    part = _part_over(stages[at], expr, order)

    def users(stage: Stage) -> Expr | None:
        def fix(e: Expr) -> Expr:
            mine = _part_key(stage, e, shared) if isinstance(e, Call) else None
            return _load_part(stage, part, mine[1]) if mine is not None and mine[0] == given[0] else e

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
        part = _part_over(stages[at], factor, axes)
        load = _load_part(stages[at], part, axes)
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

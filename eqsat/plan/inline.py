"""Stages of a group that only move elements, computed where they are read instead of stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eqsat.ir import views
from eqsat.ir.contraction import reuses_both_factors
from eqsat.ir.kernel import Call, Expr, FromStage, Index, Kernel, Load, Stage, map_expr, rewrite_kernel, walk
from eqsat.plan.link import digits_of
from eqsat.plan.stages import trim

__all__ = ["inlined"]


def inlined(stages: Sequence[Stage]) -> list[Stage] | None:
    """The stages without those that only move elements, as paddings do: others read at the source.

    None where there is no such stage, where a position in a source is not affine, or beside products by register
    tiles, whose factors are copied in any case.
    """
    gone = {n for n, stage in enumerate(stages) if _moves(stage)}
    if not gone or len(gone) == len(stages) or any(reuses_both_factors(stage.kernel) for stage in stages):
        return None
    place: dict[int | FromStage, int | FromStage] = {}
    made: dict[int, Stage] = {}
    for number, stage in enumerate(stages):
        changed: Stage | None = stage
        for source in dict.fromkeys(stage.sources):
            if changed is not None and isinstance(source, FromStage) and source.stage in gone:
                changed = _without(changed, source, made[source.stage])
        if changed is None:
            return None
        made[number] = changed
        if number not in gone:
            place[FromStage(number)] = FromStage(len(place))
    kept = (stage for number, stage in made.items() if number not in gone)
    return [replace(stage, sources=tuple(place.get(s, s) for s in stage.sources)) for stage in kept]


def _moves(stage: Stage) -> bool:
    kernel = stage.kernel
    computes = (isinstance(e, Call) or (isinstance(e, Load) and bool(e.gathers)) for e in walk(kernel.body))
    return kernel.combine is None and not kernel.domain and stage.result is None and not any(computes)


def _without(stage: Stage, source: FromStage, maker: Stage) -> Stage | None:
    """The stage with what it reads of ``maker`` in place of the loads; None where a position is not affine."""
    kernel, first, failed = stage.kernel, len(stage.sources), False

    def fix(expr: Expr) -> Expr:
        nonlocal failed
        if not isinstance(expr, Load) or stage.sources[expr.operand] != source:
            return expr
        made = None if expr.gathers else _at(maker.kernel, kernel, expr, first)
        failed |= made is None
        return made or expr

    changed = rewrite_kernel(kernel, fix)
    operands = (*kernel.operands, *maker.kernel.operands)
    if failed:
        return None
    return trim(Stage(replace(changed, operands=operands), (*stage.sources, *maker.sources), stage.result))


def _at(maker: Kernel, user: Kernel, load: Load, first: int) -> Expr | None:
    """What ``maker`` stores where ``load`` reads it, over the axes of ``user``; operands follow ``first`` others."""
    failed = False

    def fix(expr: Expr) -> Expr:
        nonlocal failed
        if not isinstance(expr, Load | Index):
            return expr
        inner = digits_of(maker, dict(enumerate(expr.strides)))
        both = views.compose(inner, views.strided(user.extents, load.strides, load.offset))
        if both is None or both.strides is None:
            failed = True
            return expr
        moved = replace(expr, offset=expr.offset + both.offset, strides=both.strides)
        return replace(moved, operand=first + moved.operand) if isinstance(moved, Load) else moved

    made = map_expr(maker.body, fix)
    return None if failed else made

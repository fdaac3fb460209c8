"""Reductions over one iteration space that make one pass over their data: a group whose stages share no axis.

Neither reads another, and all store their results in one order, so that they are one kernel with several results:
side by side they have one nest, whose tile is one of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eqsat.ir.kernel import Call, Expr, Kernel, KernelGroup, Load, Stage, rewrite_kernel

__all__ = ["SIBLINGS", "alike", "are_siblings", "joint", "separate"]

SIBLINGS = "siblings"
"""The function of an expression that stands for several side by side; it takes no instruction."""


def alike(kernels: Sequence[Kernel]) -> bool:
    """Whether kernels are reductions over one iteration space. Positions of extremes are compared in another order."""
    first = kernels[0]
    space = first.extents, first.parallel, first.store_strides
    return all(
        k.combine in ("sum", "prod", "max", "min")
        and not k.domain
        and (k.extents, k.parallel, k.store_strides) == space
        for k in kernels
    )


def are_siblings(group: KernelGroup) -> bool:
    """Whether a group is reductions side by side."""
    stages = group.stages
    if len(stages) < 2 or group.shared or group.unless or not alike([stage.kernel for stage in stages]):
        return False
    return all(isinstance(s, int) and stage.result is not None for stage in stages for s in stage.sources)


def joint(group: KernelGroup) -> Kernel:
    """The reductions of a group as one kernel over the group's operands: bodies and epilogues side by side."""
    kernels = [_of_group(stage, group) for stage in group.stages]
    first = kernels[0]

    def beside(exprs: Sequence[Expr]) -> Expr:
        return Call(SIBLINGS, tuple(exprs), max((e.dtype for e in exprs), key=lambda d: (d.bits, d.name)))

    return replace(first, body=beside([k.body for k in kernels]), epilogue=beside([k.epilogue for k in kernels]))


def separate(kernel: Kernel, group: KernelGroup) -> KernelGroup:
    """The group of reductions, over the axes of their joint kernel after these have changed."""
    body, epilogue = kernel.body, kernel.epilogue
    assert isinstance(body, Call) and isinstance(epilogue, Call)
    stages = []
    for stage, inner, last in zip(group.stages, body.args, epilogue.args, strict=True):
        own = stage.kernel
        made = replace(
            kernel, combine=own.combine, body=inner, epilogue=last, out=own.out, store_offset=own.store_offset
        )
        stages.append(Stage(made, tuple(range(len(group.operands))), stage.result))
    return replace(group, stages=tuple(stages))


def _of_group(stage: Stage, group: KernelGroup) -> Kernel:
    """A stage's kernel over the group's operands."""
    places = stage.sources

    def fix(expr: Expr) -> Expr:
        if not isinstance(expr, Load):
            return expr
        place = places[expr.operand]
        assert isinstance(place, int), "siblings read no stage"
        return replace(expr, operand=place)

    return rewrite_kernel(stage.kernel, fix, operands=group.operands)

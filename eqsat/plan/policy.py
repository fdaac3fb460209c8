"""Which legal fusions of kernels into groups pay."""

from __future__ import annotations

import math
from collections.abc import Callable

from eqsat.cost.machine import Machine
from eqsat.ir.kernel import Call, KernelGroup, Stage
from eqsat.plan.group import PlacedGroup
from eqsat.plan.stages import depends_on, loads_of, reuses_both_factors


def shared_points(group: KernelGroup) -> int:
    """Positions along the shared axes: how many independent blocks there are."""
    return math.prod(group.stages[0].kernel.extents[: group.shared])


def is_matrix_product(stage: Stage) -> bool:
    """Whether a stage is a contraction whose factors are both reused."""
    return reuses_both_factors(stage.kernel)


def row_bytes(group: KernelGroup) -> int:
    """Bytes of intermediates for one position of the shared axes."""
    points = max(1, shared_points(group))
    return sum(s.kernel.out.nbytes for s in group.stages if s.result is None) // points


def scatters(stage: Stage, shared: int) -> bool:
    """Whether one position of the shared axes reads pieces far apart: it reduces an axis outside a shared one.

    A sum over the first axis streams whole rows when run alone; by columns it would jump a row at every step.
    """
    kernel = stage.kernel
    if kernel.combine is None or kernel.is_contraction:
        return False
    for load in loads_of(kernel):
        outer = max((abs(s) for s in load.strides[kernel.parallel :]), default=0)
        inner = min((abs(s) for s in load.strides[:shared] if s), default=outer)
        if outer > inner and isinstance(stage.sources[load.operand], int):
            return True
    return False


def keeps_batches(stage: Stage, shared: int) -> bool:
    """Whether the axes that both factors of a product have are shared ones, so that a block is one batch's.

    Otherwise all batches of a block of rows are computed before the next stage: the scores of all heads.
    """
    kernel = stage.kernel
    assert isinstance(kernel.body, Call)
    return not any(
        kernel.extents[axis] > 1 and all(depends_on(factor, axis) for factor in kernel.body.args)
        for axis in range(shared, kernel.parallel)
    )


def fusion_policy(machine: Machine) -> Callable[[PlacedGroup, tuple[PlacedGroup, ...]], bool]:
    """Whether to run two groups as one: intermediates must fit the cache, and no reuse may be lost.

    The merged group has two positions of its shared axes at least, and no fewer than a part had that shared axes;
    the intermediates of one take at most an eighth of L2; no stage jumps a row at every step (``scatters``). Then
    groups without a matrix product fuse. One product joins where a position's intermediates take at most a 32nd of
    L2. Several join where the batches of each stay apart (``keeps_batches``) and rows are not the only shared axis.
    """
    l2 = machine.level("L2").nbytes

    def worth(merged: PlacedGroup, parts: tuple[PlacedGroup, ...]) -> bool:
        group = merged.group
        points = shared_points(group)
        if points < 2 or row_bytes(group) * 8 > l2:
            return False
        if any(scatters(s, group.shared) for s in group.stages):
            return False
        products = [s for s in group.stages if is_matrix_product(s)]
        for part in parts:
            if part.group.shared and shared_points(part.group) > points:
                return False
        if not products:
            return True
        if len(products) > 1 and not all(keeps_batches(s, group.shared) for s in products):
            return False
        if len(products) == 1:
            return row_bytes(group) <= l2 // 32
        rows = group.stages[0].kernel.extents[group.shared - 1]
        return points > rows

    return worth

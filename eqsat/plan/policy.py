"""Which legal fusions of kernels into groups pay."""

from __future__ import annotations

import math
from collections.abc import Callable

from eqsat.cost.machine import Machine
from eqsat.ir.kernel import KernelGroup, Stage
from eqsat.plan.group import PlacedGroup


def shared_points(group: KernelGroup) -> int:
    """Positions along the shared axes: how many independent blocks there are."""
    return math.prod(group.stages[0].kernel.extents[: group.shared])


def is_matrix_product(stage: Stage) -> bool:
    """Whether a stage is a contraction whose factors are both reused."""
    kernel = stage.kernel
    if not kernel.is_contraction:
        return False
    from eqsat.plan.stages import reuses_both_factors

    return reuses_both_factors(kernel)


def row_bytes(group: KernelGroup) -> int:
    """Bytes of intermediates for one position of the shared axes."""
    points = max(1, shared_points(group))
    return sum(s.kernel.out.nbytes for s in group.stages if s.result is None) // points


def fusion_policy(machine: Machine) -> Callable[[PlacedGroup, tuple[PlacedGroup, ...]], bool]:
    """Whether to run two groups as one: intermediates must fit the cache, and no reuse may be lost.

    Rows of reductions and maps fuse when their intermediates fit half of L1 (or L2, when stored whole they
    would leave it). A matrix product joins when the group keeps a batch axis or the other factor is small
    enough to be read again for every block of rows.
    """
    l2 = machine.level("L2").nbytes

    def worth(merged: PlacedGroup, parts: tuple[PlacedGroup, ...]) -> bool:
        group = merged.group
        points = shared_points(group)
        if points < 2 or row_bytes(group) * 8 > l2:
            return False
        products = [s for s in group.stages if is_matrix_product(s)]
        for part in parts:
            if part.group.shared and shared_points(part.group) > points:
                return False
        if not products:
            return True
        if len(products) == 1:
            return row_bytes(group) <= l2 // 32
        rows = group.stages[0].kernel.extents[group.shared - 1]
        return points > rows

    return worth

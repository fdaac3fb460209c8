"""Where a kernel's operands are, by how large they are together: in which caches, and whether streams pass them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.cost import calibration as c
from eqsat.cost.target import MemorySpace, Target


@dataclass(frozen=True)
class Standing:
    """All that a kernel's price takes from the sizes of its operands together.

    ``variable``, ``known``: by cache, whether operands of that sort are in it when the kernel starts. ``space``: the
    nearest that holds all. ``middle``: the second space does. ``held``: the last cache does, with as much again.
    ``streams``: none does.
    """

    variable: tuple[bool, ...]
    known: tuple[bool, ...]
    space: MemorySpace
    middle: bool
    held: bool
    streams: bool


def standing(operands: Sequence[tuple[int, bool]], target: Target) -> Standing:
    """``operands``: of each its bytes, and whether it is constant."""
    total, known = sum(size for size, _ in operands), sum(size for size, const in operands if const)
    last, most = len(target.caches) - 1, target.holds(target.caches[-1])
    return Standing(
        tuple(
            (cache > 0 or last == 0) and total - known <= target.holds(space) * c.WARM
            for cache, space in enumerate(target.caches)
        ),
        tuple(
            cache == last and known <= target.holds(space) * c.WARM_KNOWN for cache, space in enumerate(target.caches)
        ),
        target.holding(total),
        total <= target.middle[0].capacity,
        2 * total <= most,
        total > most,
    )

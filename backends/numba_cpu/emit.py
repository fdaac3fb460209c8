"""Which emitter prints a group: contractions by register tiles, everything else by vector loops."""

from __future__ import annotations

from eqsat_backends.numba_cpu.emitted import Emitted

from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Nest
from eqsat.plan.stages import reuses_both_factors


def emit_group(group: KernelGroup, nest: Nest | None) -> Emitted:
    """The printed module of a group."""
    products = [reuses_both_factors(stage.kernel) for stage in group.stages]
    if not any(products):
        from eqsat_backends.numba_cpu import loops

        return loops.emit(group, nest)
    if len(products) == 1:
        from eqsat_backends.numba_cpu import contract

        return contract.emit(group, nest)
    from eqsat_backends.numba_cpu import blocks

    return blocks.emit(group, nest)

"""Which emitter prints a group: contractions by register tiles, everything else by vector loops."""

from __future__ import annotations

from eqsat.ir.kernel import Call, Kernel, KernelGroup, Load
from eqsat.ir.nest import Nest
from eqsat.plan.stages import depends_on, reuses_both_factors
from eqsat_backends.numba_cpu.emitted import Emitted


def emit_group(group: KernelGroup, nest: Nest | None) -> Emitted:
    """The printed module of a group."""
    products = [reuses_both_factors(stage.kernel) for stage in group.stages]
    if len(products) == 1:
        products = [products[0] or _known_matrix(group.stages[0].kernel)]
    if not any(products):
        from eqsat_backends.numba_cpu import loops

        return loops.emit(group, nest)
    if len(products) == 1:
        from eqsat_backends.numba_cpu import contract

        return contract.emit(group, nest)
    from eqsat_backends.numba_cpu import blocks

    return blocks.emit(group, nest)


def _known_matrix(kernel: Kernel) -> bool:
    """Whether this is a matrix known at compile time times a vector.

    Packed in panels it streams at twice the speed: prefetchers follow one run of memory, not the rows of a tile.
    """
    if not kernel.is_contraction or not isinstance(kernel.body, Call):
        return False
    for factor in kernel.body.args:
        if isinstance(factor, Load) and kernel.operands[factor.operand].const and not factor.gathers:
            return any(depends_on(factor, a) and kernel.extents[a] > 1 for a in range(kernel.parallel))
    return False

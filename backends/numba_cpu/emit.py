"""Which emitter prints a group: contractions by register tiles, everything else by vector loops."""

from __future__ import annotations

from eqsat.cost.machine import Machine
from eqsat.ir.kernel import Call, Kernel, KernelGroup, Load
from eqsat.ir.nest import Nest
from eqsat.plan.stages import depends_on, reuses_both_factors
from eqsat_backends.numba_cpu.emitted import Emitted
from eqsat_backends.numba_cpu.places import FAR
from eqsat_backends.numba_cpu.target import Target, host, target_of


def emit_group(group: KernelGroup, nest: Nest | None, machine: Machine | None = None) -> Emitted:
    """The printed module of a group, for the vectors and caches of ``machine``; by default of this one."""
    target = target_of(machine) if machine is not None else host()
    products = [reuses_both_factors(stage.kernel) for stage in group.stages]
    if len(products) == 1:
        products = [products[0] or _known_matrix(group.stages[0].kernel, target)]
    if not any(products):
        from eqsat_backends.numba_cpu import loops

        return loops.emit(group, nest, target=target)
    if len(products) == 1:
        from eqsat_backends.numba_cpu import contract

        return contract.emit(group, nest, target=target)
    from eqsat_backends.numba_cpu import blocks

    return blocks.emit(group, nest, lanes=target.lanes())


def _known_matrix(kernel: Kernel, target: Target) -> bool:
    """Whether this is a matrix known at compile time times a vector, best packed in panels.

    So it streams from caches at twice the speed: prefetchers follow one run of memory, not the rows of a tile.
    From memory several long rows at a time, with software prefetch, are faster than one run.
    """
    if not kernel.is_contraction or not isinstance(kernel.body, Call):
        return False
    for factor in kernel.body.args:
        if isinstance(factor, Load) and kernel.operands[factor.operand].const and not factor.gathers:
            if kernel.operands[factor.operand].nbytes > target.cache_bytes and _long_rows(kernel, factor):
                return False
            return any(depends_on(factor, a) and kernel.extents[a] > 1 for a in range(kernel.parallel))
    return False


def _long_rows(kernel: Kernel, matrix: Load) -> bool:
    """Whether it is rows of the matrix that are summed, and a reduction of columns takes long pieces of them."""
    rows = [n for n, s in zip(kernel.extents[: kernel.parallel], matrix.strides, strict=False) if s == 1]
    return bool(rows) and rows[0] * matrix.dtype.itemsize >= FAR

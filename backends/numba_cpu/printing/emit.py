"""Which emitter prints a group: contractions by register tiles, everything else by vector loops."""

from __future__ import annotations

from eqsat.cost.machine import Machine
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import PRODUCTS, Nest, tiles
from eqsat.schedule import simple_nest
from eqsat_backends.numba_cpu.printing.emitted import Emitted
from eqsat_backends.numba_cpu.target import target_of
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target


def emit_group(
    group: KernelGroup, nest: Nest | None, machine: Machine, varying: frozenset[int] = frozenset()
) -> Emitted:
    """The printed module of a group, for the vectors and caches of ``machine``, by its nest.

    ``varying``: extents for which what is left over of blocks is printed alike, whatever it is.
    Without a nest (where there is no e-graph to search) by a simple one.
    """
    target = target_of(machine)
    nest = nest or simple_nest(group, cpu_target(machine))
    if all(tile.name not in PRODUCTS for tile in tiles(nest)):
        from eqsat_backends.numba_cpu.printing import loops

        return loops.emit(group, nest, target=target, varying=varying)
    if len(group.stages) == 1:
        from eqsat_backends.numba_cpu.printing import contract

        return contract.emit(group, nest, target)
    from eqsat_backends.numba_cpu.printing import blocks

    return blocks.emit(group, nest, target, varying)

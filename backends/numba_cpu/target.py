"""What kernels are printed for: vectors, as the machine model has them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eqsat_backends.numba_cpu.tiles.tile_ops import matrix_ops
from eqsat_backends.numba_cpu.vectors.lanes import native_lanes, vector_registers

if TYPE_CHECKING:
    from eqsat.cost.machine import Machine


@dataclass(frozen=True)
class Target:
    """``vector_bytes``: width of a vector register: 16, 32 or 64. ``registers``: how many there are.

    ``matrix``: element types of which products run by registers of two axes.
    """

    vector_bytes: int
    registers: int
    matrix: frozenset[str] = frozenset()

    def lanes(self, bits: int = 32) -> int:
        """Lanes of ``bits`` bits in a vector register."""
        return 8 * self.vector_bytes // bits


@functools.lru_cache(maxsize=8)
def target_of(machine: Machine) -> Target:
    """Of a machine model; widths that no register has become the next smaller one that some have."""
    width = next((n for n in (64, 32) if machine.vector_bytes >= n), 16)
    return Target(width, machine.registers, frozenset(row.dtypes[0] for row in matrix_ops(machine)))


@functools.cache
def host() -> Target:
    """Of this machine, as the system describes it."""
    return Target(4 * native_lanes(32), vector_registers())

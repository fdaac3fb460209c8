"""Where a contraction's data lies while it runs, and what its loop nest needs: the vocabulary of its printer."""

from __future__ import annotations

from dataclasses import dataclass

from eqsat.ir.contraction import Contraction
from eqsat.ir.nest import TileOp
from eqsat_backends.numba_cpu.printing.source import address, minus

Range = tuple[str, str]
"""Python expressions of the first position and of the end."""


@dataclass(frozen=True)
class Factor:
    """Where a factor's elements lie: strides in bytes, relative to ``base`` at (``origin``, ``k_origin``)."""

    base: str
    step: int  # from one position of m (or n) to the next; for panels, a panel's size over its width
    k_step: int
    row: int  # from one row of a register tile to the next (first factor)
    origin: str = "0"
    k_origin: str = "0"
    batch_step: int = 0  # from one batch to the next, where all batches are packed
    batch: str = "0"
    in_place: bool = False

    def at(self, position: str, k: str) -> str:
        return address(
            self.base,
            (self.batch_step, self.batch),
            (self.step, minus(position, self.origin)),
            (self.k_step, minus(k, self.k_origin)),
        )


Around = tuple[str, str, int, str, str]
"""A loop in print: its axis, its variable, its step, and expressions of where it starts and stops."""


@dataclass(frozen=True)
class Ask:
    """How tiles prefetch their shares of a block: where the tile at hand starts, which tiles do (none: all), and how
    (``ask`` of ``fma_tile``)."""

    base: str
    test: str
    steps: tuple[int, int, int, int]


@dataclass(frozen=True)
class Sums:
    """Partial sums of a block whose k is cut: address (none: in the output), bytes between rows, where it starts."""

    base: str
    row: int
    m: str
    n: str


@dataclass(frozen=True)
class Target:
    """Where the tile at hand leaves its sums. ``stored``: in the output itself, nothing is left to do.

    ``place``: address and bytes between rows of its results, where each row of them is contiguous.
    ``claim``: addresses and bytes between rows of what it asks for before it stores there, and reads with it.
    """

    base: str
    row: int
    rows: str
    columns: str
    stored: bool
    place: tuple[str, int] | None = None
    claim: tuple[tuple[str, int], ...] = ()


def padded_row(size: int) -> int:
    """``size`` bytes as an odd number of cache lines: rows this far apart spread over all sets of a cache."""
    return (-(-size // 64) | 1) * 64


def spread_panel(row: int, size: int) -> int:
    """``size`` bytes as whole rows of ``row`` bytes, so that where many panels begin is not in one set of a cache."""
    rows = -(-size // row)
    while not 128 <= rows * row % 4096 <= 4096 - 128:  # one way of the first cache, whatever its size
        rows += 1
    return rows * row


def tile_size(c: Contraction, tile: TileOp, lanes: int) -> tuple[int, int]:
    """(rows, columns) of a nest's tile on this contraction: no larger than it, whole vectors of columns."""
    rows = min(tile.size("m"), max(1, c.extent("m")))
    columns = -(-min(tile.size("n"), max(1, c.extent("n"))) // lanes) * lanes
    return rows, columns

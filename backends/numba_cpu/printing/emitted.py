"""What an emitter hands to the compiler: a printed module, its phases, and the scratch it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

BAD_INDEX, BAD_EXPONENT = 1, 2
"""What a kernel leaves in the status word of a call: an index out of range, a negative exponent of an integer."""

Axes = tuple[tuple[int, int], ...]
"""(extent, stride in elements) of axes that are walked as one, outermost first."""


@dataclass(frozen=True)
class PackSpec:
    """A constant operand copied once into panels, the layout a contraction's register tile reads.

    The packed copy has shape ``(batch, ceil(n / tile), k, tile)`` in C order, each group of axes flattened:
    element ``(i, p, r, j)`` is ``flat[offset + …]`` at position ``p·tile + j`` of ``n``, zero past its end. With a
    ``depth`` of more than 1 as many neighbours along k lie side by side, and zeros fill up the last.
    """

    operand: int
    offset: int
    batch: Axes
    n: Axes
    k: Axes
    tile: int
    depth: int = 1

    @property
    def size(self) -> int:
        """Elements of the packed copy."""
        batch, n, k = (math.prod(extent for extent, _ in axes) for axes in (self.batch, self.n, self.k))
        return batch * -(-n // self.tile) * -(-k // self.depth) * self.depth * self.tile

    def apply(self, flat: np.ndarray) -> np.ndarray:
        """The packed copy of the operand, flat and C-contiguous."""
        axes = (*self.batch, *self.n, *self.k)
        batch, n, k = (math.prod(extent for extent, _ in group) for group in (self.batch, self.n, self.k))
        panels, deep = -(-n // self.tile), -(-k // self.depth)
        view = np.lib.stride_tricks.as_strided(
            flat[self.offset :], [extent for extent, _ in axes], [stride * flat.itemsize for _, stride in axes]
        )
        source = view.reshape(batch, n, k)
        if (n, k) != (panels * self.tile, deep * self.depth):
            source = np.pad(source, ((0, 0), (0, panels * self.tile - n), (0, deep * self.depth - k)))
        blocks = source.reshape(batch, panels, self.tile, deep, self.depth).transpose(0, 1, 3, 2, 4)
        return np.ascontiguousarray(blocks).reshape(-1)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for ``json.dumps``."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PackSpec:
        """The specification that :meth:`to_json` wrote."""
        batch, n, k = (tuple((int(e), int(s)) for e, s in data[group]) for group in ("batch", "n", "k"))
        return PackSpec(int(data["operand"]), int(data["offset"]), batch, n, k, int(data["tile"]), int(data["depth"]))


@dataclass(frozen=True)
class Emitted:
    """A kernel group as source code. See the module docstring of ``jit`` for the calling convention.

    ``phases`` are run in order by every thread with a barrier between them; scratch sizes are in bytes,
    rounded up by the plan to whole cache lines.
    """

    source: str
    phases: tuple[str, ...]
    shared_bytes: int = 0
    thread_bytes: int = 0
    packs: tuple[PackSpec, ...] = ()

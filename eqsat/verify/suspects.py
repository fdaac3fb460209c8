"""What one draw shows of an output: blocks that are suspected of errors, and what is evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eqsat.ir.types import is_floating
from eqsat.verify.bounds import (
    GROSS_FACTOR,
    ErrorsBySize,
    OutputError,
    Scale,
    compare,
    gross_errors,
    signs_of_zero,
)
from eqsat.verify.boxes import Box
from eqsat.verify.escapes import distance


@dataclass
class Suspect:
    """A part of an output that is outside of its bound, or holds elements that are."""

    output: int
    box: Box
    ours: np.ndarray
    exact: np.ndarray
    reference: np.ndarray
    signs: bool
    """Whether zeros must have the reference's sign."""
    scale: Scale | None = None
    errors: ErrorsBySize | None = None
    """NumPy's over all of the output, where this is a part of it."""
    held: bool = False
    """Whether it hangs on values that leave the range, and is held to what NumPy returned all the same."""
    error: OutputError = field(init=False)

    def __post_init__(self) -> None:
        self.error = compare(self.ours, self.exact, self.reference, scale=self.scale)

    def gross(self) -> np.ndarray:
        """Where elements are far off in units of themselves."""
        if not is_floating(self.ours) or not self.ours.size:
            return np.zeros(self.ours.shape, bool)
        return gross_errors(self.ours, self.exact, self.reference, self.errors)

    def wrong_signs(self) -> np.ndarray:
        if not self.signs:
            return np.zeros(self.ours.shape, bool)
        return signs_of_zero(self.ours, self.exact, self.reference)

    def plain(self) -> bool:
        """Whether nothing is wrong at first sight."""
        return self.error.ok and not self.gross().any() and not self.wrong_signs().any()

    def excuse(self, moved: np.ndarray) -> int:
        """Take the reference's values for elements that are off by no more than others ``moved`` them, if by too much.

        What hangs on values that leave the range may leave it, too. How many there are.
        """
        far, off = self._far()
        far &= self._excused(off, moved)
        self.ours = self.ours.copy()
        self.ours[far] = self.reference[far]
        self.error = compare(self.ours, self.exact, self.reference, scale=self.scale)
        return int(np.count_nonzero(far))

    def is_excused(self, moved: np.ndarray) -> bool:
        """Whether every element that is off is excused already: to move them further would change nothing."""
        far, off = self._far()
        return not (far & ~self._excused(off, moved)).any()

    def _far(self) -> tuple[np.ndarray, np.ndarray]:
        """Which elements are off by too much, and by how much each is."""
        off = distance(self.ours, self.exact if is_floating(self.ours) else self.reference)
        far = (off > self.error.allowed) | self.gross() | self.wrong_signs()
        return far | (distance(self.ours, self.reference) == np.inf), off

    def _excused(self, off: np.ndarray, moved: np.ndarray) -> np.ndarray:
        found: np.ndarray = (moved > 0) & ((off <= GROSS_FACTOR * moved) | (off == np.inf) & is_floating(self.ours))
        return found


@dataclass(frozen=True)
class Survey:
    """A first sight of an output: its suspicious blocks, the worst first, and its error without them."""

    number: int
    boxes: Sequence[Box]
    scale: Scale
    errors: ErrorsBySize | None
    error: OutputError
    finite: int
    """Elements that are not NaN or infinite."""
    total: int


@dataclass
class Seen:
    """What a draw showed: errors by output, and which part of each is evidence: finite, and not excused."""

    errors: list[OutputError]
    telling: list[float]

    def tells(self, own: Seen | None) -> bool:
        """Whether there is enough evidence: half of every output, or as much as of the caller's."""
        least = [min(0.5, f) for f in own.telling] if own else [0.5] * len(self.telling)
        return all(f >= n for f, n in zip(self.telling, least, strict=True))

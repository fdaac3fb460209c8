"""Groups of a program, with the tensors that they read and write, and what groups cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from eqsat.ir.kernel import KernelGroup


class Price(Protocol):
    """What groups cost."""

    def prepare(self, groups: Iterable[KernelGroup]) -> None:
        """Prices of these will be asked for."""

    def seconds(self, group: KernelGroup) -> float:
        """Predicted seconds of a group."""

    def least(self, group: KernelGroup, parts: Sequence[KernelGroup]) -> float:
        """About the least that this can be for the group that ``parts`` make together, far cheaper to find."""


@dataclass(frozen=True)
class PlacedGroup:
    """A group and the tensors its operands are."""

    group: KernelGroup
    tensors: tuple[int, ...]

    def placed(self, names: Sequence[int]) -> PlacedGroup:
        """The same group where its tensors are numbers into ``names``."""
        return PlacedGroup(self.group, tuple([names[t] for t in self.tensors]))


class PlacedPrice(Protocol):
    """What groups cost whose tensors are known."""

    def seconds(self, placed: PlacedGroup) -> float:
        """Predicted seconds of a group."""

    def masked(self, placed: PlacedGroup) -> bool:
        """Whether a mask hides a part of the group: bounds on the whole say nothing of what is left."""

"""A run of compiled steps as data: steps over a table of addresses, and what each address in it is of.

Such a table says all that a call does, to the byte: what is run and on what, which memory is used again, where loops
begin and end. It is for a backend's driver to walk it, without Python between kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Argument:
    """Slot: array number ``index`` of the call."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Slot: an array known at compile time, C-contiguous; kept alive by the program."""

    array: np.ndarray


@dataclass(frozen=True, slots=True)
class Arena:
    """Slot: ``offset`` bytes into the arena; a multiple of 64 gives a 64-byte aligned address."""

    offset: int


@dataclass(frozen=True, slots=True)
class Status:
    """Slot: the status word of the call, an int64 that is 0 when the call begins."""


@dataclass(frozen=True, slots=True)
class Moving:
    """Slot: an address that a loop changes, or its counter of trips."""


Slot = Argument | Constant | Arena | Status | Moving


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What an array argument must be: C-contiguous in native byte order, and ``alignment``-byte aligned."""

    shape: tuple[int, ...]
    dtype: np.dtype
    writeable: bool = False
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel phase, run once for every share; ``slots`` index the slot table.

    No share of the next step begins before all of this one are complete.
    """

    function: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Begin a loop: its ``counter`` is 0, and each slot of ``moves`` (slot, from, bytes) the address behind another."""

    counter: int
    moves: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Again:
    """End a trip of a loop of ``trips``: go on with step ``first``, or behind this one after the last.

    At the end of each, memory is copied (``copies``: to, from, bytes). Before the next, each slot of ``moves`` (slot,
    bytes) moves on, and of ``carries`` (read, written, other) what was written is read, and what was read is written;
    after the first trip, ``other`` is written.
    """

    counter: int
    trips: int
    first: int
    moves: tuple[tuple[int, int], ...] = ()
    carries: tuple[tuple[int, int, int], ...] = ()
    copies: tuple[tuple[int, int, int], ...] = ()
    trial: int = 0
    """Trips of a trial, where there are fewer of these."""

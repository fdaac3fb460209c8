"""Places for intermediates in one arena: tensors that are never alive together share bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eqsat.buffers import PAGE, PLACED

LINE = 64
APART, PLACES = 704, 5
"""Bytes from the place in a page of one large buffer (from ``PLACED`` bytes on) to that of the next, and how many there
are before the first comes again; where the arena begins is that of results.

A load waits for earlier stores to the same place in any page: ten five-point means of 1024² float32, from one buffer
into another and back, took 19.2 ms at one place, 7.4 at two (first Zen). Scratch, which a single step needs, takes what
is free: at such a place its sums met a factor that begins a page (16×1024×1024 float32: 0.38 ms for 0.34, Zen 4).
"""


@dataclass(frozen=True)
class Lifetime:
    """A buffer of ``nbytes``, needed from step ``first`` to step ``last`` inclusive."""

    nbytes: int
    first: int
    last: int


def assign(lifetimes: Mapping[int, Lifetime]) -> tuple[dict[int, int], int]:
    """Offsets of the buffers (multiples of 64 bytes) and the arena's size.

    Largest first, each at the lowest offset free during its life, large ones at the lowest of their place: Pisarchyk
    and Lee's greedy by size ("Efficient Memory Management for Deep Neural Net Inference", 2020).
    """
    offsets: dict[int, int] = {}
    large = -1
    placed: list[tuple[int, int, Lifetime]] = []
    for name, life in sorted(lifetimes.items(), key=lambda item: (-item[1].nbytes, item[1].first, item[0])):
        size = -(-life.nbytes // LINE) * LINE
        place = None
        if size >= PLACED and life.first < life.last:
            large += 1
            place = large % PLACES * APART + APART
        at = _from(0, place)
        for start, end, other in sorted(placed, key=lambda p: p[0]):
            if other.first > life.last or other.last < life.first:
                continue
            if start - at >= size:
                break
            at = max(at, _from(end, place))
        offsets[name] = at
        placed.append((at, at + size, life))
    return offsets, max((end for _, end, _ in placed), default=0)


def _from(offset: int, place: int | None) -> int:
    """The first offset from this one on that is so far into a page."""
    return offset if place is None else offset + (place - offset) % PAGE


def lifetimes(steps: Sequence[tuple[Sequence[int], Sequence[int]]], nbytes: Mapping[int, int]) -> dict[int, Lifetime]:
    """Lifetimes of the buffers in ``nbytes``, from each step's (reads, writes)."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, (reads, writes) in enumerate(steps):
        for name in (*reads, *writes):
            if name in nbytes:
                first.setdefault(name, number)
                last[name] = number
    return {name: Lifetime(nbytes[name], first[name], last[name]) for name in first}

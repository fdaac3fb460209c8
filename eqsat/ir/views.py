"""Index maps of views, in a normal form that composes.

A view reads a tensor at ``offset + Σ strides·digits`` of its row-major flat index. Each axis of the
result is a sequence of *atoms* (size, stride), outermost first, whose digits make up the axis's index
in mixed radix. One atom per axis is NumPy's strided array; several are what a reshape that merges
transposed axes needs. Transpose, reshape, slice, flip, broadcast, diagonal and sliding windows are all
of this form, compose into it where the atoms line up, and are equal exactly when their maps are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eqsat.forks import lazy
from eqsat.ir.types import row_major

Atom = tuple[int, int]


def _normal(atoms: Iterable[Atom]) -> tuple[Atom, ...]:
    """Without atoms of size 1, and neighbours that step as one merged."""
    merged: list[Atom] = []
    for size, stride in atoms:
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return tuple(merged)


@dataclass(frozen=True)
class ViewMap:
    """An index map in normal form; build one with the functions below rather than by hand."""

    axes: tuple[tuple[Atom, ...], ...]
    offset: int = 0

    @lazy
    def _hash(self) -> int:
        return hash((self.axes, self.offset))

    def __hash__(self) -> int:
        return self._hash

    @lazy
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(size for size, _ in atoms) for atoms in self.axes)

    @lazy
    def strides(self) -> tuple[int, ...] | None:
        """One stride per axis (0 for extent 1), or None if some axis has several atoms."""
        if any(len(atoms) > 1 for atoms in self.axes):
            return None
        return tuple(atoms[0][1] if atoms else 0 for atoms in self.axes)

    def is_identity(self, shape: Sequence[int]) -> bool:
        """Whether this is the identity on tensors of ``shape``."""
        return self == identity(shape)

    def keeps_order(self, size: int) -> bool:
        """Whether all ``size`` elements are read once, in order: a reshape."""
        flat = _normal(atom for atoms in self.axes for atom in atoms)
        return self.offset == 0 and math.prod(self.shape) == size and flat == _normal([(size, 1)])

    def is_one_to_one(self, size: int) -> bool:
        """Whether every one of ``size`` elements is read exactly once: a permutation of atoms."""
        if size == 0:
            return 0 in self.shape
        atoms = sorted((stride, n) for axis in self.axes for n, stride in axis)
        step = 1
        for stride, n in atoms:
            if stride != step:
                return False
            step *= n
        return self.offset == 0 and step == size

    @lazy
    def repeats(self) -> bool:
        """Whether it stays at an element along some axis: a broadcast."""
        return any(stride == 0 for atoms in self.axes for _, stride in atoms)

    @lazy
    def overlaps(self) -> bool:
        """Whether it may read an element at several places: a step is shorter than what smaller ones span."""
        span = 1
        for step, n in sorted((abs(stride), n) for atoms in self.axes for n, stride in atoms):
            if step < span:
                return True
            span += step * (n - 1)
        return False

    def __str__(self) -> str:
        axes = ", ".join("×".join(f"{n}:{s}" for n, s in atoms) or "1" for atoms in self.axes)
        return f"[{axes}]" + (f"+{self.offset}" if self.offset else "")


def view_map(axes: Iterable[Iterable[Atom]], offset: int = 0) -> ViewMap:
    """The normal form of an index map. An empty result has zero-size axes and offset 0."""
    given = [tuple(atoms) for atoms in axes]
    sizes = [math.prod(n for n, _ in atoms) for atoms in given]
    if 0 in sizes:
        return ViewMap(tuple(() if n == 1 else ((n, 0),) for n in sizes))
    return ViewMap(tuple(_normal(atoms) for atoms in given), offset)


def strided(shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> ViewMap:
    """One stride per axis, as in ``numpy.lib.stride_tricks.as_strided`` but in elements."""
    if 0 in shape:
        return view_map([[(n, 0)] for n in shape])
    return ViewMap(tuple([((n, s),) if n != 1 else () for n, s in zip(shape, strides, strict=True)]), offset)


def identity(shape: Sequence[int]) -> ViewMap:
    return _identity(tuple(shape))


@lru_cache(maxsize=1 << 14)
def _identity(shape: tuple[int, ...]) -> ViewMap:
    return strided(shape, row_major(shape))


def transpose(shape: Sequence[int], order: Sequence[int]) -> ViewMap:
    """Axis ``i`` of the result is axis ``order[i]`` of the tensor."""
    strides = row_major(tuple(shape))
    return strided([shape[a] for a in order], [strides[a] for a in order])


def broadcast(shape: Sequence[int], target: Sequence[int]) -> ViewMap:
    """NumPy's broadcasting of ``shape`` (right-aligned, extents 1 repeat) to ``target``."""
    return _broadcast(tuple(shape), tuple(target))


@lru_cache(maxsize=1 << 14)
def _broadcast(shape: tuple[int, ...], target: tuple[int, ...]) -> ViewMap:
    lead = len(target) - len(shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, target[lead:], strict=True)):
        raise ValueError(f"shape {tuple(shape)} does not broadcast to {tuple(target)}")
    strides = row_major(tuple(shape))
    steps = [0] * lead + [0 if n == 1 else s for n, s in zip(shape, strides, strict=True)]
    return strided(target, steps)


def slices(shape: Sequence[int], starts: Sequence[int], steps: Sequence[int], sizes: Sequence[int]) -> ViewMap:
    """``x[start : start + step·size : step]`` on every axis; negative steps flip."""
    strides = row_major(tuple(shape))
    offset = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    return strided(sizes, [step * stride for step, stride in zip(steps, strides, strict=True)], offset)


def reshape(shape: Sequence[int], target: Sequence[int]) -> ViewMap:
    """The row-major reshape; sizes must agree."""
    if math.prod(shape) != math.prod(target):
        raise ValueError(f"cannot reshape {tuple(shape)} into {tuple(target)}")
    return identity(target)


@lru_cache(maxsize=1 << 14)
def lifted(map: ViewMap, shape: tuple[int, ...], start: tuple[int, ...]) -> ViewMap | None:
    """``map`` continued from its result to a tensor of ``shape`` in which that lies from ``start`` on.

    Around the result it goes on with the same strides, to addresses that mean nothing. None where an axis that is
    continued steps in several digits.
    """
    axes: list[tuple[Atom, ...]] = []
    offset = map.offset
    for atoms, inner, outer, at in zip(map.axes, map.shape, shape, start, strict=True):
        if inner == outer:
            axes.append(atoms)
            continue
        if len(atoms) > 1:
            return None
        stride = atoms[0][1] if atoms else 0
        axes.append(((outer, stride),))
        offset -= at * stride
    return view_map(axes, offset)


def joined(maps: Sequence[ViewMap], axis: int) -> ViewMap | None:
    """The one view that views of one tensor make when put together along ``axis``; None where they are not one.

    On that axis each must step evenly, by the same stride, and start one stride after the last element before it.
    """
    strides = [map.axes[axis][0][1] for map in maps if map.axes[axis]]
    if any(len(map.axes[axis]) > 1 for map in maps) or any(0 in map.shape for map in maps):
        return None
    first, extents = maps[0], [map.shape[axis] for map in maps]
    stride = strides[0] if strides else maps[1].offset - first.offset if len(maps) > 1 else 0
    at = first.offset
    for map, extent in zip(maps, extents, strict=True):
        others = map.axes[:axis] == first.axes[:axis] and map.axes[axis + 1 :] == first.axes[axis + 1 :]
        if not others or map.offset != at:
            return None
        at += extent * stride
    if any(s != stride for s in strides):
        return None
    return view_map([*first.axes[:axis], [(sum(extents), stride)], *first.axes[axis + 1 :]], first.offset)


def _digits(atoms: Sequence[Atom], inner: ViewMap) -> list[Atom] | None:
    """Carry ``atoms``, whose strides count in the flat index of ``inner``'s result, through ``inner``.

    Each stride of the flat index is a digit position of some atom; the result steps that atom.
    """
    out: list[Atom] = []
    radix = _radix(inner)
    for size, stride in atoms:
        if stride == 0:
            out.append((size, 0))
            continue
        sign, pitch = (1, stride) if stride > 0 else (-1, -stride)
        pieces: list[Atom] = []
        left = size
        for flat, extent, to in radix:
            if left == 1:
                break
            if flat * extent <= pitch:
                continue
            # `pitch` must be a whole number of steps of this digit, and stay inside it or fill it.
            if pitch < flat or pitch % flat:
                return None
            inside = pitch // flat
            if extent % inside == 0 and (extent // inside) < left:
                room = extent // inside
                if left % room:
                    return None
                pieces.append((room, sign * to * inside))
                left //= room
                pitch = flat * extent
            elif (left - 1) * inside < extent:
                pieces.append((left, sign * to * inside))
                left = 1
            else:
                return None
        if left != 1:
            return None
        out.extend(reversed(pieces))
    return out


@lru_cache(maxsize=1 << 16)
def compose(inner: ViewMap, outer: ViewMap) -> ViewMap | None:
    """The map of ``outer(inner(x))``, or None where the atoms do not line up.

    ``outer`` indexes the row-major flat index of ``inner.shape``. A result is always right: the walk of
    every digit is checked not to carry from one atom of ``inner`` into the next.
    """
    if 0 in outer.shape:
        return view_map([[(n, 0)] for n in outer.shape])
    offset, position = _locate(outer.offset, inner)
    axes = []
    for atoms in outer.axes:
        carried = _digits(atoms, inner)
        if carried is None:
            return None
        axes.append(carried)
    if not _carries_nothing(outer, inner, position):
        return None
    return view_map(axes, inner.offset + offset)


def _radix(inner: ViewMap) -> list[tuple[int, int, int]]:
    """(flat stride, size, stride it becomes) of every atom, smallest flat stride first."""
    radix, step = [], 1
    for atoms in reversed(inner.axes):
        for size, stride in reversed(atoms):
            radix.append((step, size, stride))
            step *= size
    return radix


def _locate(flat: int, inner: ViewMap) -> tuple[int, list[int]]:
    """Where flat index ``flat`` of the inner view lies, and its digits."""
    offset, digits = 0, []
    for step, size, stride in _radix(inner):
        digit = flat // step % size
        digits.append(digit)
        offset += digit * stride
    return offset, digits


def _carries_nothing(outer: ViewMap, inner: ViewMap, start: list[int]) -> bool:
    """Whether, from ``start``, the steps of all atoms of ``outer`` keep every digit of ``inner`` in range."""
    radix = _radix(inner)
    low, high = list(start), list(start)
    for atoms in outer.axes:
        for size, stride in atoms:
            pitch, sign, left = abs(stride), (1 if stride > 0 else -1), size
            if pitch == 0:
                continue
            for place, (step, extent, _) in enumerate(radix):
                if left == 1:
                    break
                if step * extent <= pitch:
                    continue
                inside = pitch // step
                room = left if (left - 1) * inside < extent else extent // inside
                reach = (room - 1) * inside
                if sign > 0:
                    high[place] += reach
                else:
                    low[place] -= reach
                left //= room
                pitch = step * extent
    return all(low[place] >= 0 and high[place] < extent for place, (_, extent, _) in enumerate(radix))


def flattened(map: ViewMap) -> ViewMap:
    """The same elements in the same order along one axis, whose digits are as few as may be.

    Composed with this, a view lines up with more than with ``map``: with all of a contiguous one.
    """
    return view_map([[atom for atoms in map.axes for atom in atoms]], map.offset)


def common_refinement(extent: int, cuts: Iterable[Sequence[int]]) -> list[int] | None:
    """The coarsest sizes that refine every way of cutting ``extent`` (outermost first), or None.

    A cut such as (2, 6) puts boundaries at strides 6 and 1; all boundaries must divide one another.
    """
    boundaries = {1}
    for sizes in cuts:
        step = 1
        for size in reversed(sizes):
            boundaries.add(step)
            step *= size
    marks = [*sorted(boundaries), extent]
    if extent <= 1:
        return [extent] if extent != 1 else []
    out = []
    for low, high in itertools.pairwise(marks):
        if high % low:
            return None
        if high != low:
            out.append(high // low)
    return out[::-1]


def recut(atoms: Sequence[Atom], sizes: Sequence[int]) -> list[int] | None:
    """The stride of every digit when an axis of these atoms is cut into ``sizes`` (which must refine it)."""
    strides: list[int] = []
    pending = list(atoms)
    left, stride = 1, 0
    for size in reversed(sizes):
        if left == 1:
            if not pending:
                if size == 1:
                    strides.append(0)
                    continue
                return None
            left, stride = pending.pop()
        if left % size:
            return None
        strides.append(stride)
        left //= size
        stride *= size
    return strides[::-1] if left == 1 and not pending else None

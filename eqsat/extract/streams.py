"""Streams: what a kernel computes without storing it, with what that reads and costs.

An *elements* stream gives any element at any time (loads, views, elementwise functions, gathers): it may be
recomputed wherever it is used. An *accumulated* stream has one contraction or reduction at its core; each of
its elements is there once, so only elementwise functions and one-to-one views may follow. The constructors
return None where operands do not combine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.cost.calibration import (
    ARG_SLOTS,
    FEW_ROWS,
    FILL,
    GATHER_SLOTS,
    GUARD_SLOTS,
    JAMMED,
    LOAD_SLOTS,
    PACK_TRANSPOSED,
    PANEL,
    PANEL_PACK_SLOTS,
    SEVERAL_ROWS,
    SHUFFLE_SLOTS,
    UNTILED,
)
from eqsat.cost.roofline import Roofline, call_seconds, opaque_slots
from eqsat.extract.layouts import copied_across, lanes_apart, windows_copied
from eqsat.extract.walks import (
    broadcast,
    broadcast_points,
    every_second,
    in_blocks,
    mixed,
    one,
    through,
    turned,
    unique,
    view_points,
)
from eqsat.ir import views
from eqsat.ir.contraction import CASTS, narrow_dot
from eqsat.ir.joins import PadAttrs
from eqsat.ir.opaque import Result
from eqsat.ir.spec import Spec
from eqsat.ir.types import DType, TensorType, row_major
from eqsat.ir.views import ViewMap

READ = -1
"""``Stream.node`` of a stored tensor that is read."""

MAX_SIZE = 256
"""Different operators of a kernel's term; larger ones are cut by storing. So no kernel's expression is deeper than
this, and what walks one may recurse."""

MAX_TREE = 16384
"""Operators of a kernel's term written out as a tree: those of a stencil of stencils are seen from many places. A
median of 25 has 10,949 of 227 different ones."""

GUARDED_PARTS = 4
"""Parts of a concatenation that is inlined: each point tests for all of them."""


@dataclass(slots=True, eq=False)
class Stream:
    """One way to compute an e-class inside a kernel.

    ``node`` is the position of its e-node in the class. ``reads`` gives bytes touched of every stored tensor;
    ``work`` the vector instructions (per element, whole domain) of each distinct inlined sub-stream outside
    the core, so that a sub-stream used twice is paid once. ``maps``: how its loads are reached from its own
    index space (None: as they lie). ``root``: it is not inlined. ``guarded``: some of its loads are. ``seconds``: as a
    kernel of its own; ``needs``: the stored tensors that other kernels must have made; ``rank`` adds the time of those.
    ``stored``: it is a stored tensor or a view of one; ``plain``: its operands are, or read nothing.
    ``narrow``: of a cast, or a view of one, the type that it is the cast of, the work before it, and the operator.
    ``owners``: of a core that is a product of matrices, for each axis of its result, the elements from one position to
    the next, the positions of all axes that the same factor has, and the slots of copies where they are columns.
    ``apart``: of a core that is none, for each axis the elements to the next position and the slots lost along it.
    ``parts``: the numbers of all that is inlined in it, once they were asked for.
    """

    uid: int
    eclass: int
    node: int
    type: TensorType
    children: tuple[Stream, ...]
    reads: dict[int, float]
    work: dict[int, float]
    maps: tuple[ViewMap | None, ...]
    size: int = 1
    root: bool = False
    guarded: bool = False
    stored: bool = False
    plain: bool = False
    core: Stream | None = None
    core_map: ViewMap | None = None
    multiply_adds: float = 0.0
    core_slots: float = 0.0
    slots: float = 0.0
    seconds: float = 0.0
    needs: tuple[int, ...] = ()
    rank: float = 0.0
    narrow: tuple[DType, float, str] | None = None
    owners: tuple[tuple[int, int, float], ...] = ()
    apart: tuple[tuple[int, float], ...] = ()
    parts: frozenset[int] | None = None

    @property
    def is_read(self) -> bool:
        return self.node == READ


def merge_reads(streams: Sequence[Stream], sizes: dict[int, float]) -> dict[int, float]:
    """Bytes touched of every tensor that any of them reads; different parts of one tensor add up to all of it."""
    if len(streams) == 1:
        return streams[0].reads
    merged = dict(streams[0].reads)
    for stream in streams[1:]:
        for eclass, nbytes in stream.reads.items():
            known = merged.get(eclass)
            if known is None:
                merged[eclass] = nbytes
            elif known != nbytes:
                merged[eclass] = min(sizes[eclass], known + nbytes)
    return merged


def _shares(size: int, children: Sequence[Stream]) -> bool:
    """Whether the operators of a large term are few, for it has most of them several times."""
    if size > MAX_TREE:
        return False
    return len(frozenset().union(*map(_parts, children))) < MAX_SIZE


def _parts(stream: Stream) -> frozenset[int]:
    """The numbers of a stream and of all that is inlined in it."""
    if stream.parts is None:
        stream.parts = frozenset((stream.uid,)).union(*map(_parts, stream.children))
    return stream.parts


class Builder:
    """Makes streams of one e-graph, the same object for the same e-node and operands.

    ``sizes``: bytes of every tensor. ``free``: tensors that are there without a kernel (inputs, constants); ``const``:
    those of them that are known when the program is compiled.
    """

    def __init__(
        self, roofline: Roofline, sizes: dict[int, float], free: frozenset[int], const: frozenset[int] = frozenset()
    ) -> None:
        self.roofline = roofline
        self.sizes = sizes
        self.free = free
        self.const = const
        self.made: dict[tuple[int | Stream, ...], Stream | None] = {}
        self.rows: dict[tuple[object, ...], int] = {}

    def read(self, eclass: int, type: TensorType) -> Stream:
        key = (eclass, READ)
        found = self.made.get(key)
        if found is None:
            uid = len(self.made)
            needs = () if eclass in self.free else (eclass,)
            reads = {eclass: self.sizes[eclass]}
            found = Stream(uid, eclass, READ, type, (), reads, {}, (None,), stored=True, plain=True, needs=needs)
            self.made[key] = found
        return found

    def make(
        self,
        eclass: int,
        node: int,
        kind: str,
        op: str,
        attrs: object,
        type: TensorType,
        children: tuple[Stream, ...],
    ) -> Stream | None:
        """The stream of an e-node over these operands, or None where they do not fuse."""
        key: tuple[int | Stream, ...] = (eclass, node, *children)
        if key in self.made:
            return self.made[key]
        uid = len(self.made)
        self.made[key] = None
        size = 1
        for child in children:
            size += child.size
        if size > MAX_SIZE and kind != "concat" and not _shares(size, children):  # a concatenation is a kernel per part
            return None
        stream = Stream(uid, eclass, node, type, children, {}, {}, (), size)
        fits = getattr(self, "_" + kind)(stream, op, attrs)
        if not fits or eclass in stream.reads:
            return None
        stream.plain = True
        for child in children:
            stream.guarded |= child.guarded
            stream.plain &= child.stored or not child.reads
        stream.stored = len(children) == 1 and children[0].stored and not stream.work and stream.core is None
        stream.slots = sum(stream.work.values()) + stream.core_slots
        stream.needs = tuple(sorted([e for e in stream.reads if e not in self.free]))
        if not stream.seconds:
            moved = sum(stream.reads.values()) + type.nbytes
            work, slots = self._tiled(stream)
            slots += self._copied(stream) if kind == "view" and stream.core is None else 0.0
            slots += self._apart(stream)
            stream.seconds = self.roofline.seconds(work, slots, moved, type.dtype)
        self.made[key] = stream
        return stream

    def _source(self, s: Stream, op: str, attrs: object) -> bool:
        if op == "iota":
            s.work, s.maps = {s.uid: float(s.type.size)}, (None,)
            return True
        return op == "const" and s.type.size == 1

    def _map(self, s: Stream, op: str, attrs: object) -> bool:
        maps: list[ViewMap | None] = []
        for child in s.children:
            if child.core is not None:
                same = s.core is None or (s.core is child.core and s.core_map == child.core_map)
                if not same or child.type.size != s.type.size:
                    return False
                s.core, s.core_map = child.core, child.core_map
            if child.type.shape == s.type.shape:
                s.work.update(child.work)
                maps.extend(child.maps)
                continue
            seen = through(child.maps, broadcast(child.type.shape, s.type.shape))
            if seen is None:
                return False
            maps.extend(seen)
            if child.work:
                ratio = broadcast_points(child.type.shape, s.type.shape) / max(1, child.type.size)
                s.work[child.uid] = sum(child.work.values()) * ratio
        if s.core is not None:
            s.multiply_adds, s.core_slots = s.core.multiply_adds, s.core.core_slots
        terms = len(s.children) if op == "add_n" else 1
        s.work[s.uid] = self.roofline.slots(op) * terms * s.type.size
        if op in CASTS:
            s.narrow = s.children[0].type.dtype, s.children[0].slots, op
        s.maps = unique(maps)
        s.reads = merge_reads(s.children, self.sizes)
        return True

    def _view(self, s: Stream, op: str, attrs: object) -> bool:
        assert isinstance(attrs, ViewMap)
        (child,) = s.children
        maps = through(child.maps, attrs)
        if maps is None:
            return False
        s.maps = maps
        if child.core is not None:
            if not attrs.is_one_to_one(child.type.size):
                return False
            s.core_map = attrs if child.core_map is None else views.compose(child.core_map, attrs)
            if s.core_map is None:
                return False
            s.core, s.multiply_adds, s.core_slots = child.core, child.multiply_adds, child.core_slots
        points = view_points(attrs) / max(1, child.type.size)
        if child.work:
            work = sum(child.work.values()) * points
            s.work = {s.uid: work}
            if child.type.ndim > 1:
                s.work = {s.uid: work / JAMMED, self._row(child, attrs): work * (1 - 1 / JAMMED)}
        if child.narrow is not None:
            s.narrow = child.narrow[0], child.narrow[1] * points, child.narrow[2]
        share = s.type.size / max(1, child.type.size)
        s.reads = child.reads if share >= 1 else {e: nbytes * share for e, nbytes in child.reads.items()}
        return True

    def _row(self, child: Stream, map: ViewMap) -> int:
        """A number for views of ``child`` that differ in the row that they begin in alone.

        Positions of several rows are taken at once, so that these compute most of what they share once: windows of
        h rows compute h + 3 rows for four, not 4 h.
        """
        rows, row = (max(1, n) for n in child.type.shape[-2:])
        plane, place = divmod(map.offset, rows * row)
        return self.rows.setdefault((child.uid, map.axes, plane, place % row), -1 - len(self.rows))

    def _operands(self, s: Stream) -> bool:
        """Operands of a core: nothing accumulated inside; their work becomes the core's."""
        if any(child.core is not None for child in s.children):
            return False
        s.reads = merge_reads(s.children, self.sizes)
        s.core = s
        return True

    def _contract(self, s: Stream, op: str, attrs: object) -> bool:
        assert isinstance(attrs, Spec)
        if not self._operands(s):
            return False
        a, b = s.children
        extents = attrs.extents(a.type.shape, b.type.shape)
        rows, cols, deep = (math.prod(extents[x] for x in axes) for axes in (attrs.rows, attrs.cols, attrs.summed))
        if min(rows, cols) > 1 and any(operand.guarded for operand in (a, b)):
            return False  # register tiles read in place, or what was copied in blocks: guards are stored first
        s.multiply_adds = float(math.prod(extents.values()))
        computed = [a.slots, b.slots]
        if min(rows, cols) > 1:
            dots, dot = self.roofline.dots, None
            if a.narrow is not None and b.narrow is not None:
                dot = narrow_dot(a.narrow[0], b.narrow[0], s.type.dtype, a.narrow[2], dots)
                computed = computed if dot is None else [a.narrow[1], b.narrow[1]]  # casts that tiles see through
            if dot is not None:
                s.multiply_adds *= dots.get(dot.element.name, 1.0) / dot.depth
            elif dots and s.type.dtype.name not in dots:
                s.multiply_adds *= UNTILED
        # Operands with arithmetic have to be packed for tiles, once per panel of the other one.
        for operand, slots, other in zip((a, b), computed, (cols, rows), strict=True):
            if slots:
                pack = PANEL_PACK_SLOTS + self.roofline.apart(operand.type.dtype) * mixed(operand.maps)
                s.core_slots += (slots + pack * operand.type.size * (min(rows, cols) > 1)) * -(-other // PANEL)
        if min(rows, cols) == 1 and s.type.size > PANEL:
            larger, labels = (a, attrs.a) if cols == 1 else (b, attrs.b)
            inner = next((n for n, x in enumerate(reversed(labels)) if x not in attrs.out), 0)
            if math.prod(larger.type.shape[larger.type.ndim - inner :]) > PANEL:  # sums are in memory between rows
                s.core_slots += FILL / SEVERAL_ROWS * larger.type.size
        if min(rows, cols) == 1:
            s.apart = self._lanes_apart(s, (attrs.a, attrs.b), attrs.out, s.multiply_adds)
        if min(rows, cols, deep) > 1:
            both = (a, attrs.a), (b, attrs.b)
            ends = {
                labels: self._copied(first, [n for n, x in enumerate(labels) if x in attrs.out])
                + self._copied(second, [n for n, x in enumerate(others) if x in attrs.summed])
                for (first, labels), (second, others) in (both, both[::-1])
            }
            few = min(rows, cols) <= FEW_ROWS
            strides = zip(attrs.out, row_major(s.type.shape), strict=True)
            s.owners = tuple(
                (stride, positions, ends[labels] + (self._across(owner, labels, x, attrs.summed) if few else 0.0))
                for x, stride in strides
                if x not in attrs.batch
                for positions, owner, labels in ((cols, b, attrs.b) if x not in attrs.a else (rows, a, attrs.a),)
            )
        return True

    def _apart(self, s: Stream) -> float:
        """Slots in which what lies along another axis than the results is read, by blocks or lane by lane.

        Of products of matrices none: their panels are copied.
        """
        across = [m for m in s.maps if m is not None and turned(m)]
        if not across and s.core is None:
            return 0.0
        along = 0.0 if s.core is None else next((n for step, n in s.core.apart if step <= self._inner(s)), 0.0)
        lane = self.roofline.apart(s.type.dtype)
        if s.core is not None or s.guarded:
            return len(across) * lane * s.type.size + along
        blocks = sum(map(in_blocks, across))
        # Where blocks do not do, vectors lie along that axis, and their lanes are stored apart.
        return (blocks * PACK_TRANSPOSED + 2 * lane * (blocks < len(across))) * s.type.size

    @staticmethod
    def _inner(s: Stream) -> int:
        """Elements of the core's result from one position to the next along what results are contiguous in."""
        ends = [abs(atoms[-1][1]) for atoms in s.core_map.axes if atoms] if s.core_map is not None else []
        return ends[-1] if ends else 1

    def _tiled(self, s: Stream) -> tuple[float, float]:
        """Multiply-adds, with those of lanes of a register tile that are not in use, and slots, with copied windows.

        Lanes lie along what results are contiguous in, which is what the columns' factor is copied along.
        """
        if s.core is None or not s.core.owners:
            return s.multiply_adds, s.slots
        inner = self._inner(s)
        positions, copied = next(((n, slots) for step, n, slots in s.core.owners if step <= inner), (1, 0.0))
        lanes = self.roofline.lanes(s.core.type.dtype)
        return s.multiply_adds * -(-positions // lanes) * lanes / positions, s.slots + copied

    def _copied(self, operand: Stream, along: Sequence[int] | None = None) -> float:
        """What it takes to copy an operand that is windows which overlap, 0 for others."""
        windows = operand.reads and operand.type.nbytes > sum(operand.reads.values())
        return windows_copied(self.roofline, operand.type, operand.maps, along) if windows else 0.0

    def _across(self, operand: Stream, labels: Sequence[int], along: int, summed: Sequence[int]) -> float:
        """What it takes to copy an operand along one of its axes; what is known is copied at compile time."""
        known = self.const.issuperset(operand.reads)
        return 0.0 if known else copied_across(self.roofline, operand.type, operand.maps, labels, along, summed)

    def _lanes_apart(
        self, s: Stream, labels: Sequence[Sequence[int]], out: Sequence[int], points: float
    ) -> tuple[tuple[int, float], ...]:
        operands = [(child.type, child.maps, axes) for child, axes in zip(s.children, labels, strict=True)]
        return lanes_apart(self.roofline, s.type, operands, out, points)

    def _reduce(self, s: Stream, op: str, attrs: object) -> bool:
        if not self._operands(s):
            return False
        (child,) = s.children
        assert isinstance(attrs, tuple)
        each = ARG_SLOTS if op in ("argmax", "argmin") else 1.0
        if any(map is not None and every_second(map, attrs) for map in child.maps):
            each += LOAD_SLOTS + SHUFFLE_SLOTS
        s.core_slots = child.slots + each * child.type.size
        axes = range(child.type.ndim)
        s.apart = self._lanes_apart(s, (axes,), [a for a in axes if a not in attrs], child.type.size)
        return True

    def _gather(self, s: Stream, op: str, attrs: object) -> bool:
        table, index = s.children
        if index.core is not None or not table.stored:
            return False
        share = min(1.0, s.type.size / max(1, table.type.size))
        seen = Stream(-1, table.eclass, READ, table.type, (), {e: n * share for e, n in table.reads.items()}, {}, ())
        s.reads = merge_reads((seen, index), self.sizes)
        ratio = s.type.size / max(1, index.type.size)
        # of narrow elements as many at once as of positions, of which a vector has fewer
        narrow = max(1.0, 32 / s.type.dtype.bits)
        s.work = {s.uid: GATHER_SLOTS * narrow * s.type.size + index.slots * min(ratio, 1.0)}
        s.maps = (None,)
        return True

    def _guarded(self, s: Stream, starts: Sequence[tuple[int, ...]]) -> bool:
        """Operands that lie in the result from these positions on, each read there alone; whether that may be inlined.

        What the loops around make of the tests is not known yet: a guard counts as one selection. A transposed operand
        is stored, as blocks that are turned over: guards would have it read element by element.
        """
        shape, ndim = s.type.shape, s.type.ndim
        axes = [a for a in range(ndim) if any(child.type.shape[a] != shape[a] for child in s.children)]
        maps: list[ViewMap | None] = [views.strided(shape, [int(a == axis) for a in range(ndim)]) for axis in axes]
        for child, start in zip(s.children, starts, strict=True):
            if child.core is not None or child.root:
                return False
            for map in child.maps:
                inner = views.identity(child.type.shape) if map is None else map
                wide = views.lifted(inner, shape, start)
                if wide is None or turned(inner):
                    return False
                maps.append(one(wide))
        s.maps, s.guarded = unique(maps), True
        for child in s.children:
            s.work.update(child.work)
        s.work[s.uid] = GUARD_SLOTS * max(len(axes), len(s.children) - 1) * s.type.size
        return True

    def _concat(self, s: Stream, op: str, attrs: object) -> bool:
        """Where it is stored, each part is a kernel that stores its own slice."""
        assert isinstance(attrs, int)
        rate = self.roofline
        starts, at = [], 0
        for part in s.children:
            moved = sum(part.reads.values()) + part.type.nbytes
            work, slots = self._tiled(part)
            s.seconds += rate.seconds(work, slots + self._apart(part), moved, s.type.dtype)
            starts.append(tuple(at if axis == attrs else 0 for axis in range(s.type.ndim)))
            at += part.type.shape[attrs]
        s.reads = merge_reads(s.children, self.sizes)
        small = s.size <= MAX_SIZE and len(s.children) <= GUARDED_PARTS
        s.root = not (small and self._guarded(s, starts))
        return True

    def _pad(self, s: Stream, op: str, attrs: object) -> bool:
        """Of elements a guard, stored or inlined; of what is accumulated a fill of the whole, then the inside."""
        assert isinstance(attrs, PadAttrs)
        (part,) = s.children
        s.reads = part.reads
        if self._guarded(s, [tuple(low for low, _ in attrs.widths)]):
            return True
        s.root, s.multiply_adds, s.core_slots = True, part.multiply_adds, part.slots + s.type.size
        moved = sum(part.reads.values()) + part.type.nbytes + s.type.nbytes
        work, slots = self._tiled(part)
        slots += self._apart(part) if part.core is not None else self.roofline.lane * s.type.size
        s.seconds = self.roofline.seconds(work, slots, moved, s.type.dtype, steps=2)
        s.seconds += self.roofline.move(2 * s.type.nbytes)  # in parts, so that no kernel runs together with it
        return True

    def _opaque(self, s: Stream, op: str, attrs: object) -> bool:
        """Runs through the reference, over stored operands."""
        if not all(child.is_read for child in s.children):
            return False
        s.root = True
        s.reads = merge_reads(s.children, self.sizes)
        if isinstance(attrs, Result):
            s.seconds = call_seconds(attrs)
            return True
        s.core_slots = opaque_slots(op, s.children[0].type, attrs)
        moved = sum(s.reads.values()) + s.type.nbytes
        s.seconds = self.roofline.seconds(0.0, s.core_slots, moved, s.type.dtype, steps=10)
        return True

"""Register tiles for contractions: macro intrinsics that build a whole loop in LLVM IR.

Unrolled Python source of a register tile compiles slowly; an intrinsic that emits the tile's loop as one
piece of LLVM IR compiles in a fraction of a second and runs at the machine's peak.

All addresses are byte addresses (``intp``), all strides are bytes and known at compile time, so that the
rows of a tile are immediate offsets of one pointer.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from eqsat_backends.numba_cpu.tiles.dots import Step, step_of
from eqsat_backends.numba_cpu.vectors import memory
from eqsat_backends.numba_cpu.vectors.flow import I1, I64, Variable
from eqsat_backends.numba_cpu.vectors.lanes import BYTES, KIND, Lanes, Value, cpu_features, vector_registers
from eqsat_backends.numba_cpu.vectors.simd import define, void

Tile = Callable[..., Any]
"""A Numba intrinsic, callable from printed kernels."""

STRAIGHT_ROWS, STRAIGHT_DEPTH = 2, 8
"""Rows of a rank update that straight code is right for whatever the processor, and how many k that is of."""
UPDATED = (4, 2)
"""Rows and vectors of the sums that any other rank update holds in registers, of 16, at a time."""


class VectorTile(Lanes):
    """Lanes of one element type, and pointers that move in bytes."""

    def __init__(self, builder: Any, lanes: int, dtype: str) -> None:
        super().__init__(builder, lanes)
        self.of = KIND[dtype]
        self.size = BYTES[self.of]

    def at(self, pointer: Value, offset: int) -> Value:
        """``pointer`` moved by ``offset`` bytes."""
        return self.b.gep(pointer, [ir.Constant(I64, offset)], source_etype=ir.IntType(8)) if offset else pointer

    def moving(self, address: Value) -> Variable:
        """A pointer that moves, from an address or pointer on."""
        return self.variable(memory.pointer(self, address))

    def move(self, moving: Variable, offset: int) -> None:
        moving.set(self.at(moving.now, offset))

    def load(self, pointer: Value, count: Value | None = None) -> Value:
        """Consecutive elements; only the first ``count``, the others are 0 and their memory is not touched."""
        if count is None:
            return memory.load(self, self.of, pointer)
        return memory.load_first(self, self.of, pointer, count)

    def store(self, value: Value, pointer: Value, count: Value | None = None) -> None:
        """Store all lanes, or the first ``count``."""
        if count is None:
            memory.store(self, pointer, value)
        else:
            memory.store_first(self, pointer, value, count)

    def broadcast(self, pointer: Value) -> Value:
        """The scalar at ``pointer`` in every lane."""
        return self.splat(memory.element(self, self.of, pointer))

    def release(self) -> None:
        """Keep no value in a vector register across here.

        LLVM holds what later code needs (an epilogue's constants, ReLU's zeros) in registers all through a loop, and
        where the sums of that need them all, it spills the sums: 1.7 times as long for 4×24 with 16 registers.
        """
        if "sse2" in cpu_features():
            clobbered = ",".join(f"~{{xmm{number}}}" for number in range(vector_registers()))
            self.b.asm(ir.FunctionType(ir.VoidType(), []), "", clobbered, [], True)

    def vectors(self, count: Value, body: Callable[[Value | None], None], *moving: tuple[Variable, int]) -> None:
        """``body`` for each whole vector of ``count`` elements, pointers moving on; then for how many are left."""
        with self.loop(count, self.lanes):
            body(None)
            for pointer, size in moving:
                self.move(pointer, size)
        left = self.left(count, self.lanes)
        with self.b.if_then(self.b.icmp_signed(">", left, ir.Constant(I64, 0))):
            body(left)

    def left(self, count: Value, unit: int) -> Value:
        """What is left over of ``count`` behind the last whole ``unit``, a power of two."""
        return self.b.and_(count, ir.Constant(I64, unit - 1))


def macro(name: str, arguments: int, dtype: str, lanes: int, generate: Callable[..., None]) -> Tile:
    """An intrinsic ``name(int, …)`` of ``arguments`` integers, without a result."""
    tile: Tile = define(
        name, arguments, void, lambda e, *values: generate(VectorTile(e.b, lanes, dtype), *values), lanes
    )
    return tile


@functools.cache
def fma_tile(
    dtype: str,
    rows: int,
    vectors: int,
    lanes: int,
    a_row: int,
    a_k: int,
    b_k: int,
    c_row: int,
    accumulate: bool = False,
    ahead: int = 0,
    tail: int = 0,
    keep: int = 0,
    ask: tuple[int, int, int, int] = (0, 0, 0, 0),
    claim: tuple[int, ...] = (),
    narrow: bool = False,
    step: Step | None = None,
) -> Tile:
    """``tile(a, b, c, k)``: ``c[i, j] = Σ_k a[i, k] · b[k, j]``, i < rows, j < vectors·lanes.

    ``a`` is read element by element at ``a + i·a_row + k·a_k``, ``b`` in vectors at ``b + k·b_k``, ``c`` is
    stored in vectors at ``c + i·c_row`` (strides in bytes). With ``accumulate`` the tile takes a fifth
    argument ``first`` and adds to what ``c`` holds unless ``first`` is nonzero.
    ``ahead``: prefetch the second factor that many steps of k ahead (0: leave it to the hardware).
    ``tail``: only so many lanes of the last vector exist; no other memory is touched (0: all exist).
    ``narrow``: the last vector is one of half the lanes.
    ``keep``: the tile also copies ``b`` to rows ``keep`` bytes apart at a last argument ``to``: packing on the
    fly, hidden behind the arithmetic.
    ``ask``: (steps, lines, apart, move): every so many steps of k, so many cache lines that lie ``apart`` bytes apart
    are prefetched into the second-level cache, from an argument behind those on, which then moves by ``move`` bytes.
    ``claim``: (steps, each, lines, apart, …): as often, so many cache lines of each of the next ``each`` rows,
    ``apart`` bytes apart, are asked for to be written, from a last argument on, until all rows are: those of the last
    bytes, for where rows begin inside of a line, the tile before wrote there. Each further ``apart`` is of rows that
    are asked for to be read, from one more argument.
    ``step``: adds to sums; None: multiplies and adds.
    """
    muladd = step or VectorTile.madd
    # one step at a time for large tiles: the scheduler would mix two, and spill accumulators (two are still better
    # where loads come from memory)
    every = ask[0] or (claim[0] if claim else 0)
    unroll = 4 if rows * vectors < 4 and not ask[0] else 2 if rows * vectors < 16 or keep or every else 1
    # several chains an accumulator where there are too few accumulators to hide the latency of fma
    chains = unroll if rows * vectors < 2 else 2 if rows * vectors < 4 else 1
    cells = [(i, j) for i in range(rows) for j in range(vectors)]
    arguments = 4 + accumulate + bool(keep) + bool(ask[0]) + len(claim[3:])

    def generate(e: VectorTile, a: Value, b: Value, c: Value, k: Value, *more: Value) -> None:
        e.release()
        width, c, last = lanes * e.size, memory.pointer(e, c), VectorTile(e.b, lanes // 2, dtype) if narrow else e
        parts = [*[e] * (vectors - 1), last]
        a_at, b_at, to_at = e.moving(a), e.moving(b), e.moving(more[accumulate] if keep else b)
        ask_at = e.moving(more[accumulate + bool(keep)] if ask[0] else b)
        claimed = e.variable(ir.Constant(I64, 0))
        streams = [(a_at, a_k), (b_at, b_k), *[(to_at, keep)] * bool(keep)]
        sums = [[e.variable(ir.Constant(parts[j].type(e.of), None)) for _, j in cells] for _ in range(chains)]

        def used(j: int) -> Value | None:
            return ir.Constant(I64, tail) if tail and j == vectors - 1 else None

        def multiply(offset: int) -> None:
            panel = [part.load(e.at(e.at(b_at.now, offset * b_k), j * width), used(j)) for j, part in enumerate(parts)]
            for line in range(0, vectors * width if ahead else 0, 64):
                memory.prefetch(e, e.at(b_at.now, (offset + ahead) * b_k + line), 3)
            for i in range(rows):
                at = e.at(a_at.now, i * a_row + offset * a_k)
                scalars = {part.lanes: part.broadcast(at) for part in dict.fromkeys(parts)}
                for j, part in enumerate(parts):
                    total = sums[offset % chains][i * vectors + j]
                    total.set(muladd(part, scalars[part.lanes], panel[j], total.now))
            for j in range(vectors if keep else 0):
                parts[j].store(panel[j], e.at(to_at.now, offset * keep + j * width))

        def walk(count: Value, steps: int) -> None:
            with e.loop(count, steps):
                for offset in range(steps):
                    multiply(offset)
                for stream, stride in streams:
                    e.move(stream, steps * stride)

        left = k
        if every:
            with e.loop(k, every):
                for line in range(ask[1]):
                    memory.prefetch(e, e.at(ask_at.now, ask[2] * line), 2)
                e.move(ask_at, ask[3])
                if claim:  # in the end the last ones again: that costs less than a branch, or a loop of its own
                    first, most = claimed.now, ir.Constant(I64, rows - claim[1])
                    first = e.b.select(e.b.icmp_signed("<", first, most), first, most)
                    for number, apart in enumerate(claim[3:]):
                        base = more[number - len(claim[3:])]
                        start = memory.pointer(e, e.b.add(base, e.b.mul(first, ir.Constant(I64, apart))))
                        for i, line in itertools.product(range(claim[1]), range(claim[2])):
                            memory.prefetch(e, e.at(start, i * apart + 64 * line + 63), 3, write=not number)
                    claimed.set(e.b.add(first, ir.Constant(I64, claim[1])))
                walk(ir.Constant(I64, every), unroll)
            left = e.left(k, every)
        walk(left, unroll)
        walk(e.left(left, unroll), 1)
        totals = [
            functools.reduce(parts[j].add, (chain[cell].now for chain in sums)) for cell, (_, j) in enumerate(cells)
        ]

        def finish(added: bool) -> None:
            for total, (i, j) in zip(totals, cells, strict=True):
                at, part = e.at(c, i * c_row + j * width), parts[j]
                part.store(part.add(total, part.load(at, used(j))) if added else total, at, used(j))

        if not accumulate:
            finish(False)
            e.release()
            return
        # added at the end: a chain of additions per block rounds less than one through all of k. A branch and not a
        # choice of what to add: LLVM would load all of it first, and spill it
        with e.b.if_else(e.b.icmp_signed("!=", more[0], ir.Constant(I64, 0))) as (then, otherwise):
            with then:
                finish(False)
            with otherwise:
                finish(True)
        e.release()

    return macro(f"fma_tile_{rows}x{vectors * lanes}", arguments, dtype, lanes, generate)


@functools.cache
def dot_tile(dtype: str, element: str, signed_first: bool, native: bool, *sizes: int, **options: Any) -> Tile:
    """``fma_tile`` over elements of several neighbours along k, of 32 bits each, as are the sums."""
    return fma_tile(dtype, *sizes, step=step_of(element, signed_first, native), **options)


@functools.cache
def interleave(
    dtype: str, depth: int, lanes: int, to_row: int, from_row: int, width: int = 0, to_panel: int = 0
) -> Tile:
    """``interleave(to, source, rows, columns)``: ``depth`` rows at a time side by side, column by column.

    ``rows``: of the result, whose elements have 32 bits. Row strides in bytes. ``width``: so many columns go to each of
    several panels, ``to_panel`` bytes apart; whole rows are read one after the other, as the memory likes it.
    """

    def generate(e: VectorTile, to: Value, source: Value, rows: Value, columns: Value) -> None:
        to_at, from_at = e.moving(to), e.moving(source)

        def vector(target: Variable, origin: Variable, count: Value | None) -> None:
            lines = [e.load(e.at(origin.now, d * from_row), count) for d in range(depth)]
            while len(lines) > 1:
                size = lines[0].type.count
                order = [i // 2 + size * (i % 2) for i in range(2 * size)]
                joined = [e.shuffle(one, two, order) for one, two in zip(lines[::2], lines[1::2], strict=True)]
                wider = ir.VectorType(ir.IntType(2 * lines[0].type.element.width), size)
                lines = [e.b.bitcast(line, wider) for line in joined]
            e.store(lines[0], target.now, count)

        steps = (lanes * 4, lanes * e.size)
        with e.loop(rows):
            target, origin, left = e.moving(to_at.now), e.moving(from_at.now), columns
            if width:
                with e.loop(columns, width):
                    panel = e.moving(target.now)
                    for _ in range(width // lanes):
                        vector(panel, origin, None)
                        e.move(panel, steps[0])
                        e.move(origin, steps[1])
                    e.move(target, to_panel)
                left = e.b.srem(columns, ir.Constant(I64, width))
            e.vectors(left, partial(vector, target, origin), (target, steps[0]), (origin, steps[1]))
            e.move(to_at, to_row)
            e.move(from_at, depth * from_row)

    return macro(f"interleave_{depth}", 4, dtype, lanes, generate)


@functools.cache
def copy_block(dtype: str, lanes: int, to_row: int, from_row: int) -> Tile:
    """``copy(to, source, rows, columns)``: rows of contiguous elements, between row strides in bytes."""

    def generate(e: VectorTile, to: Value, source: Value, rows: Value, columns: Value) -> None:
        ends = ((e.moving(to), to_row), (e.moving(source), from_row))
        with e.loop(rows):
            target, origin = (e.moving(end.now) for end, _ in ends)
            left = columns
            for count in (4 * lanes, *(lanes >> shift for shift in range(lanes.bit_length()))):
                part = VectorTile(e.b, min(count, lanes), dtype)
                offsets = range(0, count * e.size, part.lanes * e.size)
                with e.loop(left, count):
                    loaded = [part.load(e.at(origin.now, offset)) for offset in offsets]
                    for offset, value in zip(offsets, loaded, strict=True):
                        part.store(value, e.at(target.now, offset))
                    e.move(target, count * e.size)
                    e.move(origin, count * e.size)
                left = e.left(left, count)
            for end, stride in ends:
                e.move(end, stride)

    return macro("copy_block", 4, dtype, lanes, generate)


@functools.cache
def pack_panels(dtype: str, lanes: int, width: int, to_panel: int, to_row: int, from_row: int, ahead: int = 0) -> Tile:
    """``pack(to, source, rows, columns)``: cut rows in pieces of ``width`` elements, each to its own panel.

    Reads whole rows one after the other, as the memory likes it. A last, shorter piece is filled up with zeros to whole
    vectors, where ``width`` is a multiple of ``lanes``. Of any other width pieces are stored by whole vectors all the
    same, the next row's over what is behind them: from the last row of a panel on is room for
    ``reach(width, lanes)`` elements. ``ahead``: with each piece a cache line that many rows on is prefetched, for the
    hardware follows no pieces of rows.
    """
    over = reach(width, lanes) - width

    def generate(e: VectorTile, to: Value, source: Value, rows: Value, columns: Value) -> None:
        size, unit = lanes * e.size, ir.Constant(I64, width)
        ends = ((e.moving(to), to_row), (e.moving(source), from_row))

        def vector(target: Variable, origin: Variable, count: Value | None) -> None:
            e.store(e.load(origin.now, count), target.now)

        def piece(target: Variable, origin: Variable, lanes_of: Sequence[int]) -> None:
            parts = [VectorTile(e.b, count, dtype) for count in lanes_of]
            places = [sum(lanes_of[:number]) * e.size for number in range(len(parts))]
            loaded = [part.load(e.at(origin.now, at)) for part, at in zip(parts, places, strict=True)]
            for part, at, value in zip(parts, places, loaded, strict=True):
                part.store(value, e.at(target.now, at))

        def pieces(target: Variable, origin: Variable, count: Value, lanes_of: Sequence[int], left: Variable) -> None:
            with e.loop(count, width):
                if ahead:
                    memory.prefetch(e, e.at(origin.now, ahead * from_row), 3)
                piece(target, origin, lanes_of)
                e.move(target, to_panel)
                e.move(origin, width * e.size)
                left.set(e.b.sub(left.now, unit))

        within = e.b.sub(columns, ir.Constant(I64, over))  # what is read past a piece is of the next ones
        with e.loop(rows):
            target, origin = (e.moving(end.now) for end, _ in ends)
            left = e.variable(columns)
            pieces(target, origin, within, _vectors(width, lanes), left)
            if width % lanes == 0:
                e.vectors(left.now, partial(vector, target, origin), (target, size), (origin, size))
            else:
                pieces(target, origin, left.now, _powers(width, lanes), left)
                for count in _powers(2 * lanes - 1, lanes):
                    with e.loop(left.now, count):
                        piece(target, origin, (count,))
                        e.move(target, count * e.size)
                        e.move(origin, count * e.size)
                        left.set(e.b.sub(left.now, ir.Constant(I64, count)))
            for end, stride in ends:
                e.move(end, stride)

    return macro("pack_panels", 4, dtype, lanes, generate)


def reach(width: int, lanes: int) -> int:
    """Elements that the vectors of a row of a panel take."""
    return sum(_vectors(width, lanes))


def _vectors(width: int, lanes: int) -> list[int]:
    """Lanes of the vectors that cover ``width`` elements: the last is as short as covers what is left."""
    whole, left = divmod(width, lanes)
    return [lanes] * whole + [1 << (left - 1).bit_length()] * (left > 0)


def _powers(width: int, lanes: int) -> list[int]:
    """Lanes of vectors that are ``width`` elements together."""
    whole, left = divmod(width, lanes)
    return [lanes] * whole + [1 << n for n in reversed(range(left.bit_length())) if left >> n & 1]


@functools.cache
def rank_update(
    dtype: str, rows: int, depth: int, lanes: int, a_row: int, a_k: int, b_k: int, c_row: int, stored: str = ""
) -> Tile:
    """``update(a, b, c, columns, first)``: ``c[i, j] += Σ_k a[i, k] · b[k, j]``, i < rows, k < depth.

    For few rows: streams through ``depth`` rows of ``b`` while the rows of ``c`` stay in cache. ``c`` is
    overwritten where ``first`` is nonzero. Strides in bytes; ``b`` and ``c`` are contiguous along their rows.
    ``stored``: the type that ``b`` has in memory.
    """
    # Straight code, unless instructions cannot take a number from memory for all lanes: LLVM would load those of all
    # rows beforehand, and spill them (8 rows by 8, AVX2: 11 GFLOP/s of 38; in blocks of sums by 16 25 to 27).
    straight = rows <= STRAIGHT_ROWS or "avx512f" in cpu_features()
    groups = -(-rows // UPDATED[0])
    blocks = [range(rows * g // groups, rows * (g + 1) // groups) for g in range(groups)]

    def generate(e: VectorTile, a: Value, b: Value, c: Value, columns: Value, first: Value) -> None:
        a, zero = memory.pointer(e, a), e.const(e.of, 0.0)
        fresh, source = e.b.icmp_signed("!=", first, ir.Constant(I64, 0)), VectorTile(e.b, lanes, stored or dtype)
        steps = (lanes * source.size, lanes * e.size)
        many = e.b.add(ir.Constant(I64, depth), e.b.lshr(columns, ir.Constant(I64, 62)))  # LLVM would unroll ``depth``

        def line(pointer: Value, j: int, count: Value | None) -> Value:
            return e.cast(source.load(e.at(pointer, j * steps[0]), count), e.of)

        def add(pointer: Value, count: Value | None, value: Value, over: Value) -> None:
            """At the end: short chains round less, and additions have ports of their own."""
            e.store(e.add(e.select(over, zero, e.load(pointer, count)), value), pointer, count)

        def vector(ks: range, count: Value | None) -> None:
            sums = [zero] * rows
            for k in ks:
                values = line(e.at(b_at.now, k * b_k), 0, count)
                for i in range(rows):
                    sums[i] = e.madd(e.broadcast(e.at(a, i * a_row + k * a_k)), values, sums[i])
            for i, value in enumerate(sums):
                add(e.at(c_at.now, i * c_row), count, value, fresh if not ks.start else ir.Constant(I1, 0))

        def in_blocks(vectors: int, count: Value | None) -> None:
            for block in blocks:
                sums = {(i, j): e.variable(zero) for i in block for j in range(vectors)}
                first_row, second_row = e.moving(a), e.moving(b_at.now)
                with e.loop(many):
                    panel = [line(second_row.now, j, count) for j in range(vectors)]
                    for i in block:
                        scalar = e.broadcast(e.at(first_row.now, i * a_row))
                        for j, values in enumerate(panel):
                            sums[i, j].set(e.madd(scalar, values, sums[i, j].now))
                    e.move(first_row, a_k)
                    e.move(second_row, b_k)
                for (i, j), total in sums.items():
                    add(e.at(c_at.now, i * c_row + j * steps[1]), count, total.now, fresh)

        if straight:
            for start in range(0, depth, STRAIGHT_DEPTH):
                b_at, c_at = e.moving(b), e.moving(c)
                ks = range(start, min(start + STRAIGHT_DEPTH, depth))
                e.vectors(columns, partial(vector, ks), (b_at, steps[0]), (c_at, steps[1]))
            return
        b_at, c_at, wide = e.moving(b), e.moving(c), UPDATED[1]
        with e.loop(columns, wide * lanes):
            in_blocks(wide, None)
            e.move(b_at, wide * steps[0])
            e.move(c_at, wide * steps[1])
        left = e.left(columns, wide * lanes)
        e.vectors(left, partial(in_blocks, 1), (b_at, steps[0]), (c_at, steps[1]))

    return macro(f"rank_update_{rows}x{depth}{stored}", 5, dtype, lanes, generate)


@functools.cache
def transpose_block(dtype: str, lanes: int, to_row: int, from_row: int) -> Tile:
    """``transpose(to, source, rows, columns)``: ``to[j, i] = source[i, j]``, both contiguous along their rows.

    Squares of ``lanes`` rows are transposed in registers. What is left over goes element by element.
    """

    def generate(e: VectorTile, to: Value, source: Value, rows: Value, columns: Value) -> None:
        to_at, from_at = e.moving(to), e.moving(source)

        def line(height: int) -> None:
            """``height`` rows of the source."""
            target, origin = e.moving(to_at.now), e.moving(from_at.now)
            left = columns
            if height == lanes:
                with e.loop(columns, lanes):
                    square = [e.load(e.at(origin.now, i * from_row)) for i in range(lanes)]
                    for i, value in enumerate(e.transposed(square)):
                        e.store(value, e.at(target.now, i * to_row))
                    e.move(target, lanes * to_row)
                    e.move(origin, lanes * e.size)
                left = e.left(columns, lanes)
            with e.loop(left):
                for i in range(height):
                    value = memory.element(e, e.of, e.at(origin.now, i * from_row))
                    e.b.store(value, e.at(target.now, i * e.size), align=e.size)
                e.move(target, to_row)
                e.move(origin, e.size)
            e.move(to_at, height * e.size)
            e.move(from_at, height * from_row)

        with e.loop(rows, lanes):
            line(lanes)
        with e.loop(e.left(rows, lanes)):
            line(1)

    return macro("transpose_block", 4, dtype, lanes, generate)

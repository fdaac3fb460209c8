"""Register tiles for contractions: macro intrinsics that build a whole loop in LLVM IR.

Unrolled Python source of a register tile compiles slowly; an intrinsic that emits the tile's loop as one
piece of LLVM IR compiles in a fraction of a second and runs at the machine's peak.

All addresses are byte addresses (``intp``), all strides are bytes and known at compile time, so that the
rows of a tile are immediate offsets of one pointer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)
_BYTE = ir.IntType(8)
_POINTER = ir.PointerType()
_ELEMENT = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_SIZE = {"float32": 4, "float64": 8}
_SUFFIX = {"float32": "f32", "float64": "f64"}

Tile = Callable[..., Any]
"""A Numba intrinsic, callable from printed kernels."""


class _Writer:
    """Small helpers around an IR builder: byte addressing, vectors of one element type."""

    def __init__(self, builder: Any, dtype: str, lanes: int) -> None:
        self.b = builder
        self.element = _ELEMENT[dtype]
        self.size = _SIZE[dtype]
        self.lanes = lanes
        self.vector = ir.VectorType(self.element, lanes)
        self.suffix = _SUFFIX[dtype]

    def pointer(self, address: Any) -> Any:
        return self.b.inttoptr(address, _POINTER)

    def at(self, pointer: Any, offset: int | Any) -> Any:
        """``pointer`` moved by ``offset`` bytes."""
        if isinstance(offset, int):
            if offset == 0:
                return pointer
            offset = ir.Constant(_I64, offset)
        return self.b.gep(pointer, [offset], source_etype=_BYTE)

    def load(self, pointer: Any, lanes: int | None = None) -> Any:
        kind = ir.VectorType(self.element, lanes or self.lanes)
        return self.b.load(pointer, typ=kind, align=self.size)

    def _first(self, count: int | Any) -> Any:
        """The mask of the first ``count`` lanes (a number, or an i64 value)."""
        if isinstance(count, int):
            return ir.Constant(ir.VectorType(ir.IntType(1), self.lanes), [int(i < count) for i in range(self.lanes)])
        vector = ir.VectorType(_I32, self.lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        single = self.b.insert_element(undefined, self.b.trunc(count, _I32), ir.Constant(_I32, 0))
        limit = self.b.shuffle_vector(single, undefined, ir.Constant(vector, [0] * self.lanes))
        return self.b.icmp_signed("<", ir.Constant(vector, list(range(self.lanes))), limit)

    def load_first(self, pointer: Any, count: int | Any) -> Any:
        """The first ``count`` lanes; the others are 0 and their memory is not touched."""
        mask = self._first(count)
        name = f"llvm.masked.load.v{self.lanes}{self.suffix}.p0"
        kind = ir.FunctionType(self.vector, [_POINTER, _I32, mask.type, self.vector])
        function = self.b.module.globals.get(name) or ir.Function(self.b.module, kind, name)
        return self.b.call(function, [pointer, ir.Constant(_I32, self.size), mask, self.zero])

    def store_first(self, value: Any, pointer: Any, count: int | Any) -> None:
        """Store the first ``count`` lanes."""
        mask = self._first(count)
        name = f"llvm.masked.store.v{self.lanes}{self.suffix}.p0"
        kind = ir.FunctionType(ir.VoidType(), [self.vector, _POINTER, _I32, mask.type])
        function = self.b.module.globals.get(name) or ir.Function(self.b.module, kind, name)
        self.b.call(function, [value, pointer, ir.Constant(_I32, self.size), mask])

    def load_scalar(self, pointer: Any) -> Any:
        return self.b.load(pointer, typ=self.element, align=self.size)

    def store(self, value: Any, pointer: Any) -> None:
        self.b.store(value, pointer, align=self.size)

    def broadcast(self, pointer: Any) -> Any:
        """The scalar at ``pointer`` in every lane."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        single = self.b.insert_element(undefined, self.load_scalar(pointer), ir.Constant(_I32, 0))
        return self.b.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes))

    @property
    def zero(self) -> Any:
        return ir.Constant(self.vector, [0.0] * self.lanes)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """``x·y + z``, in one instruction where the CPU has it (``fmuladd`` never calls a library)."""
        name = f"llvm.fmuladd.v{self.lanes}{self.suffix}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        function = self.b.module.globals.get(name) or ir.Function(self.b.module, kind, name)
        return self.b.call(function, [x, y, z])

    def prefetch(self, pointer: Any, write: bool = False) -> None:
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, _I32, _I32, _I32])
        name = "llvm.prefetch.p0"
        function = self.b.module.globals.get(name) or ir.Function(self.b.module, kind, name)
        self.b.call(function, [pointer, *(ir.Constant(_I32, flag) for flag in (int(write), 3, 1))])

    def loop(self, count: Any, step: int, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """``for i in range(0, count - step + 1, step)``: ``carried`` values go round; returns the last ones."""
        entry, function = self.b.block, self.b.function
        head, inside, after = (function.append_basic_block(name) for name in ("head", "inside", "after"))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(_I64)
        index.add_incoming(ir.Constant(_I64, 0), entry)
        phis = [self.b.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, entry)
        following = self.b.add(index, ir.Constant(_I64, step))
        self.b.cbranch(self.b.icmp_signed("<=", following, count), inside, after)
        self.b.position_at_end(inside)
        results = body(index, list(phis))
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, self.b.block)
        index.add_incoming(following, self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)
        return phis


def _macro(name: str, arguments: int, generate: Callable[[Any, list[Any]], None]) -> Tile:
    """An intrinsic ``name(int, …)`` of ``arguments`` integers, without a result."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        wide = [context.cast(builder, v, t, types.intp) for v, t in zip(values, signature.args, strict=True)]
        generate(builder, wide)
        return context.get_dummy_value()

    names = ", ".join(f"x{i}" for i in range(arguments))
    scope: dict[str, Any] = {"types": types, "codegen": codegen}
    # intrinsics declare their arguments by name, so the typing function is made to measure
    exec(f"def {name}(context, {names}):\n    return types.void({names}), codegen\n", scope)
    tile: Tile = intrinsic(scope[name])
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
) -> Tile:
    """``tile(a, b, c, k)``: ``c[i, j] = Σ_k a[i, k] · b[k, j]``, i < rows, j < vectors·lanes.

    ``a`` is read element by element at ``a + i·a_row + k·a_k``, ``b`` in vectors at ``b + k·b_k``, ``c`` is
    stored in vectors at ``c + i·c_row`` (strides in bytes). With ``accumulate`` the tile takes a fifth
    argument ``first`` and adds to what ``c`` holds unless ``first`` is nonzero.
    ``ahead``: prefetch the second factor that many steps of k ahead (0: leave it to the hardware).
    ``tail``: only so many lanes of the last vector exist; no other memory is touched (0: all exist).
    ``keep``: the tile also copies ``b`` to rows ``keep`` bytes apart at a last argument ``to``: packing on the
    fly, hidden behind the arithmetic.
    """
    # one step at a time for large tiles: the scheduler would mix two, and spill accumulators (two are still better
    # where loads come from memory)
    unroll = 4 if rows * vectors < 4 else 2 if rows * vectors < 16 or keep else 1

    def generate(builder: Any, values: list[Any]) -> None:
        w = _Writer(builder, dtype, lanes)
        width = w.lanes * w.size
        a, b, c = (w.pointer(v) for v in values[:3])
        # several chains an accumulator where there are too few accumulators to hide the latency of fma
        chains = unroll if rows * vectors < 2 else 2 if rows * vectors < 4 else 1
        cells = [(i, j) for i in range(rows) for j in range(vectors)]

        def load(pointer: Any, j: int) -> Any:
            at = w.at(pointer, j * width)
            return w.load_first(at, tail) if tail and j == vectors - 1 else w.load(at)

        def step(a: Any, b: Any, to: list[Any], offset: int, sums: list[Any]) -> list[Any]:
            panel = [load(w.at(b, offset * b_k), j) for j in range(vectors)]
            if ahead:
                for line in range(0, vectors * width, 64):
                    w.prefetch(w.at(b, (offset + ahead) * b_k + line))
            sums = list(sums)
            for i in range(rows):
                scalar = w.broadcast(w.at(a, i * a_row + offset * a_k))
                for j in range(vectors):
                    sums[i * vectors + j] = w.fma(scalar, panel[j], sums[i * vectors + j])
            for j in range(vectors if keep else 0):
                w.store(panel[j], w.at(to[0], offset * keep + j * width))
            return sums

        def steps(count: int) -> Callable[[Any, list[Any]], list[Any]]:
            def body(_: Any, carried: list[Any]) -> list[Any]:
                (a, b, *to), sums = carried[:ends], carried[ends:]
                for u in range(count):
                    chain = (u % chains) * len(cells)
                    sums[chain : chain + len(cells)] = step(a, b, to, u, sums[chain : chain + len(cells)])
                moved = [w.at(a, count * a_k), w.at(b, count * b_k), *(w.at(place, count * keep) for place in to)]
                return [*moved, *sums]

            return body

        start = [w.zero] * (len(cells) * chains)
        k = values[3]
        streams = [a, b, w.pointer(values[-1])] if keep else [a, b]
        ends = len(streams)
        carried = w.loop(k, unroll, [*streams, *start], steps(unroll))
        left = builder.and_(k, ir.Constant(_I64, unroll - 1))
        sums = w.loop(left, 1, carried, steps(1))[ends:]
        totals = []
        for cell in range(len(cells)):
            total = sums[cell]
            for chain in range(1, chains):
                total = builder.fadd(total, sums[chain * len(cells) + cell])
            totals.append(total)

        def finish(added: bool) -> None:
            for total, (i, j) in zip(totals, cells, strict=True):
                value = builder.fadd(total, load(w.at(c, i * c_row), j)) if added else total
                at = w.at(c, i * c_row + j * width)
                if tail and j == vectors - 1:
                    w.store_first(value, at, tail)
                else:
                    w.store(value, at)

        if not accumulate:
            finish(False)
            return
        # added at the end: a chain of additions per block rounds less than one through all of k. A branch and not a
        # choice of what to add: LLVM would load all of it first, and spill it
        first = builder.icmp_signed("!=", values[4], ir.Constant(_I64, 0))
        with builder.if_else(first) as (then, otherwise):
            with then:
                finish(False)
            with otherwise:
                finish(True)

    return _macro(f"fma_tile_{rows}x{vectors * lanes}", 4 + accumulate + bool(keep), generate)


@functools.cache
def claim_rows(width: int, row: int) -> Tile:
    """``claim(to, rows)``: ask for ``rows`` pieces of ``width`` bytes, ``row`` bytes apart, to be written soon."""

    def generate(builder: Any, values: list[Any]) -> None:
        w = _Writer(builder, "float32", 1)

        def piece(_: Any, carried: list[Any]) -> list[Any]:
            for line in range(0, width, 64):
                w.prefetch(w.at(carried[0], line), write=True)
            return [w.at(carried[0], row)]

        w.loop(values[1], 1, [w.pointer(values[0])], piece)

    return _macro("claim_rows", 2, generate)


@functools.cache
def copy_block(dtype: str, lanes: int, to_row: int, from_row: int) -> Tile:
    """``copy(to, source, rows, columns)``: rows of contiguous elements, between row strides in bytes."""

    def generate(builder: Any, values: list[Any]) -> None:
        w = _Writer(builder, dtype, lanes)
        to, source, rows, columns = w.pointer(values[0]), w.pointer(values[1]), values[2], values[3]
        pieces = [4 * lanes, *(lanes >> shift for shift in range(lanes.bit_length()))]

        def move(count: int) -> Callable[[Any, list[Any]], list[Any]]:
            def body(_: Any, carried: list[Any]) -> list[Any]:
                to, source = carried
                steps = [(j * lanes * w.size, min(count, lanes)) for j in range(max(1, count // lanes))]
                loaded = [w.load(w.at(source, offset), width) for offset, width in steps]
                for (offset, _width), value in zip(steps, loaded, strict=True):
                    w.store(value, w.at(to, offset))
                return [w.at(to, count * w.size), w.at(source, count * w.size)]

            return body

        def row(_: Any, carried: list[Any]) -> list[Any]:
            to, source = at = carried
            left = columns
            for count in pieces:
                at = w.loop(left, count, at, move(count))
                left = builder.and_(left, ir.Constant(_I64, count - 1))
            return [w.at(to, to_row), w.at(source, from_row)]

        w.loop(rows, 1, [to, source], row)

    return _macro("copy_block", 4, generate)


@functools.cache
def pack_panels(dtype: str, lanes: int, width: int, to_panel: int, to_row: int, from_row: int) -> Tile:
    """``pack(to, source, rows, columns)``: cut rows in pieces of ``width`` elements, each to its own panel.

    Reads whole rows one after the other, as the memory likes it. ``width`` is a multiple of ``lanes``; a last,
    shorter piece is filled up with zeros to whole vectors.
    """

    def generate(builder: Any, values: list[Any]) -> None:
        w = _Writer(builder, dtype, lanes)
        size = w.lanes * w.size
        to, source, rows, columns = w.pointer(values[0]), w.pointer(values[1]), values[2], values[3]

        def piece(_: Any, carried: list[Any]) -> list[Any]:
            to, source = carried
            loaded = [w.load(w.at(source, j * size)) for j in range(width // lanes)]
            for j, value in enumerate(loaded):
                w.store(value, w.at(to, j * size))
            return [w.at(to, to_panel), w.at(source, width * w.size)]

        def vector(_: Any, carried: list[Any]) -> list[Any]:
            to, source = carried
            w.store(w.load(source), to)
            return [w.at(to, size), w.at(source, size)]

        def row(_: Any, carried: list[Any]) -> list[Any]:
            to, source = carried
            rest = w.loop(columns, width, carried, piece)
            left = builder.srem(columns, ir.Constant(_I64, width))
            last, last_source = w.loop(left, lanes, rest, vector)
            count = builder.and_(left, ir.Constant(_I64, lanes - 1))
            with builder.if_then(builder.icmp_signed(">", count, ir.Constant(_I64, 0))):
                w.store(w.load_first(last_source, count), last)
            return [w.at(to, to_row), w.at(source, from_row)]

        w.loop(rows, 1, [to, source], row)

    return _macro("pack_panels", 4, generate)


@functools.cache
def rank_update(dtype: str, rows: int, depth: int, lanes: int, a_row: int, a_k: int, b_k: int, c_row: int) -> Tile:
    """``update(a, b, c, columns, first)``: ``c[i, j] += Σ_k a[i, k] · b[k, j]``, i < rows, k < depth.

    For few rows: streams through ``depth`` rows of ``b`` while the rows of ``c`` stay in cache. ``c`` is
    overwritten where ``first`` is nonzero. Strides in bytes; ``b`` and ``c`` are contiguous along their rows.
    """

    def generate(builder: Any, values: list[Any]) -> None:
        w = _Writer(builder, dtype, lanes)
        a, b, c = (w.pointer(v) for v in values[:3])
        columns, first = values[3], builder.icmp_signed("!=", values[4], ir.Constant(_I64, 0))

        def vector(count: Any = None) -> Callable[[Any, list[Any]], list[Any]]:
            def load(pointer: Any) -> Any:
                return w.load(pointer) if count is None else w.load_first(pointer, count)

            def body(_: Any, carried: list[Any]) -> list[Any]:
                b, c = carried
                sums = [w.zero] * rows
                for k in range(depth):
                    line = load(w.at(b, k * b_k))
                    for i in range(rows):
                        sums[i] = w.fma(w.broadcast(w.at(a, i * a_row + k * a_k)), line, sums[i])
                # added at the end: short chains round less, and additions have ports of their own
                for i, value in enumerate(sums):
                    at = w.at(c, i * c_row)
                    total = builder.fadd(builder.select(first, w.zero, load(at)), value)
                    w.store(total, at) if count is None else w.store_first(total, at, count)
                return [w.at(b, lanes * w.size), w.at(c, lanes * w.size)]

            return body

        rest = w.loop(columns, lanes, [b, c], vector())
        left = builder.and_(columns, ir.Constant(_I64, lanes - 1))
        with builder.if_then(builder.icmp_signed(">", left, ir.Constant(_I64, 0))):
            vector(left)(None, rest)

    return _macro(f"rank_update_{rows}x{depth}", 5, generate)


@functools.cache
def transpose_block(dtype: str, lanes: int, to_row: int, from_row: int) -> Tile:
    """``transpose(to, source, rows, columns)``: ``to[j, i] = source[i, j]``, both contiguous along their rows.

    Squares of ``lanes`` rows are transposed in registers: ``log2(lanes)`` rounds that zip row ``i`` with row
    ``i + lanes/2`` (the perfect shuffle network). What is left over goes element by element.
    """

    def generate(builder: Any, values: list[Any]) -> None:
        w = _Writer(builder, dtype, lanes)
        to, source, rows, columns = w.pointer(values[0]), w.pointer(values[1]), values[2], values[3]
        mask = ir.VectorType(_I32, lanes)
        half = lanes // 2
        low, high = (
            ir.Constant(mask, [part for i in range(start, start + half) for part in (i, lanes + i)])
            for start in (0, half)
        )

        def square(_: Any, carried: list[Any]) -> list[Any]:
            to, source = carried
            lines = [w.load(w.at(source, i * from_row)) for i in range(lanes)]
            for _round in range(lanes.bit_length() - 1):
                lines = [
                    builder.shuffle_vector(lines[i], lines[i + half], order)
                    for i in range(half)
                    for order in (low, high)
                ]
            for i, line in enumerate(lines):
                w.store(line, w.at(to, i * to_row))
            return [w.at(to, lanes * to_row), w.at(source, lanes * w.size)]

        def column(height: int) -> Callable[[Any, list[Any]], list[Any]]:
            def body(_: Any, carried: list[Any]) -> list[Any]:
                to, source = carried
                for i in range(height):
                    element = w.load_scalar(w.at(source, i * from_row))
                    w.store(element, w.at(to, i * w.size))
                return [w.at(to, to_row), w.at(source, w.size)]

            return body

        def band(_: Any, carried: list[Any]) -> list[Any]:
            to, source = carried
            rest = w.loop(columns, lanes, carried, square)
            left = builder.and_(columns, ir.Constant(_I64, lanes - 1))
            w.loop(left, 1, rest, column(lanes))
            return [w.at(to, lanes * w.size), w.at(source, lanes * from_row)]

        def row(_: Any, carried: list[Any]) -> list[Any]:
            to, source = carried
            w.loop(columns, 1, carried, column(1))
            return [w.at(to, w.size), w.at(source, from_row)]

        rest = w.loop(rows, lanes, [to, source], band)
        w.loop(builder.and_(rows, ir.Constant(_I64, lanes - 1)), 1, rest, row)

    return _macro("transpose_block", 4, generate)

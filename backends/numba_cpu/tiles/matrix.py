"""Register tiles by registers of two axes, which multiply matrices in one instruction: Intel's AMX.

A register holds up to 16 rows of up to 64 bytes. An instruction multiplies one whose rows are the first factor's, 16
elements along k each, by one whose rows are 16 columns of the second factor at one k, and adds to a third one, of 16 ×
16 sums. So it takes what register tiles of vectors do (see ``micro_kernels``): rows of the first factor that are
contiguous along k, the second one as panels. Shapes are set apart from that, once
for all tiles of a size.

Where the processor has no such registers, memory and loops over vectors stand in for them: the same sums, for tests.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from llvmlite import ir

from eqsat.schedule.tiles import MATRIX_REGISTERS, MATRIX_ROWS, matrix_registers
from eqsat_backends.numba_cpu.tiles.dots import EXTENSIONS, STEPS, WIDTH, last_width, step_of
from eqsat_backends.numba_cpu.tiles.micro_kernels import Tile, VectorTile, macro
from eqsat_backends.numba_cpu.vectors import memory
from eqsat_backends.numba_cpu.vectors.flow import I64, Variable
from eqsat_backends.numba_cpu.vectors.lanes import Value, cpu_features

_BYTE = ir.IntType(8)


class Registers(ABC):
    """Registers of these shapes, each (rows, bytes of a row), in LLVM code.

    Raises:
        ValueError: more registers than there are, or larger ones; factors that do not fit each other.
    """

    def __init__(self, e: VectorTile, shapes: Sequence[tuple[int, int]]) -> None:
        if len(shapes) > MATRIX_REGISTERS:
            raise ValueError(f"{len(shapes)} registers, {MATRIX_REGISTERS} are there")
        wrong = [(h, w) for h, w in shapes if not (0 < h <= MATRIX_ROWS and 0 < w <= WIDTH and w % 4 == 0)]
        if wrong:
            raise ValueError(f"registers have up to {MATRIX_ROWS} rows of up to {WIDTH} bytes, not {wrong}")
        self.e, self.shapes = e, tuple(shapes)

    def fits(self, sums: int, first: int, second: int) -> None:
        """``ValueError`` where the product of two registers is of another shape than the sums."""
        (rows, width), (a_rows, a_width), (b_rows, b_width) = (self.shapes[r] for r in (sums, first, second))
        if (rows, width, a_width) != (a_rows, b_width, 4 * b_rows):
            raise ValueError(f"registers {self.shapes[first]} · {self.shapes[second]} make no {self.shapes[sums]}")

    @abstractmethod
    def shape(self) -> None:
        """Shape the registers."""

    @abstractmethod
    def clear(self, register: int) -> None:
        """Fill a register with zeros."""

    @abstractmethod
    def load(self, register: int, pointer: Value, apart: int) -> None:
        """Rows from ``pointer`` on, so many bytes apart."""

    @abstractmethod
    def store(self, register: int, pointer: Value, apart: int) -> None:
        """The same to memory."""

    @abstractmethod
    def multiply(self, sums: int, first: int, second: int) -> None:
        """Add a product of two registers to a third one."""

    @abstractmethod
    def release(self) -> None:
        """Let go of all registers."""


class Native(Registers):
    """The processor's own. ``name``: of the instruction that multiplies.

    In assembly: of LLVM's own functions the scheduler of some processor models renames the registers.
    """

    def __init__(self, e: VectorTile, shapes: Sequence[tuple[int, int]], name: str) -> None:
        super().__init__(e, shapes)
        self.name = name

    def _run(self, text: str, *given: Value) -> None:
        kind = ir.FunctionType(ir.VoidType(), [x.type for x in given])
        constraint = ",".join([*["r"] * len(given), "~{memory}"])
        self.e.b.asm(kind, text, constraint, given, True)

    def shape(self) -> None:
        # palette 1; behind 16 bytes, for each of 16 registers, bytes of a row in 16 bits; then rows in 8
        layout = bytearray(WIDTH)
        layout[0] = 1
        for number, (rows, width) in enumerate(self.shapes):
            layout[16 + 2 * number] = width
            layout[48 + number] = rows
        place = room(self.e, WIDTH)
        self.e.b.store(ir.Constant(ir.VectorType(_BYTE, WIDTH), list(layout)), place, align=WIDTH)
        self._run("ldtilecfg ($0)", place)

    def clear(self, register: int) -> None:
        self._run(f"tilezero %tmm{register}")

    def load(self, register: int, pointer: Value, apart: int) -> None:
        self._run(f"tileloadd ($0,$1,1), %tmm{register}", pointer, ir.Constant(I64, apart))

    def store(self, register: int, pointer: Value, apart: int) -> None:
        self._run(f"tilestored %tmm{register}, ($0,$1,1)", pointer, ir.Constant(I64, apart))

    def multiply(self, sums: int, first: int, second: int) -> None:
        self.fits(sums, first, second)
        self._run(f"{self.name} %tmm{second}, %tmm{first}, %tmm{sums}")

    def release(self) -> None:
        self._run("tilerelease")


class InMemory(Registers):
    """Memory in their place. ``step``: adds one step of k to a vector of sums."""

    def __init__(self, e: VectorTile, shapes: Sequence[tuple[int, int]], step: Callable[..., Value]) -> None:
        super().__init__(e, shapes)
        self.step = step
        self.places = [room(e, MATRIX_ROWS * WIDTH) for _ in shapes]

    def shape(self) -> None:
        """Memory has any shape."""

    def clear(self, register: int) -> None:
        _clear(self.e, self.places[register], MATRIX_ROWS)

    def _rows(self, register: int) -> tuple[Value, Value | None]:
        """How many rows a register has, and how many elements of each, where that is not all of a vector."""
        rows, width = self.shapes[register]
        return ir.Constant(I64, rows), ir.Constant(I64, width // 4) if width < WIDTH else None

    def load(self, register: int, pointer: Value, apart: int) -> None:
        e, (rows, count) = self.e, self._rows(register)
        source, target = e.moving(pointer), e.moving(self.places[register])
        with e.loop(rows):
            e.store(e.load(source.now, count), target.now)
            e.move(source, apart)
            e.move(target, WIDTH)

    def store(self, register: int, pointer: Value, apart: int) -> None:
        e, (rows, count) = self.e, self._rows(register)
        source, target = e.moving(self.places[register]), e.moving(pointer)
        with e.loop(rows):
            e.store(e.load(source.now), target.now, count)
            e.move(source, WIDTH)
            e.move(target, apart)

    def multiply(self, sums: int, first: int, second: int) -> None:
        self.fits(sums, first, second)
        e, (rows, steps) = self.e, (self.shapes[sums][0], self.shapes[second][0])
        total_at, a_at = e.moving(self.places[sums]), e.moving(self.places[first])
        with e.loop(ir.Constant(I64, rows)):
            total, element, b_at = e.variable(e.load(total_at.now)), e.moving(a_at.now), e.moving(self.places[second])
            with e.loop(ir.Constant(I64, steps)):
                total.set(self.step(e, e.broadcast(element.now), e.load(b_at.now), total.now))
                e.move(element, 4)
                e.move(b_at, WIDTH)
            e.store(total.now, total_at.now)
            e.move(total_at, WIDTH)
            e.move(a_at, WIDTH)

    def release(self) -> None:
        """The stack is given back by itself."""


def room(e: VectorTile, nbytes: int) -> Value:
    """So many bytes of the stack, from a cache line on."""
    with e.b.goto_entry_block():
        place = e.b.alloca(ir.ArrayType(_BYTE, nbytes))
        place.align = WIDTH
        return e.b.inttoptr(e.b.ptrtoint(place, I64), memory.POINTER)  # to anything


def registers(e: VectorTile, element: str, signed_first: bool, shapes: Sequence[tuple[int, int]]) -> Registers:
    """The processor's registers for an element type, or what stands in for them."""
    if EXTENSIONS[element] not in cpu_features():
        step = step_of(element, signed_first)
        assert step is not None
        return InMemory(e, shapes, step)
    kind = "bsud" if signed_first else _KINDS[element]
    return Native(e, shapes, f"tdp{kind}")


_KINDS = {"bfloat16·bfloat16": "bf16ps", "uint8·int8": "busd", "int8·int8": "bssd", "uint8·uint8": "buud"}


@dataclass(frozen=True)
class Layout:
    """What the registers of a tile are: shapes of all, then numbers of those of sums by row and column, of the first
    factor by row, of the second by column. ``widths``: bytes of a row in each column."""

    shapes: tuple[tuple[int, int], ...]
    sums: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    second: tuple[int, ...]
    widths: tuple[int, ...]


def layout_of(rows: int, vectors: int, last: int = WIDTH) -> Layout:
    """Registers of a tile whose last vector has so many bytes.

    Raises:
        ValueError: there are not as many.
    """
    if matrix_registers(rows, vectors) > MATRIX_REGISTERS:
        raise ValueError(f"no registers for {rows} × {vectors} vectors")
    full, part = divmod(rows, MATRIX_ROWS)
    heights, widths = [*[MATRIX_ROWS] * full, *[part] * bool(part)], [*[WIDTH] * (vectors - 1), last]
    shapes = [(height, width) for height in heights for width in widths]
    sums = tuple(tuple(range(i * vectors, (i + 1) * vectors)) for i in range(len(heights)))
    second = tuple(range(len(shapes), len(shapes) + vectors))
    shapes += [(STEPS, width) for width in widths]
    first: list[int] = []
    for i, height in enumerate(heights):  # one for each row of sums where there are as many, else one of each height
        known = next((first[n] for n in range(i) if heights[n] == height), None)
        later = len({*heights[i + 1 :]} - {height})
        if known is not None and len(shapes) + later >= MATRIX_REGISTERS:
            first.append(known)
        else:
            first.append(len(shapes))
            shapes.append((height, WIDTH))
    return Layout(tuple(shapes), sums, tuple(first), second, tuple(widths))


@functools.cache
def matrix_shape(element: str, rows: int, vectors: int, last: int = WIDTH) -> Tile:
    """``shape()``: shape the registers for tiles of a size; those of :func:`layout_of`."""
    shapes = layout_of(rows, vectors, last).shapes
    return macro(
        f"matrix_shape_{rows}x{vectors}", 0, "int32", WIDTH // 4, lambda e: registers(e, element, False, shapes).shape()
    )


@functools.cache
def matrix_release(element: str) -> Tile:
    """``release()``: let go of the registers, so that threads have a small state again."""
    return macro("matrix_release", 0, "int32", WIDTH // 4, lambda e: registers(e, element, False, ()).release())


@functools.cache
def matrix_tile(
    dtype: str,
    element: str,
    signed_first: bool,
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
    ask: tuple[int, int, int, int] = (0, 0, 0, 0),
    claim: tuple[int, ...] = (),
    narrow: bool = False,
) -> Tile:
    """``tile(a, b, c, k, …)``, as ``dot_tile`` of ``micro_kernels`` with these arguments.

    The registers have to be shaped by ``matrix_shape(element, rows, vectors, last)``. What it asks for is prefetched
    with each 16 steps of k; of ``ahead`` and ``claim`` nothing is.

    Raises:
        ValueError: vectors of other than 64 bytes, more registers than there are, or a first factor that is not
            contiguous along k.
    """
    if 4 * lanes != WIDTH:
        raise ValueError(f"vectors of {4 * lanes} bytes are no rows of such registers")
    if a_k != 4:
        raise ValueError(f"a first factor whose elements lie {a_k} bytes apart along k, which have to be neighbours")
    layout = layout_of(rows, vectors, last_width(tail, narrow))
    sums, first, second, widths = layout.sums, layout.first, layout.second, layout.widths
    arguments = 4 + accumulate + bool(ask[0]) + len(claim[3:])

    def generate(e: VectorTile, a: Value, b: Value, c: Value, k: Value, *more: Value) -> None:
        held, c = registers(e, element, signed_first, layout.shapes), memory.pointer(e, c)
        a_at, b_at, ask_at = e.moving(a), e.moving(b), e.moving(more[accumulate] if ask[0] else b)
        a_copy, b_copy = room(e, rows * WIDTH), room(e, STEPS * vectors * WIDTH)
        used = [None if width == WIDTH else ir.Constant(I64, width // 4) for width in widths]

        def multiply(a_from: Value, apart: int, b_from: Value, b_apart: int) -> None:
            for j, register in enumerate(second):
                held.load(register, e.at(b_from, j * WIDTH), b_apart)
            for i, row in enumerate(sums):
                held.load(first[i], e.at(a_from, i * MATRIX_ROWS * apart), apart)
                for j, total in enumerate(row):
                    held.multiply(total, first[i], second[j])

        def copy_first(count: Value) -> None:
            """Rows of up to ``STEPS`` elements along k, filled up with 0."""
            source, target = e.moving(a_at.now), e.moving(a_copy)
            with e.loop(ir.Constant(I64, rows)):
                e.store(e.load(source.now, count), target.now)
                e.move(source, a_row)
                e.move(target, WIDTH)

        def copy_second(count: Value) -> None:
            """Up to ``STEPS`` rows of vectors, filled up with 0."""
            _clear(e, b_copy, STEPS * vectors)
            source, target = e.moving(b_at.now), e.moving(b_copy)
            with e.loop(count):
                for j in range(vectors):
                    e.store(e.load(e.at(source.now, j * WIDTH), used[j]), e.at(target.now, j * WIDTH))
                e.move(source, b_k)
                e.move(target, vectors * WIDTH)

        for total in chain.from_iterable(sums):
            held.clear(total)
        with e.loop(k, STEPS):
            for _ in range(STEPS // ask[0] if ask[0] else 0):
                for line in range(ask[1]):
                    memory.prefetch(e, e.at(ask_at.now, ask[2] * line), 2)
                e.move(ask_at, ask[3])
            multiply(a_at.now, a_row, b_at.now, b_k)
            e.move(a_at, STEPS * a_k)
            e.move(b_at, STEPS * b_k)
        left = e.left(k, STEPS)
        with e.b.if_then(e.b.icmp_signed(">", left, ir.Constant(I64, 0))):
            copy_first(left)
            copy_second(left)
            multiply(a_copy, WIDTH, b_copy, vectors * WIDTH)

        def finish(to: Value, apart: int) -> None:
            for i, row in enumerate(sums):
                for j, total in enumerate(row):
                    held.store(total, e.at(to, i * MATRIX_ROWS * apart + j * WIDTH), apart)

        if not accumulate:
            finish(c, c_row)
        else:
            with e.b.if_else(e.b.icmp_signed("!=", more[0], ir.Constant(I64, 0))) as (then, otherwise):
                with then:
                    finish(c, c_row)
                with otherwise:
                    found = room(e, rows * vectors * WIDTH)
                    finish(found, vectors * WIDTH)
                    source, target = e.moving(found), e.moving(c)
                    with e.loop(ir.Constant(I64, rows)):
                        for j in range(vectors):
                            at = e.at(target.now, j * WIDTH)
                            e.store(e.add(e.load(e.at(source.now, j * WIDTH)), e.load(at, used[j])), at, used[j])
                        e.move(source, vectors * WIDTH)
                        e.move(target, c_row)

    return macro(f"matrix_tile_{rows}x{vectors * lanes}", arguments, dtype, lanes, generate)


def _clear(e: VectorTile, place: Value, vectors: int) -> None:
    at: Variable = e.moving(place)
    with e.loop(ir.Constant(I64, vectors)):
        e.store(e.const(e.of, 0), at.now)
        e.move(at, WIDTH)

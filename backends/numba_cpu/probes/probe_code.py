"""The loops that the machine's figures are measured with, in LLVM IR, so that what runs is what is meant to run.

Arguments of each: a table [array 0, array 1, parameters]; parameters are int64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from llvmlite import ir

from eqsat.cost.calibration import LINE
from eqsat.schedule.tiles import MATRIX_ROWS
from eqsat_backends.numba_cpu.compiling.objects import host, load_ir
from eqsat_backends.numba_cpu.running.words import Word, Words
from eqsat_backends.numba_cpu.tiles.dots import WIDTH
from eqsat_backends.numba_cpu.vectors import memory
from eqsat_backends.numba_cpu.vectors.elementwise import FUNCTIONS
from eqsat_backends.numba_cpu.vectors.lanes import BYTES, Lanes, cpu_features, native_lanes, vector_registers

__all__ = [
    "BROADCASTS",
    "ELEMENTS",
    "FILL_BYTE",
    "MATRIX_SUMS",
    "fma_chains",
    "functions",
    "loops",
    "matrix",
    "panel_sizes",
    "panels",
]

BROADCASTS = 8
"""Numbers that a round of the broadcasting loop copies to all lanes."""

ELEMENTS = 2048
"""Numbers that a run of an elementwise function takes."""

FILL_BYTE = 0x3C
"""Each byte of memory that is streamed: normal numbers in float16 to float64, for subnormal ones may take longer."""

STREAMED, KEPT = 16, 8
"""Vectors of a block that is read or copied, and into how many sums what is read goes: two loads an instruction."""


def fma_chains() -> int:
    """Independent sums that keep the pipelines full, and fit in the registers."""
    return 24 if vector_registers() == 32 else 12


def block_bytes() -> int:
    """Bytes of a block that is read or copied."""
    return 4 * native_lanes(32) * STREAMED


@functools.cache
def loops() -> dict[str, int]:
    """Addresses of ``empty``, ``fma4``, ``fma8`` (bytes an element), ``chain4``, ``broadcast``, ``read``, ``copy``, and
    ``write``."""
    return _compiled(_loops, ("empty", "fma4", "fma8", "chain4", "broadcast", "read", "copy", "write"))


def _loops(module: ir.Module) -> None:
    _begin(module, "empty", 0)[0].ret()
    _fma(module, "fma4", "f32", fma_chains())
    _fma(module, "fma8", "f64", fma_chains())
    _fma(module, "chain4", "f32", 1)
    _broadcast(module, "broadcast")
    _stream(module, "read")
    _stream(module, "copy")
    _write(module, "write")


@functools.cache
def functions(names: tuple[str, ...]) -> dict[str, int]:
    """Addresses of loops over ``ELEMENTS`` float32: array 1 becomes the function of array 0, in every argument."""
    return _compiled(lambda module: _functions(module, names), names)


def _functions(module: ir.Module, names: tuple[str, ...]) -> None:
    for name in names:
        w, (source, target) = _begin(module, name, 2)
        e = Lanes(w.b, native_lanes(32))
        with w.each(ELEMENTS // e.lanes) as i:
            x = memory.load(e, "f32", (source + i * (4 * e.lanes)).value)
            value = FUNCTIONS[name].build(e, *[x] * FUNCTIONS[name].arity)
            memory.store(e, (target + i * (4 * e.lanes)).value, value)
        w.ret()


PANEL_ROWS = (2, 3, 4, 5, 6, 8, 12)
"""Rows of the register tiles that read panels, as far as registers have room for two vectors of sums of each."""

PANEL_VECTORS = 4
"""Most vectors of a row of a panel: kernels have tiles of more for a row or two only, whose requests gain nothing."""

PANEL_DEPTH, PANEL_APART = 1024, 4 * 1024 + 3 * LINE
"""Steps of the first factor, which are read again and again, and bytes from one of its rows to the next."""


def panel_sizes() -> dict[int, int]:
    """Vectors of a row of the panels that tiles of so many rows read."""
    room = vector_registers() - (1 if "fma" in cpu_features() else 2)  # an element of the first factor, a product
    return {rows: min(room // (rows + 1), PANEL_VECTORS) for rows in PANEL_ROWS if room // (rows + 1) > 1}


@functools.cache
def panels() -> dict[str, int]:
    """Addresses of register tiles over ``panel_sizes()``: ``prefetch4`` of 4 rows prefetches what it reads, ``plain4``
    leaves that to the hardware. Array 0: the first factor, and behind it room for the sums; array 1: panels. Parameter
    0: steps of k; 1: bytes that lie before the first; 2: the prefetch distance in bytes."""
    names = tuple(f"{way}{rows}" for rows in panel_sizes() for way in ("plain", "prefetch"))
    return _compiled(_panels, names)


def _panels(module: ir.Module) -> None:
    for rows, vectors in panel_sizes().items():
        _panel(module, f"plain{rows}", rows, vectors, prefetches=False)
        _panel(module, f"prefetch{rows}", rows, vectors, prefetches=True)


def _panel(module: ir.Module, name: str, rows: int, vectors: int, prefetches: bool) -> None:
    w, (a, b, parameters) = _begin(module, name)
    e = Lanes(w.b, native_lanes(32))
    steps, before, ahead = (w.get(parameters, n) for n in range(3))
    nbytes = 4 * e.lanes
    sums = [[w.variable(e.const("f32", 0.0)) for _ in range(vectors)] for _ in range(rows)]
    with w.each(steps) as k:
        first, second = a + (k & (PANEL_DEPTH - 1)) * 4, b + before + k * (vectors * nbytes)
        for line in range(0, vectors * nbytes if prefetches else 0, LINE):
            memory.prefetch(e, memory.pointer(e, (second + ahead + line).value), 3)
        panel = [memory.load(e, "f32", (second + v * nbytes).value) for v in range(vectors)]
        for i, row in enumerate(sums):
            x = e.splat(memory.element(e, "f32", (first + i * PANEL_APART).value))
            for total, values in zip(row, panel, strict=True):
                total.set(e.intrinsic("fmuladd", x, values, total.now))
    for j, total in enumerate(total for row in sums for total in row):
        memory.store(e, (a + rows * PANEL_APART + j * nbytes).value, total.now)
    w.ret()


MATRIX_SUMS = 4
"""Products of matrices that a round of their loop adds to different sums."""


@functools.cache
def matrix(element: str) -> int:
    """Address of a loop over products of registers of two axes. Parameter 0: rounds. Array 0: 16 rows of the first
    factor, 64 bytes each, and 16 of the second; array 1: 16 rows of 16 sums of ``MATRIX_SUMS`` products."""
    name = f"matrix_{element.replace('·', '_')}"
    return _compiled(lambda module: _matrix(module, name, element), (name,))[name]


def _matrix(module: ir.Module, name: str, element: str) -> None:
    from eqsat_backends.numba_cpu.tiles.matrix import registers  # imports Numba
    from eqsat_backends.numba_cpu.tiles.micro_kernels import VectorTile

    w, (a, b, parameters) = _begin(module, name)
    e = VectorTile(w.b, WIDTH // 4, "float32" if element.startswith("bf") else "int32")
    held = registers(e, element, False, [(MATRIX_ROWS, WIDTH)] * (MATRIX_SUMS + 2))
    first, second, size = MATRIX_SUMS, MATRIX_SUMS + 1, MATRIX_ROWS * WIDTH
    held.shape()
    held.load(first, memory.pointer(e, a.value), WIDTH)
    held.load(second, memory.pointer(e, (a + size).value), WIDTH)
    for total in range(MATRIX_SUMS):
        held.clear(total)
    with w.each(w.get(parameters)):
        for total in range(MATRIX_SUMS):
            held.multiply(total, first, second)
    for total in range(MATRIX_SUMS):
        held.store(total, memory.pointer(e, (b + total * size).value), WIDTH)
    held.release()
    w.ret()


def _compiled(write: Callable[[ir.Module], None], names: Sequence[str]) -> dict[str, int]:
    """Addresses of the functions that ``write`` adds to a module; ``name`` is the function ``eqsat_probe_name``."""

    def written() -> str:
        module = ir.Module()
        module.triple = host().triple
        write(module)
        return str(module)

    entries = {name: f"eqsat_probe_{name}" for name in names}
    return load_ir(f"probes {' '.join(names)}", written, entries, as_written=True)


def _begin(module: ir.Module, name: str, entries: int = 3) -> tuple[Words, list[Word]]:
    """A loop's function, and as many entries of its table."""
    w = Words(module, f"eqsat_probe_{name}", 3, internal=False)
    return w, [w.get(w.arguments[0], n) for n in range(entries)]


def _fma(module: ir.Module, name: str, kind: str, chains: int) -> None:
    """Parameter 0: rounds of ``chains`` independent multiply-adds. Enough fill the pipelines, one shows latency.

    ``fmuladd``, as in kernels: without such an instruction a product and a sum, never a call of the C library.
    """
    w, (a, b, parameters) = _begin(module, name)
    e = Lanes(w.b, native_lanes(8 * BYTES[kind]))
    x, sums = memory.load(e, kind, a.value), [w.variable(e.const(kind, float(c))) for c in range(chains)]
    with w.each(w.get(parameters)):
        for total in sums:
            total.set(e.intrinsic("fmuladd", total.now, x, x))
    for c, total in enumerate(sums):
        memory.store(e, (b + c * e.lanes * BYTES[kind]).value, total.now)
    w.ret()


def _broadcast(module: ir.Module, name: str) -> None:
    """Parameter 0: rounds in which ``BROADCASTS`` numbers of a page of array 0 are copied to all lanes."""
    w, (a, b, parameters) = _begin(module, name)
    e = Lanes(w.b, native_lanes(32))
    kept = [w.variable(e.const("i32", 0)) for _ in range(BROADCASTS)]
    with w.each(w.get(parameters)) as i:
        row = a + ((i * BROADCASTS) & 1023) * 4
        for v, total in enumerate(kept):
            total.set(w.b.xor(total.now, e.splat(memory.element(e, "i32", (row + 4 * v).value))))
    for v, total in enumerate(kept):
        memory.store(e, (b + v * e.lanes * 4).value, total.now)
    w.ret()


def _write(module: ir.Module, name: str) -> None:
    """Write lines of array 0, those of a column before those of the next. Parameter 0: rows; 1: bytes from one to the
    next; 2: columns; 3: how often."""
    w, (a, _, parameters) = _begin(module, name)
    e = Lanes(w.b, native_lanes(32))
    rows, apart, columns, often = (w.get(parameters, n) for n in range(4))
    x = e.const("i32", int.from_bytes(bytes([FILL_BYTE] * 4)))
    with w.each(often):
        with w.each(columns) as column, w.each(rows) as row:
            for place in range(0, LINE, 4 * e.lanes):
                memory.store(e, (a + row * apart + column * LINE + place).value, x)
        w.b.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)
    w.ret()


def _stream(module: ir.Module, name: str) -> None:
    """Read, or copy, thread tid's slice. Parameter 0: blocks; 1: how often."""
    w, (a, b, parameters) = _begin(module, name)
    e = Lanes(w.b, native_lanes(32))
    (_, tid, nt), nbytes, blocks = w.arguments, 4 * e.lanes, w.get(parameters)
    seen = [w.variable(e.const("i32", 0)) for _ in range(KEPT)]
    start, stop = blocks * tid // nt, blocks * (tid + 1) // nt
    with w.each(w.get(parameters, 1)):
        with w.each(stop, first=start) as i:
            for v in range(STREAMED):
                place, total = i * (STREAMED * nbytes) + v * nbytes, seen[v % KEPT]
                x = memory.load(e, "i32", (a + place).value)
                total.set(w.b.xor(total.now, x))
                if name == "copy":
                    memory.store(e, (b + place).value, x)
        w.b.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)
    if name == "read":
        # to the parameters, a vector per thread behind their first line, so that no read is dropped
        every = functools.reduce(w.b.or_, (total.now for total in seen))
        memory.store(e, (parameters + (tid + 1) * 64).value, every)
    w.ret()

"""Macro tiles against NumPy: every size, stride, tail and option."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from eqsat_backends.numba_cpu.compiling.jit import compile_module
from eqsat_backends.numba_cpu.tiles.tile_ops import REGISTER_TILES

GUARD = 3.25


def call(
    definition: str, pointers: Sequence[np.ndarray], *numbers: int, module: str = "micro_kernels", around: str = ""
) -> None:
    """Compile ``tile = definition`` from a module of tiles and call it once.

    ``around``: tiles to call before and behind it, without arguments.
    """
    count = len(pointers) + len(numbers)
    words = ", ".join(f"word(args, {i})" for i in range(count))
    source = (
        "from eqsat_backends.numba_cpu.vectors.simd import word\n"
        f"from eqsat_backends.numba_cpu.tiles import {module}\n\n"
        f"tile = {module}.{definition}\n{around and f'before, behind = {around}'}\n\n\ndef phase(args, tid, nt):\n"
        f"{around and '    before()'}\n    tile({words})\n{around and '    behind()'}\n"
    )
    address = compile_module(source, ("phase",))["phase"]
    table = np.array([*(p.ctypes.data for p in pointers), *numbers], np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)(table.ctypes.data, 0, 1)


def random(*shape: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "vectors", "lanes"), [(14, 2, 16), (6, 2, 8), (1, 1, 4), (1, 3, 8), (3, 1, 2)])
def test_fma_tile(dtype: str, rows: int, vectors: int, lanes: int) -> None:
    size, n = np.dtype(dtype).itemsize, vectors * lanes
    tail = n - 1 if lanes > 1 else n
    half = lanes // 2 if lanes == 8 else 0
    for k in (0, 1, 5, 34):
        a, b = random(rows, 40, dtype=dtype), random(40, n, dtype=dtype)
        for columns, options in (
            (n, ""),
            (tail, f", tail={(tail - 1) % lanes + 1}"),
            (n - half, f", accumulate=True, ahead=2, narrow={half > 0}"),
        ):
            c = np.full((rows, n + 1), GUARD, dtype)
            strides = f"{40 * size}, {size}, {n * size}, {(n + 1) * size}"
            first = [0] if "accumulate" in options else []
            call(f'fma_tile("{dtype}", {rows}, {vectors}, {lanes}, {strides}{options})', (a, b, c), k, *first)
            expected = a[:, :k].astype(np.float64) @ b[:k, :columns] + (GUARD if first else 0)
            assert np.allclose(c[:, :columns], expected, rtol=1e-5, atol=1e-5)
            assert (c[:, columns:] == GUARD).all()


def test_fma_tile_first_overwrites() -> None:
    a, b, c = random(2, 8, dtype="float32"), random(8, 16, dtype="float32"), np.full((2, 16), np.nan, np.float32)
    call('fma_tile("float32", 2, 1, 16, 32, 4, 64, 64, accumulate=True)', (a, b, c), 8, 1)
    assert np.allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_fma_tile_packs_on_the_fly() -> None:
    a, b = random(3, 9, dtype="float32"), random(9, 50, dtype="float32")
    c, to = np.zeros((3, 32), np.float32), np.full((9, 32), GUARD, np.float32)
    tile = 'fma_tile("float32", 3, 2, 16, 36, 4, 200, 128, tail=5, keep=128)'
    call(tile, (a, b, c), 9, to.ctypes.data)
    assert np.allclose(c[:, :21], (a @ b)[:, :21], rtol=1e-5, atol=1e-5)
    assert np.array_equal(to[:, :21], b[:, :21]) and not to[:, 21:].any()


@pytest.mark.parametrize("lanes", [4, 16])
def test_rank_update(lanes: int) -> None:
    a, b = random(3, 20, dtype="float32"), random(20, 45, dtype="float32")
    for columns in (45, 16, 3, 0):
        c = np.full((3, 45), GUARD, np.float32)
        tile = f'rank_update("float32", 3, 8, {lanes}, 80, 4, 180, 180)'
        call(tile, (a, b, c), columns, 1)
        call(tile, (a[:, 8:], b[8:], c), columns, 0)
        assert np.allclose(c[:, :columns], (a[:, :16] @ b[:16])[:, :columns], rtol=1e-5, atol=1e-5)
        assert (c[:, columns:] == GUARD).all()


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 16), ("float32", 4), ("float64", 8)])
@pytest.mark.parametrize("shape", [(16, 16), (35, 41), (3, 5), (64, 17), (5, 33), (0, 4), (4, 0)], ids=str)
def test_copies(dtype: str, lanes: int, shape: tuple[int, int]) -> None:
    rows, columns = shape
    size = np.dtype(dtype).itemsize
    source = random(rows, 90, dtype=dtype)
    to = np.full((rows, 80), GUARD, dtype)
    call(f'copy_block("{dtype}", {lanes}, {80 * size}, {90 * size})', (to, source), rows, columns)
    assert np.array_equal(to[:, :columns], source[:, :columns]) and (to[:, columns:] == GUARD).all()
    to = np.full((columns, 80), GUARD, dtype)
    call(f'transpose_block("{dtype}", {lanes}, {80 * size}, {90 * size})', (to, source), rows, columns)
    assert np.array_equal(to[:, :rows], source[:, :columns].T) and (to[:, rows:] == GUARD).all()


@pytest.mark.parametrize("columns", [0, 5, 16, 32, 70, 96])
def test_pack_panels(columns: int) -> None:
    source = random(7, 100, dtype="float32")
    to = np.full((4, 7, 32), GUARD, np.float32)
    call('pack_panels("float32", 16, 32, 896, 128, 400)', (to, source), 7, columns)
    for panel in range(4):
        width = min(32, max(0, columns - 32 * panel))
        assert np.array_equal(to[panel, :, :width], source[:, 32 * panel : 32 * panel + width])
        filled = -(-width // 16) * 16
        assert not to[panel, :, width:filled].any() and (to[panel, :, filled:] == GUARD).all()


def test_tile_shape_fits_the_registers() -> None:
    for registers, shapes in REGISTER_TILES.items():
        for rows, vectors in shapes:
            assert rows * vectors + vectors + 1 <= registers


def test_a_wrong_stride_is_seen() -> None:
    """Negative control of the comparisons above."""
    a, b, c = random(2, 8, dtype="float32"), random(8, 16, dtype="float32"), np.zeros((2, 16), np.float32)
    call('fma_tile("float32", 2, 1, 16, 28, 4, 64, 64)', (a, b, c), 8)
    assert not np.allclose(c, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ask", [(2, 1, 64, 8192), (8, 3, 4096, 64)])
@pytest.mark.parametrize("keep", [0, 128])
def test_fma_tile_asks_for_what_is_read_next(keep: int, ask: tuple[int, ...]) -> None:
    """What is asked for changes no result, whatever address it is, and whether k is a multiple of the requests."""
    rng = np.random.default_rng(0)
    for k in (1, 8, 11):
        a, b = rng.random((3, k), np.float32), rng.random((k, 32), np.float32)
        c, kept = np.zeros((3, 32), np.float32), np.zeros((k, 32), np.float32)
        tile = f'fma_tile("float32", 3, 2, 16, {4 * k}, 4, 128, 128, accumulate=True, keep={keep}, ask={ask})'
        call(tile, (a, b, c), k, 1, *[kept.ctypes.data] * bool(keep), 64)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)
        assert not keep or (kept == b).all()


BEFORE_AN_EPILOGUE = '''
import sys
import llvmlite.binding as llvm

# of one processor, whatever runs this: LLVM's order of instructions, and so what it spills, follows the processor
llvm.get_host_cpu_name = lambda: "znver3"
features = "sse2 sse3 ssse3 sse4.1 sse4.2 avx avx2 fma f16c".split()
llvm.get_host_cpu_features = lambda: llvm.FeatureMap(dict.fromkeys(features, True))
from eqsat_backends.numba_cpu.compiling import jit
from eqsat_backends.numba_cpu.tiles import micro_kernels

if "held" in sys.argv:
    micro_kernels.VectorTile.release = lambda self: None
print(jit.assembly("""
from eqsat_backends.numba_cpu.tiles.micro_kernels import fma_tile
from eqsat_backends.numba_cpu.vectors.simd import add, load_f32x8, relu, store, word

shapes = {(rows, vectors): ("float32", rows, vectors, 8, 4, 676, 96, 96) for rows in (4, 1) for vectors in (3, 2)}
tile_4x24_ask = fma_tile(*shapes[4, 3], ask=(2, 1, 64, 192))
tile_4x16_ask = fma_tile(*shapes[4, 2], ask=(2, 1, 64, 192))
tile_4x24, tile_4x16, tile_1x24, tile_1x16 = (fma_tile(*shape) for shape in shapes.values())


def phase(args, tid, nt):
    b, a, bias, out, scratch = word(args, 0), word(args, 1), word(args, 2), word(args, 3), word(args, 4)
    for n in range(0, 256, 24):
        following = b + 256 * (n + 24)
        for m in range(0, 169, 4):
            rows, columns = min(4, 169 - m), min(24, 256 - n)
            if columns == 24 and rows == 4 and m // 4 < 4:
                tile_4x24_ask(a + 4 * m, b + 256 * n, scratch, 64, following + 96 * (m // 8) + 64 * (m // 4 % 2))
            elif columns == 24 and rows == 4:
                tile_4x24(a + 4 * m, b + 256 * n, scratch, 64)
            elif columns == 24 and rows == 1:
                tile_1x24(a + 4 * m, b + 256 * n, scratch, 64)
            elif columns == 16 and rows == 4 and m // 4 < 4:
                tile_4x16_ask(a + 4 * m, b + 256 * n, scratch, 64, following + 96 * (m // 8) + 64 * (m // 4 % 2))
            elif columns == 16 and rows == 4:
                tile_4x16(a + 4 * m, b + 256 * n, scratch, 64)
            else:
                tile_1x16(a + 4 * m, b + 256 * n, scratch, 64)
            for i in range(rows):
                for j in range(n, n + columns, 8):
                    sums = add(load_f32x8(scratch + 96 * i + 4 * (j - n)), load_f32x8(bias + 4 * j))
                    store(out + 1024 * (m + i) + 4 * j, relu(sums))
""", ("phase",)))
'''


def loops(text: str) -> list[str]:
    """The innermost loops of a function in assembly that multiply and add vectors."""
    parts = re.split(r"^(\.?LBB\w+):", text, flags=re.M)
    bodies = zip(parts[1::2], parts[2::2], strict=True)
    return [body for label, body in bodies if re.search(rf"\tj\w+\t{label}$", body, re.M) and "vfmadd" in body]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the registers are those of AVX2")
@pytest.mark.parametrize("held", [False, True])
def test_a_tile_that_takes_all_registers_spills_no_sums_for_an_epilogue(held: bool) -> None:
    # 12 sums, 3 vectors of the second factor and an element of the first take all 16; LLVM held ReLU's zeros in one
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    environment.pop("EQSAT_VECTOR_BITS", None)
    command = [sys.executable, "-c", BEFORE_AN_EPILOGUE, *["held"] * held]
    text = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True).stdout
    found = loops(text)
    assert len(found) >= 2
    spilled = [bool(re.search(r"\(%r[sb]p\), %ymm|%ymm\d+, -?\w*\(%r[sb]p\)", body)) for body in found]
    assert any(spilled) if held else not any(spilled)

"""Products of small integers: tiles, layouts, printed contractions and whole programs against NumPy's integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqsat
from eqsat import nn
from eqsat.egraph.saturate import saturate
from eqsat.extract.select import extract
from eqsat.ir import build
from eqsat.ir.contraction import DOTS, dot_of, product_of
from eqsat.ir.kernel import Acc, Call, Kernel, KernelGroup, Load, Operand, Stage
from eqsat.ir.nest import Loop, TileOp
from eqsat.ir.types import DType, TensorType, dtype_of, float32, int32, uint16
from eqsat.plan.lower import lower
from eqsat.rules import select
from eqsat.schedule import schedule
from eqsat_backends.numba_cpu.printing import contract, contract_printer
from eqsat_backends.numba_cpu.printing.emitted import PackSpec
from eqsat_backends.numba_cpu.target import host, target_of
from eqsat_backends.numba_cpu.tiles import dots
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import machine
from tests.test_contract import run
from tests.test_extract import RATES
from tests.test_tiles import call

NOTHING: frozenset[str] = frozenset()
TYPES = [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8"), ("uint8", "uint8"), ("int16", "int16")]


def element_of(types: tuple[str, str]) -> str:
    """The element type of blocks of two factors."""
    return "·".join(sorted(types, reverse=True))


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Any integers, a third of them the extremes, at which what saturates would show."""
    limits, random = np.iinfo(dtype), np.random.default_rng(seed + sum(shape))
    values = random.integers(limits.min, limits.max + 1, shape)
    extremes = random.choice([limits.min, limits.max], shape)
    return np.where(random.random(shape) < 0.3, extremes, values).astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int32)


def beside(x: np.ndarray, depth: int) -> np.ndarray:
    """Rows as the tiles take them: ``depth`` of them side by side, column by column."""
    k, n = x.shape
    return np.ascontiguousarray(x.reshape(k // depth, depth, n).swapaxes(1, 2))


@pytest.mark.parametrize("features", [None, NOTHING])
@pytest.mark.parametrize("lanes", [16, 8, 4])
@pytest.mark.parametrize("types", TYPES)
def test_dot_tile(
    types: tuple[str, str], lanes: int, features: frozenset[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the processor's instruction, by those that widen, and by what any processor has: the same bits."""
    native = features is None and lanes == 16
    if features is not None:
        monkeypatch.setattr(dots, "cpu_features", lambda: features)
    depth, element = 32 // dtype_of(types[0]).bits, element_of(types)
    k, rows, row = 6 * depth, 3, 32 // depth
    a, b = drawn((rows, k), types[0]), drawn((k, lanes), types[1])
    c = np.zeros((rows, lanes), np.int32)
    sizes = f"{rows}, 1, {lanes}, {k * a.itemsize}, 4, {lanes * 4}, {lanes * 4}"
    name = f"step={row}" if features is not None else ""  # told apart in the cache of compiled modules
    call(
        f'dot_tile("int32", "{element}", {types == ("int8", "uint8")}, {native}, {sizes})  # {name}',
        (a, beside(b, depth), c),
        k // depth,
    )
    assert np.array_equal(c, wide(a) @ wide(b))


@pytest.mark.parametrize(("dtype", "depth"), [("int8", 4), ("int16", 2)])
def test_interleave(dtype: str, depth: int) -> None:
    for columns in (16, 21, 3):
        x, to = drawn((2 * depth, columns), dtype), np.zeros((2, 48 * depth), dtype)
        call(f'interleave("{dtype}", {depth}, 16, 192, {columns * x.itemsize})', (to, x), 2, columns)
        assert np.array_equal(to[:, : columns * depth], beside(x, depth).reshape(2, -1))
        assert not to[:, columns * depth :].any()


@pytest.mark.parametrize(("dtype", "depth"), [("int8", 4), ("int16", 2)])
@pytest.mark.parametrize("columns", [64, 96, 85, 20])
def test_interleave_to_panels(dtype: str, depth: int, columns: int) -> None:
    """Whole panels of 32 columns, and what is left over in the last one."""
    x, to = drawn((3 * depth, columns), dtype), np.zeros((-(-columns // 32), 3, 32 * depth), dtype)
    panel = to.itemsize * to[0].size
    call(f'interleave("{dtype}", {depth}, 16, 128, {columns * x.itemsize}, 32, {panel})', (to, x), 3, columns)
    for number, found in enumerate(to):
        expected = x[:, 32 * number : 32 * number + 32]
        width = depth * expected.shape[1]
        assert np.array_equal(found[:, :width], beside(expected, depth).reshape(3, -1)) and not found[:, width:].any()


@given(st.integers(1, 9), st.integers(1, 40), st.sampled_from((1, 2, 4)))
def test_packed_constants_fill_up_with_zeros(k: int, n: int, depth: int) -> None:
    x, tile = drawn((k, n), "int8"), 16
    spec = PackSpec(0, 0, (), ((n, 1),), ((k, n),), tile, depth)
    packed = spec.apply(x.reshape(-1))
    assert packed.size == spec.size
    padded = np.zeros((-(-k // depth) * depth, -(-n // tile) * tile), np.int8)
    padded[:k, :n] = x
    panels = [beside(padded[:, at : at + tile], depth).reshape(-1) for at in range(0, padded.shape[1], tile)]
    assert np.array_equal(packed, np.concatenate(panels))
    assert PackSpec.from_json(spec.to_json()) == spec


def product(m: int, n: int, k: int, types: tuple[str, str], turned: bool = False, const: bool = False) -> KernelGroup:
    """``x @ w`` of small integers in int32; ``turned``: w lies as its transpose."""
    a, b = (dtype_of(t) for t in types)
    loads = Load(0, 0, (k, 0, 1), a), Load(1, 0, (0, k, 1) if turned else (0, 1, n), b)
    body = Call("mul", tuple(Call("cast", (x,), int32) for x in loads), int32)
    operands = Operand(a, m * k), Operand(b, k * n, const)
    kernel = Kernel((m, n, k), 2, "sum", body, Acc(int32), operands, Operand(int32, m * n), 0, (n, 1))
    return KernelGroup((Stage(kernel, (0, 1), 2),), 0, (*operands, kernel.out), (2,))


CASES = [
    (37, 50, 61, ("uint8", "int8"), False, False),
    (9, 33, 24, ("int8", "uint8"), True, False),
    (33, 17, 7, ("int16", "int8"), True, False),
    (30, 40, 66, ("uint8", "int8"), False, True),
    (29, 40, 50, ("int8", "int8"), False, False),
    (29, 40, 50, ("uint8", "uint8"), True, False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_printed_products_and_their_fallback(
    case: tuple[int, int, int, tuple[str, str], bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nest that the search prefers, with and without the processor's dot products."""
    m, n, k, types, turned, const = case
    group = product(m, n, k, types, turned, const)
    nest, target = schedule(group, cpu_target(machine())).nest, target_of(machine())
    x, w = drawn((m, k), types[0]), drawn((k, n), types[1])
    arrays = [x, w.T.copy() if turned else w, np.zeros((m, n), np.int32)]
    emitted = contract.emit(group, nest, target)
    sources = {emitted.source}
    assert np.array_equal(run(emitted, arrays)[2].reshape(m, n), wide(x) @ wide(w))
    monkeypatch.setattr(contract_printer, "cpu_features", lambda: NOTHING)
    emitted = contract.emit(group, nest, target)
    assert np.array_equal(run(emitted, arrays)[2].reshape(m, n), wide(x) @ wide(w))
    sources.add(emitted.source)
    assert len(sources) == (2 if dots.NEEDS["uint8·int8"] in dots.cpu_features() else 1)


def test_what_is_no_product_of_small_integers() -> None:
    def types_of(first: DType, second: DType, to: DType = int32, offered: str = "") -> list[str] | None:
        body = Call("mul", tuple(Call("cast", (Load(i, 0, (1,), t),), to) for i, t in enumerate((first, second))), to)
        kernel = Kernel((4,), 0, "sum", body, Acc(to), (), Operand(to, 1), 0, ())
        found = dot_of(kernel, [offered])
        return None if found is None else [str(e.dtype) for e in found[1:]]

    u8, s8, s16 = map(dtype_of, ("uint8", "int8", "int16"))
    assert types_of(s8, u8) == ["int8", "uint8"]
    assert types_of(u8, u8) == types_of(s8, s8) == types_of(s8, s16) == ["int16", "int16"]
    assert types_of(u8, u8, offered="uint8·uint8") == ["uint8", "uint8"]  # by targets with tiles for it
    assert types_of(s8, s8, offered="int8·int8") == ["int8", "int8"]
    assert types_of(uint16, s8) is types_of(s8, s8, dtype_of("int64")) is types_of(s8, s8, s16) is None
    kernel = product(4, 20, 8, ("uint8", "int8")).stages[0].kernel
    found = product_of(kernel)
    assert found is not None and found.dot is DOTS[3] and not found.swapped


Program = Callable[[np.ndarray, np.ndarray], np.ndarray]
PROGRAMS: list[tuple[Program, tuple[int, ...], tuple[int, ...], str, str]] = [
    (lambda x, w: wide(x) @ wide(w), (19, 70), (70, 45), "int8", "int8"),
    (lambda x, w: np.einsum("bmk,nk->bmn", wide(x), wide(w)), (2, 17, 40), (33, 40), "uint8", "int8"),
    (lambda x, w: np.tensordot(wide(x), wide(w), ((1, 2), (0, 1))), (20, 5, 9), (5, 9, 31), "int8", "uint8"),
    (lambda x, w: np.maximum(wide(x) @ wide(w) + 7, 0).astype(np.uint8), (16, 12), (12, 32), "uint8", "int8"),
    (lambda x, w: x @ w, (16, 12), (12, 32), "int8", "int8"),  # wraps around in int8
    (lambda x, w: wide(x) @ wide(w), (3, 0), (0, 5), "uint8", "int8"),
]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs(number: int) -> None:
    function, left, right, *types = PROGRAMS[number]
    x, w = drawn(left, types[0]), drawn(right, types[1])
    found = eqsat.optimize(function, strict=True)(x, w)
    expected = function(x, w)
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


def test_windows_of_bytes_are_products_too() -> None:
    """A convolution of bytes: what is padded stays bytes, and the tiles see through the casts."""

    def convolve(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.asarray(eqsat.nn.conv2d(wide(x), wide(w), padding=1))

    x, w = drawn((1, 5, 9, 8), "uint8"), drawn((20, 5, 3, 3), "int8")
    optimized = eqsat.optimize(convolve, strict=True)
    assert np.array_equal(optimized(x, w), convolve(x, w))
    assert "fma" in str(optimized.explain(x, w))


@pytest.mark.parametrize("stored", ["int8", "uint8", "float16"])
def test_few_rows_stream_what_is_stored(stored: str) -> None:
    """A rank-k update reads weights as they are stored and makes floats of them in registers."""
    m, n, k = 3, 53, 20
    dtype = dtype_of(stored)
    weights = Call("cast", (Load(1, 0, (0, 1, n), dtype),), float32)
    body = Call("mul", (Load(0, 0, (k, 0, 1), float32), weights), float32)
    operands = Operand(float32, m * k), Operand(dtype, k * n)
    kernel = Kernel((m, n, k), 2, "sum", body, Acc(float32), operands, Operand(float32, m * n), 0, (n, 1))
    group = KernelGroup((Stage(kernel, (0, 1), 2),), 0, (*operands, kernel.out), (2,))
    nest = Loop("k", k, 8, TileOp("update", (("m", m), ("n", n), ("k", 8))))
    x = np.arange(m * k, dtype=np.float32).reshape(m, k) % 7 - 3
    w = drawn((k, n), stored) if dtype.kind == "int" else np.linspace(-3, 3, k * n, dtype=stored).reshape(k, n)
    emitted = contract.emit(group, nest, host())
    found = run(emitted, [x, w, np.zeros((m, n), np.float32)])[2].reshape(m, n)
    assert np.allclose(found, x @ w.astype(np.float32), rtol=1e-6, atol=1e-4)
    computed = replace(kernel, body=Call("mul", (body.args[0], Call("exp", (weights,), float32)), float32))
    with pytest.raises(ValueError, match="factor b of stage 0 cannot be read in place"):
        contract.emit(replace(group, stages=(Stage(computed, (0, 1), 2),)), nest, host())


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_casts_of_bytes_are_padded_with_infinities(dtype: type) -> None:
    x = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    fn = eqsat.optimize(lambda x: nn.max_pool1d(x.astype(dtype), (3,), padding=1, layout="NLC"), strict=True)
    np.testing.assert_array_equal(fn(x), x[1:2].astype(dtype))


@pytest.mark.parametrize("slots", [1.0, 12.0])
def test_what_has_no_tile_is_not_preferred_to_dot_products_in_steps(slots: float) -> None:
    """Nor where a processor takes more slots for four products of bytes than for four of floats: as integers of 32
    bits they would be multiplied one by one."""
    x = build.input_node(0, TensorType((3136, 256), dtype_of("uint8")))
    w = build.input_node(1, TensorType((256, 64), dtype_of("int8")))
    product = build.matmul(*(build.cast(factor, int32) for factor in (x, w)))
    rates = replace(RATES, dots={"float32": 1.0, "float64": 1.0, "int16·int16": 2.0, "uint8·int8": slots})
    egraph = saturate([build.call("maximum", product, build.scalar(0, product))], rules=select(), const=frozenset([w]))
    (best, *_) = extract(egraph, rates, seconds=10.0, lowers=lambda term: lower(term) is not None)
    assert {read.type.dtype.name for kernel in best.kernels for read in kernel.reads()} == {"uint8", "int8"}

"""Register tiles by registers of two axes: their sums, their machine code, and where they are offered.

Where the processor has none, memory stands in for them, so that all but the instructions themselves is run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llvmlite import ir

import eqsat
from eqsat.cost.machine import Machine, cpu_name
from eqsat.ir.nest import Loop, Nest, Pack, TileOp
from eqsat.schedule import schedule
from eqsat.schedule.price import Pricer
from eqsat.schedule.problem import problem_of
from eqsat_backends.numba_cpu import target as printing
from eqsat_backends.numba_cpu.compiling.objects import target_machine
from eqsat_backends.numba_cpu.printing import contract
from eqsat_backends.numba_cpu.probes import probe_code, timers
from eqsat_backends.numba_cpu.tiles import matrix, tile_ops
from eqsat_backends.numba_cpu.vectors import lanes
from eqsat_backends.numba_cpu.vectors.lanes import cpu_features, native_lanes
from tests.kernel_groups import machine
from tests.test_contract import run
from tests.test_small_integers import TYPES, beside, drawn, element_of, product, wide
from tests.test_tiles import call

BYTES, PAIRS = "uint8·int8", "bfloat16·bfloat16"
ELEMENTS = {BYTES: "tdpbusd", "int8·int8": "tdpbssd", "uint8·uint8": "tdpbuud", PAIRS: "tdpbf16ps"}
HAVE = frozenset({"amx-tile", "amx-int8", "amx-bf16"})
GUARD = 77

pytestmark = pytest.mark.skipif(native_lanes(32) != 16, reason="vectors of 64 bytes go with these registers")


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose processor has such registers, according to its model; kernels run by what it really has."""
    monkeypatch.setattr(tile_ops, "cpu_features", lambda: cpu_features() | HAVE)
    printing.target_of.cache_clear()
    return replace(machine(), matrix_ns=tuple((element, 5.0) for element in ELEMENTS))


def tile(made: str, pointers: Sequence[np.ndarray], *numbers: int, last: int = 64) -> None:
    """Call a tile once, with registers in its shapes."""
    _, element, _, rows, vectors, *_ = made.split(", ")
    shape = f"matrix.matrix_shape({element}, {rows}, {vectors}, {last})"
    call(made, pointers, *numbers, module="matrix", around=f"{shape}, matrix.matrix_release({element})")


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([(32, 2), (16, 3), (80, 1), (20, 2), (7, 1), (1, 3)]),
    st.sampled_from([0, 1, 15, 16, 17, 48, 50]),
    st.sampled_from([0, 5, 8]),
    st.sampled_from(["alone", "first", "added"]),
    st.sampled_from(TYPES[:4]),
)
@example((32, 2), 35, 0, "added", ("uint8", "int8"))
@example((20, 2), 35, 3, "added", ("int8", "uint8"))
def test_tile_of_bytes(shape: tuple[int, int], k: int, tail: int, sums: str, types: tuple[str, str]) -> None:
    """Any depth, the last vector in part, sums that are added to: NumPy's bits."""
    rows, vectors = shape
    a, b = drawn((rows, 4 * k), types[0]), drawn((4 * k, 16 * vectors), types[1])
    columns, pitch = 16 * vectors - (16 - tail if tail else 0), 16 * vectors + 3
    c = np.full((rows, pitch), GUARD, np.int32)
    options = (f", tail={tail}" if tail else "") + (", accumulate=True" if sums != "alone" else "")
    tile(
        f'matrix_tile("int32", "{element_of(types)}", {types == ("int8", "uint8")}, {rows}, {vectors}, 16, {4 * k}, 4, '
        f"{64 * vectors}, {4 * pitch}{options})",
        (a, beside(b, 4), c),
        k,
        *[int(sums == "first")] * (sums != "alone"),
        last=4 * tail or 64,
    )
    assert np.array_equal(c[:, :columns], (wide(a) @ wide(b))[:, :columns] + (GUARD if sums == "added" else 0))
    assert (c[:, columns:] == GUARD).all()


def test_what_is_asked_for_on_the_way_changes_nothing() -> None:
    a, b, c = drawn((32, 160), "uint8"), drawn((160, 32), "int8"), np.zeros((32, 32), np.int32)
    asked = np.zeros(4096, np.int8)
    options = "ask=(2, 2, 64, 128), claim=(4, 2, 2, 128)"
    made = f'matrix_tile("int32", "{BYTES}", False, 32, 2, 16, 160, 4, 128, 128, {options})'
    tile(made, (a, beside(b, 4), c), 40, asked.ctypes.data, c.ctypes.data)
    assert np.array_equal(c, wide(a) @ wide(b))


def test_tile_of_bfloat16() -> None:
    rng, k = np.random.default_rng(0), 50
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, 2 * k), (2 * k, 32)))
    bits = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    c = np.ones((20, 32), np.float32)
    made = f'matrix_tile("float32", "{PAIRS}", False, 20, 2, 16, {4 * k}, 4, 128, 128, accumulate=True)'
    tile(made, (bits[0], beside(bits[1], 2), c), k, 0)
    a, b = ((x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in bits)
    assert (abs(c - 1 - a @ b) <= (2 * k + 1) * 2.0**-24 * (abs(a) @ abs(b) + 1)).all()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("33, 2, 16, 160, 4, 128, 128", "no registers for 33 × 2 vectors"),
        ("88, 1, 16, 160, 4, 64, 64", "no registers for 88 × 1"),
        ("32, 2, 8, 160, 4, 128, 128", "of 32 bytes"),
        ("32, 2, 16, 160, 8, 128, 128", "8 bytes apart along k"),
    ],
)
def test_tiles_that_no_registers_hold(sizes: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matrix.matrix_tile("int32", BYTES, False, *map(int, sizes.split(",")))  # type: ignore[arg-type]


def test_registers_of_shapes_that_do_not_fit() -> None:
    """What the processor would answer with a signal is refused when the code is written."""
    with pytest.raises(ValueError, match="9 registers, 8 are there"):
        matrix.Native(None, [(16, 64)] * 9, "")  # type: ignore[arg-type]
    for shape in ((17, 64), (0, 64), (16, 68), (16, 6)):
        with pytest.raises(ValueError, match="up to 16 rows of up to 64 bytes"):
            matrix.Native(None, [shape], "")  # type: ignore[arg-type]
    held = matrix.Native(None, [(16, 64), (5, 64), (5, 64), (5, 20), (16, 20)], "")  # type: ignore[arg-type]
    held.fits(2, 1, 0)
    for sums, first, second in ((0, 1, 0), (3, 1, 0), (2, 3, 0), (2, 1, 4)):
        with pytest.raises(ValueError, match="make no"):
            held.fits(sums, first, second)


def machine_code(monkeypatch: pytest.MonkeyPatch, write: object, name: str) -> tuple[str, str]:
    """LLVM code of a function of a processor with such registers, and its assembly."""
    monkeypatch.setattr(matrix, "cpu_features", lambda: HAVE)
    module = ir.Module()
    module.triple = "x86_64-unknown-linux-gnu"
    write(module)  # type: ignore[operator]
    target_machine()  # the target is initialized
    target = llvm.Target.from_triple(module.triple)
    features = "+avx512f,+avx512bw,+avx512vl,+avx512dq," + ",".join(f"+{name}" for name in sorted(HAVE))
    # of this processor LLVM's scheduler renames registers that its own functions name
    made = target.create_target_machine(cpu="znver5", features=features, opt=3)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return str(module), made.emit_assembly(parsed)


@pytest.mark.parametrize(("element", "instruction"), ELEMENTS.items())
def test_instructions(element: str, instruction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shaped, loaded, multiplied, stored and let go of, in this order, by the registers' own instructions."""
    text, code = machine_code(monkeypatch, lambda m: probe_code._matrix(m, "x", element), "x")
    found = re.findall(r"\t(ldtilecfg|tile\w+|tdp\w+)\b", code)
    assert found == [
        *["ldtilecfg", "tileloadd", "tileloadd"],
        *["tilezero"] * 4,
        *[instruction] * 4,
        *["tilestored"] * 4,
        "tilerelease",
    ]
    assert [f"%tmm5, %tmm4, %tmm{n}" in code for n in range(4)] == [True] * 4  # second, first, sums
    (given,) = re.findall(r"store <64 x i8> <([^>]*)>", text)
    layout = [int(byte.split()[1]) for byte in given.split(",")]
    assert layout[0] == 1 and not any(layout[1:16])  # the palette; no instruction was interrupted
    assert layout[16:48] == [64, 0] * 6 + [0] * 20 and layout[48:] == [16] * 6 + [0] * 10


def test_each_sign_has_its_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "cpu_features", lambda: HAVE)
    for element, signed_first, name in (
        *((element, False, name) for element, name in ELEMENTS.items()),
        (BYTES, True, "tdpbsud"),
    ):
        held = matrix.registers(None, element, signed_first, [])  # type: ignore[arg-type]
        assert isinstance(held, matrix.Native) and held.name == name


@pytest.mark.parametrize("types", TYPES[:4])
@pytest.mark.parametrize(("m", "n", "k", "turned", "const"), [(75, 70, 150, False, False), (33, 40, 66, True, True)])
def test_printed_products(
    m: int, n: int, k: int, turned: bool, const: bool, types: tuple[str, str], offered: Machine
) -> None:
    """By the nest that the search prefers, whose tiles fill the registers."""
    group = product(m, n, k, types, turned, const)
    for threads in (1, 2):
        found = schedule(group, tile_ops.cpu_target(offered, threads))
        for candidate in found.candidates:
            x, w = drawn((m, k), types[0]), drawn((k, n), types[1])
            arrays = [x, w.T.copy() if turned else w, np.zeros((m, n), np.int32)]
            emitted = contract.emit(group, candidate.nest, printing.target_of(offered))
            assert "matrix_tile(" in emitted.source and "dot_tile(" not in emitted.source
            assert np.array_equal(run(emitted, arrays, threads)[2].reshape(m, n), wide(x) @ wide(w))


def test_a_tile_that_takes_more_registers_is_refused(offered: Machine) -> None:
    group = product(64, 64, 64, ("uint8", "int8"))
    found = schedule(group, tile_ops.cpu_target(offered)).nest
    with pytest.raises(ValueError, match=r"m=32 × n=32 needs 67 registers; 32 are there"):
        contract.emit(group, found, printing.host())
    nest: Nest = TileOp("fma", (("m", 40), ("n", 32), ("k", 16)))
    for axis, step in (("n", 32), ("m", 40)):
        nest = Loop(axis, 64, step, nest)
    with pytest.raises(ValueError, match=r"m=40 × n=32 needs 10 registers; 8 are there"):
        contract.emit(group, Pack("b", nest), printing.target_of(offered))


def test_offered_where_the_processor_and_the_model_have_them(offered: Machine) -> None:
    def steps(target_machine: Machine) -> list[int]:
        rows = tile_ops.cpu_target(target_machine).rows("fma")
        return sorted({row.steps for row in rows if row.dtypes == (BYTES,)})

    assert steps(offered) == [16]
    assert steps(replace(offered, matrix_ns=())) == [1]  # measured by nothing, or wrong sums were
    assert steps(replace(offered, vector_bytes=32, registers=16)) == [1]


@pytest.mark.parametrize(("rows", "columns", "ratio"), [(80, 16, 17.2 / 6.0), (32, 32, 9.7 / 6.0)])
def test_rows_that_lie_in_two_lines_take_longer(rows: int, columns: int, ratio: float, offered: Machine) -> None:
    """As a Xeon (Sapphire Rapids) was measured, whose arrays began 16 bytes behind a line."""
    figures = {"fma_gflops": (("float32", 170.0), ("float64", 85.0))}
    target = tile_ops.cpu_target(replace(offered, **figures, matrix_ns=((BYTES, 6.0),)))
    pricer = Pricer(problem_of(product(320, 320, 960, ("uint8", "int8")), target), target)
    in_place, copied = (pricer.tile(0, rows, columns, 240, packed, True) for packed in (False, True))
    assert in_place is not None and copied is not None
    assert in_place / copied == pytest.approx(ratio, rel=0.1)


def test_programs(offered: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whole programs on such a machine: bytes to the bit, also where a convolution is the product."""
    (tmp_path / "machine.json").write_text(replace(offered, cpu=cpu_name()).to_json())
    monkeypatch.setenv("EQSAT_MACHINE", str(tmp_path / "machine.json"))

    def multiply(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.maximum(x.astype(np.int32) @ w.astype(np.int32), 5)

    def convolve(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.asarray(eqsat.nn.conv2d(x.astype(np.int32), w.astype(np.int32), padding=1))

    cases = [(multiply, (64, 96), (96, 80)), (convolve, (1, 8, 14, 15), (33, 8, 3, 3))]
    for function, left, right in cases:
        x, w = drawn(left, "uint8"), drawn(right, "int8")
        program = eqsat.optimize(function, strict=True, cache=False, check_speed=False)
        assert np.array_equal(program(x, w), function(x, w))
        assert "matrix_tile(" in program.source(x, w)


# What is measured


def test_products_are_timed_where_their_sums_are_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timers, "cpu_features", lambda: HAVE)
    found = timers._matrix_timers()
    assert list(found) == [f"matrix {element}" for element in ELEMENTS]
    for timer in found.values():
        timer.sample()
        assert 0 < 1 / timer.rate < 1e5

    sound = timers._matrix_factors

    def other(element: str) -> tuple[np.ndarray, np.ndarray]:
        stored, sums = sound(element)
        return stored, sums + (np.arange(16) == 3) * (element != PAIRS)

    monkeypatch.setattr(timers, "_matrix_factors", other)
    assert list(timers._matrix_timers()) == [f"matrix {PAIRS}"]
    assert f"amx-int8 computes wrong sums of {BYTES} on this processor" in caplog.text


def test_without_the_system_s_permission_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {"avx512f": True, "amx-tile": True, "amx-int8": True})
    for allowed in (False, True):
        monkeypatch.setattr(lanes, "matrix_registers_allowed", lambda allowed=allowed: allowed)
        found = lanes.host_features.__wrapped__()
        assert found == {"avx512f": True, "amx-tile": allowed, "amx-int8": allowed}

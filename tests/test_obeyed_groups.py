"""Groups of maps and reductions obey their nests: which stages go row by row, share a sweep, or run in phases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from eqsat.ir.kernel import Acc, FromStage, Guarded, Index, Kernel, KernelGroup, Load, Operand, Stage
from eqsat.ir.kernel import Literal as Number
from eqsat.ir.nest import Loop, Nest, Seq, TileOp, show, tiles
from eqsat.ir.nest_json import nest_from_json, nest_to_json
from eqsat.ir.types import DType, float32, float64, int64
from eqsat.plan.fallback import interpret
from eqsat.schedule import check, check_offered, schedule
from eqsat.schedule.phases import apart, in_phases
from eqsat.schedule.problem import problem_of
from eqsat.schedule.sample import sample
from eqsat.schedule.scheduler import phased
from eqsat.schedule.sweeps import sweeps
from eqsat_backends.numba_cpu.printing.loops import emit
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import machine
from tests.sweeps import a_part
from tests.test_loops import call, expected, operands, run, single, softmax

HOST = machine(l1=1 << 10, l2=8 << 10)
NARROW = machine(l1=1 << 10, l2=4 << 10, l3=16 << 10, registers=16, width=16)


def normed(outer: int, rows: int, columns: int, dtype: DType = float32, turned: bool = False) -> KernelGroup:
    """Mean, deviations, their mean square and largest (kept), deviations from that; rows and outer positions lie apart.

    ``turned``: the deviations are squared backwards.
    """
    width = columns + 3
    full, row = Operand(dtype, outer * (rows * width + 5)), Operand(dtype, outer * rows)
    packed = Operand(dtype, outer * rows * columns)
    extents, place = (outer, rows, columns), (rows * columns, columns, 1)
    x, made = Load(0, 0, (rows * width + 5, width, 1), dtype), Load(0, 0, place, dtype)
    one = Load(1, 0, (rows, 1, 0), dtype)
    share = call("mul", Acc(dtype), Number(1 / columns, dtype))
    again = Load(0, columns - 1, (*place[:2], -1), dtype) if turned else made
    stages = (
        Stage(Kernel(extents, 2, "sum", x, share, (full,), row, 0, (rows, 1)), (0,), None),
        Stage(Kernel(extents, 3, None, call("sub", x, one), Acc(dtype), (full, row), packed, 0, place),
              (0, FromStage(0)), None),
        Stage(Kernel(extents, 2, "sum", call("mul", again, again), share, (packed,), row, 0, (rows, 1)),
              (FromStage(1),), 1),
        Stage(Kernel(extents, 2, "max", made, call("add", Acc(dtype), one), (packed, row), row, 0, (rows, 1)),
              (FromStage(1), FromStage(2)), 2),
        Stage(Kernel(extents, 3, None, call("sub", made, one), Acc(dtype), (packed, row), packed, 0, place),
              (FromStage(1), FromStage(2)), 3),
    )  # fmt: skip
    return KernelGroup(stages, 2, (full, row, row, packed), (1, 2, 3), "normed")


@st.composite
def groups(draw: st.DrawFn) -> KernelGroup:
    rows, columns = draw(st.integers(1, 24)), draw(st.integers(1, 90))
    dtype = draw(st.sampled_from([float32, float64]))
    if draw(st.booleans()):
        return softmax(rows, columns, dtype)
    return normed(draw(st.integers(1, 3)), rows, columns, dtype, draw(st.booleans()))


def runs_right(group: KernelGroup, nest: Nest, threads: int, seed: int = 0) -> str:
    emitted = emit(group, nest)
    arrays = operands(group, seed)
    got, status = run(emitted, arrays, threads)
    assert status == 0
    for number, (mine, right) in enumerate(zip(got, expected(group, arrays), strict=True)):
        message = f"operand {number} by {show(nest)}, {threads} threads\n{emitted.source}"
        np.testing.assert_allclose(mine, right, rtol=2e-5, atol=2e-5, err_msg=message)
    return emitted.source


def nests_run_right(group: KernelGroup, threads: int, narrow: bool, seed: int) -> None:
    target = cpu_target(NARROW if narrow else HOST, threads)
    drawn = sample(group, target, 3, seed=seed)
    assume(drawn)
    for nest, seconds in drawn:
        check_offered(nest_from_json(nest_to_json(nest)), group, target)
        assert seconds > 0
        runs_right(group, nest, threads, seed)


ANY = groups(), st.integers(1, 3), st.booleans(), st.integers(0, 1 << 20)
quiet = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@settings(quiet, max_examples=6)
@given(*ANY)
def test_any_legal_nest_of_a_group_runs_right(group: KernelGroup, threads: int, narrow: bool, seed: int) -> None:
    nests_run_right(group, threads, narrow, seed)


@pytest.mark.slow
@settings(quiet, max_examples=a_part(60))
@given(*ANY)
def test_many_legal_nests_of_groups_run_right(group: KernelGroup, threads: int, narrow: bool, seed: int) -> None:
    nests_run_right(group, threads, narrow, seed)


def test_nests_at_random_differ_in_sweeps_and_runs_of_rows() -> None:
    group = softmax(40, 200)
    drawn = [nest for nest, _ in sample(group, cpu_target(HOST), 40, seed=3)]
    parts = [below.bodies for nest in drawn for below in [_inner(nest)]]
    assert {len(bodies) for bodies in parts} >= {1, 2, 3}
    assert {len(tiles(sweep)) for bodies in parts for part in bodies for sweep in sweeps(part)} >= {1, 2}


def _inner(nest: Nest) -> Seq:
    while not isinstance(nest, Seq):
        assert isinstance(nest, Loop)
        nest = nest.body
    return nest


# which nests are legal

LARGEST = Loop("r0", 192, 16, TileOp("reduce", (("r0", 16),), 0, 16))
POWERS = Loop("p0", 192, 16, TileOp("map", (("p0", 16),), 1, 16))
TOTAL = Loop("r0", 192, 16, TileOp("reduce", (("r0", 16),), 2, 16))
SHARES = Loop("p0", 192, 16, TileOp("map", (("p0", 16),), 3, 16))
BOTH = Loop("p0", 192, 16, Seq((POWERS.body, TOTAL.body)))


def rows(*parts: Nest, step: int = 8) -> Nest:
    return Loop("outer", 1, 1, Loop("rows", 40, step, Seq(parts), parallel=True))


def block(*inside: Nest) -> Nest:
    return Loop("rows", 8, 1, inside[0] if len(inside) == 1 else Seq(inside))


LEGAL = {
    "row by row": rows(block(LARGEST, POWERS, TOTAL, SHARES)),
    "in a sweep": rows(block(LARGEST, BOTH, SHARES)),
    "all rows first": rows(block(LARGEST), block(BOTH, SHARES)),
    "every stage": rows(block(LARGEST), block(POWERS), block(TOTAL), block(SHARES)),
    "one row": rows(LARGEST, BOTH, SHARES, step=1),
}


@pytest.mark.parametrize("name", LEGAL)
def test_the_printed_loops_are_those_of_the_nest(name: str) -> None:
    """Every loop over rows and every sweep once, in this order."""
    group, nest = softmax(40, 192), LEGAL[name]
    check(nest, group, 16, 32)
    source = runs_right(group, nest, 2)
    said = [word for word in show(nest).replace("[", " ").replace(";", " ").split() if ":" in word]
    want = [word.split(":")[0].rstrip("*") for word in said if not word.startswith("outer")]
    found = [line.split()[1].rstrip("0123456789").rstrip("_") for line in source.splitlines() if " for " in line]
    assert found == want
    assert source.count("exp(") == 1
    assert source.count("load_f32x16(s1") == (1 if BOTH in _flat(nest) else 2)  # else it is in a register


def _flat(nest: Nest) -> list[Nest]:
    return [sweep for part in _inner(nest).bodies for sweep in sweeps(part)]


ILLEGAL = {
    r"stage 1 cannot share a sweep with what it reads of \[0\]": rows(
        block(Loop("r0", 192, 16, Seq((LARGEST.body, POWERS.body))), TOTAL, SHARES)
    ),
    r"stage 3 cannot share a sweep with what it reads of \[1, 2\]": rows(
        block(LARGEST, Loop("p0", 192, 16, Seq((POWERS.body, TOTAL.body, SHARES.body))))
    ),
    r"runs stages \[0, 2, 1, 3\]": rows(block(LARGEST, TOTAL, POWERS, SHARES)),
    r"runs stages \[0, 1, 2\]": rows(block(LARGEST, BOTH)),
    "no loop over the 8 rows": rows(LARGEST, BOTH, SHARES),
    "no loop over the 1 rows": rows(block(LARGEST, BOTH, SHARES), step=1),
    "threads share rows, not also the loop over axis 'p0'": rows(
        block(LARGEST, BOTH, replace(SHARES, parallel=True))
    ),
    "a sweep of a row is loops around tiles": rows(block(LARGEST, Seq((BOTH, SHARES)))),
    "vectors of 8, 16 lanes": rows(
        block(LARGEST, BOTH, Loop("p0", 192, 8, TileOp("map", (("p0", 8),), 3, 8)))
    ),
    "a shared sweep is by vectors along one axis": rows(
        block(LARGEST, Loop("p0", 192, 16, Seq((POWERS.body, TileOp("transpose", (("r0", 16),), 2, 16)))), SHARES)
    ),
    "the tile takes 32 elements of axis 'r0'": rows(
        block(LARGEST, Loop("p0", 192, 16, Seq((POWERS.body, TileOp("reduce", (("r0", 32),), 2, 16)))), SHARES)
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", ILLEGAL)
def test_illegal_sweeps_are_refused_naming_stage_or_axis(message: str) -> None:
    group = softmax(40, 192)
    for refuse in (lambda nest: check(nest, group, 16, 32), lambda nest: emit(group, nest)):
        with pytest.raises(ValueError, match=message):
            refuse(ILLEGAL[message])


def test_a_stage_that_reads_backwards_shares_no_sweep() -> None:
    for turned in (False, True):
        group = normed(2, 9, 40, turned=turned)
        own = [
            Loop(f"{axis}0", 40, 16, TileOp(name, ((f"{axis}0", 16),), stage, 16))
            for stage, (axis, name) in enumerate(
                zip("rprrp", ["reduce", "map", "reduce", "reduce", "map"], strict=True)
            )
        ]
        joined = Loop("p0", 40, 16, Seq((own[1].body, own[2].body, own[3].body)))
        body = Loop("rows", 9, 1, Seq((own[0], joined, own[4])))
        nest = Loop("outer", 2, 1, body, parallel=True)
        if turned:
            with pytest.raises(ValueError, match=r"stage 2 cannot share a sweep with what it reads of \[1\]"):
                check(nest, group, 16, 32)
        else:
            runs_right(group, nest, 2)


def test_the_comparison_notices_a_sweep_that_comes_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the check, a reader that runs before its producer leaves wrong results."""
    monkeypatch.setattr("eqsat_backends.numba_cpu.printing.blocks.check", lambda *_: None)
    with pytest.raises((AssertionError, KeyError, UnboundLocalError)):
        runs_right(softmax(40, 192), rows(block(LARGEST), block(TOTAL), block(POWERS), block(SHARES)), 1)


# phases


def test_few_long_rows_run_in_phases() -> None:
    """Where threads could share nothing but a stage's own axes; the same model prices both."""
    group, target = softmax(1, 300_000), cpu_target(HOST, 2)
    nest = schedule(group, target).nest
    assert isinstance(nest, Seq) and len(nest.bodies) == 4
    emitted = emit(group, nest)
    assert len(emitted.phases) >= 4
    runs_right(group, nest, 2)
    assert not isinstance(schedule(softmax(400, 750), target).nest, Seq)


def test_one_thread_looks_at_phases_only_where_a_kernel_less_would_show() -> None:
    """Phases of long stages take as long as kernels of their own, and to price them takes longest."""
    for columns, step, threads, some in (
        (64, 1e-9, 1, True),
        (300_000, 1e-9, 1, False),
        (300_000, 1e-7, 1, True),
        (300_000, 1e-9, 2, True),
    ):
        group, target = softmax(2, columns), replace(cpu_target(HOST, threads), step=step)
        assert bool(phased(group, problem_of(group, target), target)) == some


def test_phases_are_those_of_the_group() -> None:
    group, target = softmax(2, 5000), cpu_target(HOST, 2)
    each = [schedule(one, target).nest for one in apart(group, 16)]
    nest = in_phases(each, group)
    check_offered(nest, group, target)
    runs_right(group, nest, 2)
    assert isinstance(nest, Seq)
    for wrong in (Seq(nest.bodies[:3]), Seq(nest.bodies[::-1])):
        for refuse in (lambda wrong: check_offered(wrong, group, target), lambda wrong: emit(group, wrong)):
            with pytest.raises(ValueError, match=r"3 phases, the group may run in 4|phase 0 is stage 0's"):
                refuse(wrong)


def test_a_product_that_is_a_contraction_only_by_itself_runs_in_no_phase() -> None:
    """Two vectors times two constant matrices, and the sum of each result: tiles of a contraction have no phases."""
    x, y, z = Operand(float32, 32), Operand(float32, 512, True), Operand(float32, 32)
    product = call("mul", Load(0, 0, (16, 0, 1), float32), Load(1, 0, (256, 1, 16), float32))
    first = Kernel((2, 16, 16), 2, "sum", product, Acc(float32), (x, y), z, 0, (16, 1))
    total = Kernel((2, 16), 1, "sum", Load(0, 0, (16, 1), float32), Acc(float32), (z,), Operand(float32, 2), 0, (1,))
    stages = (Stage(first, (0, 1), None), Stage(total, (FromStage(0),), 2))
    group = KernelGroup(stages, 1, (x, y, Operand(float32, 2)), (2,), "product and sum")
    for threads in (1, 2):
        target = cpu_target(HOST, threads)
        each = [schedule(one, target).nest for one in apart(group, 16)]
        assert any(tile.name == "fma" for tile in tiles(each[0]))
        with pytest.raises(ValueError, match="register tiles of a contraction run in no phase"):
            check_offered(in_phases(each, group), group, target)
        for nest in (schedule(group, target).nest, *(nest for nest, _ in sample(group, target, 12))):
            check_offered(nest, group, target)
            runs_right(group, nest, threads)


def test_maps_are_cut_where_that_is_cheaper() -> None:
    """A guard keeps blocks from being transposed; its parts are maps without one."""
    index = Index(0, (1, 0), int64)
    body = Guarded(index, 0, 900, Load(0, 0, (1, 1000), float32), Number(0.0, float32))
    group = single((1000, 1000), 2, None, body, [(float32, 1000 * 1000)])
    target = cpu_target(machine(), 1)
    parts = apart(group, 16)
    assert len(parts) == 2
    nest = schedule(group, target).nest
    assert isinstance(nest, Seq) and len(nest.bodies) == 2
    check_offered(nest, group, target)
    emitted, arrays = emit(group, nest), operands(group)
    assert len(emitted.phases) == 2
    want = [array.copy() for array in arrays]
    interpret(group, want)
    np.testing.assert_array_equal(run(emitted, arrays, 2)[0][1], want[1])
    drawn = sample(group, target, 6, seed=1)
    assert {isinstance(nest, Seq) for nest, _ in drawn} == {False, True}

"""Maps and reductions obey their nests: any legal nest runs right, and the printed loops are its loops."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from eqsat.cost.machine import Machine
from eqsat.ir.axes import normalized
from eqsat.ir.kernel import Acc, Kernel, KernelGroup, Load, Operand, Stage
from eqsat.ir.nest import Loop, Nest, Seq, TileOp, show, tiles
from eqsat.ir.types import DType, float32, float64, row_major
from eqsat.plan.fallback import interpret
from eqsat.schedule.maps import axes_of, check_nest
from eqsat.schedule.phases import is_split
from eqsat.schedule.plain import plain_nest
from eqsat.schedule.sample import sample
from eqsat_backends.numba_cpu.printing.loops import emit
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import machine, reduction
from tests.sweeps import crossed
from tests.test_loops import call, operands, run, single

HOST = machine()
NARROW = machine(l1=1 << 10, l2=4 << 10, l3=16 << 10, registers=16, width=16)


def check_runs(group: KernelGroup, nest: Nest, seed: int, threads: int) -> None:
    """The kernel by a nest, against the interpreter."""
    emitted = emit(group, nest)
    arrays = operands(group, seed)
    if group.stages[0].kernel.combine == "prod":
        arrays = [np.sign(a) if a.dtype.kind != "b" else a for a in arrays]  # products stay exact
    want = [a.copy() for a in arrays]
    interpret(group, want)
    got, status = run(emitted, arrays, threads)
    assert status == 0
    for n, (mine, right) in enumerate(zip(got, want, strict=True)):
        message = f"operand {n} by {show(nest)}, {threads} threads\n{emitted.source}"
        if right.dtype.kind == "f":
            scale = max(1.0, float(np.abs(right).max(initial=0.0)))
            np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5 * scale, err_msg=message)
        else:
            np.testing.assert_array_equal(mine, right, err_msg=message)


LONG = [614_400, 5_120_512, 655_360 + 16, 700_001]
"""Multiples of a power of two, but not their parts; whole blocks; remainders."""


@crossed(n=LONG, dtype=[float32, float64], host=[HOST, NARROW])
@pytest.mark.parametrize("each", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_long_sums_take_every_element_once(each: int, n: int, dtype: DType, host: Machine) -> None:
    """In parts that threads share, and in blocks whose partial sums are flushed: neither need divide the other."""
    group = single((n,), 0, "sum", Load(0, 0, (1,), dtype), [(dtype, n)], store=())
    nests = {nest for t in (1, 2, 3) for nest, _ in sample(group, cpu_target(host, t), each, seed=t)}
    assert any(map(is_split, nests))
    ones, halves = np.ones(n, dtype.numpy), np.where(np.arange(n) % 2, 1, 0.5).astype(dtype.numpy)
    for nest in sorted(nests, key=show):
        emitted = emit(group, nest)
        for values in (ones, halves):  # every partial sum is exact
            got, status = run(emitted, [values, np.zeros(1, dtype.numpy)], 2)
            assert status == 0
            assert got[-1] == values.astype(np.float64).sum(), show(nest)


# what is printed


def loops_of(nest: Nest) -> list[Loop]:
    """The loops of a nest, of a split reduction those of its parts."""
    found = []
    nest = nest.bodies[0] if isinstance(nest, Seq) else nest
    while isinstance(nest, Loop):
        found.append(nest)
        nest = nest.body
    return found


def printed(source: str, phase: str = "") -> list[tuple[str, str]]:
    """Axis and step of the loops of the first phase that stand inside one another, outermost first."""
    body = source[source.index("def ") :].split("\ndef ")[0]
    found: list[tuple[int, str, str]] = []
    for line in body.splitlines():
        match = re.match(r"( *)for ([pr]\d+)_(sum_)?\d+ in range\((.*)\):$", line)
        if not match:
            continue
        depth = len(match[1])
        if found and depth <= found[-1][0]:
            break  # the rim, or another sweep
        step = re.search(r", (\d+)(?: \* nt)?$", match[4])
        if not match[3]:
            found.append((depth, match[2], step[1] if step and match[4].count(",") >= 2 else "1"))
    return [(axis, step) for _, axis, step in found]


GROUPS = {
    "map": reduction((60, 50), 2, (0, 1)),
    "transpose": reduction((60, 50), 2, (1, 0)),
    "rows": reduction((40, 200), 1, (0, 1)),
    "columns": reduction((200, 40), 1, (1, 0)),
    "middle": reduction((20, 40, 30), 2, (0, 2, 1)),
    "outer": reduction((20, 18, 34), 1, (2, 1, 0)),
    "all": reduction((300, 200), 0, (0, 1)),
}


@pytest.mark.parametrize("name", GROUPS)
def test_printed_loops_are_those_of_the_nest(name: str) -> None:
    group = GROUPS[name]
    seen = set()
    for threads in (1, 2):
        for nest, _ in sample(group, cpu_target(HOST, threads), 12, seed=5):
            source = emit(group, nest).source
            loops, tile = loops_of(nest), tiles(nest)[0]
            kernel = normalized(group.stages[0].kernel)
            cells = any(
                a.axis[0] == "r" and not a.split and any(b.axis[0] == "p" for b in loops[n:])
                for n, a in enumerate(loops)
            )
            if not cells:  # where results are kept in scratch, the first sweep is over them alone
                whole = [loop for loop in loops if loop.block >= loop.step]
                assert printed(source) == [(loop.axis, str(loop.step)) for loop in whole], show(nest) + source
            else:
                assert "scratch" in source
            assert ("* tid // nt" in source) == any(loop.parallel and not loop.cyclic for loop in loops)
            assert bool(re.search(r"in range\(.* \* nt\):", source)) == any(loop.cyclic for loop in loops)
            assert ("transpose_" in source) == (tile.name == "transpose")
            if any(loop.split for loop in loops):
                assert "def kernel_1(" in source and "parts" in source
            seen.add(lanes_axis(source, kernel, tile))
    assert seen <= set(axes_of(kernel))


def test_any_axis_may_carry_the_lanes() -> None:
    for name in ("rows", "middle", "transpose"):
        nests = sample(GROUPS[name], cpu_target(HOST), 40, seed=1)
        assert {tiles(nest)[0].sizes[-1][0] for nest, _ in nests} == set(
            axes_of(normalized(GROUPS[name].stages[0].kernel))
        )


def lanes_axis(source: str, kernel: Kernel, tile: TileOp) -> str:
    """The axis of the tile's vectors, which the printed loads confirm."""
    axis = tile.sizes[-1][0]
    (load,) = [e for e in [kernel.body] if isinstance(e, Load)]
    stride = load.strides[axes_of(kernel)[axis]]
    loads = re.findall(r"= (load|strided|transpose)n?_f32x\d+\(", source)
    if tile.name != "transpose":
        assert ("load" in loads) == (stride == 1) or "parts" in source or "scratch" in source, source
        assert ("strided" in loads) == (stride != 1), source
    return axis


def test_unrolled_vectors_are_those_of_the_tile() -> None:
    """A tile of u vectors has u accumulators, and loads u vectors a step."""
    group = reduction((7, 4096), 1, (0, 1))
    for vectors in (1, 2, 4):
        tile = TileOp("reduce", (("r0", 16 * vectors),), lanes=16)
        nest = Loop("p0", 7, 1, Loop("r0", 4096, 16 * vectors, tile), parallel=True)
        source = emit(group, nest).source
        assert len(re.findall(r"= load_f32x16\(", source)) == vectors
        check_runs(group, nest, 0, 2)


@crossed(
    together=[2, 3, 4, 12], lanes=[1, 4, 16],
    case=[("sum", float32, 1, 1), ("prod", float64, 1, 1), ("max", float32, 1, 1), ("min", float64, 2, 1),
          ("sum", float64, 1, 3)],
)  # fmt: skip
def test_neighbours_are_finished_side_by_side(together: int, lanes: int, case: tuple[str, DType, int, int]) -> None:
    """Lanes of several rows are combined into one vector, where the results and what epilogues read lie so."""
    combine, dtype, step, store = case
    rows = 14
    body = call("sub", Load(0, 0, (21, 1), dtype), Load(1, 2, (0, 1), dtype))
    end = call("add", call("mul", Acc(dtype), Load(2, 1, (step, 0), dtype)), Load(1, 0, (0, 0), dtype))
    sizes = [(dtype, 21 * rows), (dtype, 24), (dtype, step * rows + 1)]
    group = single((rows, 21), 1, combine, body, sizes, end, (store,))
    group = with_result(group, store * rows)
    tile = TileOp("reduce", (("p0", together), ("r0", lanes)), lanes=lanes)
    nest = Loop("p0", rows, together, Loop("r0", 21, lanes, tile))
    source = emit(group, nest).source
    assert (f"{combine}_each" in source) == (lanes > 1 and step == store == 1)
    check_runs(group, nest, rows + together, 1)


def with_result(group: KernelGroup, size: int) -> KernelGroup:
    """A group of one kernel, whose result lies in so many elements."""
    (stage,), (*inputs, out) = group.stages, group.operands
    made = replace(out, size=size)
    stages = (replace(stage, kernel=replace(stage.kernel, out=made)),)
    return replace(group, stages=stages, operands=(*inputs, made))


def test_results_go_past_the_caches_where_the_tile_says_so() -> None:
    group = reduction((512, 1024), 2, (0, 1))
    for stream in (False, True):
        nest = Loop("p0", 512 * 1024, 16, TileOp("map", (("p0", 16),), lanes=16, stream=stream), parallel=True)
        source = emit(group, nest).source
        assert ("stream(" in source) == stream and ("fence(" in source) == stream
        check_runs(group, nest, 0, 2)


def test_plain_nests_are_legal() -> None:
    for group in GROUPS.values():
        kernel = normalized(group.stages[0].kernel)
        for lanes in (1, 4, 16):
            for parallel in (False, True):
                check_nest(plain_nest(kernel, lanes, parallel=parallel), kernel)


# what is refused

ROWS = TileOp("reduce", (("r0", 16),), lanes=16)
ILLEGAL = {
    "threads cannot share the steps of axis 'r0'": Loop("r0", 200, 16, Loop("p0", 40, 1, ROWS), parallel=True),
    "no axis 'q7'": Loop("q7", 40, 1, Loop("r0", 200, 16, ROWS)),
    "axis 'p0', its loops leave 40": Loop("r0", 200, 16, ROWS),
    "the loop over axis 'r0' walks 100 of 200": Loop("p0", 40, 1, Loop("r0", 100, 16, ROWS)),
    "axis 'r0', its loops leave 8": Loop("p0", 40, 1, Loop("r0", 200, 8, ROWS)),
    "along axis 'r0' do not divide": Loop("p0", 40, 1, Loop("r0", 200, 24, Loop("r0", 24, 16, ROWS))),
    "parallel loop over axis 'p0' is inside": Loop("r0", 200, 16, Loop("p0", 40, 1, ROWS, parallel=True)),
    "over a reduced axis is split, not 'p0'": Loop("p0", 40, 1, Loop("r0", 200, 16, ROWS), True, True),
    "vectors along axis 'r0' take whole": Loop(
        "p0", 40, 1, Loop("r0", 200, 8, TileOp("reduce", (("r0", 8),), lanes=16))
    ),
    "axis 'r1' is none": Loop("p0", 40, 1, Loop("r0", 200, 16, TileOp("reduce", (("r1", 16), ("r0", 16)), lanes=16))),
    "does not run a reduction": Loop("p0", 40, 1, Loop("r0", 200, 16, replace(ROWS, name="map"))),
}


@pytest.mark.parametrize("message", ILLEGAL)
def test_illegal_nests_are_refused_naming_the_axis(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        emit(GROUPS["rows"], ILLEGAL[message])


def test_positions_are_not_kept_in_scratch() -> None:
    load = Load(0, 0, (200, 1), float32)
    group = single((40, 200), 1, "argmax", load, [(float32, 8000)])
    tile = TileOp("reduce", (("p0", 16),), lanes=16)
    check_runs(group, Loop("p0", 40, 16, Loop("r0", 200, 1, tile)), 0, 1)
    with pytest.raises(ValueError, match="positions are kept in registers, so axis 'p0'"):
        emit(group, Loop("r0", 200, 1, Loop("p0", 40, 16, tile)))


def test_the_comparison_notices_a_nest_that_skips_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the check, a nest that covers too little leaves wrong results."""
    monkeypatch.setattr("eqsat_backends.numba_cpu.printing.walk.check_nest", lambda *_: None)
    monkeypatch.setattr("eqsat_backends.numba_cpu.printing.loops.check_beside", lambda *_: None)
    with pytest.raises(AssertionError):
        check_runs(GROUPS["rows"], Loop("p0", 40, 1, Loop("r0", 200, 32, ROWS)), 0, 1)


def test_nests_of_empty_and_tiny_kernels_run() -> None:
    for extents in ((), (1,), (1, 1), (0, 4), (4, 0), (0,)):
        for parallel in range(len(extents) + 1):
            combine = None if parallel == len(extents) else "sum"
            size = max(1, math.prod(extents))
            body = Load(0, 0, row_major(extents), float32)
            kept = extents[:parallel]
            out = Operand(float32, max(1, math.prod(kept)))
            kernel = Kernel(
                extents, parallel, combine, body, Acc(float32), (Operand(float32, size),), out, 0, row_major(kept)
            )  # type: ignore[arg-type]
            group = KernelGroup((Stage(kernel, (0,), 1),), 0, (Operand(float32, size), out), (1,))
            for nest, _ in sample(group, cpu_target(HOST), 3):
                check_runs(group, nest, 1, 2)

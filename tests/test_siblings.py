"""Reductions of one pass over their data: one kernel with several results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import eqsat
from eqsat.ir.axes import simplify
from eqsat.ir.kernel import Acc, Call, Combine, FromStage, Kernel, KernelGroup, Literal, Load, Operand, Stage
from eqsat.ir.nest import Loop, Nest, Seq, TileOp, show, tiles
from eqsat.ir.siblings import are_siblings
from eqsat.ir.types import DType, float32, float64, int32, row_major
from eqsat.plan.plan import KernelStep
from eqsat.schedule import ScheduleError, check, check_offered, schedule, simple_nest
from eqsat.schedule.decode import decode
from eqsat.schedule.phases import is_split
from eqsat.schedule.price import Pricer
from eqsat.schedule.problem import problem_of
from eqsat.schedule.sample import sample
from eqsat.schedule.scheduler import search_graph
from eqsat.schedule.search import Search
from eqsat_backends.numba_cpu.printing.emit import emit_group
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import DESK, TINY
from tests.nest_price import evaluate
from tests.random_groups import same, wanted


def siblings(
    extents: tuple[int, ...], kept: tuple[int, ...], combines: tuple[Combine, ...], dtype: DType = float32
) -> KernelGroup:
    """Reductions of a C-contiguous array, of its squares for every second one; ``kept`` axes stay."""
    order = [*kept, *(a for a in range(len(extents)) if a not in kept)]
    steps = row_major(extents)
    shape = tuple(extents[a] for a in kept)
    load = Load(0, 0, tuple(steps[a] for a in order), dtype)
    source, out = Operand(dtype, math.prod(extents)), Operand(dtype, max(1, math.prod(shape)))
    stages = []
    for number, combine in enumerate(combines):
        body = Call("mul", (load, load), dtype) if number % 2 else load
        epilogue = Call("mul", (Acc(dtype), Literal(2, dtype)), dtype) if number % 2 else Acc(dtype)
        kernel = Kernel(
            tuple(extents[a] for a in order), len(kept), combine, body, epilogue, (source,), out, 0, row_major(shape)
        )
        stages.append(Stage(kernel, (0,), 1 + number))
    count = len(combines)
    return KernelGroup(tuple(stages), 0, (source, *[out] * count), tuple(range(1, count + 1)), "siblings")


MANY: tuple[Combine, ...] = ("max", "sum", "min")
GROUPS = {
    "all": siblings((300, 200), (), MANY),
    "rows": siblings((40, 200), (0,), MANY),
    "columns": siblings((200, 40), (1,), MANY),
    "middle": siblings((20, 70, 30), (1,), MANY),
    "long": siblings((41_000,), (), ("sum", "sum")),
    "tall": siblings((5000, 24), (1,), ("sum", "sum", "max", "min", "sum", "max")),
    "integers": siblings((130, 300), (1,), MANY, int32),
    "float64": siblings((130, 300), (), MANY, float64),
}


def data(group: KernelGroup, hard: bool = False) -> list[np.ndarray]:
    """Small integers, of which every sum is exact, and results that nobody has written yet."""
    rng = np.random.default_rng(1)
    source, *outs = group.operands
    x = rng.integers(-3, 4, source.size).astype(source.dtype.numpy)
    if hard:
        x[rng.random(source.size) < 0.01] = np.inf
        x[rng.random(source.size) < 0.001] = np.nan
    return [x, *(np.zeros(out.size, out.dtype.numpy) for out in outs)]


@pytest.mark.parametrize("each", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GROUPS)
def test_any_nest_of_siblings_computes_every_result(name: str, each: int) -> None:
    group, seen = GROUPS[name], []
    for threads, host in ((1, DESK), (2, DESK), (3, TINY)):
        drawn = [nest for nest, _ in sample(group, cpu_target(host, threads), each, seed=threads)]
        for nest in (*drawn, simple_nest(group, cpu_target(host, threads))):
            check(nest, group, cpu_target(host).vector_bits // 32, host.registers)
            check_offered(nest, group, cpu_target(host, threads))
            for hard in (False, group.operands[0].dtype.is_float):
                case = group, data(group, hard)
                with np.errstate(invalid="ignore"):
                    same(emit_group(group, nest, host), case, wanted(case), nest, threads)
            seen.append(nest)
    assert any(map(is_split, seen)) or name in ("rows", "columns", "middle", "integers")


@pytest.mark.parametrize("extents", [(1,), (1, 1), (0, 4), (4, 0), (7, 1), (1, 7)])
@pytest.mark.parametrize("kept", [(), (0,), (1,)])
def test_empty_and_tiny_siblings(extents: tuple[int, ...], kept: tuple[int, ...]) -> None:
    if kept and kept[0] >= len(extents) - (len(extents) == 1):
        return
    group = siblings(extents, kept, ("sum", "prod", "sum"))
    for nest, _ in sample(group, cpu_target(DESK), 3):
        case = group, data(group)
        same(emit_group(group, nest, DESK), case, wanted(case), nest, 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GROUPS)
def test_the_search_prices_siblings_as_the_evaluator_does(name: str, threads: int) -> None:
    group = GROUPS[name]
    for host in (DESK, TINY):
        target = cpu_target(host, threads)
        problem, graph = search_graph(group, target)
        search = Search(graph, pricer := Pricer(problem, target), threads > 1)
        for entry in search.roots(4):
            price = evaluate(decode(entry, problem, target), problem, pricer)
            assert price is not None
            assert price.compute == pytest.approx(entry.compute, rel=1e-9)
            assert price.moved == pytest.approx(entry.moved, rel=1e-9)
            assert price.fixed == pytest.approx(entry.fixed) and price.scratch == pytest.approx(entry.scratch)


def test_data_is_read_once_and_accumulators_beyond_the_registers_cost() -> None:
    target = cpu_target(DESK, 1)
    one, three, twelve = (siblings((4096, 4096), (), ("sum",) * count) for count in (2, 4, 16))
    first, second, third = (schedule(group, target).best for group in (one, three, twelve))
    memory = [dict(best.moved)[target.outer.name] for best in (first, second, third)]
    assert memory[1] == pytest.approx(memory[0], rel=1e-3) and memory[2] == pytest.approx(memory[0], rel=1e-3)
    vectors = [tiles(best.nest)[0].size("r0") // 16 for best in (first, third)]
    assert 16 * vectors[1] <= DESK.registers < 16 * vectors[0] * 4, "fewer vectors a tile where there are more sums"


def test_what_is_read_from_other_places_is_not_read_once() -> None:
    """Halves of one tensor: nothing is saved, and the model knows."""
    group = siblings((4096, 4096), (), ("sum", "sum"))
    near, far = group.stages
    half = tuple(replace(s, kernel=replace(s.kernel, extents=(2048, 4096))) for s in (near, far))

    def moved(expr: Load) -> Load:
        return replace(expr, offset=2048 * 4096)

    assert isinstance(half[0].kernel.body, Load)
    other = replace(half[1], kernel=replace(half[1].kernel, body=moved(half[0].kernel.body)))
    same_half = replace(half[1], kernel=replace(half[1].kernel, body=half[0].kernel.body))
    target = cpu_target(DESK, 1)
    apart = schedule(replace(group, stages=(half[0], other)), target).predicted_seconds
    assert apart > schedule(replace(group, stages=(half[0], same_half)), target).predicted_seconds


TILE = TileOp("reduce", (("r0", 16),), lanes=16)
ALL = tuple(replace(TILE, stage=n) for n in range(3))
REFUSED: dict[str, Nest] = {
    "run 3 reductions side by side": Loop("r0", 60_000, 16, Seq(ALL[:2])),
    "side by side, in order": Loop("r0", 60_000, 16, Seq(ALL[::-1])),
    "have one tile": Loop("r0", 60_000, 16, Seq((*ALL[:2], replace(ALL[2], sizes=(("r0", 32),))))),
    "walks 50000 of 60000": Loop("r0", 50_000, 16, Seq(ALL)),
    "threads cannot share": Loop("r0", 60_000, 16, Seq(ALL), True),
    "no axis 'p0'": Loop("p0", 60_000, 16, Seq(ALL)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_illegal_nests_of_siblings_are_refused(message: str) -> None:
    emit_group(GROUPS["all"], Loop("r0", 60_000, 16, Seq(ALL)), DESK)
    for refuse in (
        lambda nest: emit_group(GROUPS["all"], nest, DESK),
        lambda nest: check(nest, GROUPS["all"], 16, 32),
        lambda nest: check_offered(nest, GROUPS["all"], cpu_target(DESK)),
    ):
        with pytest.raises(ValueError, match=message):
            refuse(REFUSED[message])


def test_groups_that_are_no_siblings_are_refused() -> None:
    group = GROUPS["all"]
    first, second, third = group.stages
    shorter = replace(second, kernel=replace(second.kernel, extents=(100, 200)))
    positions = replace(second, kernel=replace(second.kernel, combine="argmax"))
    reads = replace(second, sources=(FromStage(0),))
    for other in (shorter, positions, reads):
        changed = replace(group, stages=(first, other, third))
        assert not are_siblings(changed)
        with pytest.raises(ScheduleError, match="shares no axis"):
            problem_of(changed)


def test_axes_merge_only_where_all_siblings_walk_them_as_one() -> None:
    group = GROUPS["all"]
    assert simplify(group).stages[0].kernel.extents == (60_000,)
    gap = replace(group.stages[1].kernel.operands[0], size=300 * 256)
    wide = Load(1, 0, (256, 1), float32)
    kernel = replace(group.stages[1].kernel, body=wide, operands=(group.operands[0], gap))
    stage = Stage(kernel, (0, 2), 3)
    operands = (group.operands[0], group.operands[1], gap, group.operands[2])
    other = KernelGroup((group.stages[0], stage), 0, operands, (1, 3))
    assert {s.kernel.extents for s in simplify(other).stages} == {(300, 200)}
    case = other, [np.arange(o.size, dtype=np.float32) % 5 for o in operands]
    for nest, _ in sample(other, cpu_target(DESK, 2), 4):
        same(emit_group(other, nest, DESK), case, wanted(case), nest, 2)


# whole programs

# Of each program the kernels that it takes at most: a variance needs the mean first.
PROGRAMS: dict[str, tuple[Callable[[np.ndarray], tuple[np.ndarray, ...]], int]] = {
    "all": (lambda x: (x.min(), x.max(), x.mean()), 1),
    "first": (lambda x: (x.min(0), x.max(0), x.mean(0)), 1),
    "last": (lambda x: (x.min(1), x.max(1), x.mean(1)), 1),
    "kept": (lambda x: (x.min(0, keepdims=True), x.sum(0)), 1),
    "two passes": (lambda x: (x.min(), x.mean(), x.max(), x.var()), 2),
    "mean and variance": (lambda x: (x.mean(0), x.var(0)), 2),
    "bodies": (lambda x: (np.abs(x).sum(), (x * x).sum(), x.max()), 1),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_several_results_of_one_pass_are_one_kernel(name: str, threads: int) -> None:
    function, kernels = PROGRAMS[name]
    rng = np.random.default_rng(0)
    program = eqsat.optimize(function, threads=threads, cache=False)
    x = rng.standard_normal((256, 512)).astype(np.float32)
    steps = program.compile(x).search().steps
    assert len([step for step in steps if isinstance(step, KernelStep)]) <= kernels
    special = x.copy()
    special[rng.integers(0, 256, 5), rng.integers(0, 512, 5)] = [np.nan, np.inf, -np.inf, np.inf, np.nan]
    for values in (x, special):
        with np.errstate(invalid="ignore"):
            for mine, right in zip(program(values), function(values), strict=True):
                np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5, err_msg=show(steps[0].nest))

"""Targets as data: any number of memory spaces, tile operations as rows, teams that pay."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.cost import calibration
from eqsat.cost.calibration import SCATTERED
from eqsat.cost.machine import Machine
from eqsat.cost.movement import crowds, thrashes
from eqsat.cost.target import MemorySpace, Ports, Target, TargetError, TileOpRow
from eqsat.ir.kernel import Acc, Call, Kernel, KernelGroup, Literal, Load, Operand, Stage
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, show
from eqsat.ir.types import float32, float64, row_major
from eqsat.plan.backend import backend
from eqsat.plan.plan import KernelStep
from eqsat.schedule import schedule
from eqsat.schedule.price import Pricer
from eqsat.schedule.problem import problem_of
from eqsat.schedule.sample import sample
from eqsat.schedule.tiles import best_tiles
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import DESK, TINY, attention, gemm, perceptron, product_and_map, reduction, single
from tests.nest_price import evaluate
from tests.sweeps import a_part

GROUPS = {
    "gemm": gemm(96, 70, 130),
    "large": gemm(1024, 1024, 1024),
    "stream": gemm(4, 900, 700),
    "weights": gemm(64, 768, 768, const="b"),
    "rows": reduction((50, 300), 1, (0, 1)),
    "columns": reduction((300, 50), 1, (1, 0)),
    "attention": attention(3, 40, 50, 16),
    "mlp": perceptron(60, 32, 48),
}


def inserted(target: Target, position: int) -> Target:
    """The target with one of its memory spaces twice."""
    spaces = (*target.spaces[: position + 1], *target.spaces[position:])
    single = None if target.single is None else inserted(target.single, position)
    return replace(target, spaces=spaces, single=single)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("position", range(4))
def test_a_copy_of_a_space_changes_nothing(position: int, threads: int) -> None:
    for machine in (DESK, TINY):
        target = cpu_target(machine, threads)
        assert len(target.spaces) == 4
        for name, group in GROUPS.items():
            if name == "large" and machine is TINY:
                continue
            one, two = schedule(group, target), schedule(group, inserted(target, position))
            assert (show(one.nest), one.predicted_seconds) == (show(two.nest), two.predicted_seconds), name
            assert [show(c.nest) for c in one.candidates] == [show(c.nest) for c in two.candidates]


def made_up(machine: Machine, count: int, threads: int) -> Target:
    """A target with ``count`` memory spaces: each four times as large as the one before, and two thirds as fast."""
    target = cpu_target(machine, threads)

    def spaces(like: Target) -> tuple[MemorySpace, ...]:
        inner = like.inner
        last = count - 1
        return tuple(
            MemorySpace(
                f"space {n}",
                math.inf if n == last else inner.capacity * 4**n,
                inner.bandwidth * 0.66**n,
                0.75,
                n >= last - 1,
            )
            for n in range(count)
        )

    single = None if target.single is None else replace(target.single, spaces=spaces(target.single))
    return replace(target, spaces=spaces(target), single=single)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [2, 3, 5, 6])
@pytest.mark.parametrize("name", [name for name in GROUPS if name != "large"])
def test_nests_are_found_and_priced_for_any_number_of_spaces(name: str, count: int, threads: int) -> None:
    group = GROUPS[name]
    for machine in (DESK, TINY):
        target = made_up(machine, count, threads)
        found = schedule(group, target)
        assert list(dict(found.best.moved)) == [f"space {n}" for n in range(1, count)]
        problem = problem_of(group, target)
        for nest, seconds in sample(group, target, 12, seed=1):
            price = evaluate(nest, problem, Pricer(problem, target))
            assert price is not None and len(price.moved) == count - 1
            assert threads > 1 or seconds >= found.predicted_seconds * (1 - 1e-9)


def test_traffic_grows_from_space_to_space_inwards() -> None:
    for count in (2, 5):
        moved = list(dict(schedule(gemm(512, 512, 512), made_up(DESK, count, 1)).best.moved).values())
        assert all(inner >= outer > 0 for inner, outer in itertools.pairwise(moved))


def tiles_of(nest: Nest) -> list[TileOp]:
    match nest:
        case Loop(body=body) | Pack(body=body):
            return tiles_of(body)
        case Seq(bodies):
            return [tile for body in bodies for tile in tiles_of(body)]
        case TileOp():
            return [nest]
    raise TypeError(nest)


def test_tiles_are_those_that_the_target_offers() -> None:
    target = cpu_target(DESK)
    vector = TileOpRow("vector", lanes="lanes")
    for shape in ((3, 1), (5, 2)):
        row = TileOpRow("fma", (("m", shape[0]), ("n", shape[1])), "n", 12, dtypes=("float32",))
        small = replace(target, tiles=(row, vector))
        (tile,) = tiles_of(schedule(gemm(64, 256, 128), small).nest)
        assert (tile.name, tile.size("m"), tile.size("n")) == ("fma", shape[0], shape[1] * target.lanes(float32))
        assert {t.name for t in tiles_of(schedule(gemm(64, 256, 128, dtype=float64), small).nest)} == {"reduce"}


def test_what_a_target_lacks_is_not_offered() -> None:
    target = cpu_target(DESK)
    assert "update" in show(schedule(gemm(8, 4096, 4096), target).nest)

    def without(name: str) -> Target:
        return replace(target, tiles=tuple(row for row in target.tiles if row.name != name))

    assert "fma" in show(schedule(gemm(8, 4096, 4096), without("update")).nest)
    for group in (gemm(96, 70, 130), attention(3, 40, 50, 16), product_and_map(13, 40, 50)):
        names = {tile.name for tile in tiles_of(schedule(group, without("fma")).nest)}
        assert names <= {"map", "reduce", "transpose"}
    with pytest.raises(TargetError, match="'vector'"):
        schedule(reduction((50, 300), 1, (0, 1)), without("vector"))


def test_impossible_targets_are_refused() -> None:
    target = cpu_target(DESK)
    inner, *_, memory = target.spaces
    for spaces in ((), (inner,), (memory,), (inner, inner), (inner, replace(memory, bandwidth=0.0))):
        with pytest.raises(TargetError):
            replace(target, spaces=spaces)
    with pytest.raises(TargetError, match="33 registers of 32"):
        replace(target, tiles=(TileOpRow("fma", (("m", 16), ("n", 2)), "n", 33),))


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_machines_with_fewer_levels_have_a_target(levels: int) -> None:
    machine = replace(DESK, levels=DESK.levels[4 - levels :])
    for threads in (1, 2):
        assert schedule(gemm(96, 70, 130), cpu_target(machine, threads)).predicted_seconds > 0


@pytest.mark.parametrize("name", ["numba_cpu", "numpy"])
def test_a_backend_brings_its_target(name: str) -> None:
    made = backend(name)
    one, two = made.target(DESK, 1), made.target(DESK, 2)
    assert (one.threads, two.threads, made.target(DESK, 64).threads) == (1, 2, DESK.cores)
    assert two.alone == one == one.alone
    assert [space.name for space in two.spaces] == [level.name for level in DESK.levels]
    assert {row.name for row in one.tiles} == {"numba_cpu": {"fma", "update", "vector"}, "numpy": {"vector"}}[name]


@pytest.mark.parametrize(("launch_us", "wake_us", "team"), [(0.3, 1.0, 2), (0.3, 500.0, 1), (90.0, 100.0, 1)])
def test_a_program_gets_a_team_where_calling_it_pays(
    monkeypatch: pytest.MonkeyPatch, launch_us: float, wake_us: float, team: int
) -> None:
    """A product of 18 microseconds on one thread: half of that is saved, which waking may cost or not."""
    machine = replace(DESK, launch_us=launch_us, wake_us=wake_us, barrier_us=0.2)
    monkeypatch.setattr("eqsat.making.machine_model.load", lambda: machine)
    x = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    program = eqsat.optimize(lambda a, b: a @ b, threads=2, cache=False)
    np.testing.assert_allclose(program(x, x), x @ x, rtol=1e-4, atol=1e-4)
    plan = program.compile(x, x).search()
    assert plan.report.team == team
    assert ["*" in show(step.nest) for step in plan.steps if isinstance(step, KernelStep) and step.nest] == [True]


def test_a_team_has_to_save_what_it_may_cost_awake_or_asleep() -> None:
    cores = cpu_target(replace(DESK, launch_us=2.0, wake_us=30.0, barrier_us=0.5), 2)
    assert cores.call(3) == pytest.approx(33.5e-6)
    assert cores.alone.call(3) == 0.0


def test_a_kernel_of_a_team_is_shared_where_meeting_pays() -> None:
    for barrier_us, shared in ((0.1, True), (50.0, False)):
        target = cpu_target(replace(DESK, barrier_us=barrier_us), 4)
        assert ("*:" in show(schedule(reduction((100, 1000), 1, (0, 1)), target).nest)) == shared


def test_ports_are_as_measured() -> None:
    """Figures of a Xeon with two 512-bit units, and of a processor that nobody measured."""
    levels = (replace(DESK.levels[0], read_gbs=430.0, sets=64, ways=12), *DESK.levels[1:])
    fma = (("float32", 238.0), ("float64", 119.0))
    xeon = replace(DESK, fma_gflops=fma, fma_latency_ns=1.08, broadcast_gs=6.3, levels=levels)
    ports = cpu_target(xeon).ports
    assert (ports.latency, ports.loads, ports.broadcasts) == (8.0, 1.0, 1.0)
    assert (cpu_target(xeon).inner.sets, cpu_target(xeon).inner.ways) == (64, 12)
    ports = cpu_target(DESK).ports
    assert (ports.latency, ports.loads, ports.broadcasts) == (
        calibration.FMA_LATENCY,
        calibration.LOADS,
        calibration.BROADCASTS,
    )
    assert cpu_target(DESK).inner.ways == calibration.CACHE_WAYS


def test_tiles_that_tie_keep_the_targets_order() -> None:
    """By half a slot in a thousand a 4×96 tile looked better for eight rows, and shut the rank-k update out."""
    ports = Ports(cpu_target(DESK).ports.slots, 8.0, 1.0, 1.0)
    target = replace(cpu_target(DESK), ports=ports)
    assert best_tiles(target, float32, 8, 4096, 1) == ((8, 48),)
    assert "update" in show(schedule(gemm(8, 4096, 4096), target).nest)
    assert best_tiles(target, float32, 1024, 1024, 1) == ((14, 32),)


def test_the_scheduler_names_no_cache() -> None:
    root = Path(eqsat.__file__).parent
    files = [*root.glob("schedule/*.py"), *root.glob("plan/*.py"), root / "search.py", root / "cost" / "target.py"]
    assert len(files) > 15
    for file in files:
        assert not re.search(r"\bL[1-4]\b", file.read_text()), file


def test_every_calibrated_figure_says_what_it_is() -> None:
    named = {name for name in vars(calibration) if name.isupper() and name[0] != "_"} - {
        "TABLE",
        "TUNED",
        "FUNCTION_SLOTS",
    }
    assert named == {name for name in calibration.TABLE if " " not in name}
    for name, figure in calibration.TABLE.items():
        assert figure.unit and figure.means and figure.origin, name
        assert 0 < figure.value < math.inf, name
        if " " not in name:
            assert getattr(calibration, name) == figure.value


@pytest.mark.parametrize("nbytes", [6 << 20, 40 << 20])
def test_a_team_finds_in_a_shared_cache_what_one_thread_finds_there(nbytes: int) -> None:
    """What stays there is compared with all of a kernel's operands, not with the share that a thread has of it."""
    alone, team = (cpu_target(DESK, threads) for threads in (1, 4))
    size = nbytes // 4
    zeros = Kernel((size,), 1, None, Literal(0.0, float32), Acc(float32), (), Operand(float32, size), 0, (1,))
    group = single(zeros)
    found = [Pricer(problem_of(group, target), target).resident[False][-1] for target in (alone, team)]
    assert found == [nbytes <= alone.caches[-1].capacity * calibration.WARM] * 2
    one, many = (schedule(group, target).best for target in (alone, team))
    assert 0 < many.seconds < one.seconds
    assert ("stream" in show(one.nest)) == ("stream" in show(many.nest)) == (not found[0])


def test_scattered_lines_take_what_was_measured_of_the_nearest_level_beyond() -> None:
    def scattered(**measured: float) -> list[float]:
        levels = tuple(replace(level, scattered_ns=measured.get(level.name, 0.0)) for level in DESK.levels)
        return [1e9 * space.scattered for space in cpu_target(replace(DESK, levels=levels), 1).spaces]

    assert scattered(L3=0.5, memory=4.0) == pytest.approx([0.5, 0.5, 0.5, 4.0])
    assert scattered(memory=4.0) == pytest.approx([4.0] * 4)
    assert scattered() == pytest.approx([1e9 * SCATTERED] * 4)


def test_lines_crowd_by_all_the_distances_between_them() -> None:
    """14 lines 2 KiB apart take two sets of 64, seven each; four times as many, a multiple of 4 KiB apart, the same."""
    rows, planes = (2048, 14), (401_408, 2)
    assert not crowds((rows,), 64, 8) and not crowds((planes, (802_816, 2)), 64, 8)
    assert crowds((planes, rows), 64, 8) and not crowds((planes, rows), 64, 16)
    assert crowds(((802_816, 2), planes, rows), 64, 16)
    assert not crowds((planes, rows), 0, 0)  # of a cache that nobody knows
    for step, n, ways in ((4096, 9, 8), (64, 512, 8), (64, 511, 8), (3600, 64, 8), (3600, 64, 12)):
        assert crowds(((step, n),), 64, ways) == thrashes(step, n, 64, ways)


@settings(max_examples=a_part(300), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from((0, 4, 64, 192, 896, 904, 2048, 4096, 65536)), st.integers(0, 9)), max_size=3),
    st.sampled_from((1, 60, 64, 512)),
    st.integers(1, 9),
)
def test_lines_crowd_where_counting_them_says_so(steps: list[tuple[int, int]], sets: int, ways: int) -> None:
    moves = [range(0, step * n, step) if step else [0] * n for step, n in steps]
    lines = {sum(at) // 64 for at in itertools.product(*moves)}
    most = max(Counter(line % sets for line in lines).values(), default=0)
    assert crowds(tuple(steps), sets, ways) == (most >= ways)


def test_tiles_of_images_are_turned_with_the_channels_innermost() -> None:
    """Windows of pairs of pixels, channels first, become channels last: of results 14 lines are written at a time."""
    f, channels, tiles, pitch = float32, 512, 14, 30
    extents = (2, 2, 2, 2, tiles, tiles, channels)
    store = row_major(extents)
    loads = [
        Load(0, 0, (2 * pitch, pitch, 2, 1, 2 * pitch, 2, pitch * pitch), f),
        Load(0, 2 * pitch, (0, -pitch, 2, 1, 2 * pitch, 2, pitch * pitch), f),
    ]
    operands = (Operand(f, channels * pitch * pitch),)
    out = Operand(f, math.prod(extents))
    kernel = Kernel(extents, 7, None, Call("add", tuple(loads), f), Acc(f), operands, out, 0, store)
    group = KernelGroup((Stage(kernel, (0,), 1),), 0, (*operands, out), (1,))
    levels = tuple(replace(v, scattered_ns={"L3": 0.5, "memory": 2.5}.get(v.name, 0.0)) for v in DESK.levels)
    found = schedule(group, cpu_target(replace(DESK, levels=levels), 1))
    blocks, tile = list[int](), found.nest
    while isinstance(tile, Loop):
        blocks.append(tile.block)
        tile = tile.body
    assert isinstance(tile, TileOp) and blocks[-1] == channels
    # each element is read and written once from near, and its lanes are stored apart: not as if each were a line
    assert found.predicted_seconds < 3e-9 * kernel.points

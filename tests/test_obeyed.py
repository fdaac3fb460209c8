"""What a nest says is what is printed: any legal one computes the right thing, in its own loops; others are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import eqsat
from bench import attention as attention_suite
from bench import fused, gemm
from bench.workload import Workload
from eqsat.compiled import Compiled
from eqsat.ir.kernel import Call, Guarded, Index, KernelGroup, Literal, Load, Operand
from eqsat.ir.nest import MAPS, Loop, Nest, Pack, Seq, TileOp, show
from eqsat.ir.types import float32, float64, int64
from eqsat.plan.plan import KernelStep, Plan
from eqsat.schedule import below, check, is_parallel, schedule, simple_nest
from eqsat.schedule.sample import sample
from eqsat_backends.numba_cpu.printing.emit import emit_group
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import DESK, attention, machine, perceptron, turned_values
from tests.kernel_groups import gemm as product
from tests.test_contract import attention as causal_attention
from tests.test_contract import contractions, random_buffers, verify
from tests.test_contract import perceptron as normalized

Case = tuple[KernelGroup, list[np.ndarray]]


# any legal nest


def gathered(group: KernelGroup, arrays: list[np.ndarray], pick: int) -> Case:
    """The group of one contraction with a factor that is read at the places an index array names, along one axis."""
    (stage,) = group.stages
    kernel = stage.kernel
    assert isinstance(kernel.body, Call)
    loads = [factor for factor in kernel.body.args if isinstance(factor, Load)]
    found = [(load, axis) for load in loads for axis, s in enumerate(load.strides) if s and kernel.extents[axis] > 1]
    if not found:
        return group, arrays
    load, axis = found[pick % len(found)]
    extent, count = kernel.extents[axis], len(kernel.operands)
    index = Load(count, 0, tuple(int(a == axis) for a in range(len(kernel.extents))), int64)
    strides = tuple(0 if a == axis else s for a, s in enumerate(load.strides))
    moved = replace(load, strides=strides, gathers=((index, load.strides[axis]),))
    body = replace(kernel.body, args=tuple(moved if factor is load else factor for factor in kernel.body.args))
    places = np.random.default_rng(pick).integers(0, extent, extent)
    operands = (*kernel.operands, Operand(int64, extent))
    changed = replace(stage, kernel=replace(kernel, body=body, operands=operands), sources=tuple(range(count + 1)))
    stages = (replace(changed, result=count + 1),)
    whole = replace(group, stages=stages, operands=(*operands, kernel.out), outputs=(count + 1,))
    return whole, [*arrays[:-1], places, arrays[-1]]


def guarded(group: KernelGroup, pick: int) -> KernelGroup:
    """The group of one contraction with a factor that is 0 outside of a part of one axis."""
    (stage,) = group.stages
    kernel = stage.kernel
    assert isinstance(kernel.body, Call)
    axis, which = pick % len(kernel.extents), pick % 2
    extent = kernel.extents[axis]
    index = Index(0, tuple(int(a == axis) for a in range(len(kernel.extents))), int64)
    factor = kernel.body.args[which]
    part = Guarded(index, pick % extent // 2, extent - pick % extent // 3, factor, Literal(0.0, kernel.body.dtype))
    args = tuple(part if n == which else other for n, other in enumerate(kernel.body.args))
    changed = replace(stage, kernel=replace(kernel, body=replace(kernel.body, args=args)))
    return replace(group, stages=(changed,))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A contraction of 2 to 7 axes with an epilogue, some with a gathered or guarded factor; or 2 to 5 stages."""
    kind = draw(st.sampled_from(["one", "one", "gathered", "guarded", "attention", "turned", "perceptron", "mlp"]))
    if kind in ("one", "gathered", "guarded"):
        group, arrays = draw(contractions())
        assume(all(group.stages[0].kernel.extents))
        if kind == "guarded" and group.stages[0].kernel.extents:
            return guarded(group, draw(st.integers(0, 99))), arrays
        return gathered(group, arrays, draw(st.integers(0, 99))) if kind == "gathered" else (group, arrays)
    size = st.integers(1, 70)
    if kind == "attention":
        dtype, causal = draw(st.sampled_from([float32, float32, float64])), draw(st.booleans())
        group = causal_attention(draw(st.integers(1, 3)), draw(size), draw(size), draw(size), dtype, causal)
    elif kind == "turned":
        keys, width = draw(size), draw(size)
        group = turned_values(attention(draw(st.integers(1, 3)), draw(size), keys, width), keys, width)
    elif kind == "perceptron":
        group = normalized(draw(size), draw(size), draw(size), draw(st.booleans()), draw(st.booleans()))
    else:
        group = perceptron(draw(size), draw(size), draw(st.sampled_from([40, 600, 900])), draw(st.booleans()))
        group = replace(group, stages=(_relu(group), *group.stages[1:]))
    return group, random_buffers(group, draw(st.integers(0, 99)))


def _relu(group: KernelGroup) -> object:
    """The first stage with a function that the tests' own interpreter has."""
    stage = group.stages[0]
    epilogue = stage.kernel.epilogue
    assert isinstance(epilogue, Call)
    kept = replace(epilogue, fn="maximum", args=(*epilogue.args, *epilogue.args))
    return replace(stage, kernel=replace(stage.kernel, epilogue=kept))


def obeyed(case: Case, lanes: int, threads: int, seed: int, nests: int) -> int:
    """Run a group by random legal nests, and compare each with the interpreter; how many there were."""
    group, arrays = case
    assume(all(stage.kernel.points for stage in group.stages))
    host = machine(l1=8 << 10, l2=64 << 10, width=4 * lanes, registers=32 if lanes == 16 else 16)
    drawn = sample(group, cpu_target(host, threads), nests, seed=seed)
    assume(drawn)  # a group of one point has no loop to share
    for nest, _ in drawn:
        verify(group, arrays, nest=nest, lanes=lanes, threads=threads)
    return len(drawn)


drawn_cases = given(cases(), st.sampled_from([16, 16, 8, 4]), st.integers(1, 3), st.integers(0, 1 << 20))
quiet = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@settings(quiet, max_examples=24)
@drawn_cases
def test_any_legal_nest_computes_the_same(case: Case, lanes: int, threads: int, seed: int) -> None:
    obeyed(case, lanes, threads, seed, 3)


@pytest.mark.slow
@settings(quiet, max_examples=300)
@drawn_cases
def test_any_legal_nest_computes_the_same_many(case: Case, lanes: int, threads: int, seed: int) -> None:
    obeyed(case, lanes, threads, seed, 6)


@settings(quiet, max_examples=8)
@given(cases(), st.sampled_from([16, 8]), st.integers(1, 2))
def test_the_nest_without_a_search_is_legal_and_computes_the_same(case: Case, lanes: int, threads: int) -> None:
    group, arrays = case
    host = machine(width=4 * lanes, registers=32 if lanes == 16 else 16)
    nest = simple_nest(group, cpu_target(host, threads))
    check(nest, group, lanes, 32 if lanes == 16 else 16)
    verify(group, arrays, nest=nest, lanes=lanes, threads=threads)


# the printed loops


def said(nest: Nest, depth: int = 0) -> Iterator[tuple[int, str]]:
    """What a nest says, outermost first: (loops around it, loop or packing)."""
    match nest:
        case Loop(axis, block, step, body, parallel):
            loops = parallel or step < block
            if loops:
                yield depth, f"{axis}{'*' if parallel else ''} by {step}"
            yield from said(body, depth + loops)
        case Pack(operand, body, ahead):
            if not ahead and not is_parallel(body):
                yield depth, f"pack {operand}"
            yield from said(body, depth)
        case Seq(bodies):
            for body in bodies:
                tile = below(body)
                if isinstance(tile, TileOp) and tile.name not in MAPS:
                    yield from said(body, depth)


HEADER = re.compile(r"for (outer|rows|[bmnk])\d+ in range\((.*)\):")


def printed(source: str, phase: str) -> Iterator[tuple[int, str]]:
    """The same of a phase of a printed module, by its text."""
    text = source[source.index(f"def {phase}(") :]
    around: list[int] = []
    for line in text.splitlines()[1:]:
        if line and not line.startswith(" "):
            return
        indent = len(line) - len(line.lstrip())
        while around and around[-1] >= indent:
            around.pop()
        if found := HEADER.match(line.strip()):
            axis, bounds = found.groups()
            parts = [part.strip() for part in bounds.split(",")]
            parallel = "tid" in bounds or f"{axis}_start" in parts[0]
            yield len(around), f"{axis}{'*' if parallel else ''} by {parts[2] if len(parts) == 3 else 1}"
            around.append(indent)
        elif line.strip().startswith("# pack "):
            yield len(around), line.strip()[2:]


def holds(group: KernelGroup, nest: Nest, host: object = DESK) -> None:
    """The printed loops and packings, their order, steps and threads are those of the nest."""
    emitted = emit_group(group, nest, host)  # type: ignore[arg-type]
    assert list(printed(emitted.source, emitted.phases[-1])) == list(said(nest)), show(nest)
    shared, ahead = [], 0
    at = nest
    while isinstance(at, Loop | Pack):
        if isinstance(at, Pack):
            ahead += at.ahead
            if not at.ahead and is_parallel(at.body):
                shared.append(at.operand.split("@")[-1])
        at = at.body
    assert [phase.removeprefix("pack_") for phase in emitted.phases[:-1]] == shared
    assert len(emitted.packs) == ahead
    tiles = [below(body) for body in at.bodies] if isinstance(at, Seq) else [at]
    for tile in tiles:
        assert isinstance(tile, TileOp)
        if tile.name == "fma":
            assert f"tile_{tile.size('m')}x" in emitted.source


class Searched(BaseException):
    """Ends a compilation after the search."""


def plan_of(workload: Workload, monkeypatch: pytest.MonkeyPatch, threads: int) -> Plan:
    plans = []

    def stop(compiled: Compiled, progress: object, deadline: object) -> None:
        plans.append(compiled.search())
        raise Searched

    monkeypatch.setattr(Compiled, "_search", stop)
    program = eqsat.optimize(workload.function, threads=threads, const=workload.const, cache=False, verify=False)
    with pytest.raises(Searched):
        program.compile(*workload.inputs(np.random.default_rng(0)).values(), **workload.options)
    return plans[0]


WORKLOADS = {
    f"{w.suite} {w.name}": w
    for suite in (gemm, attention_suite, fused)
    for w in suite.workloads()
    if "10M" not in w.name and "mean" not in w.name
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_kernels_of_the_benchmarks_have_the_loops_of_their_nests(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqsat.cost import machine as in_force

    for threads in (1, 2):
        plan = plan_of(WORKLOADS[name], monkeypatch, threads)
        for step in plan.steps:
            assert isinstance(step, KernelStep) and step.nest is not None
            body = below(step.nest)
            tiles = [below(part) for part in body.bodies] if isinstance(body, Seq) else [body]
            if any(isinstance(tile, TileOp) and tile.name not in MAPS for tile in tiles):
                holds(step.group, step.nest, in_force.load())


GROUPS = {
    "gemm": product(100, 130, 900),
    "known": product(100, 130, 900, const="ab"),
    "batched": product(40, 50, 60, batch=3, transposed=True),
    "few rows": product(5, 900, 700),
    "attention": attention(3, 90, 120, 40),
    "turned": turned_values(attention(4, 90, 120, 40), 120, 40),
    "perceptron": perceptron(200, 60, 90),
    "unknown weights": perceptron(200, 90, 60, const=False),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GROUPS)
def test_nests_that_differ_have_loops_that_differ(name: str, threads: int) -> None:
    """Of nests at random: each is printed as what it says."""
    host = machine(l1=8 << 10, l2=64 << 10)
    for nest, _ in sample(GROUPS[name], cpu_target(host, threads), 25):
        holds(GROUPS[name], nest, host)


def test_the_comparison_sees_a_loop_in_another_place() -> None:
    group = product(60, 70, 200)
    tile = TileOp("fma", (("m", 14), ("n", 32), ("k", 200)))
    one, two = Loop("n", 70, 32, Loop("m", 60, 14, tile), True), Loop("m", 60, 14, Loop("n", 70, 32, tile), True)
    holds(group, one)
    source = emit_group(group, one, DESK).source
    for other in (
        two,
        replace(one, parallel=False),
        replace(one, step=64),
        Loop("n", 70, 32, Pack("b", one.body), True),
    ):
        assert list(printed(source, "contract")) != list(said(other))


# what is refused


def legal(nest: Nest, group: KernelGroup) -> None:
    check(nest, group, 16, 32)


def test_illegal_nests_of_a_contraction_are_refused_by_axis_or_factor() -> None:
    group, turned = product(60, 70, 200), product(60, 70, 200, transposed=True)
    tile = TileOp("fma", (("m", 14), ("n", 32), ("k", 200)))
    inner = Loop("m", 60, 14, tile)
    legal(Loop("n", 70, 32, inner), group)
    refused: list[tuple[Nest, str]] = [
        (Loop("k", 200, 64, Loop("n", 70, 32, inner), True), "threads cannot share out k"),
        (Loop("n", 70, 32, Loop("m", 60, 14, tile, True), True), "threads share the loop over n"),
        (Loop("n", 70, 32, tile), "60 positions of m, its tile has 14"),
        (Loop("j", 70, 32, inner), "'j', which is no axis"),
        (Loop("n", 64, 32, inner), "loop over n .* covers 64 positions .* 70 are there"),
        (Loop("n", 70, 48, Loop("m", 60, 14, TileOp("fma", (("m", 14), ("n", 48), ("k", 200))))), "registers"),
        (Loop("n", 70, 64, Pack("b", Loop("n", 64, 16, inner))), "loop over n in steps of 16 .* panels of 32"),
        (Loop("n", 70, 32, Loop("m", 60, 9, tile)), "loop over m in steps of 9 is around a tile of 14"),
        (Loop("n", 70, 21, inner), "loop over n in steps of 21 is around a tile of 32"),
        (Pack("b", Pack("b", Loop("n", 70, 32, inner))), "factor b of stage 0 is packed twice"),
        (Loop("n", 70, 32, Pack("b", Loop("m", 60, 14, tile, True))), "factor b .* every step of the loop over n"),
        (Pack("b", Loop("n", 70, 32, inner), ahead=True), "factor b .* cannot be packed at compile time"),
        (Pack("c", Loop("n", 70, 32, inner)), "'c', which is no factor"),
        (Seq((Loop("n", 70, 32, inner),)), "sequence"),
    ]
    for nest, message in refused:
        with pytest.raises(ValueError, match=message):
            legal(nest, group)
    with pytest.raises(ValueError, match="factor b of stage 0 cannot be read in place"):
        legal(Loop("n", 70, 32, inner), turned)
    update = TileOp("update", (("m", 60), ("n", 64), ("k", 8)))
    with pytest.raises(ValueError, match="rank update reads factor b"):
        legal(Pack("b", Loop("k", 200, 8, update)), group)


def test_illegal_nests_of_a_group_are_refused_by_axis_or_factor() -> None:
    group = attention(4, 90, 120, 40)
    chosen = schedule(group, cpu_target(DESK, 2)).nest

    def change(nest: Nest, at: str, new: object) -> Nest:
        match nest:
            case Loop(axis, body=body) if axis == at:
                return new(nest)  # type: ignore[operator, no-any-return]
            case Loop(body=body) | Pack(body=body):
                return replace(nest, body=change(body, at, new))
        raise AssertionError(f"no loop over {at}")

    legal(chosen, group)
    with pytest.raises(ValueError, match="factor a of stage 4 is not the same for all rows"):
        legal(change(chosen, "rows", lambda loop: Pack("a@4", loop)), group)
    with pytest.raises(ValueError, match=r"factor b of stage 0 (is packed twice|differs along outer)"):
        legal(change(chosen, "outer", lambda loop: Pack("b@0", loop)), group)
    with pytest.raises(ValueError, match="factor b of stage 4 is packed inside of the loop over rows"):
        legal(change(chosen, "rows", lambda loop: replace(loop, body=Pack("b@4", loop.body))), group)
    with pytest.raises(ValueError, match=r"loop over rows .* covers"):
        legal(change(chosen, "rows", lambda loop: replace(loop, block=loop.block + 1)), group)
    with pytest.raises(ValueError, match=r"loop over outer, not also that over rows|every step of the loop over outer"):
        legal(change(chosen, "rows", lambda loop: replace(loop, parallel=True)), group)
    with pytest.raises(ValueError, match=r"runs stages \[0, 1, 2, 3\]"):
        legal(change(chosen, "rows", lambda loop: replace(loop, body=Seq(loop.body.bodies[:-1]))), group)
    sequence = below(chosen)
    assert isinstance(sequence, Seq)
    swapped = Seq((*sequence.bodies[1::-1], *sequence.bodies[2:]))
    with pytest.raises(ValueError, match="in order"):
        legal(change(chosen, "rows", lambda loop: replace(loop, body=swapped)), group)

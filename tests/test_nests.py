"""Legality of nests: every nest of a group is run over index sets, and covers each point once, in order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.egraph.nests import NestGraph
from eqsat.ir.kernel import (
    FromStage,
    KernelGroup,
)
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, show
from eqsat.schedule import (
    schedule,
)
from eqsat.schedule.decode import decode
from eqsat.schedule.problem import problem_of
from eqsat.schedule.scheduler import search_graph
from eqsat.schedule.search import Entry
from eqsat.schedule.sweeps import stage_nests
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target as target_of
from tests.kernel_groups import (
    TINY,
    attention,
    gemm,
    perceptron,
    reduction,
)
from tests.sweeps import a_part


def run_contraction(nest: Nest, extents: dict[str, int]) -> np.ndarray:
    """How often each point (b, m, n, k) is computed; asserts that blocks and tiles cover what they say."""
    count = np.zeros(tuple(extents[axis] for axis in "bmnk"), np.int64)

    def walk(at: Nest, ranges: dict[str, tuple[int, int]]) -> None:
        match at:
            case Loop(axis, block, step, body):
                start, stop = ranges[axis]
                assert stop - start <= block and step >= 1
                for position in range(start, stop, step):
                    walk(body, {**ranges, axis: (position, min(position + step, stop))})
            case Pack(operand, body):
                assert operand in ("a", "b")
                walk(body, ranges)
            case TileOp(name):
                for axis in "mk" if name == "update" else "mnk":
                    assert ranges[axis][1] - ranges[axis][0] <= at.size(axis)
                assert ranges["b"][1] - ranges["b"][0] <= 1
                count[tuple(slice(*ranges[axis]) for axis in "bmnk")] += 1
            case Seq():
                raise AssertionError("one contraction needs no sequence")

    walk(nest, {axis: (0, extent) for axis, extent in extents.items()})
    return count


def named_extents(group: KernelGroup) -> dict[str, int]:
    form = problem_of(group).stages[0]
    return {axis: form.extent(axis) for axis in ("bmnk" if form.contraction else form.own)}


def sample(graph: NestGraph, draw: random.Random) -> Entry | None:
    """A nest of the e-graph, chosen at random among all that end in tiles."""
    complete: set[int] = set()
    order = graph.bottom_up()
    for number in order:
        if any(
            node.op in ("Tile", "Update", "Vector", "Transpose")
            or (node.children and all(c in complete for c in node.children))
            for node in graph.classes[number]
        ):
            complete.add(number)

    def pick(number: int) -> Entry:
        nodes = [n for n in graph.classes[number] if n.op not in ("Point", "Block")]
        node = draw.choice([n for n in nodes if all(child in complete for child in n.children)])
        return Entry(0.0, (), 0.0, 0.0, node, tuple(pick(child) for child in node.children))

    return pick(graph.root) if graph.root in complete else None


@settings(max_examples=a_part(60), deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 3),
    st.sampled_from(["", "a", "b", "ab"]), st.booleans(), st.integers(1, 3), st.integers(0, 1 << 30),
)  # fmt: skip
def test_every_nest_of_a_contraction_covers_each_point_once(
    m: int, n: int, k: int, batch: int, const: str, transposed: bool, threads: int, seed: int
) -> None:
    group = gemm(m, n, k, batch, const=const, transposed=transposed)
    form = problem_of(group).stages[0]
    if not form.contraction:
        return
    extents = named_extents(group)
    nests = {c.nest for c in schedule(group, target_of(TINY, threads)).candidates}
    target = target_of(TINY, threads)
    problem, graph = search_graph(group, target)
    draw = random.Random(seed)
    for _ in range(8):
        entry = sample(graph, draw)
        assert entry is not None
        nests.add(decode(entry, problem, target))
    for nest in sorted(nests, key=show):
        assert (run_contraction(nest, extents) == 1).all(), show(nest)


def run_vector(nest: Nest, extents: dict[str, int]) -> np.ndarray:
    """How often each point of a map or reduction is computed; asserts that blocks and tiles cover what they say."""
    count = np.zeros(tuple(extents.values()), np.int64)

    def walk(at: Nest, ranges: dict[str, tuple[int, int]]) -> None:
        match at:
            case Loop(axis, block, step, body):
                start, stop = ranges[axis]
                assert stop - start <= block
                for position in range(start, stop, step):
                    walk(body, {**ranges, axis: (position, min(position + step, stop))})
            case Seq((Loop(split=True) as first, _)):
                walk(first, ranges)  # and the second of the two phases combines its parts
            case TileOp("map" | "reduce" | "transpose"):
                assert all(stop - start <= at.size(axis) for axis, (start, stop) in ranges.items())
                count[tuple(slice(*ranges[axis]) for axis in extents)] += 1
            case _:
                raise AssertionError(show(at))

    walk(nest, {axis: (0, extent) for axis, extent in extents.items()})
    return count


@settings(max_examples=a_part(60), deadline=None)
@given(st.lists(st.integers(0, 70), min_size=0, max_size=3), st.data(), st.integers(1, 3))
def test_maps_and_reductions_cover_every_point_once(sizes: list[int], data: st.DataObject, threads: int) -> None:
    parallel = data.draw(st.integers(0, len(sizes)))
    order = data.draw(st.permutations(range(len(sizes))))
    group = reduction(tuple(sizes), parallel, tuple(order))
    for nest in (c.nest for c in schedule(group, target_of(TINY, threads)).candidates):
        if 0 not in sizes:
            assert (run_vector(nest, named_extents(group)) == 1).all()


def run_group(nest: Nest, group: KernelGroup) -> list[np.ndarray]:
    """For each stage, how often each (outer, row) is computed whole; asserts that what it reads was computed before."""
    problem = problem_of(group)
    done = [np.zeros((max(1, problem.outer), problem.rows), np.int64) for _ in group.stages]

    def stage_of(at: Nest) -> int:
        while isinstance(at, Loop | Pack):
            at = at.body
        assert isinstance(at, TileOp)
        return at.stage

    def run_stage(at: Nest, outer: int, rows: tuple[int, int]) -> None:
        number = stage_of(at)
        form, stage = problem.stages[number], group.stages[number]
        height = rows[1] - rows[0]
        if form.contraction:
            extents = {axis: form.extent(axis, height) for axis in "bmnk"}
            assert (run_contraction(at, extents) == 1).all()
        else:
            extents = {"rows": height} if height > 1 else {}
            extents |= {axis: form.extent(axis) for axis in form.own}
            assert (run_vector(at, extents) == 1).all()
        for source in stage.sources:
            if isinstance(source, FromStage):
                assert (done[source.stage][outer, slice(*rows)] == 1).all()
        done[number][outer, slice(*rows)] += 1

    def run_part(part: Nest, outer: int, rows: tuple[int, int]) -> None:
        alone = stage_nests(part, problem.simple)
        if not alone:
            run_stage(part, outer, rows)
            return
        if isinstance(part, Loop) and part.axis == "rows":
            assert (part.step, part.parallel) == (1, False) and part.block >= rows[1] - rows[0]
        for row in range(*rows):
            for own in alone.values():
                run_stage(own, outer, (row, row + 1))

    def walk(at: Nest, outer: tuple[int, int], rows: tuple[int, int]) -> None:
        match at:
            case Loop("outer", block, step, body):
                assert outer[1] - outer[0] <= block and step == 1
                for position in range(*outer):
                    walk(body, (position, position + 1), rows)
            case Loop("rows", _, step, body):
                for position in range(rows[0], rows[1], step):
                    walk(body, outer, (position, min(position + step, rows[1])))
            case Pack(operand, body):
                factor, _, number = operand.partition("@")
                assert factor == "b" and int(number) < len(group.stages)
                walk(body, outer, rows)
            case Seq(bodies):
                for body in bodies:
                    run_part(body, outer[0], rows)
            case _:
                raise AssertionError(show(at))

    walk(nest, (0, max(1, problem.outer)), (0, problem.rows))
    return done


@settings(max_examples=a_part(25), deadline=None)
@given(st.integers(1, 3), st.integers(1, 30), st.integers(1, 20), st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_groups_run_their_stages_in_order_on_every_row_once(
    heads: int, queries: int, keys: int, width: int, threads: int, mlp: bool
) -> None:
    group = perceptron(queries, width, keys, heads > 1) if mlp else attention(heads, queries, keys, width)
    for nest in (c.nest for c in schedule(group, target_of(TINY, threads)).candidates):
        assert all((count == 1).all() for count in run_group(nest, group)), show(nest)


def test_the_interpreter_notices_nests_that_skip_or_repeat() -> None:
    extents = {"b": 1, "m": 6, "n": 8, "k": 4}
    tile = TileOp("fma", (("m", 2), ("n", 8), ("k", 4)))
    assert (run_contraction(Loop("m", 6, 2, tile), extents) == 1).all()
    with pytest.raises(AssertionError):
        run_contraction(Loop("m", 6, 3, tile), extents)  # steps larger than the tile
    repeated = run_contraction(Loop("m", 6, 2, Loop("m", 6, 2, tile)), extents)
    assert (repeated == 1).all()  # a step within a step is that step
    with pytest.raises(AssertionError):
        run_contraction(Loop("m", 4, 2, tile), extents)  # a block smaller than what there is
    with pytest.raises(AssertionError):
        run_contraction(tile, extents)

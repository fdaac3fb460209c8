"""Loop nests: legal, priced as an independent evaluator prices them, sensible for known problems, deterministic."""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eqsat.cost.calibration import UNREAD
from eqsat.cost.machine import Machine, held
from eqsat.cost.target import Target
from eqsat.egraph.nests import ENode, NestGraph, Space, saturate_nests
from eqsat.errors import OptionError
from eqsat.ir.kernel import (
    Acc,
    Call,
    Expr,
    FromStage,
    Kernel,
    KernelGroup,
    Literal,
    Load,
    Operand,
    Stage,
)
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, show
from eqsat.ir.types import DType, float32, float64, int64
from eqsat.plan.policy import ScheduledPrice
from eqsat.schedule import (
    LoopRule,
    ScheduleError,
    check,
    installed_loop_rules,
    least_of,
    schedule,
)
from eqsat.schedule.copies import outlasts, with_copies
from eqsat.schedule.decode import decode
from eqsat.schedule.loop_price import loop_steps, total_seconds
from eqsat.schedule.phases import apart
from eqsat.schedule.price import Block, Pricer
from eqsat.schedule.problem import problem_of
from eqsat.schedule.sample import sample
from eqsat.schedule.scheduler import by_itself, search_graph
from eqsat.schedule.search import Entry, Search
from eqsat.schedule.space import space_of
from eqsat.schedule.tiles import best_tiles, ceil_div
from eqsat.schedule.vector_cost import turns_results
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target as target_of
from eqsat_rules.loops import LOOP_RULES
from tests.kernel_groups import (
    DESK,
    TINY,
    attention,
    gemm,
    machine,
    padded,
    perceptron,
    product_and_map,
    reduction,
    single,
    softmax,
    turned_values,
)
from tests.nest_price import evaluate
from tests.sweeps import a_part
from tests.test_masks import leave_out, masked_group
from tests.test_obeyed_groups import normed


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 4, 13, 64])
def test_every_group_has_a_nest(rows: int, threads: int) -> None:
    for columns, depth in ((4, 1), (64, 8), (40, 50)):
        for host in (DESK, TINY):
            assert schedule(product_and_map(rows, columns, depth), target_of(host, threads)).candidates
            group = turned_values(attention(24, rows, columns, depth), columns, depth)
            assert schedule(group, target_of(host, threads)).candidates


@pytest.mark.parametrize("batched", ["", "a", "b", "ab"])
@pytest.mark.parametrize("apart", [1, 2])
def test_products_of_shared_rows_and_a_batch_have_a_nest(batched: str, apart: int) -> None:
    """Factors may not depend on the batch, whose axis came from a broadcast; columns that lie apart are packed."""
    rows, batch, columns, depth = 7, 4, 33, 7
    sizes = {"a": rows * depth * batch, "b": columns * depth * batch * apart}
    steps = {"a": (depth, rows * depth, 0, 1), "b": (0, columns * depth * apart, depth * apart, apart)}
    x, w = (Operand(float32, sizes[name]) for name in "ab")
    out = Operand(float32, rows * batch * columns)
    stages = []
    for number in range(2):
        factors = []
        for operand, name in enumerate("ab"):
            row, outer, column, k = steps[name]
            strides = (row, outer if name in batched else 0, column, k)
            factors.append(Load(operand, 0, strides, float32))
        product = Call("mul", tuple(factors), float32)
        before = Load(2, 0, (batch * columns, columns, 1, 0), float32)
        epilogue = Call("add", (Acc(float32), before), float32) if number else Acc(float32)
        operands = (x, w, out) if number else (x, w)
        strides = (batch * columns, columns, 1)
        kernel = Kernel((rows, batch, columns, depth), 3, "sum", product, epilogue, operands, out, 0, strides)
        stages.append(Stage(kernel, (0, 1, FromStage(0)) if number else (0, 1), 2 if number else None))
    group = KernelGroup(tuple(stages), 1, (x, w, out), (2,))
    for host in (DESK, TINY):
        for threads in (1, 2):
            target = target_of(host, threads)
            for candidate in schedule(group, target).candidates:
                check(candidate.nest, group, target.vector_bits // 32, target.registers)


DUAL = replace(DESK, fma_gflops=(("float32", 238.0), ("float64", 119.0)), fma_latency_ns=1.08, broadcast_gs=6.3)
"""With two units for multiply-adds: a row of few results may be a register tile of its own."""


@pytest.mark.parametrize("reduced", [0, 1, 2])
@pytest.mark.parametrize("read", list(itertools.permutations(range(4), 3)))
def test_many_short_axes_in_any_order_have_a_nest(read: tuple[int, ...], reduced: int) -> None:
    """Whichever of them carries the lanes of vectors has to come inside the others, which keep their order."""
    extents, parallel = (2, 6, 3, 4), 4 - reduced

    def walked(axes: Sequence[int]) -> tuple[int, ...]:
        strides, step = [0] * len(extents), 1
        for axis in axes:
            strides[axis], step = step, step * extents[axis]
        return tuple(strides)

    for stored in itertools.permutations(range(parallel)):
        out = Operand(float64, math.prod(extents[:parallel]))
        x = Operand(float64, math.prod(extents[axis] for axis in read))
        load, strides = Load(0, 0, walked(read), float64), walked(stored)[:parallel]
        kernel = Kernel(extents, parallel, "max" if reduced else None, load, Acc(float64), (x,), out, 0, strides)
        group = KernelGroup((Stage(kernel, (0,), 1),), 0, (x, out), (1,))
        for host in (DESK, TINY):
            target = target_of(host, 1)
            check(schedule(group, target).nest, group, target.vector_bits // 32, target.registers)


@settings(max_examples=a_part(30), deadline=None)
@given(
    st.tuples(*[st.sampled_from([1, 2, 3, 5, 7, 8, 9, 14, 17, 31, 33, 40])] * 3),
    st.sampled_from([64, 128, 256, 512]),
    st.sampled_from([float32, float64]),
    st.tuples(st.booleans(), st.sampled_from(["", "a", "b"]), st.sampled_from([0, 3]), st.integers(1, 2)),
)
@example((7, 7, 40), 128, float32, (True, "", 0, 1))
@example((7, 7, 40), 256, float64, (True, "", 0, 2))
def test_no_width_leaves_a_product_without_a_nest(
    extents: tuple[int, int, int], bits: int, dtype: DType, how: tuple[bool, str, int, int]
) -> None:
    m, n, k = extents
    transposed, const, batch, threads = how
    product = gemm(m, n, k, batch, dtype, const, transposed)
    for host in (DUAL, DESK, TINY):
        target = target_of(held(host, bits), threads)
        assert schedule(product_and_map(m, n, k), target).candidates
        for candidate in schedule(product, target).candidates:
            check(candidate.nest, product, target.vector_bits // 32, target.registers)


def test_saturation_ends_only_when_a_round_changes_nothing() -> None:
    # A round that only merges terms makes none, or fewer; the rules' order must not decide where it ends.
    target = target_of(DESK)
    space = space_of(problem_of(product_and_map(64, 64, 8)), target)
    texts = [(rule.id, rule.text) for rule in installed_loop_rules()]
    sizes = {saturate_nests(order, [space])[0].size for order in (texts, texts[::-1])}
    assert len(sizes) == 1


# prices


GROUPS = {
    "gemm": gemm(96, 70, 130),
    "const": gemm(96, 70, 900, const="b"),
    "transposed": gemm(50, 64, 64, batch=3, transposed=True),
    "stream": gemm(4, 900, 700),
    "double": gemm(33, 65, 40, dtype=float64),
    "rows": reduction((50, 300), 1, (0, 1)),
    "columns": reduction((300, 50), 1, (1, 0)),
    "attention": attention(3, 40, 50, 16),
    "mlp": perceptron(60, 32, 48),
    "mlp, unknown weights": perceptron(60, 32, 48, const=False),
    "padded": padded(50, 300),
    "padded sums": padded(50, 300, "sum"),
    "padded maxima": padded(50, 300, "max"),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GROUPS)
def test_the_search_prices_a_nest_as_the_evaluator_does(name: str, threads: int) -> None:
    group = GROUPS[name]
    for host in (DESK, TINY):
        target = target_of(host, threads)
        problem, graph = search_graph(group, target)
        pricer = Pricer(problem, target)
        search = Search(graph, pricer, threads > 1)
        entries = search.roots(6)
        assert entries or name == "none"
        for entry in entries:
            nest = decode(entry, problem, target)
            price = evaluate(nest, problem, pricer)
            assert price is not None, show(nest)
            assert price.compute == pytest.approx(entry.compute, rel=1e-9), show(nest)
            assert price.moved == pytest.approx(entry.moved, rel=1e-9), show(nest)
            assert price.fixed == pytest.approx(entry.fixed) and price.scratch == pytest.approx(entry.scratch)


def test_an_e_graph_does_not_depend_on_those_before() -> None:
    """Rules are declared once: other nests, and a refusal, come between, and the numbers of e-classes stay."""
    rules = [(rule.id, rule.text) for rule in installed_loop_rules()]
    target = target_of(DESK)
    groups = (turned_values(attention(2, 40, 60, 16), 60, 16), product_and_map(64, 64, 8))
    spaces = [space_of(problem_of(group, target), target) for group in groups]
    first = [saturate_nests(rules, [space])[0] for space in spaces]
    with pytest.raises(ValueError, match="egglog refused"):
        saturate_nests(rules, [Space(spaces[0].root, ("(nothing)",))])
    again = [saturate_nests(rules, [space])[0] for space in spaces[::-1]]
    assert again[::-1] == first


def test_e_graphs_that_saturate_together_are_those_of_each() -> None:
    """They have axes and stages of one name, blocks of one size, and leaves in common."""
    rules = [(rule.id, rule.text) for rule in installed_loop_rules()]
    target = target_of(DESK, 2)
    spaces = [space_of(problem_of(group, target), target) for group in GROUPS.values()]
    spaces.append(spaces[0])
    each = [saturate_nests(rules, [space])[0] for space in spaces]
    assert saturate_nests(rules, spaces) == each
    assert saturate_nests(rules, spaces[::-1]) == each[::-1]
    counts = {name: [dict(graph.matches)[name] for graph in each] for name in ("loop.tile", "loop.pack", "loop.fuse")}
    together = {id(graph.matches): dict(graph.matches) for graph in saturate_nests(rules, spaces)}
    for name, found in counts.items():
        assert 0 < sum(found) == sum(matches[name] for matches in together.values())


def test_a_large_e_graph_does_not_end_those_beside_it() -> None:
    rules = [(rule.id, rule.text) for rule in installed_loop_rules()]
    target = target_of(DESK)
    large, small = (space_of(problem_of(GROUPS[name], target), target) for name in ("attention", "rows"))
    whole = saturate_nests(rules, [small])[0]
    limit = 3 * whole.size  # facts count, too
    cut = saturate_nests(rules, [large], limit=limit)[0]
    assert saturate_nests(rules, [small], limit=limit) == [whole]
    assert cut.size < saturate_nests(rules, [large])[0].size
    assert saturate_nests(rules, [large, small], limit=limit) == [cut, whole]


def test_groups_with_equal_nests_share_an_e_graph_and_others_do_not() -> None:
    target = target_of(DESK)
    groups = (gemm(96, 64, 64), gemm(96, 64, 64, const="b"))
    spaces = [space_of(problem_of(group, target), target) for group in groups]
    assert spaces[0].root == spaces[1].root and spaces[0].facts != spaces[1].facts
    graphs = [search_graph(group, target)[1] for group in groups]
    assert search_graph(groups[0], target)[1] is graphs[0] is not search_graph(groups[0], target, ("loop.peel",))[1]
    rules = [(rule.id, rule.text) for rule in installed_loop_rules()]
    assert graphs == saturate_nests(rules, spaces)


def every_nest(graph: NestGraph, most: int) -> list[Entry] | None:
    """All nests of an e-graph that end in tiles, or None past ``most`` for one class."""
    found: dict[int, list[Entry]] = {}
    for number in graph.bottom_up():
        entries = []
        for node in graph.classes[number]:
            if node.op in ("Point", "Block"):
                continue
            for children in itertools.product(*(found[child] for child in node.children)):
                entries.append(Entry(0.0, (), 0.0, 0.0, node, children))
                if len(entries) > most:
                    return None
        found[number] = entries
    return found[graph.root]


@pytest.mark.parametrize("name", ["gemm", "transposed", "double", "columns"])
def test_the_dynamic_program_finds_what_enumeration_finds(name: str) -> None:
    group = GROUPS[name]
    target = target_of(TINY)
    problem, graph = search_graph(group, target)
    everything = every_nest(graph, 200_000)
    assert everything is not None and len(everything) >= 2
    pricer = Pricer(problem, target)
    best = float("inf")
    for entry in everything:
        price = evaluate(decode(entry, problem, target), problem, pricer)
        if price is not None:
            best = min(best, total_seconds(pricer, price.compute, price.moved, price.fixed, price.scratch))
    search = Search(graph, pricer, False)
    assert search.seconds(search.roots(1)[0]) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GROUPS)
def test_nests_drawn_at_random_are_different_legal_and_priced(name: str, threads: int) -> None:
    group, target = GROUPS[name], target_of(TINY, threads)
    drawn = sample(group, target, 40, seed=3)
    assert drawn == sample(group, target, 40, seed=3)
    assert len({show(nest) for nest, _ in drawn}) == len(drawn)
    assert len(drawn) > 1 or name == "rows"
    problem = problem_of(group, target)
    best = schedule(group, target).predicted_seconds
    for nest, seconds in drawn:
        price = evaluate(nest, problem, Pricer(problem, target))
        assert price is not None, show(nest)
        assert price.compute > 0
        assert seconds >= best * (1 - 1e-9) or threads > 1, show(nest)


# what is chosen


def blocks_of(nest: Nest, extents: dict[str, int]) -> list[tuple[str, dict[str, int]]]:
    """(packed factor, sizes of the block it is packed from), outermost first."""
    match nest:
        case Loop(axis, _, step, body):
            return blocks_of(body, {**extents, axis: min(step, extents[axis])})
        case Pack(operand, body, ahead):
            return [*([] if ahead else [(operand, extents)]), *blocks_of(body, extents)]
    return []


def test_a_large_product_is_blocked_as_goto_did() -> None:
    found = schedule(gemm(1024, 1024, 1024), target_of(DESK))
    gflops = 2 * 1024**3 / found.predicted_seconds / 1e9
    assert 95 <= gflops <= 112  # of a peak of 117; OpenBLAS reaches 100-105 on such a machine
    at = found.nest
    while not isinstance(at, TileOp):
        assert isinstance(at, Loop | Pack)
        at = at.body
    assert at.name == "fma" and (at.size("m"), at.size("n")) == (14, 32)
    packs = blocks_of(found.nest, {"b": 1, "m": 1024, "n": 1024, "k": 1024})
    assert {operand for operand, _ in packs} == {"a", "b"}
    bytes_of = [4 * sizes["k"] * sizes["m" if operand == "a" else "n"] for operand, sizes in packs]
    assert (1 << 16) < min(bytes_of) <= target_of(DESK).caches[1].capacity  # one factor's block stays in L2
    assert dict(found.best.moved)["memory"] <= 6 * 4 * 1024**2
    assert len({c.nest for c in found.candidates}) == len(found.candidates) > 1 and found.best.nest == found.nest


def test_known_weights_are_not_packed_at_run_time() -> None:
    nest = schedule(gemm(128, 3072, 768, const="b"), target_of(DESK)).nest
    packs = blocks_of(nest, {"b": 1, "m": 128, "n": 3072, "k": 768})
    assert all(operand == "a" for operand, _ in packs)


def test_a_factor_that_no_tile_can_read_in_place_is_packed() -> None:
    nest = schedule(gemm(200, 200, 200, transposed=True), target_of(DESK)).nest
    assert "pack b" in show(nest)


def picked(index_strides: tuple[int, int]) -> KernelGroup:
    """64 rows of 1024 elements, from where an index of these strides says."""
    index = Load(1, 0, index_strides, int64)
    body = Load(0, 0, (0, 1), float32, ((index, 1024),))
    operands = (Operand(float32, 64 * 1024), Operand(int64, 64 if index_strides[0] else 1024))
    return single(Kernel((64, 1024), 2, None, body, Acc(float32), operands, Operand(float32, 64 * 1024), 0, (1024, 1)))


def test_rows_that_an_index_picks_are_read_as_any_rows() -> None:
    """Bilinear doubling of 64 × 56², whose rows were priced as single elements, took its vectors across them."""
    copied, rows, apart = (
        schedule(group, target_of(DESK)).best.busy
        for group in (reduction((64, 1024), 2, (0, 1)), picked((1, 0)), picked((0, 1)))
    )
    assert copied <= rows < 1.5 * copied < apart / 2


def test_lanes_apart_take_as_long_as_ports_load_them() -> None:
    """Zen 4 loads two of them in the time of a vector's multiply-add, Intel's AVX-512 one."""
    every_third = reduction((4096, 3), 1, (0, 1)).stages[0].kernel
    every_third = replace(every_third, extents=(4096,), combine=None, body=Load(0, 0, (3,), float32))
    slot = 2 * 16 / DESK.fma_gflops[0][1]  # nanoseconds
    quick, slow = (
        schedule(single(every_third), target_of(replace(DESK, broadcast_gs=rate / slot))).best.busy for rate in (2, 1)
    )
    lanes = 4096 * 1.5 * slot * 1e-9  # of the slower one
    assert slow - quick == pytest.approx(lanes / 2, rel=0.01) and slow < 1.5 * lanes


def by_columns(m: int, k: int, n: int) -> KernelGroup:
    """``x.T @ w``, as of a 1×1 convolution: the first factor's neighbours along k lie ``m`` elements apart."""
    (stage,) = gemm(m, n, k).stages
    body = stage.kernel.body
    assert isinstance(body, Call) and isinstance(body.args[0], Load)
    first = replace(body.args[0], strides=(1, 0, m))
    return single(replace(stage.kernel, body=replace(body, args=(first, body.args[1]))))


def test_lines_that_tiles_read_in_part_are_waited_for_where_they_do_not_stay() -> None:
    """1×1 convolutions of 7² positions read their images in place, 196 bytes from channel to channel: 1.2 times as long
    as with copies, six elements of each line (Zen 3)."""
    target = target_of(machine(registers=16, width=32, l1=32 << 10))

    def more(group: KernelGroup, rows: int, depth: int) -> float:
        """Seconds of a tile that reads its first factor in place, beside one that has a copy."""
        pricer = Pricer(problem_of(group, target), target)
        here, copied = (pricer.tile(0, rows, 16, depth, a, True) for a in (False, True))
        assert here is not None and copied is not None
        return here - copied

    columns, rows = by_columns(49, 512, 320), gemm(49, 320, 512)
    line = target.inner.line
    assert more(columns, 6, 512) == pytest.approx(UNREAD * 512 * (line - 24) / target.refill)
    assert more(columns, 3, 512) > more(columns, 6, 512)  # of each line less
    assert more(columns, 6, 128) == more(rows, 6, 512) == 0  # they stay; they lie in order
    assert more(by_columns(8, 512, 320), 6, 512) == 0  # two steps of k share a line
    assert "pack a" in show(schedule(columns, target).nest) and "pack a" not in show(schedule(rows, target).nest)


def test_few_rows_stream_the_second_factor() -> None:
    found = schedule(gemm(8, 4096, 4096), target_of(DESK))
    assert "update" in show(found.nest)
    assert dict(found.best.moved)["memory"] < 1.2 * 4 * 4096**2


@pytest.mark.parametrize("rows", [6, 8, 12])
def test_few_rows_stream_the_second_factor_with_small_register_tiles(rows: int) -> None:
    found = schedule(gemm(rows, 4096, 4096), target_of(machine(registers=16, width=32)))
    assert "update" in show(found.nest)  # no tile of 16 registers has so many rows: it would read everything twice


def far_bytes_packed(nest: Nest, operand: str, size: int, sizes: dict[str, int]) -> int:
    """Bytes that the copies of a factor read, in all steps of the loops around them."""
    count = 1
    while not isinstance(nest, TileOp):
        assert isinstance(nest, Loop | Pack)
        if isinstance(nest, Pack) and nest.operand == operand:
            return count * size * sizes["k"] * sizes["m" if operand == "a" else "n"]
        if isinstance(nest, Loop):
            count *= ceil_div(sizes[nest.axis], nest.step)
            sizes = {**sizes, nest.axis: min(sizes[nest.axis], nest.step)}
        nest = nest.body
    return 0


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_packed_again_and_again_from_a_slow_space(threads: int) -> None:
    slow = tuple(
        replace(level, read_gbs=18.0, copy_gbs=15.0, read_gbs_all=32.0, copy_gbs_all=28.0) if level.shared else level
        for level in machine(l1=48 << 10, l2=2 << 20, l3=480 << 20).levels
    )
    target = target_of(replace(DESK, levels=slow), threads)
    found = schedule(gemm(1024, 1024, 1024), target).nest
    extents = {"b": 1, "m": 1024, "n": 1024, "k": 1024}
    packed = sum(far_bytes_packed(found, operand, 4, extents) for operand in "ab")
    assert packed <= 3 * 4 * 1024**2  # 8 blocks of rows that pack the second factor each read eleven times as much


@pytest.mark.parametrize("dtype", [float32, float64])
def test_a_long_product_multiplies_by_a_block_that_stays_in_the_second_cache(dtype: DType) -> None:
    """Not by all of the packed factor, from a slow space, for every few rows of the first."""
    slow = tuple(
        replace(level, read_gbs=18.0, copy_gbs=15.0) if level.shared else level
        for level in machine(l1=48 << 10, l2=2 << 20, l3=480 << 20).levels
    )
    at = schedule(gemm(2000, 2000, 2000, dtype=dtype), target_of(replace(DESK, levels=slow))).nest
    sizes = {"k": 2000, "n": 2000}
    while not (isinstance(at, Pack) and at.operand == "b"):
        assert isinstance(at, Loop | Pack)
        if isinstance(at, Loop):
            sizes[at.axis] = min(at.step, sizes.get(at.axis, at.step))
        at = at.body
    assert sizes["k"] * sizes["n"] * dtype.itemsize <= 1 << 20


def test_pieces_of_rows_from_a_slow_space_are_waited_for() -> None:
    # panels of 32 columns of rows of 12 KB: read where they lie, they cost what their copy waits, and more
    group, host = gemm(64, 3072, 3072), target_of(DESK)
    pricer = Pricer(problem_of(group, host), host)
    rows, columns, depth = 13, 32, 512
    whole = schedule(group, host).nest
    assert "pack b" in show(whole)
    apart = pricer.tile(0, rows, columns, depth, True, False)
    packed = pricer.tile(0, rows, columns, depth, True, True)
    assert apart is not None and packed is not None
    (second,) = (f for f in pricer.problem.stages[0].factors if f.name == "b")
    share = depth * columns * 4 * rows / 64
    assert apart - packed >= share * pricer.first_read(pricer.problem.stages[0], second) > 0


def test_results_that_go_out_as_pieces_of_rows_are_paid_once_each() -> None:
    host = target_of(DESK)
    pricer = Pricer(problem_of(gemm(3000, 2000, 500), host), host)

    def control(rows: int) -> float:
        block = Block(frozenset({0}), (("k0", 500), ("m0", rows), ("n0", 32)), frozenset())
        return loop_steps(pricer, block, "m0", rows, 10)[1] / rows

    assert control(300) > host.pages.slots * host.slot(float32)
    assert control(3000) == pytest.approx(control(300))


@pytest.mark.parametrize("size", [100, 3000])
def test_tiles_ask_for_rows_of_the_first_factor_that_no_private_cache_holds(size: int) -> None:
    found = show(schedule(gemm(size, size, size, dtype=float64), target_of(DESK)).nest)
    assert ("fma(m=14,n=16,k=504,prefetch=3" in found) == (size > 1000), found


def side_by_side(count: int) -> KernelGroup:
    """Products of equal extents, of two small matrices each, with their position and rows in common."""
    first, second = Load(0, 0, (3, 15, 0, 1), float32), Load(1, 0, (36, 0, 18, -6), float32)
    operands, out = (Operand(float32, 2520, const=True), Operand(float32, 180)), Operand(float32, 1680)
    body = Call("mul", (first, second), float32)
    kernel = Kernel((5, 168, 2, 3), 3, "sum", body, Acc(float32), operands, out, 0, (2, 10, 1))
    results = tuple(range(2, 2 + count))
    stages = tuple(Stage(kernel, (0, 1), result) for result in results)
    return KernelGroup(stages, 2, (*operands, *[out] * count), results)


def test_a_group_with_too_many_nests_is_left_apart() -> None:
    """Those of a transposed convolution of six kernels: no nest of them all was made before the e-graph was large."""
    target = target_of(machine(registers=16, width=32), 2)
    price = ScheduledPrice(target)
    assert math.isfinite(price.seconds(side_by_side(2)))
    with pytest.raises(ScheduleError, match="more than 50,000 forms of its loops"):
        schedule(side_by_side(6), target)
    assert price.seconds(side_by_side(6)) == math.inf


def test_threads_share_what_is_large_and_leave_what_is_small() -> None:
    assert "*:" in show(schedule(gemm(1024, 1024, 1024), target_of(DESK, 2)).nest)
    assert "*:" not in show(schedule(gemm(3, 5, 7), target_of(DESK, 2)).nest)
    assert "*:" not in show(schedule(reduction((1000,), 1, (0,)), target_of(DESK, 2)).nest)
    one, two = (schedule(gemm(1024, 1024, 1024), target_of(DESK, n)).predicted_seconds for n in (1, 2))
    assert 1.7 < one / two < 2.05


def parallel_axes(nest: Nest) -> set[str]:
    match nest:
        case Loop(axis, _, _, body, parallel, split):
            return ({axis} if parallel and not split else set()) | parallel_axes(body)
        case Pack(_, body):
            return parallel_axes(body)
        case Seq(bodies):
            return set().union(*map(parallel_axes, bodies))
    return set()


def test_a_reduced_axis_is_never_shared_between_threads() -> None:
    for group in (gemm(5, 6, 50_000), reduction((2, 100_000), 1, (0, 1)), reduction((100_000,), 0, (0,))):
        found = schedule(group, target_of(DESK, 4))
        assert all("k" not in parallel_axes(c.nest) for c in found.candidates)
        assert all("r0" not in parallel_axes(c.nest) for c in found.candidates)  # unless it is split
        _, graph = search_graph(group, target_of(DESK, 4))
        shared = {node.args[0] for nodes in graph.classes for node in nodes if node.op == "Par"}
        assert shared <= {"b0", "m0", "n0", "p0_0"}


def test_attention_keeps_a_block_of_scores_in_cache() -> None:
    found = schedule(attention(8, 512, 512, 64), target_of(DESK))
    step = next(int(part.split("/")[1]) for part in show(found.nest).split(" > ") if part.startswith("rows:"))
    assert 14 <= step < 512 and step * 512 * 4 * 2 <= target_of(DESK).caches[1].capacity
    assert dict(found.best.moved)["memory"] <= 4 * 8 * 512 * 64 * 4 * 2
    assert "pack b@0" in show(found.nest).split(" > rows")[0]  # keys are packed once for all blocks of rows


@settings(max_examples=a_part(80), deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([DESK, TINY]), st.sampled_from([float32, float64]))
def test_register_tiles_fit_the_registers(m: int, n: int, host: Machine, dtype: DType) -> None:
    target = target_of(host)
    for rows, columns in best_tiles(target, dtype, m, n, 3):
        vectors = ceil_div(columns, target.lanes(dtype))
        assert rows <= m and columns <= n
        assert rows * vectors + vectors + 1 <= target.registers + 2
    for tile in target.tiles:
        assert tile.registers <= target.registers


@settings(max_examples=a_part(60), deadline=None)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 2000), st.integers(1, 2))
def test_no_nest_beats_the_peak(m: int, n: int, k: int, threads: int) -> None:
    found = schedule(gemm(m, n, k), target_of(DESK, threads))
    assert found.predicted_seconds >= 2 * m * n * k / (117e9 * threads)


# legality that is refused


def test_a_stage_that_reads_other_rows_is_refused() -> None:
    with pytest.raises(ScheduleError, match="stage 1 of group 'attention' reads stage 0"):
        schedule(attention(2, 8, 8, 4, shift=8), target_of(DESK))


def test_a_group_without_shared_axes_is_refused() -> None:
    group = perceptron(8, 4, 4)
    with pytest.raises(ScheduleError, match="shares no axis"):
        schedule(KernelGroup(group.stages, 0, group.operands, group.outputs), target_of(DESK))


RULES = [(rule.id, rule.text) for rule in LOOP_RULES]
PAIR = '(Seq (Loop "rows" 8 1 (Block 0)) (Loop "rows" 8 1 (Block 1)))'
TWO = '(Loop "x" 8 4 (Loop "x" 4 1 (Loop "y" 6 3 (Loop "y" 3 1 (Point 0)))))'


def nests_of(facts: list[str], root: str) -> NestGraph:
    (graph,) = saturate_nests(RULES, [Space(root, tuple(facts))])
    return graph


def heads(graph: NestGraph) -> list[ENode]:
    return list(graph.classes[graph.root])


def test_loops_fuse_only_over_shared_axes() -> None:
    assert {node.op for node in heads(nests_of([], PAIR))} == {"Seq"}
    fused = nests_of(['(shared "rows")'], PAIR)
    assert {node.op for node in heads(fused)} == {"Seq", "Loop"}


def test_loops_are_interchanged_only_when_permutable() -> None:
    assert {node.args[0] for node in heads(nests_of([], TWO))} == {"x"}
    assert {node.args[0] for node in heads(nests_of(['(permutable "y" "x")'], TWO))} == {"x"}
    both = nests_of(['(permutable "x" "y")', '(permutable "y" "x")'], TWO)
    assert {node.args[0] for node in heads(both)} == {"x", "y"}


def test_a_rule_that_contains_itself_is_refused() -> None:
    wrap = ("test.wrap", '(rule ((= e (Point i))) ((union e (Loop "x" 1 1 (Point i)))) :ruleset {ruleset})')
    with pytest.raises(ValueError, match="cycle"):
        saturate_nests([wrap], [Space("(Point 0)", ())])


def test_a_faulty_rule_is_named() -> None:
    with pytest.raises(ValueError, match=r"test\.broken"):
        saturate_nests([("test.broken", "(rule ((= e (Nothing))) () :ruleset {ruleset})")], [Space("(Point 0)", ())])
    with pytest.raises(ValueError, match="ruleset"):
        LoopRule("test.loose", "no ruleset", "(rule () ())")
    with pytest.raises(ValueError, match='axis "rows"'):
        LoopRule("test.named", "an axis", '(rule ((= e (Loop "rows" n s x))) ((spmd e)) :ruleset {ruleset})')


# rules as data


def test_every_rule_has_an_id_a_text_and_fires_somewhere() -> None:
    assert len({rule.id for rule in LOOP_RULES}) == len(LOOP_RULES)
    problems = [(gemm(96, 70, 130), 1), (gemm(4, 900, 700), 1), (attention(3, 40, 50, 16), 2)]
    problems += [(reduction((400, 300), 2, (1, 0)), 1), (reduction((50, 4000), 1, (0, 1)), 2), (softmax(40, 64), 1)]
    problems.append((leave_out(*masked_group(np.tri(40, 50, dtype=bool), 2, 16, float32))[-1].group, 2))
    problems += [(padded(40, 300, "sum"), 1)]
    sizes = {}
    for disabled in (None, *LOOP_RULES):
        ids = () if disabled is None else (disabled.id,)
        sizes[ids] = [search_graph(group, target_of(TINY, threads), ids)[1].size for group, threads in problems]
    for rule in LOOP_RULES:
        assert rule.doc and sizes[(rule.id,)] != sizes[()], rule.id


def test_a_sweep_asks_for_the_next_row_where_that_has_to_come_from_afar() -> None:
    """The one with the exponentials; none where all is in a private cache, or two rows would push each other out."""
    target = target_of(DESK)

    def asking(group: KernelGroup) -> list[int]:
        return [tile.stage for tile in tiles(schedule(group, target).nest) if tile.prefetch]

    assert asking(softmax(4096, 1024)) == asking(softmax(2048, 1000, float64)) == [1]
    assert not asking(softmax(40, 256)) and not asking(softmax(64, 1 << 18))
    group = softmax(4096, 1024)
    apart = schedule(group, target, disable=("loop.prefetch",))
    assert not any(tile.prefetch for tile in tiles(apart.nest))
    assert schedule(group, target).predicted_seconds < apart.predicted_seconds


def test_rows_ask_for_what_the_next_head_reads_where_that_comes_from_afar() -> None:
    """Of heads that fit beside one another into a private cache; not where all of them are in it."""
    target = target_of(DESK)

    def asks(group: KernelGroup, *disable: str) -> bool:
        return bool(re.search(r"rows:\d+/1 prefetch", show(schedule(group, target, disable=disable).nest)))

    heads = attention(96, 128, 128, 32)
    assert asks(heads) and not asks(heads, "loop.prefetch")
    assert (
        schedule(heads, target).predicted_seconds
        < schedule(heads, target, disable=("loop.prefetch",)).predicted_seconds
    )
    assert not asks(attention(2, 16, 16, 32)) and not asks(attention(1, 128, 128, 32))
    assert not asks(attention(96, 1024, 1024, 64))


def tiles(nest: Nest) -> list[TileOp]:
    if isinstance(nest, TileOp):
        return [nest]
    return [tile for body in (nest.bodies if isinstance(nest, Seq) else (nest.body,)) for tile in tiles(body)]


def test_rules_are_disabled_by_id() -> None:
    group = gemm(1024, 1024, 1024)
    assert "pack" not in show(schedule(group, target_of(DESK), disable=("loop.pack",)).nest)
    with pytest.raises(ValueError, match=r"no loop rule is called loop\.nonsense; there are .*loop\.tile"):
        schedule(group, target_of(DESK), disable=("loop.nonsense",))
    with pytest.raises(OptionError, match=r"without the disabled rules loop\.tensorize, loop\.stream$"):
        schedule(group, target_of(DESK), disable=("loop.tensorize", "loop.stream"))


# determinism

SCRIPT = """
from tests.test_schedule import *
for name, group in GROUPS.items():
    for threads in (1, 2):
        found = schedule(group, target_of(DESK, threads))
        print(name, threads, repr(found.predicted_seconds), *map(show, found.candidates), sep=" | ")
"""


def test_schedules_do_not_depend_on_hashing() -> None:
    outputs = set()
    for seed in ("0", "1", "4242"):
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, cwd=root)
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1 and len(outputs.pop().splitlines()) == 2 * len(GROUPS)


def test_results_are_remembered() -> None:
    assert schedule(gemm(96, 70, 130), target_of(DESK)) is schedule(gemm(96, 70, 130), target_of(DESK))


def test_products_that_share_only_a_batch_cost_more_than_apart() -> None:
    """Stages run by heads leave a whole product to each position: that is done by vectors, which load more."""
    heads, m, k = 8, 64, 256
    f = float32
    x, e, v, y = (Operand(f, heads * n) for n in (k * m, k * m, k * m, m * m))
    grown = Kernel(
        (heads, k * m), 2, None, Call("exp", (Load(0, 0, (k * m, 1), f),), f), Acc(f), (x,), e, 0, (k * m, 1)
    )
    factors = Load(0, 0, (k * m, 1, 0, m), f), Load(1, 0, (k * m, 0, 1, m), f)
    product = Kernel((heads, m, m, k), 3, "sum", Call("mul", factors, f), Acc(f), (e, v), y, 0, (m * m, m, 1))
    one = KernelGroup((Stage(grown, (0,), 1),), 0, (x, e), (1,), "exp")
    two = KernelGroup((Stage(product, (0, 1), 2),), 0, (e, v, y), (2,), "product")
    fused = KernelGroup((Stage(grown, (0,), 1), Stage(product, (FromStage(0), 2), 3)), 1, (x, e, v, y), (1, 3), "both")
    apart, together = (
        sum(schedule(g, target_of(DESK)).predicted_seconds for g in groups) for groups in ((one, two), (fused,))
    )
    assert together > 1.2 * apart


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at", [DESK, TINY])
def test_no_schedule_beats_the_least_that_one_can_take(at: Machine, threads: int) -> None:
    large = {"map": padded(4096, 1024), "passes": normed(4096, 1, 1024), "softmax": softmax(4096, 1024)}
    for name, group in (GROUPS | large).items():
        target = target_of(at, threads)
        assert 0 < least_of(group, target).seconds(target) <= 1.02 * schedule(group, target).predicted_seconds, name


def test_tiles_ask_for_results_and_stored_sums_that_no_private_cache_holds() -> None:
    target = target_of(DESK)
    half = Call("mul", (Acc(float32), Literal(0.5, float32)), float32)

    def claims(rows: int, k: int, epilogue: Expr = half) -> bool:
        tile = TileOp("fma", (("m", 14), ("n", 32), ("k", k)))
        nest = Loop("k", 1024, k, Loop("m", rows, 14, Loop("n", 256, 32, tile)))
        group = gemm(rows, 256, 1024)
        (stage,) = group.stages
        group = replace(group, stages=(replace(stage, kernel=replace(stage.kernel, epilogue=epilogue)),))
        (tile,) = tiles(with_copies(nest, problem_of(group, target), target))
        return tile.claim

    assert target.middle[0].capacity < 4096 * 256 * 4
    assert claims(4096, 512) and claims(4096, 1024) and claims(4096, 512, Acc(float32))
    assert not any(claims(rows, k, e) for rows in (14, 140) for k in (512, 1024) for e in (half, Acc(float32)))


def test_panels_from_the_second_cache_hide_behind_multiply_adds() -> None:
    """Of a product with rows enough; not of a stream, of a group that has other work, or of memory's alone."""
    target = target_of(DESK)
    (bandwidth, _, shown), *_ = target.rates

    def pricer(group: KernelGroup, on: Target = target) -> Pricer:
        return Pricer(problem_of(group, on), on)

    many = pricer(gemm(729, 64, 384, const="b"))
    assert 0.5 * 4e6 * shown / bandwidth < many.uncharged(4e6) < 4e6 * shown / bandwidth
    alone = replace(target, spaces=(target.inner, target.outer))
    others = (gemm(8, 64, 384, const="b"), target), (product_and_map(64, 64, 64), target)
    assert not any(pricer(group, on).uncharged(4e6) for group, on in (*others, (gemm(729, 64, 384, const="b"), alone)))

    tile = TileOp("fma", (("m", 14), ("n", 32), ("k", 384)))
    nest = Pack("b", Loop("m", 729, 14, Loop("n", 64, 32, tile)), ahead=True)
    price = evaluate(nest, many.problem, many)
    assert price is not None and price.moved[0] > 52 * 4 * 64 * 384, "the panels for each row of tiles"
    seconds = total_seconds(many, price.compute, price.moved, price.fixed, price.scratch)
    assert price.compute < seconds < 1.05 * price.compute, "tiles fed from there take as long as others"


@pytest.mark.parametrize(("m", "n", "k"), [(1000, 64, 2), (200, 256, 2), (64, 3136, 64)])
def test_no_product_is_faster_than_the_second_cache(m: int, n: int, k: int) -> None:
    target = target_of(DESK)
    found = schedule(gemm(m, n, k), target)
    assert found.predicted_seconds > dict(found.best.moved)["L2"] / target.rates[0][0]


def test_tiles_ask_for_the_next_panel_of_a_factor_that_comes_from_afar() -> None:
    target = target_of(DESK)

    def asking(group: KernelGroup, *disable: str) -> bool:
        return any(tile.prefetch for tile in tiles(schedule(group, target, disable=disable).nest))

    assert asking(gemm(64, 768, 3072)) and not asking(gemm(64, 768, 3072), "loop.prefetch")
    assert not asking(gemm(64, 64, 64)) and not asking(gemm(8, 4096, 4096, const="b"))
    assert asking(gemm(64, 768, 768, const="b")) and not asking(gemm(64, 768, 768, const="b"), "loop.prefetch")
    nest = Loop("k", 512, 256, TileOp("fma", (("m", 4), ("n", 16), ("k", 256)), prefetch=True))
    with pytest.raises(ValueError, match="next panel"):
        check(nest, gemm(4, 16, 512), 16, 32)


def test_tiles_ask_for_panels_of_constants_that_the_innermost_cache_does_not_hold() -> None:
    """Large as the second cache is, other kernels have run since it had them."""
    target = target_of(DESK)

    def asks(k: int, n: int, const: str) -> bool:
        nest = Loop("n", n, 32, Loop("m", 49, 13, TileOp("fma", (("m", 13), ("n", 32), ("k", k)))))
        problem = problem_of(gemm(49, n, k, batch=16, const=const), target)
        (tile,) = tiles(with_copies(Pack("b", Loop("b", 16, 1, nest), ahead=True), problem, target))
        return tile.prefetch == 2

    assert target.inner.capacity < 16 * 48 * 192 * 4 < target.middle[0].capacity
    assert asks(48, 192, "b") and not asks(48, 192, "")
    assert not asks(4, 64, "b")


def test_tiles_ask_far_ahead_where_arithmetic_outlasts_memory() -> None:
    """Few rows wait for memory, and requests for more of it are in the way."""

    def rows(gbs: float) -> list[int]:
        memory = replace(DESK.levels[-1], read_gbs=gbs, read_gbs_all=gbs)
        target = target_of(replace(DESK, levels=(*DESK.levels[:-1], memory)))
        found = []
        for m in range(2, 13):
            problem = problem_of(gemm(m, 4096, 1024, const="b"), target)
            nest = Pack("b", Loop("n", 4096, 32, TileOp("fma", (("m", 12), ("n", 32), ("k", 1024)))), ahead=True)
            found += [m] * bool(tiles(with_copies(nest, problem, target))[0].ahead)
        return found

    peak = DESK.peak_gflops("float32")  # an element is 4 bytes, and 2 flops of each row
    assert rows(peak / 2.4) == [*range(5, 13)]
    assert rows(peak / 4.9) == [*range(10, 13)]
    assert rows(peak / 20) == []
    deep = replace(target_of(DESK), tiles=tuple(replace(row, steps=16) for row in target_of(DESK).tiles))
    assert outlasts(32, problem_of(gemm(12, 4096, 1024, const="b"), deep).stages[0], deep)


def test_tiles_ask_as_far_ahead_as_was_measured_to_be_quicker() -> None:
    """For as many rows, or the next fewer; by a clear gain, and never above what memory has for a thread."""

    def asked(m: int, *panels: tuple[int, int, float], threads: int = 1) -> int:
        """Bytes ahead."""
        target = target_of(replace(DESK, panels_gbs=panels), threads)
        problem = problem_of(gemm(m, 4096, 1024, const="b"), target)
        nest = Pack("b", Loop("n", 4096, 32, TileOp("fma", (("m", 12), ("n", 32), ("k", 1024)))), ahead=True)
        return tiles(with_copies(nest, problem, target))[0].ahead * 4 * 32

    memory = DESK.levels[-1].read_gbs
    slow, quick = 0.5 * memory, 0.8 * memory
    few, many = ((2, 0, quick), (2, 1024, slow)), ((6, 0, slow), (6, 1024, 0.9 * quick), (6, 2048, quick))
    assert [asked(m, *few, *many) for m in (1, 2, 5, 6, 12)] == [0, 0, 0, 2048, 2048]
    assert asked(6, (6, 0, slow), (6, 1024, 1.05 * slow)) == 0
    assert asked(6, (6, 0, 1.2 * memory), (6, 1024, 2 * memory)) == 0
    assert asked(6, (6, 1024, quick)) == 0, "what was measured without was out of bounds"
    assert asked(6, (5, 0, slow), (5, 1024, quick), (6, 1024, quick)) == 1024, "the next fewer rows"
    assert asked(6, *many) and not asked(6, *many, threads=64)


def test_products_of_more_rows_than_a_tile_ask_for_their_next_panel() -> None:
    """Those of one tile ask for it further ahead."""
    target = target_of(replace(DESK, vector_bytes=32, registers=16))
    most = target.rows("fma", float32)[0].size("m")
    found = {m: tiles(schedule(gemm(m, 4096, 4096, const="b"), target).nest)[0] for m in (most, most + 2, 2 * most)}
    assert [bool(tile.prefetch) for tile in found.values()] == [False, True, True]


def test_blocks_are_not_turned_over_to_results_that_lie_apart() -> None:
    """Channels of an image, turned out of a frame: columns of the results are contiguous, rows are not."""
    body = Call("relu", (Load(0, 0, (1, 56 * 64, 64), float32),), float32)
    kernel = Kernel((64, 55, 55), 3, None, body, Acc(float32), (), Operand(float32, 64 * 55 * 55), 0, (55 * 55, 55, 1))
    assert turns_results(kernel, 2, 0) and not turns_results(kernel, 1, 0)


def test_phases_are_searched_without_the_operands_of_others() -> None:
    """Where a phase finds its own in the same caches either way, which changes nothing; else they count for that."""
    target = target_of(DESK, 2)
    kept = 0
    for group in (softmax(6, 40), normed(2, 3, 50), softmax(120, 400), softmax(300, 1000), softmax(6000, 4000)):
        for one in apart(group, 16):
            own = by_itself(one, target)
            kept += own is one
            assert schedule(own, target) == schedule(one, target)
    assert 0 < kept < 5
    for one in (*apart(softmax(6, 40), 16), *apart(softmax(6000, 4000), 16)):
        assert len(by_itself(one, target).operands) < len(one.operands)


def test_lines_that_crowd_take_more_room() -> None:
    """A filter of 7×7 for each channel, channels innermost, at one position and 16 channels: 49 lines of 8 KB in all,
    but of 256 channels they lie in 4 of 64 sets."""
    host = target_of(DESK)

    def fits(channels: int) -> bool:
        f, steps = float32, (56 * channels, channels)
        body = Call("mul", (Load(0, 0, (*steps, 1, *steps), f), Load(1, 0, (0, 0, 1, 7 * channels, channels), f)), f)
        operands = Operand(f, 56 * 56 * channels), Operand(f, 49 * channels)
        out = Operand(f, 50 * 50 * channels)
        extents, store = (50, 50, channels, 7, 7), (50 * channels, channels, 1)
        kernel = Kernel(extents, 3, "sum", body, Acc(f), operands, out, 0, store)
        pricer = Pricer(problem_of(KernelGroup((Stage(kernel, (0, 1), 2),), 0, (*operands, out), (2,)), host), host)
        sizes = (("p0_0", 1), ("p1_0", 1), ("p2_0", 16), ("r0_0", 7), ("r1_0", 7))
        return pricer.summary(Block(frozenset({0}), sizes, frozenset())).fits[0]

    assert fits(272) and not fits(256)

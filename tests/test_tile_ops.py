"""Tile operations from outside of the package: found by index notation, checked, chosen, emitted, run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.cost.target import Target, TargetError, TileOpRow
from eqsat.errors import RuleError
from eqsat.ir.kernel import Acc, Call, Kernel, KernelGroup, Load, Operand, Stage
from eqsat.ir.nest import TileOp, show, tiles
from eqsat.ir.nest_json import nest_from_json, nest_to_json
from eqsat.ir.notation import notation
from eqsat.ir.types import DType, float32, float64, int32
from eqsat.schedule import check_offered, schedule
from eqsat.schedule.loop_price import total_seconds
from eqsat.schedule.maps import check_nest, tile_of
from eqsat.schedule.phases import is_split
from eqsat.schedule.price import Pricer
from eqsat.schedule.problem import problem_of
from eqsat.schedule.sample import sample
from eqsat.schedule.tensorize import matches
from eqsat_backends.numba_cpu import NumbaCpuBackend
from eqsat_backends.numba_cpu.printing.loops import emit
from eqsat_backends.numba_cpu.printing.printer import Printer
from eqsat_backends.numba_cpu.tiles import registry
from eqsat_backends.numba_cpu.tiles.ops import TileCall
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import machine
from tests.nest_price import evaluate
from tests.test_obeyed_maps import check_runs

HOST = machine()
BACKEND = NumbaCpuBackend()
ROWS, VECTORS, DEPTH = 4, 2, 128
VECTORS_OFF = ("loop.vectorize", "loop.jam", "loop.transpose")
"""Rules without which only tile operations of the table are left."""


def outer(fn: str, combine: str) -> Any:
    """An emitter of ``out[m, n] = combine over k of fn(a[m, k], b[k, n])``: rows × vectors of results in registers."""

    def emit(p: Printer, call: TileCall) -> None:
        a, b = call.strides
        columns = range(0, call.sizes["n"], call.lanes)
        cells = [(i, j) for i in range(call.sizes["m"]) for j in columns]
        names = {cell: p.fresh("acc") for cell in cells}
        places = {(i, j): call.pitches["m"] * i + call.itemsize * j for i, j in cells}
        for cell in cells:
            p.bind(names[cell], f"load_{call.type}({call.accumulators} + {places[cell]})")
        k = p.fresh("k")
        with p.scope(f"for {k} in range(0, {call.sizes['k']}):", k):
            row = {}
            for j in columns:
                row[j], left = p.fresh("row"), call.sizes["n"] - j
                at = f"{call.addresses[1]} + {b['k']} * {k} + {j * call.itemsize}"
                p.bind(row[j], f"load_{call.type}({at})" if left >= call.lanes else f"loadn_{call.type}({at}, {left})")
            for i in range(call.sizes["m"]):
                one = p.fresh("one")
                p.bind(one, f"bcast_{call.type}({call.addresses[0]} + {a['m'] * i} + {a['k']} * {k})")
                for j in columns:
                    p.line(f"{names[i, j]} = {combine}({names[i, j]}, {fn}({one}, {row[j]}))")
        for cell in cells:
            p.line(f"store({call.accumulators} + {places[cell]}, {names[cell]})")

    return emit


def max_plus(dtype: DType = float32, **changes: Any) -> TileOpRow:
    semantics = notation(
        "mn", ["mk", "kn"], [dtype] * 2, {"m": 6, "n": 32, "k": 128}, lambda a, b: Call("add", (a, b), dtype), "max"
    )
    row = TileOpRow(
        "max_plus",
        (("m", ROWS), ("n", VECTORS), ("k", DEPTH)),
        "n",
        ROWS * VECTORS + VECTORS + 1,
        axes=("m", "n", "k"),
        semantics=semantics,
        layouts=((1, "n"),),
        emit=outer("add", "maximum"),
    )
    return replace(row, **changes)


@pytest.fixture
def registered() -> Iterator[TileOpRow]:
    row = max_plus()
    BACKEND.register_tile_op(row)
    yield row
    BACKEND.unregister_tile_op(row.name)


def tropical(a: Any, b: Any) -> Any:
    return np.max(a[:, :, None] + b[None, :, :], axis=1)


def group_of(extents: dict[str, int], combine: Any = "max", fn: str = "add", dtype: DType = float32) -> KernelGroup:
    """The kernel ``out[m, n] = combine over k of fn(a[m, k], b[k, n])`` alone."""
    kernel = notation("mn", ["mk", "kn"], [dtype] * 2, extents, lambda a, b: Call(fn, (a, b), dtype), combine)
    return alone(kernel)


def alone(kernel: Kernel) -> KernelGroup:
    return KernelGroup((Stage(kernel, (0, 1), 2),), 0, (*kernel.operands, kernel.out), (2,), "tropical")


# matching


def test_a_tile_is_matched_by_index_notation() -> None:
    row = max_plus()
    kernel = group_of({"m": 20, "n": 70, "k": 33}).stages[0].kernel
    (match,) = matches(row, kernel)
    assert match.assigned == {"m": 0, "n": 1, "k": 2}
    others = [
        group_of({"m": 20, "n": 70, "k": 33}, combine="min"),
        group_of({"m": 20, "n": 70, "k": 33}, fn="maximum"),
        group_of({"m": 20, "n": 70, "k": 33}, dtype=float64),
    ]
    for other in others:
        assert not matches(row, other.stages[0].kernel)


def test_a_layout_is_part_of_the_match() -> None:
    """Rows of the second operand have to be consecutive: where they are not, the first one's may be."""
    row, plus = max_plus(), lambda a, b: Call("add", (a, b), float32)
    extents = {"m": 20, "n": 70, "k": 33}
    turned = notation("mn", ["mk", "nk"], [float32] * 2, extents, plus, "max")
    assert not matches(row, turned)
    assert matches(replace(row, layouts=()), turned)
    swapped = notation("mn", ["km", "nk"], [float32] * 2, extents, plus, "max")
    (match,) = matches(row, swapped)  # functions that commute are unified either way
    assert match.assigned == {"m": 1, "n": 0, "k": 2}


def test_axes_around_a_tile_are_loops() -> None:
    plus = lambda a, b: Call("add", (a, b), float32)  # noqa: E731
    extents = {"b": 3, "m": 20, "n": 70, "k": 33, "j": 5}
    kernel = notation("bmn", ["bmkj", "bkjn"], [float32] * 2, extents, plus, "max")
    found = matches(max_plus(), kernel)
    assert {tuple(match.assigned.values()) for match in found} == {(1, 2, 3), (1, 2, 4)}


# nests


@pytest.mark.parametrize(
    "extents",
    [
        {"m": 37, "n": 75, "k": 130},
        {"m": 6, "n": 32, "k": 128},
        {"m": 5, "n": 19, "k": 300},
        {"m": 64, "n": 7, "k": 9},
        {"m": 1, "n": 40, "k": 20},
    ],
)
def test_any_nest_with_the_tile_runs_right(registered: TileOpRow, extents: dict[str, int]) -> None:
    group = group_of(extents)
    seen = 0
    for threads in (1, 2):
        nests = [nest for nest, _ in sample(group, cpu_target(HOST, threads), 2, seed=3, disable=VECTORS_OFF)]
        mine = [nest for nest in nests if tile_of(nest).name == registered.name]
        seen += len(mine)
        for nest in mine:
            assert "# max_plus" in emit(group, nest).source
            check_runs(group, nest, 1, threads)
    assert seen


def test_long_sums_by_a_tile_are_summed_in_blocks() -> None:
    """64 Ki additions of one float32 each: in one chain they would be wrong in the fourth digit."""
    semantics = notation(
        "mn",
        ["mk", "kn"],
        [float32] * 2,
        {"m": 6, "n": 32, "k": 128},
        lambda a, b: Call("maximum", (a, b), float32),
        "sum",
    )
    row = max_plus(name="sum_max", semantics=semantics, emit=outer("maximum", "add"))
    BACKEND.register_tile_op(row)
    try:
        group = group_of({"m": 2, "n": 33, "k": 1 << 16}, "sum", "maximum")
        ((nest, _),) = sample(group, cpu_target(HOST), 1, seed=1, disable=VECTORS_OFF)
        assert tile_of(nest).name == "sum_max"
        check_runs(group, nest, 5, 1)
    finally:
        BACKEND.unregister_tile_op("sum_max")


@st.composite
def products(draw: st.DrawFn) -> Kernel:
    """A max-plus reduction of two arrays over two to five axes, each in any order, strided, backwards or absent."""
    parallel, reduced = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    rank = parallel + reduced
    extents = tuple(draw(st.integers(1, (40, 24, 12, 7)[rank - 2])) for _ in range(rank))
    loads, operands = [], []
    for number in range(2):
        strides, offset, step = [0] * rank, draw(st.integers(0, 2)), draw(st.sampled_from([1, 1, 1, 2]))
        for axis in draw(st.permutations(range(rank))):
            if draw(st.integers(0, 2)) == 0:
                continue
            strides[axis] = step
            if draw(st.integers(0, 5)) == 0:
                strides[axis], offset = -step, offset + step * (extents[axis] - 1)
            step *= extents[axis] + draw(st.integers(0, 1))
        loads.append(Load(number, offset, tuple(strides), float32))
        operands.append(Operand(float32, offset + step + 1))
    store, step = [0] * parallel, 1
    for axis in draw(st.permutations(range(parallel))):
        store[axis] = step
        step *= extents[axis]
    first, second = draw(st.permutations(loads))
    body, epilogue = Call("add", (first, second), float32), Call("neg", (Acc(float32),), float32)
    return Kernel(extents, parallel, "max", body, epilogue, tuple(operands), Operand(float32, step), 0, tuple(store))


def test_whatever_is_matched_runs_right() -> None:
    small = max_plus(name="small", sizes=(("m", 2), ("n", 1), ("k", 4)))
    matched: list[bool] = []

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(products(), st.integers(0, 1 << 20))
    def runs_right(kernel: Kernel, seed: int) -> None:
        group = alone(kernel)
        drawn = sample(group, cpu_target(HOST, 1 + seed % 2), 1, seed=seed, disable=VECTORS_OFF)
        matched.append(bool(drawn))
        for nest, _ in drawn:
            assert tile_of(nest).name == "small"
            check_runs(group, nest, seed, 1 + seed % 2)

    BACKEND.register_tile_op(small)
    try:
        runs_right()
    finally:
        BACKEND.unregister_tile_op("small")
    assert 5 <= sum(matched) < len(matched) - 5


def test_an_illegal_nest_with_the_tile_is_refused(registered: TileOpRow) -> None:
    group = group_of({"m": 37, "n": 75, "k": 130}, combine="min")
    nest = schedule(group_of({"m": 37, "n": 75, "k": 130}), cpu_target(HOST)).nest
    assert tile_of(nest).name == registered.name
    with pytest.raises(ValueError, match=r"max_plus.* does not compute what the kernel does"):
        emit(group, nest)
    with pytest.raises(ValueError, match="'max_plus'"):
        check_nest(nest, group_of({"m": 37, "n": 75, "k": 130}).stages[0].kernel)
    tile = tile_of(nest)
    sizes = tuple((axis, 100 if axis == "p0" else size) for axis, size in tile.sizes)
    with pytest.raises(ValueError, match="max_plus"):
        emit(group, TileOp(tile.name, sizes, lanes=tile.lanes))


def test_reduced_axes_of_any_number_run_around_a_tile(registered: TileOpRow) -> None:
    """Batch-reduce: accumulators of a tile are kept for all of them."""
    plus = lambda a, b: Call("add", (a, b), float32)  # noqa: E731
    extents = {"b": 3, "m": 13, "n": 35, "k": 9, "j": 5}
    group = alone(notation("bmn", ["bmkj", "bkjn"], [float32] * 2, extents, plus, "max"))
    drawn = sample(group, cpu_target(HOST), 2, seed=2, disable=VECTORS_OFF)
    assert {tiles(nest)[0].name for nest, _ in drawn} == {registered.name}
    for nest, _ in drawn:
        check_runs(group, nest, 4, 1)


def test_parts_of_a_split_reduction_run_by_the_tile(registered: TileOpRow) -> None:
    group = group_of({"m": 2, "n": 20, "k": 3000})
    drawn = [nest for nest, _ in sample(group, cpu_target(HOST, 2), 12, seed=2, disable=VECTORS_OFF)]
    split = [nest for nest in drawn if is_split(nest)]
    assert split
    for nest in split[:2]:
        check_runs(group, nest, 4, 2)


def test_a_recorded_nest_needs_its_tile(registered: TileOpRow) -> None:
    group, target = group_of({"m": 37, "n": 75, "k": 130}), cpu_target(HOST)
    nest = schedule(group, target).nest
    assert tile_of(nest).name == registered.name
    check_offered(nest_from_json(nest_to_json(nest)), group, target)
    without = replace(target, tiles=tuple(row for row in target.tiles if row.name != registered.name))
    smaller = tuple(replace(r, sizes=(("m", 2), ("n", 1), ("k", 8))) if r == registered else r for r in target.tiles)
    for other in (without, replace(target, tiles=smaller)):
        with pytest.raises(ValueError, match="max_plus"):
            check_offered(nest, group, other)


def test_search_and_walk_price_a_tile_alike(registered: TileOpRow) -> None:
    group, target = group_of({"m": 37, "n": 75, "k": 130}), cpu_target(HOST)
    problem = problem_of(group, target)
    for nest, seconds in sample(group, target, 6, seed=7, disable=VECTORS_OFF):
        pricer = Pricer(problem, target)
        price = evaluate(nest, problem, pricer)
        assert price is not None
        total = total_seconds(pricer, price.compute, price.moved, price.fixed, price.scratch) + target.step
        assert total == pytest.approx(seconds)


def dot_products(p: Printer, call: TileCall) -> None:
    """``out[m] = Σ_k a[m, k] · b[k]``: lanes along k, added up at the end of each row."""
    (a, b), (along, _), depth = call.addresses, call.strides, call.sizes["k"]
    i, total, k = p.fresh("i"), p.fresh("dot"), p.fresh("k")
    with p.scope(f"for {i} in range(0, {call.sizes['m']}):", i):
        row, place = f"{a} + {along['m']} * {i}", f"{call.accumulators} + {call.itemsize} * {i}"
        p.bind(total, f"splat_{call.type}(0.0)")
        whole, rest = depth // call.lanes * call.lanes, depth % call.lanes
        with p.scope(f"for {k} in range(0, {whole * call.itemsize}, {call.lanes * call.itemsize}):", k):
            factors = f"load_{call.type}({row} + {k}), load_{call.type}({b} + {k})"
            p.line(f"{total} = add({total}, mul({factors}))")
        if rest:
            ends = ", ".join(f"loadn_{call.type}({x} + {whole * call.itemsize}, {rest})" for x in (row, b))
            p.line(f"{total} = add({total}, mul({ends}))")
        p.line(f"storen({place}, add(bcast_{call.type}({place}), sum_lanes({total})), 1)")


def test_a_tile_of_other_semantics_needs_no_other_code() -> None:
    """A dot product: results along one axis, both operands consecutive along the reduced one."""
    times = lambda a, b: Call("mul", (a, b), float32)  # noqa: E731
    row = TileOpRow(
        "dot",
        (("m", 1), ("k", 64)),
        "m",
        3,
        axes=("m", "k"),
        semantics=notation("m", ["mk", "k"], [float32] * 2, {"m": 16, "k": 64}, times, "sum"),
        layouts=((0, "k"), (1, "k")),
        emit=dot_products,
    )
    BACKEND.register_tile_op(row)
    try:
        group = alone(notation("m", ["mk", "k"], [float32] * 2, {"m": 37, "k": 777}, times, "sum"))
        for nest, _ in sample(group, cpu_target(HOST), 2, disable=VECTORS_OFF):
            assert "dot(" in show(nest)
            check_runs(group, nest, 4, 1)
        turned = notation("m", ["km", "k"], [float32] * 2, {"m": 37, "k": 777}, times, "sum")
        assert not matches(row, turned)
    finally:
        BACKEND.unregister_tile_op("dot")


# programs


def arrays(m: int = 96, k: int = 200, n: int = 160) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)


def test_a_program_runs_by_a_registered_tile(registered: TileOpRow) -> None:
    a, b = arrays()
    program = eqsat.optimize(tropical, threads=1)
    np.testing.assert_array_equal(program(a, b), tropical(a, b))
    assert "max_plus p0=4 p1=16" in str(program.explain(a, b))
    assert "# max_plus m=4 n=16 k=100" in program.source(a, b)


def test_what_is_registered_is_part_of_the_key() -> None:
    a, b = arrays()
    before = BACKEND.key()
    assert "max_plus" not in eqsat.optimize(tropical, threads=1).source(a, b)
    BACKEND.register_tile_op(max_plus())
    try:
        first = BACKEND.key()
        assert "max_plus" in eqsat.optimize(tropical, threads=1).source(a, b)
    finally:
        BACKEND.unregister_tile_op("max_plus")
    BACKEND.register_tile_op(max_plus(enter=77.0))
    second = BACKEND.key()
    BACKEND.unregister_tile_op("max_plus")
    assert len({before, first, second}) == 3
    assert BACKEND.key() == before
    assert "max_plus" not in eqsat.optimize(tropical, threads=1).source(a, b)


def test_the_price_decides(registered: TileOpRow) -> None:
    """A tile that says it takes long is not taken."""
    group = group_of({"m": 96, "n": 160, "k": 200})

    def tiles(target: Target) -> str:
        return tile_of(schedule(group, target).nest).name

    target = cpu_target(HOST)
    assert tiles(target) == "max_plus"
    slow = tuple(replace(row, cost=lambda ports, sizes: 1e6) if row.name == "max_plus" else row for row in target.tiles)
    assert tiles(replace(target, tiles=slow)) == "reduce"
    without = tuple(row for row in target.tiles if row.name != "max_plus")
    names = {tile_of(n).name for n, _ in sample(group, replace(target, tiles=without), 30)}
    assert names <= {"reduce", "transpose"}


def test_a_tile_that_the_processor_lacks_is_not_offered() -> None:
    row = max_plus(needs="no such feature")
    BACKEND.register_tile_op(row)  # nor run
    try:
        assert row.name not in {tile.name for tile in cpu_target(HOST).tiles}
    finally:
        BACKEND.unregister_tile_op(row.name)
    BACKEND.register_tile_op(max_plus(registers=30))
    try:
        assert row.name in {tile.name for tile in cpu_target(HOST).tiles}
        assert row.name not in {tile.name for tile in cpu_target(replace(HOST, registers=16)).tiles}
    finally:
        BACKEND.unregister_tile_op(row.name)


# registration


def test_an_emitter_that_differs_is_refused() -> None:
    with pytest.raises(RuleError, match=r"'max_plus'.* element \[\d+, \d+\] .* is .*, and should be"):
        BACKEND.register_tile_op(max_plus(emit=outer("sub", "maximum")))
    assert not registry.registered()


def test_an_emitter_that_forgets_the_rim_is_refused() -> None:
    """Right on whole tiles, and wrong where a row is left over."""
    right = outer("add", "maximum")

    def emit(p: Printer, call: TileCall) -> None:
        right(p, replace(call, sizes={**call.sizes, "m": min(call.sizes["m"], ROWS - 1) or 1}))

    with pytest.raises(RuleError, match="does not compute its semantics"):
        BACKEND.register_tile_op(max_plus(emit=emit))


def test_an_emitter_that_takes_strides_for_granted_is_refused() -> None:
    right = outer("add", "maximum")

    def emit(p: Printer, call: TileCall) -> None:
        dense = {"m": 0, "n": 4, "k": 4 * call.sizes["n"]}
        right(p, replace(call, strides=(call.strides[0], dense)))

    with pytest.raises(RuleError, match="should be"):
        BACKEND.register_tile_op(max_plus(emit=emit))


def test_what_cannot_be_emitted_is_refused() -> None:
    def emit(p: Printer, call: TileCall) -> None:
        p.line("this is no Python")

    def fails(p: Printer, call: TileCall) -> None:
        raise KeyError("k")

    for wrong in (emit, fails):
        with pytest.raises(RuleError, match="'max_plus' cannot be emitted"):
            BACKEND.register_tile_op(max_plus(emit=wrong))
    with pytest.raises(RuleError, match="needs semantics"):
        BACKEND.register_tile_op(max_plus(emit=None))
    with pytest.raises(RuleError, match="not found in themselves"):
        BACKEND.register_tile_op(max_plus(layouts=((0, "m"), (1, "n"))))
    with pytest.raises(RuleError, match="taken"):
        BACKEND.register_tile_op(max_plus(name="fma"))
    with pytest.raises(RuleError, match="identifier"):
        BACKEND.register_tile_op(max_plus(name="max-plus"))
    with pytest.raises(TargetError, match="needs a size"):
        max_plus(sizes=(("m", 6), ("n", 2)))
    with pytest.raises(TargetError, match="no parallel axis"):
        max_plus(lanes="k")


def test_integers_and_negative_controls() -> None:
    row = max_plus(int32, emit=outer("add", "maximum"))
    BACKEND.register_tile_op(row)
    try:
        group = group_of({"m": 13, "n": 50, "k": 40}, dtype=int32)
        nest = schedule(group, cpu_target(HOST)).nest
        assert "max_plus" in show(nest)
        check_runs(group, nest, 2, 1)
    finally:
        BACKEND.unregister_tile_op(row.name)

"""Loop nests as JSON: what comes back, what is refused, and what a target takes from elsewhere."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eqsat.cost.machine import load
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp
from eqsat.ir.nest_json import nest_from_json, nest_to_json
from eqsat.ir.types import float64
from eqsat.plan.backend import backend
from eqsat.schedule import check_offered
from eqsat.schedule.maps import tile_of
from eqsat.schedule.sample import sample
from eqsat.tune import alone
from eqsat_backends.numba_cpu import NumbaCpuBackend
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import DESK, TINY, attention, gemm, perceptron, reduction
from tests.random_groups import cases
from tests.sweeps import a_part
from tests.test_tile_ops import VECTORS_OFF, group_of, max_plus

GROUPS = {
    "product": gemm(70, 90, 50),
    "batches, known factor": gemm(16, 40, 33, batch=3, const="b"),
    "few rows": gemm(2, 300, 200),
    "float64": gemm(9, 40, 33, dtype=float64),
    "sum of columns": reduction((40, 70), 1, (1, 0)),
    "attention": attention(2, 16, 24, 8),
    "perceptron": perceptron(8, 16, 32),
}
HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]


def nests_of(group: KernelGroup, count: int, machine: Any = DESK, threads: int = 1) -> list[Nest]:
    return [nest for nest, _ in sample(group, cpu_target(machine, threads), count)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", GROUPS)
def test_nests_survive_json_and_are_offered_where_they_were_drawn(name: str, threads: int) -> None:
    for at in (DESK, TINY):
        target = cpu_target(at, threads)
        for nest in nests_of(GROUPS[name], 25, at, threads):
            again = nest_from_json(json.loads(json.dumps(nest_to_json(nest))))
            assert again == nest and nest_to_json(again) == nest_to_json(nest)
            check_offered(again, GROUPS[name], target)


@settings(max_examples=a_part(15), deadline=None, suppress_health_check=HEALTH)
@given(cases().map(lambda case: case[0]), st.integers(1, 2))
def test_nests_of_any_kernel_survive_json(group: KernelGroup, threads: int) -> None:
    for nest in nests_of(group, 8, threads=threads):
        assert nest_from_json(json.loads(json.dumps(nest_to_json(nest)))) == nest
        check_offered(nest, group, cpu_target(DESK, threads))


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in JSON data of a nest its names, numbers and flags are."""
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else None
    if parts is None:
        yield path
    for key, value in parts or ():
        if key != "term":
            yield from leaves(value, (*path, key))


NAMES = (
    "m",
    "n",
    "k",
    "b",
    "p0",
    "p1",
    "r0",
    "a",
    "b@1",
    "rows",
    "outer",
    "fma",
    "update",
    "map",
    "reduce",
    "transpose",
)
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 16, 24, 32, 33, 40, 50, 64, 70, 90, 128)


def damaged(data: Any, draws: random.Random) -> Any:
    """A nest's data with another name, number or flag, or with a loop or a packing more or less."""
    choice = draws.random()
    if choice < 0.6:
        *path, last = draws.choice(list(leaves(data)))
        at = data
        for key in path:
            at = at[key]
        old = at[last]
        at[last] = not old if isinstance(old, bool) else draws.choice(SIZES if isinstance(old, int) else NAMES)
        return data
    if choice < 0.7:
        block, step = draws.choice(SIZES), draws.choice(SIZES)
        axis, parallel = draws.choice(NAMES), draws.random() < 0.3
        return {"term": "loop", "axis": axis, "block": block, "step": step, "body": data, "parallel": parallel}
    if choice < 0.8:
        return {"term": "pack", "operand": draws.choice(["a", "b", "b@1", "b@2"]), "body": data}
    if choice < 0.9 and "body" in data:
        return data["body"]
    return {**data, "body": damaged(data["body"], draws)} if "body" in data else data


def damaged_nests(name: str, seed: int, count: int) -> list[Nest]:
    """Nests of a group that are none of its search's, but pass the checks."""
    group, draws, target = GROUPS[name], random.Random(seed), cpu_target(load(), 2)
    drawn = nests_of(group, 10, load(), threads=2)
    found: dict[Nest, None] = {}
    while len(found) < count:
        data: Any = nest_to_json(draws.choice(drawn))
        for _ in range(draws.randint(1, 3)):
            data = damaged(data, draws)
        with contextlib.suppress(ValueError):
            nest = nest_from_json(data)
            check_offered(nest, group, target)
            if nest not in drawn:
                found[nest] = None
    return list(found)


@pytest.mark.parametrize("name", GROUPS)
def test_damaged_nests_that_are_taken_compute_what_they_should(name: str) -> None:
    check_damaged(name, 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_damaged_nests_that_are_taken_compute_what_they_should_at_length(name: str) -> None:
    check_damaged(name, 1, 25)


def check_damaged(name: str, seed: int, count: int) -> None:
    """Run nests that pass the checks, against the interpreter."""
    group = GROUPS[name]
    nests = damaged_nests(name, seed, count)
    plan, const, arrays = alone(group, nests[:1])
    numpy, made = backend("numpy"), backend("numba_cpu")
    expected = numpy.load(numpy.emit(plan, load()), const, 1)(arrays)
    for nest in nests:
        emitted = made.emit(alone(group, [nest])[0], load())
        assert emitted["kinds"] == ["kernel"], nest
        for threads in (1, 2):
            for out, right in zip(made.load(emitted, const, threads)(arrays), expected, strict=True):
                np.testing.assert_allclose(out, right, rtol=2e-4, atol=2e-4, err_msg=str(nest))


def changed(data: Any, change: Callable[[Any], Any], at: int) -> tuple[Any, int]:
    """JSON data with the part that is the ``at``-th (in preorder) changed; and how many parts are left to count."""
    if at == 0:
        return change(data), -1
    at -= 1
    if isinstance(data, dict):
        out: Any = {}
        for key, value in data.items():
            out[key], at = changed(value, change, at) if at >= 0 else (value, at)
        return out, at
    if isinstance(data, list):
        out = []
        for value in data:
            new, at = changed(value, change, at) if at >= 0 else (value, at)
            out.append(new)
        return out, at
    return data, at


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 100),
    st.sampled_from([10**9, 10**20, -1, 0, 2**50]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["m", "n", "k", "p0", "r0", "rows", "outer", "b", "a@1", "fma", "update", "map", "reduce", "loop"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["term", "axis", "body"]), st.integers(), max_size=2),
)
DRAWN: dict[str, list[Nest]] = {}


@settings(max_examples=a_part(400), deadline=None)
@given(st.data())
def test_damaged_nests_are_refused_or_legal(data: st.DataObject) -> None:
    """Whatever becomes of a nest's data: ``ValueError``, or a nest that the checks judge without another error."""
    name = data.draw(st.sampled_from(sorted(GROUPS)))
    if name not in DRAWN:
        DRAWN[name] = nests_of(GROUPS[name], 10)
    found: Any = nest_to_json(data.draw(st.sampled_from(DRAWN[name])))
    for _ in range(data.draw(st.integers(1, 3))):
        junk = data.draw(JUNK)
        found, _ = changed(found, lambda _, junk=junk: junk, data.draw(st.integers(0, 30)))
    with contextlib.suppress(ValueError):
        check_offered(nest_from_json(found), GROUPS[name], cpu_target(DESK))


def test_tiles_of_the_table_are_offered_where_they_are_registered() -> None:
    group, row = group_of({"m": 20, "n": 70, "k": 33}), max_plus()
    nests: list[Nest] = []
    NumbaCpuBackend().register_tile_op(row)
    try:
        target = cpu_target(DESK)
        nests = [nest for nest, _ in sample(group, target, 20, disable=VECTORS_OFF)]
        for nest in nests:
            assert tile_of(nest).name == row.name
            again = nest_from_json(json.loads(json.dumps(nest_to_json(nest))))
            check_offered(again, group, target)
        here = NumbaCpuBackend().key()
    finally:
        NumbaCpuBackend().unregister_tile_op(row.name)
    assert nests and here != NumbaCpuBackend().key()  # records are kept apart
    for nest in nests:
        with pytest.raises(ValueError):
            check_offered(nest, group, cpu_target(DESK))


def deep(depth: int) -> Any:
    nest: Any = {"term": "tile", "name": "map", "sizes": []}
    for _ in range(depth):
        nest = {"term": "loop", "axis": "p0", "block": 1, "step": 1, "body": nest}
    return nest


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"term": "nothing"},
        {"term": ["loop"]},
        {"term": "tile", "name": "map"},
        {"term": "tile", "name": "map", "sizes": [], "more": 1},
        {"term": "tile", "name": "map", "sizes": [["p0", 1.0]]},
        {"term": "tile", "name": "map", "sizes": [["p0", True]]},
        {"term": "tile", "name": "map", "sizes": [["p0", 10**30]]},
        {"term": "tile", "name": "x" * 1000, "sizes": []},
        {"term": "tile", "name": "map\n", "sizes": []},
        {"term": "seq", "bodies": [{"term": "seq", "bodies": []}] * 2000},
        deep(100),
    ],
)
def test_what_is_no_nest_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):
        nest_from_json(data)


HUGE: dict[str, tuple[KernelGroup, Nest]] = {
    "unrolled": (reduction((4096, 4096), 1, (0, 1)), TileOp("reduce", (("p0", 4096), ("r0", 4096)), 0, 16)),
    "lanes": (reduction((16, 16), 1, (0, 1)), Loop("p0", 16, 1, TileOp("reduce", (("r0", 1 << 40),), 0, 1 << 40))),
    "parts": (
        reduction((16, 1 << 20), 1, (0, 1)),
        Loop("r0", 1 << 20, 16, Loop("p0", 16, 1, TileOp("reduce", (("r0", 16),), 0, 16)), True, True),
    ),
    "update": (gemm(2, 64, 4096), TileOp("update", (("m", 2), ("n", 64), ("k", 4096)))),
    "rows": (gemm(2048, 64, 8), TileOp("update", (("m", 2048), ("n", 64), ("k", 8)))),
    "register tile": (gemm(512, 64, 8), TileOp("fma", (("m", 512), ("n", 64), ("k", 8)))),
    "no step": (gemm(8, 64, 8), Loop("m", 8, 0, TileOp("fma", (("m", 8), ("n", 64), ("k", 8))))),
    "no size": (gemm(8, 64, 8), TileOp("fma", (("m", 0), ("n", 0), ("k", 8)))),
}


@pytest.mark.parametrize("name", HUGE)
def test_nests_that_no_search_would_offer_are_refused(name: str) -> None:
    group, nest = HUGE[name]
    with pytest.raises(ValueError):
        check_offered(nest, group, cpu_target(DESK))


def test_shapes_of_terms_are_all_known() -> None:
    """A nest with every kind of term, and every field away from its default."""
    tile = TileOp("map", (("p0", 4), ("p1", 8)), 1, 8, True)
    nest = Pack("b@2", Seq((Loop("r0", 9, 3, tile, True, True), tile)), True)
    assert nest_from_json(json.loads(json.dumps(nest_to_json(nest)))) == nest

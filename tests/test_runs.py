"""Which stages of a group wait for all rows of a block: the cheapest of all ways to cut their sequence."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.cost.machine import Machine
from eqsat.ir.nest import Loop, Nest, Seq
from eqsat.schedule import schedule
from eqsat.schedule.plain import plain_nest
from eqsat.schedule.price import Pricer
from eqsat.schedule.problem import Problem, problem_of
from eqsat.schedule.runs import Runs
from eqsat.schedule.sweeps import arranged, members, sweeps
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target as target_of
from tests.kernel_groups import DESK, TINY, softmax
from tests.sweeps import a_part

STAGES = (0, 1, 2, 3)


def group_nest(problem: Problem, block: int, lanes: int = 16) -> Nest:
    """Each stage by itself over blocks of rows."""
    simple = problem.simple
    own = [plain_nest(stage.kernel, lanes, simple.shared, stage=s) for s, stage in enumerate(simple.stages)]
    bodies = tuple(Loop("rows", block, 1, one) if block > 1 else one for one in own)
    return Loop("outer", 1, 1, Loop("rows", problem.rows, block, Seq(bodies)))


def begun(nest: Nest) -> list[int]:
    """The stages that begin a part, past the first."""
    while isinstance(nest, Loop):
        nest = nest.body
    assert isinstance(nest, Seq)
    return [members(sweeps(part)[0])[0] for part in nest.bodies[1:]]


@settings(max_examples=a_part(30), deadline=None)
@given(st.integers(2, 40), st.integers(1, 700), st.sampled_from([DESK, TINY]), st.data())
def test_the_cuts_are_the_cheapest_of_all(rows: int, columns: int, host: Machine, data: st.DataObject) -> None:
    target = target_of(host)
    problem = problem_of(softmax(rows, columns), target)
    block = data.draw(st.integers(1, rows))
    runs, nest = Runs(Pricer(problem, target)), group_nest(problem, block)

    def price(cuts: Collection[int]) -> float:
        def given_cuts(own: Sequence[Nest], rows: int) -> Collection[int]:
            return cuts

        made = arranged(nest, problem, given_cuts)
        assert begun(made) == sorted(cuts)
        return runs.of(made)

    ways = [cuts for count in range(4 if block > 1 else 1) for cuts in itertools.combinations(STAGES[1:], count)]
    chosen = arranged(nest, problem, runs.cuts)
    assert runs.of(chosen) == pytest.approx(min(map(price, ways)), rel=1e-9, abs=1e-15)
    if block == 1:
        assert not begun(chosen), "one row has nothing to overlap with"


def test_what_waits_for_combined_lanes_waits_for_the_rows_of_a_block() -> None:
    target = target_of(DESK)
    problem = problem_of(softmax(64, 128), target)
    runs = Runs(Pricer(problem, target))
    found = begun(arranged(group_nest(problem, 4), problem, runs.cuts))
    assert 1 in found, "exponentials of a row wait for its maximum"
    assert begun(schedule(softmax(64, 128), target).nest)


def test_rows_from_afar_and_blocks_that_do_not_stay_go_row_by_row() -> None:
    target = target_of(DESK)
    for rows, columns, block in ((1 << 16, 1024, 4), (64, 1024, 32)):
        problem = problem_of(softmax(rows, columns), target)
        assert begun(arranged(group_nest(problem, block), problem, Runs(Pricer(problem, target)).cuts)) == []

"""Rows of windows that neighbours share are combined once, and results are those of the interpreter."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

import eqsat
from eqsat import nn
from eqsat.ir.kernel import Guarded, Index, Kernel, KernelGroup, Literal, Load, Stage
from eqsat.ir.nest import Loop, Nest, TileOp
from eqsat.ir.types import DType, float32, float64, int32, int64
from eqsat.schedule import vector_cost
from eqsat.schedule.problem import problem_of
from eqsat.schedule.shared_rows import SharedRows, shared_rows
from eqsat.schedule.vector_cost import rows_in, tile_slots
from eqsat_backends.numba_cpu.printing.loops import emit
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import machine
from tests.sweeps import crossed
from tests.test_loops import call, single
from tests.test_obeyed_maps import check_runs

ROWS, COLUMNS = 9, 21
POOLS = (nn.max_pool2d, 3, 1), (nn.max_pool2d, 3, 2), (nn.avg_pool2d, 3, 1), (nn.avg_pool2d, 5, 1)


def windows(
    taps: tuple[int, int], step: int, apart: int, combine: str, dtype: DType, square: bool = False
) -> KernelGroup:
    """Windows of a matrix, ``step`` rows from one to the next, their own rows ``apart``; perhaps of its squares."""
    width = COLUMNS + taps[1] - 1
    height = (ROWS - 1) * step + (taps[0] - 1) * apart + 1
    load = Load(0, 0, (step * width, 1, apart * width, 1), dtype)
    body = call("mul", load, load) if square else load
    return single((ROWS, COLUMNS, *taps), 2, combine, body, [(dtype, height * width)])


def by_rows(taps: tuple[int, int], together: int, lanes: int, inside: bool = True) -> Nest:
    tile = TileOp("reduce", (("p0", together), ("p1", lanes)), lanes=min(lanes, 16))
    reduced: Nest = tile
    for axis, n in (("r1", taps[1]), ("r0", taps[0])) if inside else (("r0", taps[0]), ("r1", taps[1])):
        reduced = Loop(axis, n, 1, reduced)
    return Loop("p0", ROWS, together, Loop("p1", COLUMNS, lanes, reduced))


def kernel_of(group: KernelGroup) -> Kernel:
    return group.stages[0].kernel


@crossed(
    combine=["sum", "prod", "max", "min"], taps=[(3, 3), (2, 5), (5, 2)],
    kind=[(float32, False, 1, 1, 4, 16), (float64, True, 1, 2, 5, 4), (int32, True, 2, 1, 2, 16),
          (float32, True, 2, 1, 4, 32)],
)  # fmt: skip
def test_windows_of_neighbours_are_the_interpreters(
    combine: str, taps: tuple[int, int], kind: tuple[DType, bool, int, int, int, int]
) -> None:
    """By rows or by columns first, with dilation, and rows that no other neighbour shares."""
    dtype, square, step, apart, together, lanes = kind
    group = windows(taps, step, apart, combine, dtype, square)
    share = shared_rows(kernel_of(group), 0, together, together * max(1, lanes // 16))
    assert (share is None) == (step == taps[0] or apart > 1)
    check_runs(group, by_rows(taps, together, lanes, inside=step == 1), together, 1)


def test_a_row_that_neighbours_share_is_combined_once() -> None:
    source = emit(windows((3, 3), 1, 1, "max", float32), by_rows((3, 3), 4, 16)).source
    block = source[: source.index("storen(")]
    kept = block[: block.rindex("store(")]
    assert len(re.findall(r"= load_f32x16\(", kept)) == 6 * 3
    assert len(re.findall(r"= maximum\(", kept)) == 6 * 2 + 4 * 2
    assert "in range(0, 3)" not in kept


def test_rows_that_neighbours_share() -> None:
    kernel = kernel_of(windows((3, 3), 1, 1, "sum", float32))
    assert shared_rows(kernel, 0, 4, 4) == SharedRows(reduced=2, step=1, rows=3, row=3)
    assert shared_rows(kernel, 1, 4, 4) == SharedRows(reduced=3, step=1, rows=3, row=3)
    assert shared_rows(kernel_of(windows((3, 3), 2, 1, "sum", float32)), 0, 4, 4) == SharedRows(2, 2, 3, 3)
    assert shared_rows(kernel_of(windows((2, 2), 2, 1, "sum", float32)), 0, 4, 4) is None
    assert shared_rows(kernel_of(windows((3, 3), 1, 2, "sum", float32)), 0, 4, 4) is None
    assert shared_rows(kernel_of(windows((3, 3), 1, 1, "argmax", float32)), 0, 4, 4) is None
    assert shared_rows(kernel, 0, 4, 400) is None, "too much for straight code"
    assert rows_in(kernel, 1, 1, 0, 1) is None, "there is no neighbour"
    three = SharedRows(2, 1, 3, 3)
    assert math.isclose(three.read(4), 6 / 12) and math.isclose(three.combined(4), (6 * 2 + 4 * 3) / 36)


def with_body(fn: str) -> Kernel:
    kernel = kernel_of(windows((5, 5), 1, 1, "sum", float64))
    return replace(kernel, body=call(fn, kernel.body))


def test_long_arithmetic_of_windows_stays_in_loops() -> None:
    """As straight code tanh of each of 40 elements is seconds of compiling."""
    assert shared_rows(with_body("abs"), 0, 4, 4) is not None
    assert shared_rows(with_body("tanh"), 0, 4, 4) is None


def slots(kernel: Kernel, together: int) -> float:
    """Of a vector of results by a tile of so many neighbours, whose guards are settled."""
    stage = Stage(kernel, (0,), 1)
    group = KernelGroup((stage,), 0, (*kernel.operands, kernel.out), (1,), "windows")
    target = cpu_target(machine(), 1)
    (form,) = problem_of(group, target).stages
    lanes = target.lanes(float32)
    return (
        tile_slots(
            form, target, "p0" if together > 1 else "", together, "p1", lanes, free=lambda held: held is not None
        )
        / together
    )


def test_prices_know_what_neighbours_share(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(windows((3, 3), 1, 1, "max", float32))
    apart, together = slots(kernel, 1), slots(kernel, 4)
    assert together < 0.8 * apart
    vector_cost._slots.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(vector_cost, "shared_rows", lambda *_: None)
        alone = slots(kernel, 4)
    vector_cost._slots.cache_clear()
    assert together < 0.8 * alone


def test_settled_guards_cost_nothing() -> None:
    """Windows of a padded matrix cost what windows of any other one do where no border is."""
    kernel = kernel_of(windows((3, 3), 1, 1, "max", float32))
    assert isinstance(kernel.body, Load)
    inside = Guarded(Index(0, (1, 0, 1, 0), int64), 1, ROWS + 1, kernel.body, Literal(-math.inf, float32))
    padded = replace(kernel, body=inside)
    for together in (1, 2, 4):
        assert math.isclose(slots(padded, together), slots(kernel, together)), together


def test_weights_make_rows_of_windows_differ() -> None:
    """A row of one window times its weights is nothing of another one's."""
    width = COLUMNS + 2
    body = call("mul", Load(0, 0, (width, 1, width, 1), float32), Load(1, 0, (0, 0, 3, 1), float32))
    group = single((ROWS, COLUMNS, 3, 3), 2, "sum", body, [(float32, (ROWS + 2) * width), (float32, 9)])
    assert shared_rows(kernel_of(group), 0, 4, 4) is None
    check_runs(group, by_rows((3, 3), 4, 16), 0, 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf, -0.0])
def test_padded_pools_of_special_values(special: float | None, threads: int) -> None:
    """Padding is where windows' rows end; NaN goes to all windows that have it."""
    x = np.random.default_rng(3).standard_normal((2, 3, 19, 23)).astype(np.float32)
    if special is not None:
        x[0, 1, 4:6, ::7] = special
        x[1, :, :, 0] = special
    for pool, size, step in POOLS:
        optimized = eqsat.optimize(lambda x, p=pool, k=size, s=step: p(x, k, s, k // 2), threads=threads, strict=True)
        with np.errstate(invalid="ignore"):
            right = pool(x, size, step, size // 2)
        np.testing.assert_allclose(optimized(x), right, rtol=2e-6, atol=2e-6)

"""Windows that overlap: rows that neighbours share are combined once, and results are those of the interpreter."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import eqsat
from eqsat import nn
from eqsat.ir.kernel import Kernel, KernelGroup, Load
from eqsat.ir.nest import Loop, Nest, TileOp
from eqsat.ir.types import DType, float32, float64, int32
from eqsat.schedule.overlaps import Overlap, overlap
from eqsat.schedule.vector_cost import shared_rows
from eqsat_backends.numba_cpu.printing.loops import emit
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
    check_runs(group, by_rows(taps, together, lanes, inside=step == 1), together, 1)


def test_a_row_that_neighbours_share_is_combined_once() -> None:
    source = emit(windows((3, 3), 1, 1, "max", float32), by_rows((3, 3), 4, 16)).source
    block = source[: source.index("storen(")]
    kept = block[: block.rindex("store(")]
    assert len(re.findall(r"= load_f32x16\(", kept)) == 6 * 3
    assert len(re.findall(r"= maximum\(", kept)) == 6 * 2 + 4 * 2
    assert "in range(0, 3)" not in kept


def test_overlap_of_windows() -> None:
    kernel = kernel_of(windows((3, 3), 1, 1, "sum", float32))
    assert overlap(kernel, 0, 4) == Overlap(axis=2, step=1, rows=3, row=3)
    assert overlap(kernel, 1, 4) == Overlap(axis=3, step=1, rows=3, row=3)
    assert overlap(kernel_of(windows((3, 3), 2, 1, "sum", float32)), 0, 4) == Overlap(2, 2, 3, 3)
    assert overlap(kernel_of(windows((2, 2), 2, 1, "sum", float32)), 0, 4) is None
    assert overlap(kernel_of(windows((3, 3), 1, 2, "sum", float32)), 0, 4) is None
    assert overlap(kernel_of(windows((3, 3), 1, 1, "argmax", float32)), 0, 4) is None
    assert overlap(kernel, 0, 400) is None, "too much for straight code"
    assert shared_rows(kernel, 1, 1, 0, 1) is None, "there is no neighbour"
    one = Overlap(2, 1, 3, 3)
    assert math.isclose(one.read(4), 6 / 12) and math.isclose(one.combined(4), (6 * 2 + 4 * 3) / 36)


def test_weights_make_rows_of_windows_differ() -> None:
    """A row of one window times its weights is nothing of another one's."""
    width = COLUMNS + 2
    body = call("mul", Load(0, 0, (width, 1, width, 1), float32), Load(1, 0, (0, 0, 3, 1), float32))
    group = single((ROWS, COLUMNS, 3, 3), 2, "sum", body, [(float32, (ROWS + 2) * width), (float32, 9)])
    assert overlap(kernel_of(group), 0, 4) is None
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

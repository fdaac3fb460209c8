"""Several rows of a map at once: what they share is counted, and only then are they offered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.ir.kernel import Acc, Call, Expr, Kernel, Literal, Load, Operand
from eqsat.ir.nest import tiles
from eqsat.ir.types import float32
from eqsat.schedule import schedule
from eqsat.schedule.jams import counts, meet, together
from eqsat.schedule.scheduler import anywhere
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target as target_of
from tests.kernel_groups import DESK, single
from tests.sweeps import a_part

ROWS, COLUMNS, PITCH = 64, 2000, 2048


def add(*terms: Expr) -> Expr:
    total, *rest = terms
    for term in rest:
        total = Call("add", (total, term), float32)
    return total


def window(*offsets: int, weights: tuple[float, ...] = ()) -> Kernel:
    """A map of ``ROWS`` × ``COLUMNS``: sums, maybe weighted, of what lies at some offsets of its position."""
    loads: list[Expr] = [Load(0, offset, (PITCH, 1), float32) for offset in offsets]
    terms = [Call("mul", (Literal(w, float32), e), float32) for w, e in zip(weights, loads, strict=False)] or loads
    image, out = Operand(float32, (ROWS + 8) * PITCH), Operand(float32, ROWS * COLUMNS)
    return Kernel((ROWS, COLUMNS), 2, None, add(*terms), Acc(float32), (image,), out, 0, (COLUMNS, 1))


def blur(sides: int = 3) -> Kernel:
    """Sums of rows of ``sides`` of sums along each."""
    kernel = window(0)
    rows = [add(*(Load(0, PITCH * r + c, (PITCH, 1), float32) for c in range(sides))) for r in range(sides)]
    return replace(kernel, body=add(*rows))


def size(kernel: Kernel, count: int) -> tuple[int, int]:
    found = together(kernel, 0, count)
    return sum(isinstance(e, Load) for e in found), sum(isinstance(e, Call) for e in found)


def test_what_rows_share_is_there_once() -> None:
    """Of a blur of 3×3: loads of four rows and of two around them, sums along each of these, and two for each row."""
    assert size(blur(), 1) == (9, 8)
    assert size(blur(), 4) == (3 * 6, 2 * 6 + 2 * 4)
    assert counts(blur(), 0) == (2, 4)


def test_equal_factors_are_told_from_others() -> None:
    """Scaled loads are shared by rows that scale them alike; schedules know no constants, but which are equal."""
    alike, unlike = (window(0, PITCH, weights=weights) for weights in ((0.5, 0.5), (0.25, 0.75)))
    for form in (lambda kernel: kernel, lambda kernel: anywhere(single(kernel)).stages[0].kernel):
        assert size(form(alike), 4) == (5, 5 + 4)
        assert size(form(unlike), 4) == (5, 8 + 4)


def test_distances_of_a_window_stay_where_its_place_does_not_matter() -> None:
    here, there = (anywhere(single(window(at, at + PITCH))) for at in (0, 3 * PITCH + 5))
    assert here == there
    assert here != anywhere(single(window(0, 2 * PITCH)))
    assert anywhere(single(window(0))) == anywhere(single(window(7)))


@pytest.mark.parametrize("kernel", [window(0), window(0, 1), window(0, 8 * PITCH)], ids=["one", "row", "far"])
def test_rows_that_share_nothing_are_taken_one_by_one(kernel: Kernel) -> None:
    assert counts(kernel, 0) == ()


@given(st.lists(st.integers(0, 6 * PITCH), min_size=1, max_size=5, unique=True), st.integers(0, 1))
@settings(max_examples=a_part(100), deadline=None)
def test_what_cannot_meet_is_not_shared(offsets: list[int], axis: int) -> None:
    """Nothing is looked at more closely that would be offered."""
    kernel = window(*offsets)
    apart = all(len(together(kernel, axis, n)) == n * len(together(kernel, axis, 1)) for n in (2, 4))
    if not meet(kernel, axis):
        assert apart and counts(kernel, axis) == ()
    assert meet(window(0, PITCH), 0) and not meet(window(0, PITCH), 1)
    number = Call("exp", (Literal(2.0, float32),), float32)
    assert meet(replace(kernel, body=Call("mul", (kernel.body, number), float32)), axis)


def test_a_stencil_takes_several_rows_at_once() -> None:
    (tile,) = tiles(schedule(single(blur()), target_of(DESK)).nest)
    assert dict(tile.sizes)["p0"] in (2, 4)


def test_rows_left_over() -> None:
    """Of 11 rows in fours: against NumPy, with columns left over, too."""

    def smooth(x: np.ndarray) -> np.ndarray:
        rows = x[:, :-2] + x[:, 1:-1] + x[:, 2:]
        return rows[:-2] + rows[1:-1] + rows[2:]

    x = np.random.default_rng(3).standard_normal((13, 61)).astype(np.float32)
    np.testing.assert_allclose(eqsat.optimize(smooth, check_speed=False)(x), smooth(x), rtol=1e-4, atol=1e-5)

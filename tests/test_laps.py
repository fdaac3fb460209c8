"""Steps timed in place: each has a lap in each trip, laps add up to the whole, and change nothing."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.plan.chain import nested
from eqsat.plan.laps import EMPTY_LAPS, in_laps, median_seconds
from eqsat.plan.plan import Repeat, trips_of
from eqsat_backends.numba_cpu.running import laps
from eqsat_backends.numba_cpu.running.laps import Clock, Stopwatch
from eqsat_backends.numba_cpu.running.threads import address_of


def looped(x: Any, w: Any) -> Any:
    """Steps before a loop, in it, and behind it; and one of a library."""
    y = np.linalg.inv(x @ x.T + 100 * np.eye(6, dtype=x.dtype)) @ x
    carried, rows = eqsat.scan(lambda c, row: (np.tanh(c @ w), (c * row).sum(0)), y, np.ones((7, 4), x.dtype))
    return carried, np.cumsum(rows, 0)


def until(x: Any) -> Any:
    """A loop that Python runs, for nobody knows its trips."""
    return eqsat.while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + x, np.abs(x) + 1)


DRAWN = np.random.default_rng(0)
X, W = DRAWN.standard_normal((6, 4)).astype(np.float32), DRAWN.standard_normal((4, 4)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("function, arguments", [(looped, (X, W)), (until, (X,))], ids=["for", "while"])
def test_laps(function: Any, arguments: tuple[Any, ...], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = list[int]()

    def tick(_: int, place: int) -> int:  # 1, 3, 6, 10, … nanoseconds
        ticks.append(len(ticks) + 1 + (ticks[-1] if ticks else 0))
        (ctypes.c_int64 * 2).from_address(place)[:] = [0, ticks[-1]]
        return 0

    counting = Clock(tick)
    monkeypatch.setattr(laps, "clock", lambda: (address_of(counting), 0))
    optimized = eqsat.optimize(function, threads=threads, check_speed=False)
    program = optimized.compile(*arguments).executable
    count = len(program.emitted["kinds"])
    watch = Stopwatch(count + 2)
    steps = nested(program.emitted["steps"], program.emitted.get("repeats", ()))
    chain = program._chains().chain(in_laps(steps, watch, count), program.outputs, program.inputs)
    values = dict(zip(program.inputs, arguments, strict=True)) | program.constants
    program._run_chain(chain, values)

    for tensor, expected in zip(program.outputs, program(arguments), strict=True):
        np.testing.assert_array_equal(values[tensor], expected)
    elapsed, counted = watch.cells.T
    assert counted[count] == EMPTY_LAPS and counted[count + 1] == 1 and counted.sum() == len(ticks)
    assert elapsed[: count + 1].sum() == ticks[-1] - ticks[0] and (elapsed[counted > 0] > 0).all()
    if function is looped:
        trips = trips_of(len(program.emitted["steps"]), [Repeat(**r) for r in program.emitted["repeats"]])
        made = [0] * count
        for step, often in zip(program.emitted["steps"], trips, strict=True):
            made[step["of"]] += often
        assert counted[:count].tolist() == made and max(made) >= 7
    else:
        assert counted[:count].max() > 1


def test_what_laps_take_is_not_the_steps() -> None:
    """Two steps of 70 and 0 beside laps of 5 nanoseconds; the first call is not counted."""
    watch, calls = Stopwatch(4), itertools.count()

    def call() -> None:
        first = next(calls) == 0
        watch.cells[:] = [[1000 if first else 75, 1], [10, 2], [5 * EMPTY_LAPS, EMPTY_LAPS], [12345, 1]]

    assert median_seconds(call, watch, 2, 3) == pytest.approx([70e-9, 0.0])
    assert next(calls) == 4


def test_a_call_that_takes_seconds_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eqsat.plan.laps.PATIENCE", -1.0)
    watch = Stopwatch(3)
    calls = list[None]()
    assert median_seconds(lambda: calls.append(watch.cells.__setitem__(0, (9, 1))), watch, 1, 5) == pytest.approx(
        [9e-9]
    )
    assert len(calls) == 1


def test_clocks_of_the_system_and_of_python_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    system = laps.clock.__wrapped__()
    monkeypatch.setattr(laps, "addresses", lambda names: [0] * len(names))
    python = laps.clock.__wrapped__()
    assert system != python
    for address, identity in (system, python):
        place, read = (
            np.zeros((2, 2), np.int64),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)(address),
        )
        assert [read(identity, row.ctypes.data) for row in place] == [0, 0]
        assert tuple(place[0]) <= tuple(place[1]) and place[0].any()

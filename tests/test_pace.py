"""Work that would miss its deadline by far is given up long before; work that fits never is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqsat
from eqsat import deadline as deadlines
from eqsat import search
from eqsat.compilers import Compilers
from eqsat.deadline import COUNTED, SHARE, WARM, Deadline, OutOfTime, Pace, TooMuchWork
from eqsat.plain import PlainProgram


def done(seconds: list[float], limit: float) -> int:
    """How many of the parts, which take so many seconds, are done before the work is given up or the time is over."""
    clock = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadlines, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        pace = Pace("waiting", len(seconds), Deadline(limit))
        for number, took in enumerate(seconds):
            clock[0] += took
            try:
                pace.step()
            except OutOfTime:
                return number
    return len(seconds)


@given(st.lists(st.floats(1, 2), min_size=1, max_size=200), st.lists(st.floats(0, 50), max_size=WARM))
def test_parts_that_differ_by_half_and_fit_are_all_done(parts: list[float], slow: list[float]) -> None:
    parts = [*slow, *parts]
    assert done(parts, sum(parts) + 1) == len(parts)


@given(st.integers(60, 400), st.floats(0.01, 9))
def test_parts_that_take_many_times_the_limit_are_given_up_at_once(count: int, each: float) -> None:
    assert done([each] * count, each * count / 5) == WARM + max(COUNTED, -(-count // SHARE)) - 1


def test_a_deadline_is_a_deadline() -> None:
    assert done([1.0, 1.0, 1.0], 2.5) == 2
    with pytest.raises(OutOfTime) as raised:
        Pace("waiting", 5, Deadline(0.0)).step()
    assert not isinstance(raised.value, TooMuchWork)


def long(steps: int) -> Any:
    """A program of many kernels, each of another size."""

    def fn(x: Any) -> Any:
        for k in range(steps):
            x = np.cumsum(np.tanh(x[:-1]) - x[1:].mean() / (k + 1)) * np.float32(1e-3)
        return x

    return fn, (np.random.default_rng(0).standard_normal(steps + 50).astype(np.float32),)


@pytest.mark.parametrize("place", ["searching schedules", "compiling kernels"])
def test_a_long_program_is_given_up_early_and_run_by_numpy(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part takes, by the clock, a 25th of the budget; there are more than a hundred of them."""
    fn, args = long(55)
    late = [0.0]
    real = deadlines.time.monotonic
    monkeypatch.setattr(deadlines, "time", SimpleNamespace(monotonic=lambda: real() + late[0]))

    def slowly(call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            late[0] += 40
            return call(*args, **kwargs)

        return run

    owner, name = (search, "schedule") if place == "searching schedules" else (Compilers, "_next")
    monkeypatch.setattr(owner, name, slowly(getattr(owner, name)))
    f = eqsat.optimize(fn, budget=1000)
    with pytest.warns(
        eqsat.BudgetWarning, match=f"budget of 1000 s would be missed by far while {place}, given up after"
    ):
        made = f.compile(*args)
    assert isinstance(made, PlainProgram) and late[0] < 800
    np.testing.assert_array_equal(f(*args), fn(*args))

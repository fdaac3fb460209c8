"""Programs that are slower than the function they were made of are left to NumPy."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import speed
from eqsat.compiled import Compiled
from eqsat.frontends.trace import Traced, trace
from eqsat.ir.loop import of_loop
from eqsat.plain import PlainProgram
from eqsat.speed import CLEAR, IDLE, LEAST, LONG, MARGIN, RUNS, SECONDS, TURNS, Speed, compared
from eqsat.verify.estimate import plain_seconds, reference_seconds
from tests.programs import PROGRAMS


class Clock:
    """Time that passes in runs only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(speed, "timer", lambda: self.now)
        self.runs: list[str] = []

    def run(self, name: str, *seconds: float) -> Callable[[], None]:
        """Something that takes so long, the last figure from then on."""
        left = list(seconds)

        def call() -> None:
            self.runs.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("program", "loses"), [(2.0, True), (MARGIN * 1.01, True), (MARGIN * 0.99, False), (0.5, False)]
)
def test_who_is_slower_by_the_margin_loses(clock: Clock, program: float, loses: bool) -> None:
    found = compared(clock.run("program", program * 1e-4), clock.run("plain", 1e-4), None, 1)
    assert found is not None and found.loses == loses
    assert (found.program, found.plain) == pytest.approx((program * 1e-4, 1e-4))
    rounds = 1 + TURNS * (program * CLEAR > 1)
    assert clock.runs == [*["program"] * RUNS, *["plain"] * RUNS] * rounds


def test_what_one_timing_does_not_tell_is_timed_again(clock: Clock) -> None:
    slow_at_first = [1.2e-4] * RUNS
    found = compared(clock.run("program", *slow_at_first, 0.9e-4), clock.run("plain", 1e-4), None, 1)
    assert found is not None and not found.loses
    found = compared(clock.run("program", 1.1e-4), clock.run("plain", *slow_at_first, 1e-4), None, 1)
    assert found is not None and found.loses
    clock.runs.clear()
    disturbed = clock.run("program", *[5e-4] * RUNS, 0.2e-4)  # after which it is clear
    assert compared(disturbed, clock.run("plain", 1e-4), None, 1) == Speed(pytest.approx(0.2e-4), pytest.approx(1e-4))
    assert clock.runs.count("plain") == 2 * RUNS


def test_the_best_run_counts(clock: Clock) -> None:
    found = compared(clock.run("program", 1e-3, 5e-4, 2e-4, 9e-4), clock.run("plain", 7e-4, 3e-4, 8e-4), None, 1)
    assert found is not None and (found.program, found.plain) == pytest.approx((2e-4, 3e-4))


def test_long_runs_are_few(clock: Clock) -> None:
    for seconds, runs in ((0.3 * SECONDS, 4), (SECONDS, 2), (LONG, 2), (1.1 * LONG, 1)):
        for program, plain, one in ((seconds, 100 * seconds, "program"), (seconds / 100, seconds, "plain")):
            clock.runs.clear()
            assert compared(clock.run("program", program), clock.run("plain", plain), None, 1) is not None
            assert clock.runs.count(one) == runs
    clock.runs.clear()
    assert compared(clock.run("program", 1.1 * LONG), clock.run("plain", 1.1 * LONG), None, 1) is not None
    assert clock.runs == ["program", "plain"]  # however near


def test_the_first_run_of_the_function_may_tell(clock: Clock) -> None:
    found = compared(clock.run("program", 0.01), clock.run("plain", 0.2), 0.2, 1)
    assert found == Speed(pytest.approx(0.01), 0.2) and not found.loses
    assert "plain" not in clock.runs
    near = compared(clock.run("program", 0.01), clock.run("plain", 0.005), 0.02, 1)  # a cold run takes longer
    assert near is not None and near.loses


def test_what_a_call_costs_is_not_timed(clock: Clock) -> None:
    assert compared(clock.run("program", 0.9 * LEAST), clock.run("plain", 1e-9), None, 1) is None
    assert "plain" not in clock.runs


@pytest.mark.parametrize("first", [None, 1.1 * LONG])
def test_threads_of_blas_sleep_before_a_program_of_threads_loses(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, first: float | None
) -> None:
    """Of NumPy's last run they spin, and take turns with those of the program."""
    spinning, waited = True, []

    def plain() -> None:
        nonlocal spinning
        spinning, clock.now = True, clock.now + 0.03

    def program() -> None:
        clock.now += 0.034 if spinning else 0.017

    def wait(seconds: float) -> None:
        nonlocal spinning
        spinning = False
        waited.append(seconds)

    monkeypatch.setattr(speed, "wait", wait)
    found = compared(program, plain, first, 2)
    assert found == Speed(pytest.approx(0.017), pytest.approx(0.03)) and waited == [IDLE]
    spinning = True
    found = compared(program, plain, first, 1)
    assert found is not None and found.loses and waited == [IDLE], "one thread has a core of its own"
    waited.clear()
    assert compared(clock.run("program", 1e-3), clock.run("plain", 5e-3), 6e-3, 2) and not waited, "it is clear"


def test_a_function_that_raises_is_not_timed(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def plain() -> None:
        raise ValueError("assignment destination is read-only")

    with caplog.at_level(logging.INFO, "eqsat"):
        assert compared(clock.run("program", 1e-3), plain, None, 1) is None
    assert "read-only" in caplog.text


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> list[Speed | None]:
    """What comparisons find, one after the other; both sides are run twice in each."""
    monkeypatch.setenv(speed.ENVIRONMENT_VARIABLE, "1")
    found: list[Speed | None] = []

    def compare(
        program: Callable[[], object], plain: Callable[[], object], first: float | None, threads: int
    ) -> Speed | None:
        for _ in range(2):
            program()
            plain()
        return found.pop(0)

    monkeypatch.setattr("eqsat.compiled.compared", compare)
    return found


SLOW, FAST = Speed(3e-3, 1e-3), Speed(1e-3, 3e-3)


def test_numpy_runs_what_is_slower_compiled(verdicts: list[Speed | None]) -> None:
    def fn(x: Any) -> Any:
        return np.exp(x) + 1

    x = np.arange(4.0)
    verdicts += [SLOW, FAST, None]
    f = eqsat.optimize(fn, cache=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # there is nothing to mend
        np.testing.assert_array_equal(f(x), fn(x))
    told = f.explain(x).plain or ""
    assert "the compiled program takes 3 ms, NumPy 1 ms" in told and "check_speed=False" in told
    assert "NumPy runs" in f.source(x)
    for _ in range(2):  # faster, and not timed
        g = eqsat.optimize(fn, cache=False)
        np.testing.assert_allclose(g(x), fn(x))
        assert g.explain(x).plain is None
    assert not verdicts


def test_calls_that_numpy_runs_are_counted_and_shown(verdicts: list[Speed | None]) -> None:
    x, y = np.arange(4.0), np.arange(5.0)
    verdicts += [SLOW, FAST]
    f = eqsat.optimize(lambda x: np.exp(x) + 1, cache=False)
    for _ in range(3):
        f(x)
    assert (f.cache_info().hits, f.cache_info().misses) == (2, 1)
    f(y)
    assert f.explain().plain is None
    f(x)
    assert "NumPy 1 ms" in (f.explain().plain or "")
    f.cache_clear()
    verdicts.append(FAST)
    f(x)
    assert f.cache_info().misses == 1 and f.explain().plain is None


def test_what_is_written_to_arguments_is_timed_and_they_stay_as_they_are(
    verdicts: list[Speed | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fn(x: Any) -> Any:
        x[1:] += x[:-1]
        return x.sum()

    written: list[np.ndarray] = []
    real = Traced.rebuild

    def rebuild(self: Traced, results: Any, leaves: Any) -> Any:
        found = real(self, results, leaves)
        written.append(np.array(leaves[0]))
        return found

    monkeypatch.setattr(Traced, "rebuild", rebuild)
    x = np.arange(6.0)
    verdicts.append(FAST)
    f = eqsat.optimize(fn, cache=False)
    f.compile(x)
    np.testing.assert_array_equal(x, np.arange(6.0))
    assert len(written) == 2  # as often as verdicts take
    np.testing.assert_array_equal(written, [[0, 1, 3, 5, 7, 9]] * 2)


@pytest.mark.parametrize("options", [{"check_speed": False}, {"strict": True}, {"backend": "numpy"}])
def test_where_programs_are_wanted_nothing_is_timed(options: Any, verdicts: list[Speed | None]) -> None:
    x = np.arange(4.0)
    program = eqsat.optimize(lambda x: np.exp(x) + 1, cache=False, **options).compile(x)
    assert isinstance(program, Compiled) and program.speed is None


def test_the_environment_switches_it_off(verdicts: list[Speed | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(speed.ENVIRONMENT_VARIABLE, "0")
    assert isinstance(eqsat.optimize(lambda x: x * 3, cache=False).compile(np.ones(3)), Compiled)


def test_the_verdict_is_remembered_for_the_function(verdicts: list[Speed | None], own_cache: Path) -> None:
    def fn(x: Any) -> Any:
        return np.exp(x) * 2

    def other(x: Any) -> Any:
        return 2 * np.exp(x)

    x = np.arange(4.0)
    verdicts += [SLOW, FAST]
    for _ in range(2):
        assert isinstance(eqsat.optimize(fn).compile(x), PlainProgram)
    made = eqsat.optimize(other).compile(x)  # of the same trace
    assert isinstance(made, Compiled) and made.speed == FAST
    again = eqsat.optimize(other).compile(x)
    assert isinstance(again, Compiled) and again.cached and again.speed == FAST
    assert not verdicts


def test_arguments_are_as_they_were(verdicts: list[Speed | None]) -> None:
    def fn(x: Any, y: Any) -> Any:
        x += 1
        return x * y

    x, y = np.arange(4.0), np.ones(4)
    verdicts += [SLOW]
    f = eqsat.optimize(fn, cache=False)
    f.compile(x, y)
    np.testing.assert_array_equal(x, np.arange(4.0))
    np.testing.assert_array_equal(f(x, y), np.arange(1.0, 5))
    np.testing.assert_array_equal(x, np.arange(1.0, 5))


def test_branches_are_timed_one_by_one(verdicts: list[Speed | None]) -> None:
    verdicts += [FAST, SLOW]
    f = eqsat.optimize(lambda x: x * 2 if x.sum() > 0 else x * 3, cache=False)
    x = np.ones(3)
    with pytest.warns(eqsat.EqsatWarning, match="branches"):
        np.testing.assert_array_equal(f(x), x * 2)
    np.testing.assert_array_equal(f(-x), x * -3)
    assert f.explain(x).plain is None and "NumPy 1 ms" in (f.explain(-x).plain or "")


def test_loops_of_many_small_steps_are_cheap_enough_to_be_timed() -> None:
    """Their reference evaluates each result of each loop, which takes hundreds of times what the function does."""
    program = PROGRAMS["gram_schmidt"]
    graph = trace(program.function, tuple(program.arguments(program.full))).graph
    assert any(of_loop(node) for node in graph.nodes())
    assert plain_seconds(graph) < 0.5 < 5 < reference_seconds(graph)


@pytest.mark.parametrize("pause", [0.0, 0.35])
def test_what_takes_long_to_trace_may_take_as_long_to_time(
    verdicts: list[Speed | None], monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """The estimate is above what may be spent in any case."""
    monkeypatch.setattr("eqsat.compiled.plain_seconds", lambda graph: 0.3)
    monkeypatch.setattr("eqsat.compiled.SHARE", 0.0)  # however long the compilation takes
    monkeypatch.setattr("eqsat.verify.check.reference_seconds", lambda graph: 1e3)
    verdicts += [SLOW]

    def fn(x: np.ndarray) -> np.ndarray:
        time.sleep(pause)
        return x * 2 + 1

    f = eqsat.optimize(fn, cache=False)
    f(np.ones(3))
    assert bool(f.explain().plain and "NumPy 1 ms" in (f.explain().plain or "")) == (pause > 0)

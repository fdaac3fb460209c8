"""The budget of a compilation binds all of it; what does not fit is run by NumPy, and said."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

import eqsat
from eqsat import cache, compiled, forks, making, search
from eqsat.aside import aside
from eqsat.compiled import Compiled
from eqsat.compilers import Compilers
from eqsat.cost import machine as machine_model
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.frontends.tracing import CURRENT
from eqsat.options import Options
from eqsat.plain import PlainProgram
from eqsat_backends.numba_cpu.compiling import jit
from tests.reports import one_line

GRACE = 20.0
"""Seconds by which a loaded machine may be late in these tests; without limits the programs here take minutes."""


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def gates(steps: int) -> Any:
    """An unrolled recurrence: dozens of kernels, hundreds of operators."""

    def fn(x: Any, w: Any, u: Any) -> Any:
        h = np.zeros((4, 16), np.float32)
        for t in range(steps):
            gate = 1 / (1 + np.exp(-(x[t] @ w + h @ u)))
            h = gate * np.tanh(x[t] @ u) + (1 - gate) * h
        return h

    return fn, (normal(steps, 4, 16), normal(16, 16), normal(16, 16))


def chain(steps: int) -> Any:
    """Thousands of operators in a row."""

    def fn(x: Any, y: Any) -> Any:
        for i in range(steps):
            x = np.tanh(x * (1 + i * 0.001) + y)
            if i % 7 == 0:
                y = np.cos(x) - x.mean(axis=1, keepdims=True)
        return x

    return fn, (normal(6, 5), normal(6, 5))


def many(kernels: int) -> Any:
    """Products of so many different sizes that nothing is compiled once for several."""

    def fn(*xs: Any) -> Any:
        return [np.exp(x) @ x.T for x in xs]

    return fn, tuple(normal(3 + i, 5 + i) for i in range(kernels))


@pytest.mark.parametrize("program", [gates(32), chain(2000), many(200)], ids=["recurrence", "chain", "many kernels"])
@pytest.mark.parametrize("budget", [0.05, 0.2])
def test_what_does_not_fit_is_run_by_numpy(program: Any, budget: float) -> None:
    fn, args = program
    f = eqsat.optimize(fn, budget=budget, cache=False)
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = f(*args)
        compiling = any(thread.name == "eqsat: compile" for thread in threading.enumerate())
    assert time.monotonic() - start < budget + GRACE
    if caught or not compiling:  # else Numba may have caught it, in the thread that was given up
        assert issubclass(caught[0].category, eqsat.BudgetWarning) and caught[0].filename == __file__
        said = str(caught[0].message)
        assert fn.__name__ in said and re.search("budget of .* was spent while .*Fix: ", said)
    said = f.explain(*args).plain or ""
    assert "was spent while" in said
    for one, other in zip(got, fn(*args), strict=True):
        np.testing.assert_array_equal(one, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(*args)  # once is enough


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function of which each compilation runs out of time where the test says."""

    def at(place: str) -> None:
        def late(*args: Any, **kwargs: Any) -> Any:
            raise OutOfTime(place)

        owner, name = {
            "searching": (search, "saturate"),
            "searching schedules": (search, "schedule"),
            "verifying": (compiled, "verify"),
            "folding": (compiled, "evaluate_nodes"),
        }[place]
        monkeypatch.setattr(owner, name, late)

    return at


PLACES = ["searching", "searching schedules", "verifying", "folding"]


@pytest.mark.parametrize("place", PLACES)
def test_out_of_time_anywhere_leaves_a_plain_function(place: str, spent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any, *, scale: float) -> Any:
        return {"y": np.tanh(x) * scale, "z": (x.sum(),)}

    x, scale = normal(3, 4), 2.0 + PLACES.index(place)  # other programs than the cache holds
    f = eqsat.optimize(fn)
    spent(place)
    with pytest.warns(eqsat.BudgetWarning, match=rf"fn\(x: float32\[3, 4\]\).*60 s was spent while {place}"):
        got = f(x, scale=scale)
    np.testing.assert_array_equal(got["y"], np.tanh(x) * scale)
    report = f.explain(x, scale=scale)
    assert report.plain is not None and place in report.plain and report.steps == []
    assert "run by NumPy" in one_line(report) and report.predicted == 0.0
    assert json.loads(report.to_json())["plain"] == report.plain
    assert "NumPy runs the function" in report.why("sum.flatten")
    assert f.source(x, scale=scale).startswith("# NumPy runs fn(")
    with pytest.warns(eqsat.BudgetWarning):
        assert isinstance(f.compile(x, scale=scale), PlainProgram)  # tried again, in vain
    monkeypatch.undo()
    made = f.compile(x, scale=scale)
    assert isinstance(made, Compiled) and not made.cached  # nothing unfinished was remembered
    np.testing.assert_allclose(f(x, scale=scale)["y"], np.tanh(x) * scale, rtol=1e-5)
    assert f.explain(x, scale=scale).plain is None


def test_a_plain_function_keeps_its_own_ways(spent: Any) -> None:
    """In-place arguments, types that are not traced: all as without eqsat."""

    def fn(x: Any) -> Any:
        x += 1
        return iter(range(3)) if CURRENT.get() is None else x * 2

    spent("searching")
    f = eqsat.optimize(fn)
    x = np.zeros(3)
    with pytest.warns(eqsat.BudgetWarning):
        assert list(f(x)) == [0, 1, 2]
    assert x.tolist() == [1, 1, 1]


def test_a_plain_function_serves_all_values_of_its_constants(spent: Any) -> None:
    spent("searching")
    f = eqsat.optimize(lambda x, w: x @ w, const="w")
    x = normal(2, 3)
    with pytest.warns(eqsat.BudgetWarning) as caught:
        for n in range(4):
            np.testing.assert_array_equal(f(x, normal(3, 2) + n), x @ (normal(3, 2) + n))
    assert len(caught) == 1


def test_tracing_sees_the_deadline_at_every_operator() -> None:
    done = 0

    def fn(x: Any) -> Any:
        nonlocal done
        for done in range(10**6):
            x = x + 1 if done % 2 else x.T
        return x

    def swallowed(x: Any) -> Any:
        while True:
            try:
                x = np.sin(x)
            except Exception:
                return x

    with pytest.raises(OutOfTime, match="tracing"):
        eqsat.frontends.trace.trace(fn, (normal(2, 2),), deadline=Deadline(0.05))
    assert 0 < done < 10**6 - 1
    with pytest.raises(OutOfTime):
        eqsat.frontends.trace.trace(swallowed, (normal(2),), deadline=Deadline(0.05))


def test_errors_of_tracing_are_still_raised(spent: Any) -> None:
    spent("searching")
    with pytest.raises(eqsat.EqsatError):
        eqsat.optimize(lambda x: x if x.sum() > 0 else -x, strict=True)(normal(3))


def test_the_measurement_of_the_machine_is_not_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    load, given = machine_model.load, []

    def slow() -> Any:
        time.sleep(0.3)
        return load()

    class Noted(Compiled):
        def __init__(self, *args: Any) -> None:
            given.append(args[4].end)
            super().__init__(*args)

    monkeypatch.setattr(machine_model, "load", slow)
    monkeypatch.setattr(making, "Compiled", Noted)
    start = time.monotonic()
    eqsat.optimize(lambda x: x * 2 + 1, budget=1000.0)(normal(3))
    assert given[0] >= start + 1000.3


def test_a_function_called_while_another_is_traced_has_no_more_time() -> None:
    seen = []

    @eqsat.optimize(budget=1000.0)
    def inner(w: Any) -> Any:
        if CURRENT.get() is not None:
            seen.append(CURRENT.get().deadline.end)  # type: ignore[union-attr]
        return w * 2

    def outer(x: Any) -> Any:
        seen.append(CURRENT.get().deadline.end)  # type: ignore[union-attr]
        return x * inner(np.ones(3, np.float32))

    eqsat.optimize(outer, budget=100.0)(normal(3))
    assert seen[1] <= seen[0]


@pytest.mark.parametrize("cached", [True, False])
def test_kernels_compiled_in_time_are_kept(cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of time among kernels: the next attempt begins where this one ended, also without a cache."""
    fn, args = many(4)
    run = Compilers.run
    taken: list[str] = []

    def two_at_most(self: Compilers, tasks: Any, deadline: Deadline) -> Any:
        for number, outcome in enumerate(run(self, tasks, deadline)):
            taken.append(outcome.task.key)
            yield outcome
            if number == 1:
                raise OutOfTime("compiling kernels")

    monkeypatch.setattr(jit, "_loaded", WeakValueDictionary())
    monkeypatch.setattr(jit, "_recent", deque())
    f = eqsat.optimize(fn, cache=cached)
    with monkeypatch.context() as patch:
        patch.setattr(Compilers, "run", two_at_most)
        with pytest.warns(eqsat.BudgetWarning, match="compiling kernels"):
            f(*args)
    assert len(taken) == 2 and set(taken) <= set(jit._loaded)
    again: list[str] = []

    def noted(self: Compilers, tasks: Any, deadline: Deadline) -> Any:
        again.extend(task.key for task in tasks)
        return run(self, tasks, deadline)

    monkeypatch.setattr(Compilers, "run", noted)
    assert isinstance(f.compile(*args), Compiled)
    assert again and not set(again) & set(taken)


def test_programs_of_more_kernels_than_are_remembered_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache, too: the program holds its machine code."""
    fn, args = many(5)
    monkeypatch.setattr(jit, "_recent", deque(maxlen=1))
    run, asked = Compilers.run, []

    def noted(self: Compilers, tasks: Any, deadline: Deadline) -> Any:
        asked.extend(task.key for task in tasks)
        return run(self, tasks, deadline)

    monkeypatch.setattr(Compilers, "run", noted)
    f = eqsat.optimize(fn, cache=False)
    for one, other in zip(f(*args), fn(*args), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
    assert len(asked) == len(set(asked))


def test_another_compilation_is_waited_for_until_the_deadline() -> None:
    """A kernel that was being compiled when a budget was spent is compiled to its end."""
    held, done = threading.Event(), threading.Event()

    def compiling() -> None:
        with jit._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=compiling)
    thread.start()
    assert held.wait(60)
    start = time.monotonic()
    with pytest.raises(OutOfTime, match="waiting for another compilation"):
        jit.load_module("0" * 40, ("run",), Deadline(0.1))
    with pytest.raises(OutOfTime, match="waiting for another compilation"):
        jit.compile_modules([("def run(args, tid, nt):\n    pass\n", ("run",))], Deadline(0.1))
    assert time.monotonic() - start < GRACE
    done.set()
    thread.join()


def test_whatever_the_compiler_raises_costs_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_object = jit.compile_object

    def broken(source: str, phases: tuple[str, ...]) -> bytes:
        if "tanh" in source:
            raise RuntimeError("LLVM says no")
        return compile_object(source, phases)

    monkeypatch.setattr(jit, "compile_object", broken)
    x = normal(7, 11)
    f = eqsat.optimize(lambda x: (np.tanh(x) * 7, np.exp(x) @ x.T), cache=False)
    made = f.compile(x)
    assert isinstance(made, Compiled)
    assert sorted(step.kind for step in f.explain(x).steps) == ["kernel", "reference"]
    np.testing.assert_allclose(f(x)[0], np.tanh(x) * 7, rtol=1e-5)


def test_the_search_has_a_share_that_leaves_time_for_kernels() -> None:
    assert Options().search_seconds == 5.0
    shares = [Options(budget=b).search_seconds / b for b in (0.1, 1, 10, 60, 600, 6000)]
    assert all(1 / 13 < share < 1 / 5 for share in shares)
    assert Options(budget=600).search_seconds > Options().search_seconds


@contextmanager
def importing() -> Iterator[None]:
    """Another thread imports something large."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with forks.IMPORTING:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_imports_of_another_thread_are_waited_for_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    f = eqsat.optimize(lambda x: x * 2, budget=0.2)
    monkeypatch.delitem(sys.modules, "email.parser", raising=False)
    start = time.monotonic()
    with pytest.warns(eqsat.BudgetWarning, match=r"importing email\.parser"), importing():
        assert f(np.ones(3)).tolist() == [2, 2, 2]
        assert time.monotonic() - start < GRACE


def test_where_the_cache_is_needs_no_import_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.delenv(cache.ENVIRONMENT_VARIABLE)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(cache.cache_root()))
    with importing():
        thread.start()
        thread.join(GRACE)
        assert found and found[0].is_relative_to(platformdirs.user_cache_dir("eqsat", appauthor=False))
    thread.join()


def test_numba_is_imported_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(jit, "prepare", lambda: done.wait(60))
    start = time.monotonic()
    with pytest.raises(OutOfTime, match="compiling kernels"):
        jit.compile_modules([("# imports Numba", ("phase",))], Deadline(0.1))
    done.set()
    assert time.monotonic() - start < GRACE


def test_schedules_are_tuned_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from eqsat import tune

    f = eqsat.optimize(lambda x, y: (np.exp(x) @ y, np.sort(x) @ y), tune=2, cache=False)
    x, y = normal(9, 8), normal(8, 7)
    calls = []

    def late(*args: Any) -> float:
        calls.append(args)
        raise OutOfTime("tuning")

    with monkeypatch.context() as patch:
        patch.setattr(tune, "time_of", late)
        made = f.compile(x, y)
    assert isinstance(made, Compiled) and "untuned" in made.report["search"]["stops"] and len(calls) == 1
    np.testing.assert_allclose(f(x, y)[0], np.exp(x) @ y, rtol=1e-4)


def test_no_deadline_never_passes() -> None:
    assert not NEVER.over and NEVER.left == float("inf")
    assert Deadline(1e9, within=Deadline(0)).over and not Deadline(1e9, within=NEVER).over


def test_where_one_constant_spent_the_budget_equal_ones_keep_their_program(monkeypatch: pytest.MonkeyPatch) -> None:
    f = eqsat.optimize(lambda x, w: x * w, const="w")
    x, w = np.ones(3), np.arange(3.0)
    program = f.compile(x, w)

    def spent(*args: Any) -> Any:
        raise OutOfTime("searching")

    with monkeypatch.context() as patch:
        patch.setattr(making, "Compiled", spent)
        with pytest.warns(eqsat.BudgetWarning):
            f(x, np.full(3, 7.0))
    assert f.compile(x, w.copy()) is program


def test_a_call_aside_under_the_lock_of_imports_is_made_here() -> None:
    with forks.IMPORTING:
        assert aside("importing", NEVER, threading.get_ident) == threading.get_ident()

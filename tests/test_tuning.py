"""Measuring elsewhere: executors, their failures, and whose timings are used."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import eqsat
from eqsat import records
from eqsat import tune as tuner
from eqsat.cost import machine as machine_model
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Nest
from tests.test_nest_json import GROUPS, nests_of
from tests.test_records import compiled, setup, steps_of


class Inline:
    """Runs a task when it is submitted, and counts."""

    def __init__(self, change: Callable[[Any], Any] = lambda found: found) -> None:
        self.submitted: list[Any] = []
        self.change = change

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        self.submitted.append(args)
        future: Future[Any] = Future()
        try:
            future.set_result(self.change(fn(*args)))
        except Exception as error:
            future.set_exception(error)
        return future


def test_measurements_run_on_an_executor(own_cache: Path) -> None:
    executor = Inline()
    with eqsat.tuning(executor):
        program = compiled(tune=2)
        assert len(executor.submitted) == 2
        (record,) = records.all_records()
        assert steps_of(program)[0].chosen.measured == record.nests[0][1]  # type: ignore[union-attr]
    compiled(tune=3)
    assert len(executor.submitted) == 2  # outside of it, in this process


def test_what_another_processor_measured_is_recorded_for_that_one(
    own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = compiled()

    def elsewhere(found: tuner.Measurement) -> tuner.Measurement:
        return found._replace(seconds=1e-9, processor=replace(found.processor, cpu="another processor"))

    with eqsat.tuning(Inline(elsewhere)), caplog.at_level(logging.INFO, "eqsat"):
        program = compiled(tune=3)
    (record,) = records.all_records()
    assert record.setup.processor.cpu == "another processor" and len(record.nests) == 3
    assert steps_of(program)[0].nest == steps_of(before)[0].nest and "not used here" in caplog.text
    assert set(program.report["records"].values()) == {""}
    assert "untuned" in program.report["search"]["stops"]
    program = compiled(tune=3)  # so that plan was not kept
    assert not program.cached and {len(record.nests) for record in records.all_records()} == {3}
    assert len(records.all_records()) == 2


class Failing(Inline):
    """A worker that fails at every other nest, in ways that differ."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        count = len(self.submitted)
        if count == 0:
            self.submitted.append(args)
            raise RuntimeError("cannot schedule new futures")
        future = super().submit(fn, *args)
        if count == 1:
            future = Future()
            future.set_exception(ValueError("the worker raised"))
        if count == 2:
            future = Future()
            future.set_result("no measurement")
        return future


def test_a_failing_worker_costs_its_candidate(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with eqsat.tuning(Failing()), caplog.at_level(logging.WARNING, "eqsat"):
        program = compiled(tune=4)
    told = [message for message in caplog.messages if "was not measured" in message]
    assert len(told) == 3 and "the worker raised" in told[1] and "cannot schedule" in told[0]
    (record,) = records.all_records()
    assert len(record.nests) == 1 and program.report["steps"][0]["tuned"] == record.nests[0][1]


def test_a_nest_that_cannot_be_run_is_not_timed(
    own_cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqsat_backends.numba_cpu.printing import contract

    real, refused = contract.emit, list[Nest]()

    def picky(group: KernelGroup, nest: Nest, target: Any) -> Any:
        if refused in ([], [nest]):
            refused[:] = [nest]
            raise ValueError("refused")
        return real(group, nest, target)

    monkeypatch.setattr(contract, "emit", picky)
    with caplog.at_level(logging.WARNING, "eqsat"):
        program = compiled(tune=3)
    (record,) = records.all_records()
    assert len(record.nests) == 2 and refused[0] not in dict(record.nests)
    assert sum("was not measured" in message for message in caplog.messages) == 1
    assert program.report["steps"][0]["kind"] == "kernel"


def test_waiting_for_workers_ends_with_their_share_of_the_budget(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    futures: list[Future[Any]] = []

    class Never:
        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
            futures.append(Future())
            return futures[-1]

    monkeypatch.setattr(tuner, "SHARE", 0.01)
    with eqsat.tuning(Never()):
        program = compiled(tune=2)
    assert "untuned" in program.report["search"]["stops"]
    assert futures and all(future.cancelled() for future in futures)
    assert not records.all_records()


def test_only_executors_are_taken() -> None:
    with pytest.raises(eqsat.errors.OptionError, match="submit"), eqsat.tuning(3):  # type: ignore[arg-type]
        pass


def test_one_measurement_at_a_time_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = [0], [0]
    begun = threading.Event()

    def timed(*_: Any) -> float:
        running[0] += 1
        most[0] = max(most[0], running[0])
        begun.wait(0.02)
        running[0] -= 1
        return 1.0

    monkeypatch.setattr(tuner, "time_of", timed)
    group = GROUPS["product"]
    arguments = (group, nests_of(group, 1)[0], machine_model.load(), "numba_cpu", 1, float("inf"), True)
    threads = [threading.Thread(target=tuner.measure, args=arguments) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


@contextlib.contextmanager
def processes() -> Iterator[Any]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def test_measurements_run_in_a_process_pool(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with processes() as pool:
        with eqsat.tuning(pool):
            program = compiled(tune=2)
        (record,) = records.all_records()
        assert len(record.nests) == 2 and record.setup == setup()
        assert steps_of(program)[0].nest == record.nests[0][0]
        pool.submit(os._exit, 1)
        with eqsat.tuning(pool), caplog.at_level(logging.WARNING, "eqsat"):
            compiled(tune=4)
    assert any("BrokenProcessPool" in message for message in caplog.messages)


def test_measurements_run_on_a_dask_cluster(own_cache: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        eqsat.tuning(client),
    ):
        program = compiled(tune=3)
    (record,) = records.all_records()
    assert len(record.nests) == 3 and record.setup == setup()
    assert steps_of(program)[0].nest == record.nests[0][0]

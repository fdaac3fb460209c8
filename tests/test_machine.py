"""The machine model: a faithful document, found where it should be, measured when there is none."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsat import cache, cli
from eqsat.cache import store as stores
from eqsat.cost import calibration, machine
from eqsat.cost.machine import Level, Machine, MachineError
from eqsat_backends.numba_cpu.probes import timers as probes

positive = st.floats(min_value=1e-6, max_value=1e6)
names = st.text(min_size=1, max_size=8)
rates = (positive, positive, positive, positive)
shape = (st.sampled_from([32, 64, 128]), st.integers(0, 1 << 20), st.integers(0, 64))
levels = st.builds(Level, names, st.integers(0, 1 << 40), st.booleans(), *rates, *shape)
pairs = st.lists(st.tuples(names, positive), min_size=1, max_size=4).map(tuple)
machines = st.builds(
    Machine,
    cpu=st.text(),
    cores=st.integers(1, 512),
    vector_bytes=st.sampled_from([16, 32, 64]),
    registers=st.sampled_from([16, 32]),
    fma_gflops=pairs,
    levels=st.lists(levels, min_size=1, max_size=4).map(tuple),
    call_us=positive,
    step_us=positive,
    launch_us=positive,
    barrier_us=positive,
    function_ns=pairs,
    fma_latency_ns=positive,
    broadcast_gs=positive,
    wake_us=positive,
    matrix_ns=st.one_of(st.just(()), pairs),
    panels_gbs=st.lists(
        st.tuples(st.integers(1, 16), st.integers(0, 1 << 16), positive), max_size=4, unique_by=lambda row: row[:2]
    ).map(tuple),
)
SAMPLE = Machine(
    cpu=machine.cpu_name(),
    cores=4,
    vector_bytes=32,
    registers=16,
    fma_gflops=(("float32", 100.0), ("float64", 50.0)),
    levels=(
        Level("L1", 32 << 10, False, 200.0, 150.0, 800.0, 600.0),
        Level("L2", 1 << 20, False, 100.0, 90.0, 400.0, 360.0),
        Level("L3", 32 << 20, True, 60.0, 50.0, 200.0, 180.0),
        Level("memory", 0, True, 20.0, 15.0, 40.0, 30.0),
    ),
    call_us=0.3,
    step_us=0.01,
    launch_us=2.0,
    barrier_us=0.2,
    function_ns=(("exp", 0.2),),
)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(machine.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(machine, "_in_process", {})
    monkeypatch.setattr(stores, "_warned", threading.Event())
    machine._from_file.cache_clear()
    machine._foreign.cache_clear()
    yield


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if in a new process."""
    monkeypatch.setattr(machine, "_in_process", {})


@given(machines)
def test_the_document_says_everything(model: Machine) -> None:
    assert Machine.from_json(model.to_json()) == model
    assert hash(Machine.from_json(model.to_json())) == hash(model)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"cores": 0},
        {"cores": True},
        {"cores": "2"},
        {"call_us": -1.0},
        {"step_us": float("nan")},
        {"barrier_us": float("inf")},
        {"wake_us": 0},
        {"fma_latency_ns": -1.0},
        {"broadcast_gs": float("nan")},
        {"levels": []},
        {"levels": [{"name": "L1"}]},
        {"fma_gflops": []},
        {"fma_gflops": [["float32", 0.0]]},
        {"fma_gflops": 3},
        {"panels_gbs": 3},
        {"panels_gbs": [[2, 1024]]},
        {"panels_gbs": [[0, 1024, 20.0]]},
        {"panels_gbs": [[2, -1, 20.0]]},
        {"panels_gbs": [[2, 1024, 0.0]]},
        {"panels_gbs": [[2, 1 << 70, 20.0]]},
        {"panels_gbs": [[2.5, 1024, 20.0]]},
        {"panels_gbs": [[True, 1024, 20.0]]},
        {"panels_gbs": [[2, 1024, True]]},
        {"panels_gbs": [[2, 1024, "20"]]},
        {"panels_gbs": [[2, 1024, 20.0], [2, 1024, 21.0]]},
        {"panels_gbs": ["123"]},
        {"panels_gbs": [[[2], 1024, 20.0]]},
        {"panels_gbs": [[2, {}, 20.0]]},
        {"panels_gbs": [[2, 1024, 10**400]]},
        {"call_us": 10**400},
        {"surprise": 1},
    ],
)
def test_impossible_documents_are_refused(change: dict[str, object]) -> None:
    document = json.loads(SAMPLE.to_json())
    assert Machine.from_json(json.dumps(document)) == SAMPLE
    with pytest.raises(MachineError):
        Machine.from_json(json.dumps({**document, **change}))


def test_a_document_of_the_first_format_is_read_but_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks what was not measured then: a file that the user names will do, the stored one is measured anew."""
    document = {**json.loads(SAMPLE.to_json()), "format": 1}
    for name in ("wake_us", "fma_latency_ns", "broadcast_gs", "panels_gbs"):
        del document[name]
    document["levels"] = [
        {k: v for k, v in lv.items() if k not in ("line", "sets", "ways")} for lv in document["levels"]
    ]
    old = Machine.from_json(json.dumps(document))
    assert (old.wake_us, {level.line for level in old.levels}) == (calibration.WAKE_US, {calibration.LINE})
    machine.machine_store().write("machine", machine.document_key(), json.dumps(document).encode(), name="old")
    assert machine.load(lambda: SAMPLE) == SAMPLE
    forget(monkeypatch)
    assert machine.load(lambda: pytest.fail("it was stored")) == SAMPLE


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '{"format": 1}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(MachineError):
        Machine.from_json(text)


def test_figures_are_found_by_name() -> None:
    assert SAMPLE.peak_gflops("float64") == 50
    assert SAMPLE.peak_gflops("float32", threads=3) == 300
    assert SAMPLE.peak_gflops("float32", threads=9) == 400
    assert [SAMPLE.lanes(4), SAMPLE.lanes(8)] == [8, 4]
    assert SAMPLE.level("L3").read_gbs == 60
    with pytest.raises(KeyError, match="float32, float64"):
        SAMPLE.peak_gflops("int8")
    with pytest.raises(KeyError, match="L1, L2, L3, memory"):
        SAMPLE.level("L4")


@pytest.mark.parametrize(
    ("nbytes", "threads", "name"),
    [(0, 1, "L1"), (32 << 10, 1, "L1"), ((32 << 10) + 1, 1, "L2"), (4 << 20, 1, "L3"), (4 << 20, 4, "L2"),
     (33 << 20, 1, "memory"), (33 << 20, 4, "memory"), (1 << 40, 1, "memory")],
)  # fmt: skip
def test_working_sets_are_put_in_the_first_level_that_holds_them(nbytes: int, threads: int, name: str) -> None:
    assert SAMPLE.level_of(nbytes, threads).name == name


def test_it_is_measured_once_and_then_read(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def probe() -> Machine:
        measured.append(1)
        return dataclasses.replace(SAMPLE, cores=len(measured))

    assert [machine.load(probe).cores, machine.load(probe).cores] == [1, 1]
    forget(monkeypatch)
    assert machine.load(probe).cores == 1
    assert machine.remeasure(probe).cores == 2
    assert machine.load(probe).cores == 2
    forget(monkeypatch)
    assert machine.load(probe).cores == 2
    assert len(measured) == 2


@pytest.mark.parametrize("damage", ["", "{", '{"format": 99}', "[" * 100_000, "\xff", "[1]"])
def test_a_damaged_document_is_measured_again(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    cache.machine_store().write("machine", machine.document_key(), damage.encode())
    assert machine.load(lambda: SAMPLE) == SAMPLE
    forget(monkeypatch)
    assert machine.load(machine.find_probe()) == SAMPLE


def test_what_is_in_the_documents_place_is_not_read(tmp_path: Path) -> None:
    cache.machine_store().write("machine", machine.document_key(), SAMPLE.to_json().encode())
    (path,) = tmp_path.rglob("*.machine")
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(cache.CacheWarning, match="only this user can have written") as warned:
        assert machine.load(lambda: SAMPLE) == SAMPLE
    assert len(warned) == 1 and path.is_fifo()


def test_without_a_cache_it_is_measured_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "file"))
    calls = []
    with pytest.warns(cache.CacheWarning):
        for _ in range(3):
            machine.load(lambda: (calls.append(1), SAMPLE)[1])
    assert len(calls) == 1


def test_the_environment_variable_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "machine.json"
    path.write_text(SAMPLE.to_json())
    monkeypatch.setenv(machine.ENVIRONMENT_VARIABLE, str(path))
    assert machine.load() == SAMPLE
    for other in (tmp_path / "absent.json", tmp_path):
        monkeypatch.setenv(machine.ENVIRONMENT_VARIABLE, str(other))
        with pytest.raises(MachineError, match=str(other)):
            machine.load()


def test_a_model_of_another_processor_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "machine.json"
    other = dataclasses.replace(SAMPLE, cpu="another processor", step_us=0.02)
    path.write_text(other.to_json())
    monkeypatch.setenv(machine.ENVIRONMENT_VARIABLE, str(path))
    with pytest.warns(UserWarning, match="model of 'another processor', and this is") as told:
        assert [machine.load(lambda: SAMPLE) for _ in range(2)] == [SAMPLE, SAMPLE]
    assert len(told) == 1


def test_a_probe_with_impossible_figures_is_not_stored() -> None:
    with pytest.raises(MachineError, match="impossible"):
        machine.load(lambda: dataclasses.replace(SAMPLE, launch_us=0.0))
    assert machine.load(lambda: SAMPLE) == SAMPLE


def test_absurd_figures_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured on a busy machine: a barrier of milliseconds would keep every program on one thread."""
    busy = dataclasses.replace(SAMPLE, barrier_us=2700.0, step_us=40.0)
    with pytest.warns(UserWarning, match=r"barrier_us = 2.7e\+03.*--remeasure") as warned:
        for _ in range(2):
            found = machine.load(lambda: busy)
            assert (found.barrier_us, found.step_us) == (1.0, 0.02)
            assert found.levels == SAMPLE.levels
    assert len(warned) == 1
    forget(monkeypatch)
    assert machine.load(lambda: SAMPLE) == found  # what stands in is kept, not measured by every process


def test_a_measurement_that_shared_its_core_is_told() -> None:
    """All its figures are low alike, so that none contradicts another."""

    def waiting() -> Machine:
        time.sleep(0.3)
        return SAMPLE

    with pytest.warns(UserWarning, match="of a core's time while it was measured"):
        assert machine.remeasure(waiting) == SAMPLE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert machine.remeasure(lambda: SAMPLE) == SAMPLE


def test_an_absurd_document_is_measured_again() -> None:
    absurd = dataclasses.replace(SAMPLE, step_us=40.0).to_json()
    cache.machine_store().write("machine", machine.document_key(), absurd.encode())
    assert machine.load(lambda: SAMPLE) == SAMPLE


def test_what_the_user_names_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "machine.json"
    slow = dataclasses.replace(SAMPLE, step_us=40.0)
    path.write_text(slow.to_json())
    monkeypatch.setenv(machine.ENVIRONMENT_VARIABLE, str(path))
    assert machine.load() == slow


def test_what_the_system_tells_is_plausible() -> None:
    sizes = [size for _, size, _ in machine.caches()]
    assert sizes == sorted(sizes)
    assert sizes[0] >= 1 << 10
    assert machine.usable_cores() >= 1
    assert machine.cpu_name()
    assert machine.document_key() == machine.document_key()


def test_this_machine_can_be_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.find_probe() is probes.measure
    monkeypatch.setattr(probes, "measure", functools.partial(probes.measure, budget_s=0.1))
    assert cli.main(["machine", "--remeasure", "--json"]) == 0
    model = Machine.from_json(capsys.readouterr().out)
    assert [level.name for level in model.levels] == [*(name for name, _, _ in machine.caches()), "memory"]
    assert {dtype for dtype, _ in model.fma_gflops} == {"float32", "float64"}
    assert {name for name, _ in model.function_ns} == set(probes.FUNCTIONS)
    forget(monkeypatch)
    assert machine.load(lambda: SAMPLE) == model
    assert cli.main(["machine"]) == 0
    assert "FMA peak" in capsys.readouterr().out


def test_the_command_line_explains_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ([], ["nonsense"], ["cache"], ["machine", "--fast"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(wrong)
        assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    monkeypatch.setenv(machine.ENVIRONMENT_VARIABLE, str(tmp_path / "absent.json"))
    capsys.readouterr()
    assert cli.main(["machine"]) == 1
    assert "absent.json" in capsys.readouterr().err


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from eqsat import rules
    from eqsat.schedule import installed_loop_rules

    assert cli.main(["rules", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in listed] == [rule.id for rule in (*rules.list(), *installed_loop_rules())]
    assert all(row["numerics"] in rules.NUMERICS and row["rule"] for row in listed)
    assert cli.main(["rules"]) == 0
    assert f"{len(listed)} rules" in capsys.readouterr().out

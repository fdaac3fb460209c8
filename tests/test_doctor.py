"""``eqsat doctor`` finds what is wrong and says what to do; ``eqsat rules TEXT`` finds rules."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from eqsat import cli, doctor
from eqsat.cost import machine
from eqsat.doctor import Finding, examine


def finding(what: str) -> Finding:
    (found,) = (f for f in examine() if f.what == what)
    return found


def test_a_sound_installation_has_nothing_amiss(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert [f for f in examine() if f.amiss] == []
    assert {"python", "eqsat", "numpy", "numba", "egglog", "backends", "processor", "cache"} <= {
        f.what for f in examine()
    }
    assert cli.main(["doctor", "--json"]) == 0
    told = [Finding(**row) for row in json.loads(capsys.readouterr().out)]
    assert [f for f in told if f.what != "cache"] == [f for f in examine() if f.what != "cache"]  # others fill it


def test_a_machine_model_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_text("{}")
    monkeypatch.setenv(machine.ENVIRONMENT_VARIABLE, str(model))
    assert str(model) in finding("machine model").amiss
    assert cli.main(["doctor"]) == 1


def test_a_machine_not_measured_yet_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(machine.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    assert finding("machine model") == Finding(
        "machine model", "not measured yet: the first compilation does, or `eqsat machine`"
    )
    assert machine.stored() is None


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "file"))
    assert "EQSAT_CACHE_DIR" in finding("cache").amiss


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(machine.usable_cores() + 1))
    assert "more than" in finding("OMP_NUM_THREADS").amiss
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert not finding("OMP_NUM_THREADS").amiss


def test_a_plugin_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_module:Rules", "eqsat.rules")
    before = doctor.entry_points
    monkeypatch.setattr(doctor, "entry_points", lambda group: [*before(group=group), broken])
    assert "no_such_module" in finding("rule libraries").amiss


def test_a_dependency_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda name: ["numpy>=2.0", "no-such-package>=1", "x; extra == 'plot'"])
    assert finding("no-such-package") == Finding("no-such-package", "not installed", "pip install 'no-such-package>=1'")
    assert all(f.what != "x" for f in examine())


def test_rules_are_found_by_text(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["rules", "Softmax", "reassociates", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found
    for row in found:
        text = " ".join(row.values()).lower()
        assert "softmax" in text and "reassociates" in text
    assert cli.main(["rules", "no rule has this", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_the_package_runs_as_a_module() -> None:
    run = subprocess.run([sys.executable, "-m", "eqsat", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("eqsat ")

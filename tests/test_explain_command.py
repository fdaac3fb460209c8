"""``eqsat explain MODULE:FUNCTION`` on functions of modules and files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eqsat import cli

PROGRAM = """
import numpy as np
import eqsat


def plain(x, w, scale=1.0):
    return np.tanh(x @ w) * scale


@eqsat.optimize(backend="numpy")
def optimized(x):
    return x[1:] - x[:-1]


optimized(np.ones(9))


def branch(x):
    return x if x.tolist() else -x


class Model:
    @staticmethod
    def apply(x):
        return x + 1


number = 3
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "shown_program.py"
    path.write_text(PROGRAM)
    monkeypatch.delitem(sys.modules, "shown_program", raising=False)
    return path


@pytest.mark.parametrize("module", ["shown_program", "shown_program.py", "{folder}/shown_program.py"])
def test_a_function_is_explained(module: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = module.format(folder=program.parent)
    assert cli.main(["explain", f"{name}:plain", "float32[8,16]", "w=float32[16,4]", "scale=0.5"]) == 0
    shown = capsys.readouterr().out
    assert "plain(x: float32[8,16], w: float32[16,4])" in shown
    assert "return np.tanh(x @ w) * scale" in shown and "NumPy" in shown and "limited by" in shown


def test_other_forms(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["shown_program:plain", "float32[8,16]", "float32[16,4]"]
    assert cli.main(["explain", *given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["function"] == "plain"
    assert cli.main(["explain", *given, "--source"]) == 0
    assert "def " in capsys.readouterr().out
    assert cli.main(["explain", *given, "--why", "tanh_exp_form"]) == 0
    assert capsys.readouterr().out.startswith("tanh_exp_form: ")
    assert cli.main(["explain", "shown_program:Model.apply", "int64[]"]) == 0
    assert "apply(x: int64[])" in capsys.readouterr().out


def test_without_arguments_the_modules_last_call_is_shown(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "shown_program:optimized"]) == 0
    assert "optimized(x: float64[9])" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::eqsat.EqsatWarning")
def test_what_numpy_runs_says_why(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "shown_program:branch", "float64[3]"]) == 0
    assert "run by NumPy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shown_program:nothing"], "its functions: plain"),
        (["shown_program:number"], "not a function"),
        (["shown_program"], "MODULE:FUNCTION"),
        (["no_such_module_here:f"], "no_such_module_here"),
        (["missing.py:f"], "no file missing.py"),
        (["shown_program:plain"], "has not been called"),
        (["shown_program:plain", "float32[8,16]"], "missing a required argument: 'w'"),
        (["shown_program:plain", "float32[8]", "float32[8]", "--why", "no_rule"], "no_rule"),
    ],
)
def test_mistakes_are_said(arguments: list[str], said: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *arguments]) == 1
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.startswith("eqsat: ") and not captured.out


@pytest.mark.parametrize("wrong", ["float99[3]", "float32[-1]", "x y", "float32(3)"])
def test_arguments_that_are_none(wrong: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["explain", "shown_program:plain", wrong])
    assert left.value.code == 2 and "argument ARGUMENT" in capsys.readouterr().err


def test_the_module_is_found_where_the_command_is_run(program: Path) -> None:
    command = [sys.executable, "-m", "eqsat", "explain", "shown_program:optimized"]
    run = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=True)
    assert "optimized(x: float64[9])" in run.stdout

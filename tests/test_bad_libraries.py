"""Rule libraries and rules that do not work: left out with a warning that names them, and the rest works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import rules
from eqsat.egraph import culprits
from eqsat.egraph.culprits import bearable
from eqsat.egraph.engine import Engine
from eqsat.egraph.saturate import saturate
from eqsat.ir.build import call
from eqsat.rules import rewrite, tensors
from eqsat.rules.examples import Maker
from tests.reports import one_line

a = tensors("a")

LIBRARIES = {
    "lib_a_missing": ("import a_module_there_is_not\n", "ModuleNotFoundError: No module named 'a_module_there_is_not'"),
    "lib_b_syntax": ("def\n", "SyntaxError"),
    "lib_c_raises": ("raise SystemExit('gone')\n", "SystemExit: gone"),
    "lib_d_unbound": (
        "from eqsat.rules import rewrite, tensors\na, b = tensors('a b')\nRULES = (rewrite(-a, b, id='x'),)\n",
        "RuleError: rule 'x' (",
    ),
    "lib_e_no_rules": ("RULES = [5]\n", "RULES holds 5, which is no rule"),
    "lib_f_taken": (
        "import numpy as np\nfrom eqsat.rules import rewrite, tensors\na = tensors('a')\n"
        "RULES = (rewrite(-a, 0 - a, id='exp_mul'),)\n",
        "rule id 'exp_mul' is used at",
    ),
    "lib_g_no_name": ("RULES = ()\n", "'no module!!' names no module"),
    "lib_good": (
        "import numpy as np\nfrom eqsat.rules import rewrite, tensors\na = tensors('a')\n"
        "RULES = (rewrite(np.sin(np.sin(a)), np.cos(a), id='not_true_but_here'),)\n",
        "",
    ),
}
PROGRAM = """
import json, warnings
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import eqsat
    from eqsat import rules
    f = eqsat.optimize(lambda x: np.exp(x) * np.exp(-x) + 1, disable=("not_true_but_here",), strict=True)
    found = f(np.ones(3)).tolist()
    eqsat.optimize(lambda x: x + 1)(np.ones(3))
    ids = [rule.id for rule in rules.list()]
print(json.dumps([found, "not_true_but_here" in ids, "exp_mul" in ids, [str(w.message) for w in caught]]))
"""


def test_libraries_that_do_not_work_are_left_out(tmp_path: Path) -> None:
    """Seven, and one that does: each is named once, and programs are compiled with the rest."""
    import json

    for name, (text, _) in LIBRARIES.items():
        (tmp_path / f"{name}.py").write_text(text)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        value = "no module!!" if name == "lib_g_no_name" else name
        (info / "entry_points.txt").write_text(f"[eqsat.rules]\n{name} = {value}\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found, good, own, said = json.loads(run.stdout.splitlines()[-1])
    assert found == [2, 2, 2] and good and own
    broken = {name: wanted for name, (_, wanted) in LIBRARIES.items() if wanted}
    assert len(said) == len(broken), said
    for name, wanted in broken.items():
        (message,) = (text for text in said if repr(name) in text)
        assert "left out" in message and wanted in message


class PanicException(BaseException):
    """As pyo3 raises for a panic."""


@pytest.fixture
def panics(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rules whose query the engine panics at, by id."""
    ids: set[str] = set()
    original = Engine._seek

    def seek(self: Engine, number: int, query: Any) -> None:
        if any(id_ in ids for id_ in of_query.get(id(query), ())):
            raise PanicException("index out of bounds")
        original(self, number, query)

    of_query: dict[int, list[str]] = {}
    held = []  # or another rule's query is made where a panicking one was, and panics too
    from eqsat.egraph import saturate as module

    queries_of = module.queries_of

    def told(given: Any) -> Any:
        found = queries_of(given)
        places = iter(found.places)
        for rule in given:
            for _ in rule.ways:
                query = found.distinct[next(places)]
                held.append(query)
                of_query.setdefault(id(query), []).append(rule.id)
        return found

    monkeypatch.setattr(Engine, "_seek", seek)
    monkeypatch.setattr(module, "queries_of", told)
    monkeypatch.setattr(culprits, "_left_out", {})
    return ids


def test_a_rule_at_which_the_engine_panics_is_left_out(panics: Any) -> None:
    given = [
        rewrite(np.exp(a), np.exp(a) * 1, id="one"),
        rewrite(np.exp(a), np.exp(a) / 1, id="two"),
        rewrite(np.exp(a), np.exp(a) + 0, id="three"),
    ]
    panics.add("two")
    output = call("exp", Maker(0).tensor(3))
    with pytest.warns(
        eqsat.EqsatWarning, match=r"rule 'two' \(.*test_bad_libraries\.py:\d+\) is left out.*PanicException"
    ) as said:
        graph = saturate([output], rules=given)
    assert len(said) == 1
    assert {id for id, stats in graph.report.rules.items() if stats.fired} == {"one", "three"}
    again = saturate([output], rules=given)  # without another warning, which would be an error here
    assert not again.report.rules["two"].fired


def test_a_program_is_compiled_without_it(panics: Any) -> None:
    rules.add(rewrite(np.sin(a), np.sin(a) * 1, id="panics"), check=False)
    panics.add("panics")
    try:
        with pytest.warns(eqsat.EqsatWarning, match="rule 'panics'"):
            found = eqsat.optimize(lambda x: np.exp(np.sin(x)) * np.exp(x), cache=False, strict=True)(np.ones(3))
    finally:
        rules.remove("panics")
    np.testing.assert_allclose(found, np.exp(np.sin(1) + 1))


def test_an_engine_that_fails_with_every_rule_leaves_the_program_as_written(
    panics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without end otherwise."""

    def fails(self: Engine, rows: Any) -> None:
        raise PanicException("out of luck")

    monkeypatch.setattr(Engine, "load", fails)
    own = [rewrite(np.sin(a), np.sin(a) * 1, id=f"any.{n}") for n in range(3)]
    with pytest.warns(eqsat.EqsatWarning, match="is left out.*out of luck") as told:
        graph = saturate([call("exp", Maker(0).tensor(3))], rules=own)
    assert len(told) == 3 and graph.report.enodes == 2


def test_an_engine_that_fails_with_rules_together_is_an_error() -> None:
    def run(rules: Any) -> None:
        if len(rules) > 1:
            raise PanicException("out of luck")

    with pytest.raises(PanicException, match="out of luck"):
        bearable([rewrite(np.sin(a), np.sin(a) * 1, id=f"any.{n}") for n in range(2)], run)


def test_a_budget_of_nothing_is_the_program_as_written(recwarn: pytest.WarningsRecorder) -> None:
    calls = []

    def function(x: np.ndarray) -> np.ndarray:
        calls.append(type(x))
        return x + 1

    f = eqsat.optimize(function, budget=0)
    assert f(np.ones(2)).tolist() == [2, 2] and set(calls) == {np.ndarray} and not recwarn.list
    assert "the budget is 0" in one_line(f.explain(np.ones(2)))
    output = call("add", *(call("exp", t) for t in [Maker(0).tensor(3)] * 2))
    for budget in ({"nodes": 0}, {"work": 0.0}, {"iterations": 0}, {"seconds": 0.0}):
        graph = saturate([output], rules=rules.select(), **budget)  # type: ignore[arg-type]
        assert {node.rule for nodes in graph.classes.values() for node in nodes} == {None}, budget
        assert graph.report.stop == next(iter(budget))

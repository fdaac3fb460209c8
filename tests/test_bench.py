"""The benchmark harness: what it computes from times, and that wrong results are errors. No test asserts a time."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench import cold, report  # noqa: E402
from bench.limits import Limits  # noqa: E402
from bench.measure import Time, interleaved, rounds_of  # noqa: E402
from bench.run import Row, compile_cold, run_workload  # noqa: E402
from bench.setup import SUITES, environment, load_peers, selected  # noqa: E402
from bench.workload import (  # noqa: E402
    Workload,
    convert,
    in_double,
    leaves,
    made_of,
    nbytes,
    normal,
    relative_error,
)
from eqsat.cost.machine import Level, Machine  # noqa: E402

MACHINE = Machine(
    cpu="a test",
    cores=2,
    vector_bytes=64,
    registers=32,
    fma_gflops=(("float32", 100.0), ("float64", 50.0)),
    levels=(
        Level("L1", 32 << 10, False, 200.0, 200.0, 400.0, 400.0),
        Level("memory", 0, True, 20.0, 10.0, 30.0, 16.0),
    ),
    call_us=1.0,
    step_us=1.0,
    launch_us=1.0,
    barrier_us=1.0,
)
LIMITS = Limits("a test", 100.0, 10.0, 1)


class Contender:
    """Computes the workload with NumPy, times ``factor``."""

    version = "1"

    def __init__(self, name: str, factor: float = 1.0, applies: bool = True) -> None:
        self.name, self.factor, self.applies = name, factor, applies

    def prepare(self, workload: Workload, inputs: dict[str, Any]) -> Any:
        if not self.applies:
            return None
        return lambda: workload.function(*inputs.values()) * np.float32(self.factor)

    def result(self, value: Any) -> Any:
        return value


PRODUCT = Workload(
    "gemm", "8x8x8", "matmul", lambda a, b: a @ b, made_of(a=normal(8, 8), b=normal(8, 8)), flops=2.0 * 8**3
)


def run(ours: Contender, *peers: Contender) -> Any:
    return run_workload(PRODUCT, ours, peers, LIMITS, MACHINE, seconds=0.01, least=2)


def test_a_row_has_every_contender_and_the_fields_of_the_report() -> None:
    row, problems = run(Contender("eqsat"), Contender("numpy"), Contender("jax", applies=False))
    assert problems == []
    assert set(row.times) == {"eqsat", "numpy"}
    record = row.record()
    wanted = ("suite", "name", "ours_ms", "limit_ms", "peers", "best_peer", "ratio", "of_limit", "max_rel_error")
    assert set(wanted) <= set(record)
    assert record["best_peer"] == "numpy"
    assert record["ratio"] == pytest.approx(record["peers"]["numpy"] / record["ours_ms"])
    json.dumps(report.document([row], problems, LIMITS, {}, []))


def test_a_wrong_result_of_ours_is_an_error_and_no_row() -> None:
    row, problems = run(Contender("eqsat", 1.001), Contender("numpy"))
    assert row is None
    assert [p.contender for p in problems] == ["eqsat"]
    assert "relative error" in problems[0].message


def test_a_wrong_peer_is_an_error_and_left_out() -> None:
    row, problems = run(Contender("eqsat"), Contender("torch", 1.001), Contender("numpy"))
    assert set(row.times) == {"eqsat", "numpy"}
    assert [p.contender for p in problems] == ["torch"]


def test_a_peer_that_raises_does_not_stop_the_others() -> None:
    class Raising(Contender):
        def prepare(self, workload: Workload, inputs: dict[str, Any]) -> Any:
            raise RuntimeError("no kernel\nand more")

    row, problems = run(Contender("eqsat"), Raising("jax"), Contender("numpy"))
    assert set(row.times) == {"eqsat", "numpy"}
    assert problems[0].message == "RuntimeError: no kernel"


def test_the_limit_is_the_larger_of_arithmetic_and_memory() -> None:
    busy = Workload("s", "n", "k", lambda: None, made_of(), flops=1e9)
    assert LIMITS.milliseconds(busy, 1000, MACHINE) == pytest.approx(10.0)
    idle = Workload("s", "n", "k", lambda: None, made_of(), flops=1.0)
    assert LIMITS.milliseconds(idle, 1e9, MACHINE) == pytest.approx(100.0)
    assert LIMITS.milliseconds(idle, 10_000, MACHINE) == pytest.approx(5e-5)
    assert LIMITS.milliseconds(idle, 20_000, MACHINE) == pytest.approx(2e-3)


def test_geometric_means() -> None:
    def row(suite: str, ours: float, peer: float | None) -> Row:
        times = {"eqsat": Time(ours, ours), **({"numpy": Time(peer, peer)} if peer else {})}
        workload = Workload(suite, "n", "k", lambda: None, made_of(), 1.0)
        return Row(workload, 0.1, times, "eqsat", 0.0, 0.0, 0.0)

    means = report.geomeans([row("a", 1.0, 2.0), row("a", 1.0, 8.0), row("b", 2.0, 1.0), row("b", 1.0, None)])
    assert means == {"a": pytest.approx(4.0), "b": pytest.approx(0.5)}


def test_errors_are_relative_to_each_output() -> None:
    big, small = np.array([1e6, 2e6]), np.array([1e-3])
    assert relative_error((big, small), (big, small)) == 0.0
    assert relative_error((big + 2, small), (big, small)) == pytest.approx(1e-6)
    assert relative_error((big, small * 1.1), (big, small)) == pytest.approx(0.1)
    assert math.isinf(relative_error((big * np.nan, small), (big, small)))
    with pytest.raises(ValueError, match="shape"):
        relative_error((big[:1], small), (big, small))
    with pytest.raises(ValueError, match="outputs"):
        relative_error((big,), (big, small))


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def call(name: str) -> Any:
        return lambda: (order.append(name), np.linalg.norm(np.ones((256, 256)) @ np.ones((256, 256))))[0]

    times = interleaved({"a": call("a"), "b": call("b")}, seconds=0.0, least=4)
    assert set(times) == {"a", "b"}
    assert all(t.minimum <= t.median for t in times.values())
    changes = sum(x != y for x, y in itertools.pairwise(order))
    assert changes >= 5
    assert rounds_of(1.0, 3.0, 7, 40) == 7
    assert rounds_of(0.01, 3.0, 7, 40) == 40
    assert rounds_of(0.2, 3.0, 7, 40) == 15


def test_nested_inputs() -> None:
    nested = {"a": [np.zeros(3, np.float32), {"b": np.arange(2)}]}
    assert nbytes(nested) == 12 + 16
    doubled = in_double(nested)
    assert [a.dtype.name for a in leaves(doubled)] == ["float64", "int64"]
    assert convert(nested, lambda a: a.shape) == {"a": [(3,), {"b": (2,)}]}


@pytest.mark.parametrize("suite", [s for s in SUITES if s != "models"])
def test_every_workload_is_well_formed(suite: str) -> None:
    found = selected([suite], None)
    assert len({w.name for w in found}) == len(found)
    for workload in found:
        names = workload.function.__code__.co_varnames[: workload.function.__code__.co_argcount]
        assert set(workload.const) <= set(names)
        assert workload.flops > 0
        assert workload.suite == suite


def shrunk(inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The inputs with long axes cut, equal lengths staying equal."""

    def cut(a: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(a[tuple(slice(None, 12 if n >= 64 else n) for n in a.shape)])

    return {name: convert(value, cut) for name, value in inputs.items()}


@pytest.mark.parametrize("name", ["numpy", "torch", "onnxruntime", "jax", "numexpr"])
def test_peers_compute_the_workloads(name: str) -> None:
    """Each implementation of a peer against float64, on small inputs."""
    peers, missing = load_peers([name], 1)
    if missing:
        pytest.skip(f"{name} is not installed")
    (peer,) = peers
    seen = set()
    for workload in selected([s for s in SUITES if s != "models"], None):
        key = (workload.kind, bool(workload.const), str(workload.options))
        if key in seen:
            continue
        seen.add(key)
        inputs = shrunk(workload.inputs(np.random.default_rng(1)), dict(workload.options))
        reference = workload.function(*in_double(inputs).values())
        call = peer.prepare(workload, inputs)
        if call is None:
            continue
        assert relative_error(peer.result(call()), reference) < 1e-4, workload.name


def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "numexpr", None)
    sys.modules.pop("bench.peers.numexpr_peer", None)
    peers, missing = load_peers(["numpy", "numexpr"], 1)
    assert [p.name for p in peers] == ["numpy"]
    assert missing == ["numexpr"]
    assert "numexpr is left out" in capsys.readouterr().err


def test_threads_are_set_before_libraries_load() -> None:
    variables = environment(2)
    assert variables["OPENBLAS_NUM_THREADS"] == variables["OMP_NUM_THREADS"] == variables["NPROC"] == "2"


def test_cold_compilations_fill_the_row() -> None:
    row, _ = run(Contender("eqsat"), Contender("torch_compile"))
    assert "cold_compile_s" not in row.record()
    asked: list[Any] = []

    def seconds(workload: Workload, contender: str, threads: int, *, repeat: int) -> float:
        asked.append((contender, threads, repeat))
        if contender == "torch_compile":
            raise cold.ColdError("no compiler")
        return 2.5

    problems = compile_cold(row, row.times, 1, repeat=3, seconds=seconds)
    assert asked == [("eqsat", 1, 3), ("torch_compile", 1, 3)]
    assert row.record()["cold_compile_s"] == {"eqsat": 2.5}
    assert [str(p) for p in problems] == ["gemm / 8x8x8: torch_compile: cold compilation: no compiler"]
    assert "cold s eqsat" in [column.header for column in report.table("gemm", [row]).columns]
    assert compile_cold(row, {"eqsat", "jax"}, 1, repeat=1, seconds=seconds) == []


def test_a_cold_compilation_finds_nothing_of_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, with caches of its own: the user's is neither read nor written."""
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    (workload,) = selected(["algebra"], "chain 200")
    assert cold.seconds(workload, "eqsat", 1) > 0
    assert not list(tmp_path.rglob("*"))
    assert cold.caches(str(tmp_path)).keys() >= {"EQSAT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
    with pytest.raises(cold.ColdError, match="abacus"):
        cold.seconds(workload, "abacus", 1)


def test_the_command_line_names_what_it_knows() -> None:
    main = importlib.import_module("bench.__main__").main
    for wrong in (["--peers", "matlab"], ["--threads", "0"], ["--suite", "none"]):
        with pytest.raises(SystemExit) as stop:
            main(wrong)
        assert stop.value.code == 2


def test_the_command_writes_a_report(tmp_path: Path) -> None:
    """One small workload, end to end, in its own process."""
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "bench", "--suite", "gemm", "--only", "64x64x64", "--peers", "numpy", "--quick"]
    done = subprocess.run([*command, "--json", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(out.read_text())
    assert {"machine", "rows", "geomean"} <= set(written)
    assert {"cpu", "fma_gflops", "stream_gbs", "threads"} <= set(written["machine"])
    assert [row["name"] for row in written["rows"]] == ["64x64x64", "64x64x64 known"]
    assert written["errors"] == []
    assert list(written["geomean"]) == ["gemm"]

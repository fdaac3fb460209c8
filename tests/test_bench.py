"""The benchmark harness: what it computes from times, and that wrong results are errors. No test asserts a time."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench import cold, images, model, programs, report, stencil, superopt  # noqa: E402
from bench.limits import Limits  # noqa: E402
from bench.measure import Time, interleaved, loop  # noqa: E402
from bench.peers import OURS, WRITTEN, Program, as_written_peer, load, module_of  # noqa: E402
from bench.process import PeerProcess, digest, reference_of  # noqa: E402
from bench.run import Row, compile_cold, run_workload  # noqa: E402
from bench.setup import SUITES, environment, inputs_of, selected  # noqa: E402
from bench.worker import Worker, WorkerError  # noqa: E402
from bench.workload import (  # noqa: E402
    Workload,
    calls,
    convert,
    in_double,
    leaves,
    made_of,
    nbytes,
    normal,
    positive,
    relative_error,
)
from eqsat.cost.machine import Level, Machine  # noqa: E402
from eqsat.cost.machine import load as load_machine  # noqa: E402
from eqsat.ir.kernel import KernelGroup  # noqa: E402
from eqsat.ir.nest import Loop, Nest, TileOp, show  # noqa: E402
from eqsat.plan.backend import backend  # noqa: E402
from eqsat.schedule import schedule  # noqa: E402
from tests import bench_peer  # noqa: E402
from tests.kernel_groups import gemm, reduction  # noqa: E402
from tests.programs import PROGRAMS  # noqa: E402

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


(PRODUCT,) = (w for w in selected(["gemm"], "64x64x64") if not w.const)


def process(fault: str = "", limit_s: float = 60.0, name: str = "") -> PeerProcess:
    """NumPy in a process of its own, with a fault (see ``bench_peer``)."""
    variables = {bench_peer.FAULT: fault}
    return PeerProcess(name or fault or OURS, 1, variables, module="tests.bench_peer", limit_s=limit_s)


def run(ours: PeerProcess, *peers: PeerProcess) -> Any:
    with ExitStack() as stack:
        for peer in (ours, *peers):
            stack.enter_context(peer)
        return run_workload(PRODUCT, ours, peers, LIMITS, MACHINE, rounds=2)


def test_a_row_has_every_peer_and_the_fields_of_the_report() -> None:
    row, problems = run(process(), process(name="numpy"), process("does not apply"))
    assert problems == []
    assert set(row.times) == {OURS, "numpy"}
    record = row.record()
    wanted = ("suite", "name", "ours_ms", "limit_ms", "peers", "best_peer", "ratio", "of_limit", "max_rel_error")
    assert set(wanted) <= set(record)
    assert record["best_peer"] == "numpy"
    assert record["ratio"] == pytest.approx(record["peers"]["numpy"] / record["ours_ms"])
    json.dumps(report.document([row], problems, LIMITS, {}, []))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("refuses", "RuntimeError: no kernel"),
        ("is wrong", "relative error 1.*e-03 against float64"),
        ("changes inputs", "other inputs"),
        ("exhausts memory", "MemoryError: Unable to allocate"),
        ("dies", "SIGABRT"),
        ("hangs", "no answer after 1 s"),
    ],
)
def test_a_peer_that_fails_is_an_error_and_left_out(fault: str, message: str) -> None:
    row, problems = run(process(), process(fault, limit_s=1.0 if fault == "hangs" else 60.0), process(name="numpy"))
    assert set(row.times) == {OURS, "numpy"}
    assert [p.peer for p in problems] == [fault]
    assert re.search(message, problems[0].message)
    assert "\n" not in str(problems[0])


@pytest.mark.parametrize("fault", ["is wrong", "dies"])
def test_without_a_right_result_of_ours_there_is_no_row(fault: str) -> None:
    row, problems = run(process(fault, name=OURS), process(name="numpy"))
    assert row is None
    assert [p.peer for p in problems] == [OURS]


def test_a_peer_that_died_takes_part_in_the_next_row() -> None:
    with process("dies") as peer:
        expected = reference_of(PRODUCT)
        for _ in range(2):
            prepared = peer.prepare(PRODUCT)
            assert prepared is not None
            assert expected.error_of(prepared, PRODUCT) < 1e-5
            with pytest.raises(WorkerError, match="SIGABRT"):
                peer.turn()


def test_all_processes_have_the_same_inputs() -> None:
    """Whatever the hash seed; and none of them zero."""
    digests = set()
    for seed in "1", "2":
        with PeerProcess("numpy", 1, {"PYTHONHASHSEED": seed}) as peer:
            prepared = peer.prepare(PRODUCT)
            assert prepared is not None
            digests.add(prepared.inputs)
    inputs = inputs_of(PRODUCT)
    assert digests == {digest(inputs)}
    assert all(np.count_nonzero(leaf) == leaf.size for leaf in leaves(inputs))
    other = inputs_of(next(w for w in selected(["gemm"], "64x64x64") if w.const))
    changed = {**inputs, "a": np.nextafter(inputs["a"], np.float32(9))}
    assert len({digest(x) for x in (inputs, other, changed, {"a": inputs["b"], "b": inputs["a"]})}) == 4


def test_workers_call_wait_and_end() -> None:
    with Worker({"SOME_VARIABLE": "its own"}, limit_s=20.0) as worker:
        assert worker.call(os.getenv, "SOME_VARIABLE") == "its own"
        pid = worker.started
        assert pid not in (os.getpid(), None)
        with pytest.raises(WorkerError, match=r"ValueError: invalid literal") as raised:
            worker.call(int, "x")
        assert raised.value.kind == "ValueError"
        assert worker.call(os.getpid) == pid, "a worker survives what it is asked for"
        with pytest.raises(WorkerError, match="exit status 3"):
            worker.call(os._exit, 3)
        with pytest.raises(WorkerError, match="SIGKILL, as the system does when memory runs out"):
            worker.call(signal.raise_signal, signal.SIGKILL)
        worker.limit_s = 0.2
        worker.ready()
        with pytest.raises(WorkerError, match=r"no answer after 0.2 s"):
            worker.call(time.sleep, 60)
        with pytest.raises(ProcessLookupError):
            os.kill(worker.started, 0)


def test_ctrl_c_ends_workers() -> None:
    """Of a terminal, it goes to all of them; only the first process heeds it, and ends the others."""
    code = """
import time
from bench.worker import Worker
with Worker({}) as worker:
    worker.ready()
    print(worker.started, flush=True)
    worker.call(time.sleep, 60)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as main:
        assert main.stdout is not None
        pid = int(main.stdout.readline())
        os.killpg(main.pid, signal.SIGINT)
        _, told = main.communicate(timeout=20)
    assert main.returncode != 0
    assert told.count("Traceback") == 1, told
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


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

    rows = [row("a", 1.0, 2.0), row("a", 1.0, 8.0), row("b", 2.0, 1.0), row("b", 1.0, None)]
    assert report.geomeans(rows) == {"a": pytest.approx(4.0), "b": pytest.approx(0.5)}
    rows[0].times["jax"] = Time(0.5, 0.5)
    assert report.means_against(rows) == {
        "a": {"numpy": pytest.approx(4.0), "best of the others": pytest.approx(0.5)},
        "b": {"numpy": pytest.approx(0.5)},
    }
    assert report.geomeans(rows)["a"] == pytest.approx(2.0)


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


def test_peers_take_turns() -> None:
    order: list[str] = []

    def call(name: str) -> Any:
        def turn() -> float:
            order.append(name)
            if name == "c":
                raise WorkerError("gone")
            return len(order) / 1e3

        return turn

    times, failed = interleaved({name: call(name) for name in "abc"}, rounds=4)
    assert "".join(order) == "abc" + "ba" + "ab" + "ab"
    assert times == {"a": Time(1.0, 5.5), "b": Time(2.0, 5.5)}
    assert list(failed) == ["c"]


def test_a_turn_is_as_many_calls_as_fill_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = 0.0, 0

    def run() -> None:
        nonlocal now, calls
        now, calls = now + 0.0625, calls + 1

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert loop(run, 10.0) == 0.0625
    assert calls == 160
    assert loop(run, 0.0) == 0.0625
    assert calls == 161


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
        assert set(workload.const) <= set(inspect.signature(workload.function).parameters)
        assert workload.flops > 0 or workload.kind == "program"
        assert workload.suite == suite


def test_a_gain_is_over_the_program_as_written_which_is_no_peer() -> None:
    (workload,) = selected([superopt.SUITE], "VGG-19 approximates")
    programs = {
        name: Program(kernels, 2e9, 1e6, predicted, 9, ("saturated",), rules)
        for name, kernels, predicted, rules in ((OURS, 1, 2.0, {"winograd_large": 3}), (WRITTEN, 2, 3.0, {}))
    }
    times = {OURS: Time(1.0, 2.0), WRITTEN: Time(1.5, 3.0), "torch": Time(4.0, 5.0)}
    row = Row(workload, 1.0, times, OURS, 0.0, 0.1, 0.2, programs=programs)
    assert row.gain == 0.5 and row.peers == {"torch": 5.0} and row.ratio == 2.5
    record = json.loads(json.dumps(row.record()))
    assert record["tensat"] == {"gain": 0.089, "search_s": 0.4} and record["programs"][WRITTEN]["kernels"] == 2
    (cells,) = zip(*(column.cells for column in report.gains_table([row]).columns), strict=True)
    assert {"2 → 1", "3 → 2", "50.0% | 8.9%", "winograd_large ×3"} <= set(cells)
    other = Row(workload, 1.0, {OURS: Time(1.0, 2.0)}, OURS, 0.0, 0.1, 0.2)
    assert other.gain is None and "gain" not in other.record()


def test_as_written_is_without_rewrites() -> None:
    """The same kernels and fusion, and nothing for other suites."""
    makers = {"x": normal(5, 6), "w": normal(6, 7), "v": normal(7, 3)}
    build = lambda o, x, w, v: o.matmul(o.matmul(o.relu(o.relu(x)), w), v)  # noqa: E731
    workload = images.of_images(superopt.SUITE, "chain", build, makers, 1.0, const=("w", "v"))
    inputs = workload.inputs(np.random.default_rng(0))
    reference = workload.function(*in_double(inputs).values())
    made = {}
    for name in (OURS, WRITTEN):
        peer = load(module_of(name), 1)
        call = peer.prepare(workload, inputs)
        assert call is not None and relative_error(peer.result(call()), reference) < 1e-5
        made[name] = peer.cost.program  # type: ignore[attr-defined]
    assert set(made[WRITTEN].rules) <= set(as_written_peer.KEPT)
    assert "contract_associates" in made[OURS].rules and made[OURS].flops < made[WRITTEN].flops
    assert as_written_peer.make(1).prepare(PRODUCT, {}) is None


def shrunk(inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The inputs with long axes cut, equal lengths staying equal."""

    def cut(a: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(a[tuple(slice(None, 12 if n >= 64 else n) for n in a.shape)])

    return {name: convert(value, cut) for name, value in inputs.items()}


@cache
def small() -> list[tuple[Workload, dict[str, Any], Any]]:
    """Of every form of every kind the cheapest workload, with inputs cut and its results in float64."""
    forms: dict[tuple[Any, ...], Workload] = {}
    for workload in selected([s for s in SUITES if s not in ("models", "numpy")], None):
        if workload.kind != images.KIND:  # extents belong together: below
            form = (workload.kind, bool(workload.const), str(workload.options), workload.dtype)
            forms[form] = min(forms.get(form, workload), workload, key=lambda w: w.flops)
    found = []
    for workload in forms.values():
        inputs = shrunk(workload.inputs(np.random.default_rng(1)), dict(workload.options))
        found.append((workload, inputs, workload.function(*in_double(inputs).values())))
    return found


@pytest.mark.parametrize("name", ["numpy", "torch", "onnxruntime", "jax", "numexpr"])
def test_peers_compute_the_workloads(name: str) -> None:
    """Each implementation of a peer against float64, on small inputs."""
    try:
        peer = load(module_of(name), 1)
    except ImportError:
        pytest.skip(f"{name} is not installed")
    for workload, inputs, reference in small():
        before = digest(inputs)
        call = peer.prepare(workload, inputs)
        if call is None:
            continue
        allowed = max(1e-4, workload.tolerance) if workload.dtype == "float32" else workload.tolerance
        assert relative_error(peer.result(call()), reference) < allowed, workload.name
        assert digest(inputs) == before


def of_images() -> list[Workload]:
    """Every operator of image networks, on small ones."""
    x, p = normal(2, 6, 9, 9), {name: positive(6) for name in ("mean", "variance", "scale", "shift")}
    params = lambda rng: {name: make(rng) for name, make in p.items()}  # noqa: E731
    w, groups, up, dense = normal(8, 6, 3, 3), normal(6, 2, 3, 3), normal(6, 5, 4, 4), normal(4, 8)
    builds: list[tuple[Any, dict[str, Any]]] = [
        (lambda o, x, w, b: o.conv(x, w, b, stride=2, padding=1), {"x": x, "w": w, "b": normal(8)}),
        (lambda o, x, w: o.conv(x, w, padding=2, dilation=2, groups=3), {"x": x, "w": groups}),
        (lambda o, x, w: o.conv(x, w, padding=1), {"x": normal(2, 3, 20), "w": normal(4, 3, 3)}),
        (lambda o, x, w: o.conv(x, w), {"x": normal(1, 2, 5, 6, 7), "w": normal(3, 2, 2, 2, 2)}),
        (lambda o, x, w, b: o.conv_transpose(x, w, b, stride=2, padding=1), {"x": x, "w": up, "b": normal(5)}),
        (lambda o, x, p: o.clip(o.batch_norm(x, p), -0.5, 1.0), {"x": x, "p": params}),
        (lambda o, x: o.concat(o.max_pool(x, 3, stride=2, padding=1), o.avg_pool(x, 3, stride=2, padding=1)), {"x": x}),
        (lambda o, x: o.avg_pool(x, 3, stride=1, padding=1, count_padding=False), {"x": x}),
        (lambda o, x: o.adaptive_avg_pool(x, 4), {"x": x}),
        (lambda o, x: o.add(o.relu(o.resize(x, 2)), o.resize(x, 2)), {"x": x}),
        (lambda o, x, w, b: o.linear(o.mean_pool(x), w, b), {"x": normal(2, 8, 4, 4), "w": dense, "b": normal(4)}),
        (lambda o, a, b: o.matmul(a, b), {"a": normal(3, 4, 5), "b": normal(3, 5, 2)}),
        (lambda o, x, w: o.conv(x, w, padding=(0, 2)), {"x": x, "w": normal(4, 6, 1, 5)}),
        (
            lambda o, x, scale, shift: o.layer_norm(o.gelu(x), scale, shift),
            {"x": x, "scale": normal(9), "shift": normal(9)},
        ),
        (
            lambda o, x: (o.softmax(o.scaled(x, 0.5)), o.transpose(o.reshape(x, (12, 9, 9)), (1, 2, 0))),
            {"x": x},
        ),
    ]
    return [
        images.of_images("test", str(n), build, makers, 1.0, [name for name in makers if name not in "xa"])
        for n, (build, makers) in enumerate(builds)
    ]


@pytest.mark.parametrize("name", ["torch", "onnxruntime", "openvino", "tvm", "jax"])
def test_peers_have_the_operators_of_images(name: str) -> None:
    try:
        peer = load(module_of(name), 1)
    except ImportError:
        pytest.skip(f"{name} is not installed")
    for workload in of_images():
        inputs = workload.inputs(np.random.default_rng(1))
        call = peer.prepare(workload, inputs)
        if call is None:
            assert name in ("onnxruntime", "openvino", "tvm") and workload.name == "8"  # ONNX has no adaptive pooling
            continue
        reference = workload.function(*in_double(inputs).values())
        assert relative_error(peer.result(call()), reference) < 1e-5, workload.name


def test_convolutions_are_counted() -> None:
    """As a loop over places does."""
    shape, w = (2, 6, 9, 7), (8, 3, 3, 2)
    out = images.NUMPY.conv(np.zeros(shape), np.zeros(w), stride=2, padding=1, groups=2).shape
    assert images.convolution_flops(shape, w, stride=2, padding=1) == 2 * np.prod(out) * 3 * 3 * 2


@pytest.mark.parametrize("name", ["numpy", "numba", "jax"])
def test_peers_run_whole_programs(name: str) -> None:
    """As they are, where they can: on copies of what they change, which are results."""
    try:
        peer = load(module_of(name), 1)
    except ImportError:
        pytest.skip(f"{name} is not installed")
    runs = {
        "heat_in_place": ("numpy", "numba"),  # JAX's arrays cannot be assigned to
        "conjugate_gradient": ("numpy", "numba", "jax"),
        "hermitian_part": ("numpy",),
    }
    for program, able in runs.items():
        workload = programs.workload(PROGRAMS[program], PROGRAMS[program].small)
        inputs = workload.inputs(np.random.default_rng(1))
        before = digest(inputs)
        call = peer.prepare(workload, inputs)
        assert (call is not None) == (name in able), program
        if call is not None:
            reference = calls(workload.function, workload, in_double(inputs))()
            call()
            assert relative_error(peer.result(call()), reference) < workload.tolerance
            assert digest(inputs) == before
    (fields,) = (w.changes for w in selected(["numpy"], "fdtd_2d"))
    assert fields == ("ex", "ey", "hz")


def test_halide_has_the_stencils(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand and by an auto-scheduler; the other schedules are of the same functions."""
    pytest.importorskip("halide")
    monkeypatch.setattr(stencil, "STEPS", 2)
    peer: Any = load(module_of("halide"), 1)
    peer.schedules = {name: peer.schedules[name] for name in ("strips of 32", "Mullapudi2016")}
    assert peer.prepare(PRODUCT, {}) is None
    seen = set()
    for workload in selected(["stencil"], None):
        function = workload.function
        if function in seen:
            continue
        seen.add(function)
        image = np.random.default_rng(1).standard_normal((24, 36, 40) if function is stencil.jacobi_3d else (40, 70))
        inputs = {"x": image.astype(np.float32)}
        found = dict(peer.compiled(workload, inputs))
        assert {*found} == {*peer.schedules}
        for name, call in found.items():
            assert relative_error(call(), function(inputs["x"].astype(np.float64))) < 1e-5, (workload.name, name)


def test_a_missing_peer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "numexpr.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path)
    started = importlib.import_module("bench.__main__").started
    with ExitStack() as stack:
        ready, missing = started(["numpy", "numexpr"], 1, stack)
        assert [(p.name, p.version) for p in ready[1:]] == [("numpy", np.__version__)]
    assert missing == ["numexpr"]
    assert "numexpr is left out: ImportError: not here" in capsys.readouterr().err


def test_threads_are_set_before_libraries_load() -> None:
    variables = environment(2)
    assert variables["OPENBLAS_NUM_THREADS"] == variables["OMP_NUM_THREADS"] == variables["NPROC"] == "2"
    with PeerProcess("numpy", 2) as peer:
        assert peer.call(os.getenv, "OPENBLAS_NUM_THREADS") == "2"


@pytest.mark.parametrize("bits", ["256", "512"])
def test_peers_are_held_to_the_width_that_eqsat_is(bits: str) -> None:
    code = "from bench.setup import *; "
    code += "print(environment(1).get('ONEDNN_MAX_CPU_ISA'), comparable(['torch', 'onnxruntime']))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "EQSAT_VECTOR_BITS": bits},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    held = "AVX2 (['torch'], ['onnxruntime'])" if bits == "256" else "None (['torch', 'onnxruntime'], [])"
    assert found.stdout.strip() == held


def test_cold_compilations_fill_the_row() -> None:
    row = Row(PRODUCT, 0.1, {n: Time(1.0, 1.0) for n in (OURS, "torch_compile")}, OURS, 0.0, 0.0, 0.0)
    assert "cold_compile_s" not in row.record()
    asked: list[Any] = []

    def seconds(workload: Workload, peer: str, threads: int, *, repeat: int) -> float:
        asked.append((peer, threads, repeat))
        if peer == "torch_compile":
            raise WorkerError("no compiler")
        return 2.5

    problems = compile_cold(row, row.times, 1, repeat=3, seconds=seconds)
    assert asked == [("eqsat", 1, 3), ("torch_compile", 1, 3)]
    assert row.record()["cold_compile_s"] == {"eqsat": 2.5}
    assert [str(p) for p in problems] == ["gemm / 64x64x64: torch_compile: cold compilation: no compiler"]
    assert "cold s eqsat" in [column.header for column in report.table("gemm", [row]).columns]
    assert compile_cold(row, {"eqsat", "jax"}, 1, repeat=1, seconds=seconds) == []


def test_a_cold_compilation_finds_nothing_of_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, with caches of its own: the user's is neither read nor written."""
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    (workload,) = selected(["algebra"], "chain 200")
    assert cold.seconds(workload, "eqsat", 1) > 0
    assert not list(tmp_path.rglob("*"))
    assert cold.caches(str(tmp_path)).keys() >= {"EQSAT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
    with pytest.raises(WorkerError, match="abacus"):
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
    assert written["machine"]["python"] == platform.python_version() and written["machine"]["python_ms"] > 0
    assert [row["name"] for row in written["rows"]] == ["64x64x64", "64x64x64 known"]
    assert written["errors"] == []
    assert list(written["geomean"]) == ["gemm"]


def nests_named(count: int) -> list[Nest]:
    return [Loop("m", 8, step, TileOp("vector", (("lanes", 1),))) for step in range(1, count + 1)]


def timed_by_hand(monkeypatch: pytest.MonkeyPatch, seconds: list[float], results: list[float | None]) -> Any:
    """Programs that take so many seconds of a clock of their own; None: no kernel. Equal times are equal sources."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def program(taken: float, result: float) -> Any:
        def run() -> list[np.ndarray]:
            nonlocal now
            now += taken
            return [np.full(3, result, np.float32)]

        return run

    def made(nests: Any) -> Any:
        assert len(nests) == len(seconds)
        return [(str(s), None if r is None else program(s, r)) for s, r in zip(seconds, results, strict=True)]

    return made


def test_the_model_is_held_against_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions of different programs are compared with their times; what is printed alike counts once."""
    predicted = [0.1, 0.2, 0.3, 0.4, 0.25, 0.15]
    seconds = [0.125, 0.25, 0.5, 1.0, 0.25, 2.0]
    nests = list(zip(nests_named(6), predicted, strict=True))
    found = model.agreement("k", nests, timed_by_hand(monkeypatch, seconds, [1.0, 1.0, 1.0, 1.0, 1.0, None]), 2)
    assert found.correlation == pytest.approx(1.0)
    assert [p.nests for p in found.programs] == [1, 2, 1, 1]
    assert [p.predicted_ms for p in found.programs] == pytest.approx([100, 200, 300, 400])
    assert [p.minimum_ms for p in found.programs] == [125, 250, 500, 1000]
    assert found.refused == (show(nests[5][0]),)
    assert (found.chosen_ms, found.best_ms, found.regret) == (125, 125, 0)

    seconds = [1.0, 0.5, 0.25, 0.125, 0.0625, 2.0]
    found = model.agreement("k", nests, timed_by_hand(monkeypatch, seconds, [1.0, 1.0, 1.0, 1.0, 2.0, 1.0]), 2)
    assert found.wrong == (show(nests[4][0]),), "a wrong program has no time"
    assert found.correlation == pytest.approx(
        float(spearmanr(predicted[:4] + predicted[5:], [4, 3, 2, 1, 5]).statistic)
    )
    assert found.regret == pytest.approx(7.0)
    assert found.best == show(nests[3][0])
    assert {"distinct", "rank_correlation", "regret", "programs", "nests"} <= set(found.record())

    whole = model.summary([found, dataclasses.replace(found, chosen_ms=found.best_ms, programs=found.programs[:2])])
    assert whole["median_rank_correlation"] == found.correlation, "of two programs there is none"
    assert (whole["median_regret"], whole["worst_regret"]) == (3.5, 7.0)
    alone = dataclasses.replace(found, programs=found.programs[:1], chosen_ms=found.best_ms)
    assert model.summary([found, alone])["median_regret"] == 7.0, "of one program there is none"
    document = json.loads(json.dumps(report.document([], [], LIMITS, {}, [], [found])))
    assert document["model"]["rows"][0]["name"] == "k"
    assert report.model_table([found]).row_count == 3

    made = timed_by_hand(monkeypatch, seconds, [None, 1.0, 1.0, 1.0, 1.0, 1.0])
    with pytest.raises(RuntimeError, match="chosen nest"):
        model.agreement("k", nests, made, 2)


@pytest.mark.parametrize("group", [gemm(24, 40, 16), reduction((24, 40, 16), 2, (0, 1, 2))], ids=["product", "sum"])
def test_nests_of_a_kernel_are_compiled_and_timed(group: KernelGroup) -> None:
    machine = load_machine()
    target = backend("numba_cpu").target(machine, 1)
    nests = model.drawn(group, target, 5)
    assert nests[0][0] == schedule(group, target).nest
    assert len(dict(nests)) == len(nests) > 1
    found = model.agreement("k", nests, partial(model.programs, group, machine, 1, "numba_cpu"), 1)
    assert (found.refused, found.wrong) == ((), ())
    assert sum(p.nests for p in found.programs) == found.nests == len(nests)
    assert (found.regret is None) == (len(found.programs) == 1)
    assert found.best_ms <= found.chosen_ms
    assert all(0 < p.minimum_ms <= p.median_ms for p in found.programs)


def test_the_kernels_of_the_model_suite() -> None:
    found = model.workloads()
    assert len({w.name for w in found}) == len(found) >= 12
    assert {w.suite for w in found} == {model.SUITE}


def test_the_command_runs_the_model_suite(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "bench", "--suite", "model", "--only", "axis 2", "--quick", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(out.read_text())
    assert (written["rows"], written["errors"]) == ([], [])
    (row,) = written["model"]["rows"]
    assert row["distinct"] == len(row["programs"]) >= 1
    assert sum(p["nests"] for p in row["programs"]) == row["nests"]
    assert written["model"]["kernels"] == 1
    assert written["model"]["median_regret"] == row["regret"]

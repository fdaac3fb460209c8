"""What ``explain`` says is true: work and memory on cases done by hand, rules, steps, times, JSON."""

from __future__ import annotations

import gc
import io
import json
import logging
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import nn, progress
from eqsat.errors import OptionError
from eqsat.explain.nests import listing
from eqsat.explain.roofline import roofs
from eqsat.explain.work import group_bytes, kernel_flops, naive_peak, naive_work
from eqsat.frontends.trace import trace
from eqsat.ir.nest import Loop, Pack, Seq, TileOp
from eqsat.ir.node import Graph
from eqsat.plan.decide import as_written
from eqsat.progress import Progress, tell
from tests.kernel_groups import DESK
from tests.reports import one_line

rng = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def graph(fn: Any, *args: Any) -> Graph:
    return trace(fn, args).graph


# Work, by hand. Sizes in elements of 4 bytes


@pytest.mark.parametrize(
    ("fn", "shapes", "flops", "elements", "kernels"),
    [
        (lambda x, y: x + y, [(3, 4), (3, 4)], 12, 36, 1),
        (lambda x, y: x + y, [(3, 4), (4,)], 12, 28, 1),
        (lambda x, y: x @ y, [(3, 4), (4, 5)], 2 * 60, 12 + 20 + 15, 1),
        (lambda x, y: x @ y.T + 1, [(3, 4), (5, 4)], 2 * 60 + 15, 12 + 20 + 15 + 15 + 1 + 15, 2),
        (lambda x: x * x, [(6,)], 6, 12, 1),
        (lambda x: np.exp(x).sum(axis=1), [(3, 4)], 12 + 12, 24 + 12 + 3, 2),
        (lambda x, y: np.outer(x, y), [(3,), (4,)], 12, 3 + 4 + 12, 1),
        (lambda x, y, z: x + y + z, [(5,), (5,), (5,)], 10, 15 + 15, 2),
        (lambda x: x[:2].T, [(5, 3)], 0, 0, 0),
        (lambda x: np.broadcast_to(x, (10, 5)) * 2, [(5,)], 50, 5 + 1 + 50, 1),
        (lambda x: x[1:] - x[:-1], [(5,)], 4, 12, 1),
    ],
)
def test_naive_work(fn: Any, shapes: list[tuple[int, ...]], flops: int, elements: int, kernels: int) -> None:
    work = naive_work(graph(fn, *(normal(*s) for s in shapes)))
    assert (work.flops, work.nbytes, work.kernels) == (flops, 4 * elements, kernels)


def test_naive_work_of_a_gather_counts_the_rows_taken() -> None:
    work = naive_work(graph(lambda t, i: t[i], normal(1000, 4), np.array([1, 2, 3])))
    assert work.flops == 0
    assert work.nbytes <= 4 * (12 + 12) + 8 * 4 * 3  # rows in and out, and indices made non-negative and read


@pytest.mark.parametrize(
    ("fn", "shapes", "elements"),
    [
        (lambda x, y: x + y, [(6,), (6,)], 6),
        (lambda x: np.sqrt(np.exp(x) + 1), [(6,)], 12),  # each value and the one made of it
        (lambda x: (x + 1).sum(), [(6,)], 7),
        (lambda x: (np.exp(x), np.sqrt(x)), [(6,)], 12),
        (lambda x: x.T, [(2, 3)], 6),
    ],
)
def test_naive_peak(fn: Any, shapes: list[tuple[int, ...]], elements: int) -> None:
    assert naive_peak(graph(fn, *(normal(*s) for s in shapes))) == 4 * elements


def mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    return np.tanh(x @ w + b) @ v


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ k.swapaxes(-1, -2) * 0.125) @ v


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * g + b


PROGRAMS: dict[str, tuple[Any, list[Any]]] = {
    "mlp": (mlp, [normal(64, 32), normal(32, 48), normal(48), normal(48, 16)]),
    "softmax": (softmax, [normal(64, 128)]),
    "layer_norm": (layer_norm, [normal(64, 96), normal(96), normal(96)]),
    "attention": (attention, [normal(4, 128, 32), normal(4, 128, 32), normal(4, 128, 32)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_optimized_work_and_memory_are_no_more_than_naive(name: str) -> None:
    fn, args = PROGRAMS[name]
    e = eqsat.optimize(fn).explain(*args)
    assert e.optimized.kernels <= e.naive.kernels
    assert e.optimized.nbytes <= e.naive.nbytes
    assert e.peak_bytes <= e.naive_peak_bytes
    assert 0 < e.optimized.flops <= 1.5 * e.naive.flops


def test_optimized_work_of_one_kernel_by_hand() -> None:
    f = eqsat.optimize(lambda x, w, b: np.maximum(x @ w + b, 0))
    x, w, b = normal(6, 8), normal(8, 10), normal(10)
    f(x, w, b)
    plan = f.compile(x, w, b).search()
    (step,) = plan.steps
    (stage,) = step.group.stages  # type: ignore[union-attr]
    assert kernel_flops(stage.kernel) == 2 * 6 * 10 * 8 + 2 * 60
    assert group_bytes(step.group) == 4 * (48 + 80 + 10 + 60)  # type: ignore[union-attr]
    (shown,) = f.explain(x, w, b).steps
    assert (shown.flops, shown.nbytes) == (2 * 6 * 10 * 8 + 2 * 60, 4 * (48 + 80 + 10 + 60))


def test_text_shows_everything() -> None:
    fn, args = PROGRAMS["mlp"]
    f = eqsat.optimize(fn)
    e = f.explain(*args)
    text = str(e)
    for word in ("mlp(x: float32[64,32]", "kernels", "flops", "bytes moved", "memory peak", "predicted", "measured"):
        assert word in text
    for word in ("matmul 64×48×32", "tanh", "search:", "stopped by", "error against float64"):
        assert word in text
    assert len(e.steps) == e.optimized.kernels
    assert all(s.kind == "kernel" and s.measured and s.measured > 0 and s.predicted > 0 for s in e.steps)
    assert e.measured and e.predicted


def test_steps_name_their_operands_and_the_users_lines() -> None:
    fn, args = PROGRAMS["attention"]
    first, *_, last = eqsat.optimize(fn).explain(*args).steps
    assert last.writes == ["result"] and {name for s in (first, last) for name in s.reads} >= {"q", "k", "v"}
    shown = "\n".join(line for step in (first, last) for line in step.source)
    for text in ("e = np.exp(x - x.max", "return e / e.sum", "return softmax(q @ k.swapaxes(-1, -2) * 0.125) @ v"):
        assert text in shown
    assert all(line.startswith(f"{__file__}:") for line in shown.splitlines())


def test_names_and_lines_are_those_of_the_function_at_hand() -> None:
    """A plan is remembered for other functions that trace alike, with names and lines of their own."""

    def one(a: Any, w: Any) -> Any:
        return {"sum": np.tanh(a @ w).sum(axis=0), "product": a @ w}

    def other(x: Any, weights: Any) -> Any:
        y = x @ weights
        return np.tanh(y).sum(axis=0), y

    args = normal(33, 20), normal(20, 9)
    before, after = (eqsat.optimize(fn).explain(*args) for fn in (one, other))
    assert not before.cached and after.cached
    assert [s.label for s in before.steps] == [s.label for s in after.steps]
    for report, names, results, line in (
        (before, {"a", "w"}, {"result['sum']", "result['product']"}, "np.tanh(a @ w)"),
        (after, {"x", "weights"}, {"result[0]", "result[1]"}, "y = x @ weights"),
    ):
        assert names <= {name for step in report.steps for name in step.reads}
        assert {name for step in report.steps for name in step.writes} == results
        assert any(line in shown for step in report.steps for shown in step.source)


def test_what_is_computed_when_compiling_is_told_from_arguments() -> None:
    def fn(x: Any, u: Any, v: Any) -> Any:
        x += 1
        return x @ (u + v)

    report = eqsat.optimize(fn, const=("u", "v")).explain(normal(16, 32), normal(32, 8), normal(32, 8))
    assert any("folded(u, v)" in step.reads for step in report.steps)
    assert {name for step in report.steps for name in step.writes} == {"x", "result"}


def test_steps_of_loops_have_lines_and_operands() -> None:
    def fn(u: Any) -> Any:
        for _ in range(300):
            u = u + 0.1 * (np.roll(u, 1) - u)
        return np.tanh(u)

    body, last = eqsat.optimize(fn).explain(normal(40)).steps
    assert body.trips == 300 and body.reads == ["u"] and last.reads == ["#0"] and last.writes == ["result"]
    assert ["u = u + 0.1 *" in line for line in body.source] == [True]
    assert ["return np.tanh(u)" in line for line in last.source] == [True]
    scanned = eqsat.optimize(lambda u: eqsat.fori_loop(0, 40, lambda i, v: np.cos(v) + 1, u))
    assert any("np.cos(v) + 1" in line for line in scanned.explain(normal(40)).steps[0].source)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_text_fits_any_width(width: int) -> None:
    fn, args = PROGRAMS["layer_norm"]
    report = eqsat.optimize(fn).explain(*args)
    lines = report.text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert report.text(30) == report.text(80)  # fewer columns than can be read
    (head,) = (line for line in lines if line.startswith("#"))
    column = slice(head.index("step"), head.index("predicted"))
    squeezed = "".join("".join(line[column] for line in lines).split())
    for step in report.steps:
        for part in (step.label, ",".join(step.reads), *(line.rpartition(": ")[2] for line in step.source)):
            assert "".join(part.split()) in squeezed


def test_notebooks_are_shown_html() -> None:
    def fn(x: Any) -> Any:
        return x[1:] - x[:-1] if x.shape[0] < 100 else x & 1

    page = eqsat.optimize(fn).explain(normal(50))._repr_html_()
    assert page.startswith("<pre") and page.endswith("</pre>") and "\x1b" not in page
    assert "x[1:] - x[:-1] if x.shape[0] &lt; 100 else x &amp; 1" in page


def test_numpy_is_timed_where_the_function_only_computes() -> None:
    runs = []

    def counted(x: Any) -> Any:
        runs.append(1)
        return np.sqrt(x) + 1

    x = normal(40) ** 2
    report = eqsat.optimize(lambda x: np.sqrt(x) + 1).explain(x)
    assert report.numpy and report.measured and not report.untimed
    assert "NumPy" in one_line(report) and "times as long" in one_line(report)
    f = eqsat.optimize(counted)
    f(x)
    before = len(runs)
    report = f.explain(x)
    assert len(runs) == before and report.numpy is None and "it uses a list" in report.untimed
    assert "NumPy was not timed" in one_line(report)


def test_timing_changes_no_argument() -> None:
    def fn(x: Any) -> Any:
        x[1:] += x[:-1]
        return x.sum()

    x = normal(30)
    before = x.copy()
    assert eqsat.optimize(fn).explain(x).numpy
    np.testing.assert_array_equal(x, before)


def test_without_arguments_the_last_call_is_explained() -> None:
    f = eqsat.optimize(lambda x, scale=1.0: np.tanh(x) * scale)
    with pytest.raises(TypeError, match="has not been called"):
        f.explain()
    x, y = normal(5), normal(7)
    f(x)
    assert f.explain().signature == "x: float32[5]" and f.explain().measured
    assert f.source() == f.source(x)
    f(y)
    f(x)
    f(x)
    assert f.explain().signature == "x: float32[5]"
    f(y)
    assert f.explain().signature == "x: float32[7]"
    del y
    gc.collect()  # what a compilation left behind in cycles may hold it
    gone = f.explain()
    assert gone.measured is None and gone.steps[0].measured is None and "arrays of that call are gone" in str(gone)
    f.cache_clear()
    with pytest.raises(TypeError, match="has not been called"):
        f.source()


def test_of_methods_too() -> None:
    layer = Layer(np.array([2.0, 3.0]))
    with pytest.raises(TypeError, match="has not been called"):
        layer.apply.explain()
    layer.apply(np.ones(2))
    assert layer.apply.explain().signature == "self.w: float64[2], x: float64[2]"
    assert layer.apply.explain(np.ones((3, 2))).signature == "self.w: float64[2], x: float64[3,2]"
    assert layer.apply.compile(np.ones(2))(layer, np.array([1.0, 2.0])).tolist() == [2, 6]
    assert layer.apply.source() == layer.apply.source(np.ones(2))


def test_a_call_without_arguments_is_one_where_none_are_needed() -> None:
    f = eqsat.optimize(lambda n=4: np.arange(n) * 2.0)
    assert f.explain().steps is not None
    assert f().tolist() == [0, 2, 4, 6]


@dataclass
class Layer:
    w: Any

    @eqsat.optimize(backend="numpy")
    def apply(self, x: Any) -> Any:
        return x * self.w


def test_nests_are_shown_loop_by_loop() -> None:
    nest = Loop("m", 100, 14, Pack("b", Loop("n", 64, 32, TileOp("fma", (("m", 14), ("n", 32), ("k", 5))))), True)
    assert listing(nest) == [
        "for m in 0..100 by 14, parallel:",
        "  pack b:",
        "    for n in 0..64 by 32:",
        "      stage 0: fma m=14 n=32 k=5",
    ]
    group = Pack("b@1", Loop("rows", 8, 1, Seq((TileOp("vector", (("lanes", 16),), 0), TileOp("vector", (), 1)))))
    assert listing(group) == [
        "pack b of stage 1:",
        "  for rows in 0..8:",
        "    stage 0: vector lanes=16",
        "    stage 1: vector",
    ]


def test_a_step_says_what_limits_it_and_what_it_moves() -> None:
    fn, args = PROGRAMS["mlp"]
    f = eqsat.optimize(fn, threads=1)
    e = f.explain(*args)
    plan = f.compile(*args).search()
    for shown, step in zip(e.steps, plan.steps, strict=True):
        chosen = step.chosen  # type: ignore[union-attr]
        assert chosen is not None
        assert shown.nest.splitlines() == listing(chosen.nest)
        assert shown.moved == dict(chosen.moved)
        assert shown.limit in {"compute", "overhead", *shown.moved}
        assert f"limited by {shown.limit}" in str(e)
    large = eqsat.optimize(lambda x: x + 1, threads=1)
    (step,) = large.explain(np.zeros(30_000_000, np.float32)).steps
    assert step.limit in {"L3", "memory"}
    assert step.moved["memory"] >= 2 * 4 * 30_000_000


def test_the_roofline_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, (fn, args) in PROGRAMS.items():
        eqsat.optimize(fn).explain(*args).plot(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    eqsat.optimize(lambda x: x.T).explain(normal(3, 4)).plot(tmp_path / "copy.svg")  # no operations
    assert "<svg" in (tmp_path / "copy.svg").read_text()


def test_without_matplotlib_plot_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    e = eqsat.optimize(lambda x: x + 1).explain(normal(3))
    with pytest.raises(ImportError, match=r"eqsat\[plot\]"):
        e.plot(tmp_path / "x.png")


def test_roofs_are_the_machines() -> None:
    one, two = roofs(DESK, 1), roofs(DESK, 2)
    assert two.flops["float32"] == 2 * one.flops["float32"] == 2e9 * DESK.peak_gflops("float32")
    assert one.bandwidth["memory"] == 28e9 and two.bandwidth["memory"] == 36e9
    assert one.attainable(1e-3) == 28e6 and one.attainable(1e6) == one.flops["float32"]


def test_json_round_trip() -> None:
    fn, args = PROGRAMS["softmax"]
    e = eqsat.optimize(fn).explain(*args)
    data = json.loads(e.to_json())
    assert data["naive"]["flops"] == e.naive.flops
    assert data["optimized"] == {"flops": e.optimized.flops, "nbytes": e.optimized.nbytes, "kernels": len(e.steps)}
    assert [s["label"] for s in data["steps"]] == [s.label for s in e.steps]
    assert data["search"]["stops"] and data["errors"][0]["ours"] <= data["errors"][0]["allowed"]
    assert data["peak_bytes"] == e.peak_bytes and "_why" not in data


def test_source_shows_the_kernels() -> None:
    fn, args = PROGRAMS["mlp"]
    f = eqsat.optimize(fn)
    source = f.source(*args)
    assert "def " in source and "eqsat_backends.numba_cpu.vectors.simd" in source
    for part in source.split("# " + "-" * 100):
        compile(part, "kernel", "exec")


def test_convolutions_name_their_algorithm_and_what_others_would_take() -> None:
    x, w = normal(1, 32, 14, 14), normal(32, 32, 3, 3)
    f = eqsat.optimize(lambda x, w: nn.conv2d(x, w, padding=1), const=("w",), check_speed=False)
    e = f.explain(x, w)
    (found,) = e.algorithms
    assert found.chosen == "Winograd F(2, 3)", found
    assert found.chosen not in found.others and str(found) in e.text(400)
    allowed = {name: time for name, time in found.others.items() if "approximates" not in name}
    assert {"implicit GEMM", "im2col, stored"} <= {name.partition(", channels")[0] for name in (found.chosen, *allowed)}
    assert all(time >= found.seconds * 0.999 for time in allowed.values()), "of what is allowed the best was chosen"
    assert any(name.startswith("Winograd F(4, 3)") for name in found.others), "quicker, and not allowed"


def test_algorithms_are_those_that_schedules_decided_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may be the program as written, where selection expected more of another one."""

    def written(region: Any, egraph: Any, rules: Any, select: Any, *_: Any) -> Any:
        return as_written(region, rules, select)

    monkeypatch.setattr("eqsat.search.decide", written)
    monkeypatch.setattr("eqsat.why.decide", written)
    x, w = normal(1, 32, 14, 14), normal(32, 32, 3, 3)
    f = eqsat.optimize(lambda x, w: nn.conv2d(x, w, padding=1), const=("w",), check_speed=False, cache=False)
    (found,) = f.explain(x, w).algorithms
    assert found.chosen in ("implicit GEMM", "im2col, stored")
    assert found.others["Winograd F(2, 3)"] < found.seconds


@pytest.mark.parametrize("groups", [1, 32])
def test_convolutions_without_windows_or_across_channels_have_other_names(groups: int) -> None:
    x, w = normal(1, 32, 6, 6), normal(32, 32 // groups, *((1, 1) if groups == 1 else (3, 3)))
    f = eqsat.optimize(lambda x, w: nn.conv2d(x, w, groups=groups), const=("w",), check_speed=False)
    assert [found.chosen for found in f.explain(x, w).algorithms] == ["matrix product" if groups == 1 else "direct"]


def test_products_that_are_no_convolutions_have_no_algorithm() -> None:
    fn = eqsat.optimize(lambda x, w: (x @ w)[:, None] + np.zeros((3, 4)), const=("w",), check_speed=False)
    assert not fn.explain(normal(8, 16), normal(16, 4)).algorithms


def test_why() -> None:
    def fn(x: Any, y: Any, u: Any, v: Any) -> Any:
        return (x @ y) @ u + np.maximum(v, 0)

    args = normal(40, 30), normal(30, 50), normal(50, 2), normal(40, 2)
    f = eqsat.optimize(fn, disable="neg_neg")
    e = f.explain(*args)
    assert "it is in the program" in e.why("contract_associates")
    assert "matched nothing" in e.why("exp_log") or "class 'approximates'" in e.why("exp_log")
    assert "matched nothing" in e.why("tanh_exp_form")
    assert "switched off by disable=" in e.why("neg_neg")
    assert "class 'approximates'" in e.why("mul_zero")
    with pytest.raises(OptionError, match=r"contract_asociates.*did you mean 'contract_associates'"):
        e.why("contract_asociates")


def test_why_a_rule_lost_on_cost() -> None:
    fn, args = PROGRAMS["softmax"]
    f = eqsat.optimize(fn)
    search = f.compile(*args).report["search"]
    fired = [rule for rule, counts in search["matches"].items() if counts["fired"] and rule not in search["rules"]]
    said = [f.explain(*args).why(rule) for rule in fired]
    assert said and all("fired" in text for text in said)
    assert any("lost on cost" in text and "µs against" in text and "+" in text for text in said), said


def test_why_counts_loop_rules() -> None:
    args = normal(200, 300), normal(300, 200)
    f = eqsat.optimize(np.matmul, threads=1)
    counts = f.compile(*args).report["search"]["loop_matches"]
    assert counts["loop.tile"] > counts["loop.tensorize"] > 0
    assert f"matched {counts['loop.tile']} times" in f.explain(*args).why("loop.tile")
    assert counts["loop.fuse"] == 0
    without = eqsat.optimize(np.matmul, threads=1, disable="loop.pack")
    assert "loop.pack" not in without.compile(*args).report["search"]["loop_matches"]


def test_peeling_is_a_rule_as_others_are() -> None:
    args = (normal(60, 500),)
    f = eqsat.optimize(lambda x: np.pad(x, 2) * 3, threads=1)
    counts = f.compile(*args).report["search"]["loop_matches"]
    assert counts["loop.peel"] > 0
    assert f"matched {counts['loop.peel']} times" in f.explain(*args).why("loop.peel")
    assert "peeled at guards" in one_line(f.explain(*args))
    without = eqsat.optimize(lambda x: np.pad(x, 2) * 3, threads=1, disable="loop.peel")
    assert "peeled" not in str(without.explain(*args))
    assert without.source(*args).count("for p") == 2 < f.source(*args).count("for p")


def test_why_a_guard_failed() -> None:
    a, _ = eqsat.rules.tensors("a b")

    def never(m: Any) -> bool:
        """the moon is full"""
        return False

    rule = eqsat.rewrite(np.tanh(a), a, id="test.guarded", where=never)
    eqsat.rules.add(rule, check=False)
    try:
        said = eqsat.optimize(lambda x: np.tanh(x) + 1).explain(normal(3)).why("test.guarded")
    finally:
        eqsat.rules.remove("test.guarded")
    assert "guard failed" in said and "the moon is full" in said


# Progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_silent_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress() as shown:
        shown.start -= 10
        shown("working")
    eqsat.optimize(lambda x: x * 3 + 2)(normal(3))
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_progress_shows_on_a_terminal_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as shown:
        shown("too early")
        assert shown.shown is None
        shown.start -= 10
        shown("verify")
        (task,) = shown.shown.tasks  # type: ignore[attr-defined]
        assert (task.description, task.total) == ("eqsat: verify", None)
        tell("compile: kernel", 3, 12)
        assert (task.description, task.completed, task.total) == ("eqsat: compile: kernel 4 of 12", 3, 12)
        tell("verify")
        assert task.total is None
    assert "verify" in terminal.getvalue()
    tell("nobody compiles now")


def test_progress_counts_what_is_done(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "eqsat")
    eqsat.optimize(lambda x, w: (np.exp(x @ w) @ x, np.sort(x, axis=0) @ w + 1), cache=False)(
        normal(60, 70), normal(70, 60)
    )
    told = [record.getMessage() for record in caplog.records]
    assert "search: region 1 of 1" in told
    for stage in ("search: schedule of kernel", "compile: kernel"):
        counts = [
            tuple(map(int, found.groups()))
            for text in told
            if (found := re.fullmatch(stage + r" (\d+) of (\d+)", text))
        ]
        assert counts and counts == [(n + 1, len(counts)) for n in range(len(counts))]


def test_a_notebook_without_widgets_is_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    assert progress._bar() is None
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: object())
    bar = progress._bar()
    assert bar is not None
    bar.stop()


def test_loggers_of_libraries_are_held_at_warning() -> None:
    code = (
        "import logging, sys, numpy as np; logging.basicConfig(level=logging.DEBUG, stream=sys.stdout); import eqsat; "
        "eqsat.optimize(lambda x: x * 2 + 1, cache=False)(np.ones(5)); "
        "from eqsat.aside import quieten; logging.getLogger('chatty').setLevel(logging.INFO); quieten('chatty'); "
        "assert logging.getLogger('chatty').level == logging.INFO"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(re.findall(r"^[A-Z]+:(\w+)", run.stdout, re.MULTILINE)) == {"eqsat"}


def test_importing_eqsat_imports_no_rich() -> None:
    code = "import sys, eqsat; print([m for m in ('rich', 'numpy', 'egglog', 'numba') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
    code = (
        "import sys, numpy as np, eqsat; f = eqsat.optimize(lambda x: x + 1); f(np.ones(3)); assert 'rich' not in "
        "sys.modules; report = f.explain(np.ones(3)); assert 'rich' not in sys.modules; str(report)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_of_programs_with_steps_through_the_reference() -> None:
    def fn(x: Any) -> Any:
        y = np.sort(np.exp(x), axis=-1)
        z = np.sort(np.tanh(y), axis=0)
        return np.sort(z * 2, axis=0) + y.sum()

    x = normal(64, 64)
    f = eqsat.optimize(fn)
    np.testing.assert_allclose(f(x), fn(x), rtol=1e-4, atol=1e-3)
    e = f.explain(x)
    assert 64 * 64 * 4 * 2 <= e.peak_bytes <= e.naive_peak_bytes + 64 * len(e.steps)  # whole cache lines
    assert {"kernel", "reference"} == {step.kind for step in e.steps}


def test_the_numpy_backend_is_not_told_to_lack_a_kernel() -> None:
    f = eqsat.optimize(lambda x: np.tanh(x) + 1, backend="numpy")
    text = str(f.explain(normal(3)))
    assert "by the NumPy backend" in text and "no kernel" not in text

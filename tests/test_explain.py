"""What ``explain`` says is true: work and memory on cases done by hand, rules, steps, times, JSON."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.errors import OptionError
from eqsat.explain.nests import listing
from eqsat.explain.roofline import roofs
from eqsat.explain.work import group_bytes, kernel_flops, naive_peak, naive_work
from eqsat.frontends.trace import trace
from eqsat.ir.nest import Loop, Pack, Seq, TileOp
from eqsat.ir.node import Graph
from eqsat.progress import Progress
from tests.kernel_groups import DESK

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
    assert "peeled at guards" in str(f.explain(*args))
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
    with Progress() as progress:
        progress.start -= 10
        progress("working")
    eqsat.optimize(lambda x: x * 3 + 2)(normal(3))
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_progress_shows_on_a_terminal_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        progress("too early")
        assert progress.status is None
        progress.start -= 10
        progress("searching")
        assert progress.status is not None
        progress("compiling")
    assert "searching" in terminal.getvalue() or "compiling" in terminal.getvalue()


def test_memory_of_programs_with_steps_through_the_reference() -> None:
    def fn(x: Any) -> Any:
        y = np.sort(np.exp(x), axis=-1)
        z = np.sort(np.tanh(y), axis=0)
        return np.cumsum(z * 2, axis=0) + y.sum()

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

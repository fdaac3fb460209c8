"""The machine's figures under noise, on a clock and a computer made up for the purpose."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from llvmlite import binding as llvm
from llvmlite import ir

from eqsat.cost.machine import Machine
from eqsat.cost.sampling import Timer, Varying
from eqsat.cost.sanity import failed_checks
from eqsat_backends.numba_cpu.compiling.objects import host, optimize, target_machine
from eqsat_backends.numba_cpu.probes import probe_code
from eqsat_backends.numba_cpu.probes import timers as probes
from eqsat_backends.numba_cpu.probes.timers import Sizes
from eqsat_backends.numba_cpu.vectors.elementwise import FUNCTIONS
from eqsat_backends.numba_cpu.vectors.lanes import native_lanes

CORES = 4
SIZES: list[Sizes] = [("L1", 32 << 10, False, 1, 4), ("L2", 1 << 20, False, 1, 4), ("memory", 0, True, 1, 4)]
SECONDS = {
    "fma4": 33e-6,
    "fma8": 33e-6,
    "chain4": 20e-6,
    "broadcast": 10e-6,
    "call": 0.2e-6,
    "one step": 0.15e-6,
    "steps": 0.75e-6,
    "one share": 1e-6,
    "shares": 50e-6,
    "launch": 3.05e-6,
    "rested step": 1.1e-6,
    "rested launch": 21.1e-6,
    "barriers": 63.81e-6,
    "neg": 0.4e-6,
}
WORK = {"fma4": 3.84e6, "fma8": 1.92e6, "chain4": 1e4, "broadcast": 4e4}
LINES = {"scattered memory": 6e-9, "in order memory": 2.2e-9}
PANELS = {0: 15.0, 1024: 19.0, 2048: 20.0, 6144: 18.0}
GBS = {"read L1": 200.0, "copy L1": 220.0, "read L2": 100.0, "copy L2": 90.0, "read memory": 20.0, "copy memory": 18.0}


class Computer:
    """A clock that runs advance: by what they cost, plus what ``disturb`` adds to a run of that many seconds."""

    def __init__(self, disturb: Callable[[str, float], float] = lambda name, seconds: 0.0) -> None:
        self.now, self.disturb = 0.0, disturb

    def clock(self) -> float:
        return self.now

    def timer(self, name: str, seconds: float, work: float = 0.0, kind: type[Timer] = Timer) -> Timer:
        def run() -> None:
            self.now += max(seconds + self.disturb(name, seconds), 0.0)

        return kind(run, work, self.clock)

    def measure(self) -> Machine:
        timers = {name: self.timer(name, seconds, WORK.get(name, 0.0)) for name, seconds in SECONDS.items()}
        for name, rate in GBS.items():
            for threads in (1, CORES):
                timers[f"{name} {threads}"] = self.timer(f"{name} {threads}", 1e-3, rate * threads * 1e6)
        timers |= {name: self.timer(name, seconds * 1e4, 1e4) for name, seconds in LINES.items()}
        timers["evict"] = self.timer("evict", 1e-4, 0.0, Varying)
        for rows, (ahead, rate) in itertools.product(probe_code.panel_sizes(), PANELS.items()):
            name = f"panels {rows} {ahead}"
            timers[name] = self.timer(name, 1e-4, (rate + rows) * 1e5, Varying)
        timers |= {name: self.timer(name, 1e-6 + 0.1e-6 * n) for n, name in enumerate(probes.FUNCTIONS)}
        return probes.figures(timers, SIZES, CORES, 2.0, self.clock)


def preempted(seed: int, slice_s: float, share: float) -> Callable[[str, float], float]:
    """Another program takes the processor for ``slice_s`` at a time, ``share`` of the time; jitter on top."""
    rngs: dict[str, Random] = {}  # of each figure, lest one more changes the luck of all others

    def disturb(name: str, seconds: float) -> float:
        rng = rngs.setdefault(name, Random(f"{seed} {name}"))
        chance = seconds * share / (1 - share) / slice_s
        times = int(chance) + (rng.random() < chance % 1)
        return sum(rng.expovariate(1 / slice_s) for _ in range(times)) + seconds * rng.random() * 0.01

    return disturb


QUIET = Computer().measure()


def test_a_quiet_machine_is_measured_exactly_and_soon() -> None:
    computer = Computer()
    model = computer.measure()
    assert computer.now < 1.0
    assert failed_checks(model) == []
    assert dict(model.fma_gflops)["float32"] == pytest.approx(3.84e6 / 33e-6 / 1e9)
    assert model.step_us == pytest.approx(0.6 / 199)
    assert model.launch_us == pytest.approx(2.05)
    assert model.wake_us == pytest.approx(20.0)
    assert (model.fma_latency_ns, model.broadcast_gs) == (pytest.approx(2.0), pytest.approx(4.0))
    assert model.barrier_us == pytest.approx(0.24)
    assert model.level("L2").copy_gbs_all == pytest.approx(360.0)
    assert [level.scattered_ns for level in model.levels] == [0, 0, 4.0]  # in halves
    measured = {(rows, ahead): rate for rows, ahead, rate in model.panels_gbs}
    assert (measured[2, 0], measured[4, 2048]) == (pytest.approx(17.0), pytest.approx(24.0))
    seconds = 0.6e-6 + 0.1e-6 * probes.FUNCTIONS.index("sqrt")
    assert dict(model.function_ns)["sqrt"] == pytest.approx(1e9 * seconds / probe_code.ELEMENTS)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("slice_s", "share"), [(4e-3, 0.5), (3e-4, 0.3), (20e-3, 0.7)])
def test_other_programs_hardly_show(seed: int, slice_s: float, share: float) -> None:
    """Where their slices are as short as a sample, four that were disturbed may agree by chance."""
    model = Computer(preempted(seed, slice_s, share)).measure()
    assert failed_checks(model) == []
    for name in ("call_us", "step_us", "launch_us", "wake_us", "barrier_us"):
        assert getattr(model, name) == pytest.approx(getattr(QUIET, name), rel=0.1, abs=2e-4)
    assert dict(model.fma_gflops) == pytest.approx(dict(QUIET.fma_gflops), rel=0.05)
    for got, want in zip(model.levels, QUIET.levels, strict=True):
        assert got.read_gbs == pytest.approx(want.read_gbs, rel=0.1 if slice_s > 1e-3 else 0.25)
        assert got.copy_gbs_all == pytest.approx(want.copy_gbs_all, rel=0.1 if slice_s > 1e-3 else 0.25)
    for panel, same in zip(model.panels_gbs, QUIET.panels_gbs, strict=True):
        assert panel == (*same[:2], pytest.approx(same[2], rel=0.03))


def test_what_cannot_be_true_is_measured_again() -> None:
    """Half a second of trouble, longer than it takes to settle: barriers a hundredfold, the float64 peak half."""
    computer = Computer(lambda name, seconds: 0.0)

    def trouble(name: str, seconds: float) -> float:
        if computer.now > 0.5:
            return 0.0
        return {"barriers": 99 * seconds, "fma8": seconds, "launch": 1 - seconds}.get(name, 0.0)

    computer.disturb = lambda name, seconds: min(trouble(name, seconds), 0.1)
    model = computer.measure()
    assert failed_checks(model) == []
    assert model.barrier_us == pytest.approx(QUIET.barrier_us)
    assert dict(model.fma_gflops) == pytest.approx(dict(QUIET.fma_gflops))


def test_times_that_are_too_short_are_forgotten() -> None:
    """While another call has the threads, starting them seems to cost nothing: no minimum may keep that."""
    computer = Computer()
    computer.disturb = lambda name, seconds: -2.05e-6 if name == "launch" and computer.now < 0.1 else 0.0
    assert computer.measure().launch_us == pytest.approx(QUIET.launch_us)


def test_trouble_without_end_ends() -> None:
    """Negative control: what stays impossible is reported as it was seen, in bounded time."""
    computer = Computer(lambda name, seconds: 0.01 if name in ("barriers", "steps") else 0.0)
    model = computer.measure()
    assert {check.figure for check in failed_checks(model)} == {"barrier_us", "step_us"}
    assert computer.now < 5.0


def test_a_figure_is_settled_when_it_comes_back() -> None:
    times = itertools.chain([9e-3, 7e-3, 5e-3, 1e-3, 4e-3, 1e-3, 3e-3, 1e-3], itertools.repeat(1.01e-3))
    now = [0.0]

    def run() -> None:
        now[0] += next(times)

    timer = Timer(run, clock=lambda: now[0])
    seen = []
    while not timer.settled:
        timer.sample()
        seen.append(timer.best)
    assert seen[-1] == pytest.approx(1e-3)
    assert len(seen) >= 4
    timer.forget()
    assert not timer.settled


def test_probed_functions_are_the_functions() -> None:
    """What is timed computes what it is named for."""
    names = ("neg", *probes.FUNCTIONS)
    x = np.linspace(0.1, 4.0, probe_code.ELEMENTS, dtype=np.float32)
    wide = x.astype(np.float64)
    want = {
        "neg": -wide, "div": wide / wide, "sqrt": np.sqrt(wide), "exp": np.exp(wide), "log": np.log(wide),
        "tanh": np.tanh(wide), "sigmoid": 1 / (1 + np.exp(-wide)), "sin": np.sin(wide), "pow": wide**wide,
    }  # fmt: skip
    for name, address in probe_code.functions(names).items():
        assert name in FUNCTIONS
        y = np.zeros_like(x)
        program = probes._program([address], (x, y))
        assert program(()) == 0
        if name in want:
            np.testing.assert_allclose(y, want[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("way", ["plain", "prefetch"])
def test_probed_tiles_are_register_tiles(way: str) -> None:
    """Each sum is of its row of the first factor and its column of the panels, from the place asked for on; requests,
    of memory that is not there, change none."""
    lanes, steps = native_lanes(32), probe_code.PANEL_DEPTH + 7
    for rows, vectors in probe_code.panel_sizes().items():
        width, apart = vectors * lanes, probe_code.PANEL_APART // 4
        numbers = np.random.default_rng(rows)
        a = numbers.standard_normal(rows * (apart + width)).astype(np.float32)
        b = numbers.standard_normal((3 + steps, width)).astype(np.float32)
        first = np.stack([a[i * apart :][: probe_code.PANEL_DEPTH] for i in range(rows)]).astype(np.float64)
        want = first[:, np.arange(steps) % probe_code.PANEL_DEPTH] @ b[3:].astype(np.float64)
        parameters = np.array([steps, 3 * 4 * width, 1 << 40], np.int64)
        assert probes._program([probe_code.panels()[f"{way}{rows}"]], (a, b, parameters))(()) == 0
        np.testing.assert_allclose(a[rows * apart :].reshape(rows, width), want, rtol=1e-4, atol=1e-3)


def test_tiles_that_read_panels_take_the_next_part_of_memory_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all but the first find it in a cache."""
    runs: list[tuple[int, ...]] = []

    def recorded(steps: list[int], slots: tuple[np.ndarray, ...]) -> Callable[[object], None]:
        return lambda arguments: runs.append(tuple(slots[2]))

    monkeypatch.setattr(probes, "_program", recorded)
    nbytes = 64 << 10
    timers = probes._panel_timers([("memory", 0, True, nbytes, nbytes)], np.ones(nbytes, np.uint8))
    part, each = nbytes // probes._PARTS // 64 * 64, 0
    runs.clear()
    seen: dict[str, set[int]] = {name: set() for name in timers}
    for _ in range(probes._PARTS):
        for name, timer in timers.items():
            each = len(runs)
            timer.run()
            seen[name] |= {before for _, before, _ in runs[each:]}
            steps, _, ahead = runs[-1]
            if name != "evict":
                _, rows, distance = name.split(" ")
                assert len(runs) == each + 1 and ahead == int(distance)
                assert steps == part // (4 * native_lanes(32) * probe_code.panel_sizes()[int(rows)])
    places = [before for _, before, _ in runs]
    assert all((b - a) % (probes._PARTS * part) == part for a, b in itertools.pairwise(places))
    assert set(map(len, seen.values())) == {probes._PARTS}, "each comes to every part, so that none has better ones"
    assert list(timers) == ["evict", *(f"panels {m} {n}" for m in probe_code.panel_sizes() for n in PANELS)]


def test_what_is_read_is_read_by_the_loop_as_written() -> None:
    """Unrolled by LLVM it had more addresses than Zen 5's prefetchers follow, and half of L2's bandwidth."""
    module = ir.Module()
    module.triple = host().triple
    probe_code._stream(module, "read")
    optimized = llvm.parse_assembly(str(module))
    optimize(optimized, target_machine(), as_written=True)
    loads = re.findall(rf"load <{native_lanes(32)} x i32>", str(optimized))
    assert len(loads) == probe_code.STREAMED

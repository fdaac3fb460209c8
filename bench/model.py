"""The cost model against the clock: many legal nests of each kernel, predicted and measured.

For each kernel group of a compiled program, nests are drawn at random from its e-graph, printed, compiled, checked
against the chosen one's result, and timed in turn. Nests that are printed alike are one program, which counts once,
with the least of their predictions: how many are left says how much of a nest is obeyed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import eqsat
from bench.attention import attention
from bench.fused import gelu_tanh, layer_norm, linear_gelu, softmax
from bench.gemm import matmul
from bench.measure import Time, interleaved, loop
from bench.setup import inputs_of
from bench.workload import Array, Workload, made_of, normal
from eqsat.compiled import Compiled
from eqsat.cost.machine import Machine
from eqsat.cost.target import Target
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Nest, show
from eqsat.plan.backend import backend
from eqsat.plan.plan import KernelStep
from eqsat.schedule import schedule
from eqsat.schedule.sample import sample
from eqsat.tune import alone

SUITE = "model"
NESTS = 50
"""Drawn of each kernel group, besides the chosen one."""
ROUNDS, QUICK = 7, 3
"""Turns of every program, and with ``--quick``."""
TURN_S = 4e-3
BATCH_S = 2e-4
"""Seconds of a turn, after a warm-up, and of the batches in it that are timed, whose least time counts: other programs
on the machine interrupt long ones."""
FINALISTS = 6
"""Programs, with the chosen one, that are timed again for the regret: the least of many noisy times is too low."""


def transpose(x: Array) -> Array:
    return np.copy(x.T)


def sum_of(axis: int) -> Callable[[Array], Array]:
    return lambda x: x.sum(axis=axis)


def project_and_norm(x: Array, w: Array, scale: Array, shift: Array) -> Array:
    return layer_norm(x @ w, scale, shift)


def workloads() -> list[Workload]:
    """Small enough for hundreds of programs to be timed in a minute."""
    found: list[Workload] = []

    def row(name: str, function: Callable[..., Any], *const: str, **makers: Callable[..., Any]) -> None:
        found.append(Workload(SUITE, name, "", function, made_of(**makers), 0.0, const))

    def product(name: str, m: int, k: int, n: int, *batch: int, const: tuple[str, ...] = ()) -> None:
        row(name, matmul, *const, a=normal(*batch, m, k), b=normal(*batch, k, n))

    product("square 512x512x512", 512, 512, 512)
    product("one row 1x1024x1024", 1, 1024, 1024)
    product("thin 8x2048x1024", 8, 2048, 1024)
    product("tall 4096x64x64", 4096, 64, 64)
    product("deep 64x4096x64", 64, 4096, 64)
    product("odd 255x511x129", 255, 511, 129)
    product("known 128x512x384", 128, 512, 384, const=("b",))
    product("batched 16x64x256x64", 64, 256, 64, 16)
    width = {"scale": normal(512), "shift": normal(512)}
    row("softmax 512x512", softmax, x=normal(512, 512))
    row("layer norm 512x512", layer_norm, x=normal(512, 512), **width)
    row("attention 4x128x64", attention, q=normal(4, 128, 64), k=normal(4, 128, 64), v=normal(4, 128, 64))
    row("linear+gelu 64x256x512", linear_gelu, x=normal(64, 256), w=normal(256, 512, scale=0.06), b=normal(512))
    row("linear+norm 128x256x512", project_and_norm, x=normal(128, 256), w=normal(256, 512), **width)
    row("gelu tanh 256K", gelu_tanh, x=normal(1 << 18))
    row("transpose 512x768", transpose, x=normal(512, 768))
    for axis in range(3):
        row(f"sum 64x96x128 axis {axis}", sum_of(axis), x=normal(64, 96, 128))
    return found


@dataclass(frozen=True)
class Program:
    """What nests that are printed alike are compiled to; times in milliseconds, ``nest`` one of them."""

    nest: str
    nests: int
    predicted_ms: float
    minimum_ms: float
    median_ms: float


@dataclass(frozen=True)
class Agreement:
    """A kernel group's programs, of which ``programs[0]`` is the chosen one, and the times of the finalists.

    ``refused``: nests that no kernel was made of. ``wrong``: of other results than the chosen one.
    """

    name: str
    nests: int
    programs: tuple[Program, ...]
    refused: tuple[str, ...]
    wrong: tuple[str, ...]
    chosen_ms: float
    best_ms: float
    best: str

    @property
    def correlation(self) -> float | None:
        """Spearman's, of predicted and measured times; None of fewer than three programs, or of equal predictions."""
        predicted = [p.predicted_ms for p in self.programs]
        measured = [p.minimum_ms for p in self.programs]
        return rank_correlation(predicted, measured)

    @property
    def regret(self) -> float | None:
        """By how much of the best time the chosen nest is slower than the best; None where there is no other."""
        return self.chosen_ms / self.best_ms - 1 if len(self.programs) > 1 else None

    def record(self) -> dict[str, Any]:
        """As in the JSON report."""
        made = asdict(self)
        return {**made, "distinct": len(self.programs), "rank_correlation": self.correlation, "regret": self.regret}


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Spearman's ρ, equal values having the mean of their ranks; None where it is undefined, or of fewer than three."""
    if len(predicted) < 3 or len(set(predicted)) == 1 or len(set(measured)) == 1:
        return None
    return float(spearmanr(predicted, measured).statistic)


def summary(found: Sequence[Agreement]) -> dict[str, Any]:
    """Over the kernels: medians, and the worst regret, of those for which they are defined."""
    correlations = [a.correlation for a in found if a.correlation is not None]
    regrets = [a.regret for a in found if a.regret is not None]
    return {
        "kernels": len(found),
        "median_rank_correlation": statistics.median(correlations) if correlations else None,
        "median_regret": statistics.median(regrets) if regrets else None,
        "worst_regret": max(regrets, default=None),
    }


def agreements(name: str, threads: int, nests: int, rounds: int) -> list[Agreement]:
    """Of each kernel group of the workload ``name``, on so many threads. To be called in a process of its own."""
    (workload,) = (w for w in workloads() if w.name == name)
    arguments = tuple(inputs_of(workload).values())
    optimized = eqsat.optimize(workload.function, threads=threads, const=workload.const, check_speed=False)
    compiled = optimized.compile(*arguments)
    assert isinstance(compiled, Compiled), str(compiled)
    target = backend(compiled.options.backend).target(compiled.machine, threads)
    groups = list(dict.fromkeys(step.group for step in compiled.search().steps if isinstance(step, KernelStep)))
    return [
        agreement(
            name if len(groups) == 1 else f"{name} ({number} of {len(groups)})",
            drawn(group, target, nests),
            partial(programs, group, compiled.machine, threads, compiled.options.backend),
            rounds,
        )
        for number, group in enumerate(groups, 1)
    ]


def drawn(group: KernelGroup, target: Target, count: int) -> list[tuple[Nest, float]]:
    """The chosen nest, and up to ``count`` random ones, with their predicted seconds."""
    choice = schedule(group, target)
    others = sample(group, target, count)
    return [(choice.nest, choice.predicted_seconds), *((nest, s) for nest, s in others if nest != choice.nest)]


Run = Callable[[], Sequence[np.ndarray]]


def programs(
    group: KernelGroup, machine: Machine, threads: int, backend_name: str, nests: Sequence[Nest]
) -> list[tuple[str, Run | None]]:
    """Of each nest, what names its printed source, and a call on random operands; None where no kernel was made."""
    plan, const, arrays = alone(group, nests)
    made = backend(backend_name)
    emitted = made.emit(plan, machine)
    known: dict[str, Run] = {}
    found: list[tuple[str, Run | None]] = []
    for number, kind in enumerate(emitted["kinds"]):
        if kind != "kernel":
            found.append(("", None))
            continue
        (step,) = (s for s in emitted["steps"] if s["of"] == number)
        key = f"{step['kernel']} {step['packs']}"
        if key not in known:
            known[key] = partial(made.load({**emitted, "steps": [step]}, const, threads), arrays)
        found.append((key, known[key]))
    return found


def agreement(
    name: str,
    nests: Sequence[tuple[Nest, float]],
    made: Callable[[Sequence[Nest]], Sequence[tuple[str, Run | None]]],
    rounds: int,
) -> Agreement:
    """Of one kernel group: ``nests`` with predicted seconds, the chosen one first, and what makes programs of them."""
    alike: dict[str, list[tuple[str, float]]] = {}
    runs: dict[str, Run] = {}
    refused, wrong = [], []
    for (nest, seconds), (key, run) in zip(nests, made([nest for nest, _ in nests]), strict=True):
        if run is None:
            refused.append(show(nest))
            continue
        alike.setdefault(key, []).append((show(nest), seconds))
        runs[key] = run
    chosen = next(iter(runs), None)
    if chosen is None or alike[chosen][0][0] != show(nests[0][0]):
        raise RuntimeError(f"no kernel was made of the chosen nest {show(nests[0][0])}")
    expected = [np.array(a) for a in runs[chosen]()]
    for key in [*runs]:
        if not all(map(same, runs[key](), expected)):
            wrong.append(alike[key][0][0])
            del runs[key]

    def timed(keys: Sequence[str], rounds: int) -> dict[str, Time]:
        return interleaved({key: partial(quickest, runs[key]) for key in keys}, rounds=rounds)[0]

    times = timed([*runs], rounds)
    final = timed(sorted(runs, key=lambda key: (key != chosen, times[key].minimum))[:FINALISTS], 3 * rounds)
    best = min(final, key=lambda key: final[key].minimum)
    return Agreement(
        name,
        len(nests),
        tuple(
            Program(alike[key][0][0], len(alike[key]), 1e3 * min(s for _, s in alike[key]), time.minimum, time.median)
            for key, time in times.items()
        ),
        tuple(refused),
        tuple(wrong),
        final[chosen].minimum,
        final[best].minimum,
        alike[best][0][0],
    )


def quickest(run: Callable[[], Any]) -> float:
    """Seconds a call, of the quickest batch of a turn."""
    once = loop(run, BATCH_S)
    return min(loop(run, BATCH_S) for _ in range(math.ceil(TURN_S / max(once, BATCH_S))))


def same(result: np.ndarray, expected: np.ndarray) -> bool:
    """Whether they differ by the order of sums at most."""
    scale = float(np.nanmax(np.abs(expected), initial=0.0))
    return np.allclose(result, expected, rtol=1e-4, atol=1e-4 * scale, equal_nan=True)

"""The roofline of a program: operations a second against operations per byte, and what the machine allows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eqsat.aside import quieten
from eqsat.cost.machine import Machine
from eqsat.explain.work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Roofs:
    """Most operations a second by element type, and bytes a second by memory space, of a number of threads."""

    flops: dict[str, float]
    bandwidth: dict[str, float]

    def attainable(self, intensity: float) -> float:
        """Operations a second at so many per byte, from the farthest memory space and in the fastest type."""
        return min(max(self.flops.values()), intensity * list(self.bandwidth.values())[-1])


class Ran(Protocol):
    """A step that was run: its work, and seconds predicted and measured."""

    label: str
    flops: float
    nbytes: float
    predicted: float
    measured: float | None


def roofs(machine: Machine, threads: int) -> Roofs:
    """The measured limits of ``threads`` threads of a machine."""
    flops = {dtype: 1e9 * machine.peak_gflops(dtype, threads) for dtype, _ in machine.fma_gflops}
    bandwidth = {
        level.name: 1e9 * (level.read_gbs if threads == 1 else min(threads * level.read_gbs, level.read_gbs_all))
        for level in machine.levels
    }
    return Roofs(flops, bandwidth)


def draw(
    path: str | os.PathLike[str], title: str, operators: Sequence[Work], steps: Sequence[Ran], limits: Roofs
) -> None:
    """Draw ``operators`` (as written) and ``steps`` (as run) under ``limits`` to the file ``path``.

    Raises ``ImportError`` where matplotlib is not installed.
    """
    quieten("matplotlib")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib. Fix: pip install 'eqsat[plot]'") from error
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    before = [(w.flops / w.nbytes, limits.attainable(w.flops / w.nbytes)) for w in operators if w.flops and w.nbytes]
    ran = [(s, s.measured or s.predicted) for s in steps if s.flops and s.nbytes]
    after = [(s.flops / s.nbytes, s.flops / seconds) for s, seconds in ran if seconds > 0]
    _roofs(axes, limits, [x for x, _ in before + after])
    if before:
        xs, ys = [x for x, _ in before], [y for _, y in before]
        axes.scatter(xs, ys, facecolors="none", edgecolors="C7", label="operators as written")
    if after:
        total = sum(seconds for _, seconds in ran)
        sizes = [20 + 400 * seconds / total for _, seconds in ran if seconds > 0]
        xs, ys = [x for x, _ in after], [y for _, y in after]
        axes.scatter(xs, ys, s=sizes, alpha=0.7, color="C3", label="kernels as run")
        for number, ((x, y), (step, _)) in enumerate(zip(after, ran, strict=False)):
            axes.annotate(f"{number} {step.label[:40]}", (x, y), xytext=(6, -3), textcoords="offset points", fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="operations per second")
    axes.set_title(title if len(title) < 100 else title[:97] + "...", fontsize=9)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path)


def _roofs(axes: Axes, limits: Roofs, intensities: Sequence[float]) -> None:
    """One slope for each memory space up to the highest roof, one level for each element type."""
    top = max(limits.flops.values())
    left = min([*intensities, 0.1]) / 2
    right = max([*intensities, top / list(limits.bandwidth.values())[-1]]) * 4
    for name, rate in limits.bandwidth.items():
        axes.plot(
            [left, max(left, top / rate)],
            [left * rate, max(left * rate, top)],
            lw=1,
            label=f"{name} {rate / 1e9:.0f} GB/s",
        )
    for dtype, peak in limits.flops.items():
        axes.plot([left, right], [peak, peak], lw=1, ls="--", color="k")
        axes.annotate(f"{dtype} {peak / 1e9:.0f} GFLOP/s", (right, peak), ha="right", va="bottom", fontsize=7)

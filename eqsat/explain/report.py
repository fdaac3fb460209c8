"""What was chosen and why: the program before and after, step by step, and the rules that made it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from eqsat.explain.nests import limits, listing, part_needed
from eqsat.explain.roofline import Roofs, draw
from eqsat.explain.work import Work, group_bytes, kernel_flops, reference_bytes, reference_flops
from eqsat.plan.plan import KernelStep, Plan, trips_of


@dataclass
class StepReport:
    """One step: what it computes, its loop nest, work, and times in seconds (measured: median, alone).

    ``kind``: ``kernel``; ``stages``, a group run as one kernel per stage because none could be generated for
    the whole; ``reference``, through NumPy for want of a kernel; ``opaque``, by the library whose function it is;
    ``numpy``, by that backend.
    ``nest``: its loops as text. ``moved``: bytes that the busiest thread is predicted to move from each memory space,
    and ``limit``, what takes most of the time: "compute", a memory space, or "overhead" (starting it, and barriers).
    ``tuned``: seconds that the nest took when tuning timed it, for which it was chosen; None where the model chose.
    ``trips``: how often it runs in a call, in a loop; work and times are of all, ``moved`` and ``tuned`` of one.
    """

    label: str
    kind: str
    nest: str
    flops: float
    nbytes: float
    predicted: float
    measured: float | None = None
    moved: Mapping[str, float] = field(default_factory=dict)
    limit: str = ""
    tuned: float | None = None
    trips: int = 1


def step_reports(plan: Plan, kinds: Sequence[str]) -> list[StepReport]:
    """One report per step of a plan, without measurements; ``kinds`` says how each is run."""
    out = []
    for step, kind, trips in zip(plan.steps, kinds, trips_of(len(plan.steps), plan.repeats), strict=True):
        if isinstance(step, KernelStep):
            flops = sum(kernel_flops(s.kernel) * part_needed(step.group, s) for s in step.group.stages)
            nbytes = trips * group_bytes(step.group)
            report = StepReport(step.label, kind, "", trips * flops, nbytes, trips * step.seconds, trips=trips)
            if step.chosen is not None and kind == "kernel":
                lines = [*listing(step.chosen.nest), *limits(step.group)]
                nest, moved = "\n".join(lines), dict(step.chosen.moved)
                report = replace(report, nest=nest, moved=moved, limit=step.chosen.limit, tuned=step.chosen.measured)
            out.append(report)
        else:
            flops, nbytes = trips * reference_flops(step), trips * reference_bytes(step)
            out.append(StepReport(step.label, kind, "", flops, nbytes, trips * step.seconds, trips=trips))
    return out


@dataclass
class Explanation:
    """How a function is run for one set of argument types. ``print`` it, ask ``why(rule)``, or take ``to_json()``.

    ``peak_bytes``: memory for intermediates, scratch and results; inputs and constants are not in it, nor in
    ``naive_peak_bytes``, which is what the program takes that stores every operator's result until its last use.
    ``operators``: work of each operator as written; ``roofs``: limits of the threads that run it (see :meth:`plot`).
    ``guards``: what holds in the calls that the program is for, besides their arguments' types.
    ``plain``: why NumPy runs the function, which then has no steps and no times; None where kernels do.
    """

    function: str
    signature: str
    naive: Work
    steps: list[StepReport]
    peak_bytes: int
    naive_peak_bytes: int
    search: Mapping[str, Any]
    errors: list[Mapping[str, float]]
    compile_seconds: float
    measured: float | None
    cached: bool
    threads: int
    plain: str | None = None
    operators: Sequence[Work] = ()
    roofs: Roofs | None = None
    guards: Sequence[str] = ()
    _why: Callable[[str], str] | None = field(default=None, repr=False)

    @property
    def optimized(self) -> Work:
        flops, nbytes = sum(s.flops for s in self.steps), sum(s.nbytes for s in self.steps)
        return Work(flops, nbytes, sum(s.trips for s in self.steps))

    @property
    def predicted(self) -> float:
        return sum(s.predicted for s in self.steps)

    def why(self, rule: str) -> str:
        """What became of a rule: how often it fired, which guard refused it, or by how much it lost on cost.

        Raises :class:`~eqsat.errors.OptionError` for an id that no rule has.
        """
        assert self._why is not None
        return self._why(rule)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the program's roofline to a file, of the format that its ending names (``.png``, ``.svg``, ``.pdf``).

        Hollow points are the operators as written, each at the most that its operations per byte allow; filled ones the
        steps that are run, at what they reach (measured), with an area in proportion to their time. After Williams,
        Waterman & Patterson, "Roofline" (CACM 2009). Steps without operations (copies) have no place in it.

        Raises:
            ImportError: matplotlib is not installed (extra ``plot``).
            ValueError: NumPy runs the function: there are no kernels to draw.
        """
        if self.roofs is None:
            raise ValueError(f"no kernels to draw: {self.plain}")
        draw(path, f"{self.function}({self.signature})", self.operators, self.steps, self.roofs)

    def to_json(self) -> str:
        """Everything shown, as JSON; times in seconds, sizes in bytes."""
        data = asdict(replace(self, _why=None))
        del data["_why"]
        data["optimized"] = asdict(self.optimized)
        data["predicted"] = self.predicted
        return json.dumps(data, indent=1)

    def __str__(self) -> str:
        if self.plain is not None:
            return f"{self.function}({self.signature})\n\nrun by NumPy: {self.plain}"
        before, after = self.naive, self.optimized
        lines = [
            f"{self.function}({self.signature})",
            *(f"for calls with {guard}" for guard in self.guards),
            "",
            f"{'':14}{'operators':>12}{'optimized':>12}",
            f"{'kernels':14}{before.kernels:>12}{after.kernels:>12}",
            f"{'flops':14}{_si(before.flops):>12}{_si(after.flops):>12}",
            f"{'bytes moved':14}{_si(before.nbytes):>12}{_si(after.nbytes):>12}",
            f"{'memory peak':14}{_si(self.naive_peak_bytes):>12}{_si(self.peak_bytes):>12}",
            "",
            f"time: predicted {_time(self.predicted)}"
            + (f", measured {_time(self.measured)}" if self.measured is not None else "")
            + f" on {self.threads} thread{'s' if self.threads > 1 else ''}",
            "",
            f"{'step':4} {'predicted':>10} {'measured':>10} {'flops':>8} {'bytes':>8}  what",
        ]
        for number, step in enumerate(self.steps):
            measured = "" if step.measured is None else _time(step.measured)
            through = f"  × {step.trips:,} trips" * (step.trips > 1) + _KINDS[step.kind]
            lines.append(
                f"{number:<4} {_time(step.predicted):>10} {measured:>10} {_si(step.flops):>8} "
                f"{_si(step.nbytes):>8}  {step.label}{through}"
            )
            lines += [" " * INDENT + line for line in step.nest.splitlines()]
            if step.tuned is not None:
                lines.append(f"{'':{INDENT}}{_tuned(step)}")
            if step.limit:
                moved = ", ".join(f"{_si(n)} from {space}" for space, n in step.moved.items())
                lines.append(f"{'':{INDENT}}limited by {step.limit}; bytes: {moved}")
        lines += ["", self._search_line()]
        rules = self.search.get("rules", {})
        if rules:
            lines.append("rules in it: " + ", ".join(f"{r} ×{n}" for r, n in sorted(rules.items())))
        for number, error in enumerate(self.errors):
            lines.append(
                f"output {number}: error against float64 {error['ours']:.2g}; NumPy's own {error['reference']:.2g}"
            )
        return "\n".join(lines)

    def _search_line(self) -> str:
        s = self.search
        late = f"; stopped by the clock in {s['extractions_late']}" if s["extractions_late"] else ""
        chance = "; another run may find another program, as the clock stopped this one"
        chance = chance if late or "seconds" in s["stops"] else ""
        if self.cached:
            return (
                f"search: remembered from an earlier process ({s['operators']} operators, {s['enodes']} e-nodes, "
                f"stopped by {', '.join(s['stops']) or 'nothing to search'}{chance}); "
                f"loaded in {_time(self.compile_seconds)}"
            )
        return (
            f"search: {s['operators']} operators in {s['regions']} regions ({s['distinct_regions']} distinct), "
            f"{s['enodes']} e-nodes, stopped by {', '.join(s['stops']) or 'nothing to search'}{chance}; "
            f"saturation {_time(s['saturation_seconds'])}, extraction {_time(s['extraction_seconds'])} "
            f"(gap ≤ {s['extraction_gap']:.1%}{late}), "
            f"schedules {_time(s['schedule_seconds'])} ({s['loop_terms']} loop terms); "
            f"compiled in {_time(self.compile_seconds)}"
        )


def _tuned(step: StepReport) -> str:
    predicted = (
        f"predicted {_time(step.predicted / step.trips)}" if step.limit else "not among those that the model offers"
    )
    return f"chosen by measurement: {_time(step.tuned)} when tuned, {predicted}"


INDENT = 8
"""Columns before a step's nest."""

_KINDS = {
    "kernel": "",
    "numpy": "  (by the NumPy backend)",
    "stages": "  (one kernel per stage: none could be generated for the group)",
    "opaque": "  (run by its own library)",
    "reference": "  (through the NumPy reference: no kernel for it)",
}


def _si(value: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"

"""What was chosen and why: the program before and after, step by step, and the rules that made it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from eqsat.ir.kernel import Call, Kernel, KernelGroup, Load, walk
from eqsat.ir.nest import show
from eqsat.ir.node import Graph, Node
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.plan.plan import KernelStep, Plan


@dataclass(frozen=True)
class Work:
    """Floating-point operations, bytes read and written by kernels, and how many kernels there are."""

    flops: float
    nbytes: float
    kernels: int


@dataclass
class StepReport:
    """One step: what it computes, its loop nest, work, and times in seconds (measured: median, alone)."""

    label: str
    kind: str
    nest: str
    flops: float
    nbytes: float
    predicted: float
    measured: float | None = None


def node_flops(node: Node) -> float:
    """Operations of one operator: 2·b·m·n·k for a contraction, one per element and function otherwise."""
    kind = OPS[node.op].kind
    if kind == "contract":
        assert isinstance(node.attrs, Spec)
        a, b = node.inputs
        points = 1
        for extent in node.attrs.extents(a.shape, b.shape).values():
            points *= extent
        return 2.0 * points
    if kind == "reduce":
        return float(node.inputs[0].type.size)
    return float(node.type.size) if kind in ("map", "composite") else 0.0


def naive_work(graph: Graph) -> Work:
    """The program run operator by operator, each reading its operands and writing its result; views are free."""
    flops, nbytes, kernels = 0.0, 0.0, 0
    for node in graph.nodes():
        if OPS[node.op].kind in ("source", "view"):
            continue
        flops += node_flops(node)
        nbytes += node.type.nbytes + sum(i.type.nbytes for i in node.inputs)
        kernels += 1
    return Work(flops, nbytes, kernels)


def kernel_flops(kernel: Kernel) -> float:
    """Operations of a kernel; a multiplication summed is a fused multiply-add, two."""
    inner = sum(isinstance(e, Call) for e in walk(kernel.body))
    outer = sum(isinstance(e, Call) for e in walk(kernel.epilogue))
    return kernel.points * (inner + (kernel.combine is not None)) + float(kernel.results * outer)


def group_bytes(group: KernelGroup) -> float:
    """Each external buffer touched once: what is read of an operand is at most its size."""
    total = 0.0
    for number, operand in enumerate(group.operands):
        if number in group.outputs:
            total += sum(s.kernel.results for s in group.stages if s.result == number) * operand.dtype.itemsize
            continue
        read = 0.0
        for stage in group.stages:
            for root in (stage.kernel.body, stage.kernel.epilogue):
                for e in walk(root):
                    if isinstance(e, Load) and stage.sources[e.operand] == number:
                        points = 1
                        for extent, stride in zip(stage.kernel.extents, e.strides, strict=False):
                            points *= extent if stride else 1
                        read = max(read, operand.nbytes if e.gathers else points * operand.dtype.itemsize)
        total += min(read, operand.nbytes)
    return total


def step_reports(plan: Plan) -> list[StepReport]:
    """One report per step of a plan, without measurements."""
    out = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            flops = sum(kernel_flops(s.kernel) for s in step.group.stages)
            nest = show(step.nest) if step.nest is not None else ""
            out.append(StepReport(step.label, "kernel", nest, flops, group_bytes(step.group), step.seconds))
        else:
            nbytes = step.value.type.nbytes + sum(plan.types[t].nbytes for t in step.reads)
            out.append(StepReport(step.label, "reference", "", node_flops(step.value), nbytes, 0.0))
    return out


@dataclass
class Explanation:
    """How a function is run for one set of argument types. ``print`` it, ask ``why(rule)``, or take ``to_json()``."""

    function: str
    signature: str
    naive: Work
    steps: list[StepReport]
    arena_bytes: int
    naive_arena_bytes: int
    search: Mapping[str, Any]
    errors: list[Mapping[str, float]]
    compile_seconds: float
    measured: float | None
    cached: bool
    threads: int
    _why: Callable[[str], str] | None = field(default=None, repr=False)

    @property
    def optimized(self) -> Work:
        return Work(sum(s.flops for s in self.steps), sum(s.nbytes for s in self.steps), len(self.steps))

    @property
    def predicted(self) -> float:
        return sum(s.predicted for s in self.steps)

    def why(self, rule: str) -> str:
        """What became of a rule: how often it fired, which guard refused it, or by how much it lost on cost.

        Raises :class:`~eqsat.errors.OptionError` for an id that no rule has.
        """
        assert self._why is not None
        return self._why(rule)

    def to_json(self) -> str:
        """Everything shown, as JSON; times in seconds, sizes in bytes."""
        data = asdict(self)
        data.pop("_why")
        data["optimized"] = asdict(self.optimized)
        data["predicted"] = self.predicted
        return json.dumps(data, indent=1, default=str)

    def __str__(self) -> str:
        before, after = self.naive, self.optimized
        lines = [
            f"{self.function}({self.signature})",
            "",
            f"{'':14}{'operators':>12}{'optimized':>12}",
            f"{'kernels':14}{before.kernels:>12}{after.kernels:>12}",
            f"{'flops':14}{_si(before.flops):>12}{_si(after.flops):>12}",
            f"{'bytes moved':14}{_si(before.nbytes):>12}{_si(after.nbytes):>12}",
            f"{'memory peak':14}{_si(self.naive_arena_bytes):>12}{_si(self.arena_bytes):>12}",
            "",
            f"time: predicted {_time(self.predicted)}"
            + (f", measured {_time(self.measured)}" if self.measured is not None else "")
            + f" on {self.threads} thread{'s' if self.threads > 1 else ''}",
            "",
            f"{'step':4} {'predicted':>10} {'measured':>10} {'flops':>8} {'bytes':>8}  what",
        ]
        for number, step in enumerate(self.steps):
            measured = "" if step.measured is None else _time(step.measured)
            through = "" if step.kind == "kernel" else "  (through the NumPy reference: no kernel for it)"
            lines.append(
                f"{number:<4} {_time(step.predicted):>10} {measured:>10} {_si(step.flops):>8} "
                f"{_si(step.nbytes):>8}  {step.label}{through}"
            )
            if step.nest:
                lines.append(f"{'':46}{step.nest}")
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
        if self.cached:
            return f"search: remembered from an earlier process; loaded in {_time(self.compile_seconds)}"
        return (
            f"search: {s['operators']} operators in {s['regions']} regions ({s['distinct_regions']} distinct), "
            f"{s['enodes']} e-nodes, stopped by {', '.join(s['stops'])}; "
            f"saturation {_time(s['saturation_seconds'])}, extraction {_time(s['extraction_seconds'])} "
            f"(gap ≤ {s['extraction_gap']:.1%}), "
            f"schedules {_time(s['schedule_seconds'])} ({s['loop_terms']} loop terms); "
            f"compiled in {_time(self.compile_seconds)}"
        )


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

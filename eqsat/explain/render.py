"""An explanation for people: tables and lists by rich, for terminals of any width, notebooks and plain text."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eqsat.forks import IMPORTING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from eqsat.explain.report import Explanation, StepReport

WIDTH = 120
"""Columns where there is no terminal that tells."""
NARROW = 80
"""Columns at least: in fewer nothing is readable."""
OPERANDS = 6
"""Operands of a step that are named."""
LINES = 6
"""Lines of the user's that are shown for a step."""

KINDS = {
    "kernel": "",
    "numpy": "(by the NumPy backend)",
    "stages": "(one kernel per stage: none could be generated for the group)",
    "opaque": "(run by its own library)",
    "reference": "(through the NumPy reference: no kernel for it)",
}


def text(report: Explanation, width: int | None = None) -> str:
    """Without colours, in lines of ``width`` columns: those of the terminal if there is one."""
    width = max(NARROW, width or shutil.get_terminal_size((WIDTH, 24)).columns)
    console = _printed(report, width)
    written = console.file
    assert isinstance(written, io.StringIO)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def html(report: Explanation) -> str:
    """For notebooks: preformatted text with colours, which takes the notebook's own background."""
    console = _printed(report, WIDTH, record=True, color_system="truecolor")
    style = "white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,Consolas,monospace"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def _printed(report: Explanation, width: int, **options: Any) -> Console:
    """A console that the report was printed to. Rich imports some tables only then, which a fork has to wait for."""
    with IMPORTING:
        console = _console(width, **options)
        for part in renderables(report):
            console.print(part)
    return console


def _console(width: int, **options: Any) -> Console:
    with IMPORTING:
        from rich.console import Console
    options.setdefault("color_system", None)
    return Console(
        file=io.StringIO(), width=width, force_jupyter=False, force_terminal="record" in options, highlight=False,
        soft_wrap=False, legacy_windows=False, **options,
    )  # fmt: skip


def renderables(report: Explanation) -> Iterator[RenderableType]:
    """The parts, top to bottom."""
    with IMPORTING:
        from rich.padding import Padding
        from rich.text import Text
    yield Text(f"{report.function}({report.signature})", style="bold")
    for guard in report.guards:
        yield Text(f"for calls with {guard}")
    yield ""
    if report.plain is not None:
        yield Text(f"run by NumPy: {report.plain}")
        return
    yield _totals(report)
    yield ""
    yield Text(_times(report))
    if report.untimed:
        yield Text(report.untimed)
    yield ""
    yield _steps(report)
    yield ""
    for number, step in enumerate(report.steps):
        details = _details(step)
        if details:
            yield Text(f"step {number}: {details[0]}", style="bold" if step.nest else "")
            yield from (Padding(Text(line), (0, 0, 0, 2)) for line in details[1:])
    for algorithms in report.algorithms:
        yield Text(str(algorithms))
    yield ""
    yield Text(_search(report))
    for told in report.cut_off:
        yield Text(f"cut off: {told}")
    rules = report.search.get("rules", {})
    if rules:
        yield Text("rules in it: " + ", ".join(f"{r} ×{n}" for r, n in sorted(rules.items())))
    for number, error in enumerate(report.errors):
        ours, own = error["ours"], error["reference"]
        yield Text(f"output {number}: error against float64 {ours:.2g}; NumPy's own {own:.2g}")


def _table(*columns: str, left: tuple[str, ...] = ()) -> Table:
    with IMPORTING:
        from rich import box
        from rich.table import Table
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        if column in left:
            table.add_column(column, overflow="fold", ratio=1 if column == "step" else None)
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def _totals(report: Explanation) -> Table:
    table = _table("", "operators", "optimized", left=("",))
    before, after = report.naive, report.optimized
    for name, one, other in (
        ("kernels", str(before.kernels), str(after.kernels)),
        ("flops", si(before.flops), si(after.flops)),
        ("bytes moved", si(before.nbytes), si(after.nbytes)),
        ("memory peak", si(report.naive_peak_bytes), si(report.peak_bytes)),
    ):
        table.add_row(name, one, other)
    return table


def _times(report: Explanation) -> str:
    told = f"time: predicted {seconds(report.predicted)}"
    if report.measured is not None:
        told += f", measured {seconds(report.measured)}"
    told += f" on {report.threads} thread{'s' * (report.threads > 1)}"
    if report.numpy is not None:
        told += f"; NumPy {seconds(report.numpy)}"
        if report.measured:
            told += f", {report.numpy / report.measured:.3g} times as long"
    return told


def _steps(report: Explanation) -> Table:
    with IMPORTING:
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text
    table = _table("#", "step", "predicted", "measured", "flops", "bytes", left=("step",))
    table.expand = True
    for number, step in enumerate(report.steps):
        trips = f" × {step.trips:,} trips" * (step.trips > 1) + f" of {step.copies} steps" * (step.copies > 1)
        below = [Text(KINDS[step.kind]), Text(_operands(step), style="cyan")]
        below += [Text(_place(line), style="green") for line in step.source[:LINES]]
        if len(step.source) > LINES:
            below.append(Text(f"and {len(step.source) - LINES} more lines", style="green"))
        what = Text(f"{step.label}{trips}")
        cell = Group(what, *(Padding(line, (0, 0, 0, 2)) for line in below if line))
        measured = "" if step.measured is None else seconds(step.measured)
        table.add_row(
            str(number), cell, seconds(step.predicted), measured, si(step.flops),
            si(step.nbytes),
        )  # fmt: skip
    return table


def _operands(step: StepReport) -> str:
    more = f", … ({len(step.reads)} in all)" * (len(step.reads) > OPERANDS)
    told = ", ".join(step.reads[:OPERANDS]) + more
    return f"{told}{' → ' * bool(step.writes)}{', '.join(step.writes)}" if told or step.writes else ""


def _place(line: str) -> str:
    """A line of the user's, without the folders of its file."""
    found = re.match(r"(.*):(\d+)(?:: |$)(.*)", line)
    return line if found is None else f"{os.path.basename(found[1])}:{found[2]}  {found[3]}"


def _details(step: StepReport) -> list[str]:
    """What limits a step, how it was chosen, and its loop nest."""
    moved = ", ".join(f"{si(n)} from {space}" for space, n in step.moved.items() if n) or "none"
    head = [f"limited by {step.limit}; bytes: {moved}"] if step.limit else []
    if step.tuned is not None:
        predicted = (
            f"predicted {seconds(step.predicted / step.trips)}"
            if step.limit
            else "not among those that the model offers"
        )
        head.append(f"chosen by measurement: {seconds(step.tuned)} when tuned, {predicted}")
    return [*head, *step.nest.splitlines()]


def _search(report: Explanation) -> str:
    s = report.search
    late = f"; stopped by the clock in {s['extractions_late']}" if s["extractions_late"] else ""
    chance = "; another run may find another program, as the clock stopped this one"
    stops = (", ".join(s["stops"]) or "nothing to search") + chance * bool(late or "seconds" in s["stops"])
    if report.lengths is not None:
        low, high = report.lengths
        return (
            f"search: for lengths of {low} to {high}, which kernels take as an argument ({s['operators']} operators, "
            f"{s['enodes']} e-nodes, stopped by {stops}); made for this one in {seconds(report.compile_seconds)}"
        )
    if report.cached:
        return (
            f"search: remembered from an earlier process ({s['operators']} operators, {s['enodes']} e-nodes, "
            f"stopped by {stops}); loaded in {seconds(report.compile_seconds)}"
        )
    return (
        f"search: {s['operators']} operators in {s['regions']} regions ({s['distinct_regions']} distinct), "
        f"{s['enodes']} e-nodes, stopped by {stops}; "
        f"saturation {seconds(s['saturation_seconds'])}, extraction {seconds(s['extraction_seconds'])} "
        f"(gap ≤ {s['extraction_gap']:.1%}{late}), "
        f"schedules {seconds(s['schedule_seconds'])} ({s['loop_terms']} loop terms); "
        f"compiled in {seconds(report.compile_seconds)}"
    )


def si(value: float) -> str:
    """A count with three digits and a decimal prefix."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """A time with three digits."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"

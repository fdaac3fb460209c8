"""The table on screen and the JSON document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from bench.cold import COMPILERS
from bench.limits import Limits
from bench.model import Agreement, summary
from bench.peers import NAMES, WRITTEN
from bench.run import Problem, Row
from bench.superopt import published
from eqsat.explain.render import si


def geomeans(rows: Sequence[Row]) -> dict[str, float]:
    """Geometric mean of ``ratio`` by suite, of the rows that have a peer."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.ratio is not None:
            found.setdefault(row.workload.suite, []).append(math.log(row.ratio))
    return {suite: math.exp(sum(logs) / len(logs)) for suite, logs in found.items()}


def means_against(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By suite, the geometric means of NumPy's time by ours, and of the best of the others', where there are both."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        others = [time for name, time in row.peers.items() if name != "numpy"]
        times = {"numpy": row.peers.get("numpy"), "best of the others": min(others, default=None)}
        for name, time in times.items():
            if time is not None:
                found.setdefault(row.workload.suite, {}).setdefault(name, []).append(math.log(time / row.ours_ms))
    return {s: {name: math.exp(sum(v) / len(v)) for name, v in logs.items()} for s, logs in found.items()}


def document(
    rows: Sequence[Row],
    problems: Sequence[Problem],
    limits: Limits,
    versions: dict[str, str],
    missing: Sequence[str],
    agreements: Sequence[Agreement] = (),
) -> dict[str, Any]:
    """What ``--json`` writes."""
    model = {"model": {**summary(agreements), "rows": [a.record() for a in agreements]}} if agreements else {}
    return {
        **model,
        "machine": limits.record(),
        "rows": [row.record() for row in rows],
        "geomean": geomeans(rows),
        "geomean_against": means_against(rows),
        "versions": versions,
        "missing": list(missing),
        "errors": [
            {"suite": p.workload.suite, "name": p.workload.name, "contender": p.peer, "message": p.message}
            for p in problems
        ],
    }


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def table(suite: str, rows: Sequence[Row]) -> Table:
    """One suite; times in milliseconds, medians."""
    peers = [name for name in NAMES if any(name in row.peers for row in rows)]
    made = Table(title=f"{suite} (ms, median)", title_justify="left")
    made.add_column("workload", no_wrap=True)
    for heading in ("limit", "eqsat", *peers, "ratio", "of limit", "error", "search s", "compile s"):
        made.add_column(heading, justify="right")
    timed_cold = [name for name in COMPILERS if any(name in row.cold_compile_s for row in rows)]
    for name in timed_cold:
        made.add_column(f"cold s {name}", justify="right")
    for row in rows:
        cells = [_ms(row.peers.get(name)) for name in peers]
        cells = [f"[bold]{c}[/]" if name == row.best_peer else c for name, c in zip(peers, cells, strict=True)]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        made.add_row(
            row.workload.name,
            _ms(row.limit_ms),
            f"[green]{_ms(row.ours_ms)}[/]" if row.ratio is None or row.ratio >= 1 else f"[red]{_ms(row.ours_ms)}[/]",
            *cells,
            ratio,
            f"{row.of_limit:.2f}",
            f"{row.max_rel_error:.0e}",
            f"{row.search_s:.1f}",
            f"{row.compile_s:.1f}",
            *(_seconds(row.cold_compile_s.get(name)) for name in timed_cold),
        )
    return made


def gains_table(rows: Sequence[Row]) -> Table:
    """The program as written → as optimized; times in milliseconds, medians. Behind a bar, what Tensat reports."""
    made = Table(title="as written → as optimized | Tensat", title_justify="left")
    made.add_column("workload", no_wrap=True)
    for heading in ("kernels", "flops", "bytes", "predicted", "measured", "gain", "e-nodes", "stopped by", "search s"):
        made.add_column(heading, justify="right")
    made.add_column("rules in it", overflow="fold")
    for row in rows:
        if row.gain is None:
            continue
        before, after = row.programs[WRITTEN], row.programs[row.ours]
        gain, seconds = published(row.workload.name) or (None, None)
        made.add_row(
            row.workload.name,
            f"{before.kernels} → {after.kernels}",
            f"{si(before.flops)} → {si(after.flops)}",
            f"{si(before.nbytes)} → {si(after.nbytes)}",
            f"{_ms(before.predicted_ms)} → {_ms(after.predicted_ms)}",
            f"{_ms(row.times[WRITTEN].median)} → {_ms(row.ours_ms)}",
            f"{row.gain:.1%}" + ("" if gain is None else f" | {gain:.1%}"),
            str(after.enodes),
            ", ".join(after.stops),
            f"{after.algebra_s:.1f} of {row.search_s:.1f}" + ("" if seconds is None else f" | {seconds:.1f}"),
            escape(", ".join(f"{rule} ×{count}" for rule, count in sorted(after.rules.items()))),
        )
    return made


def model_table(agreements: Sequence[Agreement]) -> Table:
    """The model against the clock; times in milliseconds, minima."""
    made = Table(title="model (ms, minimum)", title_justify="left")
    made.add_column("kernel", no_wrap=True)
    for heading in ("nests", "distinct", "rank correlation", "predicted", "chosen", "best", "regret"):
        made.add_column(heading, justify="right")
    made.add_column("best nest", overflow="fold")
    for a in agreements:
        made.add_row(
            a.name,
            str(a.nests),
            str(len(a.programs)),
            _two(a.correlation),
            _ms(a.programs[0].predicted_ms),
            _ms(a.chosen_ms),
            _ms(a.best_ms),
            _percent(a.regret),
            escape(a.best if a.regret else "the chosen one"),
        )
    whole = summary(agreements)
    medians = (_two(whole["median_rank_correlation"]), "", "", "", _percent(whole["median_regret"]), "")
    made.add_section()
    made.add_row("median", "", "", *medians)
    made.add_row("worst", "", "", "", "", "", "", _percent(whole["worst_regret"]), "")
    return made


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"

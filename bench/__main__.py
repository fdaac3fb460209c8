"""``python -m bench [--suite NAME …] [--threads N] [--peers a,b] [--json FILE] [--quick]``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.setup import MARK, NAMES, SUITES, environment, limit_threads, load_peers, selected


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description="Time eqsat against other systems.")
    made.add_argument("--suite", nargs="+", action="extend", choices=SUITES, metavar="NAME", help=", ".join(SUITES))
    made.add_argument("--threads", type=int, default=1, help="threads of every contender (default 1)")
    made.add_argument("--peers", default=",".join(NAMES), metavar="a,b", help=f"of {', '.join(NAMES)} (default all)")
    made.add_argument("--json", metavar="FILE", help="write the results here too")
    made.add_argument("--only", metavar="TEXT", help="only workloads whose name contains this")
    made.add_argument("--quick", action="store_true", help="fewer repetitions, and the stored machine model")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where a contender of ours was wrong or failed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    names = [n for n in options.peers.split(",") if n]
    unknown = [n for n in names if n not in NAMES]
    if unknown:
        parser().error(f"unknown peers {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.threads < 1:
        parser().error("--threads is at least 1")
    if os.environ.get(MARK) != str(options.threads):
        # A fresh process: thread pools are sized when libraries are loaded. Inductor's cache starts empty.
        with tempfile.TemporaryDirectory(prefix="bench-inductor-") as folder:
            variables = {**os.environ, **environment(options.threads), "TORCHINDUCTOR_CACHE_DIR": folder}
            return subprocess.call([sys.executable, "-m", "bench", *given], env=variables)
    return run(options, names)


def run(options: argparse.Namespace, names: Sequence[str]) -> int:
    from rich.console import Console

    from bench import limits as model
    from bench import report
    from bench.ours import Ours
    from bench.run import Problem, Row, compile_cold, run_workload

    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    limits, machine = model.measure(options.threads, options.quick)
    console.print(
        f"{limits.cpu}, {limits.threads} thread(s): FMA peak {limits.fma_gflops:.0f} GFLOP/s, "
        f"memory copy {limits.stream_gbs:.1f} GB/s"
    )
    ours = Ours(options.threads)
    peers, missing = load_peers(names, options.threads)
    versions = {c.name: c.version for c in (ours, *peers)}
    console.print("  ".join(f"{name} {version}" for name, version in versions.items()))
    limit_threads(options.threads)

    rows: list[Row] = []
    problems: list[Problem] = []
    for suite in options.suite or SUITES:
        suite_rows: list[Row] = []
        for workload in selected([suite], options.only):
            if sys.stderr.isatty():
                print(f"\r\033[K{suite}: {workload.name}", end="", file=sys.stderr, flush=True)
            row, found = run_workload(
                workload,
                ours,
                peers,
                limits,
                machine,
                seconds=0.5 if options.quick else 3.0,
                least=5 if options.quick else 9,
                cost=lambda: (ours.cost.search_s, ours.cost.compile_s),
            )
            problems += found
            if row is None:
                continue
            suite_rows.append(row)
            if workload.cold_compile:
                applicable = {ours.name, *row.times}
                problems += compile_cold(row, applicable, options.threads, repeat=2 if options.quick else 3)
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        rows += suite_rows
        if suite_rows:
            console.print(report.table(suite, suite_rows))
        if suite in (means := report.geomeans(rows)):
            console.print(f"  geometric mean of ratio: {means[suite]:.2f}\n")
    for problem in problems:
        console.print(f"[red]error[/] {problem}", highlight=False)
    if missing:
        console.print(f"not installed: {', '.join(missing)}")
    if options.json:
        text = json.dumps(report.document(rows, problems, limits, versions, missing), indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 1 if any(p.contender == ours.name for p in problems) else 0


if __name__ == "__main__":
    sys.exit(main())

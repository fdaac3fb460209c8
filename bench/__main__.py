"""``python -m bench [--suite NAME …] [--threads N] [--peers a,b] [--json FILE] [--quick]``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers import NAMES, OURS, WRITTEN
from bench.setup import SUITES, comparable, environment, selected
from bench.worker import Worker, WorkerError

if TYPE_CHECKING:
    from bench.model import Agreement
    from bench.process import PeerProcess
    from bench.run import Problem

MODEL = "model"
"""The suite that times nothing but eqsat, and runs when it is named."""

ROUNDS, QUICK = 7, 3
"""Turns of every peer, and with ``--quick``."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description="Time eqsat against other systems.")
    suites = (*SUITES, MODEL)
    made.add_argument("--suite", nargs="+", action="extend", choices=suites, metavar="NAME", help=", ".join(suites))
    made.add_argument("--threads", type=int, default=1, help="threads of every peer (default 1)")
    made.add_argument("--peers", default=",".join(NAMES), metavar="a,b", help=f"of {', '.join(NAMES)} (default all)")
    made.add_argument("--json", metavar="FILE", help="write the results here too")
    made.add_argument("--only", metavar="TEXT", help="only workloads whose name contains this")
    made.add_argument("--quick", action="store_true", help="fewer turns, and the stored machine model")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where eqsat was wrong or failed, 130 after Ctrl-C."""
    options = parser().parse_args(arguments)
    names = [n for n in options.peers.split(",") if n]
    unknown = [n for n in names if n not in NAMES]
    if unknown:
        parser().error(f"unknown peers {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.threads < 1:
        parser().error("--threads is at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that workers end, too
    try:
        return run(options, names)
    except KeyboardInterrupt:
        return 130


def started(names: Sequence[str], threads: int, stack: ExitStack) -> tuple[list[PeerProcess], list[str]]:
    """eqsat and the peers that are installed, in processes that end with ``stack``; names of those that are not."""
    from bench.process import PeerProcess

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-inductor-"))  # Inductor's cache starts empty
    variables = {"TORCHINDUCTOR_CACHE_DIR": folder}
    found = [stack.enter_context(PeerProcess(name, threads, variables)) for name in (OURS, *names)]
    for peer in found:
        peer.start()  # all import at once
    ready, missing = [], []
    for peer in found:
        try:
            peer.ready()
            ready.append(peer)
        except WorkerError as error:
            if peer.name == OURS:
                raise
            print(f"{peer.name} is left out: {error}", file=sys.stderr)
            peer.close()
            missing.append(peer.name)
    return ready, missing


def run(options: argparse.Namespace, names: Sequence[str]) -> int:
    from rich.console import Console
    from rich.markup import escape

    from bench import limits as model
    from bench import report, superopt
    from bench.run import Row, compile_cold, run_workload
    from eqsat.cost.machine import vector_limit

    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    limits, machine = model.measure(options.threads, options.quick)
    console.print(
        f"{limits.cpu}, {limits.threads} thread(s): FMA peak {limits.fma_gflops:.0f} GFLOP/s, "
        f"memory copy {limits.stream_gbs:.1f} GB/s; Python {limits.python}: "
        f"100,000 objects in {limits.python_ms:.0f} ms"
    )
    names, wide = comparable(names)
    if wide:
        console.print(
            f"eqsat is held to vectors of {vector_limit()} bits; left out, for they are not: {', '.join(wide)}"
        )
    suites = list(dict.fromkeys(options.suite or SUITES))
    rows: list[Row] = []
    problems: list[Problem] = []
    agreements: list[Agreement] = []
    versions: dict[str, str] = {}
    missing: list[str] = []
    if MODEL in suites:
        suites.remove(MODEL)
        agreements, problems = against_the_clock(options)
        if agreements:
            console.print(report.model_table(agreements))
    with ExitStack() as stack:
        if suites:
            written = [WRITTEN] if superopt.SUITE in suites else []
            (ours, *peers), missing = started([*written, *names], options.threads, stack)
            versions = {peer.name: peer.version for peer in (ours, *peers)}
            console.print("  ".join(f"{name} {version}" for name, version in versions.items()))
        for suite in suites:
            suite_rows: list[Row] = []
            for workload in selected([suite], options.only):
                tell(f"{suite}: {workload.name}")
                rounds = QUICK if options.quick else ROUNDS
                row, found = run_workload(workload, ours, peers, limits, machine, rounds=rounds)
                problems += found
                if row is None:
                    continue
                suite_rows.append(row)
                if workload.cold_compile:
                    problems += compile_cold(row, row.times, options.threads, repeat=2 if options.quick else 3)
            tell()
            rows += suite_rows
            if suite_rows:
                console.print(report.table(suite, suite_rows))
            if any(row.gain is not None for row in suite_rows):
                console.print(report.gains_table(suite_rows))
            if suite in (means := report.geomeans(rows)):
                against = report.means_against(rows)[suite]
                told = ", ".join(f"{name} {mean:.2f}" for name, mean in against.items())
                console.print(f"  geometric mean of ratio: {means[suite]:.2f} (to {told})\n")
    for problem in problems:
        console.print(f"[red]error[/] {escape(str(problem))}", highlight=False)
    if missing:
        console.print(f"not installed: {', '.join(missing)}")
    if options.json:
        text = json.dumps(report.document(rows, problems, limits, versions, missing, agreements), indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 1 if any(p.peer == OURS for p in problems) else 0


def against_the_clock(options: argparse.Namespace) -> tuple[list[Agreement], list[Problem]]:
    """The suite ``model``, and nests that could not be printed or that computed something else."""
    from bench import model
    from bench.run import Problem

    found: list[model.Agreement] = []
    problems: list[Problem] = []
    with Worker(environment(options.threads)) as worker:
        for workload in selected([MODEL], options.only):
            tell(f"{MODEL}: {workload.name}")
            rounds = model.QUICK if options.quick else model.ROUNDS
            try:
                groups = worker.call(model.agreements, workload.name, options.threads, model.NESTS, rounds)
            except WorkerError as error:
                problems.append(Problem(workload, OURS, str(error)))
                continue
            found += groups
            for group in groups:
                for what, nests in (("is wrong", group.wrong), ("was refused", group.refused)):
                    problems += [Problem(workload, OURS, f"{nest} {what}") for nest in nests]
    tell()
    return found, problems


def tell(text: str = "") -> None:
    """What is being timed, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

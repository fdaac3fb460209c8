"""The command ``eqsat fuzz``: random whole programs, optimized and compared with NumPy.

Prints how many programs were wrong, refused or crashed, which operators they used, and for every failure a
minimised program to paste. The exit status is 0 only where there was no failure.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eqsat.verify.fuzz import Finding, Report

TEST = '''"""Found by `eqsat fuzz --seed {seed}`, {kind}: {message}

{script}
"""

from functools import partial

import eqsat
from eqsat import nn
from eqsat.verify.fuzz import compiled
from eqsat.verify.program_check import check
from eqsat.verify.programs import Input, Program, Step
{imports}
PROGRAM = {program}


def test_program() -> None:
    optimizer = partial(compiled, eqsat.optimize{options})
    assert check(PROGRAM, optimizer, {{"nn": nn, "eqsat": eqsat}}) is None
'''


def as_test(finding: Finding) -> str:
    """A pytest file that fails as long as the finding stands."""
    from eqsat.ir.defined import defined
    from eqsat.verify.fuzz import written

    script = finding.script.replace("\\", "\\\\").replace('"""', "'''").strip()
    message = finding.failure.message.replace("\\", "\\\\").replace('"""', "'''")
    return TEST.format(
        seed=finding.seed,
        kind=finding.failure.kind,
        message=message,
        script=script,
        program=finding.program,
        imports="".join(f"import {d.module}  # noqa: F401\n" for _, d in defined() if f"{d.name}(" in finding.program),
        options="".join(f", {option}" for option in [written(finding.options)] if option),
    )


def summary(report: Report, seconds: float) -> str:
    """The counts and the failures, as printed."""
    lines = [
        f"{report.programs} programs, {sum(report.operators.values())} operators in {seconds:.0f} s: "
        f"{report.count('wrong')} wrong, {report.count('refused')} refused, {report.count('crashed')} crashed"
    ]
    names = sorted(report.operators.items(), key=lambda item: (-item[1], item[0]))
    lines.append("operators: " + ", ".join(f"{name} {count}" for name, count in names))
    lines += [f"warning, {count} times: {text}" for text, count in sorted(report.warnings.items())]
    for number, finding in enumerate(report.findings, 1):
        lines += ["", f"--- failure {number}, {finding.failure.kind} (seed {finding.seed}): {finding.failure.message}"]
        lines.append(finding.script)
    return "\n".join(lines)


def _count(text: str) -> int:
    """A number of things, at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def _amount(text: str) -> float:
    """An amount above 0."""
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return float(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--examples", type=_count, help="programs to run (default 200, or any number in --minutes)")
    parser.add_argument("--minutes", type=_amount, help="how long to go on by the clock")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--max-ops", type=_count, default=30, help="most operators of a program (default 30)")
    parser.add_argument("--jobs", type=_count, default=1, help="worker processes (default 1)")
    parser.add_argument("--timeout", type=_amount, default=300.0, help="seconds of processor time for a program")
    parser.add_argument("--memory", type=_amount, default=16.0, help="GiB that a process may map (default 16)")
    parser.add_argument("--json", metavar="FILE", help="write the counts and failures here too")
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="write each failure here as a pytest file")
    parser.add_argument(
        "--operators", metavar="MODULE", action="append", default=[],
        help="a module whose operators by eqsat.elementwise programs have, too, on their domains",
    )  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="do not vary the options of optimize")
    parser.add_argument(
        "--optimizer", default="eqsat:optimize", metavar="MODULE:NAME", help="what to test (default eqsat:optimize)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the module by itself; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m eqsat.verify.fuzz", description="Optimize random whole programs and compare them with NumPy."
    )
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Fuzz as the options say; returns the exit status."""
    examples = options.examples or (200 if options.minutes is None else 10**9)
    if importlib.util.find_spec("hypothesis") is None:
        print("fuzzing needs the development dependency: pip install hypothesis", file=sys.stderr)
        return 2

    from eqsat.verify.fuzz import keep_machine, run_jobs
    from eqsat.verify.user_operators import OWN, draw_those_of

    try:
        draw_those_of(options.operators)
        importlib.import_module(OWN)  # workers draw those
    except (ImportError, ValueError) as error:
        print(f"--operators: {error}", file=sys.stderr)
        return 2
    start = time.monotonic()
    shown = [start]

    def progress(report: Report) -> None:
        if sys.stderr.isatty() and time.monotonic() - shown[0] > 1.0:
            shown[0] = time.monotonic()
            print(f"\r{report.programs} programs, {len(report.findings)} failures", end="", file=sys.stderr, flush=True)

    # Two thousand plans are of no use to anyone's cache, and a plan found there would hide a fresh mistake.
    with tempfile.TemporaryDirectory(prefix="eqsat-fuzz-") as folder:
        keep_machine(options.optimizer, folder)
        os.environ["EQSAT_CACHE_DIR"] = folder
        os.environ["EQSAT_CHECK_SPEED"] = "0"  # kernels are looked at, also slow ones
        report = run_jobs(
            options.optimizer,
            examples=examples,
            seed=options.seed,
            max_ops=options.max_ops,
            jobs=options.jobs,
            timeout=options.timeout,
            memory=options.memory,
            vary=not options.plain and options.optimizer.startswith("eqsat:"),
            operators=options.operators,
            seconds=60 * options.minutes if options.minutes is not None else float("inf"),
            progress=progress,
        )
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(summary(report, time.monotonic() - start))
    if options.out and report.findings:
        options.out.mkdir(parents=True, exist_ok=True)
        for number, finding in enumerate(report.findings, 1):
            (options.out / f"test_fuzz_{finding.seed}_{number}.py").write_text(as_test(finding), encoding="utf-8")
    if options.json:
        record: dict[str, Any] = {
            "programs": report.programs,
            "wrong": report.count("wrong"),
            "refused": report.count("refused"),
            "crashed": report.count("crashed"),
            "operators": dict(sorted(report.operators.items())),
            "warnings": dict(sorted(report.warnings.items())),
            "failures": [
                {
                    "kind": f.failure.kind,
                    "message": f.failure.message,
                    "seed": f.seed,
                    "program": f.script,
                    "options": dict(f.options),
                }
                for f in report.findings
            ],
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=2)
    return 1 if report.findings else 0

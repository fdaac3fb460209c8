"""Many programs in child processes under a watchdog, and a summary."""

from __future__ import annotations

import collections
import json
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.numpy_net.generate import generate
from tests.numpy_net.minimise import minimise
from tests.numpy_net.program import Program

ROOT = Path(__file__).parents[2]
FAILURES = ("wrong", "unverified", "rejected", "crashed", "silent", "slow", "died")
STARTUP = 120.0
"""Seconds that a child may take to import everything."""
RENEW = 400
"""Programs after which a child is replaced, so that its memory stays bounded."""


class Child:
    """A worker process, started when it is first asked and again after it died."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[str] | None = None
        self.asked = 0

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer; ``slow`` or ``died`` where there is none."""
        if self.process is None or self.asked >= RENEW:
            self.close()
            self.asked = 0
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=ROOT,
            )
            self._answer(STARTUP)
        self.asked += 1
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer tells how it ended
        return self._answer(timeout)

    def _answer(self, timeout: float) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        if ready:
            status = self.process.wait()
            self.process = None
            return {"kind": "died", "message": f"the process ended with status {status}"}
        self.close(at_once=True)
        return {"kind": "slow", "message": f"no end after {timeout:.0f} s"}

    def close(self, *, at_once: bool = False) -> None:
        """End the process."""
        if self.process is None:
            return
        if at_once:
            self.process.kill()
        self.process.communicate()
        self.process = None


@dataclass
class Finding:
    """A failure and the smallest program that shows it."""

    number: int
    kind: str
    message: str
    program: Program


@dataclass
class Report:
    """What came of a sweep."""

    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    warnings: collections.Counter[str] = field(default_factory=collections.Counter)
    used: collections.Counter[str] = field(default_factory=collections.Counter)
    findings: list[Finding] = field(default_factory=list)
    slowest: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        total = sum(self.kinds.values())
        kinds = ", ".join(f"{self.kinds[k]} {k}" for k in (*FAILURES, "ok", "raises", "refused", "undefined"))
        lines = [
            f"{total} programs in {self.seconds:.0f} s: {kinds}",
            f"slowest {self.slowest:.1f} s; {len(self.used)} functions and operators: "
            + ", ".join(name for name, _ in self.used.most_common()),
        ]
        lines += [f"  refused {n} times: {reason}" for reason, n in self.refused.most_common()]
        lines += [f"  warning {n} times: {text}" for text, n in self.warnings.most_common()]
        for f in sorted(self.findings, key=lambda f: f.number):
            lines += ["", "#" * 100, f"# program {f.number}: {f.kind}: {f.message}", "", f.program.script()]
        return "\n".join(lines)


def sweep(
    seed: int, numbers: range, *, jobs: int = 1, timeout: float = 60.0, shrink: bool = True, say: bool = False
) -> Report:
    """Examine programs ``numbers`` of a seed."""
    report = Report()
    lock = threading.Lock()
    left = iter(numbers)
    start = time.perf_counter()
    command = [sys.executable, "-m", "tests.numpy_net.worker"]

    def work() -> None:
        child, spare = Child(command), Child(command)
        try:
            while True:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                answer = child.ask({"seed": seed, "number": number}, timeout)
                found = None
                if answer["kind"] in FAILURES:
                    found = _finding(seed, number, answer, spare, timeout, shrink)
                with lock:
                    _count(report, answer, found)
                    if say and found is not None:
                        print(f"program {number}: {found.kind}: {found.message}\n{found.program.script()}", flush=True)
        finally:
            child.close()
            spare.close()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.seconds = time.perf_counter() - start
    return report


def _finding(seed: int, number: int, answer: dict[str, Any], child: Child, timeout: float, shrink: bool) -> Finding:
    told = answer.get("program")
    program = Program.from_json(told) if told else generate(seed, number)
    message = answer["message"]

    def fails(smaller: Program) -> bool:
        nonlocal message
        again = child.ask({"program": smaller.to_json()}, timeout)
        if again["kind"] != answer["kind"]:
            return False
        message = again["message"]
        return True

    if shrink:
        program = minimise(program, fails, tries=12 if answer["kind"] == "slow" else 150)
    return Finding(number, answer["kind"], message, program)


def _count(report: Report, answer: dict[str, Any], found: Finding | None) -> None:
    report.kinds[answer["kind"]] += 1
    report.refused.update(answer.get("refused", ()))
    report.warnings.update(answer.get("warnings", ()))
    report.used.update(answer.get("used", ()))
    report.slowest = max(report.slowest, answer.get("seconds", 0.0))
    if found is not None:
        report.findings.append(found)

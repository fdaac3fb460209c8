"""Faults put into eqsat while random programs run: each is caught, or harms nothing.

    python -m tests.faults [--examples N] [--seed S] [FAULT …]

Prints for each fault how many programs it was caught in (``VerificationError``), how many compiled anew, how many were
right all the same, and how many gave wrong numbers or crashed, of which there should be none. The exit status is 0 only
then.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
import eqsat.compiled
from eqsat import cache, nn, rules
from eqsat.compilers import ENVIRONMENT_VARIABLE as JOBS
from eqsat.compilers import Compilers
from eqsat.cost import machine
from eqsat.rules import rewrite, tensors
from eqsat.verify import fuzz
from eqsat.verify.program_check import check
from eqsat.verify.programs import Function, Program
from tests.mutants.kernels import KERNEL_FAULTS

NAMES = {"nn": nn, "eqsat": eqsat}
OPERATORS = ("tanh", "add", "mul", "sub", "matmul", "neg", "maximum", "exp", "reshape")
OF: dict[str, tuple[str, ...]] = {
    "a wrong rule": ("tanh", "add", "mul"),
    "a wrong tile operation": ("matmul", "add"),
}
"""Operators of the programs for a fault, where these are others."""


@dataclass
class Outcome:
    """Programs by what became of them; ``said`` of those that failed otherwise than by verification."""

    caught: int = 0
    anew: int = 0
    right: int = 0
    failed: int = 0
    said: list[str] = field(default_factory=list)

    def note(self, program: Program, *, strict: bool = True, **options: Any) -> None:
        """Optimize and run one program with the fault in force."""
        searches: list[object] = []
        sound = eqsat.compiled.Compiled.search

        def search(self: Any, *args: Any) -> Any:
            searches.append(self)
            return sound(self, *args)

        def optimizer(function: Function) -> Function:
            made: Function = eqsat.optimize(function, strict=strict, **options)
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(eqsat.compiled.Compiled, "search", search)
            failure = check(program, optimizer, NAMES)
        if failure is None:
            self.anew += bool(searches)
            self.right += not searches
        elif failure.kind == "refused":
            self.caught += 1
        else:
            self.failed += 1
            self.said.append(f"{failure.kind}: {failure.message}\n{program.source()}")


Run = Callable[[Sequence[Program], Path], Outcome]
FAULTS: dict[str, Run] = {}


def _fault(run: Run) -> Run:
    FAULTS[run.__name__.strip("_").replace("_", " ")] = run
    return run


@_fault
def _a_wrong_rule(programs: Sequence[Program], folder: Path) -> Outcome:
    """``tanh(a) = a``, taken unchecked."""
    outcome, a = Outcome(), tensors("a")
    rules.add(rewrite(np.tanh(a), a, id="fault.tanh"), check=False)
    try:
        for program in programs:
            outcome.note(program, cache=False)
    finally:
        rules.remove("fault.tanh")
    return outcome


def _of_mutant(name: str) -> Run:
    (mutant,) = (fault for fault in KERNEL_FAULTS if fault.name == name)

    def run(programs: Sequence[Program], folder: Path) -> Outcome:
        outcome = Outcome()
        with mutant.applied():
            for program in programs:
                outcome.note(program, cache=False)
        return outcome

    return run


FAULTS["a wrong kernel"] = _of_mutant("the last row is skipped")
FAULTS["a wrong tile operation"] = _of_mutant("the tile's last step is lost")


def _with_damage(damage: Callable[[Path], None]) -> Run:
    """Programs compiled, their entries of the cache damaged, and compiled once more."""

    def run(programs: Sequence[Program], folder: Path) -> Outcome:
        for program in programs:
            Outcome().note(program)
        damage(folder)
        outcome = Outcome()
        for program in programs:
            outcome.note(program)
        return outcome

    return run


def _cut(folder: Path) -> None:
    for path in (*folder.rglob("*.plan"), *folder.rglob("*.o")):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _swapped_files(folder: Path) -> None:
    for kind in ("plan", "o"):
        paths = sorted(folder.rglob(f"*.{kind}"))
        contents = [path.read_bytes() for path in paths]
        for path, content in zip(paths, [*contents[1:], *contents[:1]], strict=True):
            path.write_bytes(content)


def _swapped_entries(folder: Path) -> None:
    """With the checksums and the names that fit."""
    paths = sorted(folder.rglob("*.plan"))
    payloads = [cache.PlanStore(path.parent).get("plan", path.stem) for path in paths]
    for path, payload in zip(paths, [*payloads[1:], *payloads[:1]], strict=True):
        assert cache.PlanStore(path.parent).put("plan", path.stem, payload)


FAULTS["truncated cache entries"] = _with_damage(_cut)
FAULTS["cache entries of other programs"] = _with_damage(_swapped_files)
FAULTS["cache entries of other programs, forged"] = _with_damage(_swapped_entries)


def _made_elsewhere(apply: Callable[[pytest.MonkeyPatch, Path], None]) -> Run:
    """Programs compiled where something else holds, and then here."""

    def run(programs: Sequence[Program], folder: Path) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            apply(patch, folder)
            for program in programs:
                Outcome().note(program)
        outcome = Outcome()
        for program in programs:
            outcome.note(program)
        return outcome

    return run


def _another_machine(patch: pytest.MonkeyPatch, folder: Path) -> None:
    from dataclasses import replace

    path = folder / "other.json"
    path.write_text(replace(machine.load(), launch_us=machine.load().launch_us * 2).to_json())
    patch.setenv(machine.ENVIRONMENT_VARIABLE, str(path))


FAULTS["cache entries of another machine"] = _made_elsewhere(_another_machine)
FAULTS["cache entries of another version"] = _made_elsewhere(
    lambda patch, folder: patch.setattr(eqsat.compiled, "code_fingerprint", lambda: "of another version")
)


@_fault
def _killed_compilers(programs: Sequence[Program], folder: Path) -> Outcome:
    """Processes that compile kernels are killed when they have been started."""
    outcome, sound = Outcome(), Compilers.start

    def start(self: Compilers, kernels: int) -> None:
        sound(self, 99)  # as many as there may be
        assert self._processes
        for process, _ in self._processes:
            process.send_signal(signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compilers, "start", start)
        patch.setenv(JOBS, "2")
        for program in programs:
            outcome.note(program, cache=False)
    return outcome


def killing(function: Function) -> Function:
    """An optimizer that kills its process at programs with an exponential."""
    if "exp" in function.__code__.co_names:
        os.kill(os.getpid(), signal.SIGKILL)
    return function


@_fault
def _killed_fuzz_workers(programs: Sequence[Program], folder: Path) -> Outcome:
    """Each is a finding, and the others go on."""
    report = fuzz.run_jobs(f"{__name__}:killing", examples=12, seed=1, max_ops=12, jobs=1, timeout=60.0)
    killed = [f for f in report.findings if f.failure.kind == "crashed" and "np.exp(" in f.script]
    failed = len(report.findings) - len(killed) + (report.programs != 12)
    return Outcome(caught=len(killed), right=12 - len(report.findings), failed=failed)


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A cache of these runs alone, by the machine model in force."""
    with tempfile.TemporaryDirectory(prefix="eqsat-faults-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        path = folder / "machine.json"
        path.write_text(machine.load().to_json())
        patch.setenv(machine.ENVIRONMENT_VARIABLE, str(path))
        patch.setenv(cache.ENVIRONMENT_VARIABLE, str(folder / "cache"))
        patch.setenv("EQSAT_CHECK_SPEED", "0")
        patch.setenv(JOBS, "1")
        yield folder / "cache"
        shutil.rmtree(folder / "cache", ignore_errors=True)


def run(name: str, examples: int, seed: int) -> Outcome:
    """What becomes of random programs under a fault."""
    programs = list(fuzz.different_programs(examples, seed, 6, OF.get(name, OPERATORS)))
    with own_folder() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder.mkdir(mode=0o700)
        return FAULTS[name](programs, folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)} (default: all)")
    parser.add_argument("--examples", type=int, default=20, help="programs for each fault (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    print(f"{'fault':45}{'caught':>8}{'anew':>8}{'right':>8}{'failed':>8}")
    for name in options.faults or FAULTS:
        if name not in FAULTS:
            parser.error(f"no fault {name!r}; there are {', '.join(FAULTS)}")
        outcome = run(name, options.examples, options.seed)
        print(f"{name:45}{outcome.caught:8}{outcome.anew:8}{outcome.right:8}{outcome.failed:8}", flush=True)
        for text in outcome.said:
            print(text, file=sys.stderr)
        failed += outcome.failed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

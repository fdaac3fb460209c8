"""Compilation from nothing: for each contender and workload a fresh process with empty caches.

The process makes the inputs and imports the contender; then the clock runs, from the contender's ``prepare`` to
its first result, which is compared with float64 afterwards. Nothing that an earlier compilation left behind is
there: eqsat measures the machine anew, Inductor compiles its headers anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.setup import environment, inputs_of, limit_threads, selected
from bench.workload import Workload, in_double

CONTENDERS = ("eqsat", "torch_compile")
ROOT = Path(__file__).parent.parent
LONGEST_S = 1800.0


class ColdError(RuntimeError):
    """A contender that did not compile in a process of its own, or whose first result was wrong there."""


def caches(folder: str) -> dict[str, str]:
    """Variables that put every contender's caches, and their temporary files, below ``folder``."""
    below = Path(folder)
    names = ("EQSAT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "TMPDIR")
    for name in names:
        (below / name).mkdir()
    return {name: str(below / name) for name in names}


def seconds(workload: Workload, contender: str, threads: int, *, repeat: int = 1) -> float:
    """Least seconds of ``repeat`` compilations and first calls, each in a process of its own.

    The first one may wait for the disk, which is nobody's compilation.

    Raises:
        ColdError: the process failed, or its result was wrong; with the last line it wrote.
    """
    taken = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="bench-cold-") as folder:
            variables = {**os.environ, **environment(threads), **caches(folder)}
            variables.pop("EQSAT_MACHINE", None)
            command = [sys.executable, "-m", "bench.cold", workload.suite, workload.name, contender, str(threads)]
            try:
                done = subprocess.run(
                    command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S
                )
            except subprocess.TimeoutExpired as error:
                raise ColdError(f"no first result after {LONGEST_S:.0f} s") from error
        if done.returncode:
            raise ColdError((done.stderr.strip() or f"exit status {done.returncode}").split("\n")[-1])
        taken.append(float(json.loads(done.stdout.strip().split("\n")[-1])))
    return min(taken)


def main(suite: str, name: str, contender: str, threads: int) -> None:
    """In the fresh process: print the seconds."""
    from bench.run import checked

    (workload,) = (w for w in selected([suite], None) if w.name == name)
    inputs = inputs_of(workload)
    with np.errstate(all="ignore"):
        reference = workload.function(*in_double(inputs).values())
    if contender == "eqsat":
        from bench.ours import Ours

        made = checked(Ours(threads, cache=True), workload, inputs, reference, time.perf_counter)
    else:
        from bench.peers import load

        peer = load(contender, threads)
        limit_threads(threads)
        made = checked(peer, workload, inputs, reference, time.perf_counter)
    if made is None:
        raise ColdError(f"{contender} does not apply")
    print(json.dumps(made.first_s))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

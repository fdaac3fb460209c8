"""Compilation from nothing: for each peer and workload a fresh process with empty caches.

The process makes the inputs and imports the peer; then the clock runs, from the peer's ``prepare`` to its first result,
which is compared with float64 afterwards. Nothing that an earlier compilation left behind is there: eqsat measures the
machine anew, Inductor compiles its headers anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.process import PeerProcess, Wrong, reference_of
from bench.workload import Workload

COMPILERS = ("eqsat", "torch_compile")
COLD = "EQSAT_BENCH_COLD"
"""Says to eqsat that the caches of its process are its own, to be filled as a user's are."""


def caches(folder: str) -> dict[str, str]:
    """Variables that put every peer's caches, and their temporary files, below ``folder``."""
    below = Path(folder)
    names = ("EQSAT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "TMPDIR")
    for name in names:
        (below / name).mkdir()
    return {**{name: str(below / name) for name in names}, "EQSAT_MACHINE": "", COLD: "1"}


def seconds(workload: Workload, peer: str, threads: int, *, repeat: int = 1) -> float:
    """Least seconds of ``repeat`` compilations and first calls, each in a process of its own.

    The first one may wait for the disk, which is nobody's compilation.

    Raises:
        WorkerError: the process failed, or took too long.
        Wrong: the peer does not apply, or its first result was wrong.
    """
    taken = []
    reference = reference_of(workload)
    for _ in range(repeat):
        with (
            tempfile.TemporaryDirectory(prefix="bench-cold-") as folder,
            PeerProcess(peer, threads, caches(folder)) as worker,
        ):
            prepared = worker.prepare(workload)
        if prepared is None:
            raise Wrong(f"{peer} does not apply")
        reference.error_of(prepared, workload)
        taken.append(prepared.first_s)
    return min(taken)

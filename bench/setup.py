"""What every benchmark process is set up with: its threads and workloads."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence

import numpy as np

from bench.workload import Inputs, Workload

SUITES = ("gemm", "fused", "attention", "algebra", "models")


def environment(threads: int) -> dict[str, str]:
    """Thread counts that libraries read only when they are loaded."""
    n = str(threads)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS")
    # NPROC sizes XLA's thread pools.
    return {**dict.fromkeys((*names, "NPROC"), n), "JAX_PLATFORMS": "cpu"}


def limit_threads(threads: int) -> None:
    """Libraries that read no environment variable."""
    try:
        import threadpoolctl
    except ImportError:
        return
    threadpoolctl.threadpool_limits(threads)


def selected(suites: Sequence[str], only: str | None) -> list[Workload]:
    """The workloads of the suites, in order."""
    found = [w for suite in suites for w in importlib.import_module(f"bench.{suite}").workloads()]
    return [w for w in found if only is None or only in w.name]


def inputs_of(workload: Workload) -> Inputs:
    """A workload's inputs: random, and the same in every process."""
    return workload.inputs(np.random.default_rng(zlib.crc32(f"{workload.suite}/{workload.name}".encode())))

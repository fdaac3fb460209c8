"""What every benchmark process is set up with: its threads and workloads."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence

import numpy as np

from bench.workload import Inputs, Workload
from eqsat.cost.machine import vector_limit

SUITES = (
    "gemm", "fused", "attention", "algebra", "conv", "chain", "pool", "stencil", "vision", "quant", "models",
    "superopt", "numpy",
)  # fmt: skip
MODULES = {"numpy": "programs", "models": "models.minilm"}
"""Of suites, where these are not called like them."""


AVX2 = {
    "OPENBLAS_CORETYPE": "Haswell",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    # Products that XLA hands to YNNPACK know no limit: 1.4 times what AVX2 can do.
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2 --xla_cpu_experimental_ynn_fusion_type=",
}
"""What holds NumPy's products, PyTorch and JAX to AVX2, as their documentations say."""
WIDE = ("onnxruntime", "numexpr", "numba")
"""Peers whose vectors nothing holds."""


def environment(threads: int) -> dict[str, str]:
    """Thread counts, and a vector width that eqsat is held to, for libraries that read them only when loaded."""
    n = str(threads)
    names = (
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS",
        "HL_NUM_THREADS", "TVM_NUM_THREADS",
    )  # fmt: skip
    # NPROC sizes XLA's thread pools.
    variables = {**dict.fromkeys((*names, "NPROC"), n), "JAX_PLATFORMS": "cpu"}
    return variables | AVX2 if vector_limit() == 256 else variables


def comparable(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Peers that run with vectors as wide as eqsat's, and those that do not: some cannot be held to AVX2."""
    wide = {512: (), 256: WIDE}.get(vector_limit(), names)
    return [name for name in names if name not in wide], [name for name in names if name in wide]


def limit_threads(threads: int) -> None:
    """Libraries that read no environment variable."""
    try:
        import threadpoolctl
    except ImportError:
        return
    threadpoolctl.threadpool_limits(threads)


def selected(suites: Sequence[str], only: str | None) -> list[Workload]:
    """The workloads of the suites, in order."""
    found = [w for suite in suites for w in importlib.import_module(f"bench.{MODULES.get(suite, suite)}").workloads()]
    return [w for w in found if only is None or only in w.name]


def inputs_of(workload: Workload) -> Inputs:
    """A workload's inputs: random, and the same in every process."""
    return workload.inputs(np.random.default_rng(zlib.crc32(f"{workload.suite}/{workload.name}".encode())))

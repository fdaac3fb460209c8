"""NumPy: the function as it stands."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.images import KIND
from bench.peers import Run
from bench.workload import Inputs, Workload, calls


class NumpyPeer:
    name = "numpy"
    version = np.__version__

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        if workload.kind == KIND:
            return None  # eqsat.nn's functions: NumPy has none
        if workload.kind in ("dot", "integers", "quantized_conv"):
            return None  # element by element: seconds a call
        return calls(workload.function, workload, inputs)

    def result(self, value: Any) -> Any:
        return value


def make(threads: int) -> NumpyPeer:
    """Threads come from the environment (OPENBLAS_NUM_THREADS and its like) and threadpoolctl."""
    return NumpyPeer()

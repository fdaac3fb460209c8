"""Numba: whole NumPy programs and elementwise functions as they stand, where it compiles them."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numba

from bench.peers import Run
from bench.workload import Inputs, Workload, calls

KINDS = ("program", "power", "fixed_power")
"""Workloads that it compiles as they stand, to more than calls of a library."""


class NumbaPeer:
    name = "numba"
    version = numba.__version__

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        if workload.kind not in KINDS:
            return None
        compiled = numba.njit(workload.function, parallel=self.threads > 1)
        run = calls(compiled, workload, inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on how to write for Numba
            try:
                run()
            except Exception as error:  # each of its stages refuses with errors of its own
                logging.getLogger("bench").info("numba refuses %s: %s", workload.name, error)
                return None
        return run

    def result(self, value: Any) -> Any:
        return value


def make(threads: int) -> NumbaPeer:
    numba.set_num_threads(threads)
    return NumbaPeer(threads)

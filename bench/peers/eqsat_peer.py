"""eqsat, on the NumPy function as it stands."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import eqsat
from bench.cold import COLD
from bench.peers import Cost, Program, Run
from bench.workload import Inputs, Workload, calls
from eqsat.compiled import Compiled


class EqsatPeer:
    name = "eqsat"
    version = eqsat.__version__

    def __init__(self, threads: int, cache: bool = False, disable: tuple[str, ...] = ()) -> None:
        """``cache``: whether compilations may use and fill the cache; by default each is made from nothing.

        ``disable``: ids of rules to do without.
        """
        self.threads = threads
        self.disable = disable
        self.cache = cache
        self.cost = Cost()

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        """Compiles; ``cost`` says how long that took."""
        # What is timed are our kernels, also where NumPy would be let run in place of them.
        optimized = eqsat.optimize(
            workload.function,
            threads=self.threads,
            const=workload.const,
            cache=self.cache,
            check_speed=False,
            numerics=workload.numerics,
            disable=self.disable,
            budget=workload.budget,
        )
        start = time.perf_counter()
        compiled = optimized.compile(*inputs.values())
        if isinstance(compiled, Compiled):
            search = compiled.report["search"]
            names = ("saturation_seconds", "extraction_seconds", "schedule_seconds")
            searched = sum(float(search[name]) for name in names)
            self.cost = Cost(searched, compiled.seconds - searched, program_of(compiled.report))
        else:  # in parts, or NumPy's own
            assert workload.kind == "program", str(compiled)
            self.cost = Cost(0.0, time.perf_counter() - start)
        return calls(optimized, workload, inputs)

    def result(self, value: Any) -> Any:
        return value


def program_of(report: Mapping[str, Any]) -> Program:
    steps, search = report["steps"], report["search"]
    return Program(
        kernels=len(steps),
        flops=sum(step["flops"] for step in steps),
        nbytes=sum(step["nbytes"] for step in steps),
        predicted_ms=1e3 * sum(step["predicted"] for step in steps),
        enodes=search["enodes"],
        stops=tuple(search["stops"]),
        rules=search["rules"],
        algebra_s=float(search["saturation_seconds"]) + float(search["extraction_seconds"]),
    )


def make(threads: int) -> EqsatPeer:
    return EqsatPeer(threads, cache=COLD in os.environ)

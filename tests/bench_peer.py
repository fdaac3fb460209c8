"""A peer of the benchmarks for tests, which runs in a process of its own: NumPy, with a fault from the environment."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

FAULT = "EQSAT_TEST_FAULT"


class FaultyPeer:
    version = "1"

    def __init__(self, fault: str) -> None:
        self.name = self.fault = fault
        self.calls = 0

    def prepare(self, workload: Any, inputs: dict[str, np.ndarray]) -> Any:
        if self.fault == "refuses":
            raise RuntimeError("no kernel\nand more")
        if self.fault == "does not apply":
            return None
        if self.fault == "exhausts memory":
            np.zeros(1 << 58, np.uint8)  # 256 PiB

        def run() -> Any:
            self.calls += 1
            if self.calls > 3:  # in a turn
                if self.fault == "dies":
                    os.abort()
                if self.fault == "hangs":
                    time.sleep(60)
            result = workload.function(*inputs.values())
            if self.fault == "changes inputs":
                inputs["a"][0, 0] += 1
            return result * np.float32(1.001) if self.fault == "is wrong" else result

        return run

    def result(self, value: Any) -> Any:
        return value


def make(threads: int) -> FaultyPeer:
    return FaultyPeer(os.environ.get(FAULT, ""))

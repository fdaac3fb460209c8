"""Steps that note the time: what the others of a program take in place, with caches as they are there.

A lap has two words of its own: the address of a record, which is [clock, its identity, when the last lap ended, and for
each step that is timed nanoseconds and laps], and the number of the step that it ends.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from typing import Any

import numpy as np
from llvmlite import ir

from eqsat_backends.numba_cpu.compiling.objects import host, load_ir
from eqsat_backends.numba_cpu.running.threads import address_of, addresses
from eqsat_backends.numba_cpu.running.words import Words
from eqsat_backends.numba_cpu.vectors.flow import I32

CLOCK, IDENTITY, LAST, CELLS = range(4)
"""Words of a record."""
OWN = 3
"""Which word of a step's arguments has the address of its own, behind scratch and status."""
SECOND = 10**9

Clock = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
"""``clock_gettime``: of a clock's identity, and where to put seconds and nanoseconds."""


def lap_ir(triple: str) -> str:
    """LLVM IR of ``eqsat_lap``, a kernel: the first share adds the time since the last lap to a step's."""
    module = ir.Module()
    module.triple = triple
    w = Words(module, "eqsat_lap", 3, internal=False)
    args, share, _ = w.arguments
    w.return_if(share.test("!=", 0))
    own = w.get(args, OWN)
    record, cell = w.get(own, 0), w.get(own, 1) * 2 + CELLS
    at = w.room(2)
    w.call(w.get(record, CLOCK), w.get(record, IDENTITY), at, result=I32)
    now = w.get(at, 0) * SECOND + w.get(at, 1)
    w.put(record, cell, w.get(record, cell) + now - w.get(record, LAST))
    w.put(record, cell + 1, w.get(record, cell + 1) + 1)
    w.put(record, LAST, now)
    w.ret()
    return str(module)


class Stopwatch:
    """Times of the steps of a program, and laps that take them.

    ``cells``: of each step, nanoseconds and laps so far.
    """

    def __init__(self, steps: int) -> None:
        self._words = np.zeros(CELLS + 2 * steps, np.int64)
        self._words[[CLOCK, IDENTITY]] = clock()
        self.cells = self._words[CELLS:].reshape(steps, 2)

    def lap(self, step: int) -> dict[str, Any]:
        """A step, as those that are emitted, which adds the time since the last lap to that of ``step``."""
        own = [self._words.ctypes.data, step]
        wires: dict[str, Any] = {"tensors": [], "outputs": [], "packs": [], "shared": 0, "thread": 0, "sizes": own}
        return {"of": step, "kernel": "lap", "code": lap_code(), "phases": ["lap"], **wires}


@functools.cache
def lap_code() -> dict[str, int]:
    """Address of a lap's machine code."""
    return load_ir("lap of a step", lambda: lap_ir(host().triple), {"lap": "eqsat_lap"})


@functools.cache
def clock() -> tuple[int, int]:
    """Address of the system's ``clock_gettime`` and the identity of its monotonic clock; of Python's own elsewhere."""
    (address,) = addresses(("clock_gettime",)) if os.name == "posix" else (0,)
    return (address, time.CLOCK_MONOTONIC) if address else (address_of(_python_clock), 0)


def _read(_: int, place: int) -> int:
    (ctypes.c_int64 * 2).from_address(place)[:] = list(divmod(time.perf_counter_ns(), SECOND))
    return 0


_python_clock = Clock(_read)

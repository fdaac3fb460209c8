"""A peer in a worker process: what runs there, and its handle here."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import measure
from bench.peers import Cost, Peer, Run, load, module_of
from bench.setup import environment, inputs_of, limit_threads, selected
from bench.worker import LONGEST_S, Worker
from bench.workload import Inputs, Workload, calls, in_double, leaves, nbytes, relative_error


@dataclass(frozen=True)
class Prepared:
    """A peer's first result, as NumPy arrays, the seconds from ``prepare`` to it, and the :func:`digest` of the inputs
    after it."""

    result: Any
    first_s: float
    inputs: int
    cost: Cost


class Wrong(Exception):
    """A result too far from the float64 reference, or one of other inputs."""


@dataclass(frozen=True)
class Reference:
    """A workload's result in float64, the :func:`digest` of its inputs, and the bytes of inputs and results."""

    result: Any
    inputs: int
    nbytes: float

    def error_of(self, prepared: Prepared, workload: Workload) -> float:
        """Relative error of a result. Raises ``Wrong`` where it is too large; ``ValueError`` on another shape."""
        if prepared.inputs != self.inputs:
            raise Wrong("it ran on other inputs, or changed them")
        error = relative_error(prepared.result, self.result)
        if not error <= workload.tolerance:
            raise Wrong(f"relative error {error:.1e} against float64, where {workload.tolerance:.0e} is allowed")
        return error


def reference_of(workload: Workload) -> Reference:
    """Computed here, by NumPy."""
    inputs = inputs_of(workload)
    with np.errstate(all="ignore"):
        result = calls(workload.function, workload, in_double(inputs))()
    double = nbytes(*in_double(inputs).values()) > nbytes(*inputs.values())
    return Reference(result, digest(inputs), nbytes(*inputs.values()) + nbytes(result) / (2 if double else 1))


class PeerProcess(Worker):
    """A peer in a process of its own, which has the thread counts in its environment before it imports anything.

    Its module is loaded whenever the process is started. All methods raise ``WorkerError``.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        variables: Mapping[str, str] | None = None,
        *,
        module: str = "",
        limit_s: float = LONGEST_S,
    ) -> None:
        variables = {**environment(threads), **(variables or {})}
        super().__init__(variables, _load, module or module_of(name), threads, limit_s=limit_s)
        self.name = name

    @property
    def version(self) -> str:
        """Of what is timed, once it is ``ready``."""
        return str(self.started)

    def prepare(self, workload: Workload) -> Prepared | None:
        """None where the peer does not apply."""
        return self.call(_prepare, workload.suite, workload.name)

    def turn(self) -> float:
        """Seconds a call of what was prepared (see ``measure.turn``)."""
        return self.call(_turn)


def digest(inputs: Inputs) -> int:
    """A checksum of shapes, dtypes and values."""
    found = 0
    for leaf in leaves(inputs):
        content = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        found = zlib.crc32(content.data, zlib.crc32(f"{leaf.shape} {leaf.dtype}".encode(), found))
    return found


class _Process:
    """What the process holds."""

    peer: Peer
    run: Run | None = None


def _load(module: str, threads: int) -> str:
    _Process.peer = load(module, threads)
    limit_threads(threads)
    return _Process.peer.version


def _prepare(suite: str, name: str) -> Prepared | None:
    _Process.run = None  # frees what the last workload took
    (workload,) = (w for w in selected([suite], None) if w.name == name)
    inputs = inputs_of(workload)
    peer = _Process.peer
    begin = time.perf_counter()
    run = peer.prepare(workload, inputs)
    if run is None:
        return None
    value = run()
    first = time.perf_counter() - begin
    _Process.run = run
    result = peer.result(value)
    return Prepared(result, first, digest(inputs), getattr(peer, "cost", Cost()))


def _turn() -> float:
    assert _Process.run is not None
    return measure.turn(_Process.run)

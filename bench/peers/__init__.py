"""Implementations that are timed. Each is one module here with a class :class:`Peer`; eqsat is one of them.

A peer that is not installed is left out and named; none is a dependency of eqsat.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bench.workload import Inputs, Workload

OURS = "eqsat"
WRITTEN = "as_written"
"""eqsat without its rewrite rules: no peer, but what the suite ``superopt`` compares with."""
NAMES = ("numpy", "torch", "torch_compile", "onnxruntime", "openvino", "tvm", "jax", "numexpr", "numba", "halide")
"""The others."""
Run = Callable[[], Any]


@dataclass(frozen=True)
class Program:
    """A program that eqsat compiled, as it tells of it: work of the kernels, predicted time, how it was found.

    ``rules``: how often each is in it. ``stops``: why its saturations stopped. ``algebra_s``: seconds of saturation
    and selection, what other superoptimizers' search is, without schedules.
    """

    kernels: int
    flops: float
    nbytes: float
    predicted_ms: float
    enodes: int
    stops: tuple[str, ...]
    rules: Mapping[str, int]
    algebra_s: float = 0.0


@dataclass(frozen=True)
class Cost:
    """Seconds of one compilation: search (saturation, extraction, schedules), and all the rest of it; what came out."""

    search_s: float = 0.0
    compile_s: float = 0.0
    program: Program | None = None


class Peer(Protocol):
    """A system that runs workloads. A peer that knows what its compilation took has a ``cost``."""

    name: str
    version: str

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        """A call without arguments that computes the workload to its end, or None where it does not apply.

        Conversion of inputs, compilation and copies of weights happen here or in the first call, not in later ones.
        """

    def result(self, value: Any) -> Any:
        """What ``prepare``'s call returned, as NumPy arrays in NumPy's nesting."""


def module_of(name: str) -> str:
    return f"bench.peers.{name}_peer"


def load(module: str, threads: int) -> Peer:
    """The peer of a module, set to this number of threads. ``ImportError`` where it is not installed."""
    peer: Peer = importlib.import_module(module).make(threads)
    return peer

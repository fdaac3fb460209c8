"""Systems that eqsat is measured against. Each is one module here with a class :class:`Peer`.

A peer that is not installed is left out and named; none is a dependency of eqsat.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from bench.workload import Inputs, Workload

NAMES = ("numpy", "torch", "torch_compile", "onnxruntime", "jax", "numexpr")
Run = Callable[[], Any]


class Peer(Protocol):
    """A system that runs workloads."""

    name: str
    version: str

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        """A call without arguments that computes the workload to its end, or None where it does not apply.

        Conversion of inputs, compilation and copies of weights happen here or in the first call, not in later ones.
        """

    def result(self, value: Any) -> Any:
        """What ``prepare``'s call returned, as NumPy arrays in NumPy's nesting."""


def load(name: str, threads: int) -> Peer:
    """The peer, set to this number of threads. ``ImportError`` where it is not installed."""
    module = importlib.import_module(f"bench.peers.{name}_peer")
    peer: Peer = module.make(threads)
    return peer

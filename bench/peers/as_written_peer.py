"""eqsat on the suite ``superopt`` without rewrite rules: the program as written, fused and scheduled like any other."""

from __future__ import annotations

from bench.peers import WRITTEN, Run
from bench.peers.eqsat_peer import EqsatPeer
from bench.superopt import SUITE
from bench.workload import Inputs, Workload
from eqsat.rules.registry import listed

KEPT = ("fuse.read_store", "fold.constants")
"""Rules by which a program is run rather than rewritten: kernels read what others would store, and what hangs on
constants alone is computed beforehand."""


class AsWrittenPeer(EqsatPeer):
    name = WRITTEN

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        return super().prepare(workload, inputs) if workload.suite == SUITE else None


def make(threads: int) -> AsWrittenPeer:
    return AsWrittenPeer(threads, disable=tuple(rule.id for rule in listed() if rule.id not in KEPT))

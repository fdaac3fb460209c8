"""Whether the library's rules make both sides of a law one class, and whether the checker refutes it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.egraph.check import Counterexample, check_equation
from eqsat.egraph.saturate import saturate
from eqsat.ir.node import Node
from eqsat.ir.types import float32
from eqsat.rules import Rule, builtin, select
from eqsat.rules.examples import Maker
from tests.conformance.notation import Law

ENODES, ROOM, SECONDS = 30_000, 96, 10.0
"""Limits of one law."""


@dataclass(frozen=True)
class Meeting:
    """How a search for one law went. ``made``: e-nodes; ``stop``: why it ended."""

    met: bool
    made: int
    seconds: float
    stop: str
    used: tuple[str, ...]


def meet(law: Law, rules: Sequence[Rule] | None = None, seed: int = 0) -> Meeting:
    """Both sides of each equation in one e-graph, and the rules of the default class of numerics."""
    pairs = law.equations.instance(law.equations.uneven(seed))
    outputs = [node for pair in pairs for node in pair]
    start = time.perf_counter()
    graph = saturate(outputs, rules=select() if rules is None else rules, nodes=ENODES, room=ROOM, seconds=SECONDS)
    seconds = time.perf_counter() - start
    met = all(left == right for left, right in zip(graph.outputs[::2], graph.outputs[1::2], strict=True))
    used = tuple(id for id, stats in graph.report.rules.items() if stats.fired)
    return Meeting(met, graph.report.enodes, seconds, graph.report.stop, used)


def refute(law: Law, trials: int = 400) -> Counterexample | None:
    """A typed instance on which the sides differ, of so many at random."""
    equations = law.equations

    def sides(mk: Maker) -> Sequence[tuple[Node, Node]]:
        extents = equations.draw(random.Random(mk.random.getrandbits(32)))
        return equations.instance(extents, lambda *shape: mk.tensor(*shape, dtype=float32))

    claim = builtin(f"law.{law.number}", equations.text, "reassociates")
    return check_equation(claim, sides, trials=trials).counterexample

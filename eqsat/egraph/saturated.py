"""A saturated e-graph as plain data: what extraction and explanations read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eqsat.ir.identity import identity
from eqsat.ir.node import Node
from eqsat.ir.types import TensorType

if TYPE_CHECKING:
    from eqsat.egraph.proofs import Proofs


@dataclass(frozen=True, slots=True)
class ENode:
    """An operator applied to e-classes (handles); ``attrs`` as in the op table. ``rule``: the id that made it.

    ``handle`` is the term's own, and ``operands`` are those of the terms that it was made over: what is merged with
    each since is in :attr:`SaturatedEGraph.merges`. An e-graph made otherwise has none.
    """

    op: str
    attrs: object
    children: tuple[int, ...]
    rule: str | None = None
    handle: int = field(default=-1, compare=False)
    operands: tuple[int, ...] = field(default=(), compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells its terms apart within a class: operator, attributes by type and bits, operands."""
        return self.op, identity(self.attrs), self.children


FULL = "the tensor has many forms already"
"""Why a match is refused whose class has as many terms as are kept."""


@dataclass
class RuleStats:
    """What one rule did: matches found, guard refusals by reason, right sides added, matches left pending.

    ``held``: it was refused somewhere because the e-graph had outgrown the room of laws that gain nothing.
    """

    matches: int = 0
    fired: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    held: bool = False


@dataclass
class SaturationReport:
    """How the search went. ``stop`` is saturated, nodes, work, seconds, memory, iterations or fork."""

    iterations: int = 0
    enodes: int = 0
    eclasses: int = 0
    seconds: float = 0.0
    work: float = 0.0
    stop: str = "saturated"
    rules: dict[str, RuleStats] = field(default_factory=dict)


@dataclass(frozen=True)
class SaturatedEGraph:
    """E-classes by handle, each with its e-nodes in a fixed order; ``outputs`` are the program's.

    ``const``: classes known at compile time. Leaves are ``input`` and ``const`` e-nodes. ``merges``: for a term's
    handle, those that it was merged with and the rules that did (None: by definition), a forest. ``roots``: the
    handles of the outputs' own terms. ``originals``: classes of the program's own nodes, but for sums inside of
    sums, which are terms of one. ``proofs``: why terms are equal, if that was to be kept.
    """

    classes: dict[int, tuple[ENode, ...]]
    types: dict[int, TensorType]
    const: frozenset[int]
    outputs: tuple[int, ...]
    report: SaturationReport
    merges: Mapping[int, Sequence[tuple[int, str | None]]] = field(default_factory=dict)
    roots: tuple[int, ...] = ()
    originals: Mapping[Node, int] = field(default_factory=dict)
    proofs: Proofs | None = None

"""Which of a region's programs runs: selection predicts by the roofline, here the schedules of their kernels decide.

The roofline does not know what schedules lose, so that selection can expect a gain where there is a loss: up to 6 % of
a region was expected, and -2 % left of it (networks of the suite ``superopt``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.saturate import saturate
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.extract.provenance import rule_provenance
from eqsat.extract.terms import Selection, Term
from eqsat.ir.kernel import KernelGroup
from eqsat.plan.assembly import Assembly
from eqsat.plan.group import CLEAR, Grouping, Piece
from eqsat.plan.lower import Lowered
from eqsat.plan.masks import MaskedPrice, split_masked
from eqsat.plan.place import Found, place
from eqsat.plan.policy import ScheduledPrice
from eqsat.plan.regions import Region
from eqsat.rules import Rule

PLAIN = 0.15
"""Part of the program's time as written from which an expected gain is taken for one: twice what proved to be none."""


FEW = 16
"""Kernels of a program whose rivals are scheduled in any case: that takes some milliseconds a kernel."""
WORTH = 5e-6
"""Seconds that such a program takes at least: scalar loops, written out, have hundreds of regions of a microsecond."""


class Select(Protocol):
    """The best few programs of an e-graph; ``quick``: one, by greedy choice and local search; ``lean``: as if
    computing cost less."""

    def __call__(self, egraph: SaturatedEGraph, *, quick: bool = False, lean: bool = False) -> list[Selection]: ...


def decide(
    region: Region,
    egraph: SaturatedEGraph,
    rules: Sequence[Rule],
    select: Select,
    price: ScheduledPrice,
    lowered: dict[Term, Lowered | None],
    deadline: Deadline = NEVER,
) -> Found:
    """The program of a region that takes least by its schedules: one of the best few of ``egraph``, or as written. But
    the best one by selection stays where that is not clear: the clock confirms gains of 5 %, and not all of 2 %.

    As written is what ``rules`` without left sides make of it, selected quickly; if it wins, the better one of that and
    what is selected well. Where rules have no part in the best one it is as written already, and is compared with
    others if it is a few kernels. Where the best one is expected to be plainly better, others are scheduled only if it
    is a few kernels; nor are kernels of others run together where these are no better apart. Of a few kernels without a
    contraction one more program is tried, that stores less: windows that maps compute again share more of it than
    selection knows.
    """
    best, *others = (Found(egraph, selection) for selection in select(egraph))
    few = len(best.selection.kernels) <= FEW and best.selection.seconds >= WORTH
    ruled = bool(rule_provenance(egraph, best.selection))
    if few and len(best.selection.kernels) > 1 and not _contracts(egraph):
        others.append(Found(egraph, select(egraph, quick=True, lean=True)[0]))
    elif not ruled and not others:
        return best
    written = as_written(region, rules, select, proofs=egraph.proofs is not None) if ruled else None
    if written is not None and best.selection.seconds >= (1 - PLAIN) * written.selection.seconds:
        others.append(written)
    elif not few:
        return best
    scheduled = _Scheduled(region, price, lowered, deadline)
    limit = (1 - CLEAR) * scheduled.apart(best)
    rivals = [other for other in others if scheduled.below(other, limit)]
    found, least = best, (1 - CLEAR) * scheduled.together(best) if rivals else 0.0
    for other in rivals:
        seconds = scheduled.together(other)
        if seconds < least:
            found, least = other, seconds
    if written is not None and found is written:
        well = Found(written.egraph, select(written.egraph)[0])
        return well if scheduled.together(well) <= least else written
    return found


def _contracts(egraph: SaturatedEGraph) -> bool:
    """Whether any of its programs may have a contraction."""
    return any(node.op == "contract" for nodes in egraph.classes.values() for node in nodes)


def as_written(region: Region, rules: Sequence[Rule], select: Select, *, proofs: bool = False) -> Found:
    """The region's own program, its kernels selected quickly. ``proofs``: as for ``saturate``."""
    const = frozenset(n for n, c in zip(region.graph.inputs, region.const, strict=True) if c)
    kept = [rule for rule in rules if not rule.ways and rule.numerics == "exact"]
    own = saturate(region.graph.outputs, rules=kept, const=const, proofs=proofs)
    return Found(own, select(own, quick=True)[0])


@dataclass(frozen=True)
class _Scheduled:
    """What a region's programs take by the schedules of their kernels.

    Operators without a kernel do not count: they are the same in each of a region's programs.
    """

    region: Region
    price: ScheduledPrice
    lowered: dict[Term, Lowered | None]
    deadline: Deadline

    def apart(self, found: Found) -> float:
        """Each kernel by itself: quick, for programs have most of them in common."""
        groups = self._apart(found)
        self.price.prepare(groups)
        return sum(map(self.price.seconds, groups))

    def below(self, found: Found, limit: float) -> bool:
        """Whether that is less than ``limit``: kernels without a known schedule count by their bounds until, longest
        first, their schedules are needed to tell."""
        groups = self._apart(found)
        known = [self.price.known(group) for group in groups]
        total = sum(seconds for seconds in known if seconds is not None)
        bounds = [(self.price.least(g, ()), n) for n, g in enumerate(groups) if known[n] is None]
        left = sum(bound for bound, _ in bounds)
        for bound, n in sorted(bounds, key=lambda pair: (-pair[0], pair[1])):
            if total + left >= limit:
                return False
            left -= bound
            total += self.price.seconds(groups[n])
        return total < limit

    def _apart(self, found: Found) -> list[KernelGroup]:
        assembly = self._assembly(found)
        grouping = Grouping(assembly.pieces, self._outputs(assembly), None, self.deadline)
        return [item.group for item in grouping.run() if not isinstance(item, Piece)]

    def together(self, found: Found) -> float:
        """Kernels run together that should be."""
        assembly = self._assembly(found)
        after = MaskedPrice(assembly.value, self.price)
        total = 0.0
        for item in Grouping(assembly.pieces, self._outputs(assembly), self.price, self.deadline, after).run():
            if not isinstance(item, Piece):
                parts = split_masked(item, after, assembly.buffer)
                total += sum(self.price.seconds(part.group) for part in parts)
        return total

    def _assembly(self, found: Found) -> Assembly:
        assembly = Assembly()
        for node, const in zip(self.region.inputs, self.region.const, strict=True):
            if not const:
                assembly.tensor_of[node] = assembly.fresh(node.type)
        place(self.region, found, assembly, self.lowered)
        return assembly

    def _outputs(self, assembly: Assembly) -> frozenset[int]:
        return frozenset(assembly.tensor_of[node] for node in self.region.outputs)

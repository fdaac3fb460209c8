"""How the program that runs follows from the one that was written, rule by rule.

The e-graph keeps why terms are equal: a forest of merges, each by a rule (Nieuwenhuis and Oliveras, "Proof-producing
congruence closure", 2005; Flatt et al., "Small proofs from congruence closure", 2022). Wherever the program takes a
term in another one's place, the way between the two in that forest is the derivation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from eqsat.compiled import Compiled
from eqsat.egraph.saturated import ENode, SaturatedEGraph
from eqsat.explain.derived import Derivation, Equation
from eqsat.explain.work import node_flops
from eqsat.extract.credit import enode_of, way_between
from eqsat.extract.terms import Read, Selection, Term
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import Node, topological
from eqsat.ir.sources import InputAttrs
from eqsat.ir.table import make
from eqsat.why import chosen, searched_again

MOST_FLOPS = 2e9
"""Operations of the terms that are still computed to check a step."""


def derivation(program: Compiled) -> Derivation:
    """The steps from the program as written to the one that runs, regions in order.

    Regions are searched once more. Equal ones are told once. Each step is computed on random inputs.
    """
    steps: list[Equation] = []
    named = dict(zip(program.traced.graph.inputs, program.traced.graph.names, strict=False))
    for region, egraph in searched_again(program):
        winner = chosen(program, region, egraph)
        names = tuple(named.get(node, f"x{n}") for n, node in enumerate(region.inputs))
        steps += [replace(step, names=names) for step in _Steps(winner.egraph, winner.selection).run()]
    return Derivation(tuple(steps))


class _Steps:
    """The equations of one region."""

    def __init__(self, egraph: SaturatedEGraph, winner: Selection) -> None:
        self.egraph = egraph
        self.by_handle = {n.handle: n for nodes in egraph.classes.values() for n in nodes if n.handle >= 0}
        self.kernels = {term.eclass: term for term in (*winner.constants, *winner.kernels)}
        self.terms: dict[int, Node] = {}
        self.done: set[tuple[int, int]] = set()

    def run(self) -> Iterator[Equation]:
        for handle, eclass in zip(self.egraph.roots, self.egraph.outputs, strict=True):
            if eclass in self.kernels:
                yield from self._expand(handle, self.kernels[eclass])

    def _expand(self, handle: int, term: Term) -> Iterator[Equation]:
        """What replaces the term of a handle, then what replaces its operands."""
        node = enode_of(self.egraph, term)
        if node is None or (handle, node.handle) in self.done:
            return
        self.done.add((handle, node.handle))
        yield from self._between(handle, node)
        for child, operand in zip(term.children, node.operands, strict=False):
            below = self.kernels.get(child.eclass) if isinstance(child, Read) else child
            if below is not None:
                yield from self._expand(operand, below)

    def _between(self, handle: int, node: ENode) -> Iterator[Equation]:
        """The steps from a term to an e-node of its class; terms that are gone by now are passed over."""
        at, by = handle, dict[str, None]()
        for rule, near in way_between(self.egraph, handle, node.handle):
            if rule is not None:
                by[rule] = None
            if near not in self.by_handle or not by:
                continue
            before, after = self._term(at), self._term(near)
            if after is None:
                continue
            if before is not None:
                yield self._equation(tuple(by), before, after)
            at, by = near, {}

    def _equation(self, by: tuple[str, ...], before: Node, after: Node) -> Equation:
        nodes = topological([before, after])
        if sum(map(node_flops, nodes)) > MOST_FLOPS:
            return Equation(by, before, after, None, "that would take long")
        rng = np.random.default_rng(0)
        values: dict[Node, np.ndarray] = {}
        for leaf in nodes:
            if isinstance(leaf.attrs, InputAttrs):
                drawn = rng.standard_normal(leaf.shape) if leaf.dtype.is_float else rng.integers(0, 2, leaf.shape)
                values[leaf] = np.asarray(drawn).astype(leaf.dtype.numpy)
        try:
            a, b = (np.asarray(v, np.float64) for v in evaluate_nodes([before, after], values, double=True))
        except (IndexError, ValueError) as error:
            return Equation(by, before, after, None, f"random inputs are none of the program's: {error}")
        finite = np.isfinite(a) & np.isfinite(b)
        if (np.isfinite(a) != np.isfinite(b)).any():
            return Equation(by, before, after, np.inf)
        if not finite.any():
            return Equation(by, before, after, None, "on random inputs nothing is finite")
        largest = np.abs(a[finite]).max(initial=0.0)
        return Equation(by, before, after, float(np.abs(a - b)[finite].max(initial=0.0) / (largest or 1.0)))

    def _term(self, handle: int) -> Node | None:
        """A term as it was made, over terms as they were made; of one that is gone, the nearest in the forest.

        None where that leads into a circle: what is near may have the term that is gone inside.
        """
        stack, inside = [handle], {handle}
        while stack:
            at = stack[-1]
            node = self._known(at)
            operands = () if node is None else node.operands or node.children
            missing = next((o for o in operands if o not in self.terms), None)
            if node is None or missing in inside:
                return None
            if missing is not None:
                stack.append(missing)
                inside.add(missing)
                continue
            inside.remove(stack.pop())
            self.terms[at] = make(node.op, [self.terms[o] for o in operands], node.attrs)
        return self.terms[handle]

    def _known(self, handle: int) -> ENode | None:
        """The e-node of a handle; of one that is gone, the nearest in the forest of merges."""
        seen, queue = {handle}, [handle]
        for at in queue:
            if at in self.by_handle:
                return self.by_handle[at]
            for near, _ in self.egraph.merges.get(at, ()):
                if near not in seen:
                    seen.add(near)
                    queue.append(near)
        return None

"""Rule provenance: which rules a selected program came from.

A rule is in a program if it made one of its e-nodes, or if it is part of the proof that an e-node stands where
another one stood: ``x * 1 -> x`` makes nothing, but without it the program would multiply. What the match of such a
rule rested on in turn is not followed.
"""

from __future__ import annotations

from collections.abc import Iterable

from eqsat.egraph.saturated import ENode, SaturatedEGraph
from eqsat.extract.terms import Read, Selection, Term
from eqsat.ir.identity import identity


def way_between(egraph: SaturatedEGraph, one: int, other: int) -> list[tuple[str | None, int]]:
    """The way between two terms' handles in the forest of merges: rules, and the handles that they lead to.

    It is a proof that they are equal, not always the shortest (Nieuwenhuis and Oliveras, "Proof-producing congruence
    closure", 2005); merges by congruence carry the rule that caused them. Empty where there is none.
    """
    if one == other:
        return []
    came: dict[int, tuple[int, str | None]] = {one: (one, None)}
    stack = [one]
    while stack and other not in came:
        at = stack.pop()
        for near, rule in egraph.merges.get(at, ()):
            if near not in came:
                came[near] = (at, rule)
                stack.append(near)
    way: list[tuple[str | None, int]] = []
    at = other
    while at in came and at != one:
        before, rule = came[at]
        way.append((rule, at))
        at = before
    return way[::-1]


def proof(egraph: SaturatedEGraph, one: int, other: int) -> tuple[str, ...]:
    """The rules on the way between two terms."""
    return tuple(dict.fromkeys(rule for rule, _ in reversed(way_between(egraph, one, other)) if rule is not None))


def enode_of(egraph: SaturatedEGraph, term: Term) -> ENode | None:
    """The e-node that a selected term is made from."""
    key = (term.op, identity(term.attrs), tuple(c.eclass for c in term.children))
    return next((n for n in egraph.classes.get(term.eclass, ()) if n.key == key), None)


def rule_provenance(egraph: SaturatedEGraph, selection: Selection) -> dict[str, int]:
    """How often each rule made an e-node of the program, or a place where one e-node stands for another."""
    counts: dict[str, int] = {}
    chosen: dict[int, ENode] = {}
    seen: set[tuple[int, int]] = set()

    def add(rules: Iterable[str]) -> None:
        for rule in rules:
            counts[rule] = counts.get(rule, 0) + 1

    def stands_for(handle: int, node: ENode | None) -> None:
        """``node`` is taken where the term of ``handle`` stood."""
        if node is None or handle < 0 or node.handle < 0 or (handle, node.handle) in seen:
            return
        seen.add((handle, node.handle))
        add(rule for rule in proof(egraph, handle, node.handle) if rule != node.rule)

    def leaf(eclass: int) -> ENode | None:
        return chosen.get(eclass) or next((n for n in egraph.classes.get(eclass, ()) if not n.children), None)

    def visit(term: Term) -> None:
        node = enode_of(egraph, term)
        if node is None:
            return
        if node.rule is not None:
            add([node.rule])
        for child, operand in zip(term.children, node.operands or [-1] * len(node.children), strict=True):
            stands_for(operand, leaf(child.eclass) if isinstance(child, Read) else enode_of(egraph, child))

    for term in selection.kernels:
        node = enode_of(egraph, term)
        if node is not None:
            chosen[term.eclass] = node
    for kernel in selection.kernels:
        for term in kernel.inlined():
            visit(term)
    for handle, eclass in zip(egraph.roots, egraph.outputs, strict=False):
        stands_for(handle, leaf(eclass))
    return dict(sorted(counts.items()))

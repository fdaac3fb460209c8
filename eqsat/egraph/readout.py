"""The term store as plain data, in an order that no hashing decides."""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.egraph.encode import Terms
from eqsat.egraph.proofs import Proofs, Recorded
from eqsat.egraph.saturated import ENode, SaturatedEGraph, SaturationReport
from eqsat.ir.node import Node, topological


def read_out(store: Terms, outputs: Sequence[Node], report: SaturationReport) -> SaturatedEGraph:
    """The classes that the outputs reach, by handle; e-nodes in the order they were made, the program's first."""
    members: dict[int, list[ENode]] = {}
    seen: set[tuple[int, str, int, tuple[int, ...]]] = set()
    total = 0
    for term in store.terms:
        if not term.live:
            continue
        total += 1
        handle = store.find(term.handle)
        op, attrs, children = store.canonical(term)
        key = (handle, op, attrs, children)
        if key in seen:
            continue
        seen.add(key)
        own = {store.find(c): c for c in term.children}
        members.setdefault(handle, []).append(
            ENode(op, store.attrs.values[attrs], children, term.rule, term.handle, tuple(own[c] for c in children))
        )
    roots = tuple(store.handle(o) for o in outputs)
    reached: dict[int, None] = {}
    stack = list(dict.fromkeys(reversed(roots)))
    while stack:
        handle = stack.pop()
        if handle in reached:
            continue
        reached[handle] = None
        for node in members[handle]:
            stack.extend(c for c in node.children if c not in reached)
    report.enodes = total
    report.eclasses = len(members)
    classes = {handle: tuple(members[handle]) for handle in sorted(reached)}
    return SaturatedEGraph(
        classes,
        {handle: store.types[handle] for handle in classes},
        frozenset(h for h in classes if store.is_known(h)),
        roots,
        report,
        store.merges,
        tuple(store.own_handle(o) for o in outputs),
        {node: store.handle(node) for node in topological(outputs) if store.has(node)},
        Proofs(store) if isinstance(store, Recorded) else None,
    )

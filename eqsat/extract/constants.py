"""Tensors known at compile time: which terms to evaluate for those that a program reads."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.extract.terms import Read, Term


def constant_terms(egraph: SaturatedEGraph, wanted: Iterable[int]) -> tuple[Term, ...]:
    """One operator per constant class that ``wanted`` needs, over other constants, operands first.

    The e-node of least work is taken (elements computed, summed over the tree); the earliest one on ties,
    which is the program's own. Raises ``ValueError`` where a class has no term over constants.
    """
    wanted = list(dict.fromkeys(wanted))
    reachable = dict.fromkeys(wanted)
    stack = list(wanted)
    while stack:
        for node in egraph.classes[stack.pop()]:
            for child in node.children:
                if child in egraph.const and child not in reachable:
                    reachable[child] = None
                    stack.append(child)
    users: dict[int, list[tuple[int, int]]] = {}
    waiting: dict[tuple[int, int], int] = {}
    total: dict[tuple[int, int], float] = {}
    heap: list[tuple[float, int, int]] = []
    for c in reachable:
        for i, node in enumerate(egraph.classes[c]):
            operands = set(node.children)
            if not operands <= egraph.const:
                continue
            total[c, i] = float(egraph.types[c].size + 1) if node.op not in ("const", "input") else 0.0
            waiting[c, i] = len(operands)
            for child in operands:
                users.setdefault(child, []).append((c, i))
            if not operands:
                heap.append((total[c, i], i, c))
    heapq.heapify(heap)
    best: dict[int, int] = {}
    while heap:
        cost, i, c = heapq.heappop(heap)
        if c in best:
            continue
        best[c] = i
        for user in users.get(c, ()):
            total[user] += cost
            waiting[user] -= 1
            if waiting[user] == 0 and user[0] not in best:
                heapq.heappush(heap, (total[user], user[1], user[0]))
    terms: dict[int, Term] = {}

    def visit(c: int) -> None:
        walk = [c]
        while walk:
            at = walk[-1]
            if at in terms:
                walk.pop()
                continue
            if at not in best:
                raise ValueError(f"e-class {at} ({egraph.types[at]}) is marked constant but has no term over constants")
            node = egraph.classes[at][best[at]]
            missing = [child for child in node.children if child not in terms]
            if missing:
                walk.extend(reversed(missing))
                continue
            children = tuple(Read(child, egraph.types[child], True) for child in node.children)
            terms[at] = Term(at, node.op, node.attrs, egraph.types[at], children)
            walk.pop()

    for c in wanted:
        visit(c)
    return tuple(terms.values())

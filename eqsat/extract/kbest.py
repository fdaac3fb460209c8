"""The k cheapest different solutions of a choice problem.

Lawler's partition ("A procedure for computing the K best solutions to discrete optimization problems", 1972): all
solutions but the best one differ from it at a first target, in an order where users come before what they need. One
problem for each such target has them all, none twice: what is before it is as in the best one, and its choice is gone.
The best solutions of these problems are the rivals for the next place.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from eqsat.extract.branch import branch_and_bound
from eqsat.extract.budget import Budget
from eqsat.extract.hypergraph import Problem, Solution, greedy, reduced, renumbered
from eqsat.extract.local import Search, Shape


def k_best(
    problem: Problem,
    k: int,
    budget: Budget,
    *,
    best: Solution | None = None,
    shape: Shape | None = None,
    within: float = float("inf"),
) -> list[Solution]:
    """The ``k`` cheapest solutions of different ``shape`` (default: any two are different), best first.

    Choices need different tags. ``best``: the first one, where it is known; no other is put before it. ``within``: the
    part of its cost by which others may be more expensive. Each is found by branch and bound: the list is exact for
    problems small enough for that, and what was found when the ``budget`` was spent; there may be fewer than ``k``.
    """
    first = best or _solved(problem, frozenset(), budget)
    if first is None or k < 1:
        return []
    limit = first.cost * (1 + within) if within < float("inf") else within
    found: list[Solution] = []
    seen: set[object] = set()
    heap: list[tuple[float, int, Solution, frozenset[int]]] = [(first.cost, 0, first, frozenset())]
    count = 0
    while heap and len(found) < k:
        _, _, solution, gone = heapq.heappop(heap)
        key = shape(problem, solution) if shape is not None else frozenset(solution.chosen.items())
        if key not in seen:
            seen.add(key)
            found.append(solution)
        for without in _partition(problem, solution, gone) if len(found) < k else ():
            if budget.over():
                return found
            budget.spend(len(problem.choices))
            other = _solved(problem, without, budget)
            if other is not None and other.cost <= limit:
                count += 1
                heapq.heappush(heap, (other.cost, count, other, without))
    return found


def _partition(problem: Problem, solution: Solution, gone: frozenset[int]) -> Iterator[frozenset[int]]:
    """The choices that are gone in each part of all other solutions without ``gone``."""
    before = set(gone)
    for target, number in reversed(solution.chosen.items()):
        rivals = [n for n in problem.by_target[target] if n != number and n not in before]
        if rivals:
            yield frozenset(before | {number})
        before.update(rivals)


def _solved(problem: Problem, gone: frozenset[int], budget: Budget) -> Solution | None:
    """The best solution without some choices, or the best one found; None where there is none."""
    left = reduced(problem.without(gone))
    start = greedy(left, budget.deadline)
    if start is None:
        return None
    near = Search(left, start, budget).run()
    return renumbered(branch_and_bound(left, near, budget)[0], left, problem)

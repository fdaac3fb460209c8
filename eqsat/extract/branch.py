"""Branch and bound over choices, with dual ascent for the bound: exact for small problems, without a solver.

A node of the search is a problem with choices taken out. It is split on a choice of its greedy solution:
either that choice is not taken, or it is the only one of its target.
"""

from __future__ import annotations

import heapq

from eqsat.extract.ascent import dual_ascent
from eqsat.extract.budget import INFINITY, Budget
from eqsat.extract.hypergraph import Problem, Solution, greedy, reduced, renumbered


def branch_and_bound(
    problem: Problem, best: Solution, budget: Budget, *, nodes: int = 400, tolerance: float = 1e-6
) -> tuple[Solution, float]:
    """(best solution, lower bound): equal within ``tolerance`` when the search was completed.

    ``nodes``: most nodes looked at. The problem should be reduced.
    """
    count = 0
    floor = INFINITY  # least bound of what was put aside
    heap: list[tuple[float, int, Problem]] = [(0.0, 0, problem)]
    while heap:
        bound, _, here = heapq.heappop(heap)
        if bound >= best.cost * (1 - tolerance):
            floor = min(floor, bound)
            break
        if count >= nodes or budget.over():
            floor = min(floor, bound)
            break
        count += 1
        budget.spend(4 * len(here.choices))  # greedy and what is left out
        found = greedy(here, budget.deadline)
        if found is None:
            continue
        if found.cost < best.cost * (1 - 1e-12):
            better = renumbered(found, here, problem)
            assert better is not None
            best = better
        ascents = [dual_ascent(here, budget, deep=deep) for deep in (True, False)]
        bound = max(bound, *(ascent.bound for ascent in ascents))
        if bound >= best.cost * (1 - tolerance):
            floor = min(floor, bound)
            continue
        left = max(ascents, key=lambda ascent: ascent.bound).left
        # A choice taken that the bound has not paid for is where the two disagree.
        free = [n for target, n in found.chosen.items() if len(here.by_target[target]) > 1]
        if not free:
            floor = min(floor, found.cost)
            continue
        split = max(free, key=lambda n: (left[n], here.choices[n].cost, -n))
        gone = {n for a in ascents for n, value in enumerate(a.left) if a.bound + value > best.cost * (1 + 1e-9)}
        rivals = {n for n in here.by_target[here.choices[split].target] if n != split}
        for number, without in enumerate(({split}, rivals)):
            heapq.heappush(heap, (bound, 2 * count + number, reduced(here.without(gone | without))))
    return best, min(floor, best.cost)

"""The best solution of a choice problem within a time limit, with a bound that says how good it is.

Greedy, then local search; then dual ascent, whose reduced costs take out choices that no better solution
has, again and again; what is left goes to branch and bound if it is small, else to an integer program with
the ascent's cuts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from eqsat.extract.ascent import dual_ascent, fixed
from eqsat.extract.branch import branch_and_bound
from eqsat.extract.hypergraph import (
    INFINITY,
    Problem,
    Search,
    Shape,
    Solution,
    cheapest,
    greedy,
    renumbered,
    solution_of,
)
from eqsat.extract.ilp import GAP, solve

MIN_ILP_SECONDS = 0.05
FIXINGS = 6
SMALL = 80
"""Choices of a problem that is first tried by branch and bound."""


@dataclass(frozen=True)
class Optimum:
    """``solution``: the best found; ``others``: the best different ones met, best first. ``bound``: no solution
    costs less. ``method``: greedy, ascent, branch or ilp, whichever closed the gap; "time limit" if none did."""

    solution: Solution
    others: tuple[Solution, ...]
    bound: float
    method: str


def optimum(
    problem: Problem,
    deadline: float,
    *,
    start: Solution | None = None,
    keep: int = 1,
    shape: Shape | None = None,
    ilp: bool = True,
    gap: float = GAP,
) -> Optimum | None:
    """Solve a reduced problem until ``deadline`` (of ``time.monotonic``); None where a root cannot be made.
    ``start``: a solution known already.

    ``keep`` solutions that differ by ``shape`` are remembered. The search ends within ``gap`` of the optimum.
    """
    first = start or greedy(problem)
    if first is None:
        return None
    search = Search(problem, first, deadline, keep, shape)
    search.run()
    # Other starts end in other local optima.
    for other in (greedy(problem) if start else None, solution_of(problem, cheapest(problem)[1])):
        if other is not None and time.monotonic() < deadline:
            search.offer(Search(problem, other, deadline).run().chosen)
    best = search.best
    bound, method, small = 0.0, "greedy", problem
    for number in range(FIXINGS):
        # The first one runs to its end: a bound there shall be.
        ascents = [
            dual_ascent(small, deadline if number or not deep else INFINITY, deep=deep) for deep in (True, False)
        ]
        bound = max(bound, *(ascent.bound for ascent in ascents))
        if best.cost <= bound * (1 + gap):
            method = "ascent" if number else "greedy"
            break
        before = len(small.choices)
        small = fixed(small, ascents, best.cost)
        if len(small.choices) == before or time.monotonic() > deadline:
            break
        again = greedy(small)
        if again is not None:
            found = renumbered(Search(small, again, deadline).run(), small, problem)
            if found is not None and search.offer(found.chosen):
                best = search.best
    closed = best.cost <= bound * (1 + gap)
    left = deadline - time.monotonic()
    inside = None if closed else renumbered(best, problem, small)
    if inside is not None and len(small.choices) <= SMALL:
        # Spares the import of a solver, which takes longer than this.
        leaf, reached = branch_and_bound(small, inside, deadline, tolerance=gap)
        found = renumbered(leaf, small, problem)
        if found is not None and search.offer(found.chosen):
            best = search.best
        bound = max(bound, reached)
        closed = best.cost <= bound * (1 + gap)
        method, inside = "branch", renumbered(best, problem, small)
        left = deadline - time.monotonic()
    if not closed:
        method = "time limit"
        if ilp and left > MIN_ILP_SECONDS and inside is not None:
            same = len(ascents[0].left) == len(small.choices)  # else numbered as before the last fixing
            cuts = list(dict.fromkeys(cut for ascent in ascents for cut in ascent.cuts)) if same else []
            outcome = solve(small, inside, left, bound, cuts, gap)
            found = renumbered(outcome.solution, small, problem)
            if found is not None and search.offer(found.chosen):
                best = search.best
            bound = outcome.bound
            if outcome.proven:
                method = "ilp"
    others = tuple(s for s in search.alternatives() if s.chosen != best.chosen)
    return Optimum(best, others, min(bound, best.cost), method)

"""The best solution of a choice problem within a budget, with a bound that says how good it is.

Greedy, then local search; then dual ascent, whose reduced costs take out choices that no better solution
has, again and again; what is left goes to branch and bound if it is small, else to local search from every target
stored by force, and to an integer program with the ascent's cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.extract.ascent import dual_ascent, fixed
from eqsat.extract.branch import branch_and_bound
from eqsat.extract.budget import Budget
from eqsat.extract.hypergraph import (
    Problem,
    Solution,
    greedy,
    renumbered,
    solution_of,
)
from eqsat.extract.ilp import GAP, solve
from eqsat.extract.local import Search, Shape

FIXINGS = 6
TAKEN = 0.05
"""Part of the choices that a fixing takes out at least where another one is tried: else it would find hardly more."""
FIRST = 1e6
"""Work of the first ascent, which the budget does not limit: each step walks the problem, and it takes as many steps as
there are choices."""
SMALL = 80
"""Choices of a problem that is first tried by branch and bound."""
HOPE = 1.25
"""Where the best solution costs more than this times the first bound, and choices are many, there is no second ascent:
it takes as long, and made no difference to the networks of the suite superopt."""
FORCED = 500
"""Choices of a problem in which every target is stored once by force: it takes 0.15 s, and 5 s with 2,000."""
SMALL_PROGRAM = 200
"""Choices of an integer program that takes little time (up to 0.1 s) whatever the gap."""

LIMITED = WORK_LIMIT, TIME_LIMIT = "work limit", "time limit"
"""Methods of solutions that may not be the best: which limit came first."""


@dataclass(frozen=True)
class Optimum:
    """``solution``: the best found; ``others``: the best different ones met, best first. ``bound``: no solution
    costs less. ``method``: greedy, ascent, branch or ilp, whichever closed the gap; if none did, "work limit", or
    "time limit" where the clock stopped it."""

    solution: Solution
    others: tuple[Solution, ...]
    bound: float
    method: str


def optimum(
    problem: Problem,
    budget: Budget,
    *,
    start: Solution | None = None,
    first: Solution | None = None,
    tried: Sequence[Solution] = (),
    keep: int = 1,
    shape: Shape | None = None,
    ilp: bool = True,
    gap: float = GAP,
    fine: float = GAP,
) -> Optimum | None:
    """Solve a reduced problem within a budget; None where a root cannot be made.
    ``start``: a solution known already; ``first``: the greedy one, likewise. ``tried``: from which local search has
    been tried before; it does not start from them again.

    ``keep`` solutions that differ by ``shape`` are remembered. The search ends within ``gap`` of the optimum, or
    within ``fine`` of it where at most ``SMALL_PROGRAM`` choices are left.
    """
    first = first or greedy(problem, budget.deadline)
    if first is None:
        return None
    begun = [start or first]
    search = Search(problem, begun[0], budget, keep, shape)
    search.run()
    # Other starts end in other local optima.
    for other in (first, solution_of(problem, problem.trees[1])):
        if other is None or other.is_among(begun) or other.is_among(tried) or budget.over():
            continue
        begun.append(other)
        search.offer(Search(problem, other, budget).run().chosen)
    best = search.best
    bound, method, small = 0.0, "greedy", problem

    def near() -> float:
        """How near is near enough."""
        return fine if len(small.choices) <= SMALL_PROGRAM else gap

    def closed() -> bool:
        return best.cost <= bound * (1 + near())

    for number in range(FIXINGS):
        # The first one has work of its own: a bound there shall be, whatever is left.
        ascents = [dual_ascent(small, budget if number else Budget(work=FIRST, deadline=budget.deadline))]
        bound = max(bound, ascents[0].bound)
        if bound * (1 + min(fine, gap)) < best.cost and (best.cost <= bound * HOPE or len(small.choices) <= FORCED):
            ascents.append(dual_ascent(small, budget, deep=False))
            bound = max(bound, ascents[1].bound)
        if best.cost <= bound * (1 + min(fine, gap)):
            method = "ascent" if number else "greedy"
            break
        left = fixed(small, ascents, best.cost)
        if len(left.choices) > (1 - TAKEN) * len(small.choices):
            break  # the ascents' cuts stay numbered as the choices are
        small = left
        if budget.over():
            break
        again = greedy(small, budget.deadline)
        if again is not None:
            found = renumbered(Search(small, again, budget).run(), small, problem)
            if found is not None and search.offer(found.chosen):
                best = search.best
    inside = None if closed() else renumbered(best, problem, small)
    if inside is not None and len(small.choices) <= SMALL:
        # Spares the import of a solver, which takes longer than this.
        leaf, reached = branch_and_bound(small, inside, budget, tolerance=near())
        found = renumbered(leaf, small, problem)
        if found is not None and search.offer(found.chosen):
            best = search.best
        bound = max(bound, reached)
        method, inside = "branch", renumbered(best, problem, small)
    elif inside is not None and len(small.choices) <= FORCED:
        around = Search(small, inside, budget)
        around.force()
        found = renumbered(around.best, small, problem)
        if found is not None and search.offer(found.chosen):
            best = search.best
        inside = renumbered(best, problem, small)
    if not closed():
        method = WORK_LIMIT
        if ilp and inside is not None:
            same = len(ascents[0].left) == len(small.choices)  # else numbered as before the last fixing
            cuts = list(dict.fromkeys(cut for ascent in ascents for cut in ascent.cuts)) if same else []
            outcome = solve(small, inside, budget, bound, cuts, fine if len(small.choices) <= SMALL_PROGRAM else gap)
            found = renumbered(outcome.solution, small, problem)
            if found is not None and search.offer(found.chosen):
                best = search.best
            bound = outcome.bound
            if outcome.proven:
                method = "ilp"
        if method == WORK_LIMIT and budget.late:
            method = TIME_LIMIT
    others = tuple(s for s in search.alternatives() if s.chosen != best.chosen)
    return Optimum(best, others, min(bound, best.cost), method)

"""A lower bound of a choice problem by dual ascent, and what follows from it.

Let D be what can be made from choices whose cost is used up. While a root is outside D, walk from it:
of every choice follow one need outside D. A choice met with all its needs in D is in the cut. Each finite
way of making the root takes some choice of the cut, so the least remaining cost in it can be charged, taken off
all of them and added to the bound. This is Wong's dual ascent for Steiner arborescences (1984), carried
over to hypergraphs. Cycles get no credit: what only supports itself is never in D.

What remains of a choice's cost, its reduced cost, is the least by which a solution with it exceeds the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.extract.budget import INFINITY, Budget
from eqsat.extract.hypergraph import Problem, reduced


@dataclass(frozen=True)
class Ascent:
    """``cuts``: sets of choices of which each solution takes one. ``left``: reduced cost of every choice."""

    bound: float
    left: tuple[float, ...]
    cuts: tuple[tuple[int, ...], ...]


def dual_ascent(problem: Problem, budget: Budget | None = None, *, deep: bool = True) -> Ascent:
    """The bound; a valid, weaker one when the budget is spent (None: no limit).

    Of a choice's needs, the walk follows the cheapest one to make (``deep``) or the most expensive: the
    bounds and the cuts differ, and neither order is the better one everywhere.
    """
    tree, _ = problem.trees
    choices, users = problem.choices, problem.users
    left = [choice.cost for choice in choices]
    waiting = [len(choice.needs) for choice in choices]
    made: set[int] = set()
    sign = 1.0 if deep else -1.0
    # Of each choice those that may still be missing, the one to follow last.
    missing = [sorted(choice.needs, key=lambda t: (-sign * tree.get(t, INFINITY), -t)) for choice in choices]
    # Of each target those that its choices follow, and how many do; and the choices that have all they need.
    followed: dict[int, dict[int, int]] = {target: {} for target in problem.by_target}
    ready: dict[int, list[int]] = {target: [] for target in problem.by_target}

    def follow(number: int) -> None:
        needs, target = missing[number], choices[number].target
        while needs and needs[-1] in made:
            needs.pop()
        if needs:
            followed[target][needs[-1]] = followed[target].get(needs[-1], 0) + 1
        else:
            ready[target].append(number)

    def settle(number: int) -> None:
        """This choice is used up: make what can be made now."""
        stack = [number]
        while stack:
            at = stack.pop()
            target = choices[at].target
            if waiting[at] or left[at] > 0 or target in made:
                continue
            made.add(target)
            for user in users.get(target, ()):
                waiting[user] -= 1
                stack.append(user)
                if missing[user] and missing[user][-1] == target:
                    others = followed[choices[user].target]
                    others[target] -= 1
                    if not others[target]:
                        del others[target]
                    follow(user)

    for number in range(len(choices)):
        follow(number)
    for number in range(len(choices)):
        settle(number)
    bound = 0.0
    cuts: list[tuple[int, ...]] = []
    for root in problem.roots:
        while root not in made:
            if budget is not None and budget.over():
                return Ascent(bound, tuple(left), tuple(cuts))
            cut: list[int] = []
            seen = {root}
            stack = [root]
            while stack:
                target = stack.pop()
                if target in followed:
                    cut += ready[target]
                    for need in followed[target]:
                        if need not in seen:
                            seen.add(need)
                            stack.append(need)
            if budget is not None:
                budget.spend(len(seen) + len(cut))
            if not cut:
                return Ascent(INFINITY, tuple(left), tuple(cuts))
            step = min([left[number] for number in cut])
            bound += step
            cuts.append(tuple(sorted(cut)))
            for number in cut:
                left[number] -= step
                if left[number] <= 0:
                    left[number] = 0.0
                    settle(number)
    return Ascent(bound, tuple(left), tuple(cuts))


def fixed(problem: Problem, ascents: Sequence[Ascent], best: float) -> Problem:
    """Without choices that only solutions worse than ``best`` can have."""
    limit = best * (1 + 1e-9)
    gone = {n for ascent in ascents for n, left in enumerate(ascent.left) if ascent.bound + left > limit}
    return reduced(problem.without(gone)) if gone else problem

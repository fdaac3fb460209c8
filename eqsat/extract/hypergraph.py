"""Choosing at least cost among alternatives that share what they need.

Every target is made by one of its choices; a choice costs something and needs other targets, which are paid
once however many need them. Kernels over tensors and e-nodes over e-classes are both of this form. The
problem is NP-hard; here are the greedy methods, and a lower bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eqsat.deadline import NEVER, Deadline
from eqsat.extract.budget import INFINITY
from eqsat.forks import lazy

MOST_HELD = 20_000_000
"""Needs that greedy selection writes down at most, a second's work: a chain of so many targets has half its square."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to make ``target`` from ``needs`` (distinct, sorted); ``tag`` names it whatever its number is."""

    target: int
    needs: tuple[int, ...]
    cost: float
    tag: int = 0


Chosen = Mapping[int, int]
"""The number of the choice taken for each target."""


@dataclass(frozen=True)
class Problem:
    """Choices, in an order that breaks ties, and the targets wanted."""

    choices: tuple[Choice, ...]
    roots: tuple[int, ...]

    @lazy
    def by_target(self) -> dict[int, tuple[int, ...]]:
        """Numbers of the choices of every target that has any."""
        found: dict[int, list[int]] = {}
        for number, choice in enumerate(self.choices):
            found.setdefault(choice.target, []).append(number)
        return {target: tuple(numbers) for target, numbers in found.items()}

    @lazy
    def users(self) -> dict[int, tuple[int, ...]]:
        """Numbers of the choices that need a target."""
        found: dict[int, list[int]] = {}
        for number, choice in enumerate(self.choices):
            for need in choice.needs:
                found.setdefault(need, []).append(number)
        return {target: tuple(numbers) for target, numbers in found.items()}

    @lazy
    def sizes(self) -> tuple[tuple[float, ...], tuple[int, ...], tuple[int, ...]]:
        """Of every choice its cost and how many targets it needs; and the numbers of those that need none."""
        needs = tuple([len(choice.needs) for choice in self.choices])
        return tuple([choice.cost for choice in self.choices]), needs, tuple([n for n, c in enumerate(needs) if not c])

    @lazy
    def trees(self) -> tuple[dict[int, float], dict[int, int]]:
        """Least tree cost of every target and the choice that has it (see :func:`cheapest`)."""
        return cheapest(self)

    def wanting(self, target: int) -> Problem:
        """The same choices with one more target wanted."""
        found = Problem(self.choices, (*self.roots, target))
        found.__dict__.update(by_target=self.by_target, users=self.users, sizes=self.sizes)  # whatever is wanted
        return found

    def without(self, refused: Iterable[int]) -> Problem:
        """The same problem with some choices (by number) gone."""
        gone = set(refused)
        return Problem(tuple(c for number, c in enumerate(self.choices) if number not in gone), self.roots)


@dataclass(frozen=True)
class Solution:
    """Choices by target in dependency order, only those needed, and their total cost."""

    chosen: dict[int, int]
    cost: float

    def is_among(self, others: Iterable[Solution]) -> bool:
        """Whether one of these has the same choices."""
        return any(self.chosen == other.chosen for other in others)


def renumbered(solution: Solution, old: Problem, new: Problem) -> Solution | None:
    """The same choices in another problem, found by their tags; None where one is not there."""
    number = {choice.tag: n for n, choice in enumerate(new.choices)}
    chosen = {target: number.get(old.choices[n].tag, -1) for target, n in solution.chosen.items()}
    return None if -1 in chosen.values() else Solution(chosen, solution.cost)


def solution_of(problem: Problem, chosen: Chosen) -> Solution | None:
    """What the roots need of ``chosen``, in dependency order; None where a target is missing or needs itself."""
    order: dict[int, int] = {}
    open_: set[int] = set()
    choices, given = problem.choices, chosen.get
    for root in problem.roots:
        if root in order:
            continue
        number = given(root)
        if number is None:
            return None
        path = [(root, number, iter(choices[number].needs))]
        open_.add(root)
        while path:
            target, number, needs = path[-1]
            for need in needs:
                if need in order:
                    continue
                below = given(need)
                if below is None or need in open_:
                    return None
                open_.add(need)
                path.append((need, below, iter(choices[below].needs)))
                break
            else:
                path.pop()
                order[target] = number
    return Solution(order, sum([choices[number].cost for number in order.values()]))


def cheapest(problem: Problem, given: Iterable[int] = ()) -> tuple[dict[int, float], dict[int, int]]:
    """Least tree cost of every target and the choice that has it, with ``given`` targets for free.

    Knuth's generalization of Dijkstra's algorithm (1977): targets leave the queue in order of cost, so the
    choices never form a cycle, even at cost 0.
    """
    choices, users = problem.choices, problem.users
    cost: dict[int, float] = {}
    best: dict[int, int] = {}
    costs, needs, leaves = problem.sizes
    waiting, total = list(needs), list(costs)
    heap: list[tuple[float, int, int]] = [(0.0, -1, target) for target in sorted(set(given))]
    heap += [(total[n], n, choices[n].target) for n in leaves]
    heapq.heapify(heap)
    while heap:
        value, number, target = heapq.heappop(heap)
        if target in cost:
            continue
        cost[target] = value
        if number >= 0:
            best[target] = number
        for user in users.get(target, ()):
            waiting[user] -= 1
            total[user] += value
            if not waiting[user] and choices[user].target not in cost:
                heapq.heappush(heap, (total[user], user, choices[user].target))
    return cost, best


def reduced(problem: Problem) -> Problem:
    """Without choices that no best solution needs: of targets out of reach, in want of something that cannot be
    made, that need their own target, or that another choice of the target beats in cost and needs."""
    cost, best = problem.trees
    good = [
        n for n, c in enumerate(problem.choices) if c.target not in c.needs and all(need in cost for need in c.needs)
    ]
    by_target: dict[int, list[int]] = {}
    for n in good:
        by_target.setdefault(problem.choices[n].target, []).append(n)
    seen = dict.fromkeys(problem.roots)
    stack = list(seen)
    kept: list[int] = []
    while stack:
        ranked = sorted(by_target.get(stack.pop(), ()), key=lambda n: (problem.choices[n].cost, n))
        front: list[frozenset[int]] = []
        for n in ranked:
            needs = frozenset(problem.choices[n].needs)
            if any(other <= needs for other in front):
                continue
            front.append(needs)
            kept.append(n)
            for need in problem.choices[n].needs:
                if need not in seen:
                    seen[need] = None
                    stack.append(need)
    kept.sort()
    found = Problem(tuple([problem.choices[n] for n in kept]), problem.roots)
    number = {n: new for new, n in enumerate(kept)}
    if all(best.get(target) in number for target in seen):  # no tie was decided for a choice that is gone
        trees = {t: c for t, c in cost.items() if t in seen}, {t: number[n] for t, n in best.items() if t in seen}
        found.__dict__.update(trees=trees)
    return found


def greedy(problem: Problem, deadline: Deadline = NEVER, passes: int = 8) -> Solution | None:
    """Least cost bottom-up, counting shared targets once per target (not across); None if a root cannot be made."""
    _, best = problem.trees
    first = solution_of(problem, best)
    if first is None:
        return None
    # What a target needs in all, with the choice for each; refined until nothing falls.
    sets: dict[int, dict[int, int]] = {}
    totals: dict[int, float] = {}
    costs, choices, by_target = problem.sizes[0], problem.choices, problem.by_target
    pending = list(dict.fromkeys(best))  # in order of tree cost: operands come first
    held = 0
    for _ in range(passes):
        changed: dict[int, None] = {}
        for target in pending:
            deadline.check("selecting kernels")
            for number in by_target[target]:
                needs, limit = choices[number].needs, totals.get(target, INFINITY) * (1 - 1e-12)
                # Hardly any union is cheaper than with the dearest of its needs alone: it is where another need's set
                # has a better choice by now for what both need, which local search finds, too.
                if costs[number] + max([totals.get(need, INFINITY) for need in needs], default=0.0) >= limit:
                    continue
                union: dict[int, int] = {}
                for need in needs:
                    below = sets.get(need)
                    if below is None or target in below:
                        break
                    union.update(below)
                else:
                    union[target] = number
                if target not in union:
                    continue
                total = sum([costs[n] for n in union.values()])
                if total < limit:
                    held += len(union)
                    if held > MOST_HELD:
                        return first
                    sets[target], totals[target] = union, total
                    changed[target] = None
        if not changed:
            break
        again = {choices[user].target for t in changed for user in problem.users.get(t, ())}
        pending = [t for t in best if t in again]
    final = solution_of(problem, {target: chosen[target] for target, chosen in sets.items()})
    return final if final is not None and final.cost < first.cost else first

"""Local search among the choices of a problem: moves are priced by what they change, taken where the total falls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eqsat.extract.budget import INFINITY, Budget
from eqsat.extract.hypergraph import Chosen, Problem, Solution, cheapest, solution_of

Shape = Callable[[Problem, Solution], object]

SLACK = 1e-9
"""Part of a cost by which sums in another order may differ."""


def _needs(problem: Problem, solution: Solution) -> object:
    return frozenset((target, problem.choices[number].needs) for target, number in solution.chosen.items())


class _Priced:
    """What a solution costs with changes, without going through all of it: by how many choices need each target."""

    def __init__(self, problem: Problem, solution: Solution) -> None:
        self.choices = problem.choices
        self.solution = solution
        self.counts: dict[int, int] = dict.fromkeys(problem.roots, 1)
        for number in solution.chosen.values():
            for need in self.choices[number].needs:
                self.counts[need] = self.counts.get(need, 0) + 1

    def cost(self, changes: Mapping[int, int], fill: Mapping[int, int]) -> float:
        """The total, but for rounding, with these choices for targets instead, and others as in ``fill``.

        What needs itself is not noticed. Infinity where a target is missing.
        """
        choices, chosen, counts = self.choices, self.solution.chosen, self.counts
        total = self.solution.cost
        now: dict[int, int] = {}
        entered: dict[int, int] = {}
        stack: list[int] = []
        for target, number in changes.items():
            if target in chosen:
                total += choices[number].cost - choices[chosen[target]].cost
                stack.extend(choices[number].needs)
        while stack:
            target = stack.pop()
            count = now.get(target)
            if count is None:
                count = counts.get(target, 0)
            now[target] = count + 1
            if not count:
                entering = changes.get(target)
                if entering is None:
                    entering = fill.get(target)
                if entering is None:
                    return INFINITY
                entered[target] = entering
                total += choices[entering].cost
                stack.extend(choices[entering].needs)
        for target in changes:
            if target in chosen:
                stack.extend(choices[chosen[target]].needs)
        while stack:
            target = stack.pop()
            count = now.get(target)
            if count is None:
                count = counts[target]
            now[target] = count - 1
            if count == 1:
                leaving = entered.get(target)
                if leaving is None:
                    leaving = changes.get(target)
                if leaving is None:
                    leaving = chosen[target]
                total -= choices[leaving].cost
                stack.extend(choices[leaving].needs)
        return total


class Search:
    """Local improvement of a solution, which also remembers the best different solutions met.

    ``shape`` says what makes solutions different; without one, that some target has other needs.
    Moves: another choice for one target; to store one more target and let others use it; to drop one and
    let its users do without. A move is taken when the total falls.
    """

    def __init__(
        self,
        problem: Problem,
        start: Solution,
        budget: Budget,
        keep: int = 1,
        shape: Shape | None = None,
        far: dict[int, int] | None = None,
    ) -> None:
        self.problem = problem
        self.shape = shape or _needs
        self.best = start
        self.budget = budget
        self.keep = keep
        self.met: dict[object, Solution] = {}
        self.far = problem.trees[1] if far is None else far
        self.priced: _Priced | None = None
        self.filled: tuple[Solution, dict[int, float], dict[int, int]] | None = None
        """A solution, and what ``_fill`` found for it."""
        self._remember(start)

    def _remember(self, solution: Solution) -> None:
        """Keep the best few of different shapes."""
        if solution.cost >= self._worst():
            return
        key = self.shape(self.problem, solution)
        if key not in self.met or solution.cost < self.met[key].cost:
            self.met[key] = solution
        if len(self.met) > self.keep:
            worst = max(self.met, key=lambda k: self.met[k].cost)
            del self.met[worst]

    def _worst(self) -> float:
        """The cost from which a solution is not remembered."""
        return INFINITY if len(self.met) < self.keep else max([s.cost for s in self.met.values()])

    def alternatives(self) -> list[Solution]:
        """Best first; ties by the choices' numbers."""
        return sorted(self.met.values(), key=lambda s: (s.cost, sorted(s.chosen.items())))

    def offer(self, chosen: Chosen) -> bool:
        """Take these choices if they are a better solution."""
        self.budget.spend(len(self.best.chosen))
        return self._take(chosen)

    def _take(self, chosen: Chosen) -> bool:
        solution = solution_of(self.problem, chosen)
        if solution is None:
            return False
        self._remember(solution)
        if solution.cost < self.best.cost * (1 - 1e-12):
            self.best = solution
            return True
        return False

    def _try(self, changes: Mapping[int, int], fill: Mapping[int, int]) -> None:
        """Offer the solution with some choices changed, and with those of ``fill`` for targets that it has not."""
        self.budget.spend(len(self.best.chosen))
        if self.priced is None or self.priced.solution is not self.best:
            self.priced = _Priced(self.problem, self.best)
        limit = max(self.best.cost, self._worst())
        if self.priced.cost(changes, fill) <= limit * (1 + SLACK):
            self._take({**fill, **self.best.chosen, **changes})

    def run(self, *, brief: bool = False) -> Solution:
        """Until no move helps or the budget is spent; every target is looked at once in any case, and only that if
        ``brief``."""
        self._rechoose(Budget(deadline=self.budget.deadline))
        while not brief and not self.budget.over() and self._sweep():
            pass
        return self.best

    def _sweep(self) -> bool:
        before = self.best.cost
        self._store()
        self._drop()
        self._rechoose(self.budget)
        return self.best.cost < before

    def force(self) -> None:
        """Store every other target once, whatever it costs, and improve what is around it.

        It finds what pays only together: one target stored for another, with kernels of several users changed.
        """
        _, fill = self._fill()
        for target in sorted(self.problem.by_target):
            if self.budget.over():
                return
            if target in self.best.chosen or target not in fill:
                continue
            wider = self.problem.wanting(target)
            start = solution_of(wider, {**fill, **self.best.chosen})
            if start is None:
                continue
            around = Search(wider, start, self.budget, far=self.far)
            around._sweep()
            if self.offer(around.best.chosen):
                _, fill = self._fill()

    def _fill(self) -> tuple[dict[int, float], dict[int, int]]:
        """What one more target costs next to the solution, and choices for all, also those it may lose."""
        self.budget.spend(len(self.problem.choices))
        if self.filled is None or self.filled[0] is not self.best:
            cost, near = cheapest(self.problem, self.best.chosen)
            self.filled = self.best, cost, {**self.far, **near}
        return self.filled[1:]

    def _rechoose(self, budget: Budget) -> None:
        # Costs of additions go stale as moves are taken: they only sort out moves, each of which is priced exactly.
        cost, fill = self._fill()
        choices = self.problem.choices
        for target in list(self.best.chosen)[::-1]:
            if budget.over():
                return
            for number in self.problem.by_target[target]:
                chosen = self.best.chosen
                if target not in chosen:
                    break
                choice = choices[number]
                extra = sum([cost.get(need, INFINITY) for need in choice.needs if need not in chosen])
                if number != chosen[target] and choice.cost + extra < self.best.cost:
                    self._try({target: number}, fill)

    def _store(self) -> None:
        wanted = {
            need
            for target in self.best.chosen
            for number in self.problem.by_target[target]
            for need in self.problem.choices[number].needs
            if need not in self.best.chosen
        }
        _, fill = self._fill()
        choices = self.problem.choices
        for extra in sorted(wanted):
            if self.budget.over():
                return
            chosen = self.best.chosen
            if extra not in fill or extra in chosen:
                continue
            least: dict[int, tuple[float, int]] = {}
            for number in self.problem.users.get(extra, ()):
                choice = choices[number]
                target = choice.target
                if target not in chosen:
                    continue
                limit = least[target][0] if target in least else choices[chosen[target]].cost
                if choice.cost < limit and all(need == extra or need in chosen for need in choice.needs):
                    least[target] = choice.cost, number
            if least:
                self._try({extra: fill[extra], **{target: number for target, (_, number) in least.items()}}, fill)

    def _drop(self) -> None:
        choices = self.problem.choices
        cost, fill = self._fill()
        for gone in list(self.best.chosen):
            if self.budget.over():
                return
            chosen = self.best.chosen
            if gone in self.problem.roots or gone not in chosen:
                continue
            changes: dict[int, int] = {}
            for user in self.problem.users.get(gone, ()):
                target = choices[user].target
                if chosen.get(target) != user:
                    continue
                options = [
                    (choices[n].cost + sum([cost.get(x, INFINITY) for x in choices[n].needs if x not in chosen]), n)
                    for n in self.problem.by_target[target]
                    if gone not in choices[n].needs
                ]
                if not options or min(options)[0] == INFINITY:
                    break
                changes[target] = min(options)[1]
            else:
                self._try(changes, fill)

"""The integer program of a choice problem, solved by HiGHS within a budget of nodes.

    minimize  Σ cost·x        x: is this choice taken     y: is this target made
    y = 1                     for what the roots require
    Σ x over its choices ≥ y  for every target
    Σ x over the choices of t that need u ≤ y[u]     for every pair (t, u), likewise that require u
    Σ cost·x ≤ (1 - gap) · the best cost known

The last row asks for a solution that is worth having: mostly there is none, and to see that takes a part of the
time that to close the gap does (measured on MiniLM's layers: 0.3 s against 1 to 4).
Acyclicity is added lazily: solve, find the cycles taken, forbid each, solve again. Full ordering
constraints make such programs hundreds of times slower (measured on Tensat's graphs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eqsat.aside import aside, load
from eqsat.extract.budget import Budget
from eqsat.extract.hypergraph import Problem, Solution, solution_of

if TYPE_CHECKING:
    import numpy as np

MAX_ROUNDS = 60
SCALE = 1e4
"""The start solution's cost in the program's units: HiGHS's tolerances are absolute."""
GAP = 1e-6
LONGEST = 60.0
"""Seconds of one integer program where no budget says less: HiGHS looks at its clock, not at Ctrl-C."""


@dataclass(frozen=True)
class Outcome:
    """``solution``: the best known. ``bound``: no solution costs less. ``rounds``: programs solved."""

    solution: Solution
    bound: float
    proven: bool
    rounds: int


def solve(
    problem: Problem,
    start: Solution,
    budget: Budget,
    bound: float = 0.0,
    cuts: Sequence[Sequence[int]] = (),
    gap: float = GAP,
) -> Outcome:
    """The optimum (within ``gap`` of it, relative), or the best found within ``budget``; never worse than ``start``.

    ``problem`` should be reduced; ``bound`` is a lower bound known already, and every solution takes at
    least one choice of each of ``cuts``.
    """
    outcome = Outcome(start, min(bound, start.cost), start.cost <= bound * (1 + gap), 0)
    if outcome.proven or len(problem.choices) > budget.choices or start.cost <= 0:
        return outcome
    program = _Program(problem, SCALE / start.cost)
    for cut in cuts:
        program.row(list(cut), [1.0] * len(cut), 1.0, float("inf"))
    while outcome.rounds < MAX_ROUNDS and budget.nodes > 0 and not budget.over():
        ceiling = outcome.solution.cost * (1 - gap)
        values, dual, optimal = program.run(budget, gap, ceiling)
        # What costs more than ``ceiling`` was left out of the program, so that its bound says nothing beyond.
        outcome = replace(outcome, bound=max(outcome.bound, min(dual, ceiling)), rounds=outcome.rounds + 1)
        if values is None and optimal:
            return replace(outcome, proven=True)
        if values is None:
            break
        cycles, repaired = program.read(values)
        if repaired is not None and repaired.cost < outcome.solution.cost:
            outcome = replace(outcome, solution=repaired)
        if outcome.solution.cost <= outcome.bound * (1 + 2 * gap) or (optimal and not cycles):
            return replace(outcome, proven=True)
        if not cycles:
            break
        program.forbid(cycles)
    return outcome


class _Program:
    """The matrix form; rows are kept as lists so that cuts can be added."""

    def __init__(self, problem: Problem, scale: float) -> None:
        self.problem = problem
        self.scale = scale
        self.targets = list(problem.by_target)
        count = len(problem.choices)
        self.y = {target: count + place for place, target in enumerate(self.targets)}
        self.columns = count + len(self.targets)
        self.rows: list[tuple[list[int], list[float], float, float]] = []  # columns, factors, least, most
        self.forced = set(problem.roots)
        self.needing: dict[tuple[int, int], list[int]] = {}
        for target, numbers in problem.by_target.items():
            self.row([*numbers, self.y[target]], [1.0] * len(numbers) + [-1.0], 0.0, float("inf"))
            for number in numbers:
                for need in problem.choices[number].needs:
                    self.needing.setdefault((target, need), []).append(number)
        for (_, need), users in self.needing.items():
            if need not in self.forced:
                self.row([*users, self.y[need]], [1.0] * len(users) + [-1.0], -float("inf"), 0.0)

    def row(self, columns: list[int], factors: list[float], least: float, most: float) -> None:
        self.rows.append((columns, factors, least, most))

    def run(self, budget: Budget, gap: float, most: float) -> tuple[np.ndarray | None, float, bool]:
        """(values of the variables or None, lower bound, whether they are proven optimal, or that there are none).

        Of the solutions that cost at most ``most``.
        """
        import numpy as np

        load("highspy")
        import highspy
        from highspy._core import _Highs  # ``Highs`` adds a language for models, and prints a line when it is made

        count = len(self.problem.choices)
        # What costs more than ``most`` is in no solution, whatever it costs; HiGHS refuses factors of 1e15.
        scaled = [min(c.cost, 2 * most) * self.scale for c in self.problem.choices]
        rows = [*self.rows, (list(range(count)), scaled, -float("inf"), most * self.scale)]
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self.columns, len(rows)
        model.col_cost_ = np.array(scaled + [0.0] * (self.columns - count))
        least = np.zeros(self.columns)
        for target in self.forced:
            least[self.y[target]] = 1.0
        model.col_lower_, model.col_upper_ = least, np.ones(self.columns)
        # With whole x, the least y is whole too.
        whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        model.integrality_ = [whole] * count + [real] * (self.columns - count)
        model.row_lower_ = np.array([row[2] for row in rows])
        model.row_upper_ = np.array([row[3] for row in rows])
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in rows)])
        model.a_matrix_.index_ = np.array([c for row in rows for c in row[0]], np.int32)
        model.a_matrix_.value_ = np.array([f for row in rows for f in row[1]])
        solver = _Highs()
        for option, value in {
            "output_flag": False,
            "threads": 1,
            "time_limit": min(max(0.01, min(budget.seconds, budget.deadline.left)), LONGEST),
            "mip_max_nodes": budget.nodes,
            "mip_rel_gap": gap,
        }.items():
            solver.setOptionValue(option, value)
        solver.passModel(model)
        aside("selecting kernels", budget.deadline, solver.run)
        status, info = solver.getModelStatus(), solver.getInfo()
        budget.nodes -= 1 + max(0, info.mip_node_count)
        budget.over()  # sees whether the clock stopped it
        if status == highspy.HighsModelStatus.kInfeasible:
            return None, most, True
        solution = solver.getSolution()
        values = np.array(solution.col_value) if solution.value_valid else None
        return values, info.mip_dual_bound / self.scale, status == highspy.HighsModelStatus.kOptimal

    def read(self, values: Sequence[float] | np.ndarray) -> tuple[list[list[int]], Solution | None]:
        """The cycles of targets among the choices taken, and the solution when there are none."""
        taken: dict[int, int] = {}
        for number, choice in enumerate(self.problem.choices):
            if values[number] > 0.5:
                known = taken.get(choice.target)
                if known is None or choice.cost < self.problem.choices[known].cost:
                    taken[choice.target] = number
        solution = solution_of(self.problem, taken)
        if solution is not None:
            return [], solution
        return find_cycles({t: self.problem.choices[n].needs for t, n in taken.items()}, self.problem.roots), None

    def forbid(self, cycles: Sequence[Sequence[int]]) -> None:
        """At least one target of each cycle must not need the next one."""
        for cycle in cycles:
            numbers = [n for t, u in zip(cycle, [*cycle[1:], cycle[0]], strict=True) for n in self.needing[t, u]]
            self.row(numbers, [1.0] * len(numbers), -float("inf"), len(cycle) - 1.0)


def find_cycles(needs: dict[int, tuple[int, ...]], roots: Sequence[int]) -> list[list[int]]:
    """Cycles closed by the back edges of a depth-first walk from the roots; none if and only if acyclic there."""
    done: set[int] = set()
    cycles: list[list[int]] = []
    for root in roots:
        path: list[int] = []
        place: dict[int, int] = {}
        stack: list[tuple[int, int]] = [(root, 0)]
        while stack:
            target, edge = stack.pop()
            if edge == 0:
                if target in done:
                    continue
                place[target] = len(path)
                path.append(target)
            following = needs.get(target, ())
            if edge == len(following):
                done.add(target)
                del place[path.pop()]
                continue
            stack.append((target, edge + 1))
            need = following[edge]
            if need in place:
                cycles.append(path[place[need] :])
            elif need not in done:
                stack.append((need, 0))
    return cycles

"""Choice problems: every method against brute force, its bounds, cycles and sharing."""

from __future__ import annotations

import itertools
from random import Random
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.extract.ascent import dual_ascent, fixed
from eqsat.extract.branch import branch_and_bound
from eqsat.extract.budget import Budget
from eqsat.extract.hypergraph import Choice, Problem, Solution, cheapest, greedy, reduced, solution_of
from eqsat.extract.ilp import find_cycles, solve
from eqsat.extract.kbest import k_best
from eqsat.extract.local import Search, _Priced
from eqsat.extract.optimum import optimum
from tests.sweeps import a_part


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to 6 targets and 14 choices, cyclic ones too, costs with many ties; the root is target 0."""
    targets = draw(st.integers(1, 6))
    ids = st.integers(0, targets - 1)
    choices = [
        Choice(target, tuple(sorted(set(draw(st.lists(ids, max_size=3))))), draw(st.integers(0, 6)), tag)
        for tag, target in enumerate(draw(st.lists(ids, min_size=1, max_size=14)))
    ]
    return Problem(tuple(choices), (0,) if draw(st.booleans()) else tuple(sorted({0, targets - 1})))


def brute_force(problem: Problem) -> float:
    """The optimum over every assignment of one choice to each target, by `solution_of`'s definition."""
    targets = list(problem.by_target)
    best = float("inf")
    for picks in itertools.product(*(problem.by_target[t] for t in targets)):
        chosen = dict(zip(targets, picks, strict=True))
        cost, open_ = 0.0, list(dict.fromkeys(problem.roots))
        needed: set[int] = set()
        while open_:
            target = open_.pop()
            if target in needed:
                continue
            needed.add(target)
            if target not in chosen:
                cost = float("inf")
                break
            cost += problem.choices[chosen[target]].cost
            open_.extend(problem.choices[chosen[target]].needs)
        if cost >= best:
            continue
        # Acyclic: targets can be taken away one by one, those whose needs are gone first.
        left = set(needed)
        while ready := [t for t in left if not left & set(problem.choices[chosen[t]].needs)]:
            left -= set(ready)
        if not left:
            best = cost
    return best


def check_solution(problem: Problem, chosen: dict[int, int], cost: float) -> None:
    done: set[int] = set()
    for target, number in chosen.items():
        assert problem.choices[number].target == target
        assert done.issuperset(problem.choices[number].needs), "not in dependency order"
        done.add(target)
    assert done.issuperset(problem.roots)
    assert cost == pytest.approx(sum(problem.choices[n].cost for n in chosen.values()))


@settings(max_examples=a_part(300), deadline=None)
@given(problems())
def test_optimum_is_that_of_brute_force(problem: Problem) -> None:
    exact = brute_force(problem)
    small = reduced(problem)
    best = optimum(small, Budget())
    if exact == float("inf"):
        assert best is None and greedy(small) is None
        return
    assert best is not None
    check_solution(small, best.solution.chosen, best.solution.cost)
    assert best.solution.cost == pytest.approx(exact)
    assert best.bound == pytest.approx(exact)


@settings(max_examples=a_part(300), deadline=None)
@given(problems())
def test_what_is_known_of_a_reduced_problem_is_what_it_comes_to(problem: Problem) -> None:
    small = reduced(problem)
    again = Problem(small.choices, small.roots)
    assert [list(found.items()) for found in small.trees] == [list(found.items()) for found in cheapest(again)]


@settings(max_examples=a_part(150), deadline=None)
@given(problems())
def test_starts_that_were_tried_are_not_tried_again(problem: Problem) -> None:
    """Neither a known greedy choice nor a search from it that is left out changes what is found in the end."""
    small = reduced(problem)
    first = greedy(small)
    if first is None:
        return
    start = Search(small, first, Budget()).run()
    known = optimum(small, Budget(), start=start, first=first, tried=[first])
    fresh = optimum(small, Budget(), start=start)
    assert known is not None and fresh is not None
    assert known.solution.cost == pytest.approx(fresh.solution.cost)
    assert known.bound == pytest.approx(fresh.bound)


@settings(max_examples=a_part(150), deadline=None)
@given(problems())
def test_integer_program_alone_finds_the_optimum(problem: Problem) -> None:
    exact = brute_force(problem)
    small = reduced(problem)
    start = greedy(small)
    if start is None or start.cost == 0:
        assert exact in (0, float("inf"))
        return
    outcome = solve(small, start, Budget())
    check_solution(small, outcome.solution.chosen, outcome.solution.cost)
    assert outcome.proven
    assert outcome.solution.cost == pytest.approx(exact)


@settings(max_examples=a_part(300), deadline=None)
@given(problems())
def test_greedy_search_ascent_and_fixing_keep_their_promises(problem: Problem) -> None:
    exact = brute_force(problem)
    small = reduced(problem)
    start = greedy(small)
    if start is None:
        assert exact == float("inf")
        return
    check_solution(small, start.chosen, start.cost)
    assert start.cost >= exact - 1e-9
    search = Search(small, start, Budget(), keep=3)
    improved = search.run()
    check_solution(small, improved.chosen, improved.cost)
    assert exact - 1e-9 <= improved.cost <= start.cost + 1e-9
    for other in search.alternatives():
        check_solution(small, other.chosen, other.cost)
    search.force()
    check_solution(small, search.best.chosen, search.best.cost)
    assert exact - 1e-9 <= search.best.cost <= improved.cost + 1e-9
    ascents = [dual_ascent(small, deep=deep) for deep in (True, False)]
    for ascent in ascents:
        assert ascent.bound <= exact + 1e-9
        for cut in ascent.cuts:
            assert set(cut) & set(improved.chosen.values())
    assert brute_force(fixed(small, ascents, improved.cost)) == pytest.approx(exact)


@settings(max_examples=a_part(200), deadline=None)
@given(problems(), st.integers(0, 3))
def test_branch_and_bound_alone_finds_the_optimum(problem: Problem, nodes: int) -> None:
    exact = brute_force(problem)
    small = reduced(problem)
    _, by_tree = cheapest(small)
    start = solution_of(small, by_tree)
    if start is None:
        assert exact == float("inf")
        return
    best, bound = branch_and_bound(small, start, Budget())
    check_solution(small, best.chosen, best.cost)
    assert best.cost == pytest.approx(exact) and bound == pytest.approx(exact)
    # Cut short, it still bounds.
    some, bound = branch_and_bound(small, start, Budget(), nodes=nodes)
    assert bound <= exact + 1e-9 <= some.cost + 2e-9


def all_solutions(problem: Problem) -> dict[frozenset[tuple[int, int]], Solution]:
    targets = list(problem.by_target)
    picks = itertools.product(*(problem.by_target[t] for t in targets))
    made = (solution_of(problem, dict(zip(targets, pick, strict=True))) for pick in picks)
    return {frozenset(s.chosen.items()): s for s in made if s is not None}


@settings(max_examples=a_part(150), deadline=None)
@given(problems(), st.integers(1, 5))
def test_the_k_best_solutions_are_the_first_of_all_in_order(problem: Problem, k: int) -> None:
    every = sorted(s.cost for s in all_solutions(problem).values())
    found = k_best(problem, k, Budget())
    assert [s.cost for s in found] == pytest.approx(every[:k])
    assert len({frozenset(s.chosen.items()) for s in found}) == len(found)
    assert found == k_best(problem, k, Budget())
    for solution in found:
        check_solution(problem, solution.chosen, solution.cost)


def test_the_k_best_differ_by_shape_and_stay_within_a_part_of_the_best() -> None:
    choices = (Choice(0, (1,), 1.0, 0), Choice(0, (2,), 1.1, 1), Choice(1, (), 1.0, 2), Choice(1, (), 1.05, 3))
    problem = Problem((*choices, Choice(2, (), 5.0, 4)), (0,))
    assert [s.cost for s in k_best(problem, 9, Budget())] == pytest.approx([2.0, 2.05, 6.1])
    assert [s.cost for s in k_best(problem, 9, Budget(), within=0.1)] == pytest.approx([2.0, 2.05])
    by_targets = k_best(problem, 9, Budget(), shape=lambda _, solution: frozenset(solution.chosen))
    assert [s.cost for s in by_targets] == pytest.approx([2.0, 6.1])
    (only,) = k_best(problem, 9, Budget(work=0))
    assert only.cost == 2.0
    assert k_best(Problem(choices[1:2], (0,)), 3, Budget()) == []


@settings(max_examples=a_part(200), deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_a_changed_solution_is_priced_as_if_it_were_made_anew(problem: Problem, random: Random) -> None:
    small = reduced(problem)
    start = greedy(small)
    if start is None:
        return
    fill = cheapest(small)[1]
    priced = _Priced(small, start)
    for target in start.chosen:
        changes = {target: random.choice(small.by_target[target])}
        made = solution_of(small, {**fill, **start.chosen, **changes})
        if made is not None:  # else it needs itself
            assert priced.cost(changes, fill) == pytest.approx(made.cost)


def test_an_integer_program_without_time_gives_the_start_back() -> None:
    problem = Problem(
        (Choice(0, (1,), 1.0, 0), Choice(0, (2,), 2.0, 1), Choice(1, (), 3.0, 2), Choice(2, (), 1.5, 3)), (0,)
    )
    start = solution_of(problem, {0: 0, 1: 2})
    assert start is not None
    outcome = solve(problem, start, Budget(work=0))
    assert outcome.solution == start and not outcome.proven and outcome.bound == 0.0
    assert solve(problem, start, Budget()).solution.cost == 3.5


def test_storing_by_force_finds_what_pays_only_together() -> None:
    """Two targets, both of which two users need to be cheaper: neither target, and neither user, pays alone."""
    users = [Choice(user, needs, cost) for user in (1, 2) for needs, cost in (((), 5.0), ((3, 4), 0.0))]
    problem = Problem((Choice(0, (1, 2), 1.0), *users, Choice(3, (), 3.0), Choice(4, (), 3.0)), (0,))
    start = solution_of(problem, {0: 0, 1: 1, 2: 3})
    assert start is not None and start.cost == 11
    search = Search(problem, start, Budget())
    assert search.run().cost == 11
    search.force()
    assert search.best.cost == 7
    check_solution(problem, dict(search.best.chosen), search.best.cost)


def test_sharing_beats_the_tree_cost() -> None:
    # A tree counts the shared 10 three times (36) and prefers the three separate 8s (27); shared it is 16.
    choices = [Choice(0, (1, 2, 3), 0.0, 0), Choice(9, (), 10.0, 1)]
    for number, target in enumerate((1, 2, 3)):
        choices += [Choice(target, (9,), 2.0, 2 + number), Choice(target, (), 9.0, 5 + number)]
    problem = Problem(tuple(choices), (0,))
    by_tree = solution_of(problem, cheapest(problem)[1])
    best = optimum(problem, Budget())
    assert by_tree is not None and best is not None
    assert (by_tree.cost, best.solution.cost, best.bound) == (27.0, 16.0, 16.0)


def test_cycles_are_never_chosen_even_for_free() -> None:
    # 0 -> 1 -> 0 costs nothing and makes nothing.
    problem = Problem((Choice(0, (1,), 0.0, 0), Choice(1, (0,), 0.0, 1), Choice(1, (), 5.0, 2)), (0,))
    assert solution_of(problem, {0: 0, 1: 1}) is None
    assert find_cycles({0: (1,), 1: (0,)}, (0,)) == [[0, 1]]
    best = optimum(problem, Budget())
    assert best is not None and best.solution.cost == 5.0 and best.bound == 5.0
    start = greedy(problem)
    assert start is not None
    assert solve(problem, start, Budget()).solution.cost == 5.0


def sharing(dear: float) -> tuple[Problem, Solution]:
    """A problem in which greedy choice is not the optimum, and one choice is dear."""
    choices = [Choice(0, (), 1.0), Choice(1, (0,), 1.0), Choice(1, (), 1.5), Choice(2, (0,), 1.0), Choice(2, (), 1.5)]
    choices += [Choice(3, (1, 2), 0.5), Choice(0, (), dear)]
    return Problem(tuple(choices), (3,)), Solution({0: 0, 1: 1, 2: 3, 3: 5}, 3.5 + 1e-3)


@pytest.mark.parametrize("dear", [2.0, 1e9, 1e16, float("inf")])
def test_integer_programs_do_not_depend_on_what_is_too_dear(dear: float) -> None:
    outcome = solve(*sharing(dear), Budget())
    assert outcome.proven and outcome.solution.cost == 3.5


def test_integer_programs_print_nothing_and_leave_highs_to_the_user(capfd: pytest.CaptureFixture[str]) -> None:
    import highspy

    found: list[object] = []

    def run() -> None:
        assert solve(*sharing(2.0), Budget()).proven
        found.append(capfd.readouterr())
        user = highspy.Highs()
        for option, value in (("output_flag", False), ("threads", 3)):  # HiGHS has one pool of threads for each thread
            user.setOptionValue(option, value)
        one = user.addVariable(0, 4)
        user.addConstr(2 * one >= 3)
        found.append(user.minimize(one))
        found.append(solve(*sharing(2.0), Budget()).proven)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert found == [("", ""), highspy.HighsStatus.kOk, True]

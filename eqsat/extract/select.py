"""The program: which tensors are stored, and the kernel of each, at least predicted time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from eqsat.cost.roofline import Roofline, roofline_of
from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.extract.budget import Budget
from eqsat.extract.candidates import Candidates
from eqsat.extract.constants import constant_terms
from eqsat.extract.hypergraph import (
    Choice,
    Problem,
    Solution,
    greedy,
    reduced,
    renumbered,
    solution_of,
)
from eqsat.extract.kbest import k_best
from eqsat.extract.local import Search
from eqsat.extract.optimum import TIME_LIMIT, WORK_LIMIT, Optimum, optimum
from eqsat.extract.pairs import add_pairs
from eqsat.extract.streams import Stream
from eqsat.extract.terms import Read, Selection, Term
from eqsat.ir.table import OPS

if TYPE_CHECKING:
    from eqsat.cost.machine import Machine

ROUNDS = 3
"""Times that candidates are made anew for the tensors that the best program so far stores."""
FRUITFUL = 0.02
"""Part by which a program of ``MANY`` choices has to become faster in a round for another one. In 22 networks and
layers one after less brought 0.3 % at most, in most of them nothing."""
MANY = 1000
"""Choices of a problem in which a round is not tried for less, and the first one is searched only briefly."""
WORK, NODES, CHOICES = 3e6, 1, 200
"""The budget of one e-graph: a second or two. A layer of MiniLM takes 10% of the work. The root of an integer program
over 200 choices takes 0.1 s; over 440 it takes 0.1 to 2 s, and finds nothing that local search did not."""
REPAIRS = 16
"""Times that the kernels of the choice made are checked, and it is made again without those that cannot be lowered;
after that every kernel there is to choose from is checked."""

FEW, FEW_WORK, NEAR, MET = 80, 1e4, 0.2, 3
"""Choices of a problem of which the best few programs are listed where local search has met fewer, the work for that,
the part of the best one's time by which they may take longer, and how many are met for each that is handed on: most
differ by a copy."""

ALTERNATIVES = 4
"""Different programs that are handed on, for their schedules to decide."""

Lowers = Callable[[Term], bool]


class _Stuck(Exception):
    """The kernels there are to choose from do not make the outputs."""


class ExtractionError(ValueError):
    """An output that has no finite term, so that nothing makes it; the message names it."""


def extract(
    egraph: SaturatedEGraph,
    machine: Machine | Roofline,
    *,
    threads: int = 1,
    seconds: float = 1.0,
    fuse: bool = True,
    alternatives: int = ALTERNATIVES,
    lowers: Lowers | None = None,
    gap: float = 2e-3,
    quick: bool = False,
    deadline: Deadline = NEVER,
) -> list[Selection]:
    """The best few different programs of a saturated e-graph, best first (at least one).

    ``machine`` gives the rates (a ``Roofline`` is taken as it is, for all threads together). The search is limited
    in work, so that its result does not depend on the machine's speed; ``seconds`` of wall time are a safety net,
    and a selection that it stopped says so (``late``). Candidates and the greedy choices are completed even so; past
    ``deadline`` nothing is (``OutOfTime``). The search also ends when no program better than the best one by
    more than ``gap`` is left, for predictions are not better than that. ``quick``: one program, of greedy choice and
    local search. With ``fuse`` off every e-node is a kernel. ``lowers`` says whether a term can be one kernel; those it
    refuses are not used, except single operators over stored tensors that nothing else can replace. Opaque operators
    are not asked about. Whatever it refuses, there is a selection: at the least the one that stores every operator's
    result. Raises ``ExtractionError`` where an output has no finite term.
    """
    budget = Budget(seconds, work=WORK, nodes=NODES, choices=CHOICES, deadline=deadline)
    roofline = machine if isinstance(machine, Roofline) else roofline_of(machine, threads)
    count = 1 if quick else max(1, alternatives)
    return _Extraction(egraph, roofline, fuse, lowers, count, budget, gap, quick).run()


class _Extraction:
    def __init__(
        self,
        egraph: SaturatedEGraph,
        roofline: Roofline,
        fuse: bool,
        lowers: Lowers | None,
        alternatives: int,
        budget: Budget,
        gap: float,
        quick: bool,
    ) -> None:
        self.gap, self.quick = gap, quick
        self.egraph = egraph
        self.candidates = Candidates(egraph, roofline, fuse=fuse, deadline=budget.deadline)
        self.lowers = lowers
        self.alternatives = alternatives
        self.budget = budget
        self.streams: dict[int, Stream] = {}
        self.choices: dict[int, Choice] = {}
        self.refused: set[int] = set()
        self.accepted: set[int] = set()
        self.first: Solution | None = None
        self.tried: list[Solution] = []
        """The greedy choice that was made last, and those from which local search was tried then."""
        made = egraph.const | self.candidates.inputs
        self.roots = tuple(dict.fromkeys(o for o in egraph.outputs if o not in made))

    def run(self) -> list[Selection]:
        if not self.roots:
            return [self._selection([], 0.0, 0.0, "nothing to compute")]
        try:
            found = self._search()
            return self._listed(found[0], Optimum(found[1], (), 0.0, "greedy")) if self.quick else self._optimum(found)
        except _Stuck:
            return [self._stored()]

    def _search(self) -> tuple[Problem, Solution]:
        """The best choice found by making candidates and choosing among them in turns."""
        self.candidates.run()
        problem, best = self._greedy(None)
        merged = self.candidates.merged()
        for _ in range(ROUNDS):
            if self.budget.over() and not merged:  # kernels of shared tensors are made in any case
                break
            before = best.cost
            self.candidates.run(frozenset(best.chosen), passes=1, shared=merged)
            problem, best = self._greedy((problem, best), merged)
            merged = frozenset()
            if best.cost >= before * (1 - (FRUITFUL if len(problem.choices) > MANY else self.gap)):
                break
        return self._in_pairs(problem, best)

    def _in_pairs(self, problem: Problem, best: Solution) -> tuple[Problem, Solution]:
        """With kernels that compute what others of the program store for them alone, while that is quicker."""
        while made := self._pairs([self.streams[tag] for tag in self._tags(problem, best)]):
            wider = self._pool()  # without kernels that these beat
            numbers = {choice.tag: number for number, choice in enumerate(wider.choices)}
            new = {stream.eclass: numbers[stream.uid] for stream in made if stream.uid in numbers}
            chosen = {t: numbers.get(problem.choices[n].tag, new.get(t, -1)) for t, n in best.chosen.items()}
            start = None if -1 in chosen.values() else solution_of(wider, chosen)
            if start is None:
                break
            search = Search(wider, start, self.budget)
            for target, number in new.items():
                search.offer({**search.best.chosen, target: number})
            self.first = None if self.first is None else renumbered(self.first, problem, wider)
            self.tried = [t for tried in self.tried if (t := renumbered(tried, problem, wider)) is not None]
            before, problem, best = best.cost, wider, search.best
            if best.cost >= before:
                break
        return problem, best

    def _pairs(self, chosen: list[Stream]) -> list[Stream]:
        """New kernels, each for two of the chosen ones, that can be lowered."""
        made = add_pairs(self.candidates, chosen)
        self.streams.update((stream.uid, stream) for stream in made)
        return [stream for stream in made if not self._refuse([stream.uid])]

    def _pool(self) -> Problem:
        """The kernels that may be part of a best program, tagged by their streams' numbers."""
        choices = []
        for stream in self.candidates.kernels():
            self.streams[stream.uid] = stream
            if stream.uid not in self.refused:
                choice = self.choices.get(stream.uid)
                if choice is None:
                    choice = Choice(stream.eclass, stream.needs, stream.seconds, stream.uid)
                    self.choices[stream.uid] = choice
                choices.append(choice)
        return reduced(Problem(tuple(choices), self.roots))

    def _together(self, problem: Problem, shared: frozenset[int]) -> Solution | None:
        """The greedy choice where kernels that read a part of a shared tensor pay that part of its kernel.

        Storing such a tensor pays only if many of its users change at once, which local search does not try.
        """
        least = {
            target: min(problem.choices[n].cost for n in problem.by_target[target])
            for target in sorted(shared)
            if target in problem.by_target
        }
        choices = []
        for choice in problem.choices:
            stream = self.streams[choice.tag]
            cost = choice.cost - least.get(choice.target, 0.0)
            cost += sum(least[need] * self.candidates.part(stream, need) for need in choice.needs if need in least)
            choices.append(choice if cost == choice.cost else Choice(choice.target, choice.needs, cost, choice.tag))
        found = greedy(Problem(tuple(choices), problem.roots), self.budget.deadline)
        return None if found is None else solution_of(problem, found.chosen)

    def _greedy(
        self, known: tuple[Problem, Solution] | None, shared: frozenset[int] = frozenset()
    ) -> tuple[Problem, Solution]:
        """Greedy choice and local search, over kernels that can be lowered: others are refused and the choice made
        again.

        ``shared``: tensors that are also tried with several of their users at once. Raises ``_Stuck`` where what is
        left does not make the outputs.
        """
        # It ends: each round refuses a kernel, for good or, readmitted, to be accepted for good; new ones come once.
        for repair in itertools.count():
            problem = self._pool()
            start = greedy(problem, self.budget.deadline)
            for more in (self._readmit, self.candidates.store_all, self._readmit):
                if start is None and more():
                    problem = self._pool()
                    start = greedy(problem, self.budget.deadline)
            if start is None:
                raise _Stuck
            search = Search(problem, start, self.budget)
            before = None if known is None else renumbered(known[1], known[0], problem)
            if before is not None:
                search.offer(before.chosen)
            brief = known is None and not self.quick and len(problem.choices) > MANY
            self.first, self.tried = start, [] if brief else [search.best]
            best = search.run(brief=brief)
            other = self._together(problem, shared) if shared else None
            if other is not None and not other.is_among(self.tried):
                self.tried.append(other)
                search.offer(Search(problem, other, self.budget).run().chosen)
                best = search.best
            refused = len(self.refused)
            self._refuse(self._tags(problem, best))
            if repair >= REPAIRS:
                self._refuse(stream.uid for stream in self.candidates.kernels())
            if len(self.refused) == refused:
                return problem, best
        raise AssertionError("counting does not end")

    def _refuse(self, uids: Iterable[int]) -> bool:
        """Whether some of these kernels cannot be lowered; such are not considered again."""
        if self.lowers is None:
            return False
        found = False
        for uid in uids:
            if uid not in self.accepted and uid not in self.refused:
                term = self.candidates.term(self.streams[uid])
                assert isinstance(term, Term)
                fits = OPS[term.op].kind == "opaque" or self.lowers(term)
                (self.accepted if fits else self.refused).add(uid)
            found |= uid in self.refused
        return found

    def _readmit(self) -> bool:
        """Single operators that were refused, where nothing else makes an output: those run by themselves."""
        alone = {uid for uid in self.refused if all(child.is_read for child in self.streams[uid].children)}
        self.refused -= alone
        self.accepted |= alone
        return bool(alone)

    def _optimum(self, known: tuple[Problem, Solution]) -> list[Selection]:
        """The best program that is found in time, and the best different ones met on the way."""
        problem, start = known
        bound = 0.0
        for _ in range(REPAIRS):
            best = optimum(
                problem,
                self.budget,
                start=start,
                first=self.first,
                tried=self.tried,
                keep=4 * self.alternatives,
                shape=self._shape,
                gap=self.gap,
                fine=self.gap / 20,
            )
            assert best is not None
            bound = max(bound, best.bound)  # fewer kernels: an earlier bound still holds
            if not self._refuse(self._tags(problem, best.solution)):
                break
            problem, start = self._greedy((problem, start))
        else:
            best = Optimum(start, (), bound, TIME_LIMIT if self.budget.late else WORK_LIMIT)
        return self._listed(problem, replace(best, bound=bound))

    def _listed(self, problem: Problem, best: Optimum) -> list[Selection]:
        """The best program, and the best different ones: others by their contractions first."""
        others = best.others
        if len(others) + 1 < self.alternatives and len(problem.choices) <= FEW:
            few = Budget(self.budget.seconds, work=FEW_WORK, deadline=self.budget.deadline)
            count = MET * self.alternatives
            more = k_best(problem, count, few, best=best.solution, shape=self._shape, within=NEAR)
            others = tuple(sorted((*others, *more[1:]), key=lambda solution: solution.cost))
        first: list[tuple[tuple[object, int], Solution]] = []
        rest: list[tuple[tuple[object, int], Solution]] = []
        met: set[object] = set()
        for solution in (best.solution, *others):
            shape = self._shape(problem, solution)
            (rest if shape[0] in met else first).append((shape, solution))
            met.add(shape[0])
        found: list[Selection] = []
        seen: set[object] = set()
        for shape, solution in (*first, *rest):
            if shape in seen or self._refuse(self._tags(problem, solution)):
                continue
            seen.add(shape)
            kernels = [self.streams[tag] for tag in self._tags(problem, solution)]
            method = best.method if solution is best.solution else "alternative"
            terms = [term for term in map(self.candidates.term, kernels) if isinstance(term, Term)]
            found.append(self._selection(terms, solution.cost, best.bound, method))
            if len(found) == self.alternatives:
                break
        return [*found[:1], *sorted(found[1:], key=lambda selection: selection.seconds)]

    @staticmethod
    def _tags(problem: Problem, solution: Solution) -> list[int]:
        return [problem.choices[number].tag for number in solution.chosen.values()]

    def _stored(self) -> Selection:
        """Every operator by itself, over stored operands: what there is when kernels do not make the outputs."""
        egraph, given = self.egraph, self.egraph.const | self.candidates.inputs
        choices: list[Choice] = []
        terms: list[Term] = []
        for c, enodes in egraph.classes.items():
            for enode in enodes if c not in given else ():
                needs = tuple(sorted(set(enode.children) - given))
                children = tuple(Read(child, egraph.types[child], child in egraph.const) for child in enode.children)
                choices.append(Choice(c, needs, 1.0 + egraph.types[c].size, len(terms)))
                terms.append(Term(c, enode.op, enode.attrs, egraph.types[c], children))
        problem = Problem(tuple(choices), self.roots)
        cost, best = problem.trees
        found = solution_of(problem, best)
        if found is None:
            names = ", ".join(f"e-class {o} ({egraph.types[o]})" for o in self.roots if o not in cost)
            raise ExtractionError(f"nothing makes the output {names}: it has no finite term")
        return self._selection([terms[tag] for tag in self._tags(problem, found)], 0.0, 0.0, "stored")

    def _shape(self, problem: Problem, solution: Solution) -> tuple[object, int]:
        """What makes programs different: their contractions and what these read, and how many kernels they are."""
        kernels = (self.streams[problem.choices[n].tag] for n in solution.chosen.values())
        products = ((c.eclass, c.node, k.needs) for k in kernels if (c := k.core) is not None and c.multiply_adds)
        return (tuple(sorted(products)), len(solution.chosen))

    def _selection(self, terms: Sequence[Term], seconds: float, bound: float, method: str) -> Selection:
        const = self.egraph.const
        constants = [o for o in self.egraph.outputs if o in const]
        constants += [read.eclass for term in terms for read in term.reads() if read.const]
        return Selection(
            kernels=tuple(terms),
            constants=constant_terms(self.egraph, constants),
            outputs=self.egraph.outputs,
            seconds=seconds,
            bound=min(bound, seconds),
            method=method,
            late=self.budget.late,
        )

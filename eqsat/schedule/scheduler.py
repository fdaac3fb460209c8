"""Schedules: the best loop nest of a kernel group on a target.

The group's starting nest goes into an e-graph of loop nests, the loop rules saturate it, and a dynamic program over it
with a data-movement cost picks the best nest and the best few different ones for timing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from eqsat.cost.calibration import CLEARLY, ROWS_APART
from eqsat.cost.movement import work
from eqsat.cost.target import Moved, Target
from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.nests import LIMIT, Matches, NestGraph, Space, saturate_nests
from eqsat.errors import OptionError
from eqsat.ir.kernel import Expr, Guarded, Index, KernelGroup, Literal, Load, Stage, rewrite_kernel
from eqsat.ir.nest import Nest, show
from eqsat.ir.siblings import are_siblings
from eqsat.ir.types import float32
from eqsat.schedule.decode import decode, shareable
from eqsat.schedule.jams import window_starts
from eqsat.schedule.phases import apart, in_phases
from eqsat.schedule.price import Pricer
from eqsat.schedule.problem import Problem, ScheduleError, problem_of
from eqsat.schedule.rule import select
from eqsat.schedule.runs import Runs
from eqsat.schedule.search import Entry, Search
from eqsat.schedule.space import space_of
from eqsat.schedule.standing import standing
from eqsat.schedule.sweeps import arranged
from eqsat.schedule.vector_cost import lanes_of
from eqsat.schedule.vectors import least_slots

CANDIDATES = 4
"""Different nests kept for timing, the best one included."""

LEAST_CLEAR = 0.002
"""Part of the price of the shortest of several kernels that they save at least where they run together: what is not
stored is not late where memory is slower than was measured."""


@dataclass(frozen=True)
class Candidate:
    """A nest and what the model says of it.

    ``seconds``: of the whole group with the given number of threads. ``moved``: bytes that the busiest thread moves
    from each memory space but the nearest. ``limit``: what takes most of the time: "compute", a memory space, or
    "overhead" (barriers, and starting the kernel). ``busy``: seconds of the units, of all threads together.
    ``measured``: seconds that it took where tuning timed it; if the model does not offer it, ``seconds`` is that, too.
    """

    nest: Nest
    seconds: float
    moved: tuple[tuple[str, float], ...]
    limit: str
    busy: float = 0.0
    measured: float | None = None


@dataclass(frozen=True)
class Scheduled:
    """What was chosen. ``loop_terms``: size of the e-graph. ``candidates``: the best few nests, best first.

    ``matches``: of the e-graphs that nests were searched in, each one object however many kernels it is of.
    """

    loop_terms: int
    matches: tuple[Matches, ...]
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def nest(self) -> Nest:
        return self.best.nest

    @property
    def predicted_seconds(self) -> float:
        return self.best.seconds


_memory: dict[object, Scheduled] = {}
_MOST = 4096
_prepared: dict[object, tuple[Problem, NestGraph]] = {}
_placed: dict[int, tuple[KernelGroup, KernelGroup]] = {}
"""By identity, for groups are long: each is held, so that no other one has its id."""
_MOST_PLACED = 512
_graphs: dict[tuple[Space, tuple[str, ...]], NestGraph] = {}
MOST_TERMS = 50_000
"""Loop terms of the e-graphs that are remembered, at about 300 bytes each."""


def schedule(
    group: KernelGroup,
    target: Target,
    *,
    disable: tuple[str, ...] = (),
    deadline: Deadline = NEVER,
) -> Scheduled:
    """The best nest of ``group`` for all threads of ``target``, or one of them where the others cannot help.

    Factors of contractions that are constant operands (``group.operands[i].const``) count as packed at compile time.
    ``disable``: ids of loop rules to leave out. Results are remembered, by everything they depend on.

    Raises:
        OutOfTime: past ``deadline``.
        ScheduleError: the group breaks what ``KernelGroup`` promises (see ``eqsat.schedule.problem``), or has too many
            nests to find one.
        ValueError: an unknown rule id, or disabled rules without which no nest can be run (tensorize, vectorize,
            and pack where a factor cannot be read in place).
    """
    group = anywhere(group)
    key = _needed(group), target, disable
    found = _memory.get(key)
    if found is None:
        given = _prepared.pop(key, None) or search_graph(group, target, disable, deadline)
        found = _schedule(group, *given, target, disable, deadline)
        if len(_memory) >= _MOST:
            _memory.clear()
        _memory[key] = found
    return found


def prepare(
    groups: Iterable[KernelGroup], target: Target, *, disable: tuple[str, ...] = (), deadline: Deadline = NEVER
) -> None:
    """Have ready what ``schedule`` needs for groups that it will be asked for: e-graphs of nests saturate together in a
    third of the time. Groups that break what ``KernelGroup`` promises are left out."""
    missing: dict[object, tuple[KernelGroup, Problem]] = {}
    for group in map(anywhere, groups):
        key = _needed(group), target, disable
        if key not in _memory and key not in _prepared and key not in missing:
            with suppress(ScheduleError):
                missing[key] = group, problem_of(group, target)
    problems = [problem for _, problem in missing.values()]
    graphs = _graphs_of([space_of(problem, target) for problem in problems], disable, deadline)
    if len(_prepared) >= _MOST:
        _prepared.clear()
    _prepared.update(zip(missing, zip(problems, graphs, strict=True), strict=True))


def essence(group: KernelGroup) -> object:
    """What a schedule depends on: groups in which that is equal have the same schedule."""
    return _needed(anywhere(group))


def _needed(group: KernelGroup) -> object:
    return group.stages, group.shared, group.operands, group.unless


def anywhere(group: KernelGroup) -> KernelGroup:
    """The group with all that no schedule depends on the same: where in external buffers it starts, and constants.

    So the steps of an unrolled recurrence, each at its own offset, are scheduled once. Of a map that reads windows it
    stays how far apart they are, and which of its constants are equal: what neighbours share depends on it.
    """
    found = _placed.get(id(group))  # it is asked for a group's bounds, e-graph and schedule, and to hash it takes long
    if found is None or found[0] is not group:
        if len(_placed) >= _MOST_PLACED:
            _placed.clear()
        found = _placed[id(group)] = group, _anywhere(group)
    return found[1]


def _anywhere(group: KernelGroup) -> KernelGroup:
    stages = []
    beside = are_siblings(group)  # whether they read the same depends on where each starts
    for stage in group.stages:
        guards = (e for e in stage.kernel.expressions if isinstance(e, Guarded))
        tests = {id(guard.index) for guard in guards}  # where they change decides over how axes are walked
        starts = window_starts(stage.kernel)
        values: dict[Literal, int] = {}

        def fix(
            expr: Expr,
            stage: Stage = stage,
            tests: set[int] = tests,
            starts: dict[int, int] = starts,
            values: dict[Literal, int] = values,
        ) -> Expr:
            match expr:
                case Load() if isinstance(stage.sources[expr.operand], int) and not beside:
                    return expr.at(expr.offset - starts.get(expr.operand, expr.offset), expr.strides)
                case Index() if id(expr) not in tests:
                    return expr.at(0, expr.strides)
                case Literal(_, dtype):
                    if expr.is_zero:  # masked loads leave it
                        return Literal(0, dtype)
                    return Literal(-1 - (values.setdefault(expr, len(values)) if starts else 0), dtype)
                case _:
                    return expr

        kept: dict[str, object] = {"domain": stage.kernel.domain}
        if len(group.stages) == 1:  # else later stages may read what it stores
            kept["store_offset"] = 0
        stages.append(replace(stage, kernel=rewrite_kernel(stage.kernel, fix, **kept)))
    return replace(group, stages=tuple(stages))


def _schedule(
    group: KernelGroup,
    problem: Problem,
    graph: NestGraph,
    target: Target,
    disable: tuple[str, ...],
    deadline: Deadline,
) -> Scheduled:
    ranked: dict[Nest, tuple[float, Entry, Target]] = {}
    searches: dict[Target, Search] = {}
    for on, parallel in _modes(group, target, graph):
        if ranked and on.threads < target.threads:  # plainly enough work for all threads, and a nest that shares it
            break
        if on not in searches:
            searches[on] = Search(graph, Pricer(problem, on), parallel, deadline)
        search = searches[on]
        search.parallel = parallel  # what the threads' loop stands on is priced once
        runs = Runs(search.pricer)
        for entry in search.roots(CANDIDATES):
            nest = arranged(decode(entry, problem, on), problem, runs.cuts)
            if on == target and problem.stages[0].contraction and not problem.rows:
                nest = shareable(nest, problem.stages[0].extent("n"))
            seconds = search.seconds(entry) + on.step + (runs.of(nest) if problem.rows else 0.0)
            if nest not in ranked or seconds < ranked[nest][0]:
                ranked[nest] = (seconds, entry, on)
    if not ranked and disable:
        raise OptionError(f"no loop nest runs group {group.name!r} without the disabled rules {', '.join(disable)}")
    if not ranked and graph.size > LIMIT:
        raise ScheduleError(
            f"group {group.name!r} has more than {LIMIT:,} forms of its loops: none was found that runs"
        )
    if not ranked:
        raise ValueError(f"no loop nest runs group {group.name!r}; this is a fault of the loop rules")
    order = sorted(ranked, key=lambda nest: (ranked[nest][0], show(nest)))
    candidates = tuple(_candidate(nest, *ranked[nest]) for nest in order[:CANDIDATES])
    found = Scheduled(graph.size, (graph.matches,), candidates)
    kernels = [by_itself(one, target) for one in phased(group, problem, target)]
    if kernels:
        prepare(kernels, target, disable=disable, deadline=deadline)
    each = [schedule(one, target, disable=disable, deadline=deadline) for one in kernels]
    return _with(found, in_phases([one.nest for one in each], group), each, target) if each else found


def by_itself(group: KernelGroup, target: Target) -> KernelGroup:
    """A group of one kernel without the operands of others, so that equal phases of many groups are searched once.

    Where it finds its own in the same caches without them.
    """
    used = sorted({*(n for s in group.stages for n in (*s.sources, s.result) if isinstance(n, int)), *group.unless})
    if len(used) == len(group.operands):
        return group
    sizes = [(operand.nbytes, operand.const) for operand in group.operands]
    own = [sizes[n] for n in used]
    if any(standing(own, on) != standing(sizes, on) for on in (target, target.alone)):
        return group
    place = {old: new for new, old in enumerate(used)}

    def moved(stage: Stage) -> Stage:
        sources = tuple(place[n] if isinstance(n, int) else n for n in stage.sources)
        return replace(stage, sources=sources, result=None if stage.result is None else place[stage.result])

    return replace(
        group,
        stages=tuple(map(moved, group.stages)),
        operands=tuple(group.operands[n] for n in used),
        outputs=tuple(place[n] for n in group.outputs if n in place),
        unless=tuple(place[n] for n in group.unless),
    )


def phased(group: KernelGroup, problem: Problem, target: Target) -> tuple[KernelGroup, ...]:
    """The kernels that a group without contractions might rather run as, one phase after the other; none if it is one.

    A group's only where threads could hardly share its rows, and with one thread where a kernel less would show next to
    the shortest of them. That is a bound on the time of the search: other groups cost less as several kernels, if
    phases are what they are quickest in.
    """
    if any(form.contraction or form.siblings for form in problem.stages):
        return ()
    if problem.rows:
        if max(1, problem.outer) * problem.rows > ROWS_APART * target.threads:
            return ()
        if target.threads == 1:
            least = min(least_slots(form, target) * target.slot(form.dtype) for form in problem.stages)
            if (len(problem.stages) - 1) * target.step < LEAST_CLEAR * least:
                return ()
    found = apart(group, lanes_of(problem.stages[0], target))
    if len(found) == 1 or any(problem_of(one, target).stages[0].contraction for one in found):
        return ()  # apart, a matrix times a vector may be a contraction, whose tiles and packings run in no phase
    return found


def _with(found: Scheduled, nest: Nest, each: list[Scheduled], target: Target) -> Scheduled:
    """What was found, and the nest of several phases beside it."""
    best = [one.best for one in each]
    seconds = sum(one.seconds - target.step for one in best) + target.step + (len(best) - 1) * target.barrier
    moved = tuple(
        (spaces[0][0], sum(n for _, n in spaces)) for spaces in zip(*(one.moved for one in best), strict=True)
    )
    limit = max(best, key=lambda one: one.seconds).limit
    phases = Candidate(nest, seconds, moved, limit, sum(one.busy for one in best))
    ranked = sorted((*found.candidates, phases), key=lambda candidate: candidate.seconds)
    matches = (*found.matches, *(counts for one in each for counts in one.matches))
    terms = found.loop_terms + sum(one.loop_terms for one in each)
    return Scheduled(terms, matches, tuple(ranked[:CANDIDATES]))


def _candidate(nest: Nest, seconds: float, entry: Entry, on: Target) -> Candidate:
    moved = tuple(zip((space.name for space in on.origins), entry.moved, strict=True))
    parts = {"compute": entry.compute}
    parts |= {space.name: nbytes / space.bandwidth for space, nbytes in zip(on.origins, entry.moved, strict=True)}
    parts["overhead"] = entry.fixed + on.step
    return Candidate(nest, seconds, moved, max(parts, key=lambda name: parts[name]), entry.compute * on.threads)


def _modes(group: KernelGroup, target: Target, graph: NestGraph) -> list[tuple[Target, bool]]:
    """Who runs the group, and whether by a loop that threads share: all, or one while the others wait where work is
    small."""
    if target.threads == 1:  # of what threads share, only a split reduction is no plain nest besides
        split = any(node.op == "Split" for nodes in graph.classes for node in nodes)
        return [(target, True), (target, False)] if split else [(target, False)]
    slots = 0.0
    for stage in group.stages:
        done = work(stage.kernel, target.functions)
        slots += done.contraction + done.other
    if slots * 32 / target.vector_bits * target.slot(float32) > CLEARLY * target.barrier:
        return [(target, True), (target.alone, False)]
    return [(target.alone, False), (target, True)]


def search_graph(
    group: KernelGroup, target: Target, disable: tuple[str, ...] = (), deadline: Deadline = NEVER
) -> tuple[Problem, NestGraph]:
    """A group in the terms of the search, and the saturated e-graph of its nests.

    E-graphs are remembered: groups that differ in their functions alone have the same one. That for one thread is
    another than for several: it has no loops that threads share.
    """
    problem = problem_of(group, target)
    (graph,) = _graphs_of([space_of(problem, target)], disable, deadline)
    return problem, graph


def _graphs_of(spaces: Sequence[Space], disable: tuple[str, ...], deadline: Deadline) -> list[NestGraph]:
    found = {space: graph for space in spaces if (graph := _graphs.get((space, disable))) is not None}
    missing = [space for space in dict.fromkeys(spaces) if space not in found]
    if missing:
        rules = [(rule.id, rule.text) for rule in select(disable)]
        new = dict(zip(missing, saturate_nests(rules, missing, deadline=deadline), strict=True))
        if sum(other.size for other in [*_graphs.values(), *new.values()]) > MOST_TERMS:
            _graphs.clear()
        _graphs.update({(space, disable): graph for space, graph in new.items()})
        found |= new
    return [found[space] for space in spaces]


@dataclass(frozen=True, slots=True)
class Least:
    """What a group takes at least on one thread: seconds of the units, bytes from each of :attr:`Target.origins`, and
    the seconds saved where results go past the caches, or tiles do not wait.

    Every operand comes once into each cache that it does not lie in, and all work is done by the tiles that waste
    least of the units.
    """

    busy: float
    moved: Moved
    saved: float

    def seconds(self, target: Target, waste: float = 1.0) -> float:
        """Seconds on all threads of ``target``, with units that are busy for ``waste`` times as long."""
        share, busy = 1 / target.threads, waste * self.busy / target.threads
        taken = target.alone.seconds(busy, tuple([n * share for n in self.moved])) - self.saved * share
        return max(busy * target.hidden, taken) + target.alone.step


def least_of(group: KernelGroup, target: Target) -> Least:
    """About the least that a nest of ``group`` can be predicted to take, far cheaper to find than a schedule.

    Raises:
        ScheduleError: the group breaks what ``KernelGroup`` promises.
    """
    pricer = Pricer(problem_of(group, target.alone), target.alone)
    moved = pricer.least_moved()
    return Least(pricer.least_compute(), moved, pricer.most_saved() + pricer.uncharged(moved[0]))

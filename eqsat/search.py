"""The search: regions saturated and extracted once each, kernels grouped and scheduled, one plan out."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eqsat.cost.calibration import CLEARLY
from eqsat.cost.machine import Machine
from eqsat.cost.roofline import Roofline, reference_seconds, roofline_of
from eqsat.cost.target import Target
from eqsat.deadline import NEVER, Deadline, Pace
from eqsat.egraph.engine import usable
from eqsat.egraph.nests import Matches
from eqsat.egraph.saturate import TRIED, saturate
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.errors import ShapeError
from eqsat.extract.optimum import LIMITED
from eqsat.extract.provenance import rule_provenance
from eqsat.extract.select import extract
from eqsat.extract.terms import Selection, Term
from eqsat.ir.contraction import CASTS
from eqsat.ir.kernel import Call, Expr, Guarded, Kernel, KernelGroup, Load, walk
from eqsat.ir.known import constant_nodes, constant_operands, without_empty
from eqsat.ir.node import Graph, Node
from eqsat.plan.assembly import Assembly, own_tensors, place_loop
from eqsat.plan.decide import decide
from eqsat.plan.group import Grouping, Piece
from eqsat.plan.lower import Lowered, lower
from eqsat.plan.masks import MaskedPrice, split_masked
from eqsat.plan.paddings import without_padding
from eqsat.plan.place import Found, place
from eqsat.plan.placed import PlacedGroup
from eqsat.plan.plan import KernelStep, Plan, ReferenceStep, Repeat, SearchReport, Step, trips_of
from eqsat.plan.policy import ScheduledPrice
from eqsat.plan.regions import LoopRegion, Region, cut
from eqsat.plan.stages import depends_on
from eqsat.progress import Tell
from eqsat.rules import Rule
from eqsat.schedule import Scheduled, prepare, schedule

GREED = 0.4
"""Part of the work left that one region may take: most saturate early, so waiting their turn would waste it."""
SATURATION = 0.7
"""Part of a search's seconds that its saturations may take together."""
PATIENCE, REST = 8, 1 / 3
"""Times its seconds that a search may take where the machine is slow or busy, and part of the compilation's time that
it has to leave. Then the clock stops it, and another run may find another program."""

LEAN = 0.1
"""Part of the work of maps that is counted for programs that store less: with a quarter Harris' corners on 2048×3072
are two kernels and take 5.3 ms, with a tenth one and 4.1 (Zen 5)."""

POINTS = 2**50
"""Points of a step's iteration space at most: two weeks at a nanosecond each. Broadcast arrays are of any size."""


@dataclass(frozen=True)
class SearchOptions:
    """What the search may use: rules, work for saturation and selection, e-nodes per region, fusion or not.

    ``seconds``: of work, as much as an idle machine does in them, so that equal options find the same program
    whatever else runs; the clock only stops what takes ``PATIENCE`` times as long.
    ``target``: what kernels are scheduled for, of as many of ``threads`` as the backend can have at work. ``no_loops``:
    ids of loop rules that schedules do without.
    """

    rules: tuple[Rule, ...]
    target: Target
    seconds: float = 5.0
    enodes: int = 20_000
    fuse: bool = True
    threads: int = 1
    no_loops: tuple[str, ...] = ()


@dataclass
class _Work:
    """What saturations may still do, and when the clock stops them, and selections."""

    left: float
    end: Deadline

    @property
    def seconds(self) -> float:
        return max(0.05, self.end.left)


def saturation(seconds: float) -> float:
    """Work of saturations (see :func:`eqsat.egraph.saturate.saturate`) in a search of so many seconds."""
    return SATURATION * TRIED * seconds


def rates(machine: Machine, target: Target, threads: int, *, lean: bool = False) -> Roofline:
    """What programs are selected by, with ``lean`` those that store less."""
    found = replace(roofline_of(machine, threads), dots=target.dots, lane=target.ports.lane)
    return found.leaner(LEAN) if lean else found


def search(
    graph: Graph,
    const: frozenset[Node],
    machine: Machine,
    options: SearchOptions,
    progress: Tell,
    deadline: Deadline = NEVER,
) -> Plan:
    """The best program found for ``graph``; ``const`` are inputs whose values are known at compile time.

    ``options.seconds`` make it search less, and take what it has; past ``deadline`` it raises ``OutOfTime``.
    """
    report = SearchReport()
    patience = min(PATIENCE * options.seconds, (1 - REST) * deadline.left)
    work = _Work(saturation(options.seconds), Deadline(patience, deadline))
    plan = _search(graph, const, machine, options, progress, report, work, deadline)
    if options.threads > 1 and usable():
        plan = replace(plan, steps=tuple(_team(plan, options, report, deadline)))
    return plan


def _search(
    graph: Graph,
    const: frozenset[Node],
    machine: Machine,
    options: SearchOptions,
    progress: Tell,
    report: SearchReport,
    work: _Work,
    deadline: Deadline,
    weight: int = 1,
    looped: bool = False,
) -> Plan:
    """The plan of a program, or of a loop's body (``looped``), which runs ``weight`` times in a call."""
    report.operators += len(graph.nodes())
    graph = without_empty(graph)
    assembly = Assembly()
    known = constant_nodes(graph, const)
    for node in graph.inputs:
        number = assembly.fresh(node.type)
        assembly.tensor_of[node] = number
        if node in const:
            assembly.constants[number] = node
            assembly.constant_of[node] = number
    regions = cut(graph, const, looped=looped)
    deadline.check("cutting the program")
    report.regions += len(regions)
    found: dict[str, Found] = {}
    bodies: dict[str, Plan] = {}
    lowered: dict[Term, Lowered | None] = {}
    distinct = len({region.key() for region in regions if isinstance(region, Region)})
    usable(deadline)  # imports egglog, which is not the search's time
    pace = Pace("searching", distinct, deadline)
    for region in regions:
        if isinstance(region, LoopRegion):
            body = region.loop.body
            fixed = frozenset(constant_operands(region.loop, region.outputs[0].inputs, known))
            name = f"{region.loop.name}, {[node in fixed for node in body.inputs]}"
            if name not in bodies:
                within = (region.loop.trips * weight, True)
                bodies[name] = _search(body, fixed, machine, options, progress, report, work, deadline, *within)
            place_loop(region, bodies[name], assembly, known)
            continue
        key = region.key()
        if key not in found:
            progress("search: region", len(found), distinct)
            share = max(1 / (distinct - len(found)), GREED)
            found[key] = _search_region(region, machine, options, share, work, lowered, report, deadline)
            pace.step()
        deadline.check("placing kernels")
        place(region, found[key], assembly, lowered)
    report.distinct_regions += len(found)
    outputs = []
    for node in graph.outputs:
        if node in known and node not in assembly.tensor_of:
            assembly.tensor_of[node] = assembly.constant(node)
        outputs.append(assembly.tensor_of[node])
    if looped:
        outputs = own_tensors(assembly, outputs)
    steps, repeats = _arrange(assembly, frozenset(outputs), machine, options, report, progress, deadline, weight)
    inputs = tuple(assembly.tensor_of[node] for node in graph.inputs if node not in const)
    used = _used_constants(assembly, steps, [*outputs, *(tensor for repeat in repeats for tensor in repeat.reads)])
    origins = {tensor: nodes for tensor, nodes in assembly.origins.items() if nodes}
    return Plan(assembly.types, inputs, tuple(outputs), used, tuple(steps), report, tuple(repeats), origins)


def _used_constants(assembly: Assembly, steps: Sequence[Step], others: Sequence[int]) -> dict[int, Node]:
    used = set(others)
    for step in steps:
        used.update(step.tensors if isinstance(step, KernelStep) else step.reads)
    return {number: node for number, node in assembly.constants.items() if number in used}


def _search_region(
    region: Region,
    machine: Machine,
    options: SearchOptions,
    share: float,
    work: _Work,
    lowered: dict[Term, Lowered | None],
    report: SearchReport,
    deadline: Deadline,
) -> Found:
    """The best program of a region; ``share``: the part of the work left that it may do."""
    deadline.check("searching")
    start = time.perf_counter()
    const = frozenset(n for n, c in zip(region.graph.inputs, region.const, strict=True) if c)
    egraph = saturate(
        region.graph.outputs,
        rules=options.rules,
        const=const,
        nodes=options.enodes,
        work=share * work.left,
        seconds=work.seconds,
    )
    work.left = max(0.0, work.left - egraph.report.work)
    middle = time.perf_counter()

    def lowers(term: Term) -> bool:
        if term not in lowered:
            deadline.check("selecting kernels")
            lowered[term] = lower(term)
        return lowered[term] is not None

    def select(egraph: SaturatedEGraph, *, quick: bool = False, lean: bool = False) -> list[Selection]:
        deadline.check("searching")
        start = time.perf_counter()
        found = extract(
            egraph,
            rates(machine, options.target, options.threads, lean=lean),
            seconds=work.seconds,
            fuse=options.fuse,
            lowers=lowers,
            quick=quick,
            deadline=deadline,
        )
        report.extraction_seconds += time.perf_counter() - start
        return found

    report.saturations.append(egraph.report)
    report.saturation_seconds += middle - start
    before = report.extraction_seconds
    if options.fuse and usable():
        price = ScheduledPrice(options.target, options.no_loops, deadline)
        found = decide(region, egraph, options.rules, select, price, lowered, deadline)
    else:
        found = Found(egraph, select(egraph)[0])
    report.schedule_seconds += time.perf_counter() - middle - (report.extraction_seconds - before)
    best = found.selection
    report.extractions_late += best.late
    report.extractions_cut += best.method in LIMITED
    if best.seconds > 0:
        report.extraction_gap = max(report.extraction_gap, 1 - best.bound / best.seconds)
    for rule, count in rule_provenance(found.egraph, best).items():
        report.rules[rule] = report.rules.get(rule, 0) + count
    return found


def describe_group(group: KernelGroup) -> str:
    """A group in words: the functions and accumulations of its stages, each named once."""
    names: dict[str, None] = {}

    def functions(expr: Expr) -> None:
        for e in walk(expr):
            if isinstance(e, Load) and e.gathers:
                names["take"] = None
            elif isinstance(e, Guarded):
                names["guard"] = None
            elif isinstance(e, Call) and e.fn not in (*CASTS, "wrap_index"):
                names[e.fn] = None

    for stage in group.stages:
        kernel = stage.kernel
        if kernel.is_contraction:
            assert isinstance(kernel.body, Call)
            for factor in kernel.body.args:
                functions(factor)
            names[_product(kernel, *kernel.body.args)] = None
        else:
            functions(kernel.body)
            if kernel.combine is not None:
                names[kernel.combine] = None
        functions(kernel.epilogue)
    return "+".join(names) or "copy"


def _product(kernel: Kernel, a: Expr, b: Expr) -> str:
    """A contraction in words: its rows × columns × summed points, and how many of them."""
    sizes = {(True, False): 1, (False, True): 1, (True, True): 1, (False, False): 1}
    for axis, extent in enumerate(kernel.extents[: kernel.parallel]):
        sizes[depends_on(a, axis), depends_on(b, axis)] *= extent
    k = math.prod(kernel.extents[kernel.parallel :])
    m, n, batch = sizes[True, False], sizes[False, True], sizes[True, True]
    return f"matmul {m}×{n}×{k}" + (f" ({batch} of them)" if batch > 1 else "")


def _arrange(
    assembly: Assembly,
    outputs: frozenset[int],
    machine: Machine,
    options: SearchOptions,
    report: SearchReport,
    progress: Tell,
    deadline: Deadline,
    weight: int,
) -> tuple[list[Step], list[Repeat]]:
    start = time.perf_counter()
    alone, target = roofline_of(machine), options.target
    price = ScheduledPrice(target, options.no_loops, deadline) if options.fuse else None
    steps: list[Step] = []
    repeats: list[Repeat] = []
    items: list[PlacedGroup | Piece] = []
    progress("search: which kernels run together")
    after = None if price is None else MaskedPrice(assembly.value, price)
    for item in Grouping(assembly.pieces, outputs, price, deadline, after).run():
        deadline.check("fusing kernels")
        if isinstance(item, Piece) or after is None:
            items.append(item)
        else:
            parts = split_masked(item, after, assembly.buffer)
            items.extend(without_padding(part, assembly) for part in parts)
    known: dict[int, tuple[str, Scheduled | None]] = {}  # by identity: layers have groups in common, all of ``items``
    groups = {id(item.group): item.group for item in items if not isinstance(item, Piece)}
    if usable():
        prepare(groups.values(), target, disable=options.no_loops, deadline=deadline)
    matches: dict[int, Matches] = {}  # by identity: kernels have e-graphs in common
    pace = Pace("searching schedules", len(groups), deadline)
    for number, item in enumerate(items):
        progress("search: schedule of kernel", number, len(items))
        if isinstance(item, Piece):
            other = assembly.others[item.key]
            if isinstance(other, ReferenceStep):
                _add(replace(other, seconds=reference_seconds(other.values[0], alone)), steps, repeats)
            elif other is not None:
                repeats += other.repeats_from(len(steps))
                steps += other.steps
            continue
        if id(item.group) not in known:
            label = describe_group(item.group)
            points = max(stage.kernel.points for stage in item.group.stages)
            if points > POINTS:
                raise ShapeError(f"{label}: this step has {points:,} values to compute: use smaller arrays")
            found = None
            if usable():
                found = schedule(item.group, target, disable=options.no_loops, deadline=deadline)
            known[id(item.group)] = label, found
            pace.step()
        label, scheduled = known[id(item.group)]
        if scheduled is None:  # kernels are printed by a nest that takes no search
            steps.append(KernelStep(item.group, item.tensors, None, label))
            continue
        report.loop_terms += scheduled.loop_terms
        matches.update((id(counts), counts) for counts in scheduled.matches)
        report.predicted += weight * scheduled.predicted_seconds
        steps.append(KernelStep(item.group, item.tensors, scheduled.best, label))
    for counts in matches.values():
        for rule, count in counts:
            report.loop_matches[rule] = report.loop_matches.get(rule, 0) + count
    report.team = options.threads
    report.schedule_seconds += time.perf_counter() - start
    return steps, repeats


def _add(step: ReferenceStep, steps: list[Step], repeats: Sequence[Repeat]) -> None:
    """Add a step, or its results to those of the same call among the steps outside of loops."""
    for number, other in enumerate(steps):
        if isinstance(other, ReferenceStep) and not any(r.begin <= number < r.end for r in repeats):
            both = other.joined(step)
            if both is not None:
                steps[number] = both
                return
    steps.append(step)


def _team(plan: Plan, options: SearchOptions, report: SearchReport, deadline: Deadline) -> Sequence[Step]:
    """The steps for one thread, where they are predicted to take less time than a team's and what a team costs."""
    start = time.perf_counter()
    kernels = [
        (step, trips)
        for step, trips in zip(plan.steps, trips_of(len(plan.steps), plan.repeats), strict=True)
        if isinstance(step, KernelStep) and step.nest is not None
    ]
    cost = options.target.call(sum(trips for _, trips in kernels))
    if report.predicted * (options.threads - 1) > CLEARLY * cost:
        return plan.steps
    groups = [step.group for step, _ in kernels]
    prepare(groups, options.target.alone, disable=options.no_loops, deadline=deadline)
    found = {
        id(step): schedule(step.group, options.target.alone, disable=options.no_loops, deadline=deadline)
        for step, _ in kernels
    }
    predicted = sum(found[id(step)].predicted_seconds * trips for step, trips in kernels)
    report.schedule_seconds += time.perf_counter() - start
    if report.predicted + cost < predicted:
        return plan.steps
    report.predicted, report.team = predicted, 1
    return [
        replace(step, chosen=found[id(step)].best) if isinstance(step, KernelStep) and id(step) in found else step
        for step in plan.steps
    ]

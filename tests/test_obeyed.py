"""What a nest says is what is printed: any legal one computes the right thing, in its own loops; others are refused."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import eqsat
from bench import algebra, fused, gemm
from bench import attention as attention_suite
from bench.models import minilm
from bench.workload import Workload
from eqsat.compiled import Compiled
from eqsat.cost import machine as in_force
from eqsat.cost.machine import Machine
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, show, tiles
from eqsat.ir.types import float32, float64
from eqsat.plan.plan import KernelStep, Plan
from eqsat.schedule import below, check, is_parallel, schedule, simple_nest
from eqsat.schedule.sample import sample
from eqsat_backends.numba_cpu.printing.emit import emit_group
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import DESK, attention, machine, perceptron, turned_values
from tests.kernel_groups import gemm as product
from tests.random_groups import Case, cases, features, long_cases, same, terms, terms_of, wanted
from tests.sweeps import a_part, crossed
from tests.test_contract import attention as causal_attention
from tests.test_contract import perceptron as normalized
from tests.test_contract import random_buffers, verify
from tests.test_examples import needs_weights

# any legal nest

GROUPS_DRAWN = 850
"""Groups that Hypothesis draws for the long sweep; about every third is one that it drew before."""
FEW_DRAWN = max(650, a_part(GROUPS_DRAWN))
"""And for the tests of every day: as many as show all that there is."""
NESTS = 4
"""Nests at most of each."""
LONG_DRAWN = 40
"""Groups of long axes that Hypothesis draws."""
PARTS = 10
"""Parts that all pairs are run in."""

quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))


@functools.cache
def drawn(groups: Callable[[], st.SearchStrategy[Case]], count: int = FEW_DRAWN) -> list[tuple[Case, int, int, int]]:
    """The different groups that one seed gives, with lanes, threads, and a seed for nests."""
    found: dict[KernelGroup, tuple[Case, int, int, int]] = {}

    @seed(7)
    @settings(
        quiet,
        max_examples=count if groups is cases else LONG_DRAWN,
        phases=[Phase.generate],
        database=None,
    )
    @given(
        groups(),
        st.sampled_from([16, 16, 8, 4]),
        st.integers(1, 3),
        st.integers(0, 1 << 20),
    )
    def each(case: Case, lanes: int, threads: int, nests: int) -> None:
        found.setdefault(case[0], (case, lanes, threads, nests))

    each()
    return list(found.values())


def made_up(lanes: int) -> Machine:
    """A processor of so many 32-bit lanes, with caches so small that short axes are blocked."""
    return machine(l1=8 << 10, l2=64 << 10, width=4 * lanes, registers=32 if lanes == 16 else 16)


def sweep(part: int, parts: int, groups: Callable[[], st.SearchStrategy[Case]] = cases, count: int = FEW_DRAWN) -> int:
    """Run random legal nests of every ``parts``-th group, compare with the interpreter, and say how many there were."""
    pairs, terms, words = 0, Counter[str](), Counter[str]()
    for case, lanes, threads, nests in drawn(groups, count)[part::parts]:
        host, want = made_up(lanes), wanted(case)
        words.update(features(case[0]))
        for nest, _ in sample(case[0], cpu_target(host, threads), NESTS, seed=nests):
            same(emit_group(case[0], nest, host), case, want, nest, threads)
            terms.update(terms_of(nest))
            pairs += 1
    print(f"\npart {part} of {parts}: {pairs} pairs of a group and a legal nest\n{dict(words)}\n{dict(terms)}")
    return pairs


def test_any_legal_nest_computes_the_same() -> None:
    assert sweep(0, len(drawn(cases)) // 5) >= 10


def test_any_legal_nest_of_long_axes_computes_the_same() -> None:
    assert sweep(0, 6, long_cases) >= 8


@pytest.mark.slow
def test_any_legal_nest_of_long_axes_computes_the_same_at_length() -> None:
    assert sweep(0, 1, long_cases) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_any_legal_nest_computes_the_same_many(part: int) -> None:
    """All parts together: 1,500 pairs. ``pytest -m slow tests/test_obeyed.py -k many -s`` prints how many each has."""
    assert sweep(part, PARTS, cases, GROUPS_DRAWN) >= 150


WORDS = {
    *(f"{n} stages" for n in range(1, 5)), *(f"{n} axes" for n in range(1, 8)), "None", "sum", "prod", "max", "min",
    "argmax", "argmin", "float32", "float64", "int32", "int64", "bool", "negative stride", "broadcast", "offset",
    "window", "gathered", "gathered in a branch", "guarded", "guarded by several axes", "guards in guards",
    "guarded epilogue", "empty", "extent 1", "several reduced axes", "split", "contraction", "several batch axes",
    "several rows' axes", "several columns' axes", "several summed axes", "computed factor", "constant operand",
    "stores backwards", "reads a stage", "contraction of a stage", "side by side",
}  # fmt: skip
TERMS = {
    "loop", "parallel loop", "cyclic loop", "split loop", "peeled loop", "packed", "packed ahead", "sequence", "map",
    "reduce", "transpose", "fma", "jammed", "tiles side by side", "prefetch", "copied in pieces", "claim",
    "panels ahead",
}  # fmt: skip


def test_what_is_drawn_is_all_that_kernels_and_nests_can_be() -> None:
    seen = {word for case, *_ in drawn(cases) for word in features(case[0])}
    assert seen >= WORDS, WORDS - seen
    terms = set()
    for (group, _), lanes, threads, nests in drawn(cases):
        for nest, _ in sample(group, cpu_target(made_up(lanes), threads), NESTS, seed=nests):
            terms |= terms_of(nest)
        if terms >= TERMS:
            break
    assert terms >= TERMS, TERMS - terms


def test_long_axes_have_nests_of_their_own() -> None:
    terms = set()
    for (group, _), lanes, threads, nests in drawn(long_cases):
        for nest, _ in sample(group, cpu_target(made_up(lanes), threads), NESTS, seed=nests):
            terms |= terms_of(nest)
        if terms >= {"update", "streamed"}:
            return
    raise AssertionError(f"only {terms}")


def test_the_comparison_sees_a_wrong_element() -> None:
    """Negative control: one operand holds another number when the kernel runs than when the interpreter did."""
    (case, lanes, threads, nests), *_ = (d for d in drawn(cases) if "contraction" in features(d[0][0]))
    group, arrays = case
    ((nest, _),) = sample(group, cpu_target(made_up(lanes), threads), 1, seed=nests)
    emitted, want = emit_group(group, nest, made_up(lanes)), wanted(case)
    same(emitted, case, want, nest, threads)
    changed = [array + (n == 0) if array.dtype != bool else array for n, array in enumerate(arrays)]
    with pytest.raises(AssertionError, match="operand"):
        same(emitted, (group, changed), want, nest, threads)


ROUNDING: dict[str, KernelGroup] = {
    "causal": causal_attention(2, 37, 53, 10, float32, True),
    "attention in float64": causal_attention(1, 20, 65, 8, float64, False),
    "turned": turned_values(attention(3, 30, 40, 20), 40, 20),
    "normalized": normalized(45, 24, 40, False, True),
    "constant weights": normalized(33, 24, 40, True, False),
}


@pytest.mark.parametrize("name", ROUNDING)
def test_any_legal_nest_of_a_group_that_rounds(name: str) -> None:
    group = ROUNDING[name]
    for lanes, threads in ((16, 1), (8, 2)):
        for nest, _ in sample(group, cpu_target(made_up(lanes), threads), 2, seed=lanes):
            verify(group, random_buffers(group), nest=nest, lanes=lanes, threads=threads)


def test_a_copy_computes_the_same_whoever_makes_it() -> None:
    group, seen = product(100, 130, 300), set()
    for lanes, threads in ((16, 1), (8, 2)):
        for nest, _ in sample(group, cpu_target(made_up(lanes), threads), 12, seed=lanes):
            if made := terms_of(nest) & {"fused copy", "copied in pieces"}:
                verify(group, random_buffers(group), nest=nest, lanes=lanes, threads=threads)
                seen |= made
    assert seen == {"fused copy", "copied in pieces"}


@settings(quiet, max_examples=a_part(8), derandomize=True)
@given(cases(), st.sampled_from([16, 8]), st.integers(1, 2))
def test_the_nest_without_a_search_is_legal_and_computes_the_same(case: Case, lanes: int, threads: int) -> None:
    host = made_up(lanes)
    nest = simple_nest(case[0], cpu_target(host, threads))
    check(nest, case[0], lanes, host.registers)
    same(emit_group(case[0], nest, host), case, wanted(case), nest, threads)


# the printed loops


def said(nest: Nest, depth: int = 0) -> Iterator[tuple[int, str]]:
    """What a nest says, outermost first: (loops around it, loop or packing)."""
    match nest:
        case Loop(axis, block, step, body, parallel, cyclic=cyclic):
            loops = parallel or step < block
            if loops:
                yield depth, f"{axis}{'*' if parallel else ''} by {step}{' * nt' if cyclic else ''}"
            yield from said(body, depth + loops)
        case Pack(operand, body, ahead):
            if not ahead and not is_parallel(body):
                yield depth, f"pack {operand}"
            yield from said(body, depth)
        case Seq(bodies):
            for body in bodies:
                yield from said(body, depth)


HEADER = re.compile(r"for (outer|rows|[bmnk]|[pr]\d+_)\d+ in range\((.*)\):")


def printed(source: str, phase: str) -> Iterator[tuple[int, str]]:
    """The same of a phase of a printed module, by its text."""
    text = source[source.index(f"def {phase}(") :]
    around: list[int] = []
    own = {"tid"}
    for line in text.splitlines()[1:]:
        if line and not line.startswith(" "):
            return
        indent = len(line) - len(line.lstrip())
        while around and around[-1] >= indent:
            around.pop()
        if found := re.match(r"\s*(\w+) = .*\btid\b", line):
            own.add(found[1])
        if found := HEADER.match(line.strip()):
            axis, bounds = found[1].rstrip("_"), found[2]
            parts = [part.strip() for part in re.sub(r"min\(.*?\)", "end", bounds).split(",")]
            parallel = not own.isdisjoint(re.findall(r"\w+", bounds))
            yield len(around), f"{axis}{'*' if parallel else ''} by {parts[2] if len(parts) == 3 else 1}"
            around.append(indent)
        elif line.strip().startswith("# pack "):
            yield len(around), line.strip()[2:]


def once(found: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """A loop of a sweep that is peeled into several at once."""
    for loop, each in itertools.groupby(found):
        yield from [loop] if loop[1][0] in "pr" and loop[1][1].isdigit() else each


def kept_in_scratch(nest: Nest) -> bool:
    """Whether a loop over a parallel axis is inside one over a reduced axis."""
    inside = re.findall(r"r\d+:[^\];]*", show(nest))
    return any(" p" in sweep for sweep in inside)


def holds(group: KernelGroup, nest: Nest, host: object = DESK) -> None:
    """The printed loops and packings, their order, steps and threads are those of the nest."""
    emitted = emit_group(group, nest, host)  # type: ignore[arg-type]
    each = nest.bodies if isinstance(nest, Seq) else [nest]  # a sequence that is outermost is one of phases
    for phase, part in zip(emitted.phases[-len(each) :], each, strict=True):
        theirs, mine = printed(emitted.source, phase), said(part)
        if kept_in_scratch(part):  # of such a sweep there are more loops, that fill, add and finish
            theirs, mine = ([one for one in found if not one[1][1].isdigit()] for found in (theirs, mine))
        assert list(once(theirs)) == list(once(mine)), show(nest)
    shared, ahead = [], 0
    at = nest
    while isinstance(at, Loop | Pack):
        if isinstance(at, Pack):
            ahead += at.ahead
            if not at.ahead and is_parallel(at.body):
                shared.append(at.operand.split("@")[-1])
        at = at.body
    assert [phase.removeprefix("pack_") for phase in emitted.phases[: -len(each)]] == shared
    assert len(emitted.packs) == ahead
    sequence = below(nest)
    parts = sequence.bodies if isinstance(sequence, Seq) else ()
    asks = any(isinstance(part, Loop) and part.prefetch for part in parts)
    assert ("prefetch(ahead" in emitted.source) == asks, show(nest)
    assert asks or ("prefetch(" in emitted.source) <= any(tile.prefetch for tile in tiles(nest)), show(nest)
    copies_hold(emitted.source, nest)
    for tile in tiles(nest):
        if tile.name == "fma":
            assert f"tile_{tile.size('m')}x" in emitted.source


def copies_hold(source: str, nest: Nest) -> None:
    """What tiles copy and ask for by the way, and how threads share a copy, is what the nest says."""
    packs = [term for term in terms(nest) if isinstance(term, Pack)]
    products = [tile for tile in tiles(nest) if tile.name == "fma"]
    printed_tiles = re.findall(r"= fma_tile\((.*)\)", source)
    copying, others = ([tile for tile in printed_tiles if ("keep=" in tile) == keeps] for keeps in (True, False))
    on_the_way = [pack for pack in packs if pack.fused]
    assert bool(copying) == bool(on_the_way), show(nest)
    for made, want in (
        (copying, [pack.prefetch for pack in on_the_way]),
        (others, [tile.ahead for tile in products]),
    ):
        steps = {int(found) for tile in made for found in re.findall(r"ahead=(\d+)", tile)}
        assert steps == set(want) - {0}, show(nest)
        assert all("ahead=" in tile for tile in made) or 0 in want, show(nest)
    assert any("ask=" in tile for tile in printed_tiles) <= any(tile.prefetch for tile in products), show(nest)
    assert (", claim=(" in source) <= any(tile.claim for tile in products), show(nest)
    pieces = []
    for phase in re.findall(r"def pack_\w+\(args.*?\n\n\n", source, re.DOTALL):
        pieces.append(int(found[1]) if (found := re.search(r"_stop = min\(\w+ \+ (\d+), ", phase)) else 0)
    assert pieces == [pack.piece for pack in packs if not pack.ahead and is_parallel(pack.body)], show(nest)


class Searched(BaseException):
    """Ends a compilation after the search."""


class Zeros:
    """Stands for a generator where nothing is run and only shapes count: some workloads draw 300 million numbers."""

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.zeros(shape, dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(np.random.default_rng(0), name)


class Repeated(Zeros):
    """The same where operands are known, and zeros would be computed with: few numbers, over and over."""

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.resize(np.random.default_rng(0).standard_normal(min(4099, math.prod(shape)), dtype), shape)


def plan_of(workload: Workload, monkeypatch: pytest.MonkeyPatch, threads: int) -> Plan:
    plans = []

    def stop(compiled: Compiled, progress: object, deadline: object) -> None:
        plans.append(compiled.search())
        raise Searched

    monkeypatch.setattr(Compiled, "_search", stop)
    program = eqsat.optimize(workload.function, threads=threads, const=workload.const, cache=False, verify=False)
    with pytest.raises(Searched):
        program.compile(*workload.inputs(Repeated() if workload.const else Zeros()).values())
    return plans[0]


WORKLOADS = {f"{w.suite} {w.name}": w for suite in (gemm, attention_suite, fused, algebra) for w in suite.workloads()}


@crossed(name=list(WORKLOADS), threads=[1, 2])
def test_the_kernels_of_the_benchmarks_have_the_loops_of_their_nests(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in plan_of(WORKLOADS[name], monkeypatch, threads).steps:
        assert isinstance(step, KernelStep) and step.nest is not None
        holds(step.group, step.nest, in_force.load())


@needs_weights
@pytest.mark.parametrize("batch", [0, 1])
def test_the_kernels_of_the_models_have_the_loops_of_their_nests(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in plan_of(minilm.workloads()[batch], monkeypatch, 2).steps:
        if isinstance(step, KernelStep):
            assert step.nest is not None
            holds(step.group, step.nest, in_force.load())


GROUPS = {
    "gemm": product(100, 130, 900),
    "known": product(100, 130, 900, const="ab"),
    "batched": product(40, 50, 60, batch=3, transposed=True),
    "few rows": product(5, 900, 700),
    "attention": attention(3, 90, 120, 40),
    "turned": turned_values(attention(4, 90, 120, 40), 120, 40),
    "short heads": attention(40, 20, 24, 16),
    "perceptron": perceptron(200, 60, 90),
    "unknown weights": perceptron(200, 90, 60, const=False),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GROUPS)
def test_nests_that_differ_have_loops_that_differ(name: str, threads: int) -> None:
    """Of nests at random: each is printed as what it says."""
    host = machine(l1=8 << 10, l2=64 << 10)
    nests = [nest for nest, _ in sample(GROUPS[name], cpu_target(host, threads), 25)]
    for nest in nests:
        holds(GROUPS[name], nest, host)
    asking = {bool(re.search(r"rows:\d+/1 prefetch", show(nest))) for nest in nests}
    assert asking == {False, True} if name == "short heads" else not any(asking)
    assert any(" cyclic" in show(nest) for nest in nests) == (threads > 1)


def test_rows_ask_for_what_the_next_head_reads_and_change_nothing() -> None:
    """Every line of it once, at the head that the thread has next, from the part that the nest says."""
    group = attention(5, 20, 20, 16)
    chosen = schedule(group, cpu_target(DESK, 2), disable=("loop.prefetch",)).nest
    sequence = below(chosen)
    assert isinstance(sequence, Seq) and isinstance(chosen, Loop) and chosen.parallel
    apart = [n for n, part in enumerate(sequence.bodies) if isinstance(part, Loop) and part.axis == "rows"]
    for asking, cyclic in itertools.product([None, *apart], (False, True)):

        def change(nest: Nest, asking: int | None = asking) -> Nest:
            if isinstance(nest, Seq):
                return Seq(tuple(replace(p, prefetch=True) if n == asking else p for n, p in enumerate(nest.bodies)))  # type: ignore[call-arg]
            return replace(nest, body=change(nest.body))  # type: ignore[union-attr, call-arg]

        nest = replace(change(chosen), cyclic=cyclic)  # type: ignore[call-arg]
        legal(nest, group)
        holds(group, nest)
        source = emit_group(group, nest, DESK).source
        lines = re.findall(r"prefetch\(ahead\d+ \+ 64 \* rows\d+\)", source)
        assert len(lines) == (0 if asking is None else 3), source  # rows of queries, keys and values of a line each
        assert asking is None or re.search(rf"following\d+ = outer\d+ \+ {'nt' if cyclic else 1}\n", source)
        verify(group, random_buffers(group), nest=nest, lanes=16, threads=2)


def test_the_comparison_sees_a_loop_in_another_place() -> None:
    group = product(60, 70, 200)
    tile = TileOp("fma", (("m", 14), ("n", 32), ("k", 200)))
    one, two = Loop("n", 70, 32, Loop("m", 60, 14, tile), True), Loop("m", 60, 14, Loop("n", 70, 32, tile), True)
    holds(group, one)
    source = emit_group(group, one, DESK).source
    for other in (
        two,
        replace(one, parallel=False),
        replace(one, step=64),
        Loop("n", 70, 32, Pack("b", one.body), True),
    ):
        assert list(printed(source, "contract")) != list(said(other))


# what is refused


def legal(nest: Nest, group: KernelGroup) -> None:
    check(nest, group, 16, 32)


def test_illegal_nests_of_a_contraction_are_refused_by_axis_or_factor() -> None:
    group, turned = product(60, 70, 200), product(60, 70, 200, transposed=True)
    tile = TileOp("fma", (("m", 14), ("n", 32), ("k", 200)))
    inner = Loop("m", 60, 14, tile)
    legal(Loop("n", 70, 32, inner), group)
    refused: list[tuple[Nest, str]] = [
        (Loop("k", 200, 64, Loop("n", 70, 32, inner), True), "threads cannot share out k"),
        (Loop("n", 70, 32, Loop("m", 60, 14, tile, True), True), "threads share the loop over n"),
        (Loop("n", 70, 32, tile), "60 positions of m, its tile has 14"),
        (Loop("j", 70, 32, inner), "'j', which is no axis"),
        (Loop("n", 64, 32, inner), "loop over n .* covers 64 positions .* 70 are there"),
        (Loop("n", 70, 48, Loop("m", 60, 14, TileOp("fma", (("m", 14), ("n", 48), ("k", 200))))), "registers"),
        (Loop("n", 70, 64, Pack("b", Loop("n", 64, 16, inner))), "loop over n in steps of 16 .* panels of 32"),
        (Loop("n", 70, 32, Loop("m", 60, 9, tile)), "loop over m in steps of 9 is around a tile of 14"),
        (Loop("n", 70, 21, inner), "loop over n in steps of 21 is around a tile of 32"),
        (Pack("b", Pack("b", Loop("n", 70, 32, inner))), "factor b of stage 0 is packed twice"),
        (Loop("n", 70, 32, Pack("b", Loop("m", 60, 14, tile, True))), "factor b .* every step of the loop over n"),
        (Pack("b", Loop("n", 70, 32, inner), ahead=True), "factor b .* cannot be packed at compile time"),
        (Pack("c", Loop("n", 70, 32, inner)), "'c', which is no factor"),
        (Loop("n", 70, 32, Pack("b", tile, fused=True)), "factor b .* is not copied by the first tiles along m"),
        (Loop("m", 60, 14, Pack("a", Loop("n", 70, 32, tile), fused=True), True), "factor a .* is not copied by the"),
        (Pack("b", Loop("n", 70, 32, Loop("m", 60, 14, tile), True), fused=True), "factor b .* is not copied by the"),
        (Loop("n", 70, 32, Pack("b", Loop("m", 60, 14, tile), piece=16), True), "factor b .* in pieces of k"),
        (
            Loop("n", 70, 32, Pack("b", Loop("m", 60, 14, tile), prefetch=16), True),
            "factor b .* neither copied",
        ),
        (Loop("n", 70, 32, Loop("m", 60, 14, replace(tile, prefetch=3))), "next panel of its first factor"),
        (Loop("m", 60, 14, Loop("n", 70, 32, replace(tile, prefetch=2))), "next panel of its second factor"),
        (Seq((Loop("n", 70, 32, inner),)), "sequence"),
        (Loop("n", 70, 32, inner, cyclic=True), "threads do not share the loop over n"),
    ]
    for nest, message in refused:
        with pytest.raises(ValueError, match=message):
            legal(nest, group)
    with pytest.raises(ValueError, match="factor b of stage 0 cannot be read in place"):
        legal(Loop("n", 70, 32, inner), turned)
    update = TileOp("update", (("m", 60), ("n", 64), ("k", 8)))
    with pytest.raises(ValueError, match="rank update reads factor b"):
        legal(Pack("b", Loop("k", 200, 8, update)), group)


def test_illegal_nests_of_a_group_are_refused_by_axis_or_factor() -> None:
    group = attention(4, 90, 120, 40)
    chosen = schedule(group, cpu_target(DESK, 2)).nest

    def change(nest: Nest, at: str, new: object) -> Nest:
        match nest:
            case Loop(axis, body=body) if axis == at:
                return new(nest)  # type: ignore[operator, no-any-return]
            case Loop(body=body) | Pack(body=body):
                return replace(nest, body=change(body, at, new))
        raise AssertionError(f"no loop over {at}")

    legal(chosen, group)
    with pytest.raises(ValueError, match="factor a of stage 4 is not the same for all rows"):
        legal(change(chosen, "rows", lambda loop: Pack("a@4", loop)), group)
    with pytest.raises(ValueError, match=r"factor b of stage 0 (is packed twice|differs along outer)"):
        legal(change(chosen, "outer", lambda loop: Pack("b@0", loop)), group)
    with pytest.raises(ValueError, match="factor b of stage 4 is packed inside of the loop over rows"):
        legal(change(chosen, "rows", lambda loop: replace(loop, body=Pack("b@4", loop.body))), group)
    with pytest.raises(ValueError, match=r"loop over rows .* covers"):
        legal(change(chosen, "rows", lambda loop: replace(loop, block=loop.block + 1)), group)
    with pytest.raises(ValueError, match=r"loop over outer, not also that over rows|every step of the loop over outer"):
        legal(change(chosen, "rows", lambda loop: replace(loop, parallel=True)), group)
    with pytest.raises(ValueError, match="loop over rows asks for data ahead"):
        legal(change(chosen, "rows", lambda loop: replace(loop, prefetch=True)), group)
    with pytest.raises(ValueError, match="threads do not share the loop over rows"):
        legal(change(chosen, "rows", lambda loop: replace(loop, cyclic=True)), group)
    with pytest.raises(ValueError, match=r"runs stages \[0, 1, 2, 3\]"):
        legal(change(chosen, "rows", lambda loop: replace(loop, body=Seq(loop.body.bodies[:-1]))), group)
    sequence = below(chosen)
    assert isinstance(sequence, Seq)
    swapped = Seq((*sequence.bodies[1::-1], *sequence.bodies[2:]))
    with pytest.raises(ValueError, match="in order"):
        legal(change(chosen, "rows", lambda loop: replace(loop, body=swapped)), group)

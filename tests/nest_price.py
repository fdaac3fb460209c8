"""The price of one given nest, walked top down: what the search minimizes, without an e-graph.

It prices nests that come from elsewhere (a stored record, a hand-written one) and checks the search: for a
nest that the search found, both must agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from eqsat.cost.target import Moved
from eqsat.ir.nest import MAPS, Loop, Nest, Pack, Seq, TileOp
from eqsat.schedule.decode import is_parallel
from eqsat.schedule.forms import StageForm
from eqsat.schedule.loop_price import (
    inner_seconds,
    join,
    loop_moved,
    loop_steps,
    pack_moved,
    shared_moved,
    split_seconds,
    sums_bytes,
    widen,
)
from eqsat.schedule.phases import is_split
from eqsat.schedule.price import Block, Pricer
from eqsat.schedule.problem import Problem
from eqsat.schedule.sweeps import stage_nests
from eqsat.schedule.tiles import ceil_div


@dataclass(frozen=True, slots=True)
class Price:
    """Of the busiest thread: seconds of the units, bytes by origin (``Target.origins``), fixed s, scratch."""

    compute: float
    moved: Moved
    fixed: float
    scratch: float


def evaluate(nest: Nest, problem: Problem, pricer: Pricer) -> Price | None:
    """Price of a nest; None where it asks for what no tile can do (a factor read in place that has to be packed)."""
    grouped = bool(problem.rows)

    def price(
        at: Nest, packed: frozenset[tuple[int, str]], above: bool, spmd: bool, columns: int
    ) -> tuple[Price, Block] | None:
        match at:
            case TileOp(name, _, stage):
                seconds: float | None
                form = problem.stages[stage]
                if name == "update":
                    rows, depth = at.size("m"), at.size("k")
                    flags = frozenset({(stage, "a")} & (packed | pricer.free(stage)))
                    sizes = ((form.name("k"), depth), (form.name("m"), rows), (form.name("n"), columns))
                    block = Block(frozenset({stage}), sizes, flags)
                    seconds = pricer.update(stage, rows, columns, depth, bool(flags))
                elif name not in (*MAPS, "fma"):
                    named = [(form.name(a), n) for a, n in at.sizes]
                    block = Block(frozenset({stage}), tuple(sorted(named)), frozenset())
                    return Price(pricer.op(stage, name, tuple(named)), pricer.summary(block).cold, 0.0, 0.0), block
                elif name in MAPS:
                    sizes = tuple(sorted((form.name(a), min(n, max(1, form.extent(a)))) for a, n in at.sizes))
                    block = Block(frozenset({stage}), sizes, frozenset())
                    named = [(form.name(a), n) for a, n in sizes_of(form, at)]
                    if name == "transpose":
                        found_ = pricer.transpose(stage, named[0][0], named[1][0], at.lanes, at.stream)
                    else:
                        named = [("", 1)] * (2 - len(named)) + named
                        found_ = pricer.vector(stage, *named[0], *named[1], at.stream, at.prefetch > 0)
                    return Price(found_[0], pricer.summary(block).cold, found_[1], 0.0), block
                else:
                    flags = frozenset(item for item in packed | pricer.free(stage) if item[0] == stage)
                    m, n, k = (at.size(axis) for axis in "mnk")
                    sizes = ((form.name("k"), k), (form.name("m"), m), (form.name("n"), n))
                    block = Block(frozenset({stage}), sizes, flags)
                    seconds = pricer.tile(stage, m, n, k, (stage, "a") in flags, (stage, "b") in flags)
                if seconds is None:
                    return None
                asks = at.prefetch == 1  # others are not told apart by their price
                asked, saved = pricer.ask(stage, *(at.size(axis) for axis in "mnk")) if asks else (0.0, 0.0)
                return Price(seconds + asked, pricer.summary(block).cold, -saved, 0.0), block
            case Loop(axis, n, step, inside, parallel, split, cyclic, prefetch):
                shared = grouped and above and axis in ("outer", "rows")
                found = price(
                    inside, packed, shared and axis == "outer", spmd and not parallel, step if axis == "n" else columns
                )
                if found is None:
                    return None
                child, body = found
                if shared and ((axis == "outer" and problem.outer <= 1) or (axis == "rows" and n == step)):
                    return child, (body if axis == "outer" else widen(body, "rows", n))
                own = axis if shared else problem.stages[min(body.stages)].name(axis)
                block = widen(body, own, n)
                if not parallel:
                    steps, control = loop_steps(pricer, block, own, n, step)
                    trips = pricer.needed(own, step) * n / step
                    moved = loop_moved(pricer.summary(block), pricer.summary(body), child.moved, trips)
                    scratch = child.scratch + sums_bytes(pricer, block, own, n, step)
                    more = (
                        0.0 if shared else inner_seconds(pricer, body, own, n, *_inside(inside, problem), peel=at.peel)
                    )
                    if more is None:
                        return None
                    asking, saved = pricer.ahead if prefetch else (0.0, 0.0)
                    compute = (child.compute + more) * steps + control + asking
                    return Price(compute, moved, child.fixed * steps - saved, scratch), block
                threads = pricer.target.threads
                covered = min(n, ceil_div(ceil_div(n, step), threads) * step)
                steps, control = loop_steps(pricer, block, own, covered, step, pricer.busiest(own, step, cyclic))
                part = widen(block, own, covered)
                moved = shared_moved(pricer, block, part, body, child.moved, covered / step, threads)
                fixed = child.fixed * steps + pricer.barrier
                fixed += split_seconds(pricer, block, own, n, step) if split else 0.0
                around = _inside(inside, problem)
                more = 0.0 if shared or split else inner_seconds(pricer, body, own, n, *around, peel=at.peel)
                return Price((child.compute + (more or 0.0)) * steps + control, moved, fixed, child.scratch), block
            case Pack(body=inside, ahead=True):
                return price(inside, packed, above, spmd, columns)
            case Pack(operand, inside):
                factor, _, number = operand.partition("@")
                stage = int(number) if number else min(_stages(inside))
                found = price(inside, packed | {(stage, factor)}, above, spmd, columns)
                if found is None:
                    return None
                child, body = found
                together = spmd and is_parallel(inside)
                threads = pricer.target.threads if together else 1
                extra, added, saved, copy = pack_moved(pricer, stage, factor, body)
                moved = tuple(max(0.0, m - saved[i]) + added[i] / threads for i, m in enumerate(child.moved))
                fixed = child.fixed + (pricer.barrier if together else 0.0)
                block = Block(body.stages, body.sizes, body.packed - {(stage, factor)})
                scratch = child.scratch + copy / threads
                return Price(child.compute + extra / threads, moved, fixed, scratch), block
            case Seq(bodies) if is_split(at):
                return price(bodies[0], packed, above, spmd, columns)  # which includes combining the parts
            case Seq(bodies):
                own = [inside for body in bodies for inside in _stages_of(body, problem)]
                parts = [price(inside, packed, False, False, 0) for inside in own]
                done = [part for part in parts if part is not None]
                if len(done) < len(parts):
                    return None
                after = done.pop()
                for before in reversed(done):
                    after = _both(pricer, before, after)
                return after
        raise TypeError(f"not a nest: {at!r}")

    first = problem.stages[0]
    if first.siblings:  # one tile stands for those of all
        nest = _first(nest)
    priced = price(nest, frozenset(), True, True, first.extent("n") if first.contraction else 0)
    return None if priced is None else priced[0]


def _stages_of(part: Nest, problem: Problem) -> list[Nest]:
    """The nests of the stages that run row by row in a part of a group's sequence."""
    nests = list(stage_nests(part, problem.simple).values()) or [part]
    if isinstance(part, Loop) and part.axis == "rows":
        return [replace(part, body=nest, prefetch=part.prefetch and nest is nests[0]) for nest in nests]
    return nests


def sizes_of(form: StageForm, tile: TileOp) -> list[tuple[str, int]]:
    """Elements that a tile takes: its last vector may be longer than its axis."""
    return [(axis, min(n, max(1, form.extent(axis)))) for axis, n in tile.sizes]


def _inside(nest: Nest, problem: Problem) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...], bool]:
    """Axes of the loops of a map or reduction, the sizes of its tile, and whether it streams."""
    loops = []
    while isinstance(nest, Loop):
        loops.append(nest.axis)
        nest = nest.body
    if not isinstance(nest, TileOp) or nest.name not in ("map", "reduce", "transpose"):
        return tuple(loops), (), False
    return tuple(loops), tuple(sizes_of(problem.stages[nest.stage], nest)), nest.stream


def _first(nest: Nest) -> Nest:
    """The nest of reductions side by side as that of the first."""
    match nest:
        case Loop(body=body):
            return replace(nest, body=_first(body))
        case Seq(bodies) if not is_split(nest):
            return bodies[0]
        case Seq(bodies):
            return Seq(tuple(map(_first, bodies)))
    return nest


def _both(pricer: Pricer, one: tuple[Price, Block], two: tuple[Price, Block]) -> tuple[Price, Block]:
    (first, a), (second, b) = one, two
    block = join(a, b)
    whole = pricer.summary(block)
    moved = tuple(whole.cold[i] if fits else first.moved[i] + second.moved[i] for i, fits in enumerate(whole.fits))
    compute, fixed = first.compute + second.compute, first.fixed + second.fixed
    return Price(compute, moved, fixed, first.scratch + second.scratch), block


def _stages(nest: Nest) -> set[int]:
    match nest:
        case Loop(body=body) | Pack(body=body):
            return _stages(body)
        case Seq(bodies):
            return set().union(*map(_stages, bodies))
        case TileOp(stage=stage):
            return {stage}
    raise TypeError(f"not a nest: {nest!r}")

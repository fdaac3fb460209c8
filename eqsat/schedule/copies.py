"""How the copies and the tiles of contractions in a nest go about memory: what tiles copy on their way, how threads
share a copy, what is asked for ahead.

The price does not tell these apart: a copy that can be fused is, since its stores hide behind the arithmetic of tiles.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from eqsat.cost import calibration as c
from eqsat.cost.target import Target
from eqsat.ir.contraction import is_accumulator
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, is_parallel, steps_of, tiles
from eqsat.schedule.forms import Factor, StageForm
from eqsat.schedule.problem import Problem
from eqsat.schedule.tiles import round_up, step_slots

__all__ = ["fusible", "in_pieces", "with_copies"]

Around = tuple[tuple[str, int], ...]
"""Axes of the loops of several steps around a term, outermost first, of m with the positions of the first factor."""


def with_copies(nest: Nest, problem: Problem, target: Target, draws: random.Random | None = None) -> Nest:
    """A nest of a group with all that its contractions' copies and tiles do by the way.

    ``draws``: chosen at random among what is legal, instead of what is best.
    """

    def choose(best: int, legal: tuple[int, ...]) -> int:
        return draws.choice(legal) if draws is not None else best

    def walk(at: Nest, copies: Mapping[tuple[int, str], int], sums: int | None, around: Around) -> Nest:
        """``copies``: positions of the copies around, by stage and factor. ``sums``: how many a loop over k around
        leaves in scratch, in all; None: the tiles' are whole."""
        match at:
            case Seq(bodies):
                return Seq(tuple(walk(body, copies, sums, around) for body in bodies))
            case Loop(axis, block, step, body):
                if sums is None and axis == "k" and step < block:
                    sums = covers(body, "m") * covers(body, "n")
                if step < block:
                    around = (*around, (axis, block * covers(body, "k") if axis == "m" else 0))
                return replace(at, body=walk(body, copies, sums, around))
            case Pack(operand, body, ahead):
                name, _, number = operand.partition("@")
                stage = int(number) if number else tiles(body)[0].stage
                copied = covers(body, "k") * covers(body, "n" if name == "b" else "m")
                body = walk(body, {**copies, (stage, name): copied}, sums, around)
                direct = name == "b" and problem.stages[stage].factors[1].direct
                at = replace(at, body=body, fused=False, prefetch=0, piece=0)
                if direct and not ahead and is_parallel(body):
                    at = replace(at, piece=choose(c.COPY_PIECE, (0, 5, c.COPY_PIECE)))
                elif direct and not ahead and not number and fusible(body) and choose(1, (0, 1)):
                    at = replace(at, fused=True, prefetch=choose(c.COPY_AHEAD, (0, c.COPY_AHEAD)))
                elif name == "a" and not ahead and not is_parallel(body) and in_pieces(problem.stages[stage], body):
                    at = replace(at, prefetch=choose(c.COPY_AHEAD, (0, c.COPY_AHEAD)))
                return at
            case TileOp("fma", stage=stage):
                form = problem.stages[stage]
                columns = round_up(min(at.size("n"), max(1, form.extent("n"))), target.lanes(form.dtype))
                once = (stage, "b") in copies and form.extent("m") <= at.size("m")
                size, near = form.dtype.itemsize, target.middle[0].capacity
                far = once and form.extent("k") * form.extent("n") * size > c.STREAM_BYTES
                asked = stream_ahead(columns, form, target) if far else 0
                most = max(1, (asked or c.STREAM_AHEAD) // (columns * size))
                steps = choose(most if asked else 0, (0, 3, most))
                alone = len(problem.stages) == 1  # beside others' blocks attention lost a third in some processes
                afar = form.kernel.out.nbytes > near if sums is None or stays(form) else sums * size > near
                claim = choose(alone and afar and form.extent("k") >= c.CLAIM_STEPS, (0, 1))
                way, whole = next_block(form, copies, around) if not problem.rows else (0, 0)
                passed = whole * size > near or (way == 2 and constant_afar(form.factors[1], form, problem, target))
                asks = at.prefetch or choose(way if passed else 0, (0, way))
                return replace(at, ahead=steps, claim=bool(claim), prefetch=asks)
        return at

    return walk(nest, {}, None, ())


def stays(form: StageForm) -> bool:
    """Whether sums are the results as they are, so that they lie there from the first step over k on."""
    return is_accumulator(form.kernel.epilogue) and form.kernel.out.dtype == form.dtype


def stream_ahead(columns: int, form: StageForm, target: Target) -> int:
    """Bytes that tiles of all rows ask for a second factor ahead of what they read, where it comes from memory; 0: they
    leave that to the hardware.

    As was measured for as many rows, or the next fewer, and none for fewer than any: processors differ. Requests 1 KB
    ahead made 6 rows 1.3 times as fast and one row 1.2 times slower on a Zen 3; 6 KB ahead they made 3 rows 1.8 times
    slower on a Zen 4.
    """
    if not target.panels:
        return c.STREAM_AHEAD if outlasts(columns, form, target) else 0
    measured = max((rows for rows, way, _ in target.panels if not way and rows <= form.extent("m")), default=0)
    rates = {way: min(rate, target.outer.bandwidth) for rows, way, rate in target.panels if rows == measured}
    best = max(rates, key=lambda way: (rates[way], -way), default=0)
    return best if rates and rates[best] >= c.STREAM_GAIN * rates[0] else 0


def outlasts(columns: int, form: StageForm, target: Target) -> bool:
    """Whether all rows' sums for a row of the second factor take as long as that takes to come from memory.

    For machines on which requests were not measured. Where memory is what is waited for, they cost more than they gain,
    probably as they are in the way of the hardware's: of a second factor of 64 MB, 3 rows took 3.9 ms with them and 2.2
    without, 12 rows 3.9 and 4.8 (Zen 4).
    """
    row, vectors = target.rows("fma", form.dtype)[0], columns // target.lanes(form.dtype)
    seconds = step_slots(target, row, form.extent("m"), vectors) * target.slot(form.dtype)
    return seconds >= columns * form.dtype.itemsize / target.outer.bandwidth


def next_block(form: StageForm, copies: Mapping[tuple[int, str], int], around: Around) -> tuple[int, int]:
    """How tiles in these loops may ask for what is read next (``TileOp.prefetch``; 0: they may not), and the positions
    of the block that it is a part of."""
    axes, (first, _) = [axis for axis, _ in around], form.factors
    if axes[-1:] == ["m"] and "n" in axes and (form.index, "b") in copies:
        return 2, copies[form.index, "b"]
    if axes[-1:] == ["n"] and "m" in axes and (form.index, "a") not in copies and first.direct and not first.contiguous:
        return 3, next(size for axis, size in reversed(around) if axis == "m")
    return 0, 0


def constant_afar(factor: Factor, form: StageForm, problem: Problem, target: Target) -> bool:
    """Whether a factor is a constant that the innermost cache does not hold: since the last call other kernels' data
    have passed, so that the second has it no more."""
    kind, index, _ = form.source(factor.accesses[0])
    return kind == "operand" and problem.const[index] and problem.sizes[index] > target.inner.capacity


def in_pieces(form: StageForm, body: Nest) -> bool:
    """Whether a copy of the first factor cuts its rows into panels as wide as the tiles in ``body``."""
    if not form.factors[0].contiguous_rows or form.kernel.domain or form.rows:
        return False
    rows = min(tiles(body)[0].size("m"), form.extent("m"))
    return not any(step % rows for step in steps_of(body, "m"))


def fusible(body: Nest) -> bool:
    """Whether tiles along m in ``body``, of one batch, may copy a second factor as the first of them read it."""
    axes = set()
    while isinstance(body, Loop | Pack):
        axes |= {body.axis} if isinstance(body, Loop) and (body.axis != "b" or body.block > 1) else set()
        body = body.body
    return isinstance(body, TileOp) and body.name == "fma" and "m" in axes and "b" not in axes


def covers(nest: Nest, axis: str) -> int:
    """Positions of ``axis`` that the nest of one tile covers."""
    while isinstance(nest, Loop | Pack) and not (isinstance(nest, Loop) and nest.axis == axis):
        nest = nest.body
    return nest.block if isinstance(nest, Loop) else tiles(nest)[0].size(axis)

"""How the copies and the tiles of contractions in a nest go about memory: what tiles copy on their way, how threads
share a copy, what is asked for ahead.

The price does not tell these apart: a copy that can be fused is, since its stores hide behind the arithmetic of tiles.
"""

from __future__ import annotations

import random
from dataclasses import replace

from eqsat.cost import calibration as c
from eqsat.cost.target import Target
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, is_parallel, tiles
from eqsat.schedule.problem import Problem
from eqsat.schedule.tiles import round_up

__all__ = ["fusible", "with_copies"]


def with_copies(nest: Nest, problem: Problem, target: Target, draws: random.Random | None = None) -> Nest:
    """A nest of a group with all that its contractions' copies and tiles do by the way.

    ``draws``: chosen at random among what is legal, instead of what is best.
    """

    def choose(best: int, legal: tuple[int, ...]) -> int:
        return draws.choice(legal) if draws is not None else best

    def walk(at: Nest, packed: frozenset[int], sums: int | None) -> Nest:
        """``sums``: how many a loop over k around leaves in scratch, in all; None: the tiles' are whole."""
        match at:
            case Seq(bodies):
                return Seq(tuple(walk(body, packed, sums) for body in bodies))
            case Loop(axis, block, step, body):
                if sums is None and axis == "k" and step < block:
                    sums = covers(body, "m") * covers(body, "n")
                return replace(at, body=walk(body, packed, sums))
            case Pack(operand, body, ahead):
                name, _, number = operand.partition("@")
                stage = int(number) if number else tiles(body)[0].stage
                body = walk(body, packed | {stage} if name == "b" else packed, sums)
                direct = name == "b" and problem.stages[stage].factors[1].direct
                at = replace(at, body=body, fused=False, prefetch=0, piece=0)
                if direct and not ahead and is_parallel(body):
                    at = replace(at, piece=choose(c.COPY_PIECE, (0, 5, c.COPY_PIECE)))
                elif direct and not ahead and not number and fusible(body) and choose(1, (0, 1)):
                    at = replace(at, fused=True, prefetch=choose(c.COPY_AHEAD, (0, c.COPY_AHEAD)))
                return at
            case TileOp("fma", stage=stage):
                form = problem.stages[stage]
                columns = round_up(min(at.size("n"), max(1, form.extent("n"))), target.lanes(form.dtype))
                once = stage in packed and form.extent("m") <= at.size("m")
                size = form.dtype.itemsize
                far = once and form.extent("k") * form.extent("n") * size > c.STREAM_BYTES
                most = max(1, c.STREAM_AHEAD // (columns * size))
                steps = choose(most if far else 0, (0, 3, most))
                afar = sums is None or sums * size > target.middle[0].capacity
                claim = choose(afar and form.extent("k") >= c.CLAIM_STEPS, (0, 1))
                return replace(at, ahead=steps, claim=bool(claim))
        return at

    return walk(nest, frozenset(), None)


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

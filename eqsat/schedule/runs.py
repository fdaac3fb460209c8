"""What it costs that stages of a group run row by row, or wait until those before them are done for a block of rows.

A reduction along lanes ends in a chain of dependent instructions, and what reads its result waits for the end of it.
Meanwhile out-of-order execution goes on with other rows, as far as it sees: little where one row is much work. Where
the waiting stage comes after the loop over the rows instead, they overlap in any number; but what it reads again of
a row has to have stayed in the innermost space, and what its next row reads is no longer asked for in time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.cost import calibration as c
from eqsat.cost.movement import slots_of
from eqsat.ir.kernel import Call, unique
from eqsat.ir.nest import Loop, Nest, Pack, Seq
from eqsat.schedule.forms import Source
from eqsat.schedule.maps import tile_of
from eqsat.schedule.price import Pricer
from eqsat.schedule.sweeps import stage_nests
from eqsat.schedule.tiles import ceil_div
from eqsat.schedule.vector_cost import tile_slots


@dataclass(frozen=True)
class _Row:
    """A stage over one row: seconds of the units; until its result is there, and its body, once begun.

    ``asked``: what it asks for of the next row, which an earlier stage reads first; ``late``: seconds if that has.
    """

    seconds: float
    result: float
    body: float
    touched: dict[Source, int]
    asked: frozenset[Source]
    late: float


class Runs:
    """Prices of runs: stages that are no contractions, which go row by row over blocks of rows of one group."""

    def __init__(self, pricer: Pricer) -> None:
        self.pricer, self.problem, self.target = pricer, pricer.problem, pricer.target
        self._rows: dict[Nest, _Row] = {}

    def seconds(self, before: Sequence[Nest], run: Sequence[Nest], rows: int) -> float:
        """Seconds a row that a run takes beside the work of its stages, each in a loop over rows of its own.

        ``before``: the stages since the last contraction, all done for the block's ``rows``. Nests are of one row of
        one stage each.
        """
        done, own = [self._row(nest) for nest in before], [self._row(nest) for nest in run]
        slot = self.target.slot(self.problem.stages[_stage(run[0])].dtype)
        total = (1 - len(own)) * (c.LOOP + c.START / rows) * slot
        made = {self.problem.stages[_stage(nest)].result: row.result for nest, row in zip(run, own, strict=True)}
        waits = [max((made.get(source, 0.0) for source in row.touched), default=0.0) for row in own]
        chain = sum(wait + row.body for wait, row in zip(waits, own, strict=True) if wait)
        seen, work = c.OVERLAPPED * self.target.ports.latency * slot, sum(row.seconds for row in own)
        read = {source: size for row in own for source, size in row.touched.items()}
        early = {source: size for row in done for source, size in row.touched.items()}
        hidden = seen + self._far({source: size for source, size in read.items() if source not in early})
        total += max(0.0, chain - hidden) * work / (work + seen)
        if done and rows * sum((early | read).values()) > self.target.inner.capacity * c.BLOCK_SHARE:
            total += sum(size for source, size in read.items() if source in early) / self.target.refill
        return total + sum(row.late for row in own if row.asked & early.keys())

    def _far(self, touched: dict[Source, int]) -> float:
        """Seconds until what is touched has come from beyond the second space, where it is."""
        operands = [(self.problem.const[index], n) for (kind, index, _), n in touched.items() if kind == "operand"]
        at_hand, origins = self.pricer.resident, self.target.origins
        return sum(
            nbytes / origin.bandwidth
            for const, nbytes in operands
            for here, origin in zip(at_hand[const][1:], origins[1:], strict=True)
            if not here
        )

    def _row(self, nest: Nest) -> _Row:
        found = self._rows.get(nest)
        if found is None:
            found = self._rows[nest] = self._price(nest)
        return found

    def _price(self, nest: Nest) -> _Row:
        tile, steps = tile_of(nest), 1
        while isinstance(nest, Loop):
            steps, nest = steps * ceil_div(nest.block, nest.step), nest.body
        form = self.problem.stages[tile.stage]
        slot, latency = self.target.slot(form.dtype), self.target.ports.latency
        taken = [(axis, min(n, max(1, form.extent(axis)))) for axis, n in tile.sizes]
        other, last = ([("", 1)] * 2 + taken)[-2:]
        slots = tile_slots(form, self.target, *other, *last)
        functions = slots_of(form.functions)
        body = sum(functions.get(e.fn, 1.0) for e in unique(form.kernel.body) if isinstance(e, Call))
        result = late = 0.0
        if form.kernel.combine is not None and form.reduced(last[0]):
            result = 2 * math.log2(max(2, tile.lanes)) * latency + form.epilogue_slots
        asked = self.pricer.again.get(tile.stage, {}).get(last[0], ()) if tile.prefetch else ()
        if asked:
            late = steps * self.pricer.exposed(form, asked, last[1], slots * slot)
        touched = self.problem.touched(tile.stage, form.extents({"outer": 1, "rows": 1}), frozenset())
        reads = frozenset(form.sources[load.operand] for load in asked)
        return _Row(steps * slots * slot, result * slot, body * latency * slot, touched, reads, late)

    def cuts(self, own: Sequence[Nest], rows: int) -> frozenset[int]:
        """The stages, of those between two contractions, that begin a run: of all ways to cut them the cheapest."""
        best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for stop in range(1, len(own) + 1):
            found = []
            for start in range(stop if rows > 1 else 1):
                seconds, begun = best[start]
                seconds += self.seconds(own[:start], own[start:stop], rows)
                found.append((seconds, (*begun, _stage(own[start])) if start else begun))
            best.append(min(found, key=lambda one: (one[0], len(one[1]), one[1])))
        return frozenset(best[-1][1])

    def of(self, nest: Nest) -> float:
        """Seconds of the busiest thread that the runs of a group's nest take beside the work of their stages."""
        return self._of(nest, 1, 1.0)

    def _of(self, nest: Nest, rows: int, times: float) -> float:
        match nest:
            case Loop(axis, n, step, body, parallel):
                share = ceil_div(ceil_div(n, step), self.target.threads) * step if parallel else n
                steps = min(n, share) / step * self.pricer.needed(axis, step)
                return self._of(body, step if axis == "rows" else rows, times * steps)
            case Pack(body=body):
                return self._of(body, rows, times)
            case Seq(parts):
                total, before = 0.0, list[Nest]()
                for part in parts:
                    run = list(stage_nests(part, self.problem.simple).values())
                    total += self.seconds(before, run, rows) if run else 0.0
                    before = [*before, *run] if run else []
                return total * rows * times
        raise TypeError(f"no nest of a group: {nest!r}")


def _stage(nest: Nest) -> int:
    return tile_of(nest).stage

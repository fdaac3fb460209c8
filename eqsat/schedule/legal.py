"""Legality of a nest: what is checked before code is made of it, wherever it comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eqsat.ir.axes import simplify
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import PRODUCTS, Loop, Nest, Pack, Seq, TileOp, is_parallel, tiles
from eqsat.ir.siblings import are_siblings
from eqsat.schedule.copies import fusible, in_pieces
from eqsat.schedule.forms import Factor, StageForm
from eqsat.schedule.maps import check_turns
from eqsat.schedule.phases import check_beside
from eqsat.schedule.problem import Problem, problem_of
from eqsat.schedule.sweeps import check_part
from eqsat.schedule.tiles import MATRIX_REGISTERS, ceil_div, matrix_registers, round_up

PANELS = {"a": "m", "b": "n"}
"""The axis along which the copy of a factor is cut into panels of a tile's width."""


@dataclass(frozen=True)
class _Here:
    """What is around the term at hand.

    ``sizes``: positions that are left to cover, by axis. ``stage``: whose axes these are; None: the shared ones.
    ``loops``: those with several steps, outermost first, as (axis, step). ``packed``: (stage, factor) and which of the
    loops are outside of its copy, and what it is cut by. ``threads``: the axis that threads share.
    """

    sizes: dict[str, int]
    stage: int | None
    loops: tuple[tuple[str, int], ...] = ()
    packed: tuple[tuple[int, str, int, str | None], ...] = ()
    threads: str | None = None


def check(nest: Nest, group: KernelGroup, lanes: int, registers: int, matrix: frozenset[str] = frozenset()) -> None:
    """Raise ``ValueError``, naming axis, or stage and factor, where ``nest`` is no legal nest of ``group``.

    ``lanes``: 32-bit lanes of a vector register; ``registers``: how many there are. ``matrix``: element types whose
    tiles are in registers of two axes. Loops and packings of contractions are checked; of other stages, only that they
    are there.
    """
    widths = {tile.lanes for tile in tiles(nest) if tile.name not in PRODUCTS}
    if len(widths) > 1:
        raise ValueError(f"vectors of {', '.join(map(str, sorted(widths)))} lanes in one group")
    if are_siblings(group):
        check_beside(nest, [stage.kernel for stage in simplify(group).stages])
        return
    _Check(problem_of(group, offered=matrix), lanes, registers, matrix).run(nest)


class _Check:
    def __init__(self, problem: Problem, lanes: int, registers: int, matrix: frozenset[str]) -> None:
        self.problem, self.lanes, self.registers, self.matrix = problem, lanes, registers, matrix

    def run(self, nest: Nest) -> None:
        problem = self.problem
        here = _Here({"outer": max(1, problem.outer), "rows": problem.rows}, None)
        if not problem.rows:
            here = _Here(self._sizes(problem.stages[0], None), 0)
        elif not _is_rows(nest):
            raise ValueError("no loop over rows is around the stages")
        while isinstance(nest, Pack) and nest.ahead:
            form, factor = self._factor(nest, here)
            if not factor.free:
                raise ValueError(f"{_what(form, factor)} cannot be packed at compile time")
            if nest.fused or nest.prefetch or nest.piece:
                raise ValueError(f"{_what(form, factor)} is packed at compile time, by no tile and no thread")
            here = replace(here, packed=(*here.packed, (form.index, factor.name, 0, PANELS[factor.name])))
            nest = nest.body
        found = self._walk(nest, here)
        if found != list(range(len(problem.stages))):
            raise ValueError(f"the nest runs stages {found}, the group has {len(problem.stages)}, in order")

    def _sizes(self, form: StageForm, block: int | None) -> dict[str, int]:
        return {name: form.extent(name, block) for name, _ in form.axes}

    def _walk(self, nest: Nest, here: _Here) -> list[int]:
        """Check ``nest``; the stages that it runs, in order."""
        match nest:
            case Loop():
                return self._walk(nest.body, self._loop(nest, here))
            case Pack():
                return self._walk(nest.body, self._pack(nest, here))
            case Seq(bodies):
                if here.stage is not None:
                    raise ValueError(f"stage {here.stage} is one kernel, its nest has no sequence")
                if here.sizes["outer"] > 1:
                    raise ValueError("no loop over outer is around the stages")
                found = []
                for body in bodies:
                    inside = tiles(body)
                    if not inside or any(not 0 <= tile.stage < len(self.problem.stages) for tile in inside):
                        raise ValueError("a sequence is one of the nests of the group's stages")
                    if not any(tile.name in PRODUCTS for tile in inside):
                        rows, problem = here.sizes["rows"], self.problem
                        check_part(body, problem.simple, rows, rows == problem.rows and bool(problem.shares))
                        found += [tile.stage for tile in inside]
                        continue
                    tile = inside[0]
                    own = self._sizes(self.problem.stages[tile.stage], here.sizes["rows"])
                    found += self._walk(body, replace(here, sizes=own, stage=tile.stage))
                return found
            case TileOp():
                self._tile(nest, here)
                return [nest.stage]

    def _loop(self, nest: Loop, here: _Here) -> _Here:
        axis, stage = nest.axis, here.stage
        form = None if stage is None else self.problem.stages[stage]
        if form is not None and not form.contraction:
            return here
        whose = "the group" if form is None else f"stage {stage}"
        if axis not in here.sizes:
            raise ValueError(f"a loop over {axis!r}, which is no axis of {whose}: it has {', '.join(here.sizes)}")
        if axis == "outer" and any(name == "rows" for name, _ in here.loops):
            raise ValueError("the loop over outer is inside the loop over rows")
        if nest.block != here.sizes[axis] or nest.step < 1:
            raise ValueError(
                f"the loop over {axis} of {whose} covers {nest.block} positions in steps of {nest.step}; "
                f"{here.sizes[axis]} are there"
            )
        if nest.peel:
            raise ValueError(f"the loop over {axis} of {whose} is peeled, which only those of maps and reductions are")
        threads = here.threads
        check_turns(nest)
        if nest.parallel:
            if axis == "k":
                raise ValueError("threads cannot share out k, the axis that is summed")
            if threads or (self.problem.rows and form is not None):
                raise ValueError(f"threads share the loop over {threads or 'shared axes'}, not also that over {axis}")
            threads = axis
        loops = (*here.loops, (axis, nest.step)) if nest.step < nest.block else here.loops
        sizes = {**here.sizes, axis: min(nest.block, nest.step)}
        return replace(here, sizes=sizes, loops=loops, threads=threads)

    def _factor(self, nest: Pack, here: _Here) -> tuple[StageForm, Factor]:
        name, _, number = nest.operand.partition("@")
        stages = [form for form in self.problem.stages if str(form.index) == (number or str(here.stage))]
        factors = [(form, factor) for form in stages for factor in form.factors if factor.name == name]
        if not factors:
            raise ValueError(f"a packing of {nest.operand!r}, which is no factor of a contraction of this group")
        return factors[0]

    def _pack(self, nest: Pack, here: _Here) -> _Here:
        form, factor = self._factor(nest, here)
        what = _what(form, factor)
        if nest.ahead:
            raise ValueError(f"{what} is packed at compile time, so outside of the whole nest")
        if any(known[:2] == (form.index, factor.name) for known in here.packed):
            raise ValueError(f"{what} is packed twice")
        if here.stage is None:
            if not _is_rows(nest.body):
                raise ValueError(f"{what} is packed inside of the loop over rows, outside of its stage")
            if factor.name != "b" or not factor.external:
                raise ValueError(f"{what} is not the same for all rows, and is packed outside of the loop over rows")
            if factor.axes & set(form.outer) and here.sizes["outer"] > 1:
                raise ValueError(f"{what} differs along outer, and is packed outside of the loop over it")
        elif form.index != here.stage:
            raise ValueError(f"{what} is packed in the nest of stage {here.stage}")
        shared = is_parallel(nest.body)
        if shared and here.loops:
            raise ValueError(f"{what} is packed by all threads in every step of the loop over {here.loops[-1][0]}")
        if nest.piece and not (shared and factor.name == "b" and factor.direct):
            raise ValueError(f"{what} is not copied by threads in pieces of k")
        if nest.prefetch and not nest.fused and (shared or factor.name != "a" or not in_pieces(form, nest.body)):
            raise ValueError(f"{what} is asked for ahead, and neither copied by tiles nor cut into panels")
        single = here.stage is not None and here.sizes["b"] <= 1
        if nest.fused and (shared or factor.name != "b" or not factor.direct or not single or not fusible(nest.body)):
            raise ValueError(f"{what} is not copied by the first tiles along m that read it")
        panels = PANELS[factor.name] if shared or factor.name == "b" else None
        return replace(here, packed=(*here.packed, (form.index, factor.name, len(here.loops), panels)))

    def _tile(self, tile: TileOp, here: _Here) -> None:
        if here.stage is None or tile.stage != here.stage:
            raise ValueError(f"a tile of stage {tile.stage} in the nest of stage {here.stage}")
        form = self.problem.stages[tile.stage]
        if not form.contraction or tile.name not in PRODUCTS:
            return
        for axis in "bmk" if tile.name == "update" else "bmnk":
            most = tile.size(axis)
            if here.sizes[axis] > max(1, most):
                raise ValueError(
                    f"stage {tile.stage}: the nest ends in {here.sizes[axis]} positions of {axis}, its tile has {most}"
                )
        across, along = "mn" if tile.prefetch == 3 else "nm"
        if tile.prefetch and (
            not here.loops or here.loops[-1][0] != along or {across, "k"}.isdisjoint(dict(here.loops))
        ):
            raise ValueError(
                f"stage {tile.stage}: the tile asks for a next panel of its {'first' if across == 'm' else 'second'} "
                f"factor, but is not in a loop over {along} inside of one over {across} or k"
            )
        if tile.name == "update" and (tile.ahead or tile.claim):
            raise ValueError(f"stage {tile.stage}: a rank update asks for nothing ahead")
        lanes = max(1, self.lanes * 4 // form.dtype.itemsize)
        rows = min(tile.size("m"), max(1, form.extent("m")))
        columns = round_up(min(tile.size("n"), max(1, form.extent("n"))), lanes)
        vectors = ceil_div(columns, lanes)
        needed, there = rows * vectors + vectors + 1, self.registers
        if form.dtype.name in self.matrix:
            needed, there = matrix_registers(rows, vectors), MATRIX_REGISTERS
        if tile.name == "fma" and needed > there:
            raise ValueError(f"a tile of m={rows} × n={columns} needs {needed} registers; {there} are there")
        packed = {name: (outside, axis) for stage, name, outside, axis in here.packed if stage == tile.stage}
        for factor in form.factors:
            if factor.name not in packed:
                if tile.name == "update":
                    in_place = bool(factor.stored) if factor.name == "b" else factor.direct
                else:
                    in_place = factor.direct or self._in_runs(factor, here)
                if not in_place:
                    raise ValueError(f"{_what(form, factor)} cannot be read in place, and the nest does not pack it")
                continue
            outside, panels = packed[factor.name]
            if tile.name == "update" and factor.name == "b":
                raise ValueError(f"a rank update reads {_what(form, factor)} where it lies, the nest packs it")
            width = columns if factor.name == "b" else rows
            for name, step in here.loops[outside:]:
                if name == panels and step % width:
                    raise ValueError(
                        f"the loop over {name} in steps of {step} is inside of the packing of {_what(form, factor)}, "
                        f"which is cut into panels of {width}"
                    )
        for axis, unit in (("m", rows), ("n", columns)) if tile.name == "fma" else ():
            steps = [step for name, step in here.loops if name == axis]
            if steps and steps[-1] < unit:
                raise ValueError(
                    f"stage {tile.stage}: the loop over {axis} in steps of {steps[-1]} is around a tile of {unit}"
                )

    @staticmethod
    def _in_runs(factor: Factor, here: _Here) -> bool:
        """Whether no tile of the nest leaves the runs that a factor lies in."""
        m, k = (max(1, here.sizes[axis]) for axis in "mk")
        cut = any(step % (m if axis == "m" else k) for axis, step in here.loops if axis in ("m", "k"))
        return factor.in_place(m, k) and not cut


def _is_rows(nest: Nest) -> bool:
    """Whether the loop over rows is still to come."""
    match nest:
        case Loop(axis, body=body):
            return axis == "rows" or _is_rows(body)
        case Pack(body=body):
            return _is_rows(body)
    return False


def _what(form: StageForm, factor: Factor) -> str:
    return f"factor {factor.name} of stage {form.index}"

"""Nests that come from elsewhere: which of them a target could have been offered by its own search."""

from __future__ import annotations

import math

from eqsat.cost.calibration import FEW_ROWS
from eqsat.cost.target import Target
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import MAPS, PRODUCTS, Loop, Nest, Seq, TileOp, around, tiles
from eqsat.schedule.forms import StageForm
from eqsat.schedule.legal import check
from eqsat.schedule.maps import check_nest
from eqsat.schedule.phases import check_beside, combining, is_split, parts_of, phases
from eqsat.schedule.problem import problem_of
from eqsat.schedule.sweeps import stage_nests
from eqsat.schedule.tiles import ceil_div
from eqsat.schedule.vector_cost import lanes_of
from eqsat.schedule.vectors import PARTS

UNROLLED = 128
"""Vectors of a map's or reduction's tile at most: each of them is a line of the printed kernel."""


def check_offered(nest: Nest, group: KernelGroup, target: Target) -> None:
    """Raise ``ValueError``, naming the tile or the axis, where ``nest`` is not legal, or not for ``target``.

    A legal nest computes what it should, whoever made it. But tiles of any size would unroll into kernels of any
    length, a reduction in any number of parts take any amount of memory, and lanes of another width be slow.
    """
    if isinstance(nest, Seq) and not is_split(nest):
        for one, own in phases(group, nest):
            check_offered(own, one, target)
        return
    found, problem = tiles(nest), problem_of(group, target)
    for tile in found:
        if any(size < 1 for _, size in tile.sizes):
            raise ValueError(f"tile {tile.name!r} takes {dict(tile.sizes)}: no position of an axis")
    kernels = [stage.kernel for stage in problem.simple.stages]
    if problem.stages[0].siblings:
        check_beside(nest, kernels, target.tiles)
        nest = next(iter(nest.bodies)) if isinstance(nest, Seq) else nest
        nest, found = around(nest, found[0]), found[:1]
    elif problem.rows or any(tile.name in PRODUCTS for tile in found):
        matrix = frozenset(name for row in target.rows("fma") if row.steps > 1 for name in row.dtypes)
        check(nest, group, target.vector_bits // 32, target.registers, matrix)
    elif isinstance(nest, Seq):
        first, second = nest.bodies
        kernel = problem.stages[0].kernel
        assert isinstance(first, Loop)
        check_nest(second, combining(kernel, parts_of(first)))
        nest, found = first, found[:1]
    if not problem.rows and [tile.stage for tile in found] != [0]:
        raise ValueError(f"the nest does not run the group's {len(group.stages)} stages once, in order")
    alone = stage_nests(nest, problem.simple) if problem.rows else {0: nest}
    for tile in found:
        form = problem.stages[tile.stage]
        if form.contraction != (tile.name in PRODUCTS) or (problem.rows and tile.name not in (*MAPS, *PRODUCTS)):
            raise ValueError(f"tile {tile.name!r} in the nest of stage {tile.stage}, which it does not compute")
        if form.contraction:
            _check_product(tile, form, target)
            continue
        own = alone[tile.stage]
        if not problem.rows:  # else its sweeps have been checked
            check_nest(own, form.kernel, 0, target.tiles, kernels if form.siblings else ())
        _check_vectors(own, tile, lanes_of(form, target))


def _check_product(tile: TileOp, form: StageForm, target: Target) -> None:
    rows = target.rows(tile.name, form.dtype)
    if not rows:
        raise ValueError(f"the target has no tile {tile.name!r} for {form.dtype}")
    if tile.name != "update":
        return
    lanes = target.lanes(form.dtype)
    if not any(tile.size("k") <= row.size("k") and tile.size("n") <= row.size("n") * lanes for row in rows):
        raise ValueError(f"the target has no rank update of n={tile.size('n')}, k={tile.size('k')}")
    if form.extent("m") > FEW_ROWS:
        raise ValueError(f"a rank update of m={form.extent('m')} rows, {FEW_ROWS} at most")


def _check_vectors(nest: Nest, tile: TileOp, lanes: int) -> None:
    if tile.lanes != lanes:
        raise ValueError(f"vectors of {tile.lanes} lanes, the target has {lanes}")
    vectors = ceil_div(math.prod(size for _, size in tile.sizes), lanes)
    if vectors > UNROLLED and tile.name in MAPS:  # others are no larger than the target says
        raise ValueError(f"a tile of {vectors} vectors, {UNROLLED} at most")
    while isinstance(nest, Loop):
        if nest.split and ceil_div(nest.block, nest.step) > PARTS:
            raise ValueError(f"axis {nest.axis!r} split in steps of {nest.step}: more than {PARTS} parts")
        nest = nest.body

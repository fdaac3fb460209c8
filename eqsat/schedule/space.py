"""The search space of one problem: candidate blocks, the starting nest, and the facts that make rules legal."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from eqsat.cost.calibration import BLOCK_SHARE, CHAIN, FEW_ROWS, LEAST_RUN
from eqsat.cost.target import Target, TargetError
from eqsat.egraph.nests import Space
from eqsat.ir.copied import goes_by_windows
from eqsat.schedule.domain import step_inside
from eqsat.schedule.forms import StageForm
from eqsat.schedule.problem import Problem
from eqsat.schedule.read_again import asking_stage, read_again
from eqsat.schedule.tiles import best_tiles, ceil_div, evened, round_up, run_tile
from eqsat.schedule.vectors import vector_facts


def space_of(problem: Problem, target: Target) -> Space:
    """The starting nest of a problem, one loop over single points an axis, and its facts."""
    facts: list[str] = []
    if not problem.rows:
        form = problem.stages[0]
        root = _product(form, None, target, facts) if form.contraction else _points(form, problem, target, (), facts)
        if target.threads > 1:
            _parallel_facts(form, facts)
        return Space(root, tuple(dict.fromkeys(facts)))
    blocks = row_blocks(problem, target)
    facts += chain("rows", problem.rows, blocks, levels=1)
    facts += ['(shared "rows")', '(shared "outer")', '(outermost "outer")']
    if target.threads > 1:
        facts += ['(splits "rows")', '(splits "outer")']
    if problem.columns is not None:
        facts.append('(unlike "rows")')
    asking = asking_stage(problem, target)
    if asking is not None:
        facts.append(f'(asks "rows{asking}" {problem.rows})')
    nests = []
    again = read_again(problem, target)
    for form in problem.stages:
        points = "" if form.contraction else _points(form, problem, target, again.get(form.index, ()), facts)
        for block in sorted({*blocks, problem.rows}):
            own = _product(form, block, target, facts) if form.contraction else _rows(form, block, points)
            facts.append(f'(flat "rows" {block} {form.index} {own})')
        nest = f'(Loop "rows" {problem.rows} 1 (Block {form.index}))'
        nests.append(f'(Loop "outer" {problem.outer} 1 {nest})' if problem.outer > 1 else nest)
        for factor in form.factors:
            if factor.external and factor.name == "b":
                facts.append(f'(hoists {form.index} "b" "rows")')
                if not factor.axes & set(form.outer):
                    facts.append(f'(hoists {form.index} "b" "outer")')
    root = nests[-1]
    for nest in reversed(nests[:-1]):
        root = f"(Seq {nest} {root})"
    return Space(root, tuple(dict.fromkeys(facts)))


def _points(form: StageForm, problem: Problem, target: Target, again: Collection[str], facts: list[str]) -> str:
    """The starting nest of a stage that is no contraction, without its shared rows; adds its facts."""
    if not target.rows("vector", form.dtype):
        number, dtype = form.index, form.dtype.name
        raise TargetError(f"the target offers no tile operation 'vector' for {dtype}, as stage {number} needs")
    nest, found = vector_facts(form, problem, target, again)
    facts += found
    return nest


def _rows(form: StageForm, block: int, points: str) -> str:
    """The starting nest of a stage that is no contraction over ``block`` shared rows, from that of one."""
    rows = form.extent("rows", block)
    return f'(Loop "rows{form.index}" {rows} 1 {points})' if rows > 1 else points


def _product(form: StageForm, block: int | None, target: Target, facts: list[str]) -> str:
    """The starting nest of a contraction over ``block`` shared rows (None: the whole stage); adds its facts."""
    i = form.index
    extents = {axis: form.extent(axis, block) for axis in "bmnk"}
    nest = f"(Point {i})"
    a, b = form.factors
    facts.append(f'(contracts {i} "m{i}" "n{i}" "k{i}")')
    facts.append(f"(layout {i} {_bool(a.free)} {_bool(b.free)})")
    for factor in form.factors:
        if not factor.free:
            facts.append(f'(packable {i} "{factor.name}")')
            facts += [f'(hoists {i} "{factor.name}" "{axis}{i}")' for axis in "bmnk"]
        if factor.external:
            facts.append(f'(external {i} "{factor.name}")')
    facts += [f'(permutable "{x}{i}" "{y}{i}")' for x in "mnk" for y in "mnk" if x != y]
    single = block is None
    for axis, (steps, whole) in contraction_blocks(form, extents, target, facts, single).items():
        facts += chain(f"{axis}{i}", extents[axis], steps, whole=whole)
    for axis in "knm":
        nest = f'(Loop "{axis}{i}" {extents[axis]} 1 {nest})'
    return f'(Loop "b{i}" {extents["b"]} 1 {nest})' if extents["b"] > 1 else nest


def chain(axis: str, extent: int, steps: Iterable[int], levels: int = 2, whole: Collection[int] = ()) -> list[str]:
    """``factor`` facts: the extent in any of the steps, a step in any smaller one, all in ones.

    With ``levels`` 1 a step is not walked in a smaller one. Stated for every pair, so that all nests that cover one
    block are found equal: were one pair missing, blocks
    reached in different ways would stay apart, and multiply. But a block is walked in steps of ``whole``, the widths of
    tiles, and one as wide as a tile in any steps, only where these divide it: panels of that width would be cut.
    Nor is it walked in steps of whole tiles that it is not itself whole tiles of.
    """
    inside = sorted({step for step in steps if 1 < step < extent}, reverse=True)
    facts = [f'(factor "{axis}" {extent} {step})' for step in inside]
    facts += [f'(factor "{axis}" {step} 1)' for step in inside]
    if levels > 1:
        cut = [(a, b) for i, a in enumerate(inside) for b in inside[i + 1 :]]
        pairs = [(a, b) for a, b in cut if a % b == 0 or not {a, b} & set(whole)]
        pairs = [(a, b) for a, b in pairs if all(a % width == 0 for width in whole if b % width == 0)]
        facts += [f'(factor "{axis}" {a} {b})' for a, b in pairs]
    return facts


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _parallel_facts(form: StageForm, facts: list[str]) -> None:
    """Which axes threads may share: those whose steps write different results, so never a reduced one."""
    i = form.index
    if form.contraction:
        facts += [f'(splits "{axis}{i}")' for axis in "bmn"] + [f'(outermost "b{i}")']


def contraction_blocks(
    form: StageForm, extents: dict[str, int], target: Target, facts: list[str], single: bool
) -> dict[str, tuple[list[int], set[int]]]:
    """Candidate steps an axis: the register tile's, then blocks that fill the caches; adds the ``register`` facts.
    With each the steps that are a tile's.

    For a block of n or k that fills a cache the other factor's candidate sizes are assumed, as in
    Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
    """
    m, n, k = extents["m"], extents["n"], extents["k"]
    size = form.dtype.itemsize
    wide = single and target.threads == 1 and any(factor.free for factor in form.factors)
    tiles = best_tiles(target, form.dtype, m, n, 2 if wide else 1)  # a second tile doubles the e-graph
    rows_run, depth_run = form.factors[0].runs
    cut = run_tile(target, form.dtype, rows_run, n, tiles[0]) if depth_run >= LEAST_RUN else None
    if cut is not None and cut not in tiles:
        tiles = (tiles[0], cut)
    for rows, columns in tiles:
        facts.append(f"(register {form.index} {rows} {columns})")
    steps: dict[str, list[int]] = {"m": [], "n": [], "k": []}
    widths: dict[str, set[int]] = {"m": {rows for rows, _ in tiles}, "n": {columns for _, columns in tiles}}
    if k >= 1.5 * CHAIN:
        steps["k"].append(round_up(ceil_div(k, round(k / CHAIN)), _depth_unit(form, target.lanes(form.dtype))))
        if single and form.long:
            steps["k"].append(2 * steps["k"][0])
    depth = min([k, *steps["k"]])
    facts.append(f"(depth {form.index} {depth})")
    if single and m <= tiles[0][0] and 2 * depth <= k:  # sums of few rows are put down often: twice the chain
        facts.append(f"(depth {form.index} {2 * depth})")
        steps["k"].append(2 * depth)
    if cut is not None:  # the first factor is read where it lies
        runs = {depth_run, step_inside(form.kernel, form.named["k"])} if form.kernel.domain else {depth_run}
        widths["k"] = {run // next(n for n in range(ceil_div(run, CHAIN), run + 1) if run % n == 0) for run in runs}
        steps["k"] += sorted(widths["k"])
        facts += [f"(depth {form.index} {depth})" for depth in sorted(widths["k"])]
        depth = max(widths["k"])
    second = form.factors[1]
    streams = single and m <= max(FEW_ROWS, tiles[0][0]) and second.stored and not second.free
    for row in target.rows("update", form.dtype):
        rank = row.size("k")
        if streams and k >= 2 * rank and n * k * second.stored > target.middle[0].capacity:
            facts.append(f"(updates {form.index} {m} {rank})")
            steps["k"].append(rank)
    for rows, columns in tiles:
        steps["m"].append(rows)
        steps["n"].append(columns)
    if second.external and (second.direct or second.free):
        asking = sorted({columns for rows, columns in tiles if rows < m and columns < n})
        facts += [f'(panels {form.index} "{form.name("m")}" {columns})' for columns in asking]
    if single:
        rows, columns = tiles[0]
        deep = max([k if k <= 2 * CHAIN else 0, *steps["k"]])  # what a cached block is deep
        for cache in target.middle:
            room = cache.capacity * BLOCK_SHARE / size
            steps["m"].append(_fill(room / deep, rows, m))
            steps["n"].append(_fill(room / deep, columns, n))
            if deep > depth:  # a block of half that depth is wider: the second factor is read less often
                steps["m"].append(_fill(room / depth, rows, m))
            if form.long:  # likewise
                shares = (BLOCK_SHARE, form.share)
                steps["n"] += [_fill(cache.capacity * share / size / depth, columns, n) for share in shares]
        most = target.caches[-1].capacity * BLOCK_SHARE / (k * size)
        if n > most:
            steps["n"].append(_fill(most, columns, n))
        if target.threads > 1:
            for axis, tile, whole in (("m", rows, m), ("n", columns, n)):
                steps[axis].append(round_up(ceil_div(whole, target.threads), tile))
    return {axis: ([s for s in found if s > 0], widths.get(axis, set())) for axis, found in steps.items()}


def _depth_unit(form: StageForm, lanes: int) -> int:
    """What blocks of k are multiples of: of windows where these are copied, in parts of which divisions find places."""
    unit = 8
    for factor in form.factors:
        taps = math.prod(factor.window)
        by_rows = factor.name == "a" and not factor.piece
        if factor.free or form.depth > 1 or not 1 < taps <= CHAIN // 4:
            continue
        if not by_rows or goes_by_windows(factor.window, taps, lanes):
            unit = math.lcm(unit, taps) if math.lcm(unit, taps) <= CHAIN // 4 else taps
    return unit


def _fill(most: float, tile: int, extent: int) -> int:
    """About ``most`` positions in whole tiles, evened out over the steps that takes; 0 when everything fits."""
    count = max(1, int(most) // tile) * tile
    if count >= extent:
        return 0
    steps = -(-extent // count)
    return round_up(ceil_div(extent, steps), tile)


def row_blocks(problem: Problem, target: Target) -> tuple[int, ...]:
    """Candidate row blocks of a group: whole register tiles, up to where the rows in flight fill the inner caches."""
    everything: frozenset[tuple[int, str]] = frozenset()
    one = many = 0
    for form in problem.stages:
        for rows in (1, 2):
            extents = form.extents({"outer": 1, "rows": min(rows, problem.rows)})
            touched = sum(problem.touched(form.index, extents, everything).values())
            one, many = (one + touched, many) if rows == 1 else (one, many + touched)
    per_row = max(1, many - one)
    tile = 1
    for form in problem.stages:
        if form.contraction:
            inner = form.extent("m", 1)
            rows, _ = best_tiles(target, form.dtype, form.extent("m", problem.rows), form.extent("n", 1), 1)[0]
            tile = max(tile, -(-rows // inner))
    rooms = [target.caches[0].capacity * BLOCK_SHARE]
    for cache in target.middle:
        rooms += [cache.capacity * BLOCK_SHARE / 2, cache.capacity * BLOCK_SHARE]
    found = {max(1, int(room / per_row) // tile) * tile for room in rooms} | {tile, 4 * tile}
    if target.threads > 1:
        found.add(round_up(ceil_div(problem.rows, target.threads), tile))
    whole = sorted(block for block in found if 0 < block < problem.rows)
    return tuple(sorted({evened(problem.rows, block) for block in whole}))

"""From an entry of the search to the loop nest it stands for."""

from __future__ import annotations

from dataclasses import replace

from eqsat.cost.target import Target
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, is_parallel
from eqsat.schedule.copies import with_copies
from eqsat.schedule.phases import beside, with_combining
from eqsat.schedule.problem import Problem, plain_axis
from eqsat.schedule.search import Entry, streams, tile_sizes
from eqsat.schedule.tiles import round_up
from eqsat.schedule.vector_cost import lanes_of


def decode(entry: Entry, problem: Problem, target: Target) -> Nest:
    """The nest that an entry stands for, in the axis names of ``eqsat.ir.nest``: in a group each stage by itself."""
    lanes = tuple(target.lanes(f.dtype) if f.contraction else lanes_of(f, target) for f in problem.stages)
    nest = _named(_decode(entry, problem, lanes, target), problem)
    if problem.rows:
        if not _has(nest, "rows"):
            nest = _wrap(nest, problem.rows)
        if problem.outer <= 1:
            nest = Loop("outer", 1, 1, nest)
    elif not problem.stages[0].contraction:
        nest = with_combining(nest, problem.stages[0].kernel)
        if problem.stages[0].siblings:
            nest = beside(nest, len(problem.stages[0].results))
    return with_copies(prepacked(nest, problem), problem, target)


def prepacked(nest: Nest, problem: Problem) -> Nest:
    """A nest with the packing of what comes packed from compile time around it."""
    for form in reversed(problem.stages):
        for factor in form.factors:
            if factor.free:
                nest = Pack(f"{factor.name}@{form.index}" if problem.rows else factor.name, nest, ahead=True)
    return nest


def _decode(entry: Entry, problem: Problem, lanes: tuple[int, ...], target: Target) -> Nest:
    node = entry.node
    match node.op:
        case "Loop" | "Par" | "Cyclic" | "Split" | "Ahead" | "Peel" | "PeelPar":
            axis, n, step = str(node.args[0]), int(node.args[1]), int(node.args[2])
            body = _decode(entry.children[0], problem, lanes, target)
            split, cyclic, asks = (node.op == kind for kind in ("Split", "Cyclic", "Ahead"))
            shared, peel = split or cyclic or node.op in ("Par", "PeelPar"), node.op in ("Peel", "PeelPar")
            return Loop(plain_axis(axis), n, step, body, shared, split, cyclic, asks, peel)
        case "Ask":
            block, i, m, n, k = (int(x) for x in node.args[1:6])
            return Loop("m", block, m, TileOp("fma", (("m", m), ("n", n), ("k", k)), i, prefetch=1))
        case "Pack":
            body = _decode(entry.children[0], problem, lanes, target)
            return Pack(f"{node.args[1]}@{node.args[0]}" if isinstance(below(body), Seq) else str(node.args[1]), body)
        case "Seq":
            bodies: list[Nest] = []
            for child in entry.children:
                inner = _decode(child, problem, lanes, target)
                bodies.extend(inner.bodies if isinstance(inner, Seq) else (inner,))
            return Seq(tuple(bodies))
        case "Update":
            i, m, n, k = (int(x) for x in node.args[:4])
            most = target.rows("update")[0].size("n") * lanes[i]
            return TileOp("update", (("m", m), ("n", min(n, most)), ("k", k)), i)
        case "Tile":
            i, m, n, k = (int(x) for x in node.args[:4])
            return TileOp("fma", (("m", m), ("n", n), ("k", k)), i)
        case "Op":
            stage, name, _ = node.args
            named = tuple((plain_axis(axis), size) for axis, size in tile_sizes(node))
            return TileOp(str(name), named, int(stage), lanes[int(stage)])
        case "Vector" | "Transpose":
            stage, stream = int(node.args[0]), streams(node)
            sizes = [(plain_axis(axis), size) for axis, size in tile_sizes(node)]
            if node.op == "Transpose":
                return TileOp("transpose", tuple(sizes), stage, lanes[stage], stream)
            if sizes:
                sizes[-1] = sizes[-1][0], round_up(sizes[-1][1], lanes[stage])  # whole vectors
            return TileOp("vector", tuple(sizes), stage, lanes[stage], stream, int(node.args[-1]))
    raise ValueError(f"a nest cannot be made of {node.op}: no rule turned it into a tile")


def _named(nest: Nest, problem: Problem) -> Nest:
    """The nest with its tiles of vectors called by what they do."""
    match nest:
        case Loop(body=body) | Pack(body=body):
            return replace(nest, body=_named(body, problem))
        case Seq(bodies):
            return Seq(tuple(_named(body, problem) for body in bodies))
        case TileOp("vector", stage=stage):
            return replace(nest, name="reduce" if problem.stages[stage].kernel.combine else "map")
    return nest


def below(nest: Nest) -> Seq | TileOp:
    """What the loops and packings of a nest are around: a tile, or a sequence of stages."""
    while isinstance(nest, Loop | Pack):
        nest = nest.body
    return nest


def _has(nest: Nest, axis: str) -> bool:
    match nest:
        case Loop(name, _, _, body):
            return name == axis or _has(body, axis)
        case Pack(body=body):
            return _has(body, axis)
    return False


def _wrap(nest: Nest, rows: int) -> Nest:
    """One step over all rows, right around the sequence of stages."""
    match nest:
        case Loop(axis, n, step, body, parallel) if axis == "outer":
            return Loop(axis, n, step, _wrap(body, rows), parallel)
        case Pack(operand, body):
            return Pack(operand, _wrap(body, rows))
    return Loop("rows", rows, rows, nest)


def shareable(nest: Nest, columns: int) -> Nest:
    """A nest that one thread was chosen for, with a loop that more threads could share at run time.

    The outermost loop where its steps are independent, else a single step over all ``columns`` of n.
    """
    if is_parallel(nest):
        return nest
    if isinstance(nest, Pack) and nest.ahead:
        return replace(nest, body=shareable(nest.body, columns))
    if isinstance(nest, Loop) and nest.axis != "k":
        return replace(nest, parallel=True)
    return Loop("n", columns, columns, nest, True)

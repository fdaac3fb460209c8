"""Loop nests: the terms of the schedule e-graph, and what code generators walk.

A nest says in which order, block by block, a kernel group runs. Blocks are sizes, not trip counts, so
remainders need no term of their own: a loop over ``block`` in steps of ``step`` runs its last, shorter
step with what is left.

Axes are named as follows.

* A contraction stage: ``b`` (all batch axes, flattened), ``m`` (axes of the first factor), ``n`` (axes of
  the second), ``k`` (reduced). Its innermost term is ``TileOp("fma", m, n, k)``: a register tile of
  m × n, run over k. ``Pack("a")`` and ``Pack("b")`` copy a factor's block into the tile's layout; what has none is
  read where it lies. A ``Pack`` outside the parallel loop is shared by all threads, one inside is private. A factor
  that is packed at compile time has a ``Pack`` with ``ahead`` around the whole nest. Threads copy a shared block in
  contiguous shares of equal pieces: panels of its layout, or ``piece`` positions of k across all panels. A private
  block is copied before what reads it, or is ``fused`` with the first row of tiles that does.
  ``TileOp("update", m, n, k)`` in its place, for few rows of the first factor, is a rank-k update without a
  register tile: the block of results stays in cache and k rows of the second factor, which is read where it lies,
  are streamed over it, each scaled by one element per result row and added. The first step over ``k`` overwrites
  the block, the others add to it. Its ``n`` is the columns taken at a time; the block may have any number.
* Any other stage: its own axes (of ``eqsat.ir.axes.normalized``; past the shared ones in a group), ``p0``, ``p1``, …
  parallel and ``r0``, ``r1``, … reduced, far strides first. Its innermost term works on vectors of ``lanes`` elements
  along one axis, and takes one position of all axes that it does not name:
  ``TileOp("map", p0)`` computes and stores; ``TileOp("reduce", axis)`` combines into as many vectors of partial
  results, whose lanes are combined in the end if the axis is reduced. Both may name another axis before that of the
  lanes, of which they take several positions at once (unroll and jam). ``TileOp("transpose", a, b)`` takes blocks of
  lanes × lanes, loaded along ``a``, transposed in registers, and computed (and stored) along ``b``; or, where no load
  lies along another axis than ``a``, computed along that, transposed and stored.
  Where a target's table has a tile operation whose semantics the stage is (``eqsat.schedule.tensorize``), that may be
  its innermost term, by its own name, with the elements that it takes of each axis: ``TileOp("maxplus", p0, p1, r0)``.
  Its accumulators are those of one tile, so loops over parallel axes stay outside of those over reduced ones.
  Partial results are kept in registers within the loops over reduced axes; those of a loop over a parallel axis that
  stands inside one over a reduced axis are kept in scratch. A loop over a reduced axis that is ``split`` gives every
  step results of its own, which a second pass combines: only that makes it one that threads may share.
* Reductions side by side (``eqsat.ir.siblings``), which share no axis: the nest of one of them, split or not, around a
  ``Seq`` of tiles that are alike, one for each stage. All axes are those of every stage.
* Any other group of several stages: ``outer`` (all shared axes but the last, flattened) and ``rows`` (the last
  shared axis) around a ``Seq`` of parts. A part is the nest of a contraction, whose axes then cover one block of rows,
  or a loop over the block's ``rows``, one by one (left out where a block is one row), around a ``Seq`` of sweeps of a
  row. A sweep is the nest of one map or reduction past the shared axes, or loops around a ``Seq`` of tiles of several
  that walk the same axes: the loops go by the names of the first one's axes, each tile by those of its own stage, and
  what one stage makes the next finds in a register. What is packed outside of the loop over blocks of ``rows``, for
  all of them, is a second factor: ``Pack("b@2")`` is that of stage 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Loop:
    """Walk ``block`` elements of ``axis``, ``step`` at a time; ``body`` covers one step.

    ``parallel``: the steps are shared out between threads, in contiguous runs; ``cyclic``: in turns, each thread the
    next step. ``split``: of a reduced axis, every step has results of its own, combined in a second pass.
    ``prefetch``: of the loop over the rows of a part of a group, with each row goes software prefetch of its share of
    what the contractions of the group read at the next position of ``outer`` (``eqsat.schedule.ahead``).
    ``peel``: in runs, such that guards which move along the axis alone are settled in most of them.
    """

    axis: str
    block: int
    step: int
    body: Nest
    parallel: bool = False
    split: bool = False
    cyclic: bool = False
    prefetch: bool = False
    peel: bool = False


@dataclass(frozen=True, slots=True)
class Seq:
    """The bodies one after the other."""

    bodies: tuple[Nest, ...]


@dataclass(frozen=True, slots=True)
class Pack:
    """Copy what ``body`` touches of ``operand`` into scratch, in the layout ``body`` wants (staging).

    ``ahead``: the copy is made at compile time. ``fused``: the first tiles along m read a second factor where it lies,
    and store what they load to the copy, which the others read. ``prefetch``: so many steps of k before, these ask for
    it; 0: never. ``piece``: threads share a second factor's copy by so many positions of k; 0: by panels.
    """

    operand: str
    body: Nest
    ahead: bool = False
    fused: bool = False
    prefetch: int = 0
    piece: int = 0


@dataclass(frozen=True, slots=True)
class TileOp:
    """A hardware tile: ``name`` and its sizes, e.g. ``fma`` with (("m", 14), ("n", 32), ("k", 512)).

    ``lanes``: of each vector, in the tiles of maps and reductions. ``stream``: results go past the caches.
    ``prefetch``: of a stage of a group, software prefetch of what its loads read so many rows further on; 0: none. Of
    ``fma``, of what the loops around read next, a share each: in a loop over m of the second factor's panel, where
    that lies (1) or of its copy (2), in a loop over n of the first factor's rows (3).
    ``ahead``: of ``fma``, software prefetch of its own panel so many steps of k further on; 0: none.
    ``claim``: of ``fma``, it asks for the cache lines of its results, where they lie in rows, or of the stored sums
    that it adds to, before it multiplies.
    """

    name: str
    sizes: tuple[tuple[str, int], ...]
    stage: int = 0
    lanes: int = 0
    stream: bool = False
    prefetch: int = 0
    ahead: int = 0
    claim: bool = False

    def size(self, axis: str) -> int:
        return dict(self.sizes).get(axis, 1)


Nest = Loop | Seq | Pack | TileOp

MAPS = ("map", "reduce", "transpose")
"""The tiles of vectors of stages that are no contraction."""

PRODUCTS = ("fma", "update")
"""The tiles of contractions. Any other name is that of a tile operation of the target's table."""


def tiles(nest: Nest) -> tuple[TileOp, ...]:
    """The tiles of a nest, in the order in which they run."""
    match nest:
        case Loop(body=body) | Pack(body=body):
            return tiles(body)
        case Seq(bodies):
            return tuple(tile for body in bodies for tile in tiles(body))
    return (nest,)


def around(nest: Nest, inner: Nest) -> Nest:
    """The loops of a nest around something else than its tile."""
    return replace(nest, body=around(nest.body, inner)) if isinstance(nest, Loop) else inner


def is_parallel(nest: Nest) -> bool:
    """Whether threads share a loop of this nest."""
    match nest:
        case Loop(body=body, parallel=parallel):
            return parallel or is_parallel(body)
        case Pack(body=body):
            return is_parallel(body)
    return False


def steps_of(nest: Nest, axis: str) -> list[int]:
    """Steps of the loops over an axis around the one tile of a nest."""
    found = []
    while isinstance(nest, Loop | Pack):
        if isinstance(nest, Loop) and nest.axis == axis:
            found.append(nest.step)
        nest = nest.body
    return found


def walks(nest: Nest, axis: str) -> bool:
    """Whether a nest needs the end of the current block of ``axis``: it loops over it, packs it, or takes all of it."""
    match nest:
        case Loop(axis=other, body=body):
            return other == axis or walks(body, axis)
        case Pack(operand, body):
            return axis == "k" or axis == {"a": "m", "b": "n"}[operand[0]] or walks(body, axis)
        case TileOp("update"):
            return axis == "n"
        case _:
            return False


def show(nest: Nest) -> str:
    """One line, outermost first: ``m:1024/252 > n:1024/32 > m:252/14 > fma(m=14,n=32,k=1024)``.

    ``+``: split, ``*``: parallel, ``^``: peeled.
    """
    match nest:
        case Loop(axis, block, step, body, parallel, split, cyclic, prefetch, peel):
            marks, how = "+" * split + "*" * parallel, "^" * peel + " cyclic" * cyclic + " prefetch" * prefetch
            return f"{axis}{marks}:{block}/{step}{how} > {show(body)}"
        case Pack(operand, body, ahead, fused, prefetch, piece):
            how = " fused" * fused + f" prefetch={prefetch}" * (prefetch > 0) + f" by {piece}" * (piece > 0)
            return f"{'prepack' if ahead else 'pack'} {operand}{how} > {show(body)}"
        case Seq(bodies):
            return "[" + "; ".join(map(show, bodies)) + "]"
        case TileOp(name, sizes, _, lanes, stream, prefetch, ahead, claim):
            named = [f"{a}={n}" for a, n in sizes] + [f"lanes={lanes}"] * (lanes > 0)
            named += ["stream"] * stream + [f"prefetch={prefetch}"] * (prefetch > 0)
            named += [f"ahead={ahead}"] * (ahead > 0) + ["claim"] * claim
            return f"{name}({','.join(named)})"

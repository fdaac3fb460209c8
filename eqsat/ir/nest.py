"""Loop nests: the terms of the schedule e-graph, and what code generators walk.

A nest says in which order, block by block, a kernel group runs. Blocks are sizes, not trip counts, so
remainders need no term of their own: a loop over ``block`` in steps of ``step`` runs its last, shorter
step with what is left.

Axes are named as follows.

* A contraction stage: ``b`` (all batch axes, flattened), ``m`` (axes of the first factor), ``n`` (axes of
  the second), ``k`` (reduced). Its innermost term is ``TileOp("fma", m, n, k)``: a register tile of
  m × n, run over k. ``Pack("a")`` and ``Pack("b")`` copy a factor's block into the tile's layout; what has none is
  read where it lies. A ``Pack`` outside the parallel loop is shared by all threads, one inside is private. A factor
  that is packed at compile time has a ``Pack`` with ``ahead`` around the whole nest.
  ``TileOp("update", m, n, k)`` in its place, for few rows of the first factor, is a rank-k update without a
  register tile: the block of results stays in cache and k rows of the second factor, which is read where it lies,
  are streamed over it, each scaled by one element per result row and added. The first step over ``k`` overwrites
  the block, the others add to it. Its ``n`` is the columns taken at a time; the block may have any number.
* Any other stage: ``rows`` (its parallel axes but the vectorized one, flattened) and ``lanes``; its
  innermost term is ``TileOp("vector", lanes)``.
* A group of several stages: ``outer`` (all shared axes but the last, flattened) and ``rows`` (the last
  shared axis) around a ``Seq`` of the stages' own nests, whose axes then cover one block of rows. What is packed
  outside of ``rows``, for all blocks of rows, is a second factor: ``Pack("b@2")`` is that of stage 2.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loop:
    """Walk ``block`` elements of ``axis``, ``step`` at a time; ``body`` covers one step.

    ``parallel``: the steps are shared out between threads, in contiguous runs.
    """

    axis: str
    block: int
    step: int
    body: Nest
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class Seq:
    """The bodies one after the other."""

    bodies: tuple[Nest, ...]


@dataclass(frozen=True, slots=True)
class Pack:
    """Copy what ``body`` touches of ``operand`` into scratch, in the layout ``body`` wants (staging).

    ``ahead``: the copy is made at compile time.
    """

    operand: str
    body: Nest
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class TileOp:
    """A hardware tile: ``name`` and its sizes, e.g. ``fma`` with (("m", 14), ("n", 32), ("k", 512))."""

    name: str
    sizes: tuple[tuple[str, int], ...]
    stage: int = 0

    def size(self, axis: str) -> int:
        return dict(self.sizes).get(axis, 1)


Nest = Loop | Seq | Pack | TileOp


def show(nest: Nest) -> str:
    """One line, outermost first: ``m:1024/252 > n:1024/32 > m:252/14 > fma(m=14,n=32,k=1024)``."""
    match nest:
        case Loop(axis, block, step, body, parallel):
            return f"{axis}{'*' if parallel else ''}:{block}/{step} > {show(body)}"
        case Pack(operand, body, ahead):
            return f"{'prepack' if ahead else 'pack'} {operand} > {show(body)}"
        case Seq(bodies):
            return "[" + "; ".join(map(show, bodies)) + "]"
        case TileOp(name, sizes):
            return f"{name}({','.join(f'{a}={n}' for a, n in sizes)})"

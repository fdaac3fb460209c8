"""Which matrices a program reads block of rows by block of rows, for a second pass over them to find it in a cache."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from eqsat.cost.calibration import ROWS_GAIN, ROWS_SHARE
from eqsat.cost.target import Target
from eqsat.ir.invariants import with_views
from eqsat.ir.known import constant_operands, known_nodes
from eqsat.ir.loop import Loop, LoopResult, loop, with_loops
from eqsat.ir.node import Formed, Graph, Node
from eqsat.ir.row_blocks import RowBlocks, in_row_blocks, row_blocks
from eqsat.ir.spec import Spec

LEAST_ROWS = 4
"""Rows of a block at least: each takes a step of every kernel, and reads and writes the sums."""


def read_once(graph: Graph, const: Collection[Node], target: Target) -> Formed | None:
    """The program with a loop over blocks of rows of every matrix whose second pass that makes cheaper, also within its
    loops; None where it does so for none.

    ``const``: inputs whose values are known, which kernels have in layouts of their own.
    """
    origins: dict[Node, Node] = {}
    found = _bodies(graph, const, target)
    while found is not None or (found := _once(graph, const, target)) is not None:
        origins |= {new: origins.get(old, old) for new, old in found.origins.items()}
        graph, found = found.graph, None
    return Formed(graph, origins) if origins else None


def _bodies(graph: Graph, const: Collection[Node], target: Target) -> Formed | None:
    """The program with its loops' bodies in that form; None where all are as they were."""
    known = known_nodes(graph, const)
    origins: dict[Node, Node] = {}

    def results(node: Node, inputs: tuple[Node, ...]) -> list[Node]:
        assert isinstance(node.attrs, LoopResult)
        return _body(node.attrs.loop, inputs, [i in known for i in node.inputs], target, origins)

    return with_loops(graph, results, origins)


def _body(
    whole: Loop, operands: Sequence[Node], known: Sequence[bool], target: Target, origins: dict[Node, Node]
) -> list[Node]:
    """The results of a loop, whose body is in that form where it pays. ``known``: operands whose values are."""
    views: dict[Node, Node] = {}
    made, given = with_views(whole, operands, views) or (whole, operands)
    held = [operand for operand, is_known in zip(operands, known, strict=True) if is_known]
    formed = read_once(made.body, constant_operands(made, given, held), target)
    if formed is None:
        return loop(whole, operands)
    origins |= views
    origins |= {new: views.get(old, old) for new, old in formed.origins.items()}
    return loop(replace(made, body=formed.graph), given)


def _once(graph: Graph, const: Collection[Node], target: Target) -> Formed | None:
    """The program with a loop over the rows of the largest matrix for which it pays."""
    known = known_nodes(graph, const)
    nodes = [node for node in graph.nodes() if node.type.ndim > 1 and node not in known]
    for matrix in sorted(nodes, key=lambda node: -node.type.nbytes):
        rows = _rows(matrix, target)
        if LEAST_ROWS <= rows <= matrix.shape[0] // 2:
            for blocks in row_blocks(graph, matrix):
                if _pays(blocks, rows, target):
                    return in_row_blocks(graph, blocks, rows)
    return None


def _rows(matrix: Node, target: Target) -> int:
    """Rows of a block: a power of two of them that takes a part of the cache that passes it on; 0 where not even one
    does, or all of them do."""
    near = target.middle[0].capacity
    row = matrix.type.nbytes // max(1, matrix.shape[0])
    if matrix.type.nbytes <= near or not 0 < row <= ROWS_SHARE * near:
        return 0
    return 1 << int(math.log2(ROWS_SHARE * near / row))


def _pays(blocks: RowBlocks, rows: int, target: Target) -> bool:
    """Whether no cache holds the matrix, and the second pass takes so much less from one. A matrix that the last cache
    holds gains little by coming from the one before: 4 to 16 MB of float32 0.86 to 1.04 of the time (Zen 5)."""
    nbytes, threads = blocks.matrix.type.nbytes, target.threads
    if nbytes <= threads * target.caches[-1].capacity:
        return False
    first, second = (sum(_slots(node, target) for node in nodes) / threads for nodes in blocks.passes)
    far = target.moving(nbytes / threads, nbytes / threads)
    block = nbytes * rows / blocks.extent
    if threads > 1:  # they share rows in the first pass and columns in the second: what is near is what all of them see
        block = max(block, 1 + max((space.capacity for space in target.caches if not space.shared), default=0.0))
    near = target.moving(nbytes / threads, block)
    kernels = len(blocks.sums) + sum(isinstance(node.attrs, Spec) for node in blocks.inside)
    sums = sum(2 * target.moving(node.type.nbytes, node.type.nbytes) for node in blocks.sums)
    trips = blocks.extent / rows
    whole = max(first, far) + max(second, far)
    parts = max(first, far) + max(second, near) + trips * (sums + kernels * (target.step + target.barrier))
    return whole - parts > ROWS_GAIN * whole


def _slots(node: Node, target: Target) -> float:
    """Seconds of a contraction's multiply-adds, or of the elements that a reduction combines."""
    (a, *others), spec = node.inputs, node.attrs
    terms = math.prod(spec.extents(a.shape, others[0].shape).values()) if isinstance(spec, Spec) else a.type.size
    return terms / target.lanes(a.dtype) * target.slot(a.dtype)

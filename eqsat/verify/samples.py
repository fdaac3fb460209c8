"""Which blocks of large outputs are compared where a program is dear, and computed alike along its outer axes.

An attention's rows depend on one row of queries and one head's keys: a block of its result is computed from few of the
scores, and every block by the same operators. Compared are the first and the last block, those in which the kernels'
stores begin and end (where rows are cut by a mask, say), and one drawn from each of many equal stretches, so that every
head has its share.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir.node import Node, topological
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.verify.blocks import demanded
from eqsat.verify.boxes import Box, Pieces, extents, operand_boxes, volume, whole

FINE = 1024
"""Blocks into which an output is cut, roughly."""
LARGEST = 1 << 14
"""Elements of such a block at most."""
LEAST, MOST = 32, 128
"""Blocks that are drawn of an output."""
FEWER = 0.25
"""Part of the work of all that the blocks may need: where they need more, all is compared."""
FLOPS, ELEMENT, CALL = 5e10, 1e-9, 2e-5
"""Floating-point operations a second of NumPy's products, seconds of an element that anything reads, and of a call."""

Parts = Mapping[Node, Sequence[Box]]


def seconds(parts: Parts) -> float:
    """Estimated time of one evaluation by NumPy of these boxes of nodes, each from its operands' boxes."""
    total = 0.0
    for node, boxes in parts.items():
        kind = OPS[node.op].kind
        if kind in ("source", "view"):
            continue
        for box in boxes:
            read = operand_boxes(node, box)
            total += CALL
            if kind == "contract":
                assert isinstance(node.attrs, Spec)
                ranges = dict(zip((*node.attrs.a, *node.attrs.b), (n for b in read for n in extents(b)), strict=True))
                total += 2 * float(np.prod(list(ranges.values()), dtype=float)) / FLOPS
                total += ELEMENT * sum(map(volume, read))
            else:
                total += ELEMENT * max(map(volume, (box, *read[kind == "gather" :])))
    return total


@dataclass(frozen=True)
class Chosen:
    """For each output the blocks to compare, the boxes that they are made from, and the seconds of an evaluation."""

    boxes: Sequence[Sequence[Box]]
    parts: Parts
    seconds: float


def choose(outputs: Sequence[Node], ends: Sequence[Sequence[int]], budget: float, seed: int) -> Chosen | None:
    """Blocks of the outputs, at least ``LEAST`` of each and as many as about ``budget`` seconds allow.

    ``ends``: for each output, positions in its elements near which blocks are wanted. None where blocks need nearly
    as much work as everything.
    """
    most = FEWER * seconds({node: [whole(node.shape)] for node in topological(outputs)})
    chosen = None
    count = 1  # at first to see whether it is worth while at all
    while count <= MOST:
        rng = np.random.default_rng((seed, count))
        found = [drawn(output, near, count, rng) for output, near in zip(outputs, ends, strict=True)]
        parts = demanded((o, box) for o, boxes in zip(outputs, found, strict=True) for box in boxes)
        needed = seconds(parts)
        if needed > most:
            break
        if count >= LEAST:
            chosen = Chosen(found, parts, needed)
            most = min(most, budget)
        count = max(2 * count, LEAST)
    return chosen


def drawn(output: Node, ends: Sequence[int], count: int, rng: np.random.Generator) -> list[Box]:
    """The blocks of an output to compare: one of each of ``count`` stretches, its ends, and those that hold ``ends``.

    ``ends``: positions in the flattened output.
    """
    # Two at least, so that the parts of a complex number stay together.
    blocks = Pieces(whole(output.shape), min(LARGEST, max(2, output.type.size // FINE)))
    if len(blocks) <= count:
        return list(blocks)
    cuts = [len(blocks) * n // count for n in range(count + 1)]
    found = {0, len(blocks) - 1, *(int(rng.integers(a, b)) for a, b in itertools.pairwise(cuts))}
    for position in ends:
        if 0 <= position < output.type.size:
            found.add(blocks.holding([int(n) for n in np.unravel_index(position, output.shape)]))
    return [blocks[n] for n in sorted(found)]

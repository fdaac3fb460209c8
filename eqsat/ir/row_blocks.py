"""Programs that read a matrix once: blocks of its rows one after the other, which give all results their share.

``(a @ x) @ a`` reads ``a`` twice, from memory where no cache holds it. The first product has an element for each row,
the second one adds up a multiple of each row. A loop over blocks of rows reads each from memory for the first product,
and from a cache for the second, of which it carries the sums. See Belter, Jessup, Karlin and Siek, "Automating the
generation of composed linear algebra kernels", SC 2009, who fuse the loops of single rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eqsat.ir import build
from eqsat.ir.loop import Loop, loop
from eqsat.ir.node import Formed, Graph, Node, topological
from eqsat.ir.parts import Body, alike, along, axis_of, instead
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS, make

__all__ = ["RowBlocks", "in_row_blocks", "row_blocks"]

POINTWISE = ("view", "map")
"""What kernels that read it compute where they do, rather than a pass of its own."""


@dataclass(frozen=True)
class RowBlocks:
    """What a loop over blocks of a matrix's rows would compute.

    ``axes``: the nodes that have rows, block by block with the matrix's, and along which axis; the matrix is the first.
    ``inside``: those of them that the loop computes, in order. ``sums``: nodes that add up something of every row.
    ``passes``: nodes inside that read the matrix, through views and maps at most, and sums that do. ``kept``: nodes
    inside whose values others may be given; what is no more than a view or a map of the matrix is not worth storing.
    """

    matrix: Node
    axes: Mapping[Node, int]
    inside: tuple[Node, ...]
    sums: tuple[Node, ...]
    passes: tuple[tuple[Node, ...], tuple[Node, ...]]
    kept: frozenset[Node]

    @property
    def extent(self) -> int:
        """Rows of the matrix."""
        return self.matrix.shape[0]


def row_blocks(graph: Graph, matrix: Node) -> list[RowBlocks]:
    """The loops there may be over the rows of ``matrix``, in the order in which they would run: what follows from rows,
    and sums over them, where both read it. Whatever needs a sum is after the loop, and may be a later one's."""
    turns: list[_Turn] = []
    ready: dict[Node, int] = {matrix: 0}
    forms = {matrix: 0}
    for node in topological(graph.outputs):
        if node is not matrix and any(i in ready for i in node.inputs):
            number = max(ready.get(i, 0) for i in node.inputs)
            turns += [_Turn(matrix, forms) for _ in range(number + 1 - len(turns))]
            ready[node] = number + (not turns[number].takes(node) and turns[number].reads(node))
    return [blocks for turn in turns if (blocks := turn.blocks()) is not None]


class _Turn:
    """The nodes of one loop, as they are found in order.

    ``forms``: views and maps of the matrix, which every loop that needs them has, and their axes. They are found once.
    """

    def __init__(self, matrix: Node, forms: dict[Node, int]) -> None:
        self.matrix, self.forms = matrix, forms
        self.axes: dict[Node, int] = {matrix: 0}
        self.sums: list[Node] = []

    def reads(self, node: Node) -> bool:
        """Whether a node needs anything that is computed block by block."""
        return any(i in self.axes or i in self.forms for i in node.inputs)

    def takes(self, node: Node) -> bool:
        """Whether a node is computed block by block. What adds up blocks is noted."""
        if not node.type.size or not self.reads(node):
            return False
        for i in node.inputs:
            self._form(i)
        extent = self.matrix.shape[0]
        given = _given(node, self.axes, extent)
        axis = axis_of(node, given, extent)
        if axis is None and _sums(node, given):
            self.sums.append(node)
        if axis is None or node.shape[axis] != extent:
            return False
        self.axes[node] = axis
        if OPS[node.op].kind in POINTWISE and all(i in self.forms for i in node.inputs if i in self.axes):
            self.forms[node] = axis
        return True

    def _form(self, node: Node) -> None:
        if node in self.forms and node not in self.axes:
            for i in node.inputs:
                self._form(i)
            self.axes[node] = self.forms[node]

    def blocks(self) -> RowBlocks | None:
        """The loop; None where not both what follows from rows and sums read the matrix."""
        reads = {self.matrix}
        first: list[Node] = []
        for node in self.axes:
            if any(i in reads for i in node.inputs):
                if OPS[node.op].kind in POINTWISE:
                    reads.add(node)
                else:
                    first.append(node)
        second = tuple(node for node in self.sums if any(i in reads for i in node.inputs))
        if not first or not second:
            return None
        needed = set(topological([*self.sums, *first]))
        inside = tuple(node for node in self.axes if node in needed and node is not self.matrix)
        kept = frozenset(needed.difference(self.forms))
        return RowBlocks(self.matrix, self.axes, inside, tuple(self.sums), (tuple(first), second), kept)


def _given(node: Node, axes: Mapping[Node, int], extent: int) -> dict[Node, int]:
    """The operands that come block by block, and their axes: also what is there before and has rows along its leading
    axis, where the node needs them."""
    given = {i: axes[i] for i in node.inputs if i in axes}
    others = [i for i in node.inputs if i not in axes and i.shape[:1] == (extent,)]
    if isinstance(node.attrs, Spec):
        labels = dict(zip(node.inputs, (node.attrs.a, node.attrs.b), strict=True))
        rows = {labels[i][axis] for i, axis in given.items()}
        given.update((i, 0) for i in others if labels[i][0] in rows)
    elif OPS[node.op].kind == "map":
        back = {axis - i.type.ndim for i, axis in given.items()}
        given.update((i, 0) for i in others if -i.type.ndim in back and not alike(i, -i.type.ndim))
    return given


def _sums(node: Node, given: Mapping[Node, int]) -> bool:
    """Whether a node adds up over the rows of all that it is given, in a type that holds the sums of blocks."""
    if node.dtype.kind == "bool" or node.dtype.is_half:
        return False
    attrs = node.attrs
    if isinstance(attrs, Spec):
        labels = {part[given[i]] for i, part in zip(node.inputs, (attrs.a, attrs.b), strict=True) if i in given}
        return all(i in given for i in node.inputs) and len(labels) == 1 and not labels & set(attrs.out)
    return node.op == "reduce_sum" and isinstance(attrs, tuple) and given[node.inputs[0]] in attrs


class _Block(Body):
    """The body of the loop: in it, the matrix and what comes with its rows are windows."""

    def __init__(self, blocks: RowBlocks, rows: int) -> None:
        super().__init__(blocks.axes, (), blocks.extent, rows)
        self.carried = [self.add(node, 0) for node in blocks.sums]
        self.windows: dict[Node, Node] = {}
        self.parts[blocks.matrix] = self.window(blocks.matrix)
        for node in blocks.inside:
            self.parts[node] = self.part(node)
        self.sums = [make(node.op, self.operands_of(node), node.attrs, label=node.label) for node in blocks.sums]

    def window(self, node: Node) -> Node:
        if node not in self.windows:
            self.windows[node] = super().window(node)
        return self.windows[node]

    def operands_of(self, node: Node) -> list[Node]:
        given = _given(node, self.axes, self.extent)
        at = next(axis - i.type.ndim for i, axis in given.items())
        wholes = self.whole if isinstance(node.attrs, Spec) else lambda operand: self.alike(operand, at)
        return [self.parts[i] if i in self.parts else self.window(i) if i in given else wholes(i) for i in node.inputs]


class _Rest(_Block):
    """The rows behind the last whole block, outside of the loop."""

    def add(self, operand: Node, step: int) -> Node:
        return operand

    def window(self, node: Node) -> Node:
        return build.take_range(node, 0, self.extent - self.rows, self.extent)


def in_row_blocks(graph: Graph, blocks: RowBlocks, rows: int) -> Formed:
    """The graph with a loop over blocks of so many rows of the matrix, at least two of them; what is left over follows.

    Sums are added up block by block, so that floats are rounded otherwise.
    """
    trips, left = divmod(blocks.extent, rows)
    body, rest = _Block(blocks, rows), _Rest(blocks, left) if left else None
    used = {i for node in graph.nodes() if node not in {*blocks.inside, *blocks.sums} for i in node.inputs}
    ends = [node for node in blocks.inside if node in blocks.kept and (node in used or node in graph.outputs)]
    sums = [build.call("add", before, added) for before, added in zip(body.carried, body.sums, strict=True)]
    within = Graph(tuple(body.inputs), (*sums, *(body.parts[end] for end in ends)))
    start = [_zeros(node) for node in blocks.sums] if rest is None else rest.sums
    steps = tuple(body.steps[len(sums) :])
    made = loop(Loop(trips, within, len(sums), steps, parts=True), [*start, *body.operands[len(sums) :]])
    done: dict[Node, Node] = dict(zip(blocks.sums, made, strict=False))
    for end, stacked in zip(ends, made[len(sums) :], strict=True):
        axis = blocks.axes[end]
        done[end] = build.concat([along(stacked, axis), *([] if rest is None else [rest.parts[end]])], axis)
    origins = {part: node for each in (body, rest) if each is not None for node, part in each.parts.items()}
    origins |= dict(zip(sums, blocks.sums, strict=True))
    return instead(graph, done, origins)


def _zeros(node: Node) -> Node:
    return build.broadcast_to(build.scalar(0, node), node.shape)

"""Operations, bytes and memory of a program as written and as optimized: the figures ``explain`` shows.

One operation is an elementwise function of one element, one multiplication or one addition; a fused
multiply-add is two. Conversions between element types and views are none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from eqsat.ir.composite import expand
from eqsat.ir.contraction import CASTS
from eqsat.ir.kernel import Call, Expr, Index, Kernel, KernelGroup, Load, parts, unique
from eqsat.ir.loop import Loop, of_loop
from eqsat.ir.node import Graph, Node, topological
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.plan.plan import ReferenceStep

FREE = CASTS | {"wrap_index"}
"""Elementwise functions that count as no operation."""


@dataclass(frozen=True)
class Work:
    """Operations, bytes read and written by kernels, and how many kernels there are."""

    flops: float
    nbytes: float
    kernels: int


def node_flops(node: Node) -> float:
    """Operations of one operator: 2·b·m·n·k for a contraction, one per element and function otherwise."""
    kind = OPS[node.op].kind
    match kind:
        case "contract":
            assert isinstance(node.attrs, Spec)
            a, b = node.inputs
            points = math.prod(node.attrs.extents(a.shape, b.shape).values())
            return float(points * (2 if node.attrs.summed else 1))
        case "reduce":
            return float(node.inputs[0].type.size)
        case "map" if node.op not in FREE:
            return float(node.type.size * (len(node.inputs) - 1 if node.op == "add_n" else 1))
        case "composite":
            expanded = expand(node)
            given = set(node.inputs)
            return sum(node_flops(n) for n in _below(expanded, given))
        case _:
            return 0.0


def _below(node: Node, given: set[Node]) -> list[Node]:
    """The nodes that make ``node`` of the given ones."""
    above = set(topological(given)) | given
    return [n for n in topological([node]) if n not in above]


def read_bytes(node: Node) -> int:
    """Bytes of memory that reading a value touches: a broadcast or other view touches its base once."""
    nbytes = node.type.nbytes
    while OPS[node.op].kind == "view":
        node = node.inputs[0]
        nbytes = min(nbytes, node.type.nbytes)
    return nbytes


def node_bytes(node: Node) -> int:
    """Bytes an operator reads and writes when run alone: every distinct operand once, and its result.

    A gather reads as many elements of its table as it writes.
    """
    if OPS[node.op].kind == "gather":
        table, index = node.inputs
        return read_bytes(index) + min(node.type.nbytes, read_bytes(table)) + node.type.nbytes
    if node.op == "add_n":  # n - 1 additions, each reading the sum so far
        partial = (len(node.inputs) - 2) * 2 * node.type.nbytes
        return partial + sum(read_bytes(i) for i in node.inputs) + node.type.nbytes
    return sum(read_bytes(i) for i in dict.fromkeys(node.inputs)) + node.type.nbytes


def _computed(nodes: Iterable[Node]) -> list[Node]:
    return [n for n in nodes if OPS[n.op].kind not in ("source", "view")]


def operator_work(graph: Graph) -> list[Work]:
    """Each operator run alone, reading its operands and writing its result, in a loop on every trip; views are free."""
    found: list[Work] = []
    loops: set[tuple[Loop, tuple[Node, ...]]] = set()
    for node in _computed(graph.nodes()):
        loop = of_loop(node)
        if loop is None:
            kernels = len(node.inputs) - 1 if node.op == "add_n" else 1
            found.append(Work(node_flops(node), float(node_bytes(node)), kernels))
        elif (loop, node.inputs) not in loops:
            loops.add((loop, node.inputs))
            body = naive_work(loop.body)
            found.append(Work(loop.trips * body.flops, loop.trips * body.nbytes, loop.trips * body.kernels))
    return found


def naive_work(graph: Graph) -> Work:
    """The program run operator by operator: the sum of :func:`operator_work`."""
    works = operator_work(graph)
    return Work(sum(w.flops for w in works), sum((w.nbytes for w in works), 0.0), sum(w.kernels for w in works))


def naive_peak(graph: Graph) -> int:
    """Most bytes of intermediates and results alive at once, each stored by its operator until its last use."""
    order = _computed(graph.nodes())
    outputs = set(graph.outputs)
    last: dict[Node, int] = {}
    for position, node in enumerate(order):
        for operand in node.inputs:
            last[_base(operand)] = position
    dying: dict[int, list[Node]] = {}
    for node, position in last.items():
        dying.setdefault(position, []).append(node)
    alive, peak, made = 0, 0, set()
    for position, node in enumerate(order):
        made.add(node)
        alive += node.type.nbytes
        loop = of_loop(node)
        peak = max(peak, alive + (naive_peak(loop.body) if loop is not None else 0))
        alive -= sum(n.type.nbytes for n in dying.get(position, ()) if n in made and n not in outputs)
    # Results that are inputs, constants or views are copied for the caller.
    return max(peak, alive + sum(n.type.nbytes for n in outputs - made))


def _base(node: Node) -> Node:
    while OPS[node.op].kind == "view":
        node = node.inputs[0]
    return node


def kernel_flops(kernel: Kernel) -> float:
    """Operations of a kernel; equal sub-expressions are computed once, and factors of a sum's terms once an element."""
    summed = kernel.combine is not None and math.prod(kernel.extents[kernel.parallel :]) > 1
    found = kernel.points * summed + kernel.results * len(_functions(kernel.epilogue))
    for axes in _functions(kernel.body).values():
        found += math.prod(kernel.extents[axis] for axis in axes) if summed else kernel.points
    return float(found)


def _functions(expr: Expr) -> dict[Call, frozenset[int]]:
    """The different operations in an expression, and the axes that they depend on."""
    axes = _axes(expr)
    return {e: axes[id(e)] for e in unique(expr) if isinstance(e, Call) and e.fn not in FREE}


def _axes(expr: Expr) -> dict[int, frozenset[int]]:
    """The axes that each sub-expression, by its ``id``, depends on."""
    found: dict[int, frozenset[int]] = {}
    for e in unique(expr):
        own = (axis for axis, stride in enumerate(e.strides) if stride) if isinstance(e, Load | Index) else ()
        found[id(e)] = frozenset(own).union(*(found[id(part)] for part in parts(e)))
    return found


def group_bytes(group: KernelGroup) -> float:
    """Bytes of external buffers that a group touches, each element once; results are written once."""
    total = 0.0
    for number, operand in enumerate(group.operands):
        if number in group.outputs:
            total += sum(s.kernel.results for s in group.stages if s.result == number) * operand.dtype.itemsize
            continue
        read = 0
        for stage in group.stages:
            for root in (stage.kernel.body, stage.kernel.epilogue):
                axes = _axes(root)
                for e in unique(root):
                    if isinstance(e, Load) and stage.sources[e.operand] == number:
                        read = max(read, math.prod(stage.kernel.extents[a] for a in axes[id(e)]))
        total += min(read, operand.size) * operand.dtype.itemsize
    return total


def reference_bytes(step: ReferenceStep) -> float:
    """Bytes that the operators of a reference step read and write, one by one."""
    return float(sum(node_bytes(n) for n in _computed(topological(step.values))))


def reference_flops(step: ReferenceStep) -> float:
    """Operations of a reference step."""
    return float(sum(node_flops(n) for n in _computed(topological(step.values))))

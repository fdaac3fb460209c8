"""Whether a program runs its batch part by part, and how far: by the bytes that then stay in nearer caches.

Operators that read and write large tensors pass them on through memory; a part of them may pass through a cache.
In turn every trip reads the weights again. Networks begin with large images and small weights and end with small images
and large weights, so a loop may end before the network does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from eqsat.cost.calibration import PARTS_COLUMNS, PARTS_FEWER, PARTS_GAIN, PARTS_TILES, PARTS_TRIED
from eqsat.cost.target import Target
from eqsat.ir.known import known_nodes
from eqsat.ir.node import Formed, Graph, Node
from eqsat.ir.parts import axes_of, in_parts
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS


@dataclass(frozen=True)
class _Product:
    """A contraction of parts: bytes of its result and of the operand that is passed on, and of the one that is not.

    ``windows``: whether it reads the operand through overlapping windows.
    """

    node: Node
    passed: float
    weights: float
    windows: bool


def by_parts(graph: Graph, const: Collection[Node], target: Target, threads: int) -> Formed | None:
    """The program with a loop over parts of its batch, None where none pays.

    ``const``: inputs whose values are known; the batch is the leading axis of others.
    """
    nodes = graph.nodes()
    passed = [_passed(node, node.inputs, target) for node in nodes if isinstance(node.attrs, Spec)]
    known = known_nodes(graph, const)
    best, gain = None, 0.0
    for extent in sorted({i.shape[0] for i in graph.inputs if i not in const and i.type.ndim}):
        if not any(_nearer(nbytes, extent, target) for nbytes in passed):
            continue
        for trips in _divisors(extent):
            axes = axes_of(graph, const, extent, trips)
            products = list(_products(nodes, axes, known, trips, target, threads))
            counts = range(1, len(products) + 1)
            copied = _copied(graph, axes, target)
            gains = ((_saved(products[:n], trips, target) - copied * (n == len(products)), n) for n in counts)
            saved, count = max(gains, default=(0.0, 0))
            if saved > gain * (1 + PARTS_FEWER):
                best, gain = (axes, _before(nodes, axes, products, count), trips), saved
    if best is None:
        return None
    axes, inside, trips = best
    return in_parts(graph, axes, inside, known, trips)


def _nearer(nbytes: float, extent: int, target: Target) -> bool:
    """Whether a part of bytes that are passed on may come from so much nearer than all of them that a loop pays."""
    parts = target.moving(nbytes, nbytes / max(1, extent))
    return parts < (1 - PARTS_GAIN) * target.moving(nbytes, nbytes)


def _divisors(extent: int) -> list[int]:
    """How many parts there may be: some of the divisors, the largest among them."""
    small = [n for n in range(1, math.isqrt(extent) + 1) if extent % n == 0]
    found = sorted({*small, *(extent // n for n in small)} - {1})
    apart = max(1, -(-len(found) // PARTS_TRIED))
    return found[::-1][::apart]


def _stored(node: Node) -> Node:
    """The tensor that a view or a padding is read from."""
    while OPS[node.op].kind in ("view", "pad"):
        (node,) = node.inputs
    return node


def _products(
    nodes: list[Node], axes: Mapping[Node, int], known: Collection[Node], trips: int, target: Target, threads: int
) -> Iterator[_Product]:
    """The contractions of parts, up to one whose parts have too few columns or whose other operand is not known."""
    for node in nodes:
        if not isinstance(node.attrs, Spec) or node not in axes:
            continue
        spec, (a, b) = node.attrs, node.inputs
        label = spec.out[axes[node]]
        passed = [i for i in (a, b) if i in axes]
        if label not in spec.batch:
            sizes = spec.extents(a.shape, b.shape)
            columns = math.prod(sizes[x] for x in (spec.rows if label in spec.rows else spec.cols)) // trips
            if columns < PARTS_COLUMNS * target.lanes(node.dtype) * threads:
                return
        others = [i for i in (a, b) if i not in axes]
        if any(i not in known for i in others):
            return
        windows = any(i.type.size > _stored(i).type.size for i in passed)
        moved = _passed(node, passed, target)
        yield _Product(node, moved, sum(_stored(i).type.nbytes for i in others), windows)


def _passed(node: Node, operands: Collection[Node], target: Target) -> float:
    """Bytes of a contraction's result, and of what operands of it are read from; of many channels' windows those of
    the tiles that a fast algorithm puts in between, as far as windows repeat elements that often."""
    spec, stored = node.attrs, [_stored(i) for i in operands]
    assert isinstance(spec, Spec)
    sizes = spec.extents(node.inputs[0].shape, node.inputs[1].shape)
    again = max((i.type.size / max(1, one.type.size) for i, one in zip(operands, stored, strict=True)), default=1.0)
    deep = min(math.prod(sizes[x] for x in spec.summed) / max(1.0, again), math.prod(sizes[x] for x in spec.cols))
    times = PARTS_TILES if again > PARTS_TILES and deep >= target.lanes(node.dtype) else 1.0
    return times * (sum(one.type.nbytes for one in stored) + node.type.nbytes)


def _saved(products: list[_Product], trips: int, target: Target) -> float:
    """Seconds that a loop over these saves, 0 where it is too small a part of what passing on their results takes.

    Without windows rows do not meet, and groups of kernels run block by block of rows anyway.
    """
    if not any(product.windows for product in products):
        return 0.0
    weights = sum(product.weights for product in products)
    whole = sum(target.moving(p.passed, p.passed) for p in products)
    parts = sum(target.moving(p.passed, p.passed / trips) for p in products)
    again = sum(trips * target.moving(p.weights, weights + p.passed / trips) for p in products)
    once = sum(target.moving(p.weights, p.weights + p.passed) for p in products)
    saved = whole - parts - (again - once)
    return saved if saved > PARTS_GAIN * whole else 0.0


def _copied(graph: Graph, axes: Mapping[Node, int], target: Target) -> float:
    """Seconds to copy the program's results, which are put together behind the loop, to where they belong."""
    moved = (2 * float(node.type.nbytes) for node in graph.outputs if node in axes)
    return sum(target.moving(nbytes, nbytes) for nbytes in moved)


def _before(nodes: list[Node], axes: Mapping[Node, int], products: list[_Product], count: int) -> list[Node]:
    """The nodes of parts up to the contraction behind so many, without what is only moved there."""
    end = nodes.index(products[count].node) if count < len(products) else len(nodes)
    inside = [node for node in nodes[:end] if node in axes and node.op != "input"]
    users: dict[Node, set[Node]] = {}
    for node in nodes:
        for i in node.inputs:
            users.setdefault(i, set()).add(node)
    kept = set(inside)
    for node in reversed(inside):
        if OPS[node.op].kind in ("view", "pad") and end < len(nodes) and not users.get(node, set()) & kept:
            kept.discard(node)
    return [node for node in inside if node in kept]

"""Products of padded tensors without the points that read only zeros.

A convolution of a padded image multiplies the zeros around it: of 3×3 taps on 7×7 pixels 18 %. Where the kernels that
store a factor of a product show that it is 0 outside of a box, the product gets the domain of the points inside, and
its schedule tells which of the others tiles leave out (``eqsat.schedule.domain``). One thing could tell the
difference: 0 times a NaN or an infinity of the other factor. So that has to be known when the program is compiled, and
a constant says whether it is finite; where it is not, nothing is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eqsat.ir import build
from eqsat.ir.contraction import plain, product_of
from eqsat.ir.kernel import Guarded, Index, Kernel, Literal, Operand, span
from eqsat.ir.node import Node
from eqsat.ir.types import int64
from eqsat.plan.assembly import Assembly
from eqsat.plan.link import Piece
from eqsat.plan.placed import PlacedGroup
from eqsat.schedule.domain import rows_inside, step_inside

LEAST = 0.03
"""Part of a product's work that has to be left out: of 2.4 % (3×3 taps, 56² pixels) nothing is gained by the clock."""


@dataclass(frozen=True)
class _Side:
    """An axis of a stored tensor, by its stride: outside of ``low <= position < high`` there are zeros."""

    stride: int
    extent: int
    low: int
    high: int

    @property
    def whole(self) -> bool:
        return (self.low, self.high) == (0, self.extent)


def without_padding(placed: PlacedGroup, assembly: Assembly) -> PlacedGroup:
    """A group of one product with the domain of its points that read no padding, or the group as it is."""
    group = placed.group
    product = product_of(group.stages[0].kernel) if len(group.stages) == 1 and not group.unless else None
    if product is None or product.dot.depth > 1 or not product.m or not product.k:
        return placed
    (stage,) = group.stages
    kernel, (first, second) = stage.kernel, map(plain, product.factors(stage.kernel))
    if first is None or second is None or not kernel.operands[second.operand].const:
        return placed
    image, weights = (stage.sources[load.operand] for load in (first, second))
    assert isinstance(image, int) and isinstance(weights, int), "a group of one stage reads operands"
    sides = _sides([piece for piece in assembly.pieces if piece.tensor == placed.tensors[image]])
    domain = _domain(sides, first.offset, first.strides, kernel) if sides else ()
    bounded = replace(kernel, domain=domain)
    inside = rows_inside(bounded, product.m, product.k, 1, step_inside(bounded, product.k)) if domain else None
    if inside is None or inside[0] > 1 - LEAST:
        return placed
    flag = assembly.constant(_not_finite(assembly.constants[placed.tensors[weights]]))
    marked = replace(
        group,
        stages=(replace(stage, kernel=bounded),),
        operands=(*group.operands, Operand(int64, 1, const=True)),
        unless=(len(group.operands),),
    )
    return PlacedGroup(marked, (*placed.tensors, flag))


def _not_finite(x: Node) -> Node:
    """1 where an element is NaN or infinite, else 0."""
    finite = build.reduce("reduce_min", build.cast(build.call("isfinite", x), int64), range(x.type.ndim))
    return build.call("sub", build.scalar(1, int64), finite)


def _sides(pieces: Sequence[Piece]) -> list[_Side] | None:
    """The axes of a tensor, outermost first, with where it is not 0; None where its kernels do not show any padding."""
    kernels = [piece.kernel for piece in pieces if piece.kernel is not None]
    if len(kernels) != len(pieces) or not 1 <= len(kernels) <= 2:
        return None
    kernel, whole = kernels[-1], kernels[0]
    order = sorted((a for a in range(kernel.parallel) if kernel.extents[a] > 1), key=lambda a: -kernel.store_strides[a])
    strides = [kernel.store_strides[a] for a in order]
    if not strides or strides[-1] != 1 or any(one % two for one, two in itertools.pairwise(strides)):
        return None
    extents = [size // stride for size, stride in zip((kernel.out.size, *strides), strides, strict=False)]
    if len(kernels) == 2:  # a fill, and what is stored inside of it
        if not (isinstance(whole.body, Literal) and whole.body.is_zero and whole.results == whole.out.size):
            return None
        starts = [kernel.store_offset // stride % n for stride, n in zip(strides, extents, strict=True)]
        bounds = {a: (start, start + kernel.extents[a]) for a, start in zip(order, starts, strict=True)}
    elif kernel.combine is None and kernel.results == kernel.out.size:
        bounds = _guards(kernel)
    else:
        return None
    sides = [_Side(s, n, *bounds.get(a, (0, n))) for s, n, a in zip(strides, extents, order, strict=True)]
    return sides if all(0 <= side.low < side.high <= side.extent for side in sides) else None


def _guards(kernel: Kernel) -> dict[int, tuple[int, int]]:
    """Between which positions of its axes a map may be other than 0, by its outermost guards."""
    found: dict[int, tuple[int, int]] = {}
    body = kernel.body
    while isinstance(body, Guarded) and body.held and isinstance(body.outside, Literal) and body.outside.is_zero:
        axis, low, high = body.held
        was = found.get(axis, (0, kernel.extents[axis]))
        found[axis] = max(low, was[0]), min(high, was[1])
        body = body.inside
    return found


def _domain(sides: Sequence[_Side], offset: int, strides: Sequence[int], kernel: Kernel) -> tuple[Index, ...]:
    """Where a load is inside of all sides, as indices that are at least 0 there; () where that is not affine."""
    if min(strides) < 0:
        return ()
    found = list[Index]()
    within = itertools.chain([offset + sum(strides) + 1], (side.stride for side in sides))  # no address steps so far
    for number, (side, above) in enumerate(zip(sides, within, strict=False)):
        start, *steps = (s % above // side.stride for s in (offset, *strides))
        if start + sum(s * (n - 1) for s, n in zip(steps, kernel.extents, strict=True)) >= side.extent:
            if not number or not side.whole:
                return ()
            outer = sides[number - 1]  # an axis of the product goes on from one row to the next: both are one axis
            low, high = outer.low * side.extent, outer.high * side.extent
            joined = _Side(side.stride, outer.extent * side.extent, low, high)
            return _domain([*sides[: number - 1], joined, *sides[number + 1 :]], offset, strides, kernel)
        above_low = Index(start - side.low, tuple(steps), int64)
        below_high = Index(side.high - 1 - start, tuple(-s for s in steps), int64)
        box = tuple((0, n) for n in kernel.extents)
        found += [_coarser(index, kernel.extents) for index in (above_low, below_high) if span(index, box)[0] < 0]
    return tuple(found)


def _coarser(index: Index, extents: Sequence[int]) -> Index:
    """An index that is at least 0 where ``index`` is, without axes that move it too little to tell."""
    unit = max(1, *map(abs, index.strides))
    near = [(s, n) for s, n in zip(index.strides, extents, strict=True) if s % unit]
    ends = [sum(end(0, s * (n - 1)) for s, n in near) for end in (min, max)]
    if not 0 <= index.offset % unit + ends[0] <= index.offset % unit + ends[1] < unit:
        return index
    return replace(
        index, offset=index.offset // unit, strides=tuple(0 if s % unit else s // unit for s in index.strides)
    )

"""Winograd's minimal filtering: convolutions with few multiplications.

Toom and Cook's algorithm computes ``size`` neighbouring results of a filter of ``taps`` from ``n = size + taps - 1``
inputs d with n multiplications: ``y = Aᵀ [(G w) ⊙ (Bᵀ d)]``, where the matrices come from n - 1 points at which
polynomials are evaluated, and from infinity. Nested, it does so along each axis of an image (Winograd; Lavin & Gray
2016). Summed over channels, what is left is a product of matrices for each of the n² positions in a tile.

With three results or more, all of a tile are NaN where one of its inputs is NaN or infinite: hence the class
``approximates``. Two results need no product that reads outside their windows, and have transforms of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.table import make
from eqsat.ir.types import DType, float32, float64, row_major
from eqsat.rules import Match, attributes, contract, rewrite, tensors, view
from eqsat.rules.examples import Maker
from eqsat_rules.labels import einsum, extents_of, split_label, squeeze

w, x = tensors("w x")
mp, s = attributes("mp s")

POINTS: dict[int, tuple[Fraction, ...]] = {
    6: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}
"""Inputs of a tile along one axis, and the points for so many: the best of those tried by the largest error of float32
over normal inputs, a quarter of that of 0, ±1, ±2 (docs/decisions.md)."""
HALF = Fraction(1, 2)
FILTERS = ((1, 0, 0), (HALF, HALF, HALF), (HALF, -HALF, HALF), (0, 0, 1))
"""What a filter of three is multiplied as in F(2, 3), with the points 0, 1 and -1."""
LEAST_WORK = 16
"""Channels of input and result from which the rules are tried: below, transforms cost as much as products."""
MOST_AXES = 2
"""Axes of space along which results come in pairs: along three they would be sums of 27 products each."""

Matrix = tuple[tuple[Fraction, ...], ...]


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of Π (x - root), lowest first."""
    found = [Fraction(1)]
    for root in roots:
        found = [
            (found[i - 1] if i else Fraction(0)) - root * (found[i] if i < len(found) else 0)
            for i in range(len(found) + 1)
        ]
    return found


@cache
def transforms(size: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """Aᵀ (size, n), G (n, taps) and Bᵀ (n, n) of F(size, taps), for n = size + taps - 1 in ``POINTS``, exactly."""
    n = size + taps - 1
    points = POINTS[n]
    results = tuple((*(p**i for p in points), Fraction(i == size - 1)) for i in range(size))
    filters = []
    inputs = []
    for at, p in enumerate(points):
        others = [q for i, q in enumerate(points) if i != at]
        scale = math.prod((p - q for q in others), start=Fraction(1))
        filters.append(tuple(p**k / scale for k in range(taps)))
        inputs.append((*_polynomial(others), Fraction(0)))
    filters.append(tuple(Fraction(k == taps - 1) for k in range(taps)))
    inputs.append(tuple(_polynomial(points)))
    return results, tuple(filters), tuple(inputs)


def _constant(matrix: Sequence[Sequence[Fraction | int]], dtype: DType) -> Node:
    return build.const(np.array([[float(value) for value in row] for row in matrix]), dtype)


@dataclass(frozen=True)
class _Windows:
    """A contraction over windows: pairs (position, tap) of labels that walk one axis of the tensor, taps ``apart``."""

    pairs: tuple[tuple[object, object], ...]
    taps: int
    apart: Mapping[object, int]
    """By position, the dilation: positions between the windows' elements."""
    steps: Mapping[object, int]
    extents: Mapping[object, int]

    @property
    def positions(self) -> tuple[object, ...]:
        return tuple(p for p, _ in self.pairs)

    @property
    def kernel(self) -> tuple[object, ...]:
        return tuple(r for _, r in self.pairs)


def _windows(m: Match) -> _Windows | None:
    """The windows that a match contracts, if they move by one step and all have as many taps."""
    spec: Spec = m.s
    steps = m.mp.strides
    if steps is None or m.root.dtype not in (float32, float64) or m.w.dtype != m.x.dtype or m.root.type.size == 0:
        return None
    step: dict[object, int] = dict(zip(spec.a, steps, strict=True))
    extents: dict[object, int] = dict(spec.extents(m.mp.shape, m.w.shape).items())
    taken: dict[object, object] = {}
    apart: dict[object, int] = {}
    for r in spec.summed:
        # Of the axes that the taps walk in whole steps the finest: rows are walked by columns, too.
        near = {p: step[r] // step[p] for p in spec.rows
                if p not in taken and extents[p] > 1 and step[p] > 0 < step[r] and step[r] % step[p] == 0}  # fmt: skip
        best = [p for p, d in near.items() if d == min(near.values())]
        if len(best) == 1 and 2 * near[best[0]] <= extents[best[0]]:
            taken[best[0]] = r
            apart[best[0]] = near[best[0]]
    taps = {extents[r] for r in taken.values()}
    if len(taps) != 1:
        return None
    return _Windows(tuple(taken.items()), taps.pop(), apart, step, extents)


def known_filters(m: Match) -> bool:
    """the filters are known: what rounding does to them is verified, and they are transformed beforehand"""
    return bool(m.known(m.w))


def many_channels(m: Match) -> bool:
    """windows move by one element, and there are 16 channels of input and of result"""
    found = _windows(m) if m.original(m.root) else None
    spec: Spec = m.s
    if found is None:
        return False
    deep = math.prod(found.extents[k] for k in spec.summed if k not in found.kernel)
    return deep >= LEAST_WORK and math.prod(found.extents[k] for k in spec.cols) >= LEAST_WORK


def _along(
    x: Node, labels: tuple[object, ...], old: object, new: object, matrix: Node
) -> tuple[Node, tuple[object, ...]]:
    """A tensor with the axis ``old`` transformed by a matrix (new, old) to a first axis ``new``."""
    out = (new, *(k for k in labels if k != old))
    return einsum(matrix, (new, old), x, labels, out, extents_of((matrix, (new, old)), (x, labels))), out


@dataclass(frozen=True)
class _Tiles:
    """Overlapping tiles of n inputs along each axis of space, ``size`` apart, that windows of a tensor lie in."""

    found: _Windows
    spec: Spec
    dtype: DType
    size: int
    tiles: Mapping[object, int]
    image: Node
    """The tensor without its windows, channels innermost, filled up to whole tiles."""
    extent: Mapping[object, int]
    step: Mapping[object, int]
    """Of the image, with tiles in place of positions, and the phases of dilated ones."""
    lead: tuple[object, ...]
    deep: tuple[object, ...]

    @staticmethod
    def of(m: Match, found: _Windows, size: int) -> _Tiles | None:
        """None where there are fewer results than a tile has."""
        spec: Spec = m.s
        apart = found.apart
        tiles = {p: -(-found.extents[p] // (size * apart[p])) for p in found.positions}
        if any(found.extents[p] < size * apart[p] for p in found.positions):
            return None
        # Axes of one position are left out, so that an image has one form however many of them a program writes.
        own = tuple(k for k in spec.a if k not in found.kernel and found.extents[k] > 1)
        deep = tuple(k for k in own if k in spec.summed)
        lead = tuple(k for k in own if k not in deep)
        axes = (*lead, *deep)
        shape = [found.extents[k] + (found.taps - 1) * apart.get(k, 0) for k in axes]
        image = build.view(m.x, views.strided(shape, [found.steps[k] for k in axes], m.mp.offset), "channels last")
        more = [(0, tiles[k] * size * apart[k] - found.extents[k] if k in tiles else 0) for k in axes]
        image = build.pad(image, more)
        step: dict[object, int] = dict(zip(axes, row_major(image.shape), strict=True))
        extent: dict[object, int] = {**dict(zip(axes, image.shape, strict=True)), **tiles}
        for p, d in apart.items():
            extent["phase", p], step["phase", p] = d, step[p]
        return _Tiles(found, spec, m.root.dtype, size, tiles, image, extent, step, lead, deep)

    def phased(self, labels: Sequence[object]) -> tuple[object, ...]:
        """Labels, with that of the phase behind that of a position whose windows are dilated."""
        return tuple(x for k in labels for x in ((k, ("phase", k)) if self.found.apart.get(k, 1) > 1 else (k,)))

    def windows(self, inputs: Sequence[tuple[Sequence[int], Sequence[int], int]], *, first: bool) -> Node:
        """``image[size·p + at]`` for each axis of space: extents and steps of axes that ``at`` is a sum along, and its
        least. These axes come before all others, or before the channels."""
        found, step = self.found, self.step
        unit = [step[p] * found.apart[p] for p in found.positions]
        places = [(n, k * by) for by, (shape, steps, _) in zip(unit, inputs, strict=True)
                  for n, k in zip(shape, steps, strict=True)]  # fmt: skip
        lead = [(self.extent[k], step[k] * self.size * found.apart[k] if k in self.tiles else step[k])
                for k in self.phased(self.lead)]  # fmt: skip
        deep = [(self.extent[k], step[k]) for k in self.deep]
        shape, steps = zip(*([*places, *lead, *deep] if first else [*lead, *places, *deep]), strict=True)
        start = sum(least * by for by, (_, _, least) in zip(unit, inputs, strict=True))
        # Not composed with the view that puts channels innermost: that may be stored.
        return make("view", (self.image,), views.strided(shape, steps, start), label="windows")

    @property
    def labels(self) -> tuple[object, ...]:
        """Of results: groups, tiles, channels."""
        spec = self.spec
        whole = (*spec.batch, *(k for k in spec.out if k in spec.rows), *spec.cols)
        return self.phased([k for k in whole if self.found.extents[k] > 1])

    def products(
        self, m: Match, tile: Node, labels: Sequence[object], filters: Node, cut: Sequence[tuple[object, int]] = ()
    ) -> tuple[Node, tuple[object, ...]]:
        """Sums over channels of tiles times filters, for each position ("t", i); with the labels of what comes out.

        ``cut``: parts of a position, and their extents, by which ``labels`` has (("t", i), part) in its place.
        """
        weight, own = squeeze(m.w, self.spec.b)
        spots: list[object] = [("t", i) for i, _ in enumerate(self.found.pairs)]
        for spot, (_, r) in zip(spots, self.found.pairs, strict=True):
            weight, own = _along(weight, own, r, spot, filters)
        if cut:
            parts = {spot: [((spot, part), n) for part, n in cut] for spot in spots}
            weight, own = split_label(weight, own, parts)
            spots = [part for spot in spots for part, _ in parts[spot]]
        out = (*spots, *self.labels)
        return einsum(tile, labels, weight, own, out, extents_of((tile, labels), (weight, own))), out

    def joined(self, results: Node) -> Node:
        """What was asked for, of results in the order of ``labels``, with those of a tile beside its axis."""
        extents, last = self.found.extents, [k for k in self.labels if k in self.found.extents]
        apart = self.found.apart
        shape = [self.tiles[k] * self.size * apart[k] if k in self.tiles else extents[k] for k in last]
        whole = build.reshape(results, shape)
        out = [k for k in self.spec.out if k in last]
        back = views.transpose(whole.shape, [last.index(k) for k in out])
        if not back.is_identity(whole.shape):
            whole = make("view", (whole,), back, label="transpose")
        cut = build.slices(whole, [0] * len(last), [1] * len(last), [extents[k] for k in out])
        return build.reshape(cut, [extents[k] for k in self.spec.out])


def _pairs_of_results(m: Match) -> Node | None:
    """F(2, 3) along every axis of space, by sums of two and of three.

    In ``d0 - d2, d1 + d2, d2 - d1, d3 - d1`` and ``m0 + m1 + m2, m1 - m2 + m3`` nothing is multiplied by 0, so that
    no result reads an input outside its window. Each line is one expression of its index: the inputs are
    ``d[2i + j] + s·d[2 - i]`` for i, j in 0, 1, the results ``m[1] + s·m[2] + m[3i]``.
    """
    found = _windows(m)
    if found is None or found.taps != 3 or len(found.pairs) > MOST_AXES:
        return None
    tiled = _Tiles.of(m, found, 2)
    if tiled is None:
        return None
    pairs = range(len(found.pairs))

    def sign(axis: int, values: object, ndim: int) -> Node:
        """±1 along an axis or two from ``axis`` on."""
        array = np.array(values)
        known = build.const(array, tiled.dtype)
        return build.reshape(known, (1,) * axis + array.shape + (1,) * (ndim - axis - array.ndim))

    ndim = 2 * len(pairs) + len(tiled.phased(tiled.lead)) + len(tiled.deep)

    def tile(i: int, inputs: tuple[tuple[Sequence[int], Sequence[int], int], ...]) -> Node:
        if i == len(pairs):
            return tiled.windows(inputs, first=True)
        near = tile(i + 1, (*inputs, ((2, 2), (2, 1), 0)))
        far = tile(i + 1, (*inputs, ((2, 2), (-1, 0), 2)))
        return build.call("add", near, build.call("mul", sign(2 * i, [[-1, 1], [-1, -1]], ndim), far))

    made = tile(0, ())
    halves = (("high", 2), ("low", 2))  # a position in two axes, as it is in the inputs: nothing is to be reshaped
    labels = (*((("t", i), part) for i in pairs for part, _ in halves), *tiled.phased(tiled.lead), *tiled.deep)
    product, out = tiled.products(m, made, labels, _constant(FILTERS, tiled.dtype), halves)

    step: dict[object, int] = dict(zip(out, row_major(product.shape), strict=True))
    extent: dict[object, int] = dict(zip(out, product.shape, strict=True))
    spots = {p: ("t", i) for i, p in enumerate(tiled.found.positions)}
    step |= {spot: step[spot, "low"] for spot in spots.values()}
    ndim = len(tiled.labels) + len(pairs)

    def results(i: int, taken: tuple[tuple[int, int], ...]) -> Node:
        """Sums along axis i and those after it; of axes before it ``m[start + step·result]`` for ``taken``."""
        if i == len(pairs):
            axes: list[tuple[int, int]] = []
            start = 0
            for k in tiled.labels:
                axes.append((extent[k], step[k]))
                if k in spots:
                    _, axis = spots[k]
                    at, by = taken[axis]
                    axes.append((2, by * step[spots[k]]))
                    start += at * step[spots[k]]
            shape, steps = zip(*axes, strict=True)
            return build.view(product, views.strided(shape, steps, start), "results")
        one, two, end = (results(i + 1, (*taken, choice)) for choice in ((1, 0), (2, 0), (0, 3)))
        axis = [k for p in tiled.labels for k in ((p, spots[p]) if p in spots else (p,))].index(("t", i))
        return build.call("add", build.call("add", one, build.call("mul", sign(axis, [1, -1], ndim), two)), end)

    return tiled.joined(results(0, ()))


def _tiled(n: int) -> Callable[[Match], Node | None]:
    """F(n - taps + 1, taps) along every axis of space, with the tiles cut from the tensor that windows are of."""

    def winograd(m: Match) -> Node | None:
        found = _windows(m)
        tiled = _Tiles.of(m, found, n - found.taps + 1) if found is not None and 2 <= found.taps < n else None
        if found is None or tiled is None:
            return None
        results, filters, inputs = (_constant(matrix, m.root.dtype) for matrix in transforms(tiled.size, found.taps))
        pairs = range(len(found.pairs))
        tile = tiled.windows([((n,), (1,), 0)] * len(pairs), first=False)
        labels: tuple[object, ...] = (*tiled.phased(tiled.lead), *(("d", i) for i in pairs), *tiled.deep)
        for i in pairs:
            tile, labels = _along(tile, labels, ("d", i), ("t", i), inputs)
        product, out = tiled.products(m, tile, labels, filters)
        for i in pairs:
            product, out = _along(product, out, ("t", i), ("y", i), results)
        places = {p: ("y", i) for i, p in enumerate(found.positions)}
        order = [y for k in tiled.labels for y in ((k, places[k]) if k in places else (k,))]
        return tiled.joined(build.transpose(product, [out.index(k) for k in order]))

    return winograd


def _images(mk: Maker) -> Node:
    """Windows of 3 or 3×3, with or without groups, dilation, padding and channels last."""
    dtype = mk.random.choice((float32, float64))
    flat, groups = mk.random.random() < 0.3, mk.random.choice((0, 0, 2))
    space = (mk.random.choice((4, 6, 7)),) if flat else (mk.random.choice((4, 5, 9)), mk.random.choice((4, 6)))
    kernel = (mk.random.choice((3, 3, 2)),) * len(space)
    cut = [groups] if groups else []
    apart = [mk.random.choice((1, 1, 2)) for _ in space]
    last = mk.random.random() < 0.5
    given = mk.tensor(mk.random.choice((1, 2)), *cut, *(n + 1 for n in space), LEAST_WORK, dtype=dtype)
    padded = build.pad(given, [(0, 0), *((0, 0) for _ in cut), *((1, 0) for _ in space), (0, 0)])
    if not last:
        padded = build.transpose(
            padded, [0, *range(1, 1 + len(cut)), padded.type.ndim - 1, *range(1 + len(cut), padded.type.ndim - 1)]
        )
    steps = row_major(padded.shape)
    first = 1 + len(cut) + (not last)
    counts = [n + 2 - d * (k - 1) for n, k, d in zip(space, kernel, apart, strict=True)]
    taps = [d * step for d, step in zip(apart, steps[first : first + len(space)], strict=True)]
    shape = list(padded.shape)
    shape[first : first + len(space)] = counts
    seen = build.view(padded, views.strided([*shape, *kernel], [*steps, *taps]))
    p, r, g = [f"p{i}" for i in range(len(space))], [f"r{i}" for i in range(len(space))], ["g"] * len(cut)
    a = ["n", *g, *p, "c", *r] if last else ["n", *g, "c", *p, *r]
    out = ["n", *g, *p, "m"] if last else ["n", *g, "m", *p]
    factor = mk.known(*cut, LEAST_WORK, LEAST_WORK, *kernel, dtype=dtype)
    return build.contract(make_spec(a, [*g, "m", "c", *r], out), seen, factor)


winograd_small = rewrite(
    contract(view(x, mp), w, s), _pairs_of_results, where=[known_filters, many_channels], example=_images,
    doc="a convolution by tiles of 4 inputs along each axis, with 2 results: F(2, 3)", algorithm="Winograd F(2, 3)",
)  # fmt: skip
winograd_large = rewrite(
    contract(view(x, mp), w, s), _tiled(6), where=many_channels, numerics="approximates", example=_images,
    doc="a convolution by tiles of 6 inputs along each axis, with 4 results: F(4, 3)", algorithm="Winograd F(4, 3)",
)  # fmt: skip

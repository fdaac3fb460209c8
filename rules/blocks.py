"""Tensors put together of parts: what is done to the whole is done to each part.

Elementwise functions, sums, views and pads go inward, views also past sums and products; products of parts are in
``siblings``. Two programs that put the
same parts together at different places so come to one form. No such step gains anything by itself, and what it makes of
one term is a term for each part: hence only while the e-graph is small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.ir.types import row_major
from eqsat.ir.views import ViewMap
from eqsat.rules import Match, Parts, Terms, attributes, family, op, rewrite, signed_sum, tensors, view
from eqsat.rules.examples import Maker
from eqsat_rules.movement import BINARY, UNARY

x, y = tensors("x y")
mp, pd = attributes("mp pd")

MOST_PARTS = 4


def few_parts(m: Match) -> bool:
    """the e-graph is small, and there are at most four parts"""
    return m.small() and len(m.ps) <= MOST_PARTS


def few_terms(m: Match) -> bool:
    """the e-graph is small, and the sum has at most four terms"""
    return m.small() and len(m.ts) <= MOST_PARTS


def _cut(m: Match, t: Node, rank: int, axis: int, sizes: Sequence[int]) -> list[Node] | None:
    """The parts of an operand that broadcasts to a shape of a rank, along one of its axes; None where it has none."""
    own = axis - (rank - t.type.ndim)
    if own < 0 or t.shape[own] == 1:
        return [t] * len(sizes)
    for along, parts in m.forms(t, "concat"):
        if along == own and [part.shape[own] for part in parts] == list(sizes):
            return list(parts)
    if not m.known(t):
        return None
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return [build.take_range(t, own, start, start + n) for start, n in zip(starts, sizes, strict=True)]


def _mapped(f: str) -> object:
    return lambda m: build.concat([call(f, part) for part in m.ps], m.ps_axis)


def _paired(f: str, first: bool) -> object:
    """f of a concatenation and another tensor, part by part; ``first``: which operand is the concatenation."""

    def through(m: Match) -> Node | None:
        rank, whole = m.root.type.ndim, m._class_ps
        axis = m.ps_axis + rank - whole.type.ndim
        if m.root.shape[rank - whole.type.ndim :] != whole.shape or whole.shape[m.ps_axis] < 2:
            return None  # the parts are repeated, or what has their extent of 1 would be taken for it
        others = _cut(m, m.x, rank, axis, [part.shape[m.ps_axis] for part in m.ps])
        if others is None:
            return None
        pairs = zip(m.ps, others, strict=True)
        return build.concat([call(f, a, b) if first else call(f, b, a) for a, b in pairs], axis)

    return through


def _sum_of_concats(m: Match) -> Node | None:
    rank = m.root.type.ndim
    for _, t in m.ts:
        for along, parts in m.forms(t, "concat"):
            assert isinstance(along, int)
            if t.shape != m.root.shape or len(parts) > MOST_PARTS or t.shape[along] < 2:
                continue  # of extent 1, with an empty part, it would be taken for repeated
            cut = [_cut(m, other, rank, along, [part.shape[along] for part in parts]) for _, other in m.ts]
            terms = [found for found in cut if found is not None]
            if len(terms) == len(cut):
                signs = [sign for sign, _ in m.ts]
                sums = [signed_sum(list(zip(signs, column, strict=True))) for column in zip(*terms, strict=True)]
                return build.concat(sums, along)
    return None


def part_maps(map: ViewMap, shape: Sequence[int], axis: int, sizes: Sequence[int]) -> tuple[int, list[ViewMap]] | None:
    """A view of a concatenation as one of its parts' views: along which axis, and their maps.

    None where no axis of the view walks the one of the parts, and that one alone, from end to end.
    """
    step, n = row_major(tuple(shape))[axis], shape[axis]
    block = step * n
    walks = [v for v, atoms in enumerate(map.axes) if atoms == ((n, step),)]
    if len(walks) != 1 or n < 2 or 0 in map.shape or map.offset % block >= step:
        return None
    reach = map.offset % step
    for v, atoms in enumerate(map.axes):
        for size, stride in atoms:
            if v == walks[0] or stride % block == 0:
                continue
            if stride < 0:
                return None
            reach += (size - 1) * stride
    if reach >= step:
        return None
    found = []
    for size in sizes:
        part = [
            [(c, s // block * step * size) if s % block == 0 else (c, s) for c, s in atoms] if v != walks[0] else []
            for v, atoms in enumerate(map.axes)
        ]
        part[walks[0]] = [(size, step)]
        found.append(views.view_map(part, map.offset // block * step * size + map.offset % step))
    return walks[0], found


def _viewed(m: Match) -> Node | None:
    found = part_maps(m.mp, m._class_ps.shape, m.ps_axis, [part.shape[m.ps_axis] for part in m.ps])
    if found is None or any(part.type.size == 0 for part in m.ps):
        return None
    axis, maps = found
    return build.concat([build.view(part, map) for part, map in zip(m.ps, maps, strict=True)], axis)


def _padded(m: Match) -> Node:
    low, high = m.pd.widths[m.ps_axis]
    parts = []
    for at, part in enumerate(m.ps):
        widths = list(m.pd.widths)
        widths[m.ps_axis] = (low if at == 0 else 0, high if at == len(m.ps) - 1 else 0)
        parts.append(build.pad(part, widths, m.pd.value))
    return build.concat(parts, m.ps_axis)


def _padded_sum(m: Match) -> Node | None:
    if m.pd.value != 0:
        return None
    shape = m._class_ts.shape
    terms = [(s, build.pad(build.broadcast_to(t, shape), m.pd.widths)) for s, t in m.ts]
    return signed_sum(terms)


def _viewed_sum(m: Match) -> Node | None:
    shape = m._class_ts.shape
    if math.prod(shape) == 0 or m.mp.repeats:
        return None  # what is repeated is better added before
    return signed_sum([(s, build.view(build.broadcast_to(t, shape), m.mp)) for s, t in m.ts])


def unrepeated(m: Match) -> bool:
    """the e-graph is small, and the view repeats nothing"""
    return m.small() and m.root.type.size > 0 and not m.mp.repeats


def _viewed_pair(f: str) -> object:
    """A view of f(a, b) as f of views; a factor without axes stays as it is."""

    def through(m: Match) -> Node:
        shape = np.broadcast_shapes(m.x.shape, m.y.shape)
        args = [t if t.type.ndim == 0 else build.view(build.broadcast_to(t, shape), m.mp) for t in (m.x, m.y)]
        return build.broadcast_to(call(f, *args), m.root.shape)

    return through


def _transposed_blocks(m: Match) -> Node | None:
    """Rows of blocks as columns of blocks."""
    along = m.ps_axis
    for axis, first in m.forms(m.ps[0], "concat"):
        assert isinstance(axis, int)
        if axis == along or len(first) > MOST_PARTS:
            continue
        sizes = [block.shape[axis] for block in first]
        rows = [_cut(m, part, part.type.ndim, axis, sizes) for part in m.ps]
        if all(row is not None and part.shape[axis] != 1 for part, row in zip(m.ps, rows, strict=True)):
            columns = zip(*(row for row in rows if row is not None), strict=True)
            return build.concat([build.concat(column, along) for column in columns], axis)
    return None


def _two_parts(mk: Maker, *shape: int) -> Node:
    """Two parts along a random axis."""
    axis = mk.random.randrange(len(shape))
    sizes = [mk.random.choice((1, 2, 3)) for _ in range(2)]
    return build.concat([mk.tensor(*shape[:axis], n, *shape[axis + 1 :]) for n in sizes], axis)


def _parts_with_another(mk: Maker, f: str | None) -> Node:
    sizes = [mk.random.choice((1, 2, 3)) for _ in range(mk.random.choice((2, 3)))]
    whole = build.concat([mk.tensor(3, n) for n in sizes], 1)
    columns = sum(sizes)
    shape = mk.random.choice(((3, 1), (columns,), (2, 3, 1), (3, columns), None))
    other = mk.tensor(*shape, known=shape == (columns,)) if shape else None
    other = other or build.concat([mk.tensor(3, n) for n in sizes], 1)
    pair = (whole, other) if mk.random.random() < 0.5 else (other, whole)
    return call(f or mk.random.choice(("add", "sub")), *pair)


def _blocks(mk: Maker) -> Node:
    rows = mk.random.choice((2, 3))
    heights, widths = [mk.random.choice((1, 2)) for _ in range(rows)], [mk.random.choice((1, 2, 3)) for _ in range(2)]
    return build.concat([build.concat([mk.tensor(h, 2, w) for w in widths], 2) for h in heights], 0)


def _windows_of_parts(mk: Maker) -> Node:
    """Windows of a padded concatenation, a transpose of it, or a part of each row."""
    whole = _two_parts(mk, 2, 3, 5)
    n, c, w = whole.shape
    steps = row_major(whole.shape)
    kind = mk.random.choice(("windows", "transposed", "cut"))
    if kind == "transposed":
        return build.transpose(whole, mk.random.choice(([1, 0, 2], [2, 0, 1])))
    if kind == "cut" or w < 3:
        return build.take_range(whole, 1, 0, c - 1) if c > 1 else build.take_range(whole, 2, 0, max(1, w - 1))
    return build.view(whole, views.strided((n, c, w - 2, 3), (*steps, steps[2])))


def _padded_parts(mk: Maker) -> Node:
    widths = [(mk.random.randint(0, 2), mk.random.randint(0, 2)) for _ in range(3)]
    return build.pad(_two_parts(mk, 2, 3, 2), widths, mk.random.choice((0.0, 1.0)))


map_of_concat = family(
    [(op(f, Parts("ps")), _mapped(f)) for f in UNARY],
    where=few_parts,
    numerics="exact",
    example=lambda mk: call(mk.random.choice(UNARY), _two_parts(mk, 2, 3)),
    doc="f([a b]) = [f(a) f(b)]",
)
pair_of_concat = family(
    [(op(f, Parts("ps"), x), _paired(f, True)) for f in BINARY] + [(op("div", x, Parts("ps")), _paired("div", False))],
    where=few_parts,
    numerics="exact",
    example=lambda mk: _parts_with_another(mk, mk.random.choice(BINARY)),
    doc="f([a b], [c d]) = [f(a, c) f(b, d)]",
)
sum_of_concats = rewrite(
    Terms("ts"),
    _sum_of_concats,
    where=few_terms,
    example=lambda mk: _parts_with_another(mk, None),
    doc="[a b] + [c d] = [a + c b + d]",
)
view_of_parts = rewrite(
    view(Parts("ps"), mp),
    _viewed,
    where=few_parts,
    numerics="exact",
    example=_windows_of_parts,
    doc="a view that walks the parts from end to end",
)
pad_of_concat = rewrite(
    op("pad", Parts("ps"), attrs=pd), _padded, where=few_parts, numerics="exact", example=_padded_parts
)
pad_of_sum = rewrite(
    op("pad", Terms("ts"), attrs=pd), _padded_sum, where=few_terms, doc="zeros beside a sum; -0 becomes 0"
)
view_of_terms = rewrite(
    view(Terms("ts"), mp), _viewed_sum, where=few_terms, numerics="exact", doc="a view of a sum is a sum of views"
)
view_of_pair = family(
    [(view(op(f, x, y), mp), _viewed_pair(f)) for f in BINARY],
    where=unrepeated,
    numerics="exact",
    doc="a view of a product is a product of views",
)
blocks_transposed = rewrite(
    Parts("ps"),
    _transposed_blocks,
    where=few_parts,
    numerics="exact",
    example=_blocks,
    doc="rows of blocks are columns of blocks",
)

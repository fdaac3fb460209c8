"""Channels last: products of known weights whose results and factors have the weights' axes innermost.

A register tile takes its vectors along the axis that results are contiguous in. Where that is an image's, of few
positions, lanes stay empty, and windows are copied in pieces of a row. With channels innermost vectors are full, and
a window is read in runs of all channels. The copies that this takes are small next to the product, or vanish where
the next operator wants that layout too.

Panels: where one row is multiplied by known weights that are stored in fewer bits, what takes time is to read these. In
panels of a few columns they are read from front to back, and the sums of a panel stay in registers to their end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.table import make
from eqsat.ir.types import float32, int8, row_major
from eqsat.ir.views import ViewMap
from eqsat.rules import Match, attributes, contract, op, rewrite, tensors, view
from eqsat.rules.examples import Maker
from eqsat_rules.labels import squeeze

w, x = tensors("w x")
mp, s, to = attributes("mp s to")

LEAST_WORK = 16
"""Positions summed over, columns of the weights, and elements that come to lie innermost in the tensor, from which the
rules are tried: below, copies cost as much. Windows of an image of three channels are read in runs of their rows."""
MAX_FORMS = 4
PANELS = (64, 128, 96, 48, 32)
"""Columns of a panel, best first: sums that fit in the registers of any vector width, and rows of whole cache lines."""


def positions_last(m: Match) -> bool:
    """the weights are known, with 16 columns and 16 summed positions, and results contiguous along a tensor's axis"""
    spec: Spec = m.s
    if not m.known(m.w) or m.known(m.x) or m.root.type.size == 0 or not spec.out or spec.out[-1] not in spec.rows:
        return False
    extents = dict(zip(spec.b, m.w.shape, strict=True))
    work: int = min(math.prod(extents[k] for k in labels) for labels in (spec.cols, spec.summed))
    return work >= LEAST_WORK and m.fewer(m.root, "contract", MAX_FORMS)


def whole(m: Match) -> bool:
    """the tensor is no view of overlapping windows, which has a rule of its own"""
    return all(x.type.size >= m.x.type.size for _, (x,) in m.forms(m.x, "view"))


def overlapping(m: Match) -> bool:
    """windows overlap"""
    seen: ViewMap = m.mp
    image: Node = m.x
    return math.prod(seen.shape) > image.type.size


def _walked(shape: Sequence[int], steps: Sequence[int], counts: Sequence[int], start: int) -> list[int | None] | None:
    """The axis of a tensor that each axis of a view walks (None: none of them); None where one walks several."""
    dense = row_major(tuple(shape))
    first = np.unravel_index(start, shape)
    ends, found = [int(at) for at in first], list[int | None]()
    for step, count in zip(steps, counts, strict=True):
        if count == 1 or step == 0:
            found.append(None)
            continue
        axis = next((a for a, n in enumerate(shape) if n > 1 and 0 < dense[a] <= step), None)
        if axis is None or step % dense[axis]:
            return None
        ends[axis] += step // dense[axis] * (count - 1)
        found.append(axis)
    return found if all(end < n for end, n in zip(ends, shape, strict=True)) else None


def _channels_last(m: Match, steps: Sequence[int] | None, counts: Sequence[int], start: int) -> Node | None:
    """The contraction over the tensor with the axes innermost that are summed alone; its columns innermost too."""
    if steps is None:
        return None
    spec: Spec = m.s
    # Axes of one position are left out, so that an image has one form however many of them a program writes.
    shape = tuple(n for n in _groups_apart(m.x.shape, steps, counts, [k in spec.batch for k in spec.a]) if n > 1)
    walked = _walked(shape, steps, counts, start)
    if walked is None:
        return None
    kept = {axis for axis, label in zip(walked, spec.a, strict=True) if label in spec.out}
    deep = sorted({axis for axis in walked if axis is not None and axis not in kept})
    if math.prod(shape[axis] for axis in deep) < LEAST_WORK:
        return None
    labels, factor = _windows_last(m, build.reshape(m.x, shape), walked, steps, counts, start, deep)
    weights, own = squeeze(m.w, spec.b)
    return _product(m, factor, labels, weights, own, (*spec.batch, *spec.rows, *spec.cols))


def _product(
    m: Match, x: Node, labels: Sequence[object], weights: Node, own: Sequence[object], order: Sequence[object]
) -> Node:
    """The contraction with results in the order of ``order``, turned to what was asked for; axes of one position, which
    factors come without, are put in last."""
    spec: Spec = m.s
    there = {*labels, *own}
    out = [k for k in order if k in there]
    product = build.contract(make_spec(labels, own, out), x, weights)
    return build.reshape(build.transpose(product, [out.index(k) for k in spec.out if k in there]), m.root.shape)


def _groups_apart(
    shape: Sequence[int], steps: Sequence[int], counts: Sequence[int], batch: Sequence[bool]
) -> tuple[int, ...]:
    """A tensor's shape with its axis of channels cut where groups of them, which are a batch of products, begin."""
    found = list[int]()
    for step, n in zip(row_major(tuple(shape)), shape, strict=True):
        inside = [(by, count) for by, count in zip(steps, counts, strict=True) if step <= by < step * n and count > 1]
        groups = [by for by, of_batch in zip(steps, batch, strict=True) if of_batch and step < by < step * n]
        cuts = [by // step for by in groups if any(own * count == by for own, count in inside)]
        found += [n // cuts[0], cuts[0]] if cuts and n % cuts[0] == 0 else [n]
    return tuple(found)


def _windows_last(
    m: Match, x: Node, walked: Sequence[int | None], steps: Sequence[int], counts: Sequence[int], start: int,
    deep: Sequence[int],
) -> tuple[list[str], Node]:  # fmt: skip
    """Windows of a tensor with the axes ``deep`` innermost, in the order that they lie in, and their labels, without
    axes of one position."""
    shape = x.shape
    order = [*(a for a in range(len(shape)) if a not in deep), *deep]
    image = build.transpose(x, order)
    old, new = row_major(shape), dict(zip(order, row_major(image.shape), strict=True))
    moves = [0 if a is None else step // old[a] * new[a] for a, step in zip(walked, steps, strict=True)]
    offset = sum(int(at) * new[a] for a, at in enumerate(np.unravel_index(start, shape)))
    axes = sorted((i for i, n in enumerate(counts) if n > 1), key=lambda i: -moves[i])
    seen = views.strided([counts[i] for i in axes], [moves[i] for i in axes], offset)
    # Not composed with the transposition: the copy is to be stored.
    factor = image if seen.is_identity(image.shape) else make("view", (image,), seen, label="windows")
    return [m.s.a[i] for i in axes], factor


def _plain(m: Match) -> Node | None:
    return _channels_last(m, row_major(m.x.shape), m.x.shape, 0)


def _windows(m: Match) -> Node | None:
    return _channels_last(m, m.mp.strides, m.mp.shape, m.mp.offset)


def each_channel(m: Match) -> bool:
    """a known filter for each channel of overlapping windows, results contiguous along an image's axis"""
    spec: Spec = m.s
    if not overlapping(m) or not m.known(m.w) or m.known(m.x) or m.root.type.size == 0 or spec.cols:
        return False
    extents = dict(zip(spec.b, m.w.shape, strict=True))
    channels = math.prod(extents[k] for k in spec.batch)
    return channels >= LEAST_WORK and spec.out[-1] in spec.rows and m.fewer(m.root, "contract", MAX_FORMS)


def _each_windows(m: Match) -> Node | None:
    """Windows of the image with the axes innermost that each have a filter of their own; filters and results alike."""
    spec: Spec = m.s
    steps, counts = m.mp.strides, m.mp.shape
    shape = tuple(n for n in m.x.shape if n > 1)
    walked = None if steps is None else _walked(shape, steps, counts, m.mp.offset)
    if walked is None:
        return None
    deep = sorted({axis for axis, k in zip(walked, spec.a, strict=True) if axis is not None and k in spec.batch})
    labels, factor = _windows_last(m, build.reshape(m.x, shape), walked, steps, counts, m.mp.offset, deep)
    weights, own = squeeze(m.w, spec.b)
    first = [k for k in (*spec.summed, *spec.batch) if k in own]
    turned = build.transpose(weights, [own.index(k) for k in first])
    return _product(m, factor, labels, turned, first, (*spec.rows, *spec.batch))


def one_row_of_small(m: Match) -> bool:
    """one row of floats is multiplied by weights that are known, and stored in fewer bits"""
    spec: Spec = m.s
    small: bool = m.root.dtype.is_float and m.w.dtype.bits < m.root.dtype.bits
    if not small or not m.known(m.w) or m.known(m.x) or m.root.type.size == 0:
        return False
    extents = dict(zip(spec.b, m.w.shape, strict=True))
    columns: int = math.prod(extents[k] for k in spec.cols)
    deep: int = math.prod(extents[k] for k in spec.summed)
    found: bool = m.root.type.size == columns >= 2 * PANELS[0] and deep >= LEAST_WORK
    return found


def _panels(m: Match) -> Node | None:
    spec: Spec = m.s
    extents = dict(zip(spec.b, m.w.shape, strict=True))
    columns = math.prod(extents[k] for k in spec.cols)
    width = next((n for n in PANELS if columns % n == 0), 0)
    if not width:
        return None
    deep = [extents[k] for k in spec.summed]
    weights = build.transpose(m.w, [spec.b.index(k) for k in (*spec.batch, *spec.summed, *spec.cols)])
    ones = len(spec.batch)
    weights = build.reshape(weights, [*deep, columns // width, width])
    weights = build.transpose(weights, [len(deep), *range(len(deep)), len(deep) + 1])
    row = build.reshape(build.transpose(m.x, [spec.a.index(k) for k in (*spec.batch, *spec.rows, *spec.summed)]), deep)
    out = ("panel", "column")
    product = build.contract(
        make_spec(spec.summed, ("panel", *spec.summed, "column"), out), row, build.cast(weights, m.to)
    )
    wide = build.reshape(product, [1] * (ones + len(spec.rows)) + [extents[k] for k in spec.cols])
    order = (*spec.batch, *spec.rows, *spec.cols)
    return build.transpose(wide, [order.index(k) for k in spec.out])


def _image(mk: Maker) -> Node:
    return build.contract(
        make_spec("nchw", "mc", "nmhw"), mk.tensor(mk.random.choice((1, 2)), LEAST_WORK, 3, 4), mk.known(LEAST_WORK, 16)
    )


def _image_windows(mk: Maker) -> Node:
    """Windows of 2×3 with strides, dilation, groups, and a part of the image."""
    step, apart = mk.random.choice(((1, 1), (2, 1), (1, 2)))
    start, groups = mk.random.choice((0, 1)), mk.random.choice((0, 0, 2))
    images = mk.random.choice((1, 2))
    given = mk.tensor(images, max(1, groups) * LEAST_WORK, 2 * step + apart + 1, 2 * step + 2 * apart + 1 + start)
    steps = row_major(given.shape)
    moves = [*(step * n for n in steps[2:]), *(apart * n for n in steps[2:])]
    cut, each = ([groups], [LEAST_WORK * steps[1]]) if groups else ([], [])
    seen = views.strided((images, *cut, LEAST_WORK, 3, 3, 2, 3), [steps[0], *each, steps[1], *moves], start)
    spec = make_spec("ngchwrs", "gmcrs", "ngmhw") if groups else make_spec("nchwrs", "mcrs", "nmhw")
    weights = mk.known(*cut, LEAST_WORK, LEAST_WORK, 2, 3)
    return build.contract(spec, build.view(given, seen, "windows"), weights)


def _each_image(mk: Maker) -> Node:
    """Windows of 2×3, each channel with weights of its own."""
    step = mk.random.choice((1, 2))
    given = mk.tensor(LEAST_WORK, 2 * step + 2, 2 * step + 3)
    steps = row_major(given.shape)
    seen = views.strided((LEAST_WORK, 3, 3, 2, 3), [steps[0], *(step * n for n in steps[1:]), *steps[1:]])
    return build.contract(
        make_spec("chwrs", "crs", "chw"), build.view(given, seen, "windows"), mk.known(LEAST_WORK, 2, 3)
    )


channels_last = rewrite(
    contract(x, w, s),
    _plain,
    where=[positions_last, whole],
    example=_image,
    doc="a product with known weights, channels last",
)
channels_last_windows = rewrite(
    contract(view(x, mp), w, s),
    _windows,
    where=[positions_last, overlapping],
    example=_image_windows,
    doc="windows of an image, channels last",
)
channels_last_each = rewrite(
    contract(view(x, mp), w, s),
    _each_windows,
    where=each_channel,
    example=_each_image,
    doc="a filter for each channel, channels last",
)


def _row_by_bytes(mk: Maker) -> Node:
    """One row, of one axis or two, by bytes."""
    weights = build.cast(mk.known(LEAST_WORK, 2, PANELS[0], dtype=int8), float32)
    spec = mk.random.choice(("k,kmn->mn", "ak,kmn->amn", "k,kmn->nm"))
    a, rest = spec.split(",")
    b, out = rest.split("->")
    return build.contract(make_spec(a, b, out), mk.tensor(*(1,) * (len(a) - 1), LEAST_WORK, dtype=float32), weights)


small_weights_in_panels = rewrite(
    contract(x, op("cast", w, attrs=to), s),
    _panels,
    where=one_row_of_small,
    example=_row_by_bytes,
    doc="one row by known weights of fewer bits, in panels",
)

"""Einsum algebra for right sides: contractions of labelled tensors, and views read as relabellings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.types import row_major
from eqsat.ir.views import ViewMap
from eqsat.rules import Match

Labels = tuple[object, ...]


def squeeze(x: Node, labels: Sequence[object]) -> tuple[Node, Labels]:
    """A broadcast operand, right-aligned to ``labels``, without its axes of extent 1."""
    own = tuple(labels)[len(labels) - x.type.ndim :]
    kept = tuple(label for label, n in zip(own, x.shape, strict=True) if n != 1)
    if len(kept) == len(own):
        return x, own
    return build.reshape(x, tuple(n for n in x.shape if n != 1)), kept


def spread(x: Node, labels: Sequence[object], out: Sequence[object], extents: Mapping[object, int]) -> Node:
    """A tensor whose axes are ``labels`` as one whose axes are ``out``, repeated along the others.

    ``labels`` must be among ``out``.
    """
    order = [labels.index(label) for label in out if label in labels]
    turned = x if order == sorted(order) else build.transpose(x, order)
    missing = [axis for axis, label in enumerate(out) if label not in labels]
    wide = build.expand_dims(turned, missing) if missing else turned
    return build.broadcast_to(wide, tuple(extents[label] for label in out))


def aligned(x: Node, labels: Sequence[object], out: Sequence[object]) -> Node:
    """A tensor whose axes are ``labels`` with extent 1 for every other axis of ``out``."""
    order = [labels.index(label) for label in out if label in labels]
    turned = x if order == sorted(order) else build.transpose(x, order)
    missing = [axis for axis, label in enumerate(out) if label not in labels]
    return build.expand_dims(turned, missing) if missing else turned


def sum_over(x: Node, labels: Sequence[object], gone: Sequence[object]) -> tuple[Node, Labels]:
    """A tensor summed over some of its labels."""
    axes = [axis for axis, label in enumerate(labels) if label in gone]
    kept = tuple(label for label in labels if label not in gone)
    return (build.reduce("reduce_sum", x, axes), kept) if axes else (x, kept)


def einsum(
    a: Node,
    a_labels: Sequence[object],
    b: Node,
    b_labels: Sequence[object],
    out: Sequence[object],
    extents: Mapping[object, int],
) -> Node:
    """``out = Σ a·b`` over every label of a factor that is not in ``out``; labels in no factor are repeated."""
    a, left = sum_over(a, a_labels, [x for x in a_labels if x not in b_labels and x not in out])
    b, right = sum_over(b, b_labels, [x for x in b_labels if x not in a_labels and x not in out])
    kept = tuple(label for label in out if label in left or label in right)
    product = build.contract(make_spec(left, right, kept), a, b)
    return spread(product, kept, out, extents)


def extents_of(*tensors: tuple[Node, Sequence[object]]) -> dict[object, int]:
    """The extent of every label."""
    return {label: n for x, labels in tensors for label, n in zip(labels, x.shape, strict=True)}


def product_of_three(
    a: Node, a_labels: Labels, b: Node, b_labels: Labels, c: Node, c_labels: Labels, out: Labels, *, any_size: bool
) -> Node | None:
    """``a·(b·c)``; None where the inner product would be larger than any tensor there is, unless of ``any_size``."""
    extents = extents_of((a, a_labels), (b, b_labels), (c, c_labels))
    inner = tuple(x for x in dict.fromkeys((*b_labels, *c_labels)) if x in a_labels or x in out)
    if not set(b_labels) & set(c_labels) and min(b.type.ndim, c.type.ndim) > 0:
        return None
    size = math.prod(extents[x] for x in inner)
    if not any_size and size > max(a.type.size, b.type.size, c.type.size, math.prod(extents[x] for x in out)):
        return None
    return einsum(a, a_labels, einsum(b, b_labels, c, c_labels, inner, extents), inner, out, extents)


def axes_read(x: Node, map: ViewMap) -> Sequence[Sequence[int | None]] | None:
    """For each axis of a view, outermost first, the whole axes of ``x`` it walks (None: repeats); None if it
    walks a part of an axis, or one twice."""
    return _axes_read(x.shape, map)


@lru_cache(maxsize=4096)
def _axes_read(shape: tuple[int, ...], map: ViewMap) -> tuple[tuple[int | None, ...], ...] | None:
    if map.offset or 0 in map.shape or 0 in shape:
        return None
    strides = row_major(shape)
    by_stride = {s: a for a, (n, s) in enumerate(zip(shape, strides, strict=True)) if n > 1}
    used: set[int] = set()
    found: list[tuple[int | None, ...]] = []
    for atoms in map.axes:
        read: list[int | None] = []
        for size, stride in atoms:
            if stride == 0:
                read.append(None)
                continue
            # Neighbouring axes walked in order are one atom: open it from the innermost.
            pieces: list[int | None] = []
            left, at = size, stride
            while left > 1:
                axis = by_stride.get(at)
                if axis is None or axis in used or left % shape[axis]:
                    return None
                used.add(axis)
                pieces.append(axis)
                left //= shape[axis]
                at = strides[axis] * shape[axis]
            read.extend(reversed(pieces))
        found.append(tuple(read))
    if any(n > 1 and axis not in used for axis, n in enumerate(shape)):
        return None
    return tuple(found)


def split_label(x: Node, labels: Labels, pieces: Mapping[object, Sequence[tuple[object, int]]]) -> tuple[Node, Labels]:
    """A tensor with some axes cut into labelled pieces (outermost first)."""
    if not any(label in pieces for label in labels):
        return x, labels
    shape: list[int] = []
    names: list[object] = []
    for label, n in zip(labels, x.shape, strict=True):
        for name, size in pieces.get(label, [(label, n)]):
            shape.append(size)
            names.append(name)
    return build.reshape(x, shape), tuple(names)


def absorb_operand(map: ViewMap, x: Node, b: Node, spec: Spec) -> Node | None:
    """``contract(view(x, map), b)`` reading ``x`` itself, where the view permutes, merges, repeats or adds axes."""
    read = axes_read(x, map)
    if read is None:
        return None
    pieces: dict[object, list[tuple[object, int]]] = {}
    x_labels: list[object] = [None] * x.type.ndim
    for label, axes, extent in zip(spec.a, read, map.shape, strict=True):
        names: list[tuple[object, int]] = []
        repeats = [atoms for atoms in map.axes[spec.a.index(label)] if atoms[1] == 0]
        for number, axis in enumerate(axes):
            if axis is None:
                names.append(((label, number), repeats.pop(0)[0]))
            else:
                x_labels[axis] = (label, number)
                names.append(((label, number), x.shape[axis]))
        pieces[label] = names or [((label, 0), extent)]
    kept = [axis for axis in range(x.type.ndim) if x_labels[axis] is not None]
    flat = x if len(kept) == x.type.ndim else build.reshape(x, tuple(x.shape[a] for a in kept))
    left = tuple(x_labels[a] for a in kept)
    other, right = split_label(b, tuple(spec.b), pieces)
    right = tuple(pieces[r][0][0] if r in pieces and len(pieces[r]) == 1 else r for r in right)
    out = tuple(name for label in spec.out for name, _ in pieces.get(label, [(label, 0)]))
    extents = extents_of((flat, left), (other, right)) | {n: size for p in pieces.values() for n, size in p}
    # A label summed in the view and repeated there sums the other factor; einsum does that. One that
    # neither factor has any more cannot be: every summed label is in both factors.
    product = einsum(flat, left, other, right, out, extents)
    whole = spec.extents(map.shape, b.shape)
    return build.reshape(product, tuple(whole[label] for label in spec.out))


def absorb_result(map: ViewMap, a: Node, b: Node, spec: Spec) -> Node | None:
    """``view(contract(a, b), map)`` as a contraction that writes the view's order, where it permutes or cuts axes."""
    extents = spec.extents(a.shape, b.shape)
    cut = _order_of(map, spec.out, tuple([extents[x] for x in spec.out]))
    if cut is None:
        return None
    pieces, out = cut
    left_node, left = split_label(a, spec.a, pieces)
    right_node, right = split_label(b, spec.b, pieces)
    product = einsum(left_node, left, right_node, right, out, extents_of((left_node, left), (right_node, right)))
    return build.reshape(product, map.shape)


@lru_cache(maxsize=4096)
def _order_of(
    map: ViewMap, labels: Labels, shape: tuple[int, ...]
) -> tuple[Mapping[object, Sequence[tuple[object, int]]], Labels] | None:
    """The pieces (label, extent) in which a view that permutes or cuts axes walks those of a tensor, by the labels of
    these, and their order; None if it is no such view."""
    size = math.prod(shape)
    if size <= 1 or not map.is_one_to_one(size) or map.keeps_order(size):
        return None
    atoms = [atom for axis in map.axes for atom in axis]
    strides = row_major(shape)
    pieces: dict[object, list[tuple[object, int]]] = {}
    order: dict[tuple[int, int], list[object]] = {}
    for label, n, stride in zip(labels, shape, strides, strict=True):
        if n == 1:
            pieces[label] = [((label, 0), 1)]
            continue
        cuts = [
            [c for c in (s // stride, s * k // stride) if s % stride == 0 and 1 < c < n]
            for k, s in atoms
            if s * k > stride
        ]
        marks = sorted({1, n, *(c for cut in cuts for c in cut)})
        if any(high % low for low, high in itertools.pairwise(marks)):
            return None
        sizes = [high // low for low, high in itertools.pairwise(marks)][::-1]
        pieces[label] = [((label, number), extent) for number, extent in enumerate(sizes)]
    ordered = [
        (stride * math.prod(s for _, s in names[i + 1 :]), extent, name)
        for label, stride in zip(labels, strides, strict=True)
        for names in (pieces[label],)
        for i, (name, extent) in enumerate(names)
        if extent > 1
    ]
    for extent, stride in atoms:
        inside = sorted((p for p in ordered if stride <= p[0] < stride * extent), reverse=True)
        if math.prod(p[1] for p in inside) != extent:
            return None
        order[extent, stride] = [p[2] for p in inside]
    ones = [name for names in pieces.values() for name, extent in names if extent == 1]
    return pieces, (*ones, *(name for atom in atoms for name in order[atom]))


def broadcasts(x: Node, map: ViewMap, shape: Sequence[int]) -> bool:
    """Whether a view of ``x`` is NumPy's broadcast of it to its own shape, and that shape is ``shape``."""
    if map.shape != tuple(shape) or x.type.ndim > len(shape):
        return False
    own = map.shape[len(shape) - x.type.ndim :]
    if any(n not in (1, m) for n, m in zip(x.shape, own, strict=True)):
        return False
    return views.broadcast(x.shape, map.shape) == map


def slice_of(map: ViewMap, shape: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """(starts, sizes) if the map is a plain slice with step 1 of a tensor of ``shape``, else None."""
    steps = map.strides
    if steps is None or len(map.shape) != len(shape) or 0 in map.shape or 0 in shape:
        return None
    starts, left = [], map.offset
    for n, stride in zip(shape, row_major(tuple(shape)), strict=True):
        starts.append(left // stride % n)
        left -= starts[-1] * stride
    if left:
        return None
    for start, size, step, n, stride in zip(starts, map.shape, steps, shape, row_major(tuple(shape)), strict=True):
        if start + size > n or (size > 1 and step != stride):
            return None
    return starts, list(map.shape)


def continued(m: Match, parts: Sequence[Node]) -> Node | None:
    """The tensor, or the view of it, that these are when joined along the axis of the parts that a rule matched: views
    of one tensor that continue each other."""
    for map, (source,) in m.forms(parts[0], "view"):
        assert isinstance(map, ViewMap)
        whole = map
        for part in parts[1:]:
            others = [other for other, (same,) in m.forms(part, "view") if same is source]
            longer = (views.joined((whole, other), m.ps_axis) for other in others if isinstance(other, ViewMap))
            found = next((longest for longest in longer if longest is not None), None)
            if found is None:
                break
            whole = found
        else:
            return build.view(source, whole, "slice")
    return None

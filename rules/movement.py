"""Views, concatenations, pads and gathers: composition, cancellation, and movement past other operators."""

from __future__ import annotations

from eqsat.ir import build, views
from eqsat.ir.build import call
from eqsat.ir.joins import PadAttrs
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS, make
from eqsat.rules import (
    Match,
    Parts,
    Terms,
    attributes,
    contract,
    family,
    numbers,
    op,
    reduction,
    rewrite,
    signed,
    signed_sum,
    tensors,
    view,
)
from eqsat.rules.examples import Maker
from eqsat_rules.labels import axes_read, broadcasts, continued, slice_of

b, i, w, x = tensors("b i w x")
p = numbers("p")
mp, mq, pd, pe, s, k, ax = attributes("mp mq pd pe s k ax")
UNARY = (*(row.name for row in OPS.values() if "float" in row.kinds and row.arity == 1), "silu", "gelu", "gelu_tanh")
BINARY = ("mul", "div", "maximum", "minimum")


def program_tensor(m: Match) -> bool:
    """the tensor is one of the program's"""
    return m.original(m.root)


def scaled_program_tensor(m: Match) -> bool:
    """the tensor is the program's, and a 0-d number scales one that is not a number"""
    return m.original(m.root) and m.p.type.ndim == 0 and m.value(m.x) is None


def one_to_one(m: Match) -> bool:
    """the view reads every element once, and the tensor is the program's"""
    return m.original(m.root) and m.mp.is_one_to_one(m.x.type.size)


def smaller(m: Match) -> bool:
    """the view is smaller than its operand, and the tensor is the program's"""
    return m.original(m.root) and m.root.type.size < m.x.type.size


def _compose(m: Match) -> Node | None:
    both = views.compose(m.mp, m.mq)
    return None if both is None else build.view(m.x, both)


def _view_of_sum(m: Match) -> Node:
    shape = m._class_ts.shape
    return signed_sum([(sign, build.view(build.broadcast_to(t, shape), m.mp)) for sign, t in m.ts])


def few_program_terms(m: Match) -> bool:
    """the tensor is the program's and smaller than the sum, which has at most three terms"""
    return m.original(m.root) and len(m.ts) <= 3 and m.root.type.size < m._class_ts.type.size


def _implicit(f: str) -> object:
    """f(broadcast(a), b) = f(a, b), whose broadcasting is its own."""

    def drop(m: Match) -> Node | None:
        if not broadcasts(m.x, m.mp, m.root.shape) or not m.b.type.ndim:
            return None
        out = call(f, m.x, m.b)
        return out if out.shape == m.root.shape else None

    return drop


def _implicit_sum(m: Match) -> Node | None:
    if not broadcasts(m.x, m.mp, m.root.shape):
        return None
    out = signed_sum([(m.signs[0], m.x), (m.signs[1], m.b), *m.rest])
    return signed_sum([(m.signs[0], m.x), (m.signs[1], m.b)]) if out.shape == m.root.shape else None


def _part_of_concat(m: Match) -> Node | None:
    """A slice of a concatenation that lies within one part, or spans some of them."""
    whole = m._class_ps
    found = slice_of(m.mp, whole.shape)
    if found is None:
        return None
    starts, sizes = found
    axis, at, pieces = m.ps_axis, 0, []
    start, stop = starts[axis], starts[axis] + sizes[axis]
    for part in m.ps:
        n = part.shape[axis]
        low, high = max(start, at), min(stop, at + n)
        if low < high:
            begin, size = list(starts), list(sizes)
            begin[axis], size[axis] = low - at, high - low
            pieces.append(build.slices(part, begin, [1] * len(begin), size))
        at += n
    return build.concat(pieces, axis) if pieces else None


def _concat_of_slices(m: Match) -> Node | None:
    """Views of one tensor that continue each other, joined: one view, or the tensor."""
    return continued(m, m.ps)


def _flat_concat(m: Match) -> Node | None:
    """A concatenation inside one along the same axis."""
    parts: list[Node] = []
    opened = False
    for part in m.ps:
        inner = [n for axis, n in m.forms(part, "concat") if axis == m.ps_axis]
        opened |= bool(inner)
        parts.extend(inner[0] if inner else (part,))
    return build.concat(parts, m.ps_axis) if opened and len(parts) <= 16 and m.root not in parts else None


def _view_of_concat(m: Match) -> Node | None:
    """A transposed concatenation: the transposed parts, joined."""
    read = axes_read(m._class_ps, m.mp)
    if read is None or len(m.ps) > 4 or any(len(axes) != 1 or axes[0] is None for axes in read) or 1 in m.root.shape:
        return None
    order = [axes[0] for axes in read if axes[0] is not None]
    if len(order) < m.ps[0].type.ndim:  # axes of one element are left out: a part may have none there
        return None
    return build.concat([build.transpose(part, order) for part in m.ps], order.index(m.ps_axis))


def _without_empty(m: Match) -> Node | None:
    parts = [part for part in m.ps if part.shape[m.ps_axis]]
    return build.concat(parts, m.ps_axis) if parts and len(parts) < len(m.ps) else None


def _concat_of(f: str) -> object:
    def outward(m: Match) -> Node | None:
        inner: list[Node] = []
        for part in m.ps:
            forms = m.forms(part, f)
            if not forms:
                return None
            inner.append(forms[0][1][0])
        return call(f, build.concat(inner, m.ps_axis))

    return outward


def _concat_of_rows(m: Match) -> Node | None:
    """[x@w; y@w] = [x; y]@w with a known w."""
    found: list[Node] = []
    first = [(s, f) for s, f in m.forms(m.ps[0], "contract") if m.known(f[1]) and not m.known(f[0])]
    for spec, (_, weight) in first:
        assert isinstance(spec, Spec)
        label = spec.out[m.ps_axis]
        if label not in spec.rows:
            continue
        found = [f[0] for part in m.ps for t, f in m.forms(part, "contract")[:8] if t == spec and f[1] is weight]
        if len(found) == len(m.ps):
            return build.contract(spec, build.concat(found, spec.a.index(label)), weight)
    return None


def _pad_pad(m: Match) -> Node:
    widths = tuple((a + c, b + d) for (a, b), (c, d) in zip(m.pd.widths, m.pe.widths, strict=True))
    return build.pad(m.x, widths, m.pd.value)


def _slice_of_pad(m: Match) -> Node | None:
    """A slice of a padded tensor that takes nothing of the padding."""
    found = slice_of(m.mp, tuple(n + low + high for n, (low, high) in zip(m.x.shape, m.pd.widths, strict=True)))
    if found is None:
        return None
    starts = [start - low for start, (low, _) in zip(found[0], m.pd.widths, strict=True)]
    inside = all(s >= 0 and s + n <= size for s, n, size in zip(starts, found[1], m.x.shape, strict=True))
    return build.slices(m.x, starts, [1] * len(starts), found[1]) if inside else None


def _transposed_pad(m: Match) -> Node | None:
    """A transposed padded tensor: the transposed tensor, padded."""
    padded = build.pad(m.x, m.pd.widths, m.pd.value)
    read = axes_read(padded, m.mp)
    if read is None or m.x.type.size == 0 or any(len(axes) > 1 or None in axes for axes in read):
        return None
    order = [axis for axes in read for axis in axes if axis is not None]
    if order == sorted(order):
        return None
    ones = [axis for axis in range(m.x.type.ndim) if axis not in order]  # whatever the view has of these
    turned = build.transpose(m.x, [*order, *ones])
    inside = build.reshape(turned, [m.x.shape[axes[0]] if axes else 1 for axes in read])
    return build.pad(inside, [m.pd.widths[axes[0]] if axes else (0, 0) for axes in read], m.pd.value)


def _sum_of_pad(m: Match) -> Node:
    """Zeros beside a tensor add nothing."""
    total = build.reduce("reduce_sum", m.x, m.ax)
    return build.pad(total, [w for axis, w in enumerate(m.pd.widths) if axis not in m.ax], m.pd.value)


def zero_padding(m: Match) -> bool:
    """the padding is zero"""
    pad: PadAttrs = m.pd
    return pad.value == 0


def same_padding(m: Match) -> bool:
    """both pads have the same value"""
    return bool(m.pd.value == m.pe.value)


def _gather_then_contract(m: Match) -> Node | None:
    """take(x, i)@w = take(x@w, i) along an axis that w does not have, with x and w known."""
    spec: Spec = m.s
    width = m.i.type.ndim
    labels = list(spec.a)
    taken = labels[m.k : m.k + width]
    if any(t in spec.b for t in taken) or width != 1:
        return None
    label = taken[0]
    product = build.contract(spec, m.x, m.w)
    return make("gather", (product, m.i), spec.out.index(label))


def gather_folds(m: Match) -> bool:
    """table and weight are known, and their product is not four times the table"""
    if not (m.known(m.x) and m.known(m.w)):
        return False
    columns = m.w.type.size // max(1, m.w.shape[0]) if m.w.shape else 1
    return bool(columns * m.x.shape[0] <= 4 * m.x.type.size)


def table_known(m: Match) -> bool:
    """the table is known when compiled"""
    return m.known(m.x)


def _gather_map(f: str) -> object:
    return lambda m: make("gather", (call(f, m.x), m.i), m.k)


def _slices_joined(mk: Maker) -> Node:
    if mk.random.random() < 0.5:
        y = mk.tensor(3, 1, 4)
        return build.concat([build.reshape(build.take_range(y, 0, i, i + 1), (1, 4)) for i in range(3)], 0)
    x = mk.tensor(3, 6)
    return build.concat([build.take_range(x, 1, a, b) for a, b in ((0, 2), (2, 3), (3, mk.random.choice((5, 6))))], 1)


def _nested_concat(mk: Maker) -> Node:
    return build.concat([build.concat([mk.tensor(2, 3), mk.tensor(1, 3)], 0), mk.tensor(2, 3)], 0)


def _with_empty_part(mk: Maker) -> Node:
    return build.concat([mk.tensor(2, 3), mk.tensor(0, 3), mk.tensor(1, 3)], 0)


def _maps_joined(mk: Maker) -> Node:
    f = mk.random.choice(("relu", "exp", "tanh", "gelu", "silu"))
    return build.concat([make(f, [mk.tensor(2, 3)]), make(f, [mk.tensor(2, 1)])], 1)


def _products_joined(mk: Maker) -> Node:
    w = mk.known(4, 3)
    return build.concat([build.matmul(mk.tensor(2, 4), w), build.matmul(mk.tensor(1, 4), w)], 0)


def _embedding(mk: Maker) -> Node:
    index = make("argmax", (mk.tensor(2, 2, 5),), (2,))
    return make("gather", (mk.known(5, 4), index), 0)


def _embedded_product(mk: Maker) -> Node:
    index = make("argmax", (mk.tensor(3, 5),), (1,))
    return build.matmul(make("gather", (mk.known(5, 4), index), 0), mk.known(4, 3))


def _cut_padding(mk: Maker) -> Node:
    padded = build.pad(mk.tensor(4, 3), [(2, 1), (0, 2)], mk.random.choice((0.0, 7.0)))
    return build.slices(padded, [2, 0], [1, 1], [mk.random.randint(1, 4), 3])


def _padded_transposed(mk: Maker) -> Node:
    padded = build.pad(mk.tensor(4, 1, 3, 2), [(2, 1), (0, 0), (0, 2), (0, 0)], mk.random.choice((0.0, 7.0)))
    turned = build.transpose(padded, mk.random.choice(([2, 1, 0, 3], [3, 1, 0, 2], [3, 0, 1, 2])))
    ones = mk.random.choice(([], [1], [1, 1]))  # of axes of one position a view may have more or fewer
    return build.reshape(turned, [*ones, *(n for n in turned.shape if n > 1)])


def _embedded_map(mk: Maker) -> Node:
    return make(mk.random.choice(UNARY), (_embedding(mk),))


view_view = rewrite(view(view(x, mp), mq), _compose, numerics="exact")
view_of_map = family(
    [(view(op(f, x), mp), op(f, view(x, mp))) for f in UNARY],
    where=smaller,
    numerics="exact",
    doc="a slice of f(x) is f of the slice",
)
map_of_view = family(
    [(op(f, view(x, mp)), view(op(f, x), mp)) for f in UNARY],
    where=one_to_one,
    numerics="exact",
    doc="f of a transpose",
)
view_of_scaled = family(
    [(view(op(f, x, p), mp), op(f, view(x, mp), p)) for f in ("mul", "div")],
    where=scaled_program_tensor,
    numerics="exact",
    doc="a view of a scaled tensor",
)
view_of_sum = rewrite(view(Terms("ts"), mp), _view_of_sum, where=few_program_terms, numerics="exact")
broadcast_implicit = family(
    [(op(f, view(x, mp), b), _implicit(f)) for f in BINARY], numerics="exact", doc="operators broadcast by themselves"
)
broadcast_implicit_sum = rewrite(signed((0, view(x, mp)), (0, b)), _implicit_sum, numerics="exact")
part_of_concat = rewrite(view(Parts("ps"), mp), _part_of_concat, numerics="exact", doc="a slice of a concatenation")
concat_of_slices = rewrite(
    Parts("ps"), _concat_of_slices, example=_slices_joined, numerics="exact", doc="slices put together again"
)
concat_in_concat = rewrite(Parts("ps"), _flat_concat, example=_nested_concat, numerics="exact")
concat_empty = rewrite(Parts("ps"), _without_empty, example=_with_empty_part, numerics="exact")
view_of_concat = rewrite(view(Parts("ps"), mp), _view_of_concat, where=program_tensor, numerics="exact")
concat_of_maps = family(
    [(Parts("ps"), _concat_of(f)) for f in ("relu", "exp", "tanh", "gelu", "silu")],
    example=_maps_joined,
    where=program_tensor,
    numerics="exact",
)
concat_of_products = rewrite(
    Parts("ps"),
    _concat_of_rows,
    example=_products_joined,
    where=program_tensor,
    doc="[x@w; y@w] = [x; y]@w with a known w",
)
pad_pad = rewrite(op("pad", op("pad", x, attrs=pe), attrs=pd), _pad_pad, where=same_padding, numerics="exact")
slice_of_pad = rewrite(view(op("pad", x, attrs=pd), mp), _slice_of_pad, numerics="exact", example=_cut_padding)
transposed_pad = rewrite(
    view(op("pad", x, attrs=pd), mp),
    _transposed_pad,
    numerics="exact",
    example=_padded_transposed,
    doc="a transposed padded tensor is the transposed one, padded",
)
sum_of_pad = rewrite(reduction("reduce_sum", op("pad", x, attrs=pd), ax), _sum_of_pad, where=zero_padding)
gather_of_product = rewrite(
    contract(op("gather", x, i, attrs=k), w, s),
    _gather_then_contract,
    where=gather_folds,
    example=_embedded_product,
    doc="an embedding times a weight is an embedding",
)
gather_of_map = family(
    [(op(f, op("gather", x, i, attrs=k)), _gather_map(f)) for f in UNARY],
    example=_embedded_map,
    where=table_known,
    numerics="exact",
)

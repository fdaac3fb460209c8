"""The algebra of contractions: matmul, einsum, outer products, and what moves into or out of them."""

from __future__ import annotations

import math

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.types import row_major
from eqsat.rules import (
    Match,
    Terms,
    attributes,
    contract,
    numbers,
    reduction,
    rewrite,
    signed,
    signed_sum,
    tensors,
    view,
)
from eqsat.rules.examples import Maker
from eqsat_rules.labels import (
    Labels,
    absorb_operand,
    absorb_result,
    aligned,
    axes_read,
    einsum,
    extents_of,
    product_of_three,
    spread,
    squeeze,
    sum_over,
)

a, b, c, u, v, w, x, y = tensors("a b c u v w x y")
p = numbers("p")
s, s1, s2, ax, mp = attributes("s s1 s2 ax mp")

MAX_FORMS = 8


def few_forms(m: Match) -> bool:
    """the tensor has fewer than eight forms as a contraction"""
    return m.fewer(m.root, "contract", MAX_FORMS)


def w_known(m: Match) -> bool:
    """the other factor is known when compiled"""
    return m.known(m.w)


def weights_fold(m: Match) -> bool:
    """the scale (not a number) and the other factor are known when compiled, and the first factor is not"""
    return m.known(m.v) and m.known(m.w) and not m.known(m.x) and m.value(m.v) is None


def number_leaves(m: Match) -> bool:
    """a 0-d number scales a factor that is not known when compiled"""
    return m.p.type.ndim == 0 and not m.known(m.a)


def number_enters(m: Match) -> bool:
    """the tensor is the program's, the scale a 0-d number, and one factor is known when compiled"""
    return m.p.type.ndim == 0 and m.known(m.w) and not m.known(m.x) and m.original(m.root)


def both_weights(m: Match) -> bool:
    """the sum is the program's, and the second factors and the other terms are known, the first factors not"""
    if not (m.known(m.u) and m.known(m.v)) or m.known(m.x) or m.known(m.y) or m.x is m.y:
        return False
    return program_sum(m) and all(m.known(t) for _, t in m.rest)


def scale_repeats(m: Match) -> bool:
    """the scale is smaller than the factor, and the result no larger or the e-graph small"""
    if m.v.type.size >= m.x.type.size or m.known(m.v) or m.known(m.w):
        return False
    return m.small() or m.root.type.size <= m.x.type.size


def _low_rank(m: Match, t: Node, deep: bool = True) -> bool:
    """Whether a tensor is a product of factors smaller than itself, or a number times one."""
    if any(f[0].type.size + f[1].type.size < t.type.size for _, f in m.forms(t, "contract")):
        return True
    scaled = [(p, q) for _, f in m.forms(t, "mul") for p, q in (f, f[::-1]) if p.type.ndim == 0] if deep else []
    return any(_low_rank(m, q, False) for _, q in scaled)


def program_linear(m: Match) -> bool:
    """the e-graph is small, or the tensor the program's, and a term folds into the known factor or is of low rank"""
    if len(m.ts) > 3 or not m.fewer(m.root, "add_n", MAX_FORMS):
        return False
    if m.small():
        return True
    if not m.original(m.root):
        return False
    folds = m.known(m.w) and any(m.known(t) for _, t in m.ts)
    return folds or any(_low_rank(m, t) for _, t in m.ts)


def few_sums(m: Match) -> bool:
    """the tensor has no form as a contraction yet, or is the program's with fewer than four"""
    return m.fewer(m.root, "contract", 4 if m.original(m.root) else 1)


def program_sum(m: Match) -> bool:
    """the sum is the program's, with fewer than eight forms"""
    return m.original(m.root) and m.fewer(m.root, "add_n", MAX_FORMS)


# Three factors


def _chain(m: Match) -> tuple[Labels, Labels, Labels, Labels]:
    """Labels of the three factors of (a·b)·c, and of the result."""
    inner: Spec = m.s2
    names = dict(zip(inner.out, (("o", x) for x in m.s1.a), strict=True))
    label = {x: names.get(x, ("i", x)) for x in (*inner.a, *inner.b)}
    left, right = (tuple(label[x] for x in axes) for axes in (inner.a, inner.b))
    return left, right, tuple(("o", x) for x in m.s1.b), tuple(("o", x) for x in m.s1.out)


def literals_gain(m: Match) -> bool:
    """no factor is a literal matrix, or the other pairing multiplies less"""
    if all(m.array(t) is None for t in (m.a, m.b, m.c)):
        return True
    left, right, last, out = _chain(m)
    extents = extents_of((m.a, left), (m.b, right), (m.c, last))

    def work(one: Labels, two: Labels, folded: bool = False) -> int:
        return 0 if folded else math.prod(extents[x] for x in {*one, *two})

    before = work(left, right, m.known(m.a) and m.known(m.b)) + work(tuple(("o", x) for x in m.s1.a), last)
    inner = tuple(x for x in (*right, *last) if x in left or x in out)
    return work(right, last, m.known(m.b) and m.known(m.c)) + work(left, inner) < before


def _regroup(m: Match) -> Node | None:
    """(a·b)·c as a·(b·c); the other pairing is another match, as factors match in both orders."""
    left, right, last, out = _chain(m)
    return product_of_three(m.a, left, m.b, right, m.c, last, out, any_size=m.small())


# Linearity


def _term_contracted(
    t: Node, labels: tuple[int, ...], other: Node, others: tuple[int, ...], out: tuple[int, ...]
) -> Node:
    """A term of a sum, which may broadcast, contracted with the other factor, aligned to the result."""
    core, own = squeeze(t, labels)
    lost = [x for x in labels if x not in own]
    rest, mine = sum_over(other, others, [x for x in lost if x in others and x not in out])
    kept = tuple(x for x in out if x in own or x in mine)
    product = build.contract(make_spec(own, mine, kept), core, rest)
    return aligned(product, kept, out)


def linear(m: Match) -> Node:
    """A sum's terms, each contracted with the other factor."""
    spec: Spec = m.s
    terms = [(sign, _term_contracted(t, spec.a, m.w, spec.b, spec.out)) for sign, t in m.ts]
    return build.broadcast_to(signed_sum(terms), m.root.shape)


def _factor(m: Match) -> Node:
    return build.contract(m.s, m.a, signed_sum([(m.signs[0], m.b), (m.signs[1], m.c)]))


def _joined(m: Match) -> Node | None:
    """±x·u ± y·v over one summed axis each, as one contraction over the concatenated axis."""
    spec: Spec = m.s
    if len(spec.summed) != 1 or m.signs[0] != m.signs[1]:
        return None
    (k,) = spec.summed
    first, second = spec.extents(m.x.shape, m.u.shape), spec.extents(m.y.shape, m.v.shape)
    if {**first, k: 0} != {**second, k: 0}:
        return None  # the sum repeats one of them
    left = build.concat([m.x, m.y], spec.a.index(k))
    right = build.concat([m.u, m.v], spec.b.index(k))
    product = build.contract(spec, left, right)
    return product if m.signs[0] > 0 else call("neg", product)


# Scales


def _scale_moved(m: Match) -> Node | None:
    """(x·v)@w with v along axes that w has too: x@(v·w)."""
    spec: Spec = m.s
    if m.x.shape != np.broadcast_shapes(m.x.shape, m.v.shape) or m.x.type.ndim != len(spec.a):
        return None  # x is repeated along an axis of v: the product does not say so
    scale, own = squeeze(m.v, spec.a)
    if not set(own) <= set(spec.b):
        return None
    return build.contract(spec, m.x, call("mul", m.w, aligned(scale, own, spec.b)))


def _scale_out(m: Match) -> Node | None:
    """(x·v)@w with v along axes of the result: (x@w)·v."""
    spec: Spec = m.s
    if m.x.type.ndim != len(spec.a):
        return None
    scale, own = squeeze(m.v, spec.a)
    if not set(own) <= set(spec.out):
        return None
    try:
        product = build.contract(spec, m.x, m.w)
    except ValueError:
        return None
    out = call("mul", product, aligned(scale, own, spec.out) if own else scale)
    return out if out.shape == m.root.shape else None


def _fold_scale(m: Match) -> Node | None:
    """(x@w)·v with v along axes of w: x@(w·v), with w and v known."""
    spec: Spec = m.s
    if m.v.type.ndim > len(spec.out):
        return None
    scale, own = squeeze(m.v, spec.out)
    if not set(own) <= set(spec.b):
        return None
    return build.contract(spec, m.x, call("mul", m.w, aligned(scale, own, spec.b)))


# Special factors


def _identity(m: Match) -> Node | None:
    array = m.array(m.w)
    spec: Spec = m.s
    if array is None or array.array.ndim != 2 or array.array.shape[0] != array.array.shape[1]:
        return None
    if not np.array_equal(array.array, np.eye(array.array.shape[0])) or len(spec.summed) != 1 or spec.batch:
        return None
    (k,) = spec.summed
    (free,) = (x for x in spec.b if x != k)
    labels = tuple(free if x == k else x for x in spec.a)
    return build.transpose(m.x, [labels.index(x) for x in spec.out])


def _uniform(m: Match) -> Node:
    """A factor all of whose elements are one number: a sum of the other factor, times it."""
    spec: Spec = m.s
    total, own = sum_over(m.x, spec.a, [k for k in spec.a if k not in spec.out])
    extents = extents_of((m.x, spec.a), (m.p, spec.b))
    value = m.value(m.p)
    assert value is not None
    number = build.scalar(value, m.x)
    return spread(call("mul", total, number), own, spec.out, extents)


def _as_product(m: Match) -> Node | None:
    """A contraction that sums nothing is an elementwise product."""
    spec: Spec = m.s
    if spec.summed:
        return None
    return call("mul", aligned(m.x, spec.a, spec.out), aligned(m.w, spec.b, spec.out))


def _sum_of_product(m: Match) -> Node | None:
    """Σ a·b over axes: a contraction over them."""
    rank = max(m.a.type.ndim, m.b.type.ndim)
    labels = tuple(range(rank))
    shape = np.broadcast_shapes(m.a.shape, m.b.shape)
    left, left_labels = squeeze(m.a, labels)
    right, right_labels = squeeze(m.b, labels)
    extents: dict[object, int] = dict(zip(labels, shape, strict=True))
    summed = [k for k in m.ax if shape[k] != 1]
    out = tuple(k for k in labels if k not in m.ax)
    if not all(k in left_labels or k in right_labels for k in summed):
        return None
    if not any(k in left_labels and k in right_labels for k in summed):
        return None
    return einsum(left, left_labels, right, right_labels, out, extents)


def two_factors(m: Match) -> bool:
    """the factors are two tensors, neither a number"""
    return m.a is not m.b and m.value(m.a) is None and m.value(m.b) is None


def _sum_of_contraction(m: Match) -> Node:
    """Σ over axes of a contraction: onto the factors."""
    spec: Spec = m.s
    out = tuple(x for axis, x in enumerate(spec.out) if axis not in m.ax)
    extents = extents_of((m.a, spec.a), (m.b, spec.b))
    return einsum(m.a, spec.a, m.b, spec.b, out, extents)


def _diagonal(m: Match) -> Node | None:
    """A diagonal of a contraction: the two axes become one label."""
    spec: Spec = m.s
    extents = spec.extents(m.a.shape, m.b.shape)
    shape = [extents[x] for x in spec.out]
    strides = dict(zip(spec.out, row_major(tuple(shape)), strict=True))
    if m.mp.offset or m.mp.strides is None:
        return None
    same: dict[int, int] = {}
    out: list[int] = []
    for n, stride in zip(m.mp.shape, m.mp.strides, strict=True):
        single = [x for x in spec.out if strides[x] == stride and extents[x] == n and n > 1]
        pair = [
            (x, y)
            for x in spec.rows
            for y in spec.cols
            if strides[x] + strides[y] == stride and extents[x] == extents[y] == n > 1
        ]
        if single:
            out.append(single[0])
        elif pair:
            (row, col) = pair[0]
            same[col] = row
            out.append(row)
        else:
            return None
    if not same or len(set(out)) != len(out) or set(out) | set(same) != set(spec.out):
        return None
    right = tuple(same.get(x, x) for x in spec.b)
    return build.contract(make_spec(spec.a, right, out), m.a, m.b)


def _absorb(m: Match) -> Node | None:
    if m.root.type.size == 0:
        return None
    return absorb_operand(m.mp, m.x, m.w, m.s)


def _absorb_result(m: Match) -> Node | None:
    return None if m.root.type.size == 0 else absorb_result(m.mp, m.a, m.b, m.s)


def permutes(m: Match) -> bool:
    """the view permutes, merges, repeats or adds whole axes"""
    return axes_read(m.x, m.mp) is not None


def _two_products(mk: Maker) -> Node:
    left = build.matmul(mk.tensor(3, 4), mk.known(4, 2))
    return call(mk.random.choice(("add", "add", "sub")), left, build.matmul(mk.tensor(3, 4), mk.known(4, 2)))


def _scaled_rows(mk: Maker) -> Node:
    x = call("mul", mk.tensor(2, 3, 4), mk.tensor(2, 3, 1))
    return build.matmul(x, mk.tensor(2, 4, 3))


def _scaled_columns(mk: Maker) -> Node:
    if mk.random.random() < 0.5:
        return call("mul", build.matmul(mk.tensor(3, 4), mk.known(4, 2)), mk.known(2))
    return call("mul", build.matmul(mk.known(3, 4), mk.tensor(4, 2)), mk.known(3, 1))


def _times_identity(mk: Maker) -> Node:
    return build.matmul(mk.tensor(2, 3, 4), build.const(np.eye(4)))


def _diagonal_of_product(mk: Maker) -> Node:
    product = build.matmul(mk.tensor(2, 3, 4), mk.tensor(2, 4, 3))
    return build.view(product, views.strided((2, 3), (9, 4)))


def _transposed_product(mk: Maker) -> Node:
    return build.transpose(build.matmul(mk.tensor(2, 3, 4), mk.tensor(4, 5)), mk.random.choice(([1, 0, 2], [2, 1, 0])))


def _low_rank_sum(mk: Maker) -> Node:
    outer = build.matmul(mk.tensor(4, 1), mk.tensor(1, 4))
    whole = call("add", mk.tensor(4, 4), outer)
    return build.matmul(whole, mk.tensor(4, 3)) if mk.random.random() < 0.5 else build.matmul(mk.tensor(3, 4), whole)


contract_associates = rewrite(
    contract(contract(a, b, s2), c, s1),
    _regroup,
    where=[few_forms, literals_gain],
    doc="(a·b)·c = a·(b·c) = b·(a·c) for any specs",
)
contract_linear = rewrite(
    contract(Terms("ts"), w, s), linear, where=program_linear, doc="(a + b)@w = a@w + b@w", example=_low_rank_sum
)
contract_factor = rewrite(
    signed((0, contract(a, b, s)), (0, contract(a, c, s))), _factor, where=program_sum, doc="a@b + a@c = a@(b + c)"
)
contract_joins = rewrite(
    signed((0, contract(x, u, s)), (0, contract(y, v, s))),
    _joined,
    where=both_weights,
    doc="x@u + y@v = [x y]@[u; v] with known u and v",
    example=_two_products,
)
contract_neg = rewrite(contract(-a, b, s), -contract(a, b, s))
contract_number_out = rewrite(contract(p * a, b, s), p * contract(a, b, s), where=number_leaves)
contract_number_in = rewrite(
    p * contract(x, w, s), contract(x, p * w, s), where=number_enters, doc="a number folds into a known factor"
)
contract_scale_moves = rewrite(
    contract(x * v, w, s), _scale_moved, where=weights_fold, doc="(x·g)@w = x@(g·w) with known g and w"
)
contract_scale_out = rewrite(
    contract(x * v, w, s),
    _scale_out,
    where=scale_repeats,
    doc="(x·r)@w = (x@w)·r with one r per row",
    example=_scaled_rows,
)
contract_scale_folds = rewrite(
    contract(x, w, s) * v,
    _fold_scale,
    where=weights_fold,
    doc="(x@w)·g = x@(w·g) with known g and w",
    example=_scaled_columns,
)
contract_identity = rewrite(
    contract(x, w, s),
    _identity,
    where=w_known,
    numerics="approximates",
    example=_times_identity,
    doc="a NaN spreads less",
)
contract_uniform = rewrite(contract(x, p, s), _uniform, doc="a product with a matrix of one number is a sum")
contract_of_nothing = rewrite(contract(x, w, s), _as_product, doc="an outer product")
contract_absorbs_view = rewrite(
    contract(view(x, mp), w, s),
    _absorb,
    where=[permutes, few_forms],
    doc="a transposed, reshaped or broadcast factor is another spec",
)
contract_absorbs_result_view = rewrite(
    view(contract(a, b, s), mp), _absorb_result, where=few_forms, numerics="exact", example=_transposed_product
)
contract_diagonal = rewrite(
    view(contract(a, b, s), mp), _diagonal, doc="a diagonal of a product", example=_diagonal_of_product
)
sum_of_product = rewrite(
    reduction("reduce_sum", a * b, ax), _sum_of_product, where=two_factors, doc="Σ a·b is a contraction"
)
sum_of_contraction = rewrite(
    reduction("reduce_sum", contract(a, b, s), ax), _sum_of_contraction, where=few_sums, doc="sum(a@b) onto a and b"
)

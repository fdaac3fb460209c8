"""Products of small integers: what processors have dot products for, exact in the integers that they are added in."""

from __future__ import annotations

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.build import call, cast
from eqsat.ir.joins import PadAttrs
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec
from eqsat.ir.types import float32, int8, int16, int32, uint8
from eqsat.rules import Match, Terms, attributes, contract, op, rewrite, signed_sum, tensors, view
from eqsat.rules.examples import Maker
from eqsat_rules.contractions import MAX_FORMS, linear
from eqsat_rules.labels import aligned, squeeze, sum_over

v, w, x = tensors("v w x")
mp, pd, s, to, to2 = attributes("mp pd s to to2")

OFFSET = 128
"""From a signed byte to the unsigned one that has its order."""

FORMS = 4
"""As a contraction, up to which zero points are taken out of a tensor."""

DEPTH = 4
"""Of terms that are looked through for how large an integer may be."""


def largest(m: Match, t: Node, depth: int = DEPTH) -> float:
    """What no element of a tensor of integers is beyond, by its type and by what it is known to equal."""
    value, known = m.value(t), m.array(t)
    if value is not None:
        return abs(float(value))
    if known is not None and known.array.size:
        return float(np.abs(known.array.astype(np.float64)).max())
    found = [float(max(-t.dtype.limits[0], t.dtype.limits[1]))]
    if depth:
        inner = [f[0] for _, f in m.forms(t, "cast") if f[0].dtype.kind == "int" and f[0].dtype.bits < t.dtype.bits]
        found += [largest(m, node, depth - 1) for node in inner]
        found += [sum(largest(m, node, depth - 1) for node in f) for _, f in m.forms(t, "add_n")]
        found += [largest(m, f[0], depth - 1) for _, f in m.forms(t, "neg")]
    return min(found)


# Signed bytes


def signed_bytes(m: Match) -> bool:
    """both factors are signed bytes, the first is not known when compiled, and each has columns for the other's rows"""
    spec: Spec = m.s
    small = m.x.dtype == int8 and m.w.dtype == int8 and not m.known(m.x)
    return small and bool(spec.rows and spec.cols) and m.fewer(m.root, "contract", MAX_FORMS)


def _unsigned(m: Match) -> Node:
    """x·w = (x + 128)·w - 128·Σw, modulo 2³² as all sums of int32 are."""
    spec: Spec = m.s
    wide = cast(m.w, int32)
    bits = call("bitwise_xor", cast(m.x, uint8), build.scalar(OFFSET, cast(m.x, uint8)))
    product = build.contract(spec, cast(bits, int32), wide)
    core, own = squeeze(wide, spec.b)
    sums, mine = sum_over(core, own, [label for label in own if label in spec.summed])
    offset = call("mul", cast(sums, int32), build.scalar(OFFSET, cast(sums, int32)))
    return call("sub", product, build.broadcast_to(aligned(offset, mine, spec.out), product.shape))


def _signed_product(mk: Maker) -> Node:
    left, right = mk.tensor(3, 5, dtype=int8), mk.tensor(5, 4, dtype=int8)
    return build.matmul(cast(left, int32), cast(right, int32))


# Zero points, and scales


def _small(m: Match, t: Node) -> bool:
    """Whether a tensor, or what it is a view of, is the cast of one of small integers."""
    seen = [t, *(f[0] for _, f in m.forms(t, "view"))]
    return any(f[0].dtype in (uint8, int8, int16) for x in seen for _, f in m.forms(x, "cast"))


def zero_points(m: Match) -> bool:
    """a sum in int32 of small integers and what repeats along an axis, not 0; with few forms as a contraction"""
    if m.root.dtype != int32 or len(m.ts) != 2 or len(m.forms(m.root, "contract")) >= FORMS:
        return False
    size = max(t.type.size for _, t in m.ts)
    whole = [t for _, t in m.ts if t.type.size == size]
    return len(whole) == 1 and _small(m, whole[0]) and all(m.value(t) != 0 for _, t in m.ts)


def number_beside(m: Match) -> bool:
    """a sum, in int32, of small integers and of one number that is not 0"""
    if m.root.dtype != int32 or len(m.ts) != 2 or any(m.value(t) == 0 for _, t in m.ts):
        return False
    numbers = [t.type.size == 1 for _, t in m.ts]
    return sum(numbers) == 1 and _small(m, m.ts[numbers.index(False)][1])


def _number_out(m: Match) -> Node:
    """Every element of a view has the number added that every element had."""
    terms = [
        (sign, build.reshape(t, ()) if t.type.size == 1 else build.view(build.broadcast_to(t, m._class_ts.shape), m.mp))
        for sign, t in m.ts
    ]
    return signed_sum(terms)


def _shifted_windows(mk: Maker) -> Node:
    x, z = mk.tensor(3, 6, dtype=mk.random.choice((int8, uint8))), mk.tensor(dtype=int8)
    return build.view(call("sub", cast(x, int32), cast(z, int32)), views.strided((3, 4, 3), (6, 1, 1)))


def sum_is_small(m: Match) -> bool:
    """signed integers, none 0 and some casts, are cast to a wider type, and no sum of them leaves their own"""
    own = m._class_ts.dtype
    if own.kind != "int" or not own.is_signed or m.root.dtype.kind != "int" or m.root.dtype.bits <= own.bits:
        return False
    if any(m.value(t) == 0 for _, t in m.ts):
        return False
    return any(m.forms(t, "cast") for _, t in m.ts) and sum(largest(m, t) for _, t in m.ts) <= own.limits[1]


def _terms_cast(m: Match) -> Node:
    return build.broadcast_to(signed_sum([(sign, cast(t, m.root.dtype)) for sign, t in m.ts]), m.root.shape)


def _small_sum(mk: Maker) -> Node:
    x, z = mk.tensor(3, 5, dtype=uint8), mk.tensor(*mk.random.choice([(), (3, 1)]), dtype=uint8)
    return cast(call("sub", cast(x, int16), cast(z, int16)), int32)


def _with_zero_point(mk: Maker) -> Node:
    x, z = (
        mk.tensor(3, 5, dtype=mk.random.choice((int8, uint8))),
        mk.tensor(*mk.random.choice([(), (3, 1)]), dtype=int8),
    )
    shifted = call("sub", cast(x, int32), cast(z, int32))
    return build.matmul(shifted, cast(mk.tensor(5, 4, dtype=int8), int32))


def small_sums(m: Match) -> bool:
    """both factors are integers so small that no sum leaves int32"""
    spec: Spec = m.s
    if not m.root.dtype.is_float or m.x.dtype.kind != "int" or m.w.dtype.kind != "int":
        return False
    extents = spec.extents(m.x.shape, m.w.shape)
    terms = float(np.prod([extents[label] for label in spec.summed]))
    return terms * largest(m, m.x) * largest(m, m.w) <= int32.limits[1]


def _whole(m: Match) -> Node:
    return cast(build.contract(m.s, cast(m.x, int32), cast(m.w, int32)), m.root.dtype)


def _whole_floats(mk: Maker) -> Node:
    left, right = mk.tensor(3, 5, dtype=uint8), mk.tensor(5, 4, dtype=int8)
    return build.matmul(cast(left, float32), cast(right, float32))


def scaled_integers(m: Match) -> bool:
    """the scale is smaller than the factor, which is of integers, and the tensor has few forms as a product"""
    small = m.x.dtype.kind == "int" and m.root.dtype.is_float and m.v.type.size < m.x.type.size
    return small and m.fewer(m.root, "mul", MAX_FORMS)


def _scale_after(m: Match) -> Node | None:
    spec: Spec = m.s
    scale, own = squeeze(m.v, spec.a)
    if m.x.type.ndim != len(spec.a) or not set(own) <= set(spec.out):
        return None
    product = build.contract(spec, cast(m.x, m.root.dtype), m.w)
    out = call("mul", product, aligned(scale, own, spec.out))
    return out if out.shape == m.root.shape else None


def _scaled_integers(mk: Maker) -> Node:
    x = cast(mk.tensor(3, 5, dtype=int8), float32)
    scale = mk.tensor(*mk.random.choice([(), (3, 1)]), dtype=float32)
    return build.matmul(call("mul", x, scale), mk.tensor(5, 4, dtype=float32))


# Padding


def beside_number(m: Match) -> bool:
    """a sum of a tensor of integers and of one number known when compiled is padded with an integer"""
    numbers = [m.value(t) is not None for _, t in m.ts]
    whole = [t for (_, t), number in zip(m.ts, numbers, strict=True) if not number]
    sums = m._class_ts
    return sums.dtype.kind == "int" and sum(numbers) == 1 and [t.shape for t in whole] == [sums.shape]


def _number_after(m: Match) -> Node | None:
    """pad(x - z, v) = pad(x, v + z) - z."""
    numbers = [m.value(t) for _, t in m.ts]
    shift = sum(sign * int(number) for (sign, _), number in zip(m.ts, numbers, strict=True) if number is not None)
    terms = []
    for (sign, t), number in zip(m.ts, numbers, strict=True):
        if number is not None:
            terms.append((sign, build.scalar(number, t)))
            continue
        value = sign * (int(m.pd.value) - shift)
        if not t.dtype.limits[0] <= value <= t.dtype.limits[1]:
            return None
        terms.append((sign, build.pad(t, m.pd.widths, value)))
    return signed_sum(terms)


def _padded_shift(mk: Maker) -> Node:
    x = cast(mk.tensor(3, 4, dtype=uint8), int16)
    shifted = call("sub", *mk.random.choice(((x, build.scalar(113, x)), (build.scalar(113, x), x))))
    return build.pad(shifted, [(1, 0), (2, 1)], mk.random.choice((0, 7)))


def padding_fits(m: Match) -> bool:
    """integers are cast to a wider type, and what they are padded with is one of them"""
    pad: PadAttrs = m.pd
    if m.x.dtype.kind != "int" or m.root.dtype.bits <= m.x.dtype.bits:
        return False
    low, high = m.x.dtype.limits
    return bool(low <= pad.value <= high) and pad.value == int(pad.value)  # neither NaN nor infinite


def _pad_first(m: Match) -> Node:
    return cast(build.pad(m.x, m.pd.widths, int(m.pd.value)), m.root.dtype)


def _padded_bytes(mk: Maker) -> Node:
    return build.pad(cast(mk.tensor(3, 4, dtype=uint8), int32), [(1, 0), (2, 1)], mk.random.choice((0, 7)))


contract_signed_bytes = rewrite(
    contract(x.astype("int32"), w.astype("int32"), s),
    _unsigned,
    where=signed_bytes,
    doc="x@w = (x + 128)@w - 128·Σw for signed bytes: processors multiply unsigned bytes by signed ones",
    numerics="exact",
    example=_signed_product,
)
contract_zero_points = rewrite(
    contract(Terms("ts"), w, s),
    linear,
    where=zero_points,
    doc="(x - z)@w = x@w - z·Σw for small integers",
    numerics="exact",
    example=_with_zero_point,
)
contract_whole_numbers = rewrite(
    contract(op("cast", x, attrs=to), op("cast", w, attrs=to2), s),
    _whole,
    where=small_sums,
    doc="sums of products of integers, as floats, are those of integers that hold them",
    example=_whole_floats,
)
contract_scale_of_integers = rewrite(
    contract(op("cast", x, attrs=to) * v, w, s),
    _scale_after,
    where=scaled_integers,
    doc="(x·v)@w = (x@w)·v for integers x and one v per row",
    example=_scaled_integers,
)
view_of_zero_point = rewrite(
    view(Terms("ts"), mp),
    _number_out,
    where=number_beside,
    doc="a view of x - z is one of x, minus z",
    numerics="exact",
    example=_shifted_windows,
)
cast_of_small_sum = rewrite(
    op("cast", Terms("ts"), attrs=to),
    _terms_cast,
    where=sum_is_small,
    doc="a sum that fits the type that it is added in is one in any wider type",
    numerics="exact",
    example=_small_sum,
)
pad_of_shifted = rewrite(
    op("pad", Terms("ts"), attrs=pd),
    _number_after,
    where=beside_number,
    doc="pad(x - z, v) = pad(x, v + z) - z for integers and a number z",
    numerics="exact",
    example=_padded_shift,
)
pad_of_cast = rewrite(
    op("pad", op("cast", x, attrs=to), attrs=pd),
    _pad_first,
    where=padding_fits,
    doc="small integers are padded before they are cast",
    numerics="exact",
    example=_padded_bytes,
)

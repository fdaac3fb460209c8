"""Strassen's algorithm: products of matrices of halves, by 7 products of sums of them in place of 8.

With matrices cut in two along each axis, ``M_p = (Σ S_pij A_ij)·(Σ T_pjl B_jl)`` and ``C_il = Σ U_pil M_p`` (Strassen,
"Gaussian elimination is not optimal", 1969). The sums are products with matrices of 7 and 4 rows, those of known
factors are folded. Winograd's variant of 1971 adds less, which these forms do not show, and errs more.

A result depends on two rows and two columns, one of each half: hence the class ``approximates``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.types import DType, float32, float64
from eqsat.ir.views import ViewMap
from eqsat.rules import Match, attributes, contract, rewrite, tensors
from eqsat.rules.examples import Maker
from eqsat_rules.labels import Labels, einsum, extents_of, split_label, squeeze

w, x = tensors("w x")
s = attributes("s")

Coefficients = tuple[tuple[tuple[int, int], tuple[int, int]], ...]

FIRST = (
    ((1, 0), (0, 1)), ((0, 0), (1, 1)), ((1, 0), (0, 0)), ((0, 0), (0, 1)),
    ((1, 1), (0, 0)), ((-1, 0), (1, 0)), ((0, 1), (0, -1)),
)  # fmt: skip
"""S: what each product takes of the halves (rows, summed) of the first factor."""
SECOND = (
    ((1, 0), (0, 1)), ((1, 0), (0, 0)), ((0, 1), (0, -1)), ((-1, 0), (1, 0)),
    ((0, 0), (0, 1)), ((1, 1), (0, 0)), ((0, 0), (1, 1)),
)  # fmt: skip
"""T: what it takes of those (summed, columns) of the second."""
RESULT = (
    ((1, 0), (0, 1)), ((0, 0), (1, -1)), ((0, 1), (0, 1)), ((1, 0), (1, 0)),
    ((-1, 1), (0, 0)), ((0, 0), (0, 1)), ((1, 0), (0, 0)),
)  # fmt: skip
"""U: where it is added in those (rows, columns) of the result."""
SUM_WORK = 16
"""Multiply-adds in whose time the sums for an element of a factor or of the result are computed (7), stored, and read
again from a cache further out."""
LEAST = 32
"""Extent of columns and of summed axes from which products are cut. Those that make sums are not: the last one may be
of the program's tensor, too."""


@dataclass(frozen=True)
class _Product:
    """A contraction with neighbouring axes merged, and the labels (rows, summed, columns) that are cut in two."""

    first: Node
    a: Labels
    second: Node
    b: Labels
    out: Labels
    cut: tuple[object, object, object]

    @staticmethod
    def of(m: Match) -> _Product | None:
        """None for batches, and where axes are too short. Of several axes the longest is cut, of even ones if there are
        any."""
        spec: Spec = m.s
        if spec.batch:
            return None
        first, a = squeeze(*_as_it_lies(m, m.x, spec.a))
        second, b = squeeze(*_as_it_lies(m, m.w, spec.b))
        extents: dict[object, int] = dict(spec.extents(m.x.shape, m.w.shape).items())
        orders = {"a": a, "b": b, "out": tuple(label for label in spec.out if label in a or label in b)}
        cut: list[object] = []
        for group, held, least in (
            (spec.rows, ("a", "out"), 2), (spec.summed, ("a", "b"), LEAST), (spec.cols, ("b", "out"), LEAST)
        ):  # fmt: skip
            along = tuple(label for label in orders[held[0]] if label in group)
            if math.prod(extents[label] for label in along) < least:
                return None
            if all(_neighbours(along, orders[name]) for name in held):
                extents[along[0]] = math.prod(extents[label] for label in along)
                orders = {name: tuple(x for x in labels if x not in along[1:]) for name, labels in orders.items()}
                along = along[:1]
            cut.append(max(along, key=lambda label: (extents[label] % 2 == 0, extents[label])))
        a, b, out = orders["a"], orders["b"], orders["out"]
        first, second = (build.reshape(x, [extents[k] for k in labels]) for x, labels in ((first, a), (second, b)))
        rows, summed, cols = cut
        return _Product(first, a, second, b, out, (rows, summed, cols))

    @property
    def extents(self) -> dict[object, int]:
        return extents_of((self.first, self.a), (self.second, self.b))

    def filled(self) -> dict[object, int]:
        """The extents with those that are cut made even."""
        return {label: n + n % 2 * (label in self.cut) for label, n in self.extents.items()}


def _neighbours(group: Labels, labels: Labels) -> bool:
    """Whether labels follow one another in an order of axes."""
    at = labels.index(group[0])
    return labels[at : at + len(group)] == group


def halves_pay(m: Match) -> bool:
    """the product is the program's, large, of floats, without batch or windows, and a known factor is the second"""
    spec: Spec = m.s
    size, dtype = m.root.type.size, m.root.dtype
    if spec.batch or not size or dtype not in (float32, float64) or not m.x.dtype == m.w.dtype == dtype:
        return False
    if not m.original(m.root) or (m.known(m.x) and not m.known(m.w)):  # factors match in both orders
        return False
    work = SUM_WORK * (size + sum(factor.type.size for factor in (m.x, m.w) if not m.known(factor)))
    whole = math.prod(spec.extents(m.x.shape, m.w.shape).values())
    if work >= whole // 8 or _of_windows(m, m.x) or _of_windows(m, m.w):
        return False
    found = _Product.of(m)
    return found is not None and work < whole - math.prod(found.filled().values()) * 7 // 8


def _of_windows(m: Match, factor: Node) -> bool:
    """Whether a factor is a view with elements that it walks again, which sums of its halves would store."""
    return any(isinstance(map, ViewMap) and map.overlaps for map, _ in m.forms(factor, "view"))


def _as_it_lies(m: Match, factor: Node, labels: Labels) -> tuple[Node, Labels]:
    """A factor that is a transposed view with its axes, and their labels, in the order in which it is stored."""
    for map, (operand,) in m.forms(factor, "view"):
        assert isinstance(map, ViewMap)
        steps = map.strides
        if steps is not None and operand.type.size == factor.type.size and map.is_one_to_one(operand.type.size):
            order = sorted(range(len(labels)), key=lambda axis: -steps[axis])
            if order != sorted(order):
                return build.transpose(factor, order), tuple(labels[axis] for axis in order)
    return factor, labels


def _summed(x: Node, labels: Labels, cut: Sequence[object], coefficients: Coefficients) -> tuple[Node, Labels]:
    """For each product the sum of a factor's halves along two labels, filled up to even extents."""
    widths = [(0, n % 2 if label in cut else 0) for label, n in zip(labels, x.shape, strict=True)]
    whole = build.pad(x, widths) if any(more for _, more in widths) else x
    extents = dict(zip(labels, whole.shape, strict=True))
    parts = {label: [(("half", label), 2), (label, extents[label] // 2)] for label in cut}
    parted, named = split_label(whole, labels, parts)
    matrix, own = _matrix(coefficients, cut, x.dtype)
    out = ("product", *labels)
    return einsum(matrix, own, parted, named, out, extents_of((matrix, own), (parted, named))), out


def _matrix(coefficients: Coefficients, cut: Sequence[object], dtype: DType) -> tuple[Node, Labels]:
    return build.const(np.array(coefficients), dtype), ("product", *(("half", label) for label in cut))


def _strassen(m: Match) -> Node | None:
    found = _Product.of(m)
    if found is None:
        return None
    rows, summed, cols = found.cut
    first, a = _summed(found.first, found.a, (rows, summed), FIRST)
    second, b = _summed(found.second, found.b, (summed, cols), SECOND)
    order = tuple(sorted(found.out, key=lambda label: label in found.b))  # columns behind rows: vectors lie along them
    out: Labels = ("product", *order)
    products = einsum(first, a, second, b, out, extents_of((first, a), (second, b)))
    matrix, own = _matrix(RESULT, (rows, cols), m.root.dtype)
    parted = tuple(y for k in order for y in ((("half", k), k) if k in found.cut else (k,)))
    joined = einsum(matrix, own, products, out, parted, extents_of((matrix, own), (products, out)))
    filled, extents = found.filled(), found.extents
    whole = build.reshape(joined, [filled[k] for k in order])
    cut = build.slices(whole, [0] * len(order), [1] * len(order), [extents[k] for k in order])
    if order != found.out:
        cut = build.transpose(cut, [order.index(k) for k in found.out])
    return build.reshape(cut, m.root.shape)


def _products(mk: Maker) -> Node:
    """Products of few rows and a large known matrix, of even and odd extents, in any order of axes, some in batches."""
    choice = mk.random.choice
    dtype = choice((float32, float32, float64))
    sizes = {
        "b": 2,
        "m": choice((1, 2, 5, 6)),
        "h": choice((1, 2, 3)),
        "k": choice((272, 275)),
        "n": choice((280, 301)),
    }
    batch, rows = choice(("", "", "", "b")), choice(("m", "mh", "hm"))
    a = [*batch, *choice((rows + "k", "k" + rows, rows[0] + "k" + rows[1:]))]
    b = [*batch, *choice(("kn", "nk"))]
    out = [*batch, *choice((rows + "n", "n" + rows))]
    first, second = (mk.tensor(*(sizes[x] for x in axes), dtype=dtype, known=axes is b) for axes in (a, b))
    return build.contract(make_spec(a, b, out), first, second)


strassen = rewrite(
    contract(x, w, s), _strassen, where=halves_pay, numerics="approximates", example=_products,
    doc="a product of matrices by 7 products of their halves", algorithm="Strassen",
)  # fmt: skip

"""Products of 16-bit floats: what processors have dot products for, with float32 sums."""

from __future__ import annotations

from eqsat.ir import build
from eqsat.ir.build import cast
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec
from eqsat.ir.table import make
from eqsat.ir.types import bfloat16, float32
from eqsat.rules import Match, attributes, contract, op, rewrite, tensors
from eqsat.rules.examples import Maker
from eqsat_rules.contractions import MAX_FORMS

w, x = tensors("w x")
s, to, to2 = attributes("s to to2")


def bfloat16_factors(m: Match) -> bool:
    """both factors are of bfloat16, and each has columns for the other's rows"""
    spec: Spec = m.s
    small = m.x.dtype == bfloat16 and m.w.dtype == bfloat16 and m.root.dtype == float32
    return small and bool(spec.rows and spec.cols) and m.fewer(m.root, "contract", MAX_FORMS)


def _product(mk: Maker) -> Node:
    left, right = mk.tensor(3, 5, dtype=bfloat16), mk.tensor(5, 4, dtype=bfloat16)
    return build.matmul(cast(left, float32), cast(right, float32))


contract_bfloat16 = rewrite(
    contract(op("cast", x, attrs=to), op("cast", w, attrs=to2), s),
    lambda m: build.contract(m.s, make("flushing_cast", (m.x,)), make("flushing_cast", (m.w,))),
    where=bfloat16_factors,
    doc="products of bfloat16, in which subnormal numbers may count as zeros",
    example=_product,
)

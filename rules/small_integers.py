"""Products of small integers: what the dot products of processors take, exact in the integers that they are added in."""

from __future__ import annotations

from eqsat.ir import build
from eqsat.ir.build import call, cast
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec
from eqsat.ir.types import int8, int32, uint8
from eqsat.rules import Match, attributes, contract, rewrite, tensors
from eqsat.rules.examples import Maker
from eqsat_rules.labels import aligned, squeeze, sum_over

x, w = tensors("x w")
s = attributes("s")

OFFSET = 128
"""From a signed byte to the unsigned one that has its order."""


def signed_bytes(m: Match) -> bool:
    """both factors are signed bytes, the first is not known when compiled, and each has columns for the other's rows"""
    spec: Spec = m.s
    small = m.x.dtype == int8 and m.w.dtype == int8 and not m.known(m.x)
    return small and bool(spec.rows and spec.cols) and m.original(m.root)


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


contract_signed_bytes = rewrite(
    contract(x.astype("int32"), w.astype("int32"), s),
    _unsigned,
    where=signed_bytes,
    doc="x@w = (x + 128)@w - 128·Σw for signed bytes: processors multiply unsigned bytes by signed ones",
    numerics="exact",
    example=_signed_product,
)

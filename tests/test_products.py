"""Products of the same factors are one class, whatever their order and grouping."""

from __future__ import annotations

import numpy as np
import pytest

from eqsat.egraph.products import LONGEST_PRODUCT
from eqsat.egraph.saturate import saturate
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.rules import get
from eqsat.rules.examples import Maker

REORDER = get("product.reorder")


def _mul(*factors: Node) -> Node:
    product = factors[0]
    for factor in factors[1:]:
        product = call("mul", product, factor)
    return product


def _one_class(left: Node, right: Node) -> bool:
    graph = saturate([left, right], rules=[REORDER])
    assert graph.report.stop == "saturated"
    return graph.outputs[0] == graph.outputs[1]


def test_order_and_grouping_do_not_matter_and_make_no_terms() -> None:
    mk = Maker(0)
    a, b, c, d = (mk.tensor(3, 4) for _ in range(4))
    left, right = _mul(_mul(a, b), _mul(c, d)), _mul(d, _mul(b, _mul(a, c)))
    assert _one_class(left, right)
    apart = saturate([left, right], rules=[])
    together = saturate([left, right], rules=[REORDER])
    assert together.report.enodes <= apart.report.enodes
    assert not _one_class(_mul(a, b, b, c), _mul(a, b, c, c))
    assert not _one_class(_mul(a, b, c), _mul(a, b, c, c))


def test_squares_are_two_factors() -> None:
    mk = Maker(0)
    a, b = mk.tensor(3), mk.tensor(3)
    assert _one_class(call("square", _mul(a, b)), _mul(call("square", b), call("square", a)))
    assert _one_class(_mul(a, a, a, a), call("square", call("square", a)))


def test_factors_that_broadcast_alike() -> None:
    mk = Maker(0)
    a, row, column = mk.tensor(3, 4), mk.tensor(4), mk.tensor(3, 1)
    assert _one_class(_mul(_mul(column, row), a), _mul(_mul(a, column), row))
    wide = build.broadcast_to(_mul(row, row), (3, 4))
    assert not _one_class(wide, _mul(a, row))


def test_products_of_equal_sums_meet_through_other_merges() -> None:
    """What is merged later makes products one that were not when they were made."""
    mk = Maker(0)
    a, b, c = (mk.tensor(3) for _ in range(3))
    twice = call("neg", call("neg", b))
    graph = saturate([_mul(_mul(a, twice), c), _mul(c, _mul(b, a))], rules=[REORDER, get("neg_neg")])
    assert graph.outputs[0] == graph.outputs[1]


@pytest.mark.parametrize("extra", [0, 1])
def test_long_products_are_not_opened(extra: int) -> None:
    mk = Maker(0)
    factors = [mk.tensor(3) for _ in range(LONGEST_PRODUCT + extra)]
    assert _one_class(_mul(*factors), _mul(*factors[::-1])) == (extra == 0)


def test_a_product_within_itself_ends() -> None:
    mk = Maker(0)
    a, b = mk.tensor(3), mk.tensor(3)
    one = build.scalar(1, a)
    rules = [REORDER, get("mul_one")]
    graph = saturate([_mul(_mul(a, one), b), _mul(one, _mul(b, _mul(one, a)))], rules=rules)
    assert graph.report.stop == "saturated" and graph.outputs[0] == graph.outputs[1]


def test_numbers_rounded_otherwise_stay_apart() -> None:
    """Their products are the same reals, and two numbers."""
    first, second, third = (build.const(np.float32(v)) for v in (0.1, 0.1, 1.3))
    left, right = _mul(_mul(first, second), third), _mul(first, _mul(second, third))
    graph = saturate([left, right], rules=[REORDER, get("fold.constants")])
    assert graph.report.stop == "saturated" and graph.outputs[0] != graph.outputs[1]

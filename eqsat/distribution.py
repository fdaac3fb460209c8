"""Whether a loop's contractions are computed before it: by what trips read again, and what results cost to pass on.

A trip with few rows reads a whole matrix for them; all trips together read it once, and have rows enough for
multiplications to hide that. In turn every result is written, and read again on its trip.
"""

from __future__ import annotations

import math

from eqsat.cost.calibration import DISTRIBUTED_BYTES, DISTRIBUTED_GAIN
from eqsat.cost.target import Target
from eqsat.ir.distributed import Ahead, distributed
from eqsat.ir.node import Formed, Graph
from eqsat.ir.spec import Spec


def computed_ahead(graph: Graph, target: Target, *, exact: bool = False) -> Formed | None:
    """The program with contractions that need nothing a loop carries computed before the loop; None where none pays.

    ``exact``: sums are not split, so that only whole contractions are.
    """
    left = DISTRIBUTED_BYTES

    def pays(ahead: Ahead) -> bool:
        nonlocal left
        nbytes = ahead.made + ahead.trips * ahead.product.type.nbytes
        if nbytes > left or (exact and ahead.instead) or not _pays(ahead, target):
            return False
        left -= nbytes
        return True

    return distributed(graph, pays)


def _pays(ahead: Ahead, target: Target) -> bool:
    node, trips = ahead.product, ahead.trips
    spec = node.attrs
    assert isinstance(spec, Spec)
    alike = sum(each.type.nbytes for each in ahead.alike)
    if not alike:
        return False
    passed = trips * node.type.nbytes
    terms = math.prod(spec.extents(node.inputs[0].shape, node.inputs[1].shape).values())
    compute = terms / target.lanes(node.dtype) * target.slot(node.dtype)
    trip = max(compute, target.moving(alike, max(alike, ahead.held))) + target.step
    if ahead.instead is not None:  # nothing is put together any more
        joined = max(i.type.nbytes for i in ahead.instead.inputs if i.op == "concat")
        trip += 2 * target.moving(joined, joined) + target.step
    before = trips * trip
    after = max(trips * compute, target.moving(alike, alike)) + target.step
    after += 2 * (target.moving(passed, passed) + target.moving(ahead.made, ahead.made))
    return before - after > DISTRIBUTED_GAIN * before

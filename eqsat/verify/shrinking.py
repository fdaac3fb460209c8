"""Whether what a function is off by is rounding: in float64 it is less, by as much as the unit in the last place is.

So of sums that NumPy makes term by term, as those of ``np.einsum`` over labels of one operand alone, where the
reference multiplies matrices, or two sums: of six million products float32 keeps three digits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from eqsat.ir.node import Node, topological
from eqsat.ir.table import OPS
from eqsat.ir.types import finfo
from eqsat.verify.bounds import FACTOR, GROSS, ULPS, Scale, scale_of

log = logging.getLogger("eqsat")


def of_sums(output: Node) -> bool:
    """Whether an output is of floats, and hangs on sums."""
    return output.dtype.is_float and any(OPS[n.op].kind in ("contract", "reduce") for n in topological([output]))


def shrinks(parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], dtype: np.dtype) -> bool:
    """Whether deviations are rounding: those in float64 are smaller, by as much as its unit in the last place is.

    ``parts`` of an output: as it should be, as it was computed in ``dtype``, and in float64. What is not finite must be
    the same, no element of float64 may be off by ``GROSS`` of itself, none in ``dtype`` by ``GROSS`` of the largest.
    """
    eps, unit = float(np.finfo(np.float64).eps), float(finfo(dtype).eps)
    narrow, wide = Scale(), Scale()
    for exact, single, double in parts:
        finite = np.isfinite(exact)
        special, *others = (np.where(np.isfinite(x), 0, x) for x in (exact, single, double))
        if not all(np.array_equal(special, other, equal_nan=True) for other in others):
            return False
        if (np.abs(double[finite] - exact[finite]) > GROSS * np.abs(exact[finite])).any():
            return False
        narrow, wide = narrow.over(scale_of(exact, single)), wide.over(scale_of(exact, double))
    shrunk = FACTOR * narrow.theirs * eps / unit + ULPS * eps * wide.largest
    if unit <= eps or wide.theirs > shrunk or narrow.theirs > GROSS * narrow.largest:
        return False
    log.info("NumPy's own result is further from float64's than a compiled one may be: %.3g", narrow.theirs)
    return True

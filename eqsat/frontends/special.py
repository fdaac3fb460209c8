"""Functions of ``scipy.special`` that are expressions of operators with kernels."""

from __future__ import annotations

import math

from eqsat.frontends.elementary import is_single, polynomial
from eqsat.frontends.ufuncs import SCIPY, UFUNCS, Builder, written
from eqsat.ir.build import call, scalar
from eqsat.ir.node import Node
from eqsat.ir.table import REALS

# (1 + 2x)·exp(x²)·erfc(x) over t = (x - 4) / (x + 4) in [-1, 1], interpolated at Chebyshev's points: within 1e-17 and
# 3.6e-9. The form is Shepherd's and Laframboise's, Mathematics of Computation 36 (1981) 249-253.
_ERFC = (
    1.2329951186255526, -0.13962111684056228, 0.015379652102619974, 0.06809705425466839, -0.10103906603631811,
    0.09373283499911264, -0.06633036581186058, 0.037167515526338006, -0.01619773406293477, 0.005031970069102256,
    -0.0007577732435942576, -0.0001992571524726518, 0.00015062142608651945, -2.4397731143023292e-05,
    -1.1221135665965907e-05, 5.70657829924074e-06, 2.9173425573089733e-07, -8.210647933297337e-07,
    7.771943241086912e-08, 1.0631817593818149e-07, -2.0725802488181963e-08, -1.2338731403798444e-08,
    3.2323973445082033e-09, 9.297625263709659e-10, -2.764120233734578e-10,
)  # fmt: skip
_ERFC_SINGLE = (
    1.2329951186255526, -0.13962108431457343, 0.015379683653270457, 0.06809613205416176, -0.10103995084812757,
    0.09374044379277174, -0.06632325953594628, 0.037139916895707926, -0.016222274556440326, 0.005082809154341805,
    -0.0007163394718890914, -0.0002486322974476492, 0.00011660799658166694,
)  # fmt: skip


def _scaled(x: Node) -> Node:
    """``exp(x²)·erfc(x)`` for x ≥ 0."""
    four = scalar(4, x)
    t = call("sub", scalar(1, x), call("div", scalar(8, x), call("add", x, four)))
    value = polynomial(_ERFC_SINGLE if is_single(x) else _ERFC, t)
    return call("div", value, call("add", scalar(1, x), call("mul", scalar(2, x), x)))


def _bell(x: Node) -> Node:
    """``exp(-x²)`` for x ≥ 0: rounding the square of a large number costs digits, so a head of few is squared apart."""
    unit = 2.0**7 if is_single(x) else 2.0**16
    far = scalar(15 if is_single(x) else 40, x)  # where it is 0
    x = call("minimum", x, far)
    head = call("mul", call("floor", call("mul", x, scalar(unit, x))), scalar(1 / unit, x))
    rest = call("mul", call("sub", x, head), call("add", x, head))
    return call("mul", call("exp", call("neg", call("square", head))), call("exp", call("neg", rest)))


def _erfc(x: Node) -> Node:
    size = call("abs", x)
    near = call("sub", scalar(1, x), call("erf", x))
    return call("where", call("gt", x, scalar(0.5, x)), call("mul", _bell(size), _scaled(size)), near)


def _erfcx(x: Node) -> Node:
    size = call("abs", x)
    value = _scaled(size)
    below = call("sub", call("mul", scalar(2, x), call("exp", call("square", x))), value)
    return call("where", call("lt", x, scalar(0, x)), below, value)


def _ndtr(x: Node) -> Node:
    return call("mul", scalar(0.5, x), _erfc(call("mul", x, scalar(-math.sqrt(0.5), x))))


def _log_ndtr(x: Node) -> Node:
    t = call("mul", x, scalar(-math.sqrt(0.5), x))
    low = call("sub", call("log", call("mul", scalar(0.5, x), _scaled(call("abs", t)))), call("square", t))
    high = call("log1p", call("neg", call("mul", scalar(0.5, x), _erfc(call("neg", t)))))
    return call("where", call("lt", x, scalar(-1, x)), low, high)


def _logit(x: Node) -> Node:
    from_half = call("sub", call("mul", scalar(2, x), x), scalar(1, x))
    near = call("sub", call("log1p", from_half), call("log1p", call("neg", from_half)))
    far = call("sub", call("log", x), call("log1p", call("neg", x)))
    return call("where", call("lt", call("abs", from_half), scalar(0.4, x)), near, far)


def _x_times(function: str) -> Builder:
    def builder(x: Node, y: Node) -> Node:
        product = call("mul", x, call(function, y))
        zero = call("logical_and", call("eq", x, scalar(0, x)), call("logical_not", call("isnan", y)))
        return call("where", zero, scalar(0, x), product)

    return builder


def _entr(x: Node) -> Node:
    value = call("neg", call("mul", x, call("log", x)))
    value = call("where", call("eq", x, scalar(0, x)), scalar(0, x), value)
    return call("where", call("lt", x, scalar(0, x)), scalar(-math.inf, x), value)


def _divergence(x: Node, y: Node, more: Node, at_zero: Node) -> Node:
    """``x·log(x / y)`` and ``more``, with the limits of SciPy at the edges and beyond."""
    zero = scalar(0, x)
    value = call("add", call("mul", x, call("log", call("div", x, y))), more)
    both = call("logical_and", call("gt", x, zero), call("gt", y, zero))
    edge = call("logical_and", call("eq", x, zero), call("ge", y, zero))
    outside = call("where", edge, at_zero, scalar(math.inf, x))
    lost = call("logical_or", call("isnan", x), call("isnan", y))
    return call("where", lost, scalar(math.nan, x), call("where", both, value, outside))


def _huber(delta: Node, r: Node) -> Node:
    size, half = call("abs", r), scalar(0.5, r)
    line = call("mul", delta, call("sub", size, call("mul", half, delta)))
    value = call("where", call("le", size, delta), call("mul", half, call("square", r)), line)
    return call("where", call("lt", delta, scalar(0, r)), scalar(math.inf, r), value)


written("erfc", _erfc, REALS)
written("erfcx", _erfcx, (-1, 100))
written("ndtr", _ndtr, REALS)
written("log_ndtr", _log_ndtr, REALS)
written("logit", _logit, (0.1, 0.9))
written("xlogy", _x_times("log"), REALS, (0.5, math.inf))
written("xlog1py", _x_times("log1p"), REALS, (0.0, math.inf))
written("entr", _entr, (0.25, math.inf))
written("rel_entr", lambda x, y: _divergence(x, y, scalar(0, x), scalar(0, x)), (0.25, math.inf), (0.25, math.inf))
written("kl_div", lambda x, y: _divergence(x, y, call("sub", y, x), y), (0.25, math.inf), (0.25, math.inf))
written("huber", _huber, (0.25, math.inf), REALS)
written("exp10", lambda x: call("pow", scalar(10, x), x), (-4, 4))
SCIPY.update({name: UFUNCS[ufunc] for ufunc in UFUNCS if (name := ufunc.__name__) in ("exp2", "cbrt")})

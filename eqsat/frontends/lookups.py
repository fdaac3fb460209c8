"""Functions that look numbers up in tables and choose among arrays: searchsorted, interp, isin, choose, bincount…"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from eqsat.errors import UnsupportedOpError
from eqsat.frontends.convert import holds_traced, lift, together, traced, truth, zeros
from eqsat.frontends.guards import told
from eqsat.frontends.indexing import take
from eqsat.frontends.opaque import step
from eqsat.frontends.registry import SIZED, implements
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT
from eqsat.frontends.ufuncs import apply
from eqsat.ir import build
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import float64, int64

TABLE = 128
"""Numbers that are all compared with each element; in longer tables a search by halves, NumPy's, takes fewer steps."""


def _short(name: str, size: int) -> None:
    if size > TABLE:
        raise UnsupportedOpError(f"{name} of a table of {size} numbers: NumPy searches it", LINE.get())


def _before(table: Node, values: Node, side: str) -> Node:
    """How many numbers of a sorted row go before each value; NaNs are last."""
    wide = build.reshape(values, (*values.shape, 1))
    less = call("lt" if side == "left" else "le", table, wide)
    if table.dtype.is_float:
        lost = call("isnan", wide)
        present = call("logical_not", call("isnan", table))
        less = call("logical_or", less, call("logical_and", lost, present) if side == "left" else lost)
    return build.reduce("reduce_sum", build.cast(less, int64), (values.type.ndim,))


@implements(np.searchsorted)
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> TracedArray:
    if side[:1] not in ("l", "r") or sorter is not None:
        raise UnsupportedOpError(f"np.searchsorted(side={side!r}, sorter=…)", LINE.get())
    table, values = together(traced(a), traced(v))
    if table.type.ndim != 1:
        raise ValueError("object too deep for desired array")
    _short("np.searchsorted", table.type.size)
    return TracedArray(_before(table, values, "left" if side[0] == "l" else "right"))


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None) -> TracedArray:
    """The core of ``np.interp``, without ``period=``."""
    at, table, values = (build.cast(lift(v), float64) for v in (x, xp, fp))
    if table.type.ndim != 1 or values.type.ndim != 1:
        raise ValueError("object too deep for desired array")
    count = table.type.size
    if count == 0:
        raise ValueError("array of sample points is empty")
    if values.type.size != count:
        raise ValueError("fp and xp are not of the same length.")
    _short("np.interp", count)
    first, last = (build.row(values, i) for i in (0, count - 1))
    low = first if left is None else build.cast(lift(left), float64)
    high = last if right is None else build.cast(lift(right), float64)
    if count > 1:
        position = call("sub", _before(table, at, "right"), scalar(1, int64))
        position = call("minimum", call("maximum", position, scalar(0, int64)), scalar(count - 2, int64))
        after = call("add", position, scalar(1, int64))
        x0, x1, y0, y1 = (build.gather(t, i, 0) for t in (table, values) for i in (position, after))
        slope = call("div", call("sub", y1, y0), call("sub", x1, x0))
        between = call("add", call("mul", slope, call("sub", at, x0)), y0)
        # Where that is no number, as between infinities, NumPy tries from the other side, then for equal ends.
        other = call("add", call("mul", slope, call("sub", at, x1)), y1)
        other = call("where", call("logical_and", call("isnan", other), call("eq", y0, y1)), y0, other)
        inside = call("where", call("isnan", between), other, between)
        inside = call("where", call("eq", at, x0), y0, inside)
    else:
        inside = build.broadcast_to(first, at.shape)
    inside = call("where", call("ge", at, build.row(table, count - 1)), last, inside)
    inside = call("where", call("gt", at, build.row(table, count - 1)), high, inside)
    inside = call("where", call("lt", at, build.row(table, 0)), low, inside)
    return TracedArray(call("where", call("isnan", at), at, inside))


@implements(np.isin)
def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None
) -> Any:
    x, tests = together(traced(element), traced(test_elements))
    _short("np.isin", tests.type.size)
    wide, row = build.reshape(x, (*x.shape, 1)), build.reshape(tests, (tests.type.size,))
    equal = TracedArray(call("eq", wide, row)).any(axis=-1)
    return apply(np.logical_not, (equal,)) if invert else equal


@implements(np.choose)
def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> TracedArray:
    arrays = together(*(list(choices) if isinstance(choices, (TracedArray, np.ndarray)) else choices))
    count = len(arrays)
    if mode == "raise":
        if holds_traced(a):
            raise UnsupportedOpError(
                "np.choose by traced numbers, which may be out of range: give mode='clip'", LINE.get()
            )
        known = np.asarray(a)
        if known.size and (known.min() < 0 or known.max() >= count):
            raise ValueError("invalid entry in choice array")
    index = lift(a)
    if mode == "wrap":
        index = call("remainder", index, scalar(count, index))
    elif mode not in ("raise", "clip"):
        raise ValueError(f"clipmode must be one of 'clip', 'raise', or 'wrap' (got {mode!r})")
    shape = np.broadcast_shapes(index.shape, *(x.shape for x in arrays))
    result = arrays[-1]
    for number in reversed(range(count - 1)):
        result = call("where", call("le", index, scalar(number, index)), arrays[number], result)
    return TracedArray(build.broadcast_to(result, shape))


@implements(np.piecewise)
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> TracedArray:
    whole = traced(x)
    if np.isscalar(condlist):
        given: list[Any] = [condlist]
    elif isinstance(condlist, np.ndarray):
        given = list(condlist) if np.ndim(condlist) > 1 else [condlist]
    else:
        given = list(condlist) if isinstance(condlist[0], (list, np.ndarray)) or not whole.ndim else [condlist]
    conditions = [TracedArray(truth(lift(c))) for c in given]
    if len(conditions) == len(funclist) - 1:
        some = conditions[0]
        for condition in conditions[1:]:
            some = apply(np.logical_or, (some, condition))
        conditions.append(apply(np.logical_not, (some,)))
    elif len(conditions) != len(funclist):
        n = len(conditions)
        raise ValueError(f"with {n} condition(s), either {n} or {n + 1} functions are expected")
    result = TracedArray(zeros(whole.shape, whole.node.dtype))
    for condition, function in zip(conditions, funclist, strict=True):
        # Of the elements under the condition, so that what is not elementwise is refused.
        result[condition] = function(whole[condition], *args, **kw) if callable(function) else function
    return result


@implements(np.compress)
def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> TracedArray:
    if holds_traced(condition):
        raise UnsupportedOpError(
            "np.compress by a traced condition: the shape of its result depends on values; use np.where(condition, x, "
            "0)",
            LINE.get(),
        )
    known = np.asarray(condition)
    if known.ndim != 1:
        raise ValueError("condition must be a 1-d array")
    return take(a, known.nonzero()[0], axis=0 if axis is None and traced(a).ndim == 1 else axis)


def counted(x: np.ndarray, weights: np.ndarray | None, length: int) -> np.ndarray:
    """``np.bincount`` of numbers below ``length``; what is counted beyond is left out."""
    return np.bincount(x, weights, minlength=length)[:length]


@implements(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: Any = 0) -> Any:
    """A step, whose length Python asks for, unless ``minlength`` holds all numbers of the type."""
    values = lift(x)
    least = operator.index(minlength)
    if values.type.ndim != 1 or values.dtype.kind not in ("int", "bool") or least < 0:
        return step(np.bincount, (TracedArray(values), weights, least), {}, "np.bincount")  # which raises NumPy's error
    kinds = {"|b1": 2, "|u1": 1 << 8, "<u2": 1 << 16}
    if values.type.size and least < kinds.get(values.dtype.numpy.str, 1 << 62):
        top = build.cast(build.reduce("reduce_max", values, (0,)), int64)
        needed = call("maximum", call("add", top, scalar(1, top)), scalar(least, top))
        found = told(CURRENT.get(), needed, int)
        if found is None:
            raise UnsupportedOpError(SIZED["numpy.bincount"], LINE.get())
        least = found
    return step(counted, (TracedArray(values), weights, least), {}, "np.bincount")


STEPS = frozenset({np.bincount})
"""Functions with an implementation that is a step."""

"""New operators in index notation.

    @eqsat.op
    def correlate(x, w):                                  # x: (n,), w: (k,)
        d = eqsat.axis(w.shape[0])
        return eqsat.compute(
            (x.shape[0] - w.shape[0] + 1,),
            lambda i: eqsat.sum(x[i + d] * w[d], over=d))

``eqsat.compute(shape, element)`` makes the array whose element at ``i, j, …`` is ``element(i, j, …)``.
Inside it, an array indexed by axes is one of its elements: ``x[2 * i + d, j]``. Indices are axes times
integers plus integers, or elements of integer arrays (``table[ids[i], j]``). Elements go through
operators, NumPy's elementwise functions and ``np.where``; an axis is a value too (``np.where(i >= j, …)``,
int64). ``eqsat.sum``, ``prod``, ``max`` and ``min`` reduce over axes made by ``eqsat.axis``.

The operator is lowered at once: accesses to strided views (windows overlap as they please), sums of
products to contractions, the rest to elementwise functions and reductions. So it fuses, tiles and
vectorizes as the built-in ones do. It runs on NumPy arrays too, through the reference.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat.errors import OptionError, ShapeError
from eqsat.frontends import registry
from eqsat.frontends.contractions import einsum_nodes
from eqsat.frontends.convert import constant, known_dtype
from eqsat.frontends.elements import OUTSIDE, RESULT, Axis, Element, aligned, as_element
from eqsat.frontends.shapes import shape_of
from eqsat.frontends.source import user_line
from eqsat.frontends.trace import run_by_reference
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT
from eqsat.ir import build
from eqsat.ir.node import LINE
from eqsat.ir.types import widest

__all__ = ["Axis", "axes", "axis", "compute", "max", "min", "op", "prod", "sum"]


def _reduced(kind: str, element: Any, over: Any) -> Element:
    value = as_element(element)
    axes = []
    for a in over if isinstance(over, (tuple, list)) else [over]:
        if not isinstance(a, Axis):
            raise ShapeError(f"over={a!r}: reduce over axes made by eqsat.axis", LINE.get())
        if a.dim in RESULT.get():
            raise ShapeError(f"axis {a!r} is one of the result's: reduce over axes made by eqsat.axis", LINE.get())
        if a.dim not in value.axes:
            raise ShapeError(f"axis {a!r} is reduced over, but the element does not depend on it", LINE.get())
        axes.append(a.dim)
    out = tuple(a for a in value.axes if a not in axes)
    own = known_dtype(value.dtype)
    dtype = widest(own)
    wraps = dtype != own and len(value.factors) > 1  # a product of bytes is of bytes, whatever sums it
    if kind == "reduce_sum" and not wraps:
        numbers = {a: i for i, a in enumerate(value.axes)}
        nodes = [build.cast(node, dtype) for node, _ in value.factors]
        labels = [[numbers[a] for a in owned] for _, owned in value.factors]
        return Element([(einsum_nodes(nodes, labels, [numbers[a] for a in out]), out)])
    node, owned = value.value
    if kind in ("reduce_sum", "reduce_prod"):
        node = build.cast(node, dtype)
    reduced = build.reduce(kind, node, [owned.index(a) for a in axes])
    return Element([(reduced, tuple(a for a in owned if a not in axes))])


def sum(element: Any, *, over: Axis | Sequence[Axis]) -> Any:
    """The sum of an element over axes; bools and integers are summed in 64 bits, as ``numpy.sum``.

    What is summed is of its own type: a product of bytes is one, and wraps around, unless one of them is cast before.
    """
    return registry.located("eqsat.sum", _reduced, "reduce_sum", element, over)


def prod(element: Any, *, over: Axis | Sequence[Axis]) -> Any:
    """The product of an element over axes."""
    return registry.located("eqsat.prod", _reduced, "reduce_prod", element, over)


def max(element: Any, *, over: Axis | Sequence[Axis]) -> Any:
    """The greatest value of an element over axes, which must not be empty."""
    return registry.located("eqsat.max", _reduced, "reduce_max", element, over)


def min(element: Any, *, over: Axis | Sequence[Axis]) -> Any:
    """The least value of an element over axes, which must not be empty."""
    return registry.located("eqsat.min", _reduced, "reduce_min", element, over)


# Operators


def axis(extent: int, name: str = "k") -> Axis:
    """An axis to reduce over, of ``extent`` points."""
    size = operator.index(extent)
    if size < 0:
        raise ShapeError(f"axis {name} has a negative extent {size}", user_line())
    return Axis(size, name)


def axes(*extents: int) -> tuple[Axis, ...]:
    """Several axes: ``c, di, dj = eqsat.axes(3, 5, 5)``."""
    return tuple(axis(n, f"k{i}") for i, n in enumerate(extents))


def _output_axes(shape: Any, element: Callable[..., Any]) -> list[Axis]:
    extents = shape_of(shape)
    if any(n < 0 for n in extents):
        raise ShapeError(f"eqsat.compute: shape {extents} has a negative extent", LINE.get())
    if not callable(element):
        raise ShapeError(f"eqsat.compute: an element is a function of its axes, not {element!r}", LINE.get())
    parameters = inspect.signature(element).parameters
    names = list(parameters)
    if names and parameters[names[-1]].kind is inspect.Parameter.VAR_POSITIONAL:
        names[-1:] = [f"{names[-1]}{i}" for i in range(len(extents) - len(names) + 1)]
    if len(names) != len(extents):
        raise ShapeError(
            f"eqsat.compute: shape {extents} has {len(extents)} axes, the function takes {len(names)}", LINE.get()
        )
    return [Axis(n, name) for n, name in zip(extents, names, strict=True)]


def _output(result: Any, out: Sequence[Axis]) -> TracedArray:
    node, owned = as_element(result).value
    dims = [a.dim for a in out]
    loose = [a.name for a in owned if a not in dims]
    if loose:
        raise ShapeError(
            f"eqsat.compute: axis {', '.join(loose)} is neither an axis of the result nor reduced (over=…)", LINE.get()
        )
    return TracedArray(build.broadcast_to(aligned(node, owned, dims), [a.extent for a in out]))


def compute(shape: Any, element: Callable[..., Any], *, outside: float | int | bool | None = None) -> Any:
    """The array of this shape whose element at ``i, j, …`` is ``element(i, j, …)``, which may take ``*axes``.

    ``outside`` is what accesses beyond an array's ends read (0 pads with zeros); without it they are
    refused here, with the index and the extents. Used in an ``@eqsat.op`` or a traced function.

    Raises ``BoundsError`` for accesses out of range and ``ShapeError`` for axes that do not fit.
    """
    if not isinstance(outside, (int, float, type(None))):
        raise ShapeError(f"eqsat.compute: outside must be a number or None, not {outside!r}", user_line())
    if CURRENT.get() is None:
        return run_by_reference(lambda: compute(shape, element, outside=outside), (), {})
    out = registry.located("eqsat.compute", _output_axes, shape, element)
    before, own = OUTSIDE.set(outside), RESULT.set(RESULT.get() | {a.dim for a in out})
    try:
        result = element(*out)
    finally:
        OUTSIDE.reset(before)
        RESULT.reset(own)
    return registry.located("eqsat.compute", _output, result, out)


def op(fn: Callable[..., Any] | None = None, *, name: str = "") -> Callable[..., Any]:
    """A new operator: ``fn`` written with :func:`compute`, for traced arrays and NumPy arrays.

    Every array argument, also inside tuples, lists and dicts, may be indexed by axes. Python numbers are
    constants of the operator.

    With a ``name`` it is an operator that rules can name, and may be called on pattern variables: its arguments by
    place are arrays, those by keyword numbers, strings, or tuples of these (:mod:`eqsat.operators`).
    ``OptionError`` where another module, or eqsat, has an operator of that name.
    """
    if fn is None:
        return functools.partial(op, name=name)
    if name:
        from eqsat.operators import named

        return named(fn, name)
    if not callable(fn):
        raise OptionError(f"an operator is a function of arrays, not {fn!r}", user_line())

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        if CURRENT.get() is None:
            return run_by_reference(fn, args, kwargs)
        return fn(*(_traced(a) for a in args), **{k: _traced(v) for k, v in kwargs.items()})

    return run


def _traced(value: Any) -> Any:
    """NumPy arrays beside traced ones become constants, which axes can index."""
    if isinstance(value, TracedArray):
        return value
    if isinstance(value, np.ndarray):
        return TracedArray(constant(value))
    if type(value) in (list, tuple):
        return type(value)(_traced(v) for v in value)
    if type(value) is dict:
        return {k: _traced(v) for k, v in value.items()}
    return value

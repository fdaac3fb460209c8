"""Elements chosen by a traced mask: ``x[mask]``, whose number depends on values.

A selection keeps the whole array and the mask. What NumPy would do to the chosen elements is done to all of them, and
only what becomes of them together needs the mask: sums, and ``x[mask] = …`` of a selection by the same mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from eqsat.errors import BoundsError, ConcretizationError, ShapeError, UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.convert import known_dtype, lift, truth
from eqsat.frontends.indexing import listed_index, picked
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import int64

_ADVICE = (
    "how many elements a traced boolean mask chooses depends on values; keep the shape and choose with "
    "np.where(mask, x, other), or reduce the chosen elements (x[mask].sum())"
)


def masked_view(x: TracedArray, index: Any) -> tuple[TracedArray, Node, int]:
    """An index with one traced mask: the view that the rest of it leaves, the mask, and its first axis in that view."""
    items = listed_index(index)
    at = [i for i, item in enumerate(items) if isinstance(item, TracedArray) and item.dtype == np.bool_]
    if len(at) > 1 or any(
        isinstance(item, (TracedArray, np.ndarray, list)) for i, item in enumerate(items) if i not in at
    ):
        raise UnsupportedOpError(
            "a traced boolean mask beside other index arrays: choose with np.where on one mask of the whole shape",
            LINE.get(),
        )
    mask: TracedArray = items[at[0]]
    basic = [*items[: at[0]], *[slice(None)] * mask.ndim, *items[at[0] + 1 :]]
    used = sum(1 for item in basic if item is not None and item is not Ellipsis)
    if used > x.ndim:
        raise BoundsError(
            f"too many indices for array: array is {x.ndim}-dimensional, but {used} were indexed", LINE.get()
        )
    first = 0
    for item in items[: at[0]]:
        first += x.ndim - used if item is Ellipsis else not isinstance(item, (int, np.integer))
    view = picked(x, (*basic, ...) if not any(item is Ellipsis for item in basic) else tuple(basic)).view
    axes = view.shape[first : first + mask.ndim]
    if axes != mask.shape:
        raise BoundsError(
            f"boolean index did not match indexed array: the mask has shape {mask.shape}, the axes {axes}", LINE.get()
        )
    return view, mask.node, first


def selected(x: TracedArray, index: Any) -> Selection:
    """``x[mask]``."""
    view, mask, first = masked_view(x, index)
    return Selection(view.node, mask, first)


def write_masked(x: TracedArray, index: Any, value: Any) -> None:
    """``x[mask] = value``."""
    view, mask, first = masked_view(x, index)
    new = chosen_value(value, view.node, mask, first)
    view.assign(call("where", _spread(mask, view.ndim, first), new, view.node))


def chosen_value(value: Any, like: Node, mask: Node, first: int) -> Node:
    """What each element under a mask is given, in the shape and type of ``like``."""
    if isinstance(value, Selection):
        if value.mask is not mask or value.first != first or value.full.shape != like.shape:
            raise UnsupportedOpError(
                "elements chosen by one traced mask are written to those chosen by another: np.where says which "
                "element goes where",
                LINE.get(),
            )
        return build.cast(value.full, like.dtype)
    node = lift(value, like.dtype)
    width = mask.type.ndim
    after = like.type.ndim - first - width
    rank = first + 1 + after
    shape = (1,) * (rank - node.type.ndim) + node.shape
    if len(shape) > rank and math.prod(shape[: len(shape) - rank]) == 1:
        shape = shape[len(shape) - rank :]
    if len(shape) != rank or shape[first] != 1:
        raise UnsupportedOpError(
            f"an array of shape {node.shape} is written to the elements that a traced boolean mask chooses: {_ADVICE}",
            LINE.get(),
        )
    shape = (*shape[:first], *[1] * width, *shape[first + 1 :])
    try:
        return build.broadcast_to(build.reshape(node, shape), like.shape)
    except ValueError:
        raise ShapeError(
            f"shape mismatch: value array of shape {node.shape} could not be broadcast to the elements chosen of shape "
            f"{like.shape}",
            LINE.get(),
        ) from None


def _spread(mask: Node, ndim: int, first: int) -> Node:
    return build.reshape(mask, (*[1] * first, *mask.shape, *[1] * (ndim - first - mask.type.ndim)))


class Selection(np.lib.mixins.NDArrayOperatorsMixin):
    """The elements of an array that a traced mask chooses; only elementwise functions and sums are known of them."""

    __slots__ = ("first", "full", "line", "mask")
    __array_priority__ = 1001.0

    def __init__(self, full: Node, mask: Node, first: int) -> None:
        self.full, self.mask, self.first = full, mask, first
        self.line = LINE.get() or user_line()

    @property
    def dtype(self) -> np.dtype:
        return self.full.dtype.numpy

    @property
    def ndim(self) -> int:
        return self.full.type.ndim - self.mask.type.ndim + 1

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return registry.located(f"np.{ufunc.__name__}", self._apply, ufunc, method, inputs, kwargs)

    def _apply(self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from eqsat.frontends.ufuncs import REDUCE, apply, into

        out = kwargs.pop("out", None)
        if method == "reduce" and ufunc in REDUCE and kwargs.pop("axis", 0) in (0, None) and not kwargs:
            return registry.call(REDUCE[ufunc], self)
        if method != "__call__" or kwargs:
            _refuse()
        arrays = []
        for value in inputs:
            if not isinstance(value, Selection) and np.ndim(value) == 0:
                arrays.append(value)
            else:
                arrays.append(TracedArray(chosen_value(value, _typed(self.full, value), self.mask, self.first)))
        result = apply(ufunc, tuple(arrays))
        if out is None:
            return Selection(result.node, self.mask, self.first)
        (target,) = out
        if not isinstance(target, Selection) or target.mask is not self.mask:
            _refuse()
        whole = TracedArray(target.full)
        into(whole, result)
        target.full = whole.node
        return target

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {k: v for k, v in kwargs.items() if v is not np._NoValue and v is not None}
        if func not in _REDUCTIONS or len(args) != 1 or not isinstance(args[0], Selection) or given:
            _refuse()
        return registry.located(registry.short_name(func), _REDUCTIONS[func], args[0])

    def returned(self) -> NoReturn:
        """It cannot be a result."""
        raise UnsupportedOpError(f"indexing by a traced boolean mask: {_ADVICE}", self.line)

    def filled(self, value: Any) -> TracedArray:
        """The array with ``value`` for all elements that are not chosen."""
        return TracedArray(call("where", self._mask, self.full, scalar(value, self.full)))

    @property
    def _mask(self) -> Node:
        return _spread(self.mask, self.full.type.ndim, self.first)

    def sum(self) -> Any:
        return np.sum(self)

    def prod(self) -> Any:
        return np.prod(self)

    def mean(self) -> Any:
        return np.mean(self)

    def any(self) -> Any:
        return np.any(self)

    def all(self) -> Any:
        return np.all(self)

    def copy(self) -> Selection:
        return Selection(self.full, self.mask, self.first)

    def astype(self, dtype: Any) -> Selection:
        return Selection(build.cast(self.full, known_dtype(dtype)), self.mask, self.first)

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        _refuse()

    def __getitem__(self, index: Any) -> Any:
        _refuse()

    def __setitem__(self, index: Any, value: Any) -> None:
        _refuse()

    def __iter__(self) -> NoReturn:
        _refuse()

    def __len__(self) -> NoReturn:
        raise ConcretizationError(f"the number of elements chosen: {_ADVICE}", user_line())

    __bool__ = __int__ = __float__ = __index__ = __len__

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "size"):
            self.__len__()
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            _refuse()
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"Selection({self.full.type} where {self.mask.type})"


def _typed(like: Node, value: Any) -> Node:
    """``like`` in the element type of ``value``, which only its shape and type matter of."""
    if isinstance(value, Selection):
        return value.full
    return build.broadcast_to(scalar(0, lift(value)), like.shape)


def _refuse() -> NoReturn:
    raise UnsupportedOpError(f"indexing by a traced boolean mask: {_ADVICE}", LINE.get() or user_line())


def _reduced(function: Any, neutral: Any) -> Callable[[Selection], Any]:
    return lambda chosen: function(chosen.filled(neutral))


def _mean(chosen: Selection) -> Any:
    count = np.sum(TracedArray(build.broadcast_to(chosen._mask, chosen.full.shape)))
    total = np.sum(chosen.filled(0), dtype=None if chosen.dtype.kind == "f" else np.float64)
    return total / count.astype(total.dtype)


def _truth(function: Any, neutral: bool) -> Callable[[Selection], Any]:
    return lambda chosen: function(Selection(truth(chosen.full), chosen.mask, chosen.first).filled(neutral))


def _count(chosen: Selection) -> Any:
    return np.sum(Selection(build.cast(truth(chosen.full), int64), chosen.mask, chosen.first).filled(0))


_REDUCTIONS: dict[Any, Callable[[Selection], Any]] = {
    np.sum: _reduced(np.sum, 0),
    np.prod: _reduced(np.prod, 1),
    np.mean: _mean,
    np.any: _truth(np.any, False),
    np.all: _truth(np.all, True),
    np.count_nonzero: _count,
}

"""Elements chosen by a traced mask: ``x[mask]``, whose number depends on values.

A selection keeps the whole array and the mask. What NumPy would do to the chosen elements is done to all of them, and
only what becomes of them together needs the mask: sums, and ``x[mask] = …`` of a selection by the same mask. What asks
for more, such as how many they are, makes an array of them, in a trace for calls in which they are as many
(:mod:`eqsat.frontends.sized`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from eqsat.errors import BoundsError, ShapeError, UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.convert import known_dtype, lift, truth
from eqsat.frontends.guards import may_guard
from eqsat.frontends.indexing import listed_index, picked
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT, Unsized
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
    at = [i for i, item in enumerate(items) if _is_mask(item)]
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


def selected(x: TracedArray, index: Any) -> Selection | TracedArray:
    """``x[mask]``."""
    try:
        view, mask, first = masked_view(x, index)
    except UnsupportedOpError:
        if not may_guard(CURRENT.get()):
            raise
        found: TracedArray = x[by_places(index)]
        return found
    return Selection(view.node, mask, first)


def by_places(index: Any) -> tuple[Any, ...]:
    """An index with index arrays for traced masks, in a trace for calls in which they choose as much."""
    parts = ([part] if not _is_mask(part) else np.nonzero(part) for part in listed_index(index))
    return tuple(part for some in parts for part in some)


def _is_mask(item: Any) -> bool:
    return isinstance(item, TracedArray) and item.dtype == np.bool_


def write_masked(x: TracedArray, index: Any, value: Any) -> None:
    """``x[mask] = value``."""
    try:
        view, mask, first = masked_view(x, index)
        new = chosen_value(value, view.node, mask, first)
    except UnsupportedOpError:
        if not may_guard(CURRENT.get()):
            raise
        x[by_places(index)] = value
    else:
        view.assign(call("where", _spread(mask, view.ndim, first), new, view.node))


def places(mask: Node, first: int) -> tuple[Any, ...]:
    """An index of what a mask chooses, in a trace for calls in which that is as much."""
    return *[slice(None)] * first, *np.nonzero(TracedArray(mask))


def chosen_value(value: Any, like: Node, mask: Node, first: int) -> Node:
    """What each element under a mask is given, in the shape and type of ``like``."""
    if isinstance(value, Selection):
        if not value.like(mask, first) or value.full.shape != like.shape:
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


class Selection(np.lib.mixins.NDArrayOperatorsMixin, Unsized):
    """The elements of an array that a traced mask chooses, of which elementwise functions and sums are asked."""

    __slots__ = ("_array", "first", "full", "line", "mask")
    __array_priority__ = 1001.0

    def __init__(self, full: Node, mask: Node, first: int) -> None:
        self.full, self.mask, self.first = full, mask, first
        self.line = LINE.get() or user_line()
        self._array: TracedArray | None = None

    def array(self) -> TracedArray:
        """The chosen elements; from now on it is what it is, as it may be written to."""
        if self._array is None:
            if not may_guard(CURRENT.get()):
                raise UnsupportedOpError(f"indexing by a traced boolean mask: {_ADVICE}", LINE.get() or self.line)
            self._array = TracedArray(self.full)[places(self.mask, self.first)]
        return self._array

    def like(self, mask: Node, first: int) -> bool:
        """Whether these are elements at the places that a mask chooses, and no array yet."""
        return self._array is None and self.mask is mask and self.first == first

    @property
    def dtype(self) -> np.dtype:
        return self.full.dtype.numpy

    @property
    def ndim(self) -> int:
        return self.full.type.ndim - self.mask.type.ndim + 1

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return registry.located(f"np.{ufunc.__name__}", self._apply, ufunc, method, inputs, kwargs)

    def _apply(self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._lazily(ufunc, method, inputs, dict(kwargs))
        except UnsupportedOpError:
            if not may_guard(CURRENT.get()):
                raise
        outs = kwargs.pop("out", None)
        named = {key: _arrays(value) for key, value in kwargs.items()}
        if outs is not None:
            named["out"] = _arrays(outs)
        found = getattr(ufunc, method)(*_arrays(inputs), **named)
        return found if outs is None else outs[0] if len(outs) == 1 else outs

    def _lazily(self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from eqsat.frontends.ufuncs import REDUCE, apply, into

        out = kwargs.pop("out", None)
        if method == "reduce" and ufunc in REDUCE and kwargs.pop("axis", 0) in (0, None) and not kwargs:
            return registry.call(REDUCE[ufunc], self)
        if self._array is not None or method != "__call__" or kwargs or ufunc.signature is not None:
            _refuse()
        arrays = []
        for value in inputs:
            if not isinstance(value, Selection) and np.ndim(value) == 0:
                arrays.append(value)
            else:
                arrays.append(TracedArray(chosen_value(value, _typed(self.full, value), self.mask, self.first)))
        target = None if out is None else out[0]
        if target is not None and not (isinstance(target, Selection) and target.like(self.mask, self.first)):
            _refuse()
        result = apply(ufunc, tuple(arrays))
        if target is None:
            return Selection(result.node, self.mask, self.first)
        whole = TracedArray(target.full)
        into(whole, result)
        target.full = whole.node
        return target

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {k: v for k, v in kwargs.items() if v is not np._NoValue and v is not None}
        if func in _REDUCTIONS and len(args) == 1 and args[0] is self and self._array is None and not given:
            return registry.located(registry.short_name(func), _REDUCTIONS[func], self)
        return func(*_arrays(args), **{key: _arrays(value) for key, value in kwargs.items()})

    def filled(self, value: Any) -> TracedArray:
        """The array with ``value`` for all elements that are not chosen."""
        return TracedArray(call("where", self._mask, self.full, scalar(value, self.full)))

    @property
    def _mask(self) -> Node:
        return _spread(self.mask, self.full.type.ndim, self.first)

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        return np.sum(self, *args, **kwargs)

    def prod(self, *args: Any, **kwargs: Any) -> Any:
        return np.prod(self, *args, **kwargs)

    def mean(self, *args: Any, **kwargs: Any) -> Any:
        return np.mean(self, *args, **kwargs)

    def any(self, *args: Any, **kwargs: Any) -> Any:
        return np.any(self, *args, **kwargs)

    def all(self, *args: Any, **kwargs: Any) -> Any:
        return np.all(self, *args, **kwargs)

    def copy(self) -> Selection | TracedArray:
        return Selection(self.full, self.mask, self.first) if self._array is None else self._array.copy()

    def astype(self, dtype: Any, **kwargs: Any) -> Selection | TracedArray:
        if self._array is not None or kwargs:
            cast: TracedArray = self.array().astype(dtype, **kwargs)
            return cast
        return Selection(build.cast(self.full, known_dtype(dtype)), self.mask, self.first)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array().__array__(dtype, copy)

    def __getitem__(self, index: Any) -> Any:
        return self.array()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array()[index] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array())

    def __len__(self) -> int:
        return len(self.array())

    def __bool__(self) -> bool:
        return bool(self.array())

    def __int__(self) -> int:
        return int(self.array())

    def __float__(self) -> float:
        return float(self.array())

    def __index__(self) -> int:
        return operator.index(self.array())

    def __getattr__(self, name: str) -> Any:
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            return getattr(self.array(), name)
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"Selection({self.full.type} where {self.mask.type})"


def _arrays(nest: Any) -> Any:
    """Arguments with arrays for selections."""
    if type(nest) in (list, tuple):
        return type(nest)(_arrays(part) for part in nest)
    return nest.array() if isinstance(nest, Selection) else nest


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

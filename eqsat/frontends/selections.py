"""Elements chosen by a traced mask: ``x[mask]``, whose number depends on values.

A selection keeps the whole array and the mask. What NumPy would do to the chosen elements is done to all of them, and
only what becomes of them together needs the mask: reductions (:mod:`eqsat.frontends.selected`), and ``x[mask] = …`` of
a selection by the same mask. What asks for more, such as their places, makes an array of them, in a trace for calls in
which they are as many (:mod:`eqsat.frontends.value_shapes`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from eqsat.errors import BoundsError, ConcretizationError, ShapeError, UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.convert import is_weak, known_dtype, lift
from eqsat.frontends.guards import may_guard
from eqsat.frontends.indexing import listed_index, picked
from eqsat.frontends.numbers import WeakNumber
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT, Unsized
from eqsat.ir import build
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import bool_, int64

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


def chosen_value(value: Any, like: Node, mask: Node, first: int) -> Node:
    """What each element under a mask is given, in the shape and type of ``like``."""
    if isinstance(value, Selection):
        if value.is_array or value.mask is not mask or value.first != first or value.full.shape != like.shape:
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
    """The elements of an array that a traced mask chooses, along axis ``first``, which stands for the mask's axes.

    ``full``: the array; ``first``: where the mask's axes begin in it. Once `array` was asked for, it is that array,
    which may be written to.
    """

    __slots__ = ("_array", "first", "full", "line", "mask")
    __array_priority__ = 1001.0
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, full: Node, mask: Node, first: int) -> None:
        self.full, self.mask, self.first = full, mask, first
        self.line = LINE.get() or user_line()
        self._array: TracedArray | None = None

    def array(self) -> TracedArray:
        if self._array is None:
            if not may_guard(CURRENT.get()):
                raise UnsupportedOpError(f"indexing by a traced boolean mask: {_ADVICE}", LINE.get() or self.line)
            places = np.nonzero(TracedArray(self.mask))
            self._array = TracedArray(self.full)[(*[slice(None)] * self.first, *places)]
        return self._array

    @property
    def is_array(self) -> bool:
        """Whether an array was made of it."""
        return self._array is not None

    @property
    def dtype(self) -> np.dtype:
        return self.full.dtype.numpy

    @property
    def ndim(self) -> int:
        return self.full.type.ndim - self.mask.type.ndim + 1

    @property
    def shape(self) -> tuple[Any, ...]:
        """As NumPy's; the number of chosen elements is one of the program."""
        if self._array is not None:
            return self._array.shape
        count = build.reduce("reduce_sum", build.cast(self.mask, int64), tuple(range(self.mask.type.ndim)))
        shape = self.full.shape
        return (
            *shape[: self.first],
            WeakNumber(count, int, self.mask.type.size),
            *shape[self.first + self.mask.type.ndim :],
        )

    @property
    def size(self) -> Any:
        return math.prod(self.shape[1:], start=self.shape[0])

    # Axes

    def axes_of(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Axes of ``full`` that axes of the selection stand for."""
        width = self.mask.type.ndim
        found: list[int] = []
        for axis in sorted(axes):
            found.extend(
                range(axis, axis + width) if axis == self.first else [axis + (width - 1) * (axis > self.first)]
            )
        return tuple(found)

    def like(self, result: TracedArray) -> Selection:
        """A selection of what was computed of the whole arrays, with as many axes behind the chosen one."""
        return Selection(result.node, self.mask, result.ndim - (self.full.type.ndim - self.first))

    def aligned(self, value: Any) -> Any:
        """An operand of an elementwise function in terms of whole arrays, to be broadcast to ``full``.

        Refused: other masks, and arrays whose elements belong to the chosen ones in order.
        """
        after = self.ndim - self.first
        if isinstance(value, Selection):
            if value.is_array or value.mask is not self.mask or value.ndim - value.first != after:
                raise UnsupportedOpError(
                    "elements chosen by different traced masks are combined: np.where says which element meets which",
                    LINE.get(),
                )
            return TracedArray(value.full)
        if is_weak(value) or np.ndim(value) < after:
            return value
        node = lift(value)
        at = node.type.ndim - after
        if node.shape[at] != 1:
            raise UnsupportedOpError(
                f"an array of shape {node.shape} meets the elements that a traced boolean mask chooses: {_ADVICE}",
                LINE.get(),
            )
        return TracedArray(build.reshape(node, (*node.shape[:at], *[1] * self.mask.type.ndim, *node.shape[at + 1 :])))

    @property
    def where(self) -> Node:
        """The mask, with axes as ``full`` has."""
        return _spread(self.mask, self.full.type.ndim, self.first)

    def filled(self, value: Any) -> TracedArray:
        """The array with ``value`` for all elements that are not chosen."""
        return TracedArray(call("where", self.where, self.full, scalar(value, self.full)))

    # Protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return registry.located(f"np.{ufunc.__name__}", self._apply, ufunc, method, inputs, kwargs)

    def _apply(self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outs = kwargs.get("out")
        if not _any_array((inputs, outs)):
            try:
                return self._lazily(ufunc, method, inputs, dict(kwargs))
            except UnsupportedOpError:
                if not may_guard(CURRENT.get()):
                    raise
        found = getattr(ufunc, method)(*_arrays(inputs), **{key: _arrays(value) for key, value in kwargs.items()})
        return found if outs is None else outs[0] if len(outs) == 1 else outs

    def _lazily(self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from eqsat.frontends.selected import call_of, product
        from eqsat.frontends.ufuncs import PAIRS, REDUCE, apply, into

        out = kwargs.pop("out", None)
        if method == "reduce" and ufunc in REDUCE and out is None:
            return call_of(REDUCE[ufunc], inputs, {"axis": 0, **kwargs})
        if method == "__call__" and ufunc is np.matmul and out is None and not kwargs:
            return product(*inputs)
        if method != "__call__" or kwargs or ufunc in registry.FUNCTIONS or ufunc in PAIRS:
            refuse_selection()
        result = self.like(apply(ufunc, tuple(map(self.aligned, inputs))))
        if out is None:
            return result
        (target,) = out
        if not isinstance(target, Selection) or target.mask is not self.mask:
            refuse_selection()
        whole = TracedArray(target.full)
        into(whole, TracedArray(result.full))
        target.full = whole.node
        return target

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from eqsat.frontends.selected import call_of

        if not _any_array((args, tuple(kwargs.values()))):
            try:
                return registry.located(registry.short_name(func), call_of, func, args, kwargs)
            except UnsupportedOpError:
                if not may_guard(CURRENT.get()):
                    raise
        return func(*_arrays(args), **{key: _arrays(value) for key, value in kwargs.items()})

    # Indexing: rows stay chosen

    def __getitem__(self, index: Any) -> Any:
        items = listed_index(index)
        if not _any_array((self, items)):
            try:
                return registry.located("indexing", self._picked, items)
            except UnsupportedOpError:
                if not may_guard(CURRENT.get()):
                    raise
        return self.array()[_arrays(index)]

    def _picked(self, items: tuple[Any, ...]) -> Selection:
        if any(isinstance(item, Selection) for item in items):
            (item, *rest) = items
            inner = isinstance(item, Selection) and item.full.dtype == bool_ and item.full.shape == self.mask.shape
            if rest or not inner or item.mask is not self.mask or self.first:
                refuse_selection()
            return Selection(self.full, call("logical_and", self.mask, item.full), 0)
        if not all(item is None or item is Ellipsis or isinstance(item, (int, np.integer, slice)) for item in items):
            refuse_selection()
        used = sum(1 for item in items if item is not None and item is not Ellipsis)
        if used > self.ndim:
            raise BoundsError(
                f"too many indices for array: array is {self.ndim}-dimensional, but {used} were indexed", LINE.get()
            )
        at = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
        wide = [*items[:at], *[slice(None)] * (self.ndim - used), *items[at + 1 :]]
        places = [i for i, item in enumerate(wide) if item is not None]
        chosen = places[self.first]
        if wide[chosen] != slice(None):
            refuse_selection()
        before = sum(1 for item in wide[:chosen] if item is None or isinstance(item, slice))
        whole = (*wide[:chosen], *[slice(None)] * self.mask.type.ndim, *wide[chosen + 1 :])
        return Selection(TracedArray(self.full)[whole].node, self.mask, before)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array()[_arrays(index)] = _arrays(value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array())

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array().__array__(dtype, copy)

    def __len__(self) -> int:
        if not self.is_array and not may_guard(CURRENT.get()):
            raise ConcretizationError(f"the number of elements chosen: {_ADVICE}", user_line())
        return len(self.array())

    def __bool__(self) -> bool:
        return bool(self.array())

    def __int__(self) -> int:
        return int(self.array())

    def __float__(self) -> float:
        return float(self.array())

    def __index__(self) -> int:
        return operator.index(self.array())

    # Methods

    def astype(self, dtype: Any, copy: bool = True) -> Selection | TracedArray:
        if self._array is not None:
            cast: TracedArray = self._array.astype(dtype, copy=copy)
            return cast
        return Selection(build.cast(self.full, known_dtype(dtype)), self.mask, self.first)

    def copy(self) -> Selection | TracedArray:
        return Selection(self.full, self.mask, self.first) if self._array is None else self._array.copy()

    @property
    def T(self) -> Selection | TracedArray:
        if self._array is not None:
            turned: TracedArray = self._array.T
            return turned
        after = self.ndim - 1 - self.first
        order = [*self.axes_of(range(self.first + 1, self.ndim))[::-1], *self.axes_of([self.first])]
        return Selection(build.transpose(self.full, [*order, *range(self.first)[::-1]]), self.mask, after)

    def ravel(self, order: str = "C") -> Selection | TracedArray:
        if self.is_array or self.ndim != 1:
            flat: TracedArray = self.array().ravel(order)
            return flat
        return self

    def flatten(self, order: str = "C") -> Selection | TracedArray:
        copied: Selection | TracedArray = self.ravel(order).copy()
        return copied

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name, None) if name in _METHODS else None
        if function is not None and not self.is_array:
            return functools.partial(function, self)
        if name in ("real", "imag") and not self.is_array:
            return getattr(np, name)(self)
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            return getattr(self.array(), name)
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"Selection({self.full.type} where {self.mask.type})"


_METHODS = frozenset(("sum", "prod", "mean", "var", "std", "any", "all", "max", "min", "clip", "round", "dot", "conj"))
"""Methods that are NumPy's functions of the same name."""


def _any_array(nest: Any) -> bool:
    """Whether an array was made of a selection among arguments."""
    if type(nest) in (list, tuple):
        return any(map(_any_array, nest))
    return isinstance(nest, Selection) and nest.is_array


def _arrays(nest: Any) -> Any:
    """Arguments with arrays for selections."""
    if type(nest) in (list, tuple):
        return type(nest)(map(_arrays, nest))
    return nest.array() if isinstance(nest, Selection) else nest


def refuse_selection() -> NoReturn:
    raise UnsupportedOpError(f"indexing by a traced boolean mask: {_ADVICE}", LINE.get() or user_line())

"""Index notation: axes, indices that are affine in them, and elements of arrays as functions of axes.

An :class:`Element` is built eagerly: an array node over the axes it depends on, or a product of several,
which a sum then contracts. See :mod:`eqsat.notation` for what users write.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from eqsat.errors import BoundsError, ConcretizationError, ShapeError, UnsupportedDTypeError
from eqsat.frontends import registry
from eqsat.frontends.convert import is_weak, known_dtype, lift, promote
from eqsat.frontends.indexing import flat_index, gather_flat
from eqsat.frontends.pads import pad_constant
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.ufuncs import apply
from eqsat.ir import build, views
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.types import int64, row_major
from eqsat.scoped import Scoped


def _operator(ufunc: np.ufunc, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def run(self: Any, other: Any) -> Any:
        pair = (other, self) if reflected else (self, other)
        return registry.located(f"np.{ufunc.__name__}", _elementwise, ufunc, pair)

    return run


def _unary(ufunc: np.ufunc) -> Callable[[Any], Any]:
    return lambda self: registry.located(f"np.{ufunc.__name__}", _elementwise, ufunc, (self,))


class _Scalar:
    """What indices and elements share: arithmetic as values."""

    __slots__ = ()
    __hash__ = object.__hash__
    __array_priority__ = 2000.0

    @staticmethod
    def __eqsat_access__(x: TracedArray, entries: Sequence[Any]) -> Element:
        return access(x, entries)

    __truediv__, __rtruediv__ = _operator(np.divide), _operator(np.divide, True)
    __floordiv__, __rfloordiv__ = _operator(np.floor_divide), _operator(np.floor_divide, True)
    __mod__, __rmod__ = _operator(np.remainder), _operator(np.remainder, True)
    __pow__, __rpow__ = _operator(np.power), _operator(np.power, True)
    __and__, __rand__ = _operator(np.bitwise_and), _operator(np.bitwise_and, True)
    __or__, __ror__ = _operator(np.bitwise_or), _operator(np.bitwise_or, True)
    __xor__, __rxor__ = _operator(np.bitwise_xor), _operator(np.bitwise_xor, True)
    __lt__, __le__, __gt__, __ge__ = (_operator(f) for f in (np.less, np.less_equal, np.greater, np.greater_equal))
    __eq__, __ne__ = _operator(np.equal), _operator(np.not_equal)
    __abs__, __invert__ = _unary(np.absolute), _unary(np.invert)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or any(v is not None for v in kwargs.values()):
            raise registry.refuse(f"np.{ufunc.__name__}.{method}", "elements take NumPy's functions without options")
        return registry.located(f"np.{ufunc.__name__}", _elementwise, ufunc, inputs)

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func not in (np.where, np.clip, np.round, np.nan_to_num):
            raise registry.refuse(registry.short_name(func), "on elements only elementwise functions make sense")
        return registry.located(registry.short_name(func), _pointwise, func, args, kwargs)

    def __bool__(self) -> NoReturn:
        raise ConcretizationError(
            "the truth value of an axis or an element is not known: use np.where(condition, a, b)", user_line()
        )

    def __index__(self) -> NoReturn:
        raise ConcretizationError(
            "an axis indexes only arrays that the operator was given: pass a captured array as an argument, or index "
            "eqsat.asarray(array)",
            user_line(),
        )

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        self.__index__()

    def __float__(self) -> NoReturn:
        raise ConcretizationError(
            "the value of an axis or an element is not known: use NumPy's functions, not those of math", user_line()
        )

    __int__ = __float__


@dataclass(frozen=True, eq=False, slots=True)
class Dim:
    """What an axis is apart from its arithmetic (in which ``==`` is an operator too)."""

    extent: int
    name: str


class Index(_Scalar):
    """``Σ coefficient·axis + offset``: an index, and an int64 value."""

    __slots__ = ("offset", "terms")

    def __init__(self, terms: dict[Dim, int], offset: int) -> None:
        self.terms = {a: c for a, c in terms.items() if c}
        self.offset = offset

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Index):
            terms = dict(self.terms)
            for axis, c in other.terms.items():
                terms[axis] = terms.get(axis, 0) + c
            return Index(terms, self.offset + other.offset)
        if _is_int(other):
            return Index(self.terms, self.offset + int(other))
        return registry.located("np.add", _elementwise, np.add, (self, other))

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        if _is_int(other):
            return Index({a: c * int(other) for a, c in self.terms.items()}, self.offset * int(other))
        return registry.located("np.multiply", _elementwise, np.multiply, (self, other))

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return Index({a: -c for a, c in self.terms.items()}, -self.offset)

    def __pos__(self) -> Index:
        return self

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    @property
    def range(self) -> tuple[int, int]:
        """The least and greatest value over the axes' extents (which are not empty)."""
        steps = [c * (a.extent - 1) for a, c in self.terms.items()]
        low = self.offset + math.fsum(s for s in steps if s < 0)
        high = self.offset + math.fsum(s for s in steps if s > 0)
        return int(low), int(high)

    def __repr__(self) -> str:
        parts = [a.name if c == 1 else f"{c}*{a.name}" for a, c in self.terms.items()]
        parts += [str(self.offset)] if self.offset or not parts else []
        return " + ".join(parts)


class Axis(Index):
    """An axis of an operator: an index that runs over 0, 1, …, extent - 1."""

    __slots__ = ("dim",)

    def __init__(self, extent: int, name: str) -> None:
        self.dim = Dim(extent, name)
        super().__init__({self.dim: 1}, 0)

    @property
    def extent(self) -> int:
        return self.dim.extent


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


class Element(_Scalar):
    """An element of an array as a function of axes: a product of factors, each an array over its axes."""

    __slots__ = ("_value", "factors")

    def __init__(self, factors: Sequence[tuple[Node, tuple[Dim, ...]]]) -> None:
        self.factors = tuple(factors)
        self._value: tuple[Node, tuple[Dim, ...]] | None = None

    @property
    def axes(self) -> tuple[Dim, ...]:
        return tuple(dict.fromkeys(a for _, axes in self.factors for a in axes))

    @property
    def value(self) -> tuple[Node, tuple[Dim, ...]]:
        """The product as one array over its axes."""
        if self._value is None:
            (node, axes), *rest = self.factors
            for other, others in rest:
                union = tuple(dict.fromkeys((*axes, *others)))
                pair = TracedArray(aligned(node, axes, union)), TracedArray(aligned(other, others, union))
                node, axes = apply(np.multiply, pair).node, union
            self._value = node, axes
        return self._value

    @property
    def dtype(self) -> np.dtype:
        return np.result_type(*(node.dtype.numpy for node, _ in self.factors))

    def __mul__(self, other: Any) -> Any:
        return registry.located("np.multiply", _product, self, other)

    def __rmul__(self, other: Any) -> Any:
        return registry.located("np.multiply", _product, other, self)

    __add__, __radd__ = _operator(np.add), _operator(np.add, True)
    __sub__, __rsub__ = _operator(np.subtract), _operator(np.subtract, True)
    __neg__, __pos__ = _unary(np.negative), _unary(np.positive)

    def __getitem__(self, index: Any) -> NoReturn:
        raise ShapeError("an element has no axes left to index: give all indices at once, x[i, j]", user_line())

    def astype(self, dtype: Any) -> Element:
        node, axes = self.value
        return Element([(build.cast(node, known_dtype(dtype)), axes)])

    def __repr__(self) -> str:
        return f"Element({self.dtype} over {', '.join(a.name for a in self.axes)})"


def aligned(node: Node, axes: Sequence[Dim], union: Sequence[Dim]) -> Node:
    """``node`` with its axes in the order of ``union``, extent 1 where it lacks one."""
    order = sorted(range(len(axes)), key=lambda i: union.index(axes[i]))
    turned = build.transpose(node, order)
    sizes = iter(turned.shape)
    return build.reshape(turned, [next(sizes) if a in axes else 1 for a in union])


def _index_value(index: Index) -> tuple[Node, tuple[Dim, ...]]:
    """An index as an int64 array over its axes."""
    axes = tuple(index.terms)
    terms: list[Node] = []
    for axis, coefficient in index.terms.items():
        steps = build.iota(axis.extent)
        term = call("mul", steps, scalar(coefficient, steps)) if coefficient != 1 else steps
        terms.append(aligned(term, (axis,), axes))
    if index.offset or not terms:
        terms.append(scalar(index.offset, int64))
    total = functools.reduce(lambda x, y: call("add", x, y), terms)
    return build.broadcast_to(total, [a.extent for a in axes]), axes


def as_element(value: Any) -> Element:
    if isinstance(value, Element):
        return value
    if isinstance(value, Index):
        return Element([_index_value(value)])
    node = lift(value)
    if node.type.ndim:
        raise ShapeError(f"an array of shape {node.shape} stands where an element is meant: index it", LINE.get())
    return Element([(node, ())])


def _pointwise(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Element:
    """A NumPy function of elements: their arrays over the union of their axes."""
    given = [a if is_weak(a) or a is None or isinstance(a, bool) else as_element(a) for a in args]
    union = tuple(dict.fromkeys(a for g in given if isinstance(g, Element) for a in g.axes))
    arrays = [TracedArray(aligned(*g.value, union)) if isinstance(g, Element) else g for g in given]
    result = registry.FUNCTIONS[function](*arrays, **kwargs)
    return _over(result, union)


def _over(result: TracedArray, union: tuple[Dim, ...]) -> Element:
    return Element([(build.broadcast_to(result.node, [a.extent for a in union]), union)])


def _elementwise(ufunc: np.ufunc, operands: Sequence[Any]) -> Element:
    if ufunc is np.multiply:
        return _product(*operands)
    given = [o if is_weak(o) else as_element(o) for o in operands]
    union = tuple(dict.fromkeys(a for g in given if isinstance(g, Element) for a in g.axes))
    arrays = tuple(TracedArray(aligned(*g.value, union)) if isinstance(g, Element) else g for g in given)
    return _over(apply(ufunc, arrays), union)


def _product(a: Any, b: Any) -> Element:
    """Kept as factors, so that a sum over it becomes a contraction."""
    pair = []
    for value, other in ((a, b), (b, a)):
        if is_weak(value):
            kind = promote(value, np.empty((), as_element(other).dtype))
            pair.append(Element([(lift(value, kind), ())]))
        else:
            pair.append(as_element(value))
    return Element([*pair[0].factors, *pair[1].factors])


# Access


def access(x: TracedArray, entries: Sequence[Any]) -> Element:
    """``x[entries]`` where some are axes: an element."""
    node = x.node
    if len(entries) != node.type.ndim:
        raise BoundsError(
            f"{len(entries)} indices for an array of shape {node.shape}: an operator's access gives one for each axis",
            LINE.get(),
        )
    parts: list[Index | Element] = []
    for axis, entry in enumerate(entries):
        if isinstance(entry, (Index, Element)):
            parts.append(entry)
        elif _is_int(entry):
            size = node.shape[axis]
            parts.append(Index({}, int(entry) + (size if entry < 0 else 0)))
        elif isinstance(entry, TracedArray) and entry.ndim == 0:
            parts.append(Element([(entry.node, ())]))
        else:
            raise BoundsError(
                f"index {entry!r} of axis {axis}: an operator's access takes axes, integers and integer elements",
                LINE.get(),
            )
    for part in parts:
        if isinstance(part, Element) and part.value[0].dtype.kind != "int":
            raise UnsupportedDTypeError(f"an index must be an integer, not {part.dtype}", LINE.get())
    node = _in_range(node, parts)
    if all(isinstance(part, Index) for part in parts):
        return Element([_strided(node, [p for p in parts if isinstance(p, Index)])])
    return Element([_gathered(node, parts)])


OUTSIDE: Scoped[float | int | bool | None] = Scoped(None)
"""What accesses outside an array read in the ``compute`` in progress; None refuses them."""


RESULT: Scoped[frozenset[Dim]] = Scoped(frozenset())
"""The axes of the result of the ``compute`` in progress, which are not reduced over."""


def _in_range(node: Node, parts: list[Index | Element]) -> Node:
    """The array, padded where the operator asked for it, and ``parts`` moved to match."""
    if any(a.extent == 0 for part in parts if isinstance(part, Index) for a in part.terms):
        return node
    widths = []
    for axis, (part, size) in enumerate(zip(parts, node.shape, strict=True)):
        low, high = part.range if isinstance(part, Index) else (0, size - 1)
        before, after = (-low if low < 0 else 0), (high - size + 1 if high >= size else 0)
        if (before or after) and OUTSIDE.get() is None:
            bad = low if before else high
            assert isinstance(part, Index)
            extents = ", ".join(f"{a.name} in 0…{a.extent - 1}" for a in part.terms)
            raise BoundsError(
                f"index {part} reaches {bad} on axis {axis} of size {size}{f' ({extents})' if extents else ''}; make "
                "the axes smaller, or give eqsat.compute(…, outside=0) a value to read there",
                LINE.get(),
            )
        widths.append((before, after))
        if before:
            assert isinstance(part, Index)
            parts[axis] = part + before
    value = OUTSIDE.get()
    if value is None:
        return node
    if not node.dtype.is_float and value != int(value if np.isfinite(value) else 0):
        raise UnsupportedDTypeError(f"outside={value} cannot be an element of an array of {node.dtype}", LINE.get())
    return pad_constant(node, widths, value)


def _strided(node: Node, parts: Sequence[Index]) -> tuple[Node, tuple[Dim, ...]]:
    """The view of all elements an affine access reads, over its axes."""
    steps: dict[Dim, int] = {}
    offset = 0
    for part, stride in zip(parts, row_major(node.shape), strict=True):
        offset += part.offset * stride
        for axis, coefficient in part.terms.items():
            steps[axis] = steps.get(axis, 0) + coefficient * stride
    extents = [a.extent for a in steps]
    map = views.strided(extents, list(steps.values()), offset if 0 not in extents else 0)
    return build.view(node, map, "access"), tuple(steps)


def _gathered(node: Node, parts: Sequence[Index | Element]) -> tuple[Node, tuple[Dim, ...]]:
    """An access with indices that are values."""
    computed = [i for i, p in enumerate(parts) if isinstance(p, Element)]
    affine = dict.fromkeys(a for p in parts if isinstance(p, Index) for a in p.terms)
    first = parts[computed[0]]
    assert isinstance(first, Element)
    if len(computed) == 1 and not any(a in affine for a in first.axes):
        # Whole rows are taken: view the affine axes, keep the indexed one in front.
        (at,) = computed
        row = Axis(node.shape[at], "row")
        plain = [p if isinstance(p, Index) else row for p in parts]
        seen, axes = _strided(node, plain)
        order = [axes.index(row.dim), *(i for i, a in enumerate(axes) if a is not row.dim)]
        index, index_axes = first.value
        rows = build.gather(build.transpose(seen, order), index, 0)
        return rows, (*index_axes, *(axes[i] for i in order[1:]))
    values = [p.value if isinstance(p, Element) else _index_value(p) for p in parts]
    union = tuple(dict.fromkeys(a for _, axes in values for a in axes))
    indices = [aligned(value, axes, union) for value, axes in values]
    flat = flat_index(indices, list(node.shape), tuple(a.extent for a in union))
    return gather_flat(build.reshape(node, (node.type.size,)), flat), union

"""Patterns: programs over pattern variables, built with the operators and functions that programs are written in."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eqsat.errors import RuleError
from eqsat.frontends.operators import power_function
from eqsat.ir.defined import Applied
from eqsat.ir.table import OPS
from eqsat.ir.types import DType
from eqsat.rules.attrs import attribute_of
from eqsat.rules.options import element_type, kept, numpy_call
from eqsat.rules.place import place

Number = float | int | bool

UFUNCS = {
    **{row.ufunc.__name__: row.name for row in OPS.values() if row.ufunc is not None},
    **{row.scipy: row.name for row in OPS.values() if row.scipy},
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "fabs": "abs",
    "float_power": "pow",
    "invert": "logical_not",
}
"""The operators that ufuncs are; others go by their own name."""

REDUCTIONS = {"sum": "reduce_sum", "prod": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}

LARGEST = 1024
"""Bits of the largest number that some element type holds, float64."""

MOST_PARTS = 256
MOST_LEVELS = 64
"""Of a pattern: what is written with each use of a part doubles, and what walks patterns recurses."""

_fresh = itertools.count()


def _lift(value: object) -> Pattern:
    if isinstance(value, Pattern):
        return value
    if isinstance(value, (bool, int, float)):
        if isinstance(value, int) and value.bit_length() > LARGEST:
            raise RuleError(f"{place()}: no element type holds a number of {value.bit_length()} bits")
        return Literal(value)
    raise RuleError(f"{place()}: a pattern is made of pattern variables and numbers, not {type(value).__name__}")


class Pattern:
    """A tensor in a pattern. Compare with ``eqsat.rules.op`` functions or NumPy's; ``==`` is identity.

    ``==`` with a number is refused: it would be no pattern, but False.
    """

    extent: tuple[int, int]
    """Operators and variables written out (a pattern that is used twice counts twice), and levels."""

    @property
    def inside(self) -> tuple[Pattern, ...]:
        """The patterns directly inside."""
        return ()

    def __post_init__(self) -> None:
        extents = [inner.extent for inner in self.inside]
        parts, levels = 1 + sum(n for n, _ in extents), 1 + max((n for _, n in extents), default=0)
        if parts > MOST_PARTS or levels > MOST_LEVELS:
            raise RuleError(
                f"{place()}: a pattern has at most {MOST_PARTS} operators and variables, written out, in at most "
                f"{MOST_LEVELS} levels"
            )
        object.__setattr__(self, "extent", (parts, levels))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float, complex, np.generic, np.ndarray)):
            raise RuleError(f"{place()}: == in a pattern is identity; write np.equal({self!r}, {other!r})")
        return self is other

    def __ne__(self, other: object) -> bool:
        if isinstance(other, (int, float, complex, np.generic, np.ndarray)):
            raise RuleError(f"{place()}: != in a pattern is identity; write np.not_equal({self!r}, {other!r})")
        return self is not other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise RuleError(
            f"{place()}: {self!r} has no truth value in a pattern (as in `0 < x < 1`, `and`, `or`, `not`): write "
            "(0 < x) & (x < 1), or np.logical_and, np.logical_or, np.logical_not"
        )

    def __add__(self, other: object) -> Pattern:
        return signed((1, self), (1, _lift(other)))

    def __radd__(self, other: object) -> Pattern:
        return signed((1, _lift(other)), (1, self))

    def __sub__(self, other: object) -> Pattern:
        return signed((1, self), (-1, _lift(other)))

    def __rsub__(self, other: object) -> Pattern:
        return signed((1, _lift(other)), (-1, self))

    def __mul__(self, other: object) -> Pattern:
        return op("mul", self, other)

    def __rmul__(self, other: object) -> Pattern:
        return op("mul", other, self)

    def __truediv__(self, other: object) -> Pattern:
        return op("div", self, other)

    def __rtruediv__(self, other: object) -> Pattern:
        return op("div", other, self)

    def __pow__(self, other: object) -> Pattern:
        special = power_function(other)
        return special(self) if special is not None else np.power(self, other)  # type: ignore[call-overload, no-any-return]

    def __rpow__(self, other: object) -> Pattern:
        return np.power(other, self)  # type: ignore[call-overload, no-any-return]

    def __floordiv__(self, other: object) -> Pattern:
        return op("floor_divide", self, other)

    def __rfloordiv__(self, other: object) -> Pattern:
        return op("floor_divide", other, self)

    def __mod__(self, other: object) -> Pattern:
        return op("remainder", self, other)

    def __rmod__(self, other: object) -> Pattern:
        return op("remainder", other, self)

    def __pos__(self) -> Pattern:
        return self

    def __matmul__(self, other: object) -> Pattern:
        return op("matmul", self, other)

    def __neg__(self) -> Pattern:
        return op("neg", self)

    def __abs__(self) -> Pattern:
        return op("abs", self)

    def __lt__(self, other: object) -> Pattern:
        return op("lt", self, other)

    def __le__(self, other: object) -> Pattern:
        return op("le", self, other)

    def __gt__(self, other: object) -> Pattern:
        return op("gt", self, other)

    def __ge__(self, other: object) -> Pattern:
        return op("ge", self, other)

    def __and__(self, other: object) -> Pattern:
        return op("logical_and", self, other)

    def __or__(self, other: object) -> Pattern:
        return op("logical_or", self, other)

    def __xor__(self, other: object) -> Pattern:
        return op("logical_xor", self, other)

    def __invert__(self) -> Pattern:
        return op("logical_not", self)

    def sum(self, axis: object = None, *, keepdims: bool = False) -> Pattern:
        return reduction("reduce_sum", self, axis, keepdims)

    def prod(self, axis: object = None, *, keepdims: bool = False) -> Pattern:
        return reduction("reduce_prod", self, axis, keepdims)

    def max(self, axis: object = None, *, keepdims: bool = False) -> Pattern:
        return reduction("reduce_max", self, axis, keepdims)

    def min(self, axis: object = None, *, keepdims: bool = False) -> Pattern:
        return reduction("reduce_min", self, axis, keepdims)

    @property
    def mT(self) -> Pattern:
        return Swapped(self)

    def mean(self, axis: object = None, *, keepdims: bool = False) -> Pattern:
        return Mean(self, _fitting("reduce_sum", _axis(axis)), kept(keepdims))

    def astype(self, dtype: object) -> Pattern:
        return Apply("cast", (self,), dtype if isinstance(dtype, Attribute) else element_type(dtype))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> Pattern:
        if method != "__call__" or options:
            raise RuleError(f"{place()}: np.{ufunc.__name__}.{method} with options cannot stand in a pattern")
        name = UFUNCS.get(ufunc.__name__, ufunc.__name__)
        if name in ("positive", "conjugate"):
            return _lift(inputs[0])
        if name == "pow" and isinstance(inputs[1], (int, float)) and inputs[1] == 2:
            return op("square", inputs[0])  # as programs are traced
        return op(name, *inputs)

    def __array_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[object], kwargs: dict[str, Any]
    ) -> Pattern:
        name = func.__name__
        if name == "where":
            return op("where", *args)
        if name in (*REDUCTIONS, "amax", "amin", "mean"):
            x, given = numpy_call(func, args, kwargs, ("axis", "keepdims"))
            return getattr(_lift(x), name.removeprefix("a"))(**given)  # type: ignore[no-any-return]
        if name == "matrix_transpose":
            return Swapped(_lift(args[0]))
        if name == "concatenate":
            parts, given = numpy_call(func, args, kwargs, ("axis",))
            return concat(parts, **given)
        raise RuleError(f"{place()}: np.{name} cannot stand in a pattern; use eqsat.rules.op with the operator's name")


@dataclass(frozen=True, eq=False)
class Var(Pattern):
    """Any tensor."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Literal(Pattern):
    """A compile-time constant, all of whose elements are this number (rounded to its element type)."""

    value: Number

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, eq=False)
class NumberVar(Pattern):
    """A compile-time constant, all of whose elements are one number, bound as a 0-d constant."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute (axes, index map, spec, element type) in a pattern."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Apply(Pattern):
    """An operator of the table (or ``matmul``, a contraction of matmul's shape) applied to patterns."""

    op: str
    args: tuple[Pattern, ...]
    attrs: object = None
    name: str = field(default_factory=lambda: f"_{next(_fresh)}")

    @property
    def inside(self) -> tuple[Pattern, ...]:
        return self.args

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.args))
        if isinstance(self.attrs, Applied):
            return self.attrs.call(list(map(repr, self.args)))
        if isinstance(self.attrs, DType):
            return f"{inside}.astype({self.attrs.name})"
        return f"{self.op}({inside})" if self.attrs is None else f"{self.op}({inside}, {self.attrs!r})"


@dataclass(frozen=True, eq=False)
class Sum(Pattern):
    """A signed sum. As a rule's whole left side it matches among the terms of longer sums, up to a common sign,
    unless it is ``whole``."""

    terms: tuple[tuple[int, Pattern], ...]
    whole: bool = False
    name: str = field(default_factory=lambda: f"_{next(_fresh)}")

    @property
    def inside(self) -> tuple[Pattern, ...]:
        return tuple([term for _, term in self.terms])

    def __repr__(self) -> str:
        text = " ".join(f"{'+' if sign > 0 else '-'} {term!r}" for sign, term in self.terms)
        return f"({text.removeprefix('+ ')})"


@dataclass(frozen=True, eq=False)
class Terms(Pattern):
    """Any sum; binds its (sign, tensor) pairs."""

    name: str

    def __repr__(self) -> str:
        return f"Σ{self.name}"


@dataclass(frozen=True, eq=False)
class Parts(Pattern):
    """Any concatenation; binds its tensors, and its axis as ``<name>_axis``."""

    name: str

    def __repr__(self) -> str:
        return f"concat({self.name}…)"


@dataclass(frozen=True, eq=False)
class Expanded(Pattern):
    """A reduction whose axes stay with extent 1."""

    reduced: Apply
    name: str = field(default_factory=lambda: f"_{next(_fresh)}")

    @property
    def inside(self) -> tuple[Pattern, ...]:
        return (self.reduced,)

    def __repr__(self) -> str:
        return f"keepdims({self.reduced!r})"


@dataclass(frozen=True, eq=False)
class Mean(Pattern):
    """A sum over axes divided by their size."""

    x: Pattern
    axes: object
    keepdims: bool
    name: str = field(default_factory=lambda: f"_{next(_fresh)}")

    @property
    def inside(self) -> tuple[Pattern, ...]:
        return (self.x,)

    def __repr__(self) -> str:
        return f"mean({self.x!r}, {self.axes!r})"


@dataclass(frozen=True, eq=False)
class Swapped(Pattern):
    """A tensor of two axes or more whose last two are exchanged."""

    x: Pattern
    name: str = field(default_factory=lambda: f"_{next(_fresh)}")

    @property
    def inside(self) -> tuple[Pattern, ...]:
        return (self.x,)

    def __repr__(self) -> str:
        return f"{self.x!r}.mT"


@dataclass(frozen=True, eq=False)
class Joined(Pattern):
    """A concatenation of just these tensors."""

    parts: tuple[Pattern, ...]
    axis: object
    name: str = field(default_factory=lambda: f"_{next(_fresh)}")

    @property
    def inside(self) -> tuple[Pattern, ...]:
        return self.parts

    def __repr__(self) -> str:
        return f"concat([{', '.join(map(repr, self.parts))}], {self.axis!r})"


def signed(*terms: tuple[int, Pattern]) -> Pattern:
    """A signed sum, with sums and (under a sign that is not 0) negations inside it opened, as in programs."""
    flat: list[tuple[int, Pattern]] = []
    for pair in terms:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or pair[0] not in (1, -1, 0):
            raise RuleError(
                f"{place()}: a signed sum is of pairs, a sign (1, -1, or 0 for any) and a pattern, not {pair!r}"
            )
        sign, term = int(pair[0]), _lift(pair[1])
        while sign and isinstance(term, Apply) and term.op == "neg":
            sign, term = -sign, term.args[0]
        if isinstance(term, Sum):
            flat.extend((sign * inner, t) for inner, t in term.terms)
        else:
            flat.append((sign, term))
    return Sum(tuple(flat))


def whole(pattern: Pattern) -> Pattern:
    """A sum that matches sums of just these terms, not longer ones."""
    if not isinstance(pattern, Sum):
        raise RuleError(f"{place()}: only a sum can match among more terms, so that whole({pattern!r}) says nothing")
    return Sum(pattern.terms, True)


def op(name: str, *args: object, attrs: object = None) -> Pattern:
    """An operator of the table by name, such as ``op("rsqrt", x)`` or ``op("softmax", x, attrs=axis)``.

    Raises ``RuleError``, with file and line, for a name that is neither in the table nor ``matmul``, for another
    number of tensors than it takes, and for an attribute of another type.
    """
    if not isinstance(name, str) or (name != "matmul" and (name not in OPS or name in LEAVES)):
        known = [known for known in OPS if known not in LEAVES]
        near = difflib.get_close_matches(str(name), known)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise RuleError(f"{place()}: unknown operator {name!r} in a pattern; {hint}the table has {', '.join(known)}")
    arity = 2 if name == "matmul" else OPS[name].arity or OF_KIND.get(OPS[name].kind, len(args))
    if len(args) != arity:
        raise RuleError(f"{place()}: {name} takes {arity} tensor{'s' * (arity > 1)} in a pattern, not {len(args)}")
    if name == "add_n":
        raise RuleError(f"{place()}: sums in a pattern are written with + and -, or eqsat.rules.signed, not add_n")
    if name in ("add", "sub"):
        a, b = args
        return signed((1, _lift(a)), (1 if name == "add" else -1, _lift(b)))
    if name == "matmul":
        return Apply(name, tuple(_lift(a) for a in args), attrs)
    return Apply(name, tuple(_lift(a) for a in args), _fitting(name, OPS[name].attrs if attrs is None else attrs))


def _fitting(name: str, attrs: object) -> object:
    """The attribute of an operator; ``RuleError`` for one of another type than its."""
    wanted = attribute_of(name)
    if wanted is not None and not isinstance(attrs, Attribute) and not wanted[1](attrs):
        raise RuleError(
            f"{place()}: {name} in a pattern needs an attribute variable (eqsat.rules.attributes) or {wanted[0]}, "
            f"not {attrs!r}"
        )
    return attrs


LEAVES = ("input", "const")
"""What variables stand for."""

OF_KIND = {"view": 1, "reduce": 1, "pad": 1, "contract": 2, "gather": 2}
"""How many tensors operators of a kind take."""


def contract(a: object, b: object, spec: object) -> Pattern:
    """A contraction of two factors; ``spec`` is an attribute variable or a ``Spec``."""
    return op("contract", a, b, attrs=spec)


def view(x: object, map: object) -> Pattern:
    """A view; ``map`` is an attribute variable or a ``ViewMap``."""
    return op("view", x, attrs=map)


def concat(parts: Sequence[object], axis: object = 0) -> Pattern:
    """A concatenation of just these patterns (``Parts`` is one of any) along an axis: an int, which counts from the
    end where it is negative, or an attribute variable."""
    if not isinstance(parts, (tuple, list)) or not parts:
        raise RuleError(f"{place()}: a concatenation in a pattern is of a sequence of patterns, not {parts!r}")
    return Joined(tuple(_lift(part) for part in parts), _fitting("concat", axis))


def _axis(axis: object) -> object:
    if isinstance(axis, Attribute):
        return axis
    if axis is None:
        return Attribute(f"_axes{next(_fresh)}")
    return (axis,) if isinstance(axis, int) else tuple(axis) if isinstance(axis, (tuple, list)) else axis


def reduction(kind: str, x: object, axis: object = None, keepdims: bool = False) -> Pattern:
    """A reduction over axes: an attribute variable, ints, or None for any axes."""
    if kind not in OPS or OPS[kind].kind != "reduce":
        known = ", ".join(name for name, row in OPS.items() if row.kind == "reduce")
        raise RuleError(f"{place()}: unknown reduction {kind!r} in a pattern; there are {known}")
    reduced = Apply(kind, (_lift(x),), _fitting(kind, _axis(axis)))
    return Expanded(reduced) if kept(keepdims) else reduced

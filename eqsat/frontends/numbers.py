"""Python numbers that are data of a program: they take the types of the arrays they meet, and compute as Python does.

Python raises where NumPy would go on: for a division by 0, or a power that is too large. Such cases are branches
(:mod:`eqsat.frontends.guards`), which NumPy runs. Integers stay where 64 bits hold them: each has a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from eqsat.errors import ConcretizationError
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray, TracedNumber
from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.ir.types import float64, int64

LIMIT = 1 << 31
"""Integers of a larger magnitude are part of the program."""

_EXACT = 1 << 53
_NAMES = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}
_COMPARED = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}
_ADVICE = "this number changes from call to call: pass it as an array, or let the function do without its value"


def refused(what: str) -> NoReturn:
    raise ConcretizationError(f"{what} of a Python number is asked for: {_ADVICE}", user_line())


class WeakNumber(TracedNumber):
    """A Python number, ``weak`` its type; an integer is of ``limit`` at most."""

    __slots__ = ("limit", "weak")
    weak: type

    def __init__(self, node: Node, weak: type, limit: int = LIMIT) -> None:
        super().__init__(node)
        self.weak = weak
        self.limit = limit

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``isinstance(x, float)`` holds as when NumPy runs the function."""
        return self.weak

    def __neg__(self) -> WeakNumber:
        return WeakNumber(build.call("neg", self.node), self.weak, self.limit)

    def __pos__(self) -> WeakNumber:
        return self

    def __abs__(self) -> WeakNumber:
        return WeakNumber(build.call("abs", self.node), self.weak, self.limit)

    def __int__(self) -> int:
        refused("the int value")

    def __float__(self) -> float:
        refused("the float value")

    def __index__(self) -> int:
        refused("the integer value")

    def __str__(self) -> str:
        refused("the text")

    def __round__(self, ndigits: int | None = None) -> Any:
        refused("the rounded value")

    def __format__(self, spec: str) -> str:
        refused("the text")


def _number(value: object) -> bool:
    return isinstance(value, WeakNumber) or type(value) in (int, float, bool)


def _kind(value: Any) -> type:
    return value.weak if isinstance(value, WeakNumber) else int if type(value) is bool else type(value)


def _limit(value: Any) -> int:
    return value.limit if isinstance(value, WeakNumber) else abs(int(value))


def _node(value: Any, kind: type) -> Node:
    dtype = int64 if kind is int else float64
    if isinstance(value, WeakNumber):
        return build.cast(value.node, dtype)
    return build.const(np.asarray(kind(value), dtype.numpy), dtype)


def _bounded(limit: int) -> int:
    if limit >= 1 << 63:
        refused("an integer of more than 64 bits")
    return limit


def _holds(name: str, a: Any, b: Any) -> TracedNumber:
    """A comparison, as a truth value of the program."""
    kind = int if _kind(a) is int and _kind(b) is int else float
    if any(_kind(v) is int and _limit(v) > (_EXACT if kind is float else (1 << 63) - 1) for v in (a, b)):
        refused("a comparison of a large integer")
    return TracedNumber(build.call(_COMPARED[name], _node(a, kind), _node(b, kind)))


def _divisor(value: Any) -> None:
    """``ZeroDivisionError`` as Python raises it."""
    if bool(_holds("eq", value, 0)) if isinstance(value, WeakNumber) else value == 0:
        raise ZeroDivisionError("division by zero")


def _computed(name: str, a: Any, b: Any) -> Any:
    if name == "pow":
        return _power(a, b)
    if name in ("truediv", "floordiv", "mod"):
        _divisor(b)
    if _kind(a) is int and _kind(b) is int:
        x, y = _limit(a), _limit(b)
        if name == "truediv":
            if max(x, y) > _EXACT:
                refused("a quotient of large integers")
            return WeakNumber(build.call("div", _node(a, float), _node(b, float)), float)
        limit = {"add": x + y, "sub": x + y, "mul": x * y, "floordiv": x, "mod": y}[name]
        _bounded(max(limit, x, y))
        return WeakNumber(build.call(_NAMES[name], _node(a, int), _node(b, int)), int, limit)
    if name in ("floordiv", "mod"):
        refused("a remainder")
    return WeakNumber(build.call(_NAMES[name], _node(a, float), _node(b, float)), float)


def _power(a: Any, b: Any) -> Any:
    if _kind(a) is int and _kind(b) is int:
        if isinstance(b, WeakNumber) or b != 2:
            refused("a power of an integer")
        return _computed("mul", a, a)
    whole = not isinstance(b, WeakNumber) and float(b).is_integer()
    if not whole and (bool(_holds("le", a, 0)) if isinstance(a, WeakNumber) else a <= 0):
        refused("a power of a negative number")
    found = build.call("pow", _node(a, float), _node(b, float))
    if not bool(TracedNumber(build.call("isfinite", found))):
        refused("a power that is not finite")
    return WeakNumber(found, float)


def _operator(name: str, compute: Callable[[str, Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    dunder = f"__{'r' if reflected else ''}{name}__"
    other_one = getattr(TracedArray, dunder)

    def run(self: WeakNumber, other: Any) -> Any:
        if not _number(other):
            return NotImplemented if other is None else other_one(self, other)
        return compute(name, other, self) if reflected else compute(name, self, other)

    run.__name__ = dunder
    return run


for _name in (*_NAMES, "pow"):
    _plain = _operator(_name, _computed, False)
    setattr(WeakNumber, f"__{_name}__", _plain)
    setattr(WeakNumber, f"__i{_name}__", _plain)  # a new number, as of any that is not changed in place
    setattr(WeakNumber, f"__r{_name}__", _operator(_name, _computed, True))
for _name in _COMPARED:
    setattr(WeakNumber, f"__{_name}__", _operator(_name, _holds, False))


def number(value: Any, kind: type) -> Any:
    """A 0-d array as the Python number that it stands for; a traced one as a number of the program."""
    return WeakNumber(value.node, kind) if isinstance(value, TracedArray) else kind(value.item())

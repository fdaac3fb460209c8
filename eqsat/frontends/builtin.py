"""Python's ``max`` and ``min`` of traced scalars, in place of the built-in ones in the function that is traced.

These would ask for truth values, of which each is a branch. The first of the greatest is chosen as Python does, so that
NaN, which is neither more nor less than anything, stays where it is first and is passed over where it is not.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat.frontends.convert import is_weak, known_dtype, lift
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build
from eqsat.ir.node import LINE
from eqsat.ir.types import DType

MOST = 64
"""Operands of one call."""


def _common(items: Sequence[Any]) -> DType | None:
    """The element type of whichever is chosen; None where it depends on which."""
    if not any(isinstance(item, TracedArray) and item.known is None for item in items):
        return None
    own = set()
    for item in items:
        if isinstance(item, np.generic) or (isinstance(item, TracedArray) and item.is_scalar):
            own.add(item.dtype)
        elif not is_weak(item):
            return None
    if len(own) != 1:
        return None
    (dtype,) = own
    if dtype.kind == "c" or not all(_exact(item, dtype) for item in items if is_weak(item)):
        return None
    return known_dtype(dtype)


def _exact(number: Any, dtype: np.dtype) -> bool:
    """Whether an array of this type holds exactly this Python number, and meeting it does not change its own type."""
    if isinstance(number, complex) or np.result_type(number, dtype) != dtype:
        return False
    try:
        return bool(dtype.type(number).item() == number)
    except OverflowError:
        return False


def _choosing(original: Callable[..., Any], compare: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not args:
            return original(*args, **kwargs)
        items = list(args[0]) if len(args) == 1 else list(args)
        dtype = _common(items) if 1 < len(items) <= MOST else None
        if dtype is None:
            return original(items, **kwargs)
        before = LINE.set(user_line())
        try:
            best, *others = [lift(item, dtype) for item in items]
            for other in others:
                best = build.call("where", build.call(compare, other, best), other, best)
            return TracedArray(best)
        finally:
            LINE.reset(before)

    return choose


_CHOOSING = {"max": _choosing(max, "gt"), "min": _choosing(min, "lt")}
ORIGINALS: dict[int, Any] = {id(made): vars(builtins)[name] for name, made in _CHOOSING.items()}
"""The built-in functions, by the identity of what stands for them."""


def builtin(name: str) -> Any:
    """What a name means that no module has given another meaning; ``KeyError`` if nothing."""
    found = _CHOOSING.get(name)
    return vars(builtins)[name] if found is None else found

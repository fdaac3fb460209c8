"""Known arrays: those of which nothing depends on the arguments. NumPy itself computes with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT, Unsized
from eqsat.ir.types import COMPUTED, complex64, complex128

_TYPES = frozenset(np.dtype(d.name) for d in (*COMPUTED, complex64, complex128))
_WRITES = (np.copyto, np.put, np.put_along_axis, np.fill_diagonal, np.putmask, np.place)
"""The functions of NumPy that write to their first argument."""


def writes(function: object) -> bool:
    """Whether a function of NumPy is there to change its first argument."""
    method = isinstance(getattr(function, "__self__", None), np.ufunc) and getattr(function, "__name__", "") == "at"
    return method or function in _WRITES


PART = "writing to a part of a complex array is not supported: assign to x.real or x.imag, or write to the array itself"


def _is_traced(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of an element type may be traced ones."""
    return dtype in _TYPES or dtype.name == "bfloat16"


class Unknown(Exception):
    """Some array among the operands is not known."""


def plain(value: Any) -> Any:
    """Operands with NumPy's arrays for the known traced ones; raises `Unknown` if there is another."""
    if isinstance(value, TracedArray):
        known = value.known
        if known is None:
            raise Unknown
        return known
    if isinstance(value, Unsized):
        raise Unknown
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    return value


def some_traced(value: Any) -> bool:
    """Whether there is a traced array among operands, known or not."""
    if type(value) in (list, tuple):
        return any(some_traced(item) for item in value)
    return isinstance(value, TracedArray)


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, writes: bool = False) -> Any:
    """What NumPy returns for known operands, as known arrays; raises `Unknown` before anything is done."""
    given = plain(args)
    named = {key: plain(value) for key, value in kwargs.items()}
    changed = [args[0]] if writes or function in _WRITES else []
    out = kwargs.get("out")
    changed += list(out) if isinstance(out, tuple) else [out]
    changed = [array for array in changed if isinstance(array, TracedArray)]
    for array in changed:
        array.check_writable()
    result = function(*given, **named)
    for array in changed:
        array.memory.touch()
    return wrapped(result, [*args, *kwargs.values()])


def wrapped(result: Any, operands: Any = ()) -> Any:
    """A result of NumPy's as known arrays; views of an operand share its memory."""
    if type(result) in (list, tuple):
        return type(result)(wrapped(item, operands) for item in result)
    if type(result) is not np.ndarray or not _is_traced(result.dtype) or CURRENT.get() is None:
        return result
    for operand in _arrays(operands):
        if operand.known is result:
            return operand
        base = operand.memory.known
        if result.base is not None and base is not None and _owner(result) is _owner(base):
            if result.dtype == base.dtype:
                return TracedArray.of_known(result, operand)
            made = TracedArray.of_known(result.copy())  # a part of complex numbers
            made.memory.doubt(operand.memory)
            made.memory.protected = PART
            return made
    return TracedArray.of_known(result)


def captured(array: np.ndarray) -> Any:
    """An array from outside the function, which it may read; itself where it cannot be a traced array."""
    if not _is_traced(array.dtype) or not array.flags.forc:
        return array
    made = TracedArray.of_known(array)
    made.memory.protected = (
        "the function writes to an array from outside of it, which a compiled one cannot change: pass it as an "
        "argument, or write to a copy"
    )
    return made


def _arrays(operands: Any) -> list[TracedArray]:
    found: list[TracedArray] = []
    for operand in operands:
        if isinstance(operand, TracedArray):
            found.append(operand)
        elif type(operand) in (list, tuple):
            found.extend(_arrays(operand))
    return found


def _owner(array: Any) -> Any:
    """What a view's elements belong to; of windows that NumPy strides, what is between is no array."""
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array

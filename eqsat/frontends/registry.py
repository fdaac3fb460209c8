"""Which NumPy functions traced arrays have, and how a call of one is run, located and refused."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from eqsat.deadline import OutOfTime
from eqsat.errors import (
    AxisError,
    BoundsError,
    ConcretizationError,
    EqsatError,
    ShapeError,
    SharedMemoryError,
    UnsupportedDTypeError,
    UnsupportedOpError,
)
from eqsat.frontends.source import user_line
from eqsat.ir.node import LINE
from eqsat.ir.types import NotOfThisType

Handler = TypeVar("Handler", bound=Callable[..., Any])

FUNCTIONS: dict[object, Callable[..., Any]] = {}
"""NumPy function -> its implementation on traced arrays."""

_parameters: dict[object, tuple[frozenset[str] | None, int]] = {}
"""Names of an implementation's parameters, None where it takes any, and the place of ``out``, if it has one."""

_SHAPE = "the shape of its result depends on values; "
_WHERE = _SHAPE + "use np.where(condition, a, b)"
_CHOOSE = _SHAPE + "use np.where(condition, x, 0)"
_DATES = "dates and times are no element types of programs"
_FILES = "it writes a file; return the array and write it outside"
_MEMORY = "where arrays lie is not known while the function is traced"
_TEXT = "values are not known while the function is traced; return them and print them outside"
_WRITES = "it writes to its argument, at places that depend on values; "

SIZED: dict[str, str] = {
    "numpy.argwhere": _WHERE,
    "numpy.array_split": _SHAPE + "give the positions as Python numbers",
    "numpy.bincount": "its length depends on values: Python asks for it, which strict=True refuses; it is known of "
    "uint8 with minlength=256",
    "numpy.compress": _CHOOSE,
    "numpy.extract": _CHOOSE,
    "numpy.flatnonzero": _WHERE,
    "numpy.intersect1d": _SHAPE + "use np.isin",
    "numpy.nonzero": _WHERE,
    "numpy.repeat": _SHAPE + "give the counts as Python numbers",
    "numpy.setdiff1d": _SHAPE + "use np.isin",
    "numpy.setxor1d": _SHAPE + "use np.isin",
    "numpy.split": _SHAPE + "give the positions as Python numbers",
    "numpy.trim_zeros": _SHAPE + "call it outside the optimized function",
    "numpy.union1d": _SHAPE + "use np.isin",
    "numpy.unique": _SHAPE + "call it outside the optimized function",
    "numpy.unique_all": _SHAPE + "call it outside the optimized function",
    "numpy.unique_counts": _SHAPE + "call it outside the optimized function",
    "numpy.unique_inverse": _SHAPE + "call it outside the optimized function",
    "numpy.unique_values": _SHAPE + "call it outside the optimized function",
    "numpy.where": _WHERE,
}
"""Functions with results whose shapes depend on values, and what to do instead: steps of programs for calls in which
the shapes are the same, where there may be such programs. Some have an implementation, for calls of another kind."""

REFUSED: dict[str, str] = {
    "numpy.array2string": _TEXT,
    "numpy.array_repr": _TEXT,
    "numpy.array_str": _TEXT,
    "numpy.busday_count": _DATES,
    "numpy.busday_offset": _DATES,
    "numpy.datetime_as_string": _DATES,
    "numpy.einsum_path": "it makes text for people; call it outside the optimized function",
    "numpy.is_busday": _DATES,
    "numpy.isnat": _DATES,
    "numpy.may_share_memory": _MEMORY,
    "numpy.place": _WRITES + "use x[mask] = …, or np.where",
    "numpy.save": _FILES,
    "numpy.savetxt": _FILES,
    "numpy.savez": _FILES,
    "numpy.savez_compressed": _FILES,
    "numpy.shares_memory": _MEMORY,
}
"""Functions that are no step of a program, and why: NumPy runs what calls them."""


def implements(*functions: object) -> Callable[[Handler], Handler]:
    """Register the implementation of NumPy functions (and of any others that call ``__array_function__``)."""

    def add(handler: Handler) -> Handler:
        accepted = inspect.signature(handler).parameters
        names = None if any(p.kind is p.VAR_KEYWORD for p in accepted.values()) else frozenset(accepted)
        by_place = [p.name for p in accepted.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        known = names, by_place.index("out") if "out" in by_place else sys.maxsize
        for function in functions:
            FUNCTIONS[function] = handler
            _parameters[function] = known
        return handler

    return add


def full_name(function: object) -> str:
    module = getattr(function, "__module__", None) or "numpy"
    if module.startswith("numpy._core") or module in ("numpy.lib", "numpy.core"):
        module = "numpy"
    name = getattr(function, "__name__", repr(function))
    if isinstance(function, np.ufunc) and getattr(np, name, None) is not function:
        special = sys.modules.get("scipy.special")
        module = "scipy.special" if getattr(special, name, None) is function else "ufunc"
    public = ".".join(part for part in module.split(".") if not part.startswith("_") or part == module)
    return f"{public}.{name}"


def short_name(function: object) -> str:
    return full_name(function).replace("numpy.", "np.", 1)


def refuse(name: str, why: str = "") -> UnsupportedOpError:
    """The error for a function that traced arrays do not have."""
    full = name.replace("np.", "numpy.", 1)
    advice = why or REFUSED.get(full, "") or SIZED.get(full, "")
    advice = advice or "call it outside the optimized function, or write it with supported operators"
    return UnsupportedOpError(f"{name} is not supported on traced arrays: {advice}", user_line())


def located(name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an implementation: errors it raises carry the user's line."""
    before = LINE.set(user_line())
    try:
        return run(*args, **kwargs)
    except EqsatError as error:
        if error.where is None and LINE.get() is not None:
            error.__init__(error.message, where=LINE.get())  # type: ignore[misc]
        raise
    except np.exceptions.AxisError as error:
        raise AxisError(f"{name}: {error}", LINE.get()) from None
    except IndexError as error:
        raise BoundsError(str(error), LINE.get()) from None
    except OverflowError:
        raise
    except NotOfThisType as error:
        raise UnsupportedDTypeError(str(error), LINE.get()) from None
    except ValueError as error:
        message = str(error)
        said = message.startswith(name.removeprefix("np."))
        raise ShapeError(message if said else f"{name}: {message}", LINE.get()) from None
    finally:
        LINE.reset(before)


def call(function: object, *args: Any, **kwargs: Any) -> Any:
    """Call a NumPy function's implementation on traced arrays; of known ones NumPy's own."""
    from eqsat.frontends.known import Unknown, run
    from eqsat.frontends.operators import all_known

    if all_known(args):
        with contextlib.suppress(Unknown):
            return run(function, args, kwargs)  # type: ignore[arg-type]
    name = short_name(function)
    return attempt(name, function, args, kwargs, _handled, name, function, args, kwargs)


def attempt(
    name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any], *given: Any
) -> Any:
    """What ``run`` makes of a call of a NumPy function; where it refuses, a step in which NumPy runs the function.

    A step has no effect but its result: functions that write to an argument are none.
    """
    from eqsat.frontends.guards import may_guard
    from eqsat.frontends.known import writes
    from eqsat.frontends.opaque import step
    from eqsat.frontends.tracing import CURRENT

    try:
        return located(name, run, *given)
    except SharedMemoryError:  # by values alone no step of NumPy's knows more
        raise
    except (UnsupportedOpError, UnsupportedDTypeError, ConcretizationError) as error:
        sized = full_name(function) in SIZED
        if full_name(function) in REFUSED or writes(function) or (sized and not may_guard(CURRENT.get())):
            raise
        if isinstance(error, ConcretizationError) and not sized:
            raise
        refused = error
    left = {k: v for k, v in kwargs.items() if v is not np._NoValue}
    try:
        return step(function, args, left, name, sized=sized)
    except OutOfTime:
        raise
    except Exception as error:
        # A refusal that knows the function says more than what follows from it.
        if function in FUNCTIONS or isinstance(refused, UnsupportedDTypeError):
            raise refused from error
        raise


def _handled(name: str, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function's implementation on these arguments."""
    handler = FUNCTIONS.get(function)
    if handler is None:
        raise refuse(name)
    names, place = _parameters[function]
    given = {k: v for k, v in kwargs.items() if v is not np._NoValue}
    out = given.pop("out", None)
    if len(args) > place:
        out, args = args[place], (*args[:place], None, *args[place + 1 :])
    if out is not None:
        return located(name, _into, name, out, functools.partial(call, function, *args, **given))
    for key in list(given):
        if names is not None and key not in names:
            default = _default(function, key)
            if default is not inspect.Parameter.empty and (given[key] is default or given[key] is None):
                del given[key]
                continue
            raise UnsupportedOpError(f"{name}: the argument {key!r} is not supported on traced arrays", user_line())
    return handler(*args, **given)


def _into(name: str, out: Any, make: Callable[[], Any]) -> Any:
    from eqsat.frontends.ufuncs import into, out_array

    result = make()
    target = out_array(out, result)
    if target.shape != result.shape and name not in ("np.clip", "np.outer"):  # which are ufuncs: these broadcast
        raise ShapeError(f"{name}: out= has the shape {target.shape}, the result {result.shape}", LINE.get())
    return into(target, result)


def _default(function: object, key: str) -> object:
    try:
        parameter = inspect.signature(function).parameters.get(key)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return inspect.Parameter.empty
    return inspect.Parameter.empty if parameter is None else parameter.default

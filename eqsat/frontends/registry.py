"""Which NumPy functions traced arrays have, and how a call of one is run, located and refused."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from eqsat.errors import BoundsError, EqsatError, ShapeError, UnsupportedOpError
from eqsat.frontends.source import user_line
from eqsat.ir.node import LINE

Handler = TypeVar("Handler", bound=Callable[..., Any])

FUNCTIONS: dict[object, Callable[..., Any]] = {}
"""NumPy function -> its implementation on traced arrays."""

_parameters: dict[object, frozenset[str] | None] = {}

ADVICE: dict[str, str] = {
    "numpy.left_shift": "x << n is x * 2**n in the integer type of x",
    "numpy.right_shift": "x >> n is x // 2**n",
    "numpy.nonzero": "the shape of its result depends on values; use np.where(condition, a, b)",
    "numpy.argwhere": "the shape of its result depends on values; use np.where(condition, a, b)",
    "numpy.flatnonzero": "the shape of its result depends on values; use np.where(condition, a, b)",
    "numpy.unique": "the shape of its result depends on values; call it outside the optimized function",
    "numpy.compress": "the shape of its result depends on values; use np.where(condition, x, 0)",
    "numpy.extract": "the shape of its result depends on values; use np.where(condition, x, 0)",
    "numpy.delete": "use np.concatenate of the slices that stay",
    "numpy.insert": "use np.concatenate of slices and the new part",
    "numpy.median": "use np.sort(x, axis) and take the middle",
    "numpy.quantile": "use np.sort(x, axis) and take the position",
    "numpy.percentile": "use np.sort(x, axis) and take the position",
    "numpy.partition": "use np.sort",
    "numpy.argpartition": "use np.argsort",
    "numpy.apply_along_axis": "write it with whole-array operators",
    "numpy.vectorize": "write it with whole-array operators",
    "numpy.interp": "write it with np.where, or call it outside the optimized function",
    "numpy.convolve": "write it in index notation with @eqsat.op",
    "numpy.correlate": "write it in index notation with @eqsat.op",
}


def implements(*functions: object) -> Callable[[Handler], Handler]:
    """Register the implementation of NumPy functions (and of any others that call ``__array_function__``)."""

    def add(handler: Handler) -> Handler:
        accepted = inspect.signature(handler).parameters.values()
        names = None if any(p.kind is p.VAR_KEYWORD for p in accepted) else frozenset(p.name for p in accepted)
        for function in functions:
            FUNCTIONS[function] = handler
            _parameters[function] = names
        return handler

    return add


def full_name(function: object) -> str:
    module = getattr(function, "__module__", None) or "numpy"
    if module.startswith("numpy._core") or module in ("numpy.lib", "numpy.core"):
        module = "numpy"
    return f"{module}.{getattr(function, '__name__', repr(function))}"


def short_name(function: object) -> str:
    return full_name(function).replace("numpy.", "np.", 1)


def refuse(name: str, why: str = "") -> UnsupportedOpError:
    """The error for a function that traced arrays do not have."""
    advice = why or ADVICE.get(name.replace("np.", "numpy.", 1), "")
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
        raise ShapeError(f"{name}: {error}", LINE.get()) from None
    except IndexError as error:
        raise BoundsError(str(error), LINE.get()) from None
    except OverflowError:
        raise
    except ValueError as error:
        message = str(error)
        said = message.startswith(name.removeprefix("np."))
        raise ShapeError(message if said else f"{name}: {message}", LINE.get()) from None
    finally:
        LINE.reset(before)


def call(function: object, *args: Any, **kwargs: Any) -> Any:
    """Call a NumPy function's implementation on traced arrays; of known ones NumPy's own."""
    from eqsat.frontends.known import Unknown, run
    from eqsat.frontends.tracer import all_known

    if all_known(args):
        with contextlib.suppress(Unknown):
            return run(function, args, kwargs)  # type: ignore[arg-type]
    handler = FUNCTIONS.get(function)
    name = short_name(function)
    if handler is None:
        raise refuse(name)
    names = _parameters[function]
    given = {k: v for k, v in kwargs.items() if v is not np._NoValue}
    for key in list(given):
        if names is not None and key not in names:
            default = _default(function, key)
            if default is not inspect.Parameter.empty and (given[key] is default or given[key] is None):
                del given[key]
                continue
            raise UnsupportedOpError(f"{name}: the argument {key!r} is not supported on traced arrays", user_line())
    return located(name, handler, *args, **given)


def _default(function: object, key: str) -> object:
    try:
        parameter = inspect.signature(function).parameters.get(key)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return inspect.Parameter.empty
    return inspect.Parameter.empty if parameter is None else parameter.default

"""SciPy's functions on traced arrays: some are written in operators, any other is a step that SciPy itself runs.

Most of them ask no protocol of NumPy's. While a function is traced, user code sees stand-ins of them, as of NumPy's
functions that make arrays (``creation``). Only modules that the user has imported are looked at.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from eqsat.frontends import creation, registry
from eqsat.frontends.opaque import holds_traced
from eqsat.frontends.tracing import CURRENT

Handler = TypeVar("Handler", bound=Callable[..., Any])

MODULES = (
    "scipy.special", "scipy.linalg", "scipy.ndimage", "scipy.signal", "scipy.fft", "scipy.spatial.distance",
    "scipy.stats", "scipy.integrate",
)  # fmt: skip
"""Modules whose functions are operators or steps."""

WRITTEN: dict[str, Callable[..., Any]] = {}
"""Full name of a function -> its implementation."""


def writes(*names: str) -> Callable[[Handler], Handler]:
    """Register the implementation of SciPy's functions of these full names."""

    def add(handler: Handler) -> Handler:
        WRITTEN.update(dict.fromkeys(names, handler))
        return handler

    return add


def _standin(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        trace = CURRENT.get()
        if trace is None or trace.thread != threading.get_ident() or not holds_traced((args, kwargs)):
            return function(*args, **kwargs)
        return registry.call(function, *args, **kwargs)

    return run


class _Distribution:
    """A distribution of ``scipy.stats``, whose methods are functions like others."""

    def __init__(self, distribution: Any) -> None:
        self._distribution = distribution

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._distribution, name)
        return _standin(value) if callable(value) else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._distribution(*args, **kwargs)


def _table(module: ModuleType) -> dict[str, Any]:
    """The stand-ins of a module's functions."""
    table: dict[str, Any] = {}
    for name in getattr(module, "__all__", ()):
        value, full = getattr(module, name, None), f"{module.__name__}.{name}"
        if isinstance(value, (np.ufunc, type)) or not callable(value):
            continue
        distributed = not hasattr(value, "__name__")
        for known, handler in WRITTEN.items():
            if distributed and known.startswith(f"{full}."):
                registry.implements(getattr(value, known.removeprefix(f"{full}.")))(handler)
            elif known == full:
                registry.implements(value)(handler)
        table[name] = _Distribution(value) if distributed else _standin(value)
        creation.OF_ORIGINAL.setdefault(id(value), table[name])
    return table


creation.LATER.update(dict.fromkeys(MODULES, _table))

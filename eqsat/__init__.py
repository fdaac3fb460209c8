"""eqsat: an equality-saturation superoptimizer for tensor programs.

>>> import numpy as np, eqsat
>>> @eqsat.optimize
... def f(x, w, b):
...     return np.maximum(x @ w + b, 0)
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eqsat import errors, nn, rules
    from eqsat.api import cache_clear, optimize
    from eqsat.discovery.search import discover
    from eqsat.egraph.verdict import check
    from eqsat.errors import (
        BudgetWarning,
        EqsatError,
        EqsatWarning,
        ForkWarning,
        RecompilationWarning,
        VerificationError,
    )
    from eqsat.explain.report import Explanation
    from eqsat.frontends.control import cond, fori_loop, scan, while_loop
    from eqsat.frontends.convert import asarray
    from eqsat.frontends.opaque import opaque
    from eqsat.frontends.shapes_only import spec
    from eqsat.function import OptimizedFunction
    from eqsat.notation import axes, axis, compute, max, min, op, prod, sum
    from eqsat.operators import elementwise
    from eqsat.rules import rewrite, rewrite_together
    from eqsat.tune import tuning

if "free-threading" in sys.version:
    raise ImportError(
        "eqsat does not support free-threaded CPython: it relies on the interpreter lock where calls share programs "
        "and the memory of results, and on the layout of objects. Use a build with the lock (not 3.13t or 3.14t)"
    )

__version__ = "0.1.0"

# Imported on first use: `import eqsat` itself costs next to nothing.
_HOMES = {
    "optimize": "eqsat.api",
    "OptimizedFunction": "eqsat.function",
    "asarray": "eqsat.frontends.convert",
    "opaque": "eqsat.frontends.opaque",
    "spec": "eqsat.frontends.shapes_only",
    "scan": "eqsat.frontends.control",
    "fori_loop": "eqsat.frontends.control",
    "cond": "eqsat.frontends.control",
    "while_loop": "eqsat.frontends.control",
    "compute": "eqsat.notation",
    "op": "eqsat.notation",
    "elementwise": "eqsat.operators",
    "axis": "eqsat.notation",
    "axes": "eqsat.notation",
    "sum": "eqsat.notation",
    "prod": "eqsat.notation",
    "max": "eqsat.notation",
    "min": "eqsat.notation",
    "check": "eqsat.egraph.verdict",
    "discover": "eqsat.discovery.search",
    "rewrite": "eqsat.rules",
    "rewrite_together": "eqsat.rules",
    "Explanation": "eqsat.explain.report",
    "BudgetWarning": "eqsat.errors",
    "cache_clear": "eqsat.api",
    "tuning": "eqsat.tune",
    "ForkWarning": "eqsat.errors",
    "RecompilationWarning": "eqsat.errors",
    "EqsatError": "eqsat.errors",
    "EqsatWarning": "eqsat.errors",
    "VerificationError": "eqsat.errors",
}
_MODULES = ("errors", "nn", "rules")

__all__ = [
    "BudgetWarning",
    "EqsatError",
    "EqsatWarning",
    "Explanation",
    "ForkWarning",
    "OptimizedFunction",
    "RecompilationWarning",
    "VerificationError",
    "asarray",
    "axes",
    "axis",
    "cache_clear",
    "check",
    "compute",
    "cond",
    "discover",
    "elementwise",
    "errors",
    "fori_loop",
    "max",
    "min",
    "nn",
    "op",
    "opaque",
    "optimize",
    "prod",
    "rewrite",
    "rewrite_together",
    "rules",
    "scan",
    "spec",
    "sum",
    "tuning",
    "while_loop",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _import(f"eqsat.{name}")
    if name in _HOMES:
        value = getattr(_import(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'eqsat' has no attribute {name!r}")


def _import(name: str) -> Any:
    from eqsat.forks import IMPORTING

    with IMPORTING:
        return import_module(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

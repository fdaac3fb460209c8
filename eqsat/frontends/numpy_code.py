"""NumPy's own Python code, run on traced arrays.

Many functions of NumPy are Python over other functions of NumPy, which traced arrays answer. Such a function is traced
as a user's would be: its code with variables in which functions that make arrays of values, and arrays to be written
to, make traced ones. So its results, defaults, types and errors are those of the NumPy that is installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from eqsat.errors import ConcretizationError
from eqsat.frontends import registry
from eqsat.frontends.convert import is_weak
from eqsat.frontends.creation import CREATORS, OF_ORIGINAL
from eqsat.frontends.lookups import interp


class _Shapes:
    """``np.broadcast``: what the shapes of arrays make together."""

    def __init__(self, *arrays: Any) -> None:
        self.shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
        self.ndim = len(self.shape)


class _Converter:
    """What NumPy's code asks of the operands of a function; traced arrays need nothing."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.arrays = tuple(CREATORS["asarray"](value) for value in given)
        self.scalar_input = tuple(isinstance(value, (int, float)) or np.ndim(value) == 0 for value in given)

    def as_arrays(self, subok: bool = True, pyscalars: str = "convert") -> tuple[Any, ...]:
        return tuple(
            value if pyscalars == "preserve" and is_weak(value) else array
            for value, array in zip(self.given, self.arrays, strict=True)
        )

    def __getitem__(self, index: Any) -> Any:
        return self.arrays[index]

    def __len__(self) -> int:
        return len(self.arrays)

    def result_type(self, extra_dtype: Any = None, ensure_inexact: bool = False) -> np.dtype:
        kinds = [value if is_weak(value) else a.dtype for value, a in zip(self.given, self.arrays, strict=True)]
        kinds += [] if extra_dtype is None else [extra_dtype]
        found = np.result_type(*kinds)
        return np.result_type(*kinds, 1.0) if ensure_inexact and found.kind in "biu" else found

    def wrap(self, made: Any, to_scalar: Any = None) -> Any:
        return made


def _replaced() -> dict[int, Any]:
    found: dict[int, Any] = {**OF_ORIGINAL, id(np.broadcast): _Shapes}
    # Some modules keep functions without their protocol.
    bare: tuple[Any, ...] = (np.concatenate, np.size, np.ndim)
    found |= {id(f._implementation): f for f in bare}
    inside: Any = np._core._multiarray_umath  # type: ignore[attr-defined]
    found[id(inside.interp)] = interp
    converter = getattr(inside, "_array_converter", None)
    return found if converter is None else {**found, id(converter): _Converter}


_REPLACED = _replaced()


class _Module:
    """A module as the code sees it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return _seen(getattr(self._module, name), {})


def _seen(value: Any, home: dict[str, Any]) -> Any:
    if isinstance(value, ModuleType):
        return _Module(value)
    if isinstance(value, FunctionType) and value.__globals__ is home:
        return _copy(value)
    return _REPLACED.get(id(value), value)


class _Variables(dict[str, Any]):
    """The variables of a module of NumPy, each as the code sees it."""

    def __init__(self, home: dict[str, Any]) -> None:
        super().__init__({"__builtins__": home["__builtins__"], "__name__": home["__name__"]})
        self._home = home

    def __missing__(self, name: str) -> Any:
        value = _seen(self._home[name], self._home)
        self[name] = value
        return value

    def __getitem__(self, name: str) -> Any:  # asked for by code in whose globals it is
        return super().__getitem__(name) if name in self else self.__missing__(name)


_variables: dict[int, _Variables] = {}


@functools.cache
def _copy(function: FunctionType) -> FunctionType:
    home = function.__globals__
    scope = _variables.setdefault(id(home), _Variables(home))
    made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def by_its_code(function: Any) -> Callable[..., Any]:
    """A function of NumPy as its Python code defines it; refused where that asks for values."""
    code = _copy(function._implementation)

    @functools.wraps(function._implementation)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return code(*args, **kwargs)
        except ConcretizationError as error:
            why = "NumPy looks at values here; call it outside the optimized function"
            raise registry.refuse(registry.short_name(function), why) from error

    return run


FUNCTIONS = (
    np.angle, np.apply_along_axis, np.apply_over_axes, np.block, np.corrcoef, np.cov, np.cross, np.delete,
    np.diag_indices_from, np.diff, np.digitize, np.dsplit, np.ediff1d, np.fix, np.geomspace, np.gradient, np.i0,
    np.insert, np.iscomplex, np.isneginf, np.isposinf, np.isreal, np.interp, np.linalg.cross, np.logspace,
    np.polyadd, np.polyder, np.polyint, np.polysub, np.polyval, np.real_if_close,
    np.resize, np.sinc, np.trapezoid, np.tril_indices_from, np.triu_indices_from, np.unwrap, np.vander,
    np.common_type, np.cumulative_prod, np.cumulative_sum, np.fft.fftshift, np.fft.ifftshift,
)  # fmt: skip

for _function in FUNCTIONS:
    registry.implements(_function)(by_its_code(_function))

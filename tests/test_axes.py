"""What each function with an axis does on 0-d and 1-d arrays is what NumPy does, also where NumPy raises."""

from __future__ import annotations

import functools
import inspect
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import eqsat
from eqsat.errors import AxisError, ConcretizationError, EqsatError, ShapeError, UnsupportedOpError
from eqsat.frontends.registry import FUNCTIONS
from eqsat.frontends.trace import run_by_reference

AXES: list[Any] = [None, 0, -1, 1, -2, (), (0,), (-1,), (0, 0), [0]]
ARRAYS = {"0-d": np.array(2.5), "1-d": np.array([3.0, 1.0, 2.0]), "one": np.array([4.0])}
FUNCTIONS_OF_AXIS = """
    sum prod max amax min amin any all argmax argmin mean var std ptp count_nonzero nansum nanmean cumsum cumprod sort
    argsort expand_dims squeeze flip size diff average nanprod nancumsum nancumprod nanmax nanmin nanvar nanstd
    cumulative_sum cumulative_prod median
"""
KEEP_DIMENSIONS = "sum max any argmax argmin mean std ptp count_nonzero nansum nanmean average median"
METHODS = "sum prod max min mean var std any all argmax argmin cumsum cumprod argsort squeeze"


def function(name: str, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda x, axis: getattr(np, name)(x, axis=axis, **options)


def method(name: str) -> Callable[[Any, Any], Any]:
    return lambda x, axis: getattr(x, name)(axis=axis)


def largest_removed(x: Any, axis: Any) -> Any:
    y = np.copy(x)
    np.put_along_axis(y, np.argmax(x, axis=axis, keepdims=True), 0, axis=axis)
    return y


GIVEN: dict[str, Callable[[Any, Any], Any]] = {
    **{name: function(name) for name in FUNCTIONS_OF_AXIS.split()},
    **{f"{name} keepdims": function(name, keepdims=True) for name in KEEP_DIMENSIONS.split()},
    **{f"x.{name}": method(name) for name in METHODS.split()},
    "stable argsort": lambda x, axis: np.argsort(x, axis=axis, kind="stable"),
    "transpose": lambda x, axis: np.transpose(x, axis),
    "permute_dims": lambda x, axis: x.transpose(axis),
    "moveaxis": lambda x, axis: np.moveaxis(x, axis, 0),
    "put_along_axis": lambda x, axis: largest_removed(x, axis),
    "moveaxis to": lambda x, axis: np.moveaxis(x, 0, axis),
    "swapaxes": lambda x, axis: np.swapaxes(x, axis, 0),
    "rollaxis": lambda x, axis: np.rollaxis(x, axis),
    "roll": lambda x, axis: np.roll(x, 1, axis),
    "repeat": lambda x, axis: np.repeat(x, 3, axis),
    "x.repeat": lambda x, axis: x.repeat(2, axis),
    "repeat each": lambda x, axis: np.repeat(x, [2] * max(1, x.size), axis),
    "take": lambda x, axis: np.take(x, 0, axis),
    "take several": lambda x, axis: np.take(x, np.array([0, -1]), axis),
    "take out of range": lambda x, axis: np.take(x, np.array([[5]]), axis, mode="clip"),
    "x.take": lambda x, axis: x.take([0], axis),
    "take_along_axis": lambda x, axis: np.take_along_axis(x, np.zeros(x.shape, np.int64), axis),
    "take_along_axis 1-d": lambda x, axis: np.take_along_axis(x, np.array([0, 0]), axis),
    "concatenate": lambda x, axis: np.concatenate([x, x], axis=axis),
    "stack": lambda x, axis: np.stack([x, x * 2], axis=axis),
    "append": lambda x, axis: np.append(x, x, axis),
    "split": lambda x, axis: np.split(x, 1, axis),
    "array_split": lambda x, axis: np.array_split(x, 2, axis),
    "unstack": lambda x, axis: np.unstack(x, axis=axis),
    "vecdot": lambda x, axis: np.vecdot(x, x, axis=axis),
    "linalg.vecdot": lambda x, axis: np.linalg.vecdot(x, x, axis=axis),
    "tensordot": lambda x, axis: np.tensordot(x, x, (axis, axis)),
    "diagonal": lambda x, axis: np.diagonal(x, 0, axis, 0),
    "trace": lambda x, axis: np.trace(x, 0, axis, 0),
    "rot90": lambda x, axis: np.rot90(x, 1, (axis, 0)),
    "norm": lambda x, axis: np.linalg.norm(x, axis=axis),
    "norm 1": lambda x, axis: np.linalg.norm(x, 1, axis=axis),
    "norm keepdims": lambda x, axis: np.linalg.norm(x, axis=axis, keepdims=True),
    "vector_norm": lambda x, axis: np.linalg.vector_norm(x, axis=axis),
    "vector_norm keepdims": lambda x, axis: np.linalg.vector_norm(x, axis=axis, keepdims=True),
    "softmax": lambda x, axis: special.softmax(x, axis=axis),
    "log_softmax": lambda x, axis: special.log_softmax(x, axis=axis),
    "logsumexp": lambda x, axis: special.logsumexp(x, axis=axis),
    "add.reduce": lambda x, axis: np.add.reduce(x, axis=axis),
    "maximum.reduce": lambda x, axis: np.maximum.reduce(x, axis=axis, keepdims=True),
    "compress": lambda x, axis: np.compress([True], x, axis=axis),
    "linspace": lambda x, axis: np.linspace(x, x + 1, 3, axis=axis),
    "geomspace": lambda x, axis: np.geomspace(x, x + 1, 3, axis=axis),
    "logspace": lambda x, axis: np.logspace(x, x + 1, 3, axis=axis),
    "apply_along_axis": lambda x, axis: np.apply_along_axis(np.sum, axis, x),
    "apply_over_axes": lambda x, axis: np.apply_over_axes(np.sum, x, axis),
    "cross": lambda x, axis: np.cross(x, x + 1, axis=axis),
    "delete": lambda x, axis: np.delete(x, 0, axis),
    "insert": lambda x, axis: np.insert(x, 0, 5.0, axis),
    "gradient": lambda x, axis: np.gradient(x, axis=axis),
    "trapezoid": lambda x, axis: np.trapezoid(x, axis=axis),
    "unwrap": lambda x, axis: np.unwrap(x, axis=axis),
    "fftshift": lambda x, axis: np.fft.fftshift(x, axis),
    "ifftshift": lambda x, axis: np.fft.ifftshift(x, axis),
    "sliding_window_view": lambda x, axis: np.lib.stride_tricks.sliding_window_view(x, 1, axis),
    "add.accumulate": lambda x, axis: np.add.accumulate(x, axis=axis),
}
KINDER = {("roll", "0-d", "()"), *((f"{i}fftshift", "0-d", axes) for i in ("", "i") for axes in ("None", "()"))}
"""Where NumPy raises by an oversight: nothing is asked for, and given."""


def of(run: Callable[[], Any]) -> Any:
    """A result as a list of arrays, or the error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            result = run()
        except ConcretizationError:
            raise
        except Exception as error:
            return error
    return [np.asarray(r) for r in result] if isinstance(result, (tuple, list)) else [np.asarray(result)]


def alike(want: Any, got: Any) -> bool:
    if isinstance(want, np.exceptions.AxisError):
        refused = isinstance(got, (ShapeError, UnsupportedOpError))  # what is not supported NumPy runs, which raises
        return refused or "accumulate" in str(got)
    if isinstance(want, Exception) or isinstance(got, Exception):
        return isinstance(want, Exception) and isinstance(got, (EqsatError, TypeError, ValueError))
    return len(want) == len(got) and all(
        a.shape == b.shape and a.dtype == b.dtype and np.allclose(a, b, equal_nan=True)
        for a, b in zip(want, got, strict=True)
    )


@pytest.mark.parametrize("name", GIVEN)
def test_axes_of_small_arrays(name: str) -> None:
    differ = []
    for (rank, x), axis in itertools.product(ARRAYS.items(), AXES):
        run = functools.partial(GIVEN[name], axis=axis)
        want, got = of(functools.partial(run, x.copy())), of(functools.partial(run_by_reference, run, (x,), {}))
        if not alike(want, got) and (name, rank, str(axis)) not in KINDER:
            differ.append(f"{rank}, axis {axis}: NumPy {want!r}, traced {got!r}")
    assert not differ, "\n".join(differ)


def test_every_function_of_numpy_with_an_axis_is_in_the_table() -> None:
    def is_axis(parameter: str) -> bool:
        return parameter in ("axis", "axes", "axis1")

    named = {word for name in GIVEN for word in name.replace(".", " ").split()}
    missing = [
        f
        for f, handler in FUNCTIONS.items()
        if f.__module__.startswith("numpy")  # of the others there are those whose modules some test imports
        and any(map(is_axis, inspect.signature(handler).parameters))
        and f.__name__ not in named
    ]
    assert not missing


def test_who_catches_numpys_error_of_an_axis_catches_ours() -> None:
    says = r"axis 2 is out of bounds for array of dimension 2\n  at .*test_axes\.py"
    for kind in (np.exceptions.AxisError, IndexError, ValueError, ShapeError):
        with pytest.raises(kind, match=says) as found:
            eqsat.optimize(lambda x: x.sum(axis=2), strict=True)(np.ones((2, 3)))
        copied = pickle.loads(pickle.dumps(found.value))
        assert type(copied) is AxisError and str(copied) == str(found.value)

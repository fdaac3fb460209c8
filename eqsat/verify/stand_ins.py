"""What random programs call besides NumPy, written in NumPy, and modules whose functions take wider numbers.

The reference is evaluated with these; the program that is tested calls eqsat's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from eqsat.verify.image_stand_ins import IMAGES

WIDE = np.dtype(np.longdouble)
"""Type of the reference evaluation: float64 needs one wider than itself, which shows NumPy's own error. 80 or 128 bits;
where the C compiler's ``long double`` is a float64, NumPy's error in float64 programs is not seen."""
WIDE_COMPLEX = np.dtype(np.clongdouble)
_KNOWN: dict[np.dtype[Any], np.dtype[Any]] = {WIDE: np.dtype(np.float64), WIDE_COMPLEX: np.dtype(np.complex128)}


class Widened:
    """A module whose functions take ``WIDE`` numbers: those that have no such loops compute in float64."""

    def __init__(self, module: object) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name)
        if isinstance(found, ModuleType):
            return Widened(found)
        if isinstance(found, type) or not callable(found) or (self.module is np and isinstance(found, np.ufunc)):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return found(*arguments, **options)
            except TypeError:
                if not any(_known(x) is not x for x in arguments):
                    raise
            return found(*map(_known, arguments), **options)

        return call


def _known(value: Any) -> Any:
    """An argument in a type that all functions have loops for."""
    dtype = _KNOWN.get(getattr(value, "dtype", None))  # type: ignore[arg-type]
    return value if dtype is None else np.asarray(value, dtype)


def _softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def _log_softmax(x: Any, axis: int = -1) -> Any:
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def _layer_norm(x: Any, scale: Any, shift: Any, eps: float = 1e-5) -> Any:
    centered = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centered * centered, axis=-1, keepdims=True)
    return centered / np.sqrt(variance + eps) * scale + shift


def _rms_norm(x: Any, scale: Any, eps: float = 1e-5) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def _gelu(x: Any, approximate: bool = False) -> Any:
    from scipy import special

    if approximate:
        return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + Widened(special).erf(x * 0.7071067811865476).astype(x.dtype))


def _sigmoid(x: Any) -> Any:
    from scipy.special import expit

    return expit(x).astype(x.dtype)  # SciPy's functions of float16 are float64


NN = SimpleNamespace(
    softmax=_softmax,
    log_softmax=_log_softmax,
    layer_norm=_layer_norm,
    rms_norm=_rms_norm,
    gelu=_gelu,
    silu=lambda x: x * _sigmoid(x),
    sigmoid=_sigmoid,
    relu=lambda x: np.maximum(x, 0),
    **IMAGES,
)
"""``eqsat.nn`` written out in NumPy, as the reference."""


def _carried(value: Any) -> Any:
    """As loops carry it, and branches return it: copies in row-major order, which share memory with nothing.

    Scalars where there are no axes, but for arrays whose functions round at random.
    """
    if isinstance(value, tuple):
        return tuple(map(_carried, value))
    if not isinstance(value, np.ndarray):
        return value.copy()
    copied = np.array(value, order="C", subok=True)
    return copied[()] if type(copied) is np.ndarray else copied


def _scan(f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, *, reverse: bool = False) -> tuple[Any, Any]:
    carry, rows = _carried(init), []
    for x in reversed(xs) if reverse else xs:
        carry, y = f(carry, x)
        carry = _carried(carry)
        rows.append(np.array(y, subok=True))
    return carry, np.stack(rows[::-1] if reverse else rows)


def _fori_loop(lower: int, upper: int, body: Callable[[Any, Any], Any], init: Any) -> Any:
    value = _carried(init)
    for i in range(lower, upper):
        value = _carried(body(np.int64(i), value))
    return value


def _while_loop(holds: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    value = _carried(init)
    while holds(value):
        value = _carried(body(value))
    return value


LOOPS = SimpleNamespace(
    scan=_scan,
    fori_loop=_fori_loop,
    while_loop=_while_loop,
    cond=lambda holds, f, g, *operands: _carried((f if holds else g)(*operands)),
    opaque=lambda function: function,
)
"""The loops of ``eqsat`` as Python's."""

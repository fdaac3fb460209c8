"""What an array is rather than what it holds: shape, element type, real and imaginary parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eqsat.frontends.convert import listed, normalize_axes, traced, zeros
from eqsat.frontends.known import PART
from eqsat.frontends.registry import implements
from eqsat.frontends.tracer import TracedArray


@implements(np.shape)
def shape(a: Any) -> tuple[int, ...]:
    return traced(a).shape


@implements(np.ndim)
def ndim(a: Any) -> int:
    return traced(a).ndim


@implements(np.size)
def size(a: Any, axis: Any = None) -> int:
    x = traced(a)
    return math.prod(x.shape[i] for i in normalize_axes(listed(axis), x.ndim))


@implements(np.result_type)
def result_type(*values: Any) -> np.dtype:
    return np.result_type(*(v.dtype if isinstance(v, TracedArray) else v for v in values))


@implements(np.can_cast)
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(from_.dtype if isinstance(from_, TracedArray) else from_, to, casting)


@implements(np.iscomplexobj)
def iscomplexobj(x: Any) -> bool:
    return bool(traced(x).dtype.kind == "c")


@implements(np.isrealobj)
def isrealobj(x: Any) -> bool:
    return not iscomplexobj(x)


@implements(np.real)
def real(val: Any) -> Any:
    x = traced(val)
    return _part(x, 0) if x.dtype.kind == "c" else val


@implements(np.imag)
def imag(val: Any) -> Any:
    x = traced(val)
    return _part(x, 1) if x.dtype.kind == "c" else TracedArray(zeros(x.shape, x.node.dtype))


def _part(x: TracedArray, number: int) -> TracedArray:
    """The real or imaginary parts, which lie in the memory of ``x`` and are not written through."""
    made = TracedArray(x.node.inputs[number])
    made.memory.doubt(x.memory)
    made.memory.protected = PART
    return made

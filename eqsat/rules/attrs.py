"""What the attribute of an operator in a pattern is, where it is no variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from eqsat.ir.joins import PadAttrs
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.ir.types import DType
from eqsat.ir.views import ViewMap

Wanted = tuple[str, Callable[[object], bool]]
"""In words, and as a test."""


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_axes(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_int, value))


def _is_axis(value: object) -> bool:
    return _is_int(value) and value >= 0


def _is_epsilon(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


EPSILON: Wanted = "what is added to the variance, a number", _is_epsilon

AXIS: Wanted = "an axis, an int from the left", _is_axis
NONE: Wanted = "none", lambda value: value is None

ATTRIBUTES: dict[str, Wanted] = {
    "cast": ("an element type (eqsat.ir.types)", lambda value: isinstance(value, DType)),
    "contract": ("a Spec", lambda value: isinstance(value, Spec)),
    "view": ("a ViewMap", lambda value: isinstance(value, ViewMap)),
    "pad": ("PadAttrs", lambda value: isinstance(value, PadAttrs)),
    "gather": AXIS,
    "softmax": AXIS,
    "log_softmax": AXIS,
    "concat": ("an axis, which is an int", _is_int),
    "reduce": ("axes, which are a tuple of ints", _is_axes),
    "wrap_index": ("an extent, which is an int", _is_axis),
    "layer_norm": EPSILON,
    "rms_norm": EPSILON,
}
"""By operator or kind of operator."""


def attribute_of(name: str) -> Wanted | None:
    """What an operator takes, None where that is for its type rule to say."""
    row = OPS[name]
    if row.sorts or row.running:
        return AXIS
    found = ATTRIBUTES.get(name) or ATTRIBUTES.get(row.kind)
    return NONE if found is None and row.kind == "map" and row.attrs is None else found

"""What options of NumPy's functions and methods may say in a pattern; ``RuleError`` for anything else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from eqsat.errors import RuleError
from eqsat.ir.types import DType, dtype_of
from eqsat.rules.place import place


def kept(keepdims: object) -> bool:
    """Whether reduced axes stay."""
    if not isinstance(keepdims, bool):
        raise RuleError(f"{place()}: keepdims is True or False in a pattern, not {keepdims!r}")
    return keepdims


def element_type(given: object) -> DType:
    """What a tensor is cast to."""
    try:
        return dtype_of(given)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise RuleError(f"{place()}: astype({given!r}) in a pattern: {error}") from error


def numpy_call(
    func: Callable[..., Any], args: Sequence[object], kwargs: dict[str, Any], allowed: Sequence[str]
) -> tuple[Any, dict[str, Any]]:
    """The first argument of a call of one of NumPy's functions, and those of its options that patterns have.

    ``RuleError`` for another option: a pattern would be of something else than what it says.
    """
    (_, first), *options = inspect.signature(func).bind(*args, **kwargs).arguments.items()
    others = ", ".join(name for name, value in options if name not in allowed and value is not None)
    if others:
        raise RuleError(
            f"{place()}: np.{func.__name__} in a pattern takes {' and '.join(allowed)}, not {others}; "
            "of another element type it is of x.astype(…)"
        )
    return first, {name: value for name, value in options if name in allowed}

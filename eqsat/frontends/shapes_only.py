"""Arguments that are a shape and an element type: what to compile for before there are arrays."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from eqsat.errors import ShapeError, UnsupportedDTypeError
from eqsat.frontends.pytree import rebuild, tree_of
from eqsat.ir.types import dtype_of

__all__ = ["ArraySpec", "spec", "with_examples"]


@dataclass(frozen=True)
class ArraySpec:
    """Stands for any array of a shape and an element type where a function is compiled, explained or its source shown.

    Made by :func:`spec`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def __repr__(self) -> str:
        return f"eqsat.spec({self.shape}, {self.dtype.name!r})"

    def example(self, rng: np.random.Generator) -> np.ndarray:
        """An array of it: normal numbers, and zeros of integers and booleans, which are indices into anything."""
        made = np.zeros(self.shape, self.dtype)
        if self.dtype.kind in "fc":
            made[...] = rng.standard_normal(self.shape)
        if self.dtype.kind == "c":
            made.imag = rng.standard_normal(self.shape)
        return made


def spec(shape: int | Sequence[int], dtype: DTypeLike = "float64") -> ArraySpec:
    """Any array of this shape and element type, as an argument of ``compile``, ``explain`` and ``source``.

    Raises:
        ShapeError: a shape that no array has.
        UnsupportedDTypeError: an element type that eqsat does not compute with.

    >>> compiled = eqsat.optimize(layer).compile(eqsat.spec((32, 64), "float32"), w, b)
    """
    try:
        extents = tuple(operator.index(n) for n in (shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        raise ShapeError(f"spec: a shape is a sequence of integers, not {shape!r}") from None
    if any(n < 0 for n in extents):
        raise ShapeError(f"spec: the shape {extents} has a negative extent")
    try:
        made = np.dtype(dtype).newbyteorder("=")
        dtype_of(made)
    except TypeError as error:
        raise UnsupportedDTypeError(f"spec: {error}") from None
    return ArraySpec(extents, made)


def with_examples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
    """Arguments with an array for each spec in them, the same ones every time; and these arrays."""
    found: list[Any] = []
    tree = tree_of((args, kwargs), found, lambda value: isinstance(value, ArraySpec))
    if not found:
        return args, kwargs, []
    rng = np.random.default_rng(0)
    examples = [each.example(rng) for each in found]
    args, kwargs = rebuild(tree, examples)
    return args, kwargs, examples

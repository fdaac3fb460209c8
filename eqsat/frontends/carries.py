"""What the carry of a loop or a branch is: its leaves, their types, and that it keeps both from trip to trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import CarryError
from eqsat.frontends.convert import known_dtype
from eqsat.frontends.pytree import Leaf, Static, Tree, leaf_names
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray
from eqsat.ir.types import TensorType

Pytree = Any


def is_leaf(value: Any) -> bool:
    """Whether it is an array or a number, which trips may change."""
    return isinstance(value, (TracedArray, np.ndarray, np.generic, int, float, complex))


def carry_and_result(found: Any, name: str) -> tuple[Any, Any]:
    """What a body returned; ``CarryError`` where that is no pair."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise CarryError(
            f"{name}: the function returns a {type(found).__name__}, not a carry and a result", user_line()
        )
    return found


def check_same(
    name: str,
    trees: Sequence[Tree],
    types: Sequence[Sequence[TensorType]],
    what: str = "the carry is {} before a trip, and {} after it",
    root: str = "carry",
) -> None:
    """``CarryError`` for trees that differ, or leaves of different types."""
    if trees[0] != trees[1]:
        told = [_described(tree) for tree in trees]
        raise CarryError(f"{name}: {what.format(*told)}", user_line())
    for path, one, other in zip(leaf_names(trees[0], root), *types, strict=True):
        if one != other:
            where = "" if path == root else f" ({path})"
            raise CarryError(f"{name}: {what.format(one, other)}{where}", user_line())


def _described(tree: Tree) -> str:
    """The structure in Python's notation."""
    if isinstance(tree, Leaf):
        return "*"
    if isinstance(tree, Static):
        return repr(tree.value)
    inner = [_described(child) for child in tree.children]
    if tree.keys is not None:
        inner = [f"{key!r}: {child}" for key, child in zip(tree.keys, inner, strict=True)]
    return f"{tree.type.__name__}({', '.join(inner)})"


def type_of(value: Any) -> TensorType:
    """Shape and element type of a leaf."""
    if isinstance(value, TracedArray):
        return TensorType(value.shape, known_dtype(value.dtype))
    array = np.asarray(value)
    return TensorType(array.shape, known_dtype(array.dtype))

"""Arguments in containers, taken apart without keys where a call repeats one before it.

Networks are called with hundreds of weights in dicts and lists. To tell of each its shape and element type takes as
long as a small network; that it is the same object takes a few instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from operator import is_
from typing import Any, cast

import numpy as np

from eqsat.frontends.pytree import Branch, Leaf, Static, Tree

Take = Callable[[tuple[Any, ...]], list[Any] | None]
Step = Callable[[Any, list[Any]], bool]


class Taken(list[Any]):
    """Leaves of a call, of which those that are fixed have been found to be the very same objects."""

    __slots__ = ()


def take_again(trees: Sequence[Tree], leaves: Sequence[Any], fixed: Container[int]) -> Take | None:
    """What finds the leaves of positional arguments with these trees, or None where they are others.

    Leaves that are ``fixed``, values that are no tensors and keys have to be the very same objects; any object may be
    in place of another leaf. None where a container is of a type that may give out something else each time, or a leaf
    is no plain array; and where no argument is a container, for then arguments are leaves.
    """
    plain = all(type(leaf) is np.ndarray for leaf in leaves)
    if not plain or not any(isinstance(tree, Branch) for tree in trees):
        return None
    whole = _step(Branch(tuple, None, tuple(trees)), leaves, fixed)
    if whole is None:
        return None
    given = list(leaves)
    for i in range(len(given)):
        if i not in fixed:
            given[i] = None  # it is not kept alive

    def take(args: tuple[Any, ...]) -> list[Any] | None:
        found = Taken(given)
        return found if whole(args, found) else None

    return take


def _step(tree: Branch, leaves: Sequence[Any], fixed: Container[int]) -> Step | None:
    """What checks a container, and puts its leaves that are not fixed where they belong."""
    kind, keys, count = tree.type, tree.keys, len(tree.children)
    if kind is not dict and not (keys is None and (kind is list or issubclass(kind, tuple))):
        return None
    same: list[Any] = []
    free: list[tuple[int, int]] = []
    inner: list[tuple[int, Step]] = []
    for at, child in enumerate(tree.children):
        if isinstance(child, Branch):
            step = _step(child, leaves, fixed)
            if step is None:
                return None
            inner.append((at, step))
        elif isinstance(child, Leaf) and child.index not in fixed:
            free.append((at, child.index))
        else:
            same.append(child.value if isinstance(child, Static) else leaves[child.index])

    def check(value: Any, found: list[Any]) -> bool:
        if type(value) is not kind or len(value) != count:
            return False
        if keys is not None:
            if not all(map(is_, value, keys)):
                return False
            value = tuple(cast("dict[Any, Any]", value).values())
        if not free and not inner:
            return all(map(is_, value, same))
        for at, index in free:
            found[index] = value[at]
        for at, step in inner:
            if not step(value[at], found):
                return False
        return not same or all(map(is_, others(value), same))

    skipped = {at for at, _ in (*free, *inner)}
    rest = [at for at in range(count) if at not in skipped]

    def others(value: Sequence[Any]) -> list[Any]:
        return [value[at] for at in rest]

    return check

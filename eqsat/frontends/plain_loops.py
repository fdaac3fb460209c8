"""Loops outside of tracing: Python runs the body, NumPy computes it.

What is carried without axes is a scalar in every trip and behind the last, as NumPy's functions return it: a body
that is traced once cannot know arrays in the first trip and scalars in the others, whose views are copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eqsat.frontends.carries import carry_and_result, check_same, is_leaf, type_of
from eqsat.frontends.convert import is_weak
from eqsat.frontends.pytree import Static, Tree, rebuild, tree_of


def scan_plain(
    name: str, f: Callable[[Any, Any], Any], init: Any, rows: tuple[Tree, list[np.ndarray]], trips: int, reverse: bool
) -> tuple[Any, Any]:
    """The last carry, and the stacked results of ``trips`` trips over ``rows``."""
    given: list[Any] = []
    tree = tree_of(init, given, is_leaf)
    body = PlainLoop(name, f, tree, given, rows[0])
    if not trips or any(map(is_weak, given)):
        body.try_out([_locked(a[0]) if trips else np.zeros(a.shape[1:], a.dtype) for a in rows[1]])
    carry, kept = body.first(), []
    for number in reversed(range(trips)) if reverse else range(trips):
        carry = body.trip(carry, [_locked(a[number]) for a in rows[1]])
        kept.append([np.array(part) for part in body.parts])
    if reverse:
        kept.reverse()
    if not trips:
        return carry, rebuild(body.made, [np.zeros((0, *np.shape(v)), np.asarray(v).dtype) for v in body.parts])
    return carry, rebuild(body.made, [np.stack(column) for column in zip(*kept, strict=True)])


@dataclass
class PlainLoop:
    """A body that NumPy runs, whose carry begins as ``given``; ``parts`` are what the last trip returned beside it."""

    name: str
    f: Callable[[Any, Any], Any]
    tree: Tree
    given: list[Any]
    rows: Tree
    parts: list[Any] = field(default_factory=list)
    made: Tree = Static(None)  # noqa: RUF009
    checked: bool = False

    def first(self) -> Any:
        """The first carry: the body may write to it, and not to the caller's arrays."""
        return rebuild(self.tree, list(map(own_array, self.given)))

    def trip(self, carry: Any, row: list[Any]) -> Any:
        carry, y = carry_and_result(self.f(carry, rebuild(self.rows, row)), self.name)
        self.parts = []
        self.made = tree_of(y, self.parts, is_leaf)
        if not self.checked:
            self.check(carry)
            self.checked = True
        leaves: list[Any] = []
        tree = tree_of(carry, leaves, is_leaf)
        return rebuild(tree, list(map(_scalar, leaves)))

    def check(self, carry: Any) -> None:
        leaves: list[Any] = []
        after = tree_of(carry, leaves, is_leaf)
        if after == self.tree:  # a number is of the type that the body makes of it
            pairs = zip(self.given, leaves, strict=True)
            self.given = [np.asarray(g, type_of(v).dtype.numpy)[()] if is_weak(g) else g for g, v in pairs]
        check_same(self.name, [self.tree, after], [list(map(type_of, self.given)), list(map(type_of, leaves))])

    def try_out(self, row: list[Any]) -> None:
        """Learn the types of what is given as numbers."""
        self.trip(self.first(), row)
        self.checked = False


def own_array(leaf: Any) -> Any:
    """An array of its own memory; a scalar where it has no axes."""
    return _scalar(np.array(leaf)) if isinstance(leaf, np.ndarray) else leaf


def _scalar(leaf: Any) -> Any:
    """A part of the carry; the element where it is an array without axes."""
    return leaf[()] if isinstance(leaf, np.ndarray) and leaf.ndim == 0 else leaf


def _locked(row: Any) -> Any:
    if isinstance(row, np.ndarray):
        row = row.view()
        row.flags.writeable = False
    return row

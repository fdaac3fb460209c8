"""Loops outside of tracing: Python runs the body, NumPy computes it.

What is carried is a copy in every trip, in row-major order, as a body that is traced once has it: parts share memory
with nothing. Without axes it is a scalar, as NumPy's functions return it, whose views are copies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eqsat.errors import CarryError, UnsupportedDTypeError
from eqsat.frontends.carries import carry_and_result, check_same, is_leaf, type_of
from eqsat.frontends.convert import foreign_meaning, is_weak
from eqsat.frontends.pytree import Static, Tree, rebuild, tree_of
from eqsat.frontends.source import user_line

log = logging.getLogger("eqsat")


def scan_plain(
    name: str,
    f: Callable[[Any, Any], Any],
    init: Any,
    rows: tuple[Tree, list[Any]],
    trips: int,
    reverse: bool = False,
    *,
    stacks: bool = True,
) -> tuple[Any, Any]:
    """The last carry, and the stacked results of ``trips`` trips over ``rows``, if the body has any."""
    given: list[Any] = []
    tree = tree_of(init, given, is_leaf)
    check_plain(name, (*given, *rows[1]))
    arrays = list(map(np.asarray, rows[1]))
    body = PlainLoop(name, f, tree, given, rows[0])
    nothing = [np.zeros(a.shape[1:], a.dtype) for a in arrays]
    order = [*reversed(range(trips))] if reverse else [*range(trips)]
    body.settle([_locked(a[order[0]]) for a in arrays] if trips else nothing)
    if not trips and not stacks:
        return body.first(), None
    if not trips:
        body.trip(body.first(), nothing)
        return body.first(), rebuild(body.made, [np.zeros((0, *np.shape(v)), np.asarray(v).dtype) for v in body.parts])
    carry, kept = body.first(), []
    for number in order:
        carry = body.trip(carry, [_locked(a[number]) for a in arrays])
        kept.append([np.array(part) for part in body.parts])
    if reverse:
        kept.reverse()
    return carry, rebuild(body.made, [np.stack(column) for column in zip(*kept, strict=True)])


def check_plain(name: str, leaves: Iterable[Any]) -> None:
    """``UnsupportedDTypeError`` for masked arrays, matrices and the like, which mean something else than arrays."""
    for leaf in leaves:
        if isinstance(leaf, np.ndarray) and (problem := foreign_meaning(leaf)):
            raise UnsupportedDTypeError(f"{name}: what is given {problem}", user_line())


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
        return rebuild(self.tree, list(map(carried, self.given)))

    def settle(self, row: list[Any]) -> None:
        """Give numbers the types that a trip makes of them, as where it is traced: one that is run before the others.

        NumPy's own where it fails, such as by an index where no trip would be made: what others do, they show.
        """
        if any(map(is_weak, self.given)):
            try:
                self.trip(rebuild(self.tree, [v if is_weak(v) else carried(v) for v in self.given]), row)
            except CarryError:
                raise
            except Exception as error:
                log.debug("%s: the types of numbers are not known: %r", self.name, error)
            self.checked = False

    def trip(self, carry: Any, row: list[Any]) -> Any:
        carry, y = carry_and_result(self.f(carry, rebuild(self.rows, row)), self.name)
        self.parts = []
        self.made = tree_of(y, self.parts, is_leaf)
        leaves: list[Any] = []
        tree = tree_of(carry, leaves, is_leaf)
        if not self.checked:
            self.check(tree, leaves)
            self.checked = True
        return rebuild(tree, list(map(carried, leaves)))

    def check(self, after: Tree, leaves: list[Any]) -> None:
        if after == self.tree:  # a number is of the type that the body makes of it
            pairs = zip(self.given, leaves, strict=True)
            self.given = [np.asarray(g, type_of(v).dtype.numpy)[()] if is_weak(g) else g for g, v in pairs]
        check_same(self.name, [self.tree, after], [list(map(type_of, self.given)), list(map(type_of, leaves))])


def carried(leaf: Any) -> Any:
    """A copy in row-major order, which shares memory with nothing; a NumPy scalar where it has no axes."""
    return leaf if isinstance(leaf, np.generic) else np.array(leaf, order="C", subok=True)[()]


def _locked(row: Any) -> Any:
    if isinstance(row, np.ndarray):
        row = row.view()
        row.flags.writeable = False
    return row

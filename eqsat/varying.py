"""Functions that are called with Python numbers that change: these become inputs of a program."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.deadline import Deadline
from eqsat.frontends.numbers import LIMIT, number
from eqsat.frontends.pytree import ArgSpec, Branch, Key, Leaf, Static, Tree, ends_of_tree, is_tensor, tree_of
from eqsat.frontends.trace import Traced, const_inputs, trace
from eqsat.frontends.tracing import CURRENT
from eqsat.growth import ends_of_key
from eqsat.ir.node import topological
from eqsat.ir.sources import InputAttrs
from eqsat.options import Options

log = logging.getLogger("eqsat")

MOST = 64
"""Kinds of arguments with numbers that change, for which a function is remembered to have programs or none."""


class Varying:
    """A function of which the numbers at ``paths`` are data: ``function`` takes its arrays and these in order."""

    def __init__(
        self,
        spec: ArgSpec,
        fn: Callable[..., Any],
        options: Options,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        paths: frozenset[str],
    ) -> None:
        self.spec = spec
        leaves: list[Any] = []
        whole = [tree_of(v, leaves, _is_leaf) for v in spec.bind(args, kwargs)]
        names = [name for name, end in _ends(spec, whole) if isinstance(end, Leaf)]
        self.taken = [i for i, name in enumerate(names) if is_tensor(leaves[i]) or name in paths]
        self.kinds = [None if is_tensor(leaves[i]) else type(leaves[i]) for i in self.taken]
        place = {i: n for n, i in enumerate(self.taken)}
        trees = [_with(tree, leaves, place) for tree in whole]
        arrays = [names[i] for i in self.taken]
        given = {arrays[i] for i in const_inputs(options.const, arrays, [p.name for p in spec.parameters])}
        plain = [_identifier(name, n) for n, name in enumerate(arrays)]
        self.options = replace(options, const=tuple(p for p, name in zip(plain, arrays, strict=True) if name in given))
        self.fn = functools.partial(_run, fn, spec, trees, self.kinds)
        self.fn.__name__ = spec.name  # type: ignore[attr-defined]
        kind = inspect.Parameter.POSITIONAL_ONLY
        self.fn.__signature__ = inspect.Signature([inspect.Parameter(p, kind) for p in plain])  # type: ignore[attr-defined]
        self.function: Any = None

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arrays of a call, and its numbers as arrays."""
        leaves: list[Any] = []
        for value in self.spec.bind(args, kwargs):
            tree_of(value, leaves, _is_leaf)
        pairs = zip(self.taken, self.kinds, strict=True)
        return tuple([leaves[i] if kind is None else np.array(leaves[i], _DTYPES[kind]) for i, kind in pairs])

    def traces(self, args: tuple[Any, ...], kwargs: dict[str, Any], deadline: Deadline) -> bool:
        """Whether nothing but comparisons asks for what the numbers are."""
        given = self.given(args, kwargs)
        try:
            traced = trace(self.fn, given, const=self.options.const, deadline=deadline, guarded=not self.options.strict)
        except Exception as error:
            log.info("numbers stay part of the program: %r", error)
            return False
        return not self._narrowed(traced)

    def _narrowed(self, traced: Traced) -> bool:
        """Whether a number's values decide over shapes, or are integers that other types may not hold."""
        numbers = {i for i, kind in enumerate(self.kinds) if kind is not None}
        whole = {i for i, kind in enumerate(self.kinds) if kind is int}
        reached: set[Any] = set()
        counted: set[Any] = set()
        for node in topological(traced.graph.outputs):
            for found, of in ((reached, numbers), (counted, whole)):
                if (isinstance(node.attrs, InputAttrs) and node.op == "input" and node.attrs.index in of) or any(
                    i in found for i in node.inputs
                ):
                    found.add(node)
            if node.op == "cast" and node in counted and node.dtype.kind == "int" and node.dtype.name != "int64":
                return True
        return any(guard.node in reached and guard.node.dtype.kind != "bool" for guard in traced.guards)


_DTYPES = {int: np.dtype(np.int64), float: np.dtype(np.float64)}


class Numbers:
    """The programs of one function in which numbers are data."""

    def __init__(self, spec: ArgSpec) -> None:
        self.names = [p.name for p in spec.parameters]
        self.made: dict[Hashable, Varying | None] = {}
        self._masks: dict[frozenset[str], None] = {}

    def find(self, key: Key) -> Varying | None:
        """What calls with this key are run by."""
        if not self._masks:
            return None
        ends = ends_of_key(self.names, key)
        for paths in list(self._masks):
            found = self.made.get(_masked(ends, paths))
            if found is not None and all(_fits(part) for path, part in ends if path in paths):
                return found
        return None

    def tried(self, key: Key, paths: frozenset[str]) -> bool:
        """Whether it is known what becomes of these numbers in such calls."""
        return _masked(ends_of_key(self.names, key), paths) in self.made

    def keep(self, key: Key, paths: frozenset[str], varying: Varying | None) -> None:
        while len(self.made) >= MOST:
            del self.made[next(iter(self.made))]
        self.made[_masked(ends_of_key(self.names, key), paths)] = varying
        if varying is not None:
            self._masks[paths] = None


def _masked(ends: Sequence[tuple[str, Any]], paths: frozenset[str]) -> Hashable:
    return paths, tuple((path, part[0] if path in paths else part) for path, part in ends)


def _fits(part: Any) -> bool:
    return part[0] is not int or abs(part[1]) <= LIMIT


def _is_leaf(value: Any) -> bool:
    return type(value) in (int, float) or is_tensor(value)


def _ends(spec: ArgSpec, trees: Sequence[Tree]) -> list[tuple[str, Leaf | Static]]:
    pairs = zip(spec.parameters, trees, strict=True)
    return [(path, end) for parameter, tree in pairs for end, path in ends_of_tree(tree, parameter.name)]


def _with(tree: Tree, leaves: Sequence[Any], place: dict[int, int]) -> Tree:
    """The tree with leaves where they are now, the rest as parts of it."""
    if isinstance(tree, Branch):
        return replace(tree, children=tuple(_with(child, leaves, place) for child in tree.children))
    if isinstance(tree, Leaf):
        return Leaf(place[tree.index]) if tree.index in place else Static(leaves[tree.index])
    return tree


def _identifier(name: str, number: int) -> str:
    return name if name.isidentifier() else f"{re.sub(r'[^A-Za-z0-9_]+', '_', name)}_{number}"


def _run(
    fn: Callable[..., Any],
    spec: ArgSpec,
    trees: Sequence[Tree],
    kinds: Sequence[type | None],
    *leaves: Any,
) -> Any:
    """``fn`` of arrays and numbers in their places."""
    values = [leaf if kind is None else number(leaf, kind) for leaf, kind in zip(leaves, kinds, strict=True)]
    args, kwargs = spec.call_with(trees, values)
    trace_of = CURRENT.get()
    return (fn if trace_of is None else trace_of.inside(fn))(*args, **kwargs)

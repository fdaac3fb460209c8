"""Products that are the same up to the order and grouping of their factors."""

from __future__ import annotations

from typing import Protocol

from eqsat.egraph.encode import Term
from eqsat.ir.types import TensorType

LONGEST_PRODUCT = 8
"""Products are opened up to this many factors."""
MOST_WAYS = 4
"""Ways to write a class as a product that are looked at."""

Factors = tuple[int, ...]
"""Classes, in order."""


class Store(Protocol):
    """What of a term store is read and written here."""

    terms: list[Term]
    types: list[TensorType]

    def find(self, handle: int) -> int: ...

    def merge(self, a: int, b: int, rule: str | None) -> bool: ...


class Products:
    """Makes classes one whose products have the same factors: no terms are added, as associativity would.

    A square is a product of a factor with itself.
    """

    def __init__(self, store: Store, rule: str) -> None:
        self.store, self.rule = store, rule
        self._seen = 0
        self._terms: list[Term] = []

    def merge(self) -> None:
        """Merge what is equal by now."""
        terms = self.store.terms
        self._terms += [t for t in terms[self._seen :] if t.op in ("mul", "square")]
        self._seen = len(terms)
        if len(self._terms) > 1:
            while self._merged():
                pass

    def _merged(self) -> bool:
        """One pass over all products; whether it merged any."""
        find = self.store.find
        made: dict[int, list[tuple[int, int]]] = {}
        for term in self._terms:
            if term.live:
                a, b = find(term.children[0]), find(term.children[-1])
                made.setdefault(find(term.handle), []).append((a, b))
        ways: dict[int, list[Factors]] = {}
        found: dict[tuple[TensorType, Factors], int] = {}
        merged = False
        for handle in made:
            for factors in _ways(handle, made, ways):
                if len(factors) > 1:
                    other = found.setdefault((self.store.types[handle], factors), handle)
                    if find(other) != find(handle):
                        self.store.merge(other, handle, self.rule)
                        merged |= find(other) == find(handle)  # numbers that were rounded otherwise stay two
        return merged


def _ways(top: int, made: dict[int, list[tuple[int, int]]], ways: dict[int, list[Factors]]) -> list[Factors]:
    """The factors of a class, in each way that it is a product; a class within itself counts as a factor."""
    stack = [top]
    while stack:
        at = stack[-1]
        if at not in ways:
            ways[at] = [(at,)]  # what it is to itself, until it is known
            stack.extend(c for pair in made.get(at, ()) for c in pair if c not in ways)
            continue
        stack.pop()
        if ways[at] == [(at,)]:
            opened = [tuple(sorted((*x, *y))) for a, b in made.get(at, ()) for x in ways[a] for y in ways[b]]
            short = [f for f in dict.fromkeys(opened) if len(f) <= LONGEST_PRODUCT and at not in f]
            ways[at] = short[:MOST_WAYS] or ways[at]
    return ways[top]

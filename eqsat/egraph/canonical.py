"""Canonical forms of terms: sums flat and ordered, operands of commutative operators and factors ordered."""

from __future__ import annotations

from operator import lt

from eqsat.egraph.interning import Interner
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS

SUMS = ("add", "sub", "add_n")
LONGEST_SUM = 6
"""Nested sums are opened up to this many terms: the sums of a residual stream would grow with every layer."""


def signs_of(node: Node) -> tuple[int, ...]:
    """The sign of every operand of a sum."""
    found = {"add": (1, 1), "sub": (1, -1)}.get(node.op, node.attrs)
    assert isinstance(found, tuple)
    return found


def signed_operands(node: Node, flatten: bool) -> list[tuple[int, Node]]:
    """The terms of a sum node; with ``flatten``, sums inside it opened unless they would make it long."""
    opened = _opened(node, flatten) or _opened(node, False)
    assert opened is not None
    return opened


def _opened(node: Node, flatten: bool) -> list[tuple[int, Node]] | None:
    """The signed terms, left to right; None as soon as opened sums are known to make too many."""
    found: list[tuple[int, Node]] = []
    stack = [(1, node)]
    while stack:
        sign, at = stack.pop()
        while at.op == "neg":
            sign, at = -sign, at.inputs[0]
        if at is node or (flatten and at.op in SUMS and at.shape == node.shape):
            own = signs_of(at)
            stack.extend((sign * s, operand) for s, operand in zip(own[::-1], at.inputs[::-1], strict=True))
            if flatten and at is not node and len(found) + len(stack) > LONGEST_SUM:
                return None
        else:
            found.append((sign, at))
    return found


class Canonical:
    """Operator, attribute and children of a term, whose children are given by the names of their classes."""

    def __init__(self, attrs: Interner) -> None:
        self.attrs = attrs
        self._swaps: dict[int, int] = {}

    def __call__(self, op: str, attrs: int, children: tuple[int, ...]) -> tuple[str, int, tuple[int, ...]]:
        if op == "add_n":
            if all(map(lt, children, children[1:])):
                return op, attrs, children
            signs = self.attrs.values[attrs]
            assert isinstance(signs, tuple)
            pairs = sorted(zip(children, signs, strict=True), key=lambda t: (t[0], -t[1]))
            return op, self.attrs(tuple(s for _, s in pairs)), tuple(h for h, _ in pairs)
        if op == "contract":
            return self._contraction(attrs, children)
        if len(children) == 2 and children[0] > children[1] and OPS[op].commutes:
            return op, attrs, (children[1], children[0])
        return op, attrs, children

    def _contraction(self, attrs: int, factors: tuple[int, ...]) -> tuple[str, int, tuple[int, ...]]:
        """The order of factors in which the second one has the result's last axis, as in a matmul."""
        spec = self.attrs.values[attrs]
        assert isinstance(spec, Spec)
        last = spec.out[-1] if spec.out else None
        in_first, in_second = last in spec.a, last in spec.b
        swap = in_first if in_first != in_second else (factors, attrs) > (factors[::-1], self.swapped(attrs))
        return ("contract", self.swapped(attrs), factors[::-1]) if swap else ("contract", attrs, factors)

    def swapped(self, attrs: int) -> int:
        """The spec with its factors exchanged."""
        found = self._swaps.get(attrs)
        if found is None:
            spec = self.attrs.values[attrs]
            assert isinstance(spec, Spec)
            found = self._swaps[attrs] = self.attrs(spec.swapped())
        return found

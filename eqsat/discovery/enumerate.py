"""Terms of up to a size, and which of them compute the same: found by what they make of random inputs.

As TASO does (Jia et al., "TASO: Optimizing Deep Learning Computation with Automatic Generation of Graph Substitutions",
2019), terms of one fingerprint are taken for equal. Sums, products and quotients have theirs over a prime field, where
nothing rounds; other functions only in floats. As Ruler does (Nandi et al., "Rewrite Rule Inference Using Equality
Saturation", 2021), larger terms are made of one term of each fingerprint only: what holds for the others follows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from eqsat.discovery.terms import Operator, Term, number
from eqsat.egraph.evaluate import MOVES
from eqsat.egraph.field import PRIME, RATIONAL, Arithmetic, Undefined, elements
from eqsat.egraph.saturated import ENode
from eqsat.ir.node import Node, topological
from eqsat.ir.table import OPS

MOST_TERMS = 50_000
DIGITS = 8
"""Decimal digits of a float that are compared, at most, and one less than its type has: sums of a few products of
random numbers keep more."""
SEEN = 0.25
"""Share of a term's elements that are numbers at least: of what is NaN nearly everywhere anything holds."""
CHUNK = 256
"""Terms between two looks at the clock."""

Values = dict[Node, np.ndarray]


@dataclass
class Groups:
    """Terms by what they compute, the smallest of each group first. ``complete``: whether time sufficed for all."""

    found: dict[object, list[Term]] = field(default_factory=dict)
    terms: int = 0
    complete: bool = True

    def equal(self) -> Iterator[tuple[Term, Term]]:
        """Pairs that compute the same, as far as random inputs tell."""
        for first, *others in self.found.values():
            for other in others:
                yield first, other


class Fingerprints:
    """What nodes make of inputs: of floats in several samples, and, if they are rational functions, over a field."""

    def __init__(self, samples: Sequence[Mapping[Node, np.ndarray]], seed: int) -> None:
        numbers = random.Random(seed)
        self._floats: list[Values] = [dict(sample) for sample in samples]
        self._exact: dict[Node, np.ndarray | None] = {}
        for node, value in samples[0].items():
            drawn = np.array([numbers.randrange(PRIME) for _ in range(value.size)], object).reshape(value.shape)
            self._exact[node] = elements(drawn) if node.dtype.is_float else None

    def __call__(self, node: Node) -> tuple[object, object] | None:
        """By what a node's values are told apart: in floats, and over the field, if it is a rational function.

        None where it is hardly ever a number, or raises for such values.
        """
        try:
            for each in topological([node]):
                if each not in self._exact:
                    self._compute(each)
        except (ValueError, IndexError):  # an integer's negative power, an index out of range
            return None
        values = [values[node] for values in self._floats]
        if np.mean([np.isfinite(value).mean() for value in values]) < SEEN:
            return None
        exact = self._exact[node]
        of_field = None if exact is None else tuple(element.value for element in exact.ravel())
        return (node.type, *map(_rounded, values)), of_field

    def constant(self, node: Node) -> float | bool | None:
        """The number that all elements are in all samples, if it is one; not of a number itself."""
        values = np.concatenate([values[node].ravel() for values in self._floats])
        same = node.op != "const" and bool(np.isfinite(values).all() and (values == values[0]).all())
        found: float | bool = values[0].item()
        return found if same else None

    def _compute(self, node: Node) -> None:
        row = OPS[node.op]
        with np.errstate(all="ignore"):
            for values in self._floats:
                made = row.reference([values[n] for n in node.inputs], node.attrs)
                values[node] = np.asarray(made).astype(node.dtype.numpy, copy=False)
        self._exact[node] = None
        args = [self._exact[n] for n in node.inputs]
        rational = row.kind in MOVES or node.op in RATIONAL
        if rational and node.dtype.is_float and not any(arg is None for arg in args):
            try:
                known = [arg for arg in args if arg is not None]
                self._exact[node] = Arithmetic()(ENode(node.op, node.attrs, ()), node.type, known)
            except Undefined:
                pass


def _rounded(value: np.ndarray) -> bytes:
    """Few digits of each number; what is none is all alike, for 1/0 may be an infinity or NaN."""
    if value.dtype.kind != "f":
        return value.tobytes()
    finite = np.isfinite(value)
    plain = np.where(finite, value, 0.0).astype(np.float64)
    digits = min(DIGITS, np.finfo(value.dtype).precision - 1)
    scale = 10.0 ** (np.floor(np.log10(np.maximum(np.abs(plain), 1e-3))) - digits + 1)
    parts = (np.round(plain / scale) + 0.0, scale, finite)
    return b"".join(part.tobytes() for part in parts)


def enumerated(
    leaves: Sequence[Term],
    operators: Sequence[Operator],
    size: int,
    fingerprint: Fingerprints,
    go_on: Callable[[int, int], bool],
) -> Groups:
    """Terms of up to ``size`` operators. ``go_on`` hears of each size's terms so far and says whether there is time.

    Raises ``ValueError`` where there are more than ``MOST_TERMS`` of them.
    """
    groups = Groups()
    keys: dict[object, object] = {}
    seen: set[Node] = set()
    levels: list[list[Term]] = [[]]

    def take(term: Term, level: list[Term]) -> None:
        """A term of a new fingerprint is one that larger terms are made of."""
        if term.node in seen:
            return  # the same by construction
        seen.add(term.node)
        found = fingerprint(term.node)
        if found is None:
            return
        key, exact = found
        value = fingerprint.constant(term.node)
        if value is not None:  # nothing is made of it: what is, is one of its number
            groups.found.setdefault(key, [number(value, term.node.dtype, term.node.shape)]).append(term)
        elif key not in groups.found:
            groups.found[key] = [term]
            keys[key] = exact
            level.append(term)
        elif exact is None or keys.get(key) is None or exact == keys[key]:
            groups.found[key].append(term)

    for leaf in leaves:
        take(leaf, levels[0])
    for now in range(1, size + 1):
        level: list[Term] = []
        for operator in operators:
            for args in _operands(operator, levels, now - 1):
                if groups.terms % CHUNK == 0 and not go_on(now, groups.terms):
                    groups.complete = False
                    return groups
                for term in operator.terms(args):
                    if not term.variables:
                        continue
                    groups.terms += 1
                    if groups.terms > MOST_TERMS:
                        raise ValueError(
                            f"there are more than {MOST_TERMS:,} terms of up to {size} operators, at {now} already: "
                            f"ask for a smaller size, fewer operators or fewer variables"
                        )
                    take(term, level)
        levels.append(level)
    return groups


def _operands(operator: Operator, levels: Sequence[Sequence[Term]], size: int) -> Iterator[tuple[Term, ...]]:
    """Tuples of terms that have so many operators together; in one order where an operator commutes."""
    for sizes in itertools.product(range(size + 1), repeat=operator.arity):
        if sum(sizes) != size or (operator.commutes and list(sizes) != sorted(sizes)):
            continue
        levels_of = [[*enumerate(levels[n])] for n in sizes]
        for args in itertools.product(*levels_of):
            if operator.commutes and sizes[0] == sizes[1] and args[0][0] > args[1][0]:
                continue
            yield tuple(term for _, term in args)

"""Contraction specs: which axes of two factors meet, which are summed, and in what order the rest come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from eqsat.forks import lazy


@dataclass(frozen=True)
class Spec:
    """``out[out…] = Σ a[a…]·b[b…]``: one integer label per axis, numbered by first appearance in out, a, b.

    No label repeats within a factor or the result; every label of the result is in a factor, and every
    label that is summed is in both. matmul of matrices is ``out=(0, 1), a=(0, 2), b=(2, 1)``.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    out: tuple[int, ...]

    @lazy
    def batch(self) -> tuple[int, ...]:
        """Labels in both factors and the result."""
        return tuple(x for x in self.out if x in self.a and x in self.b)

    @lazy
    def rows(self) -> tuple[int, ...]:
        """Labels of the result that only the first factor has (m)."""
        return tuple(x for x in self.out if x not in self.b)

    @lazy
    def cols(self) -> tuple[int, ...]:
        """Labels of the result that only the second factor has (n)."""
        return tuple(x for x in self.out if x not in self.a)

    @lazy
    def summed(self) -> tuple[int, ...]:
        """Labels summed over (k), in the first factor's order."""
        return tuple(x for x in self.a if x not in self.out)

    def extents(self, a_shape: Sequence[int], b_shape: Sequence[int]) -> dict[int, int]:
        """Extent of every label; ``ValueError`` where the factors disagree."""
        found = dict(zip(self.a, a_shape, strict=True))
        for label, extent in zip(self.b, b_shape, strict=True):
            if found.setdefault(label, extent) != extent:
                raise ValueError(
                    f"axis {self.letters[label]!r} is {found[label]} in one factor and {extent} in the other"
                )
        return found

    @property
    def letters(self) -> str:
        return "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def __str__(self) -> str:
        a, b, out = ("".join(self.letters[x] for x in part) for part in (self.a, self.b, self.out))
        return f"{a},{b}->{out}"

    def swapped(self) -> Spec:
        """The same contraction with its factors exchanged."""
        return make_spec(self.b, self.a, self.out)


def make_spec(a: Sequence[object], b: Sequence[object], out: Sequence[object]) -> Spec:
    """A normalized spec from any hashable labels; ``ValueError`` if it is not a plain contraction."""
    return _normalized(tuple(a), tuple(b), tuple(out))


@lru_cache(maxsize=4096)
def _normalized(a: tuple[object, ...], b: tuple[object, ...], out: tuple[object, ...]) -> Spec:
    numbers: dict[object, int] = {}
    for label in (*out, *a, *b):
        numbers.setdefault(label, len(numbers))
    spec = Spec(*(tuple(numbers[x] for x in part) for part in (a, b, out)))
    for name, part in (("first factor", spec.a), ("second factor", spec.b), ("result", spec.out)):
        if len(set(part)) != len(part):
            raise ValueError(f"a label repeats in the {name} of {spec}; take a diagonal view first")
    for label in range(len(numbers)):
        if label not in spec.a and label not in spec.b:
            raise ValueError(f"the result of {spec} has an axis that no factor has")
        if label not in spec.out and not (label in spec.a and label in spec.b):
            raise ValueError(f"{spec} sums an axis that only one factor has; reduce that factor first")
    return spec

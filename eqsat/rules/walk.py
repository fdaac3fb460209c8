"""Everything inside of a pattern, and the variables that it uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eqsat.rules.pattern import (
    Attribute,
    NumberVar,
    Parts,
    Pattern,
    Sum,
    Terms,
    Var,
)


def walk(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern and everything inside it, outermost first."""
    yield pattern
    for inner in pattern.inside:
        yield from walk(inner)


def bound_names(pattern: Pattern) -> list[tuple[str, str]]:
    """Every use of a variable in a pattern, with its kind: tensor, number, attribute, terms or parts."""
    found: list[tuple[str, str]] = []
    for part in walk(pattern):
        if isinstance(part, Var):
            found.append((part.name, "tensor"))
        elif isinstance(part, NumberVar):
            found.append((part.name, "number"))
        elif isinstance(part, Terms):
            found.append((part.name, "terms"))
        elif isinstance(part, Parts):
            found += [(part.name, "parts"), (f"{part.name}_axis", "attribute")]
        for attrs in (getattr(part, "attrs", None), getattr(part, "axes", None), getattr(part, "axis", None)):
            if isinstance(attrs, Attribute):
                found.append((attrs.name, "attribute"))
    return list(dict.fromkeys(found))


def match_names(lefts: Sequence[Sequence[Pattern]]) -> list[str]:
    """The variables of a match of some left sides, besides its roots."""
    bound = [name for left in lefts for pattern in left for name, _ in bound_names(pattern)]
    if any(isinstance(part, Sum) for left in lefts for pattern in left for part in walk(pattern)):
        bound += ["signs", "rest", "flip"]
    return list(dict.fromkeys(bound))

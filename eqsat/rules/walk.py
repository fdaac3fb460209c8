"""What is inside of a pattern: its parts, and the variables that it uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eqsat.rules.pattern import (
    Apply,
    Attribute,
    Expanded,
    Joined,
    Mean,
    NumberVar,
    Parts,
    Pattern,
    Sum,
    Swapped,
    Terms,
    Var,
)


def children(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns directly inside one."""
    if isinstance(pattern, Apply):
        return pattern.args
    if isinstance(pattern, Sum):
        return tuple(term for _, term in pattern.terms)
    if isinstance(pattern, Expanded):
        return (pattern.reduced,)
    if isinstance(pattern, (Mean, Swapped)):
        return (pattern.x,)
    if isinstance(pattern, Joined):
        return pattern.parts
    return ()


def walk(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern and everything inside it, outermost first."""
    yield pattern
    for inner in children(pattern):
        yield from walk(inner)


def size(pattern: Pattern) -> int:
    """How many patterns one is written out: one that is used twice counts twice."""
    sizes: dict[int, int] = {}  # by identity: written out, one that doubles thirty times would take for ever
    stack = [pattern]
    while stack:
        at = stack[-1]
        missing = [inner for inner in children(at) if id(inner) not in sizes]
        if missing:
            stack.extend(missing)
        else:
            stack.pop()
            sizes[id(at)] = 1 + sum(sizes[id(inner)] for inner in children(at))
    return sizes[id(pattern)]


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

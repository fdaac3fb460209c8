"""Guards that many rules share, by the names of the variables that they ask about."""

from __future__ import annotations

from eqsat.rules.rule import Guard, Match


def floats(m: Match) -> bool:
    """the element type is a float: integers wrap around"""
    return bool(m.root.dtype.is_float)


def small(m: Match) -> bool:
    """the e-graph is small"""
    return m.small()


def alike(names: str) -> Guard:
    """That tensors have one shape: ``alike("a b")``."""
    wanted = names.split()

    def test(m: Match) -> bool:
        return len({getattr(m, name).shape for name in wanted}) == 1

    return Guard(f"{_listed(wanted)} have one shape", test)


def matrices(names: str) -> Guard:
    """That tensors have two axes: ``matrices("a b")``."""
    wanted = names.split()

    def test(m: Match) -> bool:
        return all(getattr(m, name).type.ndim == 2 for name in wanted)

    return Guard(f"{_listed(wanted)} {'is a matrix' if len(wanted) == 1 else 'are matrices'}", test)


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

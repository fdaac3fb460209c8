"""Rules that the engine cannot bear: found by halving, left out from then on, and named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from eqsat.errors import EqsatWarning
from eqsat.rules.rule import Rule

T = TypeVar("T")

_left_out: dict[int, Rule] = {}
"""By identity; they are held, so that no other rule gets it."""


def is_fault(error: BaseException) -> bool:
    """Whether egglog refused something, or panicked, which is no ``Exception``."""
    return type(error).__name__ in ("PanicException", "EggSmolError")


def bearable(rules: Sequence[Rule], run: Callable[[Sequence[Rule]], T]) -> T:
    """What ``run`` makes of the rules, but for those at which the engine fails, which a warning names.

    Raises what the engine raised where no rule by itself is to blame.
    """
    rules = [rule for rule in rules if id(rule) not in _left_out]
    try:
        return run(rules)
    except BaseException as error:
        if not is_fault(error):
            raise
        raised = error
    blamed = _blamed(rules, run)
    if not blamed:
        raise raised
    for rule in blamed:
        _left_out[id(rule)] = rule
        warnings.warn(
            f"rule {rule.id!r} ({rule.file}:{rule.line}) is left out: the e-graph engine fails with it "
            f"({type(raised).__name__}: {raised})",
            EqsatWarning,
            stacklevel=2,
        )
    return bearable(rules, run)


def _blamed(rules: Sequence[Rule], run: Callable[[Sequence[Rule]], T]) -> list[Rule]:
    """The rules that fail by themselves."""
    try:
        run(rules)
        return []
    except BaseException as error:
        if not is_fault(error):
            raise
    if len(rules) == 1:
        return list(rules)
    half = len(rules) // 2
    return [*_blamed(rules[:half], run), *_blamed(rules[half:], run)] if half else []

"""Variables for patterns, made of a text of names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from eqsat.errors import RuleError
from eqsat.rules.pattern import Attribute, NumberVar, Var
from eqsat.rules.place import place


def tensors(names: str) -> Any:
    """Pattern variables for tensors: ``a, b = tensors("a b")``; a single name gives the variable itself."""
    return _named(Var, names)


def numbers(names: str) -> Any:
    """Pattern variables for numbers that are compile-time constants, also broadcast ones."""
    return _named(NumberVar, names)


def attributes(names: str) -> Any:
    """Pattern variables for attributes: axes, index maps, specs."""
    return _named(Attribute, names)


def _named(kind: Callable[[str], object], names: str) -> Any:
    """Variables of names that guards and right sides can read as attributes of the match."""
    each = names.split() if isinstance(names, str) else []
    if not each or not all(map(str.isidentifier, each)) or len(set(each)) < len(each):
        raise RuleError(f"{place()}: variables are named in a text of different names, such as 'a b', not {names!r}")
    if any(re.fullmatch(r"root\d*", name) for name in each):
        raise RuleError(f"{place()}: {names!r}: matches call what is found root, root1, …: take another name")
    found = tuple(map(kind, each))
    return found[0] if len(found) == 1 else found

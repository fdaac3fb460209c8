"""What the rules are, without importing the installed ones: part of the key of a remembered plan."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
import secrets
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from eqsat.contents import UnknownContent, code_files, content_digest, files_digest
from eqsat.installed import entry_points

if TYPE_CHECKING:
    from eqsat.rules.rule import Rule

log = logging.getLogger("eqsat")
_FRESH = re.compile(r"_(axes)?\d+")


@cache
def _installed() -> str:
    digest = hashlib.blake2b(digest_size=12)
    for point in entry_points("eqsat.rules"):
        try:
            spec = find_spec(point.module)
        except (ImportError, ValueError):  # a library that cannot be imported is left out
            spec = None
        places = list(spec.submodule_search_locations or []) if spec is not None else []
        files = [file for place in places for file in code_files(place)]
        if spec is not None and spec.origin and not files:
            files = [(os.path.basename(spec.origin), spec.origin)]
        release = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
        digest.update(f"{point.name}={point.value}:{release}:{files_digest(files)};".encode())
    return digest.hexdigest()


def rule_digest(rule: Rule) -> str:
    """A hash of all that a rule does: its patterns, numerics, and functions with whatever they refer to.

    Where and when it was made, and what its documentation says, is left out.

    Raises:
        UnknownContent: a function of it refers to something that cannot be recognised.
    """
    left_out = {"doc", "file", "line", "example", "algorithm"}
    parts = {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule) if f.name not in left_out}
    return content_digest(parts, _renaming())


def _renaming() -> Callable[[object], object]:
    """Patterns stand for themselves, but for names that were made up and depend on the patterns made before; operators
    that users defined for their content."""
    from eqsat.ir.defined import Applied
    from eqsat.rules.pattern import Attribute, NumberVar, Parts, Pattern, Terms, Var

    numbers: dict[str, int] = {}

    def stand_in(value: object) -> object:
        if isinstance(value, Applied):
            return value.key
        if not isinstance(value, (Pattern, Attribute)) or not dataclasses.is_dataclass(value):
            return value
        given = isinstance(value, (Var, NumberVar, Terms, Parts))  # names that guards may use
        parts: list[object] = [type(value).__name__]
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            if field.name == "name" and not given and _FRESH.fullmatch(part):
                part = numbers.setdefault(part, len(numbers))
            parts.append(part)
        return tuple(parts)

    return stand_in


def _added() -> str:
    """The rules added in this process, by content; one whose content cannot be told is like no other."""
    registry = sys.modules.get("eqsat.rules.registry")
    parts = []
    for rule, _ in getattr(registry, "_added", {}).values():
        try:
            parts.append(rule_digest(rule))
        except UnknownContent as unknown:
            log.info("programs compiled with the rule %s are not remembered: it refers to %s", rule.id, unknown)
            parts.append(secrets.token_hex(16))
    return ";".join(parts)


def rules_fingerprint() -> str:
    """Changes when a file of an installed rule library does, or with the content of the rules added in this process."""
    return _installed() + hashlib.blake2b(_added().encode(), digest_size=12).hexdigest()

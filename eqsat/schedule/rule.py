"""Loop rules as data: what a rule library hands to the scheduler."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import cache

from eqsat.forks import IMPORTING


@dataclass(frozen=True, slots=True)
class LoopRule:
    """A rule over loop nests.

    ``id`` is the name it is listed and disabled by, ``doc`` says what it equates and when, ``text`` is egglog over the
    terms and relations of ``eqsat.egraph.nests``, with its ruleset written ``{ruleset}``. It holds for any axes and
    stages: one e-graph has those of several kernels, under other names.
    Raises ``ValueError`` when the text names no ruleset, or names an axis.
    """

    id: str
    doc: str
    text: str

    def __post_init__(self) -> None:
        if "{ruleset}" not in self.text:
            raise ValueError(f"loop rule {self.id!r}: its egglog text must say `:ruleset {{ruleset}}`")
        named = re.search(r'"(rows\d*|outer|[bmnk]\d+|[pr]\d+_\d+)"', self.text)
        if named:
            raise ValueError(
                f"loop rule {self.id!r}: write a variable for the axis {named[0]}, and ask for a fact of it"
            )


@cache
def installed_loop_rules() -> tuple[LoopRule, ...]:
    """The loop rules of every installed rule library, in order of id.

    A library is a package under the entry-point group ``eqsat.rules``; its loop rules are ``LOOP_RULES`` in
    its submodule ``loops``, if it has one. Raises ``ValueError`` when two rules share an id.
    """
    from eqsat.rules.registry import submodules  # warm starts have no use for it

    found: dict[str, LoopRule] = {}
    for name in submodules("loops"):
        with IMPORTING:
            library = importlib.import_module(name)
        for rule in library.LOOP_RULES:
            if rule.id in found:
                raise ValueError(f"two loop rules are called {rule.id!r}; ids must differ")
            found[rule.id] = rule
    return tuple(found[identity] for identity in sorted(found))


def select(disable: tuple[str, ...] = ()) -> tuple[LoopRule, ...]:
    """The installed loop rules but those disabled. ``ValueError`` for an unknown id, listing the valid ones."""
    rules = installed_loop_rules()
    unknown = sorted(set(disable) - {rule.id for rule in rules})
    if unknown:
        valid = ", ".join(rule.id for rule in rules)
        raise ValueError(f"no loop rule is called {', '.join(unknown)}; there are {valid}")
    return tuple(rule for rule in rules if rule.id not in disable)

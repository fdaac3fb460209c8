"""Rewrite rules: patterns, rules, and the rule libraries that are installed."""

from eqsat.errors import RuleError
from eqsat.rules.instantiate import fit, signed_sum
from eqsat.rules.pattern import (
    Attribute,
    Parts,
    Pattern,
    Terms,
    attributes,
    contract,
    numbers,
    op,
    reduction,
    signed,
    tensors,
    view,
    whole,
)
from eqsat.rules.registry import add, collect, get, remove, select
from eqsat.rules.registry import listed as list
from eqsat.rules.rule import (
    NUMERICS,
    Guard,
    Match,
    Numerics,
    Rule,
    builtin,
    family,
    gather,
    rewrite,
    rewrite_together,
)

__all__ = [
    "NUMERICS",
    "Attribute",
    "Guard",
    "Match",
    "Numerics",
    "Parts",
    "Pattern",
    "Rule",
    "RuleError",
    "Terms",
    "add",
    "attributes",
    "builtin",
    "collect",
    "contract",
    "family",
    "fit",
    "gather",
    "get",
    "list",
    "numbers",
    "op",
    "reduction",
    "remove",
    "rewrite",
    "rewrite_together",
    "select",
    "signed",
    "signed_sum",
    "tensors",
    "view",
    "whole",
]

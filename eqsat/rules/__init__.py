"""Rewrite rules: patterns, rules, and the rule libraries that are installed."""

from eqsat.errors import RuleError
from eqsat.rules.instantiate import fit, signed_sum
from eqsat.rules.pattern import (
    Attribute,
    Parts,
    Pattern,
    Terms,
    concat,
    contract,
    op,
    reduction,
    signed,
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
    for_each,
    gather,
    rewrite,
    rewrite_together,
)
from eqsat.rules.variables import attributes, numbers, tensors

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
    "concat",
    "contract",
    "family",
    "fit",
    "for_each",
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

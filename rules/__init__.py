"""The standard rule library: one file per family, one line per rule."""

from eqsat.rules import collect
from eqsat_rules import arithmetic, functions

RULES = collect(arithmetic, functions)
"""Every rule of the library, in order of definition."""

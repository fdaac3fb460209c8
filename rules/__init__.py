"""The standard rule library: one file per family, one line per rule."""

from eqsat.rules import collect
from eqsat_rules import arithmetic, contractions, functions, movement, normalization, reductions, siblings

RULES = collect(arithmetic, functions, normalization, contractions, siblings, reductions, movement)
"""Every rule of the library, in order of definition."""

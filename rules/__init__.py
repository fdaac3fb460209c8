"""The standard rule library: one file per family, one line per rule."""

from eqsat.rules import collect
from eqsat_rules import (
    arithmetic,
    blocks,
    contractions,
    convolutions,
    functions,
    layouts,
    movement,
    normalization,
    reductions,
    siblings,
    small_floats,
    small_integers,
    strassen,
    updates,
    windows,
)

RULES = collect(
    arithmetic,
    functions,
    normalization,
    contractions,
    convolutions,
    strassen,
    layouts,
    siblings,
    reductions,
    movement,
    blocks,
    small_integers,
    small_floats,
    updates,
    windows,
)
"""Every rule of the library, in order of definition."""

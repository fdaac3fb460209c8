"""Builders of random steps for elementwise operators that users define, on their domains."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import numpy as np

from eqsat.ir.defined import Definition, defined
from eqsat.verify.drafts import Builder, Draft, Made
from eqsat.verify.operators import OPERATORS

OWN = "eqsat.verify.own_operators"
"""A module of such operators."""


def draw_those_of(modules: Sequence[str]) -> list[str]:
    """Let random programs have the elementwise operators that these modules define; their names.

    ``ValueError`` for a module that defines none.
    """
    names = []
    for module in modules:
        importlib.import_module(module)
        own = [definition for _, definition in defined() if definition.module == module and definition.elementwise]
        if not own:
            raise ValueError(f"module {module} defines no operator by eqsat.elementwise")
        for definition in own:
            OPERATORS[definition.name] = _builder(definition)
            names.append(definition.name)
    return names


def _builder(definition: Definition) -> Builder:
    low, high = definition.domain

    def build(d: Draft) -> Made:
        first = d.pick_float()
        values = [first, *(d.partner(first, same_dtype=True) for _ in range(definition.arity - 1))]
        inside = [v.array.size == 0 or bool(((v.array >= low) & (v.array <= high)).all()) for v in values]
        bounds = ", ".join(str(b) if np.isfinite(b) else "None" for b in (low, high))
        args = [v.name if fits else f"np.clip({v.name}, {bounds})" for v, fits in zip(values, inside, strict=True)]
        return Made(f"{definition.name}({', '.join(args)})")

    return build

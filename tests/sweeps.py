"""How much of each sweep runs: a part by default, all of it with ``EQSAT_SWEEPS=1``, more with more."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import pytest

SHARE = float(os.environ.get("EQSAT_SWEEPS", "0.25"))


def a_part(count: int) -> int:
    """Of ``count`` examples, cases or rounds as many as run; a few are not made fewer."""
    return count if count <= 6 and SHARE <= 1 else max(6, math.ceil(count * SHARE))


def crossed(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """A test's parameters, every value of each and, with ``EQSAT_SWEEPS=1``, every combination.

    By default a combination of all but the shortest axis comes with one or a few of its values, in turn: a half of the
    combinations where it has two values, a third where it has more.
    """
    step = 1 if SHARE >= 1 else min(3, *map(len, axes.values()))
    numbered = itertools.product(*(enumerate(values) for values in axes.values()))
    found = [[value for _, value in each] for each in numbered if sum(n for n, _ in each) % step == 0]
    ids = ["-".join(map(_named, each)) for each in found]
    return pytest.mark.parametrize(tuple(axes), found, ids=ids if len(set(ids)) == len(ids) else None)


def _named(value: Any) -> str:
    """The name of a function, machine's width or type, or of the function that a case begins with."""
    value = value[0] if isinstance(value, tuple) and value and callable(value[0]) else value
    return str(getattr(value, "__name__", None) or getattr(value, "vector_bytes", None) or value)

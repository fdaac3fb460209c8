"""Random values for the inputs of example programs: of many kinds, for a rule may hold for most of them only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from eqsat.ir.types import TensorType, bool_

GRID = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
HARD = (
    *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.1, 5e-324, -1e-300, 1e300, 1.2e308, 1.7e308),
    *(1e-45, 1.2e-38, 2.5e38, 3.3e38, -3.4e38),
    *(1 + 2.0**-11 + 2.0**-30, -1 - 2.0**-8 - 2.0**-40),  # rounded twice, to float32 first, they are other ones
)
WRAPS = (2**30, 46341, 3037000500)
"""Integers whose sums or squares leave a type of 32 or 64 bits."""
TIES = (2**11 + 1, 2**24 + 1, 2**53 + 1, 2**60 + 2**36 + 1)
"""Integers half way between two floats of 16, 32 and 64 bits, and one that is only after it was rounded to 64."""

Regime = Literal["ordinary", "grid", "positive", "wide", "nan", "lone", "infinite", "hard"]
"""Values of examples: normally distributed; of a few numbers, so that many are equal or 0; positive; of either sign
and all magnitudes; some NaN; a single NaN, which shows where it spreads; some infinite; the hardest of the type, with
signed zeros and subnormals."""


def near_numbers(rng: np.random.Generator, value: np.ndarray, regime: Regime, given: Sequence[float]) -> np.ndarray:
    """Now and then with some elements that are one of the numbers given, the next ones to it, or ten times it."""
    if not given or regime not in ("ordinary", "wide", "hard") or rng.random() < 0.5:
        return value
    dtype, one = value.dtype, float(rng.choice(given))
    if dtype.kind == "b" or not math.isfinite(one) or (dtype.kind == "u" and one < 0):
        return value
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        near = [n for n in (int(one) - 1, int(one), int(one) + 1, 10 * int(one)) if limits.min <= n <= limits.max]
        drawn = np.array(near or [0], dtype)
    else:
        with np.errstate(all="ignore"):
            at = np.asarray(one, dtype)
            drawn = np.array([at, np.nextafter(at, dtype.type(np.inf)), np.nextafter(at, -dtype.type(np.inf)), 10 * at])
    return np.where(rng.random(value.shape) < 0.3, rng.choice(drawn, value.shape), value).astype(dtype)


def _integers(rng: np.random.Generator, type: TensorType, regime: Regime) -> np.ndarray:
    """Small integers, and with them those that wrap around when they are added, multiplied or negated, and some that
    floats round."""
    dtype = type.dtype.numpy
    if regime in ("grid", "positive"):
        return rng.integers(-2 if regime == "grid" else 1, 3 if regime == "grid" else 6, type.shape).astype(dtype)
    limits = np.iinfo(dtype)
    others = [n for n in (*WRAPS, *TIES) if n <= limits.max]
    hard = (limits.min, limits.min + 1, limits.max, limits.max - 1, *others)
    small = rng.integers(-5, 6, type.shape).astype(dtype)
    return np.where(rng.random(type.shape) < 0.6, small, rng.choice(np.array(hard, dtype), type.shape))


def random_values(rng: np.random.Generator, type: TensorType, regime: Regime) -> np.ndarray:
    """Values of a type, drawn as the regime says."""
    if type.dtype == bool_:
        return rng.random(type.shape) < 0.5
    if not type.dtype.is_float:
        return _integers(rng, type, regime)
    shape, numpy = type.shape, type.dtype.numpy
    with np.errstate(over="ignore", under="ignore"):
        if regime == "hard":
            drawn = rng.choice(np.array(HARD), shape)
            return np.where(rng.random(shape) < 0.8, drawn, rng.normal(size=shape)).astype(numpy)
        if regime == "grid":
            return rng.choice(np.array(GRID), shape).astype(numpy)
        found = np.asarray(rng.normal(size=shape) * rng.choice((0.3, 1.0, 3.0)))
        if regime == "positive":
            found = abs(found) + 0.01
        elif regime == "wide":
            # Few at a time are extreme, so that what they meet does not vanish beside them.
            reach = rng.choice((4, 12, 30))
            found = np.sign(found) * 10.0 ** rng.uniform(-reach, reach, shape)
        elif regime in ("nan", "infinite"):
            special = np.nan if regime == "nan" else rng.choice((np.inf, -np.inf), shape)
            found = np.where(rng.random(shape) < 0.25, special, found)
        return np.asarray(found).astype(numpy)

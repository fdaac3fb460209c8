"""Updates of a part of a tensor are one map over all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.ir.types import dtype_of
from eqsat_rules.updates import NEUTRAL, _neutral

UFUNCS = {f: getattr(np, {"mul": "multiply"}.get(f, f)) for f in NEUTRAL}
TYPES = ("bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("f", NEUTRAL)
def test_neutral_values_leave_every_other_value_as_it_is(f: str, dtype: str) -> None:
    kind = dtype_of(dtype)
    if (f.startswith("logical") and dtype != "bool") or (
        f.startswith("bitwise") and (dtype == "bool" or kind.kind == "float")
    ):
        return
    if kind.kind == "float":
        values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, np.finfo(dtype).tiny], dtype)
    elif kind.kind == "bool":
        values = np.array([False, True])
    else:
        values = np.array([*kind.limits, 0, 1], dtype)
    got = UFUNCS[f](values, np.asarray(_neutral(f, kind), dtype))
    np.testing.assert_array_equal(got, values)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(values)) if kind.kind == "float" else None


def steps_of(function: Any, *args: Any) -> Any:
    optimized = eqsat.optimize(function, cache=False, check_speed=False)
    compiled = optimized.compile(*args)
    for got, want in zip(np.atleast_1d(compiled(*args)), np.atleast_1d(function(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    return compiled.report


def test_neighbours_are_counted_in_one_kernel() -> None:
    def neighbours(z: Any) -> Any:
        n = z * 0
        n[1:] += z[:-1]
        n[:-1] += z[1:]
        n[:, 1:] += z[:, :-1]
        n[:, :-1] += z[:, 1:]
        return n

    report = steps_of(neighbours, np.random.default_rng(0).integers(0, 2, (300, 200)).astype(np.float32))
    assert "sum_of_part" in report["search"]["rules"]
    assert len(report["steps"]) == 1

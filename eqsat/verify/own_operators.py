"""Elementwise operators as users define them, which random programs have: with traits, a domain, two arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.operators import elementwise

__all__ = ["own_bell", "own_loss", "own_root", "own_smoothed", "own_softsign"]


@elementwise(odd=True, increasing=True)  # type: ignore[untyped-decorator]
def own_softsign(x: Any) -> Any:
    return np.sign(x) * (1 - 1 / (1 + np.abs(x)))


@elementwise(even=True)  # type: ignore[untyped-decorator]
def own_bell(x: Any) -> Any:
    return 1 / (1 + x * x)


@elementwise(decreasing=True)  # type: ignore[untyped-decorator]
def own_loss(x: Any) -> Any:
    return np.maximum(-x, 0) + np.log1p(np.exp(-np.abs(x)))


@elementwise(domain=(0.5, np.inf))  # type: ignore[untyped-decorator]
def own_root(x: Any) -> Any:
    return np.sqrt(x - 0.25)


@elementwise
def own_smoothed(x: Any, width: Any) -> Any:
    return np.sqrt(x * x + width * width)

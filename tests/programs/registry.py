"""What a program is: a function in ordinary NumPy, and makers of its arguments at two sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Make = Callable[..., tuple[Any, ...]]
Cut = Callable[..., tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Program:
    """A function as people write it, which may change its arguments.

    ``make``: from a generator and a size (the numbers in ``small`` or ``full``) to the arguments. ``tolerance``:
    largest difference from NumPy's result, relative to the largest magnitude of that result. ``cut``: where integers
    are floats with their fractions cut off, which turns another rounding of 8 into 7: from the arguments to the exact
    floats, and how far rounding may move each of them.
    """

    kind: str
    function: Callable[..., Any]
    make: Make
    small: tuple[int, ...]
    full: tuple[int, ...]
    tolerance: float
    cut: Cut | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    def arguments(self, size: tuple[int, ...]) -> tuple[Any, ...]:
        """Always the same ones."""
        return self.make(np.random.default_rng(7), *size)

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """What ``function`` returns on copies of the arguments, and the copies as it leaves them."""
        given = copy.deepcopy(arguments)
        return function(*given), given


PROGRAMS: dict[str, Program] = {}
"""By name, in the order in which they are defined."""


def program(
    make: Make, small: tuple[int, ...], full: tuple[int, ...], tolerance: float = 1e-9, cut: Cut | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function; its kind is the name of the module."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        if name in PROGRAMS:
            raise ValueError(f"there are two programs named {name}")
        PROGRAMS[name] = Program(function.__module__.rpartition(".")[2], function, make, small, full, tolerance, cut)
        return function

    return add


def single(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normally distributed float32."""
    return rng.standard_normal(shape, np.float32)


def positive(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """float64 in [0.5, 1.5)."""
    return rng.random(shape) + 0.5


def definite(rng: np.random.Generator, n: int) -> np.ndarray:
    """A symmetric positive definite matrix, the same in every process: BLAS rounds by its threads."""
    a = rng.standard_normal((n, n))
    return np.einsum("ik,jk->ij", a, a) / n + np.eye(n)


def photo(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """An image: uint8."""
    return rng.integers(0, 256, shape, np.uint8)

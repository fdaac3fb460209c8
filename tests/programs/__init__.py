"""Whole programs in ordinary NumPy, of the kinds that people have: written for NumPy, run unchanged."""

from tests.programs import (
    columns,
    dynamic,
    estimation,
    finance,
    images,
    layers,
    linear_algebra,
    physics,
    signals,
    solvers,
    statistics,
    stencils,
)
from tests.programs.registry import PROGRAMS, Program

__all__ = [
    "PROGRAMS",
    "Program",
    "columns",
    "dynamic",
    "estimation",
    "finance",
    "images",
    "layers",
    "linear_algebra",
    "physics",
    "signals",
    "solvers",
    "statistics",
    "stencils",
]

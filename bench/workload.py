"""What a benchmark row runs: a NumPy function, its inputs, and what any system must at least do for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Array = Any
"""A NumPy array; also a traced one, in the functions that are optimized."""
Inputs = dict[str, Any]
"""Argument name to array, or nested dicts and lists of arrays, in the order of the function's parameters."""


@dataclass(frozen=True)
class Workload:
    """One row of a suite.

    ``kind`` and ``options`` name the computation to the peers, which look their own version of it up and call it
    with the inputs in order and the options as keywords. ``flops``: multiply and add count one each, of the
    cheapest known way to compute it. ``touched`` overrides the bytes of inputs and outputs, each counted once.
    ``tolerance``: largest error against float64, relative to the largest magnitude of the result. ``changes``: arrays
    that the function changes. ``dtype``: of the operations that are counted, and of the floats among the inputs.
    ``numerics``: what eqsat is allowed; ``budget``: seconds that its compilation may take.
    """

    suite: str
    name: str
    kind: str
    function: Callable[..., Any]
    inputs: Callable[[np.random.Generator], Inputs]
    flops: float
    const: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    touched: float | None = None
    tolerance: float = 1e-5
    cold_compile: bool = False
    changes: tuple[str, ...] = ()
    dtype: str = "float32"
    numerics: Literal["exact", "reassociates", "approximates"] = "reassociates"
    budget: float = 60.0


def calls(function: Callable[..., Any], workload: Workload, inputs: Inputs) -> Callable[[], Any]:
    """A call of the workload's function, or of another's version of it.

    One that changes its arguments is given copies, and returns them behind its results.
    """
    if not workload.changes:
        arguments = tuple(inputs.values())
        return lambda: function(*arguments)

    def run() -> Any:
        given = {name: value.copy() if name in workload.changes else value for name, value in inputs.items()}
        returned = function(*given.values())
        return returned, *(given[name] for name in workload.changes)

    return run


def leaves(value: Any) -> Iterator[Array]:
    """The arrays and numbers in nested dicts, lists and tuples."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield np.asarray(value)


def convert(value: Any, leaf: Callable[[Array], Any]) -> Any:
    """The same nesting with ``leaf`` applied to every array; Python's numbers as they are."""
    if isinstance(value, Mapping):
        return {key: convert(item, leaf) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(convert(item, leaf) for item in value)
    return leaf(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value


def in_double(value: Any) -> Any:
    """Arrays of float32 and bfloat16 as float64, others as they are."""
    return convert(value, lambda a: a.astype(np.float64) if a.dtype.name in ("float32", "bfloat16") else a)


def nbytes(*values: Any) -> int:
    return sum(a.nbytes for a in leaves(list(values)))


def relative_error(result: Any, reference: Any) -> float:
    """Largest difference over all outputs, each relative to its largest magnitude. ``ValueError`` on other shapes."""
    worst = 0.0
    results, references = list(leaves(result)), list(leaves(reference))
    if len(results) != len(references):
        raise ValueError(f"{len(results)} outputs where {len(references)} were expected")
    for got, expected in zip(results, references, strict=True):
        if got.shape != expected.shape:
            raise ValueError(f"an output of shape {got.shape} where {expected.shape} was expected")
        scale = max(float(np.abs(expected).max(initial=0.0)), float(np.finfo(np.float32).tiny))
        difference = np.abs(got.astype(np.result_type(got, np.float64)) - expected).max(initial=0.0)
        worst = max(worst, float(difference) / scale) if np.isfinite(difference) else math.inf
    return worst


def normal(*shape: int, scale: float = 1.0, dtype: str = "float32") -> Callable[[np.random.Generator], Array]:
    """A maker of arrays of floats from a normal distribution."""
    kind = np.dtype(dtype).type
    return lambda rng: rng.standard_normal(shape, kind) * kind(scale)


def positive(*shape: int, dtype: str = "float32") -> Callable[[np.random.Generator], Array]:
    """A maker of arrays of floats whose logarithms have a normal distribution."""
    drawn = normal(*shape, dtype=dtype)
    return lambda rng: np.exp(drawn(rng))


def made_of(**makers: Callable[[np.random.Generator], Any]) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: {name: make(rng) for name, make in makers.items()}

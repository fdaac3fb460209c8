"""A compiled program held against the float64 reference before its results are trusted.

The allowed error is what float32 itself costs: the reference is computed in the program's own types and
in float64, and the compiled program may be up to ``FACTOR`` times as far from float64 as NumPy is, plus
``ULPS`` units in the last place of the largest value of the tensor.

Functions that jump (comparisons, floor, argmax) turn the last bit of a float into another answer. Where a
result is outside its bound, the reference is run again with noise of a few units in the last place on every
value (Monte Carlo arithmetic: Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point
arithmetic", 1997): elements that noise moves as far are no error.

Large values of an output would hide small ones that are wrong. So an element that is off by ``GROSS`` of its
own value is held against NumPy's error at elements no larger, then against what noise does to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eqsat.deadline import NEVER, Deadline
from eqsat.errors import VerificationError
from eqsat.explain.listing import program
from eqsat.ir.composite import without_composites
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import Graph, Node
from eqsat.ir.table import OPS
from eqsat.ir.types import TensorType
from eqsat.verify.rounding import element_noise, rounding_noise
from eqsat.verify.ties import nearly_extreme

FACTOR = 4.0
ULPS = 16.0
NOISE = 16.0
"""Units in the last place of the noise on every value."""
SAMPLES = 12
NOISE_FACTOR = 16.0
GROSS = 0.01
"""Part of its own value by which an element is off that is looked at by itself."""
GROSS_FACTOR = 64.0
GROSS_RUNS = 8


@dataclass(frozen=True)
class OutputError:
    """Largest deviations from float64 of one output: ours, NumPy's in the program's types, and what was allowed."""

    ours: float
    reference: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.ours <= self.allowed


def random_inputs(
    types: Sequence[TensorType], examples: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """Random arrays of these types; integers are drawn from the values of the caller's own arrays.

    An integer may be an index, so only values that the caller uses are known to be valid.
    """
    arrays = []
    for type, example in zip(types, examples, strict=True):
        dtype = type.dtype.numpy
        if type.dtype.kind == "float":
            arrays.append(rng.standard_normal(type.shape).astype(dtype))
        elif type.dtype.kind == "bool":
            arrays.append(rng.random(type.shape) < 0.5)
        elif type.size:
            arrays.append(rng.permutation(np.asarray(example).reshape(-1)).reshape(type.shape).astype(dtype))
        else:
            arrays.append(np.zeros(type.shape, dtype))
    return arrays


def compare(
    ours: np.ndarray,
    exact: np.ndarray,
    reference: np.ndarray,
    samples: Sequence[np.ndarray] = (),
    tied: np.ndarray | None = None,
) -> OutputError:
    """How far ``ours`` and ``reference`` are from ``exact``, in absolute terms, and what is allowed.

    Where the reference is NaN or infinite, ours must be the same; such positions count as an infinite
    error otherwise. Integers and booleans must be equal; the error is the number of those that are not.
    Elements that lie among ``samples`` of the reference under noise are left out, and those that are ``tied``.
    """
    if ours.shape != exact.shape or ours.dtype != reference.dtype:
        return OutputError(float("inf"), 0.0, 0.0)
    if ours.dtype.kind in "ib":
        wrong = ours != reference
        if samples:
            wrong &= ~_among(ours, [reference, *samples], 0.0)
        if tied is not None:
            wrong &= ~tied
        return OutputError(float(np.count_nonzero(wrong)), 0.0, 0.0)
    with np.errstate(all="ignore"):
        finite = np.isfinite(reference) & np.isfinite(exact)
        settled = ~np.isfinite(exact) & ~np.isfinite(reference)
        same = (ours == reference) | (np.isnan(ours) & np.isnan(reference))
        at = exact[finite].astype(np.float64)
        theirs = float(np.abs(reference[finite] - at).max(initial=0.0))
        scale = float(np.abs(at).max(initial=0.0))
        info = np.finfo(reference.dtype)
        allowed = FACTOR * theirs + ULPS * float(info.eps) * scale + float(info.tiny)
        if samples:
            moved = _among(ours, [reference, exact, *samples], allowed)
            finite &= ~moved
            settled &= ~moved
        if not same[settled].all() or not np.isfinite(ours[finite]).all():
            return OutputError(float("inf"), 0.0, 0.0)
        mine = float(np.abs(ours[finite] - exact[finite].astype(np.float64)).max(initial=0.0))
    return OutputError(mine, theirs, allowed)


def _among(ours: np.ndarray, samples: Sequence[np.ndarray], slack: float | np.ndarray) -> np.ndarray:
    """Where a value lies between the least and the greatest sample, or is NaN as one of them."""
    with np.errstate(all="ignore"):
        low = np.minimum.reduce([np.nan_to_num(s, nan=np.inf, posinf=np.inf, neginf=-np.inf) for s in samples])
        high = np.maximum.reduce([np.nan_to_num(s, nan=-np.inf, posinf=np.inf, neginf=-np.inf) for s in samples])
        among: np.ndarray = (ours >= low - slack) & (ours <= high + slack)
    if ours.dtype.kind == "f":
        among |= np.isnan(ours) & np.logical_or.reduce([np.isnan(s) for s in samples])
    return among


def _under_noise(graph: Graph, bound: Mapping[Node, np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """The reference's outputs with every float that is computed or given moved by up to ``NOISE`` units."""
    values: dict[Node, np.ndarray] = {}
    for node in graph.nodes():
        value = bound[node] if node in bound else OPS[node.op].reference([values[i] for i in node.inputs], node.attrs)
        value = np.asarray(value).astype(node.dtype.numpy, copy=False)
        if node.dtype.is_float and OPS[node.op].kind != "view" and node.op != "const":
            reach = NOISE * float(np.finfo(value.dtype).eps)
            value = value * (1 + rng.uniform(-reach, reach, value.shape)).astype(value.dtype)
        values[node] = value
    return [values[o] for o in graph.outputs]


def _expanded(graph: Graph) -> Graph:
    """The graph in simple operators: inside a composite there is rounding, too."""
    return Graph(graph.inputs, tuple(without_composites(graph.outputs)))


def gross_errors(ours: np.ndarray, exact: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Where ours is off by ``GROSS`` of the element's own value, and far more than NumPy is at any no larger.

    The bound of a whole output is in units of its largest values, which may hide small ones that are wrong.
    """
    with np.errstate(all="ignore"):
        at = np.asarray(exact, np.float64).reshape(-1)
        size, error = np.abs(at), np.abs(ours.reshape(-1) - at)
        wrong = (error > GROSS * size + float(np.finfo(reference.dtype).tiny)) & np.isfinite(error)
        if wrong.any():
            near = np.flatnonzero(size <= 2 * size[wrong].max())
            near = near[np.argsort(size[near], kind="stable")]
            worst = np.fmax.accumulate(np.abs(reference.reshape(-1)[near] - at[near]))
            last = np.searchsorted(size[near], 2 * size[wrong], side="right") - 1
            wrong[wrong] = error[wrong] > GROSS_FACTOR * worst[last]
    return wrong.reshape(exact.shape)


def _each_element(
    errors: list[OutputError],
    values: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    graph: Graph,
    bound: Mapping[Node, np.ndarray],
    seed: int,
) -> None:
    """Replace the errors of outputs some element of which is wrong by itself, whatever rounding does to it."""
    wrong = {
        n: gross_errors(*given)
        for n, given in enumerate(values)
        if errors[n].ok and given[0].dtype.kind == "f" and given[0].size
    }
    wrong = {n: mask for n, mask in wrong.items() if mask.any()}
    if not wrong:
        return
    simple = _expanded(graph)
    noise = element_noise(simple.outputs, bound, runs=GROSS_RUNS)
    for n, mask in wrong.items():
        mask &= np.abs(values[n][0] - values[n][1].astype(np.float64)) > GROSS_FACTOR * noise[n]
    if not any(mask.any() for mask in wrong.values()):
        return
    rng = np.random.default_rng(seed + 1)
    with np.errstate(all="ignore"):
        noisy = [_under_noise(simple, bound, rng) for _ in range(SAMPLES)]
    for n, mask in wrong.items():
        ours, exact, reference = values[n]
        mask &= ~_among(ours, [reference, exact, *(s[n] for s in noisy)], GROSS_FACTOR * noise[n])
        if mask.any():
            error = np.where(mask, np.abs(ours - exact.astype(np.float64)), 0)
            at = np.unravel_index(int(error.argmax()), error.shape)
            allowed = max(GROSS_FACTOR * float(noise[n][at]), GROSS * abs(float(exact[at])))
            errors[n] = OutputError(float(error[at]), abs(float(reference[at]) - float(exact[at])), allowed)


def verify(
    graph: Graph,
    constants: dict[Node, np.ndarray],
    run: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]],
    examples: Sequence[np.ndarray],
    *,
    seed: int = 0,
    options: str = "",
    deadline: Deadline = NEVER,
) -> list[OutputError]:
    """Errors of every output on random inputs; ``constants`` are values of constant inputs.

    Raises :class:`~eqsat.errors.VerificationError` with a program to paste, which compiles with ``options``, when
    one exceeds its bound.
    """
    free = [n for n in graph.inputs if n not in constants]
    arrays = random_inputs([n.type for n in free], examples, np.random.default_rng(seed))
    bound = {**dict(zip(free, arrays, strict=True)), **constants}
    exact = evaluate_nodes(graph.outputs, bound, double=True, deadline=deadline)
    plain = evaluate_nodes(graph.outputs, bound, deadline=deadline)
    deadline.check("verifying")
    ours = run(arrays)
    errors = [compare(a, b, c) for a, b, c in zip(ours, exact, plain, strict=True)]
    if not all(e.ok for e in errors):
        simple = _expanded(graph)
        noise = rounding_noise(simple.outputs, bound)
        errors = [replace(e, allowed=e.allowed + NOISE_FACTOR * n) for e, n in zip(errors, noise, strict=True)]
        if not all(e.ok for e in errors):
            rng = np.random.default_rng(seed + 1)
            with np.errstate(all="ignore"):
                noisy = [_under_noise(simple, bound, rng) for _ in range(SAMPLES)]
            for n, given in enumerate(zip(ours, exact, plain, strict=True)):
                if not errors[n].ok:
                    tied = nearly_extreme(simple.outputs[n], ours[n], bound, NOISE_FACTOR, ULPS)
                    again = compare(*given, [s[n] for s in noisy], tied)
                    errors[n] = replace(again, allowed=again.allowed + NOISE_FACTOR * noise[n])
    _each_element(errors, list(zip(ours, exact, plain, strict=True)), graph, bound, seed)
    bad = [n for n, e in enumerate(errors) if not e.ok]
    if bad:
        worst = errors[bad[0]]
        raise VerificationError(
            f"the optimized program differs from the reference: output {bad[0]} is off by {worst.ours:.3g}, "
            f"allowed {worst.allowed:.3g} (NumPy's own error is {worst.reference:.3g}); it is not used",
            program(graph, seed=seed, options=options),
        )
    return errors

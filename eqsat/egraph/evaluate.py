"""The values of a saturated e-graph: every e-node of a class must compute the same.

What "the same" is depends on the promise. Equal bits are seen in the program's own element types. Equal real numbers
are told from rounding by evaluating several times: once in extended precision, and a few times in float64 with every
result of an operator that rounds moved at random by more than its rounding (random arithmetic, as of Vignes and of
Parker). How far a value moves is what rounding, cancellation and overflow on the way can do to it; a difference of more
than that is one of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from eqsat.egraph.saturated import ENode, SaturatedEGraph
from eqsat.ir.node import Node
from eqsat.ir.sources import InputAttrs
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.ir.types import TensorType, is_floating
from eqsat.rules.rule import Numerics

Values = dict[int, np.ndarray]
Arithmetic = Callable[[ENode, TensorType, Sequence[np.ndarray]], np.ndarray]
"""What an e-node of a type computes of its operands' values."""

RUNS = 3
"""Evaluations in moved arithmetic: with fewer, a value that happens to move little would pass for a sure one."""
MOVED = {"float64": 2.0**-44, "float32": 2.0**-19, "float16": 2.0**-6, "bfloat16": 2.0**-3}
"""How far results are moved, relatively, by their element type: above its rounding and that of constants."""
SLACK = 8.0
"""A difference of so many times what the values moved is no rounding."""
VANISHED = 1e-280
"""Magnitudes at which float64 may lose everything."""


MOVES = ("source", "view", "concat", "pad", "gather")
PICKS = ("neg", "abs", "sign", "relu", "maximum", "minimum", "where", "reduce_max", "reduce_min")
WHOLE = ("floor", "ceil", "round", "floor_divide")
EXACT = frozenset((*PICKS, *WHOLE))
"""Operators whose results are exact, as are those of the kinds ``MOVES``: moving them parts equals."""

SUMS = frozenset(("add_n", "contract", "reduce_sum", "cumsum"))


class Disagreement(NamedTuple):
    """An e-node (as text), the value of its class, its own, and where they differ; what is ``raised`` instead of it."""

    term: str
    expected: np.ndarray
    found: np.ndarray
    where: np.ndarray
    raised: str = ""


def _reference(node: ENode, args: Sequence[np.ndarray]) -> np.ndarray:
    try:
        return np.asarray(OPS[node.op].reference(args, node.attrs))
    except TypeError:  # functions that extended precision lacks, such as erf
        plain = [a.astype(np.float64) if a.dtype == np.longdouble else a for a in args]
        return np.asarray(OPS[node.op].reference(plain, node.attrs))


def in_reals(node: ENode, type: TensorType, args: Sequence[np.ndarray]) -> np.ndarray:
    """In extended precision; a cast between floats is a rounding and left out."""
    if not type.dtype.is_float:
        return _reference(node, args).astype(type.dtype.numpy, copy=False)
    if node.op == "cast" and is_floating(args[0]):
        return args[0]
    return _reference(node, args).astype(np.longdouble)


def moved(rng: np.random.Generator, simple: bool = False) -> Arithmetic:
    """In float64, every result moved that its element type may have to round.

    ``simple``: the inputs are small dyadic numbers, so that a result that is one is exact and stays.
    """

    def compute(node: ENode, type: TensorType, args: Sequence[np.ndarray]) -> np.ndarray:
        if not type.dtype.is_float:
            return _reference(node, args).astype(type.dtype.numpy, copy=False)
        value = in_reals(node, type, [a.astype(np.longdouble) if is_floating(a) else a for a in args])
        narrow = value.astype(np.float64)
        if OPS[node.op].kind in MOVES or node.op in EXACT:
            return narrow
        size = narrow
        if node.op in SUMS:  # what is lost in a sum goes with its terms, also where they cancel
            attrs = (1,) * len(args) if node.op == "add_n" else node.attrs
            size = in_reals(replace(node, attrs=attrs), type, [abs(a) for a in args]).astype(np.float64)
        found = narrow + MOVED[type.dtype.name] * rng.uniform(-1, 1, value.shape) * size
        return np.where(value == value.astype(type.dtype.numpy), narrow, found) if simple else found

    return compute


def in_own_types(node: ENode, type: TensorType, args: Sequence[np.ndarray]) -> np.ndarray:
    """In the program's element types, rounded as NumPy does.

    The terms of a long sum and of a contraction have no order here: they are added exactly and rounded once.
    """
    if type.dtype.is_float and node.op == "add_n" and len(args) > 2:
        assert isinstance(node.attrs, tuple)
        terms = np.broadcast_arrays(*(a if s > 0 else -a for s, a in zip(node.attrs, args, strict=True)))
        plain = sum(terms[1:], start=terms[0])
        return _rounded_once(np.stack(terms, axis=-1), np.asarray(plain))
    if type.dtype.is_float and node.op == "contract":
        plain = _reference(node, args)
        return _contracted(args[0], args[1], node.attrs, plain)
    return _reference(node, args).astype(type.dtype.numpy, copy=False)


def _rounded_once(terms: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """Sums over the last axis by exact arithmetic; ``plain`` where they are no numbers or all zeros."""
    out = np.array(plain)
    for at in np.ndindex(*plain.shape):
        if math.isfinite(plain[at]) and terms[at].any():
            out[at] = _nearest(sum(map(Fraction, terms[at].tolist())))
    return out


def _contracted(a: np.ndarray, b: np.ndarray, spec: object, plain: np.ndarray) -> np.ndarray:
    assert isinstance(spec, Spec)
    extents = spec.extents(a.shape, b.shape)
    order = (*spec.out, *spec.summed)
    shape = [extents[x] for x in spec.summed]

    def aligned(x: np.ndarray, labels: tuple[int, ...]) -> np.ndarray:
        turned = x.transpose([labels.index(label) for label in order if label in labels])
        return turned.reshape([extents[label] if label in labels else 1 for label in order])

    left, right = np.broadcast_arrays(aligned(a, spec.a), aligned(b, spec.b))
    left, right = (x.reshape(*plain.shape, math.prod(shape)) for x in (left, right))
    out, terms = np.array(plain), _products(left, right)
    for at in np.ndindex(*plain.shape):
        if math.isfinite(plain[at]):
            total: Fraction | float
            if terms is not None:
                total = math.fsum(terms[at].tolist())
            else:
                pairs = zip(left[at].tolist(), right[at].tolist(), strict=True)
                total = sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(0))
            if total:
                out[at] = _nearest(total)
    return out


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Numbers in float64, along the last axis, whose exact sums are those of products; None where products of float64
    overflow or lose digits. What is not finite counts as 0.

    Products of floats of at most 24 binary digits are exact. Of others there are the errors, too (Dekker, "A
    floating-point technique for extending the available precision", 1971).
    """
    x, y = (np.where(np.isfinite(v), v, 0).astype(np.float64) for v in (left, right))
    with np.errstate(all="ignore"):
        product = x * y
    if left.dtype.itemsize <= 4 and left.dtype.kind != "i":
        return product
    sizes = np.abs(product[product != 0])
    largest = max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0), sizes.max(initial=0.0))
    underflows = np.any((product == 0) & (x != 0) & (y != 0))
    if largest > 2.0**500 or sizes.min(initial=1.0) < 2.0**-900 or underflows:
        return None
    (a, b), (c, d) = _halves(x), _halves(y)
    error = ((a * c - product) + a * d + b * c) + b * d
    return np.concatenate([product, error], axis=-1)


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as sums of two of half as many digits each (Veltkamp)."""
    scaled = (2.0**27 + 1) * x
    high = scaled - (scaled - x)
    return high, x - high


def _nearest(value: Fraction | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def class_values(
    graph: SaturatedEGraph, inputs: Mapping[Node, np.ndarray], compute: Arithmetic = in_reals
) -> dict[int, np.ndarray]:
    """The value of every class, by its first e-node that can be computed.

    Composites count by their expansion, which is in the same class and is what runs.
    """
    plain = {h: [n for n in nodes if OPS[n.op].kind != "composite"] for h, nodes in graph.classes.items()}
    bound = {n.attrs.index: v for n, v in inputs.items() if isinstance(n.attrs, InputAttrs)}
    values: Values = {}
    with np.errstate(all="ignore"):
        while len(values) < len(graph.classes):
            before = len(values)
            for handle, nodes in plain.items():
                ready = next((n for n in nodes if all(c in values for c in n.children)), None)
                if handle not in values and ready is not None:
                    values[handle] = _value(ready, graph.types[handle], values, bound, compute)
            if len(values) == before:
                raise ValueError("some classes of the e-graph contain only themselves")
    return values


def _value(
    node: ENode, type: TensorType, values: Values, bound: Mapping[int, np.ndarray], compute: Arithmetic
) -> np.ndarray:
    if isinstance(node.attrs, InputAttrs):
        given = bound[node.attrs.index]
        wide = np.longdouble if compute is in_reals else np.float64
        return given.astype(wide) if is_floating(given) and compute is not in_own_types else given
    return compute(node, type, [values[c] for c in node.children])


def disagreements(
    graph: SaturatedEGraph,
    inputs: Mapping[Node, np.ndarray],
    *,
    rule: str | None = None,
    numerics: Numerics = "reassociates",
    kinds: bool = True,
    simple: bool = False,
    seed: int = 0,
) -> Iterator[Disagreement]:
    """E-nodes that do not compute their class's value, by what a class of rules promises.

    ``exact``: bit by bit in the program's element types, for e-nodes of ``rule`` and of the program; any NaN is like
    another. ``reassociates``: the same reals; with ``kinds``, no number where the other one has NaN or an infinity,
    except where that depends on rounding or on what overflows on the way (NaN may be an infinity, as in
    1/0 - 1/0 = (1 - 1)/0). ``approximates``: the same reals where both are finite. ``simple``: see :func:`moved`.
    """
    if numerics == "exact":
        yield from _unequal_bits(graph, inputs, rule)
        return
    bound = {n.attrs.index: v for n, v in inputs.items() if isinstance(n.attrs, InputAttrs)}
    runs: list[tuple[Arithmetic, Values]] = []
    for compute in (in_reals, *(moved(np.random.default_rng((seed, n)), simple) for n in range(RUNS))):
        runs.append((compute, class_values(graph, inputs, compute)))
    with np.errstate(all="ignore"):
        for handle, nodes in graph.classes.items():
            expected, *around = (values[handle] for _, values in runs)
            for node in nodes:
                if OPS[node.op].kind == "composite":
                    continue
                type = graph.types[handle]
                found, *near = (_value(node, type, values, bound, compute) for compute, values in runs)
                if expected.shape != found.shape:
                    where = np.ones(expected.shape, bool)
                else:
                    where = _differ(expected, around, found, near, kinds and numerics == "reassociates")
                if where.any():
                    yield Disagreement(_text(node), expected, found, where)


def _text(node: ENode) -> str:
    return f"{node.op}({', '.join(map(str, node.children))}; {node.attrs}) by {node.rule}"


def _unequal_bits(
    graph: SaturatedEGraph, inputs: Mapping[Node, np.ndarray], rule: str | None
) -> Iterator[Disagreement]:
    bound = {n.attrs.index: v for n, v in inputs.items() if isinstance(n.attrs, InputAttrs)}
    values = class_values(graph, inputs, in_own_types)
    with np.errstate(all="ignore"):
        for handle, nodes in graph.classes.items():
            expected = values[handle]
            for node in nodes:
                if node.rule not in (None, rule) or OPS[node.op].kind == "composite":
                    continue
                found = _value(node, graph.types[handle], values, bound, in_own_types)
                if expected.shape != found.shape:
                    yield Disagreement(_text(node), expected, found, np.ones(expected.shape, bool))
                    continue
                where = expected != found
                if is_floating(expected):
                    zeros = (expected == 0) & (np.signbit(expected) != np.signbit(found))
                    where = (where | zeros) & ~(np.isnan(expected) & np.isnan(found))
                if where.any():
                    yield Disagreement(_text(node), expected, found, where)


def _kind(x: np.ndarray) -> np.ndarray:
    """0 for finite numbers, 1 and -1 for infinities, 2 for NaN."""
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))


def _differ(
    expected: np.ndarray, around: Sequence[np.ndarray], found: np.ndarray, near: Sequence[np.ndarray], kinds: bool
) -> np.ndarray:
    """Where two values differ by more than each moved."""
    if not is_floating(expected):
        sure = np.ones(expected.shape, bool)
        for value, others in ((expected, around), (found, near)):
            for other in others:
                sure &= value == other
        return np.asarray(sure & (expected != found))
    one, two = _kind(expected), _kind(found)
    sure = np.ones(expected.shape, bool)
    for kind, others in ((one, around), (two, near)):
        for other in others:
            sure &= kind == _kind(other)
    distance = np.max([abs(other - expected) for other in around], axis=0)
    distance = distance + np.max([abs(other - found) for other in near], axis=0)
    bound = SLACK * distance + np.finfo(np.float64).eps * abs(expected) + VANISHED
    finite = sure & (one == 0) & (two == 0)
    wrong = finite & (abs(expected - found) > bound)
    if not kinds:
        return np.asarray(wrong)
    no_numbers = (one != 0) & (two != 0) & ((one == 2) | (two == 2))
    return np.asarray(wrong | (sure & (one != two) & ~no_numbers))

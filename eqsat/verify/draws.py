"""Arguments to verify a program on: drawn to be valid, as the caller's own are, and telling.

What is valid is learned from the caller's arguments. An input that reaches an index, or an exponent of integers, stays
in the range of the caller's values, then a rearrangement of them that keeps elements of one place together, and at
last the caller's own values. Where few results are finite, an input whose values are all positive, and which reaches
a function that wants that (log, sqrt, powers), stays positive. What is telling: both signs, many magnitudes, zeros,
equal values, numbers that the program compares with, NaN and infinities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from eqsat.ir.node import ConstArray, Graph, Node
from eqsat.ir.table import OPS
from eqsat.ir.types import finfo
from eqsat.verify.boxes import Box, extents, part

POOL = 65_521
"""Distinct values of a drawn array; more elements repeat them, with a period that is no multiple of any block's."""
WIDE = 1e6
MAGNITUDES = (WIDE, 1e3, 30.0, 8.0, 4.0)
"""Largest values of wide draws, and reciprocals of the smallest: the next one is tried where a program leaves the range
of its types."""
WITH_ZERO = 30.0
"""Least magnitude of wide draws that hold zeros, too."""
WANTS_POSITIVE = frozenset(row.name for row in OPS.values() if row.domain[0] > -math.inf)


@dataclass(frozen=True)
class Kind:
    """A way to draw.

    ``fill``: ``normal``; ``positive`` (10^±3); ``like`` (the caller's values, moved about); ``wide`` (both signs,
    magnitudes from 1/``magnitude`` to ``magnitude``); ``ties`` (few different values, zeros of both signs);
    ``nan`` and ``inf`` (normal with some of them); ``mixed`` (several of these, for
    programs that work element by element).
    """

    fill: str
    text: str
    magnitude: float = WIDE


OWN = Kind("own", "the arguments of this call")
NORMAL = Kind("normal", "random normal values")
POSITIVE = Kind("positive", "random positive values")
LIKE = Kind("like", "values like those of this call")
WIDE_KINDS = tuple(Kind("wide", f"values up to ±{m:g}", m) for m in MAGNITUDES)
TIES = Kind("ties", "values many of which are equal, with zeros")
NAN = Kind("nan", "values with NaN among them")
INF = Kind("inf", "values with infinities among them")
MIXED = Kind("mixed", "values of many magnitudes, beside some of this call")


@dataclass
class Draws:
    """Draws the free inputs of a graph; ``examples`` are the caller's arrays for them."""

    graph: Graph
    free: Sequence[Node]
    examples: Sequence[np.ndarray]
    seed: int = 0
    rung: int = 0
    """How near to the caller's values inputs that reach an index stay: 0 their range, 1 rearranged, 2 as they are."""
    careful: bool = False
    """Whether inputs that are positive, and reach a function that wants that, are drawn so."""
    indices: frozenset[Node] = field(init=False)
    positive: frozenset[Node] = field(init=False)
    numbers: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        index, domain = reaching(self.graph)
        self.indices = frozenset(n for n in self.free if n in index)
        given = dict(zip(self.free, self.examples, strict=True))
        self.positive = frozenset(
            n for n, a in given.items() if n in domain and n.dtype.is_float and a.size and bool((a > 0).all())
        )
        self.numbers = program_numbers(self.graph)

    @property
    def varied(self) -> bool:
        """Whether the caller's own arrays are no stand-ins: several values in each that has several elements."""
        return all(a.size < 2 or bool((a != a.flat[0]).any()) for a in map(np.asarray, self.examples))

    def nearer(self) -> bool:
        """Stay nearer to the caller's values from now on; False where that is no nearer."""
        if self.rung == 2 or not self.indices:
            return False
        self.rung += 1
        return True

    def draw(self, kind: Kind, needed: Mapping[Node, Sequence[Box]] | None = None) -> list[np.ndarray]:
        """One array per free input. The same for the same kind, rung and seed.

        ``needed``: the boxes of inputs that matter. Elsewhere large ones are 0, in some of them the caller's own.
        """
        if kind is OWN:
            return list(self.examples)
        arrays = []
        for number, (node, example) in enumerate(zip(self.free, self.examples, strict=True)):
            rng = np.random.default_rng((self.seed, number, *kind.fill.encode()))
            dtype, size = node.dtype.numpy, node.type.size
            if not size:
                arrays.append(np.zeros(node.shape, dtype))
            elif node in self.indices and (self.rung or kind.fill == "like"):
                arrays.append(self._rearranged(node, example) if self.rung < 2 else np.asarray(example))
            elif node in self.indices:
                arrays.append(_spread(self._between(example, min(size, POOL), rng).astype(dtype), node.shape))
            else:
                pool = self._pool(kind, node, np.asarray(example), min(size, POOL), rng)
                with np.errstate(all="ignore"):
                    pool = pool.astype(dtype)
                boxes = needed.get(node) if needed is not None and size > POOL else None
                arrays.append(_spread(pool, node.shape) if boxes is None else _patched(pool, example, boxes))
        return arrays

    def _rearranged(self, node: Node, example: np.ndarray) -> np.ndarray:
        """The caller's values in another order, the same one for all inputs of this shape."""
        order = np.random.default_rng((self.seed, *node.shape)).permutation(node.type.size)
        return np.asarray(example).reshape(-1)[order].reshape(node.shape)

    @staticmethod
    def _between(example: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Values in the range of the caller's finite ones."""
        values = np.asarray(example)
        if values.dtype.kind == "b":
            return rng.random(count) < 0.5
        if values.dtype.kind in "iu":
            return rng.integers(int(values.min()), int(values.max()), count, values.dtype.type, endpoint=True)
        finite = values[np.isfinite(values)] if not np.isfinite(values).all() else values
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        # Not beyond the ends by rounding, where an index would be out of range.
        return np.clip(low + (high - low) * rng.random(count), low, high)

    def _pool(self, kind: Kind, node: Node, example: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Values of a kind, in float64 for floats."""
        if node.dtype.kind == "bool":
            return rng.random(count) < 0.5
        if node.dtype.kind == "int":
            return self._integers(kind.fill, node, example, count, rng)
        positive = self.careful and node in self.positive
        values: np.ndarray
        match kind.fill:
            case "positive":
                return 10.0 ** rng.uniform(-3, 3, count)
            case "like":
                chosen = _some(example, count, rng).astype(np.float64, copy=False)
                return chosen * rng.uniform(0.5, 1.5, count)
            case "wide":
                reach = math.log10(kind.magnitude)
                powers = rng.uniform(-reach, reach, count)
                values = rng.choice([-1.0, 1.0], count) * 10.0**powers
                values = self._with_numbers(values, node, kind.magnitude, rng)
            case "ties":
                values = rng.choice([-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0], count)
            case "mixed":
                parts = [self._pool(k, node, example, count, rng) for k in (NORMAL, WIDE_KINDS[0], TIES)]
                values = np.choose(rng.integers(0, 3, count), parts)
            case _:
                values = rng.standard_normal(count)
        if positive:
            values = np.where(values == 0, 1.0, np.abs(values))
        if kind.fill in ("nan", "inf"):
            at = rng.choice(count, 1 + count // 4096, replace=False)
            values[at] = np.nan if kind.fill == "nan" else np.inf
            if kind.fill == "inf" and not positive:
                values[at[1::2]] = -np.inf
        return values

    def _with_numbers(self, values: np.ndarray, node: Node, most: float, rng: np.random.Generator) -> np.ndarray:
        """With zeros, and the program's own numbers in this range and their neighbours, in some places."""
        eps = float(finfo(node.dtype).eps)
        numbers = [x for x in self.numbers if (0 if most == WIDE else 1 / most) <= x <= most]
        told = np.array([*([0.0] if most >= WITH_ZERO else []), *numbers, *(-x for x in numbers)])
        if not told.size:
            return values
        near = rng.choice(told, len(values)) * rng.choice([1.0, 1.0, 1 - 2 * eps, 1 + 2 * eps, 0.75, 1.5], len(values))
        return np.where(rng.random(len(values)) < 0.2, near, values)

    def _integers(self, fill: str, node: Node, example: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """The caller's integers; in wide draws small and large ones too."""
        values = _some(example, count, rng)
        if fill not in ("wide", "ties", "mixed"):
            return values
        values = values.astype(np.int64, copy=False)
        top = 1 << {64: 52, 32: 30}.get(node.dtype.bits, node.dtype.bits)
        small, large = rng.integers(-9, 10, count), rng.integers(-top, top, count)
        numbers = [int(x) for x in self.numbers if math.isfinite(x) and abs(x) < top]
        near = rng.choice([0, 1, *numbers], count) + rng.integers(-1, 2, count)
        if fill == "ties":
            return np.where(rng.random(count) < 0.5, small // 3, values)
        return np.choose(rng.integers(0, 4, count), [values, small, large, near])


def _some(example: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` of the caller's values (which are at least as many), in another order."""
    flat = example.reshape(-1) if example.flags.c_contiguous else np.asarray(example, order="C").reshape(-1)
    if flat.size > 4 * count:
        return flat[rng.integers(0, flat.size, count)]
    return rng.permutation(flat)[:count]


def _spread(pool: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An array of this shape that repeats the pool."""
    size = math.prod(shape)
    if size <= len(pool):
        return pool[:size].reshape(shape)
    out = np.empty((-(-size // len(pool)), len(pool)), pool.dtype)
    out[:] = pool
    return out.reshape(-1)[:size].reshape(shape)


def _patched(pool: np.ndarray, example: np.ndarray, boxes: Sequence[Box]) -> np.ndarray:
    """Zeros, but for these boxes: the first and every fourth as the caller gave it, the others of the pool."""
    out = np.zeros(example.shape, pool.dtype)  # which take no memory where they are only read
    for number, box in enumerate(boxes):
        values = part(example, box) if number % 4 == 0 else _spread(np.roll(pool, number), extents(box))
        part(out, box)[...] = values
    return out


def reaching(graph: Graph) -> tuple[frozenset[Node], frozenset[Node]]:
    """The nodes that an index, or an exponent of integers, is computed from; those that reach ``WANTS_POSITIVE``."""
    index: set[Node] = set()
    domain: set[Node] = set()
    for node in reversed(graph.nodes()):
        for place, operand in enumerate(node.inputs):
            table = OPS[node.op].kind == "gather" and place == 0
            starts = node.op == "wrap_index" or (OPS[node.op].kind == "gather" and place == 1)
            starts |= node.op == "opaque"  # what else a library's function takes is not known
            starts |= node.op == "pow" and node.dtype.kind == "int" and place == 1
            if starts or (node in index and not table):
                index.add(operand)
            if node in index and table:
                index.add(operand)  # its elements become the index
            if node.op in WANTS_POSITIVE or node in domain:
                domain.add(operand)
    return frozenset(index), frozenset(domain)


def program_numbers(graph: Graph) -> tuple[float, ...]:
    """Scalar constants of a program, in order: what it compares with, clips to, scales by."""
    found: dict[float, None] = {}
    for node in graph.nodes():
        if isinstance(node.attrs, ConstArray) and node.attrs.array.size == 1 and node.dtype.kind != "bool":
            value = float(node.attrs.array.reshape(()))
            if math.isfinite(value):
                found[abs(value)] = None
    return tuple(found)[:64]

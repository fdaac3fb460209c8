"""Which elements of a result hang on values that the order of evaluation, or the processor, is free to choose.

Values that leave the range of their type are replaced by others that might have been there, and the program is
evaluated again: what that does not move is held to the reference like everything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.deadline import Deadline
from eqsat.ir.node import Node
from eqsat.ir.table import OPS
from eqsat.ir.types import finfo, is_floating
from eqsat.verify.blocks import Evaluation, Storage, by_trips
from eqsat.verify.boxes import Box, extents


@dataclass(frozen=True)
class Escapes:
    """What to replace.

    ``range``: values too large or too small for what other orders may do with them, infinities made of finite operands
    or combined with others, and NaN of infinities. (NaN of finite operands, such as the log of -1, is the same in every
    order.) ``undefined``: floats cast to an integer that cannot hold them. ``special``: every NaN and infinity.
    """

    range: bool = False
    undefined: bool = False
    special: bool = False


_COMBINING = frozenset({"add", "sub", "mul", "div"})
_RANGE = {"float64": (1e100, 1e-100), "float32": (1e13, 1e-18), "float16": (40.0, 1e-2), "bfloat16": (1e13, 1e-18)}
"""By type, between which sizes its values escape in no order."""
_RUNS = 5
"""First with NaN or 0 for what escapes, then with random numbers, then with their negatives: a comparison, also of two
such values, comes out otherwise in one of them. Then both again, and functions of single elements keep the signs of
what is replaced: else a number that is replaced again on its way to a limit may come out below it, one way and the
other."""


def moves(
    places: Sequence[tuple[Node, Box]],
    plan: Storage,
    bound: Mapping[Node, np.ndarray],
    escapes: Escapes,
    deadline: Deadline | None = None,
    enough: Callable[[list[np.ndarray]], bool] | None = None,
) -> list[np.ndarray]:
    """For each place (a box of an output) how far its elements move where such values are replaced, or at least so far
    as is ``enough``.

    Absolute; infinite where an integer or a bool changes, where something is or becomes NaN, infinite, or so large that
    it is in another order, and everywhere if the program refuses the other values.
    """
    clean = _Replacing(plan, bound, escapes, None, deadline)
    before = [clean.part(*place) for place in places]
    reaches = [_RANGE[node.dtype.name][0] if escapes.range and node.dtype.is_float else np.inf for node, _ in places]
    worst = [np.zeros(b.shape) for b in before]
    for run in range(_RUNS if clean.escaped else 0):
        other = _Replacing(plan, bound, escapes, run, deadline)
        try:
            after = [other.part(*place) for place in places]
        except (IndexError, ValueError):
            return [np.full(b.shape, np.inf) for b in before]
        apart = [distance(a, b) for a, b in zip(after, before, strict=True)]
        worst = [np.maximum(w, np.where(d > r, np.inf, d)) for w, d, r in zip(worst, apart, reaches, strict=True)]
        if enough is not None and enough(worst):
            break
    return worst


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How far elements lie apart: infinitely far where only one is NaN or infinite, or integers differ."""
    if not is_floating(a):
        return np.where(a != b, np.inf, 0.0)
    with np.errstate(all="ignore"):
        apart = np.abs(a.astype(np.float64) - b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


class _Replacing(Evaluation):
    """The program's own types; notes whether anything escapes, and replaces it if a ``run`` is given."""

    moves_as_given = False

    def __init__(
        self,
        plan: Storage,
        bound: Mapping[Node, np.ndarray],
        escapes: Escapes,
        run: int | None,
        deadline: Deadline | None = None,
    ) -> None:
        super().__init__(plan, bound, deadline=deadline)
        self.escapes = escapes
        self.run = run
        self.escaped: set[str] = set()
        """Operators at which something did."""

    def _finished(self, node: Node, box: Box, value: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
        value = np.asarray(super()._finished(node, box, value, arrays))
        for where, first, most in self._found(node, value, arrays):
            if where.any():
                self.escaped.add(node.op)
                if self.run is not None:
                    other = self._other(node, box, value.dtype, first, most)
                    if self.run > 2 and is_floating(value) and OPS[node.op].kind in ("map", "view"):
                        other = np.where(np.isnan(value), other, np.copysign(other, value))
                    value = value.copy()
                    value[where] = other[where]
        return value

    def _looped(self, node: Node, arrays: list[np.ndarray]) -> list[np.ndarray]:
        def inside(plan: Storage, bound: Mapping[Node, np.ndarray], trip: int) -> Evaluation:
            made = _Replacing(plan, bound, self.escapes, self.run, self.deadline)
            made.escaped = self.escaped
            return made

        return by_trips(node, arrays, inside)

    def _found(
        self, node: Node, value: np.ndarray, arrays: Sequence[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, float, float]]:
        """Where a result has values of a kind that is to be replaced, by what at first, and of which size then."""
        if node.dtype.kind == "int" and self.escapes.undefined and node.op == "cast" and is_floating(arrays[0]):
            low, high = node.dtype.limits
            yield ~((arrays[0] > low - 1) & (arrays[0] < high + 1)), 0, high / 2
        if not is_floating(value):
            return
        if self.escapes.range:
            reach, least = _RANGE[node.dtype.name]
            size, largest = np.abs(value), float(finfo(value.dtype).max)
            yield (size < least) & (size > 0), 0.0, 0.0
            yield (size > reach) & (size < np.inf) | _made(node, value, arrays), np.nan, largest
            if node.op in ("mul", "div") and len(arrays) == 2:
                yield _balanced(node, arrays, reach, least), np.nan, np.inf
            if node.op == "reduce_prod":
                yield _partly(node, value, arrays, reach, least), np.nan, largest
        if self.escapes.special:
            yield ~np.isfinite(value), 0.0, math.sqrt(finfo(value.dtype).max)

    def _other(self, node: Node, box: Box, dtype: np.dtype, first: float, most: float) -> np.ndarray:
        """What stands in for values of a box in this run."""
        if self.run == 0 or not most:
            return np.full(extents(box), first, dtype)
        rng = np.random.default_rng((self.plan.position[node], *(n for r in box for n in r)))
        drawn: np.ndarray = rng.uniform(-1, 1, extents(box)) * (most if self.run in (1, 3) else -most)
        return drawn.astype(dtype)


def _balanced(node: Node, arrays: Sequence[np.ndarray], reach: float, least: float) -> np.ndarray:
    """Products of a factor that is too large and one that is too small, and such quotients: in another order, one of
    them meets other values first."""
    a, b = (np.abs(array) for array in arrays)
    large, small = [x > reach for x in (a, b)], [(x < least) & (x > 0) for x in (a, b)]
    if node.op == "div":
        found: np.ndarray = large[0] & large[1] | small[0] & small[1]
    else:
        found = large[0] & small[1] | small[0] & large[1]
    return found


def _partly(node: Node, value: np.ndarray, arrays: Sequence[np.ndarray], reach: float, least: float) -> np.ndarray:
    """Products of which a part may be too large or too small: that of the factors above 1, or of those below."""
    if not arrays:  # the factors came in pieces
        size = np.abs(value)
        outside: np.ndarray = ~((size >= least) & (size <= reach))
        return outside
    multiply = OPS[node.op].reference
    factors = np.abs(arrays[0].astype(np.float64))
    large, small = np.fmax(factors, 1), np.where((factors < 1) & (factors > 0), factors, 1)
    found: np.ndarray = (multiply([large], node.attrs) > reach) | (multiply([small], node.attrs) < least)
    return found


def _made(node: Node, value: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Where infinities are made of finite operands or combined with others, and NaN of infinities."""
    none = np.zeros(value.shape, bool)
    if not arrays or bool(np.isfinite(value).all()):
        return none

    def some(test: np.ufunc) -> np.ndarray:
        """Whether an operand's element passes: the one beside the result's, or any where operators gather them."""
        found = none
        for array in arrays:
            if is_floating(array):
                found = found | (test(array) if OPS[node.op].kind == "map" else test(array).any())
        return found

    infinite, nan = some(np.isinf), some(np.isnan)
    if OPS[node.op].kind in ("contract", "reduce") and nan.any():  # which of them a NaN reaches
        alone = [np.where(np.isnan(a), a, 0).astype(a.dtype) if is_floating(a) else a for a in arrays]
        nan = np.isnan(OPS[node.op].reference(alone, node.attrs)).reshape(value.shape)
    if (
        OPS[node.op].kind in ("contract", "reduce") or node.op in _COMBINING
    ):  # in another order it may meet its negative
        order = infinite | (node.op != "div")  # finite operands, too, overflow on the way
        infinite_result: np.ndarray = np.isinf(value) | (np.isnan(value) & order & ~nan)
        return infinite_result
    made: np.ndarray = (np.isinf(value) & ~infinite) | (np.isnan(value) & infinite & ~nan)
    return made

"""What rounding may do to a program's outputs, whatever the order of evaluation.

NumPy's own error says little where it is small by luck, and nothing for float64, which is its own
reference. Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point
arithmetic", 1997) asks the program itself: it is evaluated in float64 a few times with every intermediate changed by
a random relative amount of up to one unit of its type, and the outputs' spread shows how much the program amplifies
such changes (cancellation, normalisation of nearly constant rows, long sums).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from zlib import crc32

import numpy as np

from eqsat.deadline import Deadline
from eqsat.ir.composite import without_composites
from eqsat.ir.evaluate import trip_inputs
from eqsat.ir.loop import of_loop
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.ir.types import finfo, float64
from eqsat.verify.blocks import Evaluation, Storage, by_trips, storage
from eqsat.verify.boxes import Box, compute, whole

RUNS = 3
DISCRETE = frozenset({"floor", "ceil", "round", "sign", "floor_divide", "remainder"})
"""Operators with float results that jump: a change of their operands is not propagated through them."""
Place = tuple[Node, Box]


class _Noisy(Evaluation):
    """Float64, every value changed by up to one unit of its type; what jumps keeps the value it has without noise.

    ``inputs``: these, too. Those of a loop's body were changed where they were made.
    """

    moves_as_given = False
    adds_magnitudes = True

    def __init__(
        self,
        plan: Storage,
        bound: Mapping[Node, np.ndarray],
        run: int,
        deadline: Deadline | None = None,
        *,
        inputs: bool = True,
    ) -> None:
        super().__init__(plan, bound, double=True, deadline=deadline)
        self.clean = Evaluation(plan, bound, double=True, deadline=deadline)
        self.run = run
        self.inputs = inputs

    def _make_stored(self) -> None:
        if not any(jumps(node) or of_loop(node) for node in self.plan.order):
            return super()._make_stored()
        # Side by side, so that what jumps finds its value without noise before that is dropped.
        for at in range(self._next, len(self.plan.order)):
            self.clean._make(at)
            self._make(at)
            self.clean._drop(at)
            self._drop(at)
            self._next = self.clean._next = at + 1
        return None

    def _made(self, node: Node, box: Box, boxes: list[Box], arrays: list[np.ndarray]) -> np.ndarray:
        if jumps(node):
            return self._finished(node, box, self.clean._part(node, box), arrays)
        value = super()._made(node, box, boxes, arrays)
        if node.op in ("reduce_sum", "contract"):
            magnitudes = [self._magnitudes(node, a) for a in arrays]
            return self._summed(node, box, value, compute(node, box, boxes, magnitudes))
        if node.op in ("add", "sub"):  # a part of a longer sum, perhaps, in which terms cancel only later
            return self._summed(node, box, value, np.abs(arrays[0]) + np.abs(arrays[1]))
        return value

    def _looped(self, node: Node, arrays: list[np.ndarray]) -> list[np.ndarray]:
        loop = of_loop(node)
        assert loop is not None
        clean = [self.clean._part(operand, whole(operand.shape)) for operand in node.inputs]
        carried, others = clean[: loop.carries], clean[loop.carries :]
        after = without_composites(loop.body.outputs)[: loop.carries]
        before: Evaluation | None = None

        def inside(plan: Storage, bound: Mapping[Node, np.ndarray], trip: int) -> Evaluation:
            nonlocal before, carried
            if before is not None:
                carried = [before.value(output) for output in after]
            made = _Noisy(plan, bound, _run(self.run, trip), self.deadline, inputs=False)
            made.clean.bound = trip_inputs(loop, carried, others, trip)
            before = made.clean
            return made

        return by_trips(node, arrays, inside)

    def _magnitudes(self, node: Node, terms: np.ndarray) -> np.ndarray:
        """Those of a sum's terms; the first one's are more by what its order costs.

        Equal terms round the same way again and again, by far more than at random. Where the reference has digits to
        spare it shows that itself; float64 has none, and is added in pairs and one after the other.
        """
        size: np.ndarray = np.abs(terms)
        if node.op != "reduce_sum" or node.dtype != float64 or not terms.size:
            return size
        axes = node.attrs
        assert isinstance(axes, tuple)
        front = tuple(range(len(axes)))
        lines = np.moveaxis(terms, axes, front)
        kept = lines.shape[len(axes) :]
        lines = lines.reshape(terms.size // math.prod(kept), -1)
        apart = np.abs(np.add.accumulate(lines, axis=0)[-1] - np.ascontiguousarray(lines.T).sum(axis=1))
        np.moveaxis(size, axes, front)[(0,) * len(axes)] += 16 / np.finfo(np.float64).eps * apart.reshape(kept)
        return size

    def _summed(self, node: Node, box: Box, value: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        """A sum of n terms, one after the other."""
        if not node.dtype.is_float:
            return value
        terms = math.prod(n for operand in node.inputs[:1] for n in operand.shape) / max(1, node.type.size)
        if isinstance(node.attrs, Spec):
            a, b = node.inputs
            terms = math.prod(n for x, n in node.attrs.extents(a.shape, b.shape).items() if x in node.attrs.summed)
        reach = sum_reach(np.abs(value), magnitudes, terms, float(finfo(node.dtype).eps))
        noise = _noise((self.run, self.plan.position[node], 1, *(n for r in box for n in r)), value.size)
        moved: np.ndarray = value + reach * noise.reshape(value.shape)
        return moved

    def _finished(self, node: Node, box: Box, value: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
        value = super()._finished(node, box, value, arrays)
        if not node.dtype.is_float:
            return self.clean._part(node, box) if OPS[node.op].kind == "reduce" else value
        if node.op == "input" and not self.inputs:
            return value
        return _moved(value, float(finfo(node.dtype).eps), self, node, box, self.run)


def _run(run: int, trip: int) -> int:
    """The number of a run in a trip of a loop: other noise on each."""
    return run + 1009 * (trip + 1)


def sum_reach(size: np.ndarray, magnitudes: np.ndarray, terms: float | np.ndarray, unit: float) -> np.ndarray:
    """How far rounding moves a sum of terms one after the other, as no order of addition is worse on average.

    Each addition rounds by a part of the sum so far: of random signs, that adds up to a fraction of a unit of all
    magnitudes together; of one sign, to about √n/6 units of the sum.
    """
    found: np.ndarray = unit * (size * (np.sqrt(terms) / 32) + magnitudes / 16)
    return found


def _moved(value: np.ndarray, reach: float, of: Evaluation, node: Node, box: Box, run: int) -> np.ndarray:
    """Each element times 1 plus up to ``reach``, the same whenever this box is made again."""
    noise = _noise((run, of.plan.position.get(node, 0), *(n for r in box for n in r)), value.size)
    factor = np.multiply(noise.reshape(value.shape), reach, out=np.empty(value.shape))
    factor += 1
    moved: np.ndarray = value * factor.astype(value.dtype, copy=False)
    return moved


UNIFORM = 1 << 19
"""Random numbers that are drawn once: noise is a part of them, from another place on each time."""


@cache
def _uniform() -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, UNIFORM)


def _noise(seed: tuple[int, ...], count: int) -> np.ndarray:
    """Random numbers in [-1, 1), the same for the same seed. Loops ask for few of them, very often."""
    if count > UNIFORM:  # nothing repeats, for what rows have in common cancels in their differences
        return np.random.default_rng(seed).uniform(-1, 1, count)
    start = crc32(repr(seed).encode()) % UNIFORM
    drawn = _uniform()
    over = start + count - UNIFORM
    return drawn[start : start + count] if over <= 0 else np.concatenate((drawn[start:], drawn[:over]))


class Jittered(Evaluation):
    """The program's own types, every value moved by up to ``reach`` units, also through what jumps.

    ``inputs``: these, too. What they are is known, and a value that lies at a jump may be nearer to it than any input.
    """

    moves_as_given = False

    def __init__(
        self,
        plan: Storage,
        bound: Mapping[Node, np.ndarray],
        run: int,
        reach: float,
        deadline: Deadline | None = None,
        *,
        inputs: bool = True,
    ) -> None:
        super().__init__(plan, bound, deadline=deadline)
        self.run = run
        self.reach = reach
        self.inputs = inputs

    def _finished(self, node: Node, box: Box, value: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
        value = super()._finished(node, box, value, arrays)
        if not node.dtype.is_float or OPS[node.op].kind == "view" or node.op == "const":
            return value
        if node.op == "input" and not self.inputs:
            return value
        return _moved(value, self.reach * float(finfo(value.dtype).eps), self, node, box, self.run)

    def _looped(self, node: Node, arrays: list[np.ndarray]) -> list[np.ndarray]:
        def inside(plan: Storage, bound: Mapping[Node, np.ndarray], trip: int) -> Evaluation:
            return Jittered(plan, bound, _run(self.run, trip), self.reach, self.deadline, inputs=False)

        return by_trips(node, arrays, inside)


def element_noise(
    places: Sequence[Place],
    plan: Storage,
    bound: Mapping[Node, np.ndarray],
    *,
    runs: int = RUNS,
    deadline: Deadline | None = None,
) -> list[Moves]:
    """For each place (a box of an output) how far every element moves over ``runs`` noisy evaluations. Deterministic.

    Absolute; 0 for integers and bools, infinite where a value is not always finite.
    """
    found = [Moves(*(np.zeros(tuple(high - low for low, high in box)) for _ in range(2))) for _, box in places]
    for moved in changes(places, plan, bound, runs, deadline):
        for moves, change in zip(found, moved, strict=True):
            moves.add(np.where(np.isfinite(change), change, np.inf))
    return found


@dataclass
class Moves:
    """How far each element of a place moved at most, and in the evaluation that moved it second furthest."""

    worst: np.ndarray
    second: np.ndarray

    def add(self, change: np.ndarray) -> None:
        self.second = np.maximum(self.second, np.minimum(self.worst, change))
        self.worst = np.maximum(self.worst, change)

    def outgrown(self, exact: np.ndarray, unit: float) -> np.ndarray:
        """By how much one evaluation outdoes all others together, at elements no worse known than each one; at least 1.

        Where iterations or quotients amplify rounding, how far it moves an element has a heavy tail: few evaluations
        show too little of it, but at some elements they show that. An element is as well known as the others' largest
        move, in parts of its value, is small; ``unit``: the least such part.
        """
        size = np.abs(np.asarray(exact, np.float64)).reshape(-1)
        worst, second = self.worst.reshape(-1), np.maximum(self.second.reshape(-1), unit * size)
        with np.errstate(all="ignore"):
            ratio = np.where(np.isfinite(worst) & (second > 0), worst / second, 1.0)
            others, own = second / size, np.maximum(worst, unit * size) / size
        order = np.argsort(others, kind="stable")  # NaN, of an exact 0 that nothing moves, comes last
        most = np.fmax.accumulate(np.fmax(ratio[order], 1.0))
        last = np.searchsorted(others[order], own, side="right") - 1
        found: np.ndarray = np.where(last < 0, 1.0, most[last]) if most.size else most
        return found.reshape(self.worst.shape)


def rounding_noise(outputs: Sequence[Node], bound: Mapping[Node, np.ndarray], *, runs: int = RUNS) -> list[float]:
    """For each output the largest change of its elements that stay finite. ``bound`` gives the inputs' values."""
    places = [(node, whole(node.shape)) for node in outputs]
    return largest_noise(places, storage(outputs, bound, None), bound, runs=runs)


def largest_noise(
    places: Sequence[Place],
    plan: Storage,
    bound: Mapping[Node, np.ndarray],
    *,
    runs: int = RUNS,
    deadline: Deadline | None = None,
) -> list[float]:
    """For each place the largest change of its elements, those left out that are not finite."""
    worst = [0.0] * len(places)
    for moved in changes(places, plan, bound, runs, deadline):
        for number, change in enumerate(moved):
            worst[number] = max(worst[number], float(change.max(initial=0.0, where=np.isfinite(change))))
    return worst


def changes(
    places: Sequence[Place],
    plan: Storage,
    bound: Mapping[Node, np.ndarray],
    runs: int,
    deadline: Deadline | None,
) -> Iterator[list[np.ndarray]]:
    """How far each place moves in each noisy evaluation."""
    exact = Evaluation(plan, bound, double=True, deadline=deadline)
    clean = [exact.part(*place) for place in places]
    for run in range(runs):
        noisy = _Noisy(plan, bound, run, deadline)
        found = []
        for place, before in zip(places, clean, strict=True):
            moved = noisy.part(*place)
            with np.errstate(all="ignore"):
                found.append(np.abs(moved - before) if place[0].dtype.is_float else np.zeros(moved.shape))
        yield found


def jumps(node: Node) -> bool:
    """Whether a computed node's value jumps where its operands move."""
    return OPS[node.op].kind != "source" and (not node.dtype.is_float or node.op in DISCRETE)

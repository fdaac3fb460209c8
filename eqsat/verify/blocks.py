"""The reference interpreter within a memory limit.

Tensors that are small, or dear to compute twice, are *stored* whole until their last use; the others are *streamed*:
made block by block, along the outer axes, where a stored tensor or an output needs them. So a difference of all pairs
that is reduced at once is never there as a whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from eqsat.deadline import Deadline
from eqsat.ir.composite import without_composites
from eqsat.ir.evaluate import evaluate_loop
from eqsat.ir.loop import LoopResult
from eqsat.ir.node import Node, topological
from eqsat.ir.opaque import Result
from eqsat.ir.repeats import astype
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.ir.types import DType
from eqsat.ir.views import ViewMap
from eqsat.verify.boxes import Box, Pieces, accumulate, compute, extents, operand_boxes, part, volume, whole, within

BLOCK = 1 << 18
"""Elements of a block: 2 MiB of float64, which is in a cache from operator to operator."""
_ENDLESS = 1 << 62
SMALL = 1 << 20
"""Bytes of a tensor that is always stored."""


@dataclass(frozen=True)
class Storage:
    """Which nodes of a graph are stored whole, in which order they are made, and after which one each is dropped."""

    order: tuple[Node, ...]
    position: Mapping[Node, int]
    stored: frozenset[Node]
    last: Mapping[Node, int]
    """Position of the last stored node that needs it; ``len(order)`` where an output does."""
    peak: int
    """Bytes of stored nodes alive at once, in float64."""
    limit: int
    """Bytes that may be."""
    parts: Mapping[Node, Sequence[Box]] | None = None
    """The boxes of each node that are made; None where all of it is."""


def storage(
    outputs: Sequence[Node],
    given: Iterable[Node],
    limit: int | None,
    parts: Mapping[Node, Sequence[Box]] | None = None,
) -> Storage:
    """What to store so that, in float64, about ``limit`` bytes are alive at once; ``given`` have values already.

    Without a limit all is, as NumPy does it. Composite operators are computed as a whole: expand them where memory
    matters. ``parts``: boxes of each node (:func:`demanded`) to which everything is restricted.
    """
    order = topological(outputs)
    have = {*given, *(n for n in order if OPS[n.op].kind == "source")}
    if limit is None:
        return _stored(order, outputs, have, None, _ENDLESS, parts)
    most = limit // 2
    while True:
        found = _stored(order, outputs, have, most, limit, parts)
        if found.peak <= limit or most < SMALL:
            return found
        most //= 2


def _bytes(node: Node, parts: Mapping[Node, Sequence[Box]] | None) -> int:
    size = node.type.size if parts is None else sum(map(volume, parts.get(node, ())))
    return size * (8 if node.dtype.is_float else node.dtype.itemsize)


def _stored(
    order: list[Node],
    outputs: Sequence[Node],
    have: set[Node],
    most: int | None,
    limit: int,
    parts: Mapping[Node, Sequence[Box]] | None,
) -> Storage:
    position = {node: at for at, node in enumerate(order)}
    users: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for operand in dict.fromkeys(node.inputs):
            users[operand].append(node)
    ends = set(outputs)
    stored: set[Node] = set()
    # Who asks for blocks of a node; None among them: for other blocks than its own users make, or for some twice.
    askers: dict[Node, frozenset[Node | None]] = {}
    last: dict[Node, int] = {}
    for node in reversed(order):
        found: set[Node | None] = {node} if node in ends else set()
        until = len(order) if node in ends else -1
        for user in users[node]:
            until = max(until, position[user] if user in stored else last[user])
            if user in have:
                continue
            if _in_step(user, node):
                found |= {user} if user in stored else askers[user]
            else:
                found |= {None, user}
        askers[node], last[node] = frozenset(found), until
        if node in have:
            continue
        once = len(found) <= 1 and None not in found
        size = _bytes(node, parts)
        streams = once and OPS[node.op].kind != "opaque"
        if most is None or _at_once(node) or size <= max(SMALL, 0 if streams else most):
            stored.add(node)
    alive, peak = 0, 0
    dying: dict[int, int] = {}
    for at, node in enumerate(order):
        if node in stored:
            alive += _bytes(node, parts)
            peak = max(peak, alive)
            dying[last[node]] = dying.get(last[node], 0) + _bytes(node, parts)
        alive -= dying.pop(at, 0)
    return Storage(tuple(order), position, frozenset(stored), last, peak, limit, parts)


def _at_once(node: Node) -> bool:
    """Whether an operator makes all of its result, or none."""
    return OPS[node.op].kind in ("composite", "loop") or isinstance(node.attrs, Result)


def _in_step(user: Node, operand: Node) -> bool:
    """Whether blocks of ``user`` that do not overlap need blocks of the operand that do not overlap."""
    match OPS[user.op].kind:
        case "map":
            return operand.shape == user.shape
        case "reduce" | "concat" | "pad":
            return user.inputs.count(operand) == 1
        case "view":
            assert isinstance(user.attrs, ViewMap)
            return user.attrs.is_one_to_one(operand.type.size)
        case _:
            return False


class Evaluation:
    """Values of a graph's nodes, whole or in parts, in the program's own types or (``double``) floats as float64.

    Floating-point warnings are silenced: NaN and inf are results like any other. Raises ``IndexError`` and
    ``ValueError`` as NumPy does, ``OutOfTime`` once the deadline has passed.
    """

    moves_as_given = True
    """Whether views and gathers take what is given in the type that it has."""
    adds_magnitudes = False
    """Whether sums are told the sum of their terms' magnitudes."""

    def __init__(
        self,
        plan: Storage,
        bound: Mapping[Node, np.ndarray],
        *,
        double: bool = False,
        deadline: Deadline | None = None,
    ) -> None:
        self.plan = plan
        self.bound = bound
        self.double = double
        self.deadline = deadline or Deadline()
        self._values: dict[Node, dict[Box, np.ndarray]] = {}
        """The boxes of stored nodes that are there: the whole, or its parts."""
        self._called: dict[object, list[np.ndarray]] = {}
        self._dropped: dict[int, list[Node]] = {}
        for node in plan.stored:
            self._dropped.setdefault(plan.last[node], []).append(node)
        self._next = 0
        """Position of the first stored node not made yet."""

    def value(self, node: Node) -> np.ndarray:
        """The whole of an output."""
        return self.part(node, whole(node.shape))

    def part(self, node: Node, box: Box) -> np.ndarray:
        """A part of an output (not to be written to)."""
        with np.errstate(all="ignore"):
            self._make_stored()
            return self._part(node, box)

    def _make_stored(self) -> None:
        for at in range(self._next, len(self.plan.order)):
            self._make(at)
            self._drop(at)
            self._next = at + 1

    def _make(self, at: int) -> None:
        node = self.plan.order[at]
        if node in self.plan.stored:
            self.deadline.check("verification")
            parts = self.plan.parts
            boxes = [whole(node.shape)] if parts is None else parts.get(node, ())
            self._values[node] = {box: self._stored(node, box) for box in boxes}

    def _drop(self, at: int) -> None:
        for node in self._dropped.get(at, ()):
            self._values.pop(node, None)

    def _stored(self, node: Node, box: Box) -> np.ndarray:
        pieces = Pieces(box, self._step(node, box))
        if len(pieces) <= 1:
            return self._part(node, box)
        value = np.empty(extents(box), self._dtype(node))
        for piece in pieces:
            inside = within(piece, box)
            assert inside is not None
            part(value, inside)[...] = self._part(node, piece)
        return value

    def _step(self, node: Node, box: Box) -> int:
        """Elements of a box to be made at a time: all at once where its operands are there."""
        there = all(self._is_there(operand) for operand in node.inputs)
        return max(1, volume(box)) if there or _at_once(node) else BLOCK

    def _dtype(self, node: Node) -> np.dtype:
        return np.dtype(np.float64) if self.double and node.dtype.is_float else node.dtype.numpy

    def _is_there(self, node: Node) -> bool:
        return node in self.bound or node in self._values or node.op == "const"

    def _raw(self, node: Node, box: Box) -> np.ndarray:
        """A part of what is there, maybe in the type in which it was given."""
        made = self._values.get(node)
        if made is not None:
            if box in made:
                return made[box]
            inner, outer = next((inner, outer) for outer in made if (inner := within(box, outer)) is not None)
            return part(made[outer], inner)
        array = self.bound.get(node)
        if array is None:
            array = OPS[node.op].reference([], node.attrs)
        return part(array, box)

    def _part(self, node: Node, box: Box) -> np.ndarray:
        if volume(box) == 0:
            return np.empty(extents(box), self._dtype(node))
        if self._is_there(node):
            raw = self._raw(node, box)
            return raw if node in self._values else self._finished(node, box, raw, ())
        self.deadline.check("verification")
        # From the result down: which part of each streamed node is needed. Then from the operands up.
        position = self.plan.position
        wanted: dict[Node, dict[Box, None]] = {node: {box: None}}
        heap = [-position[node]]
        steps: list[tuple[Node, Box, list[Box] | None]] = []
        uses: dict[tuple[Node, Box], int] = {}
        while heap:
            current = self.plan.order[-heapq.heappop(heap)]
            for piece in wanted[current]:
                needed = operand_boxes(current, piece)
                if self._too_much(current, piece, needed):
                    steps.append((current, piece, None))
                    continue
                steps.append((current, piece, needed))
                for operand, inner in zip(current.inputs, needed, strict=True):
                    if volume(inner) == 0 or self._is_there(operand):
                        continue
                    uses[operand, inner] = uses.get((operand, inner), 0) + 1
                    if operand not in wanted:
                        wanted[operand] = {}
                        heapq.heappush(heap, -position[operand])
                    wanted[operand][inner] = None
        made: dict[tuple[Node, Box], np.ndarray] = {}
        for current, piece, boxes in reversed(steps):
            if boxes is None:
                made[current, piece] = self._in_pieces(current, piece)
                continue
            arrays = []
            for operand, inner in zip(current.inputs, boxes, strict=True):
                if volume(inner) == 0:
                    arrays.append(np.empty(extents(inner), self._dtype(operand)))
                elif self._is_there(operand):
                    moved = self.moves_as_given and OPS[current.op].kind in ("view", "gather")
                    arrays.append(self._raw(operand, inner) if moved else self._part(operand, inner))
                else:
                    arrays.append(made[operand, inner])
                    uses[operand, inner] -= 1
                    if not uses[operand, inner]:
                        del made[operand, inner]
            made[current, piece] = self._made(current, piece, boxes, arrays)
        return made[node, box]

    def _made(self, node: Node, box: Box, boxes: list[Box], arrays: list[np.ndarray]) -> np.ndarray:
        """An operator's result; what evaluations of other arithmetic change."""
        return self._finished(node, box, self._computed(node, box, boxes, arrays), arrays)

    def _computed(self, node: Node, box: Box, boxes: list[Box], arrays: list[np.ndarray]) -> np.ndarray:
        key: object
        run: Callable[[list[np.ndarray]], list[np.ndarray]]
        if isinstance(node.attrs, LoopResult):
            key, number, run = (node.attrs.loop, node.inputs), node.attrs.index, partial(self._looped, node)
        elif isinstance(node.attrs, Result):
            key, number, run = (node.attrs.call.key, node.inputs), node.attrs.number, node.attrs.call.run
        else:
            return compute(node, box, boxes, arrays)
        if key not in self._called:  # once for all its results
            self._called[key] = run(arrays)
        return part(self._called[key][number], box)

    def _looped(self, node: Node, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """All results of the loop that the node is one of."""
        assert isinstance(node.attrs, LoopResult)
        return evaluate_loop(node.attrs.loop, arrays, double=self.double, deadline=self.deadline)

    def _summed(self, node: Node, box: Box, value: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        return value

    def _magnitudes(self, node: Node, terms: np.ndarray) -> np.ndarray:
        size: np.ndarray = np.abs(terms)
        return size

    def _finished(self, node: Node, box: Box, value: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return astype(value, self._dtype(node))

    def _too_much(self, node: Node, box: Box, needed: list[Box]) -> bool:
        """Whether a streamed operand would be far larger than a block, and the operator lets it come in pieces."""
        kind = OPS[node.op].kind
        streamed = widened = 0
        for operand, inner in zip(node.inputs, needed, strict=True):
            if not self._is_there(operand):
                streamed = max(streamed, volume(inner))
            elif self.double and operand not in self._values and operand.dtype.is_float:
                widened = max(widened, volume(inner))
        match kind:
            case "reduce":
                return max(streamed, widened) > BLOCK
            case "contract":
                assert isinstance(node.attrs, Spec)
                return bool(node.attrs.summed) and (streamed > 8 * BLOCK or 8 * widened > self.plan.limit // 4)
            case "view":
                return streamed > BLOCK and streamed > 4 * volume(box) > 4
            case _:
                return False

    def _in_pieces(self, node: Node, box: Box) -> np.ndarray:
        """A reduction or contraction piece by piece of what it sums over, or a view that reads here and there."""
        kind = OPS[node.op].kind
        (source, *_) = node.inputs
        out = np.empty(extents(box), self._dtype(node))
        if kind == "reduce":
            (inner,) = operand_boxes(node, box)
            seen = None
            if out.dtype.kind == "f":  # NumPy adds in pairs: partial sums by the thousand would round more
                out = out.astype(np.float64)
            if node.op in ("argmax", "argmin"):
                seen = np.zeros(extents(box), self._dtype(source))
            magnitudes = np.zeros(out.shape) if self.adds_magnitudes and node.op == "reduce_sum" else None
            for piece in Pieces(inner, BLOCK):
                value = self._part(source, piece)
                accumulate(node, out, seen, piece, value, box)
                if magnitudes is not None:
                    accumulate(node, magnitudes, None, piece, self._magnitudes(node, value), box)
            value = self._finished(node, box, out, ())
            return value if magnitudes is None else self._summed(node, box, value, magnitudes)
        if kind == "view":
            axis = max(range(len(box)), key=lambda a: box[a][1] - box[a][0])
            low, high = box[axis]
            middle = (low + high) // 2
            for half in ((low, middle), (middle, high)):
                at = (slice(None),) * axis + (slice(half[0] - low, half[1] - low),)
                out[at] = self._part(node, (*box[:axis], half, *box[axis + 1 :]))
            return out
        assert isinstance(node.attrs, Spec)
        label = node.attrs.summed[0]
        boxes = operand_boxes(node, box)
        axes = [labels.index(label) for labels in (node.attrs.a, node.attrs.b)]
        low, high = boxes[0][axes[0]]
        step = max(1, 8 * BLOCK * (high - low) // max(volume(b) for b in boxes))
        out[...] = 0
        for start in range(low, high, step):
            inside = (start, min(start + step, high))
            pieces = [(*b[:a], inside, *b[a + 1 :]) for b, a in zip(boxes, axes, strict=True)]
            arrays = [self._part(o, b) for o, b in zip(node.inputs, pieces, strict=True)]
            out += compute(node, box, pieces, arrays)
        return self._finished(node, box, out, ())


class AsRun(Evaluation):
    """In the program's own types; sums of 16-bit floats as NumPy adds them: rounded at every step, by whole axes."""

    def _made(self, node: Node, box: Box, boxes: list[Box], arrays: list[np.ndarray]) -> np.ndarray:
        half = _half_of(node)
        if half is None:
            return super()._made(node, box, boxes, arrays)
        value = OPS[node.op].reference([arrays[0].astype(half.numpy)], node.attrs)
        return self._finished(node, box, value, arrays)

    def _too_much(self, node: Node, box: Box, needed: list[Box]) -> bool:
        return _half_of(node) is None and super()._too_much(node, box, needed)


class Rounded(Evaluation):
    """Float64, and its results rounded to the program's own types: NumPy's own error is not asked for."""

    def __init__(self, exact: Evaluation) -> None:
        super().__init__(exact.plan, exact.bound, deadline=exact.deadline)
        self.exact = exact

    def part(self, node: Node, box: Box) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self.exact.part(node, box).astype(node.dtype.numpy)


def _half_of(node: Node) -> DType | None:
    """The type of the 16-bit floats that a node adds up or multiplies, as float32."""
    if node.op not in ("reduce_sum", "reduce_prod") or node.inputs[0].op != "cast":
        return None
    dtype = node.inputs[0].inputs[0].dtype
    return dtype if dtype.is_half else None


def by_trips(
    node: Node, arrays: Sequence[np.ndarray], inside: Callable[[Storage, Mapping[Node, np.ndarray], int], Evaluation]
) -> list[np.ndarray]:
    """All results of the loop that the node is one of, where evaluations ``inside`` of it make each trip's."""
    assert isinstance(node.attrs, LoopResult)
    loop = node.attrs.loop
    outputs = without_composites(loop.body.outputs)
    plan = storage(outputs, loop.body.inputs, None)

    def run(bound: Mapping[Node, np.ndarray], trip: int) -> list[np.ndarray]:
        one = inside(plan, bound, trip)
        return [one.value(output) for output in outputs]

    return evaluate_loop(loop, arrays, run)


def blocks(node: Node, plan: Storage) -> Sequence[Box]:
    """The blocks in which an output is best compared: the whole of it where it is there as a whole."""
    if node in plan.stored or node.type.size <= BLOCK:
        return [whole(node.shape)]
    return Pieces(whole(node.shape), BLOCK)


def first_and_some(boxes: Sequence[Box], most: int, rng: np.random.Generator) -> Sequence[Box]:
    """The first and the last of these blocks, and others drawn among them, of about ``most`` elements together."""
    count = max(2, most // max(1, volume(boxes[0])))
    if len(boxes) <= count:
        return boxes
    drawn = rng.choice(len(boxes) - 2, count - 2, replace=False) + 1 if count > 2 else np.empty(0, np.int64)
    return [boxes[i] for i in (0, *sorted(int(i) for i in drawn), len(boxes) - 1)]


def demanded(places: Iterable[tuple[Node, Box]]) -> dict[Node, list[Box]]:
    """For every node which boxes of it these boxes of outputs are computed from, in a fixed order."""
    found: dict[Node, dict[Box, None]] = {}
    for node, box in places:
        found.setdefault(node, {})[box] = None
    for node in reversed(topological(found)):
        for box in found.get(node, ()):
            for operand, inner in zip(node.inputs, operand_boxes(node, box), strict=True):
                if volume(inner):
                    found.setdefault(operand, {})[inner] = None
    return {node: list(boxes) for node, boxes in found.items()}

"""Loops found again in a trace, where iterations of Python's ``for`` lie one after the other.

Tracing unrolls every loop. Its iterations are runs of operators that repeat with a period: the same operators on
operands that lie equally far back (the same iteration, or one before), are the same tensor in all of them, or views of
one whose offset grows by as much from each to the next. Such a run becomes a :class:`~eqsat.ir.loop.Loop`. Nothing is
assumed of how the program was written: what repeats is one, whether it came from ``for``, recursion or a list.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.ir import build
from eqsat.ir.identity import identity
from eqsat.ir.loop import Loop, loop
from eqsat.ir.node import ConstArray, Graph, Node, intern, remade, topological
from eqsat.ir.types import TensorType
from eqsat.ir.views import ViewMap, view_map

__all__ = ["LEAST_NODES", "LEAST_TRIPS", "rerolled"]

LEAST_TRIPS = 8
"""Trips of a loop at least."""
LEAST_NODES = 192
"""Operators that its trips have together at least: shorter programs are searched as a whole, across iterations."""
PERIODS = 64
"""Distances between equal operators that are tried as a period: those of most operators first."""
TABLE_BYTES = 1 << 22
"""Of constants at most that differ from trip to trip, in a table that the loop reads by rows."""


def rerolled(graph: Graph, order: Sequence[Node] = ()) -> Graph:
    """The graph with its repetitions as loops; the graph itself where there are none worth it.

    ``order``: the operators in the order in which they were traced, as far as that is known. Without it, their order
    is that of the graph, in which iterations may lie interleaved and stay undiscovered.
    """
    while True:
        sequence = _sequence(graph, order)
        found = None if len(sequence) < LEAST_NODES else _find(sequence, graph)
        if found is None:
            return graph
        replaced, rest = found
        outputs = _rebuilt([*graph.outputs, *rest], replaced)
        graph = Graph(graph.inputs, tuple(outputs[: len(graph.outputs)]), graph.names)
        order = outputs[len(graph.outputs) :]


def _sequence(graph: Graph, order: Sequence[Node]) -> list[Node]:
    """Operators that the graph needs, operands before users, otherwise in the order given."""
    needed = graph.nodes()
    wanted = set(needed)
    found: dict[Node, None] = {}
    for node in (*(n for n in order if n in wanted), *needed):
        stack = [node]
        while stack:
            missing = [i for i in stack[-1].inputs if i not in found]
            if missing:
                stack.append(missing[0])
            else:
                found[stack.pop()] = None
    users = Counter(operand for node in found for operand in set(node.inputs))
    hoisted: dict[Node, None] = {}
    for node in found:  # what all iterations read is traced in the first one
        if all(operand in hoisted for operand in node.inputs) and (not node.inputs or users[node] >= LEAST_TRIPS):
            hoisted[node] = None
    return [node for node in (*hoisted, *(n for n in found if n not in hoisted)) if node.inputs]


def _label(node: Node) -> Hashable:
    """What iterations have in common: an operator up to the offset of a view, its type and its operands' types."""
    attrs: Hashable = node.attrs.axes if isinstance(node.attrs, ViewMap) else identity(node.attrs)
    return node.op, attrs, node.type, tuple(operand.type for operand in node.inputs)


def _rebuilt(outputs: Sequence[Node], replaced: Mapping[Node, Node]) -> list[Node]:
    """The outputs with nodes replaced, and what reads rows of what a loop stacks as views of the whole."""
    done = dict(replaced)
    for node in topological(outputs, replaced):
        inputs = [done[i] for i in node.inputs]
        if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
            done[node] = node
        elif isinstance(node.attrs, ViewMap):
            done[node] = build.view(inputs[0], node.attrs, node.label)
        elif node.op == "concat":
            assert isinstance(node.attrs, int)
            done[node] = build.concat(_merged(inputs, node.attrs), node.attrs)
        else:
            done[node] = remade(node, tuple(inputs))
    return [done[o] for o in outputs]


def _merged(parts: Sequence[Node], axis: int) -> list[Node]:
    """Neighbours that are views at even distances of one tensor, as one view each."""
    found: list[tuple[Node, int, int]] = []  # the first part, how many, and how far apart
    for part in parts:
        if found and isinstance(part.attrs, ViewMap):
            first, count, step = found[-1]
            if isinstance(first.attrs, ViewMap) and part.inputs == first.inputs and part.attrs.axes == first.attrs.axes:
                apart = part.attrs.offset - first.attrs.offset
                if count == 1 or apart == count * step:
                    found[-1] = (first, count + 1, apart if count == 1 else step)
                    continue
        found.append((part, 1, 0))
    merged = []
    for first, count, step in found:
        if count == 1 or not isinstance(first.attrs, ViewMap):
            merged.append(first)
            continue
        axes = list(first.attrs.axes)
        axes[axis] = ((count, step), *axes[axis])
        merged.append(build.view(first.inputs[0], view_map(axes, first.attrs.offset)))
    return merged


def _find(sequence: list[Node], graph: Graph) -> tuple[dict[Node, Node], list[Node]] | None:
    """The repetition with most operators: what stands for its nodes, and all others."""
    numbers: dict[Hashable, int] = {}
    labels = np.array([numbers.setdefault(_label(node), len(numbers)) for node in sequence])
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in sequence:
        for operand in dict.fromkeys(node.inputs):
            users[operand].append(node)
    outputs = set(graph.outputs)
    for start, end, period in _runs(labels):
        position = {node: p for p, node in enumerate(sequence)}
        for first in _cuts(sequence, users, outputs, position, start, period):
            roll = _Roll(sequence, position, users, outputs, first, period, (end - first) // period)
            replaced = roll.run()
            if replaced is not None:
                return replaced, [n for n in sequence if roll.where(n) is None]
    return None


def _runs(labels: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Stretches in which labels repeat, with their period: those with most operators first."""
    places: dict[int, list[int]] = defaultdict(list)
    for position, label in enumerate(labels.tolist()):
        places[label].append(position)
    periods: Counter[int] = Counter()
    for found in places.values():
        for n in (1, 2, 3, 4, 5, 6, 8):  # an operator may be so many times in one iteration
            apart = np.subtract(found[n:], found[:-n])
            if apart.size >= LEAST_TRIPS - 1:
                values, counts = np.unique(apart, return_counts=True)
                periods[int(values[counts.argmax()])] += 1
    stretches = []
    for period, _ in periods.most_common(PERIODS):
        same = np.flatnonzero(np.diff(np.concatenate([[0], labels[:-period] == labels[period:], [0]]).astype(np.int8)))
        for start, end in zip(same[::2].tolist(), same[1::2].tolist(), strict=True):
            length = end - start + period
            if length >= max(LEAST_NODES, LEAST_TRIPS * period):
                stretches.append((start, start + length, period))
    yield from sorted(stretches, key=lambda run: (run[0] - run[1], run[2], run[0]))


def _cuts(
    sequence: Sequence[Node],
    users: Mapping[Node, Sequence[Node]],
    outputs: set[Node],
    position: Mapping[Node, int],
    start: int,
    period: int,
) -> list[int]:
    """Where iterations may begin: the places of a period past which fewest bytes are carried, those first."""
    alive = np.zeros(2 * period + 1, np.int64)
    for p in range(start + period, start + 2 * period):
        node = sequence[p]
        last = max((position[u] for u in users[node] if u in position), default=p)
        last = min(last, start + 3 * period - 1)
        for q in range(p, last):
            alive[q - start - period] += node.type.nbytes
    folded = alive[:period] + alive[period : 2 * period]
    best = np.argsort(folded, kind="stable")[:4]
    return [start + (int(b) + 1) % period for b in best]


@dataclass
class _Roll:
    """An attempt to make a loop of ``trips`` times ``period`` operators from ``first`` on."""

    sequence: Sequence[Node]
    position: Mapping[Node, int]
    users: Mapping[Node, Sequence[Node]]
    outputs: set[Node]
    first: int
    period: int
    trips: int
    carried: dict[tuple[int, int], int] = field(default_factory=dict)
    """Numbers of the values that are carried: (place in an iteration, trips since)."""

    def run(self) -> dict[Node, Node] | None:
        """What stands for the loop's nodes; None where there is no loop."""
        while self.trips >= LEAST_TRIPS and self.trips * self.period >= LEAST_NODES:
            broken = self._made()
            if not isinstance(broken, int):
                return broken
            self.trips = broken
        return None

    def at(self, trip: int, place: int) -> Node:
        return self.sequence[self.first + trip * self.period + place]

    def where(self, node: Node) -> tuple[int, int] | None:
        """Trip and place of a node in the loop."""
        p = self.position.get(node)
        if p is None or not 0 <= p - self.first < self.trips * self.period:
            return None
        return divmod(p - self.first, self.period)

    def _made(self) -> dict[Node, Node] | int:
        """The loop; or the number of trips before the first that is not like the others."""
        reads: list[list[_Read]] = []
        for place in range(self.period):
            slots: list[_Read] = []
            for slot in range(len(self.at(0, place).inputs)):
                found = self._read(place, slot)
                if isinstance(found, int):
                    return found
                slots.append(found)
            reads.append(slots)
        moves: dict[int, int] = {}
        for place in range(self.period):
            node = self.at(0, place)
            if isinstance(node.attrs, ViewMap):
                offsets = np.array([self.at(t, place).attrs.offset for t in range(self.trips)])  # type: ignore[attr-defined]
                step = int(offsets[1] - offsets[0])
                off = np.flatnonzero(offsets != offsets[0] + step * np.arange(self.trips))
                if off.size:
                    return int(off[0])
                if step:
                    (source,) = reads[place]
                    if source.kind != "fixed":
                        return 0
                    moves[place] = step
        return self._build(reads, moves)

    def _read(self, place: int, slot: int) -> _Read | int:
        """Where an operand comes from, in every trip alike; or the first trip in which it is otherwise."""
        nodes = [self.at(t, place).inputs[slot] for t in range(self.trips)]
        spots = [self.where(node) for node in nodes]
        last = spots[-1]
        if last is not None:
            distance, source = self.trips - 1 - last[0], last[1]
            for trip in range(self.trips - 1, distance - 1, -1):
                if spots[trip] != (trip - distance, source):
                    return trip + 1 if trip + 1 < self.trips else 0
            if any(spot is not None for spot in spots[:distance]):
                return 0
            return _Read("carried" if distance else "inner", nodes[:distance], source, distance)
        inside = next((t for t, spot in enumerate(spots) if spot is not None), None)
        if inside is not None:
            return inside if inside >= LEAST_TRIPS else 0
        if all(node is nodes[0] for node in nodes):
            return _Read("fixed", nodes[:1])
        return self._rows(nodes)

    def _rows(self, nodes: list[Node]) -> _Read | int:
        """An operand that is another tensor on every trip: views that move, or constants, which go into a table."""
        first = nodes[0]
        attrs = [node.attrs for node in nodes]
        if all(isinstance(a, ConstArray) for a in attrs):
            if first.type.nbytes * self.trips > TABLE_BYTES:
                return 0
            return _Read("table", nodes)
        if isinstance(first.attrs, ViewMap) and first.type.size:
            base, axes = first.inputs[0], first.attrs.axes
            for trip, node in enumerate(nodes):
                if not isinstance(node.attrs, ViewMap) or node.inputs[0] is not base or node.attrs.axes != axes:
                    return trip
            offsets = [a.offset for a in attrs if isinstance(a, ViewMap)]
            step = offsets[1] - offsets[0]
            off = next((t for t, o in enumerate(offsets) if o != offsets[0] + t * step), None)
            return _Read("view", nodes[:1], step=step) if off is None else off
        return next(t for t, node in enumerate(nodes) if node is not first)

    # the loop

    def _build(self, reads: list[list[_Read]], moves: dict[int, int]) -> dict[Node, Node] | int:
        initial = self._initial(reads)
        if initial is None:
            return 0
        results = self._results()
        if results is None:
            return 0
        stacked, finals = results
        carries = sorted(self.carried_keys(reads) | {(place, 1) for place in finals})
        start = self._starting(carries, initial)
        if start is None:
            return 0
        body, others, steps = _Body(self, reads, moves, carries, stacked).run()
        nodes = loop(Loop(self.trips, body, len(carries), tuple(steps)), [*start, *others])
        replaced: dict[Node, Node] = {}
        for place in finals:
            replaced[self.at(self.trips - 1, place)] = nodes[carries.index((place, 1))]
        for number, place in enumerate(stacked):
            whole = nodes[len(carries) + number]
            for trip in range(self.trips):
                node = self.at(trip, place)
                if node not in replaced:
                    replaced[node] = build.row(whole, trip)
        return replaced

    def carried_keys(self, reads: list[list[_Read]]) -> set[tuple[int, int]]:
        """What is carried: values read one or more trips later, and for those of more trips all between."""
        found = {(r.source, r.distance) for slots in reads for r in slots if r.kind == "carried"}
        return {(source, d) for source, most in found for d in range(1, most + 1)}

    def _initial(self, reads: list[list[_Read]]) -> dict[tuple[int, int], Node] | None:
        """Values that stand for those of trips before the first: (place, trip, negative); None if two are wanted."""
        found: dict[tuple[int, int], Node] = {}
        for slots in reads:
            for read in slots:
                if read.kind == "carried":
                    for trip, node in enumerate(read.nodes):
                        if found.setdefault((read.source, trip - read.distance), node) is not node:
                            return None
        return found

    def _starting(
        self, carries: Sequence[tuple[int, int]], initial: Mapping[tuple[int, int], Node]
    ) -> list[Node] | None:
        """What is carried into the first trip. A value that nobody reads then may be any: 0."""
        found = []
        for place, distance in carries:
            node = initial.get((place, -distance))
            if node is None:
                type = self.at(0, place).type
                node = build.broadcast_to(build.const(np.zeros((), type.dtype.numpy), type.dtype), type.shape)
            found.append(node)
        return found

    def _results(self) -> tuple[list[int], list[int]] | None:
        """Places whose values are wanted outside: those of every trip, and those of the last one alone."""
        stacked, finals = [], []
        for place in range(self.period):
            wanted = []
            for trip in range(self.trips):
                node = self.at(trip, place)
                if node in self.outputs or any(self.where(user) is None for user in self.users.get(node, ())):
                    wanted.append(trip)
            if wanted == [self.trips - 1]:
                finals.append(place)
            elif wanted:
                stacked.append(place)
        return stacked, finals


@dataclass(frozen=True)
class _Read:
    """An operand of an operator of the body.

    ``inner``: made in the same trip, at ``source``; ``carried``: so many trips before (``nodes``: before the first);
    ``fixed``: one tensor; ``view``: a view that moves by ``step``; ``table``: a constant for each trip.
    """

    kind: str
    nodes: list[Node]
    source: int = 0
    distance: int = 0
    step: int = 0


class _Body:
    """The graph of one trip."""

    def __init__(
        self,
        roll: _Roll,
        reads: list[list[_Read]],
        moves: Mapping[int, int],
        carries: Sequence[tuple[int, int]],
        stacked: Sequence[int],
    ) -> None:
        self.roll, self.reads, self.moves = roll, reads, moves
        self.carries, self.stacked = list(carries), list(stacked)
        self.inputs: list[Node] = []
        self.others: list[Node] = []
        self.steps: list[int] = []
        self.known: dict[tuple[Node, int], Node] = {}

    def run(self) -> tuple[Graph, list[Node], list[int]]:
        """The body, the operands behind what is carried, and the elements that each one's window moves."""
        roll = self.roll
        for place, _ in self.carries:
            self._input(roll.at(0, place).type)
        number = {key: n for n, key in enumerate(self.carries)}
        made: list[Node] = []
        for place in range(roll.period):
            node = roll.at(0, place)
            if place in self.moves:
                (read,) = self.reads[place]
                made.append(self._view(read.nodes[0], node, self.moves[place]))
                continue
            operands = []
            for read in self.reads[place]:
                if read.kind == "inner":
                    operands.append(made[read.source])
                elif read.kind == "carried":
                    operands.append(self.inputs[number[read.source, read.distance]])
                elif read.kind == "view":
                    operands.append(self._view(read.nodes[0].inputs[0], read.nodes[0], read.step))
                elif read.kind == "table":
                    operands.append(self._row(read.nodes))
                else:
                    operands.append(self._fixed(read.nodes[0]))
            made.append(remade(node, tuple(operands)))
        after = [made[place] if d == 1 else self.inputs[number[place, d - 1]] for place, d in self.carries]
        graph = Graph(tuple(self.inputs), (*after, *(made[place] for place in self.stacked)))
        return rerolled(graph, made), self.others, self.steps

    def _input(self, type: TensorType) -> Node:
        node = build.input_node(len(self.inputs), type)
        self.inputs.append(node)
        return node

    def _operand(self, node: Node, step: int) -> Node:
        """The body's input that is a window of a tensor outside."""
        if (node, step) not in self.known:
            size = node.type.size - (self.roll.trips - 1) * abs(step)
            type = TensorType((size,), node.dtype) if step else node.type
            self.others.append(node)
            self.steps.append(step)
            self.known[node, step] = self._input(type)
        return self.known[node, step]

    def _fixed(self, node: Node) -> Node:
        if isinstance(node.attrs, ConstArray) and node.type.size <= 1:
            return node  # a number, part of the body
        return self._operand(node, 0)

    def _view(self, base: Node, node: Node, step: int) -> Node:
        """A view that moves, of the window."""
        assert isinstance(node.attrs, ViewMap)
        map = node.attrs
        if step < 0:  # the window begins where the last trip reads
            map = replace(map, offset=map.offset + (self.roll.trips - 1) * step)
        source = self._operand(base, step) if step else self._fixed(base)
        return intern("view", (source,), map, node.type, node.label)

    def _row(self, nodes: Sequence[Node]) -> Node:
        """A row of a table of constants."""
        type = nodes[0].type
        table = build.const(np.stack([n.attrs.array for n in nodes]), type.dtype)  # type: ignore[attr-defined]
        flat = self._operand(table, max(1, type.size))
        return build.reshape(flat, type.shape)

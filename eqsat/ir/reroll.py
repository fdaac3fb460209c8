"""Loops found again in a trace, where iterations of Python's ``for`` lie one after the other.

Tracing unrolls every loop. Its iterations are runs of operators that repeat with a period: the same operators on
operands that lie equally far back (the same iteration, or one before), are the same tensor in all of them, or views of
one whose offset grows by as much from each to the next. Such a run becomes a :class:`~eqsat.ir.loop.Loop`. Nothing is
assumed of how the program was written: what repeats is one, whether it came from ``for``, recursion or a list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.deadline import NEVER, Deadline
from eqsat.ir import build, views
from eqsat.ir.loop import Loop, loop, of_loop
from eqsat.ir.moving import moving
from eqsat.ir.node import ConstArray, Graph, Node, remade
from eqsat.ir.reroll_body import Body, Read, merged, of_their_base, stacking_wholes, whole_of
from eqsat.ir.stretches import LONG, Least, in_order, repeated
from eqsat.ir.views import ViewMap

TABLE_BYTES = 1 << 22
"""Of constants at most that differ from trip to trip, in a table that the loop reads by rows."""
CARRY_BYTES = 64
"""What carrying a value costs beside its own bytes."""
PASSED_BYTES, TURNS = 1 << 14, 4
"""Bytes of a value from which trips that only pass it on to the next are as many as it takes in one, up to so many."""


def rerolled(graph: Graph, order: Sequence[Node] = (), least: Least = LONG, deadline: Deadline = NEVER) -> Graph:
    """The graph with its repetitions as loops; the graph itself where there are none worth it.

    ``order``: the operators in the order in which they were traced, as far as that is known. Without it, their order
    is that of the graph, in which iterations may lie interleaved and stay undiscovered. Raises
    :class:`~eqsat.deadline.OutOfTime` past the deadline.
    """
    while True:
        sequence = in_order(graph, order, least)
        found = [] if len(sequence) < least.run else _find(sequence, graph, least, deadline)
        if not found:
            return graph
        left = np.ones(len(sequence), bool)
        replaced: dict[Node, Node] = {}
        for roll, nodes in found:
            left[roll.stretch] = False
            replaced |= nodes
        rest = [sequence[p] for p in np.flatnonzero(left)]
        outputs = _rebuilt([*graph.outputs, *rest], replaced)
        graph = Graph(graph.inputs, tuple(outputs[: len(graph.outputs)]), graph.names)
        order = outputs[len(graph.outputs) :]


def _rebuilt(outputs: Sequence[Node], replaced: Mapping[Node, Node]) -> list[Node]:
    """The outputs with nodes replaced, also in what stands for others."""
    done: dict[Node, Node] = {}
    stack = [*reversed(outputs)]
    while stack:
        node = stack[-1]
        operands = (replaced[node],) if node in replaced else node.inputs
        missing = [] if node in done else [o for o in operands if o not in done]
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        if node not in done:
            inputs = [done[o] for o in operands]
            done[node] = inputs[0] if node in replaced else _of_others(node, inputs)
    return [done[o] for o in outputs]


def _of_others(node: Node, inputs: list[Node]) -> Node:
    """The operator of other operands; what reads rows of what a loop stacks is a view of the whole."""
    if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
        return node
    if isinstance(node.attrs, ViewMap):
        return build.view(inputs[0], node.attrs, node.label)
    if node.op == "concat":
        assert isinstance(node.attrs, int)
        return build.concat(merged(inputs, node.attrs), node.attrs)
    return remade(node, tuple(inputs))


def _find(sequence: list[Node], graph: Graph, least: Least, deadline: Deadline) -> list[tuple[_Roll, dict[Node, Node]]]:
    """Repetitions, those of most operators first, and what stands for their nodes.

    Of those that overlap, or read what another makes, only the first: the others may be more once that is a loop.
    """
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in sequence:
        for operand in dict.fromkeys(node.inputs):
            users[operand].append(node)
    outputs = set(graph.outputs)
    position = {node: p for p, node in enumerate(sequence)}
    read = [[position[o] for o in dict.fromkeys(map(_viewed, node.inputs)) if o in position] for node in sequence]
    taken, settled = np.zeros(len(sequence), bool), np.zeros(len(sequence), bool)
    found = []
    for start, end, period in repeated(sequence, least):
        deadline.check("rolling loops")
        if settled[start:end].any() or all(node.op == "view" for node in sequence[start : start + period]):
            continue  # of nothing but views, a loop would only copy them
        if taken[[p for reads in read[start:end] for p in reads]].any():
            settled[start:end] = True
            continue
        for first in _cuts(sequence, users, outputs, position, start, period):
            whole = _Roll(sequence, position, users, outputs, first, period, (end - first) // period, least)
            made = _most(whole, end)
            if made is not None:
                taken[made[0].stretch] = settled[made[0].stretch] = True
                found.append(made)
                break
    return found


def _viewed(node: Node) -> Node:
    """What is shown by views of views."""
    while isinstance(node.attrs, ViewMap):
        (node,) = node.inputs
    return node


def _most(roll: _Roll, end: int) -> tuple[_Roll, dict[Node, Node]] | None:
    """The loop of a repetition, or of those around it whose iterations are its loops; ``end``: of the stretch."""
    made: tuple[_Roll, dict[Node, Node]] | None = None
    while True:
        replaced = roll.run()
        if replaced is not None and (made is None or roll.nested):
            made = roll, replaced
        inner = roll.trips * roll.period
        if roll.trips < 2 or not roll.least.enough((end - roll.first) // inner):
            break  # else goes on behind the first trip that was not like the others
        roll = replace(roll, period=inner, trips=(end - roll.first) // inner, carries=[], outer=True)
    if made is None:
        return None
    roll, replaced = made
    turns = roll.turns()
    if turns > 1:  # as in Lam, "Software pipelining" (1988): unrolled so often, values need no copies
        longer = replace(roll, period=turns * roll.period, trips=roll.trips // turns, carries=[])
        again = longer.run()
        if again is not None:
            roll, replaced = longer, again
    return roll, replaced


def _cuts(
    sequence: Sequence[Node],
    users: Mapping[Node, Sequence[Node]],
    outputs: set[Node],
    position: Mapping[Node, int],
    start: int,
    period: int,
) -> list[int]:
    """Where iterations may begin: the places of a period past which fewest bytes are carried, those first."""
    begin, end = start + period, start + 2 * period
    until: dict[int, int] = {}
    for p in range(begin, end):
        uses = [q for u in users[sequence[p]] if (q := position.get(u, p)) < p + TURNS * period]
        until[p] = max([p, *uses])
    alive = np.zeros(period, np.int64)

    def hold(p: int, last: int, nbytes: int) -> None:
        whole, rest = divmod(last - p, period)
        alive[:] += whole * (nbytes + CARRY_BYTES)
        alive[(p - start + np.arange(rest)) % period] += nbytes + CARRY_BYTES

    held: set[int] = set()
    for p in range(end - 1, begin - 1, -1):
        node = sequence[p]
        q = position.get(node.inputs[0], -1)
        if node.op == "view" and q >= start and _is_held(node, sequence[q]):  # as long as there is what it is a view of
            moved = 0 if q >= begin else period
            until[q + moved] = max(until[q + moved], until[p] + moved)
            held.add(p)
    for p in range(begin, end):
        joins = (q for u in users[sequence[p]] if u.op == "concat" and p < (q := position.get(u, end)) < end)
        join = min(joins, default=None)
        if join is not None:  # from there on it is a part of another value
            until[join] = max(until[p], until[join])
            hold(p, join, sequence[join].type.nbytes + CARRY_BYTES)
        else:
            hold(p, until[p], 0 if p in held else sequence[p].type.nbytes)
    best = np.argsort(alive, kind="stable")[:4]
    return [start + (int(b) + 1) % period for b in best]


def _is_held(view: Node, operand: Node) -> bool:
    """Whether a large view is rather told again than carried: what it is a view of takes about as much."""
    return view.type.nbytes >= PASSED_BYTES and operand.type.nbytes <= 2 * view.type.nbytes


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
    least: Least = LONG
    carries: list[tuple[int, int]] = field(default_factory=list)
    """The values that are carried: (place in an iteration, trips since)."""
    outer: bool = False
    """Whether an iteration is made of those of a loop inside; any other is short enough to be searched as a whole."""
    nested: bool = False
    """Whether it has a loop inside, else what is unrolled there would be found again in every trip."""

    @property
    def stretch(self) -> slice:
        """Its nodes' places in the sequence."""
        return slice(self.first, self.first + self.trips * self.period)

    def _inside(self) -> Least:
        """Of loops in the body."""
        return replace(self.least, times=self.least.times * self.trips) if self.outer else LONG

    def run(self) -> dict[Node, Node] | None:
        """What stands for the loop's nodes; None where there is no loop."""
        while self.least.enough(self.trips) and self.trips * self.period >= self.least.run:
            broken = self._made()
            if not isinstance(broken, int):
                return broken
            self.trips = broken
        return None

    def turns(self) -> int:
        """For how many trips a large value is carried at most: all but the first of them pass it on."""
        large = (d for place, d in self.carries if self.at(0, place).type.nbytes >= PASSED_BYTES)
        return min(TURNS, max(large, default=1))

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
        reads: list[list[Read]] = []
        for place in range(self.period):
            slots: list[Read] = []
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
                    made_inside = source.kind in ("inner", "carried")
                    if made_inside and moving(node.attrs, node.inputs[0].shape, step, self.trips) is None:
                        return 0
                    if not made_inside and source.kind != "fixed":
                        return 0
                    moves[place] = step
        return self._build(reads, moves)

    def _read(self, place: int, slot: int) -> Read | int:
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
            return Read("carried" if distance else "inner", nodes[:distance], source, distance)
        inside = next((t for t, spot in enumerate(spots) if spot is not None), None)
        if inside is not None:
            gone = next(t for t in range(inside, self.trips) if spots[t] is None)
            return inside if self.least.enough(inside) else gone
        if all(node is nodes[0] for node in nodes):
            return Read("fixed", nodes[:1])
        return self._rows(nodes)

    def _rows(self, nodes: list[Node]) -> Read | int:
        """An operand that is another tensor on every trip: views that move, or constants, which go into a table."""
        first = nodes[0]
        attrs = [node.attrs for node in nodes]
        if all(isinstance(a, ConstArray) for a in attrs):
            if first.type.nbytes * self.trips > TABLE_BYTES:
                return 0
            return Read("table", nodes)
        if isinstance(first.attrs, ViewMap) and all(a == first.attrs for a in attrs):
            shown = [node.inputs[0] for node in nodes]  # such as a number for each trip, repeated along axes
            constant = all(isinstance(n.attrs, ConstArray) and n.type == shown[0].type for n in shown)
            if constant and shown[0].type.nbytes * self.trips <= TABLE_BYTES:
                return Read("table", nodes)
        if isinstance(first.attrs, ViewMap) and first.type.size:
            base, axes = first.inputs[0], first.attrs.axes
            for trip, node in enumerate(nodes):
                if not isinstance(node.attrs, ViewMap) or node.inputs[0] is not base or node.attrs.axes != axes:
                    return trip
            offsets = [a.offset for a in attrs if isinstance(a, ViewMap)]
            step = offsets[1] - offsets[0]
            off = next((t for t, o in enumerate(offsets) if o != offsets[0] + t * step), None)
            return Read("view", nodes[:1], step=step) if off is None else off
        return next(t for t, node in enumerate(nodes) if node is not first)

    # the loop

    def _build(self, reads: list[list[Read]], moves: dict[int, int]) -> dict[Node, Node] | int:
        reads = of_their_base(reads, moves)
        initial = self._initial(reads)
        if initial is None:
            return 0
        fewer = self._through_views(reads, moves, initial)
        of_fewer = self._initial(fewer)
        if of_fewer is not None:
            reads, initial = fewer, of_fewer
        carried = self.carried_keys(reads)
        stacked, finals = self._results(carried)
        carries = self.carries = sorted(carried | set(finals))
        start = self._starting(carries, initial)
        first = [self.at(0, place) for place in range(self.period)]
        made = Body(first, self.trips, reads, moves, carries, stacked)
        body, shown = stacking_wholes(rerolled(*made.run(), self._inside()), len(carries))
        self.nested = any(of_loop(node) is not None for node in body.nodes())
        nodes = loop(Loop(self.trips, body, len(carries), tuple(made.steps)), [*start, *made.others])
        replaced: dict[Node, Node] = {}
        for place, distance in finals:
            replaced[self.at(self.trips - distance, place)] = nodes[carries.index((place, distance))]
        for number, place in enumerate(stacked):
            result, part = shown[number]
            whole = nodes[len(carries) + result]
            for trip in range(self.trips):
                node = self.at(trip, place)
                if node not in replaced:
                    row = build.row(whole, trip)
                    replaced[node] = row if part is None else build.view(row, part)
        return replaced

    def carried_keys(self, reads: list[list[Read]]) -> set[tuple[int, int]]:
        """What is carried: values read one or more trips later, and for those of more trips all between."""
        found = {(r.source, r.distance) for slots in reads for r in slots if r.kind == "carried"}
        return {(source, d) for source, most in found for d in range(1, most + 1)}

    def _initial(self, reads: list[list[Read]]) -> dict[tuple[int, int], Node] | None:
        """Values that stand for those of trips before the first: (place, trip, negative); None if two are wanted."""
        found: dict[tuple[int, int], Node] = {}
        for slots in reads:
            for read in slots:
                if read.kind == "carried":
                    for trip, node in enumerate(read.nodes):
                        if found.setdefault((read.source, trip - read.distance), node) is not node:
                            return None
        return found

    def _starting(self, carries: Sequence[tuple[int, int]], initial: Mapping[tuple[int, int], Node]) -> list[Node]:
        """What is carried into the first trip. A value that nobody reads then may be any: 0."""
        found = []
        for place, distance in carries:
            node = initial.get((place, -distance))
            if node is None:
                type = self.at(0, place).type
                node = build.broadcast_to(build.const(np.zeros((), type.dtype.numpy), type.dtype), type.shape)
            found.append(node)
        return found

    def _held(self, reads: list[list[Read]], moves: Mapping[int, int]) -> dict[int, tuple[int, int, ViewMap]]:
        """Places whose value is a view of another's: which one's, of how many trips before, and the view."""
        found: dict[int, tuple[int, int, ViewMap]] = {}
        for place, slots in enumerate(reads):
            node = self.at(0, place)
            if isinstance(node.attrs, ViewMap) and place not in moves:
                (read,) = slots
                if read.kind in ("inner", "carried") and _is_held(node, self.at(0, read.source)):
                    found[place] = read.source, read.distance, node.attrs
            elif node.op == "concat":
                assert isinstance(node.attrs, int)
                starts = [0] * node.type.ndim
                for read, operand in zip(slots, node.inputs, strict=True):
                    if read.kind == "inner":
                        part = views.slices(node.shape, starts, [1] * len(starts), operand.shape)
                        found.setdefault(read.source, (place, 0, part))
                    starts[node.attrs] += operand.shape[node.attrs]
        return found

    def _through_views(
        self, reads: list[list[Read]], moves: Mapping[int, int], initial: Mapping[tuple[int, int], Node]
    ) -> list[list[Read]]:
        """Views of what is carried, and parts of carried concatenations, are not carried themselves."""
        held = self._held(reads, moves)
        carried = self.carried_keys(reads)

        def through(read: Read) -> Read:
            found, source, distance = read, read.source, read.distance
            parts: tuple[ViewMap, ...] = ()
            known: list[tuple[Node, ViewMap | None]] = [(node, None) for node in read.nodes]  # and the view that it is
            for _ in range(TURNS):
                if read.kind != "carried" or source not in held:
                    break
                is_view, inside = self.at(0, source).op == "view", source
                source, before, map = held[source]
                known = [(node, map if part is None else views.compose(map, part)) for node, part in known]
                known += [(node, None) for node in reads[inside][0].nodes[:before]]
                distance += before
                parts = (map, *parts)
                if is_view or (source, distance) in carried:
                    nodes = [
                        whole_of(node, part, self.at(0, source), initial.get((source, trip - distance)))
                        for trip, (node, part) in enumerate(known)
                    ]
                    whole = [node for node in nodes if node is not None]
                    if len(whole) == len(nodes):
                        found = replace(read, nodes=whole, source=source, distance=distance, parts=parts)
            return found

        return [list(map(through, slots)) for slots in reads]

    def _results(self, carried: set[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
        """What is wanted outside: places whose values of every trip are, and what is there after the last one.

        These are its own values, and those of some before that are carried anyway: (place, trips since).
        """
        stacked, finals = [], []
        for place in range(self.period):
            wanted = []
            for trip in range(self.trips):
                node = self.at(trip, place)
                if node in self.outputs or any(self.where(user) is None for user in self.users.get(node, ())):
                    wanted.append(trip)
            since = [(place, self.trips - trip) for trip in wanted]
            if all(key in carried or key[1] == 1 for key in since):
                finals += since
            else:
                stacked.append(place)
        return stacked, finals

"""For every tensor e-class, its best few kernels.

A bounded bottom-up pass: each class gets a ranked, Pareto-pruned list of streams made from its e-nodes and
its operands' streams. A stream ranks by its time as a kernel plus that of the kernels which make what it
reads, each counted once, none for tensors that are known to be stored anyway.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from eqsat.cost.roofline import Roofline
from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.saturated import ENode, SaturatedEGraph
from eqsat.extract.budget import INFINITY
from eqsat.extract.streams import Builder, Stream
from eqsat.extract.terms import Read, Term
from eqsat.ir.node import ConstArray
from eqsat.ir.table import OPS
from eqsat.ir.views import ViewMap

ELEMENTS = 5
"""Elements streams kept per class, besides reading it."""
ACCUMULATED = 4
"""Accumulated streams kept per class."""
COMBINATIONS = 6
"""Operand lists are combined at positions whose product (counted from 1) is at most this."""
SAME_KIND = 2
"""Streams, and kernels, kept that differ only in where along an elementwise chain they read."""
COSTLY = 8
"""``Op.cost`` of an elementwise function, that of a division, from where on several users may be better off with one
kernel that stores it."""
WIDE = 24
"""Operands from which e-nodes are built over the best streams alone: combinations grow with their square."""
POOL = 10
"""Kernels kept per class and pass."""

SLICES = 2
"""Slices of a product from which one kernel for all of them is considered."""

_KEY = attrgetter("rank", "size", "uid")
"""What streams are sorted by, best first."""


class Candidates:
    """Streams and kernels of a saturated e-graph's classes.

    With ``fuse`` off every e-node is a kernel over stored operands.
    """

    def __init__(
        self, egraph: SaturatedEGraph, roofline: Roofline, *, fuse: bool = True, deadline: Deadline = NEVER
    ) -> None:
        self.egraph = egraph
        self.deadline = deadline
        self.fuse = fuse
        self.types = egraph.types
        self.inputs = frozenset(
            c for c, nodes in egraph.classes.items() if c not in egraph.const and any(n.op == "input" for n in nodes)
        )
        free = self.inputs | egraph.const
        sizes = {c: float(t.nbytes) for c, t in egraph.types.items()}
        self.build = Builder(roofline, sizes, frozenset(free), frozenset(egraph.const))
        self.nodes = {c: list(enumerate(nodes)) for c, nodes in egraph.classes.items()}
        for c in self.nodes:
            # Composites run as their expansion, which is in the same class.
            self.nodes[c] = [(i, n) for i, n in self.nodes[c] if OPS[n.op].kind != "composite"]
        self.order = self._order()
        self.streams: dict[int, list[Stream]] = {}
        self.pool: dict[int, dict[int, Stream]] = {c: {} for c in self.order}
        self.plan: dict[int, dict[int, float]] = {}
        self.shared: frozenset[int] = frozenset()
        self.unions: dict[tuple[int, ...], float] = {}
        self.users: dict[int, set[int]] = {}
        for c in self.order:
            for _, node in self.nodes[c]:
                for child in node.children:
                    self.users.setdefault(child, set()).add(c)
        self.alias = self._aliases()
        self.costly = self._costly()
        self.anchor = self._anchors()
        self.terms: dict[int, Term | Read] = {}
        self.combined: dict[tuple[int, int], tuple[list[list[Stream]], list[Stream]]] = {}
        """Of an e-node, its operands' streams when it was last looked at, and its own over those."""
        self.kinds: dict[int, tuple[object, ...]] = {}

    def _reachable(self) -> list[int]:
        seen = dict.fromkeys(self.egraph.outputs)
        stack = list(seen)
        while stack:
            for _, node in self.nodes[stack.pop()]:
                for child in node.children:
                    if child not in seen:
                        seen[child] = None
                        stack.append(child)
        return sorted(seen)

    def _order(self) -> list[int]:
        """Classes that can be computed, by the least height of a term: operands of some e-node come first."""
        reachable = self._reachable()
        users: dict[int, list[tuple[int, int]]] = {}
        missing: dict[tuple[int, int], int] = {}
        heap: list[tuple[int, int]] = []
        for c in reachable:
            if c in self.inputs:
                heap.append((0, c))
            for i, node in self.nodes[c]:
                operands = set(node.children)
                missing[c, i] = len(operands)
                for child in operands:
                    users.setdefault(child, []).append((c, i))
                if not operands:
                    heap.append((0, c))
        heapq.heapify(heap)
        height: dict[int, int] = {}
        while heap:
            h, c = heapq.heappop(heap)
            if c in height:
                continue
            height[c] = h
            for user, i in users.get(c, ()):
                missing[user, i] -= 1
                if missing[user, i] == 0 and user not in height:
                    heapq.heappush(heap, (h + 1, user))
        return sorted(height, key=lambda c: (height[c], c))

    def _aliases(self) -> frozenset[int]:
        """Classes that lie in memory exactly as an earlier one does (reshapes): those are never stored for others."""
        place = {c: n for n, c in enumerate(self.order)}
        found = set()
        for c in self.order:
            if c in self.egraph.const or c in self.egraph.outputs:
                continue
            for _, node in self.nodes[c]:
                if isinstance(node.attrs, ViewMap) and node.op == "view":
                    (child,) = node.children
                    earlier = child in place and place[child] < place[c] and child not in self.egraph.const
                    if earlier and node.attrs.keeps_order(self.types[child].size):
                        found.add(c)
        return frozenset(found)

    def _anchors(self) -> dict[int, int]:
        """For each class the one at the start of its chain of elementwise operators and views of one operand.

        Where along such a chain a tensor is stored matters little, so that programs which differ in that
        alone need not all be kept.
        """
        anchor: dict[int, int] = {}
        for c in self.order:
            anchor[c] = c
            for _, node in self.nodes[c]:
                operands = {child for child in node.children if child not in self.egraph.const}
                if len(operands) == 1 and OPS[node.op].kind in ("map", "view"):
                    (child,) = operands
                    if child in anchor and self.types[child].size == self.types[c].size and child != c:
                        anchor[c] = anchor[child]
                        break
        return anchor

    def _costly(self) -> frozenset[int]:
        """Classes of an elementwise function that is ``COSTLY`` in every form, and operand of several classes: each
        would compute it again."""
        several = (c for c in self.order if len(self.users.get(c, ())) > 1 and c not in self.egraph.const)
        return frozenset(
            c
            for c in several
            if all(OPS[node.op].kind == "map" and OPS[node.op].cost >= COSTLY for _, node in self.nodes[c])
        )

    def merged(self) -> frozenset[int]:
        """Contractions cut into several slices by their users.

        Each user alone finds it cheaper to compute its own slice; kernels that read the whole are only made if
        each is taken to pay for its slice alone.
        """
        cuts: dict[int, set[int]] = {}
        for c in self.order:
            for _, node in self.nodes[c]:
                if node.op == "view" and self.types[c].size < self.types[node.children[0]].size:
                    cuts.setdefault(node.children[0], set()).add(c)
        many = (c for c, users in cuts.items() if len(users) >= SLICES and c not in self.egraph.const)
        return frozenset(c for c in many if any(n.op == "contract" for _, n in self.nodes[c]))

    def run(
        self, stored: frozenset[int] = frozenset(), passes: int = 2, *, shared: frozenset[int] = frozenset()
    ) -> None:
        """Make or refresh every class's streams.

        ``stored``: tensors whose kernel is paid already. ``shared``: those of which a kernel that reads a part
        pays that part of the kernel's time.
        """
        self.plan = {}
        self.shared = shared - stored
        place = {c: number for number, c in enumerate(self.order)}
        behind = set(self.order)
        for _ in range(passes):
            self.unions.clear()
            now, behind = behind, set()
            for c in self.order:
                self.deadline.check("listing kernels")
                # In a later pass only what an operand's new streams reach: little, and all of it in cycles.
                if c in now and not (c in self.egraph.const and c in self.streams) and self._class(c, stored):
                    for user in self.users.get(c, ()):
                        (now if place[user] > place[c] else behind).add(user)
            if not behind:
                break
        for c in self.order:
            if c not in self.egraph.const:
                for stream in self.streams[c]:
                    if not stream.is_read:
                        self.pool[c].setdefault(stream.uid, stream)

    def kernels(self) -> Iterator[Stream]:
        """Every kernel made so far that may be part of a program."""
        for c in self.order:
            yield from self.pool[c].values()

    def store_all(self) -> bool:
        """Let every class be stored for others, also where an earlier one lies alike; whether that changes anything."""
        changed, self.alias = bool(self.alias), frozenset()
        if changed:
            self.run()
        return changed

    def _rank(self, stream: Stream, stored: frozenset[int]) -> float:
        """Its own time and that of every kernel that its operands' best programs take, shared ones once."""
        cost = self.unions.get(stream.needs)
        if cost is None:
            union: dict[int, float] = {}
            for need in stream.needs:
                if need in stored:
                    continue
                plan = self.plan.get(need)
                if plan is None or stream.eclass in plan:
                    return INFINITY
                union.update(plan)
                if need in self.shared:
                    union[need] = 0.0
            cost = self.unions[stream.needs] = sum(union.values())
        elif any(stream.eclass in self.plan.get(need, ()) for need in stream.needs if need not in stored):
            return INFINITY
        return stream.seconds + cost + (self._parts(stream) if self.shared else 0.0)

    def _parts(self, stream: Stream) -> float:
        """What it pays for the parts of shared tensors that it reads."""
        if not self.shared:
            return 0.0
        own = ((need, self.plan[need][need]) for need in stream.needs if need in self.shared)
        return sum(seconds * self.part(stream, need) for need, seconds in own)

    def part(self, stream: Stream, need: int) -> float:
        """The part of a stored tensor that a stream reads, at most 1."""
        return min(1.0, stream.reads[need] / max(1.0, self.build.sizes[need]))

    def _class(self, c: int, stored: frozenset[int]) -> bool:
        """Recompute the streams of one class; whether they changed."""
        known = self.streams.get(c)
        const = c in self.egraph.const
        read = self.build.read(c, self.types[c])
        if c in self.inputs:
            self.streams[c] = [read]
            return known is None
        found: dict[int, Stream] = {}
        roots: list[Stream] = []
        for i, node in self.nodes[c]:
            kind = OPS[node.op].kind
            if const and not self._literal(node):
                continue
            for stream in self._enode(c, i, node, kind):
                if const and stream.reads and not (stream.narrow and stream.narrow[0].bits < stream.type.dtype.bits):
                    continue
                stream.rank = self._rank(stream, stored)
                if stream.root:
                    roots.append(stream)
                else:
                    found[stream.uid] = stream
        if const:
            # As a number, as a tensor, and as the cast of the smallest one, which tiles and sums may see through.
            bits = {s.uid: s.narrow[0].bits if s.narrow else 0 for s in found.values()}
            plain = sorted(found.values(), key=lambda s: (s.slots, bits[s.uid], s.size, s.uid))
            literal, small = ([s for s in plain if bool(s.reads) == reads][:1] for reads in (False, True))
            self.streams[c] = [*literal, read, *small]
            return known is None
        ranked = sorted([s for s in found.values() if s.rank < INFINITY], key=_KEY)
        kept = self._prune(ranked)
        kernels = sorted([*ranked, *[s for s in roots if s.rank < INFINITY]], key=_KEY) if roots else ranked
        for stream in self._few_kernels(kernels):
            self.pool[c].setdefault(stream.uid, stream)
        price = sum(self.plan[c].values()) if c in self.plan else INFINITY
        if kernels and kernels[0].rank < price:
            best = kernels[0]
            plan = {c: best.seconds + self._parts(best)}
            for need in best.needs:
                if need not in stored:
                    plan.update(self.plan[need])
                    if need in self.shared:
                        plan[need] = 0.0
            self.plan[c], price = plan, best.rank
        # A little more than its program: what has one user is better inlined there.
        read.rank = 0.0 if c in stored else price * (1 + 1e-6)
        self.streams[c] = sorted([*kept, *self._stored(c, ranked, kept)], key=_KEY)
        return known is None or [s.uid for s in known] != [s.uid for s in self.streams[c]]

    def _literal(self, node: ENode) -> bool:
        """Whether a constant's e-node may be computed inside a kernel: scalars, index ranges, cheap functions."""
        if node.op == "const":
            return isinstance(node.attrs, ConstArray) and node.attrs.array.size == 1
        return OPS[node.op].kind in ("map", "view") or node.op == "iota"

    def _enode(self, c: int, i: int, node: ENode, kind: str) -> Sequence[Stream]:
        """The streams of an e-node over its operands' streams, distinct."""
        operands = list(dict.fromkeys(node.children))
        for child in operands:
            if child not in self.streams:
                return ()
        lists = [self._operand(child, kind) for child in operands]
        if not all(lists):
            return ()
        before = self.combined.get((c, i))
        if before is not None and before[0] == lists:  # the same objects
            return before[1]
        found: dict[int, Stream] = {}
        for choice in dict.fromkeys(_combinations(lists, COMBINATIONS if len(lists) <= 3 else COMBINATIONS // 2)):
            children = choice
            if len(operands) < len(node.children):
                given = dict(zip(operands, choice, strict=True))
                children = tuple([given[child] for child in node.children])
            stream = self.build.make(c, i, kind, node.op, node.attrs, self.types[c], children)
            if stream is not None:
                found.setdefault(stream.uid, stream)
        streams = list(found.values())
        self.combined[c, i] = lists, streams
        return streams

    def _operand(self, child: int, kind: str) -> list[Stream]:
        """What may stand for an operand, best first."""
        options = self.streams[child]
        if child in self.egraph.const and kind in ("map", "view"):
            # Scalars are inlined whatever the case: to read one costs more than to know it.
            plain = [s for s in options if not s.reads and not s.work]
            if plain and (self.fuse or self.types[child].size == 1):
                return plain
        if not self.fuse or kind == "opaque":
            return [s for s in options if s.is_read] or [self.build.read(child, self.types[child])]
        return options

    def _kind(self, s: Stream) -> tuple[object, ...]:
        """Streams of one kind differ only in where along chains of elementwise operators they read."""
        kind = self.kinds.get(s.uid)
        if kind is None:
            core = self.anchor[s.core.eclass] if s.core is not None else None
            kind = self.kinds[s.uid] = (frozenset([self.anchor[need] for need in s.needs]), core, s.core_map)
        return kind

    def _prune(self, ranked: Sequence[Stream]) -> list[Stream]:
        """The best few of each sort, at most two of a kind, none beaten in reads, work and bytes at once.

        A rank is for one user alone, so the last of elements makes way for the best that reads a ``costly`` class that
        none of them reads.
        """
        kinds: dict[tuple[object, ...], int] = {}
        kept: dict[bool, list[Stream]] = {False: [], True: []}
        for s in ranked:
            group = kept[s.core is not None]
            if len(group) == (ACCUMULATED if s.core is not None else ELEMENTS):
                continue
            kind = self._kind(s)
            if kinds.get(kind, 0) == SAME_KIND:
                continue
            if not any(_dominates(other, s) for other in group):
                group.append(s)
                kinds[kind] = kinds.get(kind, 0) + 1
        elements = kept[False]
        unread = self.costly.difference(*(s.needs for s in elements))
        for s in ranked if unread and len(elements) == ELEMENTS else ():
            shares = s.core is None and not unread.isdisjoint(s.needs)
            if shares and not any(_dominates(other, s) for other in elements):
                elements[-1] = s
                break
        return elements + kept[True]

    def _stored(self, c: int, ranked: Iterable[Stream], kept: Sequence[Stream]) -> list[Stream]:
        """The stream that reads what class ``c`` lies in memory as, unless it is kept already."""
        if c not in self.alias:
            return [self.build.read(c, self.types[c])]
        best = next((s for s in ranked if s.stored), None)
        return [] if best is None or any(s.stored for s in kept) else [best]

    def _few_kernels(self, ranked: Sequence[Stream]) -> list[Stream]:
        """The best few of different kinds, and the best ones over stored operands alone."""
        kinds: dict[tuple[object, ...], int] = {}
        taken: dict[int, Stream] = {}
        for s in ranked:
            kind = self._kind(s)
            if kinds.get(kind, 0) < SAME_KIND:
                kinds[kind] = kinds.get(kind, 0) + 1
                taken[s.uid] = s
                if len(taken) == POOL:
                    break
        for s in [s for s in ranked if s.plain][:2]:
            taken[s.uid] = s
        return list(taken.values())

    def term(self, stream: Stream) -> Term | Read:
        """The stream as a term."""
        found = self.terms.get(stream.uid)
        if found is None:
            if stream.is_read:
                found = Read(stream.eclass, stream.type, stream.eclass in self.egraph.const)
            else:
                node = self.egraph.classes[stream.eclass][stream.node]
                children = tuple(self.term(child) for child in stream.children)
                found = Term(stream.eclass, node.op, node.attrs, stream.type, children)
            self.terms[stream.uid] = found
        return found


def _dominates(a: Stream, b: Stream) -> bool:
    if a.slots > b.slots or a.multiply_adds > b.multiply_adds or len(a.reads) > len(b.reads):
        return False
    if a.core is not b.core or a.core_map != b.core_map:
        return False
    return all(nbytes <= b.reads.get(e, -1.0) for e, nbytes in a.reads.items())


def _combinations(lists: Sequence[list[Stream]], budget: int) -> Iterator[tuple[Stream, ...]]:
    """Choices of one stream per list, good ones first: positions whose product stays within the budget, all
    stored, one stored and the others best, and accumulated ones that share a core."""

    if len(lists) <= WIDE:
        partial: list[tuple[tuple[Stream, ...], int]] = [((), budget)]
        for options in lists:
            partial = [
                ((*some, stream), left // position)
                for some, left in partial
                for position, stream in enumerate(options[:left], 1)
            ]
        yield from [some for some, _ in partial]
    best = [options[0] for options in lists]
    elements = [next((s for s in options if s.core is None), options[0]) for options in lists]
    reads = [
        # What lies in memory as another tensor does is not read itself, but as a view of that one.
        next((s for s in options if s.is_read), None) or next((s for s in options if s.stored), plain)
        for options, plain in zip(lists, elements, strict=True)
    ]
    yield tuple(reads)
    if len(lists) == 1:
        return
    yield tuple(elements)
    if len(lists) > WIDE:
        yield tuple(best)
        return
    for place in range(len(lists)):
        yield (*best[:place], reads[place], *best[place + 1 :])
        # One operand accumulated, the others in elements: a kernel has one core.
        for s in [s for s in lists[place] if s.core is not None][:2]:
            yield (*elements[:place], s, *elements[place + 1 :])
            yield (*reads[:place], s, *reads[place + 1 :])
    yield from _sharing(lists, elements, _core_of)
    yield from _sharing(lists, elements, _reads_of)


def _core_of(stream: Stream) -> object:
    """As in x · sigmoid(x) with x a matrix product."""
    return None if stream.core is None else stream.core.uid


def _reads_of(stream: Stream) -> object:
    """The stored tensors that elements are computed of, as windows of one image are."""
    return stream.needs if stream.core is None and stream.needs else None


def _sharing(
    lists: Sequence[list[Stream]], elements: Sequence[Stream], shared: Callable[[Stream], object]
) -> Iterator[tuple[Stream, ...]]:
    """Choices in which all operands that can have one thing in common do, and the others are elements."""
    found: dict[object, dict[int, Stream]] = {}
    for place, options in enumerate(lists):
        for stream in options:
            key = shared(stream)
            if key is not None:
                found.setdefault(key, {}).setdefault(place, stream)
    for places in found.values():
        if len(places) > 1:
            yield tuple(places.get(place, elements[place]) for place in range(len(lists)))

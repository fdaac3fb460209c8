"""Kernels that run together: which of them, over which axes, and what flows between them.

A producer and a consumer can run block by block over an axis when the consumer reads the producer's result at the same
position along it; kernels that read the same tensor can when none needs another. Which of them do is decided by price.
Softmax, layer norm and attention come out as groups with no case of their own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from eqsat.deadline import NEVER, Deadline
from eqsat.ir import views
from eqsat.ir.contraction import reuses_both_factors
from eqsat.ir.kernel import Expr, FromStage, Kernel, KernelGroup, Load, Operand, Stage, rewrite_kernel
from eqsat.ir.types import row_major
from eqsat.plan.inline import inlined
from eqsat.plan.link import Member, Piece, beside, digits_of, link
from eqsat.plan.placed import PlacedGroup, PlacedPrice, Price
from eqsat.plan.stages import alternatives, merge_axes, merge_shared, permute
from eqsat.schedule import LEAST_CLEAR

__all__ = ["Grouping", "Piece"]

LONGEST = 32
"""Kernels of a group at most: each one that joins costs the work of building the group anew."""

PRODUCTS = 6
"""Matrix products of a group at most: the packing of each may leave the loop over rows or not, so each one more triples
the e-graph of its nests (733 loop terms for four 64×64 layers, 6,051 for six, 50,802 for eight)."""

WINDOW = 256
"""Pieces among which the merge that saves most is looked for; then come those after them."""

AHEAD = 2
"""Groups that may join two that do not pay together, before they are given up: a softmax pays as a whole where two of
its kernels alone do not."""

CLEAR = 0.02
"""Part of the smallest group's price that a merge has to save: prices are no more exact than that. When all other
merges are done it is ``LEAST_CLEAR``."""

NEAR = 4
"""Kernels that read the same tensor with which a kernel is tried, nearest first."""


class Grouping:
    """Fuses pieces of a program into groups where that lowers the price; ``price`` None: every piece stays alone.

    ``after``: the price of several pieces' groups with what becomes of them afterwards.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        stored: frozenset[int],
        price: Price | None,
        deadline: Deadline = NEVER,
        after: PlacedPrice | None = None,
    ) -> None:
        self.pieces = pieces
        self.after = after
        self.stored = stored
        self.price = price
        self.deadline = deadline
        self.producer = {p.tensor: n for n, p in enumerate(pieces) if p.whole and p.kernel is not None}
        self.makers: dict[int, list[int]] = {}
        self.users: dict[int, list[int]] = {}
        for number, piece in enumerate(pieces):
            self.makers.setdefault(piece.tensor, []).append(number)
            for tensor in dict.fromkeys(piece.reads):
                self.users.setdefault(tensor, []).append(number)
        self.groups: dict[int, list[int]] = {n: [n] for n in range(len(pieces))}
        self.of = {n: n for n in range(len(pieces))}
        self.shapes: dict[tuple[int, ...], tuple[_Shape, tuple[int, ...]]] = {}
        self.built: dict[_Shape, PlacedGroup | None] = {}
        self.best: dict[_Shape, PlacedGroup] = {}
        self.prices: dict[tuple[int, ...], float] = {}
        self.products = [p.kernel is not None and reuses_both_factors(p.kernel) for p in pieces]
        kernels: dict[Kernel, int] = {}
        self.kernel_numbers = [-1 if p.kernel is None else kernels.setdefault(p.kernel, len(kernels)) for p in pieces]

    def run(self) -> list[PlacedGroup | Piece]:
        """Groups, and pieces without a kernel, in an order that respects every dependency."""
        if self.price is not None:
            for start in range(0, len(self.pieces), WINDOW):
                _Merging(self, self.price, range(start, min(start + WINDOW, len(self.pieces)))).run()
        order = self._order(self.groups, self.of)
        return [self.pieces[k] if self.pieces[k].kernel is None else self._best(self.groups[k]) for k in order]

    def near(self, members: Sequence[int]) -> list[int]:
        """Pieces before the last member that may join: what they read, nearest first, then what reads the same."""
        reads = dict.fromkeys(t for m in members for t in self.pieces[m].reads)
        sources = {self.producer[t] for t in reads if t in self.producer}.difference(members)
        beside = {u for t in reads for u in self.users[t] if u < members[-1] and self.fusible(u)}
        return [*sorted(sources, reverse=True), *sorted(beside.difference(members, sources), reverse=True)[:NEAR]]

    def fusible(self, number: int) -> bool:
        """Whether a piece may be in a group."""
        return self.pieces[number].whole and self.pieces[number].kernel is not None

    def seconds(self, members: Sequence[int]) -> float:
        """The price of a legal group, in its first form."""
        assert self.price is not None
        key = tuple(members)
        if key not in self.prices:
            placed = self._named(members)
            after = self.after if len(key) > 1 else None
            self.prices[key] = self.price.seconds(placed.group) if after is None else after.seconds(placed)
        return self.prices[key]

    def masked(self, members: Sequence[int]) -> bool:
        """Whether a mask hides a part of their group."""
        return self.after is not None and self.after.masked(self._named(members))

    def _named(self, members: Sequence[int]) -> PlacedGroup:
        placed = self.build(members)
        assert placed is not None
        return placed.placed(self._shape(members)[1])

    def _best(self, members: Sequence[int]) -> PlacedGroup:
        """The cheapest of a group's forms, the first of those that cost the same."""
        shape, tensors = self._shape(members)
        if shape not in self.best:
            self.best[shape] = self._cheapest(members, shape)
        return self.best[shape].placed(tensors)

    def _cheapest(self, members: Sequence[int], shape: _Shape) -> PlacedGroup:
        found = self._first(shape)
        assert found is not None
        if self.price is None or len(members) == 1:
            return found
        seconds = self.price.seconds(found.group)
        for form in _forms(shape):
            fewer = len(form.group.stages) < len(found.group.stages)  # about which the bound of found says little
            if form != found and (fewer or self.price.least(form.group, (found.group,)) < seconds):
                other = self.price.seconds(form.group)
                if other < seconds:
                    found, seconds = form, other
        return found

    def _shape(self, members: Sequence[int]) -> tuple[_Shape, tuple[int, ...]]:
        """What a group is whatever its tensors are called, and the tensor for each of the numbers in it.

        So the layers of a network have their groups built and priced once.
        """
        key = tuple(members)
        if key not in self.shapes:
            numbers: dict[int, int] = {}
            pieces = []
            for m in members:
                piece = self.pieces[m]
                reads = tuple([numbers.setdefault(t, len(numbers)) for t in piece.reads])
                pieces.append(Piece(numbers.setdefault(piece.tensor, len(numbers)), piece.kernel, reads))
            escapes = [
                self.pieces[m].tensor in self.stored
                or any(u not in members for u in self.users.get(self.pieces[m].tensor, ()))
                for m in members
            ]
            escapes[-1] = True
            kernels = tuple([self.kernel_numbers[m] for m in members])
            wires = tuple([(*piece.reads, piece.tensor) for piece in pieces])
            self.shapes[key] = _Shape(kernels, wires, tuple(escapes), tuple(pieces)), tuple(numbers)
        return self.shapes[key]

    def acyclic(self, members: Sequence[int], last: int) -> bool:
        """Whether no path leaves the members and comes back; a group on the way runs as a whole.

        Pieces after ``last`` are in no group yet, so that no path comes back from there.
        """
        inside = set(members)
        stack = list(members)
        seen: set[int] = set()
        while stack:
            for user in self.users.get(self.pieces[stack.pop()].tensor, ()):
                if user in inside or user > last or self.of[user] in seen:
                    continue
                seen.add(self.of[user])
                for mate in self.groups[self.of[user]]:
                    if not inside.isdisjoint(self.users.get(self.pieces[mate].tensor, ())):
                        return False
                    stack.append(mate)
        return True

    def _order(self, groups: dict[int, list[int]], of: dict[int, int]) -> list[int]:
        """The groups' keys, each after those that make what it reads."""
        order: list[int] = []
        done: dict[int, bool] = {}
        for number in range(len(self.pieces)):
            stack = [of[number]]
            while stack:
                key = stack[-1]
                reads = (t for member in groups[key] for t in self.pieces[member].reads)
                needs = dict.fromkeys(of[maker] for tensor in reads for maker in self.makers.get(tensor, ()))
                missing = [need for need in needs if need != key and not done.get(need)]
                if key in done or not missing:
                    stack.pop()
                    if not done.get(key):
                        assert not missing, "groups that need one another"
                        done[key] = True
                        order.append(key)
                    continue
                done[key] = False
                stack.extend(reversed(missing))
        return order

    def build(self, members: Sequence[int]) -> PlacedGroup | None:
        """The group of these pieces, normalized, in its first form; None if they share no axis.

        Its tensors are numbered by where the members name them first.
        """
        return self._first(self._shape(members)[0])

    def _first(self, shape: _Shape) -> PlacedGroup | None:
        if shape not in self.built:
            self.built[shape] = next(_forms(shape), None)
        return self.built[shape]


@dataclass(frozen=True)
class _Shape:
    """Pieces that are to be one group, with tensors numbered as they are met.

    ``kernels``: a number for each kernel, by which shapes are compared: kernels are long. ``wires``: for each piece the
    tensors it reads, then the one it stores. ``escapes``: whose results are read outside of the group.
    """

    kernels: tuple[int, ...]
    wires: tuple[tuple[int, ...], ...]
    escapes: tuple[bool, ...]
    pieces: tuple[Piece, ...] = field(compare=False)


def _forms(shape: _Shape) -> Iterator[PlacedGroup]:
    """The group of these pieces, with costly parts, and what is only moved, stored or where it is read."""
    if len(shape.pieces) == 1:
        yield _single(shape.pieces[0])
        return
    together = beside(shape.pieces) if all(shape.escapes) else None
    if together is not None and (draft := _draft(shape, together)) is not None:
        yield draft
    linked = link(shape.pieces)
    draft = None if linked is None else _draft(shape, linked)
    if draft is None:
        return
    for stages in alternatives(draft.group.stages, draft.group.shared):
        yield PlacedGroup(merge_shared(replace(draft.group, stages=tuple(stages))), draft.tensors)
    fewer = inlined(draft.group.stages)
    if fewer is not None:
        shared = draft.group.shared if len(fewer) > 1 else 0
        yield PlacedGroup(merge_shared(replace(draft.group, stages=tuple(fewer), shared=shared)), draft.tensors)


def _draft(shape: _Shape, linked: Sequence[Member]) -> PlacedGroup | None:
    """The group of several pieces, each of them a stage, with the axes that they share."""
    inside = {member.tensor: n for n, member in enumerate(linked)}
    tensors: list[int] = []
    operands: list[Operand] = []

    def external(tensor: int, operand: Operand) -> int:
        if tensor not in tensors:
            tensors.append(tensor)
            operands.append(operand)
        return tensors.index(tensor)

    kernels = [_shared_first(member) for member in linked]
    shared = len(linked[0].shared)
    local: list[Kernel] = []
    for number, (kernel, piece) in enumerate(zip(kernels, shape.pieces, strict=True)):
        changed = kernel
        for position, tensor in enumerate(piece.reads):
            source = inside.get(tensor)
            if source is not None and source != number and not shape.escapes[source]:
                relaid = _relay(changed, position, kernels[source])
                if relaid is None:
                    return None
                changed = relaid
        local.append(changed)
    drafts: list[tuple[Kernel, tuple[int | FromStage, ...], bool]] = []
    for number, (kernel, piece, kept) in enumerate(zip(local, shape.pieces, shape.escapes, strict=True)):
        sources: list[int | FromStage] = []
        for tensor, operand in zip(piece.reads, kernel.operands, strict=True):
            source = inside.get(tensor)
            inner = source is not None and source != number
            sources.append(FromStage(source) if inner and source is not None else external(tensor, operand))
        drafts.append((kernel if kept else _row_major_store(kernel), tuple(sources), kept))
    finished, outputs = [], []
    for (kernel, given, kept), piece in zip(drafts, shape.pieces, strict=True):
        result = external(piece.tensor, kernel.out) if kept else None
        if result is not None:
            outputs.append(result)
        finished.append(Stage(kernel, given, result))
    return PlacedGroup(KernelGroup(tuple(finished), shared, tuple(operands), tuple(outputs)), tuple(tensors))


def _single(piece: Piece) -> PlacedGroup:
    assert piece.kernel is not None
    kernel = merge_axes(piece.kernel, 0)
    tensors = tuple(dict.fromkeys(piece.reads))
    place = {t: n for n, t in enumerate(tensors)}
    operands = [kernel.operands[piece.reads.index(t)] for t in tensors]
    sources = tuple(place[t] for t in piece.reads)
    stage = Stage(kernel, sources, len(tensors))
    group = KernelGroup((stage,), 0, (*operands, kernel.out), (len(tensors),))
    return PlacedGroup(group, (*tensors, piece.tensor))


def _shared_first(member: Member) -> Kernel:
    kernel, head = member.kernel, member.shared
    rest = [a for a in range(kernel.parallel) if a not in head]
    return permute(kernel, [*head, *rest, *range(kernel.parallel, len(kernel.extents))])


class _Merging:
    """Merges groups that the pieces of a window are in, the pair that saves most first."""

    def __init__(self, grouping: Grouping, price: Price, window: range) -> None:
        self.all, self.price, self.window = grouping, price, window
        self.queue: list[tuple[float, int, int, bool, tuple[int, ...]]] = []
        """(what is saved, negative; two pieces; whether that is exact or could be less; the groups' members)."""
        self.fresh: list[tuple[int, ...]] = []
        """The members of those whose prices have not been prepared."""
        self.bounds: dict[tuple[int, ...], float] = {}
        self.clear = CLEAR
        """The part of the smallest group's price that a merge has to save."""

    def run(self) -> None:
        self._prepare((n,) for n in self.window if self.all.fusible(n))
        pairs = [(n, near) for n in self.window if self.all.fusible(n) for near in self.all.near([n])]
        self._all(pairs)
        self._prepare_further(pairs)
        while sum(self._further(*pair) for pair in pairs):
            self._pairs()
        self.clear = LEAST_CLEAR
        self._all(pairs)

    def _all(self, pairs: Sequence[tuple[int, int]]) -> None:
        for pair in pairs:
            self._push(*pair)
        self._pairs()

    def _prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        placed = (self.all.build(members) for members in dict.fromkeys(groups) if members not in self.all.prices)
        self.price.prepare([found.group for found in placed if found is not None])

    def _pairs(self) -> None:
        """Merge pairs while some pay."""
        while self.queue:
            _, number, near, exact, members = heapq.heappop(self.queue)
            keys = self.all.of[number], self.all.of[near]
            if keys[0] == keys[1]:
                continue
            if members != self._members(keys):  # one of them has grown since
                self._push(number, near)
            elif exact:
                self._merge(keys)
            else:
                if members in self.fresh:
                    self._prepare(self.fresh)
                    self.fresh = []
                if (saving := self._saving(keys)) > 0:
                    heapq.heappush(self.queue, (-saving, number, near, True, members))

    def _push(self, number: int, near: int) -> None:
        keys = self.all.of[number], self.all.of[near]
        if keys[0] != keys[1] and (saved := self._at_most(keys)) > 0:
            members = self._members(keys)
            self.fresh.append(members)
            heapq.heappush(self.queue, (-saved, number, near, False, members))

    def _further(self, number: int, near: int) -> bool:
        """Whether groups that do not pay as a pair do with up to ``AHEAD`` more that they read from; merged if so.

        Each further one has to make up for what those before it lose together.
        """
        keys = [self.all.of[number], self.all.of[near]]
        if keys[0] == keys[1] or (saved := self._at_most(keys)) == -math.inf:
            return False
        if saved > 0:
            saved = self._saving(keys)
        while len(keys) < 2 + AHEAD:
            further = self._next(keys)
            if further is None:
                return False
            if self._members(keys) in self.all.prices and saved + self._at_most((*keys, further), 1) <= 0:
                return False
            keys.append(further)
            before, saved = saved, self._saving(keys)
            if saved > 0:
                self._merge(keys)
                return True
            if saved <= before:
                return False
        return False

    def _next(self, keys: Sequence[int]) -> int | None:
        """The nearest group that these read from, if it could save something together with them."""
        near = self.all.near(self._members(keys))
        further = next((self.all.of[n] for n in near if self.all.of[n] not in keys), None)
        return None if further is None or self._at_most((*keys, further)) <= 0 else further

    def _prepare_further(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Prices of most of these with one more will be asked for."""
        found = []
        for pair in pairs:
            keys = [self.all.of[n] for n in pair]
            if keys[0] != keys[1] and self._at_most(keys) > -math.inf and (further := self._next(keys)) is not None:
                found.append(self._members((*keys, further)))
        self._prepare(found)

    def _members(self, keys: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(m for key in keys for m in self.all.groups[key]))

    def _at_most(self, keys: Sequence[int], last: int = 0) -> float:
        """What merging groups saves at most; minus infinity where it is not legal.

        With ``last``: what merging the last ones saves with the others merged already.
        """
        self.all.deadline.check("fusing kernels")
        members = self._members(keys)
        if len(members) > LONGEST or sum(self.all.products[m] for m in members) > PRODUCTS:
            return -math.inf
        if not self.all.acyclic(members, self.window.stop - 1):
            return -math.inf
        placed = self.all.build(members)
        if placed is None:
            return -math.inf
        parts = (
            [self._members(keys[:-last]), self._members(keys[-last:])] if last else [self._members((k,)) for k in keys]
        )
        apart = [built.group for built in map(self.all.build, parts) if built is not None]
        bound = (id(placed.group), *map(id, apart))  # ``build`` holds them
        if bound not in self.bounds:
            self.bounds[bound] = self.price.least(placed.group, apart)
        return self._gain(parts, 0.0 if self.all.masked(members) else self.bounds[bound])

    def _saving(self, keys: Sequence[int]) -> float:
        """What merging groups saves, which may be less than nothing."""
        members = self._members(keys)
        if not self.all.acyclic(members, self.window.stop - 1):  # others have merged meanwhile
            return -math.inf
        return self._gain([self.all.groups[key] for key in keys], self.all.seconds(members))

    def _gain(self, parts: Sequence[Sequence[int]], together: float) -> float:
        apart = [self.all.seconds(part) for part in parts]
        return sum(apart) - self.clear * min(apart) - together

    def _merge(self, keys: Sequence[int]) -> None:
        members = list(self._members(keys))
        if not self.all.acyclic(members, self.window.stop - 1):
            return
        self.all.groups[keys[0]] = members
        for gone in keys[1:]:
            del self.all.groups[gone]
        self.all.of.update(dict.fromkeys(members, keys[0]))
        for number in members:
            for near in self.all.near([number]):
                self._push(number, near)
        for user in sorted({u for m in members for u in self.all.users.get(self.all.pieces[m].tensor, ())}):
            if user in self.window and self.all.fusible(user):
                for near in self.all.near([user]):
                    if near in members:
                        self._push(user, near)


def _row_major_store(kernel: Kernel) -> Kernel:
    """The kernel storing densely in the order of its parallel axes (its result is read in the group only)."""
    return replace(kernel, store_offset=0, store_strides=row_major(kernel.extents[: kernel.parallel]))


def _relay(kernel: Kernel, operand: int, maker: Kernel) -> Kernel | None:
    """``kernel`` reading ``operand`` as ``maker`` stores it when dense in its axes' order."""
    weight = dict(enumerate(row_major(maker.extents[: maker.parallel])))
    inner = digits_of(maker, weight)
    failed = False

    def fix(expr: Expr) -> Expr:
        nonlocal failed
        if isinstance(expr, Load) and expr.operand == operand:
            both = views.compose(inner, views.strided(kernel.extents, expr.strides, expr.offset))
            if both is None or both.strides is None:
                failed = True
                return expr
            return replace(expr, offset=both.offset, strides=both.strides)
        return expr

    out = rewrite_kernel(kernel, fix)
    return None if failed else out

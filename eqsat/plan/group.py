"""Kernels that share rows, run together: which of them, over which axes, and what flows between them.

A producer and a consumer can run block by block over an axis when the consumer reads the producer's
result at the same position along it. Softmax, layer norm and attention come out as groups with no
case of their own; common costly parts of their stages (the exponentials of a softmax) become stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from eqsat.deadline import NEVER, Deadline
from eqsat.ir import views
from eqsat.ir.kernel import Call, Expr, FromStage, Kernel, KernelGroup, Load, Operand, Stage, rewrite_kernel
from eqsat.ir.types import row_major
from eqsat.ir.views import ViewMap
from eqsat.plan.stages import (
    accesses,
    depends_on,
    loads_of,
    merge_axes,
    merge_shared,
    permute,
    reuses_both_factors,
    share_costly_parts,
    split_factors,
)

LONGEST = 32
"""Kernels of a group at most: each one that joins costs the work of building the group anew."""


@dataclass(frozen=True)
class Piece:
    """One kernel of the program: the tensor it stores and the tensors it reads, by number.

    ``whole``: it stores all of its tensor (not one part of a concatenation). ``kernel`` is None for an
    operator that runs through the reference; ``key`` then says which.
    """

    tensor: int
    kernel: Kernel | None
    reads: tuple[int, ...]
    whole: bool = True
    key: int = -1


@dataclass(frozen=True)
class PlacedGroup:
    """A group and the tensors its operands are."""

    group: KernelGroup
    tensors: tuple[int, ...]


def _digits_of(kernel: Kernel, weight: dict[int, int]) -> ViewMap:
    """Flat index of the kernel's result -> Σ weight·(digit along each of its parallel axes)."""
    axes = sorted(range(kernel.parallel), key=lambda a: -kernel.store_strides[a])
    return views.strided([kernel.extents[a] for a in axes], [weight.get(a, 0) for a in axes])


def touched(kernel: Kernel, strides: Sequence[int]) -> int:
    """How many positions an access with these strides visits."""
    return math.prod(n for n, s in zip(kernel.extents, strides, strict=True) if s)


def inner_axes(kernel: Kernel, largest: int) -> set[int]:
    """Axes that must stay inside a block, or vectors and register tiles would have nothing to run along.

    They are those that the group's largest accesses walk contiguously, and the columns of a product.
    """
    inner = {
        axis
        for strides in accesses(kernel)
        if touched(kernel, strides) == largest
        for axis, stride in enumerate(strides)
        if abs(stride) == 1
    }
    if reuses_both_factors(kernel):
        assert isinstance(kernel.body, Call)
        parallel = [a for a in range(kernel.parallel) if kernel.extents[a] > 1]
        last = min(parallel, key=lambda a: abs(kernel.store_strides[a]))
        for factor in kernel.body.args:
            if not depends_on(factor, last):
                inner |= {a for a in parallel if not depends_on(factor, a)}
    return inner


def _covers(kernel: Kernel) -> bool:
    """Whether the kernel stores all of its tensor, densely."""
    return kernel.store_offset == 0 and kernel.results == kernel.out.size


@dataclass
class _Linked:
    """Members of a group and, for each, which of its parallel axes is which shared axis."""

    members: list[int]
    shared: list[dict[int, int]]
    """Per member: shared axis -> its parallel axis."""


Worth = Callable[[PlacedGroup, tuple[PlacedGroup, ...]], bool]


class Grouping:
    """Fuses pieces of a program into groups. ``worth(merged, parts)`` decides whether a legal fusion pays."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        stored: frozenset[int],
        worth: Callable[[PlacedGroup, tuple[PlacedGroup, ...]], bool],
        deadline: Deadline = NEVER,
    ) -> None:
        self.pieces = pieces
        self.stored = stored
        self.worth = worth
        self.deadline = deadline
        self.producer = {p.tensor: n for n, p in enumerate(pieces) if p.whole and p.kernel is not None}
        self.makers: dict[int, list[int]] = {}
        self.users: dict[int, list[int]] = {}
        for number, piece in enumerate(pieces):
            self.makers.setdefault(piece.tensor, []).append(number)
            for tensor in dict.fromkeys(piece.reads):
                self.users.setdefault(tensor, []).append(number)

    def run(self) -> list[PlacedGroup | Piece]:
        """Groups, and pieces without a kernel, in an order that respects every dependency."""
        groups: dict[int, list[int]] = {n: [n] for n in range(len(self.pieces))}
        of = {n: n for n in range(len(self.pieces))}
        for number, piece in enumerate(self.pieces):
            if not piece.whole or piece.kernel is None:
                continue
            for tensor in sorted(set(piece.reads), key=lambda t: -self.producer.get(t, -1)):
                self.deadline.check("fusing kernels")
                source = self.producer.get(tensor)
                if source is None or of[source] == of[number]:
                    continue
                members = sorted(groups[of[source]] + groups[of[number]])
                if len(members) > LONGEST or not self._acyclic(members, groups, of):
                    continue
                placed = self.build(members)
                parts = tuple(p for p in (self.build(groups[of[n]]) for n in (source, number)) if p is not None)
                if placed is None or not self.worth(placed, parts):
                    continue
                target, gone = of[number], of[source]
                groups[target] = members
                del groups[gone]
                for member in members:
                    of[member] = target
        order = self._order(groups, of)
        out: list[PlacedGroup | Piece] = []
        for key in order:
            if self.pieces[key].kernel is None:
                out.append(self.pieces[key])
                continue
            placed = self.build(groups[key])
            assert placed is not None
            out.append(placed)
        return out

    def _kernel(self, number: int) -> Kernel:
        kernel = self.pieces[number].kernel
        assert kernel is not None
        return kernel

    def _acyclic(self, members: Sequence[int], groups: dict[int, list[int]], of: dict[int, int]) -> bool:
        """Whether no path leaves the members and comes back; a group on the way runs as a whole.

        Pieces after the last member are in no group yet, so that no path comes back from there.
        """
        inside, last = set(members), members[-1]
        stack = list(members)
        seen: set[int] = set()
        while stack:
            for user in self.users.get(self.pieces[stack.pop()].tensor, ()):
                if user in inside or user > last or of[user] in seen:
                    continue
                seen.add(of[user])
                for mate in groups[of[user]]:
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

    def _link(self, members: Sequence[int]) -> _Linked | None:
        """The axes that all members share, found from the last member backwards; None if there are none."""
        inside = {self.pieces[m].tensor: m for m in members}
        sink = members[-1]
        axes: dict[int, dict[int, int]] = {sink: {a: a for a in range(self._kernel(sink).parallel)}}
        alive = set(axes[sink])
        for user in reversed(members):
            if user not in axes:
                return None
            consumer = self.pieces[user]
            for load in loads_of(self._kernel(user)):
                source = inside.get(consumer.reads[load.operand])
                if source is None or source == user:
                    continue
                maker = self._kernel(source)
                if not _covers(maker) or load.gathers:
                    return None
                found = self._match(self._kernel(user), load, maker, axes[user])
                known = axes.get(source)
                if known is not None:
                    found = {v: a for v, a in found.items() if known.get(v) == a}
                axes[source] = found
                alive &= set(found)
        if any(m not in axes for m in members):
            return None
        kernels = {m: self._kernel(m) for m in members}
        largest = max(touched(k, s) for k in kernels.values() for s in accesses(k))
        for member, kernel in kernels.items():
            inner = inner_axes(kernel, largest)
            alive -= {v for v, axis in axes[member].items() if axis in inner}
        if not alive:
            return None
        # Axes that every second factor ignores go last: its packing is then paid once for a run of rows.
        order = sorted(alive, key=lambda v: (self._rows(members, axes, v), v))
        return _Linked(list(members), [{v: axes[m][v] for v in order} for m in members])

    def _rows(self, members: Sequence[int], axes: dict[int, dict[int, int]], shared: int) -> int:
        """In how many contractions of the members a shared axis belongs to one factor alone."""
        count = 0
        for member in members:
            kernel = self._kernel(member)
            if kernel.is_contraction:
                assert isinstance(kernel.body, Call)
                count += sum(not depends_on(factor, axes[member][shared]) for factor in kernel.body.args)
        return count

    @staticmethod
    def _match(kernel: Kernel, load: Load, maker: Kernel, axes: dict[int, int]) -> dict[int, int]:
        """Shared axes along which ``load`` reads ``maker``'s result at the same position."""
        seen = views.strided(kernel.extents, load.strides, load.offset)
        found = {}
        for axis in range(maker.parallel):
            position = views.compose(_digits_of(maker, {axis: 1}), seen)
            if position is None or position.strides is None or position.offset:
                continue
            moving = [a for a, s in enumerate(position.strides) if s]
            if len(moving) != 1 or position.strides[moving[0]] != 1:
                continue
            for shared, mine in axes.items():
                if mine == moving[0] and kernel.extents[mine] == maker.extents[axis]:
                    found[shared] = axis
        return found

    def build(self, members: Sequence[int]) -> PlacedGroup | None:
        """The group of these pieces, normalized; None if they share no axis."""
        if len(members) == 1:
            return self._single(members[0])
        linked = self._link(members)
        if linked is None:
            return None
        inside = {self.pieces[m].tensor: n for n, m in enumerate(linked.members)}
        tensors: list[int] = []
        operands: list[Operand] = []

        def external(tensor: int, operand: Operand) -> int:
            if tensor not in tensors:
                tensors.append(tensor)
                operands.append(operand)
            return tensors.index(tensor)

        kernels = [self._shared_first(self._kernel(m), link) for m, link in zip(members, linked.shared, strict=True)]
        shared = len(linked.shared[0])
        escapes = [
            self.pieces[m].tensor in self.stored
            or any(u not in members for u in self.users.get(self.pieces[m].tensor, ()))
            for m in members
        ]
        escapes[-1] = True
        local: list[Kernel] = []
        for number, kernel in enumerate(kernels):
            piece = self.pieces[members[number]]
            changed = kernel
            for position, tensor in enumerate(piece.reads):
                source = inside.get(tensor)
                if source is not None and source != number and not escapes[source]:
                    relaid = _relay(changed, position, kernels[source])
                    if relaid is None:
                        return None
                    changed = relaid
            local.append(changed)
        drafts: list[tuple[Kernel, tuple[int | FromStage, ...], bool]] = []
        for number, (kernel, m) in enumerate(zip(local, members, strict=True)):
            piece = self.pieces[m]
            sources: list[int | FromStage] = []
            for tensor, operand in zip(piece.reads, kernel.operands, strict=True):
                source = inside.get(tensor)
                inner = source is not None and source != number
                sources.append(FromStage(source) if inner and source is not None else external(tensor, operand))
            if not escapes[number]:
                kernel = _row_major_store(kernel)
            drafts.append((kernel, tuple(sources), escapes[number]))
        finished, outputs = [], []
        for (kernel, given, kept), m in zip(drafts, members, strict=True):
            result = external(self.pieces[m].tensor, kernel.out) if kept else None
            if result is not None:
                outputs.append(result)
            finished.append(Stage(kernel, given, result))
        stages = share_costly_parts(split_factors(finished, shared), shared)
        group = KernelGroup(tuple(stages), shared, tuple(operands), tuple(outputs))
        return PlacedGroup(merge_shared(group), tuple(tensors))

    def _single(self, number: int) -> PlacedGroup:
        piece = self.pieces[number]
        kernel = merge_axes(self._kernel(number), 0)
        tensors = tuple(dict.fromkeys(piece.reads))
        place = {t: n for n, t in enumerate(tensors)}
        operands = [kernel.operands[piece.reads.index(t)] for t in tensors]
        sources = tuple(place[t] for t in piece.reads)
        stage = Stage(kernel, sources, len(tensors))
        group = KernelGroup((stage,), 0, (*operands, kernel.out), (len(tensors),))
        return PlacedGroup(group, (*tensors, piece.tensor))

    @staticmethod
    def _shared_first(kernel: Kernel, link: dict[int, int]) -> Kernel:
        head = list(link.values())
        rest = [a for a in range(kernel.parallel) if a not in head]
        return permute(kernel, [*head, *rest, *range(kernel.parallel, len(kernel.extents))])


def _row_major_store(kernel: Kernel) -> Kernel:
    """The kernel storing densely in the order of its parallel axes (its result is read in the group only)."""
    return replace(kernel, store_offset=0, store_strides=row_major(kernel.extents[: kernel.parallel]))


def _relay(kernel: Kernel, operand: int, maker: Kernel) -> Kernel | None:
    """``kernel`` reading ``operand`` as ``maker`` stores it when dense in its axes' order."""
    weight = dict(enumerate(row_major(maker.extents[: maker.parallel])))
    inner = _digits_of(maker, weight)
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

"""The axes that kernels of a group share: which axis of each member is which shared axis.

A consumer and its producer share an axis along which the consumer reads the producer's result at the same position.
Kernels of which none reads another (siblings) share axes along which they read a tensor with the same stride.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from eqsat.ir import views
from eqsat.ir.contraction import reuses_both_factors
from eqsat.ir.kernel import Call, Expr, Index, Kernel, Load, rewrite_kernel
from eqsat.ir.siblings import alike
from eqsat.ir.views import ViewMap
from eqsat.plan.stages import depends_on, loads_of, merge_axes

RUN = 4096
"""Positions at most that stay together where a contiguous axis is cut to be shared."""

LEAST = 64
"""Positions at least, of which vectors and the loop around them have something to run along."""


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
class Member:
    """A kernel of a group and its axis for each shared one, in the order of the shared axes."""

    kernel: Kernel
    reads: tuple[int, ...]
    tensor: int
    shared: tuple[int, ...]


def digits_of(kernel: Kernel, weight: dict[int, int]) -> ViewMap:
    """Flat index of the kernel's result -> Σ weight·(digit along each of its parallel axes).

    Neighbours whose weights step as one are one digit: what reads across their border is read at once.
    """
    extents: list[int] = []
    weights: list[int] = []
    for a in sorted(range(kernel.parallel), key=lambda a: -kernel.store_strides[a]):
        n, w = kernel.extents[a], weight.get(a, 0)
        if extents and weights[-1] == w * n:
            extents[-1], weights[-1] = extents[-1] * n, w
        else:
            extents.append(n)
            weights.append(w)
    return views.strided(extents, weights)


def link(pieces: Sequence[Piece]) -> list[Member] | None:
    """The members with the axes that all of them share, found from the last one backwards; None if there are none.

    Of axes that they share but that have to stay inside a block, a long one is cut: its outer part is shared.
    """
    kernels = [piece.kernel for piece in pieces if piece.kernel is not None]
    assert len(kernels) == len(pieces)
    axes = _common(pieces, kernels)
    if axes is None:
        return None
    largest = max(_touched(k, s) for k in kernels for s in k.maps)
    inside = {v for k, of in zip(kernels, axes, strict=True) for v in inner_axes(of, k, largest)}
    alive = set(axes[-1]) - inside
    cut = _cut(kernels, axes, alive, inside & set(axes[-1]))
    if cut is not None:
        kernels, axes, outer = cut
        alive.add(outer)
    if not alive:
        return None
    products = [(k, of) for k, of in zip(kernels, axes, strict=True) if reuses_both_factors(k)]
    if len(products) > 1 and not all(_keeps_batches(k, {of[v] for v in alive}) for k, of in products):
        return None
    # Axes that every second factor ignores go last: its packing is then paid once for a run of rows.
    order = sorted(alive, key=lambda v: (_rows(kernels, axes, v), v))
    return [
        Member(kernel, piece.reads, piece.tensor, tuple(of[v] for v in order))
        for piece, kernel, of in zip(pieces, kernels, axes, strict=True)
    ]


def beside(pieces: Sequence[Piece]) -> list[Member] | None:
    """The members, without a shared axis, of reductions over one iteration space that read a tensor in common."""
    kernels = [piece.kernel for piece in pieces if piece.kernel is not None]
    made = {piece.tensor for piece in pieces}
    if len(pieces) < 2 or any(made.intersection(piece.reads) for piece in pieces):
        return None
    if any(map(reuses_both_factors, kernels)) or not set(pieces[0].reads).intersection(*(p.reads for p in pieces)):
        return None
    for form in (kernels, [merge_axes(kernel, 0) for kernel in kernels]):
        if alike(form):
            return [Member(k, piece.reads, piece.tensor, ()) for k, piece in zip(form, pieces, strict=True)]
    return None


def _common(pieces: Sequence[Piece], kernels: Sequence[Kernel]) -> list[dict[int, int]] | None:
    """For every member: shared axis -> its parallel axis. Shared axes go by those of the last member."""
    inside = {piece.tensor: n for n, piece in enumerate(pieces)}
    sink = len(pieces) - 1
    axes: dict[int, dict[int, int]] = {sink: {a: a for a in range(kernels[sink].parallel)}}
    for user in range(sink, -1, -1):
        kernel = kernels[user]
        if user not in axes:
            found = _beside(pieces, kernels, axes, user)
            if found is None:
                return None
            axes[user] = found
        for load in loads_of(kernel):
            source = inside.get(pieces[user].reads[load.operand])
            if source is None or source == user:
                continue
            maker = kernels[source]
            if not _covers(maker) or load.gathers:
                return None
            found = _match(kernel, load, maker, axes[user])
            known = axes.get(source)
            axes[source] = found if known is None else {v: a for v, a in found.items() if known.get(v) == a}
    alive = set(axes[sink]).intersection(*axes.values())
    return [{v: axes[n][v] for v in sorted(alive)} for n in range(len(pieces))] if alive else None


def _match(kernel: Kernel, load: Load, maker: Kernel, axes: dict[int, int]) -> dict[int, int]:
    """Shared axes along which ``load`` reads ``maker``'s result at the same position."""
    seen = views.strided(kernel.extents, load.strides, load.offset)
    found = {}
    for axis in range(maker.parallel):
        position = views.compose(digits_of(maker, {axis: 1}), seen)
        if position is None or position.strides is None or position.offset:
            continue
        moving = [a for a, s in enumerate(position.strides) if s]
        if len(moving) != 1 or position.strides[moving[0]] != 1:
            continue
        for shared, mine in axes.items():
            if mine == moving[0] and kernel.extents[mine] == maker.extents[axis]:
                found[shared] = axis
    return found


def _beside(
    pieces: Sequence[Piece], kernels: Sequence[Kernel], axes: dict[int, dict[int, int]], number: int
) -> dict[int, int] | None:
    """Shared axes of a member that no other one reads: where it walks a tensor as one that is linked does.

    Of several such tensors the first with any counts.
    """
    kernel, piece = kernels[number], pieces[number]
    for load in loads_of(kernel):
        for other, known in sorted(axes.items()):
            for theirs in loads_of(kernels[other]):
                if pieces[other].reads[theirs.operand] != piece.reads[load.operand] or theirs.gathers or load.gathers:
                    continue
                found: dict[int, int] = {}
                for shared, axis in known.items():
                    same = [
                        a
                        for a in range(kernel.parallel)
                        if load.strides[a] == theirs.strides[axis] != 0
                        and kernel.extents[a] == kernels[other].extents[axis] > 1
                    ]
                    if len(same) == 1 and same[0] not in found.values():  # windows walk rows by two axes
                        found[shared] = same[0]
                if found:
                    return found
    return None


def inner_axes(shared: dict[int, int], kernel: Kernel, largest: int) -> set[int]:
    """Shared axes that must stay inside a block, or vectors and register tiles would have nothing to run along.

    They are those that the group's largest accesses walk contiguously, and the columns of a product.
    """
    inner = {
        axis
        for strides in kernel.maps
        if _touched(kernel, strides) == largest
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
    return {v for v, axis in shared.items() if axis in inner}


def _cut(
    kernels: Sequence[Kernel], axes: Sequence[dict[int, int]], alive: set[int], inside: Iterable[int]
) -> tuple[list[Kernel], list[dict[int, int]], int] | None:
    """The members with the longest of the axes ``inside`` cut in two, and the number of its outer part.

    None where the others, ``alive``, share enough: no more than ``RUN`` positions would stay together. Products keep
    their axes: their tiles run along them.
    """
    if any(kernel.is_contraction for kernel in kernels):
        return None
    extents = {v: kernels[-1].extents[axes[-1][v]] for v in inside}
    longest = min(extents, key=lambda v: (-extents[v], v), default=None)
    if longest is None or (alive and extents[longest] <= RUN):
        return None
    run = _run(extents[longest])
    if run is None:
        return None
    cut = [_halved(kernel, of[longest], run) for kernel, of in zip(kernels, axes, strict=True)]
    kept = [{v: of[v] + (of[v] > of[longest]) for v in (*sorted(alive), longest)} for of in axes]
    return cut, kept, longest


def _run(extent: int) -> int | None:
    """A divisor of an extent to cut it by: the largest of whole lines where there is one."""
    inside = [d for d in range(LEAST, min(RUN, extent // 2) + 1) if extent % d == 0]
    return max(inside, key=lambda d: (d % 16 == 0, d), default=None)


def _halved(kernel: Kernel, axis: int, run: int) -> Kernel:
    """The kernel with an axis as two: which run of ``run`` positions, and the position in it."""

    def two(strides: tuple[int, ...]) -> tuple[int, ...]:
        return (*strides[:axis], strides[axis] * run, *strides[axis:])

    def fix(expr: Expr) -> Expr:
        return replace(expr, strides=two(expr.strides)) if isinstance(expr, Load | Index) else expr

    extents = (*kernel.extents[:axis], kernel.extents[axis] // run, run, *kernel.extents[axis + 1 :])
    store = two(kernel.store_strides)
    return rewrite_kernel(kernel, fix, extents=extents, parallel=kernel.parallel + 1, store_strides=store)


def _touched(kernel: Kernel, strides: Sequence[int]) -> int:
    """How many positions an access with these strides visits."""
    return math.prod(n for n, s in zip(kernel.extents, strides, strict=True) if s)


def _covers(kernel: Kernel) -> bool:
    """Whether the kernel stores all of its tensor, densely."""
    return kernel.store_offset == 0 and kernel.results == kernel.out.size


def _keeps_batches(kernel: Kernel, shared: set[int]) -> bool:
    """Whether the axes that both factors of a product have are shared ones, so that a block is of one batch.

    Kernels of several products cannot be printed otherwise without packing the second factor anew for every block.
    """
    assert isinstance(kernel.body, Call)
    return not any(
        kernel.extents[axis] > 1 and all(depends_on(factor, axis) for factor in kernel.body.args)
        for axis in range(kernel.parallel)
        if axis not in shared
    )


def _rows(kernels: Sequence[Kernel], axes: Sequence[dict[int, int]], shared: int) -> int:
    """In how many contractions of the members a shared axis belongs to one factor alone."""
    count = 0
    for kernel, of in zip(kernels, axes, strict=True):
        if kernel.is_contraction:
            assert isinstance(kernel.body, Call)
            count += sum(not depends_on(factor, of[shared]) for factor in kernel.body.args)
    return count

"""Contractions: the recognizer, and the form that schedules and code generators share.

    out[b, m, n] = epilogue(Σ_k a[b, m, k] · b[b, n, k])

Every axis of the kernel falls in one group by the factors that depend on it. Nests loop over the flattened groups
(see ``eqsat.ir.nest``). In the merged form, axes of one group that every access walks as one are one axis, so a
plain matrix product has one axis a group whatever its rank.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from eqsat.ir.kernel import Acc, Call, Expr, Index, Kernel, Load, rewrite_kernel, unique, walk
from eqsat.ir.notation import notation, unify
from eqsat.ir.types import DType, bfloat16, float32, float64, int8, int16, int32, uint8


@dataclass(frozen=True)
class Dot:
    """What a register tile adds to each of its sums in one step: the products of ``depth`` neighbours along k.

    ``factors``: the types that the factors are stored in, in either order; ``dtype``: that of products and sums.
    ``cast``: what makes ``dtype`` of the factors, where they are of another. ``element``: the type of what blocks of
    factors consist of, ``depth`` neighbours side by side. Where it is more than one, positions of k in nests and in
    print are those of such elements. ``optional``: not every target has tiles for it, so it is found where its element
    type is offered; the others are everywhere.
    """

    factors: tuple[DType, DType]
    dtype: DType
    depth: int = 1
    cast: str = "cast"
    optional: bool = False

    @cached_property
    def element(self) -> DType:
        if self.depth == 1:
            return self.dtype
        return DType("·".join(dtype.name for dtype in self.factors), self.dtype.kind, self.depth * self.factors[0].bits)

    @cached_property
    def semantics(self) -> Kernel:
        """``out[m, n] = Σ_k a[m, k] · b[n, k]``; of small types with k in two axes, of which d is ``depth`` long."""
        letters = "k" if self.depth == 1 else "kd"
        extents = {"m": 1, "n": 1, "k": 1, "d": self.depth}
        return notation("mn", ["m" + letters, "n" + letters], self.factors, extents, self._product, "sum")

    def _product(self, *factors: Expr) -> Expr:
        wide = (f if f.dtype == self.dtype else Call(self.cast, (f,), self.dtype) for f in factors)
        return Call("mul", tuple(wide), self.dtype)

    def narrowed(self, body: Call) -> tuple[Expr, Expr] | None:
        """The arguments of a product as they are stored; None where these are other types."""
        if self.depth == 1:
            return None if next(unify(self.semantics.body, body), None) is None else (body.args[0], body.args[1])
        for types in (self.factors, self.factors[::-1]):
            found = [self._narrow(arg, dtype) for arg, dtype in zip(body.args, types, strict=True)]
            if found[0] is not None and found[1] is not None:
                return found[0], found[1]
        return None

    def _narrow(self, expr: Expr, dtype: DType) -> Expr | None:
        """What ``expr`` is the cast of, as ``dtype``; None where that may not hold it."""
        if not isinstance(expr, Call) or expr.fn != self.cast or expr.dtype != self.dtype:
            return None
        (inner,) = expr.args
        if inner.dtype == dtype:
            return inner
        if inner.dtype.kind != "int" or dtype.kind != "int" or inner.dtype.bits >= dtype.bits or not dtype.is_signed:
            return None
        return Call("cast", (inner,), dtype)


DOTS = (
    Dot((bfloat16, bfloat16), float32, 2, "flushing_cast"),
    Dot((float32, float32), float32),
    Dot((float64, float64), float64),
    Dot((uint8, int8), int32, 4),
    Dot((int8, int8), int32, 4, optional=True),
    Dot((uint8, uint8), int32, 4, optional=True),
    Dot((int16, int16), int32, 2),
)
"""What contractions are recognized by; of several that apply the first."""
CASTS = frozenset(dot.cast for dot in DOTS)


def dots(offered: Collection[str]) -> Iterator[Dot]:
    """Those of :data:`DOTS` that every target has, or that are offered, by their element types."""
    return (dot for dot in DOTS if not dot.optional or dot.element.name in offered)


def dot_of(kernel: Kernel, offered: Collection[str] = ()) -> tuple[Dot, Expr, Expr] | None:
    """The products that a kernel adds up, and its factors as they are stored; None where no register tile does."""
    body = kernel.body
    if kernel.combine != "sum" or not isinstance(body, Call) or body.fn != "mul":
        return None
    for dot in dots(offered):
        found = dot.narrowed(body) if dot.dtype == body.dtype else None
        if found is not None:
            return dot, *found
    return None


def narrow_dot(first: DType, second: DType, wide: DType, cast: str, offered: Collection[str]) -> Dot | None:
    """By what tiles add up products of two types, cast to ``wide``; None: these casts are evaluated."""
    x, y = (Call(cast, (Load(i, 0, (), dtype),), wide) for i, dtype in enumerate((first, second)))
    body = Call("mul", (x, y), wide)
    return next((dot for dot in dots(offered) if dot.dtype == wide and dot.depth > 1 and dot.narrowed(body)), None)


FEW_ROWS, LINE = 16, 64
"""Rows of a product up to which copying its second factor takes as long as multiplying by it, and the bytes of which
runs are multiples that are read where they lie instead: whole vectors of any width."""


@dataclass(frozen=True)
class Product:
    """The axes of a kernel that is a contraction, by group, outermost first; axes of extent 1 are in none but m.

    ``swapped``: factor a is the second argument of the body's product.
    """

    swapped: bool
    b: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    dot: Dot

    def factors(self, kernel: Kernel) -> tuple[Expr, Expr]:
        """Factors a and b, as they are stored."""
        assert isinstance(kernel.body, Call)
        narrow = self.dot.narrowed(kernel.body)
        assert narrow is not None, "the kernel that the product was found in"
        return narrow[::-1] if self.swapped else narrow


def product_of(
    kernel: Kernel, fixed: int = 0, rows: int = 0, late: Collection[int] = (), offered: Collection[str] = ()
) -> Product | None:
    """The contraction that ``kernel`` is, or None where a register tile does not apply.

    None for: another combine, a body that is no product, element types without a tile, and products in which no
    axis belongs to the second factor only. Factors are swapped so that n holds the axis that results are contiguous
    in. The first ``fixed`` axes are shared with other stages and in no group. The next ``rows`` axes are rows of a
    block that several stages work on: outermost in m, and None is returned where they are not the first factor's
    alone. ``late``: operands that are made block by block, which the second factor must not read. ``offered``: see
    :func:`dots`.
    """
    found_dot = dot_of(kernel, offered)
    if found_dot is None:
        return None
    dot, *factors = found_dot
    in_a, in_b = (depends_on(factor) for factor in factors)
    shared = fixed + rows
    long = [axis for axis in range(fixed, shared) if kernel.extents[axis] != 1]
    free = [axis for axis in range(shared, kernel.parallel) if kernel.extents[axis] != 1]
    ends = [axis for axis in free if (axis in in_a) != (axis in in_b)]
    if not ends:
        return None
    if long:
        swapped = any(axis in in_b for axis in long)
    else:
        nearest = min(ends, key=lambda axis: (abs(kernel.store_strides[axis]), -axis))
        swapped = nearest in in_a
        if abs(kernel.store_strides[nearest]) != 1 and dot.depth == 1 and not shared:
            swapped ^= _transposed(kernel, *(factors[::-1] if swapped else factors))
    if swapped:
        in_a, in_b = in_b, in_a
    if any(axis in in_b or axis not in in_a for axis in long):
        return None
    groups: dict[str, list[int]] = {"b": [], "m": [], "n": []}
    for axis in free:
        groups["m" if axis in in_a - in_b else "n" if axis in in_b - in_a else "b"].append(axis)
    if not groups["n"]:
        return None

    def by_store(axis: int) -> tuple[int, int]:
        return -abs(kernel.store_strides[axis]), axis

    def by_factor(axis: int) -> tuple[int, int]:
        return -max((abs(x.strides[axis]) for x in factors if isinstance(x, Load)), default=0), axis

    b, m, n = (tuple(sorted(groups[name], key=by_store)) for name in "bmn")
    reduced = (axis for axis in range(kernel.parallel, len(kernel.extents)) if kernel.extents[axis] != 1)
    k = tuple(sorted(reduced, key=by_factor))
    first, second = map(plain, factors[::-1] if swapped else factors)
    packed = k and not shared and first and kernel.operands[first.operand].const  # in whatever order of k
    if packed and second and planes_of(second, kernel.extents, (*b, *n, *k[1:]), k[0], dot.depth):
        k = (*k[1:], k[0])
    if not shared and second is not None:
        b, n = _in_place(kernel, second, b, m, n, k)
    found = Product(swapped, b, (*range(fixed, shared), *m), n, k, dot)
    if any(isinstance(part, Load) and part.operand in late for part in unique(found.factors(kernel)[1])):
        return None
    return found


def _transposed(kernel: Kernel, first: Expr, second: Expr) -> bool:
    """Whether the second factor of many products is better the first one, where results are contiguous along neither.

    As the second one, what is contiguous along k is transposed for each batch; as the first one it is read row by row.
    Of two such factors the smaller one is transposed. The first one has to have half a vector of rows.
    """
    in_a, in_b, parallel = depends_on(first), depends_on(second), range(kernel.parallel)
    rows, columns = (
        math.prod(kernel.extents[axis] for axis in parallel if axis in own) for own in (in_a - in_b, in_b - in_a)
    )
    load, other = plain(second), plain(first)
    if load is None or kernel.operands[load.operand].const or 2 * rows * load.dtype.itemsize < LINE:
        return False
    if all(kernel.extents[axis] == 1 for axis in parallel if axis in in_a & in_b):
        return False  # it is transposed once
    reduced = [axis for axis in range(kernel.parallel, len(kernel.extents)) if kernel.extents[axis] != 1]
    along, beside = (one and any(abs(one.strides[axis]) == 1 for axis in reduced) for one in (load, other))
    return bool(along) and (not beside or rows < columns)


def _in_place(
    kernel: Kernel, second: Load, b: tuple[int, ...], m: tuple[int, ...], n: tuple[int, ...], k: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Groups b and n, where a few rows are multiplied by a second factor whose columns lie in runs of whole lines.

    A tile reads a run where it lies; runs that do not follow one another had to be copied, which takes as long as the
    products of a few rows. So n is a run, and axes of several runs are batches, along which the first factor is the
    same. Constants are copied when compiled.
    """
    extents, size = kernel.extents, second.dtype.itemsize
    few = math.prod(extents[axis] for axis in m) <= FEW_ROWS and not kernel.operands[second.operand].const
    if not few or stride_over(second.strides, extents, k) is None or stride_over(second.strides, extents, n) == 1:
        return b, n
    run = _merge(n, extents, _strides(kernel))[-1]
    if second.strides[run[-1]] != 1 or math.prod(extents[axis] for axis in run) * size % LINE:
        return b, n
    return tuple(sorted({*b, *n} - {*run}, key=lambda axis: (-abs(kernel.store_strides[axis]), axis))), tuple(run)


def reuses_both_factors(kernel: Kernel) -> bool:
    """Whether each factor of a sum of products is free of some parallel axis longer than 1: a matrix product."""
    if not kernel.is_contraction or not isinstance(kernel.body, Call):
        return False
    axes = {axis for axis in range(kernel.parallel) if kernel.extents[axis] > 1}
    return all(axes - depends_on(factor) for factor in kernel.body.args)


def stride_over(strides: Sequence[int], extents: Sequence[int], axes: Sequence[int]) -> int | None:
    """The one stride that walks ``axes``, flattened, or None if it takes several; 0 where all have extent 1."""
    axes = [axis for axis in axes if extents[axis] != 1]
    if not axes:
        return 0
    step = reach = strides[axes[-1]]
    for axis in reversed(axes):
        if strides[axis] != reach:
            return None
        reach *= extents[axis]
    return step


def evenly(strides: Sequence[int], extents: Sequence[int], axes: Sequence[int]) -> int:
    """Positions along the innermost of ``axes``, flattened, that one stride walks."""
    found = reach = 1
    for number, axis in enumerate(reversed([axis for axis in axes if extents[axis] != 1])):
        if number and strides[axis] != reach:
            break
        found, reach = found * extents[axis], strides[axis] * extents[axis]
    return found


@dataclass(frozen=True)
class Planes:
    """How neighbours of a second factor along k, which lie in different planes, are put side by side for all panels.

    Of ``rows`` times as many planes as a dot product is deep, ``apart`` elements from one to the next, ``columns``
    elements each, ``start`` being the first. ``load`` reads the copy, whose elements are the dot product's and whose
    rows are ``pitch`` of them apart, as an operand behind those of the kernel.
    """

    load: Load
    start: int
    rows: int
    columns: int
    apart: int
    pitch: int


def planes_of(load: Load, extents: Sequence[int], axes: Sequence[int], last: int, depth: int) -> Planes | None:
    """The planes that neighbours along an axis of k lie in; None where nothing is read twice or they overlap.

    ``axes``: the others that the factor is read along. Planes of several images follow each other.
    """
    apart = load.strides[last]
    far = [axis for axis in axes if load.strides[axis] >= apart > 0]
    near = [axis for axis in axes if axis not in far and extents[axis] > 1]
    reach = sum((extents[axis] - 1) * load.strides[axis] for axis in near)
    whole = stride_over(load.strides, extents, (*sorted(far, key=lambda axis: -load.strides[axis]), last))
    if depth == 1 or extents[last] % depth or not 0 < reach < apart or whole != apart:
        return None
    if any(load.strides[axis] < 0 for axis in axes) or math.prod(extents[axis] for axis in near) <= reach + 1:
        return None
    rows, pitch = math.prod(extents[axis] for axis in (*far, last)) // depth, -(-(reach + 1) // depth) * depth
    steps = [step if axis in near else step // apart * (pitch // depth) for axis, step in enumerate(load.strides)]
    return Planes(Load(-1, 0, tuple(steps), int32), load.offset, rows, reach + 1, apart, pitch)


@dataclass(frozen=True)
class Contraction:
    """``kernel`` with its axes reordered to batch, m, n, k and merged; the groups are ranges of axis numbers."""

    kernel: Kernel
    a: Expr
    b: Expr
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    dot: Dot

    @property
    def dtype(self) -> DType:
        """The type of products and sums."""
        return self.kernel.acc_dtype

    def group(self, name: str) -> tuple[int, ...]:
        """The axes of group ``b``, ``m``, ``n`` or ``k``, outermost first."""
        return {"b": self.batch, "m": self.m, "n": self.n, "k": self.k}[name]

    def extent(self, name: str) -> int:
        """The flattened extent of a group (1 for an empty one); of k, in elements of the dot product."""
        extent = math.prod(self.kernel.extents[axis] for axis in self.group(name))
        return -(-extent // self.dot.depth) if name == "k" else extent

    def __str__(self) -> str:
        batch = f"{self.extent('b')}×" if self.batch else ""
        return f"{batch}{self.extent('m')}×{self.extent('n')}×{self.extent('k')} {self.dtype}"

    @property
    def ragged(self) -> bool:
        """Whether the last element along k is not full."""
        return math.prod(self.kernel.extents[axis] for axis in self.k) % self.dot.depth != 0

    def varies(self, factor: Expr) -> bool:
        """Whether a factor differs from batch to batch."""
        return bool(depends_on(factor) & {*self.batch})

    @cached_property
    def rows_are_whole(self) -> bool:
        """Whether the epilogue and the results walk all axes of n as one."""
        parts = [part.strides for part in unique(self.kernel.epilogue) if isinstance(part, Load | Index)]
        strides = [self.kernel.store_strides, *parts]
        return all(stride_over(walked, self.kernel.extents, self.n) is not None for walked in strides)

    @cached_property
    def planes(self) -> Planes | None:
        """The planes of the second factor, where its neighbours along k lie in some."""
        load = plain(self.b)
        if load is None or len(self.k) < 2:
            return None
        axes = (*self.batch, *self.n, *self.k[:-1])
        found = planes_of(load, self.kernel.extents, axes, self.k[-1], self.dot.depth)
        return found and replace(found, load=replace(found.load, operand=len(self.kernel.operands)))

    def stride(self, load: Load, name: str) -> int | None:
        """The one stride with which ``load`` walks a group, or None if it takes several (0 for an empty group)."""
        return stride_over(load.strides, self.kernel.extents, self.group(name))

    def out_stride(self, name: str) -> int | None:
        """The one stride with which results are stored along a group, or None."""
        strides = (*self.kernel.store_strides, *[0] * len(self.k))
        return stride_over(strides, self.kernel.extents, self.group(name))


def plain(expr: Expr) -> Load | None:
    """A factor if it is a load that a tile can read where it lies."""
    return expr if isinstance(expr, Load) and not expr.gathers else None


def streamed(expr: Expr) -> Load | None:
    """The load of a second factor that a rank-k update reads once: the factor, or numbers that it is the cast of."""
    if isinstance(expr, Call) and expr.fn == "cast" and expr.args[0].dtype.kind in ("int", "float"):
        (inner,) = expr.args
        return plain(inner) if inner.dtype.bits < expr.dtype.bits else None
    return plain(expr)


def depends_on(expr: Expr) -> set[int]:
    """The axes that ``expr`` varies along."""
    return {
        axis
        for part in unique(expr)
        if isinstance(part, Load | Index)
        for axis, stride in enumerate(part.strides)
        if stride
    }


def contraction_of(kernel: Kernel, product: Product, fixed: int = 0) -> Contraction:
    """A kernel in merged form. The first ``fixed`` axes keep their places, and are in no group."""
    a, b = product.factors(kernel)
    accesses = _strides(kernel)
    groups = [[[axis] for axis in range(fixed)]]
    for axes in (product.b, product.m, product.n, product.k):
        groups.append(_merge(axes, kernel.extents, accesses))
    merged = [axes for group in groups for axes in group]
    parallel = sum(map(len, groups[:4]))
    assert isinstance(kernel.body, Call)
    fused = _rewrite(replace(kernel, body=replace(kernel.body, args=(a, b))), merged, parallel)
    assert isinstance(fused.body, Call)
    starts = [sum(map(len, groups[:i])) for i in range(6)]
    batch_axes, m, n, k = (tuple(range(starts[i], starts[i + 1])) for i in range(1, 5))
    return Contraction(fused, fused.body.args[0], fused.body.args[1], batch_axes, m, n, k, product.dot)


def _strides(kernel: Kernel) -> list[tuple[int, ...]]:
    reduced = len(kernel.extents) - kernel.parallel
    found = {(*kernel.store_strides, *[0] * reduced): None}
    for part in unique(kernel.body, kernel.epilogue, *kernel.domain):
        if isinstance(part, Load | Index):
            found[part.strides] = None
    return list(found)


def _merge(group: Sequence[int], extents: tuple[int, ...], accesses: list[tuple[int, ...]]) -> list[list[int]]:
    """Neighbours that every access walks as one axis, joined."""
    merged: list[list[int]] = []
    for axis in group:
        joined = merged and all(s[merged[-1][-1]] == s[axis] * extents[axis] for s in accesses)
        if joined:
            merged[-1].append(axis)
        else:
            merged.append([axis])
    return merged


def _rewrite(kernel: Kernel, axes: list[list[int]], parallel: int) -> Kernel:
    """``kernel`` over new axes, each one or several old axes, outermost first."""

    def pick(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[group[-1]] for group in axes)

    def walked(expr: Expr) -> Expr:
        return replace(expr, strides=pick(expr.strides)) if isinstance(expr, Load | Index) else expr

    return rewrite_kernel(
        kernel,
        walked,
        extents=tuple(math.prod(kernel.extents[axis] for axis in group) for group in axes),
        parallel=parallel,
        store_strides=tuple(kernel.store_strides[group[-1]] for group in axes[:parallel]),
    )


def loads(kernel: Kernel) -> Iterator[Load]:
    """Every load of a kernel, those inside gathers included, once per use."""
    return (part for expr in (kernel.body, kernel.epilogue) for part in walk(expr) if isinstance(part, Load))


def is_accumulator(expr: Expr) -> bool:
    """Whether an epilogue stores the combined value as it is."""
    return isinstance(expr, Acc)

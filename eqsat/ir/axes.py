"""Iteration spaces in their simplest form: axes of extent 1 dropped, axes that walk as one merged.

All of it is exact rewriting of index maps: the same elements are read, combined and stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from eqsat.ir.kernel import Call, Expr, Guarded, Index, Kernel, KernelGroup, Load, Stage, parts, unique, with_parts
from eqsat.ir.siblings import are_siblings, joint, separate

Strides = tuple[int, ...]


def merged(expr: Expr) -> Expr:
    """The expression with those of its sub-expressions that are equal, down to a zero's sign, made one object."""
    return merged_all([expr])[0]


def merged_all(exprs: Sequence[Expr]) -> list[Expr]:
    """The same across several expressions."""
    done: dict[int, Expr] = {}
    known: dict[tuple[object, ...], Expr] = {}
    for e in unique(*exprs):
        new = [done[id(part)] for part in parts(e)]
        match e:
            case Call(fn, _, dtype, attrs):
                key: tuple[object, ...] = fn, dtype, attrs
            case Guarded(_, low, high):
                key = low, high
            case Load(gathers=gathers) if gathers:
                key = replace(e, gathers=()), tuple(step for _, step in gathers)
            case _:
                key = (e,)
        done[id(e)] = known.setdefault((type(e), *key, *map(id, new)), with_parts(e, new))
    return [done[id(expr)] for expr in exprs]


def loads(*exprs: Expr) -> list[Load]:
    """Every distinct load, those inside index expressions included."""
    return [e for e in unique(*exprs) if isinstance(e, Load)]


def map_strides(expr: Expr, change: Callable[[Strides], Strides], done: dict[int, Expr] | None = None) -> Expr:
    """``expr`` with the strides of every load and index changed; sharing is kept, and with ``done`` across calls."""
    done = {} if done is None else done
    for e in unique(expr):
        if id(e) in done:
            continue
        made = with_parts(e, [done[id(part)] for part in parts(e)])
        if isinstance(made, Load | Index):
            made = made.at(made.offset, change(made.strides))
        done[id(e)] = made
    return done[id(expr)]


def map_axes(kernel: Kernel, keep: Callable[[Strides], Strides], parallel: int) -> Kernel:
    """``kernel`` over other axes: ``keep`` turns a tuple with an entry per old axis into one per new axis."""
    done: dict[int, Expr] = {}
    padding = (0,) * (len(kernel.extents) - kernel.parallel)
    return replace(
        kernel,
        extents=keep(kernel.extents),
        parallel=parallel,
        body=map_strides(kernel.body, keep, done),
        epilogue=map_strides(kernel.epilogue, keep, done),
        store_strides=keep(kernel.store_strides + padding)[:parallel],
        domain=tuple(replace(index, strides=keep(index.strides)) for index in kernel.domain),
    )


def order_rest(kernel: Kernel, shared: int) -> Kernel:
    """Axes past the shared ones, far steps first: the store's for parallel axes, the loads' for reduced ones."""
    parallel = sorted(range(shared, kernel.parallel), key=lambda a: -abs(kernel.store_strides[a]))
    reach = [max((abs(m[a]) for m in kernel.maps), default=0) for a in range(len(kernel.extents))]
    reduced = sorted(range(kernel.parallel, len(kernel.extents)), key=lambda a: -reach[a])
    order = (*range(shared), *parallel, *reduced)
    if order == tuple(range(len(order))):
        return kernel
    return map_axes(kernel, lambda s: tuple(s[a] for a in order), kernel.parallel)


def _drop(kernel: Kernel, axes: set[int]) -> Kernel:
    left = [a for a in range(len(kernel.extents)) if a not in axes]
    return map_axes(kernel, lambda s: tuple(s[a] for a in left), sum(a < kernel.parallel for a in left))


def _units(kernel: Kernel, shared: int) -> set[int]:
    """Axes past the shared ones that can be dropped; a reduction keeps an axis to reduce."""
    units = {a for a in range(shared, len(kernel.extents)) if kernel.extents[a] == 1}
    reduced = set(range(kernel.parallel, len(kernel.extents)))
    if reduced and reduced <= units:
        units.discard(len(kernel.extents) - 1)
    return units


def _merges(kernel: Kernel, a: int) -> bool:
    """Whether axes a and a+1 are one axis to every access."""
    inner = kernel.extents[a + 1]
    maps = (*kernel.maps, *(index.strides for index in kernel.domain))
    return all(m[a] == m[a + 1] * inner for m in maps)


def _merge(kernel: Kernel, a: int) -> Kernel:
    extents = (*kernel.extents[:a], kernel.extents[a] * kernel.extents[a + 1], *kernel.extents[a + 2 :])
    parallel = kernel.parallel - (a < kernel.parallel)
    return replace(map_axes(kernel, lambda s: s[:a] + s[a + 1 :], parallel), extents=extents)


def _empty(kernel: Kernel) -> Kernel:
    """Nothing to reduce: one reduced axis of extent 0, so that no code for the body is made."""
    reduced = kernel.extents[kernel.parallel :]
    if 0 not in reduced:
        return kernel
    kept = kernel.parallel + reduced.index(0)
    return _drop(kernel, set(range(kernel.parallel, len(kernel.extents))) - {kept})


def _reducing(kernel: Kernel) -> Kernel:
    """A reduction without an axis to reduce has one of extent 1."""
    if kernel.combine is None or len(kernel.extents) > kernel.parallel:
        return kernel
    return replace(map_axes(kernel, lambda s: (*s, 0), kernel.parallel), extents=(*kernel.extents, 1))


def normalized(kernel: Kernel, shared: int = 0) -> Kernel:
    """The kernel over fewer axes past the first ``shared`` ones, which stay: what nests walk by ``p0``, ``r0``, …"""
    kernel = _empty(_reducing(kernel))
    return _merge_rest(order_rest(_drop(kernel, _units(kernel, shared)), shared), shared)


def simplify(group: KernelGroup) -> KernelGroup:
    """The group over fewer axes. Shared axes change for all stages alike, and so do all axes of siblings."""
    if are_siblings(group):
        return separate(normalized(joint(group)), group)
    shared = group.shared
    kernels = [stage.kernel for stage in group.stages]
    units = {a for a in range(shared) if kernels[0].extents[a] == 1}
    shared -= len(units)
    kernels = [normalized(_drop(k, units), shared) for k in kernels]
    for a in range(shared - 2, -1, -1):
        if all(_merges(k, a) for k in kernels):
            kernels = [_merge(k, a) for k in kernels]
            shared -= 1
    stages = tuple(Stage(k, s.sources, s.result) for k, s in zip(kernels, group.stages, strict=True))
    return replace(group, stages=stages, shared=shared)


def _merge_rest(kernel: Kernel, shared: int) -> Kernel:
    one_axis = kernel.combine in ("argmax", "argmin")
    for a in range(len(kernel.extents) - 2, shared - 1, -1):
        same_side = (a < kernel.parallel) == (a + 1 < kernel.parallel)
        if same_side and not (one_axis and a >= kernel.parallel) and _merges(kernel, a):
            kernel = _merge(kernel, a)
    return kernel
